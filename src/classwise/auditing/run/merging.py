"""The merge of the shards of an audit: their files are concatenated block by block into those of one audit.

A block has the rows of one attack and their saved tensors. Memory holds one block, and of the clean pass three numbers
for each image. A merge that was interrupted is repeated.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from classwise.auditing.evaluation.evaluation import ON_COMMAND_LINE
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.outcomes import artifacts
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import EXAMPLES, Array, Examples
from classwise.auditing.outcomes.meta import CLEAN, Meta
from classwise.auditing.run.audit_folder import ABOUT, RecordedCode, ShardFacts, read_about
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.reading import damaged
from classwise.core.files.storage import ResultFolder, difference, remove
from classwise.core.settings.code_identity import CodeRecord, check_unchanged
from classwise.stats.counts import IntArray

SHARDS = "shards"
"""The folder of the shards in the folder of the audit or curve that they are merged into."""
BLOCK_ROWS = 1 << 16
"""Rows of a merged file."""
BLOCK_BYTES = 64 << 20
"""A merged file has at most this many bytes of tensors, and those of one file of a shard."""
_NAMED = 10
"""Number of missing shards that a message names."""

FUSION_FACTS = ("not_fused", "not_compiled", "without_graphs")
"""Entries of an audit's environment on how gradients were computed."""

Tensors = Mapping[str, tuple[Array, Array]]
"""Tensors by kind: image indices (N,) and rows (N, ...)."""
Block = tuple[pa.Table, Tensors]
"""Rows of one attack, and their tensors."""


@dataclass(frozen=True)
class Merged:
    """What the shards of an audit have in common, beside their rows.

    Attributes:
        notes: the notes of all shards (`classwise.auditing.outcomes.meta.Meta.notes`).
        data_hash: hash of the images, which each shard has read; empty if unknown.
        overwrites: whether the model writes into its input.
        environment: facts on the computation of gradients, as of an audit.
    """

    notes: tuple[str, ...] = ()
    data_hash: str = ""
    overwrites: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)


def shard_folder(folder: Path, shard: Shard) -> Path:
    """The folder of a shard of the audit or curve in ``folder``."""
    return folder / SHARDS / shard.name


def is_finished(folder: Path) -> bool:
    """Whether a folder contains a shard of an audit with a row for each of its images and each attack."""
    return (folder / ABOUT).is_file() and _has_all_rows(_read_shard(folder), _rows(folder))


def checked_folder(path: Path | None, kind: str, *files: str, merges: bool) -> ResultFolder | None:
    """The folder of a result, checked before data are read; None without a path.

    Raises:
        ClasswiseError: if its files cannot be written, or shards are to be merged and it contains neither shards nor
            what they were merged into.
    """
    if path is None:
        return None
    folder = ResultFolder(path, kind)
    folder.check(*files)
    if merges and not (path / SHARDS).is_dir() and not folder.marker.is_file():
        raise ClasswiseError(f"{path} contains no shards; run each with --shard, or all with --on local, ray or slurm")
    return folder


def shards_in(
    folder: ResultFolder, count: int, settings: Mapping[str, Any], code: CodeRecord
) -> dict[Shard, ResultFolder]:
    """The folders of all shards of an audit or curve; the existing ones have its settings, on data of any hash.

    Args:
        folder: the folder of the audit or curve.
        count: number of shards.
        settings: the settings of the audit or curve.
        code: the user's code of the audit or curve.

    Raises:
        ClasswiseError: if a folder contains another shard, or naming the first setting, or the code, that differs.
    """
    shards = {shard: ResultFolder(shard_folder(folder.path, shard), folder.kind) for shard in Shard.all(count)}
    settings = {key: value for key, value in settings.items() if key != "data_hash"}  # see `same_hash`
    for shard, place in shards.items():
        if not place.marker.is_file():
            continue
        marker = place.read(RecordedCode)
        before = marker["settings"]
        if (found := before.get("shard")) != str(shard):
            contents = "results of all images" if found is None else f"shard {found}"
            raise ClasswiseError(f"{place.path} contains {contents}, not shard {shard}; {_repeat(shard)}")
        if differs := difference(before, settings, ON_COMMAND_LINE):
            raise ClasswiseError(
                f"{place.path} is a shard with other settings: {differs}; remove it, or give another --out"
            )
        if marker.get("code") is not None:
            check_unchanged(marker["code"], code, place.path, finished=False)
    return shards


