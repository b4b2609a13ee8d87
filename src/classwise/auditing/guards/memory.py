"""Results of the guards' attacks, which later audits of the same model, data and threat in one process reuse.

Most guards compare an attack with the outcomes of the audit, so their verdicts depend on its suite. The results of
their attacks on single images do not, and they take most of the passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

TOLERANCE = 1e-4
"""Relative difference of clean margins up to which a model is the same on an image; batches of other sizes round
differently.
"""


class _Result(NamedTuple):
    """Whether an attack succeeded on an image, and the clean margin of the image then."""

    margin: float
    success: bool


class Memory:
    """The results of one model with its weights on one data set.

    A key is an attack with all settings that decide its result, an image and its radius.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, _Result] = {}

    def find(self, keys: Sequence[Hashable], margins: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Which keys have a result, and whether the attack succeeded, each bool (N,).

        Args:
            keys: N keys.
            margins: the clean margins of their images now.
        """
        found = [self._results.get(key) for key in keys]
        same = [
            each is not None and abs(each.margin - now) <= TOLERANCE * (1 + abs(now))
            for each, now in zip(found, margins, strict=True)
        ]
        success = [known and each is not None and each.success for known, each in zip(same, found, strict=True)]
        return torch.tensor(same, dtype=torch.bool), torch.tensor(success, dtype=torch.bool)

    def add(self, keys: Sequence[Hashable], margins: Sequence[float], success: Tensor, mask: Tensor) -> None:
        """Note whether the attack succeeded, bool (N,), for the keys of a mask (N,)."""
        for row in mask.nonzero().squeeze(1).tolist():
            self._results[keys[row]] = _Result(margins[row], bool(success[row]))


_memories: WeakKeyDictionary[nn.Module, tuple[tuple[str, str], Memory]] = WeakKeyDictionary()


def memory_of(model: nn.Module, model_hash: str, data_hash: str) -> Memory:
    """The results of a model; empty once its weights or the data are others.

    Only a module's own tensors are in its hash. Results are found only where its clean margins are the same, too; a
    change of nothing but the gradients is not noticed, and the guards of the mode ``"full"`` do not use a memory.

    Args:
        model: the module; nothing is kept once it is deleted.
        model_hash: SHA-256 of its parameters and buffers.
        data_hash: SHA-256 of pixels and labels.
    """
    state, memory = _memories.get(model, (None, Memory()))
    if state != (model_hash, data_hash):
        memory = Memory()
        _memories[model] = (model_hash, data_hash), memory
    return memory
