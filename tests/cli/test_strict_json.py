"""Every JSON file that a command writes, and all that it prints with ``--json``, is JSON: no NaN and no infinity."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

import classwise as cw
from classwise.auditing.run.audit_folder import ABOUT
from tests.auditing.test_criteria import POLICY
from tests.cli.conftest import Classwise


def strict(text: str | bytes) -> Any:
    """Parse JSON as a browser does."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def check_files(folder: Path) -> set[str]:
    """Parse every JSON file, and the JSON in the metadata of tables; returns their names."""
    found = set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        texts: list[str | bytes] = []
        if path.suffix in (".json", ".sarif"):
            texts = [path.read_text(encoding="utf-8")]
        elif path.suffix == ".jsonl":
            texts = [*path.read_text(encoding="utf-8").splitlines()]
        elif path.name == "data.js":
            texts = [strict(path.read_text(encoding="utf-8").removeprefix("const CONTENT = ").removesuffix(";\n"))]
        elif path.suffix == ".parquet":
            texts = [*(pq.read_schema(path).metadata or {}).values()]
        for text in texts:
            strict(text)
        found |= {path.name} if texts else set()
    return found


def test_files_and_results_are_strict_json(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    audit, other, policy = (tmp_path / name for name in ("audit", "other", "policy.yaml"))
    policy.write_text(yaml.safe_dump({**POLICY, "fail_if": ["overall(all) <= 0.0"]}))
    digits = ["--data=digits", "--subset=30", "--threat=Linf:0.1"]
    model = [run_folder, *digits, "--attack=fgsm"]
    commands: list[list[Any]] = [
        ["audit", *model, "--out", audit, "--split=train", "--sarif", tmp_path / "a.sarif", "--json"],
        ["audit", *model, "--attack=pgd:steps=2", "--out", other, "--save=logits", "--json"],
        ["curve", *model, "--rounds=2", "--out", tmp_path / "curve", "--json"],
        ["worst-class", *model, "--attack=pgd:steps=2", "--out", tmp_path / "worst", "--json"],
        ["compare", audit, audit, "--json"],
        ["board", audit, "--out", tmp_path / "board", "--json"],
        ["report", audit, "--out", tmp_path / "page.html", "--export=csv"],
        ["evidence", audit, "--policy", policy, "--out", tmp_path / "evidence"],
        ["view", audit, "--data=digits", "--out", tmp_path / "view"],
    ]
    for words in commands:
        done = classwise(*words)
        assert done.status in (0, 3), (words, done.err)
        if "--json" in words:
            strict(done.out)
    names = check_files(tmp_path) | check_files(run_folder)
    assert {ABOUT, "search.json", "environment.json", "validation.json", "events.jsonl", "board.json", "evidence.json",
            "manifest.json", "data.js", "a.sarif", "radii.parquet", "rounds.parquet"} <= names  # fmt: skip
    (value,) = {warning.value for warning in cw.Audit.load(audit).warnings if warning.name == "training-attack"}
    assert math.isnan(value)
    assert '"NaN"' in (audit / ABOUT).read_text()
