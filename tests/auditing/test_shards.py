"""Audits and curves in shards: the partition, the merge bit for bit, and folders that cannot be merged."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from classwise.auditing.curve.result import RADII
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run import inputs, merging
from classwise.auditing.run.audit import audit, claim_for_shards
from classwise.auditing.run.merging import is_finished, shard_folder
from classwise.auditing.run.partition import balanced_order, pieces_of_shard, rows_of
from classwise.auditing.run.result import Audit
from classwise.cli.sharding import options_of
from classwise.core.compute.precision import EXACT, FAST
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.storage import CHECKSUMS
from classwise.data.images import Images
from classwise.data.stream import Stream
from classwise.threat.ball import Threat
from tests.auditing import toys
from tests.auditing.toys import Listener
from tests.refusals import check_refused

OPTIONS: dict[str, Any] = {"precision": EXACT, "batch_size": 32}
ATTACKS = ["pgd:steps=3", "fgsm"]
CURVE: dict[str, Any] = {**OPTIONS, "highest": 0.1, "rounds": 3, "attacks": "pgd:steps=3"}
DATA, NET = toys.images(101, classes=4, strength=(0.03, 0.036, 0.05, 0.06)), toys.model(4)


def streamed(data: Images) -> Stream:
    """The images, which are read one by one."""
    return Stream(list(zip(data.x, data.y, strict=True)), data.class_names, data.name)


def run_shards(folder: Path, count: int, source: Any = DATA, **arguments: Any) -> None:
    """Audit every shard."""
    for shard in Shard.all(count):
        found = audit(NET, source, shard=str(shard), out=shard_folder(folder, shard), **OPTIONS | arguments)
        assert is_finished(shard_folder(folder, shard))
        assert (found.warnings, found.trace) == ((), None)
        assert found.complete == (count == 1)


@functools.cache
def whole() -> Audit:
    """The audit of all images by `ATTACKS`."""
    return audit(NET, DATA, "Linf:0.05", ATTACKS, **OPTIONS)


def merged(folder: Path, count: int, source: Any = DATA, **arguments: Any) -> Audit:
    """Audit every shard, and merge them."""
    run_shards(folder, count, source, **arguments)
    return audit(NET, source, shards=count, out=folder, **OPTIONS | arguments)


def assert_same(found: Audit, single: Audit, *, saved: bool = True) -> None:
    """Compare everything but the name, the time and the number of shards."""
    pd.testing.assert_frame_equal(found.outcomes.frame, single.outcomes.frame, check_exact=True)
    assert found.outcomes.meta == single.outcomes.meta
    pd.testing.assert_frame_equal(found.by_class, single.by_class, check_exact=True)
    assert repr((found.warnings, found.guards)) == repr((single.warnings, single.guards))
    assert (found.trace is None) == (single.trace is None)
    if found.trace is not None and single.trace is not None:
        pd.testing.assert_frame_equal(found.trace, single.trace, check_exact=True)
    assert found.artifacts.kinds() == single.artifacts.kinds()
    compared = 0
    for kind in single.artifacts.kinds() if saved else ():
        for label in single.attacks:
            if kind != "images" or label != "clean":
                for joined, expected in zip(
                    found.artifacts.get(kind, label), single.artifacts.get(kind, label), strict=True
                ):
                    assert np.array_equal(joined, expected), (kind, label)
                    compared += len(joined)
    assert not saved or compared


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 20))
def test_the_partition_is_complete_balanced_and_computed_in_one_pass(labels: list[int], count: int, size: int) -> None:
    y = torch.tensor(labels)
    parts = [rows_of(shard, y) for shard in Shard.all(count)]
    assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))
    for label in set(labels):
        counts = [int((y[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
    data = Images(torch.zeros(len(y), 1, 1, 1), y, ["a", "b", "c", "d", "e"])
    pieces = [data.take(rows) for rows in torch.split(torch.arange(len(y)), size)]
    for shard, part in zip(Shard.all(count), parts, strict=True):
        own = [piece.index for piece in pieces_of_shard(shard, pieces)]
        assert torch.equal(torch.cat(own) if own else part[:0], part)


def test_the_remainders_of_the_classes_are_spread() -> None:
    y = torch.arange(40)  # an image of each class
    assert {len(rows_of(shard, y)) for shard in Shard.all(8)} == {5}


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_merge_equals_the_audit_bit_for_bit(count: int, tmp_path: Path) -> None:
    arguments = {"threat": "Linf:0.05", "attacks": ATTACKS, "save": ("logits", "features", "images"), "trace": [4, 80]}
    single = audit(NET, DATA, **OPTIONS | arguments)
    assert_same(merged(tmp_path / "x", count, **arguments), single)
    assert_same(Audit.load(tmp_path / "x"), single)
    run_again = audit(NET, DATA, shards=count, out=tmp_path / "x", resume=True, **OPTIONS | arguments)
    pd.testing.assert_frame_equal(run_again.outcomes.frame, single.outcomes.frame, check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"threat": "Linf:0.05", "attacks": [*ATTACKS, "square:steps=9"], "cascade": True},
        {"threat": "Linf:0.05", "attacks": ATTACKS, "early_stop": False},
        {"threat": Threat("Linf", torch.linspace(0.01, 0.06, 101)), "attacks": ATTACKS},
        {"threat": "Linf:0.05", "attacks": ATTACKS, "group": np.arange(101) % 4},
        {"threat": "Linf:0.05", "attacks": "clean", "save": "logits"},
    ],
    ids=["cascade", "no early stop", "radii", "group", "clean"],
)
def test_the_merge_equals_audits_with_other_options(arguments: dict[str, Any], tmp_path: Path) -> None:
    single = audit(NET, DATA, **OPTIONS | arguments)
    assert_same(merged(tmp_path / "x", 2, **arguments), single, saved=arguments["attacks"] != "clean")


@pytest.mark.slow
def test_a_stream_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"threat": "Linf:0.05", "attacks": ATTACKS, "trace": [4, 80], "save": "logits"}
    monkeypatch.setattr(inputs, "PIECE_BYTES", 3_000)  # several pieces, in the data and in a shard
    single = audit(NET, streamed(DATA), **OPTIONS | arguments)
    found = merged(tmp_path / "x", 2, streamed(DATA), **arguments)
    assert_same(found, single)
    assert len(outcome_files.listed(shard_folder(tmp_path / "x", Shard(1, 2)) / "outcomes")) > 3
    assert found.outcomes.meta.images == 101
    assert json.loads((shard_folder(tmp_path / "x", Shard(2, 2)) / "audit.json").read_text())["images"] == 101


@pytest.mark.slow
def test_more_shards_than_images(tmp_path: Path) -> None:
    data, arguments = streamed(DATA.take(slice(0, 3))), {"threat": "Linf:0.05", "attacks": ["fgsm"]}
    found = merged(tmp_path, 5, data, **arguments)
    assert_same(found, audit(NET, data, **OPTIONS | arguments))
    assert not outcome_files.listed(shard_folder(tmp_path, Shard(5, 5)) / "outcomes")


@pytest.mark.slow
def test_blocks_of_the_merge_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"threat": "Linf:0.05", "attacks": ATTACKS, "save": ("logits", "images")}
    run_shards(tmp_path / "x", 3, **arguments)
    single = audit(NET, DATA, **OPTIONS | arguments)
    for name, size, files in (("BLOCK_ROWS", 40, 6), ("BLOCK_BYTES", 1, 9), ("BLOCK_ROWS", 1 << 16, 3)):
        with monkeypatch.context() as patch:
            patch.setattr(merging, name, size)
            found = audit(NET, DATA, shards=3, out=tmp_path / "x", resume=True, **OPTIONS | arguments)
        assert len(outcome_files.listed(tmp_path / "x" / "outcomes")) == files
        assert_same(found, single)
        about = json.loads((tmp_path / "x" / "audit.json").read_text())
        (tmp_path / "x" / "checksums.txt").unlink()
        (tmp_path / "x" / "audit.json").write_text(json.dumps(about | {"complete": False, "guards": None}))


@pytest.mark.slow
def test_an_interrupted_shard_is_resumed_and_an_interrupted_merge_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ATTACKS}
    folder, first, second = tmp_path / "x", Shard(1, 2), Shard(2, 2)
    audit(NET, DATA, shard=first, out=shard_folder(folder, first), **OPTIONS | arguments)
    place = shard_folder(folder, second)
    with pytest.raises(KeyboardInterrupt):
        audit(NET, DATA, shard=second, out=place, progress=Listener(60), **OPTIONS | arguments)
    assert outcome_files.listed(place / "outcomes")
    assert not is_finished(place)
    with pytest.raises(IncompleteError, match=r"x: 1 of 2 shards are not finished: 2; run them with --shard"):
        audit(NET, DATA, shards=2, out=folder, **OPTIONS | arguments)
    assert not outcome_files.listed(folder / "outcomes")
    audit(NET, DATA, shard=second, out=place, resume=True, **OPTIONS | arguments)
    with monkeypatch.context() as patch:
        patch.setattr(outcome_files, "write_table", failing(outcome_files.write_table, 2))
        with pytest.raises(KeyboardInterrupt):
            audit(NET, DATA, shards=2, out=folder, resume=True, **OPTIONS | arguments)
    assert len(outcome_files.listed(folder / "outcomes")) == 1
    assert_same(audit(NET, DATA, shards=2, out=folder, resume=True, **OPTIONS | arguments), whole())


def failing(function: Any, call: int) -> Any:
    """The function, which is interrupted at a call."""
    calls = iter(range(1, 100))

    def called(*arguments: Any) -> None:
        if next(calls) == call:
            raise KeyboardInterrupt
        function(*arguments)

    return called


class Overwriting(toys.Linear):
    """A model that writes into its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.1))


