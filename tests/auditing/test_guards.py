"""Each guard is tripped by a model with the defect it detects, and by no sound model; guards that compare images."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.apgd import APGDDLR, APGDT
from classwise.attacks.gradient.ascent import FGSM, PGD, Ascent
from classwise.auditing.criteria.policy import Policy
from classwise.auditing.evaluation.evaluation import GuardMode
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.guards.budget import GUARDS, run_guards
from classwise.auditing.guards.evidence import Evidence, NotApplicable, Training, Undecided
from classwise.auditing.guards.report import AuditWarning, GuardReport
from classwise.auditing.guards.significance import significant_class
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.auditing.run.audit_folder import guards_in
from classwise.auditing.run.cost import estimate
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.requirements import lacking_guards
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.cli.options import numbers
from classwise.core.compute.precision import EXACT
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.data import load_data
from classwise.data.images import Images
from classwise.data.sets.digits import Digits
from classwise.models import load_model
from classwise.models.normalization import InputScale
from classwise.reporting.evidence.facts import _guards
from classwise.stats.class_order import images_needed
from classwise.stats.counts import IntArray
from classwise.threat.ball import large_radius_text
from tests.auditing import toys
from tests.auditing.gradientless import RandomSearch
from tests.auditing.test_criteria import written
from tests.auditing.test_guard_budget import evidence_of
from tests.auditing.test_guard_budget import mislabelled as every_fourth
from tests.auditing.test_shards import streamed
from tests.auditing.toys import Listener, Wrapped

ROOT = Path(__file__).parents[2]
STRENGTH = (0.03, 0.08, 0.08)
"""One class is clearly the weakest, so that its selection causes no warning."""


def sound() -> Images:
    return toys.images(120, strength=STRENGTH)


def rolled() -> Images:
    """The sound images, whose class i is the output i + 1 of the model."""
    data = sound()
    return Images(data.x, (data.y - 1) % 3, data.class_names, data.name)


def run(**more: Any) -> Audit:
    chosen: dict[str, Any] = {
        "model": toys.model(scale=2.0),
        "data": sound(),
        "threat": "Linf:0.02",
        "attacks": ["pgd:steps=20,step_size=0.25eps", "pgd:steps=20,step_size=0.25eps,objective=margin"],
        "precision": EXACT,
        "batch_size": 128,
        "guards": "full",
    }
    return audit(**(chosen | more))


def with_softmax() -> nn.Module:
    """The sound model with probabilities, loaded as if they were logits; otherwise it is refused."""
    return load_model(Wrapped(back=lambda z, _: z.softmax(1)), outputs="logits")


def rounded(z: Tensor, _: Tensor) -> Tensor:
    """Logits rounded to multiples of 0.05: their gradient is zero almost everywhere."""
    return z - z.detach() + (z.detach() * 20).round() / 20 - (z - z.detach())


def reversed_gradient(x: Tensor) -> Tensor:
    """The image, with gradients of the opposite sign."""
    return 2 * x.detach() - x


def reversed_gradient_of_class_1(z: Tensor, x: Tensor) -> Tensor:
    """Gradients of the opposite sign where the model predicts class 1, correct ones elsewhere."""
    return torch.where((z.argmax(1) == 1)[:, None], 2 * z.detach() - z, z)


def quantised(x: Tensor) -> Tensor:
    """Eight grey levels, without a gradient."""
    return (x * 8).round() / 8


def straight_through(x: Tensor) -> Tensor:
    """Eight grey levels, with a straight-through gradient."""
    return x + (quantised(x) - x).detach()


def unnormalised(x: Tensor) -> Tensor:
    """The effect of omitting the normalisation (x - 0.5) / 0.05 with which a model was trained."""
    return 0.5 + 0.05 * x


def no_gradient_far_from_grey(z: Tensor, x: Tensor) -> Tensor:
    """No gradient for images far from grey, which attacks with a large radius produce."""
    far = (x - 0.5).abs().flatten(1).mean(1) > 0.11
    return torch.where(far[:, None], z.detach(), z)


@configurable
class ConstantLoss(PGD):
    """PGD on a constant loss, whose steps have no direction."""

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        return 0 * logits.sum(1)


@configurable
class Ratio(Ascent):
    """An attack that declares the difference of logits ratio as its objective."""

    objective: Literal["dlr"] = "dlr"

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        return logits.logsumexp(1) - logits.gather(1, y[:, None]).squeeze(1)


def of_columns(change: Callable[[Outcomes], Outcomes]) -> Callable[[GuardMode], set[str]]:
    def names(mode: GuardMode) -> set[str]:
        result = run(guards="off")
        return {found.name for found in run_guards(Evidence(change(result.outcomes)), mode)[0]}

    return names


def guards_of(**more: Any) -> Callable[[GuardMode], set[str]]:
    return lambda mode: names_of(**more, guards=mode)


def names_of(**more: Any) -> set[str]:
    """The guards that warn of an audit."""
    return {found.name for found in run(**more).warnings}


def split(name: str) -> Images:
    data = sound()
    return Images(data.x, data.y, data.class_names, data.name, name)


def with_training_attack(mode: GuardMode) -> set[str]:
    attack = PGD(steps=30)
    result = run(attacks=attack, guards="off")
    evidence = Evidence(result.outcomes, {"pgd": attack}, training=Training(attack))
    return {found.name for found in run_guards(evidence, mode)[0]}


def noted(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.frame, dataclasses.replace(outcomes.meta, notes=("batch halved",)))


def shortened(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.frame.iloc[:-5], outcomes.meta)


def strayed(outcomes: Outcomes) -> Outcomes:
    """Outcomes with distances above the radius, as other programs may produce them."""
    far = outcomes.frame["distance"].where(outcomes.frame["attack"] != "pgd", 0.4)
    return Outcomes(outcomes.frame.assign(distance=far), outcomes.meta)


def table(classes: int, images: int, **success: dict[int, int]) -> Outcomes:
    """Outcomes of ``images`` images per class.

    Args:
        classes: the number of classes.
        images: the number of images per class.
        success: for each attack, the number of images by class on which it succeeds, the first ones of the class.
            Attacks whose name begins with ``black`` use no gradient.
    """
    labels = np.repeat(np.arange(classes), images)
    place = np.tile(np.arange(images), classes)
    predicted = {
        name: np.where(place < np.array([hits.get(int(label), 0) for label in labels]), (labels + 1) % classes, labels)
        for name, hits in success.items()
    }
    outcomes = Outcomes.from_predictions(labels, labels, predicted, [f"class {label}" for label in range(classes)])
    black = outcomes.frame["attack"].str.startswith("black") | (outcomes.frame["attack"] == "clean")
    frame = outcomes.frame.assign(forwards=10, backwards=np.where(black, 0, 10), iterations=10)
    return Outcomes(frame, outcomes.meta.stating(early_stop=True))


def few_classes(mode: GuardMode) -> set[str]:
    """Use saved outcomes: a run would emit the warning about the loss, which is emitted once and tested elsewhere."""
    del mode  # it takes no passes
    found = GUARDS["few-classes"](Evidence(table(3, 5, a={}), {"a": APGDT()}))
    return set() if found is None else {"few-classes"}


def built(mode: GuardMode) -> set[str]:
    return names_of(model=load_model("lenet", data=sound()), guards=mode)


class Case(NamedTuple):
    """A model, an attack or a table that trips a guard.

    Attributes:
        what: its description in the documentation.
        names: runs the audit in a mode of the guards and returns the names of all guards that warn.
    """

    what: str
    names: Callable[[GuardMode], set[str]]


def infinite_logits(z: Tensor, x: Tensor) -> Tensor:
    """Infinite logits for images with a bright corner."""
    return torch.where(x[:, 0, 0, :1] > 0.55, torch.inf, z)


def clamped(x: Tensor) -> Tensor:
    """The image, changed in place."""
    return x.clamp_(0, 1)


def negating(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The images, with a model of negated weights."""
    del y
    for parameter in model.parameters():
        parameter.data.neg_()
    return x


