"""Every defence on one budget: trains, audits, and writes ``docs/results/defences.md``.

``KEEP=runs/defences SEEDS=0 OMP_NUM_THREADS=1 python -m benchmarks comparison``: what is finished is skipped, what was
interrupted goes on; several processes may share the folder, each takes what no other is at. ``--report`` writes the
page from what is there, without training. METHODS=AT,TRADES takes a part; AUTOATTACK=AT,TRADES audits those by
AutoAttack too; DEVICE=cuda takes another device.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pairing import table
from classwise.auditing.audit import audit
from classwise.auditing.compare import Comparison, compare
from classwise.auditing.result import WORST_SHARE, Audit
from classwise.data import Images, load_data
from classwise.errors import UserError
from classwise.progress import Silent
from classwise.report import compare_page
from classwise.stats import metrics
from classwise.storage import write_text
from classwise.training.folder import Run
from classwise.training.interpolate import interpolate
from classwise.training.loop import train
from classwise.training.offset import offset

RESULTS = Path(__file__).parents[1] / "docs" / "results"
EPOCHS = 12
WARM = 8
"""Epochs of the two warm starts that FRL, FAAL and CSR share; they count."""
SUITES: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "pgd": (None, ("pgd:steps=20,step_size=0.1eps", "pgd:steps=20,step_size=0.1eps,objective=margin")),
    "apgd": (1000, ("apgd-ce", "apgd-t")),
    "autoattack": (1000, ("autoattack",)),
}
"""Each audit: how many test images (None: all), and the attacks; the last is for those that ask for it."""
SHOWN = {"pgd": "PGD-20 and margin PGD", "apgd": "APGD-CE and APGD-T", "autoattack": "AutoAttack"}


@dataclass(frozen=True)
class Scale:
    """How large it all is."""

    train: int = 10_000
    test: int | None = None
    fields: Mapping[str, Any] = field(
        default_factory=lambda: {"model.width": 0.25, "compute": {"dtype": "bfloat16", "channels_last": True}}
    )
    suites: Mapping[str, tuple[int | None, tuple[str, ...]]] = field(default_factory=lambda: SUITES)
    epochs: int | None = None

    def epochs_of(self, epochs: int) -> int:
        return epochs if self.epochs is None else self.epochs


QUICK = Scale(
    train=200,
    test=100,
    fields={"model.width": 0.0625, "batch_size": 32, "attack.steps": 2, "validation_attack.steps": 2},
    suites={"pgd": (None, ("pgd:steps=2", "pgd:steps=2,objective=margin")), "apgd": (50, ("apgd-ce:steps=5",))},
    epochs=1,
)


@dataclass(frozen=True)
class Place:
    """Where a run lies, and under which seed and scale."""

    keep: Path
    seed: int
    scale: Scale
    device: str = "cpu"

    def folder(self, name: str) -> Path:
        return self.keep / f"seed-{self.seed}" / name

    @contextlib.contextmanager
    def held(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Nobody else works at it meanwhile; False if somebody does and we would not wait."""
        path = self.keep / "locks" / f"{self.seed}-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True


@dataclass(frozen=True)
class Method(ABC):
    """A row of the table, or what another row starts from."""

    name: str

    @abstractmethod
    def make(self, place: Place) -> Path:
        """Train what is not trained yet, what it needs first; the weights."""

    @property
    @abstractmethod
    def told(self) -> str:
        """The training, for the table."""


@dataclass(frozen=True)
class Trained(Method):
    """A recipe with some fields changed, from random weights or from another method's."""

    recipe: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = EPOCHS
    start: Method | None = None

    def make(self, place: Place) -> Path:
        start = None if self.start is None else made(self.start, place, wait=True)
        run = self.run(place, start)
        return run.weights_file(run.default_weights())

    def run(self, place: Place, start: Path | None) -> Run:
        changes: dict[str, Any] = {"data.validation": 0.1, "data.subset": place.scale.train, **self.changes}
        changes |= {"epochs": place.scale.epochs_of(self.epochs), "seed": place.seed, **place.scale.fields}
        if start is not None:
            changes["model.start"] = str(start)
        return train(
            self.recipe,
            out=place.folder(self.name),
            data=images("train", place.scale.train),
            resume=True,
            device=place.device,
            progress=Said(f"{self.name}, seed {place.seed}"),
            changes=changes,
        )

    @property
    def told(self) -> str:
        if self.start is None:
            return f"`{self.recipe}`, {self.epochs}"
        return f"`{self.recipe}`, {self.epochs} after {self.start.told}"


@dataclass(frozen=True)
class Interpolated(Method):
    """The best mix of a fine-tuned model and the one before it."""

    of: Trained

    def make(self, place: Place) -> Path:
        made(self.of, place, wait=True)
        data = images("train", place.scale.train)
        return interpolate(place.folder(self.of.name), data=data, device=place.device).path

    @property
    def told(self) -> str:
        return f"{self.of.told}, `classwise interpolate`"