@pytest.mark.slow
def test_guards_know_what_the_shards_have_seen(tmp_path: Path) -> None:
    net, arguments = Overwriting(toys.patterns(4), 0.2).eval(), OPTIONS | {"threat": "Linf:0.05", "attacks": "fgsm"}
    single = audit(net, DATA, **arguments)
    assert "overwrites-input" in [warning.name for warning in single.warnings]
    for shard in Shard.all(2):
        audit(net, DATA, shard=shard, out=shard_folder(tmp_path, shard), **arguments)
    found = audit(net, DATA, shards=2, out=tmp_path, **arguments)
    assert_same(found, single)
    assert found.environment.get("not_fused") == single.environment.get("not_fused")
    assert found.environment["shard_seconds"] > 0


@pytest.mark.slow
def test_a_shard_without_some_of_its_files_is_not_finished(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ATTACKS}
    run_shards(tmp_path, 2, **arguments)
    place = shard_folder(tmp_path, Shard(2, 2))
    outcome_files.listed(place / "outcomes")[1].unlink()
    assert not is_finished(place)
    with pytest.raises(IncompleteError, match="not finished: 2"):
        audit(NET, DATA, shards=2, out=tmp_path, **OPTIONS | arguments)
    audit(NET, DATA, shard=(2, 2), out=place, resume=True, **OPTIONS | arguments)
    assert_same(audit(NET, DATA, shards=2, out=tmp_path, resume=True, **OPTIONS | arguments), whole())


