"""Studies over several seeds: train, audit, and write ``docs/results/NAME.md`` with a CSV of counts per class.

A study is a list of methods of `benchmarks.comparison.methods` at one scale, and a page with the differences that
answer its questions. Runs and audits are in a folder, runs/NAME or KEEP: finished ones are skipped, interrupted ones
resumed. SEEDS, METHODS and DEVICE are read as by ``comparison``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.comparison.methods import Method, Scale, finished, root_folder, seeds
from benchmarks.comparison.runner import run_methods
from benchmarks.tables import table
from classwise.auditing.comparison import Comparison
from classwise.auditing.result import Audit
from classwise.stats.intervals import Estimate

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SUITE = "pgd"
ATTACKS = {SUITE: (None, ("pgd:steps=20,step_size=0.1eps,objective=margin",))}
QUICK_ATTACKS = {SUITE: (None, ("pgd:steps=2,objective=margin",))}
SEEDS = "0,1,2"
UP, DOWN, INCONCLUSIVE = "higher", "lower", "inconclusive"


@dataclass(frozen=True)
class Study:
    """Methods at one scale, and the page of their results.

    Args:
        name: name of the folder of the runs, of the page and of the CSV.
        methods: in order of priority; all of them are run with one seed before the next seed.
        scale: sizes of the experiment.
        quick: sizes of a trial, whose page is printed but not written.
        page: the Markdown page of a comparison, from its scale and the folder of the runs.
    """

    name: str
    methods: tuple[Method, ...]
    scale: Scale
    quick: Scale
    page: Callable[[Comparison, Scale, Path], str]

    def scale_of(self, *, quick: bool) -> Scale:
        return self.quick if quick else self.scale

    def run(self, *, quick: bool) -> str:
        """Train and audit the methods that are not finished, then report."""
        run_methods(self.methods, self.scale_of(quick=quick), self.root(quick), seeds(SEEDS))
        return self.report(quick=quick)

    def report(self, *, quick: bool) -> str:
        """Create the page of the finished runs; unless quick, write it and the counts to ``docs/results``."""
        root = self.root(quick)
        comparison = self.comparison(root)
        if comparison is None:
            return f"no finished runs in {root}\n"
        text = self.page(comparison, self.scale_of(quick=quick), root)
        text = text.replace("\n\n", f"\n\n{self._missing(comparison)}", 1)
        if not quick:
            (RESULTS / f"{self.name}.md").write_text(text, encoding="utf-8")
            counts_by_class(comparison).to_csv(RESULTS / f"{self.name}.csv", index=False)
        return text

    def _missing(self, comparison: Comparison) -> str:
        """A paragraph on the methods and seeds that are not finished; empty if all are."""
        done = {name: [seed_of(audit) for audit in audits] for name, audits in comparison.audits.items()}
        lacking = {method.name: sorted(set(seeds(SEEDS)) - set(done.get(method.name, ()))) for method in self.methods}
        texts = [f"{name} (seed {', '.join(map(str, each))})" for name, each in lacking.items() if each]
        return f"**Incomplete. Not run yet: {'; '.join(texts)}.**\n\n" if texts else ""

    def root(self, quick: bool) -> Path:
        return root_folder(quick, self.name)

    def comparison(self, root: Path) -> Comparison | None:
        """The finished audits of all methods, one per seed, on the same images; None without any."""
        audits: dict[str, tuple[Audit, ...]] = {}
        for method in self.methods:
            folders = sorted(root.glob(f"seed-*/{method.name}/audits/{SUITE}"))
            if each := tuple(Audit.load(folder) for folder in folders if finished(folder)):
                audits[method.name] = each
        return Comparison(audits) if audits else None


def counts_by_class(comparison: Comparison) -> pd.DataFrame:
    """A row for each method, seed and class: images, and images that are correct, clean and under all attacks."""
    rows = []
    for name, audits in comparison.audits.items():
        for audit in audits:
            clean, robust = audit.counts("clean"), audit.counts()
            columns = (audit.group_names, robust.count, clean.correct, robust.correct)
            rows += [
                {"method": name, "seed": seed_of(audit), "class": label, "n": n, "clean": correct, "robust": right}
                for label, n, correct, right in zip(*columns, strict=True)
            ]
    return pd.DataFrame(rows)


def seed_of(audit: Audit) -> int:
    """The seed in the name of the folder three levels above an audit."""
    assert audit.path is not None
    return int(audit.path.resolve().parents[2].name.removeprefix("seed-"))


def accuracy_table(
    comparison: Comparison, title: str, rows: Mapping[str, Sequence[str]], columns: Sequence[str]
) -> str:
    """A table of robust accuracies in percent.

    Args:
        comparison: the finished methods.
        title: of the table.
        rows: cells that describe a method, by its name; methods that are not finished are omitted.
        columns: names of these cells.
    """
    header = [*columns, "seeds", "clean", "overall", "worst class", "lowest class"]
    lines = []
    for name, cells in rows.items():
        if name in comparison.names:
            row = comparison.table.loc[name].to_dict()
            lines.append(
                [
                    *cells,
                    f"{row['seeds']:.0f}",
                    f"{100 * row['clean']:.1f}",
                    percent(Estimate(row["overall"], row["overall_low"], row["overall_high"])),
                    percent(Estimate(row["worst"], row["worst_low"], row["worst_high"])),
                    str(row["worst_class"]),
                ]
            )
    return table(title, header, lines)


@dataclass(frozen=True)
class Effect:
    """The difference of two methods over the seeds that both have, in robust accuracy.

    Args:
        overall: of the overall accuracies.
        worst: of the means over seeds of the worst-class accuracies of the runs.
        seeds: number of pairs of runs.
    """

    overall: Estimate
    worst: Estimate
    seeds: int


def effect(comparison: Comparison, first: str, second: str) -> Effect | None:
    """The first method minus the second, paired by seed; None if no seed of both is finished."""
    runs = [{seed_of(audit): audit for audit in comparison.audits.get(name, ())} for name in (first, second)]
    shared = sorted(runs[0].keys() & runs[1].keys())
    if not shared:
        return None
    audits = {name: tuple(each[seed] for seed in shared) for name, each in zip((first, second), runs, strict=True)}
    pair = Comparison(audits, comparison.attack).pair(first, second)
    return Effect(pair.overall, pair.minima, len(shared))


def verdict(difference: Estimate) -> str:
    """The sign of a difference, if its interval excludes 0."""
    if difference.low > 0:
        return UP
    return DOWN if difference.high < 0 else INCONCLUSIVE


def percent(value: Estimate, sign: str = "") -> str:
    """A fraction in percent, with its interval."""
    return f"{100 * value.value:{sign}.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"
