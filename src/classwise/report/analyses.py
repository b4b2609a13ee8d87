"""The figure of every finding of `classwise.analysis`: one function, by the finding's type."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch

from classwise.analysis.base import Finding
from classwise.analysis.confusion import Confused
from classwise.analysis.consistency import Consistency
from classwise.analysis.embedding import Embedding
from classwise.analysis.extremes import Extremes
from classwise.analysis.gap import Gap
from classwise.analysis.homing import Homing
from classwise.analysis.norms import NormLink
from classwise.analysis.pairs import Pairs
from classwise.analysis.sensitivity import Sensitivity
from classwise.analysis.similarity import Similarity
from classwise.analysis.smoothness import Smoothness
from classwise.analysis.spread import Spread
from classwise.analysis.steps import Steps
from classwise.analysis.strength import Drop
from classwise.analysis.sweeps import Kind, Sweep
from classwise.analysis.temperatures import Ablation
from classwise.analysis.trends import Fluctuation, Trend
from classwise.data.images import Images
from classwise.errors import UserError
from classwise.report import wording
from classwise.report.drawing import Drawing
from classwise.report.figures.columns import Panel, column_panels
from classwise.report.figures.dots import Value, dot_rows
from classwise.report.figures.gallery import Row, gallery
from classwise.report.figures.heatmap import Confusion, heatmap
from classwise.report.figures.lines import Series, class_lines, line_chart
from classwise.report.figures.matrix import matrix
from classwise.report.figures.points import Cloud, clouds, scatter
from classwise.report.inks import SERIES

ROWS = 760.0
"""The width of figures with a row for each class."""


@singledispatch
def figure(finding: Finding) -> Drawing:
    """The figure of a finding, as in the paper that it comes from.

    Raises:
        UserError: if no figure is known for findings of that kind.
    """
    raise UserError(f"no figure is known for {type(finding).__name__}; register one with figure.register")


@figure.register
def confused(finding: Confused) -> Drawing:
    """kdd21 Figure 2: percent of each class, classes of a superclass side by side."""
    return heatmap(_matrix(finding, finding.matrix).grouped().condensed()[0], "rates")


@figure.register
def homing(finding: Homing) -> Drawing:
    """kdd21 Figure 4b: how many of the misclassified images come home, the diagonal hidden."""
    return heatmap(Confusion(finding.homing, finding.class_names, totals=finding.matrix.sum(axis=1)), "errors")


def misclassified(finding: Homing) -> Drawing:
    """kdd21 Figure 4a: the misclassified images, the diagonal hidden."""
    return heatmap(Confusion(finding.matrix, finding.class_names), "errors")


@figure.register
def pairs(finding: Pairs) -> Drawing:
    """kdd21 E8: the ties of all pairs."""
    return matrix(
        "Mean share of the errors of two classes that fall on each other", finding.class_names, finding.ties, "tie"
    )


@figure.register
def consistency(finding: Consistency) -> Drawing:
    """Spearman's correlation of every pair of rankings."""
    names = [str(name) for name in finding.accuracies.index]
    title = "Rank correlation of the class accuracies"
    parts = [name.rpartition(", ") for name in names]
    if len({(comma, attack) for _, comma, attack in parts}) == 1 and parts[0][1]:  # what is everybody's is told once
        names, title = [model for model, _, _ in parts], f"{title}, {parts[0][2]}"
    return matrix(title, names, finding.correlations, "Spearman")


@figure.register
def drop(finding: Drop) -> Drawing:
    """The drop of each class, the vulnerable classes first."""
    frame = finding.classes.sort_values("weak")
    values = [[Value(row["drop"], row["low"], row["high"], int(row["n"]))] for _, row in frame.iterrows()]
    names = [f"{name}{' (vulnerable)' if weak else ''}" for name, weak in frame["vulnerable"].items()]
    title = f"Accuracy under {finding.weak} minus that under {finding.strong}, in points"
    return dot_rows(title, names, ["drop"], values, difference=True, width=ROWS)


@figure.register
def spread(finding: Spread) -> Drawing:
    """iclr21 Figure 6: classes by their accuracy."""
    low, *ends = (f"{100 * edge:.0f}" for edge in finding.edges)
    names = [f"{start}\u2013{end}" for start, end in zip([low, *ends[:-1]], ends, strict=True)]
    panel = Panel(
        f"classes, under {finding.attack}",
        finding.count.tolist(),
        finding.low.tolist(),
        finding.high.tolist(),
    )
    return column_panels("Classes by accuracy, in percent", names, [panel])


