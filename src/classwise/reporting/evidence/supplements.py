"""Further results on the models of a report: radius curves, worst-class searches, and audits under corruptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.curve.result import RADII, Curve
from classwise.auditing.outcomes.table import ALL
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.auditing.worst_class.search import Finished
from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_value
from classwise.core.files.storage import MARKERS, ResultFolder

Kind = Literal["curve", "worst-class search", "corruptions"]


class SupplementRow(TypedDict):
    """A class, or a corruption, with its number of images, and a measured value with its 95 % interval."""

    name: str
    n: int
    value: float
    low: float | None
    high: float | None


class Supplement(TypedDict):
    """A further result on a model of the report. No criterion is decided on it.

    ``measure`` names the values, ``unit`` is that of the radius or ``fraction``; ``sentence`` states the result of a
    worst-class search.
    """

    kind: Kind
    name: str
    model_sha256: str
    data: str
    data_sha256: str
    threat: str | None
    measure: str
    unit: Literal["fraction", "radius"]
    sentence: str
    rows: list[SupplementRow]


def kind_of(path: Path) -> Kind | None:
    """The kind of a further result in a folder; None for anything else, such as an audit."""
    if (path / RADII).is_file():
        return "curve"
    if (path / MARKERS["worst-class search"]).is_file():
        return "worst-class search"
    return "corruptions" if _audits_under_corruptions(path) and not (path / ABOUT).is_file() else None


def supplement(path: Path) -> Supplement:
    """Read a further result.

    Args:
        path: its folder, of which `kind_of` knows the kind.

    Raises:
        ClasswiseError: if it is damaged, or a search that has not ended.
        IncompleteError: if an audit under a corruption is not complete.
    """
    kind = kind_of(path)
    if kind == "curve":
        return _of_curve(path)
    return _of_search(path) if kind == "worst-class search" else _of_corruptions(path)


def files_of(path: Path) -> list[Path]:
    """The files of a further result, whose digests are in the manifest."""
    if kind_of(path) == "corruptions":
        return [file for folder in _audits_under_corruptions(path) for file in sorted(folder.rglob("*.*"))
                if file.name == ABOUT or file.suffix == ".parquet"]  # fmt: skip
    return [file for name in (RADII, *MARKERS.values(), "rounds.parquet") if (file := path / name).is_file()]


def _audits_under_corruptions(path: Path) -> list[Path]:
    """The audits in a folder of ``classwise corruptions``: ``fog-3`` and so on."""
    return sorted(file.parent for file in path.glob(f"*-[1-5]/{ABOUT}"))


def _of_curve(path: Path) -> Supplement:
    curve = Curve.load(path)
    rows: list[SupplementRow] = [
        {"name": str(name), "n": int(row["n"]), "value": float(row["mean"]), "low": json_value(row["mean_low"]),
         "high": json_value(row["mean_high"])}
        for name, row in curve.summary.iterrows()
    ]  # fmt: skip
    meta = curve.meta
    return {
        "kind": "curve",
        "name": path.resolve().name,
        "model_sha256": meta.model_hash,
        "data": f"{meta.data} {meta.split}".strip(),
        "data_sha256": meta.data_hash,
        "threat": meta.threat,
        "measure": f"mean robust radius, of radii up to {curve.highest:.4g}",
        "unit": "radius",
        "sentence": "",
        "rows": rows,
    }


def _of_search(path: Path) -> Supplement:
    about = ResultFolder(path, "worst-class search").read(Finished)
    result = about.get("result")
    if result is None:
        raise ClasswiseError(f"{path}: the worst-class search has not ended; continue it with --resume")
    settings = about["settings"]
    return {
        "kind": "worst-class search",
        "name": path.resolve().name,
        "model_sha256": settings["model_hash"],
        "data": f"{settings['data']} {settings['split']}".strip(),
        "data_sha256": settings["data_hash"],
        "threat": settings["threat"],
        "measure": "accuracy under the whole suite on these images",
        "unit": "fraction",
        "sentence": result["sentence"],
        "rows": cast("list[SupplementRow]", result["classes"]),
    }


def _of_corruptions(path: Path) -> Supplement:
    audits = [Audit.load(folder) for folder in _audits_under_corruptions(path)]
    identities = {audit.outcomes.meta.model_hash for audit in audits}
    if len(identities) > 1:
        raise ClasswiseError(f"{path} contains audits of several models; give the corruptions of one")
    meta = audits[0].outcomes.meta
    return {
        "kind": "corruptions",
        "name": path.resolve().name,
        "model_sha256": meta.model_hash,
        "data": f"{meta.data.partition(',')[0]} {meta.split}".strip(),
        "data_sha256": "",
        "threat": meta.threat if meta.robustness_evaluated else None,
        "measure": "accuracy on the corrupted images",
        "unit": "fraction",
        "sentence": "",
        "rows": [row for audit in audits for row in _rows_of(audit)],
    }


def _rows_of(audit: Audit) -> Iterator[SupplementRow]:
    """The overall and the lowest class accuracy under one corruption."""
    audit.outcomes.require_complete()
    row: dict[Any, Any] = audit.by_attack.loc[ALL].to_dict()
    counts = audit.counts()
    images = {"overall": int(row["n"]), "worst": int(counts.count[audit.group_names.index(row["worst_class"])])}
    for measure, name in (("overall", audit.name), ("worst", f"{audit.name}, lowest class: {row['worst_class']}")):
        low, high = (json_value(row[f"{measure}_{end}"]) for end in ("low", "high"))
        yield {"name": name, "n": images[measure], "value": float(row[measure]), "low": low, "high": high}
