"""Studies over seeds: the runner on digits, the differences of seeds, and their pages."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks import attack_signs, jpeg_quality, real_size, studies, symmetry, training_length
from benchmarks.__main__ import main
from benchmarks.adjustment import FITS
from benchmarks.comparison import methods
from benchmarks.comparison.methods import TimedProgress
from benchmarks.studies import QUICK, effect, verdict
from benchmarks.training_length import sign_change

import classwise as cw
from classwise.auditing.compare.comparison import Comparison
from classwise.posthoc.logit_adjustment import LogitAdjustment, adjust_logits
from classwise.stats.intervals import Estimate
from classwise.training.recipe import Recipe

SELECTED = ("AT-12-selected", "AT+FAWA-12-selected", "AT-12-last", "AT+FAWA-12-last")


def environment(patch: pytest.MonkeyPatch, **values: object) -> None:
    """Set the variables that select what a study runs; without ``SEEDS``, all seeds."""
    patch.delenv("SEEDS", raising=False)
    for name, value in values.items():
        patch.setenv(name, str(value))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of one run of the study of the length of training, with two seeds."""
    root = tmp_path_factory.mktemp("training-length")
    with pytest.MonkeyPatch.context() as patch:
        environment(patch, KEEP=root, SEEDS="0,1", METHODS=",".join(SELECTED))
        text = training_length.STUDY.run(quick=True)
    (root / "page.md").write_text(text, encoding="utf-8")
    return root


def test_one_run_has_the_online_model_and_the_average(runs: Path) -> None:
    files = [Path((runs / "seed-1" / name / "weights.txt").read_text()) for name in SELECTED]
    assert [file.stem for file in files] == ["best", "best-average", "last", "average"]
    assert {file.parents[1] for file in files} == {runs / "seed-1" / "run-at-AT-12"}
    recipe = Recipe.read(str(files[0].parents[1] / "recipe.yaml"))
    assert (recipe.seed, recipe.epochs, str(recipe.threat)) == (1, 2, "Linf:0.1")


def test_a_finished_study_is_not_repeated(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path: path.stat().st_mtime_ns for path in runs.glob("seed-*/**/*") if path.is_file()}
    environment(monkeypatch, KEEP=runs, SEEDS="0,1", METHODS=",".join(SELECTED))
    assert training_length.STUDY.run(quick=True) == (runs / "page.md").read_text(encoding="utf-8")
    assert {path: path.stat().st_mtime_ns for path in runs.glob("seed-*/**/*") if path.is_file()} == files


def test_the_counts_are_those_of_the_audits(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, KEEP=runs)
    training_length.STUDY.report(quick=False)
    table = pd.read_csv(runs / "training-length.csv")
    assert len(table) == len(SELECTED) * 2 * 10
    for (name, seed), rows in table.groupby(["method", "seed"]):
        counts = cw.Audit.load(runs / f"seed-{seed}" / str(name) / "audits" / "pgd").counts()
        assert rows["robust"].tolist() == counts.correct.tolist()
        assert rows["n"].tolist() == counts.count.tolist()
    page = (runs / "training-length.md").read_text(encoding="utf-8")
    assert page.count("AT+FAWA minus AT") == 4
    missing = re.search(r"Not run yet: (.*)\.\*\*", page)
    assert missing is not None
    assert "AT-50-selected (seed 0, 1, 2)" in missing[1].split("; ")
    assert "AT-12-selected (seed 2)" in missing[1].split("; ")


def test_the_page_has_the_epochs_that_fawa_admitted(runs: Path) -> None:
    """Of two epochs, FAWA starts at the second; its gate of 20 % is closed for so weak a model."""
    assert "| AT+FAWA | 0 of 1, 0 of 1 | not run | not run |" in (runs / "page.md").read_text(encoding="utf-8")


def audit(seed: int, name: str, correct: list[int]) -> cw.Audit:
    outcomes = cw.Outcomes.from_predictions([0] * 20 + [1] * 20, attacks={"pgd": correct}, class_names=["cat", "dog"])
    return dataclasses.replace(cw.Audit(outcomes), path=Path(f"/seed-{seed}/{name}/audits/pgd"))


def predictions(wrong: int) -> list[int]:
    """Predictions of 40 images of which the first ``wrong`` of class 1 are misclassified."""
    return [0] * 20 + [0] * wrong + [1] * (20 - wrong)


