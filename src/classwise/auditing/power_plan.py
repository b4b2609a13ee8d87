"""`plan`: how many images of a class and how many training runs decide a question, before any compute."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from classwise.auditing.compare.compare import Compared, compare
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.outcomes.display import TextDisplay
from classwise.auditing.run.suite import Attacks
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.rounding import in_percent
from classwise.core.settings.arguments import Level, checked
from classwise.core.settings.config import Count, Seed
from classwise.stats.counts import FloatArray, IntArray
from classwise.stats.crossed import Crossed
from classwise.stats.intervals import alpha_of
from classwise.stats.power import Kind, Population, PowerCurve, Question, images_needed, power, shared_images
from classwise.threat.ball import ThreatLike

Share = Annotated[float, Field(ge=0, le=1)]
Limit = Annotated[float, Field(gt=0, lt=1)]

RUN_SD = 0.01
"""Standard deviation of the accuracy over training runs, if no audits show it."""
REPETITIONS, OF_DIFFERENCES, OVER_PILOT = 1000, 400, 100
"""Simulated test sets: of most questions, of differences, which take longer, and over what a pilot leaves open."""


MOST_GIVEN = 20_000_000
"""Outcomes of a model, with classes of equal size, of which the power is simulated."""


class PlanRow(NamedTuple):
    """A number of images and runs, and the power that it has.

    Attributes:
        question: in words.
        seeds: training runs of each model.
        target: the power that was asked for; None for given images.
        images: of a class (the smallest one, if they differ); None if no number reaches the target.
        passes: forward and backward passes of the attacks on all images, all runs and models; None if unknown.
        power: the simulated power; for a target that is not reached the highest one found.
        expected: mean of the power over the accuracies that an earlier audit leaves open; NaN without one.
        repetitions: number of simulated test sets.
    """

    question: str
    seeds: int
    target: float | None
    images: int | None
    passes: int | None
    power: float
    expected: float
    repetitions: int


@dataclass(frozen=True, eq=False)
class PowerPlan(TextDisplay):
    """Images of a class and training runs that decide questions.

    Attributes:
        rows: for each question and number of runs, the images with a power of 80 % and 90 %, or the power of given
            images.
        curves: power by images of a class, by question and number of runs.
        assumptions: what the power depends on, in sentences.
        classes: number of classes.
        alpha: 1 minus the coverage of the intervals.
    """

    rows: tuple[PlanRow, ...]
    curves: dict[tuple[str, int], PowerCurve]
    assumptions: tuple[str, ...]
    classes: int
    alpha: float

    def __repr__(self) -> str:
        rows = [f"{row.question}: {row.images} images a class, power {row.power:.2f}" for row in self.rows]
        return f"<PowerPlan {'; '.join(rows)}>"

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a data frame."""
        return pd.DataFrame(self.rows, columns=list(PlanRow._fields))

    def to_dict(self) -> dict[str, Any]:
        """The rows, curves and assumptions as JSON-compatible data; powers are fractions."""
        curves = [
            {"question": question, "seeds": seeds, "images": list(curve.images), "power": list(curve.power)}
            for (question, seeds), curve in self.curves.items()
        ]
        return {
            "rows": [row._asdict() for row in self.rows],
            "curves": curves,
            "assumptions": list(self.assumptions),
            "classes": self.classes,
            "confidence": 1 - self.alpha,
        }