@pytest.mark.slow
def test_shards_of_other_audits_are_refused(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ["fgsm"]}
    run_shards(tmp_path, 2, **arguments)
    place = shard_folder(tmp_path, Shard(1, 2))
    differ: list[tuple[Any, Any, dict[str, Any], str]] = [
        (NET, DATA, {"seed": 1}, "seed was 0, now 1"),
        (NET, DATA, {"batch_size": 64}, "batch_size was 32, now 64"),
        (toys.model(4, scale=0.3), DATA, {}, "another model"),
    ]
    for net, data, other, said in differ:
        check_refused(
            f"001-of-002 is a shard with other settings: {said}",
            audit,
            net,
            data,
            shards=2,
            out=linked(tmp_path, said),
            **OPTIONS | arguments | other,
        )
    check_refused(
        "001-of-002 is a shard of other images: data_hash was",
        audit,
        NET,
        toys.images(101, classes=4, seed=1),
        shards=2,
        out=linked(tmp_path, "i"),
        **OPTIONS | arguments,
    )
    check_refused(
        r'contains an audit with other settings: shard was "1/2", now "2/2"',
        audit,
        NET,
        DATA,
        shard=(2, 2),
        out=place,
        resume=True,
        **OPTIONS | arguments,
    )


def linked(folder: Path, name: str) -> Path:
    """A folder with the same shards."""
    target = folder.parent / f"{folder.name}-{name.split(maxsplit=1)[0]}"
    target.mkdir()
    (target / "shards").symlink_to(folder / "shards")
    return target