def repeated() -> Images:
    """A quarter of the sound images, four times."""
    data = sound()
    return Images(data.x[:30].repeat(4, 1, 1, 1), data.y[:30].repeat(4), data.class_names)


TRIPPED: dict[str, Case] = {
    "nan-logits": Case(
        "infinite logits for images with a bright corner", guards_of(model=Wrapped(back=infinite_logits))
    ),
    "train-mode": Case("a sound model in training mode", guards_of(model=toys.model(scale=2.0).train())),
    "untrained": Case("LeNet with its initial weights", built),
    "overwrites-input": Case("`x.clamp_(0, 1)` on the input", guards_of(model=Wrapped(clamped))),
    "changed-model": Case(
        "an attack that negates the weights, before PGD on the margin",
        guards_of(attacks=[ExternalAttack(attack=negating), "pgd:steps=20,step_size=0.25eps,objective=margin"]),
    ),
    "softmax-outputs": Case("softmax after the logits", guards_of(model=with_softmax())),
    "logit-range": Case("tanh of the logits", guards_of(model=Wrapped(back=lambda z, _: torch.tanh(z)))),
    "nondeterministic": Case(
        "noise of standard deviation 0.1 on the logits",
        guards_of(model=Wrapped(back=lambda z, _: z + 0.1 * torch.randn_like(z))),
    ),
    "batch-dependence": Case(
        "the mean logits of the batch subtracted", guards_of(model=Wrapped(back=lambda z, _: z - z.mean(0)))
    ),
    "normalised-outside": Case(
        "trained on standardised pixels, evaluated on pixels in [0, 1]", guards_of(model=Wrapped(unnormalised))
    ),
    "class-order": Case("labels rolled by one", guards_of(data=rolled())),
    "no-gradient": Case(
        "detached logits",
        guards_of(model=Wrapped(back=lambda z, _: z.detach()), attacks=["pgd:steps=2", "square:steps=20"]),
    ),
    "zero-gradients": Case("logits rounded to multiples of 0.05", guards_of(model=Wrapped(back=rounded))),
    "misleading-gradients": Case(
        "inputs quantised to eight levels, with a straight-through gradient",
        guards_of(model=Wrapped(straight_through)),
    ),
    "single-step": Case(
        "an attack of 20 steps on a constant loss", guards_of(attacks=[ConstantLoss(steps=20)], threat="Linf:0.05")
    ),
    "not-converged": Case(
        "PGD with steps too short to reach the boundary early",
        guards_of(attacks="pgd:steps=20,step_size=0.06eps,random_init=none", threat="Linf:0.08"),
    ),
    "few-classes": Case("`apgd-t` on 3 classes", few_classes),
    "random-noise": Case(
        "an attack of 5 steps on a constant loss from the clean image",
        guards_of(attacks=[ConstantLoss(steps=5, random_init="none")], threat="Linf:0.1"),
    ),
    "black-box-stronger": Case(
        "an attack on a constant loss, and a random search",
        guards_of(attacks=[ConstantLoss(steps=20), RandomSearch()], threat="Linf:0.04"),
    ),
    "no-black-box": Case(
        "an attack on a constant loss only", guards_of(attacks=[ConstantLoss(steps=20)], threat="Linf:0.05")
    ),
    "zero-radius": Case(
        "noise of standard deviation 5 on the logits",
        guards_of(model=Wrapped(back=lambda z, _: z + 5 * torch.randn_like(z))),
    ),
    "outside-ball": Case("outcomes with distances above the radius", of_columns(strayed)),
    "not-falling": Case(
        "no gradient far from grey", guards_of(model=Wrapped(back=no_gradient_far_from_grey), threat="Linf:0.08")
    ),
    "large-radius": Case("gradients of the opposite sign", guards_of(model=Wrapped(reversed_gradient))),
    "huge-radius": Case("a radius of 8 instead of 8/255", guards_of(threat="Linf:8")),
    "uninformative-radius": Case("a radius at which no image is robust", guards_of(threat="Linf:0.4")),
    "training-attack": Case("the training attack only", with_training_attack),
    "training-images": Case("images of the split `train`", guards_of(data=split("train"))),
    "same-images": Case(
        "three classes of about the same accuracy", guards_of(data=toys.images(90), threat="Linf:0.05")
    ),
    "duplicates": Case("the images of a sound audit, each four times", guards_of(data=repeated())),
    "incomplete": Case("outcomes without their last 5 rows", of_columns(shortened)),
    "not-repeatable": Case("a batch size that was halved for lack of memory", of_columns(noted)),
}
"""The case of each guard, in the order of the guards."""


@cache
def tripped(name: str, mode: GuardMode = "full") -> tuple[str, ...]:
    """All guards that the case of one of them trips, in their order."""
    torch.manual_seed(0)
    names = TRIPPED[name].names(mode)
    return tuple(guard for guard in GUARDS if guard in names)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_the_guard_is_tripped(name: str) -> None:
    assert name in tripped(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, guard in GUARDS.items() if not guard.priority])
def test_the_core_and_the_guards_without_passes_are_tripped_within_the_budget(name: str) -> None:
    assert name in tripped(name, "auto")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["zero-gradients", "no-gradient", "untrained", "misleading-gradients", "zero-radius", "large-radius"]
)
def test_the_core_is_tripped_on_few_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "run", partial(run, data=toys.images(24, strength=STRENGTH)))
    monkeypatch.setattr(sys.modules[__name__], "sound", lambda: toys.images(24, strength=STRENGTH))
    torch.manual_seed(0)
    assert name in TRIPPED[name].names("auto")


