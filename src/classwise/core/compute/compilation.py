"""Compilation of networks by `torch.compile`: for batches of one size, where it saves time, with a private cache.

Each kind of pass (shape, data type, mode, gradients) is compiled at its first batch and verified there against the
network. Whatever fails, the network itself runs instead. What a compilation took, and how much faster its passes are,
is recorded beside the compiled kernels, so that a later process can decide whether it is worthwhile.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.compute.graphs import Captured, SideStream, waits_noted
from classwise.core.compute.memory_format import restore_buffers, saved_buffers
from classwise.core.compute.rng import saved_generators
from classwise.core.errors import ClasswiseError, first_line
from classwise.core.files.storage import read_json, write_json

T = TypeVar("T")
Outputs = tuple[Tensor, Tensor | None]
"""Logits (N, C) of images, and the gradient of a combination of them with respect to the images, if there is one."""
Compile = Literal["auto", "on", "off"]
"""Whether networks are compiled: where it is worthwhile, always, or never."""
BACKEND: Any = "inductor"
"""The backend of `torch.compile`."""
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable with the folder of compiled kernels, which torch reads."""
FOLDER = Path("~/.cache/classwise/compiled")
"""The folder of compiled kernels, unless the environment variable is set."""
RECORD = "classwise.json"
"""The file in it with the cost of each compilation."""
TOLERANCE = 0.05
"""Largest difference between the logits of a network and of its compilation, as a fraction of the largest logit."""
GRADIENT_TOLERANCE = 0.5
"""Largest median over the images of the difference between gradients, as a fraction of the gradient's norm.

In bfloat16 compiled kernels round less often, and ReLUs near zero then differ.
"""
STARTUP = 10.0
"""Seconds of the first compilation of a process in addition to those of the others: imports and worker processes."""
COLD = 10.0
"""Seconds of a compilation of which nothing is recorded."""
CACHED = 0.2
"""Seconds of a compilation from the cache, as a fraction of those of the first one."""
SAVED = 0.25
"""Fraction of a pass that compilation is expected to save, if nothing is recorded.

That of a PreActResNet-18 on an H100 in batches of 1,024, in bfloat16 and in TF32, with gradients of the images and
without.
"""
MARGIN = 2.0
"""A compilation must save this many times its own seconds."""

MOST = 256
"""Kinds of passes that are compiled of one forward method, which all networks of the zoo share.

The limit of torch is 8, which two audits with AutoAttack exceed; the network then runs without compilation unnoticed.
"""

_TINY = 1e-30
_lock = threading.Lock()


class Cost(NamedTuple):
    """The cost of the compilation of one kind of pass.

    Attributes:
        seconds: of the next compilation.
        saved: seconds that a pass of one image takes less than without compilation.
    """

    seconds: float
    saved: float


def worthwhile(passes: float, cost: Cost) -> bool:
    """Whether compilation saves more than `MARGIN` times the seconds that it takes.

    Args:
        passes: passes of an image that are left.
        cost: of the compilation.

    Example:
        >>> from classwise.core.compute.compilation import Cost, worthwhile
        >>> worthwhile(4e6, Cost(20.0, 2.6e-6)), worthwhile(4e6, Cost(2.0, 2.6e-6))
        (False, True)
    """
    return passes * cost.saved > MARGIN * cost.seconds


class Compiling:
    """Which passes are compiled.

    Args:
        batch_size: images of a compiled pass, or of each of several equal parts of it. Others are not compiled.
        passes: passes of an image that are left; infinite: compile whatever it costs.
        failed: called with the reason, if a compilation has failed.

    Attributes:
        declined: the kinds of passes that are not to be compiled.
        paused: whether to compile nothing at present.
    """

    def __init__(self, batch_size: int, passes: float, failed: Callable[[str], None] = lambda _: None) -> None:
        self.batch_size = batch_size
        self.passes = passes
        self.failed = failed
        self.declined: set[str] = set()
        self.paused = False


