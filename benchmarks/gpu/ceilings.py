"""Ceilings of the device: copies, matrix products, and the convolutions of a ResNet-18 for CIFAR."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.gpu.cells import Result, Stage, Timer, run_cells
from benchmarks.pairing import Timing
from benchmarks.tables import table
from benchmarks.training_step import network
from classwise.core.compute.float32 import true_float32

ROUNDS = 7
MATRIX = "bfloat16"
"""The arithmetic whose rate of matrix products is the ceiling of a training step."""
PARTS = ("forward", "to the image", "to the weights")


@dataclass(frozen=True)
class Size:
    """Sizes of the operations.

    Args:
        copied: bytes of a copy.
        matrix: rows and columns of a matrix.
        batches: numbers of images.
        width: of the network.
        repeats: calls of a convolution for each reading of the clock.
    """

    copied: int = 1 << 30
    matrix: int = 8192
    batches: tuple[int, ...] = (128, 512, 1024)
    width: float = 1.0
    repeats: int = 20


QUICK = Size(1 << 10, 16, (4,), 0.125, 1)


class Arithmetic(NamedTuple):
    """The data type of an operation, and the context that makes it."""

    dtype: torch.dtype
    context: Callable[[torch.device], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def tf32(_: torch.device) -> Iterator[None]:
    """Context in which float32 convolutions and matrix products are computed in TF32."""
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def unchanged(_: torch.device) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


ARITHMETIC = {
    MATRIX: Arithmetic(torch.bfloat16, unchanged),
    "float16": Arithmetic(torch.float16, unchanged),
    "TF32": Arithmetic(torch.float32, tf32),
    "float32": Arithmetic(torch.float32, true_float32),
}


class Convolution(NamedTuple):
    """The shape of a convolution of square images without bias."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def flops(self) -> int:
        """Of one image in one direction; a multiplication and an addition are 2."""
        return 2 * self.inputs * self.outputs * self.kernel**2 * math.ceil(self.side / self.stride) ** 2

    def __str__(self) -> str:
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{self.inputs} to {self.outputs}, {self.kernel}x{self.kernel}{stride}, {self.side}x{self.side}"


