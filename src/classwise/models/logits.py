"""Extraction of the logits from a model's output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.user_code import call_user_code
from classwise.models.base import Classifier, Wrapper
from classwise.models.functions import MaiteModel, as_module, is_model, model_of

logger = logging.getLogger(__name__)

Outputs = Literal["auto", "logits", "probabilities", "binary", "binary-logits", "binary-probabilities"]
"""What a model returns.

``auto``: logits; an audit rejects a model whose outputs are probabilities, or one number per image. ``binary``: one
number per image, a logit or a probability of class 1, which is decided on the first images.
"""

BINARY_HINT = (
    "for a binary model with one output use load_model(model, outputs='binary') (--outputs binary), which reads it as "
    "the logit or the probability of class 1"
)

_GAP = 1e4
"""Least distance of a raised logit from the others: its exponential underflows, also at small inverse temperatures."""

SUM_TOLERANCE = 1e-3
"""Largest distance from 1 of the sum of a row of probabilities."""


def pick_logits(output: object) -> Tensor:
    """The logits (N, C) in a model's output: a tensor, the first of a tuple or list, ``.logits`` or ``["logits"]``.

    Raises:
        ClasswiseError: if there are no logits, or they are not a matrix of floating-point numbers.
    """
    return _as_matrix(_picked(output))


def _picked(output: object) -> Tensor:
    """The tensor with the logits in a model's output.

    Raises:
        ClasswiseError: if there is none.
    """
    logits = output
    if isinstance(logits, Mapping):
        logits = logits.get("logits")
    elif not isinstance(logits, Tensor) and hasattr(logits, "logits"):
        logits = logits.logits
    elif isinstance(logits, tuple | list) and logits:
        logits = logits[0]
    if not isinstance(logits, Tensor):
        raise ClasswiseError(
            f"the model returns a {type(output).__name__} without logits; return a tensor (N, C), "
            "a tuple whose first element is one, or an object or dict with 'logits'"
        )
    return logits


def _as_matrix(logits: Tensor) -> Tensor:
    """Logits (N, C), checked.

    Raises:
        ClasswiseError: if they are not a matrix of floating-point numbers.
    """
    if logits.ndim != 2 or not logits.is_floating_point():
        hint = f"; {BINARY_HINT}" if logits.ndim == 1 and logits.is_floating_point() else ""
        raise ClasswiseError(
            f"{_described(logits)}; logits must be floating-point numbers of shape (N, C), one row per image{hint}"
        )
    return logits


def _described(logits: Tensor) -> str:
    return f"the model returns {str(logits.dtype).removeprefix('torch.')} of shape {tuple(logits.shape)}"


def are_valid(logits: Tensor) -> Tensor:
    """Whether each row of logits (N, C) has a prediction, bool (N,).

    It has none with a NaN or +inf, or if all logits are -inf. Some logits of -inf, of classes that are never predicted,
    are valid.
    """
    return logits.amax(1).isfinite()


def predicts(logits: Tensor, y: Tensor) -> Tensor:
    """Whether each row of logits (N, C) is valid (`are_valid`) and predicts its label (N,), bool (N,)."""
    return (logits.argmax(1) == y) & are_valid(logits)


def raised(logits: Tensor) -> Tensor:
    """The logits (N, C) with a finite number in place of -inf, below all other logits of the row; for losses.

    A softmax gives it the probability 0, and its gradient is 0. Other logits do not change, nor do their gradients.
    Rows without finite logits have no such number and become NaN.
    """
    excluded = logits.isneginf()
    least = logits.detach().masked_fill(excluded, torch.inf).amin(1, keepdim=True)
    floor = (least - _GAP - least.abs()).clamp_min(torch.finfo(logits.dtype).min)
    return torch.where(excluded, floor, logits)


def are_probabilities(outputs: Tensor) -> bool:
    """Whether each row of outputs (N, C), C of at least 2, is nonnegative and sums to 1."""
    sums = outputs.double().sum(1)
    return outputs.shape[1] > 1 and bool((outputs >= 0).all() and ((sums - 1).abs() < SUM_TOLERANCE).all())


def check_logits(model: nn.Module, blocks: Iterable[Tensor]) -> None:
    """Check that a model returns logits, or what it was loaded with.

    Args:
        model: the model.
        blocks: its outputs for a few images, (N, C) each.

    Raises:
        ClasswiseError: if it returns something else.
    """
    inner = logits_model_of(model)
    kind = "auto" if inner is None else inner.kind
    if kind == "probabilities":
        if not all(are_probabilities(logits.exp()) for logits in blocks):
            raise ClasswiseError("outputs='probabilities': the model returns rows that are negative or do not sum to 1")
    elif kind == "auto" and all(are_probabilities(logits) for logits in blocks):
        raise ClasswiseError(
            "the model returns probabilities (each row is nonnegative and sums to 1), whose gradients vanish where "
            "the model is confident; return logits, or load it with outputs='probabilities' (--outputs "
            "probabilities), which takes the logarithm"
        )


def in_unit_interval(outputs: Tensor) -> bool:
    """Whether all outputs are in [0, 1]."""
    return bool(((outputs >= 0) & (outputs <= 1)).all())


def as_logits(model: nn.Module | Callable[..., object]) -> nn.Module:
    """The model as a module that returns logits: networks of the zoo and wrappers unchanged, others wrapped.

    The wrappers of parallel training and of `torch.compile` are removed (`unwrapped`).

    Args:
        model: a module, a function from images to an output with logits, a model in the protocol of MAITE, or a
            function that returns one of them (`model_of`).

    Raises:
        ClasswiseError: if it is neither.
    """
    model = model_of(model)
    network = MaiteModel(model) if is_model(model) else as_module(model)
    return network if isinstance(network, Classifier | Wrapper) else LogitsModel(network)


def logits_model_of(model: nn.Module) -> LogitsModel | None:
    """The `LogitsModel` among the wrappers of a model; None if there is none."""
    while isinstance(model, Wrapper) and not isinstance(model, LogitsModel):
        model = model.model
    return model if isinstance(model, LogitsModel) else None


class LogitsModel(Wrapper):
    """A wrapper that returns only the logits of a model.

    Args:
        model: a module whose output `pick_logits` accepts; of a binary model, with one number per image.
        outputs: what the model returns. ``"probabilities"``: the logits are their logarithms, of at least the smallest
            positive number. ``"binary-logits"``: one logit z per image; the logits are (0, z).
            ``"binary-probabilities"``: one probability p of class 1; the logits are those of (1 - p, p).
            ``"binary"``: one of these two, probabilities if all outputs for the first images are in [0, 1]; an audit
            decides on the first images of its data.

    Attributes:
        kind: the outputs, with ``"binary"`` replaced by the decision after the first images.

    Raises:
        ClasswiseError: for other ``outputs``.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> from torch import nn
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))  # one logit of class 1
        >>> model = cw.load_model(network, outputs="binary-logits")
        >>> model(torch.rand(3, 1, 2, 2)).shape
        torch.Size([3, 2])
    """

    def __init__(self, model: nn.Module, outputs: Outputs = "auto") -> None:
        if outputs not in get_args(Outputs):
            raise unknown("outputs of a model:", str(outputs), get_args(Outputs))
        super().__init__(model)
        self.outputs: Outputs = outputs
        self.kind: Outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of images (N, channels, H, W)."""
        output = _picked(call_user_code(self.model, x))
        if self.kind == "binary":
            self.decide(output)
        if self.kind.startswith("binary"):
            return self._two_logits(output, len(x))
        logits = _as_matrix(output)
        if len(logits) != len(x) or logits.is_meta:
            shape = f"{'meta tensor' if logits.is_meta else 'tensor'} of shape {tuple(logits.shape)}"
            raise ClasswiseError(
                f"the model returns a {shape} for {len(x)} images; logits must be (N, C), one row per image"
            )
        return _logarithms(logits) if self.kind == "probabilities" else logits

    def decide(self, output: Tensor) -> None:
        """Decide whether the outputs of a binary model are probabilities: if all of some images are in [0, 1]."""
        self.kind = "binary-probabilities" if in_unit_interval(output) else "binary-logits"
        what, why = ("logits", "not all") if self.kind == "binary-logits" else ("probabilities", "all")
        logger.warning(
            "the outputs of the model are read as %s of class 1: %s outputs for the first %d images are in [0, 1]; "
            "give outputs='%s' (--outputs %s) to state it",
            *(what, why, output.numel(), self.kind, self.kind),
        )

    def _two_logits(self, output: Tensor, images: int) -> Tensor:
        """The logits (N, 2) of one output per image."""
        if output.numel() != images or not output.is_floating_point() or output.is_meta:
            raise ClasswiseError(
                f"outputs={self.outputs!r}: {_described(output)} for {images} images; expected one floating-point "
                "number for each image, (N,) or (N, 1)"
            )
        one = output.reshape(images)
        if self.kind == "binary-probabilities":
            return _logarithms(torch.stack([1 - one, one], 1))
        return torch.stack([torch.zeros_like(one), one], 1)