def tripped_table() -> str:
    """The table of the documentation: the case, its guard, and the other guards that warn."""
    rows = ["| case | guard | other guards that warn |", "| --- | --- | --- |"]
    for name, made in TRIPPED.items():
        others = ", ".join(f"`{other}`" for other in tripped(name) if other != name)
        rows.append(f"| {made.what} | `{name}` | {others} |")
    return "\n".join(rows)


@pytest.mark.slow
def test_the_documented_table_of_cases_is_current() -> None:
    """To regenerate it: ``python -m tests.auditing.test_guards``."""
    assert list(TRIPPED) == list(GUARDS)
    page = (ROOT / "docs" / "reference" / "guards.md").read_text(encoding="utf-8")
    assert page.partition("## Which case trips which guard\n")[2].partition("\n## ")[0].count(tripped_table()) == 1


@pytest.mark.slow
def test_a_network_that_was_trained_after_it_was_built_is_not_untrained() -> None:
    model = load_model("lenet", data=sound())
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.001)
    assert "untrained" not in names_of(model=model, data=toys.images(24), attacks="fgsm", guards="auto")


def test_a_sound_audit_trips_none() -> None:
    data = sound()
    result = run(data=Images(data.x, data.y, data.class_names, data.name, "test"))
    assert result.warnings == ()
    assert 0 < result.by_attack["overall"]["all"] < result.by_attack["overall"]["clean"]


@pytest.mark.slow
@pytest.mark.parametrize("threat", ["L2:0.1", "L1:0.5"])
def test_a_sound_audit_in_other_norms_trips_none(threat: str) -> None:
    assert run(threat=threat).warnings == ()


@pytest.mark.parametrize(
    ("attacks", "warned"),
    [
        ("pgd:steps=10", True),
        ("fgsm", True),
        (["fgsm", "pgd:steps=7,objective=kl"], True),
        ("pgd:steps=40", False),
        ("pgd:steps=10,restarts=4", False),
        (["pgd:steps=10", "pgd:steps=10,objective=margin"], False),
    ],
)
def test_usual_training_attacks(attacks: Any, warned: bool) -> None:
    evidence = Evidence(Outcomes.from_predictions([0, 1], [0, 1]), parse_attacks(attacks).attacks)
    assert (GUARDS["training-attack"](evidence) is not None) is warned


def test_one_class_may_be_masked() -> None:
    def mask_one(z: Tensor, x: Tensor) -> Tensor:
        dead = (z.argmax(1) == 1)[:, None]
        return torch.where(dead, z.detach(), z)

    found = {warning.name: warning for warning in run(model=Wrapped(back=mask_one)).warnings}
    assert "100.0 % in 'class 1'" in found["zero-gradients"].sentence


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the targeted difference of logits ratio needs")
@pytest.mark.parametrize("classes", [2, 3])
def test_targets_of_few_classes_are_not_blamed_on_the_model(classes: int) -> None:
    data, attack = toys.images(90, classes), APGDT(steps=10)
    names = names_of(attacks=attack, model=toys.model(classes, 2.0), data=data)
    assert "zero-gradients" not in names


def test_gradients_may_mislead_in_one_class_only() -> None:
    """Which also gives an impossible robust accuracy."""
    found = {warning.name: warning for warning in run(model=Wrapped(back=reversed_gradient_of_class_1)).warnings}
    assert "most in 'class 1'" in found["misleading-gradients"].sentence
    assert found["misleading-gradients"].value == pytest.approx(1 / 3, abs=0.05)
    grey = int(toys.model(scale=2.0)(torch.full((1, 1, toys.SIDE, toys.SIDE), 0.5)).argmax())
    assert grey != 1
    assert "and 0 % in 'class 1'" in found["large-radius"].sentence


def test_a_model_that_rounds_its_inputs_has_no_gradient_and_is_vulnerable_to_a_search() -> None:
    names = names_of(model=Wrapped(quantised), threat="Linf:0.05")
    assert {"zero-gradients", "misleading-gradients", "no-black-box"} <= names


def rippled(x: Tensor) -> Tensor:
    """Small waves on each pixel, which turn half of the gradients round and change no value by more than 0.015."""
    return x + 0.015 * torch.sin(200 * x)


@pytest.mark.slow
def test_constraint_relaxation_alone_is_no_verdict_on_masked_gradients(tmp_path: Path) -> None:
    """A search succeeds on many images that it misses; no policy with the default guards accepts it."""
    policy = Policy.read(written(tmp_path / "policy.yaml", attacks=["cr:restarts=1"], guards="default"))
    masked = run(model=Wrapped(rippled), threat="Linf:0.04", attacks=["cr:restarts=1"])
    assert {"no-black-box", "random-noise"} <= {warning.name for warning in masked.warnings}
    assert "The guard no-black-box has a warning." in lacking_guards(policy, masked.warnings, masked.guards)
    both = run(model=Wrapped(rippled), threat="Linf:0.04", attacks=["cr:restarts=1", "square:steps=300"], guards="off")
    assert both.by_attack["overall"]["cr"] - both.by_attack["overall"]["all"] > 0.15
    data = Images(sound().x, sound().y, sound().class_names, "toy", "test")
    plain = run(attacks=["cr:restarts=1"], data=data)
    assert lacking_guards(policy, plain.warnings, plain.guards) == []


def test_every_warning_is_one_sentence_with_a_number() -> None:
    result = run(model=with_softmax(), data=split("train"))
    assert len(result.warnings) >= 2
    for found in result.warnings:
        assert found.sentence.endswith(".")
        assert "\n" not in found.sentence
    softmax = next(warning for warning in result.warnings if warning.name == "softmax-outputs")
    assert softmax.value < 1e-5


def test_guards_of_imported_predictions_need_no_model() -> None:
    labels = np.arange(60) % 3
    outcomes = Outcomes.from_predictions(labels, labels, {"aa": np.where(labels == 0, 1, labels)}, list("abc"))
    assert run_guards(Evidence(outcomes))[0] == ()


def test_the_pixels_are_standardised_with_the_usual_scale_of_the_data() -> None:
    digits = load_data("digits", split="test", subset=20)
    evidence = evidence_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), digits, attacks="fgsm")
    assert evidence.probe is not None
    assert evidence.probe.scale == InputScale(Digits.mean, Digits.std)
    unnamed = evidence_of(toys.model(scale=2.0), sound(), attacks="fgsm").probe
    assert unnamed is not None
    assert unnamed.scale is None


CHECKPOINT = ROOT / "checkpoints" / "fashion-mnist-at.safetensors"


