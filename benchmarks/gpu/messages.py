"""A plugin of pytest that writes a line of JSON for each test that starts and that ends, as it happens.

``pytest -p benchmarks.gpu.messages --messages FILE --without FILE``; the second file has the tests to leave out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

DETAIL = 4000
"""Characters of a traceback that are kept, from its end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--messages", type=Path, required=True)
    parser.addoption("--without", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Selection(json.loads(config.getoption("without").read_text())))
    if not hasattr(config, "workerinput"):  # xdist: its workers send their reports to the process that started them
        config.pluginmanager.register(_Messages(config.getoption("messages")))


class _Selection:
    def __init__(self, without: Sequence[str]) -> None:
        self._without = frozenset(without)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._without]


class _Messages:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def _write(self, **message: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._write(names=[item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._write(names=ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(names=[report.nodeid])
            self._write(end=report.nodeid, seconds=0.0, **_cause(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when in ("setup", "call"):
            return
        del self._reports[report.nodeid]  # after the teardown, or the end of the worker
        message: dict[str, Any] = {"result": {"passed": True}}
        for phase in reports:
            if phase.failed:
                message = _cause(phase)
                break
            if phase.skipped:
                reason = phase.longrepr[2] if isinstance(phase.longrepr, tuple) else str(phase.longrepr)
                message = {"result": {"passed": True, "skipped": reason}}
        self._write(end=report.nodeid, seconds=round(sum(phase.duration for phase in reports), 1), **message)


def _cause(report: pytest.CollectReport | pytest.TestReport) -> dict[str, str]:
    text = report.longreprtext
    crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
    lines = [line for line in (crash or text).splitlines() if line.strip()] or ["no reason was given"]
    return {"error": lines[0 if crash else -1].strip(), "detail": text[-DETAIL:]}
