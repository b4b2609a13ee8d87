"""Model cards of evidence reports, read by huggingface_hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import classwise as cw
from classwise.reporting.evidence import build
from tests.auditing.test_criteria import written
from tests.reporting.test_card import metadata_of
from tests.reporting.test_evidence import saved

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed; run make test-integrations")

Compatibility = Callable[[str, str, str], None]


def test_the_hub_reads_the_metadata_of_a_card(tmp_path: Path, compatibility: Compatibility) -> None:
    audit = saved(tmp_path / "a", model="net", data="cifar10", split="test", data_hash="ab" * 32)
    file = written(tmp_path / "policy.yaml", fail_if=["worst(all) < 0.1"])
    report = cw.evidence(audit, file, tmp_path / "evidence", card=True)
    card = hub.ModelCard.load(report.folder / build.CARD)
    metadata = metadata_of((report.folder / build.CARD).read_text(encoding="utf-8"))
    assert card.data.to_dict() == metadata
    assert (card.data.license, card.data.model_name) == ("unknown", "net")
    index = hub.repocard_data.eval_results_to_model_index("net", card.data.eval_results)
    assert index == metadata["model-index"]
    robust = {result.metric_args.get("class"): result.metric_value for result in card.data.eval_results[-3:]}
    assert robust == {row["name"]: row["robust"]["accuracy"] for row in report.facts["audits"][0]["classes"]}
    assert {result.task_type for result in card.data.eval_results} == {"image-classification"}
    compatibility("evidence", "the metadata of a model card, `ModelCard.load`", "huggingface-hub")
