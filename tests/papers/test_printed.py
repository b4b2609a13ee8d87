"""Metrics recompute from the printed rows, and the misprints that they show."""

from __future__ import annotations

import numpy as np
import pytest

from classwise.papers import catalogue
from classwise.papers.settings import printed_under
from classwise.papers.tables import printed_parts, printed_table, recompute, row_name, summary_table
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metrics
from classwise.stats.counts import ClassCounts
from classwise.stats.ranks import spearman_matrix


def test_table_1_agrees_except_for_one_misprint() -> None:
    rows = catalogue.printed_rows("kdd21/T1")
    assert len(rows) == 20
    wrong = [row_name(row) for row in rows if not _agrees(row)]
    assert wrong == ["MART, transfer"]
    corrected = dict(next(row for row in rows if row_name(row) == "MART, transfer"))
    corrected["per_class"] = [*corrected["per_class"][:9], 90.2]
    assert _agrees(corrected)


@pytest.mark.parametrize(("item", "count"), [("kdd21/T3", 5), ("iclr21/T2", 20)])
def test_the_other_tables_agree(item: str, count: int) -> None:
    rows = catalogue.printed_rows(item)
    assert len(rows) == count
    assert all(_agrees(row) for row in rows)


def _agrees(row: object) -> bool:
    again = recompute(row)  # type: ignore[arg-type]  # a row of the facts
    assert again is not None
    return again.agrees


def test_recomputed_by_hand() -> None:
    """Classes 10 and 30: mean 20, variance 100, difference 20."""
    assert recompute({"per_class": [10, 30]}) == pytest.approx((20, 100, 20, True))
    assert recompute({"method": "AT"}) is None
    again = recompute({"per_class": [10, 30], "mcd": 20.2})
    assert again is not None
    assert not again.agrees


def table_of(item: str) -> Table:
    table = printed_table(item)
    assert table is not None
    return table


def test_tables_of_every_form() -> None:
    big, main = table_of("kdd21/T1"), table_of("cfa23/T1")
    assert [row.name for row in big.rows if row.weak] == ["MART, transfer"]
    assert "1 of 20 rows" in big.note
    assert (main.rows[0].name, main.rows[0].cells[0].text) == ("AT", "82.3 / 63.9")
    assert main.heads[1:3] == ("clean best, average / worst", "clean best std, average / worst")
    assert table_of("iclr21/T6").heads == ("row", "tot, 1/T = 1, 5, 10, 50, 75, 100, 125, 150, 200, 300")
    assert "predicted as class, class 0 to 9" in table_of("kdd21/T4").heads
    assert printed_table("cfa23/F1") is None


def test_printed_numbers_name_their_conditions() -> None:
    """Data set, network, attack and radius of the paper; those that differ at the scale of the measured numbers."""
    rows = [Row(name, [Cell("1"), Cell("2"), Cell("3")]) for name in ("AT", "AT, printed", "as printed")]
    table = Table("", ("method", "clean", "printed, clean", "printed"), rows)
    under = "cifar10, preactresnet18, AutoAttack, Linf:8/255"
    parts = printed_parts(table, "cfa23/T2", "small")
    assert parts.columns == {2: "cifar10, preactresnet18", 3: under}
    assert parts.rows == {"AT, printed": under}
    assert parts.differs == "data set, network, network width, threat, attacks"
    assert parts.notes()[-1] == f"other than measured: {parts.differs}"
    assert printed_parts(table, "cfa23/T2", "full").differs == ""
    assert printed_parts(table, "cfa23/T2", "smoke").differs == "scale"
    assert printed_parts(Table("", ("row", "measured"), rows[:1]), "cfa23/T2", "small").notes() == []
    assert printed_under("cfa23/F6") == ("cifar10, preactresnet18", "attack not named, Linf:8/255")
    assert printed_under("iclr21/T5")[1] == "PGD-20, Linf:0.031"
    assert printed_under("kdd21/T3")[1] == "Temperature-PGD-20, Linf:0.031"


