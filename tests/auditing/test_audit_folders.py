"""Folders of audits: interruption, resumption, and the record of the work done with its model and command."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from classwise.attacks.engine.queue import Queue
from classwise.attacks.engine.rows import Columns
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.run.audit import audit
from classwise.auditing.run.audit_folder import read_about
from classwise.auditing.run.corruptions import audit_corruptions
from classwise.auditing.run.loop import AttackLoop
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.search import find_worst_class
from classwise.core.compute.precision import EXACT
from classwise.core.settings.command_line import recorded
from classwise.models import load_model, save_weights
from classwise.models.normalization import Normalized
from classwise.models.provenance import model_facts
from classwise.reporting import report
from tests.auditing import toys
from tests.auditing.test_shards import streamed
from tests.auditing.toys import Listener
from tests.refusals import check_refused

from .test_audit import run


@pytest.mark.slow
@pytest.mark.parametrize(("after", "cascade"), [(40, False), (190, True)])
def test_a_killed_audit_resumes_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, cascade: bool
) -> None:
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 24)
    more: dict[str, Any] = {"attacks": "tpgd:steps=3", "cascade": cascade, "save": ["logits", "images"]}
    whole = run(out=tmp_path / "whole", guards="auto", **more)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "killed", progress=Listener(after), **more)
    begun = len(list((tmp_path / "killed" / "outcomes").glob("part-*")))
    resumed = run(out=tmp_path / "killed", resume=True, guards="auto", **more)
    assert 0 < begun < len(list((tmp_path / "killed" / "outcomes").glob("part-*")))
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)
    again = Audit.load(tmp_path / "killed")
    pd.testing.assert_frame_equal(again.outcomes.frame, whole.outcomes.frame, check_exact=True)
    assert again.warnings == whole.warnings
    for kind, attack in itertools.product(("logits", "images", "examples"), ("tpgd[2]", "tpgd[50]")):
        for found, expected in zip(again.artifacts.get(kind, attack), whole.artifacts.get(kind, attack), strict=True):
            assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("cascade", [True, False])
def test_starts_side_by_side_change_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cascade: bool) -> None:
    """Also of an audit that is killed and resumed, and of shards."""
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 24)
    more: dict[str, Any] = {"attacks": ["pgd:steps=3,restarts=4", "pgd-t:steps=4"], "cascade": cascade}
    early, begun = Queue._early, list[int]()

    def noted(self: Queue, slots: Columns, live: Tensor, count: int) -> Columns | None:
        rows = early(self, slots, live, count)
        begun.append(0 if rows is None else len(rows["row"]))
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "_early", lambda *_: None)
        expected = run(**more).outcomes.frame
    monkeypatch.setattr(Queue, "_early", noted)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "killed", progress=Listener(130), **more)
    resumed = run(out=tmp_path / "killed", resume=True, **more).outcomes.frame
    pd.testing.assert_frame_equal(resumed, expected, check_exact=True)
    shards = [run(shard=f"{number}/2", out=tmp_path / str(number), **more).outcomes.frame for number in (1, 2)]
    joined = pd.concat(shards).sort_values(["attack", "index"]).reset_index(drop=True)
    whole = expected.sort_values(["attack", "index"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(joined, whole, check_exact=True)
    assert sum(begun) > 0


@pytest.mark.slow
def test_partially_written_files_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 16)
    whole = run(out=tmp_path / "whole", save="logits")
    parts = sorted((tmp_path / "whole" / "outcomes").glob("part-*"))
    parts[-1].unlink()  # killed after the kept tensors of this part and before its rows
    (tmp_path / "whole" / "outcomes" / ".part-00099.parquet.x.tmp").write_bytes(b"half")
    resumed = run(out=tmp_path / "whole", save="logits", resume=True)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)
    assert len(resumed.artifacts.get("logits", "pgd-margin")[0]) == len(
        whole.outcomes.rows("pgd-margin").query("backwards > 0")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attacks", "differs"),
    [
        (["fgsm", "pgd:steps=2"], "attacks was clean, fgsm, now clean, fgsm, pgd"),
        ("fgsm:step_size=0.5eps", r"attacks\.fgsm\.step_size was \S+, now \S+"),
    ],
)
def test_resuming_with_other_attacks_names_the_difference(tmp_path: Path, attacks: Any, differs: str) -> None:
    run(out=tmp_path / "a", attacks="fgsm")
    check_refused(
        rf"other settings: {differs} \(--attack\); give another --out, or --resume with the same",
        run,
        out=tmp_path / "a",
        attacks=attacks,
    )


def test_a_surrogate_is_identified_by_its_parameters_not_by_its_path(tmp_path: Path) -> None:
    """It may be moved; other parameters at the same path are another attack."""
    torch.manual_seed(0)
    model, other = (load_model("lenet", num_classes=3, in_channels=1) for _ in range(2))
    x = torch.rand(30, 1, 28, 28)
    data = (x, model(x).argmax(1))

    def transfer(file: str) -> Audit:
        attack = f"transfer:surrogate={tmp_path / file},attack=fgsm"
        return audit(model, data, "Linf:0.1", attack, out=tmp_path / "audit", resume=True)

    save_weights(tmp_path / "a.safetensors", other)
    first = transfer("a.safetensors")
    (tmp_path / "a.safetensors").rename(tmp_path / "b.safetensors")
    pd.testing.assert_frame_equal(transfer("b.safetensors").outcomes.frame, first.outcomes.frame, check_exact=True)
    save_weights(tmp_path / "b.safetensors", model)
    check_refused(r"other settings: attacks\.transfer\.surrogate_hash was \S+, now \S+", transfer, "b.safetensors")


def test_resuming_with_other_groups_of_the_images_is_an_error(tmp_path: Path) -> None:
    groups = ["left"] * 30 + ["right"] * 60
    run(out=tmp_path / "a", attacks="fgsm", group=groups)
    assert run(out=tmp_path / "a", attacks="fgsm", group=groups, resume=True).by_class["n"].tolist() == [30, 60]
    check_refused(
        "contains an audit with other values of 'group'; give another folder",
        run,
        out=tmp_path / "a",
        attacks="fgsm",
        group=groups[::-1],
        resume=True,
    )


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_resumed_audit_may_ask_for_less(tmp_path: Path, interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saves and traces what it was begun with, also of the images that were left."""
    monkeypatch.setattr("classwise.auditing.outcomes.writer.BLOCK_ROWS", 16)
    folder = tmp_path / "a"
    stopped = pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext()
    progress = Listener(60) if interrupted else None
    with stopped:
        run(out=folder, attacks="fgsm", save=["logits", "images"], trace=[0, 1], progress=progress)
    check_refused("of which --save and --trace may be omitted$", run, out=folder, attacks="fgsm")
    again = run(out=folder, attacks="fgsm", save="logits", trace=[1], resume=True)
    whole = run(attacks="fgsm", save="images")
    assert np.array_equal(again.artifacts.get("images", "fgsm")[0], whole.artifacts.get("images", "fgsm")[0])
    assert again.trace is not None
    assert set(again.trace["index"]) == {0, 1}
    settings = read_about(folder)["settings"]
    assert (settings["save"], settings["trace"]) == (["logits", "images"], [0, 1])


