"""Studies over several seeds: train, audit, and write a page of results with a CSV of counts per class.

A study is a list of methods of `benchmarks.comparison.methods` at one scale, and a page with the differences that
answer its questions. Runs and audits are in a folder, runs/NAME or KEEP: finished ones are skipped, interrupted ones
resumed. The page of an archived study is written there, too; ``docs/results/archive`` has its summary. SEEDS, METHODS
and DEVICE are read as by ``comparison``.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.comparison.methods import TRAINING, Method, Scale, finished, root_folder, seeds
from benchmarks.comparison.runner import run_methods
from benchmarks.tables import table
from classwise.auditing.compare.comparison import Comparison
from classwise.auditing.outcomes.artifacts import Artifacts
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.files.csv_files import write_csv
from classwise.core.rounding import in_percent
from classwise.reporting.facts.comparison_tables import accuracy_points
from classwise.stats.intervals import Estimate

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SUITE = "pgd"
ATTACKS = {SUITE: (None, ("pgd:steps=20,step_size=0.1eps,objective=margin",))}
QUICK_ATTACKS = {SUITE: (None, ("pgd:steps=2,objective=margin",))}
QUICK = Scale(
    data="digits",
    train=200,
    validation=0.2,
    test=100,
    threat="Linf:0.1",
    fields={
        "data.augment": "none",
        "model.name": "small-cnn",
        "model.width": 0.1,
        "batch_size": 32,
        "attack.steps": 1,
        "validation_attack.steps": 1,
    },
    suites=QUICK_ATTACKS,
    default_suites=(SUITE,),
    epochs=2,
)
"""The scale of --quick, which shows that a study runs."""
SEEDS = "0,1,2"
FIGURE = "accuracies.svg"
"""The worst-class against the overall accuracy of the methods of a study that records, in the folder of the page."""
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
        seeds: default of SEEDS, comma-separated.
        records: save the predictions of each audit, without scores, as an audit in a folder beside the page, a page
            that compares them, and a figure. Later reports add those whose runs are elsewhere.
        archived: write the page and the counts into the folder of the runs, not into ``docs/results``.
    """

    name: str
    methods: tuple[Method, ...]
    scale: Scale
    quick: Scale
    page: Callable[[Comparison, Scale, Path], str]
    seeds: str = SEEDS
    records: bool = False
    archived: bool = False

    def scale_of(self, *, quick: bool) -> Scale:
        return self.quick if quick else self.scale

    def run(self, *, quick: bool) -> str:
        """Train and audit the methods that are not finished, then report."""
        run_methods(self.methods, self.scale_of(quick=quick), self.root(quick), seeds(self.seeds))
        return self.report(quick=quick)

    def report(self, *, quick: bool) -> str:
        """Create the page of the finished runs; unless quick, write it and the counts to `folder`."""
        root = self.root(quick)
        if self.records and not quick:
            self._record(root)
        comparison = self.comparison(root, recorded=self.records and not quick)
        if comparison is None:
            return f"no finished runs in {root}\n"
        text = self.page(comparison, self.scale_of(quick=quick), root)
        text = text.replace("\n\n", f"\n\n{self._missing(comparison)}", 1)
        if not quick:
            page = self.folder / f"{self.name}.md"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(f"{self._head(page)}{text}", encoding="utf-8")
            write_csv(self.folder / f"{self.name}.csv", counts_by_class(comparison))
            if self.records:
                shown = of_common_seeds(comparison)
                if (drawing := accuracy_points(shown)) is not None:
                    drawing.save(self.folder / self.name / FIGURE)
        return text

    @property
    def folder(self) -> Path:
        """The folder of the page, of the counts and of the recorded audits."""
        return self.root(quick=False) if self.archived else RESULTS

    @property
    def mark(self) -> str:
        """The end of the part of a page that is written by hand."""
        return f"<!-- The tables below are written by: python -m benchmarks {self.name} --report -->"

    def _head(self, page: Path) -> str:
        """The part of a page that is written by hand, up to the mark; empty if it has none."""
        written = page.read_text(encoding="utf-8") if page.is_file() else ""
        above, mark, _ = written.partition(self.mark)
        return f"{above}{mark}\n\n" if mark else ""

    def _missing(self, comparison: Comparison) -> str:
        """A paragraph on the methods and seeds that are not finished; empty if all are."""
        done = {name: [seed_of(audit) for audit in audits] for name, audits in comparison.audits.items()}
        lacking = {
            method.name: sorted(set(seeds(self.seeds)) - set(done.get(method.name, ()))) for method in self.methods
        }
        if self.records:  # a study that grows; what is there is in its tables
            return ""
        texts = [f"{name} (seed {', '.join(map(str, missing))})" for name, missing in lacking.items() if missing]
        return f"**Incomplete. Not run yet: {'; '.join(texts)}.**\n\n" if texts else ""

    def root(self, quick: bool) -> Path:
        return root_folder(quick, self.name)

    def comparison(self, root: Path, suite: str = SUITE, *, recorded: bool = False) -> Comparison | None:
        """The finished audits of all methods, one per seed, on the same images; None without any.

        Args:
            root: the folder of the runs.
            suite: name of the attacks.
            recorded: include the recorded audits, also those whose runs are elsewhere.
        """
        bases = (root, self.folder / self.name) if recorded else (root,)
        audits: dict[str, tuple[Audit, ...]] = {}
        for method in self.methods:
            if each := tuple(Audit.load(folder) for folder in audit_folders(bases, method.name, suite)):
                audits[method.name] = each
        return Comparison(audits) if audits else None

    def _record(self, root: Path) -> None:
        """Save the predictions of the finished audits that are not recorded yet."""
        for suite in self.scale.suites:
            for method in self.methods:
                for source in audit_folders((root,), method.name, suite):
                    target = self.folder / self.name / source.relative_to(source.parents[3])
                    if not target.exists():
                        predictions_only(Audit.load(source), root).save(target)
                    training = source.parents[1] / TRAINING
                    if training.is_file():
                        shutil.copy(training, target.parents[1] / TRAINING)


