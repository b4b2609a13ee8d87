"""Methods of parts of users whose signatures differ from those of their base class are refused at their definition."""

from __future__ import annotations

from typing import Any

import pytest

from classwise.attacks.base import Attack
from classwise.core.errors import ClasswiseError
from classwise.core.settings.signatures import accepts
from classwise.training.averaging import Averager
from classwise.training.criteria.base import Criterion
from classwise.training.lr_schedules import LRSchedule
from classwise.training.objectives.base import Objective
from classwise.training.schedules.base import ClassSchedule
from classwise.training.updates import Optimiser, Update

WRONG: dict[str, tuple[type, str, Any]] = {
    "attack, an argument too few": (Attack, "step", lambda self, model, inputs: None),
    "attack, an argument too many": (Attack, "step", lambda self, model, inputs, state, more: None),
    "attack, a keyword that is required": (Attack, "start", lambda self, model, inputs, *, seed: None),
    "attack, no self": (Attack, "start", lambda model, inputs: None),
    "objective": (Objective, "step", lambda self, model, batch: None),
    "objective, points": (Objective, "points", lambda self, model, batch, attack: None),
    "schedule": (ClassSchedule, "settings", lambda self, state: None),
    "schedule, epoch": (ClassSchedule, "after_epoch", lambda self, state: None),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_signature_is_refused(name: str) -> None:
    base, method, function = WRONG[name]
    with pytest.raises(ClasswiseError, match=rf"\.Mine\.{method} is called with \(.*\), but its parameters are \("):
        type("Mine", (base,), {method: function, "__module__": "mine"})


@pytest.mark.parametrize("base", [Attack, Objective, ClassSchedule, Update, Optimiser, Averager, Criterion, LRSchedule])
def test_every_abstract_method_is_checked(base: Any) -> None:
    for method in base.__abstractmethods__:
        if not method.startswith("_") and not isinstance(vars(base).get(method), property):
            with pytest.raises(ClasswiseError, match=f"Mine.{method} is called with"):
                type("Mine", (base,), {method: lambda: None, "__module__": "mine"})


def test_other_names_defaults_and_properties_are_accepted() -> None:
    def step(self: Any, network: Any, given: Any, before: Any, more: int = 3, *, quick: bool = False) -> Any: ...

    members = {"step": step, "start": lambda *given: None, "length": 3, "_own": lambda: None, "extra": lambda self: 1}
    made: Any = type("Mine", (Attack,), {**members, "__module__": "mine"})
    assert made.step is step


def test_functions_without_a_signature_accept_anything() -> None:
    assert accepts(max, 7)
    assert not accepts(lambda a: a, 2)
