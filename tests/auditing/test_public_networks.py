"""Unmodified public networks: every kind of evaluation accepts them, and agrees with a plain pass of the network."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import classwise as cw
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.run.merging import shard_folder
from classwise.core.compute.precision import FAST
from tests.auditing.public_data import SETTINGS, images
from tests.models.networks import PUBLIC
from tests.refusals import check_refused

pytestmark = pytest.mark.slow

networks = pytest.mark.parametrize("name", PUBLIC)
kinds = pytest.mark.parametrize("name", ["vit", "static int8", "dynamic int8", "scripted", "function"])
"""A network of each kind; the others differ in their layers only."""


@functools.cache
def audited(name: str) -> tuple[cw.Audit, list[str]]:
    """The audit of a network with all guards, and its log."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("classwise")
    logger.addHandler(handler)
    try:
        return cw.audit(PUBLIC[name].network(), images(name), guards="full", **SETTINGS), records
    finally:
        logger.removeHandler(handler)


def predictions(result: cw.Audit) -> Any:
    frame = result.outcomes.frame
    return frame[frame["attack"] == "clean"].sort_values("index")["prediction"].to_numpy()


@networks
def test_an_audit_agrees_with_plain_passes(name: str) -> None:
    public, data, (result, log) = PUBLIC[name], images(name), audited(name)
    with torch.no_grad():
        expected = public.network()(data.x).argmax(1)
    agreed = float((predictions(result) == expected.numpy()).mean())
    assert agreed >= 0.9 if name == "dynamic int8" else agreed == 1  # which depends on the batch
    assert result.outcomes.meta.not_applicable == (() if public.gradients else ("pgd",))
    warned = {warning.name for warning in result.warnings}
    assert ("no-gradient" in warned) == (not public.gradients)
    assert "train-mode" not in warned
    assert len([line for line in log if "contiguous" in line]) == public.contiguous
    clean, robust = result.by_class["clean"], result.by_class["all"]
    assert (robust <= clean).all()
    assert 0 < robust.sum() < clean.sum()


def test_a_model_that_fails_in_bfloat16_is_audited_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.auditing.run.plan.fastest", lambda _: FAST)
    network, data = PUBLIC["dynamic int8"].network(), images("dynamic int8")
    result = cw.audit(network, data, guards="off", **SETTINGS)
    assert result.outcomes.meta.precision["dtype"] == "float32"
    (note,) = [note for note in result.outcomes.meta.notes if "bfloat16" in note]
    assert note.startswith("gradients are computed in float32: the model fails in bfloat16 (")
    check_refused(
        r"^the model fails in bfloat16 \(.*\); use precision=float32$",
        cw.audit,
        network,
        data,
        precision="bfloat16",
        **SETTINGS,
    )


@networks
def test_a_comparison_of_two_audits(name: str) -> None:
    first = audited(name)[0]
    precision = {} if name == "dynamic int8" else {"precision": FAST}
    second = cw.audit(PUBLIC[name].network(), images(name), guards="off", **SETTINGS | {"seed": 1} | precision)
    assert second.outcomes.meta.model_hash == first.outcomes.meta.model_hash
    compared = cw.compare({"first": first, "second": second})
    assert "first" in str(compared)
    assert np.array_equal(predictions(second), predictions(first))


@kinds
def test_a_curve_and_the_worst_class(name: str) -> None:
    network, data, first = PUBLIC[name].network(), images(name), audited(name)[0]
    attacks = "pgd:steps=2" if PUBLIC[name].gradients else "square:steps=4"
    search: dict[str, Any] = {"batch_size": 32, "progress": False}
    curve = cw.robustness_curve(network, data, "Linf", attacks, highest=0.05, rounds=2, **search)
    assert len(curve.frame) == len(data)
    worst = cw.find_worst_class(network, data, SETTINGS["threat"], SETTINGS["attacks"], **search)
    accuracies = first.by_class["all"]
    assert worst.worst in accuracies.index[accuracies == accuracies.min()]


@kinds
def test_shards(name: str, tmp_path: Path) -> None:
    network, data, first = PUBLIC[name].network(), images(name), audited(name)[0]
    options = SETTINGS | {"guards": "off"}
    for shard in Shard.all(2):
        cw.audit(network, data, shard=str(shard), out=shard_folder(tmp_path, shard), **options)
    merged = cw.audit(network, data, shards=2, out=tmp_path, **options)
    if name == "dynamic int8":  # its outputs depend on the other images of a batch
        assert len(merged.outcomes.frame) == len(first.outcomes.frame)
    else:
        pd.testing.assert_frame_equal(merged.outcomes.frame, first.outcomes.frame, check_exact=True)
