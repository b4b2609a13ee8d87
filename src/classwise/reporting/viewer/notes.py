"""Notes and tags of reviewers on images: ``notes.json`` in the folder of an audit, which viewers export and read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NotRequired

import numpy as np
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import read_json

FILE = "notes.json"
"""The file of notes in the folder of an audit."""


class Note(TypedDict):
    """The note and the tags of an image."""

    index: int
    name: NotRequired[str]
    tags: list[str]
    text: str


class Notes(TypedDict):
    """The content of ``notes.json``; ``images`` is the `images_digest` of the images that it is on."""

    schema_version: int
    images: str
    notes: list[Note]


class _Versioned(TypedDict):
    schema_version: int


def images_digest(outcomes: Outcomes) -> str:
    """SHA-256 of the audited images: the recorded one, else that of their indices and labels."""
    rows = np.stack([outcomes.index, outcomes.labels]).astype("<i8")
    return outcomes.meta.data_hash or hashlib.sha256(rows.tobytes()).hexdigest()


def notes_data(audits: Iterable[Audit]) -> dict[str, Any]:
    """Read the notes of audits of the same images from their folders, for the script of a viewer.

    Args:
        audits: the audits; one without a folder or without the file has no notes.

    Returns:
        The content of a ``notes.json`` with the notes of all files; an image may have several.

    Raises:
        ClasswiseError: if a file is damaged, is of another version, or is on other images.
    """
    content: dict[str, Any] = {"schema_version": SCHEMA_VERSIONS["notes"], "images": "", "notes": []}
    for audit in audits:
        content["images"] = digest = images_digest(audit.outcomes)
        if audit.path is None or not (file := audit.path / FILE).is_file():
            continue
        check_schema_version(read_json(file, kind=_Versioned)["schema_version"], content["schema_version"], str(file))
        read = read_json(file, kind=Notes)
        if read["images"] != digest or not {note["index"] for note in read["notes"]} <= {
            *audit.outcomes.index.tolist()
        }:
            raise ClasswiseError(f"{file}: notes on other images than those of {audit.path}; remove the file")
        content["notes"] += read["notes"]
    return content
