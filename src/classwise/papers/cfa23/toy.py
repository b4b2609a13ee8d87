"""cfa23/F1 and Theorems 1 to 4: the toy model, which needs neither images nor training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.scales import Name, Scale
from classwise.report.figures.toy import accuracy_curves, scatter
from classwise.report.tables import Cell, Row, Table
from classwise.stats.interval_estimators import exactly
from classwise.theory import theorems
from classwise.theory.toy import EASY, HARD, ToyModel

THEOREMS = {"cfa23/C1": "cfa23/Th1", "cfa23/C2": "cfa23/Th2", "cfa23/C3": "cfa23/Th3", "cfa23/C4": "cfa23/Th4"}


def _scale(name: Name, about: str) -> Scale:
    return Scale(name=name, about=about, data="toy model", threat="Linf:0.8", test=100)


class Toy(Experiment):
    """cfa23 Figure 1, and the theorems on a grid of models."""

    item = "cfa23/F1"
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": _scale("smoke", "every ninth model of the grid, 100 points a class"),
        "laptop": _scale("laptop", "the grid of 360 models, 100 points a class"),
        "full": _scale("full", "the grid of 360 models, 100 points a class"),
    }

    def run(self, bench: Bench) -> Findings:
        """Both panels at our p and eta, and claims C1 to C4."""
        model = ToyModel()
        assert bench.scale.test is not None
        weights = np.linspace(0.05, 4, 120)
        grid = theorems.grid()[:: 9 if bench.scale.name == "smoke" else 1]
        statements = {name: theorems.STATEMENTS[name](grid) for name in THEOREMS.values()}
        simulated = theorems.closed_forms(grid[::9])
        rows = [
            Row(one.name, [Cell("yes" if one.holds else "no"), Cell(f"{one.cases:,}"), Cell(str(len(one.failures)))])
            for one in (*statements.values(), theorems.gap_identity(grid), simulated)
        ]
        tests = [
            Test(
                claim=claim,
                estimand=f"{statements[name].says} ({statements[name].cases:,} cases; 1 where all hold)",
                parts=[exactly(1.0 if statements[name].holds else -1.0)],
                unit="",
                exact=True,
            )
            for claim, name in THEOREMS.items()
        ]
        points = (
            f"d = {model.features}, variance {model.variance}, {bench.scale.test} points a class. The paper's p and "
            f"eta are lost: {model.easy}, {model.hard} and {model.eta} are ours."
        )
        curves = "Dashed: clean; solid: robust at 2 eta. As w grows, class −1 loses clean accuracy sooner."
        optima = [
            Row("class +1, clean", [Cell(f"{model.best_class_weight(EASY):.3f}")]),
            Row("class −1, clean", [Cell(f"{model.best_class_weight(HARD):.3f}")]),
            *(
                Row(f"trained at {share:g} eta", [Cell(f"{model.best_weight(share * model.eta):.3f}")])
                for share in (0, 0.5, 0.9)
            ),
        ]
        return Findings(
            tables=(
                Table(f"Theorems on a grid of {len(grid)} models", ("statement", "holds", "cases", "failures"), rows),
                Table("Optimal weights of the model of the figure", ("optimum of", "w"), optima),
            ),
            figures=(
                (scatter(model.sample(bench.scale.test)), points),
                (accuracy_curves(model, weights), curves),
            ),
            tests=tests,
        )
