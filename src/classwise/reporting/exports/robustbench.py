"""Export of an audit as a RobustBench ``model_info`` JSON object, extended by per-class results.

RobustBench (Croce et al., NeurIPS 2021) has one file per model, ``model_info/<dataset>/<norm>/<model>.json``, with
accuracies as strings in percent. Fields that the audit does not measure are null, as in the file that RobustBench's
own benchmark writes, until the author fills them in.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.json_values import json_value
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import write_json
from classwise.core.settings.arguments import checked
from classwise.core.version import __version__
from classwise.data.sets import DATA
from classwise.reporting.formatting import lowest_interval_name

BOARDS: Mapping[str, Mapping[str, str]] = {
    "cifar10": {"Linf": "8/255", "L2": "0.5"},
    "cifar100": {"Linf": "8/255"},
    "imagenet": {"Linf": "4/255"},
}
"""Radii of the RobustBench leaderboards, by data set and norm."""
IMAGES: Mapping[str, int] = {"cifar10": 10_000, "cifar100": 10_000, "imagenet": 5_000}
"""Number of test images of the RobustBench leaderboards."""
CLASSES: dict[str, int] = {"cifar10": 10, "cifar100": 100, "imagenet": 1_000}
"""Number of classes of the data sets of the RobustBench leaderboards."""
SUITE = "autoattack"

_AUTHOR_FIELDS = (
    "link",
    "name",
    "authors",
    "additional_data",
    "number_forward_passes",
    "venue",
    "architecture",
    "reported",
)
_OPTIONAL_FIELDS = ("unreliable", "footnote", "external")
_BOOLEAN_FIELDS = ("additional_data", "unreliable")
_PERCENT_FIELDS = ("reported", "external")
_MEASURED_FIELDS = ("eps", "clean_acc", "autoattack_acc")


@checked
def robustbench(audit: Audit, info: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Convert an audit by AutoAttack's standard version to a RobustBench ``model_info`` object.

    Args:
        audit: a complete audit of a test set at one radius, with exactly the attacks of ``autoattack``.
        info: fields supplied by the author: ``link``, ``name``, ``authors``, ``additional_data``,
            ``number_forward_passes``, ``venue``, ``architecture``, ``reported``, ``unreliable``, ``footnote``,
            ``external``; and ``dataset`` if the data set has another name in the audit.

    Returns:
        The RobustBench fields, and ``classwise``: the worst class, every class with its 95 % interval, the guards,
        hashes and notes, with accuracies as fractions.

    Raises:
        IncompleteError: if the audit is incomplete.
        ClasswiseError: if a field would not have its RobustBench meaning, or ``info`` has an unknown key.
    """
    fields = _checked(info or {})
    meta = audit.outcomes.meta
    norm, _, radius = (meta.threat or "").partition(":")
    _check_comparable(audit, norm, radius)
    dataset = fields.pop("dataset", meta.data)
    if dataset not in BOARDS:
        raise ClasswiseError(
            f"RobustBench has no data set {dataset!r}; if it is one of {', '.join(BOARDS)} under another name, pass "
            "dataset=NAME"
        )
    _check_dataset(audit, dataset)
    by_class = dataclasses.replace(audit, group=None)
    overall = by_class.by_attack["overall"]
    missing = [key for key in _AUTHOR_FIELDS if key not in fields]
    known: dict[str, Any] = dict.fromkeys(_AUTHOR_FIELDS) | fields
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
        **{key: fields[key] for key in _OPTIONAL_FIELDS if key in fields},
        "classwise": _block(by_class, missing, _notes(by_class, dataset, norm, radius)),
    }


