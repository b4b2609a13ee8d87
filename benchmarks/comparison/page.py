"""The page of what is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from benchmarks.comparison.methods import (
    EPOCHS,
    METHODS,
    QUICK,
    SUITES,
    WARM,
    Scale,
    finished,
    keep,
)
from benchmarks.pairing import table
from classwise.auditing.compare import Comparison, compare
from classwise.auditing.result import Audit
from classwise.reporting import report as write_report
from classwise.stats import metrics
from classwise.stats.bounds import WORST_SHARE

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SHOWN = {"pgd": "PGD-20 and margin PGD", "apgd": "APGD-CE and APGD-T", "autoattack": "AutoAttack"}


NOTES = """
- All: CIFAR-10 stored as JPEG, {train:,} training images drawn evenly over the classes (a tenth of them held out
  for validation), quarter-width PreActResNet-18, Linf 8/255, batch 128, bfloat16, {epochs} epochs. Weights by
  overall + worst on the validation split, the online model's or the average's, whichever scored higher; every
  method by the same rule. These are weak models of a small budget: the order of the methods is the result, not the
  height of the figures.
- Warm starts count: FRL, FAAL and CSR take {late} epochs at a rate of 0.01, then 0.001, after {warm} epochs of AT
  or TRADES, which they share. FRL has 100 held-out images a class here, not 300; CSR's first epoch
  there is plain TRADES, which counts confusions.
- Epochs of a budget are not passes: a step of TRADES costs 17 % more than one of AT, of TRADES with AWP 43 %, of FAT
  the same ([counted](methods.md)).
- A recipe `NAME-short` is the recipe `NAME` with `--budget short`.
- frontier: 10 epochs of `frontier-short`, 2 of `frontier-finetune`, the mix of both by `classwise
interpolate-weights`. There
  are some 700 steps in all, so its average after every step decays by 0.99, not 0.999.
- Moments are shares of the run: DAFA from epoch 8, TRIX from 6. CFOL's step is 7e-5, so that its weights travel as
  far as those of `cfol-short` on 50,000 images. MART is on the same network as the rest.
"""


CLAIM = 3
"""Seeds from which on a difference is more than one training's."""
SIGNS = ("margins-smaller", "margins-larger")
BASELINES = ("AT", "TRADES")


def report(*, quick: bool) -> str:
    """The page of what is finished, written where it belongs unless quick."""
    root, folder = keep(quick), RESULTS / "defences"
    found = {suite: _comparison(root, suite) for suite in SUITES}
    if found["pgd"] is None:
        return f"nothing is finished under {root} yet\n"
    scale = QUICK if quick else Scale()
    facts = {"train": scale.train, "epochs": scale.epochs_of(EPOCHS), "warm": WARM, "late": EPOCHS - WARM}
    pages = "Page: [compare.html](defences/compare.html); every figure: [table.csv](defences/table.csv)."
    parts = ["# Every defence on one budget", "", NOTES.format(**facts).strip(), "", pages, ""]
    if waiting := [method.name for method in METHODS if method.name not in found["pgd"].names]:
        parts += [f"**Not run yet: {', '.join(waiting)}.**", ""]
    for suite, comparison in found.items():
        if comparison is not None:
            parts.append(_table(comparison, suite))
    against = [name for name in BASELINES if name in found["pgd"].names]
    parts += [_against(found["pgd"], name) for name in against]
    if all(name in found["pgd"].names for name in SIGNS):
        parts.append(_signs(found["pgd"]))
    parts += [COMMANDS]
    text = "\n".join(parts)
    if quick:
        return text
    folder.mkdir(parents=True, exist_ok=True)
    page = write_report(found["pgd"], folder / "compare.html")
    page.write_text(page.read_text(encoding="utf-8").replace(f"{root}/", ""), encoding="utf-8")  # not this machine's
    found["pgd"].table.to_csv(folder / "table.csv", float_format="%.5f")
    (RESULTS / "defences.md").write_text(text, encoding="utf-8")
    return f"{RESULTS / 'defences.md'}, {page}\n"


