"""Numerical settings of a model: dtype, memory format, compilation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from classwise.core.compute.compilation import Compile, CompiledNetwork, Compiling, compiled
from classwise.core.compute.float32 import Float32
from classwise.core.compute.graphs import Graphs
from classwise.core.compute.memory_format import (
    channels_last,
    contiguous,
    format_of,
    is_contiguous,
    overflows_in_channels_last,
)
from classwise.core.errors import ClasswiseError
from classwise.core.settings.ambient_state import default_of_user
from classwise.core.settings.config import configurable

Dtype = Literal["float32", "bfloat16"]
Forward = Callable[[Tensor], Tensor]
"""A function from images (N, C, H, W) in [0, 1] to logits (N, classes)."""


def _on_or_off(value: object) -> object:
    """Undo YAML, which reads ``on`` and ``off`` as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


@configurable
class Precision:
    """Numerical settings of forward passes; logits are always returned in float32.

    Args:
        dtype: ``"float32"``, or ``"bfloat16"`` for automatic mixed precision. float16 is not supported: the gradients
            of confident models underflow in it. ``"auto"``: bfloat16 in the channels-last format on devices that
            multiply it at full rate (`fastest`), else float32; a run or audit records which (`on`).
        channels_last: use the channels-last memory format, in which convolutions on CPUs and GPUs are faster; a model
            that fails in it is run in the contiguous format (`classwise.core.compute.memory_format`).
        compile: compile the passes of training and of attacks with ``torch.compile``, never those of verdicts:
            ``"auto"`` on a GPU where that saves more time than it takes
            (`classwise.core.compute.compilation.worthwhile`); ``"on"`` always; ``"off"`` never. True and False are read
            as ``"on"`` and ``"off"``.
        deterministic: use deterministic algorithms only (`classwise.core.compute.determinism`), so that equal runs and
            audits on one GPU have equal bits; on a CPU they always have. It costs some speed, and some operations are
            refused.
        graphs: compute steps of training and of attacks on a GPU as CUDA graphs: ``"auto"`` where possible (the run or
            audit logs and records why not), ``"on"`` always (an error where it is impossible), ``"off"`` never.
        search: how a GPU computes the float32 passes of a search, such as those of FAB and Square; success is always
            decided in true float32. ``"auto"``: in TF32 if ``dtype`` is bfloat16, in float32 if it is float32.

    Raises:
        ClasswiseError: for a value that is not accepted, or ``compile = on`` with ``deterministic``.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> precision = cw.Precision(dtype="bfloat16", channels_last=True)
        >>> model = cw.load_model("small-cnn", num_classes=10, in_channels=3, width=0.25)
        >>> logits = precision.forward(model)(torch.rand(4, 3, 32, 32))
        >>> logits.dtype
        torch.float32
    """

    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    channels_last: bool = False
    compile: Annotated[Compile, BeforeValidator(_on_or_off)] = "auto"
    deterministic: bool = False
    graphs: Annotated[Graphs, BeforeValidator(_on_or_off)] = "auto"
    search: Literal["auto", "tf32", "float32"] = "auto"

    def __post_init__(self) -> None:
        if self.compile == "on" and self.deterministic:
            raise ClasswiseError(
                "precision.compile = on: compiled kernels are chosen by measurements, which differ from process to "
                "process; with precision.deterministic = true set it to auto or off"
            )

    def __repr__(self) -> str:  # keys of stored results have it
        compiles = self.compile == "on"  # as in older results; "auto" changes rounding only
        return f"Precision(dtype={self.dtype!r}, channels_last={self.channels_last}, compile={compiles})"

    def recorded(self, device: torch.device) -> dict[str, Any]:
        """The settings that an audit records, without ``graphs``.

        ``deterministic`` only if set, and ``search`` only if it is TF32 (`search_on`), since older audits, which have
        neither, were without.
        """
        fields = dataclasses.asdict(self) | {"search": self.search_on(device), "compile": self.compile == "on"}
        omitted = {"graphs": self.graphs, "deterministic": False, "search": "float32"}
        return {name: value for name, value in fields.items() if name not in omitted or omitted[name] != value}

    def search_on(self, device: torch.device) -> Float32:
        """How the float32 passes of a search are computed on a device.

        Example:
            >>> import torch
            >>> import classwise as cw
            >>> cw.Precision(dtype="bfloat16").search_on(torch.device("cuda"))
            'tf32'
        """
        if self.search != "auto":
            return self.search
        return "tf32" if device.type == "cuda" and self.dtype == "bfloat16" else "float32"

    def on(self, device: torch.device) -> Precision:
        """The settings on a device, without the dtype ``"auto"``.

        Example:
            >>> import torch
            >>> import classwise as cw
            >>> cw.Precision(dtype="auto").on(torch.device("meta")).dtype
            'float32'
        """
        if self.dtype != "auto":
            return self
        chosen = fastest(device)
        channels_last = self.channels_last or chosen == FAST
        return dataclasses.replace(self, dtype=chosen.dtype, channels_last=channels_last)

    def compiling(
        self,
        device: torch.device,
        batch_size: int,
        passes: float,
        failed: Callable[[str], None] = lambda _: None,
    ) -> Compiling | None:
        """Which passes on a device are compiled; None if none is.

        Args:
            device: the device.
            batch_size: images of a pass.
            passes: passes of an image that are left.
            failed: called with the reason, if a compilation has failed.
        """
        if self.compile == "on":
            return Compiling(batch_size, math.inf, failed)
        if self.compile == "off" or self.deterministic or device.type != "cuda":
            return None
        return Compiling(batch_size, passes, failed)

    def forward(self, model: nn.Module) -> Pass:
        """The model as a function from images to float32 logits."""
        return Pass(model, self)

    def to_memory_format(self, x: Tensor) -> Tensor:
        """Convert images to the memory format of these settings; values do not change."""
        return channels_last(x) if self.channels_last and x.ndim == 4 else x

    def prepare(self, model: nn.Module) -> None:
        """Convert the model's weights to the memory format of these settings, in place; values do not change."""
        if self.channels_last and not overflows_in_channels_last(model):
            format_of(model).prepare(model)


