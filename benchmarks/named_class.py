"""Which attack names the worst class: weaker attacks against the strongest one that ran on the same model.

``python -m benchmarks named-class`` computes the tables of ``docs/results/named-class.md`` from recorded counts, and
writes them there; no attack runs. The row of each model is in ``docs/results/named-class/models.csv``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.tables import table
from classwise.core.files.csv_files import write_csv
from classwise.core.rounding import in_percent
from classwise.stats.counts import ClassCounts, PairedCounts
from classwise.stats.intervals import Estimate, clopper_pearson, lowest_interval, student
from classwise.stats.paired import difference_of_minima, overall_difference

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ARCHIVE = RESULTS / "archive"
PAGE = RESULTS / "named-class.md"
MARK = "<!-- The tables below are written by: python -m benchmarks named-class -->"
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CROSS_ENTROPY = ("PGD-20", "APGD-CE")
NONE = "-"


@dataclass(frozen=True)
class Case:
    """A model under two attacks.

    Attributes:
        study: where its counts are from.
        model: its name.
        attack: the weaker attack, or several together.
        strongest: the strongest attack that ran on the model.
        weak: counts under the weaker attack.
        strong: counts under the strongest attack.
        nested: whether every image that is robust under the strongest attack is so under the weaker one; then the
            counts determine the pairs. None: the counts are of other numbers of images, so only the classes compare.
        classes: names of the classes.
    """

    study: str
    model: str
    attack: str
    strongest: str
    weak: ClassCounts
    strong: ClassCounts
    nested: bool | None
    classes: Sequence[str]

    @property
    def named(self) -> tuple[str, str]:
        """The worst class under each attack; of equal ones the first."""
        weak, strong = (self.classes[int(counts.accuracy.argmin())] for counts in (self.weak, self.strong))
        return weak, strong

    @property
    def same(self) -> bool:
        """Whether both attacks name the same class."""
        return self.named[0] == self.named[1]

    def drops(self, alpha: float = 0.05) -> tuple[Estimate, Estimate]:
        """How much lower the worst-class and the mean accuracy are under the strongest attack, as fractions.

        Nested outcomes are paired by image. Others have the interval arithmetic of the intervals under each attack,
        which is valid for any dependence and wide.
        """
        if self.nested:
            lost, robust = self.weak.correct - self.strong.correct, self.strong.correct
            pairs = PairedCounts(robust, lost, np.zeros_like(lost), self.weak.wrong)
            mean = overall_difference(pairs, alpha)
            return difference_of_minima(pairs, alpha), Estimate(
                *(float(part[0]) for part in (mean.difference, mean.low, mean.high))
            )
        sides = (self.weak, self.strong)
        lowest = [lowest_interval(counts, alpha / 2) for counts in sides]
        overall = [clopper_pearson(counts.correct.sum(), counts.count.sum(), alpha / 2) for counts in sides]
        worst, mean_drop = (
            weak - strong
            for weak, strong in (
                [counts.accuracy.min() for counts in sides],
                [counts.correct.sum() / counts.count.sum() for counts in sides],
            )
        )
        return (
            Estimate(float(worst), lowest[0][0] - lowest[1][1], lowest[0][1] - lowest[1][0]),
            Estimate(
                float(mean_drop), float(overall[0].low - overall[1].high), float(overall[0].high - overall[1].low)
            ),
        )

    @property
    def excess(self) -> Estimate:
        """The drop of the worst-class accuracy minus that of the mean; Bonferroni's interval of both drops."""
        worst, mean = self.drops(0.025)
        return Estimate(worst.value - mean.value, worst.low - mean.high, worst.high - mean.low)


def cases() -> list[Case]:
    """All models with recorded counts by class under several attacks."""
    found: list[Case] = []
    faal = pd.read_csv(RESULTS / "named-class" / "faal-logs.csv")
    found += _of_frame(faal, "FAAL's logs", {"pgd": "PGD-20", "margin": "margin PGD-20"}, "autoattack", "AutoAttack")
    full = pd.read_csv(RESULTS / "gpu" / "classes.csv")
    found += _of_frame(full, "full width", {"pgd": "PGD-20", "apgd-ce": "APGD-CE"}, "apgd-t", "APGD-T", nested=True)
    found += _checkpoints()
    defences = {
        name: _counted(ARCHIVE / "defences" / f"{name}.csv")
        for name in ("autoattack", "seeds-apgd", "seeds", "classes")
    }
    stages = {"apgd-ce": "APGD-CE", "apgd-t": "APGD-CE, APGD-T"}
    found += _of_frame(defences["autoattack"], "quarter width", stages, "all", "AutoAttack", nested=True)
    found += _of_frame(defences["seeds-apgd"], "quarter width", {"apgd-ce": "APGD-CE"}, "all", "APGD-T", nested=True)
    both = {"pgd": "PGD-20", "margin": "margin PGD-20"}
    found += _of_frame(defences["seeds"], "quarter width", both, "all", "PGD-20, margin PGD-20", nested=True)
    found += _other_images(defences)
    for folder, names in (
        ("cifar10", ("cfa-at", "cfa-at-fawa")),
        ("fashion-mnist", [f"{recipe}-{seed}" for recipe in ("at", "cfa-at") for seed in range(3)]),
    ):
        for name in names:
            frame = _counted(ARCHIVE / folder / f"{name}.csv").assign(model=f"{folder} {name}")
            both = {"pgd": "PGD-20", "pgd-margin": "margin PGD-20"}
            found += _of_frame(frame, "short trainings", both, "all", "default suite", nested=True)
    return found


