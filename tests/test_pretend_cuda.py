"""The pretended GPU reports what CUDA would: mixed devices, synchronisations, and results that are not there yet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from .pretend_cuda import DeviceMismatchError, PretendCuda


@pytest.fixture
def gpu() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


@pytest.mark.parametrize(
    "operation",
    [
        lambda here, host: here + host,
        lambda here, host: torch.where(here > 0, here, host),
        lambda here, host: torch.cat([here, host]),
        lambda here, host: here.add_(host),
        lambda here, host: host[here.long()],
        lambda here, host: here.gather(0, host.long()),
        lambda here, host: torch.stack([here[0], host[0]]),
        lambda here, host: here.numpy(),
        lambda here, host: torch.rand(3, device="cuda", generator=torch.Generator()),
        lambda here, host: nn.Linear(3, 2)(here),
        lambda here, host: torch.empty(3).copy_(here, non_blocking=True),
    ],
)
def test_mixed_devices_are_refused(gpu: PretendCuda, operation: Callable[[Tensor, Tensor], object]) -> None:
    here, host = torch.zeros(3, device="cuda"), torch.zeros(3)
    assert gpu.holds(here)
    assert not gpu.holds(host)
    with pytest.raises(DeviceMismatchError):
        operation(here, host)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: torch.ones(4).to(x.device),
        lambda x: torch.ones(4).to(x),
        lambda x: torch.ones(4).to(x.device, non_blocking=True),  # not pinned
        lambda x: torch.tensor([1.0, 2.0], device=x.device),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.index_put_((x > 0,), torch.zeros_like(x)),
        lambda x: torch.equal(x, x),
        torch.unique,
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_each_synchronisation_is_logged(gpu: PretendCuda, operation: Callable[[Tensor], object]) -> None:
    x = torch.ones(4, device="cuda")
    with gpu.counted() as counted:
        operation(x)
    assert [synchronisation.where for synchronisation in counted.synchronisations] == ["the test"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: torch.ones(4).pin_memory().to(x.device, non_blocking=True) + x,
        lambda x: x.new_zeros(4) + torch.zeros_like(x) + torch.arange(4, device=x.device) + 1.0,
        lambda x: x * torch.tensor(2.0),  # a scalar is an argument of the kernel
        lambda x: x.masked_fill(x > 0, 1.0),
        lambda x: x.__setitem__(x > 0, 1.0),
        lambda x: x[1:3].unsqueeze(0).expand(2, 2),
        lambda x: nn.Linear(4, 2).to("meta"),
        lambda x: torch.optim.SGD([nn.Parameter(x)], lr=0.1).step(),
    ],
)
def test_nothing_else_is_logged(gpu: PretendCuda, operation: Callable[[Tensor], object]) -> None:
    x = torch.ones(4, device="cuda")
    with gpu.counted() as counted:
        operation(x)
    assert counted.synchronisations == []


def test_the_device_follows_views_gradients_and_copies(gpu: PretendCuda) -> None:
    del gpu
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)).to("cuda")
    x = torch.rand(2, 1, 5, 5, device="cuda", requires_grad=True)
    model(x).square().sum().backward()
    assert x.grad is not None
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    tensors = [x.grad, x[0].mT, x.detach().data, *copy.deepcopy(model).state_dict().values()]
    assert {tensor.device for tensor in tensors} == {torch.device("cuda", 0)}
    assert x.cpu().device == x.to("cpu").device == torch.zeros_like(x, device="cpu").device == torch.device("cpu")


def test_values_arrive_with_the_event_that_follows_them(gpu: PretendCuda) -> None:
    x, host = torch.arange(3, device="cuda"), torch.full((3,), 9).pin_memory()
    before, after = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]  # torch does not annotate it
    before.record()
    host.copy_(x, non_blocking=True)
    after.record()
    x.zero_()
    before.synchronize()
    assert host.tolist() == [9, 9, 9]
    after.synchronize()
    assert host.tolist() == [0, 1, 2]
    assert [synchronisation.what for synchronisation in gpu.synchronisations] == ["event", "event"]


def test_launches_are_those_of_the_forward_and_the_backward_pass(gpu: PretendCuda) -> None:
    x = torch.ones(4, device="cuda", requires_grad=True)
    with gpu.counted() as counted:
        x.detach()[1:].view(3, 1)
    assert counted.launches == 0
    with gpu.counted() as counted:
        loss = (x * 3).sum()
    assert counted.launches == 2
    with gpu.counted() as counted:
        loss.backward()  # type: ignore[no-untyped-call]
    assert counted.launches == 2  # the gradient of the sum is a view of ones, multiplied by 3


def test_everything_is_restored() -> None:
    before = torch.cuda.Event, torch.cuda.synchronize, torch.autocast
    with PretendCuda():
        x = torch.zeros(2, device="cuda")
    assert before == (torch.cuda.Event, torch.cuda.synchronize, torch.autocast)
    assert x.device.type == "cpu"
