from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import classwise as cw
from classwise.auditing.guards.report import AuditWarning
from classwise.auditing.run.corruptions import CorruptionAudits
from classwise.cli.corruptions import _write
from classwise.data import corrupt, load_data
from tests.cli.conftest import Classwise

FEW = ("--corruption", "fog", "--corruption", "contrast", "--severity", "5", "--subset", "60")


@pytest.mark.slow
def test_a_table_over_corruptions(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    printed = classwise("corruptions", run_folder, "--data", "digits", *FEW, "--out", tmp_path).printed
    table = pd.read_csv(tmp_path / "by_class.csv", index_col="class")
    columns = [f"{name}{end}" for name in ("fog", "contrast", "mean") for end in ("", "_low", "_high")]
    assert table.columns.tolist() == columns
    assert len(table) == 11
    values: Any = table.to_dict()
    assert f"{100 * values['fog']['overall']:.1f}" in printed
    error = 100 * (1 - values["mean"]["overall"])
    assert f"mean corruption error (not relative to a baseline): {error:.1f} %" in printed
    assert classwise("corruptions", run_folder, "--data", "digits", *FEW, "--out", tmp_path).status == 2
    again = classwise("corruptions", run_folder, "--data", "digits", *FEW, "--out", tmp_path, "--resume", "--json")
    assert json.loads(again.out)["accuracy"]["fog"]["overall"] == pytest.approx(values["fog"]["overall"])


@pytest.mark.parametrize("attack", [{}, {"pgd": [0, 1, 1, 1]}])
def test_warnings_and_the_threat_are_printed(
    attack: dict[str, list[int]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The mean corruption error is that of images that are not attacked."""
    outcomes = cw.Outcomes.from_predictions([0, 0, 1, 1], [0, 0, 1, 1], attack)
    outcomes = replace(outcomes, meta=replace(outcomes.meta, threat="Linf:0.1" if attack else "Linf:0"))
    foggy, snowy = (
        cw.Audit(outcomes, warnings=found) for found in ((AuditWarning("untrained", "Load others.", 1.0),), ())
    )
    found = CorruptionAudits({("fog", 1): foggy, ("snow", 1): snowy})
    _write(found, tmp_path, json=False)
    printed = capsys.readouterr().out
    assert printed.startswith(f"accuracy in percent{' under Linf:0.1' if attack else ''}, mean over severities\n")
    assert "warning (untrained): fog 1: Load others.\n" in printed
    assert ("mean corruption error" in printed) is not bool(attack)
    _write(found, tmp_path, json=True)
    warning = {"name": "untrained", "sentence": "fog 1: Load others."}
    assert json.loads(capsys.readouterr().out)["warnings"] == [warning]


@pytest.mark.slow
def test_an_audit_under_one_corruption(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    words = (
        "--data=digits",
        "--subset=40",
        "--attack=fgsm",
        "--corruption=fog",
        f"--out={tmp_path / 'audit'}",
        "--json",
    )
    said = classwise("audit", run_folder, "--severity=5", *words)
    assert said.status == 0, said.err
    foggy = corrupt(load_data("digits", subset=40), "fog", 5)
    about = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert about["data_hash"] == foggy.fingerprint()


def test_a_corruption_needs_a_severity(classwise: Classwise) -> None:
    for option in ("--corruption=fog", "--severity=3"):
        said = classwise("audit", "resnet18", "--data=digits", option)
        assert (said.status, said.err.strip()) == (
            2,
            "classwise: --corruption and --severity must be given together: --corruption fog --severity 3",
        )
    assert (
        "unknown corruption 'frog'; did you mean 'fog'"
        in classwise("audit", "small-cnn", "--data=digits", "--corruption=frog", "--severity=3").err
    )
    said = classwise("corruptions", "small-cnn", "--data=digits", "--threat=Linf:0.1")
    assert said.refusal.startswith("classwise: --threat requires --attack")
    assert "needs a corruption and a severity" not in classwise("corruptions", "small-cnn", "--data=cifar10-c").err
