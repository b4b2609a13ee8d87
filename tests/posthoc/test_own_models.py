"""Logit adjustment and weight interpolation of networks, functions and checkpoints without a run."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.core.progress.listener import NullProgress
from classwise.data.duplicates import content_hashes
from classwise.models import AdjustedLogits, load_model, save_weights
from classwise.models.base import bare
from classwise.posthoc.logit_adjustment import LogitAdjustment

from ..documents import DOCS, blocks
from ..refusals import refused

QUICK: dict[str, Any] = {"attack": "pgd:steps=2", "rates": [0.5], "folds": 0}
THREAT = "Linf:0.05"
MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(self.body(x))

def build():
    return Net()

class Classes(nn.Module):
    def __init__(self, scale=10.0):
        super().__init__()
        self.weight, self.scale = nn.Parameter(nn.init.orthogonal_(__import__("torch").empty(10, 64))), scale

    def forward(self, x):
        return self.scale * nn.functional.normalize(x.flatten(1)) @ nn.functional.normalize(self.weight).T
"""


@pytest.fixture(scope="module")
def images() -> cw.Images:
    return cw.load_data("digits", split="train", subset=120)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module of a user with networks, which can be imported."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "posthoc_mine.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    torch.manual_seed(0)
    yield __import__("posthoc_mine")
    sys.path.remove(str(folder))


def trained(network: nn.Module, images: cw.Images, steps: int = 40) -> nn.Module:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    x, y = images.pixels(slice(None)), images.y
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()
    return network.eval()


