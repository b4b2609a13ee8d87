from __future__ import annotations

from classwise.reporting.tables import Cell, Row, Table

TABLE = Table(
    "Classes",
    ["class", "n", "all"],
    [Row("cat|dog", [Cell("1,000"), Cell("14.2", "12.1–16.5")], weak=True), Row("ship", [Cell("9"), Cell("50.0")])],
    "A note.",
)


def test_markdown_by_hand() -> None:
    assert TABLE.markdown() == (
        "### Classes\n\n"
        "| class | n | all |\n"
        "| --- | ---: | ---: |\n"
        "| **cat\\|dog** | **1,000** | **14.2 [12.1–16.5]** |\n"
        "| ship | 9 | 50.0 |\n\n"
        "A note.\n"
    )


def test_a_truncated_table_has_a_note() -> None:
    first = TABLE.first(1)
    assert [row.name for row in first.rows] == ["cat|dog"]
    assert first.note == "A note. The first 1 of 2 rows; the CSV export contains all rows."
    assert TABLE.first(2) is TABLE
