"""The page of the finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats

from benchmarks.comparison.methods import (
    EPOCHS,
    METHODS,
    QUICK,
    SUITES,
    WARM,
    Scale,
    finished,
    root_folder,
)
from benchmarks.tables import table
from classwise.auditing.compare.compare import compare
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.run.result import Audit
from classwise.core.files.csv_files import write_csv
from classwise.core.rounding import in_percent
from classwise.stats.counts import ClassCounts
from classwise.stats.metrics.discrepancy import mcd_estimate
from classwise.stats.metrics.lowest import worst20_estimate
from classwise.stats.metrics.variance import cv_estimate

SHOWN = {"pgd": "PGD-20 and margin PGD", "apgd": "APGD-CE and APGD-T", "autoattack": "AutoAttack"}


NOTES = """
- All methods: CIFAR-10 stored as JPEG, a class-balanced subset of {train:,} training images (10 % of them for
  validation), quarter-width PreActResNet-18, Linf 8/255, batch 128, bfloat16, {epochs} epochs. The weights of every
  method are selected by overall + worst accuracy on the validation split, from the online and the averaged model.
  The budget is small and the models are weak: compare the methods with each other, not with published accuracies.
- Warm starts are part of the budget: FRL, FAAL and CSR have {late} epochs at a learning rate of 0.01, then 0.001,
  after {warm} shared epochs of AT or TRADES. FRL has 100 validation images per class here, not 300; CSR's first
  epoch there is plain TRADES, in which confusions are counted.
- Equal epochs are not equal passes: a step of TRADES costs 17 % more than one of AT, of TRADES with AWP 43 % more,
  of FAT the same (counted).
- A recipe `NAME-short` is the recipe `NAME` with `--budget short`.
- frontier: the former recipe of this name. 10 epochs of TRADES with beta 5, AWP, the augmentation `idbh-weak`, EMA
  after every step and DAFA after 6 epochs; 2 of the same with FAAL of radius 0.1 in place of DAFA; and
  `classwise interpolate-weights` of both. There are about 700 steps, so the decay of the EMA is 0.99, not 0.999.
- Start epochs are scaled with the run: DAFA starts at epoch 8, TRIX at 6. CFOL's step size is 7e-5, so that its
  weights change as much as those of `cfol-short` on 50,000 images. MART uses the same network as the others.
- PGD-20 and margin PGD: 20 steps of a tenth of the radius on the cross-entropy and on the margin of the logits; an
  image is robust if both fail. Intervals and p-values are not corrected for the number of methods.
"""


MIN_SEEDS = 3
"""Number of seeds from which the mean difference over seeds is reported."""
SIGNS = ("margins-smaller", "margins-larger")
BASELINES = ("AT", "TRADES")


def report(*, quick: bool) -> str:
    """Create the page of the finished runs; unless quick, write it to their folder.

    Its summary is ``docs/results/archive/defences.md``.
    """
    root = root_folder(quick)
    comparisons = {suite: _comparison(root, suite) for suite in SUITES}
    if comparisons["pgd"] is None:
        return f"no finished runs in {root}\n"
    scale = QUICK if quick else Scale()
    facts = {"train": scale.train, "epochs": scale.epochs_of(EPOCHS), "warm": WARM, "late": EPOCHS - WARM}
    pages = "All numbers: table.csv. By class: classes.csv."
    parts = ["# All defences on one budget", "", NOTES.format(**facts).strip(), "", pages, ""]
    if missing := [method.name for method in METHODS if method.name not in comparisons["pgd"].names]:
        parts += [f"**Not run yet: {', '.join(missing)}.**", ""]
    for suite, comparison in comparisons.items():
        if comparison is not None:
            parts.append(_table(comparison, suite))
    baselines = [name for name in BASELINES if name in comparisons["pgd"].names]
    parts += [_against(comparisons["pgd"], name) for name in baselines]
    if all(name in comparisons["pgd"].names for name in SIGNS):
        parts.append(_signs(comparisons["pgd"]))
    parts += [COMMANDS]
    text = "\n".join(parts)
    if quick:
        return text
    write_csv(root / "table.csv", comparisons["pgd"].table.reset_index(), float_format="%.5f")
    write_csv(root / "classes.csv", classes_of(comparisons["pgd"]), float_format="%.3f")
    (root / "defences.md").write_text(text, encoding="utf-8")
    return f"{root / 'defences.md'}\n"


def classes_of(comparison: Comparison) -> pd.DataFrame:
    """Accuracy of each class under each method, with its interval: columns method, class, n, mean, low, high."""
    classes = comparison.classes
    count = classes["", "n"].rename("n")
    parts = [
        classes[name][["mean", "low", "high"]].assign(method=name, n=count).rename_axis("class").reset_index()
        for name in comparison.names
    ]
    rows: pd.DataFrame = pd.concat(parts)
    return rows[["method", "class", "n", "mean", "low", "high"]]


COMMANDS = """## Commands

    KEEP=runs/defences SEEDS=0 OMP_NUM_THREADS=1 python -m benchmarks comparison
    KEEP=runs/defences SEEDS=1,2 METHODS=AT,AT+offset,margins-smaller,margins-larger python -m benchmarks comparison
    BEST=AT+offset,TRADES+offset,CFOL,DAFA,FAAL
    KEEP=runs/defences METHODS=$BEST SUITES=autoattack python -m benchmarks comparison
    KEEP=runs/defences python -m benchmarks comparison --report
    cd runs/defences/seed-0 && classwise compare AT=AT/audits/pgd CFA-AT=CFA-AT/audits/pgd --out compare.html  # a page

