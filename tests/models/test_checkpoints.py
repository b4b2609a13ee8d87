"""Checkpoint files of every form, also of public code: read as data, or refused in one line."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import os
import pickle
import re
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from classwise.cli.inputs import ModelSource
from classwise.models import load_model, read_state, save_weights
from classwise.models.loading.checkpoints import STATE_DICT_KEYS
from tests.refusals import check_refused, refused

STATE = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
OTHER = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
RUNS = r"would execute code \((posix|nt|os)\.mkdir\)"


class Evil:
    """Runs a command where a reader trusts it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def saved(folder: Path, value: object) -> Path:
    torch.save(value, folder / "weights.pt")
    return folder / "weights.pt"


def same(found: object) -> bool:
    assert isinstance(found, dict)
    return found.keys() == STATE.keys() and all(torch.equal(found[key], STATE[key]) for key in STATE)


@pytest.mark.parametrize("key", STATE_DICT_KEYS)
def test_every_state_dict_key(tmp_path: Path, key: str) -> None:
    found = read_state(saved(tmp_path, {key: STATE, "epoch": 3, "optimizer": {"state": {}, "lr": 0.1}, "acc": 0.5}))
    assert same(found.tensors)
    assert found.keys == (key,)
    assert repr(key) in found.describe()


BESIDE = {
    "epoch": 3,
    "args": {"lr": 0.1},
    "optimizer": {"state": {0: {"momentum_buffer": torch.ones(2, 3)}}, "groups": []},
}


@pytest.mark.parametrize("key", ["my_net", "generator", "params/encoder"])
@pytest.mark.parametrize("stats", [{}, {"statistics": {"mean": torch.ones(1, 3, 1, 1), "std": torch.ones(3)}}])
def test_the_only_dictionary_of_tensors_under_any_key(tmp_path: Path, key: str, stats: dict[str, Any]) -> None:
    """Beside an optimiser, and beside vectors, which are no weights."""
    found = read_state(saved(tmp_path, BESIDE | stats | {key: STATE}))
    assert same(found.tensors)
    assert found.keys == (key,)
    assert found.other_keys == tuple(stats)


def test_vectors_alone_may_be_weights(tmp_path: Path) -> None:
    assert read_state(saved(tmp_path, {"scales": {"w": torch.ones(3)}})).keys == ("scales",)


@pytest.mark.parametrize("others", [{"teacher": STATE}, {"teacher": {"model": STATE}}])
def test_two_dictionaries_of_tensors_are_named(tmp_path: Path, others: dict[str, Any]) -> None:
    path = saved(tmp_path, BESIDE | {"student": STATE} | others)
    said = refused(read_state, path)
    assert "has several dictionaries of tensors: 'student', 'teacher'; state the key" in said
    assert "--model-set state_dict_key=student (in Python: load_model(..., state_dict_key='student'))" in said
    for key in ("student", "teacher"):
        assert same(read_state(path, state_dict_key=key).tensors)


def test_the_command_line_states_the_key(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    other = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    path = saved(tmp_path, {"student": network.state_dict(), "teacher": other})
    (tmp_path / "keyed_net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        source = ModelSource("keyed_net:build", path, model_set=["state_dict_key=teacher"])
        model = source.load(None, "cpu")
    assert isinstance(model, nn.Module)
    (weight,) = (tensor for name, tensor in model.named_parameters() if name.endswith("1.weight"))
    assert torch.equal(weight, other["1.weight"])


@pytest.mark.parametrize("legacy", [False, True])
def test_a_bare_state_dict(tmp_path: Path, legacy: bool) -> None:
    torch.save(STATE, tmp_path / "w.pth", _use_new_zipfile_serialization=not legacy)
    found = read_state(tmp_path / "w.pth")
    assert same(found.tensors)
    assert found.keys == ()


def test_safetensors_whatever_the_name(tmp_path: Path) -> None:
    for name in ("w.safetensors", "w.pt"):
        save_file(STATE, tmp_path / name, {"classwise": "[not ours", "format": "pt"})
        found = read_state(tmp_path / name)
        assert same(found.tensors)
        assert found.metadata["format"] == "pt"
        check_refused("is a single state dict", read_state, tmp_path / name, state_dict_key="ema")


def test_nested_dictionaries(tmp_path: Path) -> None:
    found = read_state(saved(tmp_path, {"model": {"state_dict": STATE}, "epoch": 1}))
    assert same(found.tensors)
    assert found.keys == ("model", "state_dict")


@pytest.mark.parametrize(
    ("preferred", "other"),
    [
        ("params_ema", "params"),
        ("ema_state", "model_state"),
        ("state_dict_ema", "state_dict"),
        ("ema", "model"),
        ("model_ema", "model"),
        ("last", "best"),
    ],
)
def test_the_preferred_of_two_is_taken_and_said(tmp_path: Path, preferred: str, other: str) -> None:
    path = saved(tmp_path, {other: OTHER, preferred: STATE})
    found = read_state(path)
    assert same(found.tensors)
    assert found.other_keys == (other,)
    assert repr(other) in found.describe()
    assert ("averaged" in found.describe()) == ("ema" in preferred)
    assert not same(read_state(path, state_dict_key=other).tensors)


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        ({"epoch": 3, "lr": 0.1}, None, "no state dict; it contains 'epoch', 'lr'"),
        ({}, None, "no state dict; it contains nothing"),
        ([1, 2], None, "no state dict; it contains a list"),
        ({"model": {}, "note": "x"}, None, "no state dict; it contains 'model', 'note'"),
        ({"state_dict": STATE}, "ema", "no state dict 'ema'; known: state_dict$"),
        (STATE, "ema", "is a single state dict; omit state_dict_key = 'ema'$"),
        (nn.Linear(2, 2), None, r"would execute code \(torch\.nn.*Linear\).* save only model.state_dict\(\)"),
    ],
)
def test_nothing_to_read(tmp_path: Path, value: object, key: str | None, message: str) -> None:
    check_refused(message, read_state, saved(tmp_path, value), state_dict_key=key)


