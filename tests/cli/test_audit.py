from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

import classwise as cw
from classwise.attacks import suites
from classwise.auditing.run.result import Audit
from classwise.auditing.run.sampling import TwoPhaseEstimator
from classwise.auditing.run.suite import CROSS_ENTROPY
from classwise.cli import console
from classwise.cli.inputs import ImageSource
from classwise.data.sets import loading
from classwise.models import build_model, save_weights
from classwise.testing import assert_robust
from classwise.training.folder import Run

from ..data.test_encoded import folder
from .conftest import QUICK, Classwise

FAST = ["--attack=pgd:steps=3", "--attack=fgsm"]


@pytest.fixture(scope="module")
def run(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that this module may put audits into."""
    return shutil.copytree(run_folder, tmp_path_factory.mktemp("own") / "run")


@pytest.mark.slow
def test_a_run_says_everything_itself(classwise: Classwise, run: Path) -> None:
    printed = classwise("audit", run, *FAST, "--subset=150").printed
    audit = Audit.load(run / "audits" / "digits-test")
    assert audit.attacks == ("clean", "pgd", "fgsm")
    assert audit.outcomes.meta.threat == "Linf:0.1"
    assert len(audit.outcomes.frame) == 3 * 150
    page = run / "audits" / "digits-test" / "page.html"
    assert f"page: {page}" in printed
    assert page.stat().st_size < 500_000

    table = printed.splitlines()
    own = Run.open(run)
    weights, epoch = own.default_weights(), own.best_epoch(own.default_weights())
    assert epoch is not None
    named = f"weights {weights}, epoch {epoch + 1}"
    assert table[0] == f"{run}, {named}: accuracy in percent under Linf:0.1"
    assert named in page.read_text(encoding="utf-8")
    assert audit.environment["weights_epoch"] == epoch + 1
    assert table[1].split()[:5] == ["class", "n", "clean", "pgd", "fgsm"]
    for line, (name, row) in zip(table[2:], audit.by_class.iterrows(), strict=False):
        assert line.split()[:2] == [str(name), str(int(row["n"]))]
        assert f"{100 * row['all']:.1f}" in line
        assert f"[{100 * row['all_low']:.1f}, {100 * row['all_high']:.1f}]" in line
    worst = audit.worst_class()
    assert f"worst class: {worst.name}, {100 * worst.accuracy:.1f} %" in printed


@pytest.mark.slow
def test_weights_of_a_run_under_its_own_radius(classwise: Classwise, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert (
        classwise(
            "train", "at", "--budget=short", "--data=digits", f"--out={run}", *QUICK, "--set=threat=Linf:0.03"
        ).status
        == 0
    )
    said = classwise("audit", run / "checkpoints" / "last.safetensors", "--attack=fgsm", "--subset=50")
    assert said.status == 0, said.err
    audit = Audit.load(run)
    assert audit.path == run / "audits" / "digits-test-last"
    assert audit.outcomes.meta.threat == "Linf:0.03"


@pytest.mark.slow
def test_json_is_the_audit(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    words = ["audit", run, *FAST, "--subset=100", f"--out={tmp_path / 'a'}", "--no-early-stop", "--seed=3"]
    said = classwise(*words, "--json", "--fail-if=worst(all) <= 1", "--fail-if=overall(clean) < 0")
    assert said.status == 1
    facts = json.loads(said.out)
    audit = Audit.load(facts["folder"])
    assert facts["fail_if"] == {"worst(all) <= 1": True, "overall(clean) < 0": False}
    assert facts["worst"]["class"] == audit.worst_class().name
    assert facts["summary"]["all"]["overall"] == pytest.approx(audit.by_attack.loc["all", "overall"])
    assert sum(row["n"] for row in facts["classes"].values()) == 100
    assert (audit.outcomes.meta.early_stop, audit.outcomes.meta.seed) == (False, 3)
    assert [warning["name"] for warning in facts["warnings"]] == [warning.name for warning in audit.warnings]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "auto", "off"])
def test_guards_without_a_result_and_attacks_on_the_cross_entropy_only_are_named(
    classwise: Classwise, run: Path, tmp_path: Path, mode: str
) -> None:
    words = ["audit", run, "--attack=pgd:steps=5", "--subset=60", f"--out={tmp_path / 'a'}", f"--guards={mode}"]
    printed = classwise(*words).printed
    audit, page = Audit.load(tmp_path / "a"), (tmp_path / "a" / "page.html").read_text(encoding="utf-8")
    assert audit.guards is not None
    assert (audit.guards.mode, bool(audit.guards.not_run)) == (mode, mode != "full")
    assert audit.guards.sentence in printed
    assert audit.guards.sentence in page
    assert re.search(rf"<dt>Guards</dt><dd>{mode}\b", page)
    assert CROSS_ENTROPY in printed
    assert CROSS_ENTROPY in page
    files = [tmp_path / name for name in ("a.xml", "a.sarif")]
    outputs = ["--fail-if=overall(all) < 0", f"--junit={files[0]}", f"--sarif={files[1]}"]
    facts = classwise(*words, *outputs, "--resume", "--json").facts
    assert (facts["guards"]["mode"], facts["guards"]["not_run"]) == (mode, list(audit.guards.not_run))
    assert facts["caveats"] == [*filter(None, [audit.guards.sentence]), CROSS_ENTROPY]
    assert all(CROSS_ENTROPY in file.read_text(encoding="utf-8") for file in files)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "status"), [("< 0", 0), ("<= 100%", 1)])
def test_a_condition_fails_the_build(classwise: Classwise, run: Path, tmp_path: Path, limit: str, status: int) -> None:
    threshold = f"worst(all).low {limit}"
    said = classwise("audit", run, "--attack=fgsm", "--subset=50", f"--out={tmp_path / 'a'}", "--fail-if", threshold)
    assert said.status == status
    assert (f"failed: fails if {threshold}, which is true: worst.low under all is " in said.err) == (status == 1)
    assert (f"passed: fails if {threshold}, which is false: worst.low under all is " in said.out) == (status == 0)


@pytest.mark.slow
@pytest.mark.parametrize("cache_option", [True, False])
def test_the_cache_is_that_of_assert_robust(
    classwise: Classwise, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cache_option: bool
) -> None:
    """Either one loads what the other has written; other settings, or ``--out``, are another audit."""
    cache, words = tmp_path / "cache", ["audit", run, "--attack=fgsm", "--subset=50"]
    if cache_option:
        words.append(f"--cache={cache}")
    else:
        monkeypatch.setenv("CLASSWISE_CACHE", str(cache))
    said = classwise(*words)
    (folder,) = cache.iterdir()
    assert f"audit: {folder}" in said.out.splitlines(), said.err
    rows = folder / "outcomes" / "part-00000.parquet"
    before = rows.stat().st_mtime_ns
    given = cache if cache_option else None
    data = cw.load_data("digits", split="test", subset=50)
    assert assert_robust(run, data, worst=0.0, threat="Linf:0.1", attacks="fgsm", cache=given).path == folder
    again = classwise(*words)
    assert again.out == said.out
    assert f"loaded from {folder}, a finished audit" in again.err
    assert "loaded from" not in said.err
    assert rows.stat().st_mtime_ns == before
    classwise(*words, "--fail-if=worst(all) < 0", f"--junit={tmp_path / 'j.xml'}")
    assert f'<testsuite name="{run}"' in (tmp_path / "j.xml").read_text(encoding="utf-8"), "not the hash"
    assert assert_robust(run, data, worst=0.0, threat="Linf:0.1", attacks="fgsm", seed=1, cache=given).path != folder
    if cache_option:
        assert (
            classwise(*words, f"--out={tmp_path / 'a'}").refusal
            == "classwise: --cache does not apply with --out; omit one of them"
        )
        assert classwise(*words, "--shard=1/2").status == 2
    else:
        assert f"audit: {tmp_path / 'a'}" in classwise(*words, f"--out={tmp_path / 'a'}").out
    assert len([*cache.iterdir()]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_tracker_is_found_before_the_attacks(
    classwise: Classwise, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    out = tmp_path / "out"
    said = classwise("audit", str(run), "--subset=40", f"--out={out}", f"--{tracker}={tmp_path / 'place'}")
    assert f"{tracker} is not installed" in said.refusal
    assert not out.exists()


def test_resume_goes_on_and_repeating_is_refused(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    words = ["audit", run, "--attack=fgsm", "--subset=50", f"--out={tmp_path / 'a'}"]
    first = classwise(*words)
    assert first.status == 0
    outputs = ["--fail-if=overall(all) < 0", f"--junit={tmp_path / 'a.xml'}", f"--html={tmp_path / 'a.html'}"]
    for words_of_output in ([], outputs[:1], outputs[2:], outputs, ["--json"]):
        refused = classwise(*words, *words_of_output)
        assert refused.status == 2
        assert "already contains this audit with these settings: add --resume, which loads a" in refused.err
        assert not (tmp_path / "a.xml").exists()
    again = classwise(*words, "--resume")
    assert (again.status, again.out) == (0, first.out)
    assert "fgsm: " in first.err
    assert " to do" not in again.err
    assert classwise(*words, *outputs, "--resume").status == 0
    assert "required: at least 0 %" in (tmp_path / "a.xml").read_text(encoding="utf-8")
    assert (tmp_path / "a.html").is_file()
    changed = classwise(*words, "--seed=1", *outputs)
    assert "contains an audit with other settings: " in changed.err


def test_a_page_by_another_grouping_replaces_none(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "photos", tmp_path / "a"
    rows = ["file_name,light"]
    for number in range(10):
        (source / str(number)).mkdir(parents=True)
        Image.new("L", (8, 8), 20 * number).save(source / str(number) / "a.png")
        rows.append(f"{number}/a.png,{'day' if number % 2 else 'night'}")
    (source / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = ["audit", run, f"--data={source}", "--data-set=size=8", "--attack=fgsm", f"--out={folder}"]
    assert f"page: {folder / 'page.html'}" in classwise(*words).out
    first = (folder / "page.html").read_bytes()
    said = classwise(*words, "--resume", "--group=light")
    assert f"page: {folder / 'page-light.html'}" in said.out, said.err
    assert "night" in (folder / "page-light.html").read_text(encoding="utf-8")
    assert (folder / "page.html").read_bytes() == first
    assert f"page: {folder / 'page.html'}" in classwise(*words, "--resume").out
    refused = classwise(*words[:-1], f"--out={tmp_path / 'b'}", "--group=light", "--fail-if=0(all) < 0.1").refusal
    assert "unknown measure or class in condition '0(all) < 0.1': '0'" in refused
    assert not (tmp_path / "b").exists()


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An hour goes by when an attack fgsm begins."""
    now = time.monotonic

    def begin(self: console.Lines, task: str, total: int) -> None:
        if "fgsm" in task:
            monkeypatch.setattr(time, "monotonic", lambda: now() + 3600)

    monkeypatch.setattr(console.Lines, "start", begin)
    yield monkeypatch
    monkeypatch.undo()


@pytest.mark.slow
def test_no_time_is_said(classwise: Classwise, run: Path, tmp_path: Path, an_hour_later: pytest.MonkeyPatch) -> None:
    words = ["audit", run, "--attack=fgsm", "--subset=50", f"--out={tmp_path / 'a'}"]
    said = classwise(*words, "--max-time=59")
    assert said.status == 3
    assert re.fullmatch(
        r"classwise: the audit is incomplete: (\d+) of 50 images are not judged by every attack "
        r"\(not judged: fgsm \1\); repeat the command with --resume to continue",
        said.err.splitlines()[-1],
    )
    assert "warning (incomplete)" in said.out
    assert "worst class:" not in said.out
    assert not Audit.load(tmp_path / "a").complete
    an_hour_later.undo()
    assert classwise(*words, "--resume").status == 0
    assert Audit.load(tmp_path / "a").complete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thresholds", "status", "answers"),
    [
        (["overall(clean) < 0"], 0, [False]),
        (["overall(all) <= 0"], 3, [None]),
        (["overall(clean) >= 0", "overall(all) <= 0"], 1, [True, None]),
    ],
)
def test_a_condition_decides_only_if_both_bounds_agree(
    classwise: Classwise,
    run: Path,
    tmp_path: Path,
    an_hour_later: pytest.MonkeyPatch,
    thresholds: list[str],
    status: int,
    answers: list[bool | None],
) -> None:
    words = ["audit", run, "--attack=fgsm", "--subset=50", f"--out={tmp_path / 'a'}", "--max-time=59", "--json"]
    said = classwise(*words, *(f"--fail-if={text}" for text in thresholds))
    assert said.status == status, said.err
    facts = json.loads(said.out)
    assert list(facts["fail_if"].values()) == answers
    assert (facts["complete"], facts["worst"]) == (False, None)
    assert facts["summary"]["all"]["overall_lower_bound"] == 0
    assert facts["summary"]["all"]["overall_upper_bound"] > 0
    assert ("undecided: overall(all) <= 0" in said.err) == (None in answers)
    assert ("failed: " in said.err) == (True in answers)