@figure.register
def gap(finding: Gap) -> Drawing:
    """iclr21 Figure 7: standard accuracy beside adversarial robustness."""
    values = [
        [Value(row[side], row[f"{side}_low"], row[f"{side}_high"], int(row[f"{side}_n"])) for side in _SIDES]
        for _, row in finding.classes.iterrows()
    ]
    first, second = (wording.points(each.value) for each in finding.discrepancy)
    title = f"Standard and robust accuracy; gap {first} and {second} points"
    return dot_rows(title, [str(name) for name in finding.classes.index], _SIDES, values, width=ROWS)


_SIDES = ("standard", "robust")


@figure.register
def norm_link(finding: NormLink) -> Drawing:
    """iclr21 Figure 4 as a scatter: class accuracy against the norm of its row."""
    frame = finding.classes
    ends = finding.intervals[1]
    note = (
        f"Spearman {finding.spearman.value:.2f} ({ends.low:.2f} to {ends.high:.2f}), "
        f"p {wording.probability(finding.spearman.p_value)}"
    )
    axes = ("norm of the classifier's row", f"accuracy under {finding.attack}, percent")
    names = [str(name) for name in frame.index]
    return scatter("Class accuracy and classifier norm", names, frame["norm"], frame["accuracy"], axes, note)


@figure.register
def smoothness(finding: Smoothness) -> Drawing:
    """kdd21 Figure 3a: the variance of the confidences, a panel for each model."""
    names = list(dict.fromkeys(finding.rows["class"]))
    panels = []
    for model, rows in finding.rows.groupby("model", sort=False):
        mine = rows.set_index("class").reindex(names)
        low, high = mine["low"].tolist(), mine["high"].tolist()
        panels.append(Panel(str(model), mine["cvc"].tolist(), low, high, [int(np.nanargmin(mine["cvc"]))]))
    return column_panels(f"Variance of the confidences (CVC) of each class, {finding.attack}", names, panels)


@figure.register
def sensitivity(finding: Sensitivity) -> Drawing:
    """kdd21 E7 as a scatter: the robustness of each class against its CVC."""
    frame = finding.classes
    links = [(finding.vulnerable, "accuracy"), (finding.sensitive, "drop")]
    told = [
        f"with {what} {one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
        for one, what in links
        if not np.isnan(one.value)
    ]
    axes = ("CVC", f"accuracy under {finding.attack}, percent")
    names = [str(name) for name in frame.index]
    note = f"Spearman of CVC {', '.join(told)}" if told else ""
    return scatter("Class accuracy and smoothness", names, frame["cvc"], frame["accuracy"], axes, note)


@figure.register
def trend(finding: Trend) -> Drawing:
    """kdd21 Figure 1 and cfa23 Figure 4: overall and weakest class of each run, over the epochs."""
    lines = []
    alone = len(finding.summary) == 1
    for number, (run, frame) in enumerate(finding.epochs.groupby("run", sort=False)):
        x, style = frame["epoch"].tolist(), f"stroke-{SERIES[number % len(SERIES)]}"
        if alone:
            mine = finding.classes[finding.classes["run"] == run]
            wide = mine.pivot_table(index="epoch", columns="class", values="accuracy", sort=False)
            band = wide.min(axis=1).tolist(), wide.max(axis=1).tolist()
            lines += [Series(str(name), x, wide[name].tolist(), named=False) for name in wide]
            lines[0] = lines[0]._replace(low=band[0], high=band[1])
        prefix = "" if alone else f"{run} "
        lines.append(Series(f"{prefix}overall", x, frame["overall"].tolist(), "line-overall" if alone else style))
        lines.append(Series(f"{prefix}worst", x, frame["worst"].tolist(), "line-weak" if alone else style))
    return line_chart(f"{finding.measure.capitalize()} accuracy over the epochs, in percent", lines, "epoch")


@figure.register
def fluctuation(finding: Fluctuation) -> Drawing:
    """cfa23 Figure 4: the mean change of the weakest class between adjacent epochs."""
    frame = finding.runs
    values = [[Value(row["change"], row["change_low"], row["change_high"], 0)] for _, row in frame.iterrows()]
    title = "Mean change of the weakest class between epochs, in points"
    return dot_rows(title, [str(name) for name in frame.index], ["change"], values, difference=True, width=ROWS)


@figure.register
def sweep(finding: Sweep, kind: Kind = "window") -> Drawing:
    """cfa23 Figures 2 and 3: each class over the values of the setting."""
    epochs = {"window": "chosen epochs", "best": "best epoch", "last": "last epoch"}[kind]
    title = f"{finding.measure.capitalize()} accuracy ({epochs}), in percent"
    return line_chart(title, class_lines(finding.values(kind)), finding.setting)


