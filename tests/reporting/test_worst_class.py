"""Every statement on the page of a worst-class search, recomputed from the result."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.worst_class.result import WorstClass
from classwise.reporting.pages.worst_class import class_table, cost, worst_class_headline, worst_class_page
from classwise.stats.best_arm import WorstClassVerdict


def result_of(
    names: tuple[str, ...], estimates: list[float], possibly: set[int], *, settled: bool = True, full: float = 1000.0
) -> WorstClass:
    """A search on ten images a class, of which each took 2 + 3 passes."""
    estimate = np.array(estimates)
    worst = int(estimate.argmin())
    low, high = np.clip(estimate - 0.1, 0, 1), np.clip(estimate + 0.1, 0, 1)
    verdict = WorstClassVerdict(
        worst=worst,
        possibly=tuple(sorted({worst, *possibly})),
        estimate=float(estimate[worst]),
        low=float(low[worst]),
        high=float(high[worst]),
        settled=settled,
        unsettled=3 * len(names),
        alpha=0.01,
        tolerance=0.02,
        new_images=(float(low[worst]) / 2, (1 + float(high[worst])) / 2),
    )
    columns = {"n": 10, "clean": 0.9, "first": 0.8, "estimate": estimate, "low": low, "high": high, "unsettled": 3}
    table = pd.DataFrame(columns, index=pd.Index(names, name="class"))
    table["may_be_worst"] = np.isin(range(len(names)), verdict.possibly)
    images = pd.DataFrame({"forwards": np.full(10 * len(names), 2), "backwards": 3})
    attacks = {"clean": None, "apgd-ce": {"name": "apgd-ce", "steps": 5}, "square": {"name": "square"}}
    meta = Meta.of(class_names=names, attacks=attacks, data="toy", split="test", model="net", threat="Linf:0.1", seed=4)
    return WorstClass(verdict, table, images, meta, full_audit_passes=full, rounds=7, seconds=1.5)


def visible(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page))).replace("\u00a0", " ")


@settings(max_examples=40, deadline=None)
@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=60),
    others=st.sets(st.integers(0, 59)),
    settled=st.booleans(),
    full=st.floats(10, 1e6),
)
def test_every_statement(shares: list[float], others: set[int], settled: bool, full: float) -> None:
    names = tuple(f"kind {label}" for label in range(len(shares)))
    result = result_of(names, shares, {label for label in others if label < len(names)}, settled=settled, full=full)
    text = visible(worst_class_page(result))
    lowest = int(np.argmin(shares))

    headline = "".join(worst_class_headline(result))
    if len(names) == 1:
        assert headline == "The only class with images is kind 0"
    elif len(result.possibly) == 1:
        assert headline == f"The worst class is {names[lowest]}"
    else:
        assert headline.startswith(f"The worst class is one of {len(result.possibly)}: {result.possibly[0]}")
    assert f"Lowest estimated robust accuracy: {names[lowest]}, " in text
    low, high = (np.clip(shares[lowest] + step, 0, 1) for step in (-0.1, 0.1))
    name = "99 % interval of the lowest class accuracy, whichever class it is"
    these, new = f"{100 * low:.1f}–{100 * high:.1f}", f"{50 * low:.1f}–{50 + 50 * high:.1f}"
    assert f"{name}: {these} % of these {10 * len(names)} images, {new} % of new images." in text
    assert f"{result.sentence[1:]}." in text
    assert f"took {50 * len(names):,} passes of one image each in 7 rounds of sampling" in text
    saved = float(
        re.findall(r"; the search saved (?:[<>] )?([\d.]+) % of them\.", cost(result).replace("\u00a0", " "))[0]
    )
    assert abs(saved - max(100 * (1 - 50 * len(names) / full), 0)) <= 1
    assert ("The figure shows the 40 classes with the lowest estimates." in text) == (len(names) > 40)
    assert ("Finished no: the search was stopped" in text) == (not settled)

    table = class_table(result)
    order = [row.name for row in table.rows]
    assert [shares[names.index(name)] for name in order] == sorted(shares)
    assert {row.name for row in table.rows if row.weak} == set(result.possibly)
    assert all(row.cells[-1].text == ("yes" if row.weak else "") for row in table.rows)
    assert {row.cells[2].text for row in table.rows} == {"80.0"}
    assert table.heads[3] == "apgd-ce, %"
    assert "Attack apgd-ce apgd-ce:steps=5" in text
    assert "Tolerance 2 points" in text


def test_a_class_without_images_is_not_shown() -> None:
    result = result_of(("cat", "dog", "ship"), [0.2, 0.5, 0.9], set())
    result.by_class.loc["ship", ["n", "estimate", "low", "high"]] = [0, np.nan, np.nan, np.nan]
    assert [row.name for row in class_table(result).rows] == ["cat", "dog"]
    assert "ship" not in visible(worst_class_page(result))