@pytest.mark.slow
def test_a_folder_contains_one_audit(tmp_path: Path) -> None:
    run(out=tmp_path / "a")
    check_refused("already contains this audit", run, out=tmp_path / "a")
    others: list[tuple[dict[str, Any], str]] = [
        ({"threat": "Linf:0.1"}, "threat was"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"model": toys.model(scale=2.0)}, r"another model, or another normalisation of it \(model_hash was"),
        ({"data": toys.images(seed=1)}, r"other images \(data_hash was"),
        ({"save": ["logits"]}, r'save was \[\], now \["logits"\] \(--save\); give another'),
        ({"early_stop": False}, r"early_stop was true, now false \(--early-stop\); give another"),
    ]
    for other, differs in others:
        check_refused(f"other settings: {differs}", run, out=tmp_path / "a", resume=True, **other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    check_refused("not empty and contains no audit", run, out=tmp_path / "full")
    check_refused("is a file", run, out=tmp_path / "full" / "thesis.txt")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "do not touch"


@pytest.mark.parametrize("in_run", [True, False])
def test_an_audit_has_the_name_of_its_folder_or_is_inside_a_run(in_run: bool, tmp_path: Path) -> None:
    if in_run:
        (tmp_path / "recipe.yaml").write_text("name: at\n")
    out, name = (tmp_path, "audit") if in_run else (tmp_path / "digits-test", "digits-test")
    assert run(out=out).name == Audit.load(out).name == name
    assert Audit.load(out).path == (tmp_path / "audits" / "audit" if in_run else out)


@pytest.mark.slow
def test_missing_images_are_logged_after_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run()
    late = iter([False] * 5)
    monkeypatch.setattr(AttackLoop, "late", property(lambda _: next(late, True)))
    lines = Listener()
    stopped = run(out=tmp_path / "a", max_time=1000.0, progress=lines, guards="auto")
    missing = stopped.outcomes.missing
    assert missing["pgd-margin"] == 90
    assert 0 < missing["pgd"] < 90
    assert stopped.outcomes.attacks == ("clean", "pgd", "pgd-margin")
    assert not stopped.complete
    assert "incomplete" in {warning.name for warning in stopped.warnings}
    assert any("pgd-margin: 90 images are not judged" in line for line in lines.lines)
    # Images that were begun are finished, and classes have had their turn alike.
    judged = stopped.bounds("pgd").judged
    assert judged.max() - judged.min() <= 1
    for name in stopped.names:
        counts = whole.counts(name)
        low, high = stopped.bounds(name).low.correct, stopped.bounds(name).high.correct
        assert (stopped.bounds(name).count == counts.count).all()
        assert (low <= counts.correct).all()
        assert (counts.correct <= high).all()
    monkeypatch.undo()
    resumed = run(out=tmp_path / "a", resume=True)
    pd.testing.assert_frame_equal(resumed.outcomes.frame, whole.outcomes.frame, check_exact=True)


DATA, NET = toys.images(80, classes=4), toys.model(4)
OPTIONS: dict[str, Any] = {"precision": EXACT, "batch_size": 32}
AUDIT: dict[str, Any] = {**OPTIONS, "threat": "Linf:0.05", "attacks": ["fgsm"]}
CURVE: dict[str, Any] = {**OPTIONS, "highest": 0.1, "rounds": 2, "attacks": "fgsm"}
WORST: dict[str, Any] = {**OPTIONS, "threat": "Linf:0.05", "attacks": ["fgsm", "pgd:steps=2"]}


def merged(function: Callable[..., Any], arguments: Mapping[str, Any], folder: Path, *, resume: bool) -> Any:
    """The merge of two shards, which are made or resumed as well."""
    for shard in Shard.all(2):
        function(NET, DATA, shard=shard, out=shard_folder(folder, shard), resume=resume, **arguments)
    return function(NET, DATA, shards=2, out=folder, resume=resume, **arguments)


def settled(**arguments: Any) -> Audit:
    """An estimate from a sample."""
    with toys.small_autoattack():
        found = audit(NET, DATA, "Linf:0.03", "autoattack", settle=0.3, **OPTIONS, **arguments)
        assert not found.complete
        assert found.estimator is not None  # it depends on these suites, and is cached
        return found


KINDS: dict[str, Callable[[Path, bool], Any]] = {
    "audit": lambda out, resume: audit(NET, DATA, out=out, resume=resume, **AUDIT, save="logits", trace=[1]),
    "stream": lambda out, resume: audit(NET, streamed(DATA), out=out, resume=resume, **AUDIT),
    "guards": lambda out, resume: audit(NET, DATA, out=out, resume=resume, **AUDIT, guards="full"),
    "shards": lambda out, resume: merged(audit, AUDIT, out, resume=resume),
    "settle": lambda out, resume: settled(out=out, resume=resume),
    "curve": lambda out, resume: robustness_curve(NET, DATA, out=out, resume=resume, **CURVE),
    "curve in shards": lambda out, resume: merged(robustness_curve, CURVE, out, resume=resume),
    "worst class": lambda out, resume: find_worst_class(NET, DATA, out=out, resume=resume, **WORST),
    "one attack": lambda out, resume: find_worst_class(
        NET, DATA, "Linf:0.05", ["fgsm"], out=out, resume=resume, **OPTIONS
    ),
    "corruptions": lambda out, resume: audit_corruptions(
        NET, DATA, corruptions=["brightness"], severities=[1], out=out, resume=resume, **OPTIONS
    ).save(out),
}


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_resume_changes_no_file(kind: str, tmp_path: Path) -> None:
    with recorded(["first"]):
        first = KINDS[kind](tmp_path / "x", False)
    if isinstance(first, Audit):
        report(first, tmp_path / "x" / "page.html")
    before = contents(tmp_path / "x")
    with recorded(["second"]):
        second = KINDS[kind](tmp_path / "x", True)
    if isinstance(second, Audit):
        report(second, tmp_path / "x" / "page.html")
        assert repr(second) == repr(first)
        assert repr(second.warnings) == repr(first.warnings)
    assert contents(tmp_path / "x") == before
    if kind != "corruptions":
        assert second.environment == first.environment
        assert second.environment["command"] == "classwise first"
        assert getattr(second, "seconds", 0) == getattr(first, "seconds", 0)


INTERRUPTED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "audit": (audit, AUDIT, "audit.json"),
    "curve": (robustness_curve, CURVE, "search.json"),
}