@figure.register
def ablation(finding: Ablation) -> Drawing:
    """iclr21 Table 4 as lines: the change of each class over 1/T, of the first model; of several, their overall."""
    rows = finding.rows
    title = f"Change against {finding.baseline}, in points"
    if len(finding.best) == 1:
        table = rows.pivot_table(index="inverse_temperature", columns="class", values="change", sort=False)
        return line_chart(title, class_lines(table), "1/T", difference=True)
    overall = rows[rows["class"] == "overall"]
    lines = [
        Series(
            str(model),
            frame["inverse_temperature"].tolist(),
            frame["change"].tolist(),
            f"stroke-{SERIES[number % len(SERIES)]}",
            frame["low"].tolist(),
            frame["high"].tolist(),
        )
        for number, (model, frame) in enumerate(overall.groupby("model", sort=False))
    ]
    return line_chart(f"{title}, all classes", lines, "1/T", difference=True)


@figure.register
def steps(finding: Steps) -> Drawing:
    """kdd21 Figures 3b-d: a row of panels for each attack, a panel for each step."""
    panels = [
        Panel(f"{attack}, step {step}", finding.confidences[a, s].tolist(), marked=[finding.label])
        for a, attack in enumerate(finding.attacks)
        for s, step in enumerate(finding.steps)
    ]
    title = f"Confidences of image {finding.image} ({finding.class_names[finding.label]}) under attack"
    return column_panels(title, finding.class_names, panels, across=len(finding.steps), highest=1.0)


@figure.register
def similarity(finding: Similarity) -> Drawing:
    """benz20 section 3.2: the cosines between class-mean logits."""
    return matrix("Cosine between class-mean logits", finding.class_names, finding.cosines, "cosine")


@figure.register
def extremes(finding: Extremes) -> Drawing:
    """The images of a class in order of what is left of it; `extreme_pictures` shows the two ends."""
    values = finding.images[finding.by].to_numpy(dtype=np.float64)
    standing = int(finding.images["correct"].sum())
    title = f"{finding.class_name} under {finding.attack}: {standing} of {len(values)} images stand"
    lines = [Series(_BY[finding.by], list(range(1, len(values) + 1)), values.tolist(), "stroke-main", named=False)]
    return line_chart(title, lines, f"image, sorted by {_BY[finding.by]}", share=finding.by == "p_label")


def extreme_pictures(finding: Extremes, images: Images) -> Drawing:
    """kdd21 E9 as pictures: the most and the least robust images of a class, with what remains of their class.

    Args:
        finding: from `classwise.analysis.extremes.extremes`.
        images: the data set that was audited; images are found by their number.

    Raises:
        UserError: if an image is not in the data set.
    """
    place = {int(number): row for row, number in enumerate(images.index.tolist())}
    values = finding.images.set_index("index")
    rows = []
    for title, numbers in (("most robust", finding.most.tolist()), ("least robust", finding.least.tolist())):
        absent = [number for number in numbers if number not in place]
        if absent:
            raise UserError(f"image {absent[0]} is not in {images.name}; give the data set that was audited")
        captions = [f"{values['p_label'][number]:.2f} {values['prediction'][number]}" for number in numbers]
        pixels = images.to("cpu").pixels(torch.tensor([place[number] for number in numbers])).numpy()
        rows.append(Row(f"{title}, by {_BY[finding.by]}: confidence and prediction", pixels, captions))
    return gallery(f"{finding.class_name} under {finding.attack}", rows)


_BY = {"p_label": "confidence in its class", "margin": "margin"}


@figure.register
def embedding(finding: Embedding) -> Drawing:
    """iclr21 Figure 8: features on a plane, clean and attacked."""
    panels = [
        Cloud(str(kind), frame["x"].to_numpy(), frame["y"].to_numpy(), frame["label"].to_numpy())
        for kind, frame in finding.points.groupby("kind", sort=False)
    ]
    pure = finding.purity.xs("class", level="level")["purity"]
    note = "; ".join(
        f"{kind}: {wording.percent(float(share))} of neighbours in the class" for kind, share in pure.items()
    )
    return clouds("Features by t-SNE", panels, finding.class_names, range(len(finding.class_names)), note)


def _matrix(finding: Confused, counts: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Confusion:
    return Confusion(counts, finding.class_names, finding.superclasses, finding.superclass_names)