def require_finished(folder: Path, finished: Mapping[Shard, bool]) -> None:
    """Check that all shards are finished.

    Raises:
        IncompleteError: naming those that are not.
    """
    missing = [str(shard.number) for shard, is_complete in finished.items() if not is_complete]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
        raise IncompleteError(
            f"{folder}: {len(missing)} of {len(finished)} shards are not finished: {named}; run them with --shard, or "
            "repeat the command with --on and --resume"
        )


def same_hash(hashes: Mapping[Path, str], expected: str) -> str:
    """The hash of the images, which all shards have read.

    Args:
        hashes: the hash of the images that a shard has read, by its folder.
        expected: the hash of the images; empty for a stream that was not read yet.

    Raises:
        ClasswiseError: naming the first shard that has read other images.
    """
    for folder, found in hashes.items():
        expected = expected or found
        if found != expected:
            raise ClasswiseError(
                f"{folder} is a shard of other images: data_hash was {found}, now {expected}; remove it, or give "
                "another --out"
            )
    return expected


def check_images(images: Mapping[Path, IntArray], shards: Iterable[Shard]) -> None:
    """Check that no image is in two shards, as after a file was copied from one to another.

    Args:
        images: the numbers of the images of each shard, by its folder.
        shards: the shards, in the same order.

    Raises:
        ClasswiseError: naming the first shard with an image of an earlier one.
    """
    number = pd.Series(np.concatenate([*images.values(), np.zeros(0, dtype=np.int64)]))
    owner = np.repeat(np.arange(len(images)), [len(numbers) for numbers in images.values()])
    repeated = np.flatnonzero(number.duplicated())
    if len(repeated):
        place, shard = [*zip(images, shards, strict=True)][owner[repeated[0]]]
        raise ClasswiseError(
            f"{place} has results of image {number[repeated[0]]}, which are in another file already; {_repeat(shard)}"
        )


def _repeat(shard: Shard) -> str:
    return f"remove that folder, and run the shard again with --shard {shard}"


def merge(folder: Path, count: int, meta: Meta, settings: Mapping[str, Any], code: CodeRecord) -> Merged:
    """Merge the shards of an audit into its folder.

    The merged files have the rows and tensors of the audit without shards.

    Args:
        folder: the folder of the audit, which this process owns; files of an interrupted merge are removed.
        count: number of shards.
        meta: the metadata of the audit.
        settings: its settings, which those of the shards must equal.
        code: its code of the user, which those of the shards must equal where they record it.

    Raises:
        ClasswiseError: if a shard has other settings or images, or is damaged.
        IncompleteError: if shards are not finished.
    """
    shards = shards_in(ResultFolder(folder, "audit"), count, settings, code)
    places = {shard: place.path for shard, place in shards.items()}
    abouts = {shard: _read_shard(place.path) for shard, place in shards.items() if place.marker.is_file()}
    rows = {shard: _rows(places[shard]) for shard in abouts}
    finished = {shard: shard in abouts and _has_all_rows(abouts[shard], rows[shard]) for shard in shards}
    require_finished(folder, finished)
    for shard, files in rows.items():
        _check_rows(places[shard], shard, files)
    check_images({places[shard]: _images(files, CLEAN) for shard, files in rows.items()}, shards)
    data_hash = same_hash({places[shard]: about["data_hash"] for shard, about in abouts.items()}, meta.data_hash)
    merged = _in_common(abouts.values(), itertools.chain(*rows.values()), data_hash)
    for path in outcome_files.listed(folder / "outcomes"):  # of an interrupted merge
        remove(path)
    artifacts.remove_orphans(folder)
    meta = dataclasses.replace(meta, notes=tuple(dict.fromkeys((*meta.notes, *merged.notes))))
    number, examples = itertools.count(), Examples(len(meta.applicable) - 1, meta.num_classes)
    clean: list[pd.DataFrame] = []
    for label in meta.applicable:
        paths = [path for files in rows.values() for path, images in files.items() if label in images]
        for table, tensors in _blocks(paths, examples):
            if label == CLEAN:
                clean.append(table.select(["index", "label", "correct"]).to_pandas())
            name = next(number)
            for kind, (index, values) in tensors.items():
                artifacts.write(folder, kind, label, name, index, values)
            outcome_files.write_table(folder / "outcomes" / outcome_files.name(name), table, meta)
        if label == CLEAN:
            examples.add(pd.concat(clean))
    return merged


