"""Audits shared by several processes, and the collectives of `classwise.core.compute.distributed`."""

from __future__ import annotations

import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch exports it without saying so
from torch.nn import functional

from classwise.auditing.run.audit import audit
from classwise.auditing.run.partition import balanced_order, part_of
from classwise.auditing.run.result import Audit
from classwise.core.compute import distributed as processes
from classwise.core.compute.distributed import (
    ProcessFailedError,
    ProcessGroup,
    UndeliveredError,
    local_device,
    process_group,
)
from classwise.core.errors import ClasswiseError
from classwise.data import load_data
from classwise.models import build_model, fingerprint, load_model, save_weights
from tests.auditing.together import NETWORKS
from tests.forkserver import Server
from tests.launching import launch
from tests.models.test_content import VALUES, Extra

pytestmark = pytest.mark.slow


def trained(path: Path) -> None:
    """A small model that classifies most digits correctly."""
    torch.manual_seed(0)
    data = load_data("digits", split="train", subset=300)
    net = build_model("small-cnn", num_classes=10, in_channels=1, width=0.1)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(25):
        loss = functional.cross_entropy(net(data.pixels()), data.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    save_weights(path, net)


@pytest.fixture(scope="module")
def folder(fork_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two processes of one group."""
    path = tmp_path_factory.mktemp("together")
    trained(path / "model.safetensors")
    with fork_server.serving():
        launch("tests.auditing.together", path)
    return path


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [pickle.loads((folder / f"rank-{rank}.pkl").read_bytes()) for rank in range(2)]


def assert_same(first: pd.DataFrame, second: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_two_processes_give_the_outcomes_of_one(ranks: list[dict[str, Any]]) -> None:
    single, shared = ranks[0]["alone"], ranks[0]["shared"]
    assert len(single.outcomes.frame) == 3 * 101
    assert_same(shared.outcomes.frame, single.outcomes.frame)
    assert shared.outcomes.meta == single.outcomes.meta
    assert repr(shared.warnings) == repr(single.warnings)  # values may be NaN
    assert shared.environment["processes"] == 2
    assert "processes" not in single.environment
    assert_same(shared.trace, single.trace)
    for found, expected in zip(
        shared.artifacts.get("logits", "pgd"), single.artifacts.get("logits", "pgd"), strict=True
    ):
        assert np.array_equal(found, expected)


def test_two_processes_take_the_sample_of_one(ranks: list[dict[str, Any]]) -> None:
    single, shared = ranks[0]["sample alone"], ranks[0]["sample"]
    assert 0 < single.estimator.estimates["sampled"].sum() < single.estimator.estimates["survivors"].sum()
    assert_same(shared.outcomes.frame, single.outcomes.frame)
    assert_same(shared.estimator.estimates, single.estimator.estimates)
    assert_same(ranks[1]["sample"].outcomes.frame, single.outcomes.frame)


def test_two_processes_read_a_binary_model_as_one(ranks: list[dict[str, Any]]) -> None:
    single, shared = ranks[0]["binary alone"], ranks[1]["binary"]
    assert_same(shared.outcomes.frame, single.outcomes.frame)
    assert shared.outcomes.meta == single.outcomes.meta
    assert single.outcomes.meta.notes == ("outputs are read as binary-logits, decided on the first 32 images",)


def test_two_processes_audit_public_networks_as_one(ranks: list[dict[str, Any]]) -> None:
    for name in NETWORKS:
        for rank in ranks:
            assert_same(rank[name], ranks[0][f"{name} alone"])


def test_processes_compute_the_same_fingerprints(ranks: list[dict[str, Any]]) -> None:
    """With other addresses, and other orders of sets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # int8 tensors and TorchScript are deprecated
        own = {name: fingerprint(Extra(make())) for name, (make, _) in VALUES.items()}
    assert ranks[0]["fingerprints"] == ranks[1]["fingerprints"] == own


def test_every_process_receives_the_result(ranks: list[dict[str, Any]]) -> None:
    assert_same(ranks[1]["shared"].outcomes.frame, ranks[0]["shared"].outcomes.frame)
    assert ranks[1]["shared"].worst_class() == ranks[0]["shared"].worst_class()


def test_two_processes_resume_the_audit_of_one(ranks: list[dict[str, Any]], folder: Path) -> None:
    assert ranks[0]["begun"] > 0
    assert_same(ranks[0]["resumed"].outcomes.frame, ranks[0]["alone"].outcomes.frame)
    assert_same(Audit.load(folder / "killed").outcomes.frame, ranks[0]["alone"].outcomes.frame)


def test_a_stream_is_shared_as_well(ranks: list[dict[str, Any]]) -> None:
    assert_same(ranks[0]["stream"].outcomes.frame, ranks[0]["alone"].outcomes.frame)
    assert ranks[0]["stream"].outcomes.meta.data_hash


def test_a_curve_is_shared_as_well(ranks: list[dict[str, Any]]) -> None:
    assert_same(ranks[0]["curve"].frame, ranks[0]["curve alone"].frame)
    assert_same(ranks[1]["curve"].frame, ranks[0]["curve alone"].frame)


def test_one_process_resumes_the_curve_of_two(ranks: list[dict[str, Any]]) -> None:
    said, files = ranks[1]["curve cut"]
    assert said.startswith("ProcessFailedError: process 0 of 2 failed: KeyboardInterrupt")
    assert "part-002-000-00000.parquet" in files
    assert_same(ranks[0]["curve resumed"].frame, ranks[0]["curve alone"].frame)


def test_the_command_line_in_two_processes(ranks: list[dict[str, Any]], folder: Path) -> None:
    (status, out, err), other = ranks[0]["cli"], ranks[1]["cli"]
    assert (status, other) == (0, (0, "", ""))
    assert "worst class: " in out
    assert "2 processes share the images" in err
    assert (folder / "cli" / "page.html").is_file()
    net = load_model(folder / "model.safetensors")
    data = load_data("digits", split="test", subset=120)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single = audit(net, data, "Linf:0.03", ["pgd:steps=3", "fgsm"], cascade=True)
    finally:
        torch.set_num_threads(threads)
    assert 20 < int(single.outcomes.correct("all").sum()) < 110
    assert_same(Audit.load(folder / "cli").outcomes.frame, single.outcomes.frame)


def test_bad_input_is_printed_once(ranks: list[dict[str, Any]]) -> None:
    status, out, err = ranks[0]["cli again"]
    assert (status, out) == (2, "")
    assert "already contains this audit with these settings: add --resume" in err
    assert ranks[1]["cli again"] == (2, "", "")


def test_nobody_waits_for_a_process_that_failed(ranks: list[dict[str, Any]]) -> None:
    assert ranks[1]["failure"] == "ClasswiseError: the cat sat on the power switch"
    assert ranks[0]["failure"] == "ProcessFailedError: process 1 of 2 failed: the cat sat on the power switch"
    assert ranks[0]["failure seconds"] < processes.FAILURE_REPORT_SECONDS
    assert_same(ranks[1]["after"], ranks[0]["alone"].outcomes.frame)  # and the next audit is none the worse


def test_no_thread_of_python_is_left(ranks: list[dict[str, Any]]) -> None:
    """A thread inside torch during the shutdown of the interpreter aborts its process."""
    assert [rank["threads"] for rank in ranks] == [["MainThread"], ["MainThread"]]


def test_processes_need_the_same_settings_and_images(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["differ"] == "ClasswiseError: all processes need the same seed; process 1 has 1, process 0 has 0"
        assert "the processes have read different images; all need the same stream" in rank["shuffled"]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_shares_of_processes_are_balanced_by_class(size: int) -> None:
    y = torch.tensor([0] * 7 + [1] * 20 + [3] * 1)[torch.randperm(28, generator=torch.Generator().manual_seed(0))]
    order = balanced_order(y)
    parts = [part_of(order, y, ProcessGroup(rank, size)) for rank in range(size)]
    assert sorted(torch.cat(parts).tolist()) == list(range(28))
    for label in (0, 1, 3):
        counts = [int((y[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
    assert part_of(order, y, ProcessGroup()) is order


class Pretended(processes._TorchProcessGroup):
    """One of two processes, with a store in memory."""

    def __init__(self, store: HashStore, rank: int) -> None:
        ProcessGroup.__init__(self, rank, 2)
        self._store = store  # type: ignore[assignment]  # the same methods


def test_rendezvous_times_out() -> None:
    here = Pretended(HashStore(), 0)
    with pytest.raises(ProcessFailedError, match=r"process 1 of 2 did not join within 0 s; .* distributed=False"):
        here._rendezvous(0.05)


def test_rendezvous_waits_for_a_late_process() -> None:
    store = HashStore()
    late = threading.Timer(0.2, lambda: store.set("here/1", ""))
    late.start()
    Pretended(store, 0)._rendezvous(30)
    assert store.check(["here/1"])
    late.join()


def test_a_process_reports_an_undelivered_failure_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FAILURE_REPORT_SECONDS", 0.1)
    store = HashStore()
    assert not Pretended(store, 1).report_failure(ClasswiseError("the disk is full"))
    with pytest.raises(ProcessFailedError, match="process 1 of 2 failed: the disk is full"):
        Pretended(store, 0).check()
    assert Pretended(store, 1).report_failure(ClasswiseError("the disk is full"))
    assert UndeliveredError.reported_by_every_rank


def test_collectives_of_one_process_do_nothing() -> None:
    with process_group() as found:
        assert (found.rank, found.world_size, found.is_main) == (0, 1, True)
        found.check()
        found.barrier()
        assert found.all_gather(3) == found.gather(3) == [3]
        assert found.broadcast(3) == 3


def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert local_device("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [local_device(name) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:1", "cuda:0", "cpu"]