@pytest.mark.parametrize(
    "value",
    [
        argparse.Namespace(lr=0.1, out=Path("a")),
        np.float64(0.9),
        np.bool_(True),
        np.arange(3),
        np.array([None, {}], dtype=object),
        np.random.RandomState(0).get_state(),
        Path("a/b"),
        collections.defaultdict(list, {"loss": [1]}),
        collections.deque([1, 2], maxlen=3),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        decimal.Decimal("1.5"),
        frozenset({1}),
        types.SimpleNamespace(a=1),
        torch.torch_version.TorchVersion("2.0"),
        uuid.UUID(int=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_data_beside_the_weights(tmp_path: Path, value: object) -> None:
    """As timm, Lightning and the references of torchvision write it; the allowed classes of torch stay as they are."""
    before = set(map(str, torch.serialization.get_safe_globals()))
    assert same(read_state(saved(tmp_path, {"state_dict": STATE, "other": {"value": value}})).tensors)
    assert set(map(str, torch.serialization.get_safe_globals())) == before


class Phase(enum.Enum):
    WARM_UP = 1


class Point(NamedTuple):
    x: int


@dataclasses.dataclass
class Settings:
    lr: float = 0.1


class Node(dict[str, Any]):
    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.frozen = True


class History(list[Any]):
    pass


@pytest.mark.parametrize("legacy", [False, True])
def test_objects_of_the_user_beside_the_weights(legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of their modules is called; a dictionary of such a class may contain the weights."""
    values = [Phase.WARM_UP, Point(1), Settings(), Node(a=Node(b=1)), History([1, 2]), np.random.default_rng(0)]
    for value in (*values, values):
        torch.save({"state_dict": STATE, "own": value}, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
        with monkeypatch.context() as patched:
            for kind in (Phase, Point, Settings, Node, History):
                patched.setattr(kind, "__new__", lambda *_, **__: pytest.fail("called"))
            assert same(read_state(tmp_path / "w.pt").tensors)
    assert read_state(saved(tmp_path, Node(ema=Node(**STATE)))).keys == ("ema",)
    check_refused("no state dict; it contains a Settings", read_state, saved(tmp_path, Settings()))


def test_a_pickle_that_names_many_classes_is_refused(tmp_path: Path) -> None:
    kinds = [type(f"Own{number}", (), {"__module__": __name__}) for number in range(40)]
    for kind in kinds:
        globals()[kind.__name__] = kind
    try:
        check_refused(r"would execute code \(.*Own32\)", read_state, saved(tmp_path, {"w": STATE, "own": kinds}))
    finally:
        for kind in kinds:
            del globals()[kind.__name__]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_later_protocols_of_pickle_are_named(protocol: int, legacy: bool, tmp_path: Path) -> None:
    path, zipped = tmp_path / "w.pt", not legacy
    torch.save({"state_dict": STATE}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    if protocol == 3:  # no other operation than in protocol 2
        assert same(read_state(path).tensors)
    else:
        check_refused("w.pt is written with pickle protocol 3 or later, .* without pickle_protocol=", read_state, path)


def test_weights_within_a_dictionary_of_another_class(tmp_path: Path) -> None:
    assert read_state(saved(tmp_path, collections.defaultdict(dict, {"ema": STATE}))).keys == ("ema",)


def test_no_class_of_plain_data_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, {"state_dict": STATE, "args": argparse.Namespace(a=1)})
    monkeypatch.setattr(argparse.Namespace, "__init__", lambda *_, **__: pytest.fail("called"))
    assert same(read_state(path).tensors)


@pytest.mark.parametrize(("protocol", "refusal"), [(None, RUNS), (4, "pickle protocol 3 or later")])
def test_a_pickle_that_would_execute_code_is_refused_with_its_reason(
    tmp_path: Path, protocol: int | None, refusal: str
) -> None:
    value = {"state_dict": STATE, "extra": Evil(tmp_path / "ran")}
    path = tmp_path / "weights.pt"
    if protocol is None:
        torch.save(value, path)
    else:
        path.write_bytes(pickle.dumps(value, protocol))
    check_refused(refusal, read_state, path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short(tmp_path: Path, legacy: bool, share: float) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": {"weight": torch.rand(50, 50)}}, path, _use_new_zipfile_serialization=not legacy)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    check_refused(r"weights.pt is damaged", read_state, path)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
def test_a_safetensors_file_cut_short(tmp_path: Path, share: float) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"weight": torch.rand(50, 50)}, path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "w.safetensors is damaged or truncated" in refused(read_state, path)


@pytest.mark.parametrize("content", [b"hello", b"\x80\x04.", b"\x00" * 100])
def test_something_else_altogether(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    check_refused(r"w.pt (is damaged|has no state dict)", read_state, tmp_path / "w.pt")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    check_refused(r"cannot read the weights .*none.pt: No such file", read_state, tmp_path / "none.pt")


def test_parameters_are_tensors_too(tmp_path: Path) -> None:
    assert read_state(saved(tmp_path, dict(nn.Linear(2, 2).named_parameters()))).tensors.keys() == {"weight", "bias"}


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
OTHER_NETWORK = network(9).state_dict()
PLAIN: dict[str, Callable[[], Any]] = {
    "CFA, TRADES, MART: a bare state dict": lambda: under(""),
    "TRADES in DataParallel": lambda: under("module."),
    "robust_overfitting, AWP": lambda: {"state_dict": under("module."), "test_robust_acc": 0.5, "opt": {"lr": 0.1}},
    "FAT, DAFA": lambda: {"epoch": 3, "state_dict": under("module."), "optimizer": {"state": {}}},
    "forks of kuangliu": lambda: {"net": under("module."), "acc": 93.1, "epoch": 3},
    "ABSLD": lambda: {"model": under(""), "optimizer": {"state": {}}, "epoch": 3},
    "DM-Improves-AT": lambda: {"model_state_dict": under("module.0.")},
    "RobustBench, two checkpoints": lambda: {"best": OTHER_NETWORK, "last": under("module.")},
    "MAIR": lambda: {"rmodel": {**under("model."), "n_classes": torch.tensor(3)}, "optimizer": {"state": {}}},
    "timm, averaged": lambda: {"arch": "net", "state_dict": OTHER_NETWORK, "state_dict_ema": under("module.")},
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
    torch.save({**under("student."), **under("teacher.", OTHER_NETWORK)}, tmp_path / "w.pt")
    assert "contains the network several times, with the prefixes student., teacher." in refused(
        load_model, Network(), tmp_path / "w.pt"
    )
    incomplete = {key: tensor for key, tensor in under("resnet.").items() if key != "resnet.fc.bias"}
    torch.save(incomplete, tmp_path / "w.pt")
    assert "missing key" in refused(load_model, Network(), tmp_path / "w.pt")


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
    check_refused(pattern, load_model, tmp_path / "w.pt")
    check_refused(pattern, load_model, Network(), tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("metadata", "epoch"), [({"epoch": 4}, 5), ({"epoch": "x"}, None), ({"epoch": -1}, None), ({}, None)]
)
def test_the_epoch_of_weights_that_a_training_saved(
    tmp_path: Path, metadata: dict[str, Any], epoch: int | None
) -> None:
    save_weights(tmp_path / "own.safetensors", nn.Linear(2, 2), metadata)
    assert read_state(tmp_path / "own.safetensors").epoch == epoch
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors", {"epoch": "4"})  # its epochs may be from 1
    assert read_state(tmp_path / "other.safetensors").epoch is None
