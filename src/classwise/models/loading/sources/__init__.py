"""Sources of models: where the model of a reference such as ``timm:resnet18`` comes from.

A source is one class (`classwise.models.loading.sources.base.ModelSource`) and one line in `SOURCES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.models.loading.sources.base import ModelSource

SOURCES: Registry[ModelSource] = Registry(
    "model source",
    {
        "hf": "classwise.models.loading.sources.huggingface:HuggingFace",
        "timm": "classwise.models.loading.sources.timm_models:Timm",
        "torchvision": "classwise.models.loading.sources.torchvision_models:TorchVision",
        "robustbench": "classwise.models.loading.sources.robustbench_zoo:RobustBench",
        "onnx": "classwise.models.loading.sources.onnx_files:Onnx",
    },
)
"""Sources by the prefix of their references."""