def test_an_effect_is_of_the_seeds_that_both_methods_have() -> None:
    ours = tuple(audit(seed, "ours", predictions(wrong)) for seed, wrong in ((0, 4), (1, 8), (2, 20)))
    base = tuple(audit(seed, "base", predictions(wrong)) for seed, wrong in ((1, 10), (0, 10)))
    comparison = Comparison({"ours": ours, "base": base})
    found = effect(comparison, "ours", "base")
    assert found is not None
    assert found.seeds == 2
    assert found.worst.value == pytest.approx((6 + 2) / 20 / 2)
    assert found.overall.value == pytest.approx((6 + 2) / 40 / 2)
    assert effect(comparison, "ours", "missing") is None
    for seed, images in ((0, 6), (1, 2)):
        single = effect(comparison, "ours", "base", seed)
        assert single is not None
        assert single.seeds == 1
        assert single.worst.value == pytest.approx(images / 20)


def test_rows_of_one_table_are_of_the_seeds_that_all_methods_have() -> None:
    runs = {name: tuple(audit(seed, name, predictions(2)) for seed in seeds) for name, seeds in
            (("ours", (0, 1, 2)), ("base", (1, 2)), ("other", (2,)))}  # fmt: skip
    common = studies.of_common_seeds(Comparison(runs))
    for audits in common.audits.values():
        assert [studies.seed_of(audit) for audit in audits] == [2]
    disjoint = Comparison({"ours": runs["ours"][:2], "other": runs["other"]})
    assert studies.of_common_seeds(disjoint) is disjoint


@pytest.mark.parametrize(
    ("estimate", "sign"),
    [
        (Estimate(0.2, 0.1, 0.3), studies.UP),
        (Estimate(-0.2, -0.3, -0.1), studies.DOWN),
        (Estimate(0.2, -0.1, 0.5), studies.INCONCLUSIVE),
    ],
)
def test_a_sign_is_known_if_the_interval_excludes_zero(estimate: Estimate, sign: str) -> None:
    assert verdict(estimate) == sign


def test_measures_of_confusions_are_paired_by_seed() -> None:
    """Of 20 images of dog, 10 are misclassified as cat under AT, and 4, 8 and 12 under Sy-FAR."""
    runs = {
        "AT": tuple(audit(seed, "AT", predictions(10)) for seed in range(3)),
        "Sy-FAR": tuple(audit(seed, "Sy-FAR", predictions(wrong)) for seed, wrong in ((2, 12), (0, 4), (1, 8))),
    }
    text = symmetry.page(Comparison(runs), QUICK, Path())
    (measured,) = re.findall(r"^\| Sy-FAR \| (\d.*)$", text, re.MULTILINE)[1:2]
    assert re.search(r"^\| AT \| 50.0 \[50.0, 50.0\] \| 0.25 \[", text, re.MULTILINE)
    assert " | -10.0 [-59.7, 39.7] | " in measured
    assert "dog to cat +20.0; cat 100.0<br>" in text


@pytest.mark.parametrize(
    ("signs", "lengths", "shown"),
    [
        ([studies.UP, studies.INCONCLUSIVE, studies.DOWN], 3, "supported"),
        ([studies.UP, studies.DOWN], 3, "supported"),
        ([studies.UP, studies.INCONCLUSIVE], 2, studies.INCONCLUSIVE),
        ([studies.UP, studies.UP], 2, f"no: {studies.UP} at every length"),
        ([studies.UP, studies.UP], 3, "not run"),
    ],
)
def test_a_change_of_sign_needs_two_known_signs(signs: list[str], lengths: int, shown: str) -> None:
    assert sign_change(signs, lengths) == shown


