"""The printed structure of a model: its modules, with their classes and settings, and the code of traced programs."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import nn

from classwise.core.settings.code_identity import STRUCTURE, identity

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def code_of(model: nn.Module, **others: object) -> dict[str, dict[str, str]]:
    """The digests of a model, as ``model``, and of other objects: user code, and the model's printed structure.

    Args:
        model: the model.
        **others: further objects by name (`classwise.core.settings.code_identity.identity`).

    Example:
        >>> from torch import nn
        >>> plain, other = nn.Sequential(nn.Flatten()), nn.Sequential(nn.Flatten(), nn.Softmax(1))
        >>> plain.state_dict() == other.state_dict(), code_of(plain) == code_of(other)
        (True, False)
    """
    found = identity({"model": model, **others})
    found["model"][STRUCTURE] = hashlib.sha256(structure(model).encode()).hexdigest()
    return found


def structure(model: nn.Module) -> str:
    """A line for each module of a model: its name, class and settings as printed (`torch.nn.Module.extra_repr`).

    Programs of TorchScript and of `torch.fx` add their code. Batch normalisation over several processes is that of one.
    """
    return "\n".join(f"{name}: {_printed(module)}" for name, module in model.named_modules())


def _printed(module: nn.Module) -> str:
    kind = type(module)
    name = "BatchNorm" if isinstance(module, nn.modules.batchnorm._BatchNorm) else kind.__qualname__
    if isinstance(module, torch.jit.ScriptModule):
        return f"{name} {module.original_name}\n{_program(module)}"
    try:
        settings = _ADDRESS.sub("", str(module.extra_repr()))
    except Exception as error:  # noqa: BLE001  # code of the user
        settings = type(error).__name__
    program = _program(module) if isinstance(module, torch.fx.GraphModule) else ""
    return f"{name}({settings}){program}"


def _program(module: Any) -> str:
    """The code of a traced module; empty for one without a forward pass."""
    try:
        return str(module.code)
    except (AttributeError, RuntimeError):
        return ""
