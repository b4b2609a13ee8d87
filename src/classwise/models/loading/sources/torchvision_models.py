"""Classifiers of torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.extras import require
from classwise.core.settings.names import numbered_names
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel, built_with
from classwise.models.resizing import FILTERS, Resize


class TorchVision(ModelSource):
    """A classifier of torchvision. ``pretrained`` may name its weights, such as ``IMAGENET1K_V1``.

    The normalisation and class names are those of the published weights. Your own weights have the same
    normalisation unless you give another.
    """

    form = "torchvision:NAME"
    has_weights = True

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Build the model by ``torchvision.models.get_model``."""
        self.refuse_width(shape)
        models = require("torchvision.models", "torchvision")
        reference = f"torchvision:{name}"
        classifiers = models.list_models(module=models)
        if name not in classifiers:
            raise unknown("model of torchvision", name, classifiers)
        if shape.in_channels not in (None, 3):
            raise ClasswiseError(f"model {reference!r} has 3 image channels, not {shape.in_channels}")
        weights = _published(models, name, pretrained)
        arguments: dict[str, Any] = {"weights": weights if pretrained else None}
        if shape.num_classes is not None and not pretrained:
            arguments["num_classes"] = shape.num_classes
        make, trained = models.get_model, bool(pretrained)
        network = built_with(make, reference, options, trained=trained, name=name, **arguments)
        transforms = weights.transforms()
        names = numbered_names([str(name) for name in weights.meta.get("categories", ())])
        if pretrained and shape.num_classes not in (None, len(names)):
            raise ClasswiseError(f"the weights of {reference!r} have {len(names)} classes, not {shape.num_classes}")
        side = getattr(network, "image_size", None)  # of vision transformers, which need this size
        kind = getattr(getattr(transforms, "interpolation", None), "value", "bilinear")
        kind = kind if kind in FILTERS else "bilinear"
        return SourceModel(
            network,
            f"loaded {reference!r} with {weights}" if pretrained else f"built {reference!r}",
            tuple(transforms.mean),
            tuple(transforms.std),
            (Resize((side, side), kind),) if isinstance(side, int) else (),
            names if pretrained else None,
        )


def _published(models: Any, name: str, pretrained: bool | str) -> Any:
    """The published weights of a name; by default those that torchvision recommends."""
    known = models.get_model_weights(name)
    if not isinstance(pretrained, str):
        return known.DEFAULT
    if pretrained not in known.__members__:
        raise unknown(f"weights of torchvision's {name}", pretrained, known.__members__)
    return known[pretrained]