def audit_folders(bases: Sequence[Path], method: str, suite: str) -> list[Path]:
    """The folders of the finished audits of a method, by seed; of equal seeds that of the last base."""
    found = {}
    for base in bases:
        for folder in base.glob(f"seed-*/{method}/audits/{suite}"):
            if finished(folder):
                found[folder.parents[2].name] = folder
    return [found[seed] for seed in sorted(found)]


SCORES = ("p_label", "p_predicted", "runner_up", "margin", "confidence_variance", "distance")
"""Columns of outcomes that are most of the size of a file, and that accuracies do not need."""


ENVIRONMENT = ("python", "packages", "device", "cpu", "threads", "network", "seconds")
"""What of the environment is saved."""


def predictions_only(audit: Audit, root: Path) -> Audit:
    """An audit without the scores of each image, its artifacts and its trace; the path of the model is below a root."""
    frame = audit.outcomes.frame.assign(**dict.fromkeys(SCORES))
    model = audit.outcomes.meta.model
    meta = dataclasses.replace(audit.outcomes.meta, model=model.removeprefix(f"{root}/"))
    outcomes = Outcomes(frame.astype(audit.outcomes.frame.dtypes), meta)
    environment = {name: value for name, value in audit.environment.items() if name in ENVIRONMENT}
    return dataclasses.replace(
        audit, outcomes=outcomes, path=None, artifacts=Artifacts(), trace=None, environment=environment
    )


def counts_by_class(comparison: Comparison) -> pd.DataFrame:
    """A row for each method, seed and class: images, and images that are correct, clean and under all attacks.

    Audits under several attacks have a column more for each attack.
    """
    parts = []
    for name, audits in comparison.audits.items():
        for audit in audits:
            counts = {"clean": audit.counts("clean"), "robust": audit.counts()}
            attacks = audit.outcomes.attacks
            if len(attacks) > 1:
                counts |= {attack: audit.counts(attack) for attack in attacks}
            correct = {column: found.correct for column, found in counts.items()}
            facts = {"class": audit.group_names, "n": counts["robust"].count, **correct}
            parts.append(pd.DataFrame({"method": name, "seed": seed_of(audit), **facts}))
    return pd.concat(parts, ignore_index=True)


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
                    f"{in_percent(row['clean']):.1f}",
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


def of_common_seeds(comparison: Comparison) -> Comparison:
    """The runs of the seeds that all methods have; all runs if there is no such seed."""
    runs = {name: {seed_of(audit): audit for audit in audits} for name, audits in comparison.audits.items()}
    common = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    if not common:
        return comparison
    return Comparison(
        {name: tuple(by_seed[seed] for seed in common) for name, by_seed in runs.items()}, comparison.attack
    )


def shared_seeds(comparison: Comparison, first: str, second: str) -> list[int]:
    """The seeds with which both methods are finished."""
    runs = [{seed_of(audit) for audit in comparison.audits.get(name, ())} for name in (first, second)]
    return sorted(runs[0] & runs[1])


def effect(comparison: Comparison, first: str, second: str, seed: int | None = None) -> Effect | None:
    """The first method minus the second, over the seeds of both; None if there are none.

    Args:
        comparison: the finished methods.
        first: name of a method.
        second: name of another method.
        seed: compare the runs of this seed only.
    """
    shared = shared_seeds(comparison, first, second) if seed is None else [seed]
    if not shared:
        return None
    runs = [{seed_of(audit): audit for audit in comparison.audits[name]} for name in (first, second)]
    audits = {
        name: tuple(by_seed[seed] for seed in shared) for name, by_seed in zip((first, second), runs, strict=True)
    }
    pair = Comparison(audits, comparison.attack).pair(first, second)
    return Effect(pair.overall, pair.minima, len(shared))


def verdict(difference: Estimate) -> str:
    """The sign of a difference, if its interval excludes 0."""
    if difference.low > 0:
        return UP
    return DOWN if difference.high < 0 else INCONCLUSIVE


def percent(value: Estimate, sign: str = "") -> str:
    """A fraction in percent, with its interval."""
    return f"{in_percent(value.value):{sign}.1f} [{in_percent(value.low):.1f}, {in_percent(value.high):.1f}]"
