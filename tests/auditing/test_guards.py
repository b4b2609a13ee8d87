"""Each guard is tripped by a model built to trip it, and is silent on an honest one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.ascent import PGD, Ascent
from classwise.attacks.base import Case
from classwise.auditing.audit import audit
from classwise.auditing.guards import GUARDS, Evidence, run_guards
from classwise.auditing.outcomes import Outcomes
from classwise.auditing.result import Audit
from classwise.auditing.suite import parse_attacks
from classwise.compute import EXACT
from classwise.data.images import Images
from classwise.settings import settings
from tests.auditing import toys
from tests.auditing.searching import RandomSearch

STRENGTH = (0.03, 0.08, 0.08)
"""One class is clearly the weakest, so that nothing is to be said about the choice of it."""


def honest() -> Images:
    return toys.images(120, strength=STRENGTH)


def run(**more: Any) -> Audit:
    chosen: dict[str, Any] = {
        "model": toys.model(scale=2.0),
        "data": honest(),
        "threat": "Linf:0.02",
        "attacks": ["pgd:steps=20,step_size=0.25eps", "pgd:steps=20,step_size=0.25eps,objective=margin"],
        "compute": EXACT,
        "batch": 128,
    }
    return audit(**(chosen | more))


class Twisted(toys.Linear):
    """The honest model with something done to its logits."""

    def __init__(self, twist: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(toys.patterns(3), 2.0)
        self.twist = twist
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.twist(super().forward(x), x)


def flat(z: Tensor, _: Tensor) -> Tensor:
    """Logits in steps: almost everywhere their gradient is zero."""
    return z - z.detach() + (z.detach() * 20).round() / 20 - (z - z.detach())


class Reading(nn.Module):
    """The honest model on images that something was done to."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = toys.model(scale=2.0)
        self.change = change
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(self.change(x))
        return out


def backwards(x: Tensor) -> Tensor:
    """The image, with gradients that point the wrong way."""
    return 2 * x.detach() - x


def backwards_in_one(z: Tensor, x: Tensor) -> Tensor:
    """Wrong gradients where the model says class 1, right ones elsewhere."""
    return torch.where((z.argmax(1) == 1)[:, None], 2 * z.detach() - z, z)


def quantised(x: Tensor) -> Tensor:
    """Eight grey levels and no gradient."""
    return (x * 8).round() / 8


def straight_through(x: Tensor) -> Tensor:
    """Eight grey levels, and the gradient as if there were none."""
    return x + (quantised(x) - x).detach()


def outside(x: Tensor) -> Tensor:
    """What becomes of an image in a model that was trained on (x - 0.5) / 0.05."""
    return 0.5 + 0.05 * x


def wary(z: Tensor, x: Tensor) -> Tensor:
    """No gradient for an image that is far from grey, as an attack with a large radius makes it."""
    far = (x - 0.5).abs().flatten(1).mean(1) > 0.11
    return torch.where(far[:, None], z.detach(), z)


@settings
class Shy(PGD):
    """An attack that claims many steps and takes them in no direction at all."""

    def loss(self, logits: Tensor, y: Tensor, case: Case) -> Tensor:
        return 0 * logits.sum(1)


@settings
class Ratio(Ascent):
    """An attack that says it follows the difference of logits ratio."""

    objective: Literal["dlr"] = "dlr"

    def loss(self, logits: Tensor, y: Tensor, case: Case) -> Tensor:
        return logits.logsumexp(1) - logits.gather(1, y[:, None]).squeeze(1)


def of_columns(change: Callable[[Outcomes], Outcomes]) -> Callable[[], set[str]]:
    def names() -> set[str]:
        result = run()
        return {found.name for found in run_guards(Evidence(change(result.outcomes)))}

    return names


def guards_of(**more: Any) -> Callable[[], set[str]]:
    return lambda: {found.name for found in run(**more).warnings}


def split(name: str) -> Images:
    data = honest()
    return Images(data.x, data.y, data.class_names, data.name, name)


def with_training_attack() -> set[str]:
    attack = PGD(steps=30)
    result = run(attacks=attack)
    return {found.name for found in run_guards(Evidence(result.outcomes, {"pgd": attack}, training_attack=attack))}


def noted(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.frame, dataclasses.replace(outcomes.meta, notes=("batch halved",)))


def shortened(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.frame.iloc[:-5], outcomes.meta)


def strayed(outcomes: Outcomes) -> Outcomes:
    """Outcomes as somebody else's attack may have left them."""
    far = outcomes.frame["distance"].where(outcomes.frame["attack"] != "pgd", 0.4)
    return Outcomes(outcomes.frame.assign(distance=far), outcomes.meta)