class CompiledNetwork:
    """A network, and its compilation for some kinds of passes. Shared by all users of the network (`compiled`).

    Args:
        network: the network.

    Attributes:
        failure: why nothing is compiled; empty if no compilation has failed.
    """

    def __init__(self, network: nn.Module) -> None:
        self.failure = ""
        self._network = network
        self._compiled: Callable[[Tensor], Tensor] = network
        self._accepted: set[str] = set()
        self._hash = ""

    def __call__(self, x: Tensor, compiling: Compiling) -> Tensor:
        """Compute the logits of a batch."""
        if len(x) % compiling.batch_size == 0 and not (self.failure or compiling.paused):
            kind = self._kind(x)
            if kind in self._accepted or (kind not in compiling.declined and self._accepts(kind, x, compiling)):
                return self._compiled(x)
        logits: Tensor = self._network(x)
        return logits

    def _kind(self, x: Tensor) -> str:
        """What a compilation depends on, as a text."""
        level = ""
        with suppress(RuntimeError):  # set by another interface
            level = torch.get_float32_matmul_precision()
        device, learns = x.device.type, any(weight.requires_grad for weight in self._network.parameters())
        gradients = torch.is_grad_enabled() and (x.requires_grad, learns)
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else f"{x.dtype}, {level}"
        return f"{tuple(x.shape)} {x.stride()} {dtype}, training {self._network.training}, gradients {gradients}"

    def _accepts(self, kind: str, x: Tensor, compiling: Compiling) -> bool:
        """Whether a new kind of pass is to be compiled, and its compilation succeeds."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compiled then
        self._hash = self._hash or _hash(self._network)
        name = torch.cuda.get_device_name(x.device) if x.is_cuda else x.device.type
        key = f"torch {torch.__version__}, {name}, network {self._hash}, {kind}"
        passes = compiling.passes
        if not passes or (passes < math.inf and not worthwhile(passes, self._cost(key, x))):
            compiling.declined.add(kind)
            return False
        try:
            _use_cache_folder()
            if not self._accepted:
                self._compiled = torch.compile(self._network, dynamic=False, backend=BACKEND)
            with _most_compilations():
                self._verify(key, x)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # torch raises many types, such as for a missing compiler
            cause = getattr(error, "inner_exception", error)  # of the backend
            self.failure = f"{type(cause).__name__}: {first_line(cause)}"
            compiling.failed(self.failure)
            return False
        self._accepted.add(kind)
        return True

    def _cost(self, key: str, x: Tensor) -> Cost:
        """The cost of a compilation, recorded or expected."""
        return recorded_cost(key) or Cost(
            COLD + _startup(), SAVED * self._unchanged(lambda: _seconds(self._network, self._network, x), x) / len(x)
        )

    def _verify(self, key: str, x: Tensor) -> None:
        """Compile and compare one pass, and record the cost; a pass of the network that fails is left to the caller."""
        network, startup = self._network, _startup()

        def timed() -> tuple[Outputs, float]:
            started = time.perf_counter()
            outputs = _outputs(self._compiled, network, x)
            return outputs, _now(x) - started

        found, first = self._unchanged(timed, x)
        seconds = first - self._unchanged(timed, x)[1] - startup
        expected = self._unchanged(lambda: _outputs(network, network, x), x)
        if not getattr(network, "training", False) and (  # training may have random layers
            differs := difference(expected, found, TOLERANCE, GRADIENT_TOLERANCE)
        ):
            raise ClasswiseError(f"the compiled network's {differs}, more than rounding explains")
        fast = self._unchanged(lambda: _seconds(self._compiled, network, x), x)
        slow = self._unchanged(lambda: _seconds(network, network, x), x)
        _record(key, max(seconds, 0.0), (slow - fast) / len(x))

    def _unchanged(self, function: Callable[[], T], x: Tensor) -> T:
        """The result of some passes, after which the random generators and the buffers of the network are as before."""
        restore, buffers = saved_generators(x.device), saved_buffers(self._network)
        try:
            return function()
        finally:
            restore()
            restore_buffers(buffers)
            torch.clear_autocast_cache()


_compiles: list[str] = []
"""The kinds of passes that this process has compiled."""
_networks: weakref.WeakValueDictionary[int, CompiledNetwork] = weakref.WeakValueDictionary()


def compiled(network: nn.Module) -> CompiledNetwork:
    """The compilation of a network, shared by all its users while one exists, so that none compiles it again."""
    known = _networks.get(id(network))  # it holds the network, so the id is not reused while it exists
    if known is None:
        known = _networks[id(network)] = CompiledNetwork(network)
    return known


def cache_folder() -> Path:
    """The folder of compiled kernels.

    Raises:
        ClasswiseError: if the environment variable is not set, and the user has no home folder.
    """
    try:
        return Path(os.environ.get(VARIABLE) or FOLDER.expanduser())
    except RuntimeError as error:  # such as a user of a container that only has a number
        raise ClasswiseError(f"the user has no home folder for compiled kernels; set {VARIABLE}") from error


def _use_cache_folder() -> None:
    """Set the folder of compiled kernels, unless the user has; its files are executed, so it is private."""
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")  # the default of newer versions
    if not os.environ.get(VARIABLE):
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # an error if it belongs to another user
        os.environ[VARIABLE] = str(folder)


def _most_compilations() -> AbstractContextManager[Any]:
    """Context in which `MOST` kinds of passes of a forward method may be compiled; beyond torch's limit none is."""
    config: Any = importlib.import_module("torch._dynamo.config")  # takes a second
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.6
    context: AbstractContextManager[Any] = config.patch(**{name: MOST})
    return context


