"""Suites name attacks that exist; AutoAttack answers to the calls that its scripts make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.base import Attack
from classwise.attacks.suites import SUITES, members
from classwise.core.config import make
from classwise.core.errors import ClasswiseError
from classwise.core.threat import Threat

from .models import Linear, images


@pytest.mark.parametrize(("name", "version"), [(name, version) for name in SUITES for version in SUITES[name]])
@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_every_member_is_an_attack(name: str, version: str, norm: str) -> None:
    specs = members(name, {"version": version}, norm)
    assert specs
    assert all(isinstance(make(ATTACKS, spec), Attack) for spec in specs)
    if norm == "L1":
        assert not {"square", "fab", "fab-t"} & {spec.partition(":")[0] for spec in specs}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("autoatack", {}, "did you mean 'autoattack'"),
        ("autoattack", {"version": "standart"}, "did you mean 'standard'"),
        ("autoattack", {"versoin": "plus"}, "did you mean 'version'"),
    ],
)
def test_what_is_unknown_is_said_with_the_nearest_known(name: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ClasswiseError, match=words):
        members(name, options)


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    model, x = Linear(5).eval(), images(40, side=3)
    y = model(x).argmax(1)
    y[:4] = (y[:4] + 1) % 5
    return model, x, y


@torch.no_grad()
def closest(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The Linf radius at which each image of a linear model falls, with no box: its margin over the L1 norm."""
    weight = model.get_parameter("weight")
    logits: Tensor = model(x)
    gaps = logits.gather(1, y[:, None]) - logits
    reach = (weight[y][:, None] - weight[None]).abs().sum(2)
    return (gaps / reach).scatter(1, y[:, None], torch.inf).amin(1)


@pytest.mark.slow
def test_the_usual_call_succeeds_where_an_adversarial_example_exists(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case
    x = 0.4 + 0.2 * x  # the box is out of reach
    y = model(x).argmax(1)
    y[:4] = (y[:4] + 1) % 5
    ordered = closest(model, x, y)[4:].sort().values
    radius = float(ordered[17:19].mean())  # half of them fall
    before = torch.random.get_rng_state()
    suite = AutoAttack(model, eps=radius)
    suite.attacks.pop("square")  # thousands of queries prove nothing here
    result = suite.run_standard_evaluation(x, y, bs=32)
    assert torch.equal(torch.random.get_rng_state(), before)
    wrong, falls = model(x).argmax(1) != y, closest(model, x, y) < radius
    assert 0 < int((falls & ~wrong).sum()) < 36
    success = model(result).argmax(1) != y
    assert torch.equal(success, wrong | falls)
    assert torch.equal(result[wrong | ~falls], x[wrong | ~falls])  # as they were
    assert float(Threat("Linf", radius).distance(result, x).max()) <= radius + 1e-6
    single = suite.run_standard_evaluation_individual(x, y, bs=32)
    assert list(single) == ["apgd-ce", "apgd-t", "fab-t"]
    for images_ in single.values():
        assert bool((model(images_).argmax(1) != y)[wrong].all())


def test_images_and_labels_that_do_not_fit(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case
    with pytest.raises(ClasswiseError, match=r"expected images \(N, C, H, W\)"):
        AutoAttack(model).run_standard_evaluation(x, y[:3])
    with pytest.raises(ClasswiseError, match="unknown version"):
        AutoAttack(model, version="strong")


def test_the_calls_of_the_original_package(
    case: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x, y = case
    y = model(x).argmax(1)
    y[:10] = (y[:10] + 1) % 5
    suite = AutoAttack(model, "Linf", 0.3, 1, True, ["apgd-dlr"], "custom", False, "cpu", tmp_path / "log.txt")
    assert list(suite.attacks) == ["apgd-dlr"]
    adversarial, predictions = suite.run_standard_evaluation(x, y, bs=40, return_labels=True)
    assert torch.equal(predictions, model(adversarial).argmax(1))
    robust = float((predictions == y).float().mean())
    assert robust < 1 - 10 / len(x)
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        f"initial accuracy: {100 - 1000 / len(x):.2f}%",
        f"robust accuracy after APGD-DLR: {100 * robust:.2f}%",
    ]
    assert (tmp_path / "log.txt").read_text() == printed
    AutoAttack(model, eps=0.3, version="custom", attacks_to_run=["apgd-dlr"], verbose=False).run_standard_evaluation(
        x, y
    )
    assert not capsys.readouterr().out


def test_calls_of_the_original_package_that_are_refused(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case
    with pytest.raises(ClasswiseError, match="did you mean 'apgd-ce'"):
        AutoAttack(model, version="custom", attacks_to_run=["apgd-c"])
    with pytest.raises(ClasswiseError, match="attacks_to_run is for version='custom', which needs it"):
        AutoAttack(model, attacks_to_run=["apgd-ce"])
    with pytest.raises(ClasswiseError, match="attacks_to_run is for version='custom', which needs it"):
        AutoAttack(model, version="custom")
    with pytest.raises(ClasswiseError, match="TensorFlow"):
        AutoAttack(model, is_tf_model=True)
    with pytest.raises(ClasswiseError, match="state_path is not supported"):
        AutoAttack(model).run_standard_evaluation(x, y, state_path="state.json")  # type: ignore[call-overload]