@pytest.mark.slow
def test_shards_of_other_streams_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ["fgsm"]}
    other = DATA.with_pixels(DATA.x.flip(3), "toy")
    for shard, data in zip(Shard.all(2), (DATA, other), strict=True):
        place = shard_folder(tmp_path, shard)
        audit(NET, streamed(data), shard=shard, out=place, **OPTIONS | arguments)
    check_refused(
        "002-of-002 is a shard of other images: data_hash was",
        audit,
        NET,
        streamed(DATA),
        shards=2,
        out=linked(tmp_path, "a"),
        **OPTIONS | arguments,
    )
    audit(NET, streamed(DATA), shard=(2, 2), out=tmp_path / "again", **OPTIONS | arguments)
    place.rename(tmp_path / "other")
    (tmp_path / "again").rename(place)
    monkeypatch.setattr(inputs, "PIECE_BYTES", 3_000)  # so that the hash is unknown before the merge
    check_refused(
        "the shards have read other images",
        audit,
        NET,
        streamed(other),
        shards=2,
        out=linked(tmp_path, "b"),
        **OPTIONS | arguments,
    )


@pytest.mark.slow
def test_a_folder_of_an_audit_without_shards_is_not_merged_into(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ["fgsm"]}
    with pytest.raises(KeyboardInterrupt):
        audit(NET, DATA, out=tmp_path / "x", progress=Listener(120), **OPTIONS | arguments)
    run_shards(tmp_path / "x", 1, **arguments)
    check_refused(
        "contains an audit without shards; omit --shards to continue it",
        audit,
        NET,
        DATA,
        shards=1,
        out=tmp_path / "x",
        resume=True,
        **OPTIONS | arguments,
    )


@pytest.mark.parametrize("merging", [{}, {"shards": 2}])
def test_the_folder_of_a_shard_is_not_resumed_as_the_whole(tmp_path: Path, merging: dict[str, int]) -> None:
    audit(NET, DATA, "Linf:0.05", ["fgsm"], shard="1/2", out=tmp_path / "audit", **OPTIONS)
    robustness_curve(NET, DATA, shard="1/2", out=tmp_path / "curve", **CURVE)
    check_refused(
        'contains an audit with other settings: shard was "1/2", now null',
        audit,
        NET,
        DATA,
        "Linf:0.05",
        ["fgsm"],
        out=tmp_path / "audit",
        resume=True,
        **OPTIONS | merging,
    )
    check_refused(
        'contains a curve with other settings: shard was "1/2", now null',
        robustness_curve,
        NET,
        DATA,
        out=tmp_path / "curve",
        resume=True,
        **CURVE | merging,
    )


def test_arguments_that_exclude_each_other() -> None:
    for arguments, said in (
        ({"shard": (1, 2), "shards": 2, "out": "x"}, "give one of the two"),
        ({"shards": 2}, "shards requires out"),
        ({"shards": 0, "out": "x"}, "shards = 0: must be an integer from 1 to 10,000"),
        ({"shard": "2"}, "shard '2': must have the form NUMBER/COUNT, such as 7/40"),
        ({"shard": (3, 2)}, "shard 3/2: the number must be from 1 to 2"),
        ({"shard": (1, 2), "attacks": "autoattack", "settle": 0.1}, "settle samples from the survivors of all images"),
    ):
        check_refused(said, audit, NET, DATA, **{"threat": "Linf:0.05", "attacks": ["fgsm"]} | arguments)


