"""Base class of model sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.core.settings.extras import reason
from classwise.models.resizing import Step


@dataclass(frozen=True)
class Shape:
    """The requested size of a network.

    Attributes:
        num_classes: number of logits; None: the source's default.
        in_channels: number of image channels; None: the source's default.
        width: factor of the number of channels.
    """

    num_classes: int | None = None
    in_channels: int | None = None
    width: float = 1.0

    def known(self) -> dict[str, Any]:
        """The values that are not None, by name."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class SourceModel:
    """A network, and what its source publishes about it.

    Attributes:
        network: maps images, normalised with ``mean`` and ``std``, to any output with logits.
        note: what was built; empty for the default note.
        mean: mean of each channel for images in [0, 1]; None: no normalisation.
        std: standard deviation of each channel.
        steps: what is done to images of any size before their normalisation, such as resizing.
        class_names: the name of each logit, if known.
        weights: the file of the network's weights, still to be loaded; None if they are loaded or random.
    """

    network: nn.Module
    note: str = ""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    steps: tuple[Step, ...] = ()
    class_names: tuple[str, ...] | None = None
    weights: Path | None = None


class ModelSource(ABC):
    """A source of models. The first line of its docstring describes it in lists."""

    form: ClassVar[str]
    """The form of its references, such as ``timm:NAME``."""
    has_weights: ClassVar[bool] = False
    """Whether it has trained weights, which `load_model` loads by default; the option ``pretrained`` selects them."""

    @abstractmethod
    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Build a network.

        Args:
            name: the reference without its prefix.
            shape: the requested size.
            options: further options of the network.
            pretrained: whether to load the source's weights, or their name; else the weights are random.

        Raises:
            ClasswiseError: for an unknown name or option, or a missing package or file.
        """

    def refuse_width(self, shape: Shape) -> None:
        """Check that no width factor is given.

        Raises:
            ClasswiseError: if one is.
        """
        if shape.width != 1.0:
            raise ClasswiseError(f"models of {self.form} have no parameter width; omit width = {shape.width}")


def built_with(make: Any, reference: str, options: Mapping[str, Any], *, trained: bool, **arguments: Any) -> Any:
    """Call a package's constructor with its arguments and the options of a user; ``trained``: it loads weights.

    Raises:
        ClasswiseError: if it does not accept one of them, or fails to load the model.
    """
    try:
        return make(**arguments, **options)
    except TypeError as error:
        if not options:
            raise
        given = ", ".join(options)
        raise ClasswiseError(f"model {reference!r} cannot be built with the options {given}: {error}") from error
    except (OSError, ValueError, RuntimeError, KeyError, AssertionError) as error:
        advice = "; give --weights FILE, or --model-set pretrained=false for random weights" if trained else ""
        raise ClasswiseError(f"model {reference!r} cannot be loaded: {reason(error)}{advice}") from error
