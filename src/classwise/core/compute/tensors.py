"""Tensors and arrays given by users, as plain tensors and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError

_ACCEPTED = "give a dense tensor on the CPU or a GPU, or an array"


def as_tensor(values: Any, where: str) -> Tensor:
    """Convert a tensor, an array or a number to a plain dense tensor, sharing memory if possible.

    Tensors are detached: the result requires no gradient and has no graph. Of subclasses without data of their own,
    such as ``torch.nn.Parameter`` and ``tv_tensors.Image``, it is a plain tensor.

    Args:
        values: the values.
        where: the prefix of an error message.

    Raises:
        ClasswiseError: if the values are not numbers, some are masked, or a tensor is not dense or has no values: a
            meta, sparse, nested, quantised or fake tensor, or one whose subclass has data of its own.
    """
    if isinstance(values, Tensor):
        return _plain(values, where)
    if np.ma.is_masked(values):
        raise ClasswiseError(f"{where}: some values are masked or missing; give a value for each image")
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, Tensor) for value in values):
        return _stacked([_plain(value, where) for value in values], where)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = np.asarray(array.tolist())  # objects that are numbers
        if array.dtype.kind in "fiu":
            # torch has neither long doubles nor the other byte order.
            native = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
            array = array.astype(native, copy=False)
        if not (array.flags.writeable and array.flags.c_contiguous):
            array = array.copy()
        return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ClasswiseError(f"{where}: values of type {kind} cannot be converted to a tensor") from error


def as_array(values: Any, where: str) -> Any:
    """Convert a tensor to an array on the CPU, types that numpy lacks to float32; other values are unchanged.

    Raises:
        ClasswiseError: as `as_tensor`.
    """
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, Tensor) for value in values):
        values = as_tensor(values, where)
    if not isinstance(values, Tensor):
        return values
    tensor = _plain(values, where).cpu()
    has_array = tensor.dtype in (torch.float16, torch.float32, torch.float64) or not tensor.is_floating_point()
    return (tensor if has_array else tensor.float()).numpy()


def _plain(tensor: Tensor, where: str) -> Tensor:
    kind = _unsupported(tensor)
    if kind:
        raise ClasswiseError(f"{where}: {kind}; {_ACCEPTED}")
    return tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()


def _unsupported(tensor: Tensor) -> str:
    """What a tensor is, if its values cannot be read in place; else empty."""
    if tensor.is_meta:
        return "a meta tensor, which has no values"
    if tensor.is_nested:
        return "a nested tensor, whose images may have different sizes"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized:
        return f"a quantised tensor of type {str(tensor.dtype).removeprefix('torch.')}"
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a tensor of the subclass {type(tensor).__name__}, which has data of its own"
    return ""


def _stacked(tensors: list[Tensor], where: str) -> Tensor:
    try:
        return torch.stack(tensors)
    except RuntimeError as error:
        raise ClasswiseError(f"{where}: tensors of different sizes or on different devices") from error