def test_printed_extreme_classes() -> None:
    """Measured: 1 of 2 birds and both cats; printed: the third class lowest, the second highest."""
    counts = ClassCounts.from_labels(np.array([0, 0, 1, 1]), np.array([True, False, True, True]), 2)
    table = summary_table("", {"AT": counts}, [{"method": "AT", "per_class": [20, 30.5, 10]}], ("bird", "cat"))
    cells = [cell[:2] for cell in table.rows[0].cells[-4:]]
    assert cells == [("bird", "50.0"), ("class 2", "10"), ("cat", "100.0"), ("class 1", "30.5")]
    tied = ClassCounts.from_labels(np.array([0, 1]), np.array([False, False]), 2)
    table = summary_table("", {"AT": tied}, [{"method": "AT", "per_class": [20, 20]}], ("bird", "cat"))
    assert {cell[:2] for cell in table.rows[0].cells[6::2]} == {("bird and cat", "0.0")}
    assert {cell[:2] for cell in table.rows[0].cells[7::2]} == {("classes 0 and 1", "20")}
    unprinted = summary_table("", {"AT": counts}, [], ("bird", "cat")).rows[0].cells
    assert {cell.text for cell in unprinted[1::2]} == {"–"}


def test_vulnerable_classes_are_those_of_the_paper() -> None:
    """kdd21 Definition 3.3 under PGD: classes 2, 3, 4, 5 for all four defences."""
    found = [np.array(row["per_class"]) / 100 for row in catalogue.printed_rows("kdd21/T1") if row["attack"] == "PGD"]
    vulnerable = [metrics.vulnerable_classes(a, metrics.overall_macro(a)) for a in found]
    assert [np.flatnonzero(classes).tolist() for classes in vulnerable] == [[2, 3, 4, 5]] * 4


def test_metrics_of_rows_without_printed_metrics() -> None:
    """CV and MCD of the CW rows of iclr21 Table 2, and of the sums of the changes and Madry's row in its Table 5."""
    attacked = {
        row["defence"]: row["per_class"] for row in catalogue.printed_rows("iclr21/T2") if row["attack"] == "CW_inf"
    }
    small = {row["defence"]: row for row in catalogue.printed_rows("iclr21/T5")}
    base = np.array(small["Madry"]["per_class"])
    sums = {defence: base + np.array(row.get("d_per_class", np.zeros(10))) for defence, row in small.items()}
    for rows, expected in (
        (attacked, {"Madry": (245.8, 47.0), "TRADES": (297.3, 51.0), "MART": (371.5, 53.0)}),
        (sums, {"Madry": (284.4, 52.8), "HE": (214.8, 42.9), "HE-LIS": (139.8, 34.5), "HE-CMP": (123.6, 32.4)}),
    ):
        for defence, metrics_of_row in expected.items():
            again = recompute({"per_class": rows[defence]})
            assert again is not None
            assert (again.cv, again.mcd) == pytest.approx(metrics_of_row, abs=0.05 + 1e-6)


def test_rank_consistency_of_the_printed_rows() -> None:
    """190 pairs: minimum 0.77, median 0.93, mean 0.92 (note 8.1)."""
    rows = [row["per_class"] for row in catalogue.printed_rows("kdd21/T1")]
    found = spearman_matrix(rows)[np.triu_indices(20, k=1)]
    assert len(found) == 190
    assert [round(float(value), 2) for value in (found.min(), np.median(found), found.mean())] == [0.77, 0.93, 0.92]


def test_drops_of_the_printed_rows() -> None:
    """FGSM to PGD for Madry: 14.3 on classes 2 to 5, 12.7 on the others (note 8.3)."""
    rows = {row_name(row): np.array(row["per_class"]) for row in catalogue.printed_rows("kdd21/T1")}
    drop = rows["Madry, FGSM"] - rows["Madry, PGD"]
    assert drop[2:6].mean() == pytest.approx(14.3, abs=0.05)
    assert np.delete(drop, [2, 3, 4, 5]).mean() == pytest.approx(12.7, abs=0.05)
