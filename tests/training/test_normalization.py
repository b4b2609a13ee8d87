"""The normalisation in front of a network: stated, of the initial weights, of the data, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import classwise as cw
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.training.folder import Run
from classwise.training.recipe_settings import ModelSettings
from classwise.training.setup import data_constants
from classwise.training.train import train

from ..refusals import check_refused, refused
from .on_digits import NETWORK, TINY


class Waves(nn.Module):
    """A network whose features depend on how the images are normalised."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(torch.cos(6 * x.flatten(1)))
        return logits


def with_layer(num_classes: int = 10) -> nn.Module:
    return cw.Normalized(Waves(), (0.3,), (0.5,))


def fitted(model: nn.Module) -> nn.Module:
    digits = load_data("digits", split="train")
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(digits.pixels()), digits.y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model.eval()


def accuracy(model: nn.Module) -> float:
    test = load_data("digits", split="test")
    with torch.no_grad():
        return float((model(test.pixels()).argmax(1) == test.y).float().mean())


def tuned(out: Path, name: str, weights: Path | None, images: Images | None = None, **model: Any) -> Run:
    """A run that leaves the weights as they are."""
    settings = {"name": f"{__name__}:{name}" if name != NETWORK["name"] else name} | model
    overrides = TINY | {"model": settings | {"weights": weights and str(weights)}, "optimizer.lr": 1e-9, "epochs": 1}
    return train("standard", data=images or "digits", out=out, overrides=overrides)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A file of weights that fit images in [0, 1], and their accuracy."""
    model = fitted(Waves())
    path = tmp_path_factory.mktemp("weights") / "own.pt"
    torch.save(model.state_dict(), path)
    return path, accuracy(model)


@pytest.mark.parametrize("stated", [{}, {"normalization": "none"}, {"mean": 0, "std": 1}])
def test_weights_that_fit_images_in_0_1_keep_their_accuracy(
    stated: dict[str, Any], own: tuple[Path, float], tmp_path: Path
) -> None:
    weights, expected = own
    run = tuned(tmp_path / "run", "Waves", weights, **stated)
    assert expected > 0.8
    assert accuracy(run.model()) == pytest.approx(expected, abs=0.01)
    assert run.environment["initial_accuracy"] > 0.7
    assert run.recipe.model.normalization == "none"


@pytest.mark.parametrize("stated", [{"normalization": "data"}, {"mean": "0.5", "std": "0.1"}])
def test_another_normalisation_is_an_error_with_the_ways_out(
    stated: dict[str, Any], own: tuple[Path, float], tmp_path: Path
) -> None:
    message = refused(tuned, tmp_path / "run", "Waves", own[0], **stated)
    assert "does not fit the weights (accuracy of the initial weights on 160 images: " in message
    assert all(f"model.{way}" in message for way in ("normalization=none", "normalization=data", "mean"))


def test_weights_behind_the_normalisation_of_the_data_are_recognised(tmp_path: Path) -> None:
    """By their accuracy, since their file has no constants."""
    network = Waves()
    model = fitted(cw.Normalized(network, *data_constants(load_data("digits", split="train"))))
    torch.save(network.state_dict(), tmp_path / "own.pt")
    run = tuned(tmp_path / "run", "Waves", tmp_path / "own.pt")
    assert run.recipe.model.normalization == "auto"
    assert accuracy(run.model()) == pytest.approx(accuracy(model), abs=0.01)


class FirstChannel(nn.Module):
    """`Waves` on the first of three channels."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.waves = Waves(num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.waves(x[:, :1])
        return logits


@pytest.mark.parametrize("by_data", [False, True])
def test_each_channel_has_its_constants(by_data: bool, own: tuple[Path, float], tmp_path: Path) -> None:
    digits = load_data("digits", split="train")
    colour = Images(torch.cat([digits.pixels(), digits.pixels() / 2, digits.pixels() ** 2], 1), digits.y)
    network, state = Waves(), torch.load(own[0])
    if by_data:
        fitted(cw.Normalized(network, *data_constants(digits)))
        state = network.state_dict()
    torch.save({f"waves.{name}": value for name, value in state.items()}, tmp_path / "own.pt")
    run = tuned(tmp_path / "run", "FirstChannel", tmp_path / "own.pt", colour)
    assert run.recipe.model.normalization == ("auto" if by_data else "none")
    assert run.environment["initial_accuracy"] > (0.3 if by_data else 0.7)


def test_a_resumed_run_keeps_the_decision(own: tuple[Path, float], tmp_path: Path) -> None:
    run = tuned(tmp_path / "run", "Waves", own[0])
    overrides = yaml.safe_load(run.recipe_file.read_text())
    overrides["model"] |= {"normalization": "auto"}
    assert train(overrides, data="digits", out=run.path, resume=True).recipe.model.normalization == "none"


def test_weights_of_a_run_keep_their_normalisation(tmp_path: Path) -> None:
    """Also where the data of the second run have other statistics."""
    first = train("standard", data="digits", out=tmp_path / "first", overrides=TINY | {"epochs": 6, "data.subset": 800})
    digits = load_data("digits", split="train")
    dark = Images(digits.x // 2, digits.y, class_names=digits.class_names, name="dark")
    assert data_constants(dark) != data_constants(digits)
    run = tuned(tmp_path / "second", "small-cnn", first.path, dark, width=NETWORK["width"])
    assert run.recipe.model.mean == pytest.approx(data_constants(digits)[0])
    assert accuracy(run.model()) == pytest.approx(accuracy(first.model()), abs=0.02)


def test_a_network_with_a_layer_of_its_own_gets_no_second_one(tmp_path: Path) -> None:
    run = tuned(tmp_path / "run", "with_layer", None)
    assert run.recipe.model.normalization == "none"
    model = run.model()
    assert isinstance(model, cw.Normalized)
    assert model.mean.item() == pytest.approx(0.3)


def test_stated_constants_are_those_of_the_run(tmp_path: Path) -> None:
    run = tuned(tmp_path / "run", "Waves", None, mean="0.25", std="1/2")
    model = load_model(run.path)
    assert isinstance(model, cw.Normalized)
    assert (model.mean.item(), model.std.item()) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean": (0.5,)}, "model.mean and model.std must be given together"),
        ({"mean": (0.5,), "std": (1,), "normalization": "data"}, "which replace it"),
        ({"normalization": "weights"}, "needs model.weights"),
    ],
)
def test_contradictions(settings: dict[str, Any], message: str) -> None:
    check_refused(message, ModelSettings, **settings)


def test_the_constants_of_images_sorted_by_class_are_those_of_all_classes() -> None:
    x = torch.tensor([0, 255], dtype=torch.uint8).repeat_interleave(11_000).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    mean, std = data_constants(Images(x.contiguous(), torch.arange(2).repeat_interleave(11_000), name="sorted"))
    assert mean + std == pytest.approx([0.5, 0.5], abs=1e-3)
