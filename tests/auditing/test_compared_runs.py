"""The runs of a comparison: no run twice, distinct names, equal settings in another form."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classwise.attacks import ATTACKS
from classwise.auditing.compare.comparability import canonical
from classwise.auditing.compare.compare import compare
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import describe, make

LABELS = np.repeat([0, 1], 10)


def audited(correct: int = 5, spec: dict[str, Any] | None = None, **about: Any) -> Audit:
    predicted = np.where(np.arange(20) % 10 < correct, LABELS, 1 - LABELS)
    outcomes = Outcomes.from_predictions(LABELS, LABELS, {"pgd": predicted}, ["cat", "dog"], **about)
    meta = dataclasses.replace(outcomes.meta, attacks={"clean": None, "pgd": spec})
    return Audit(Outcomes(outcomes.frame, meta))


def test_one_audit_is_not_two_seeds(tmp_path: Path) -> None:
    """Neither as an object, nor in another audit of its outcomes, nor from its folder, nor by its model."""
    audit, rest = audited(), audited(7)
    audit.save(tmp_path / "audit")
    folder, same = tmp_path / "audit", tmp_path / "audit" / ".." / "audit"
    loaded = Audit.load(folder)
    hashed = [audited(correct, model_hash="ab" * 32) for correct in (5, 6)]
    cases: tuple[tuple[list[Any], str], ...] = (
        ([audit, audit], "the same outcomes"),
        ([rest, audit, audited(6), dataclasses.replace(audit, name="other")], "the same outcomes"),
        ([folder, same], "the same folder"),
        ([loaded, folder], "the same folder"),
        (hashed, "the same model"),
    )
    for runs, what in cases:
        with pytest.raises(ClasswiseError, match=rf"^runs \d and \d of 'a' are audits of {what}.*; give each training"):
            compare({"a": runs, "b": rest})
    twice = audited(threat="Linf:0.1"), audited(threat="Linf:0.2")
    with pytest.raises(ClasswiseError, match="runs 1 and 3 of 'a' are audits of the same outcomes"):
        compare({"a": [*twice, twice[0]]}, across="threat")


def test_equal_predictions_of_two_models_are_two_seeds() -> None:
    assert compare({"a": [audited(), audited()], "b": audited(7)}).seeds == {"a": 2, "b": 1}


def test_other_seeds_of_the_attacks_are_noted() -> None:
    note = "The audits used different seeds of the attacks' random numbers: 0, 3."
    runs = {"a": audited(seed=3), "b": audited(7, seed=0), "c": audited(8)}
    assert note in compare(runs).notes
    assert note not in compare(runs, attack="clean").notes
    assert note not in compare({"a": audited(seed=3), "b": audited(7, seed=3)}).notes
    levels = {"a": [audited(seed=3, threat="Linf:0.1"), audited(4, seed=0, threat="Linf:0.2")]}
    assert note in compare(levels, across="threat").notes


@pytest.mark.parametrize("name", [None, 3, "", " ", "\ud800", "b "])
def test_names_of_methods_are_checked(name: Any) -> None:
    with pytest.raises(ClasswiseError, match=r"names of methods: |compare\(\): audits = "):
        compare({name: audited(), "b": audited(7)})


@pytest.mark.parametrize("name", [None, 3, "", "\ud800"])
def test_the_name_of_an_audit_is_checked(name: Any) -> None:
    with pytest.raises(ClasswiseError, match=r"name of the audit: |Audit\(\): name = "):
        Audit(audited().outcomes, name=name)


SAME = (
    ({"steps": 10}, {"steps": 10.0}),
    ({"steps": 10}, {"steps": "10"}),
    ({"step_size": "0.1eps"}, {"step_size": "0.10eps"}),
    ({"step_size": "eps"}, {"step_size": "1eps"}),
    ({"step_size": 0.25}, {"step_size": "1/4"}),
    ({"attack": {"name": "pgd", "steps": 3}}, {"attack": {"name": "pgd", "steps": 3.0}}),
    ({"sizes": (1, 2)}, {"sizes": [1.0, 2.0]}),
)
OTHER = (
    ({"steps": 10}, {"steps": 10.5}),
    ({"steps": 1}, {"steps": True}),
    ({"steps": 0}, {"steps": None}),
    ({"step_size": "0.1eps"}, {"step_size": 0.1}),
    ({"step_size": "0.1eps"}, {"step_size": "0.2eps"}),
    ({"seed": 2**62}, {"seed": 2**62 + 1}),
    ({"objective": "ce"}, {"objective": "margin"}),
)


@pytest.mark.parametrize(("first", "second"), SAME)
def test_equal_settings_in_another_form_compare(first: dict[str, Any], second: dict[str, Any]) -> None:
    found = compare({"a": audited(5, {"name": "pgd", **first}), "b": audited(7, {"name": "pgd", **second})})
    assert found.names == ("a", "b")
    assert len(found.pairs) == 1


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_other_settings_do_not_compare(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert canonical(first) is not canonical(second)
    with pytest.raises(ClasswiseError, match="differ in attacks"):
        compare({"a": audited(5, {"name": "pgd", **first}), "b": audited(7, {"name": "pgd", **second})})


@pytest.mark.parametrize("steps", [10.0, "10", "10.0", np.int64(10)])
def test_a_whole_number_of_steps_in_any_form_is_one_attack(steps: Any) -> None:
    attack = make(ATTACKS, {"name": "pgd", "steps": steps})
    assert describe(ATTACKS, attack) == describe(ATTACKS, make(ATTACKS, "pgd:steps=10"))
    assert type(describe(ATTACKS, attack)["steps"]) is int
    assert [*parse_attacks([f"pgd:steps={steps}"]).attacks] == ["pgd"]


@pytest.mark.parametrize("label", ["n", "low", "high", "class", "pgd_low", "all_judged", "pgd ", " ", "\ud800"])
def test_labels_of_an_audits_attacks_are_those_that_tables_can_show(label: str) -> None:
    with pytest.raises(ClasswiseError, match=r"is reserved|but for blanks|is blank|surrogate"):
        parse_attacks({"pgd": "pgd", label: "fgsm"})