def recorded_cost(key: str) -> Cost | None:
    """The cost of a compilation by what is recorded of earlier ones; None without a record."""
    entry = _entries().get(key)
    if entry is None:
        return None
    return Cost(entry["seconds"] * (CACHED if entry["count"] == 1 else 1) + _startup(), entry["saved"])


def _startup() -> float:
    """Seconds that the next compilation takes longer, if it is the first one of the process."""
    return 0.0 if _compiles else STARTUP


class _Entry(TypedDict):
    """The last compilation of a kind of pass: its seconds, the seconds that it saves, and the number of them."""

    seconds: float
    saved: float
    count: int


def _entries() -> dict[str, _Entry]:
    try:
        return read_json(cache_folder() / RECORD, kind=dict[str, _Entry])
    except ClasswiseError:  # none has been written, or it is damaged
        return {}


def _record(key: str, seconds: float, saved: float) -> None:
    _compiles.append(key)
    with _lock, suppress(ClasswiseError):  # a full disk
        entries = _entries()
        count = 1 + (entries[key]["count"] if key in entries else 0)
        entries[key] = {"seconds": round(seconds, 2), "saved": saved, "count": count}
        write_json(cache_folder() / RECORD, entries, indent=1)


def _hash(network: nn.Module) -> str:
    shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in network.state_dict().items()]
    return hashlib.sha256(f"{network} {shapes}".encode()).hexdigest()[:16]


def _outputs(forward: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> Outputs:
    """Logits of a batch, and the gradient of its images if they require one; that of the weights is computed, too."""
    leaf = x.detach().requires_grad_(x.requires_grad)
    logits = forward(leaf)
    learned = [weight for weight in network.parameters() if weight.requires_grad]
    if not (logits.requires_grad and (leaf.requires_grad or learned)):
        return logits.detach(), None
    weights = torch.arange(1.0, logits.shape[1] + 1, device=logits.device).cos()
    inputs = [leaf, *learned] if leaf.requires_grad else learned
    gradients = torch.autograd.grad((logits.float() * weights).sum(), inputs, allow_unused=True)
    return logits.detach(), gradients[0] if leaf.requires_grad else None


def _seconds(forward: Callable[[Tensor], Tensor], network: nn.Module, x: Tensor) -> float:
    """Seconds of one pass, without those of Python on a GPU: as a CUDA graph, where that is possible."""
    call: Callable[[], object] = functools.partial(_outputs, forward, network, x)
    if x.is_cuda:
        side = SideStream(x.device)
        with side.used(), waits_noted() as waits:
            call()
        if not waits:
            with suppress(RuntimeError):  # a network that cannot be captured
                call = Captured(call, side).replay
    call()
    started = _now(x)
    call()
    return _now(x) - started


def _now(x: Tensor) -> float:
    """The time when a GPU has finished."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def difference(expected: Outputs, found: Outputs, tolerance: float, gradient_tolerance: float) -> str:
    """How outputs differ by more than rounding, after the name of the network and ``'s``; empty if they do not.

    Args:
        expected: logits of images, and the gradient of the images; None: there is none.
        found: those to compare.
        tolerance: largest difference of a logit, as a fraction of the largest one.
        gradient_tolerance: largest median over the images of the difference of a gradient, as a fraction of its norm.
    """
    logits, other = expected[0].float(), found[0].float()
    error = float((other - logits).abs().max() / logits.abs().max().clamp_min(_TINY))
    if not error <= tolerance:
        return f"logits differ by {error:.1e} of the largest"
    if expected[1] is None or found[1] is None:
        return "" if expected[1] is found[1] else "gradient differs"
    norms = expected[1].flatten(1).norm(dim=1).clamp_min(_TINY)
    error = float(((found[1] - expected[1]).flatten(1).norm(dim=1) / norms).median())
    return "" if error <= gradient_tolerance else f"gradient differs by {error:.1e} of its norm"