@dataclass(frozen=True)
class Offset(Method):
    """The constants for each class, on another method's model."""

    of: Trained | Interpolated

    def make(self, place: Place) -> Path:
        made(self.of, place, wait=True)
        mixed = isinstance(self.of, Interpolated)
        run = self.of.of if isinstance(self.of, Interpolated) else self.of
        path = place.folder(self.name) / "offset.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        return offset(
            place.folder(run.name),
            which="interpolated" if mixed else None,
            data=images("train", place.scale.train),
            out=path,
            device=place.device,
        ).path

    @property
    def told(self) -> str:
        return f"`classwise offset` after {self.of.told}"


AT = Trained("AT", "at-short")
TRADES = Trained("TRADES", "trades-short")
WARM_AT = Trained("warm-at", "at-short", epochs=WARM)
WARM_TRADES = Trained("warm-trades", "trades-short", epochs=WARM)
_LATE: dict[str, Any] = {
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
    "rate": {"name": "step", "milestones": [0.5], "gamma": 0.1},
}
"""FAAL's fine-tuning, given to the three methods that start from a robust model."""

_FRONTIER = Trained("frontier-first", "frontier-short", {"averaging.decay": 0.99, "schedules.0.begin": 6}, EPOCHS - 2)
_FINETUNED = Trained("frontier-finetuned", "frontier-finetune", {"averaging.decay": 0.99}, 2, _FRONTIER)
FRONTIER = Interpolated("frontier", _FINETUNED)

METHODS: tuple[Method, ...] = (
    AT,
    TRADES,
    Offset("AT+offset", AT),
    Offset("TRADES+offset", TRADES),
    Trained("CFA-AT", "cfa-at-short"),
    Trained("DAFA", "dafa-short", {"schedules.0.begin": 8}),
    Trained("FRL", "frl", {**_LATE, "schedules.0.halve_every": 2}, EPOCHS - WARM, WARM_TRADES),
    Trained("TRIX", "trix-short", {"schedules.0.begin": 6}),
    Trained("WAT", "wat-short"),
    Trained("margins-smaller", "margins-smaller-short"),
    Trained("margins-larger", "margins-larger-short"),
    FRONTIER,
    Offset("frontier+offset", FRONTIER),
    Trained("CFA-TRADES", "cfa-trades-short"),
    Trained("FAAL", "faal", {**_LATE}, EPOCHS - WARM, WARM_AT),
    Trained("CSR", "csr", {**_LATE, "objective.begin": 0.25}, EPOCHS - WARM, WARM_TRADES),
    Trained("CFOL", "cfol-short", {"schedules.0.rate": 7e-5}),
    Trained("CODAT", "codat-short"),
    Trained("MART", "mart-short", {"model.name": "preactresnet18"}),
    Trained("HE", "he-short"),
    Trained("FAT", "fat-short"),
)
"""The most telling first; a warm start is trained when it is first needed."""
SIGNS = ("margins-smaller", "margins-larger")
BASELINES = ("AT", "TRADES")
NOTES = """
- All: CIFAR-10 stored as JPEG, {train:,} training images drawn evenly over the classes (a tenth of them held out
  for validation), quarter-width PreActResNet-18, Linf 8/255, batch 128, bfloat16, {epochs} epochs. Weights by
  overall + worst on the validation split, the online model's or the average's, whichever scored higher; every
  method by the same rule. These are weak models of a small budget: the order of the methods is the result, not the
  height of the figures.
- Warm starts count: FRL, FAAL and CSR take {late} epochs at a rate of 0.01, then 0.001, after {warm} epochs of AT
  or TRADES, which they share. FRL has 100 held-out images a class here, not 300; CSR's first epoch
  there is plain TRADES, which counts confusions.
- Epochs of a budget are not passes: TRADES takes 14 % more passes an epoch than AT, TRADES with AWP 32 %, FAT fewer.
- frontier: 10 epochs of `frontier-short`, 2 of `frontier-finetune`, the mix of both by `classwise interpolate`. There
  are some 700 steps in all, so its average after every step decays by 0.99, not 0.999.
- Moments are shares of the run: DAFA from epoch 8, TRIX from 6. CFOL's step is 7e-5, so that its weights travel as
  far as those of `cfol-short` on 50,000 images. MART is on the same network as the rest.
"""


class Said(Silent):
    """Prints what is worth a line, with the time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def say(self, line: str) -> None:
        say(f"{self.name}: {line}")


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@cache
def images(split: str, count: int | None) -> Images:
    return load_data("cifar10", split=split, subset=count, seed=0)


def made(method: Method, place: Place, *, wait: bool) -> Path | None:
    """The method's weights, made if need be; None if another process is at it and we would not wait."""
    note = place.folder(method.name) / "weights.txt"
    if note.is_file():
        return Path(note.read_text())
    with place.held(method.name, wait=wait) as ours:
        if not ours:
            return None
        if not note.is_file():
            path = method.make(place)
            write_text(note, str(path))
    return Path(note.read_text())


