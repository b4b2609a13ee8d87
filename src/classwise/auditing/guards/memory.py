"""Results of the guards' attacks, which later audits of the same model, data and threat in one process reuse.

Most guards compare an attack with the outcomes of the audit, so their verdicts depend on its suite. The results of
their attacks on single images do not, and they take most of the passes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

TOLERANCE = 1e-4
"""Relative difference of clean margins up to which a model is the same on an image; batches of other sizes round
differently.
"""


class AttackResult(NamedTuple):
    """The result of an attack on one image.

    Attributes:
        success: whether it succeeded.
        passes: forward and backward passes up to its success or its end, and for the verification.
    """

    success: bool
    passes: int


class Memory:
    """The results of attacks on single images, for one model with its weights on one data set.

    A key is an attack with all settings that decide its result, an image and its radius.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, tuple[float, AttackResult]] = {}

    def has(self, key: Hashable, margin: float) -> bool:
        """Whether there is a result of an image that had the same clean margin as it has now."""
        before, _ = self._results.get(key, (math.nan, None))
        return abs(before - margin) <= TOLERANCE * (1 + abs(margin))

    def add(self, key: Hashable, margin: float, result: AttackResult) -> None:
        """Note a result, with the clean margin of the image."""
        self._results[key] = margin, result

    def __getitem__(self, key: Hashable) -> AttackResult:
        return self._results[key][1]


_memories: WeakKeyDictionary[nn.Module, tuple[tuple[str, str], Memory]] = WeakKeyDictionary()


def memory_of(model: nn.Module, model_hash: str, data_hash: str) -> Memory:
    """The results of a model; empty once its weights or the data are others.

    Only a module's own tensors are in its hash. Results are found only where its clean margins are the same, too; a
    change of nothing but the gradients is not noticed, and the mode ``"full"`` uses no results of earlier audits.

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
