"""Models: networks, a normalisation layer, and safe loading of checkpoints.

The modules, and torch, are imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classwise.models.registry import MODELS as MODELS

if TYPE_CHECKING:
    from classwise.models.loading.builder import build_model as build_model
    from classwise.models.loading.checkpoints import read_state as read_state
    from classwise.models.loading.loader import load_model as load_model
    from classwise.models.logits import AdjustedLogits as AdjustedLogits
    from classwise.models.logits import LogitsModel as LogitsModel
    from classwise.models.logits import pick_logits as pick_logits
    from classwise.models.modes import evaluating as evaluating
    from classwise.models.modes import frozen as frozen
    from classwise.models.normalization import Normalized as Normalized
    from classwise.models.weights import fingerprint as fingerprint
    from classwise.models.weights import save_weights as save_weights

_MODULES = {
    "AdjustedLogits": "logits",
    "LogitsModel": "logits",
    "Normalized": "normalization",
    "build_model": "loading.builder",
    "evaluating": "modes",
    "fingerprint": "weights",
    "frozen": "modes",
    "load_model": "loading.loader",
    "pick_logits": "logits",
    "read_state": "loading.checkpoints",
    "save_weights": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
