"""Wrappers of parallel training and of torch.compile are removed; networks with distributed weights are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, distributed, nn

import classwise as cw
from classwise.models.logits import LogitsModel, as_logits
from classwise.models.unwrapping import unwrapped

DATA = cw.Images(torch.rand(40, 1, 4, 4), torch.arange(40) % 3, ["a", "b", "c"])


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A process group of one process."""
    store = distributed.HashStore()  # type: ignore[attr-defined]  # not exported explicitly
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)).eval()


def compiled(model: nn.Module) -> nn.Module:
    from torch._dynamo.eval_frame import OptimizedModule

    around: nn.Module = OptimizedModule(model, lambda function: function)  # type: ignore[arg-type]  # no compilation
    return around


def data_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP": data_parallel,
    "DataParallel": nn.DataParallel,
    "compiled": compiled,
    "compiled DDP": lambda model: compiled(data_parallel(model)),
    "inside": lambda model: nn.Sequential(nn.Sequential(data_parallel(model))),
    "normalised": lambda model: cw.Normalized(data_parallel(model), [0.0], [1.0]),
    "around normalised": lambda model: data_parallel(cw.Normalized(model, [0.0], [1.0])),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_network_is_audited_without_its_wrapper(name: str) -> None:
    inner = network()
    wrapped = WRAPPERS[name](inner)
    before, modes = str(wrapped), [module.training for module in wrapped.modules()]
    parameters = [*map(id, wrapped.parameters())]
    audited = as_logits(wrapped)
    kinds = {type(module).__name__ for module in audited.modules()}
    assert not kinds & {"DistributedDataParallel", "DataParallel", "OptimizedModule"}
    assert [*map(id, audited.parameters())] == parameters
    audit = cw.audit(wrapped, DATA, "Linf:0.1", "pgd:steps=3")
    expected = cw.audit(inner, DATA, "Linf:0.1", "pgd:steps=3")
    assert audit.by_class.equals(expected.by_class)
    assert "train-mode" not in {warning.name for warning in audit.warnings}
    assert (str(wrapped), [module.training for module in wrapped.modules()]) == (before, modes)


def test_weights_and_names_are_those_of_the_network() -> None:
    inner = network()
    audits = [cw.audit(model, DATA, "Linf:0.1", "fgsm") for model in (inner, data_parallel(inner), compiled(inner))]
    metas = [audit.outcomes.meta for audit in audits]
    assert {(meta.model, meta.model_hash) for meta in metas} == {("Sequential", metas[0].model_hash)}


def test_other_modules_are_unchanged() -> None:
    model = nn.Sequential(network())
    assert unwrapped(model) is model
    assert unwrapped(compiled(model), compiled=False) is not model


class FullyShardedDataParallel(nn.Module):
    """As the class of torch, which needs an accelerator."""

    __module__ = "torch.distributed.fsdp.fully_sharded_data_parallel"


class FSDPModule:
    """As the class that fully_shard of torch adds to the bases of a module."""

    __module__ = "torch.distributed.fsdp._fully_shard._fully_shard"


class FSDPLinear(FSDPModule, nn.Linear):
    pass


class DTensor(nn.Parameter):
    """As the parameters of torch's parallel layers."""


def with_dtensor() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.weight = DTensor(torch.zeros(2, 2))
    return layer


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (FullyShardedDataParallel, "FullyShardedDataParallel"),
        (lambda: nn.Sequential(FSDPLinear(2, 2)), "FSDPModule"),
        (lambda: data_parallel(FSDPLinear(2, 2)), "FSDPModule"),
        (with_dtensor, "module with DTensor parameters"),
    ],
)
def test_distributed_weights_are_refused(make: Callable[[], nn.Module], kind: str) -> None:
    model = make()
    for given in (model, functools.partial(model.__call__)):
        with pytest.raises(cw.ClasswiseError, match=f"the model is a {kind}, whose weights are distributed"):
            cw.audit(given, DATA, "Linf:0.1", "fgsm")


def test_a_function_that_waits_for_other_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = data_parallel(network())

    def function(x: Tensor) -> Tensor:
        logits: Tensor = model(x)
        return logits

    assert isinstance(as_logits(function), LogitsModel)  # one process waits for no other
    monkeypatch.setattr(type(model.process_group), "size", lambda _: 2)
    with pytest.raises(cw.ClasswiseError, match=r"the function calls a DistributedDataParallel, .* attribute module"):
        as_logits(function)


def test_images_of_a_training_loop_are_attacked_without_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DistributedDataParallel` exchanges the gradients of the loss; the attack and the validation pass it by."""
    model, passes = data_parallel(network()), list[bool]()
    plain = network()
    model.register_forward_hook(lambda *_: passes.append(True))
    loss, expected = (cw.ClassWiseLoss("at", [14, 13, 13], steps_per_epoch=1, threat="Linf:0.1") for _ in range(2))
    value = loss(model, DATA.pixels(), DATA.y)
    assert len(passes) == 1  # of the adversarial images
    assert torch.equal(value, expected(plain, DATA.pixels(), DATA.y))
    loss.end_epoch(model, DATA)
    assert len(passes) == 1