@checked
def plan(
    audits: Compared | None = None,
    *,
    accuracy: Sequence[Share] | None = None,
    above: Limit | None = None,
    below: Limit | None = None,
    difference: Limit | None = None,
    identity: bool = False,
    half_width: Limit | None = None,
    overall_difference: Limit | None = None,
    class_name: str | None = None,
    images: Count | None = None,
    seeds: Sequence[Count] | None = None,
    different: Share | None = None,
    run_sd: Share | None = None,
    attacks: Attacks | None = None,
    threat: ThreatLike | None = None,
    confidence: Level = 0.95,
    repetitions: Count | None = None,
    seed: Seed = 0,
    progress: Progress | bool | None = None,
) -> PowerPlan:
    """Find the images of a class and the training runs with which an audit or a comparison decides a question.

    Audits are simulated, and decided by the intervals and tests that audits and comparisons report
    (`classwise.stats.power`). Without ``images``, the smallest numbers with a power of 80 % and 90 % are searched.

    Args:
        audits: earlier audits as of `classwise.auditing.compare.compare.compare`, such as of a subset: of one method,
            or of two methods that differ as a question assumes. With runs of several seeds, they also show by how much
            runs differ.
        accuracy: accuracy of each class, in place of audits.
        above: show that the lowest class accuracy is above this.
        below: show that the accuracy of a class that was chosen beforehand is below this.
        difference: show that the worst-class accuracy of a second model is higher, if each of its classes is by this
            much. Of audits of two methods, their own difference is planned if there is no other question.
        identity: show that no other class may be the worst.
        half_width: the interval of the overall accuracy, or of a class, is at most this to each side.
        overall_difference: as ``difference``, for the overall accuracy.
        class_name: the class of ``below`` (default: the one with the lowest accuracy) and of ``half_width`` (default:
            all images); without audits its number.
        images: images of each class whose power is asked.
        seeds: numbers of training runs of each model (default: 1; for ``half_width`` and ``overall_difference`` 3, 5).
        different: share of the images on which two models, or two runs, have different outcomes (default: from the
            audits, else half of that of unrelated models).
        run_sd: standard deviation over training runs of an accuracy (default: from the audits, else 0.01).
        attacks: the attacks whose passes are counted (default: those of the audits, else those of an audit).
        threat: the threat of ``attacks`` (default: ``Linf:8/255``).
        confidence: confidence level of the intervals.
        repetitions: number of simulated test sets near a result (default: 1000; 400 for differences).
        seed: seed of the simulation.
        progress: True shows the simulated test sets; or a listener.

    Raises:
        IncompleteError: if an audit is incomplete.
        ClasswiseError: without a question or accuracies, for accuracies that contradict a question, an unknown class,
            or an option on which no answer depends; see `classwise.auditing.compare.compare.compare`.

    Example:
        >>> import classwise as cw
        >>> found = cw.plan(accuracy=[0.3, 0.6, 0.6], above=0.2, attacks="pgd:steps=20", repetitions=100)
        >>> found.table[["target", "images", "passes"]].values.tolist()
        [[0.8, 160.0, 20640.0], [0.9, 200.0, 25800.0]]
    """
    if (audits is None) == (accuracy is None):
        raise ClasswiseError("plan(): give either audits or the accuracy of each class")
    alpha = alpha_of(confidence)
    pilot = None if audits is None else _Pilot.of(compare(audits, confidence=confidence))
    assumed = _assumed(pilot, accuracy, different, run_sd)
    limits = {"above": above, "below": below, "half-width": half_width}
    gaps = {"difference": difference, "overall-difference": overall_difference}
    asked = _questions(assumed, class_name, limits, gaps, identity=identity)
    of_runs = [
        (text, question, population, runs)
        for text, question, population in asked
        for runs in seeds or ((3, 5) if question.overall else (1,))
    ]
    several = any(runs > 1 for *_, runs in of_runs)
    related = several or any(population.second is not None for _, _, population in asked)
    if different is not None and not related:
        raise ClasswiseError("different: only differences, and several seeds, depend on it; omit it")
    if run_sd is not None and not several:
        raise ClasswiseError("run_sd: one training run has no deviation; omit it, or give several seeds, such as 3")
    if pilot is not None and attacks is None:
        if threat is not None:
            raise ClasswiseError("threat: the audits have their own; omit it, or give attacks")
        passes = pilot.passes
    else:
        passes = passes_of(attacks, threat or "Linf:8/255", len(assumed.first))
    given = images if images is not None or pilot is None else pilot.images
    planner = _Planner(pilot, len(assumed.first), passes, given, images is None, alpha, repetitions, seed)
    rows: list[PlanRow] = []
    curves: dict[tuple[str, int], PowerCurve] = {}
    if identity and max(seeds or (1,)) > 1:
        raise ClasswiseError("identity is a question about one training run; omit seeds")
    with listening(progress) as listener:
        for text, question, population, runs in of_runs:
            truth = assumed.of_runs(population, runs, question)
            found, curve = planner.answer(text, question, truth, runs, listener)
            rows += found
            listener.log(_found_text(text, runs, found))
            curves |= {} if curve is None else {(text, runs): curve}
    sentences = itertools.compress(assumed.sentences, (True, related, several))
    return PowerPlan(tuple(rows), curves, tuple(sentences), len(assumed.first), alpha)


