"""Robustness curves: a bracket of the robust radius of every image, and the accuracy at any radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
import pandas as pd
import pydantic
from scipy import special
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.outcomes.display import RichDisplay
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.parquet import facts_of, read_table, write_table
from classwise.core.compute.environment import Environment
from classwise.core.errors import ClasswiseError, did_you_mean, printable, quoted
from classwise.core.files.reading import damaged
from classwise.core.files.storage import ResultFolder
from classwise.core.settings.arguments import Level, checked
from classwise.stats.bounded_means import mean_intervals
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, ratio
from classwise.stats.intervals import class_intervals, proportion_interval

RADII = "radii.parquet"
"""The file of a curve in its folder."""
OVERALL = "overall"
POINTS = 65
"""The default number of radii in a table."""
_KEY = "classwise-curve"

COLUMNS: Mapping[str, str] = {
    "index": "int64",  # the image's number in the data set
    "name": "string",  # its name, such as the path of its file; null without one, and in files of earlier versions
    "label": "int64",
    "low": "float64",  # the largest radius at which every attack failed; 0 if there is none
    "high": "float64",  # the smallest radius with an adversarial example: 0 if wrong when clean, infinity for none
    "first_success": "string",  # the attack that succeeded at `high`, or clean; null for none
    "probes": "int64",  # the number of radii at which the image was attacked
    "forwards": "int64",  # passes, including the clean one
    "backwards": "int64",
}


class _Facts(TypedDict):
    """The metadata of the file of a curve."""

    meta: str
    highest: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
    rounds: Annotated[int, pydantic.Field(ge=0, le=1000)]
    name: NotRequired[str]
    environment: NotRequired[Environment]
    alpha: NotRequired[Annotated[float, pydantic.Field(gt=0, lt=1)]]


@checked
@dataclass(frozen=True, eq=False)
class Curve(RichDisplay):
    """The robust accuracy of each class as a function of the radius.

    An image's robust radius is below the smallest radius at which an adversarial example was found. The accuracy
    therefore never rises with the radius. Each of these examples was verified in float32, so the radius is an upper
    bound of the true one.

    Attributes:
        frame: a row for each image, with the columns of `COLUMNS`.
        meta: model, data, threat and suite; the radius of the threat is the largest one.
        highest: the largest radius of the search.
        rounds: how often the range was halved.
        name: the name of the curve.
        environment: versions, machine and commit of the search.
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
    alpha: Level = 0.05

    def __post_init__(self) -> None:
        absent = [name for name in COLUMNS if name not in self.frame and name != "name"]
        if absent:
            raise ClasswiseError(f"the table of radii has no column {absent[0]!r}")
        object.__setattr__(self, "frame", self.frame.reindex(columns=list(COLUMNS)).astype(COLUMNS))

    def __repr__(self) -> str:
        means = self.summary["mean"]
        radii = f"mean robust radius {means[OVERALL]:.4g}, weakest {self.weakest} {means.iloc[0]:.4g}"
        about = (self.meta.model, self.meta.threat, f"{len(self.frame)} images", radii)
        return printable(f"<Curve {self.name!r}: {'; '.join(filter(None, about))}>")

    @property
    def width(self) -> float:
        """The maximal width of a bracket, except where attacks gave contradictory results for an image."""
        return self.highest * 0.5**self.rounds

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.meta.class_names

    @cached_property
    def _labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self.frame["label"].to_numpy()

    def robust(self, radius: float) -> BoolArray:
        """Whether each image is robust at a radius, (N,): no adversarial example within it was found."""
        robust: BoolArray = self.frame["high"].to_numpy() > self._checked(radius)
        return robust

    def tested(self, radius: float) -> BoolArray:
        """Whether each image is robust and every attack failed on it at this radius or a larger one, (N,)."""
        return self.robust(radius) & (self.frame["low"].to_numpy() >= radius)

    def counts(self, radius: float) -> ClassCounts:
        """The number of images and of robust images of each class."""
        return ClassCounts.from_labels(self._labels, self.robust(radius), len(self.class_names))

    def table(self, radii: Sequence[float] | None = None) -> pd.DataFrame:
        """Tabulate the accuracy: a row for each class with images (and for ``overall``) and each radius.

        Columns: ``class``, ``radius``, ``n``, ``accuracy``, ``low`` and ``high`` (its 95 % interval, for new images
        of the class), and ``tested``: the share of images on which every attack failed at this radius or a larger one.
        ``accuracy`` and ``tested`` differ by the images whose bracket contains the radius.

        Args:
            radii: radii from 0 to `highest`; by default 65 evenly spaced ones.
        """
        grid = np.linspace(0, self.highest, POINTS) if radii is None else np.sort(np.asarray(radii, dtype=np.float64))
        names = [OVERALL, *self.class_names]
        count, robust, tested = (np.zeros((len(grid), len(self.class_names)), dtype=np.int64) for _ in range(3))
        for row, radius in enumerate(grid.tolist()):
            counts = self.counts(radius)
            count[row], robust[row] = counts.count, counts.correct
            tested[row] = ClassCounts.from_labels(self._labels, self.tested(radius), counts.num_classes).correct
        total, correct = count.sum(axis=1), robust.sum(axis=1)
        overall = proportion_interval(correct, total, self.alpha)
        by_class = class_intervals(ClassCounts(count.ravel(), robust.ravel()), self.alpha)
        columns = {
            "n": (total, count),
            "accuracy": (ratio(correct, total), ratio(robust, count)),
            "low": (overall.low, by_class.low.reshape(count.shape)),
            "high": (overall.high, by_class.high.reshape(count.shape)),
            "tested": (ratio(tested.sum(axis=1), total), ratio(tested, count)),
        }
        rows = {column: np.column_stack(values).ravel(order="F") for column, values in columns.items()}
        frame = pd.DataFrame({"class": np.repeat(names, len(grid)), "radius": np.tile(grid, len(names)), **rows})
        return frame[frame["n"] > 0].reset_index(drop=True)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The robust radii by class: a row for each class with images, the weakest first, and a last for ``overall``.

        Columns: ``n``; ``clean`` accuracy; ``mean`` radius, with radii above `highest` counted as `highest` (the area
        under the curve), and ``mean_low`` and ``mean_high``, the interval of its expectation for values in
        [0, `highest`] (`classwise.stats.bounded_means`); ``median`` radius, and ``median_low`` and ``median_high``
        (distribution-free, from order statistics; infinity if above `highest`).
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
        low, high_end = mean_intervals(capped / self.highest, np.zeros(count, dtype=np.int64), 1, self.alpha)
        ranked = np.sort(high)
        # P(X_(l) <= median <= X_(u)) >= 1 - alpha for ranks (from 1) l = q and u = n + 1 - q.
        rank = int(np.searchsorted(special.bdtr(np.arange(count + 1.0), count, 0.5), self.alpha / 2))
        return {
            "n": count,
            "clean": float((high > 0).mean()),
            "mean": float(capped.mean()),
            "mean_low": self.highest * float(low[0]),
            "mean_high": self.highest * float(high_end[0]),
            "median": float(ranked[(count - 1) // 2]),
            "median_low": float(ranked[rank - 1]) if rank else 0.0,
            "median_high": float(ranked[count - rank]) if rank else np.inf,
        }

    @property
    def weakest(self) -> str:
        """The class with the smallest mean radius."""
        return str(self.summary.index[0])

    def _checked(self, radius: float) -> float:
        if not 0 <= radius <= self.highest * (1 + 1e-9):
            raise ClasswiseError(f"radius {radius:g}: must be from 0 to {self.highest:g}, the range of the curve")
        # Rounding above the end of the range is ignored.
        return min(radius, self.highest)

    def save(self, folder: str | Path) -> Path:
        """Save the curve in a folder atomically; a curve in it is replaced.

        Raises:
            ClasswiseError: if the folder has other contents, or cannot be written.
        """
        target = Path(folder)
        place = ResultFolder(target, "curve")
        place.check(RADII)
        if not (target / RADII).is_file():
            place.check_unused()
        self.write(target)
        return target

    def write(self, folder: Path) -> None:
        """Write the curve into a folder atomically, without checking its contents."""
        about = {key: getattr(self, key) for key in ("highest", "rounds", "name", "alpha")}
        about |= {"environment": dict(self.environment), "meta": self.meta.to_json()}
        write_table(folder / RADII, self.frame, "curve", about, _KEY)

    @staticmethod
    def load(path: str | Path) -> Curve:
        """Load a curve from its folder.

        Raises:
            ClasswiseError: if there is no curve, it is damaged, or it has another schema version.
        """
        file = Path(path) / RADII if Path(path).is_dir() else Path(path)
        advice = "give a folder written by classwise curve"
        try:
            table = read_table(file, advice)
        except FileNotFoundError as error:
            hint = did_you_mean(path) or f"; create one with: classwise curve MODEL --out {quoted(path)}"
            raise ClasswiseError(f"{path} contains no curve{hint}") from error
        about: dict[str, Any] = {**facts_of(table, "curve", file, advice, _KEY, entries=_Facts)}
        known = {entry.name: about[entry.name] for entry in fields(Curve) if entry.name in about}
        frame: pd.DataFrame = table.to_pandas()
        try:
            return Curve(frame, **known | {"meta": Meta.from_json(about["meta"], str(file))})
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(str(file), str(error)) from error
