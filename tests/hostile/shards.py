"""Folders of shards: those of other shards, other counts and other evaluations, and records that are damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.hostile.case import Case, Content, audit

MERGE = audit("--threat=Linf:0.1", "--attack=fgsm", "--shards=2")
FACTS: Mapping[str, Any] = {"finished": True, "images": 0, "overwrites": False, "attacks": []}
ABOUT: Mapping[str, Any] = {
    "schema_version": 2,
    "data_hash": "",
    "environment": {"seconds": 1.0},
    "settings": {"shard": "1/2"},
    "shard": FACTS,
}
REFUSED = frozenset({2, 3})
VALUES: tuple[Any, ...] = (None, 0, -1, "", "1/2", [], {}, True, 1e308)
OF_SHARD = ("1/2", "2/1", "2/3", "02/2", "2/2 ", "2", 2, None, [2, 2], "x/y")


def folder(about: object, name: str = "002-of-002", first: object = ABOUT) -> dict[str, Content]:
    """The records of both shards."""
    texts = {f"out/shards/{name}/audit.json": about, "out/shards/001-of-002/audit.json": first}
    return {path: json.dumps(content).encode() for path, content in texts.items()}


def cases(random: Random) -> list[Case]:
    """Merges of such folders."""
    del random
    found = [Case("a copied shard", MERGE, folder(ABOUT), REFUSED)]
    for value in OF_SHARD:
        about = {**ABOUT, "settings": {"shard": value}}
        found.append(Case(f"a shard {value!r} as the second", MERGE, folder(about), REFUSED))
    for key in ABOUT:
        without = {name: value for name, value in ABOUT.items() if name != key}
        found.append(Case(f"a shard without {key}", MERGE, folder(without), REFUSED))
        found += [
            Case(f"a shard whose {key} is {value!r}", MERGE, folder({**ABOUT, key: value}), REFUSED) for value in VALUES
        ]
    for key in FACTS:
        for value in VALUES:
            about = {**ABOUT, "settings": {"shard": "2/2"}, "shard": {**FACTS, key: value}}
            found += [Case(f"a shard with {key} = {value!r}", MERGE, folder(about), REFUSED)]
    found += [
        Case(f"a shard in the folder {name!r}", MERGE, folder(ABOUT, name), REFUSED)
        for name in ("002-of-003", "2-of-2", "002-of-002 ", "001-of-001", "tasks")
    ]
    for content in (b"", b"[]", b"null", b"{}", b"\xff", b'{"schema_version": 99}'):
        files = {**folder(ABOUT), "out/shards/002-of-002/audit.json": content}
        found.append(Case(f"a shard whose record is {content!r}", MERGE, files, REFUSED))
    return found