def _counted(path: Path) -> pd.DataFrame:
    """A table of fractions by class as counts, with the columns ``model``, ``class`` and ``n``."""
    frame = pd.read_csv(path).rename(columns={"label": "class"})
    if "method" in frame:
        seed = frame["seed"].astype(str) if "seed" in frame else "0"
        frame["model"] = frame["method"] + ", seed " + seed
    numbers = [name for name in frame.columns if name not in ("method", "seed", "model", "class", "n", "low", "high")]
    frame[numbers] = (frame[numbers].mul(frame["n"], axis=0)).round().astype(int)
    return frame


def _of_frame(
    frame: pd.DataFrame, study: str, attacks: dict[str, str], strongest: str, name: str, *, nested: bool | None = False
) -> list[Case]:
    return [
        Case(
            study,
            str(model),
            attack,
            name,
            _counts(rows, column),
            _counts(rows, strongest),
            nested,
            list(rows["class"]),
        )
        for column, attack in attacks.items()
        for model, rows in frame.groupby("model", sort=False)
    ]


def _counts(rows: pd.DataFrame, column: str) -> ClassCounts:
    return ClassCounts(rows["n"].to_numpy(np.int64), rows[column].to_numpy(np.int64))


def _checkpoints() -> list[Case]:
    """The checkpoints `cifar10-at` and `mnist-trades`, on 10,000 and on 1,000 test images."""
    suite, apgd = (_stages(RESULTS / "worst-class" / f"{name}.csv") for name in ("cifar10-at", "cifar10-at-apgd"))
    margin = _counted(ARCHIVE / "cifar10" / "at.csv")["pgd-margin"]
    frame = pd.DataFrame({"model": "cifar10-at", "class": CIFAR10, "n": suite.sum(axis=1)})
    frame["pgd"], frame["both"] = frame["n"] - suite["clean"] - suite["first"], suite["robust"] + suite["rest"]
    frame["suite"], frame["margin"] = suite["robust"], margin
    frame["apgd-ce"], frame["apgd-t"] = apgd["robust"] + apgd["escalation"], apgd["robust"]
    weaker = {"pgd": "PGD-20", "margin": "margin PGD-20", "suite": "default suite"}
    found = _of_frame(frame, "checkpoints", weaker, "apgd-t", "APGD-T")
    found += _of_frame(frame, "checkpoints", {"apgd-ce": "APGD-CE"}, "apgd-t", "APGD-T", nested=True)
    for name in ("cifar10-at", "mnist-trades"):
        rows = pd.read_csv(RESULTS / "two-phase" / f"{name}.csv")
        stages = pd.crosstab(rows["label"], rows["stage"]).reindex(columns=range(4), fill_value=0)
        classes = CIFAR10 if name == "cifar10-at" else [str(label) for label in stages.index]
        frame = pd.DataFrame({"model": name, "class": classes, "n": stages.sum(axis=1)})
        frame["apgd"], frame["all"] = stages[2] + stages[3], stages[3]
        found += _of_frame(frame, "checkpoints", {"apgd": "APGD-CE, APGD-T"}, "all", "AutoAttack", nested=True)
    return found


def _stages(path: Path) -> pd.DataFrame:
    """Images of each class by the attack that misclassifies them first."""
    return pd.read_csv(path).pivot_table(index="label", columns="outcome", values="images", fill_value=0).astype(int)


def _other_images(defences: dict[str, pd.DataFrame]) -> list[Case]:
    """The models whose audits of 10,000 images have PGD, and those of 1,000 images APGD or AutoAttack."""
    few = pd.concat([defences["seeds-apgd"], defences["autoattack"].query("method == 'FAAL'")])
    many = pd.concat([defences["seeds"], defences["classes"].query("method == 'FAAL'").rename(columns={"mean": "all"})])
    found = []
    for column, attack in (("pgd", "PGD-20"), ("all", "PGD-20, margin PGD-20")):
        for model, rows in many.dropna(subset=[column]).groupby("model", sort=False):
            strong = few[few["model"] == model]
            counts = _counts(rows, column), _counts(strong, "all")
            found.append(Case("quarter width", str(model), attack, "APGD-T", *counts, None, list(rows["class"])))
    return found


