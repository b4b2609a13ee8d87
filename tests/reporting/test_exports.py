from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from classwise.auditing.compare.compare import compare
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.files.csv_files import original_text
from classwise.reporting import export
from classwise.reporting.exports.export import file_name
from classwise.reporting.svg import Drawing
from classwise.stats.registry import all_metrics
from tests.refusals import check_refused

from .conftest import SUPERCLASSES, MakeAudit
from .sample_pages import sample_curve


def test_tables_and_figures_are_written_and_listed(make_audit: MakeAudit, tmp_path: Path) -> None:
    written = export(make_audit(accuracy=(0.6, 0.7, 0.3, 0.1), meta=SUPERCLASSES), tmp_path, ("csv", "md", "svg"))
    assert sorted(written) == sorted(tmp_path.iterdir())
    assert {
        "classes.csv",
        "attacks.md",
        "confusion-all.csv",
        "confusion-pgd.csv",
        "classes.svg",
        "errors-all.svg",
    } <= {path.name for path in written}
    classes = pd.read_csv(tmp_path / "classes.csv").set_index("class")
    assert classes.loc["cat", "all"] == 0.1
    assert (classes["all_low"] < classes["all"]).all()
    assert pd.read_csv(tmp_path / "confusion-all.csv").set_index("truth").loc["cat", "airplane"] == 90
    assert "| **cat** | **100** |" in (tmp_path / "classes.md").read_text(encoding="utf-8")


def test_a_row_for_each_image(tmp_path: Path) -> None:
    names = ["=1+1", 'a,"b"\r\n.png', None]
    outcomes = Outcomes.from_predictions([0, 1, 1], [0, 1, 0], {"pgd": [1, 1, 0]}, ["cat", "dog"], image_names=names)
    outcomes = outcomes.add_groups("light", [0, 1, 1], ["dark", "-bright"])
    frame = outcomes.frame
    missing = frame.assign(prediction=frame["prediction"].mask((frame["attack"] == "pgd") & (frame["index"] == 2)))
    audit = Audit(Outcomes(missing, outcomes.meta))
    export(audit, tmp_path, ("csv", "md"))
    assert not (tmp_path / "images.md").exists()
    head, *rows = csv.reader(io.StringIO((tmp_path / "images.csv").read_bytes().decode(), newline=""))
    assert head[:4] == ["index", "name", "class", "light"]
    assert [[*map(original_text, row[1:4])] for row in rows] == [
        ["=1+1", "cat", "dark"], [names[1], "dog", "-bright"], ["", "dog", "-bright"],
    ]  # fmt: skip
    assert rows[0][1] == "'=1+1"
    table = pd.read_csv(tmp_path / "images.csv")
    for name in audit.names:
        assert table[name].mean() == audit.by_attack.loc[name, "overall"]
    assert table["pgd_predicted"].tolist()[:2] == ["dog", "dog"]
    assert table["pgd_predicted"].isna().tolist() == [False, False, True]


@pytest.mark.slow
def test_only_the_requested_formats_are_written(make_audit: MakeAudit, tmp_path: Path) -> None:
    assert {path.suffix for path in export(make_audit(), tmp_path, ("pdf",))} == {".pdf"}


def test_an_unknown_format_is_refused_before_writing(make_audit: MakeAudit, tmp_path: Path) -> None:
    check_refused(r"unknown format 'pgn'; did you mean 'png'\?", export, make_audit(), tmp_path / "out", ("csv", "pgn"))
    assert not (tmp_path / "out").exists()


def test_export_of_a_comparison(make_audit: MakeAudit, tmp_path: Path) -> None:
    one, two = make_audit(accuracy=(0.6, 0.6, 0.3, 0.1)), make_audit(accuracy=(0.6, 0.6, 0.3, 0.3))
    written = export(compare({"old": one, "new": two}), tmp_path, ("csv", "md", "svg"))
    assert sorted(written) == sorted(tmp_path.iterdir())
    difference = pd.read_csv(tmp_path / "difference-new.csv").set_index("class")
    assert difference.loc["cat", "difference"] == pytest.approx(0.2)
    assert pd.read_csv(tmp_path / "methods.csv").set_index("method").loc["new", "worst"] == pytest.approx(0.3)
    assert pd.read_csv(tmp_path / "classes.csv").columns.tolist()[:3] == ["class", "n", "old_mean"]
    assert not (tmp_path / "accuracies.svg").exists(), "two methods are no frontier"
    export(compare({"old": one, "new": two, "other": one}), tmp_path, ("svg",))
    assert ">other<" in (tmp_path / "accuracies.svg").read_text(encoding="utf-8")