def test_every_effect_is_of_methods_that_are_trained() -> None:
    names = {method.name for method in training_length.STUDY.methods}
    for pair in training_length.EFFECTS:
        for label in pair:
            for length in training_length.LENGTHS:
                for when in training_length.SAVED:
                    assert training_length.method_name(label, length, when) in names
    assert len(names) == len(training_length.STUDY.methods) == np.prod([3, 2, 9])


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of fine-tuning on digits; the folder has the runs and their records."""
    root = tmp_path_factory.mktemp("real-size")
    with pytest.MonkeyPatch.context() as patch:
        environment(patch, KEEP=root / "runs", METHODS="N-FGSM,AT,FAAL-0.3,FAAL-0.3+adjusted")
        patch.setattr(studies, "RESULTS", root / "results")
        text = real_size.STUDY.run(quick=True)
        assert not (root / "results").exists()
    (root / "page.md").write_text(text, encoding="utf-8")
    return root


def test_fine_tuning_starts_from_the_shared_model(fine_tuned: Path) -> None:
    start = (fine_tuned / "runs" / "seed-0" / "N-FGSM" / "weights.txt").read_text()
    for name in ("AT", "FAAL-0.3"):
        recipe = Recipe.read(str(fine_tuned / "runs" / "seed-0" / name / "recipe.yaml"))
        assert recipe.model.weights == start
        optimizer, lr_schedule = recipe.optimizer, recipe.lr_schedule
        assert isinstance(optimizer, dict)
        assert isinstance(lr_schedule, dict)
        assert (optimizer["lr"], lr_schedule["milestones"]) == (0.01, [0.5])
    assert (fine_tuned / "runs" / "seed-0" / "AT" / "training.json").is_file()
    page = (fine_tuned / "page.md").read_text(encoding="utf-8")
    assert "| FAAL-0.3 minus AT |" in page
    assert "| FAAL-0.3+adjusted minus FAAL-0.3 |" in page
    assert "DAFA minus" not in page
    training = fine_tuned / "runs" / "seed-0" / "FAAL-0.3" / "training.json"
    hours = json.loads(training.read_text())["seconds"] / 3600 * torch.get_num_threads()
    for name in ("FAAL-0.3", "FAAL-0.3+adjusted"):
        assert f"| {name} | {hours:.2f} | 1 |" in page
    assert "digits; training seed 0 (one seed)" in page


def test_recorded_audits_have_the_accuracies_without_the_runs(
    fine_tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "RESULTS", tmp_path)
    monkeypatch.setenv("KEEP", str(fine_tuned / "runs"))
    study = dataclasses.replace(real_size.STUDY, page=lambda comparison, *_: str(comparison))
    page, head = tmp_path / "real-size.md", "# Title\n\nFindings.\n\n"
    page.write_text(f"{head}{study.mark}\n\nFormer tables.", encoding="utf-8")
    text = study.report(quick=False)
    assert page.read_text(encoding="utf-8") == f"{head}{study.mark}\n\n{text}"
    assert "FAAL-0.3+adjusted" in (tmp_path / "real-size" / "accuracies.svg").read_text(encoding="utf-8")
    outcomes = cw.Audit.load(tmp_path / "real-size/seed-0/AT/audits/pgd").outcomes
    assert outcomes.frame["margin"].isna().all()
    assert outcomes.meta.model == "seed-0/AT/checkpoints/best.safetensors"
    monkeypatch.setenv("KEEP", str(tmp_path / "elsewhere"))
    assert study.report(quick=False) == text
    runs = fine_tuned / "runs" / "seed-0"
    for name in ("AT", "FAAL-0.3+adjusted"):
        recorded = cw.Audit.load(tmp_path / "real-size" / "seed-0" / name / "audits" / "pgd")
        pd.testing.assert_frame_equal(recorded.by_class, cw.Audit.load(runs / name / "audits" / "pgd").by_class)


def test_the_hours_of_a_resumed_training_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    path = tmp_path / "training.json"
    interrupted = TimedProgress("AT", path)
    now = 150
    interrupted.advance(1)
    assert not path.exists(), "written at most once a minute"
    now = 170
    interrupted.advance(1)
    now = 1000
    resumed = TimedProgress("AT", path)
    now = 1030
    resumed.write()
    assert json.loads(path.read_text())["seconds"] == 70 + 30


def test_effects_are_shown_under_each_attack_of_a_cascade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[object] = []

    def recording(*arguments: Any, attack: str, **options: Any) -> LogitAdjustment:
        fits.append(attack)
        return adjust_logits(*arguments, attack=attack, **options)

    monkeypatch.setattr(methods, "adjust_logits", recording)
    environment(monkeypatch, KEEP=tmp_path, SEEDS="0", METHODS="AT,AT+adjusted-ce,AT+adjusted-apgd-t")
    study = attack_signs.STUDY
    page = tmp_path / "attack-signs.md"
    page.write_text(f"# Title\n\n{study.mark}\n\nFormer tables.", encoding="utf-8")
    text = study.run(quick=True)
    assert fits == [FITS["ce"], FITS["apgd-t"]]
    assert "| AT+adjusted-apgd-t minus AT+adjusted-ce | 1 | worst class |" in text
    assert study.report(quick=False) in page.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8").startswith(f"# Title\n\n{study.mark}\n\n### Each method")
    counts = pd.read_csv(tmp_path / "attack-signs.csv")
    assert counts.columns.tolist()[3:] == ["n", "clean", "robust", *attack_signs.SHOWN]
    assert (counts["apgd-t"] == counts["robust"]).all()
    assert (counts["apgd-t"] <= counts["pgd-margin"]).all()
    assert (counts["pgd-margin"] <= counts["pgd"]).all()


def test_a_stopped_audit_is_not_finished(fine_tuned: Path, tmp_path: Path) -> None:
    """Its seconds are recorded, too."""
    weights = Path((fine_tuned / "runs" / "seed-0" / "AT" / "weights.txt").read_text())
    data = cw.load_data("digits", split="test", subset=20)
    audit = cw.audit(weights, data, "Linf:0.1", "fgsm", out=tmp_path / "audit", guards="off", max_time=1e-9)
    assert not audit.complete
    assert not methods.finished(tmp_path / "audit")
    assert not methods.finished(tmp_path)
    cw.audit(weights, data, "Linf:0.1", "fgsm", out=tmp_path / "audit", guards="off", resume=True)
    assert methods.finished(tmp_path / "audit")


@pytest.mark.parametrize(
    ("weak", "strong", "shown"),
    [
        (Estimate(0.05, 0.01, 0.09), Estimate(0.04, 0.01, 0.07), "same; higher"),
        (Estimate(0.05, 0.01, 0.09), Estimate(0.02, -0.02, 0.06), "same; higher to inconclusive"),
        (Estimate(0.05, -0.01, 0.1), Estimate(-0.04, -0.07, -0.01), "opposite; inconclusive to lower"),
        (Estimate(0.05, -0.01, 0.1), Estimate(0.0, -0.07, 0.07), "zero; inconclusive"),
    ],
)
def test_the_sign_under_a_stronger_attack(weak: Estimate, strong: Estimate, shown: str) -> None:
    assert attack_signs.sign(weak, strong) == shown


def test_suites_are_run_where_they_are_named(
    fine_tuned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audits = fine_tuned / "runs" / "seed-0" / "AT" / "audits"
    assert [folder.name for folder in audits.iterdir()] == ["pgd"]
    environment(monkeypatch, KEEP=fine_tuned / "runs", METHODS="AT,FAAL-0.3", SUITES="apgd")
    page = real_size.STUDY.run(quick=True)
    assert "accuracy under APGD-CE and APGD-T, 50 test images" in page
    table = page.partition("### Each method minus its control under APGD-CE and APGD-T, points")[2]
    assert "| FAAL-0.3 minus AT | 0 |" in table.partition("###")[0]
    assert sorted(folder.name for folder in audits.iterdir()) == ["apgd", "pgd"]
    for name, value, error in (
        ("SUITES", "apgd,fgsm", "real-size: unknown suite 'fgsm'; known: apgd, pgd"),
        ("SEEDS", "0,one", "real-size: SEEDS=0,one: must be whole numbers, such as 0,1,2"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main(["real-size", "--quick"])
        assert ended.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {error}")


def test_lower_qualities_of_jpeg_differ_more() -> None:
    data = cw.Images(torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 10)
    noise = [jpeg_quality.psnr(data, jpeg_quality.encoded(data, quality)) for quality in (95, 75, 30)]
    assert noise == sorted(noise, reverse=True)
    flat = cw.Images(torch.full((2, 3, 32, 32), 0.5), torch.tensor([0, 1]))
    assert jpeg_quality.psnr(flat, jpeg_quality.encoded(flat, 95)) > 50


def test_the_cost_of_jpeg_is_the_paired_difference(tmp_path: Path) -> None:
    data = cw.load_data("digits", split="test", subset=40)
    run = cw.train(
        "standard",
        data="digits",
        out=tmp_path / "run",
        epochs=2,
        overrides={"model.name": "small-cnn", "model.width": 0.1},
    )
    weights = run.weights_file("last")
    given, low = jpeg_quality.rows_of(weights, data, [5], 10)
    clean, _ = jpeg_quality.outcomes(weights, jpeg_quality.encoded(data, 5), 10)
    assert given[3] == given[5] == ""
    assert low[2] == f"{100 * clean.correct('clean').mean():.1f}"
    assert float(low[3].split()[0]) == pytest.approx(float(low[2]) - float(given[2]), abs=0.11)