def cross_entropy_only(every: Iterable[Case]) -> tuple[int, int, int]:
    """Of models under cross-entropy attacks only: with another worst class, with a lower one, and all.

    Each model counts once, in the comparison with the most images; of two attacks the first of `CROSS_ENTROPY`.
    """
    once: dict[tuple[str, str], Case] = {}
    order = sorted(every, key=lambda case: (-int(case.weak.count.sum()), CROSS_ENTROPY.index(case.attack)))
    for case in order:
        once.setdefault((case.study, case.model), case)
    chosen = list(once.values())
    lower = sum(case.weak.accuracy.min() > case.strong.accuracy.min() for case in chosen)
    return sum(not case.same for case in chosen), lower, len(chosen)


def of_cross_entropy(every: Iterable[Case]) -> list[Case]:
    """The cases of cross-entropy attacks with both accuracies on the same images."""
    return [case for case in every if case.attack in CROSS_ENTROPY and case.nested is not None]


def _pooled_row(name: str, strongest: str, where: str, group: Sequence[Case]) -> list[str]:
    same = sum(case.same for case in group)
    low, high = clopper_pearson(same, len(group))
    row = [name, strongest, where, f"{same} of {len(group)}", f"[{100 * low:.0f}, {100 * high:.0f}]"]
    if any(case.nested is None for case in group):
        return [*row, NONE, NONE, NONE]
    worst, mean = np.array([[drop.value for drop in case.drops()] for case in group]).T
    return [*row, f"{in_percent(worst.mean()):.1f}", f"{in_percent(mean.mean()):.1f}", _points(student(worst - mean))]


def _points(estimate: Estimate) -> str:
    value = f"{in_percent(estimate.value):+.1f}"
    return value if np.isnan(estimate.low) else f"{value} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def pooled(every: Sequence[Case]) -> str:
    """The table of each attack, study and strongest attack, and over the studies with AutoAttack or APGD-T."""
    rows = []
    for attack in dict.fromkeys(case.attack for case in every):
        of_attack = [case for case in every if case.attack == attack]
        strong = [case for case in of_attack if case.strongest in ("AutoAttack", "APGD-T") and case.nested is not None]
        groups: dict[tuple[str, str, int, int], list[Case]] = {}
        for case in of_attack:
            key = case.study, case.strongest, int(case.weak.count.sum()), int(case.strong.count.sum())
            groups.setdefault(key, []).append(case)
        for (study, strongest, weak, images), group in groups.items():
            number = f"{weak:,} images" if weak == images else f"{weak:,} images; {strongest}: {images:,}"
            rows.append(_pooled_row(attack, strongest, f"{study}, {number}", group))
        if len({case.study for case in strong}) > 1:
            rows.append(_pooled_row(f"**{attack}**", "AutoAttack or APGD-T", "together", strong))
    head = ["attack", "strongest", "models", "same class", "95 %, percent", "worst drops by", "mean drops by"]
    return table("Weaker attacks against the strongest, over models", [*head, "worst minus mean"], rows)


def frame(every: Iterable[Case]) -> pd.DataFrame:
    """A row for each case: classes, accuracies and drops as fractions."""
    rows = []
    for case in every:
        (weak, strong), images = case.named, (case.weak, case.strong)
        row: dict[str, object] = {
            "study": case.study,
            "model": case.model,
            "attack": case.attack,
            "strongest": case.strongest,
        }
        row |= {"n": images[0].count.sum(), "n_strongest": images[1].count.sum(), "class": weak}
        row |= {
            "worst": images[0].accuracy.min(),
            "class_strongest": strong,
            "worst_strongest": images[1].accuracy.min(),
        }
        row["pairs"] = {True: "paired", False: "unpaired", None: "other images"}[case.nested]
        if case.nested is not None:
            for name, found in zip(("worst_drop", "mean_drop", "excess"), (*case.drops(), case.excess), strict=True):
                row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        rows.append(row)
    return pd.DataFrame(rows)


def run(quick: bool = False) -> str:
    """Compute the tables; unless ``quick``, write them into the page and the models into their CSV."""
    every = cases()
    another, lower, models = cross_entropy_only(of_cross_entropy(every))
    counted = (
        f"Of {models} models under attacks on the cross-entropy (each once, in the comparison with the most images), "
        f"{another} have another worst class under the strongest attack, and {lower} a lower worst-class accuracy.\n"
    )
    text = "\n".join([counted, pooled(every)])
    if not quick:
        write_csv(RESULTS / "named-class" / "models.csv", frame(every), float_format="%.4f")
        PAGE.write_text(f"{PAGE.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}\n\n{text}", encoding="utf-8")
    return text