COMMANDS = """## Commands

    KEEP=runs/defences SEEDS=0 OMP_NUM_THREADS=1 python -m benchmarks comparison
    KEEP=runs/defences SEEDS=1,2 METHODS=AT,AT+offset,margins-smaller,margins-larger python -m benchmarks comparison
    BEST=AT+offset,TRADES+offset,CFOL,DAFA,FAAL
    KEEP=runs/defences METHODS=$BEST AUTOATTACK=$BEST python -m benchmarks comparison
    KEEP=runs/defences python -m benchmarks comparison --report
    cd runs/defences/seed-0 && classwise compare AT=AT/audits/pgd CFA-AT=CFA-AT/audits/pgd --out compare.html

The runner trains by `classwise.train` and audits by `classwise.audit`, which `classwise train` and
`classwise audit` call; the complete recipe of a run is its `recipe.yaml`, which `classwise train FILE` does again.
"""


def _comparison(root: Path, suite: str) -> Comparison | None:
    """Every method with its finished audits, a seed each; all of the same images."""
    audits: dict[str, list[Audit]] = {}
    for method in METHODS:
        folders = sorted(root.glob(f"seed-*/{method.name}/audits/{suite}"))
        each = [Audit.load(folder) for folder in folders if finished(folder)]
        if each:
            audits[method.name] = each
    return compare(audits) if audits else None


def _table(comparison: Comparison, suite: str) -> str:
    rows = []
    found = {each.name: each.found for each in METHODS}
    for name, row in comparison.table.iterrows():
        audits = comparison.audits[str(name)]
        spread = {key: _span(*bounds) for key, bounds in resampled(audits).items()}
        rows.append(
            [
                str(name),
                found[str(name)],
                "one seed" if len(audits) == 1 else f"{len(audits)} seeds",
                f"{100 * row['clean']:.1f}",
                _with(row["overall"], row["overall_low"], row["overall_high"]),
                f"{row['worst_class']} {_with(row['worst'], row['worst_low'], row['worst_high'])}",
                f"{100 * row['worst20']:.1f} {spread['worst20']}",
                f"{1e4 * row['cv']:.0f} {spread['cv']}",
                f"{100 * row['mcd']:.1f} {spread['mcd']}",
            ]
        )
    header = ["method", "recipe, epochs", "seeds", "clean", "overall", "worst class", "worst 20 %", "CV (%²)", "MCD"]
    count = int(comparison.table["n"].iloc[0])
    text = table(f"What stands against {SHOWN[suite]}, {count:,} test images, percent", header, rows)
    return (
        f"{text}\nIntervals of 95 %: new images, the model fixed, and new seeds too where there are several. "
        "CV, MCD and worst 20 %: the middle 95 % when images (and seeds) are drawn anew 1,000 times, "
        "which leans towards unevenness.\n"
    )


def _span(low: float, high: float) -> str:
    digits = 0 if high >= 100 else 1
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def _with(value: float, low: float, high: float, sign: str = "") -> str:
    """A share in percent, with its interval."""
    return f"{100 * value:{sign}.1f} {_span(100 * low, 100 * high)}"


def resampled(audits: Sequence[Audit], samples: int = 1000) -> dict[str, tuple[float, float]]:
    """95 % intervals in print's units by drawing images within their class, and seeds, with replacement."""
    judged = [each.outcomes.judged("all") for each in audits]
    correct = np.stack([each.correct for each in judged]).astype(np.float64)  # (S, N)
    generator = np.random.default_rng(0)
    chosen = generator.integers(0, len(audits), (samples, len(audits)))
    weights = np.stack([np.bincount(row, minlength=len(audits)) for row in chosen]) / len(audits)  # of the seeds
    labels = judged[0].label
    classes = [correct[:, labels == label] for label in np.unique(labels)]
    accuracy = np.empty((samples, len(audits), len(classes)))
    for place, right in enumerate(classes):
        count = generator.multinomial(right.shape[1], np.full(right.shape[1], 1 / right.shape[1]), size=samples)
        accuracy[:, :, place] = count @ right.T / right.shape[1]
    measures: dict[str, tuple[float, Callable[[Any], float]]] = {
        "worst20": (100, lambda values: metrics.worst_share(values, WORST_SHARE)),
        "cv": (1e4, metrics.class_variance),
        "mcd": (100, metrics.max_class_discrepancy),
    }
    found = {}
    for name, (unit, measure) in measures.items():
        each = np.array([[measure(values) for values in seeds] for seeds in accuracy])
        low, high = np.quantile((each * weights).sum(1), [0.025, 0.975]) * unit
        found[name] = (float(low), float(high))
    return found


