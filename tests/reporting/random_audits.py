"""Random outcomes as raw rows, with statistics computed without the package's counts and intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from scipy import stats

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit

CLASSES = ("ant", "bee", "cow", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay", "kite", "lynx")
KINGDOMS = ("wild", "tame", "sea")
SITES = ("north", "south", "west")


@dataclass(frozen=True, repr=False)
class Case:
    """An audit, and its rows as plain dictionaries.

    Attributes:
        audit: the audit to report.
        right: for each attack in its order, whether each image is classified correctly.
        predicted: for each attack, the predicted class of each image; None without a prediction.
        truth: the true class of each image.
        unit: the class or group of each image, a row of the tables.
        units: names of the classes or groups.
    """

    audit: Audit
    right: dict[str, dict[int, bool]]
    predicted: dict[str, dict[int, str | None]]
    truth: dict[int, str]
    unit: dict[int, str]
    units: tuple[str, ...]

    def __repr__(self) -> str:
        meta = self.audit.outcomes.meta
        return f"Case({self.cells()}, {self.attacks}, cascade={meta.cascade}, group={self.audit.group})"

    @property
    def alpha(self) -> float:
        return self.audit.alpha

    @property
    def attacks(self) -> list[str]:
        return list(self.right)

    @property
    def attacked(self) -> bool:
        return self.attacks != ["clean"]

    @property
    def kind(self) -> str:
        return self.audit.group or "class"

    def wins(self, name: str) -> dict[int, bool]:
        """For each image, whether it survives the attack or family of this name."""
        members = [name] if name in self.right else self.members(name)
        return {image: all(self.right[member][image] for member in members) for image in self.truth}

    def members(self, name: str) -> list[str]:
        family = list(self.audit.outcomes.meta.families.get("t", ()))
        if name == "t-best":
            return [min(family, key=lambda member: sum(self.right[member].values()))]
        return family if name == "t-union" else self.attacks

    def cells(self, name: str = "all") -> dict[str, tuple[int, int]]:
        """(correct, images) of each row with images."""
        wins, found = self.wins(name), dict[str, tuple[int, int]]()
        for unit in self.units:
            images = [image for image, name in self.unit.items() if name == unit]
            if images:
                found[unit] = (sum(wins[image] for image in images), len(images))
        return found

    @cached_property
    def shares(self) -> dict[str, float]:
        return {unit: right / images for unit, (right, images) in self.cells().items()}

    @cached_property
    def lowest(self) -> list[str]:
        least = min(self.shares.values())
        return [unit for unit in self.shares if self.shares[unit] == least]

    @cached_property
    def candidates(self) -> list[str]:
        """Rows that are not significantly above any other row."""
        return [unit for unit in self.shares if not any(self.above(unit, other) for other in self.shares)]

    def above(self, one: str, other: str) -> bool:
        (a, n), (b, m) = self.cells()[one], self.cells()[other]
        if one == other or a / n <= b / m:
            return False
        level = self.alpha / (len(self.shares) - 1)
        if min(a, b, n - a, m - b) < 5:
            return bool(stats.fisher_exact(np.array([[a, n - a], [b, m - b]]), alternative="greater").pvalue < level)
        pooled = (a + b) / (n + m)
        z = (a / n - b / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
        return bool(stats.norm.sf(z) < level)

    def first_wrong(self, unit_of: dict[int, str]) -> dict[str, dict[str, int]]:
        """Class to predicted class to images, by the first wrong prediction; images without one are left out."""
        found: dict[str, dict[str, int]] = {name: {} for name in unit_of.values()}
        for image, unit in unit_of.items():
            for attack in self.attacks:
                predicted = self.predicted[attack][image]
                if not self.right[attack][image] and predicted is not None:
                    found[unit][predicted] = found[unit].get(predicted, 0) + 1
                    break
        return found

    @property
    def blank(self) -> int:
        """Misclassified images without any wrong prediction."""
        shown = sum(sum(row.values()) for row in self.first_wrong(self.truth).values())
        return sum(not win for win in self.wins("all").values()) - shown


def exact(right: int, images: int, alpha: float) -> tuple[float, float]:
    """Clopper and Pearson's interval."""
    found = stats.binomtest(right, images).proportion_ci(1 - alpha, method="exact")
    return float(found.low), float(found.high)


def usual(right: int, images: int, alpha: float) -> tuple[float, float]:
    """Wilson's interval, or Clopper and Pearson's where n p (1 - p) is below 50 or alpha is below 0.01."""
    share = right / images
    method: Any = "exact" if alpha < 0.01 or images * share * (1 - share) < 50 else "wilson"
    found = stats.binomtest(right, images).proportion_ci(1 - alpha, method=method)
    return float(found.low), float(found.high)


def lowest_ends(cells: Iterable[tuple[int, int]], alpha: float) -> tuple[float, float]:
    """The interval of the lowest accuracy of (correct, images): least bounds, of which the upper ones are corrected."""
    counted = list(cells)
    corrected = 2 * (1 - (1 - alpha / 2) ** (1 / len(counted)))
    low, high = (min(exact(*cell, level)[end] for cell in counted) for end, level in ((0, alpha), (1, corrected)))
    return low, high


def span(low: float, high: float) -> str:
    return f"{in_percent(low)}–{in_percent(high)}"


def in_percent(share: float) -> str:
    """A share in percent; halves are rounded away from zero."""
    return str(Decimal(repr(round(100 * float(share), 9))).quantize(Decimal("0.1"), ROUND_HALF_UP))