def test_an_estimate_leaves_nothing(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    words = ["audit", run, "--estimate", *FAST, f"--out={tmp_path / 'a'}"]
    facts = classwise(*words, "--json").facts
    assert facts["images"] == 539
    assert facts["evaluated"] == 539
    assert (facts["backwards_low"], facts["backwards"]) == (facts["correct"] * 2, facts["correct"] * (3 + 1))
    lines = classwise(*words).out.splitlines()
    share = f"{100 * facts['correct'] / 539:.1f} %"
    assert lines[0] == f"539 images; {facts['correct']} of 539 ({share}) are correctly classified without attack"
    assert lines[1] == (
        f"passes in total, of one image each: {facts['forwards_low']:,} to {facts['forwards']:,} forward, "
        f"{facts['backwards_low']:,} to {facts['backwards']:,} backward"
    )
    assert lines[2].startswith("time on cpu: ")
    assert lines[3].endswith("no others are attacked; most: they are robust to all attacks")
    device = "NVIDIA H100 80GB HBM3 (rates of the documentation, On a GPU)"
    predicted = classwise(*words, "--rates=h100").out.splitlines()
    assert (predicted[1], predicted[2].partition(": ")[0]) == (lines[1], f"time on {device}")
    assert not (tmp_path / "a").exists()


def make_net(num_classes: int, in_channels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))