@pytest.mark.slow
def test_a_trained_robust_model_trips_none() -> None:
    try:
        data = load_data("fashion-mnist", split="test", subset=64, download=False)
    except ClasswiseError:
        pytest.skip("fashion-mnist is not on this machine")
    result = audit(CHECKPOINT, data, attacks="pgd:steps=20,objective=margin", batch_size=64)
    assert 0.5 < result.by_attack["overall"]["all"] < result.by_attack["overall"]["clean"]
    # With six images per class the worst class is uncertain, so that a warning about it is correct.
    assert {warning.name for warning in result.warnings} <= {"same-images"}


if __name__ == "__main__":
    sys.stdout.write(tripped_table() + "\n")


@pytest.mark.parametrize(
    ("threat", "text"),
    [
        ("Linf:8", "At Linf 8 the ball of every image contains .*, so write 8/255 (0.03137) for 8 of 255."),
        ("Linf:16", "At Linf 16 .*, so write 16/255 (0.06275) for 16 of 255."),
        ("L2:128", "At L2 128 .*, so write 128/255 (0.502) for 128 of 255."),
        ("L1:3060", "At L1 3060 .*, so write 3060/255 (12) for 3060 of 255."),
        ("Linf:0.6", "At Linf 0.6 .* can be robust; pixels are in [0, 1]."),
    ],
)
def test_an_implausible_radius_is_named_with_its_value_over_255(threat: str, text: str) -> None:
    """In the guard, and before any attack by the log of every evaluation and the note of an estimate."""
    start, _, end = text.partition(".*")
    data, listener = toys.images(12), Listener()
    lines = listener.lines
    options: dict[str, Any] = {"attacks": "fgsm", "batch_size": 32}
    result = cw.audit(toys.model(), data, threat, progress=listener, **options)
    (sentence,) = [warning.sentence for warning in result.warnings if warning.name == "huge-radius"]
    assert sentence.startswith(start)
    assert sentence.endswith(end)
    note = f"a{sentence[1:-1]}"
    assert f"warning: {note}" in lines
    assert estimate(toys.model(), data, threat, **options).note == note
    lines.clear()
    cw.find_worst_class(toys.model(), data, threat, progress=listener, **options)
    assert f"warning: {note}" in lines
    norm, _, radius = threat.partition(":")
    lines.clear()
    searched: dict[str, Any] = {"norm": norm, "highest": float(radius), "rounds": 1, "progress": listener}
    cw.robustness_curve(toys.model(), data, **searched, **options)
    assert f"warning: {note}" in lines


def test_a_huge_radius_is_named_before_the_first_attack_without_guards() -> None:
    listener = Listener()
    cw.audit(toys.model(), toys.images(12), "Linf:8", "fgsm", guards="off", progress=listener)
    assert listener.lines[0].startswith("warning: at Linf 8 the ball of every image contains the grey image")


class Stopped(Listener):
    """Stops the audit at its first attack."""

    def start(self, task: str, total: int) -> None:
        super().start(task, total)
        if task not in ("", "clean"):
            raise KeyboardInterrupt


def at_chance() -> Images:
    data = toys.images(90, noise=0.0)
    return Images(data.x, torch.arange(90) // 30, data.class_names, data.name)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": split("train")}, "training-images: The images are from the 'train' split"),
        ({"attacks": "fgsm"}, "training-attack: All attacks are usual training attacks"),
        ({"data": rolled()}, "class-order: The classes of the data and the outputs of the model are in different"),
        ({"model": Wrapped(back=infinite_logits)}, "nan-logits: "),
        *(
            ({"data": at_chance(), **more}, "the clean accuracy, 33.3 %, is not significantly above chance (33.3 %): ")
            for more in ({}, {"attacks": "fgsm"})  # also beside a warning that does not explain it
        ),
    ],
)
@pytest.mark.parametrize("guards", ["auto", "off"])
def test_what_the_clean_pass_shows_is_reported_before_the_first_attack(
    options: dict[str, Any], expected: str, guards: GuardMode
) -> None:
    listener = Stopped()
    with contextlib.suppress(KeyboardInterrupt):  # no attack starts if every image is misclassified
        run(**options, progress=listener, guards=guards)
    assert any(line.startswith(f"warning: {expected}") for line in listener.lines) is (guards != "off")


@pytest.mark.parametrize("data", [sound(), toys.images(2, strength=0.2, noise=0.0)])
def test_a_sound_audit_has_no_early_warning(data: Images) -> None:
    """Nor has one of two images, whose accuracy of 100 % is not significantly above chance."""
    listener = Listener()
    run(progress=listener, data=data)
    assert not [line for line in listener.lines if line.startswith("warning")]


@pytest.mark.parametrize("threat", ["Linf:0.3", "L2:2", "L1:12", "spatial:6"])
def test_usual_radii_have_no_note(threat: str) -> None:
    assert large_radius_text(cw.Threat.parse(threat), (3, 32, 32)) == ""


@pytest.mark.parametrize(
    ("white", "black", "expected"),
    [
        ({0: 50}, {0: 50}, None),
        ({0: 50}, {0: 52}, None),  # 0.2 % of 1,000 images, not more
        ({0: 50}, {0: 51, 1: 1, 2: 1}, ""),  # 0.3 %, in no class beyond chance
        ({0: 50}, {1: 50}, "50.0 % of 'class 1'"),  # the same number of other images: class 1 is masked
        ({0: 50}, {0: 30, 1: 9}, "9.0 % of 'class 1'"),  # 10 * 2^-8 = 0.039
        ({0: 50}, {0: 30, 1: 8}, None),  # 10 * 2^-7 = 0.078
    ],
)
def test_black_boxes_are_compared_overall_and_by_class(
    white: dict[int, int], black: dict[int, int], expected: str | None
) -> None:
    """In one class b images to none have the p-value 2^(1-b), which Holm multiplies by the ten classes."""
    found = GUARDS["black-box-stronger"](Evidence(table(10, 100, white=white, black=black)))
    assert (found is None) is (expected is None)
    if isinstance(found, AuditWarning) and expected is not None:
        assert expected in found.sentence
        assert ("of 'class" in found.sentence) is bool(expected)


@pytest.mark.slow
def test_in_a_cascade_only_images_that_an_attack_ran_on_are_compared() -> None:
    """After a successful search no gradient-based attack runs; in the other order the search has an excess."""
    for order, warned in (
        (["square:steps=100", "pgd:steps=5"], False),
        ([ConstantLoss(steps=3), "square:steps=100"], True),
    ):
        result = run(attacks=order, cascade=True, threat="Linf:0.05")
        assert ("black-box-stronger" in {warning.name for warning in result.warnings}) is warned


