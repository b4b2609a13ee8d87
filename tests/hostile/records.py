"""Records in the folders of results: other types, missing keys, damage, and what is no file in the place of each."""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.auditing.test_criteria import POLICY
from tests.hostile.case import EITHER, QUICK, Case, audit, small

Damage = Callable[[Path], object]
VALUES: tuple[Any, ...] = (
    None, True, -1, 1.5, 10**18, 1e308, "", "NaN", "x" * 3000, "\x1b[2J", "../..", [], [None], [[]], {}, {"a": {}},
)  # fmt: skip
TEXTS: Mapping[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "half a record": b'{"schema_version": 2, "settings": {',
    "100,000 brackets": b"[" * 100_000,
    "60 levels": b'{"a":' * 60 + b"1" + b"}" * 60,
    "half a surrogate": b'{"schema_version": 2, "name": "\\ud800", "event": "\\ud800"}\n',
    "an integer of 4,000 digits": b'{"schema_version": ' + b"9" * 4000 + b"}\n",
    "NaN": b'{"schema_version": NaN}\n',
    "UTF-16": '{"schema_version": 2}'.encode("utf-16"),
    "no text": bytes(range(256)),
    "NUL": b"\0" * 64,
}
KEYS_BELOW = 3
"""How deep the keys whose values are replaced lie."""


def folder_of(content: str, place: Path) -> Path:
    """Write the folder of a result; it lies in `place`."""
    import classwise as cw
    from classwise.cli import main
    from classwise.sweeps.executors.run import prepare_sweep
    from classwise.sweeps.tasks import record

    if content == "sweep":
        sweep = prepare_sweep({"recipes": ["at"], "data": ["digits"], "audits": {"a": {"attack": ["fgsm"]}}}, place)
        (cell,) = sweep.cells()
        record(sweep.task(cell), attempt="a", event="start", host="here", process=1, log=0)
        record(sweep.task(cell), attempt="a", event="end", status=2)
        return place
    if content == "run":
        assert main(["train", "at", "--budget=short", "--data=digits", f"--out={place}", *QUICK]) == 0
        return place
    outcomes = cw.Outcomes.from_predictions(
        [0, 1] * 20, clean=[0, 1] * 20, attacks={"pgd": [0, 0] * 20}, threat="Linf:0.1"
    )
    cw.Audit(outcomes, environment={"seconds": 1.0, "packages": {"classwise": "0"}}).save(place)
    if content == "evidence":
        (place / "p.yaml").write_text(yaml.safe_dump({**POLICY, "fail_if": ["overall(all) < 0.1"]}))
        cw.evidence(place, place / "p.yaml", place / "evidence")
    return place


@functools.cache
def template(content: str) -> Path:
    """A folder that is copied for each case."""
    place = Path(tempfile.mkdtemp(prefix="hostile-"))
    return folder_of(content, place / "out" if content != "sweep" else place / "sweep")


def damaged(content: str, name: str, damage: Damage, checksums: bool) -> Damage:
    """A function that writes a folder with one damaged file, with or without the lists of checksums."""

    def write(path: Path) -> None:
        shutil.copytree(template(content), path)
        for file in () if checksums else sorted(path.rglob("checksums.txt")):
            if file != path / name:
                file.unlink()
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        damage(path / name)

    return write


def replaced(by: Callable[[Path], object]) -> Damage:
    """Damage that puts something in the place of a file."""

    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        by(path)

    return damage


