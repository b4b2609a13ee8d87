"""The result of an experiment, and its JSON file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.storage import write_text
from classwise.core.version import __version__
from classwise.papers.claims import Verdict
from classwise.papers.evidence import Evidence, verdict_text
from classwise.papers.measurements import Measurement
from classwise.papers.scales import Name
from classwise.reporting.tables import Cell, Row, Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a page: an ``<svg>`` element and its caption."""

    svg: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an experiment.

    Attributes:
        item: item id, such as ``kdd21/T1``.
        evidence: scale and budget of the result.
        setting: description of the scale.
        tables: numbers with intervals, next to the printed ones.
        figures: figures with captions.
        verdicts: verdicts on claims.
        measurements: measured quantities for open questions.
        runs: store key of each training to its recipe name.
        seconds: duration. If ``work`` is given, it includes each training and audit once; otherwise (results of
            earlier versions) it excludes those loaded from the store.
        work: store key of each training and audit to its duration in seconds; None if unknown.
        version: version of classwise that produced the result.
    """

    item: str
    evidence: Evidence
    setting: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    verdicts: Sequence[Verdict] = ()
    measurements: Sequence[Measurement] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    work: Mapping[str, float | None] | None = None
    version: str = __version__

    @property
    def scale(self) -> Name:
        """Name of the scale."""
        return self.evidence.scale

    @property
    def own_seconds(self) -> float:
        """Seconds spent outside trainings and audits."""
        return self.seconds - sum(seconds for seconds in (self.work or {}).values() if seconds is not None)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; the ``text`` of a verdict states its answer and the level of its evidence."""
        plain: dict[str, Any] = _finite(dataclasses.asdict(self))
        for fields, verdict in zip(plain["verdicts"], self.verdicts, strict=True):
            fields["text"] = verdict_text(verdict, self.evidence)
        return plain

    def save(self, path: Path) -> None:
        """Write the result as JSON, atomically."""
        plain = {"schema_version": SCHEMA_VERSIONS["experiment"], **self.to_json()}
        write_text(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: Path) -> Result:
        """Read a result that `save` wrote.

        Raises:
            ClasswiseError: if the file is damaged or has another schema version.
        """
        damaged = f"{path} is damaged; run the experiment again"
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            version = int(plain.pop("schema_version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClasswiseError(damaged) from error
        check_schema_version(version, SCHEMA_VERSIONS["experiment"], str(path))
        try:
            tables = [
                Table(
                    table["caption"],
                    tuple(table["heads"]),
                    tuple(
                        Row(row["name"], tuple(Cell(*cell) for cell in row["cells"]), row["weak"], row["good"])
                        for row in table["rows"]
                    ),
                    table["note"],
                )
                for table in plain.pop("tables")
            ]
            figures = [Figure(**figure) for figure in plain.pop("figures")]
            verdicts = [Verdict(**_verdict_fields(verdict)) for verdict in plain.pop("verdicts")]
            measurements = [Measurement(**_with_nan(one)) for one in plain.pop("measurements")]
            evidence = plain.pop("evidence")
            evidence = {key: tuple(value) if isinstance(value, list) else value for key, value in evidence.items()}
            return Result(
                tables=tables,
                figures=figures,
                verdicts=verdicts,
                measurements=measurements,
                evidence=Evidence(**evidence),
                **plain,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ClasswiseError(damaged) from error


def _verdict_fields(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the JSON fields of a verdict: null is NaN (for ``limits``: None), a list is a tuple.

    The text is derived from the other fields and the evidence.
    """
    fields = _with_nan({key: value for key, value in plain.items() if key != "text"})
    limits = plain.get("limits")
    return {**fields, "limits": None if limits is None else tuple(limits), "covers": tuple(plain.get("covers", ()))}


def _with_nan(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in plain.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):
        return _finite(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
