"""Counter-based, stateless random numbers: every number is a hash of its coordinates.

A number depends only on the seed, a purpose, an epoch, the image's index and a counter. So there is no generator state
to save, and an image's numbers do not depend on the other images of its batch.

The hash is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), on wrapping int64 arithmetic.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def _signed(value: int) -> int:
    """Reinterpret a 64-bit word as a signed integer, as torch stores it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_MASK_24 = (1 << 24) - 1


def _shift_xor(word: Tensor, bits: int) -> Tensor:
    """``word ^= word >> bits`` with a logical shift, in place (torch's shift of int64 is arithmetic)."""
    return word.bitwise_xor_((word >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _mix(word: Tensor) -> Tensor:
    """Finaliser of SplitMix64, in place."""
    word = _shift_xor(word, 30).mul_(_MIX_1)
    word = _shift_xor(word, 27).mul_(_MIX_2)
    return _shift_xor(word, 31)


@dataclass(frozen=True)
class CounterRNG:
    """Counter-based random numbers for one purpose.

    Args:
        seed: the seed of the run.
        purpose: a name; different purposes give independent numbers.
        epoch: the epoch, or 0.
    """

    seed: int
    purpose: str = ""
    epoch: int = 0

    def child(self, purpose: str) -> CounterRNG:
        """The random numbers of a sub-purpose."""
        return dataclasses.replace(self, purpose=f"{self.purpose}/{purpose}")

    def at(self, epoch: int) -> CounterRNG:
        """The same purpose at another epoch."""
        return dataclasses.replace(self, epoch=epoch)

    @property
    def _key(self) -> int:
        text = f"{self.seed}|{self.epoch}|{self.purpose}".encode()
        return _signed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))

    def _words(self, index: Tensor, shape: tuple[int, ...], counter: int | Tensor) -> Tensor:
        """Hashed 64-bit words, int64 (N, *shape)."""
        rows = index.to(torch.int64)
        keys = _mix(rows.mul(_GAMMA).add_(self._key))
        step = counter.to(torch.int64).mul(_MIX_1) if isinstance(counter, Tensor) else _signed(counter * _MIX_1)
        keys = _mix(keys.add_(step))  # a Python int needs no copy that synchronises with the device
        offsets = torch.arange(1, math.prod(shape) + 1, device=index.device).mul_(_GAMMA)
        return _mix(keys[:, None] + offsets).view(len(rows), *shape)

    def uniform(self, index: Tensor, shape: tuple[int, ...] = (), counter: int | Tensor = 0) -> Tensor:
        """Uniform numbers in [0, 1), float32 (N, *shape); ``counter`` is an int or an (N,) tensor."""
        return _unit(self._words(index, shape, counter), 40)

    def normal(self, index: Tensor, shape: tuple[int, ...] = (), counter: int | Tensor = 0) -> Tensor:
        """Standard normal numbers (Box and Muller), float32 (N, *shape); ``counter`` is an int or an (N,) tensor."""
        words = self._words(index, shape, counter)
        radius = torch.log1p(-_unit(words, 40)).mul_(-2).sqrt_()
        return _unit(words, 16).mul_(2 * math.pi).cos_().mul_(radius)

    def integers(self, index: Tensor, shape: tuple[int, ...], high: int, counter: int | Tensor = 0) -> Tensor:
        """Uniform integers in [0, high), int64 (N, *shape); ``counter`` is an int or an (N,) tensor."""
        return self._words(index, shape, counter).remainder_(high)

    def permutation(self, n: int, device: torch.device | str = "cpu") -> Tensor:
        """A random permutation of 0..n-1, int64 (n,)."""
        words = self._words(torch.arange(n, device=device), (), 0)
        return torch.argsort(words, stable=True)


def _unit(words: Tensor, low_bit: int) -> Tensor:
    """Convert 24 bits of each word, from ``low_bit`` up, to a float32 in [0, 1)."""
    return (words >> low_bit).bitwise_and_(_MASK_24).to(torch.float32).mul_(2.0**-24)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of one device, for layers that use them, such as dropout.

    `torch.manual_seed` seeds those of every kind of device, which takes about as long as a small network's step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(seed)


def saved_generators(device: torch.device) -> Callable[[], None]:
    """Save the states of torch's generators of the CPU and of one device; return a function that restores them."""
    cpu = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)

    return restore


def generators_restored(device: torch.device | str) -> AbstractContextManager[None]:
    """Context that restores the states of torch's generators of the CPU and of one device."""
    return torch.random.fork_rng([device] if torch.device(device).type == "cuda" else [])


def generator_states(device: torch.device) -> tuple[object, ...]:
    """The states of the generators of torch (of the CPU and of one device), numpy and Python, for comparison."""
    devices = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    _, words, *position = np.random.get_state()  # noqa: NPY002  # the global generator, used by other libraries
    return [state.tolist() for state in devices], list(words), position, random.getstate()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, for code of others; restore them afterwards.

    The generators are those of the process, so only one thread at a time is in this context.

    Args:
        seed: from 0 to 2^32 - 1.
        device: the device whose generator is seeded, besides that of the CPU.
    """
    with _seeding:
        before = np.random.get_state(), random.getstate()  # noqa: NPY002  # the global generator, of other libraries
        try:
            with generators_restored(device):
                seed_generators(seed, device)
                np.random.seed(seed)  # noqa: NPY002
                random.seed(seed)
                yield
        finally:
            np.random.set_state(before[0])  # noqa: NPY002
            random.setstate(before[1])


_seeding = threading.RLock()
