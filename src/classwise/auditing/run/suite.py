"""The attacks of an audit and their labels in tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, Engine, NoGradientError
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.ascent import PGD, TEMPERATURES, TemperaturePGD
from classwise.attacks.suites import SUITES, members
from classwise.auditing.outcomes.meta import CLEAN, check_attack_labels
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings import limits
from classwise.core.settings.config import Spec, describe, make, parse_spec
from classwise.core.settings.names import checked_name, fresh_name
from classwise.data.images import Batch
from classwise.models.modes import wrong_gradients_refused
from classwise.threat.ball import Threat, ThreatLike

DEFAULT_SPECS: tuple[str, ...] = (
    "pgd:steps=20",
    "pgd:steps=20,objective=margin",
    "tpgd:steps=20",
)
"""The default attacks: twice the steps of usual training, on three losses."""

SPATIAL_SPECS: tuple[str, ...] = ("spatial-grid",)
"""The default attacks of spatial threats: the grid of Engstrom et al., which finds more than gradients do."""

Choice = Spec | Attack | Callable[..., Any]
"""One attack: a spec, a mapping with a name, an `Attack`, or an attack of another library."""
Attacks = Annotated[
    Choice | Iterable[Choice] | Mapping[str, Choice],
    "text such as 'pgd:steps=20', an Attack, a function, or a list or mapping of these",
]


@dataclass(frozen=True)
class Suite:
    """The attacks of an audit.

    Attributes:
        attacks: the attacks in their order, by their labels.
        families: labels of attacks that differ in one setting, by the family's name.
        cascade: whether a named suite is among them, which by default runs as a cascade.
    """

    attacks: Mapping[str, Attack]
    families: Mapping[str, tuple[str, ...]]
    cascade: bool = False

    def specs(self) -> dict[str, dict[str, Any]]:
        """The complete spec of each attack, with defaults."""
        return {label: describe(ATTACKS, attack) for label, attack in self.attacks.items()}


def parse_attacks(attacks: Attacks | None = None, norm: str = "Linf") -> Suite:
    """Parse the attacks of an audit.

    A name of `classwise.attacks.suites.SUITES`, such as ``autoattack`` or ``autoattack:version=plus``, is replaced by
    its attacks. ``tpgd`` without an inverse temperature is replaced by the paper's grid {2, 5, 10, 50}, with labels
    such as ``tpgd[5]``. Repeated labels are numbered: ``pgd``, ``pgd-2``. A spec may begin with a label of its own:
    ``long=pgd:steps=100``. The clean pass is always part of an audit; ``clean`` alone is an audit without attacks.

    Args:
        attacks: a spec such as ``"pgd:steps=20"``, an `Attack`, an attack of another library (`ExternalAttack`),
            several of them, or a mapping from labels to them; None: `DEFAULT_SPECS`, or `SPATIAL_SPECS` for spatial
            threats.
        norm: the norm of the ball, which decides the members of a named suite and the default attacks.

    Raises:
        ClasswiseError: for an unknown attack or field, an attack that lacks a required field, an empty list, or a
            reserved label.
    """
    usual = SPATIAL_SPECS if norm == "spatial" else DEFAULT_SPECS
    given = _chosen(usual if attacks is None else attacks)
    choices = [choice for choice in given if choice != (None, CLEAN)]
    if len(choices) > limits.ATTACKS:
        raise ClasswiseError(f"{len(choices)} attacks are given; an audit runs at most {limits.ATTACKS}")
    expanded = [pair for choice in choices for pair in _expanded(choice, norm)]
    by_label: dict[str, Attack] = {}
    families: dict[str, tuple[str, ...]] = {}
    for user_label, choice in expanded:
        members = _members(choice)
        for member in members:
            member.check()
        base = user_label or (_label(members[0]) if len(members) == 1 else _name(members[0]))
        base = user_label or fresh_name(base, [*by_label, *families])
        labelled = {base: members[0]}
        if len(members) > 1:
            labelled = {f"{base}[{attack.inverse_temperature:g}]": attack for attack in members}
            families[base] = tuple(labelled)
        for label in by_label.keys() & labelled.keys():
            raise ClasswiseError(f"two attacks have the label {label!r}; labels must be unique")
        by_label |= labelled
    if not given:
        raise ClasswiseError("no attack is given; give at least one, such as pgd:steps=20")
    check_attack_labels(by_label, families)
    return Suite(by_label, families, cascade=len(expanded) > len(choices))


def _expanded(choice: tuple[str | None, Choice], norm: str) -> list[tuple[str | None, Choice]]:
    """The members of a named suite, or the choice itself."""
    label, spec = choice
    if not isinstance(spec, str | Mapping):
        return [choice]
    name, options = _named(spec)
    if name not in SUITES:
        if ":" not in name and name not in ATTACKS:
            raise unknown("attack", name, {*ATTACKS, *SUITES})
        return [choice]
    return [(label and f"{label}-{member.partition(':')[0]}", member) for member in members(name, options, norm)]


def _chosen(attacks: Attacks) -> list[tuple[str | None, Choice]]:
    """Every choice with the user's label for it, or None."""
    if isinstance(attacks, str | Attack) or callable(attacks):
        return [_labelled(attacks)]
    if isinstance(attacks, Mapping):
        if isinstance(attacks.get("name"), str):  # the spec of one attack, not a mapping from labels
            return [(None, attacks)]
        return [(checked_name(label, "attack labels"), choice) for label, choice in attacks.items()]
    return [_labelled(choice) for choice in attacks]


