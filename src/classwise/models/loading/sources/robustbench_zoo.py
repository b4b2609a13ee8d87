"""Models of the RobustBench zoo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.extras import reason, require
from classwise.models.loading.sources.base import ModelSource, Shape, SourceModel

DEFAULTS = ("cifar10", "Linf")
"""The data set and threat model of a reference that is only a name, as in RobustBench."""


class RobustBench(ModelSource):
    """A model of the RobustBench zoo. Its weights are ``models/DATA/THREAT/NAME.pt``, and downloaded if missing.

    The network is the one of the package robustbench. The weights are read as data, without executing code in them.
    """

    form = "robustbench:NAME/DATA/THREAT"
    has_weights = True

    def build(
        self, name: str, shape: Shape, options: Mapping[str, Any], *, pretrained: bool | str = False
    ) -> SourceModel:
        """Build the network of the zoo; the option ``model_dir`` is the folder of the weights (default: ``models``)."""
        self.refuse_width(shape)
        model, *rest = name.split("/")
        data, threat = (*rest, *DEFAULTS[len(rest) :]) if len(rest) <= len(DEFAULTS) else ("", "")
        unexpected = next((option for option in options if option != "model_dir"), None)
        if unexpected is not None:
            raise unknown("option", unexpected, ("model_dir",), owner=f"model 'robustbench:{name}'")
        entry = _entry(model, data, threat)
        network: nn.Module = entry["model"]()
        weights = None
        if pretrained:
            weights = Path(options.get("model_dir", "models")) / data / threat / f"{model}.pt"
            _download(entry, model, weights)
        note = f"built 'robustbench:{model}/{data}/{threat}'"
        normalize, inner = getattr(network, "normalize", None), getattr(network, "model", None)
        if data == "imagenet" and isinstance(normalize, nn.Module) and isinstance(inner, nn.Module):
            # The zoo's files have the names of the inner network.
            mean, std = (tuple(getattr(normalize, key).flatten().tolist()) for key in ("mean", "std"))
            return SourceModel(inner, note, mean, std, weights=weights)
        return SourceModel(network, note, weights=weights)


def _entry(model: str, data: str, threat: str) -> Mapping[str, Any]:
    """The zoo's entry of a model.

    Raises:
        ClasswiseError: if there is none, naming the part that is unknown.
    """
    zoo = {
        key.value: {kind.value: models for kind, models in kinds.items()}
        for key, kinds in require("robustbench.model_zoo.models", "robustbench").model_dicts.items()
    }
    if data not in zoo:
        raise unknown("data set of RobustBench", data, zoo)
    if threat not in zoo[data]:
        raise unknown(f"threat model of RobustBench for {data}", threat, zoo[data])
    if model not in zoo[data][threat]:
        raise unknown(f"model of RobustBench for {data} and {threat}", model, zoo[data][threat])
    entry: Mapping[str, Any] = zoo[data][threat][model]
    return entry


def _download(entry: Mapping[str, Any], model: str, file: Path) -> None:
    """Download the weights with the package's function, unless they exist.

    Raises:
        ClasswiseError: if the zoo has not exactly one file for the model, or it cannot be downloaded.
    """
    if file.is_file():
        return
    source = entry.get("gdrive_id")
    if not isinstance(source, str):
        files = "several files" if source else "no file"
        raise ClasswiseError(f"RobustBench has {files} for {model}; load it in Python with robustbench.load_model")
    partial = file.with_suffix(".partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        require("robustbench.utils", "robustbench").download_gdrive(source, partial)
        partial.replace(file)
    except (OSError, ValueError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise ClasswiseError(f"{file} does not exist and cannot be downloaded: {reason(error)}") from error
