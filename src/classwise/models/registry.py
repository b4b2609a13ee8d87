"""Registry of models; a model's module is imported when the model is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from torch import nn

MODELS: Registry[nn.Module] = Registry(
    "model",
    {
        "lenet": "classwise.models.zoo.small_cnn:LeNet",
        "small-cnn": "classwise.models.zoo.small_cnn:SmallCNN",
        "resnet18": "classwise.models.zoo.resnet:ResNet",
        "resnet34": "classwise.models.zoo.resnet:resnet34",
        "resnet50": "classwise.models.zoo.resnet:resnet50",
        "wrn-50-2": "classwise.models.zoo.resnet:wrn_50_2",
        "preactresnet18": "classwise.models.zoo.preactresnet:PreActResNet",
        "wideresnet": "classwise.models.zoo.preactresnet:WideResNet",
        "wrn-28-10": "classwise.models.zoo.preactresnet:wrn_28_10",
        "wrn-34-10": "classwise.models.zoo.preactresnet:wrn_34_10",
        "vgg16": "classwise.models.zoo.vgg:vgg16",
        "vgg19": "classwise.models.zoo.vgg:vgg19",
        "densenet121": "classwise.models.zoo.densenet:densenet121",
        "densenet169": "classwise.models.zoo.densenet:densenet169",
        "googlenet": "classwise.models.zoo.inception:GoogLeNet",
        "inception-v3": "classwise.models.zoo.inception:InceptionV3",
    },
    group="classwise.models",
)