TRIPPED: dict[str, Callable[[], set[str]]] = {
    "train-mode": guards_of(model=toys.model(scale=2.0).train()),
    "nan-logits": guards_of(model=Twisted(lambda z, x: torch.where(x[:, 0, 0, :1] > 0.55, torch.inf, z))),
    "softmax-outputs": guards_of(model=Twisted(lambda z, _: z.softmax(1))),
    "logit-range": guards_of(model=Twisted(lambda z, _: torch.tanh(z))),
    "nondeterministic": guards_of(model=Twisted(lambda z, _: z + 0.1 * torch.randn_like(z))),
    "batch-dependence": guards_of(model=Twisted(lambda z, _: z - z.mean(0))),
    "zero-radius": guards_of(model=Twisted(lambda z, _: z + 5 * torch.randn_like(z))),
    "outside-ball": of_columns(strayed),
    "normalised-outside": guards_of(model=Reading(outside)),
    "zero-gradients": guards_of(model=Twisted(flat)),
    "misleading-gradients": guards_of(model=Reading(straight_through)),
    "single-step": guards_of(attacks=[Shy(steps=20)], threat="Linf:0.05"),
    "few-classes": guards_of(attacks=[Ratio(steps=20), PGD(steps=20)]),
    "random-noise": guards_of(attacks=[Shy(steps=5, begin="none")], threat="Linf:0.1"),
    "black-box-stronger": guards_of(attacks=[Shy(steps=20), RandomSearch()], threat="Linf:0.05"),
    "no-black-box": guards_of(attacks=[Shy(steps=20)], threat="Linf:0.05"),
    "not-falling": guards_of(model=Twisted(wary), threat="Linf:0.08"),
    "huge-radius": guards_of(threat="Linf:8"),
    "large-radius": guards_of(model=Reading(backwards)),
    "not-converged": guards_of(attacks="pgd:steps=20,step_size=0.06eps,begin=none", threat="Linf:0.08"),
    "training-attack": with_training_attack,
    "training-images": guards_of(data=split("train")),
    "same-images": guards_of(data=toys.images(90), threat="Linf:0.05"),
    "incomplete": of_columns(shortened),
    "not-repeatable": of_columns(noted),
}


@pytest.fixture(autouse=True)
def _a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack called ``square``, where there is none yet."""
    if "square" not in ATTACKS:
        monkeypatch.setitem(ATTACKS._entries, "square", "tests.auditing.searching:RandomSearch")


@pytest.mark.parametrize("name", GUARDS)
def test_the_guard_is_tripped(name: str) -> None:
    torch.manual_seed(0)
    assert name in TRIPPED[name]()


def test_an_honest_audit_trips_none() -> None:
    data = honest()
    result = run(data=Images(data.x, data.y, data.class_names, data.name, "test"))
    assert result.warnings == ()
    assert 0 < result.summary["overall"]["all"] < result.summary["overall"]["clean"]


@pytest.mark.parametrize("threat", ["L2:0.1", "L1:0.5"])
def test_an_honest_audit_in_other_norms_trips_none(threat: str) -> None:
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
def test_what_counts_as_the_usual_training_attack(attacks: Any, warned: bool) -> None:
    evidence = Evidence(Outcomes.from_predictions([0, 1], [0, 1]), parse_attacks(attacks).attacks)
    assert (GUARDS["training-attack"](evidence) is not None) is warned


def test_a_class_may_be_masked_alone() -> None:
    def mask_one(z: Tensor, x: Tensor) -> Tensor:
        dead = (z.argmax(1) == 1)[:, None]
        return torch.where(dead, z.detach(), z)

    found = {each.name: each for each in run(model=Twisted(mask_one)).warnings}
    assert "100.0 % in 'class 1'" in found["zero-gradients"].sentence


def test_every_finding_is_one_sentence_with_a_number() -> None:
    result = run(model=Twisted(lambda z, _: z.softmax(1)), data=split("train"))
    assert len(result.warnings) >= 2
    for found in result.warnings:
        assert found.sentence.endswith(".")
        assert "\n" not in found.sentence
    softmax = next(each for each in result.warnings if each.name == "softmax-outputs")
    assert softmax.value < 1e-5


def test_predictions_from_elsewhere_need_no_model() -> None:
    labels = np.arange(60) % 3
    outcomes = Outcomes.from_predictions(labels, labels, {"aa": np.where(labels == 0, 1, labels)}, "abc")
    assert run_guards(Evidence(outcomes)) == ()