@pytest.mark.parametrize("kind", INTERRUPTED)
def test_a_resume_adds_its_seconds(kind: str, tmp_path: Path) -> None:
    function, arguments, name = INTERRUPTED[kind]
    arguments = {**arguments, "out": tmp_path / "x"}
    with recorded(["first"]), pytest.raises(KeyboardInterrupt):
        function(NET, DATA, progress=Listener(120), **arguments)
    file = tmp_path / "x" / name
    about = json.loads(file.read_text())
    assert about["environment"]["seconds"] > 0
    about["environment"]["seconds"] = 1000.0
    file.write_text(json.dumps(about))
    (tmp_path / "x" / "checksums.txt").unlink()
    with recorded(["second"]):
        found = function(NET, DATA, resume=True, **arguments)
    assert 1000 < found.environment["seconds"] < 1100
    assert found.environment["command"] == "classwise second"
    (earlier,) = found.environment["earlier_runs"]
    assert earlier["command"] == "classwise first"
    assert earlier.keys() <= {"command", "date"}  # a date if the second run began in another second
    if kind == "audit":
        phases = found.environment["seconds_by_phase"]
        assert list(phases) == ["preparation", *found.outcomes.attacks, "guards"]
        assert about["environment"]["seconds_by_phase"]["preparation"] < phases["preparation"]
        assert 0 < sum(phases.values()) < found.environment["seconds"]


