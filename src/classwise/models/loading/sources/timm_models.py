"""Models of timm (PyTorch Image Models)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.extras import require
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel, built_with
from classwise.models.resizing import FILTERS, Resize

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Weights in a folder of ``timm.models.save_for_hf``."""


class Timm(ModelSource):
    """A model of timm: a name such as ``resnet18.a1_in1k``, a hub id, or a folder of ``save_for_hf``.

    The normalisation is that of ``pretrained_cfg``, and so are the image size of a network with a fixed size, and the
    filter that resizes images to it.
    """

    form = "timm:NAME"
    has_weights = True

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Build the model by ``timm.create_model``."""
        self.refuse_width(shape)
        timm = require("timm", "timm")
        folder = Path(name).expanduser()
        full = f"local-dir:{folder}" if folder.is_dir() else f"hf-hub:{name}" if "/" in name else name
        if full == name and not timm.is_model(name):
            raise unknown("model of timm", name.partition(".")[0], timm.list_models())
        weights = _weights_in(folder) if pretrained and folder.is_dir() else None
        arguments = {"pretrained": bool(pretrained) and weights is None, "num_classes": shape.num_classes}
        if shape.in_channels is not None:
            arguments["in_chans"] = shape.in_channels
        arguments = {key: value for key, value in arguments.items() if value is not None}
        reference = f"timm:{name}"
        make, trained = timm.create_model, bool(pretrained)
        network = built_with(make, reference, options, trained=trained, model_name=full, **arguments)
        published = dict(getattr(network, "pretrained_cfg", None) or {})
        classes = published.get("num_classes")
        if pretrained and shape.num_classes not in (None, classes):
            raise ClasswiseError(f"the weights of {reference!r} have {classes} classes, not {shape.num_classes}")
        mean, std = (tuple(map(float, published[key])) if key in published else None for key in ("mean", "std"))
        size = options.get("img_size", tuple(published.get("input_size", ()))[1:])
        size = (size, size) if isinstance(size, int) else tuple(size)
        kind = str(published.get("interpolation"))
        kind = kind if kind in FILTERS else "bilinear"
        names = published.get("label_names")
        return SourceModel(
            network,
            f"{'loaded' if pretrained else 'built'} {reference!r}",
            mean,
            std,
            (Resize((size[0], size[1]), kind),) if published.get("fixed_input_size") and len(size) == 2 else (),
            tuple(map(str, names)) if isinstance(names, list | tuple) and len(names) == network.num_classes else None,
            weights,
        )


def _weights_in(folder: Path) -> Path:
    """The weights of a folder.

    Raises:
        ClasswiseError: if it has none.
    """
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise ClasswiseError(f"{folder} has no weights; expected {' or '.join(WEIGHTS)}")
    return file
