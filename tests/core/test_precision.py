"""Precision: memory formats do not change results, and invalid devices are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from classwise.auditing.audit import audit
from classwise.core.errors import ClasswiseError
from classwise.core.precision import EXACT, Precision, check_device
from classwise.data.images import Images
from classwise.models import load_model
from classwise.training.train import train


def network(channels: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_runs_in_channels_last_for_any_number_of_channels(
    channels: int, dtype: Literal["float32", "bfloat16"]
) -> None:
    model, seen = network(channels), list[Tensor]()
    model[0].register_forward_hook(lambda _, __, out: seen.append(out))
    x = torch.rand(5, channels, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logits = {
        name: precision.forward(model)(x)
        for name, precision in {"plain": EXACT, "fast": Precision(dtype=dtype, channels_last=True)}.items()
    }
    plain, fast = seen
    assert plain.is_contiguous()
    assert fast.is_contiguous(memory_format=torch.channels_last)
    assert not fast.is_contiguous()
    assert logits["fast"].dtype == torch.float32
    close = {"float32": 1e-6, "bfloat16": 0.02}[dtype]
    assert torch.allclose(logits["fast"], logits["plain"], atol=close)
    one, other = (torch.autograd.grad(each[:, 0].sum(), x)[0] for each in logits.values())
    assert one.shape == other.shape == x.shape
    alike = {"float32": 0.99999, "bfloat16": 0.98}[dtype]  # a rounded value may win another maximum
    assert float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > alike


@pytest.mark.parametrize("device", ["cuda:99", "nope", torch.device("cuda", 99)])
def test_a_missing_device_is_one_line(device: str | torch.device, tmp_path: Path) -> None:
    data, out = Images(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]), ["a", "b"]), tmp_path / "out"
    calls: list[Callable[[], object]] = [
        lambda: check_device(device),
        lambda: audit(network(1), data, "Linf:0.1", device=device, out=out),
        lambda: load_model("lenet", num_classes=2, in_channels=1, device=device),
        lambda: train("at", data=data, device=str(device), out=out),
    ]
    for call in calls:
        with pytest.raises(
            ClasswiseError, match=rf"^there is no device '{device}' on this machine; cpu is always available$"
        ):
            call()
    assert not out.exists()