def _labelled(choice: Choice) -> tuple[str | None, Choice]:
    """The label and the spec of ``mine=external:build=mine:attack``; other choices have no label.

    Raises:
        ClasswiseError: for an empty label or spec.
    """
    if not isinstance(choice, str):
        return None, choice
    label, equals, spec = choice.partition("=")
    if not equals or ":" in label:  # the equals sign of an option, as in pgd:steps=20
        return None, choice
    if not label.strip() or not spec.strip():
        raise ClasswiseError(
            f"attack {choice!r}: must have the form LABEL=SPEC, such as mine=external:build=mine:attack"
        )
    return label.strip(), spec.strip()


def _members(choice: Choice) -> list[Any]:
    """The attack of a choice, or the attacks of its grid."""
    if isinstance(choice, type):
        raise ClasswiseError(f"{choice.__name__} is a class; give an attack of it, such as {choice.__name__}(...)")
    if not isinstance(choice, str | Mapping | Attack) and callable(choice):
        return [ExternalAttack(attack=choice)]
    if not isinstance(choice, str | Mapping | Attack):
        raise ClasswiseError(
            f"{choice!r} is not an attack; give one of {', '.join(ATTACKS)}, your own Attack, or a callable "
            "attack(images, labels)"
        )
    if not isinstance(choice, Attack):
        name, options = _named(choice)
        if name == "tpgd" and "inverse_temperature" not in options:
            return [make(ATTACKS, {"name": name, **options, "inverse_temperature": value}) for value in TEMPERATURES]
    return [make(ATTACKS, choice)]


def _named(spec: Spec) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return parse_spec(spec, {*ATTACKS, *SUITES})
    options = dict(spec)
    return str(options.pop("name", "")), options


def _name(attack: Attack) -> str:
    """The attack's name in the registry; for an unregistered class, the name of the class."""
    return ATTACKS.name_of(type(attack)).rpartition(":")[2]


def _label(attack: Attack) -> str:
    """The shortest label that distinguishes the attack from its variants."""
    if isinstance(attack, PGD) and attack.objective != "ce":
        return f"{_name(attack)}-{attack.objective}"
    if isinstance(attack, TemperaturePGD):
        return f"{_name(attack)}[{attack.inverse_temperature:g}]"
    return _name(attack)


CROSS_ENTROPY = (
    "Only attacks on the cross-entropy were run; under margin or targeted attacks (Linf), 10 of 36 models had another "
    "worst class and all had a lower worst-class accuracy (documentation: Which attack names the worst class?)."
)
"""What is known about the worst class under such attacks alone."""