def sparse(size: int) -> Callable[[Path], None]:
    """A file of zeros that takes no disk."""

    def write(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return write


PLACES: Mapping[str, Damage] = {
    "a FIFO": replaced(os.mkfifo),
    "a folder": replaced(Path.mkdir),
    "a link to /dev/zero": replaced(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": replaced(lambda path: path.symlink_to(path.name)),
    "a link to nothing": replaced(lambda path: path.symlink_to("none")),
    "20 MB": replaced(sparse(20 << 20)),
    "1 GiB": replaced(sparse(1 << 30)),
    "no file": lambda path: path.unlink(missing_ok=True),
}


def texts() -> Iterator[tuple[str, Damage]]:
    for name, text in TEXTS.items():
        yield name, replaced(lambda path, text=text: path.write_bytes(text))  # type: ignore[misc]


def flipped(random: Random) -> Damage:
    """Damage of some bits."""
    seed = random.random()

    def damage(path: Path) -> None:
        own = Random(seed)
        content = bytearray(path.read_bytes())
        for _ in range(own.choice((1, 1, 5))):
            content[own.randrange(len(content))] ^= 1 << own.randrange(8)
        path.write_bytes(bytes(content))

    return damage


def keys_of(value: Any, depth: int = KEYS_BELOW) -> Iterator[tuple[Any, ...]]:
    """The paths of the keys in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        yield (key,)
        if depth > 1:
            yield from ((key, *below) for below in keys_of(inner, depth - 1))


def with_value(keys: tuple[Any, ...], value: Any) -> Damage:
    """Damage that replaces the value of a key in every record of a file, or removes the key (...)."""

    def change(record: Any) -> Any:
        inner = record
        try:
            for key in keys[:-1]:
                inner = inner[key]
            if value is ...:
                del inner[keys[-1]]
            else:
                inner[keys[-1]] = value
        except (KeyError, IndexError, TypeError):  # a record without the key
            pass
        return record

    def damage(path: Path) -> None:
        text = path.read_text()
        records = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
        path.write_text("".join(json.dumps(change(record)) + "\n" for record in records))

    return damage


COMMANDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "audit": (
        ("report", "out"),
        ("report", "out", "--check"),
        ("compare", "out", "@audit"),
        ("board", "out", "--out=runs"),
    ),
    "evidence": (("evidence", "verify", "out/evidence", "out"), ("report", "out/evidence", "--check")),
    "sweep": (("sweep", "status", "out"), ("sweep", "status", "out", "--json"), ("sweep", "collect", "out")),
    "run": (
        ("audit", "out", "--subset=40", "--attack=fgsm", "--out=audits"),
        ("adjust-logits", "out", "--out=runs/a.safetensors"),
        ("report", "out", "--check"),
    ),
}
FILES: Mapping[str, tuple[str, ...]] = {
    "audit": ("audit.json", "checksums.txt", "outcomes/checksums.txt", "outcomes/part-00000.parquet", "trace.parquet"),
    "evidence": ("evidence/manifest.json", "evidence/evidence.json", "evidence/policy.yaml", "evidence/evidence.html"),
    "sweep": ("sweep.json", "cells.jsonl", "checksums.txt", "tasks/at-digits-seed0/attempts.jsonl",
              "tasks/at-digits-seed0/log.txt", "tasks/at-digits-seed0/.owner", "runs/at-digits-seed0/progress.json"),
    "run": ("environment.json", "events.jsonl", "epochs.parquet", "recipe.yaml", "validation.json", "checksums.txt",
            "checkpoints/best.safetensors", "checkpoints/checksums.txt"),
}  # fmt: skip
"""The files of each folder that its commands read."""
RECORDS: Mapping[str, tuple[str, ...]] = {
    "audit": ("audit.json",),
    "evidence": ("evidence/manifest.json", "evidence/evidence.json"),
    "sweep": ("sweep.json", "cells.jsonl", "tasks/at-digits-seed0/attempts.jsonl"),
    "run": ("environment.json", "events.jsonl", "validation.json"),
}
JSON: Mapping[str, tuple[Any, ...]] = {
    "audit.json": ({
        "schema_version": 2, "kind": "audit", "name": "a", "group": None, "alpha": 0.05, "complete": True,
        "missing": {"pgd": 0}, "images": 40, "data_hash": "", "settle": None, "policy": None,
        "warnings": [["few-images", "Few.", "NaN"]], "environment": {"seconds": 1.0, "packages": {}},
        "guards": {"mode": "full", "images": 0, "passes": 0, "budget": None, "not_run": [], "reason": "", "undecided": {}},
    },),
    "evidence/manifest.json": ({"schema_version": 1, "files": {"evidence.html": ""}, "audits": [{"folder": "", "files": {}}]},),
    "evidence/evidence.json": ({"schema_version": 1, "kind": "", "classwise": "", "audits": [{"name": "", "complete": 1}]},),
    "sweep.json": ({"schema_version": 1, "device": "cpu", "processes": 1, "gpus": 0, "executor": {}},),
    "cells.jsonl": ({"name": "", "method": "", "recipe": "", "seed": 0, "audits": {"a": {"attack": []}}, "model_settings": {}},),
    "attempts.jsonl": ({"event": "", "attempt": "", "host": "", "process": 1, "log": 0, "time": "", "status": 0},),
    "environment.json": ({"schema_version": 2, "packages": {}, "data": {"name": "", "fingerprint": "", "classes": [""], "counts": {}}},),
    "events.jsonl": ({"epoch": 0, "event": "selected", "which": "best", "score": 0.5},),
    "validation.json": ({"index": [0]},),
}  # fmt: skip
"""The keys of each record."""
OWNERS: tuple[Any, ...] = (
    {"token": "a", "process": 10**18, "host": platform.node(), "since": "", "attempt": None},
    {"token": 3, "process": -1, "host": None}, {"token": "a", "process": 1, "host": platform.node(), "attempt": "job " + "9" * 5000},
    [], "x",
)  # fmt: skip


def cases(random: Random) -> list[Case]:
    """Commands on such folders."""
    found: list[Case] = []

    def add(content: str, name: str, what: str, damage: Damage, count: int = 1) -> None:
        checksums = random.random() < 0.3
        for words in random.sample(COMMANDS[content], count):
            place = {"out": damaged(content, name, damage, checksums)}
            found.append(Case(f"{small(what)} in {content}/{name}: {' '.join(words[:2])}", words, place, EITHER))

    for content, names in FILES.items():
        for name in names:
            for what, damage in PLACES.items():
                add(content, name, what, damage, 2)
            for what, damage in random.sample([*texts()], 4):
                add(content, name, what, damage)
    for content, names in RECORDS.items():
        for name in names:
            for what, damage in texts():
                add(content, name, what, damage)
            for _ in range(3):
                add(content, name, "flipped bits", flipped(random))
            (record,) = JSON.get(name) or JSON[name.rpartition("/")[2]]
            for keys in keys_of(record):
                for value in (..., *random.sample(VALUES, 3)):
                    add(content, name, f"{'.'.join(map(str, keys))} = {value!r}", with_value(keys, value))
    for owner in OWNERS:
        text = json.dumps(owner).encode()
        words = audit("--threat=Linf:0.1", "--attack=fgsm")
        found.append(Case(f"the owner {small(owner)}", words, {"out/.owner": text}, EITHER))
    found += [
        Case(f"{what} as the owner", audit("--threat=Linf:0.1", "--attack=fgsm"), {"out/.owner": damage}, EITHER)
        for what, damage in PLACES.items()
        if what != "no file"
    ]
    return found
