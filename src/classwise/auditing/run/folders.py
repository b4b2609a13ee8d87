"""Claims on the folder of an audit, a curve or a search: it must be new, or contain the one that is resumed."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.run.plan import Plan
from classwise.core.errors import ClasswiseError
from classwise.core.storage import check_writable, is_unused, remove_stale_temporaries


def settings_of(plan: Plan, meta: Meta) -> dict[str, Any]:
    """Every setting that decides rows, as JSON values; ``settle`` only decides how many there are."""
    epsilon = plan.threat.epsilon
    radii = hashlib.sha256(epsilon.cpu().numpy().tobytes()).hexdigest() if isinstance(epsilon, Tensor) else None
    about = json.loads(meta.to_json())
    for key in ("images", "sizes", "notes", "model", "settle"):
        del about[key]
    if meta.repeats == 1:  # audits written before there were repeats have no such entries
        about |= {"repeats": None, "repeat_rule": None}
    return {**about, "radii": radii, "save": [*plan.save], "trace": [*plan.trace]}


def check_place(folder: Path, kind: str, *files: str) -> None:
    """Check, before data are read, that the files of an evaluation can be written into a folder.

    Raises:
        ClasswiseError: if the folder is a file, or a file in it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ClasswiseError(f"{folder} is a file; give a folder for the {kind}")
    for file in files:
        check_writable(folder / file)


def claim(
    folder: Path,
    kind: str,
    marker: str,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    read: Callable[[], Mapping[str, Any]],
    write: Callable[[], None],
    beside: Sequence[str] = (),
) -> bool:
    """Claim a folder for an evaluation, or check that it already contains this evaluation.

    Args:
        folder: the folder.
        kind: noun for error messages, such as ``"audit"``.
        marker: name of the file with the settings.
        settings: every setting that decides the result, as JSON values.
        resume: whether the folder may already contain this evaluation.
        read: reads the settings from the marker file.
        write: writes the marker file.
        beside: names of subfolders that a new folder may contain.

    Returns:
        Whether the folder already contains this evaluation.

    Raises:
        ClasswiseError: if it contains something else, an evaluation with other settings (naming the setting that
            differs), or this evaluation although ``resume`` is false.
    """
    remove_stale_temporaries(folder)
    if not (folder / marker).is_file():
        if not is_unused(folder, beside=beside):
            raise ClasswiseError(f"{folder} is not empty and contains no {kind}; give a new folder")
        write()
        return False
    if differs := difference(read(), {"shard": None, **settings}):  # a shard is not the evaluation of all images
        advice = "give another --out, or --resume with the same settings"
        article = "an" if kind[0] in "aeiou" else "a"
        raise ClasswiseError(f"{folder} contains {article} {kind} with other settings: {differs}; {advice}")
    if not resume:
        advice = f"add --resume, which loads a finished {kind} or continues it; or give another --out"
        raise ClasswiseError(f"{folder} already contains this {kind}, so only outputs changed: {advice}")
    return True


def difference(before: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The first of these settings that was another one before, in words; empty if none was."""
    for key, value in settings.items():
        if before.get(key) != value:
            return _difference(key, before.get(key), value)
    return ""


def _difference(key: str, was: Any, now: Any) -> str:
    """The first difference between two values of a setting; of mappings, in their keys, then within a value."""
    if isinstance(was, dict) and isinstance(now, dict):
        if was.keys() != now.keys():
            return f"{key} was {', '.join(was) or 'none'}, now {', '.join(now) or 'none'}"
        within = next(name for name in now if was[name] != now[name])
        return _difference(f"{key}.{within}", was[within], now[within])
    before, after = (textwrap.shorten(json.dumps(value), 80, placeholder=" ...") for value in (was, now))
    return f"{key} was {before}, now {after}"