def _found_text(text: str, runs: int, rows: Sequence[PlanRow]) -> str:
    """What was found for a question, which is logged at once, since the next one may take minutes."""
    reached = [
        f"power {row.power:.0%} with {'no number of' if row.images is None else f'{row.images:,}'} images a class"
        if row.target is None
        else f"{row.target:.0%} {'not reached' if row.images is None else f'with {row.images:,} images a class'}"
        for row in rows
    ]
    return f"{text}, {runs} run{'s' if runs > 1 else ''}: {'; '.join(reached)}"


@dataclass(frozen=True)
class _Planner:
    """Simulates the power of given images, and searches the images for a power."""

    pilot: _Pilot | None
    classes: int
    passes: float
    given: int | IntArray | None
    search: bool
    alpha: float
    repetitions: int | None
    seed: int

    def answer(
        self, text: str, question: Question, truth: Population, runs: int, listener: Progress
    ) -> tuple[list[PlanRow], PowerCurve | None]:
        """The rows of a question, and the power by images if it was searched."""
        settings: dict[str, Any] = {"alpha": self.alpha, "seed": self.seed}
        if self.given is not None and (size := int(np.max(self.given)) * self.classes * runs) > MOST_GIVEN:
            raise ClasswiseError(f"images: {size:,} outcomes of a model; at most {MOST_GIVEN:,} are simulated")
        listener.start(f"simulated test sets, {text}, {runs} run{'s' if runs > 1 else ''}", 0)
        repetitions = self.repetitions or (REPETITIONS if truth.second is None else OF_DIFFERENCES)
        found: list[tuple[float | None, int | IntArray | None, float]] = []
        curve = None
        if self.given is not None:
            share = power(question, truth, self.given, runs, repetitions=repetitions, **settings)
            found.append((None, self.given, share))
            listener.advance(repetitions)
        if self.search:
            sizes, known = np.unique(0 if self.given is None else self.given), dict[int, tuple[int, float]]()
            if len(sizes) == 1 and found:
                known[int(sizes[0])] = repetitions, found[0][2]
            curve = images_needed(
                question, truth, runs, repetitions=repetitions, known=known, simulated=listener.advance, **settings
            )
            at = dict(zip(curve.images, curve.power, strict=True))
            found += [(goal, n, max(curve.power) if n is None else at[n]) for goal, n in curve.needed.items()]
        rows = []
        for target, count, share in found:
            expected: float = math.nan
            least = passes = None
            if count is not None:
                each = np.broadcast_to(np.asarray(count), (self.classes,))
                least = int(each.min())
                models = 1 if truth.second is None else 2
                passes = math.ceil(each.sum() * runs * models * self.passes) or None
                if self.pilot is not None:
                    drawn, times = self.pilot.drawing(truth), min(OVER_PILOT, repetitions)
                    expected = power(question, drawn, count, runs, repetitions=times, **settings)
            rows.append(PlanRow(text, runs, target, least, passes, share, expected, repetitions))
        return rows, curve


@dataclass(frozen=True)
class _Assumed:
    """Accuracies and how they vary, with sentences that state them."""

    names: tuple[str, ...]
    first: FloatArray
    second: FloatArray | None
    different: float | None
    run_sd: float
    overall_sd: float
    sentences: tuple[str, ...]

    def of_runs(self, population: Population, runs: int, question: Question) -> Population:
        """The population of a question about a number of runs."""
        second = population.first if population.second is None else population.second
        shared = population.shared
        if self.different is not None:
            shared = shared_images(population.first, second, self.different)
        spread = self.overall_sd if question.overall else self.run_sd
        return dataclasses.replace(population, shared=shared, run_sd=spread if runs > 1 else 0.0)


