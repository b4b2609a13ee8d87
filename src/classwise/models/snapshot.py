"""Snapshots of a model's structure and attributes, to detect changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

_SCALARS = (bool, int, float, complex, str, bytes)


class Snapshot:
    """The modules of a model and their attributes: hooks, flags, numbers, and the identity of all other objects.

    Containers are compared by their elements. Tensors outside of parameters and buffers are compared by their number of
    modifications.

    Args:
        model: the model.
        values: also compare parameters and buffers by their number of modifications.
    """

    def __init__(self, model: nn.Module, *, values: bool = False) -> None:
        self._objects = list(_objects(model))  # references, so that identities are not reused
        if values:
            tensors = [*model.parameters(), *model.buffers()]
            self._objects += [tensor._version for tensor in tensors if not tensor.is_inference()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot) or len(self._objects) != len(other._objects):
            return False
        return all(_same(one, two) for one, two in zip(self._objects, other._objects, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compared by value


def _same(one: object, two: object) -> bool:
    return one is two or (type(one) is type(two) and isinstance(one, _SCALARS) and one == two)


def _objects(model: nn.Module) -> Iterator[object]:
    for module in model.modules():
        yield module
        for name, value in vars(module).items():
            yield name
            yield value
            if isinstance(value, Tensor):
                yield None if value.is_inference() else value._version
            elif isinstance(value, Mapping):
                for key, item in value.items():
                    yield key
                    yield item
            elif isinstance(value, list | tuple | set | frozenset):
                yield from value
