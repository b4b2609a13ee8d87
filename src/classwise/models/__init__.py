"""Models: a zoo for small images, normalisation inside the model, and anybody's checkpoint read safely.

Nothing heavy is imported here; a model's module is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from classwise.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from classwise.models.loading import load_model as load_model
    from classwise.models.logits import LogitsModel as LogitsModel
    from classwise.models.logits import pick_logits as pick_logits
    from classwise.models.modes import evaluating as evaluating
    from classwise.models.modes import frozen as frozen
    from classwise.models.normalise import Normalized as Normalized
    from classwise.models.state import read_state as read_state
    from classwise.models.weights import fingerprint as fingerprint
    from classwise.models.weights import save_weights as save_weights

_HOMES = {
    "LogitsModel": "logits",
    "Normalized": "normalise",
    "evaluating": "modes",
    "fingerprint": "weights",
    "frozen": "modes",
    "load_model": "loading",
    "pick_logits": "logits",
    "read_state": "state",
    "save_weights": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


MODELS: Registry[nn.Module] = Registry(
    "model",
    {
        "lenet": "classwise.models.lenet:LeNet",
        "small-cnn": "classwise.models.small_cnn:SmallCNN",
        "resnet18": "classwise.models.resnet:ResNet",
        "resnet50": "classwise.models.resnet:resnet50",
        "preactresnet18": "classwise.models.preactresnet:PreActResNet",
        "wideresnet": "classwise.models.wideresnet:WideResNet",
        "wrn-28-10": "classwise.models.wideresnet:wrn_28_10",
        "wrn-34-10": "classwise.models.wideresnet:wrn_34_10",
        "vgg16": "classwise.models.vgg:vgg16",
        "vgg19": "classwise.models.vgg:vgg19",
        "densenet121": "classwise.models.densenet:densenet121",
        "densenet169": "classwise.models.densenet:densenet169",
        "googlenet": "classwise.models.googlenet:GoogLeNet",
        "inception-v3": "classwise.models.inception:InceptionV3",
    },
)


def build_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    width: float = 1.0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> nn.Module:
    """A fresh model of the zoo, or of a ``package.module:callable`` of your own.

    Args:
        name: A name of `MODELS` or a path; it is called with the classes, channels, width and options that it accepts.
        num_classes: The number of logits.
        in_channels: The number of colour channels.
        width: A factor on the number of channels of every layer.
        mean: With ``std``, puts a `Normalized` layer before the network.
        std: The deviation of each channel, in units of [0, 1] images.
        **options: Settings of that model alone, such as ``depth=34`` of a wide residual network. Every model of the zoo
            has ``head="cosine"``: it then returns the cosines between its feature and the weights of each class.

    Returns:
        The model in training mode. Its attribute ``spec`` is a mapping with which this function builds it again.

    Raises:
        UserError: for an unknown name, or an option that the model does not have.
    """
    from classwise.models.building import build

    return build(
        name, num_classes=num_classes, in_channels=in_channels, width=width, mean=mean, std=std, options=options
    )
