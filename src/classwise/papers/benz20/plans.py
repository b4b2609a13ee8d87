"""benz20 section 3.1 and 3.2: are the weak classes the same whatever the optimisation, and over training?"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from classwise.analysis.consistency import ranked_alike
from classwise.analysis.trends import trend
from classwise.papers.claims import Test, interval
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import MANY_TRAININGS, Name, Scale
from classwise.papers.tables import Key, class_table, estimate_cell
from classwise.report.analyses import figure
from classwise.report.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts

Grid = Mapping[str, tuple[str, Mapping[str, Any]]]
"""By name, a recipe and what is changed in it."""
ADAM_RATE = 1e-3
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


class _WeakClasses(Experiment):
    """Adversarial training in several ways: do the rankings of the classes agree?"""

    scales: ClassVar[Mapping[Name, Scale]] = MANY_TRAININGS

    @abstractmethod
    def grid(self, scale: Scale) -> Grid:
        """What is trained."""

    def run(self, bench: Bench) -> Findings:
        """PGD on each model; claim C4 as far as this grid goes."""
        audits = {
            name: under_pgd(bench, bench.trained(recipe, changes))
            for name, (recipe, changes) in self.grid(bench.scale).items()
        }
        found = ranked_alike({name: audit.outcomes for name, audit in audits.items()}, {"PGD": "PGD"})
        counts: dict[Key, ClassCounts] = {(name,): audit.counts("PGD") for name, audit in audits.items()}
        ends = found.extremes
        rows = [
            Row("least correlation of two", [estimate_cell(found.lowest, 1, 2)]),
            Row("Kendall's W", [Cell(f"{found.agreement.value:.2f}", f"p = {found.agreement.p_value:.3f}")]),
            Row("weakest classes", [Cell(", ".join(dict.fromkeys(map(str, ends["worst"]))))]),
        ]
        return Findings(
            tables=(
                Table("Agreement of the class rankings", ("quantity", "this run"), rows, "Small: 95 % interval."),
                class_table("Class accuracy under PGD, in percent", counts, bench.test_images.class_names),
            ),
            figures=((figure(found), "Spearman's correlation of the class rankings."),),
            tests=(
                Test(
                    claim="benz20/C4",
                    estimand="the least of Spearman's correlations of class robustness over the grid",
                    parts=[interval(found.lowest)],
                    unit="",
                    note="one training of each: intervals speak of new images",
                ),
            ),
        )


class Optimisers(_WeakClasses):
    """benz20 plan: SGD against Adam."""

    item = "benz20/P1.8"

    def grid(self, scale: Scale) -> Grid:
        """Two optimisers."""
        return optimisers(scale)


class WeightDecays(_WeakClasses):
    """benz20 plan: several weight decays."""

    item = "benz20/P1.10"

    def grid(self, scale: Scale) -> Grid:
        """Several weight decays."""
        return weight_decays(scale)


class Optimisation(_WeakClasses):
    """benz20 plan: weak classes over all that was varied in the optimisation."""

    item = "benz20/P2.2"

    def grid(self, scale: Scale) -> Grid:
        """The models of both grids."""
        return {**optimisers(scale), **weight_decays(scale)}


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
            figures.append((figure(found), f"The validation split, {measure}."))
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
