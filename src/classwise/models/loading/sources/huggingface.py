"""Image classifiers of Hugging Face transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classwise.core.errors import ClasswiseError
from classwise.core.settings.extras import reason, require
from classwise.core.settings.names import numbered_names
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel
from classwise.models.loading.sources.processors import KEYS, Preprocessing, check, preprocessing

PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""The files of an image processor."""

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
        """Build the classifier of ``config.json``; class names and preprocessing are those of the folder.

        Options named as a key of the image processor, such as ``do_resize``, replace its value.
        """
        self.refuse_width(shape)
        folder = Path(name).expanduser()
        if not folder.is_dir() and not _HUB_ID.fullmatch(name):
            raise ClasswiseError(f"model 'hf:{name}': there is no such folder; a hub id is ORGANISATION/NAME")
        transformers = require("transformers", "hf")
        common = {"trust_remote_code": False, "local_files_only": folder.is_dir()}
        path = str(folder) if folder.is_dir() else name
        has_processor = any(_has(path, file, folder.is_dir()) for file in PREPROCESSORS)
        chosen = {key: value for key, value in options.items() if has_processor and key in KEYS}
        options = {key: value for key, value in options.items() if key not in chosen}
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
        note = f"{'loaded' if pretrained else 'built'} 'hf:{name}' ({type(network).__name__})"
        names = _class_names(network.config)
        if not has_processor:
            return SourceModel(network.float(), f"{note}, which has no {PREPROCESSORS[0]}", class_names=names)
        found = _preprocessing(transformers, path, chosen, common)
        return SourceModel(network.float(), note, found.mean, found.std, found.steps, names)


def _refuse_timm(config: Any, name: str) -> None:
    """Refuse a model of timm, whose normalisation is in another place.

    Raises:
        ClasswiseError: if it is one.
    """
    if config.model_type == "timm_wrapper":
        raise ClasswiseError(f"model 'hf:{name}' is a model of timm; use timm:{name}")


def _has(path: str, file: str, local: bool) -> bool:
    """Whether a folder, or a repository of the hub, has a file."""
    if local:
        return (Path(path) / file).is_file()
    try:
        return bool(require("transformers.utils", "hf").cached_file(path, file))
    except OSError:
        return False


def _preprocessing(transformers: Any, path: str, chosen: Mapping[str, Any], common: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing of the image processor in a folder, with the values that the user chose in place of its own.

    Raises:
        ClasswiseError: if it cannot be loaded, or changes pixels in a way that is not supported.
    """
    newer = int(transformers.__version__.partition(".")[0]) >= 5
    backend = {"backend": "pil"} if newer else {"use_fast": False}  # not torchvision, which may not be installed
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(path, **common, **backend, **chosen)
        values = processor.to_dict()
        found = preprocessing(values)
        check(processor, found, values)
    except ClasswiseError as error:
        raise ClasswiseError(f"model 'hf:{path}': {error}") from error
    except (OSError, ValueError, TypeError, ImportError, RuntimeError, KeyError, AttributeError) as error:
        raise ClasswiseError(f"the image processor of 'hf:{path}' cannot be loaded: {reason(error)}") from error
    return found


def _class_names(config: Any) -> tuple[str, ...] | None:
    """The names of the labels, equal ones with their number; None if they are placeholders."""
    labels = {int(key): str(value) for key, value in (config.id2label or {}).items()}
    if sorted(labels) != list(range(config.num_labels)) or all(
        re.fullmatch(r"LABEL_\d+", label) for label in labels.values()
    ):
        return None
    return numbered_names([labels[key] for key in range(config.num_labels)])
