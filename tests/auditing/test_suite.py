"""Parsing of attacks, and their labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.ascent import FGSM, PGD, TemperaturePGD
from classwise.auditing.run.audit import audit
from classwise.auditing.run.suite import DEFAULT_SPECS, cross_entropy_only, norm_of, parse_attacks
from classwise.data import load_data
from tests.refusals import check_refused

GRID = ("tpgd[2]", "tpgd[5]", "tpgd[10]", "tpgd[50]")


def test_the_default_is_not_the_usual_training_attack() -> None:
    suite = parse_attacks()
    assert tuple(suite.attacks) == ("pgd", "pgd-margin", *GRID)
    assert suite.families == {"tpgd": GRID}
    assert suite.specs()["pgd"] == parse_attacks("pgd:steps=20").specs()["pgd"]
    assert [attack.inverse_temperature for attack in suite.attacks.values() if isinstance(attack, TemperaturePGD)] == [
        2.0,
        5.0,
        10.0,
        50.0,
    ]


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        ("pgd", ["pgd"]),
        (["pgd:steps=5", "pgd:steps=7", "fgsm"], ["pgd", "pgd-2", "fgsm"]),
        (["pgd:objective=margin", "pgd:objective=kl"], ["pgd-margin", "pgd-kl"]),
        ("tpgd:inverse_temperature=5", ["tpgd[5]"]),
        (["tpgd:steps=3"], list(GRID)),
        (["tpgd", "tpgd:steps=3"], [*GRID, *(label.replace("tpgd", "tpgd-2") for label in GRID)]),
        ({"strong": "pgd:steps=50", "weak": FGSM()}, ["strong", "weak"]),
        (["a=external:build=textwrap:dedent", "b=external:build=textwrap:dedent"], ["a", "b"]),
        (["long=pgd:steps=100,objective=margin", "pgd"], ["long", "pgd"]),
        ("mine = tpgd:inverse_temperature=5", ["mine"]),
        (["external:build=textwrap:dedent"] * 2, ["external", "external-2"]),
        ({"mine": "tpgd"}, [label.replace("tpgd", "mine") for label in GRID]),
        ({"name": "pgd", "steps": 3}, ["pgd"]),
        ([PGD(steps=3), "classwise.attacks.gradient.ascent:FGSM"], ["pgd", "fgsm"]),
        ("tests.auditing.test_suite:Mine", ["Mine"]),
        ("fast", ["apgd-ce", "pma", "apgd-t"]),
        (["pgd", "autoattack:version=rand"], ["pgd", "apgd-ce", "apgd-dlr"]),
        ({"aa": "autoattack"}, ["aa-apgd-ce", "aa-apgd-t", "aa-fab-t", "aa-square"]),
    ],
)
def test_labels(words: Any, labels: list[str]) -> None:
    assert list(parse_attacks(words).attacks) == labels


class Mine(PGD):
    """A user-defined attack."""


def test_a_named_suite_is_a_cascade_for_the_norm() -> None:
    assert parse_attacks("autoattack").cascade
    assert not parse_attacks(["pgd", "apgd-ce"]).cascade
    assert list(parse_attacks("autoattack", norm_of("L1:12")).attacks) == ["apgd-ce", "apgd-t"]
    assert norm_of(None) == norm_of("cifar10") == "Linf"


def test_the_nearest_name_may_be_a_suites() -> None:
    check_refused("unknown attack 'autoatack'; did you mean 'autoattack'", parse_attacks, "autoatack")


def test_a_grid_keeps_the_other_settings() -> None:
    assert {attack.length for attack in parse_attacks("tpgd:steps=3").attacks.values()} == {3}


def test_specs_are_complete() -> None:
    spec = parse_attacks("pgd:steps=3").specs()["pgd"]
    assert spec["name"] == "pgd"
    assert spec["steps"] == 3
    assert spec["restarts"] == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pgd:steps=3", "pgd:objective=kl", "fgsm", "n-fgsm", "mifgsm", "difgsm", "apgd-ce", "spatial-pgd"], True),
        ("tpgd:inverse_temperature=1", True),
        ("tpgd", False),
        (["pgd", "pgd:objective=margin"], False),
        ("apgd-dlr", False),
        ("apgd-ce:objective=dlr", False),
        (None, False),
        ("clean", False),
        *((name, False) for name in ("apgd-t", "pgd-t", "pma", "md", "cw", "fab", "square", "autoattack", "fast")),
        ({"mine": ExternalAttack(attack=lambda images, labels: images)}, False),
        ({"other": {"name": "transfer", "surrogate": nn.Identity()}}, False),
    ],
)
def test_attacks_on_the_cross_entropy_only(words: Any, expected: bool) -> None:
    specs = parse_attacks(words).specs()
    assert cross_entropy_only({"clean": None, **specs}) is expected
    assert not cross_entropy_only({"clean": None, **specs, "elsewhere": None})


@pytest.mark.parametrize("name", ["nosuch", "module_that_is_not_imported:Attack", [], None])
def test_a_spec_of_a_file_imports_nothing(name: object) -> None:
    assert not cross_entropy_only({"a": {"name": name}})
    assert not cross_entropy_only({"a": {"name": "pgd", "steps": "many"}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pdg", "unknown attack 'pdg'; did you mean 'pgd'"),
        ("pgd:step=3", "did you mean 'steps'"),
        ("pgd:steps=0", "steps"),
        ("pgd:step_size=0", "step_size"),
        ([], "no attack is given"),
        ({"clean": "pgd"}, "label 'clean' is reserved for the pass without an attack"),
        (["all=pgd"], "label 'all' is reserved"),
        (["name=pgd"], "label 'name' is reserved"),
        (["pgd", "pgd_predicted=pgd"], "label 'pgd_predicted' is reserved"),
        (["a=pgd", "a=fgsm"], "two attacks have the label 'a'"),
        (["=pgd"], "attack '=pgd': must have the form LABEL=SPEC"),
        (["mine="], "attack 'mine=': must have the form LABEL=SPEC"),
        (["mine=nosuch"], "unknown attack 'nosuch'"),
        ({"all": "pgd"}, "label 'all' is reserved"),
        ({"tpgd-best": "pgd", "tpgd": "tpgd"}, "label 'tpgd-best' is reserved"),
        ([3], "3 is not an attack"),
        ("transfer", "transfer: no surrogate"),
        ({"name": "transfer", "surrogate": nn.Identity(), "attack": "external"}, "external: no attack"),
        ("external:restarts=2", "external: no attack"),
        ({"tpgd": "tpgd", "tpgd[5]": "pgd"}, "two attacks have the label 'tpgd.5.'"),
        ("autoattack:versoin=plus", "suite 'autoattack' has no option 'versoin'; did you mean 'version'"),
    ],
)
def test_mistakes_are_one_line(words: Any, message: str) -> None:
    check_refused(message, parse_attacks, words)


def test_the_default_suite_is_as_strong_as_its_attacks_at_equal_passes() -> None:
    """Six attacks of 20 steps against one of 120 steps, on a network that was trained too briefly."""
    train, test = load_data("digits", split="train"), load_data("digits", split="test", subset=120)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        model = nn.Sequential(wide, nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(8):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(train.pixels()), train.y))
        optimizer.step()
    found = audit(model.eval(), test, "Linf:0.1", [*DEFAULT_SPECS, "long=pgd:steps=120"], guards="off").outcomes.frame
    robust = found.pivot(index="index", columns="attack", values="correct")
    assert 0.4 < robust[["pgd", "pgd-margin", *GRID]].all(axis=1).mean() <= robust["long"].mean() < 0.6