def test_a_time_limit_and_more_guards_are_further_work(tmp_path: Path) -> None:
    first = audit(NET, DATA, out=tmp_path, **AUDIT, guards="off", max_time=1e-9)
    assert not first.complete
    second = audit(NET, DATA, out=tmp_path, resume=True, **AUDIT, guards="off")
    third = audit(NET, DATA, out=tmp_path, resume=True, **AUDIT, guards="full")
    seconds = [run.environment["seconds"] for run in (first, second, third)]
    assert seconds == sorted(set(seconds))
    assert third.guards is not None
    assert third.guards.mode == "full"


def test_a_finished_audit_of_another_stream_is_refused(tmp_path: Path) -> None:
    audit(NET, streamed(DATA), out=tmp_path, **AUDIT)
    before = contents(tmp_path)
    check_refused(
        r"data_hash was|the folder contains an audit of other images",
        audit,
        NET,
        streamed(DATA.with_pixels(DATA.x.flip(3), "toy")),
        out=tmp_path,
        resume=True,
        **AUDIT,
    )
    assert contents(tmp_path) == before


class TransformOfAUser(nn.Module):
    """As ``torchvision.transforms.Normalize``: constants that are no buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.std = [0.4], (0.2,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean[0]) / self.std[0]


class ConstantsOfAUser(nn.Module):
    """A network with constants that it uses in its own way, or not at all."""

    def __init__(self, network: nn.Module | None, *, used: bool) -> None:
        super().__init__()
        self.mean, self.std = nn.Buffer(torch.tensor([7.0])), nn.Buffer(torch.tensor([9.0]))
        self.network, self.used = network, used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) / self.std if self.used else x
        return x if self.network is None else self.network(x)


def test_the_normalisation_of_any_origin(tmp_path: Path) -> None:
    zoo = load_model("small-cnn", num_classes=3, in_channels=1, width=0.1, mean=[0.4], std=[0.2])
    save_weights(tmp_path / "w.safetensors", zoo)
    stated = {"normalisation": {"mean": [0.4], "std": [0.2]}}
    assert model_facts(zoo) == model_facts(Normalized(NET, 0.4 * torch.ones(1), [0.2])) == stated
    assert model_facts(nn.Sequential(TransformOfAUser(), NET)) == stated
    assert model_facts(load_model(toys.model(4), mean=[0.4], std=[0.2])) == stated
    others = [ConstantsOfAUser(NET, used=True), ConstantsOfAUser(NET, used=False), ConstantsOfAUser(None, used=False)]
    for without in (NET, nn.BatchNorm2d(3), nn.LayerNorm(3), *others):
        assert model_facts(without) == {"normalisation": "no normalisation layer"}
    read = model_facts(load_model(tmp_path / "w.safetensors"))
    assert read["weights_file"] == str(tmp_path / "w.safetensors")
    assert len(read["weights_sha256"]) == 64
    assert read["normalisation"] == stated["normalisation"]
    torch.save(NET.state_dict(), tmp_path / "w.pt")
    given = model_facts(nn.DataParallel(load_model(toys.model(4), weights=tmp_path / "w.pt")))
    assert given["weights_file"] == str(tmp_path / "w.pt")


def test_pages_show_the_record(tmp_path: Path) -> None:
    torch.save(NET.state_dict(), tmp_path / "w.pt")
    network = load_model(toys.model(4), weights=tmp_path / "w.pt", mean=[0.0], std=[1.0])
    with recorded(["audit", "a long" * 90]):
        found: list[Any] = [
            audit(network, DATA, **AUDIT),
            robustness_curve(network, DATA, **CURVE),
            find_worst_class(network, DATA, **WORST),
        ]
    for place, result in enumerate(found):
        text = report(result, tmp_path / f"{place}.html").read_text(encoding="utf-8")
        for shown in ("classwise audit", "w.pt", "Weights SHA-256", "mean (0), std (1)", "classwise commit"):
            assert shown in text, (type(result), shown)
        assert "Git" not in text
