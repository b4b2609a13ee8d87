"""``classwise view``: where it writes, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import classwise as cw

from .conftest import Classwise


@pytest.fixture
def audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    labels = np.repeat([0, 1], 20)
    for name, wrong in (("a", 5), ("b", 8)):
        predicted = np.where(np.arange(40) % 20 < wrong, 1 - labels, labels)
        outcomes = cw.Outcomes.from_predictions(labels, labels, {"pgd": predicted}, threat="Linf:0.1")
        cw.Audit(outcomes).save(tmp_path / name)
    return tmp_path


def test_a_viewer_is_written_beside_its_audit_or_to_a_folder(audits: Path, classwise: Classwise) -> None:
    assert classwise("report", "a").status == 0
    assert classwise("view", "a").out.strip() == "page: a/view/index.html"
    page = audits / "a/page.html"
    assert 'href="view/index.html#attack=pgd&amp;group=1"' in page.read_text()
    assert classwise("report", "a", "--out", "other/page.html").status == 0
    assert 'href="../a/view/index.html"' in (audits / "other/page.html").read_text()
    assert classwise("board", "a", "b", "--out", "board").status == 0
    assert 'href="../a/view/index.html" title=' in (audits / "board/index.html").read_text()
    assert "../b/view" not in (audits / "board/index.html").read_text()
    assert classwise("view", "first=a", "second=b", "--out", "site").out.strip() == "page: site/index.html"
    assert "second compared with first" in (audits / "site/index.html").read_text()


def test_missing_images_are_reported(audits: Path, classwise: Classwise, caplog: pytest.LogCaptureFixture) -> None:
    assert classwise("view", "a").status == 0
    assert "Clean images have a placeholder, since the audit names no data set of classwise" in caplog.text
    caplog.clear()
    data = cw.Images(np.zeros((40, 1, 2, 2), dtype=np.float32), np.repeat([0, 1], 20))
    outcomes = cw.Audit.load(audits / "a").outcomes
    meta = dataclasses.replace(outcomes.meta, data_hash=data.fingerprint())
    cw.Audit(cw.Outcomes(outcomes.frame, meta)).save(audits / "known")
    np.savez(audits / "known.npz", x=data.x.numpy(), y=data.y.numpy())
    assert classwise("view", "known", "--data", "known.npz").status == 0
    assert not caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "is required for two audits"),
        (["a", "b", "a", "--out", "site"], "audits: 3 are given; a viewer shows one or two"),
        (["x=a", "x=b", "--out", "site"], "'x' names 2 audits"),
        (["a", "--data", "digits"], "data: not the audited images"),
        (["a", "--out", "b"], "b contains other files"),
        (["missing", "--out", "site"], "missing"),
    ],
)
def test_what_is_refused(audits: Path, classwise: Classwise, words: list[str], message: str) -> None:
    assert message in classwise("view", *words).refusal
    assert not (audits / "site").exists()
