"""Models without gradients are evaluated by the attacks that need none; the others have no verdicts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import classwise as cw
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.engine import NoGradientError
from classwise.attacks.gradient.ascent import PGD
from classwise.attacks.minimal.fab import FAB
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.audit import audit, estimate
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.auditing.worst_class.search import find_worst_class
from classwise.cli import main
from classwise.core.compute.precision import EXACT
from tests.auditing import toys
from tests.auditing.gradientless import RandomSearch, detached, sign, without_gradients
from tests.refusals import check_refused

THREAT = "Linf:0.05"
SQUARE = "square:steps=30"


def images() -> Any:
    return toys.images(36, strength=(0.03, 0.08, 0.08))


def run(**more: Any) -> Audit:
    chosen: dict[str, Any] = {"data": images(), "threat": THREAT, "precision": EXACT, "batch_size": 32}
    return audit(**(chosen | more))


@pytest.fixture(params=without_gradients())
def model(request: pytest.FixtureRequest) -> Any:
    return without_gradients()[str(request.param)]


def found(result: Audit) -> dict[str, str]:
    return {warning.name: warning.sentence for warning in result.warnings}


def test_attacks_without_gradients_run_and_are_the_verdict(model: Any) -> None:
    result = run(model=model, attacks=["pgd:steps=3", SQUARE, RandomSearch(proposals=5), FAB(steps=2)])
    assert result.attacks == (CLEAN, "square", "RandomSearch")
    assert result.outcomes.meta.not_applicable == ("pgd", "fab")
    assert result.complete
    search = result.outcomes.correct("square") & result.outcomes.correct("RandomSearch")
    assert result.outcomes.correct("all").tolist() == (search & result.outcomes.correct(CLEAN)).tolist()
    assert (
        "not applicable: 'pgd', 'fab'; the results are based on 'square', 'RandomSearch' only"
        in found(result)["no-gradient"]
    )
    assert found(result).keys().isdisjoint({"zero-gradients", "misleading-gradients", "large-radius", "not-falling"})


def test_the_warning_names_the_only_attack(model: Any) -> None:
    result = run(model=model, attacks=[SQUARE])
    assert result.outcomes.meta.not_applicable == ()
    assert "based on gradient-free attacks ('square') only" in found(result)["no-gradient"]
    overall = result.by_attack["overall"]
    assert overall["all"] < overall[CLEAN]


@pytest.mark.parametrize("attacks", [None, ["pgd:steps=3", FAB(steps=2)]])
def test_attacks_of_which_none_applies_are_refused(model: Any, attacks: Any, tmp_path: Path) -> None:
    names = ", ".join(parse_attacks(attacks).attacks)
    message = rf"^none of {re.escape(names)} is applicable: .*; choose an attack without gradients, such as square$"
    check_refused(message, run, model=model, attacks=attacks, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert run(model=model, attacks=CLEAN).attacks == (CLEAN,)


def test_an_audit_resumes_with_the_same_attacks(tmp_path: Path) -> None:
    model = toys.Wrapped(back=detached)
    attacks = ["pgd:steps=2", SQUARE]
    first = run(model=model, attacks=attacks, out=tmp_path / "a")
    again = run(model=model, attacks=attacks, out=tmp_path / "a", resume=True)
    assert first.outcomes.frame.equals(again.outcomes.frame)


def test_an_attack_by_transfer_needs_no_gradient_of_the_model(model: Any) -> None:
    result = run(model=model, attacks=[Transfer(surrogate=toys.model(scale=2.0), attack=PGD(steps=3))])
    assert result.attacks == (CLEAN, "transfer")


@pytest.mark.slow
def test_the_worst_class_and_the_curve_use_applicable_attacks(model: Any) -> None:
    answer = find_worst_class(model, images(), THREAT, ["apgd-ce:steps=3", SQUARE], precision=EXACT, batch_size=32)
    assert "under square at Linf:0.05" in answer.sentence
    assert "not applicable without gradients: apgd-ce" in answer.suite
    assert set(answer.images["first_success"].dropna()) <= {CLEAN, "square"}
    radii = robustness_curve(
        model, images(), "Linf", ["pgd:steps=2", SQUARE], highest=0.1, rounds=2, precision=EXACT, batch_size=32
    )
    assert set(radii.frame["first_success"].dropna()) <= {CLEAN, "square"}
    assert estimate(model, images(), THREAT, ["pgd", SQUARE], precision=EXACT, batch_size=32).backwards == 0
    for search in (
        find_worst_class,
        lambda *given, **more: robustness_curve(given[0], given[1], "Linf", given[3], highest=0.1, **more),
    ):
        check_refused(
            r"none of pgd is applicable: .*; choose an attack without gradients",
            search,
            model,
            images(),
            THREAT,
            ["pgd"],
            precision=EXACT,
            batch_size=32,
        )


@pytest.mark.parametrize("attack", [PGD(steps=2), FAB(steps=2)])
def test_a_direct_call_is_refused_in_one_line(attack: Any) -> None:
    batch = images().batch(slice(0, 4))
    with pytest.raises(NoGradientError, match="do not depend on its input in autograd") as refused:
        cw.attack(toys.Wrapped(back=detached), batch.x, batch.y, attack, threat=THREAT)
    assert "\n" not in str(refused.value)


def test_gradients_that_are_zero_are_gradients() -> None:
    result = run(model=toys.Wrapped(front=sign), attacks=["pgd:steps=3", SQUARE])
    assert result.attacks == (CLEAN, "pgd", "square")
    assert "no-gradient" not in found(result)
    assert "zero-gradients" in found(result)


NAME = "tests.auditing.gradientless:detached_digits"


@pytest.mark.slow
@pytest.mark.parametrize(
    "attacks", [["--attack=clean"], ["--attack=square:steps=5"], ["--attack=pgd", "--attack=square:steps=5"]]
)
def test_the_command_line_completes(attacks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", NAME, "--data=digits", "--subset=40", "--threat=Linf:0.1", f"--out={tmp_path / 'a'}", *attacks]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert "no-gradient" in {warning["name"] for warning in facts["warnings"]}
    asked = [word.removeprefix("--attack=").partition(":")[0] for word in attacks]
    assert facts["robustness_evaluated"] == ("square" in asked)
    assert ("pgd" in facts["not_applicable"]) == ("pgd" in asked)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["worst-class", "curve", "audit --estimate"])
def test_the_other_evaluations_complete(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split(), NAME, "--data=digits", "--subset=40", "--threat=Linf:0.1"]
    words += [] if command != "curve" else [f"--out={tmp_path / 'c'}", "--rounds=2"]
    assert main([*words, "--attack=apgd-ce:steps=2", "--attack=square:steps=5"]) == 0
    assert main([*words, "--attack=pgd"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pgd", "square", "cw-l2"])
def test_inside_inference_mode_the_outcomes_are_the_same(name: str) -> None:
    attack = {"pgd": "pgd:steps=4", "square": SQUARE, "cw-l2": "cw-l2:steps=10,binary_search_steps=1"}[name]
    threat = "L2:0.2" if name == "cw-l2" else THREAT
    plain = run(model=toys.model(scale=2.0), attacks=[attack], threat=threat)
    with torch.inference_mode():
        made_inside = toys.model(scale=2.0)
        data = images()
        weight = made_inside.head.weight
        results = [
            run(model=net, data=data, attacks=[attack], threat=threat) for net in (made_inside, toys.model(scale=2.0))
        ]
        assert torch.is_inference_mode_enabled()
        batch = data.batch(slice(0, 8))
        direct = cw.attack(made_inside, batch.x, batch.y, PGD(steps=3), threat=THREAT)
    assert made_inside.head.weight is weight
    assert weight.is_inference()
    assert weight.requires_grad
    for result in results:
        assert result.outcomes.frame.equals(plain.outcomes.frame)
        assert result.warnings == plain.warnings
    batch = images().batch(slice(0, 8))
    assert torch.equal(direct, cw.attack(toys.model(scale=2.0), batch.x, batch.y, PGD(steps=3), threat=THREAT))