def percent(share: float) -> str:
    """Format a share: rounded, but never to 0 or 100."""
    text = in_percent(share)
    if share > 0 and text == "0.0":
        text = "< 0.1"
    if share < 1 and text == "100.0":
        text = "> 99.9"
    return f"{text} %"


def join_names(names: list[str]) -> str:
    """At most nine names, or eight and the number of the others."""
    if len(names) > 9:
        return ", ".join(names[:8]) + f" and {len(names) - 8} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_SIZES = st.sampled_from((0, 0, 1, 2, 3, 7, 30, 120))
_SHARES = st.sampled_from((0.0, 0.02, 0.1, 0.3, 0.5, 0.9, 1.0))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """1 to 12 classes, some empty; accuracies from 0 to 1; non-finite logits; families; cascades; other groupings."""
    number = draw(st.integers(1, 12))
    names = CLASSES[:number]
    sizes = draw(st.lists(_SIZES, min_size=number, max_size=number).filter(any))
    attacks = draw(st.sampled_from(((), ("pgd",), ("pgd", "cw"), ("t[2]", "t[5]"), ("pgd", "t[2]", "t[5]"))))
    clean = draw(st.booleans()) or not attacks
    order = (["clean"] if clean else []) + list(attacks)
    if draw(st.booleans()):  # classes that tie
        share = draw(_SHARES)
        robust = {attack: [share] * number for attack in order}
    else:
        shares = st.lists(_SHARES, min_size=number, max_size=number)
        robust = {attack: draw(shares) for attack in order}
    lost = draw(st.sampled_from((0.0, 0.0, 0.1, 1.0)))
    cascade = bool(attacks) and draw(st.booleans())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = np.repeat(np.arange(number), sizes)
    right, predictions = dict[str, Any](), dict[str, Any]()
    for attack in order:
        place = np.concatenate([np.arange(size) / max(size, 1) for size in sizes])
        good = place < np.asarray(robust[attack])[labels] - 1e-9
        away = random.integers(1, max(number, 2), len(labels))
        right[attack] = good if number > 1 else np.ones(len(labels), bool)
        predictions[attack] = np.where(right[attack], labels, (labels + away) % number)
    families = {"t": ("t[2]", "t[5]")} if "t[5]" in attacks else {}
    about: dict[str, Any] = {"model": "net", "model_hash": "ab" * 32, "threat": "Linf:8/255", "families": families}
    superclass = draw(st.booleans())
    if superclass:
        about |= {"superclasses": tuple(label % 3 for label in range(number)), "superclass_names": KINGDOMS}
    whole = Outcomes.from_predictions(
        labels,
        predictions.get("clean"),
        {attack: predictions[attack] for attack in attacks},
        names,
        **about,
    )
    frame, gone = whole.frame.copy(), np.zeros(len(labels), bool)
    for attack in order:
        rows = frame["attack"] == attack
        blank = (random.random(len(labels)) < lost) & ~right[attack]
        status = np.where(blank, "nan", "ok")
        if cascade:
            blank, status = blank | gone, np.where(gone, "skipped", status)
            right[attack] = right[attack] & ~gone
            gone |= ~right[attack]
        frame.loc[rows, "correct"] = right[attack]
        frame.loc[rows, "status"] = status
        frame.loc[rows, "prediction"] = pd.array(np.where(blank, -1, predictions[attack]), "Int64")
    frame.loc[frame["prediction"] == -1, "prediction"] = pd.NA
    outcomes = Outcomes(frame, whole.meta.stating(cascade=cascade))
    group = draw(st.sampled_from((None, None, "site", "superclass") if superclass else (None, None, "site")))
    sites = random.integers(0, len(SITES), len(labels))
    if group == "site":
        outcomes = outcomes.add_groups("site", sites, SITES)
    raw = outcomes.frame
    unit = {
        image: {None: names[label], "site": SITES[sites[image]], "superclass": KINGDOMS[label % 3]}[group]
        for image, label in enumerate(labels.tolist())
    }
    return Case(
        audit=Audit(outcomes, group=group, alpha=draw(st.sampled_from((0.05, 0.05, 0.1, 0.01)))),
        right={attack: _column(raw, attack, "correct", bool) for attack in order},
        predicted={
            attack: _column(raw, attack, "prediction", lambda value: None if pd.isna(value) else names[int(value)])
            for attack in order
        },
        truth={image: names[label] for image, label in enumerate(labels.tolist())},
        unit=unit,
        units={None: names, "site": SITES, "superclass": KINGDOMS}[group],
    )


def _column(frame: pd.DataFrame, attack: str, column: str, read: Callable[[Any], Any]) -> dict[int, Any]:
    rows = frame[frame["attack"] == attack]
    return {int(index): read(value) for index, value in zip(rows["index"], rows[column], strict=True)}


def pairs_inside(row: dict[str, dict[str, int]], names: tuple[str, ...]) -> tuple[int, int, float]:
    """Errors, errors within the superclass, and the expected share within it of uniform errors."""
    kingdom = {name: place % 3 for place, name in enumerate(names)}
    errors = [(name, other, count) for name, found in row.items() for other, count in found.items()]
    total = sum(count for *_, count in errors)
    inside = sum(count for name, other, count in errors if kingdom[name] == kingdom[other])
    same = {
        name: sum(kingdom[name] == kingdom[other] for other in names if other != name) / (len(names) - 1)
        for name, _ in itertools.product(row, [0])
        if len(names) > 1
    }
    return total, inside, sum(count * same[name] for name, _, count in errors) / total if total else math.nan