@dataclass(frozen=True)
class _Pilot:
    """Earlier audits of one method, or of two on the same images; classes without images are left out.

    Attributes:
        names: of the classes.
        cells: (C, 2) correct and misclassified images; of two methods (C, 4): both, only the first, only the second and
            neither correct. The first one has the lower worst-class accuracy.
        different: share of the images on which two methods, or runs, differ; None with one run.
        run_sd: standard deviation over runs of a class accuracy, beyond that of the images; None with one run.
        overall_sd: that of the overall accuracy.
        passes: passes of the attacks on an image.
    """

    names: tuple[str, ...]
    cells: FloatArray
    different: float | None
    run_sd: float | None
    overall_sd: float | None
    passes: float

    @classmethod
    def of(cls, comparison: Comparison) -> _Pilot:
        if len(comparison.names) > 2:
            raise ClasswiseError(f"audits of {len(comparison.names)} methods; give one method, or two")
        ids = next(iter(comparison.audits.values()))[0].outcomes.grouping(comparison.group).ids
        present, index = np.unique(ids, return_inverse=True)
        right = [
            np.stack([audit.outcomes.correct(comparison.attack) for audit in runs])
            for runs in comparison.audits.values()
        ]
        per_image = [runs.mean(axis=0) for runs in right]
        first, second = per_image[0], per_image[-1]
        if len(right) == 1:
            parts = [first, 1 - first]
        else:
            both = np.mean([one & two for one, two in itertools.product(*right)], axis=0)
            parts = [both, first - both, second - both, 1 - first - second + both]
            if _lowest(first, index) > _lowest(second, index):
                parts = [parts[place] for place in (0, 2, 1, 3)]
        pairs = itertools.combinations(right[0], 2) if len(right) == 1 else itertools.product(*right)
        unequal = [float((one != two).mean()) for one, two in pairs]
        several = [runs for runs in right if len(runs) > 1]
        spent = [audit.outcomes.passes.values() for runs in comparison.audits.values() for audit in runs]
        return cls(
            names=tuple(comparison.group_names[label] for label in present),
            cells=np.stack([np.bincount(index, weights=part) for part in parts], axis=1),
            different=float(np.mean(unequal)) if unequal else None,
            run_sd=_run_sd(several, index),
            overall_sd=_run_sd(several, np.zeros_like(index)),
            passes=float(np.mean([sum(part.forward + part.to_image for part in parts) for parts in spent])) / len(ids),
        )

    @property
    def images(self) -> IntArray:
        """(C,) images of each class."""
        return np.asarray(np.rint(self.cells.sum(axis=1)), dtype=np.int64)

    def accuracies(self, cells: FloatArray) -> tuple[FloatArray, FloatArray | None]:
        """Accuracies of the method, and of the second one."""
        shares = cells / cells.sum(axis=1, keepdims=True)
        if shares.shape[1] == 2:
            return shares[:, 0], None
        return shares[:, 0] + shares[:, 1], shares[:, 0] + shares[:, 2]

    def drawing(self, truth: Population) -> Callable[[np.random.Generator], Population]:
        """A function that draws accuracies that the images leave open, with Jeffreys' prior for each method.

        A second model has the accuracies of the second method if the truth has, else the truth's differences.
        """
        of_second = self.accuracies(self.cells)[1]
        observed = truth.second is not None and of_second is not None and np.array_equal(truth.second, of_second)

        def drawn(rng: np.random.Generator) -> Population:
            first, second = self.accuracies(rng.standard_gamma(self.cells + 1 / self.cells.shape[1]))
            if truth.second is None:
                second = None
            elif not observed:
                second = np.clip(first + truth.second - truth.first, 0, 1)
            return dataclasses.replace(truth, first=first, second=second)

        return drawn


def _lowest(per_image: FloatArray, index: IntArray) -> float:
    """The lowest class accuracy."""
    return float((np.bincount(index, weights=per_image) / np.bincount(index)).min())


def _run_sd(right: Sequence[Any], index: IntArray) -> float | None:
    """Standard deviation over runs of the accuracy of a class, without what the images cause; mean variance."""
    if not right:
        return None
    tables = [Crossed.of(runs, index, int(index.max()) + 1) for runs in right]
    return float(np.sqrt(np.mean([max(float(((t.over_runs - t.noise) * t.runs).mean()), 0.0) for t in tables])))


def _assumed(
    pilot: _Pilot | None, accuracy: Sequence[float] | None, different: float | None, run_sd: float | None
) -> _Assumed:
    second = None
    if pilot is None:
        first = np.array(accuracy, dtype=np.float64)
        if not len(first):
            raise ClasswiseError("accuracy: expected the accuracy of at least one class")
        names, about = tuple(map(str, range(len(first)))), "assumed"
    else:
        first, second = pilot.accuracies(pilot.cells)
        names, about = pilot.names, "from the audits, where the lowest is biased low"
    known = (None, None, None) if pilot is None else (pilot.different, pilot.run_sd, pilot.overall_sd)
    differing = known[0] if different is None else different
    spread, overall = (run_sd if run_sd is not None else RUN_SD if found is None else found for found in known[1:])
    unlike = "half as many images as two unrelated ones would (assumed)"
    if differing is not None:
        unlike = f"{in_percent(differing):.1f} % of the images ({_origin(different, known[0])})"
    points = f"{in_percent(spread):.1f} points in a class, {in_percent(overall):.1f} overall"
    sentences = (
        f"Class accuracies ({about}): {in_percent(first.min()):.1f} to {in_percent(first.max()):.1f} %.",
        f"Two models, or two runs, have different outcomes on {unlike}.",
        f"Standard deviation over runs ({_origin(run_sd, known[1])}): {points}.",
    )
    return _Assumed(names, first, second, differing, spread, overall, sentences)