def test_one_step_is_compared_with_many_in_the_outcomes() -> None:
    attacks = {"fgsm": FGSM(), "pgd": PGD(steps=20)}
    equal = Evidence(table(10, 100, fgsm={0: 20}, pgd={0: 50}), attacks)
    masked = Evidence(table(10, 100, fgsm={0: 20, 4: 15}, pgd={0: 50}), attacks)
    assert GUARDS["single-step"](equal) is None
    found = GUARDS["single-step"](masked)
    assert isinstance(found, AuditWarning)
    assert "15.0 % of 'class 4'" in found.sentence
    unknown = Evidence(masked.outcomes, attacks | {"fgsm": ExternalAttack(attack=negating)})
    assert GUARDS["single-step"].reads_of(unknown) == "gradients"  # its steps inside are not known, so FGSM is tried


def test_an_external_attack_is_not_called_gradient_free() -> None:
    attacks = {"pgd": PGD(steps=20), "black": ExternalAttack(attack=negating)}
    found = GUARDS["black-box-stronger"](Evidence(table(10, 100, pgd={0: 20}, black={0: 50}), attacks))
    assert isinstance(found, AuditWarning)
    assert found.sentence.startswith("Attacks without gradients of this model ('black') succeed on 30 more images")


@pytest.mark.parametrize(("late", "expected"), [({}, None), ({3: 5}, None), ({3: 13}, "13.0 % of 'class 3'")])
def test_a_class_may_need_more_steps_than_others(late: dict[int, int], expected: str | None) -> None:
    """With 100 images and a rate of 5 %, 13 or more have the probability 0.0015, below 0.05 / 10; 5 have 0.56."""
    found = GUARDS["not-converged"](Evidence(table(10, 100, pgd=late), {"pgd": PGD(steps=12)}))
    sentence = found.sentence if isinstance(found, AuditWarning) else ""
    assert (expected in sentence) if expected else found is None


def test_significant_classes_agree_with_scipy() -> None:
    images = np.array([13, 13, 0, 40])
    for hits in ([0, 0, 0, 0], [3, 0, 0, 0], [4, 0, 0, 5], [0, 3, 0, 6], [13, 13, 0, 40]):
        tails = stats.binom.sf(np.array(hits) - 1, images, 0.03)
        expected = int(np.nanargmin(tails)) if np.nanmin(tails) < 0.05 / 3 else None
        assert significant_class(np.array(hits), images, 0.03) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "least"),
    [(Ratio(steps=3), 3), (APGDDLR(), 3), (APGDT(), 4), (PGD(steps=3, objective="dlr"), 3), (PGD(steps=3), 2)],
)
def test_the_ratio_of_logits_needs_three_classes_and_four_if_targeted(attack: Attack, least: int) -> None:
    for classes in (2, 3, 4):
        found = GUARDS["few-classes"](Evidence(table(classes, 5, a={}), {"a": attack}))
        expected = AuditWarning if classes < least else NotApplicable if least == 2 else type(None)
        assert isinstance(found, expected)
        assert not isinstance(found, AuditWarning) or f"needs {least} classes and there are {classes}" in found.sentence


@pytest.mark.slow
def test_a_suite_with_a_black_box_is_not_probed_for_one() -> None:
    assert "no-black-box" not in names_of(attacks=[ConstantLoss(steps=3), "square:steps=100"], threat="Linf:0.05")


def test_a_gradient_free_attack_of_few_queries_does_not_replace_the_probe() -> None:
    """Also an attack of a user that takes no gradient."""
    found = names_of(attacks=[ConstantLoss(steps=20), "square:steps=5"], threat="Linf:0.05")
    assert "no-black-box" in found


def test_few_queries_on_many_images_do_not_replace_the_probe() -> None:
    """The sample has 128 images at most; ten queries of each of 1,500 images are more than 100 for each of these."""
    many = toys.images(1500, strength=STRENGTH)
    found = names_of(data=many, attacks=[ConstantLoss(steps=20), "square:steps=10"], threat="Linf:0.05")
    assert "no-black-box" in found


def test_without_square_there_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: path for name, path in ATTACKS.items() if name != "square"}
    monkeypatch.setattr(ATTACKS, "_entries", others)
    monkeypatch.setattr(ATTACKS, "_own", others)  # deleting the entry would restore it in another position
    assert "no-black-box" not in names_of(attacks=[ConstantLoss(steps=3)], threat="Linf:0.05")


ORDER_OPTIONS: dict[str, Any] = {"threat": "Linf:0.02", "attacks": "fgsm", "precision": EXACT, "batch_size": 32}
ODD_NAMES = ("cat", "=dog", "<b>frog</b>\r")


def moved(count: int, by: int = 1, names: tuple[str, ...] = ODD_NAMES) -> Images:
    """Images whose class i is the output i + ``by`` of the toy model."""
    data = toys.images(count, strength=0.1)
    return Images(data.x, (data.y - by) % 3, names, data.name)


def orders(result: Audit) -> list[str]:
    return [warning.sentence for warning in result.warnings if warning.name == "class-order"]


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_another_order_is_reported(by: int, mode: GuardMode) -> None:
    result = audit(toys.model(scale=2.0), moved(90, by), guards=mode, **ORDER_OPTIONS)
    sentences = orders(result)
    assert len(sentences) == 1
    assert f"likely class i of the data is output i {'+' if by == 1 else '-'} 1 of the model: 'cat' -> " in sentences[0]
    assert "with it the clean accuracy of 45 other images is 100.0 % (95 % interval 92.1 % to 100.0 %)" in sentences[0]
    assert "instead of 0.0 %" in sentences[0]
    names = [ODD_NAMES[(place - by) % 3] for place in range(3)]  # the class of each output
    assert sentences[0].endswith(f"order of the model's outputs: in Python, load_data(..., classes={names}).")
    # Any change of the pixels raises an accuracy of 0 to chance, which is no sign of a missing normalisation.
    assert "normalised-outside" not in {warning.name for warning in result.warnings}


def test_the_result_does_not_depend_on_how_the_images_are_read(tmp_path: Path) -> None:
    model, data = toys.model(scale=2.0), moved(90)
    expected = orders(audit(model, data, **ORDER_OPTIONS))
    assert expected
    assert orders(audit(model, streamed(data), **ORDER_OPTIONS)) == expected
    for shard in Shard.all(2):
        audit(model, data, shard=str(shard), out=shard_folder(tmp_path / "x", shard), **ORDER_OPTIONS)
    assert orders(audit(model, data, shards=2, out=tmp_path / "x", **ORDER_OPTIONS)) == expected
    audit(model, data, out=tmp_path / "late", max_time=1e-6, **ORDER_OPTIONS)
    assert orders(audit(model, data, out=tmp_path / "late", resume=True, **ORDER_OPTIONS)) == expected
    assert orders(audit(model, data, out=tmp_path / "late", resume=True, **ORDER_OPTIONS)) == expected
    assert orders(Audit.load(tmp_path / "late")) == expected