class SelectedLogits(Wrapper):
    """A model of which only some logits are used: the others are never predicted.

    ImageNet-A and ImageNet-R have 200 of the classes of ImageNet, and their authors evaluate models of ImageNet so.

    Args:
        model: maps images to logits (N, C).
        classes: the class of each selected logit, in [0, C).
    """

    def __init__(self, model: nn.Module, classes: Sequence[int]) -> None:
        super().__init__(model)
        parameter = next(model.parameters(), None)
        # Not register_buffer, which rejects names that are attributes of the inner model.
        self._buffers["selected"] = torch.tensor(classes, device=None if parameter is None else parameter.device)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, K) of images (N, channels, H, W)."""
        logits: Tensor = self.model(x)
        return logits[:, self.selected]


class AdjustedLogits(Wrapper):
    """A model with a constant added to the logit of each class: ``model(x) + logit_adjustment``.

    Both buffers are part of the state dict, so a file of the weights of this module contains the adjustment, and
    `load_model` restores it.

    Args:
        model: maps images to logits (N, C).
        constants: the constant of each class, (C,), finite.
        images: hashes of the images on which the constants were fitted (`classwise.data.duplicates.content_hashes`),
            int64 (N,); None: unknown.

    Attributes:
        logit_adjustment: the constants, float32 (C,).
        fitted_images: the hashes, int64 (N,).

    Raises:
        ClasswiseError: for constants that are not finite numbers (C,), or a model that is adjusted already.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from classwise.models import AdjustedLogits
        >>> model = AdjustedLogits(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), [0.5, -0.5])
        >>> x = torch.rand(3, 1, 2, 2)
        >>> torch.equal(model(x), model.model(x) + torch.tensor([0.5, -0.5]))
        True
    """

    logit_adjustment: Tensor
    fitted_images: Tensor

    def __init__(
        self, model: nn.Module, constants: Sequence[float] | Tensor, images: Sequence[int] | Tensor | None = None
    ) -> None:
        if isinstance(model, AdjustedLogits):
            raise ClasswiseError("the logits of the model are adjusted already; pass the inner model, model.model")
        super().__init__(model)
        values = torch.as_tensor(constants, dtype=torch.float32).detach().clone()
        if values.ndim != 1 or not len(values) or not bool(values.isfinite().all()):
            raise ClasswiseError(
                f"the logit adjustment has shape {tuple(values.shape)}; expected a finite number for each class, (C,)"
            )
        hashes = torch.as_tensor([] if images is None else images, dtype=torch.int64).detach().clone().flatten()
        # Not register_buffer, which rejects names that are attributes of the inner model.
        self._buffers["logit_adjustment"], self._buffers["fitted_images"] = values, hashes

    def forward(self, x: Tensor) -> Tensor:
        """Adjusted logits (N, C) of images (N, channels, H, W)."""
        logits: Tensor = self.model(x)
        if logits.shape[1] != self.logit_adjustment.shape[0]:  # broadcasting would change the number of classes
            raise ClasswiseError(
                f"the logit adjustment has {self.logit_adjustment.shape[0]} classes and the model {logits.shape[1]}; "
                "they must be equal"
            )
        return logits + self.logit_adjustment


def fitted_images_of(model: nn.Module) -> Tensor | None:
    """The hashes of the images that a logit adjustment of a model was fitted on; None without an adjustment."""
    while isinstance(model, Wrapper) and not isinstance(model, AdjustedLogits):
        model = model.model
    return model.fitted_images if isinstance(model, AdjustedLogits) else None


def _logarithms(probabilities: Tensor) -> Tensor:
    return probabilities.float().clamp_min(torch.finfo(torch.float32).tiny).log()
