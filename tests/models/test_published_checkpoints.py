"""Checkpoints in the forms of public code, for one network: all of them give the same logits."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.models import load_model

State = dict[str, Tensor]
X = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
MEAN, STD = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)


class Network(nn.Module):
    """A small network with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn(self.conv(x)).flatten(1))  # type: ignore[no-any-return]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Network().eval()


def under(prefix: str, state: State | None = None) -> State:
    return {prefix + key: tensor for key, tensor in (state or network().state_dict()).items()}


OTHER_CONSTANTS = {"new_mean": MEAN, "new_std": STD}
OTHER = network(9).state_dict()
PLAIN: dict[str, Callable[[], Any]] = {
    "CFA, TRADES, MART: a bare state dict": lambda: under(""),
    "TRADES in DataParallel": lambda: under("module."),
    "robust_overfitting, AWP": lambda: {"state_dict": under("module."), "test_robust_acc": 0.5, "opt": {"lr": 0.1}},
    "FAT, DAFA": lambda: {"epoch": 3, "state_dict": under("module."), "optimizer": {"state": {}}},
    "forks of kuangliu": lambda: {"net": under("module."), "acc": 93.1, "epoch": 3},
    "ABSLD": lambda: {"model": under(""), "optimizer": {"state": {}}, "epoch": 3},
    "DM-Improves-AT": lambda: {"model_state_dict": under("module.0.")},
    "RobustBench, two checkpoints": lambda: {"best": OTHER, "last": under("module.")},
    "MAIR": lambda: {"rmodel": {**under("model."), "n_classes": torch.tensor(3)}, "optimizer": {"state": {}}},
    "timm, averaged": lambda: {"arch": "net", "state_dict": OTHER, "state_dict_ema": under("module.")},
    "torch.compile": lambda: under("_orig_mod."),
    "torch.compile in DataParallel": lambda: under("module._orig_mod."),
    "swa_utils": lambda: {**under("module."), "n_averaged": torch.tensor(4)},
    "Lightning": lambda: {
        "epoch": 1,
        "pytorch-lightning_version": "2.5.0",
        "hyper_parameters": {"lr": 0.1},
        "state_dict": {**under("resnet."), "loss.weight": torch.ones(3), "metric.total": torch.tensor(1.0)},
    },
    "MR (Engstrom)": lambda: {
        "model": under("module.", under("model.") | under("attacker.model.") | under("normalizer.", OTHER_CONSTANTS))
    },
}
NORMALISED: dict[str, Callable[[], Any]] = {
    "MAIR": lambda: {"rmodel": {**under("model."), "mean": MEAN, "std": STD, "n_classes": torch.tensor(3)}},
    "DM-Improves-AT": lambda: {"model_state_dict": under("module.1.") | under("module.0.", {"mean": MEAN, "std": STD})},
    "RobustBench": lambda: {**under("model."), "mu": MEAN, "sigma": STD},
}


def logits(content: Any, folder: Path) -> Tensor:
    torch.save(content, folder / "w.pt")
    with torch.no_grad():
        logits: Tensor = load_model(Network(), folder / "w.pt")(X)
    return logits


@pytest.mark.parametrize("form", [name for name in PLAIN if not name.startswith("MR")])
def test_forms_without_normalisation(form: str, tmp_path: Path) -> None:
    with torch.no_grad():
        assert torch.equal(logits(PLAIN[form](), tmp_path), network()(X))


@pytest.mark.parametrize("form", [*NORMALISED, "MR (Engstrom)"])
def test_forms_with_normalisation(form: str, tmp_path: Path) -> None:
    with torch.no_grad():
        assert torch.equal(logits((PLAIN | NORMALISED)[form](), tmp_path), network()((X - MEAN) / STD))


def test_safetensors_of_transformers(tmp_path: Path) -> None:
    save_file(dict(network().state_dict()), tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        assert torch.equal(load_model(Network(), tmp_path / "model.safetensors")(X), network()(X))


def test_a_network_that_is_one_attribute_of_a_larger_module_is_reported(tmp_path: Path) -> None:
    torch.save(PLAIN["Lightning"](), tmp_path / "w.pt")
    note = str(load_model(Network(), tmp_path / "w.pt").loaded)
    assert "prefix 'resnet.' removed; ignored keys: loss.weight, metric.total" in note
    torch.save({**under("student."), **under("teacher.", OTHER)}, tmp_path / "w.pt")
    with pytest.raises(
        ClasswiseError, match=r"contains the network several times, with the prefixes student., teacher."
    ):
        load_model(Network(), tmp_path / "w.pt")
    incomplete = {key: tensor for key, tensor in under("resnet.").items() if key != "resnet.fc.bias"}
    torch.save(incomplete, tmp_path / "w.pt")
    with pytest.raises(ClasswiseError, match="missing key"):
        load_model(Network(), tmp_path / "w.pt")


@pytest.mark.slow  # imports of torch.compile
@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_weights_for_a_wrapped_network(wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    torch.save(under(""), tmp_path / "w.pt")
    wrapped = wrap(network(5))
    load_model(wrapped, tmp_path / "w.pt")
    assert torch.equal(next(wrapped.parameters()), next(network().parameters()))


def scripted(file: Path) -> None:
    torch.jit.save(torch.jit.trace(network(), X), file)  # type: ignore[no-untyped-call]


def exported(file: Path) -> None:
    torch.export.save(torch.export.export(network(), (X,)), file)


def exported_before(file: Path) -> None:
    import zipfile

    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")


@pytest.mark.filterwarnings("ignore")  # deprecations of TorchScript
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (scripted, "is a TorchScript program, which contains code, and is not loaded; .* audit torch.jit.load('w.pt')"),
        pytest.param(
            exported,
            "is a program of torch.export, not weights; audit torch.export.load('w.pt').module() in Python",
            marks=pytest.mark.slow,
        ),
        (exported_before, "is a program of torch.export"),
    ],
)
def test_programs_are_named(write: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    write(tmp_path / "w.pt")
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ClasswiseError, match=pattern):
        load_model(tmp_path / "w.pt")
    with pytest.raises(ClasswiseError, match=pattern):
        load_model(Network(), tmp_path / "w.pt")