The runner calls `classwise.train` and `classwise.audit`, as `classwise train` and `classwise audit` do. The complete
recipe of a run is its `recipe.yaml`; `classwise train FILE` repeats it.
"""


def _comparison(root: Path, suite: str) -> Comparison | None:
    """Compare the finished audits of all methods, one per seed, on the same images."""
    audits: dict[str, list[Audit]] = {}
    for method in METHODS:
        folders = sorted(root.glob(f"seed-*/{method.name}/audits/{suite}"))
        each = [Audit.load(folder) for folder in folders if finished(folder)]
        if each:
            audits[method.name] = each
    return compare(audits) if audits else None


def _table(comparison: Comparison, suite: str) -> str:
    rows = []
    descriptions = {method.name: method.description for method in METHODS}
    for name, row in comparison.table.iterrows():
        audits = comparison.audits[str(name)]
        spread = _spread(comparison.counts[str(name)])
        rows.append(
            [
                str(name),
                descriptions[str(name)],
                "one seed" if len(audits) == 1 else f"{len(audits)} seeds",
                f"{in_percent(row['clean']):.1f}",
                _with(row["overall"], row["overall_low"], row["overall_high"]),
                f"{row['worst_class']} {_with(row['worst'], row['worst_low'], row['worst_high'])}",
                f"{in_percent(row['worst20']):.1f} {spread['worst20']}",
                f"{1e4 * row['cv']:.0f} {spread['cv']}",
                f"{in_percent(row['mcd']):.1f} {spread['mcd']}",
            ]
        )
    header = [
        "method",
        "recipe, epochs",
        "seeds",
        "clean",
        "overall",
        "worst class",
        "worst 20 %",
        "class-wise variance (%²)",
        "MCD",
    ]
    count = int(comparison.table["n"].iloc[0])
    text = table(f"Robust accuracy under {SHOWN[suite]}, {count:,} test images, percent", header, rows)
    return (
        f"{text}\nIntervals of 95 %: for new images and a fixed model, and for new seeds where there are several. "
        "CV, MCD and worst 20 % of several seeds: ± standard deviation.\n"
    )


def _span(low: float, high: float) -> str:
    digits = 0 if high >= 100 else 1
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def _with(value: float, low: float, high: float, sign: str = "") -> str:
    """A fraction in percent, with its interval."""
    return f"{in_percent(value):{sign}.1f} {_span(in_percent(low), in_percent(high))}"


def _spread(counts: Sequence[ClassCounts]) -> dict[str, str]:
    """Intervals of one seed, or standard deviations over seeds, in the units of the table."""
    shown = {}
    for name, unit, measure in (
        ("worst20", 100, worst20_estimate),
        ("cv", 1e4, cv_estimate),
        ("mcd", 100, mcd_estimate),
    ):
        found = [measure(each) for each in counts]
        deviation = unit * float(np.std([each.value for each in found], ddof=min(len(found) - 1, 1)))
        shown[name] = f"± {deviation:.1f}" if len(found) > 1 else _span(unit * found[0].low, unit * found[0].high)
    return shown


def _against(comparison: Comparison, baseline: str) -> str:
    rows = [_pair_row(comparison, name, baseline) for name in comparison.names if name != baseline]
    text = table(f"Each method minus {baseline}, in points, on the same images", ["method", *PAIRED], rows)
    return (
        f"{text}\nIntervals and p-values are from the first shared seed: for these two models and new images, not for "
        "new training runs. The last column has the differences of each seed; from three seeds on also their mean, "
        "with Student's interval for new training runs.\n"
    )


PAIRED = (
    "overall",
    "p (McNemar)",
    "worst class",
    "classes up (p adjusted)",
    "classes down (p adjusted)",
    "each seed: overall, worst",
)


def _pair_row(comparison: Comparison, name: str, baseline: str) -> list[str]:
    """One method minus another, paired by seed."""
    by_seed, reference = ({_seed(audit): audit for audit in comparison.audits[method]} for method in (name, baseline))
    shared = [seed for seed in by_seed if seed in reference]
    if not shared:
        return [name, *["no seed in common"] * len(PAIRED)]
    pairs = [Comparison({name: (by_seed[seed],), baseline: (reference[seed],)}).pair(name, baseline) for seed in shared]
    pair = pairs[0]
    significant = pair.classes[pair.classes["adjusted"] < 0.05].sort_values("difference")
    changes = [f"{label} {100 * value:+.1f}" for label, value in significant["difference"].items()]
    up = [text for text in changes if "+" in text]
    seeds = [(100 * pair.overall.value, 100 * pair.minima.value) for pair in pairs]
    each = "; ".join(f"{overall:+.1f}, {least:+.1f}" for overall, least in seeds)
    if len(seeds) >= MIN_SEEDS:
        each += "; mean " + ", ".join(over_seeds(values) for values in zip(*seeds, strict=True))
    return [
        name,
        _with(pair.overall.value, pair.overall.low, pair.overall.high, "+"),
        f"{pair.p_value:.2g}",
        _with(pair.minima.value, pair.minima.low, pair.minima.high, "+"),
        ", ".join(reversed(up)) or "none",
        ", ".join(text for text in changes if text not in up) or "none",
        each if len(pairs) > 1 else f"one seed: {each}",
    ]


def over_seeds(values: Sequence[float]) -> str:
    """The mean of a difference over seeds, with Student's 95 % interval for new training runs."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    half_width = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * error
    return f"{mean:+.1f} [{mean - half_width:.1f}, {mean + half_width:.1f}]"


def _seed(audit: Audit) -> str:
    """The name of the seed's folder, three levels above the audit."""
    assert audit.path is not None
    return audit.path.resolve().parents[2].name


def _signs(comparison: Comparison) -> str:
    """Compare a smaller with a larger radius for hard classes, everything else equal."""
    smaller, larger = SIGNS
    names = [name for name in ("AT", smaller, larger, "AT+offset") if name in comparison.names]
    chosen = Comparison({name: comparison.audits[name] for name in names}, comparison.attack)
    columns = [chosen.classes[name] for name in names]
    rows = [
        [
            str(label),
            *(_with(*column.loc[label, ["mean", "low", "high"]]) for column in columns),
        ]
        for label in chosen.classes.index
    ]
    text = table("Hard classes: a smaller or a larger radius?", ["class", *names], rows)
    pair = _pair_row(chosen, smaller, larger)
    return (
        f"{text}\nThe recipes differ in one sign, eps_k = eps (1 ± (t_k - mean t)), so the mean radius is the "
        f"same. Smaller minus larger: overall {pair[1]}, p = {pair[2]}; worst class {pair[3]}; "
        f"classes up: {pair[4]}; classes down: {pair[5]}. Overall and worst class, {pair[6]}.\n"
    )