def test_class_names_are_escaped(tmp_path: Path) -> None:
    result = audit(toys.model(scale=2.0), moved(90), **ORDER_OPTIONS)
    page = cw.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\r" not in orders(result)[0]
    assert "<b>frog" not in page
    assert "&lt;b&gt;frog&lt;/b&gt;\\r&#39;" in page


def of_predictions(labels: IntArray, predictions: IntArray, classes: int) -> Evidence:
    names = [f"class {label}" for label in range(classes)]
    return Evidence(Outcomes.from_predictions(labels, predictions, class_names=names))


def test_two_swapped_classes_are_named() -> None:
    labels = np.arange(400) % 10
    swapped = np.where(labels == 3, 5, np.where(labels == 5, 3, labels))
    warning = GUARDS["class-order"](of_predictions(labels, swapped, 10))
    assert isinstance(warning, AuditWarning)
    assert "likely 'class 3' -> 'class 5', 'class 5' -> 'class 3'; with it" in warning.sentence
    assert warning.value == 1.0


def test_many_moved_classes_are_counted() -> None:
    labels = np.arange(2000) % 100
    warning = GUARDS["class-order"](of_predictions(labels, (labels + 1) % 100, 100))
    assert isinstance(warning, AuditWarning)
    assert warning.sentence.count("->") == 3
    assert "and 97 more" in warning.sentence
    assert "--data-set classes=cat,dog" in warning.sentence


@pytest.mark.parametrize("classes", [3, 20])
def test_the_order_can_be_copied(classes: int, tmp_path: Path) -> None:
    """The images read with the option of the warning have the labels of the model's outputs."""
    labels, output = np.arange(40 * classes) % classes, np.roll(np.arange(classes), 2)
    names = [f"a kind {label}" for label in range(classes)]
    given = Evidence(Outcomes.from_predictions(labels, output[labels], class_names=names))
    warning = GUARDS["class-order"](given)
    assert isinstance(warning, AuditWarning)
    option = re.search(r"outputs: --data-set (.*) \(in Python", warning.sentence)
    assert option is not None
    (word,) = shlex.split(option[1])
    np.savez(tmp_path / "x.npz", x=np.zeros((len(labels), 2, 2, 1), np.uint8), y=np.array(names)[labels])
    read = load_data(tmp_path / "x.npz", classes=word.removeprefix("classes="))
    assert torch.equal(read.y, torch.from_numpy(output[labels]))
    fixed = GUARDS["class-order"](dataclasses.replace(given, labels=None))
    assert isinstance(fixed, AuditWarning)
    named = re.search(r"x: model\(x\)\[:, (.*)\]\.$", fixed.sentence)
    assert named is not None
    assert json.loads(named[1]) == output.tolist()


def test_a_data_set_by_name_has_a_fixed_order() -> None:
    digits = load_data("digits", split="test", subset=20)
    evidence = evidence_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), digits, attacks="fgsm")
    assert evidence.labels is None
    assert evidence_of(toys.model(), sound(), attacks="fgsm").labels == sound().class_names


@pytest.mark.parametrize(("images", "why"), [(400, "no other order"), (30, f"{images_needed()} images are needed")])
def test_an_accuracy_below_chance_is_reported_in_other_words(images: int, why: str) -> None:
    labels = np.arange(images) % 2
    wrong = np.where(np.arange(images) % 10 < (7 if images > 100 else 10), 1 - labels, labels)
    warning = GUARDS["class-order"](of_predictions(labels, wrong, 2))
    assert isinstance(warning, AuditWarning)
    assert "is significantly below chance (50.0 %)" in warning.sentence
    assert why in warning.sentence


@pytest.mark.parametrize("images", [3, 10, 20])
def test_too_few_images_for_another_order(images: int) -> None:
    labels = np.arange(images) % 10
    result = GUARDS["class-order"](of_predictions(labels, (labels + 1) % 10, 10))
    assert result == Undecided(f"{images_needed()} images needed, and there are {images}", for_images=True)
    assert GUARDS["class-order"](of_predictions(labels, labels, 10)) is None


def test_too_many_classes_for_other_orders() -> None:
    labels = np.arange(2500)
    assert GUARDS["class-order"](of_predictions(labels, labels, 2500)) == Undecided(
        "of more than 2,000 classes only usual orders are tested"
    )


def first_mislabelled(count: int, wrong: int) -> Images:
    """Images of which the first ``wrong`` ones have another label."""
    data = toys.images(count, strength=0.2, noise=0.0)
    return Images(data.x, torch.where(torch.arange(count) < wrong, (data.y + 1) % 3, data.y), data.class_names)


@pytest.mark.parametrize(
    ("images", "wrong", "needed"), [(20, 4, 55), (10, 10, 11), (10, 2, 55), (20, 2, None), (20, 11, None)]
)
def test_too_few_images_for_the_normalisation(images: int, wrong: int, needed: int | None) -> None:
    """Eleven corrected images have a p-value of 2^-10, below 0.001."""
    given = evidence_of(toys.model(scale=2.0), first_mislabelled(images, wrong), attacks="fgsm")
    assert given.probe is not None
    assert len(given.probe.logits) == images
    taken = given.probe.taken
    result = GUARDS["normalised-outside"](given)
    assert isinstance(result, Undecided) is (needed is not None)
    if needed is not None:
        assert result == Undecided(f"{needed} images needed, and there are {images}", for_images=True)
        assert given.probe.taken == taken  # no pass is wasted


@pytest.mark.parametrize(("count", "decided"), [(4, False), (60, True)])
def test_too_few_images_for_the_large_radius(count: int, decided: bool) -> None:
    model = toys.Wrapped(reversed_gradient)
    given = evidence_of(model, toys.images(count, strength=0.2, noise=0.0), attacks="pgd:steps=5")
    result = GUARDS["large-radius"](given)
    assert isinstance(result, AuditWarning if decided else Undecided)


def test_one_image_is_no_batch() -> None:
    for count in (1, 2):
        result = GUARDS["batch-dependence"](evidence_of(toys.model(), toys.images(count), attacks="fgsm"))
        assert (result == Undecided("2 images needed, and there is 1", for_images=True)) is (count == 1)


@pytest.mark.parametrize(("robust", "undecided"), [(1, True), (2, False), (0, False)])
def test_one_robust_image_is_too_few_for_a_black_box(robust: int, undecided: bool) -> None:
    """The gradient-free attack succeeds on one image beyond those of the other attack."""
    white = {0: 5, 1: 5 - robust}
    given = Evidence(table(2, 5, white=white, black={0: 5, 1: min(5, 6 - robust)}), {"white": PGD()})
    assert isinstance(GUARDS["black-box-stronger"](given), Undecided) is undecided