def test_the_figure_of_methods_states_the_images_of_the_worst_class(tmp_path: Path) -> None:
    """Not those of all classes, as beside the overall accuracy."""
    labels = np.repeat([0, 1], [30, 7])
    attacked = np.where(np.arange(37) < 33, labels, 0)
    audits = [Audit(Outcomes.from_predictions(labels, labels, {"pgd": attacked})) for _ in range(2)]
    export(compare(dict(zip("ab", audits, strict=True))), tmp_path, ("svg",))
    text = (tmp_path / "methods.svg").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert "Worst class, a: 42.9 % of 7" in text
    assert "Overall, a: 89.2 % of 37" in text


def test_latex_tables_of_an_audit_fit_a_text_width(make_audit: MakeAudit, tmp_path: Path) -> None:
    """By default few columns; Markdown tables have all. The first head may be named."""
    audit = make_audit(accuracy=(0.6, 0.7, 0.3, 0.1))
    export(audit, tmp_path / "default", ("md", "tex"))
    export(audit, tmp_path / "chosen", ("tex",), columns=["class", "pgd", "n"])
    latex = (tmp_path / "default" / "classes.tex").read_text(encoding="utf-8")
    assert "class & n & clean & all \\\\\n" in latex
    assert r"\label{tab:classes}" in latex
    attacks = (tmp_path / "default" / "attacks.tex").read_text(encoding="utf-8")
    assert "attack & overall & worst class & worst \\\\\n" in attacks
    assert "| class | n | clean | pgd | cw | all |" in (tmp_path / "default" / "classes.md").read_text(encoding="utf-8")
    assert "class & pgd & n \\\\\n" in (tmp_path / "chosen" / "classes.tex").read_text(encoding="utf-8")


def test_every_table_states_what_is_bold(make_audit: MakeAudit, tmp_path: Path) -> None:
    """No class is bold if several have the lowest accuracy."""
    one, two, tied = (make_audit(accuracy=(0.6, 0.7, *low)) for low in ((0.3, 0.1), (0.6, 0.6), (0.1, 0.1)))
    results: dict[str, Any] = {"one": one, "tied": tied, "curve": sample_curve()}
    results |= {"few": compare({"one": one, "tied": tied}), "many": compare({"one": one, "two": two})}
    for name, result in results.items():
        for file in export(result, tmp_path / name, ("tex", "md")):
            text = file.read_text(encoding="utf-8")
            assert ("Bold: " in text) == (r"\textbf" in text or "**" in text), file
    classes = (tmp_path / "tied" / "classes.md").read_text(encoding="utf-8")
    assert "No class is in bold, since 2 classes tie for the lowest accuracy under all attacks." in classes
    assert "| **cat** |" in (tmp_path / "one" / "classes.md").read_text(encoding="utf-8")


