"""Closed forms without images or training: toy model (cfa23/F1), temperatures and gradients (iclr21/F9, E4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from classwise.core.compute.rng import CounterRNG
from classwise.papers.claims import Test, not_tested
from classwise.papers.experiment import Context, Experiment, Findings
from classwise.papers.interval_estimators import exactly
from classwise.papers.scales import DEFAULT_SCALES, Name, Scale
from classwise.papers.theory import softmax, toy_model
from classwise.papers.theory.toy_model import EASY, HARD, Sample, ToyModel
from classwise.reporting.figures.axes import Axes, ticks
from classwise.reporting.figures.columns import Panel, column_panels
from classwise.reporting.figures.lines import Series, line_chart
from classwise.reporting.svg import Dot, Drawing, Group, Label, Mark
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import FloatArray

WIDTH, HEIGHT = 400.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 12.0, 34.0, 42.0
_JITTER = 0.5
"""Width of the horizontal jitter around the values -1 and +1 of the robust feature, so that points are visible."""


def scatter(sample: Sample, title: str = "Points of the toy model") -> Drawing:
    """Scatter plot of the first weak feature over the robust feature, coloured by class."""
    import torch

    drawing = Drawing(WIDTH, HEIGHT, title)
    drawing.marks.append(Label(0, 14, title, "text", 13, bold=True))
    weak = sample.x[:, 1]
    low, high = float(weak.min()), float(weak.max())

    axes = Axes(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM, (-1.6, 1.6), (low, high))
    levels = [(tick, f"{tick:g}") for tick in ticks(low, high) if low <= tick <= high]
    numbers = [(value, f"{value:+d}") for value in (-1, 1)]
    drawing.marks.extend(axes.grid(levels, numbers, "robust feature (jittered)"))
    shift = CounterRNG(0, "jitter").uniform(torch.arange(len(weak))).numpy() - 0.5
    for label, colour, name in ((EASY, "dot-main", "+1"), (HARD, "dot-weak", "−1")):
        rows = np.flatnonzero(sample.y == label)
        marks: list[Mark] = [
            Dot(*axes.place(float(sample.x[row, 0]) + _JITTER * float(shift[row]), float(weak[row])), 2.4, colour)
            for row in rows
        ]
        drawing.marks.append(Group(marks, f"class {name}: {len(rows)} points"))
    return drawing


def accuracy_curves(model: ToyModel, weights: FloatArray, title: str = "Accuracy over the weight w") -> Drawing:
    """Line chart of clean (dashed) and robust accuracy at 2 eta (solid) of both classes over the weight."""
    series = []
    for label, name, colour in ((EASY, "+1", "main"), (HARD, "−1", "weak")):
        clean = model.accuracy(label, weights)
        robust = model.accuracy(label, weights, model.evaluation_radius)
        series.append(Series(f"{name} clean", weights.tolist(), clean.tolist(), f"guide-{colour}"))
        style = "stroke-main" if label == EASY else "line-weak"
        series.append(Series(f"{name} robust", weights.tolist(), robust.tolist(), style))
    return line_chart(title, series, "w: weight of the robust feature")


THEOREMS = {"cfa23/C1": "cfa23/Th1", "cfa23/C2": "cfa23/Th2", "cfa23/C3": "cfa23/Th3", "cfa23/C4": "cfa23/Th4"}
SCALES: Mapping[Name, Scale] = {
    name: Scale(name=name, about="arithmetic, without images or models", data="none", threat="Linf:0")
    for name in DEFAULT_SCALES
}
LOGITS = (1.0, 2.0, 0.2)
"""Logits of the sketch: an adversarial example of class 0 close to class 1; the paper gives no values."""
INVERSES = (1.0, 3.0, 1 / 3)
NOT_TESTED = not_tested(
    "iclr21/C17", "the claim is about trained models (iclr21/T6); this item covers only the underlying arithmetic"
)


ABOUT: Mapping[Name, str] = {
    "smoke": "every ninth model of the grid, 100 points per class",
    "small": "the grid of 360 models, 100 points per class",
    "full": "the grid of 360 models, 100 points per class",
}


class Toy(Experiment):
    """cfa23 Figure 1, and a check of the theorems on a grid of models."""

    scales: ClassVar[Mapping[Name, Scale]] = {
        name: Scale(name=name, about=about, data="toy model", threat="Linf:0.8", test=100)
        for name, about in ABOUT.items()
    }

    def run(self, context: Context) -> Findings:
        """Draw both panels at our p and eta; test claims C1 to C4."""
        model = ToyModel()
        assert context.scale.test is not None
        weights = np.linspace(0.05, 4, 120)
        grid = toy_model.grid()[:: 9 if context.scale.name == "smoke" else 1]
        statements = {name: toy_model.STATEMENTS[name](grid) for name in THEOREMS.values()}
        simulated = toy_model.closed_forms(grid[::9])
        rows = [
            Row(
                statement.name,
                [
                    Cell("yes" if statement.holds else "no"),
                    Cell(f"{statement.cases:,}"),
                    Cell(str(len(statement.failures))),
                ],
            )
            for statement in (*statements.values(), toy_model.gap_identity(grid), simulated)
        ]
        tests = [
            Test(
                claim=claim,
                estimand=f"{statements[name].says} ({statements[name].cases:,} cases)",
                estimators=[exactly(1.0 if statements[name].holds else -1.0)],
                unit="",
                exact=True,
                basis="computation",
            )
            for claim, name in THEOREMS.items()
        ]
        points = (
            f"d = {model.features}, variance {model.variance}, {context.scale.test} points per class. The paper's "
            "p and "
            f"eta are not available; {model.easy}, {model.hard} and {model.eta} are ours."
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
                Table(f"Theorems on a grid of {len(grid)} models", ("statement", "true", "cases", "failures"), rows),
                Table("Optimal weights of the plotted model", ("optimum of", "w"), optima),
            ),
            figures=(
                (scatter(model.sample(context.scale.test)), points),
                (accuracy_curves(model, weights), curves),
            ),
            tests=tests,
        )


class Sketch(Experiment, scales=SCALES):
    """iclr21 Figure 9: probabilities and gradients of an adversarial example at three temperatures."""

    def run(self, context: Context) -> Findings:
        """Draw six panels; the gradient norms are those of Eq. 4 for a feature vector of norm 1."""
        names = ("label", "predicted", "third class")
        probabilities = {inverse: softmax.probabilities(LOGITS, inverse) for inverse in INVERSES}
        sizes = {inverse: np.abs(p - np.eye(len(LOGITS))[0]) for inverse, p in probabilities.items()}
        panels = [Panel(f"P, 1/T = {inverse:.2g}", p.tolist(), marked=[0]) for inverse, p in probabilities.items()]
        panels += [Panel(f"∇, 1/T = {inverse:.2g}", size.tolist(), marked=[0]) for inverse, size in sizes.items()]
        return Findings(
            tables=(
                Table(
                    "Probability and gradient of the label",
                    ("temperature", "P", "1 − P, as in Eq. 4", "(1 − P) / T, the derivative"),
                    [
                        Row(
                            f"1/T = {inverse:.2g}",
                            [
                                Cell(f"{probabilities[inverse][0]:.3f}"),
                                Cell(f"{sizes[inverse][0]:.3f}"),
                                Cell(f"{inverse * sizes[inverse][0]:.3f}"),
                            ],
                        )
                        for inverse in sorted(INVERSES)
                    ],
                    f"Logits {', '.join(f'{value:g}' for value in LOGITS)}, that of the label first; the values "
                    "are ours.",
                ),
            ),
            figures=(
                (
                    column_panels("An adversarial example at three temperatures", names, panels, across=3, highest=1.0),
                    "Above: probabilities; below: gradient norms for the weights of each class (∇), as in Eq. 4.",
                ),
            ),
            tests=[NOT_TESTED],
        )


class GradientOfWeights(Experiment, scales=SCALES):
    """iclr21 Appendix G, Eq. 4: the gradient with respect to w_i against P_i, and the limits of P."""

    def run(self, context: Context) -> Findings:
        """Compare the closed form with central differences, and check the limits, on a grid."""
        cases = softmax.grid()
        checks = {
            "gradient (P_i − [i = y]) z / T": softmax.closed_form(cases),
            "gradient as printed, 1/T = 1": softmax.as_printed([case for case in cases if case.inverse == 1]),
            "gradient as printed, other 1/T": softmax.as_printed([case for case in cases if case.inverse != 1]),
            "limits of P: 1 and 1/C": softmax.limits(cases),
        }
        rows = [
            Row(name, [Cell("yes" if check.holds else "no"), Cell(str(check.cases)), Cell(str(len(check.failures)))])
            for name, check in checks.items()
        ]
        p = np.linspace(0, 1, 21)
        sizes = [
            Series("label", p.tolist(), (1 - p).tolist(), "line-weak"),
            Series("others", p.tolist(), p.tolist(), "stroke-main"),
        ]
        powers = np.linspace(-2, 2, 41)
        over = np.stack([softmax.probabilities(LOGITS, 10**power) for power in powers])
        styles = ("line-weak", "stroke-main", "line")
        lines = [
            Series(name, powers.tolist(), over[:, place].tolist(), style)
            for place, (name, style) in enumerate(zip(("label", "predicted", "third class"), styles, strict=True))
        ]
        note = "Checked by central differences. Eq. 4 lacks the factor 1/T of the derivative for logits w_i z / T."
        return Findings(
            tables=(
                Table(f"Equation 4 on {len(cases)} cases", ("statement", "true", "cases", "failures"), rows, note),
            ),
            figures=(
                (
                    line_chart(
                        "Norm of the gradient divided by that of z / T", sizes, "probability of the class", share=False
                    ),
                    "Eq. 4: 1 − P for the weights of the label, P for those of another class.",
                ),
                (
                    line_chart("Probabilities over the temperature, in percent", lines, "logarithm of 1/T, base 10"),
                    "The logits of iclr21/F9: towards 1/3 on the left, towards 1 and 0 on the right.",
                ),
            ),
            tests=[NOT_TESTED],
        )