def test_the_batch_size_is_settled_and_the_folder_claimed(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ["fgsm"], "shards": 2, "out": tmp_path / "x"}
    assert claim_for_shards(NET, DATA, batch_size=48, **arguments).batch_size == 48
    assert claim_for_shards(NET, DATA, resume=True, **arguments).batch_size == 48
    plan = claim_for_shards(NET, DATA, batch_size=48, precision=FAST, **arguments | {"out": tmp_path / "y"})
    assert options_of(plan) == {"batch_size": 48, "precision": "bfloat16"}
    check_refused("already contains this audit", claim_for_shards, NET, DATA, batch_size=48, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "count"),
    [(DATA, 3), (streamed(DATA), 2), (DATA.take(slice(0, 3)), 5)],
    ids=["images", "stream", "more shards than images"],
)
def test_a_curve_in_shards(source: Any, count: int, tmp_path: Path) -> None:
    single = robustness_curve(NET, source, **CURVE)
    for shard in Shard.all(count):
        if shard.number == count:
            with pytest.raises(IncompleteError, match=f"1 of {count} shards are not finished: {count}"):
                robustness_curve(NET, source, shards=count, out=tmp_path, **CURVE)
        robustness_curve(NET, source, shard=shard, out=shard_folder(tmp_path, shard), **CURVE)
    check_refused(
        "is a shard with other settings: rounds was 3, now 2",
        robustness_curve,
        NET,
        source,
        shards=count,
        out=linked(tmp_path, "rounds"),
        **CURVE | {"rounds": 2},
    )
    found = robustness_curve(NET, source, shards=count, out=tmp_path, resume=True, **CURVE)
    pd.testing.assert_frame_equal(found.frame, single.frame, check_exact=True)
    assert found.meta == single.meta
    assert found.environment["shards"] == count


FEW, OF_THREE = toys.images(30, classes=3), toys.model(3)
SMALL_AUDIT: dict[str, Any] = {**OPTIONS, "threat": "Linf:0.05", "attacks": ["fgsm"]}
SMALL_CURVE: dict[str, Any] = {**OPTIONS, "highest": 0.1, "rounds": 2, "attacks": "fgsm"}
FIRST, SECOND = "001-of-002", "002-of-002"