def _against(comparison: Comparison, baseline: str) -> str:
    rows = [_pair_row(comparison, name, baseline) for name in comparison.names if name != baseline]
    text = table(f"Each method minus {baseline}, in points, on the same images", ["method", *PAIRED], rows)
    return (
        f"{text}\nIntervals and p by the first seed that both have: about these two models and new images, not about "
        "new training runs; what those change, the differences of each seed show. A claim needs three seeds: "
        "then their mean stands behind them, with Student's interval for training anew.\n"
    )


PAIRED = (
    "overall",
    "p (McNemar)",
    "worst class",
    "classes up (Holm)",
    "classes down (Holm)",
    "each seed: overall, worst",
)


def _pair_row(comparison: Comparison, name: str, baseline: str) -> list[str]:
    """One method minus another, each seed against the same one."""
    mine, theirs = ({_seed(each): each for each in comparison.audits[which]} for which in (name, baseline))
    shared = [seed for seed in mine if seed in theirs]
    if not shared:
        return [name, *["no seed in common"] * len(PAIRED)]
    pairs = [Comparison({name: (mine[seed],), baseline: (theirs[seed],)}).pair(name, baseline) for seed in shared]
    pair = pairs[0]
    differ = pair.classes[pair.classes["adjusted"] < 0.05].sort_values("difference")
    found = [f"{label} {100 * value:+.1f}" for label, value in differ["difference"].items()]
    up = [text for text in found if "+" in text]
    seeds = [(100 * pair.overall.value, 100 * pair.minima.value) for pair in pairs]
    each = "; ".join(f"{overall:+.1f}, {least:+.1f}" for overall, least in seeds)
    if len(seeds) >= CLAIM:
        each += "; mean " + ", ".join(over_seeds(values) for values in zip(*seeds, strict=True))
    return [
        name,
        _with(pair.overall.value, pair.overall.low, pair.overall.high, "+"),
        f"{pair.p_value:.2g}",
        _with(pair.minima.value, pair.minima.low, pair.minima.high, "+"),
        ", ".join(reversed(up)) or "none",
        ", ".join(text for text in found if text not in up) or "none",
        each if len(pairs) > 1 else f"one seed: {each}",
    ]


def over_seeds(values: Sequence[float]) -> str:
    """The mean of a difference over trainings, with Student's 95 % interval for training anew."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    reach = float(scipy.stats.t.ppf(0.975, len(values) - 1)) * error
    return f"{mean:+.1f} [{mean - reach:.1f}, {mean + reach:.1f}]"


def _seed(audit: Audit) -> str:
    """The name of the seed's folder, in which the method's holds the audit."""
    assert audit.path is not None
    return audit.path.resolve().parents[2].name


def _signs(comparison: Comparison) -> str:
    """Hard classes: a smaller or a larger radius, everything else equal."""
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
        f"{text}\nOne recipe, with the sign of one number changed: eps_k = eps (1 ± (t_k - mean t)), so the "
        f"mean radius is the same. Smaller minus larger: overall {pair[1]}, p = {pair[2]}; worst class {pair[3]}; "
        f"classes up: {pair[4]}; classes down: {pair[5]}. Overall and worst class, {pair[6]}.\n"
    )