@pytest.mark.parametrize("mode", ["auto", "full"])
def test_guards_that_could_not_decide_are_reported(tmp_path: Path, mode: GuardMode) -> None:
    model = toys.Wrapped(unnormalised)
    data = toys.images(9)
    result = audit(model, data, guards=mode, out=tmp_path / "a", **ORDER_OPTIONS)
    assert result.guards is not None
    reason = result.guards.undecided["normalised-outside"]
    assert "images needed, and there are 9" in reason
    assert f"Guard normalised-outside could not decide: {reason}." in result.guards.sentence
    assert result.guards.sentence in cw.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    saved = json.loads((tmp_path / "a" / "audit.json").read_text(encoding="utf-8"))["guards"]
    assert saved["undecided"]["normalised-outside"] == reason
    assert Audit.load(tmp_path / "a").guards == result.guards
    assert "normalised-outside" in result.guards.without_result
    assert (saved["mode"], saved["not_run"]) == (mode, [*result.guards.not_run])


@pytest.mark.parametrize("twice", [True, False])
def test_a_normalisation_that_the_network_has_already_is_named(twice: bool) -> None:
    own = toys.model(scale=2.0)
    model = cw.Normalized(own, (0.9,), (0.5,)) if twice else own
    given = evidence_of(model, toys.images(120), attacks="fgsm")
    found = run_guards(given, "full")[0]
    said = [warning.sentence for warning in found if warning.name == "normalised-outside"]
    assert len(said) == twice
    for sentence in said:
        assert "with pixels that cancel the normalisation in front of the network: omit it" in sentence
        assert "if the network has its own, else give the constants" in sentence


def test_a_smaller_sample_names_the_mode_that_takes_a_larger_one() -> None:
    given = evidence_of(toys.model(scale=2.0), every_fourth(100), attacks="fgsm")
    report = run_guards(given, "auto")[1]
    assert report.images == 16
    assert report.undecided["normalised-outside"].endswith("in the sample; --guards full takes up to 100")
    assert "normalised-outside" not in run_guards(given, "full")[1].undecided


def of_the_zoo() -> nn.Module:
    """A network of the zoo whose weights are no longer the initial ones."""
    model = cw.load_model("small-cnn", data=sound(), width=0.1)
    with torch.no_grad():
        next(model.parameters()).add_(0.01)
    return model


SPARSE, RICH, ZOO = "the sound audit", "test images, the DLR loss and a black box", "a trained network of the zoo"
AUDITS: dict[str, dict[str, Any]] = {
    SPARSE: {},
    RICH: {"attacks": ["apgd-dlr:steps=8", "square:steps=100"], "data": split("test")},
    ZOO: {"model": of_the_zoo()},
}


@cache
def results(name: str) -> dict[str, str]:
    """The result of each guard in an audit, as in its evidence report."""
    return {row["name"]: row["result"] for row in _guards(run(**AUDITS[name]))}


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_is_checked_where_its_problem_can_occur(name: str) -> None:
    assert "checked" in {results(audit)[name] for audit in AUDITS}


@pytest.mark.parametrize(
    ("audit", "names"),
    [
        (SPARSE, {"few-classes", "black-box-stronger", "training-images", "untrained"}),
        (RICH, {"no-black-box", "untrained"}),
        (ZOO, {"few-classes", "black-box-stronger", "training-images"}),
    ],
)
def test_guards_do_not_apply_where_their_problem_cannot_occur(audit: str, names: set[str]) -> None:
    assert {name for name, result in results(audit).items() if result == "not applicable"} == names


def test_guards_without_anything_to_look_at_do_not_apply() -> None:
    """Predictions without attacks, distances, duplicates, a split or a threat."""
    given = Evidence(Outcomes.from_predictions([0, 1], [0, 1]))
    names = {name for name, guard in GUARDS.items() if isinstance(guard(given), NotApplicable)}
    read = {"nan-logits", "train-mode", "overwrites-input", "changed-model", "class-order", "no-gradient"}
    assert names == {*GUARDS} - read - {"same-images", "incomplete", "not-repeatable"}


def test_a_report_of_an_earlier_version_is_read() -> None:
    _, found = guards_in({"warnings": [], "guards": {"mode": "full", "not_run": []}})
    assert found == GuardReport("full")
    earlier = dataclasses.replace(run(guards="off"), guards=found)
    assert {row["result"] for row in _guards(earlier)} == {"no finding"}


def test_models_of_constant_outputs_have_no_order() -> None:
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0 * x.flatten(1)[:, :3] + torch.tensor([0.0, 5.0, 0.0])

    assert not orders(audit(Constant().eval(), moved(90), **ORDER_OPTIONS))


@cache
def digits_network() -> nn.Module:
    """A network of two layers, trained on digits for a fraction of a second."""
    data = load_data("digits", split="train")
    x, y = data.pixels(), data.y
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()


def digits_audit(threat: str, guards: GuardMode = "auto") -> Audit:
    data = load_data("digits", split="test")
    return audit(digits_network(), data, threat, "pgd:steps=10,step_size=0.25eps", guards=guards, precision=EXACT)


def uninformative(result: Audit) -> list[AuditWarning]:
    return [warning for warning in result.warnings if warning.name == "uninformative-radius"]


@pytest.mark.parametrize(
    ("threat", "fault"),
    [("Linf:0.4", "large"), ("Linf:0.0005", "small"), ("L2:3.5", "large"), ("L2:0.002", "small"), ("L1:30", "large")],
)
def test_classes_differ_at_the_radius_that_is_named(threat: str, fault: str) -> None:
    (warning,) = uninformative(digits_audit(threat))
    norm = threat.partition(":")[0]
    assert f"too {fault} to compare classes" in warning.sentence
    named = f"{norm}:{warning.value:g}"
    assert warning.sentence.endswith(f": repeat the audit with --threat {named} and another --out.")
    assert re.search(rf"; at about {named} PGD of 5 steps succeeds on \d+ of the \d+ correctly", warning.sentence)
    assert warning.value == float(f"{warning.value:.1g}")
    again = digits_audit(f"{norm}:{warning.value:g}")
    assert not uninformative(again)
    accuracy = again.by_class["all"]
    assert accuracy.max() - accuracy.min() > 0.3
    assert 0.1 < again.by_attack["overall"]["all"] < 0.9


def test_no_other_radius_is_searched_for_where_guards_are_off_or_classes_differ() -> None:
    off = digits_audit("Linf:0.5", "off")
    assert not off.warnings
    usual = digits_audit("Linf:0.1", "full")
    assert not uninformative(usual)
    evidence = evidence_of(digits_network(), load_data("digits", split="test"), threat="Linf:0.1")
    assert GUARDS["uninformative-radius"].cost(evidence) == 0
    beyond = evidence_of(digits_network(), load_data("digits", split="test"), threat="Linf:0.5")
    assert GUARDS["uninformative-radius"].cost(beyond) == 55 * int(beyond.clean.sum())