def test_every_table_states_data_threat_and_attacks(make_audit: MakeAudit, tmp_path: Path) -> None:
    one = make_audit(accuracy=(0.6, 0.7, 0.3, 0.1))
    compared = {attack: compare({"one": one, "two": one}, attack=attack) for attack in ("all", "pgd", "clean")}
    under = {"pgd": "threat Linf:8/255; attacks pgd", "clean": "no attack"}
    results: dict[str, Any] = {"audit": one, **compared}
    for name, result in results.items():
        stated = f"images, 4 classes; {under.get(name, 'threat Linf:8/255; attacks pgd, cw')}"
        for file in export(result, tmp_path / name, ("tex", "md")):
            assert f"{stated}." in file.read_text(encoding="utf-8"), file
        if name in compared:
            assert any(line.endswith(stated) for line in str(result).splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("width", [430, 240])
def test_figures_are_drawn_for_print(make_audit: MakeAudit, tmp_path: Path, width: float) -> None:
    """No figure is wider than asked for, so that LaTeX includes it without scaling its texts."""
    audit = make_audit(accuracy=(0.6, 0.7, 0.3, 0.1))
    several = compare({"one": audit, "two": make_audit(), "three": make_audit(seed=1)})
    results: dict[str, Any] = {"audit": audit, "several": several, "curve": sample_curve()}
    for name, result in results.items():
        for file in export(result, tmp_path / name, ("pdf",), width=width):
            (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", file.read_bytes())
            assert 0.8 * width <= float(box) <= width + 0.01 or "confusion" in file.stem or "errors" in file.stem, file
            assert float(box) <= width + 0.01


@pytest.mark.parametrize("width", [0, 119, float("nan"), 1e9])
def test_a_width_out_of_range_is_refused(make_audit: MakeAudit, tmp_path: Path, width: float) -> None:
    check_refused("width: must be from 120 to 1200 points", export, make_audit(), tmp_path / "x", ("md",), width=width)


def test_a_wide_drawing_is_scaled_down(tmp_path: Path) -> None:
    drawing = Drawing.titled(800, 400, "A title")
    drawing.save(tmp_path / "half.svg", 400)
    drawing.save(tmp_path / "half.pdf", 400)
    drawing.save(tmp_path / "whole.svg", 4000)
    half, whole = (read_svg(tmp_path / f"{name}.svg") for name in ("half", "whole"))
    assert half == ("0 0 800 400", "400", "200")
    assert whole == ("0 0 800 400", "800", "400")
    assert b"/MediaBox [ 0 0 300 150 ]" in (tmp_path / "half.pdf").read_bytes()


def read_svg(file: Path) -> tuple[str | None, ...]:
    root = ET.parse(file).getroot()
    return tuple(root.get(name) for name in ("viewBox", "width", "height"))


def test_chosen_columns(make_audit: MakeAudit, tmp_path: Path) -> None:
    """In the chosen order, by heads without regard to case; a table without any of them, and CSV, keep theirs."""
    comparison = compare({"old": make_audit(), "new": make_audit()})
    export(comparison, tmp_path / "all", ("csv", "md", "tex"))
    export(comparison, tmp_path / "two", ("csv", "md", "tex"), columns=["Worst", "mcd", "overall"])
    whole, chosen = ((tmp_path / name / "methods.md").read_text(encoding="utf-8") for name in ("all", "two"))

    def cells(text: str) -> list[list[str]]:
        return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]

    heads = cells(whole)[0]
    places = [0, *(heads.index(name) for name in ("worst", "MCD", "overall"))]
    assert cells(chosen) == [[row[place] for place in places] for row in cells(whole)]
    latex = (tmp_path / "two" / "methods.tex").read_text(encoding="utf-8")
    assert r"\begin{tabular}{lrrr}" in latex
    for name in ("methods.csv", "classes.csv", "classes.tex", "difference-new.md"):
        assert (tmp_path / "all" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    check_refused(
        "unknown column 'overal'; did you mean 'overall'",
        export,
        comparison,
        tmp_path / "no",
        ("md",),
        columns=["overal"],
    )
    assert not (tmp_path / "no").exists()


def test_the_text_below_a_table_explains_the_columns_that_it_has(make_audit: MakeAudit, tmp_path: Path) -> None:
    """Each metric is defined where it has a column, and named nowhere else."""
    audit = make_audit(accuracy=(0.6, 0.7, 0.3, 0.1))
    for stem, result in (("attacks", audit), ("methods", compare({"old": audit, "new": audit}))):
        export(result, tmp_path / "all", ("md",))
        export(result, tmp_path / "two", ("md",), columns=["worst", "MCD"])
        whole, narrow = ((tmp_path / name / f"{stem}.md").read_text(encoding="utf-8") for name in ("all", "two"))
        for metric in all_metrics().values():
            if metric.name not in ("overall", "macro", "worst"):
                definition = f"{metric.title[:1].upper()}{metric.title[1:]}: "
                assert definition in whole.replace("\u00a0", " ")
                assert (definition in narrow.replace("\u00a0", " ")) == (metric.title == "MCD"), (stem, metric.title)
        for absent in ("HMW", "asymmetry", "variance"):
            assert absent in whole
            assert absent not in narrow
        assert "interval of the lowest class accuracy" in narrow


@pytest.mark.parametrize(
    ("name", "expected"), [("tpgd[5]", "tpgd-5"), ("a/b c", "a-b-c"), ("pgd", "pgd"), ("/", "unnamed")]
)
def test_names_become_file_names(name: str, expected: str) -> None:
    assert file_name(name) == expected


def test_names_that_become_one_file_name_have_files_of_their_own(make_audit: MakeAudit, tmp_path: Path) -> None:
    one = make_audit(accuracy=(0.6, 0.7, 0.3, 0.1))
    written = export(compare({"at": one, "a/b": one, "a b": one}), tmp_path, ("csv",))
    assert {"difference-a-b.csv", "difference-a-b-2.csv"} <= {path.name for path in written}
    outcomes = Outcomes.from_predictions([0, 1], attacks={"p q": [0, 1], "p-q": [1, 1]})
    export(Audit(outcomes), tmp_path, ("csv",))
    assert pd.read_csv(tmp_path / "confusion-p-q-2.csv")["1"].tolist() == [1, 1]