@checked
def write_robustbench(
    audit: Audit, path: str | os.PathLike[str], info: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Write the object of `robustbench` as a JSON file, and return it.

    Raises:
        ClasswiseError: under the conditions of `robustbench`, or if the file cannot be written.
    """
    value = robustbench(audit, info)
    write_json(Path(path), json_value(value), indent=2, ensure_ascii=False)
    return value


def _checked(info: Mapping[str, str]) -> dict[str, Any]:
    """Validate the author's fields and convert each value to its JSON type."""
    known = ("dataset", *_AUTHOR_FIELDS, *_OPTIONAL_FIELDS)
    fields: dict[str, Any] = {}
    for key, value in info.items():
        if key in _MEASURED_FIELDS:
            raise ClasswiseError(f"{key}: measured by the audit, cannot be set")
        if key not in known:
            raise unknown("RobustBench field", key, known)
        fields[key] = _typed(key, str(value))
    return fields


def _typed(key: str, text: str) -> str | bool | int:
    if key in _BOOLEAN_FIELDS:
        if text.lower() not in ("true", "false"):
            raise ClasswiseError(f"{key} {text!r}: must be true or false")
        return text.lower() == "true"
    if key == "number_forward_passes":
        if not (text.isdecimal() and int(text) > 0):
            raise ClasswiseError(f"{key} {text!r}: must be a positive integer, 1 for most models")
        return int(text)
    if key in _PERCENT_FIELDS:
        try:
            share = float(text)
        except ValueError:
            share = math.nan
        if not 0 <= share <= 100:
            raise ClasswiseError(
                f"{key} {text!r}: must be an accuracy in percent without the percent sign, such as 53.42"
            )
    return text


def _check_comparable(audit: Audit, norm: str, radius: str) -> None:
    """Check that ``eps``, ``clean_acc`` and ``autoattack_acc`` have their RobustBench meaning."""
    meta = audit.outcomes.meta
    if norm not in ("Linf", "L2") or radius == "per-image":
        raise ClasswiseError(
            f"threat {meta.threat}: RobustBench accepts a single radius in Linf or L2, such as Linf:8/255"
        )
    if meta.split == "train":
        raise ClasswiseError("split 'train': RobustBench evaluates test images")
    wanted = parse_attacks(SUITE, norm).specs()
    ran = {label: spec for label, spec in meta.attacks.items() if label != CLEAN}
    if ran != wanted:
        other = next((label for label in ran if ran[label] != wanted.get(label)), None)
        what = f"{', '.join(ran) or 'no attack'}" if other is None or set(ran) != set(wanted) else f"another {other}"
        raise ClasswiseError(
            f"autoattack_acc requires exactly the attacks of AutoAttack's standard version, but this audit ran {what}; "
            f"audit with --attack {SUITE} only"
        )
    if CLEAN not in meta.attacks:
        raise ClasswiseError("clean_acc: the audit has no clean predictions")
    if meta.early_stop is False:
        raise ClasswiseError("early_stop = False: AutoAttack evaluates every iterate; audit with --early-stop")
    if meta.repeats > 1:
        raise ClasswiseError(f"repeats = {meta.repeats}: RobustBench evaluates each image in one pass; omit repeats")
    if meta.grid is not None:
        raise ClasswiseError(f"grid {meta.grid!r}: RobustBench does not round adversarial images; omit grid")
    if meta.sampled and not audit.complete:
        raise ClasswiseError(
            f"autoattack_acc: the audit is {meta.kind_if_incomplete}, and RobustBench accepts no estimates; "
            f"{audit.outcomes.completion}"
        )
    audit.outcomes.require_complete()


def _check_dataset(audit: Audit, dataset: str) -> None:
    """Check that a data set of RobustBench may be the audited one under another name.

    Raises:
        ClasswiseError: if the audited one is another registered data set, or has another number of classes.
    """
    meta = audit.outcomes.meta
    if dataset == meta.data:
        return
    if meta.data in {*BOARDS, *DATA}:
        raise ClasswiseError(f"dataset {dataset!r}: the audited data set is {meta.data!r}")
    if meta.num_classes != CLASSES[dataset]:
        raise ClasswiseError(
            f"dataset {dataset!r} has {CLASSES[dataset]} classes, but the audited data have {meta.num_classes}"
        )


def _notes(audit: Audit, dataset: str, norm: str, radius: str) -> list[str]:
    """Notes on differences between the audit and the leaderboard."""
    notes, count = [], len(audit.outcomes)
    board = BOARDS[dataset].get(norm)
    if board is None:
        notes.append(f"RobustBench has no {norm} leaderboard for {dataset}")
    elif board != radius:
        notes.append(f"the {norm} leaderboard of {dataset} uses radius {board}, this audit {radius}")
    if count < IMAGES[dataset]:
        notes.append(f"{count} images were evaluated; the leaderboard evaluates {IMAGES[dataset]}")
    return [*notes, *audit.outcomes.meta.notes]


def _block(audit: Audit, missing: list[str], notes: list[str]) -> dict[str, Any]:
    """Per-class results, guards, hashes and settings of the audit."""
    meta, worst, table = audit.outcomes.meta, audit.worst_class(ALL), audit.by_class
    summary = audit.by_attack.loc[ALL]
    least = worst.minimum
    return {
        "schema_version": SCHEMA_VERSIONS["robustbench"],
        "version": __version__,
        "unit": "fraction",
        "interval": f"{100 * (1 - audit.alpha):g} %, for new images of the same class, the model fixed",
        "images": len(audit.outcomes),
        "split": meta.split,
        "overall": {"overall": summary["overall"], "low": summary["overall_low"], "high": summary["overall_high"]},
        "worst_class": {
            "class": worst.name,
            "n": worst.count,
            "accuracy": worst.accuracy,
            "low": worst.low,
            "high": worst.high,
            "interval": lowest_interval_name(audit.alpha, audit.group),
            "may_be_as_weak": [name for name in worst.possibly if name != worst.name],
            "minimum": {"plug_in": least.plug_in, "split": least.split, "low": least.low, "high": least.high},
        },
        "classes": {
            str(name): {
                "n": int(row["n"]),
                "clean": row[CLEAN],
                "autoattack": row[ALL],
                "low": row["all_low"],
                "high": row["all_high"],
            }
            for name, row in table.iterrows()
        },
        "guards": [
            {"name": warning.name, "sentence": warning.sentence, "value": warning.value} for warning in audit.warnings
        ],
        "guards_not_run": [] if audit.guards is None else list(audit.guards.without_result),
        "hashes": {"model_sha256": meta.model_hash, "data_sha256": meta.data_hash},
        "settings": {
            "threat": meta.threat,
            "attacks": {label: spec for label, spec in meta.attacks.items() if spec},
            "early_stop": meta.early_stop,
            "cascade": meta.cascade,
            "seed": meta.seed,
            "precision": dict(meta.precision),
            "batch_size": meta.batch_size,
            "guards": None if audit.guards is None else audit.guards.mode,
        },
        "to_fill_in": missing,
        "notes": notes,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
