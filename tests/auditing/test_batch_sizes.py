"""The batch size for large images: chosen by their memory, logged and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from classwise.auditing.run import batch_sizes
from classwise.auditing.run.audit import audit, estimate
from classwise.auditing.run.batch_sizes import Fit, fitting_batch, memory_of, saved_bytes, usual_batch
from classwise.auditing.run.preparation import prepare
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images

from ..pretend_cuda import PretendCuda
from .listening import Listener


def network() -> nn.Module:
    """One convolution with four channels, a rectifier, and a linear layer on the means."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    ).eval()


def images(side: int, count: int = 40) -> Images:
    x = torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))
    return Images(x, torch.arange(count) % 2, ["a", "b"])


def memory(monkeypatch: pytest.MonkeyPatch, megabytes: float) -> None:
    monkeypatch.setattr(batch_sizes, "memory_of", lambda device: megabytes * 1e6)


def test_bytes_saved_by_a_forward_pass() -> None:
    """The convolution and the pooling save no output of their own; the rectifier saves its output once."""
    x = torch.rand(1, 1, 80, 80)
    found, output = saved_bytes(network(), x), 4 * 4 * 80 * 80
    assert output <= found <= 2 * output + 4 * 80 * 80
    assert saved_bytes(network(), torch.rand(2, 1, 80, 80)) == pytest.approx(2 * found, rel=0.01)


def test_small_images_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 0.001)
    monkeypatch.setattr(batch_sizes, "saved_bytes", None)
    for side in (28, 32, 64):
        assert fitting_batch(network(), torch.rand(1, 3, side, side)) == Fit(128)


def test_the_batch_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(1, 1, 80, 80)
    each = batch_sizes.OVERHEAD * saved_bytes(network(), x) + batch_sizes.COPIES * 4 * 80 * 80
    for fits, batch in ((128, 128), (127, 64), (40, 32), (5, 4)):
        memory(monkeypatch, fits * each / batch_sizes.SHARE / 1e6 + 0.001)
        assert fitting_batch(network(), x).batch_size == batch
    found = fitting_batch(network(), x)
    assert found.note.startswith("batch size 4 instead of 128: 4 images of 80 x 80 pixels need about ")
    given = fitting_batch(network(), x, 64)
    assert given.batch_size == 64
    assert given.note.startswith("batch size 64 may not fit: 64 images of 80 x 80 pixels")


@pytest.mark.parametrize(
    ("count", "batch"), [(None, 1024), (1, 128), (128, 128), (129, 160), (1000, 1024), (1024, 1024), (50_000, 1024)]
)
def test_batches_on_a_gpu_are_larger(count: int | None, batch: int) -> None:
    assert usual_batch(torch.device("cuda"), count) == batch
    assert usual_batch(torch.device("cpu"), count) == 128


def test_the_batch_size_on_a_gpu_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with PretendCuda():
        small, large = (
            prepare(network(), images(side, 200), parse_attacks(["fgsm"], "Linf"), "Linf:0.01", device="cuda")
            for side in (8, 80)
        )
        memory(monkeypatch, 60)
        limited = prepare(network(), images(80, 200), parse_attacks(["fgsm"], "Linf"), "Linf:0.01", device="cuda")
        few = fitting_batch(network().to("cuda"), torch.rand(1, 1, 8, 8).to("cuda"), 64, images=200)
    for ready in (small, large):
        assert ready.plan.batch_size == ready.meta.batch_size == 224
    assert limited.meta.batch_size == limited.plan.batch_size < 224
    assert limited.note.startswith(f"batch size {limited.meta.batch_size} instead of 224")
    assert few == Fit(64)


@pytest.mark.slow
def test_the_batch_size_is_logged_recorded_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Listener()
    memory(monkeypatch, 60)
    made = audit(network(), images(80), "Linf:0.01", ["fgsm"], out=tmp_path / "a", progress=lines)
    batch = made.outcomes.meta.batch_size
    assert batch is not None
    assert 32 <= batch < 128
    assert lines.lines[0].startswith(f"batch size {batch} instead of 128")
    memory(monkeypatch, 1e6)
    again = audit(network(), images(80), "Linf:0.01", ["fgsm"], out=tmp_path / "a", resume=True)
    assert again.outcomes.meta.batch_size == batch == Audit.load(tmp_path / "a").outcomes.meta.batch_size
    with pytest.raises(ClasswiseError, match="batch_size was"):
        audit(network(), images(80), "Linf:0.01", ["fgsm"], out=tmp_path / "a", resume=True, batch_size=128)


@pytest.mark.slow
def test_a_batch_size_below_the_smallest_reproducible_one_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 1)
    made = audit(network(), images(80, 6), "Linf:0.01", ["fgsm"])
    assert made.outcomes.meta.batch_size is not None
    assert made.outcomes.meta.batch_size < 32
    assert "not-repeatable" in {warning.name for warning in made.warnings}
    with pytest.raises(ClasswiseError, match="batch_size = 16: must be an integer from 32"):
        audit(network(), images(80, 6), "Linf:0.01", ["fgsm"], batch_size=16)


def test_an_estimate_notes_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 10)
    assert "instead of 128" in estimate(network(), images(80), "Linf:0.01", ["fgsm"]).note
    assert estimate(network(), images(32), "Linf:0.01", ["fgsm"]).note == ""


def test_the_memory_of_a_cpu_is_that_of_the_machine_or_less() -> None:
    assert 1e8 < memory_of(torch.device("cpu")) < 1e14