class Pass:
    """A model as a function from images (N, C, H, W) in [0, 1] to float32 logits (N, classes).

    The caller's images are never modified. The first pass runs on a copy, to detect whether the model writes into its
    input. If it does, every pass runs on a copy; otherwise later passes run on the images themselves.

    Attributes:
        module: the model.
        overwrites: whether the model writes into its input; None before the first pass.
        classes: number of logits of each image; None before the first pass.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.module = model
        self.overwrites: bool | None = None
        self.classes: int | None = None
        self._network: CompiledNetwork | None = None
        self._compiling: Compiling | None = None
        self._precision = precision
        self._mixed = precision.dtype == "bfloat16"
        self._format = format_of(model)
        self._overflows = overflows_in_channels_last(model)

    def compile(self, compiling: Compiling | None) -> None:
        """Compile the network in further passes, those that ``compiling`` asks for; None: in none."""
        self._compiling = compiling
        if compiling is not None:
            self._network = compiled(self.module)

    @property
    def compiles(self) -> bool:
        """Whether passes are compiled, as far as is known."""
        if self._compiling is None or self._network is None:
            return False
        return not (self._network.failure or self._compiling.declined)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the float32 logits of a batch."""
        if not self._precision.channels_last and is_contiguous(x):
            return self._logits(x)
        strides = None if self._precision.channels_last else x.stride()
        kind = (
            x.shape,
            strides,
            self._mixed,
            getattr(self.module, "training", False),
            torch.is_grad_enabled(),
            x.requires_grad,
        )
        return self._format.run(lambda: self._logits(x), self.module, x.device, kind)

    def _logits(self, x: Tensor) -> Tensor:
        x = x if self.overwrites is False else x.clone()
        needs_contiguous = self._format.contiguous or (self._overflows and self._learns())
        x = contiguous(x) if needs_contiguous else self._precision.to_memory_format(x)
        before = None if self.overwrites is not None or x.is_inference() else x._version
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self._mixed), default_of_user():
            compiling, network = self._compiling, self._network
            logits: Tensor = self.module(x) if compiling is None or network is None else network(x, compiling)
        if before is not None:
            self.overwrites = x._version != before
        if logits.ndim == 2 and logits.shape[1] != self.classes:
            self._check_classes(logits.shape[1])
        return logits.float()

    def _check_classes(self, classes: int) -> None:
        """Note the number of logits of the first pass.

        Raises:
            ClasswiseError: if it was another in an earlier pass.
        """
        if self.classes is not None:
            raise ClasswiseError(
                f"the model returned {self.classes} logits for each image before, and now {classes}; their number must "
                "not change"
            )
        self.classes = classes

    def _learns(self) -> bool:
        """Whether this pass records gradients of the weights."""
        return torch.is_grad_enabled() and any(weight.requires_grad for weight in self.module.parameters())