def networks(mine: Any) -> dict[str, nn.Module]:
    return {
        "the last layer is fc": mine.Net(),
        "no bias": nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
        "no linear head": mine.Classes(),
        "convolution": nn.Sequential(nn.Conv2d(1, 10, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    }


@pytest.mark.parametrize("name", ["the last layer is fc", "no bias", "no linear head", "convolution"])
def test_any_module_is_adjusted_and_neither_changed_nor_trained(mine: Any, images: cw.Images, name: str) -> None:
    network = trained(networks(mine)[name], images)
    before = copy.deepcopy(network.state_dict())
    found = cw.adjust_logits(network, images, THREAT, **QUICK)
    x = images.pixels(slice(0, 20))
    with torch.no_grad():
        assert torch.equal(found.model(x), network(x) + found.constants)
    assert found.constants.any()
    assert found.path is None
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    robust = torch.tensor(found.rounds.query("round == 0")["robust"].to_numpy())
    assert torch.allclose(found.constants.double(), 0.5 * (robust.mean() - robust), atol=1e-6)


def test_a_function_is_adjusted_but_not_saved(images: cw.Images, tmp_path: Path) -> None:
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

    def logits(x: Tensor) -> Tensor:
        return x.flatten(1) @ weight

    found = cw.adjust_logits(logits, images, THREAT, **QUICK)
    x = images.pixels(slice(0, 20))
    assert torch.equal(found.model(x), logits(x) + found.constants)
    said = refused(cw.adjust_logits, logits, images, THREAT, out=tmp_path / "f.safetensors", **QUICK)
    assert "the weights of a function cannot be saved" in said


def test_a_model_without_gradients_is_adjusted_under_attacks_that_need_none(images: cw.Images) -> None:
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

    def logits(x: Tensor) -> Tensor:
        return (x.flatten(1) @ weight).detach()

    assert "such as square" in refused(cw.adjust_logits, logits, images, THREAT, **QUICK)
    found = cw.adjust_logits(logits, images, THREAT, **{**QUICK, "attack": "square:steps=2"})
    assert found.constants.any()


def adjusted_and_saved(model: Any, images: cw.Images, path: Path, **options: Any) -> LogitAdjustment:
    return cw.adjust_logits(model, images, THREAT, out=path, **QUICK, **options)


def test_the_file_of_an_adjusted_model_has_its_constants(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    network, path = trained(mine.Net(), images), tmp_path / "adjusted.safetensors"
    torch.save({"state_dict": network.state_dict()}, tmp_path / "model.pt")
    given = {
        "module": load_model(copy.deepcopy(network), mean=[0.3], std=[0.4]),
        "reference": load_model("posthoc_mine:build", weights=tmp_path / "model.pt", mean=[0.3], std=[0.4]),
    }
    x = images.pixels(slice(0, 20))
    for name, model in given.items():
        found = adjusted_and_saved(model, images, path)
        loaded = {
            "into a module": load_model(mine.Net(), weights=path),
            "by the reference": load_model("posthoc_mine:build", weights=path),
            "by the file": load_model(path) if name == "reference" else None,
        }
        for how, again in loaded.items():
            if again is not None:
                with torch.no_grad():
                    assert torch.equal(again(x), found.model(x)), how
                assert isinstance(again, AdjustedLogits)
                assert again.fitted_images.tolist() == content_hashes(images.x, images.y).tolist()
    torch.save(found.model.state_dict(), tmp_path / "adjusted.pt")
    with torch.no_grad():
        assert torch.equal(load_model(mine.Net(), weights=tmp_path / "adjusted.pt")(x), found.model(x))


def test_an_adjusted_model_is_audited_with_its_constants(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    network, path = trained(mine.Net(), images), tmp_path / "adjusted.safetensors"
    found = adjusted_and_saved(network, images, path)
    test = cw.load_data("digits", split="test", subset=64)
    audits = [cw.audit(model, test, THREAT, "pgd:steps=3") for model in (found.model, load_model(mine.Net(), path))]
    clean = audits[0].outcomes.frame.query("attack == 'clean'")
    with torch.no_grad():
        logits = network(test.pixels(slice(None))) + found.constants
    assert clean["prediction"].tolist() == logits.argmax(1).tolist()
    assert audits[0].outcomes.frame["prediction"].equals(audits[1].outcomes.frame["prediction"])
    assert audits[0].outcomes.meta.model_hash == audits[1].outcomes.meta.model_hash


def test_an_audit_of_images_of_the_fit_is_warned_about(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    network, path = trained(mine.Net(), images), tmp_path / "adjusted.safetensors"
    test = cw.load_data("digits", split="test", subset=64)
    found = adjusted_and_saved(network, test.take(torch.arange(20)), path)
    for model in (found.model, load_model(mine.Net(), weights=path)):
        audit = cw.audit(model, test.take(torch.arange(10, 64)), THREAT, "pgd:steps=3")
        (warning,) = (warning for warning in audit.warnings if warning.name == "training-images")
        assert "fitted on 10 of the images" in warning.sentence
    others = cw.audit(found.model, test.take(torch.arange(20, 64)), THREAT, "pgd:steps=3")
    assert "training-images" not in {warning.name for warning in others.warnings}


def test_a_second_adjustment_is_added_to_the_first(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    network = trained(mine.Net(), images)
    first = cw.adjust_logits(network, images.take(torch.arange(60)), THREAT, **QUICK)
    second = adjusted_and_saved(first.model, images.take(torch.arange(60, 120)), tmp_path / "twice.safetensors")
    assert isinstance(second.model, AdjustedLogits)
    assert bare(second.model) is network
    assert torch.equal(second.model.logit_adjustment, first.constants + second.constants)
    assert len(second.model.fitted_images) == 120


@pytest.mark.parametrize("bias", [True, False])
def test_the_documented_weights_without_classwise_give_the_adjusted_logits(
    images: cw.Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bias: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    layers = OrderedDict(flat=nn.Flatten(), fc=nn.Linear(64, 10, bias=bias))
    module = trained(nn.Sequential(layers), images)
    found = cw.adjust_logits(module, images, THREAT, **QUICK)
    x = images.pixels(slice(0, 20))
    expected = found.model(x)
    assert found.constants.any()
    (block,) = [part for part in blocks(DOCS / "how-to/own-model.md") if "layer.bias" in part.text]
    exec(block.text, {"found": found, "module": module})
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    plain.load_state_dict(dict(zip(plain.state_dict(), torch.load("plain.pt").values(), strict=True)))
    torch.testing.assert_close(plain(x), expected)


def test_images_of_the_test_split_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    listener = NullProgress()
    monkeypatch.setattr(listener, "log", lines.append)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for split in ("train", "test"):
        assert not any("the split" in line for line in lines)
        cw.adjust_logits(network, cw.load_data("digits", split=split, subset=20), THREAT, progress=listener, **QUICK)
    assert any("accuracies on it are no test of the result" in line for line in lines)


def test_the_default_shares_contain_both_models(images: cw.Images) -> None:
    start, tuned = (trained(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), images, steps=steps) for steps in (2, 30))
    found = cw.interpolate_weights(tuned, start, images, THREAT, attack="pgd:steps=2")
    assert {0.0, 0.5, 1.0} < set(found.tried["share"])
    for share, model in ((0.0, start), (1.0, tuned)):
        of_model = cw.audit(model, images, THREAT, "pgd:steps=2", early_stop=False, guards="off").by_class["pgd"]
        robust = found.tried.loc[found.tried["share"] == share, "robust"]
        assert robust.to_numpy() == pytest.approx(of_model.to_numpy(), nan_ok=True)


def test_probabilities_are_adjusted_as_logarithms(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    network = nn.Sequential(trained(mine.Net(), images), nn.Softmax(1))
    assert "returns probabilities" in refused(cw.adjust_logits, network, images, THREAT, **QUICK)
    path = tmp_path / "adjusted.safetensors"
    found = adjusted_and_saved(load_model(network, outputs="probabilities"), images, path)
    again = load_model(network, weights=path, outputs="probabilities")
    x = images.pixels(slice(0, 20))
    with torch.no_grad():
        assert torch.equal(again(x), network(x).log() + found.constants)


def test_a_model_in_training_mode_is_adjusted_in_evaluation_mode(images: cw.Images) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.9)).train()
    training = cw.adjust_logits(network, images, THREAT, **QUICK)
    assert network.training
    assert network[2].training
    again = cw.adjust_logits(network.eval(), images, THREAT, **QUICK)
    assert torch.equal(training.constants, again.constants)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ([], {}, "data is required for a model that is not a run folder"),
        (["IMAGES"], {"which": "last"}, "which = 'last' applies to runs only"),
        (["IMAGES", THREAT], {"attack": "autoattack"}, "is a suite of 4 attacks"),
        (["IMAGES", ("Linf", torch.full((120,), 0.1))], {}, "one radius for all images"),
        (["IMAGES", "spatial:1"], {}, "does not support spatial"),
        (["OTHER"], {}, "has no usual threat; give one"),
        (["IMAGES", THREAT], {"device": "gpu7"}, "no device 'gpu7'"),
    ],
)
def test_mistakes_are_refused(images: cw.Images, arguments: list[Any], options: dict[str, Any], words: str) -> None:
    other = cw.Images(images.x, images.y, images.class_names, "other", "val")
    data = {"IMAGES": images, "OTHER": other}
    given = [data.get(value, value) if isinstance(value, str) else value for value in arguments]
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert words in refused(cw.adjust_logits, network, *given, **options)
    assert words in refused(cw.interpolate_weights, network, copy.deepcopy(network), *given, **options)


def test_an_adjusted_model_is_no_start_of_a_training(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    path = tmp_path / "adjusted.safetensors"
    adjusted_and_saved(mine.Net(), images, path)
    small = {"data.subset": 60, "model.name": "posthoc_mine:build", "model.weights": str(path), "epochs": 1}
    said = refused(cw.train, "at", data="digits", out=tmp_path / "run", overrides=small)
    assert "has a logit adjustment, which fits these weights only" in said


def test_an_adjustment_must_fit_the_classes() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert "has 3 classes and the model 10" in refused(AdjustedLogits(network, [0.0, 1.0, 2.0]), torch.rand(2, 1, 8, 8))
    assert "expected a finite number for each class" in refused(AdjustedLogits, network, [0.0, float("nan")])
    assert "adjusted already" in refused(AdjustedLogits, AdjustedLogits(network, [0.0] * 10), [0.0] * 10)


def test_interpolated_modules_are_between_the_two(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    start = trained(mine.Net(), images, steps=5)
    tuned = trained(copy.deepcopy(start), images)
    torch.save(start.state_dict(), tmp_path / "start.pt")
    options: dict[str, Any] = {"attack": "pgd:steps=2", "shares": [0.25]}
    for given in (start, tmp_path / "start.pt"):
        found = cw.interpolate_weights(tuned, given, images, THREAT, out=tmp_path / "mixed.safetensors", **options)
        before, after = start.state_dict(), tuned.state_dict()
        for weights in (found.model, load_model(mine.Net(), weights=tmp_path / "mixed.safetensors")):
            for name, value in bare(weights).state_dict().items():
                assert torch.allclose(value, 0.25 * after[name] + 0.75 * before[name], atol=1e-6), name
    assert found.tried["share"].unique().tolist() == [0.25]


def test_interpolation_needs_two_models_of_one_architecture(mine: Any, images: cw.Images, tmp_path: Path) -> None:
    network = mine.Net()
    arguments = images, THREAT
    assert "start is required" in refused(cw.interpolate_weights, network, None, *arguments)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert "another architecture (Sequential)" in refused(cw.interpolate_weights, network, other, *arguments)
    adjusted = AdjustedLogits(mine.Net(), [0.0] * 10)
    assert "interpolate first" in refused(cw.interpolate_weights, adjusted, network, *arguments)
    assert "the initial model has a logit" in refused(cw.interpolate_weights, network, adjusted, *arguments)
    save_weights(tmp_path / "adjusted.safetensors", adjusted)
    said = refused(cw.interpolate_weights, network, tmp_path / "adjusted.safetensors", *arguments)
    assert "the initial model has a logit" in said
    assert "of a function cannot be saved" in refused(cw.interpolate_weights, network.forward, network, *arguments)


def test_few_images_to_fit_on_are_named(images: cw.Images, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    listener = NullProgress()
    monkeypatch.setattr(listener, "log", lines.append)
    data = images.take(range(12))
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    cw.adjust_logits(network, data, THREAT, progress=listener, **QUICK)
    fewest = min(number for number in data.class_counts().tolist() if number)
    assert any(line.startswith(f"the constants are fitted on few images ({fewest} of ") for line in lines)
