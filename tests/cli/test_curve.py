from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from classwise.auditing.curve.result import Curve
from classwise.threat.ball import Threat
from classwise.training.folder import Run

from .conftest import Classwise


@pytest.mark.slow
def test_the_radii_of_each_class(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    words = ["curve", run_folder, "--rounds=2", "--attack=fgsm", "--subset=60", f"--out={tmp_path / 'c'}"]
    printed = classwise(*words, "--threat=Linf:0.1").printed
    assert f"curve: {tmp_path / 'c'}" in printed
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names >= {"radii.parquet", "curve.csv", "radii.csv", "curve.svg", "curve.png", "page.html"}
    again = classwise(*words, "--threat=Linf:0.1")
    assert again.status == 2
    assert "already contains this curve with these settings: add --resume" in again.err
    loaded = classwise(*words, "--threat=Linf:0.1", "--resume")
    assert (loaded.status, loaded.out) == (0, printed)
    other = classwise(*words, "--resume")
    assert "contains a curve with other settings: threat was " in other.err
    facts = classwise(*words[:-1], f"--out={tmp_path / 'd'}", "--json").facts
    radius = Threat.parse(str(Run(run_folder).recipe.threat)).epsilon
    assert facts["highest"] == pytest.approx(2 * radius)
    assert facts["width"] == pytest.approx(radius / 2)
    assert facts["weakest"] == next(iter(facts["classes"]))


def test_a_bad_number_of_rounds_is_refused(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    assert (
        "rounds = 0" in classwise("curve", run_folder, "--subset=60", f"--out={tmp_path / 'c'}", "--rounds=0").refusal
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("given", "norm", "highest"), [((), "L2", 0.5), (("--threat=Linf:0.1",), "Linf", 0.1)])
def test_a_curve_of_a_run_has_its_norm_and_twice_its_radius(
    classwise: Classwise, run_folder: Path, tmp_path: Path, given: tuple[str, ...], norm: str, highest: float
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_folder, copy)
    recipe = copy / "recipe.yaml"
    text = re.sub(r"^threat: .*$", "threat: L2:0.25", recipe.read_text(encoding="utf-8"), flags=re.MULTILINE)
    recipe.write_text(text, encoding="utf-8")
    (copy / "checksums.txt").unlink()
    out = tmp_path / "c"
    words = ["curve", copy, "--rounds=1", "--attack=fgsm", "--subset=20", f"--out={out}"]
    facts = classwise(*words, *given, "--json").facts
    assert facts["highest"] == pytest.approx(highest)
    assert str(Curve.load(out).meta.threat).startswith(norm)
