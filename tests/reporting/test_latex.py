"""Tables as LaTeX."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from classwise.reporting import export
from classwise.reporting.escape import latex_text
from classwise.reporting.tables import Cell, Row, Table

from .conftest import MakeAudit


def test_a_table_of_booktabs() -> None:
    rows = [Row("cat", [Cell("12.0", "8.1\u201317.0"), Cell("3")], weak=True), Row("R&D", [Cell("50 %"), Cell("")])]
    assert Table("Accuracy_1", ("class", "all, %", "n"), rows, "n < 5.").latex().splitlines() == [
        r"% requires \usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\caption{Accuracy\_1}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"class & all, \% & n \\",
        r"\midrule",
        r"\textbf{cat} & \textbf{12.0 {[}8.1--17.0{]}} & \textbf{3} \\",
        r"R\&D & 50 \% &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize n \textless{} 5.",
        r"\end{table}",
    ]


@pytest.mark.parametrize("text", ["\\input{x}", "a & b", "100%", "$x$", "#1", "_^~", "{", "[5]", "\u202e", '<|>"'])
def test_no_character_is_special(text: str) -> None:
    """Outside the known escapes nothing is left that LaTeX would interpret."""
    commands = "backslash|asciitilde|asciicircum|less|greater|bar|quotedbl|[lr]angle"
    left = re.sub(rf"\\text({commands})\{{\}}", "", latex_text(text))
    left = re.sub(r"\\[&%$#_{}]", "", left).replace("{[}", "").replace("{]}", "")
    assert not set(left) & set('\\&%$#_{}~^[]<>|"\u202e')


def test_it_is_an_export_format(make_audit: MakeAudit, tmp_path: Path) -> None:
    written = export(make_audit(names=("a_b", "c", "d", "e")), tmp_path, ("tex",))
    assert [path.name for path in written] == ["classes.tex", "attacks.tex"]
    text = written[0].read_text(encoding="utf-8")
    assert r"a\_b" in text
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert columns is not None
    for line in body.splitlines()[1:]:
        assert len(re.findall(r"(?<!\\)&", line)) == len(columns[1]) - 1
