"""The record of a result: that of the work done, which a repetition does not change, with its model and command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.run.audit import audit
from classwise.auditing.run.corruptions import audit_corruptions
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.partition import Shard
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.search import find_worst_class
from classwise.core.compute.precision import EXACT
from classwise.core.errors import ClasswiseError
from classwise.core.settings.command_line import recorded
from classwise.data.stream import Stream
from classwise.models.loading.loader import load_model
from classwise.models.normalization import Normalized
from classwise.models.provenance import model_facts
from classwise.models.weights import save_weights
from classwise.reporting import report
from tests.auditing import toys
from tests.auditing.listening import Listener

DATA, NET = toys.images(80, classes=4), toys.model(4)
OPTIONS: dict[str, Any] = {"precision": EXACT, "batch_size": 32}
AUDIT: dict[str, Any] = {**OPTIONS, "threat": "Linf:0.05", "attacks": ["fgsm"]}
CURVE: dict[str, Any] = {**OPTIONS, "highest": 0.1, "rounds": 2, "attacks": "fgsm"}
WORST: dict[str, Any] = {**OPTIONS, "threat": "Linf:0.05", "attacks": ["fgsm", "pgd:steps=2"]}


def streamed(data: Any = DATA) -> Stream:
    return Stream(list(zip(data.x, data.y, strict=True)), data.class_names, data.name)


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
    "stream": lambda out, resume: audit(NET, streamed(), out=out, resume=resume, **AUDIT),
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
    assert found.environment["earlier_runs"] == [{"command": "classwise first"}]
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
    audit(NET, streamed(), out=tmp_path, **AUDIT)
    before = contents(tmp_path)
    with pytest.raises(ClasswiseError, match=r"data_hash was|the folder contains an audit of other images"):
        audit(NET, streamed(DATA.with_pixels(DATA.x.flip(3), "toy")), out=tmp_path, resume=True, **AUDIT)
    assert contents(tmp_path) == before


class TransformOfAUser(nn.Module):
    """As ``torchvision.transforms.Normalize``: constants that are no buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.std = [0.4], (0.2,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean[0]) / self.std[0]


def test_the_normalisation_of_any_origin(tmp_path: Path) -> None:
    zoo = load_model("small-cnn", num_classes=3, in_channels=1, width=0.1, mean=[0.4], std=[0.2])
    save_weights(tmp_path / "w.safetensors", zoo)
    stated = {"normalisation": {"mean": [0.4], "std": [0.2]}}
    assert model_facts(zoo) == model_facts(Normalized(NET, 0.4 * torch.ones(1), [0.2])) == stated
    assert model_facts(nn.Sequential(TransformOfAUser(), NET)) == stated
    assert model_facts(load_model(toys.model(4), mean=[0.4], std=[0.2])) == stated
    for without in (NET, nn.BatchNorm2d(3), nn.LayerNorm(3)):
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