def audited(method: Method, weights: Path, place: Place) -> None:
    for suite, (count, attacks) in place.scale.suites.items():
        if suite == "autoattack" and method.name not in named("AUTOATTACK"):
            continue
        folder = place.folder(method.name) / "audits" / suite
        with place.held(f"{method.name}-{suite}", wait=False) as ours:
            if not ours or finished(folder):
                continue
            say(f"{method.name}, seed {place.seed}: audit by {suite}")
            data = images("test", count if count is not None else place.scale.test)
            audit(weights, data, attacks=attacks, out=folder, resume=True, device=place.device, name=method.name)


def finished(folder: Path) -> bool:
    """Whether the folder holds an audit that was run to its end."""
    about = folder / "audit.json"
    return about.is_file() and "seconds" in json.loads(about.read_text()).get("environment", {})


def run(*, quick: bool) -> str:
    """Train and audit what is missing, then report."""
    known = [each.name for each in METHODS]
    wanted = named("METHODS") or known
    unknown = {*wanted, *named("AUTOATTACK")} - {*known}
    if unknown:
        sys.exit(f"unknown method {min(unknown)!r}; known: {', '.join(known)}")
    for seed in seeds():
        place = Place(keep(quick), seed, QUICK if quick else Scale(), os.environ.get("DEVICE", "cpu"))
        for method in METHODS:
            if method.name not in wanted:
                continue
            try:
                weights = made(method, place, wait=False)
                if weights is not None:
                    audited(method, weights, place)
            except UserError as error:  # the others go on
                say(f"{method.name}, seed {seed}: left out: {error}")
            except Exception:  # noqa: BLE001  # the report of what went well is worth more than a stop
                say(f"{method.name}, seed {seed}: left out:\n{traceback.format_exc()}")
    return report(quick=quick)


def named(variable: str) -> list[str]:
    """The names in an environment variable, which commas part."""
    return [name for name in os.environ.get(variable, "").split(",") if name]


def keep(quick: bool) -> Path:
    return Path(os.environ.get("KEEP", "runs/defences-quick" if quick else "runs/defences")).resolve()


def seeds() -> list[int]:
    return [int(seed) for seed in os.environ.get("SEEDS", "0").split(",")]


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
    page = compare_page(found["pgd"], folder / "compare.html")
    found["pgd"].table.to_csv(folder / "table.csv", float_format="%.5f")
    (RESULTS / "defences.md").write_text(text, encoding="utf-8")
    return f"{RESULTS / 'defences.md'}, {page}\n"


COMMANDS = """## Commands

    KEEP=runs/defences SEEDS=0 OMP_NUM_THREADS=1 python -m benchmarks comparison
    KEEP=runs/defences SEEDS=1,2 METHODS=AT,TRADES,margins-smaller,margins-larger python -m benchmarks comparison
    KEEP=runs/defences python -m benchmarks comparison --report
    cd runs/defences/seed-0 && classwise compare AT=AT/audits/pgd CFA-AT=CFA-AT/audits/pgd --out compare.html

The runner trains by `classwise.training.loop.train` and audits by `classwise.audit`, which `classwise train` and
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
    told = {each.name: each.told for each in METHODS}
    for name, row in comparison.table.iterrows():
        audits = comparison.audits[str(name)]
        spread = {key: _span(*bounds) for key, bounds in resampled(audits).items()}
        rows.append(
            [
                str(name),
                told[str(name)],
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


def resampled(audits: Sequence[Audit], draws: int = 1000) -> dict[str, tuple[float, float]]:
    """95 % intervals in print's units by drawing images within their class, and seeds, with replacement."""
    judged = [each.outcomes.judged("all") for each in audits]
    correct = np.stack([each.correct for each in judged]).astype(np.float64)  # (S, N)
    generator = np.random.default_rng(0)
    chosen = generator.integers(0, len(audits), (draws, len(audits)))
    weights = np.stack([np.bincount(row, minlength=len(audits)) for row in chosen]) / len(audits)  # of the seeds
    labels = judged[0].label
    classes = [correct[:, labels == label] for label in np.unique(labels)]
    accuracy = np.empty((draws, len(audits), len(classes)))
    for place, right in enumerate(classes):
        count = generator.multinomial(right.shape[1], np.full(right.shape[1], 1 / right.shape[1]), size=draws)
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
        "new training runs; what those change, the differences of each seed show. A claim needs three seeds.\n"
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
    told = [f"{label} {100 * value:+.1f}" for label, value in differ["difference"].items()]
    up = [text for text in told if "+" in text]
    each = "; ".join(f"{100 * pair.overall.value:+.1f}, {100 * pair.minima.value:+.1f}" for pair in pairs)
    return [
        name,
        _with(pair.overall.value, pair.overall.low, pair.overall.high, "+"),
        f"{pair.p_value:.2g}",
        _with(pair.minima.value, pair.minima.low, pair.minima.high, "+"),
        ", ".join(reversed(up)) or "none",
        ", ".join(text for text in told if text not in up) or "none",
        each if len(pairs) > 1 else f"one seed: {each}",
    ]


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