@pytest.mark.slow
def test_a_model_of_ones_own(classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": make_net(10, 1).state_dict()}, "w.pt")
    words = [
        "audit",
        f"{__name__}:make_net",
        "--weights=w.pt",
        "--data=digits",
        "--attack=fgsm",
        "--mean=0.3",
        "--std=2/5",
    ]
    said = classwise(*words, "--html=page.html")
    assert said.status == 0, said.err
    assert (tmp_path / "page.html").is_file()
    (folder,) = (tmp_path / "audits").iterdir()
    model = cw.load_model(f"{__name__}:make_net", "w.pt", num_classes=10, in_channels=1, mean=[0.3], std=[0.4])
    found = Audit.load(folder).outcomes.frame
    expected = cw.audit(model, cw.load_data("digits"), attacks="fgsm").outcomes.frame
    keys = ["attack", "index"]
    pd.testing.assert_frame_equal(
        found.sort_values(keys).reset_index(drop=True), expected.sort_values(keys).reset_index(drop=True)
    )


@pytest.mark.slow
def test_options_of_a_zoo_model(classwise: Classwise, tmp_path: Path) -> None:
    model = cw.load_model("wideresnet", num_classes=10, in_channels=1, depth=10, widen=1)
    save_weights(tmp_path / "w.safetensors", model)
    words = [
        "audit",
        "wideresnet",
        "--weights",
        tmp_path / "w.safetensors",
        "--data=digits",
        "--subset=40",
        "--attack=fgsm",
    ]
    words += [f"--out={tmp_path / 'a'}"]
    assert classwise(*words, "--model-set=depht=10").status == 2
    said = classwise(*words, "--model-set=depth=10", "--model-set=widen=1")
    assert said.status == 0, said.err


@pytest.fixture
def small_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoAttack's attacks with fewer steps."""
    members = ("apgd-ce:steps=3", "apgd-t:steps=2,targets=2", "fab-t:steps=2,targets=2", "square:steps=5")
    monkeypatch.setitem(suites.SUITES, "autoattack", {"standard": members})


@pytest.mark.slow
@pytest.mark.usefixtures("small_autoattack")
def test_an_estimate_from_a_sample(classwise: Classwise, run: Path, tmp_path: Path) -> None:
    words = ["audit", run, "--attack=autoattack", "--subset=200", f"--out={tmp_path / 'a'}"]
    printed = classwise(*words, "--settle=8").printed
    audit = Audit.load(tmp_path / "a")
    assert isinstance(audit.estimator, TwoPhaseEstimator)
    assert audit.estimator.finished
    value, low, high = (f"{100 * number:.1f}" for number in audit.estimator.estimate.overall[:3])
    text = f"AutoAttack, estimated: {value} % [{low}, {high}]"
    assert text in printed
    assert text in (tmp_path / "a" / "page.html").read_text(encoding="utf-8")
    facts = classwise(*words, "--settle=8", "--resume", "--json").facts
    assert facts["estimate"]["text"] == text
    assert not facts["complete"]
    assert classwise("report", tmp_path / "a", f"--out={tmp_path / 'again.html'}").status == 0
    assert text in (tmp_path / "again.html").read_text(encoding="utf-8")
    refused = classwise("report", tmp_path / "a", f"--robustbench={tmp_path / 'rb.json'}")
    assert refused.status == 2
    assert "is an estimate from a sample" in refused.err
    assert refused.err.count("\n") == 1
    undecided = classwise(
        *words, "--settle=8", "--resume", f"--fail-if=overall(all) < {audit.estimator.estimate.overall.value}"
    )
    assert undecided.status == 3
    assert "repeat the command with --resume and without --settle" in undecided.err
    assert classwise("compare", f"a={tmp_path / 'a'}", f"b={tmp_path / 'a'}").status == 3
    whole = classwise(*words, "--resume")
    assert whole.status == 0
    assert "estimated" not in whole.out
    assert Audit.load(tmp_path / "a").complete


@pytest.mark.slow
def test_many_large_images_are_read_while_they_are_attacked(
    classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder(tmp_path / "photos", count=40)
    model = build_model("small-cnn", num_classes=2, in_channels=3, width=0.1)
    save_weights(tmp_path / "model.safetensors", model)
    command = ["audit", tmp_path / "model.safetensors", f"--data={source}", "--data-set=size=8", "--threat=Linf:0.1"]
    audits = []
    for limit in (1 << 30, 1):
        monkeypatch.setattr(loading, "LARGE_BYTES", limit)
        said = classwise(*command, "--attack=fgsm", f"--out={tmp_path / str(limit)}")
        assert said.status == 0, said.err
        audits.append(Audit.load(tmp_path / str(limit)))
    assert audits[1].by_class.equals(audits[0].by_class)
    assert audits[1].outcomes.meta.images == 40
    assert audits[1].outcomes.meta.data_hash == audits[0].outcomes.meta.data_hash != ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--junit=a.xml"], "--junit requires a condition, such as --require 'worst(all).low >= 0.2'"),
        (["--fail-if=eleven(all) < 0.1"], "unknown measure or class in condition"),
        (["--fail-if=0(all).mid < 0.1"], "unknown end of the interval"),
        (["--fail-if=2(all) < 0.1"], "condition '2(all) < 0.1': 0 images of this class"),
    ],
)
def test_bad_conditions_are_refused_before_any_attack(
    classwise: Classwise, tmp_path: Path, words: list[str], message: str
) -> None:
    folder = tmp_path / "audit"
    assert (
        message
        in classwise(
            "audit", "small-cnn", "--data=digits", "--width=0.1", "--subset=1", "--out", folder, *words
        ).refusal
    )
    assert not folder.exists()


@pytest.mark.parametrize("given", [None, "photos", "photos/", "./photos", "others"])
def test_the_data_of_a_run_keep_its_options_if_they_are_named_again(run: Path, given: str | None) -> None:
    """Without the size of the run, images of another size would be evaluated."""
    trained = Run(run).recipe
    data = dataclasses.replace(trained.data, name="photos", root="/data", options={"size": 16})
    own = Run(run).with_recipe(dataclasses.replace(trained, data=data))
    name, options = ImageSource(data=given, data_set=["label=kind"]).source(own)
    kept = given != "others"
    assert (name, options["root"], options.get("size")) == (("photos", "/data", 16) if kept else ("others", None, None))
    assert options["label"] == "kind"