Change = Callable[[Path, Path], object]
"""Changes the folder of shards; the other folder has further evaluations."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of an audit and of a curve, and in ``other`` shards of another count and evaluations of all images."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in Shard.all(2):
        audit(OF_THREE, FEW, shard=shard, out=shard_folder(folder / "audit", shard), **SMALL_AUDIT)
        robustness_curve(OF_THREE, FEW, shard=shard, out=shard_folder(folder / "curve", shard), **SMALL_CURVE)
    audit(OF_THREE, FEW, shard="2/3", out=folder / "other" / "audit-third", **SMALL_AUDIT)
    audit(OF_THREE, FEW, out=folder / "other" / "audit-all", **SMALL_AUDIT)
    robustness_curve(OF_THREE, FEW, shard="2/3", out=folder / "other" / "curve-third", **SMALL_CURVE)
    robustness_curve(OF_THREE, FEW, out=folder / "other" / "curve-all", **SMALL_CURVE)
    return folder


def replaced(path: Path, source: Path) -> None:
    """Put a copy of a file or folder in the place of another."""
    removed(path)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)


def removed(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def emptied(folder: Path) -> None:
    removed(folder)
    folder.mkdir()


def made_a_file(folder: Path) -> None:
    removed(folder)
    folder.touch()


def swapped(shards: Path) -> None:
    (shards / FIRST).rename(shards / "kept")
    (shards / SECOND).rename(shards / FIRST)
    (shards / "kept").rename(shards / SECOND)


def link_to_the_first(shards: Path) -> None:
    removed(shards / SECOND)
    (shards / SECOND).symlink_to(shards / FIRST)


def unverified(shards: Path, name: str) -> None:
    """Replace a file by that of the other shard, and remove the checksums that would tell."""
    replaced(shards / SECOND / name, shards / FIRST / name)
    removed((shards / SECOND / name).parent / CHECKSUMS)


def changed(file: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


OTHER = r"002-of-002 contains {}, not shard 2/2; remove that folder, and run the shard again with --shard 2/2$"
BOTH: dict[str, tuple[Change, str]] = {
    "copied": (lambda here, _: replaced(here / SECOND, here / FIRST), OTHER.format("shard 1/2")),
    "swapped": (lambda here, _: swapped(here), r"001-of-002 contains shard 2/2, not shard 1/2; remove that folder"),
    "linked": (lambda here, _: link_to_the_first(here), OTHER.format("shard 1/2")),
    "missing": (lambda here, _: removed(here / SECOND), "1 of 2 shards are not finished: 2; run them with --shard"),
    "empty": (lambda here, _: emptied(here / SECOND), "not finished: 2"),
    "a file": (lambda here, _: made_a_file(here / SECOND), "not finished: 2"),
}
AUDITS: dict[str, tuple[Change, str]] = {
    **BOTH,
    "of another count": (lambda here, far: replaced(here / SECOND, far / "audit-third"), OTHER.format("shard 2/3")),
    "of all images": (
        lambda here, far: replaced(here / SECOND, far / "audit-all"),
        OTHER.format("results of all images"),
    ),
    "of a curve": (lambda here, far: replaced(here / SECOND, far / "curve-third"), "not finished: 2"),
    "another name": (lambda here, _: (here / SECOND).rename(here / "002-of-003"), "not finished: 2"),
    "outcomes copied": (
        lambda here, _: replaced(here / SECOND / "outcomes", here / FIRST / "outcomes"),
        "002-of-002 has results of image 0, which are in another file already; remove that folder",
    ),
    "a file copied": (
        lambda here, _: unverified(here, f"outcomes/{outcome_files.name(1)}"),
        "002-of-002 has rows of other images under fgsm than under clean; remove that folder",
    ),
    "a file damaged": (
        lambda here, _: changed(here / SECOND / "outcomes" / outcome_files.name(0)),
        r"part-00000.parquet is damaged: its SHA-256 is not in checksums.txt|not finished: 2",
    ),
    "its record damaged": (lambda here, _: changed(here / SECOND / "audit.json"), "audit.json is damaged"),
    "its record copied": (
        lambda here, _: replaced(here / SECOND / "audit.json", here / FIRST / "audit.json"),
        "002-of-002/audit.json is damaged",
    ),
}
CURVES: dict[str, tuple[Change, str]] = {
    **BOTH,
    "of another count": (lambda here, far: replaced(here / SECOND, far / "curve-third"), OTHER.format("shard 2/3")),
    "of all images": (
        lambda here, far: replaced(here / SECOND, far / "curve-all"),
        OTHER.format("results of all images"),
    ),
    "of an audit": (lambda here, far: replaced(here / SECOND, far / "audit-third"), "not finished: 2"),
    "radii copied": (
        lambda here, _: unverified(here, RADII),
        "002-of-002 has results of image 0, which are in another file already",
    ),
    "radii damaged": (lambda here, _: changed(here / SECOND / RADII), "radii.parquet is damaged"),
}


@pytest.mark.parametrize("case", AUDITS)
def test_shards_of_an_audit(made: Path, tmp_path: Path, case: str) -> None:
    refused(
        made / "audit",
        tmp_path,
        *AUDITS[case],
        made / "other",
        lambda: audit(OF_THREE, FEW, shards=2, out=tmp_path / "x", **SMALL_AUDIT),
    )


@pytest.mark.parametrize("case", CURVES)
def test_shards_of_a_curve(made: Path, tmp_path: Path, case: str) -> None:
    refused(
        made / "curve",
        tmp_path,
        *CURVES[case],
        made / "other",
        lambda: robustness_curve(OF_THREE, FEW, shards=2, out=tmp_path / "x", **SMALL_CURVE),
    )


def refused(source: Path, place: Path, change: Change, said: str, other: Path, merge: Callable[[], object]) -> None:
    shutil.copytree(source, place / "x")
    change(place / "x" / "shards", other)
    with pytest.raises(ClasswiseError, match=said) as found:
        merge()
    assert isinstance(found.value, IncompleteError) == ("not finished" in str(found.value))


def test_a_link_to_the_right_shard_is_merged(made: Path, tmp_path: Path) -> None:
    for number in (FIRST, SECOND):
        (tmp_path / "shards").mkdir(exist_ok=True)
        (tmp_path / "shards" / number).symlink_to(made / "audit" / "shards" / number)
    assert audit(OF_THREE, FEW, shards=2, out=tmp_path, **SMALL_AUDIT).complete


def test_classes_alternate() -> None:
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    assert balanced_order(y).tolist() == [0, 3, 4, 1, 5, 2]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_every_prefix_is_balanced_by_class(labels: list[int]) -> None:
    y = torch.tensor(labels)
    order = balanced_order(y)
    assert sorted(order.tolist()) == list(range(len(labels)))
    smallest = int(torch.bincount(y)[torch.unique(y)].min())
    first = y[order][: smallest * len(set(labels))]
    assert set(torch.bincount(first)[torch.unique(y)].tolist()) == {smallest}