def _origin(given: float | None, found: float | None) -> str:
    return "given" if given is not None else "assumed" if found is None else "from the audits"


def _questions(
    assumed: _Assumed,
    class_name: str | None,
    limits: Mapping[str, float | None],
    gaps: Mapping[str, float | None],
    *,
    identity: bool,
) -> list[tuple[str, Question, Population]]:
    """The questions in words, and the populations in which they are decided.

    Raises:
        ClasswiseError: if there is none, or the accuracies contradict one.
    """
    first, names, alone = assumed.first, assumed.names, Population(assumed.first)
    if class_name is not None and class_name not in names:
        raise unknown("class", class_name, names)
    if class_name is not None and limits["below"] is None and limits["half-width"] is None:
        raise ClasswiseError(f"class {class_name!r}: only below and half_width are about one class; omit it")
    label, worst = None if class_name is None else names.index(class_name), int(first.argmin())
    asked: list[tuple[str, Question, Population]] = []
    if (limit := limits["above"]) is not None:
        if first[worst] <= limit:
            raise _contradicted(f"above {limit:g}: the lowest class accuracy is {first[worst]:.3g}")
        asked.append((f"worst class above {100 * limit:g} %", Question("above", limit), alone))
    if (limit := limits["below"]) is not None:
        chosen = worst if label is None else label
        if first[chosen] >= limit:
            raise _contradicted(f"below {limit:g}: the accuracy of class {names[chosen]} is {first[chosen]:.3g}")
        asked.append((f"class {names[chosen]} below {100 * limit:g} %", Question("below", limit, chosen), alone))
    if identity:
        if (first == first[worst]).sum() > 1:
            raise _contradicted("identity: several classes have the lowest accuracy")
        asked.append(("which class is the worst", Question("identity"), alone))
    if (limit := limits["half-width"]) is not None:
        what = "overall accuracy" if label is None else f"accuracy of class {names[label]}"
        asked.append(
            (f"{what} to \N{PLUS-MINUS SIGN}{100 * limit:g} points", Question("half-width", limit, label), alone)
        )
    kinds: tuple[tuple[Kind, str], ...] = (
        ("difference", "worst classes"),
        ("overall-difference", "overall accuracies"),
    )
    for kind, what in kinds:
        if (gap := gaps[kind]) is not None:
            shifted = Population(first, np.clip(first + gap, 0, 1))
            asked.append((f"{what} differ by {100 * gap:g} points", Question(kind), shifted))
    if not asked and assumed.second is not None:
        gap = float(assumed.second.min() - first.min())
        if not gap:
            raise _contradicted("the worst-class accuracies of the two methods are equal")
        text = f"worst classes differ by {in_percent(gap):.1f} points, as estimated"
        asked.append((text, Question("difference"), Population(first, assumed.second)))
    if not asked:
        raise ClasswiseError(
            "no question is given; give one: above, below, difference, identity, half_width or overall_difference "
            "(such as --above 20%)"
        )
    return asked


def _contradicted(what: str) -> ClasswiseError:
    return ClasswiseError(f"{what}, so no number of images can show it")


def passes_of(attacks: Attacks | None, threat: ThreatLike, classes: int) -> float:
    """Passes of the attacks on a robust image, at most, counted on a linear model of tiny images.

    Raises:
        ClasswiseError: see `classwise.auditing.run.cost.estimate`.
    """
    import torch

    from classwise.auditing.run.cost import estimate

    side, number = 8, max(classes, 2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * side * side, number))
    x, labels = torch.rand(number, 3, side, side), torch.arange(number)
    cost = estimate(model, (x, labels), threat, attacks, trained=False, guards="off")
    return (cost.forwards + cost.backwards) / cost.images
