"""benz20 section 3.1 and 3.2: are the weak classes the same whatever the optimisation, and over training?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from classwise.analysis.consistency import Consistency, ranked_alike
from classwise.analysis.trend import trend
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.papers.tables import Key, class_table, estimate_cell
from classwise.report.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts
from classwise.stats.interval_estimators import interval, lowered

Grid = Mapping[str, tuple[str, Mapping[str, Any]]]
"""By name, a recipe and what is changed in it."""
ADAM_RATE = 1e-3
CYCLIC_RATE = 0.2
"""The top of the triangle."""
DECAYS: Mapping[Name, Sequence[float]] = {
    "smoke": (5e-4, 1e-3),
    "laptop": (0, 5e-4, 1e-3),
    "full": (0, 1e-4, 2e-4, 5e-4, 1e-3),
}


def optimisers(scale: Scale) -> Grid:
    """SGD and Adam; a scale's own learning rate is meant for SGD."""
    del scale
    return {"SGD": ("at", {}), "Adam": ("at-adam", {"optimizer.lr": ADAM_RATE})}


def weight_decays(scale: Scale) -> Grid:
    """Several weight decays; that of the recipe is the usual model."""
    return {
        f"weight decay {decay:g}": ("at", {} if decay == 5e-4 else {"optimizer.weight_decay": decay})
        for decay in DECAYS[scale.name]
    }


def rates(scale: Scale) -> Grid:
    """A stepwise and a cyclic learning rate, the latter one triangle; one of the two is the recipe's own."""
    if scale.budget == "short":
        return {"cyclic": ("at", {}), "stepwise": ("at", {"rate": {"name": "step"}})}
    rate = {} if "optimizer.lr" in scale.changes else {"optimizer.lr": CYCLIC_RATE}
    return {"stepwise": ("at", {}), "cyclic": ("at", {"rate": {"name": "cyclic"}, **rate})}


class WeakClasses(Experiment):
    """Adversarial training in several ways: do the rankings of the classes agree?"""

    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS
    varied: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def grid(self, scale: Scale) -> Grid:
        """What is trained."""

    def standard(self, scale: Scale) -> Grid:
        """What is trained without attacks, beside it; their classes are ranked by clean accuracy."""
        del scale
        return {}

    def covers(self, scale: Scale) -> Sequence[str]:
        """The parts of claim C4 that the grid of a scale covers."""
        del scale
        return self.varied

    def run(self, bench: Bench) -> Findings:
        """PGD on each model; claim C4 as far as this grid goes."""
        robust = _ranked(bench, self.grid(bench.scale), "PGD")
        columns, sides = [robust.agreement], [robust]
        if standard := self.standard(bench.scale):
            sides.append(_ranked(bench, standard, "clean"))
            columns.append(sides[1].agreement)
        rows = [
            Row("least correlation of two", [estimate_cell(one.lowest, 1, 2) for one in columns]),
            Row(
                "Kendall's W", [Cell(f"{w.value:.2f}", f"p = {w.p_value:.3f}") for w in (a.agreement for a in columns)]
            ),
            Row(
                "weakest classes", [Cell(", ".join(dict.fromkeys(map(str, one.extremes["worst"])))) for one in columns]
            ),
        ]
        heads = ("quantity", *("adversarial, PGD", "standard, clean")[: len(sides)])
        captions = [f"Spearman's correlation of the class rankings, {head}." for head in heads[1:]]
        return Findings(
            tables=(
                Table("Agreement of the class rankings", heads, rows, "Small: 95 % interval."),
                *(
                    class_table(f"Class accuracy, {head}, in percent", one.counts, bench.test_images.class_names)
                    for head, one in zip(heads[1:], sides, strict=True)
                ),
            ),
            figures=[(one.figure(), caption) for one, caption in zip(columns, captions, strict=True)],
            tests=(
                Test(
                    claim="benz20/C4",
                    estimand="the least of Spearman's correlations of class robustness over the grid",
                    parts=[lowered(interval(robust.agreement.lowest), CORRELATION[1])],
                    unit="",
                    limits=CORRELATION,
                    note="one training of each; noise of the images lowers it, so it cannot refute",
                    covers=self.covers(bench.scale),
                ),
            ),
        )


@dataclass(frozen=True)
class _Ranked:
    agreement: Consistency
    counts: Mapping[Key, ClassCounts]


def _ranked(bench: Bench, grid: Grid, attack: str) -> _Ranked:
    """The models of a grid, attacked, and how far they agree on their weak classes."""
    audits = {name: under_pgd(bench, bench.trained(recipe, changes)) for name, (recipe, changes) in grid.items()}
    agreement = ranked_alike({name: audit.outcomes for name, audit in audits.items()}, {attack: attack})
    return _Ranked(agreement, {(name,): audit.counts(attack) for name, audit in audits.items()})


class Optimisers(WeakClasses):
    """benz20 plan: SGD against Adam."""

    item = "benz20/P1.8"
    varied = ("optimisers",)

    def grid(self, scale: Scale) -> Grid:
        """Two optimisers."""
        return optimisers(scale)


class WeightDecays(WeakClasses):
    """benz20 plan: several weight decays."""

    item = "benz20/P1.10"
    varied = ("weight decays",)

    def grid(self, scale: Scale) -> Grid:
        """Several weight decays."""
        return weight_decays(scale)


class Rates(WeakClasses):
    """benz20 plan: a stepwise against a cyclic learning rate."""

    item = "benz20/P1.9"
    varied = ("learning rates",)

    def grid(self, scale: Scale) -> Grid:
        """Two rates."""
        return rates(scale)


class Optimisation(WeakClasses):
    """benz20 plan: weak classes over all that was varied in the optimisation."""

    item = "benz20/P2.2"
    varied = ("optimisers", "learning rates", "weight decays")

    def grid(self, scale: Scale) -> Grid:
        """The models of the three grids, the usual one once."""
        usual, *others = {**optimisers(scale), **weight_decays(scale), **rates(scale)}.items()
        return dict([usual, *(one for one in others if one[1] != usual[1])])


class ClassTrend(Experiment):
    """benz20 plan: accuracy and robustness of each class over training; does the weakest class change?"""

    item = "benz20/P1.11"
    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    def run(self, bench: Bench) -> Findings:
        """Both measures over the epochs of adversarial training, and how often the weakest class changed."""
        run = bench.trained("at").run
        figures, rows = [], []
        for measure in ("robust", "clean"):
            found = trend({"AT": run}, measure, window=(0.5, 1.0))
            figures.append((found.figure(), f"The validation split, {measure}."))
            turns, epochs = found.summary["turns"]["AT"], found.epochs
            late = epochs[epochs["epoch"] > run.recipe.epochs / 2]
            weakest = dict.fromkeys(map(str, late["worst_class"]))
            rows.append(Row(measure, [Cell(f"{turns:.0f}"), Cell(", ".join(weakest))]))
        heads = ("measure", "changes of the weakest class", "weakest classes")
        return Findings(
            tables=(Table("The second half of training", heads, rows),),
            figures=figures,
            beyond={"benz20/C4": "the plan asks whether the weakest class changes, and claims nothing; see the table"},
        )