@pytest.mark.parametrize(
    ("threat", "change", "first"),
    [
        ("Linf:0.01", quantised, "zero-gradients"),
        ("Linf:0.01", lambda x: 2 * x.detach() - x, "misleading-gradients"),
        ("Linf:8", lambda x: x, "huge-radius"),
        ("Linf:0.1", lambda x: 0.5 + 0.05 * x, "normalised-outside"),
    ],
)
def test_no_radius_is_named_where_another_guard_explains_the_accuracies(
    threat: str, change: Callable[[Tensor], Tensor], first: str
) -> None:
    network = digits_network()

    class Changed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = network(change(x))
            return logits

    data = load_data("digits", split="test")
    result = audit(Changed().eval(), data, threat, "pgd:steps=10,step_size=0.25eps", precision=EXACT)
    names = [warning.name for warning in result.warnings]
    assert first in names
    for warning in uninformative(result):
        assert "--threat" not in warning.sentence
        assert re.search(rf": first solve the problem of .*{first}.*, and then judge the radius\.$", warning.sentence)


@pytest.mark.parametrize("threat", ["Linf:0.4", "Linf:0.0005"])
def test_no_radius_is_named_for_an_accuracy_of_chance(threat: str) -> None:
    """No radius makes the classes of such a model comparable."""
    data = load_data("digits", split="test")
    shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    labels = Images(data.x, data.y[shuffled], class_names=data.class_names)
    result = audit(digits_network(), labels, threat, "pgd:steps=10,step_size=0.25eps", precision=EXACT)
    (warning,) = uninformative(result)
    assert re.search(r": first reach a clean accuracy significantly above chance \(.* is not\), and", warning.sentence)
    assert "--threat" not in warning.sentence


def test_the_presumed_guards_are_documented_and_run_first() -> None:
    for guard in GUARDS.values():
        assert {*guard.presumes} <= {*GUARDS}
        page = (ROOT / "docs" / "reference" / "guards" / f"{guard.name}.md").read_text(encoding="utf-8")
        assert [name for name in guard.presumes if f"`{name}`" not in page] == []
        given = Evidence(table(2, 5, a={}), warned=guard.presumes)
        assert not guard.presumes or given.unsolved(guard.presumes).endswith(" and ".join(guard.presumes))


def test_a_small_range_of_probabilities_is_explained_by_them() -> None:
    found = {warning.name: warning.sentence for warning in run(model=with_softmax()).warnings}
    assert found["logit-range"].endswith("as cosines do; first solve the problem of softmax-outputs.")
    assert "--outputs probabilities" in found["softmax-outputs"]
    alone = {warning.name: warning.sentence for warning in run(model=Wrapped(back=lambda z, _: torch.tanh(z))).warnings}
    for spec in re.findall(r"--attack (\S+?)\.?(?= |$)", alone["logit-range"]):
        parse_attacks(spec)
    assert alone["logit-range"].count("--attack") == 2


@pytest.mark.parametrize("stated", [True, False])
def test_the_named_normalisation_can_be_copied(stated: bool) -> None:
    """On the command line, and in Python; with it the model is as accurate as on the pixels that it was trained on."""
    inner = nn.Sequential(Wrapped(lambda x: 0.2 * x + 0.5)).eval()  # trained on pixels (x - 0.5) / 0.2
    model = cw.Normalized(inner, (0.9,), (5.0 / 3,)) if stated else inner
    given = evidence_of(model, sound(), attacks="fgsm")
    warning = GUARDS["normalised-outside"](given)
    assert isinstance(warning, AuditWarning)
    shown = re.search(
        r"--mean (\S+) --std (\S+) \(in Python: load_model\(..., mean=\[(.*)\], std=\[(.*)\]\)\)", warning.sentence
    )
    assert shown is not None
    mean, std = (numbers(text, "--mean") for text in shown.groups()[:2])
    assert (mean, std) == tuple([float(text)] for text in shown.groups()[2:])
    own = "the constants of these data; prefer those of the training code" in warning.sentence
    assert own is ("of the data" in warning.sentence)
    again = evidence_of(load_model(inner, mean=mean, std=std), sound(), attacks="fgsm")
    assert float(again.clean.float().mean()) >= float(given.clean.float().mean()) + warning.value - 0.02


def test_the_scale_of_bytes_can_be_copied() -> None:
    scale = InputScale((0.0,), (1 / 255,))
    assert scale.option == "--mean 0 --std 1/255 (in Python: load_model(..., mean=[0], std=[1 / 255]))"
    assert numbers("1/255", "--std") == [1 / 255]


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (ConstantLoss(steps=3, random_init="none"), ": first solve the problem of zero-gradients, and then judge the"),
        (ExternalAttack(attack=lambda x, _: x), ", but at this radius PGD of 5 steps succeeds on 6 of the 15 "),
    ],
)
def test_a_weak_attack_is_not_taken_for_a_small_radius(attack: Attack, reason: str) -> None:
    data = load_data("digits", split="test")
    weak = audit(digits_network(), data, "Linf:0.1", attack, precision=EXACT)
    (found,) = uninformative(weak)
    assert found.sentence.startswith(f"Hardly any image of any class is misclassified under attack only{reason}")
    assert weak.by_attack["overall"]["all"] == weak.by_attack["overall"]["clean"]


@pytest.mark.parametrize(
    ("correct", "expected"),
    [((0, 0), "large"), ((0, 20), None), ((99, 100), "small"), ((60, 100), None)],
)
def test_imported_predictions_have_no_other_radius(correct: tuple[int, int], expected: str | None) -> None:
    labels = np.repeat([0, 1], 100)
    attacked = np.where(np.tile(np.arange(100), 2) < np.repeat(correct, 100), labels, 1 - labels)
    outcomes = Outcomes.from_predictions(labels, labels, {"pgd": attacked}, threat="Linf:0.1")
    found = GUARDS["uninformative-radius"](Evidence(outcomes))
    if expected is None:
        assert found is None
        return
    assert isinstance(found, AuditWarning)
    assert found.sentence.endswith(f"so the radius is too {expected} to compare classes.")


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_weak_attacks_on_random_outputs_are_undecided(noise: float) -> None:
    """They succeed by chance: neither a small step nor a weak attack says anything about gradients."""
    random = Wrapped(back=lambda z, _: z + noise * torch.randn_like(z))
    attacks = ["apgd-ce:steps=5,eot_iter=2", "square:steps=5,eot_iter=2"]
    result = run(model=random, attacks=attacks, guards="full", repeats=3)
    assert result.guards is not None
    names = {"misleading-gradients", "single-step", "random-noise"}
    undecided = {name for name in names if "vary between passes" in result.guards.undecided.get(name, "")}
    assert undecided == (names if noise else set())
    assert names & {found.name for found in result.warnings} == set()
