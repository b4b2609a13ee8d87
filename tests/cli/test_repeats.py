"""The options --repeats, --repeat-rule and --grid of ``classwise audit``."""

from __future__ import annotations

import json
from pathlib import Path

from classwise.auditing.run.result import Audit

from .conftest import Classwise

QUICK = ("audit", "small-cnn", "--data=digits", "--subset=40", "--attack=pgd:steps=2", "--guards=off")
OPTIONS = ("--repeats=3", "--repeat-rule=all", "--grid=8bit")


def test_the_options_are_recorded_and_shown(classwise: Classwise, tmp_path: Path) -> None:
    printed = classwise(*QUICK, *OPTIONS, "--out", tmp_path / "x").printed
    assert "Probability of a correct pass per class" in printed
    assert "an image counts as correct if all of 3 passes are correct" in printed
    meta = Audit.load(tmp_path / "x").outcomes.meta
    assert (meta.repeats, meta.repeat_rule, meta.grid) == (3, "all", "8bit")
    said = classwise(*QUICK, *OPTIONS, "--json", "--out", tmp_path / "y")
    facts = json.loads(said.out)
    assert facts["grid"] == "8bit"
    assert (facts["repeats"]["passes"], facts["repeats"]["rule"]) == (3, "all")
    assert facts["repeats"]["overall"]["n"] == sum(row["n"] for row in facts["repeats"]["classes"].values()) == 40
