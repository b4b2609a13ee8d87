"""An audit as the JSON object that RobustBench keeps of a model, with what it says class by class beside it.

RobustBench (Croce et al., NeurIPS 2021) holds one file for each model, ``model_info/<dataset>/<norm>/<model>.json``;
its accuracies are texts in percent. What an audit has not measured is null, as in the file that their own benchmark
writes, until somebody fills it in.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classwise.auditing.outcomes import ALL, CLEAN
from classwise.auditing.result import Audit
from classwise.auditing.suite import parse_attacks
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.storage import write_text
from classwise.core.version import __version__

SCHEMA_VERSION = 1
"""The layout of the block ``classwise``."""
BOARDS: Mapping[str, Mapping[str, str]] = {
    "cifar10": {"Linf": "8/255", "L2": "0.5"},
    "cifar100": {"Linf": "8/255"},
    "imagenet": {"Linf": "4/255"},
}
"""The radii of their leaderboards, by data set and norm."""
IMAGES: Mapping[str, int] = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
"""How many images their leaderboards judge."""
SUITE = "autoattack"

_BY_HAND = ("link", "name", "authors", "additional_data", "number_forward_passes", "venue", "architecture", "reported")
_SOMETIMES = ("unreliable", "footnote", "external")
_SWITCHES = ("additional_data", "unreliable")
_PERCENT = ("reported", "external")
_MEASURED = ("eps", "clean_acc", "autoattack_acc")


def robustbench(audit: Audit, info: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The object of RobustBench's ``model_info`` for an audit by AutoAttack's standard version.

    Args:
        audit: complete, of a test set, under one radius, its attacks those of ``autoattack`` and no others.
        info: what only the author knows: ``link``, ``name``, ``authors``, ``additional_data``,
            ``number_forward_passes``, ``venue``, ``architecture``, ``reported``, ``unreliable``, ``footnote``,
            ``external``; and ``dataset`` where the data go by another name.

    Returns:
        Their keys, and ``classwise``: the worst class, every class with its 95 % interval, the guards, hashes, notes;
        accuracies in it are fractions.

    Raises:
        IncompleteError: if the audit is incomplete.
        ClasswiseError: if a key would mean something else than RobustBench means by it, or ``info`` has an unknown key.
    """
    given = _checked(info or {})
    meta = audit.outcomes.meta
    norm, _, radius = (meta.threat or "").partition(":")
    _refuse_other_meaning(audit, norm, radius)
    dataset = given.pop("dataset", meta.data)
    if dataset not in BOARDS:
        raise ClasswiseError(
            f"RobustBench has no data set {dataset!r}; where yours is one of {', '.join(BOARDS)} under another name, "
            "say so with dataset=NAME"
        )
    by_class = dataclasses.replace(audit, group=None)
    overall = by_class.by_attack["overall"]
    missing = [key for key in _BY_HAND if key not in given]
    known: dict[str, Any] = dict.fromkeys(_BY_HAND) | given
    ordered = ("link", "name", "authors", "additional_data", "number_forward_passes")
    return {
        **{key: known[key] for key in ordered},
        "dataset": dataset,
        "venue": known["venue"],
        "architecture": known["architecture"],
        "eps": radius,
        "clean_acc": _percent(overall[CLEAN]),
        "reported": known["reported"],
        "autoattack_acc": _percent(overall[ALL]),
        **{key: given[key] for key in _SOMETIMES if key in given},
        "classwise": _block(by_class, missing, _notes(by_class, dataset, norm, radius)),
    }