@functools.cache
def convolutions(width: float) -> Mapping[Convolution, int]:
    """The convolutions of a PreActResNet-18 for 32x32 images, and how often each occurs."""
    found: Counter[Convolution] = Counter()

    def add(module: nn.Conv2d, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        kernel, stride = module.kernel_size[0], module.stride[0]
        found[Convolution(module.in_channels, module.out_channels, kernel, stride, inputs[0].shape[-1])] += 1

    model = network(width).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(add)
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    return found


def copies(timer: Timer, size: Size) -> Result:
    """Rates of copies in GB/s; a copy on the device counts the bytes that are read and those that are written."""
    pageable = torch.ones(size.copied, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    here, there = (torch.zeros(size.copied, dtype=torch.uint8, device=timer.device) for _ in range(2))
    timing = timer.paired(
        {
            "to the device, pageable": lambda: here.copy_(pageable),
            "to the device, pinned": lambda: here.copy_(pinned, non_blocking=True),
            "from the device, pinned": lambda: pinned.copy_(here, non_blocking=True),
            "on the device": lambda: there.copy_(here),
        },
        ROUNDS,
    )
    moved = {name: size.copied * (2 if name == "on the device" else 1) for name in timing.seconds}
    rates = {name: count / timing.median(name) / 1e9 for name, count in moved.items()}
    return {"GB/s": rates, "bytes": size.copied, **_rounds(timing)}


def product(timer: Timer, size: Size, name: str) -> Result:
    """Rate of the product of two square matrices of random numbers, in TFLOP/s."""
    dtype, context = ARITHMETIC[name]
    a, b = (torch.randn(size.matrix, size.matrix, device=timer.device).to(dtype) for _ in range(2))
    with context(torch.device(timer.device)):
        timed = timer.seconds(lambda: a @ b, 3 * ROUNDS)
    return {"TFLOP/s": 2 * size.matrix**3 / timed["seconds"] / 1e12, "matrix": size.matrix, **timed}


def convolved(timer: Timer, size: Size, name: str, batch: int) -> Result:
    """Rates of every convolution in TFLOP/s: forward, and the gradients of the image and of the weights."""
    arithmetic, shapes = ARITHMETIC[name], convolutions(size.width)
    functions: dict[str, Callable[[], object]] = {}
    with arithmetic.context(torch.device(timer.device)):
        for shape in shapes:
            calls = _calls(shape, batch, arithmetic.dtype, timer.device)
            functions |= {f"{shape}: {part}": _repeated(call, size.repeats) for part, call in calls.items()}
        timing = timer.paired(functions, ROUNDS)
    rows, flops, seconds = [], dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    for shape, layers in shapes.items():
        rates = {}
        for part in PARTS:
            taken = timing.median(f"{shape}: {part}") / size.repeats
            rates[part] = batch * shape.flops / taken / 1e12
            flops[part] += layers * batch * shape.flops
            seconds[part] += layers * taken
        rows.append({"shape": str(shape), "layers": layers, "TFLOP/s": rates})
    network = {part: flops[part] / seconds[part] / 1e12 for part in PARTS}
    return {"shapes": rows, "TFLOP/s": network, **_rounds(timing)}


def _calls(shape: Convolution, batch: int, dtype: torch.dtype, device: str) -> dict[str, Callable[[], object]]:
    """The three passes of a convolution, on random numbers in the channels-last format."""

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device).to(dtype).contiguous(memory_format=torch.channels_last)

    x = random(batch, shape.inputs, shape.side, shape.side)
    weight = random(shape.outputs, shape.inputs, shape.kernel, shape.kernel)
    stride, padding = [shape.stride] * 2, [shape.padding] * 2
    forward: Callable[[], Tensor] = functools.partial(torch.conv2d, x, weight, None, stride, padding)
    upstream = torch.randn_like(forward())

    def backward(*mask: bool) -> Callable[[], object]:
        arguments = (upstream, x, weight, None, stride, padding, [1, 1], False, [0, 0], 1, mask)
        return functools.partial(torch.ops.aten.convolution_backward, *arguments)

    passes = (forward, backward(True, False, False), backward(False, True, False))
    return dict(zip(PARTS, passes, strict=True))


def _repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


def _rounds(timing: Timing) -> dict[str, int]:
    return {"rounds": timing.rounds, "planned": ROUNDS}


def stage(size: Size) -> Stage:
    cells: dict[str, Callable[[Timer], Result]] = {"copies": functools.partial(copies, size=size)}
    cells |= {f"product, {name}": functools.partial(product, size=size, name=name) for name in ARITHMETIC}
    cells |= {
        f"convolutions, {name}, batch {batch}": functools.partial(convolved, size=size, name=name, batch=batch)
        for name in ARITHMETIC
        for batch in size.batches
    }
    return Stage("ceilings", "Ceilings of the GPU", functools.partial(run_cells, cells=cells), tables)


def rate_of_products(every: Mapping[str, Mapping[str, Result]]) -> float | None:
    """The measured rate of matrix products in bfloat16, TFLOP/s; None before it is measured."""
    found: Result | None = every.get("ceilings", {}).get(f"product, {MATRIX}")
    return None if found is None else float(found["TFLOP/s"])


def tables(every: Mapping[str, Mapping[str, Result]]) -> str:
    results = every.get("ceilings", {})
    parts = ["Medians over the rounds; the device has finished whenever the clock is read.\n"]
    if found := results.get("copies"):
        rows = [[name, f"{rate:,.1f}"] for name, rate in found["GB/s"].items()]
        parts.append(table(f"Copies of {found['bytes']:,} bytes", ["copy", "GB/s"], rows))
    products = {name: results[cell] for name in ARITHMETIC if (cell := f"product, {name}") in results}
    if products:
        side = next(iter(products.values()))["matrix"]
        rows = [[name, f"{result['TFLOP/s']:,.1f}"] for name, result in products.items()]
        parts.append(table(f"Products of {side} x {side} matrices", ["arithmetic", "TFLOP/s"], rows))
    networks = {name: result for name, result in results.items() if name.startswith("convolutions")}
    if networks:
        rows = [[name.partition(", ")[2], *_cells(result["TFLOP/s"])] for name, result in networks.items()]
        title = "All convolutions of a PreActResNet-18, channels-last, TFLOP/s"
        parts.append(table(title, ["arithmetic", *PARTS], rows))
    for name, result in networks.items():
        rows = [[layer["shape"], str(layer["layers"]), *_cells(layer["TFLOP/s"])] for layer in result["shapes"]]
        title = f"Convolutions in {name.partition(', ')[2]}, TFLOP/s"
        parts.append(table(title, ["convolution", "layers", *PARTS], rows))
    return "\n".join(parts)


def _cells(rates: Mapping[str, Any]) -> list[str]:
    return [f"{rates[part]:,.1f}" for part in PARTS]
