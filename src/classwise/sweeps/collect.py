"""`collect`: one table and one comparison page of the finished audits of a sweep."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from classwise.auditing.compare.comparison import Comparison, population
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.storage import write_text
from classwise.core.settings.arguments import checked
from classwise.reporting import formatting, report
from classwise.reporting.exports.export import TEXT_WIDTH, export, file_name, write_files
from classwise.reporting.facts.comparison_tables import measure_dots, measure_table
from classwise.reporting.links import viewer_link
from classwise.reporting.tables import Cell as TableCell
from classwise.reporting.tables import Row, Table
from classwise.reporting.templating import both_widths, render
from classwise.sweeps.cells import Cell, SweepFolder
from classwise.sweeps.status import cell_status, counts_text, sweep_status

PAGE = "comparison.html"
"""The page of all groups."""


@dataclass(frozen=True, eq=False)
class Group:
    """The finished audits of one name on one data set: the methods of a sweep, each with its seeds.

    Attributes:
        data: the data set that is attacked.
        audit: the name of the audit.
        threat: the threat.
        comparison: the methods, with means and intervals over seeds.
    """

    data: str
    audit: str
    threat: str
    comparison: Comparison

    @property
    def title(self) -> str:
        """The data, the audit and the threat in words."""
        return ", ".join(filter(None, (self.data, f"audit {self.audit}", self.threat)))

    @property
    def table(self) -> Table:
        """The metrics of the methods."""
        return dataclasses.replace(measure_table(self.comparison), caption=f"{self.title}: percent")

    @property
    def page(self) -> str:
        """The file name of the page of this comparison."""
        return f"comparison-{file_name('-'.join(filter(None, (self.data, self.audit, self.threat))))}.html"


@dataclass(frozen=True, eq=False)
class Collection:
    """What is finished of a sweep.

    Attributes:
        groups: a comparison for each data set, audit and threat.
        missing: of each audit that is not compared, by the names of the cell and the audit: the state of its cell, or
            that it is estimated from a sample.
        files: the written files: CSV, Markdown, the page of all groups, a page for each group, and the exports.
    """

    groups: tuple[Group, ...]
    missing: Mapping[tuple[str, str], str]
    files: tuple[Path, ...] = ()

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each group and method: the columns of `Comparison.table`, accuracies as fractions."""
        frames = []
        for group in self.groups:
            frame = group.comparison.table.reset_index()
            for place, name in enumerate(("data", "audit", "threat")):
                frame.insert(place, name, getattr(group, name))
            frames.append(frame)
        frame = pd.concat(frames, ignore_index=True)
        return frame.fillna({"teacher": ""}) if "teacher" in frame else frame

    @property
    def missing_table(self) -> Table:
        """The audits that are not compared."""
        rows = [Row(name, [TableCell(audit), TableCell(state)]) for (name, audit), state in self.missing.items()]
        return Table(f"Not compared: {len(rows)} audits", ["cell", "audit", "state"], rows)