def write_robustbench(
    audit: Audit, path: str | os.PathLike[str], info: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write what `robustbench` says as a JSON file, and return it.

    Raises:
        ClasswiseError: as `robustbench` does, or if the file cannot be written.
    """
    value = robustbench(audit, info)
    write_text(Path(path), json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")
    return value


def _checked(info: Mapping[str, str]) -> dict[str, Any]:
    """What the author gave, each value in its JSON type."""
    known = ("dataset", *_BY_HAND, *_SOMETIMES)
    found: dict[str, Any] = {}
    for key, value in info.items():
        if key in _MEASURED:
            raise ClasswiseError(f"{key} is measured by the audit; leave it out")
        if key not in known:
            raise unknown("field of RobustBench:", key, known)
        found[key] = _typed(key, str(value))
    return found


def _typed(key: str, text: str) -> str | bool | int:
    if key in _SWITCHES:
        if text.lower() not in ("true", "false"):
            raise ClasswiseError(f"{key}={text}: true or false")
        return text.lower() == "true"
    if key == "number_forward_passes":
        if not (text.isdecimal() and int(text) > 0):
            raise ClasswiseError(f"{key}={text}: a whole number, 1 for most models")
        return int(text)
    if key in _PERCENT:
        try:
            share = float(text)
        except ValueError:
            share = math.nan
        if not 0 <= share <= 100:
            raise ClasswiseError(f"{key}={text}: an accuracy in percent without the sign, such as 53.42")
    return text


def _refuse_other_meaning(audit: Audit, norm: str, radius: str) -> None:
    """See that ``eps``, ``clean_acc`` and ``autoattack_acc`` would say what RobustBench means by them."""
    meta = audit.outcomes.meta
    if norm not in ("Linf", "L2") or radius == "per-image":
        raise ClasswiseError(
            f"RobustBench has leaderboards for one radius in Linf or L2; the threat here is {meta.threat}"
        )
    if meta.split == "train":
        raise ClasswiseError("RobustBench judges test images; this audit is of the training split")
    wanted = parse_attacks(SUITE, norm).specs()
    ran = {label: spec for label, spec in meta.attacks.items() if label != CLEAN}
    if ran != wanted:
        other = next((label for label in ran if ran[label] != wanted.get(label)), None)
        what = f"{', '.join(ran) or 'no attack'}" if other is None or set(ran) != set(wanted) else f"another {other}"
        raise ClasswiseError(
            f"autoattack_acc means AutoAttack's standard version and this audit ran {what}; audit with "
            f"--attack {SUITE} and nothing else"
        )
    if CLEAN not in meta.attacks:
        raise ClasswiseError("clean_acc is not known; the audit has no clean pass")
    if meta.early_stop is False:
        raise ClasswiseError(
            "AutoAttack counts every iterate; this audit took the last ones, so run it with early_stop=True"
        )
    audit.outcomes.require_complete()


def _notes(audit: Audit, dataset: str, norm: str, radius: str) -> list[str]:
    """What keeps the numbers from being comparable with a leaderboard's."""
    notes, count = [], len(audit.outcomes)
    board = BOARDS[dataset].get(norm)
    if board is None:
        notes.append(f"RobustBench has no {norm} leaderboard for {dataset}")
    elif board != radius:
        notes.append(f"the {norm} leaderboard of {dataset} is at {board}, this is at {radius}")
    if count < IMAGES[dataset]:
        notes.append(f"{count} images were judged; the leaderboard judges {IMAGES[dataset]}")
    return [*notes, *audit.outcomes.meta.notes]


def _block(audit: Audit, missing: list[str], notes: list[str]) -> dict[str, Any]:
    """What the audit says class by class."""
    meta, worst, table = audit.outcomes.meta, audit.worst_class(ALL), audit.by_class
    summary = audit.by_attack.loc[ALL]
    least = worst.minimum
    return {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "unit": "fraction",
        "interval": f"{100 * (1 - audit.alpha):g} %, for new images of the same class, the model fixed",
        "images": len(audit.outcomes),
        "split": meta.split,
        "overall": {key: summary[key] for key in ("overall", "low", "high")},
        "worst_class": {
            "class": worst.name,
            "n": worst.count,
            "accuracy": worst.accuracy,
            "low": worst.low,
            "high": worst.high,
            "may_be_as_weak": [name for name in worst.possibly if name != worst.name],
            "minimum": {"plug_in": least.plug_in, "split": least.split, "low": least.low, "high": least.high},
        },
        "classes": {
            str(name): {
                "n": int(row["n"]),
                "clean": row[CLEAN],
                "autoattack": row[ALL],
                "low": row["low"],
                "high": row["high"],
            }
            for name, row in table.iterrows()
        },
        "guards": [{"name": each.name, "sentence": each.sentence, "value": each.value} for each in audit.warnings],
        "hashes": {"model_sha256": meta.model_hash, "data_sha256": meta.data_hash},
        "settings": {
            "attacks": {label: spec for label, spec in meta.attacks.items() if spec},
            "early_stop": meta.early_stop,
            "cascade": meta.cascade,
            "seed": meta.seed,
            "precision": dict(meta.precision),
            "batch_size": meta.batch_size,
        },
        "to_fill_in": missing,
        "notes": notes,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _plain(value: Any) -> Any:
    """JSON's own types; a number that is not there is null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
