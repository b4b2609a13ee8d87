"""Image classifiers of Hugging Face transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.extras import reason, require
from classwise.core.names import numbered_names
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel

PREPROCESSOR = "preprocessor_config.json"

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class HuggingFace(ModelSource):
    """An image classifier of Hugging Face transformers: a folder of ``save_pretrained``, or an id of the hub.

    Code of the repository is not executed (``trust_remote_code=False``).
    """

    form = "hf:FOLDER_OR_ID"
    has_weights = True

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Build the classifier of ``config.json``; class names and preprocessing are those of the folder."""
        self.refuse_width(shape)
        folder = Path(name).expanduser()
        if not folder.is_dir() and not _HUB_ID.fullmatch(name):
            raise ClasswiseError(f"model 'hf:{name}': there is no such folder; a hub id is ORGANISATION/NAME")
        transformers = require("transformers", "hf")
        common = {"trust_remote_code": False, "local_files_only": folder.is_dir()}
        path = str(folder) if folder.is_dir() else name
        try:
            config = transformers.AutoConfig.from_pretrained(path, **common)
            _refuse_timm(config, name)
            classifier = transformers.AutoModelForImageClassification
            if pretrained:
                network, report = classifier.from_pretrained(path, output_loading_info=True, **common, **options)
            else:
                if shape.num_classes is not None:
                    config.num_labels = shape.num_classes
                if shape.in_channels is not None and hasattr(config, "num_channels"):
                    config.num_channels = shape.in_channels
                network, report = classifier.from_config(config, trust_remote_code=False, **options), {}
            preprocessing = _preprocessing(path, folder.is_dir())
        except ClasswiseError:
            raise
        except (OSError, ValueError, TypeError, ImportError, RuntimeError, KeyError) as error:
            raise ClasswiseError(f"model 'hf:{name}' cannot be loaded: {reason(error)}") from error
        absent = sorted(report.get("missing_keys", ()))
        if absent:
            raise ClasswiseError(
                f"model 'hf:{name}' has no weights for {', '.join(absent[:3])}; give a model fine-tuned as a classifier"
            )
        if shape.num_classes not in (None, network.config.num_labels):
            raise ClasswiseError(f"model 'hf:{name}' has {network.config.num_labels} classes, not {shape.num_classes}")
        mean, std = _constants(preprocessing)
        note = f"{'loaded' if pretrained else 'built'} 'hf:{name}' ({type(network).__name__})"
        if not preprocessing:
            note += f", which has no {PREPROCESSOR}"
        return SourceModel(network.float(), note, mean, std, _size(preprocessing), _class_names(network.config))


def _refuse_timm(config: Any, name: str) -> None:
    """Refuse a model of timm, whose normalisation is in another place.

    Raises:
        ClasswiseError: if it is one.
    """
    if config.model_type == "timm_wrapper":
        raise ClasswiseError(f"model 'hf:{name}' is a model of timm; use timm:{name}")


def _preprocessing(path: str, local: bool) -> dict[str, Any]:
    """The content of the preprocessor's file; empty if there is none."""
    if local:
        file = Path(path) / PREPROCESSOR
        if not file.is_file():
            return {}
    else:
        try:
            file = Path(require("transformers.utils", "hf").cached_file(path, PREPROCESSOR))
        except OSError:
            return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ClasswiseError(f"{file} is not a JSON object; save the model again")
    return content


def _constants(preprocessing: Mapping[str, Any]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and standard deviation for images in [0, 1], which include a rescaling other than to [0, 1]."""
    if not preprocessing:
        return None, None
    scale = 255 * preprocessing.get("rescale_factor", 1 / 255) if preprocessing.get("do_rescale", True) else 255.0
    offset = 1.0 if preprocessing.get("rescale_offset") else 0.0
    mean, std = preprocessing.get("image_mean"), preprocessing.get("image_std")
    if not preprocessing.get("do_normalize", True) or mean is None or std is None:
        mean, std = [0.0], [1.0]
    means = tuple((float(value) + offset) / scale for value in _listed(mean))
    stds = tuple(float(value) / scale for value in _listed(std))
    return means, stds


def _listed(values: Any) -> list[float]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _size(preprocessing: Mapping[str, Any]) -> tuple[int, int] | None:
    """Height and width of the classifier's images; None if they are not resized."""
    size = preprocessing.get("size") if preprocessing.get("do_resize", True) else None
    if preprocessing.get("do_center_crop"):
        size = preprocessing.get("crop_size", size)
    if isinstance(size, Mapping):
        side = size.get("shortest_edge")
        size = (size.get("height", side), size.get("width", side))
    elif isinstance(size, int):
        size = (size, size)
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(isinstance(side, int) for side in size):
        return None
    return size[0], size[1]


def _class_names(config: Any) -> tuple[str, ...] | None:
    """The names of the labels, equal ones with their number; None if they are placeholders."""
    labels = {int(key): str(value) for key, value in (config.id2label or {}).items()}
    if sorted(labels) != list(range(config.num_labels)) or all(
        re.fullmatch(r"LABEL_\d+", each) for each in labels.values()
    ):
        return None
    return numbered_names([labels[key] for key in range(config.num_labels)])