def cross_entropy_only(specs: Mapping[str, Mapping[str, Any] | None]) -> bool:
    """Whether attacks ran, and all of them maximise the cross-entropy only (`Attack.cross_entropy`).

    Args:
        specs: the spec of each attack by its label; ``clean`` is ignored. An attack that is not registered, or whose
            spec is unknown, is not imported and counts as one with another objective.
    """
    attacks = [spec for label, spec in specs.items() if label != CLEAN]
    return bool(attacks) and all(spec is not None and _is_cross_entropy(spec) for spec in attacks)


def _is_cross_entropy(spec: Mapping[str, Any]) -> bool:
    name = spec.get("name")
    if not isinstance(name, str) or name not in ATTACKS:
        return False
    try:
        # The attack is built only if its class defines an objective: `transfer` would load its surrogate.
        return ATTACKS.load(name).cross_entropy is not Attack.cross_entropy and make(ATTACKS, spec).cross_entropy
    except ClasswiseError:
        return False


def norm_of(threat: ThreatLike | None) -> str:
    """The norm of a ball; None: Linf, the norm of all usual balls."""
    return "Linf" if threat is None else Threat.parse(threat).norm


AUTOGRAD_WORDS = ("grad", "differentiated")
"""Words in the errors of autograd for a missing gradient, raised inside an external attack or a model."""


def split_suite(suite: Suite, engine: Engine, batch: Batch, threat: Threat) -> tuple[Suite, str]:
    """Select the attacks that are applicable to the engine's model.

    Args:
        suite: the requested attacks.
        engine: an engine of the model, with a small batch size, since a few passes suffice.
        batch: at least one image, on which attacks are tried if the model has no gradient.
        threat: the ball; of per-image radii, the largest is used.

    Returns:
        The suite without the attacks that need a missing gradient, and the reason why it is missing, as a sentence
        without its full stop. For a model with gradients: the same suite and an empty reason.
    """
    reason = engine.passes.missing_gradient(batch.x.to(engine.device))
    if not reason:
        return suite, ""
    if isinstance(threat.epsilon, Tensor):
        threat = threat.with_epsilon(float(threat.epsilon.max()))
    steppable = {label: attack for label, attack in suite.attacks.items() if _can_step(attack, engine, batch, threat)}
    return restricted(suite, steppable), reason


def restricted(suite: Suite, attacks: Mapping[str, Attack]) -> Suite:
    """The suite with these attacks only."""
    families = {name: tuple(label for label in members if label in attacks) for name, members in suite.families.items()}
    nonempty = {name: members for name, members in families.items() if members}
    return dataclasses.replace(suite, attacks=attacks, families=nonempty)


def require_applicable(suite: Suite, requested: Suite, reason: str) -> None:
    """Check that at least one of the requested attacks, if there are any, is applicable.

    Raises:
        ClasswiseError: naming the requested attacks and the reason, if none is applicable.
    """
    if requested.attacks and not suite.attacks:
        names = ", ".join(requested.attacks)
        raise ClasswiseError(
            f"none of {names} is applicable: {reason}; choose an attack without gradients, such as square"
        )


def _can_step(attack: Attack, engine: Engine, batch: Batch, threat: Threat) -> bool:
    """Whether the first step of an attack succeeds without a gradient."""
    rows = torch.arange(engine.batch_size) % len(batch.x)
    index, x, y = (part[rows].to(engine.device) for part in batch)
    reference = engine.passes.reference(x) if attack.needs_reference else None
    inputs = AttackInputs(
        x, y, index, threat, CounterRNG(engine.seed, "attack"), reference=reference, restart=torch.zeros_like(index)
    )
    try:
        with engine.forward_for(attack, x) as model, wrong_gradients_refused():
            attack.step(model, inputs, attack.start(model, inputs))
    except NoGradientError:
        return False
    except (RuntimeError, torch.jit.Error) as error:
        if not any(word in str(error) for word in AUTOGRAD_WORDS):
            raise
        return False
    return True
