"""The result of a search for radii: a bracket for every image, and from these the accuracy at any radius."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from classwise.auditing.meta import Meta
from classwise.core.errors import ClasswiseError
from classwise.core.schema import check_schema_version
from classwise.core.storage import check_writable, is_unused, replacing, verify
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray
from classwise.stats.intervals import class_intervals, two_sided_z, wilson

SCHEMA_VERSION = 2
RADII = "radii.parquet"
"""The file that makes a folder a curve's."""
OVERALL = "overall"
POINTS = 65
"""The default number of radii of a table."""
_META = b"classwise-curve"

COLUMNS: Mapping[str, str] = {
    "index": "int64",  # the image's number in the data set
    "label": "int64",
    "low": "float64",  # the largest radius at which every attack failed; 0 if there is none
    "high": "float64",  # the smallest with an adversarial example: 0 if wrong when clean, infinity for none
    "first_success": "string",  # the attack that succeeded at `high`, or clean; null for none
    "probes": "int64",  # radii at which it was attacked
    "forwards": "int64",  # passes spent, the clean one included
    "backwards": "int64",
}


@dataclass(frozen=True, eq=False)
class Curve:
    """How the accuracy of each class falls as the radius grows.

    An image's robust radius is below the smallest radius at which an adversarial example was found, so accuracy never
    rises with the radius. Every such radius was verified in float32; the true one is at most that.

    Attributes:
        frame: a row for each image, with the columns of `COLUMNS`.
        meta: how the rows came about; its threat holds the largest radius.
        highest: the largest radius of the search.
        rounds: how often the range was halved.
        name: what the curve is called.
        environment: what it was made with.
        alpha: 1 minus the coverage of the intervals.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> curve = cw.robustness_curve(model, data, attacks="fgsm", highest=0.2, rounds=2)
        >>> curve.table([0.0, 0.1]).shape  # a row for each of 10 classes, and for all images, at each radius
        (22, 7)
    """

    frame: pd.DataFrame
    meta: Meta
    highest: float
    rounds: int
    name: str = "curve"
    environment: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 0.05

    def __post_init__(self) -> None:
        absent = [name for name in COLUMNS if name not in self.frame]
        if absent:
            raise ClasswiseError(f"the table of radii has no column {absent[0]!r}")
        object.__setattr__(self, "frame", self.frame[list(COLUMNS)].astype(COLUMNS))

    @property
    def width(self) -> float:
        """How wide an image's bracket is at most where its attacks did not contradict themselves."""
        return self.highest * 0.5**self.rounds

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self.meta.class_names

    @cached_property
    def _labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self.frame["label"].to_numpy()

    def robust(self, radius: float) -> BoolArray:
        """(N,) which images are robust at a radius: no adversarial example within it is known."""
        robust: BoolArray = self.frame["high"].to_numpy() > self._checked(radius)
        return robust

    def tested(self, radius: float) -> BoolArray:
        """(N,) the robust images on which every attack failed at this radius or a larger one."""
        return self.robust(radius) & (self.frame["low"].to_numpy() >= radius)

    def counts(self, radius: float) -> ClassCounts:
        """Images and robust images of each class."""
        return ClassCounts.from_labels(self._labels, self.robust(radius), len(self.class_names))

    def table(self, radii: Sequence[float] | None = None) -> pd.DataFrame:
        """A row for each class with images (and for ``overall``) and each radius.

        Columns: ``class``, ``radius``, ``n``, ``accuracy``, ``low`` and ``high`` (its 95 % interval, for new images
        of the class), and ``tested``: the share on which every attack failed at this radius or a larger one.
        Accuracy and ``tested`` differ by the images whose bracket holds the radius.

        Args:
            radii: between 0 and `highest`; by default 65 of them, evenly.
        """
        grid = np.linspace(0, self.highest, POINTS) if radii is None else np.asarray(radii, dtype=np.float64)
        blocks = []
        for radius in grid:
            counts, tested = self.counts(float(radius)), self.tested(float(radius))
            interval = class_intervals(counts, self.alpha)
            low, high = wilson(int(counts.correct.sum()), int(counts.count.sum()), self.alpha)
            by_class = ClassCounts.from_labels(self._labels, tested, len(self.class_names)).accuracy
            blocks.append(
                pd.DataFrame(
                    {
                        "class": [OVERALL, *self.class_names],
                        "radius": radius,
                        "n": [counts.count.sum(), *counts.count],
                        "accuracy": [counts.correct.sum() / max(counts.count.sum(), 1), *counts.accuracy],
                        "low": [float(low), *interval.low],
                        "high": [float(high), *interval.high],
                        "tested": [tested.mean() if len(tested) else np.nan, *by_class],
                    }
                )
            )
        frame = pd.concat(blocks, ignore_index=True)
        frame = frame[frame["n"] > 0]
        places = {name: place for place, name in enumerate((OVERALL, *self.class_names))}
        order = frame["class"].map(places)
        return (
            frame.assign(_order=order).sort_values(["_order", "radius"]).drop(columns="_order").reset_index(drop=True)
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each class with images, the weakest first, and the last for ``overall``.

        Columns: ``n``; ``clean`` accuracy; ``mean`` radius, where radii beyond `highest` count as that (the area under
        the curve), with ``mean_low`` and ``mean_high`` (normal 95 % interval); ``median`` radius, with ``median_low``
        and ``median_high`` (from order statistics, no assumption; infinity where it lies beyond `highest`).
        """
        high = self.frame["high"].to_numpy()
        groups = {
            name: high[self._labels == label]
            for label, name in enumerate(self.class_names)
            if (self._labels == label).any()
        }
        rows = pd.DataFrame([self._row(values) for values in groups.values()], index=pd.Index(groups, name="class"))
        rows = rows.sort_values("mean", kind="stable")
        return pd.concat([rows, pd.DataFrame([self._row(high)], index=pd.Index([OVERALL], name="class"))])

    def _row(self, high: FloatArray) -> dict[str, float]:
        capped, count = np.minimum(high, self.highest), len(high)
        mean = float(capped.mean())
        half = two_sided_z(self.alpha) * float(capped.std(ddof=1)) / count**0.5 if count > 1 else np.inf
        ranked = np.sort(high)
        # P(X_(l) <= median <= X_(u)) >= 1 - alpha for ranks (from 1) l = q and u = n + 1 - q.
        rank = int(stats.binom.ppf(self.alpha / 2, count, 0.5))
        return {
            "n": count,
            "clean": float((high > 0).mean()),
            "mean": mean,
            "mean_low": max(mean - half, 0.0),
            "mean_high": min(mean + half, self.highest),
            "median": float(ranked[(count - 1) // 2]),
            "median_low": float(ranked[rank - 1]) if rank else 0.0,
            "median_high": float(ranked[count - rank]) if rank else np.inf,
        }

    @property
    def weakest(self) -> str:
        """The class of smallest mean radius."""
        return str(self.summary.index[0])

    def _checked(self, radius: float) -> float:
        if not 0 <= radius <= self.highest * (1 + 1e-9):
            raise ClasswiseError(f"radius {radius:g}: the curve goes from 0 to {self.highest:g}")
        # At the end of the range itself, images without an adversarial example are robust.
        return min(radius, self.highest)

    def save(self, folder: str | Path) -> Path:
        """Write the radii into a folder, whole or not at all; what it held of a curve is replaced.

        Raises:
            ClasswiseError: if the folder holds something else, or cannot be written.
        """
        target = Path(folder)
        check_folder(target)
        self.write(target)
        return target

    def write(self, folder: Path) -> None:
        """Write the radii into a folder that is the curve's, whole or not at all."""
        about = {key: getattr(self, key) for key in ("highest", "rounds", "name", "alpha")}
        about |= {"environment": dict(self.environment), "meta": self.meta.to_json(), "schema_version": SCHEMA_VERSION}
        table = pa.Table.from_pandas(self.frame, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _META: json.dumps(about).encode()})
        with replacing(folder / RADII, checksum=True) as temporary:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)

    @staticmethod
    def load(path: str | Path) -> Curve:
        """Read a curve from its folder.

        Raises:
            ClasswiseError: if there is none, it is damaged, or a newer version wrote it.
        """
        file = Path(path) / RADII if Path(path).is_dir() else Path(path)
        verify(file)
        try:
            table = pq.read_table(file, page_checksum_verification=True)
            about: dict[str, Any] = json.loads((table.schema.metadata or {})[_META])
            version = int(about.pop("schema_version"))
        except FileNotFoundError as error:
            raise ClasswiseError(f"{path} holds no curve; make one with: classwise curve MODEL --out {path}") from error
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise ClasswiseError(f"{file} is no table of radii that classwise wrote") from error
        check_schema_version(version, SCHEMA_VERSION, str(file))
        return Curve(table.to_pandas(), **about | {"meta": Meta.from_json(about["meta"], str(file))})


def check_folder(folder: Path) -> None:
    """See that a curve may be written into a folder.

    Raises:
        ClasswiseError: if it is a file, holds something that is no curve, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise ClasswiseError(f"{folder} is a file; give a folder for the curve")
    if not (folder / RADII).is_file() and not is_unused(folder):
        raise ClasswiseError(f"{folder} is not empty and holds no curve; give a new folder")
    check_writable(folder / RADII)
