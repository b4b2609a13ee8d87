"""Models and images that the user names, for an experiment without trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.data.formats.folder import Folder, image_files, subfolders
from classwise.data.image_files import size_of
from classwise.data.images import Images
from classwise.data.sets.imagenet import ImageNet
from classwise.data.sets.loading import load_data
from classwise.models import load_model
from classwise.models.normalization import Normalized

SIDE, RESIZED = 224, 256
"""Side of the central square of a photograph, and of its shorter side before the crop."""


@dataclass(frozen=True, kw_only=True)
class UserInputs:
    """Models and images of a run.

    Args:
        models: each a run folder, a weights file that names its model, ``NAME=WEIGHTS``, ``package.module:callable``,
            or a registered name with random weights.
        data: a folder with a subfolder of images per class, or anything else that `load_data` reads.
    """

    models: Sequence[str] = ()
    data: str = ""

    def __bool__(self) -> bool:
        return bool(self.models or self.data)

    def load_images(self, most: int | None = None) -> Images:
        """Read the images; of a large folder, at most about ``most`` images.

        Images of one size up to 224 pixels are unmodified; others are resized to 256 and cropped to 224 pixels. If all
        classes are WordNet ids of ImageNet, the labels are those of its 1,000 classes.

        Raises:
            ClasswiseError: if the images cannot be read.
        """
        path, options = Path(self.data).expanduser(), dict[str, Any]()
        if Folder().accepts(path):
            if not _small(path):
                options = {"size": SIDE, "resize": RESIZED}
            if most is not None:
                options["per_class"] = math.ceil(most / len(subfolders(path)))
        return with_imagenet_labels(load_data(self.data, **options))

    def load_models(self, images: Images, device: str) -> dict[str, nn.Module]:
        """Load the models, by the text that names them.

        Weights given as ``NAME=WEIGHTS`` get the normalisation of ImageNet on its classes, unless the file has its own.

        Raises:
            ClasswiseError: if a model cannot be loaded, does not match the images, or is named twice.
        """
        loaded = dict[str, nn.Module]()
        for text in self.models:
            if text in loaded:
                raise ClasswiseError(f"--model {text} is given twice; name each model once")
            name, _, weights = text.partition("=")
            if not weights or Path(text).exists():
                loaded[text] = load_model(text, data=images, device=device)
                continue
            model = load_model(name, weights, data=images, device=device)
            if images.name == ImageNet.name and not any(isinstance(part, Normalized) for part in model.modules()):
                model = load_model(name, weights, data=images, device=device, mean=ImageNet.mean, std=ImageNet.std)
            loaded[text] = model
        return loaded


def _small(path: Path) -> bool:
    """Whether all images of a folder have one size of at most `SIDE` pixels."""
    sizes = (size_of(file, str(file)) for file in image_files(path))
    first = next(sizes)
    return max(first) <= SIDE and all(size == first for size in sizes)


def with_imagenet_labels(images: Images) -> Images:
    """Relabel images whose class names are all WordNet ids of ImageNet with its 1,000 classes; else do nothing."""
    ids = [name.split(" ", 1)[0] for name in images.class_names]
    if not set(ids) <= set(ImageNet.ids):
        return images
    official = torch.tensor([ImageNet.ids.index(class_id) for class_id in ids])[images.y]
    return Images(
        images.x,
        official,
        ImageNet.class_names,
        ImageNet.name,
        images.split,
        index=images.index,
        image_names=images.image_names,
    )
