"""Suites name attacks that exist; AutoAttack answers to the calls that its scripts make."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.base import Attack
from classwise.attacks.suites import SUITES, members
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .models import Linear, images, labelled


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
    check_refused(words, members, name, options)


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    model, x, y = labelled(Linear(5).eval(), images(40, side=3))
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
    for name in suite.attacks:
        attack: Any = suite.attacks[name]
        suite.attacks[name] = dataclasses.replace(attack, steps=20)
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


WRONG: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "labels of shape (3,)": lambda x, y: (x, y[:3]),
    "is not a class in 0..4": lambda x, y: (x, y + 1),
    "pixels of type torch.uint8, expected float": lambda x, y: (x.mul(255).byte(), y),
    "pixels range from": lambda x, y: (x * 255, y),
}


@pytest.mark.parametrize("message", WRONG)
def test_images_and_labels_that_do_not_fit_are_refused(case: tuple[nn.Module, Tensor, Tensor], message: str) -> None:
    model, x, y = case
    given = WRONG[message](x, y)
    check_refused(re.escape(message), AutoAttack(model).run_standard_evaluation, *given)
    check_refused(re.escape(message), AutoAttack(model).run_standard_evaluation_individual, *given)
    check_refused(re.escape(message), cw.attack, model, *given, "fgsm", threat="Linf:0.1")


def test_probabilities_radii_and_a_state_are_refused(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, x, y = case
    probabilities = nn.Sequential(model, nn.Softmax(1))
    check_refused("returns probabilities", AutoAttack(probabilities).run_standard_evaluation, x, y)
    check_refused("returns probabilities", cw.attack, probabilities, x, y, "fgsm", threat="Linf:0.1")
    check_refused(
        r"radii have shape \(3,\); expected one number", cw.attack, model, x, y, "fgsm", threat=("Linf", torch.ones(3))
    )
    check_refused("targets: label 5 of image", cw.attack, model, x, y, "fgsm", threat="Linf:0.1", targets=y * 0 + 5)
    check_refused("does not support recolour", AutoAttack, model, "recolour", 0.1)
    check_refused(
        "state_path is not supported", AutoAttack(model).run_standard_evaluation, x, y, state_path="state.json"
    )


def test_an_image_whose_logit_is_nan_is_misclassified(
    case: tuple[nn.Module, Tensor, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    model, x, _ = case
    y = model(x).argmax(1)
    suite = AutoAttack(lambda images: model(images).masked_fill(torch.arange(5) == y[0], torch.nan), eps=0.1)
    suite.run_standard_evaluation(x[:3], y[:1].expand(3))
    assert capsys.readouterr().out.splitlines()[0] == "initial accuracy: 0.00%"


def test_the_calls_of_the_original_package(
    case: tuple[nn.Module, Tensor, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x, y = case
    y = model(x).argmax(1)
    y[:10] = (y[:10] + 1) % 5
    suite = AutoAttack(model, "Linf", 0.3, 1, True, ["apgd-dlr"], "custom", False, "cpu", tmp_path / "log.txt")
    assert suite.attacks_to_run == ["apgd-dlr"]
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
    with pytest.raises(AttributeError):  # an assignment would have no effect
        suite.attacks_to_run = ["apgd-ce"]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("unknown version", {"version": "strong"}),
        ("did you mean 'apgd-ce'", {"version": "custom", "attacks_to_run": ["apgd-c"]}),
        ("attacks_to_run is for version='custom', which needs it", {"attacks_to_run": ["apgd-ce"]}),
        ("attacks_to_run is for version='custom', which needs it", {"version": "custom"}),
        ("TensorFlow", {"is_tf_model": True}),
    ],
)
def test_options_of_the_original_package_that_are_refused(
    case: tuple[nn.Module, Tensor, Tensor], message: str, options: dict[str, Any]
) -> None:
    check_refused(message, AutoAttack, case[0], **options)


def test_several_attacks_run_in_cascade(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Each image is that of the first attack that succeeds on it, else that of the last one."""
    model, x, y = case
    radii = closest(model, x, y).clamp_min(0.01).quantile(torch.tensor([0.3, 0.6]).repeat(20), dim=0)
    threat, index = Threat("Linf", radii), torch.arange(100, 140)
    first, both = (
        cw.attack(model, x, y, attacks, threat=threat, index=index, seed=3) for attacks in ("fgsm", ["fgsm", "pgd"])
    )
    robust = model(first).argmax(1) == y
    assert 0 < int(robust.sum()) < 40
    last = cw.attack(
        model, x[robust], y[robust], "pgd", threat=Threat("Linf", radii[robust]), index=index[robust], seed=3
    )
    assert torch.equal(both[robust], last)
    assert torch.equal(both[~robust], first[~robust])


def test_a_suite_finds_what_autoattack_finds(
    case: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = case
    brief = ("apgd-ce:steps=5", "apgd-t:steps=5,targets=2", "fab-t:steps=5,targets=2", "square:steps=50")
    monkeypatch.setitem(SUITES, "autoattack", {"standard": brief})
    threat = Threat("Linf", 0.1)
    found = cw.attack(model, x, y, "autoattack", threat=threat, batch_size=32)
    original = AutoAttack(model, eps=0.1, verbose=False).run_standard_evaluation(x, y)
    assert torch.equal(model(found).argmax(1) == y, model(original).argmax(1) == y)
    assert float(threat.distance(found, x).max()) < 0.1 + 1e-6


def test_a_radius_of_the_authors_signature_is_one_number(case: tuple[nn.Module, Tensor, Tensor]) -> None:
    assert AutoAttack(case[0], eps=torch.tensor(0.1)).threat.epsilon == pytest.approx(0.1)  # type: ignore[arg-type]
    check_refused("radius must be a number from 0", AutoAttack, case[0], eps=torch.tensor(-0.1))
    check_refused("AutoAttack: eps has a radius for each image", AutoAttack, case[0], eps=torch.full((4,), 0.1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_images_are_returned_in_their_type(case: tuple[nn.Module, Tensor, Tensor], dtype: torch.dtype) -> None:
    """Those of a half type in float32, since rounding would move them out of the ball."""
    model, x, y = case
    given = x.to(dtype).requires_grad_()
    found = cw.attack(model, given, y.numpy(), "pgd:steps=2", threat="Linf:0.1")
    exact = torch.float32 if dtype == torch.bfloat16 else dtype
    assert (found.dtype, found.requires_grad) == (exact, False)
    assert torch.equal(found, cw.attack(model, given.float(), y, "pgd:steps=2", threat="Linf:0.1").to(exact))
    assert float((found - given.detach()).abs().max()) < 0.1 + 1e-6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.zeros(40, 2, 3, 3, dtype=torch.uint8)}, "uint8, expected float in .* divide by 255"),
        ({"x": torch.full((40, 2, 3, 3), 2.0)}, "pixels range from 2 to 2"),
        ({"y": torch.zeros(3).long()}, r"labels of shape \(3,\), expected \(40,\)"),
        ({"targets": torch.zeros(40)}, "targets: labels of type torch.float32"),
        ({"attacks": "pgdd"}, "did you mean 'pgd'"),
        ({"threat": "L3:1"}, "L3"),
        ({"batch_size": 8}, "batch_size = 8: must be an integer from 32"),
    ],
)
def test_invalid_batches(case: tuple[nn.Module, Tensor, Tensor], changes: dict[str, Any], words: str) -> None:
    model, x, y = case
    check_refused(
        words, cw.attack, **{"model": model, "x": x, "y": y, "attacks": "pgd", "threat": "Linf:0.1", **changes}
    )