def _blocks(paths: Iterable[Path], examples: Examples) -> Iterator[Block]:
    """The rows and tensors of files in larger blocks."""
    tables: list[pa.Table] = []
    tensors: dict[str, list[tuple[Array, Array]]] = {}
    for path in paths:
        tables.append(outcome_files.read_table(path)[0])
        for kind, (index, rows) in artifacts.of_file(path.parent.parent, path.stem).items():
            chosen = examples.among(index, rows.shape[2:]) if kind == EXAMPLES else slice(None)
            tensors.setdefault(kind, []).append((index[chosen], rows[chosen]))
        size = sum(rows.nbytes for blocks in tensors.values() for _, rows in blocks)
        if size >= BLOCK_BYTES or sum(len(table) for table in tables) >= BLOCK_ROWS:
            yield _joined(tables, tensors)
            tables, tensors = [], {}
    if tables:
        yield _joined(tables, tensors)


def _joined(tables: Sequence[pa.Table], tensors: Mapping[str, Sequence[tuple[Array, Array]]]) -> Block:
    """One table, and one block of each kind of tensors that has rows."""
    schema, joined = tables[0].schema, dict[str, tuple[Array, Array]]()
    for kind, blocks in tensors.items():
        index, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        if len(index):
            joined[kind] = index, rows
    return pa.concat_tables([table.cast(schema) for table in tables]), joined


def _rows(folder: Path) -> dict[Path, dict[str, IntArray]]:
    """The images of each attack in each file of a shard."""
    return {path: outcome_files.image_numbers(path) for path in outcome_files.listed(folder / "outcomes")}


def _images(rows: Mapping[Path, Mapping[str, IntArray]], label: str) -> IntArray:
    """The images of one attack in all files of a shard."""
    return np.concatenate(
        [np.zeros(0, dtype=np.int64), *(images[label] for images in rows.values() if label in images)]
    )


def _check_rows(folder: Path, shard: Shard, rows: Mapping[Path, Mapping[str, IntArray]]) -> None:
    """Check that every attack has rows of the images of the clean pass.

    Raises:
        ClasswiseError: naming the first attack that has not.
    """
    clean = np.sort(_images(rows, CLEAN))
    for label in dict.fromkeys(label for images in rows.values() for label in images):
        if not np.array_equal(np.sort(_images(rows, label)), clean):
            raise ClasswiseError(
                f"{folder} has rows of other images under {label} than under {CLEAN}; {_repeat(shard)}"
            )


def _read_shard(folder: Path) -> dict[str, Any]:
    """The record of a shard, or of another audit in its place.

    Raises:
        ClasswiseError: if it is damaged.
    """
    about = read_about(folder)
    none: ShardFacts = {"finished": False, "images": None, "overwrites": False, "attacks": []}
    about |= {"shard": about.get("shard") or none}
    for key in ("data_hash", "environment"):
        if key not in about:
            raise damaged(str(folder / ABOUT), f"no key {key!r}", f"remove {folder}, and run the shard again")
    return about


def _has_all_rows(about: Mapping[str, Any], rows: Mapping[Path, Mapping[str, IntArray]]) -> bool:
    """Whether a shard has judged all its images, and none of its files was removed since."""
    facts = about["shard"]
    totals = dict.fromkeys(facts["attacks"], 0)
    for files in rows.values():
        for label, images in files.items():
            totals[label] = totals.get(label, 0) + len(images)
    return facts["finished"] and set(totals.values()) == {facts.get("images")}


def _in_common(abouts: Iterable[Mapping[str, Any]], paths: Iterable[Path], data_hash: str) -> Merged:
    """What the shards have recorded beside their rows."""
    facts, seconds, overwrites = dict[str, Any](), 0.0, False
    for about in abouts:
        overwrites |= about["shard"]["overwrites"]
        environment = about["environment"]
        seconds += float(environment.get("seconds", 0.0))
        facts |= {key: environment[key] for key in FUSION_FACTS if key in environment}
    notes = dict.fromkeys(note for path in paths for note in outcome_files.read_meta(path).notes)
    return Merged(tuple(notes), data_hash, overwrites, facts | {"shard_seconds": round(seconds, 3)})
