"""Common corruptions at five severities: Hendrycks and Dietterich, Benchmarking Neural Network Robustness (2019).

The 15 corruptions and 4 extra ones of the paper, in its four groups: `noise`, `blur`, `weather`, `digital`. The
severities are those of the authors' code for CIFAR-10-C (32 pixels) or ImageNet-C (224 pixels). The random numbers
depend on the seed and the image, so the results are similar but not equal to the published files. The format
``cifar-c`` reads the published files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.core.settings.registry import Registry

if TYPE_CHECKING:
    from classwise.data.corruptions.base import Corruption

CORRUPTIONS: Registry[Corruption] = Registry(
    "corruption",
    {
        "brightness": "classwise.data.corruptions.digital:Brightness",
        "contrast": "classwise.data.corruptions.digital:Contrast",
        "defocus_blur": "classwise.data.corruptions.blur:DefocusBlur",
        "elastic_transform": "classwise.data.corruptions.digital:ElasticTransform",
        "fog": "classwise.data.corruptions.weather:Fog",
        "frost": "classwise.data.corruptions.weather:Frost",
        "gaussian_blur": "classwise.data.corruptions.blur:GaussianBlur",
        "gaussian_noise": "classwise.data.corruptions.noise:GaussianNoise",
        "glass_blur": "classwise.data.corruptions.blur:GlassBlur",
        "impulse_noise": "classwise.data.corruptions.noise:ImpulseNoise",
        "jpeg_compression": "classwise.data.corruptions.digital:JpegCompression",
        "motion_blur": "classwise.data.corruptions.blur:MotionBlur",
        "pixelate": "classwise.data.corruptions.digital:Pixelate",
        "saturate": "classwise.data.corruptions.digital:Saturate",
        "shot_noise": "classwise.data.corruptions.noise:ShotNoise",
        "snow": "classwise.data.corruptions.weather:Snow",
        "spatter": "classwise.data.corruptions.weather:Spatter",
        "speckle_noise": "classwise.data.corruptions.noise:SpeckleNoise",
        "zoom_blur": "classwise.data.corruptions.blur:ZoomBlur",
    },
    base="classwise.data.corruptions.base:Corruption",
)
"""Corruptions by the file names of CIFAR-10-C."""