@checked
def collect(
    folder: str | Path,
    out: str | Path | None = None,
    formats: Sequence[str] = (),
    *,
    files: str | Path | None = None,
    columns: Sequence[str] | None = None,
    width: float = TEXT_WIDTH,
    raw_csv: bool = False,
) -> Collection:
    """Compare what is finished of a sweep, grouped by data set, audit and threat.

    Methods are cells that differ in the seed only; a method has a mean and an interval over its finished seeds.

    Args:
        folder: the folder of the sweep.
        out: the folder of the files; None: ``results`` in the folder of the sweep.
        formats: also export each group in these formats, as `classwise.export` does.
        files: the folder of these exports, with a subfolder for each group; None: ``files`` in ``out``.
        columns: as of `classwise.export`.
        width: as of `classwise.export`.
        raw_csv: as of `classwise.export`.

    Returns:
        The comparisons, what is missing, and the written files: ``results.csv``, ``results.md``, ``comparison.html``,
        a page for each group, and the exports.

    Raises:
        IncompleteError: if no audit can be compared.
        ClasswiseError: if the folder contains no sweep, its plan has no audits, or an audit cannot be read or compared;
            or as `classwise.export` does.

    Example:
        >>> import tempfile
        >>> from classwise.sweeps.executors.run import prepare_sweep
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = prepare_sweep({"recipes": ["at"], "data": ["digits"]}, folder)
        ...     try:
        ...         collect(folder)
        ...     except IncompleteError as error:
        ...         print(str(error).partition("compared: ")[2])
        1 queued
    """
    sweep = SweepFolder.open(folder)
    methods: dict[tuple[str, str, str], dict[str, list[Audit]]] = {}
    missing: dict[tuple[str, str], str] = {}
    for cell in sweep.cells():
        for name in cell.audits:
            audit = audit_of(sweep, cell, name)
            if audit is None or not audit.complete:
                sampled = audit is not None and audit.finished
                missing[cell.name, name] = "estimated from a sample" if sampled else cell_status(sweep, cell).state
                continue
            key = (_data(cell, name), name, audit.outcomes.meta.threat or "")
            methods.setdefault(key, {}).setdefault(cell.method, []).append(audit)
    if not methods and not any(cell.audits for cell in sweep.cells()):
        raise ClasswiseError(f"the plan of {folder} has no audits; add them, and run the sweep again")
    if not methods:
        states = ", ".join(f"{count} {state}" for state, count in Counter(missing.values()).items())
        raise IncompleteError(f"no audit in {folder} can be compared: {states}")
    groups = tuple(
        Group(*key, Comparison({name: tuple(audits) for name, audits in audits_of.items()}))
        for key, audits_of in methods.items()
    )
    collected, place = Collection(groups, missing), Path(out or sweep.path / "results")
    exports = list[Path]()
    if formats:  # before the pages, so that an unknown format leaves nothing
        for group in groups:
            target = Path(files or place / "files") / Path(group.page).stem
            exports += export(group.comparison, target, formats, columns=columns, width=width, raw_csv=raw_csv)
    return dataclasses.replace(collected, files=(*_write(collected, sweep, place), *exports))


def audit_of(sweep: SweepFolder, cell: Cell, name: str) -> Audit | None:
    """An audit of a cell, or None if there is none."""
    folder = sweep.audit(cell, name)
    return Audit.load(folder) if (folder / ABOUT).is_file() and (folder / "outcomes").is_dir() else None


def _data(cell: Cell, name: str) -> str:
    """The name of the attacked data."""
    options = cell.audits[name]
    data = Path(str(options.get("data", cell.data))).name
    return f"{data} {options['corruption']} {options['severity']}" if "corruption" in options else data


def _write(collected: Collection, sweep: SweepFolder, out: Path) -> tuple[Path, ...]:
    files = write_files(out, ("csv",), {"results": collected.frame}, {}, {})
    texts = [group.table.markdown() for group in collected.groups]
    texts += [collected.missing_table.markdown()] if collected.missing else []
    write_text(out / "results.md", "\n".join(texts))
    write_text(out / PAGE, render("sweep.html", _context(collected, sweep, out)))
    pages = [report(group.comparison, out / group.page) for group in collected.groups]
    return (*files, out / "results.md", out / PAGE, *pages)


def _viewers(comparison: Comparison, folder: Path) -> list[tuple[str, str]]:
    """The name of each audit that has a viewer, and its address."""
    return [
        (name if len(audits) == 1 else f"{name} {number}", viewer)
        for name, audits in comparison.audits.items()
        for number, audit in enumerate(audits, 1)
        if (viewer := viewer_link(audit, folder))
    ]


def _context(collected: Collection, sweep: SweepFolder, out: Path) -> dict[str, Any]:
    """Template context of the page."""
    methods = {name for group in collected.groups for name in group.comparison.names}
    status = sweep_status(sweep.path)
    done = sum(cell.state == "finished" for cell in status)
    others = "" if done == len(status) else f": {counts_text(status)}"
    sentences = [f"{done} of {len(status)} cells are finished{others}."]
    if collected.missing:
        sentences.append("Means and intervals are over the finished seeds; the last table lists the others.")
    return {
        "title": f"Sweep: {sweep.path.name}",
        "over": ["classwise sweep", sweep.path.name],
        "headline": f"{formatting.counted(len(methods), 'method')} compared",
        "sentences": sentences,
        "groups": [
            {
                "title": group.title,
                "measures": both_widths(measure_dots, group.comparison),
                "table": group.table,
                "population": formatting.sentence(population(group.comparison.seeds)),
                "notes": group.comparison.notes,
                "page": group.page,
                "viewers": _viewers(group.comparison, out),
            }
            for group in collected.groups
        ],
        "missing": collected.missing_table,
        "population": "",
    }