def check_device(device: str | torch.device) -> None:
    """Check that this machine has a device.

    Raises:
        ClasswiseError: if it does not, or the device computes no values, such as ``meta``.
    """
    try:
        usable = not torch.empty(0, device=device).is_meta
    except Exception as error:  # torch raises several types for a missing device
        name, colon, number = str(device).partition(":")
        meant = {"gpu": "cuda"}.get(name.casefold(), name.casefold())
        hint = "cpu is always available"
        if meant != name and meant in ("cpu", "cuda"):
            hint = f"did you mean {meant + colon + number!r}?"
        raise ClasswiseError(
            f"there is no device {str(device)!r} on this machine{_without_cuda(str(device))}; {hint}"
        ) from error
    if not usable:
        raise ClasswiseError(f"device {str(device)!r} computes no values; cpu is always available")


def _without_cuda(device: str) -> str:
    """Why a CUDA device is missing, as a part of a sentence; empty for other devices."""
    if not device.startswith("cuda"):
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return f": torch {torch.__version__} is built without CUDA"
    return f": torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices; check the driver"


def fastest(device: torch.device) -> Precision:
    """The fastest settings for gradients on a device.

    bfloat16 is fast on hardware with native bfloat16 matrix products: CPUs with AMX or AVX-512 BF16 (Intel since
    Sapphire Rapids, AMD since Zen 4), and GPUs since NVIDIA's Ampere and AMD's CDNA. Other hardware converts or
    emulates it, which takes longer than float32.

    Example:
        >>> import torch
        >>> from classwise.core.compute.precision import FAST, FLOAT32, fastest
        >>> fastest(torch.device("cpu")) in (FAST, FLOAT32)
        True
    """
    return FAST if _multiplies_bfloat16(device) else FLOAT32


def slow_dtype_note(precision: Precision, device: torch.device) -> str:
    """A note that the other dtype is faster on a device, and by how much; empty if it is not.

    Example:
        >>> import torch
        >>> from classwise.core.compute.precision import FLOAT32, slow_dtype_note
        >>> slow_dtype_note(FLOAT32, torch.device("meta"))
        ''
    """
    is_fast = fastest(device) == FAST
    if is_fast == (precision.on(device).dtype != FLOAT32.dtype):
        return ""
    if is_fast:
        gain = "about 2.5 times as fast on an H100" if device.type == "cuda" else "1.7 to 3 times as fast"
        return f"precision.dtype = float32: passes of a ResNet in bfloat16 are {gain}; precision.dtype=auto uses it"
    return (
        f"precision.dtype = bfloat16 takes longer than float32 on this {device.type}, which does not multiply it; "
        "precision.dtype=float32 is faster"
    )


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cpu":
        has_amx = getattr(torch.cpu, "_is_amx_tile_supported", None)  # older versions have no get_capabilities
        has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        return bool((has_amx and has_amx()) or has.get("avx512_bf16"))
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


FAST = Precision(dtype="bfloat16", channels_last=True)
"""bfloat16 for gradients; success is decided in float32. The fastest settings where `fastest` returns them."""
FLOAT32 = Precision(channels_last=True)
"""Float32 for gradients, on a fused copy of the model."""
EXACT = Precision()
"""Float32 throughout, on the model itself."""
DTYPES: Mapping[str, Precision] = {"bfloat16": FAST, "float32": FLOAT32}
"""The settings of audits by their dtype."""


def precision_of(precision: Precision | Dtype | None) -> Precision | None:
    """The settings of audits in a precision, which is given as such or by its dtype."""
    return DTYPES[precision] if isinstance(precision, str) else precision
