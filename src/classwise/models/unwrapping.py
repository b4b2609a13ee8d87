"""Networks without the wrappers of parallel training and of `torch.compile`."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from classwise.core.errors import ClasswiseError

DATA_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
"""Wrappers for training on several devices."""
_SHARDED = ("FullyShardedDataParallel", "FSDPModule", "ReplicateModule")
"""Classes of torch whose modules have a part of the weights in each process, or exchange them in each pass."""


def unwrapped(model: nn.Module, *, compiled: bool = True) -> nn.Module:
    """The network without `DistributedDataParallel`, `DataParallel` and `torch.compile`, also of its submodules.

    Processes that audit a model share its images, so their numbers of passes differ. `DistributedDataParallel`
    exchanges buffers in each pass, and would wait for the other processes. Modules around a wrapper are replaced by
    shallow copies with the same parameters; the model is not modified.

    Args:
        model: the model.
        compiled: also without `torch.compile`.

    Raises:
        ClasswiseError: for a network whose weights are distributed over the processes, as by FSDP.

    Example:
        >>> from torch import nn
        >>> from classwise.models.unwrapping import unwrapped
        >>> network = nn.Linear(2, 2)
        >>> unwrapped(nn.DataParallel(network)) is network
        True
    """
    inner = _inner(model, compiled=compiled)
    if inner is not None:
        return unwrapped(inner, compiled=compiled)
    _check_whole(model)
    replaced = {}
    for name, child in model.named_children():
        network = unwrapped(child, compiled=compiled)
        if network is not child:
            replaced[name] = network
    if not replaced:
        return model
    around: nn.Module = copy.copy(model)
    children: dict[str, Any] = vars(around)
    children["_modules"] = {name: replaced.get(name, child) for name, child in model._modules.items()}
    return around


def _inner(model: nn.Module, *, compiled: bool) -> nn.Module | None:
    """The network inside a wrapper; None for other modules."""
    if isinstance(model, DATA_PARALLEL):
        network: nn.Module = model.module
        return network
    if compiled and type(model).__module__.startswith("torch._dynamo"):
        return model._modules.get("_orig_mod")
    return None


def _check_whole(model: nn.Module) -> None:
    """Check that a module has all its weights in this process.

    Raises:
        ClasswiseError: if it has not.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("torch.distributed")]
    kind = next((name for name in kinds if name in _SHARDED), "")
    if not kind and any(type(parameter).__name__ == "DTensor" for parameter in model._parameters.values()):
        kind = "module with DTensor parameters"
    if kind:
        raise ClasswiseError(
            f"the model is a {kind}, whose weights are distributed over the processes and gathered in each pass, and "
            "processes that share images take different numbers of passes; give a module with all weights, as of "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict=True"
        )
