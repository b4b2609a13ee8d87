"""A generic image processor on Pillow and NumPy, in the order of the classes of transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

DEFAULTS: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 8, "width": 8},
    "resample": 2,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
EFFICIENT, MOBILE = "EfficientNetImageProcessor", "MobileViTImageProcessor"


class Processor:
    """A processor with these values, and defaults for others."""

    def __init__(self, **values: Any) -> None:
        self.values = DEFAULTS | values

    @classmethod
    def from_pretrained(cls, path: str, **chosen: Any) -> Processor:
        content = json.loads((Path(path) / "preprocessor_config.json").read_text())
        return cls(**content | {key: value for key, value in chosen.items() if key in DEFAULTS})

    def to_dict(self) -> dict[str, Any]:
        return self.values

    def __call__(self, images: Sequence[npt.NDArray[Any]], **_: Any) -> dict[str, Any]:
        return {"pixel_values": [self.processed(image) for image in images]}

    def processed(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The input of a network for an image (3, H, W) of 8 bits."""
        values = self.values
        kind = values["image_processor_type"]
        if values["do_resize"]:
            height, width = self.resized(*image.shape[1:])
            picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
            image = np.asarray(picture.resize((width, height), values["resample"])).transpose(2, 0, 1)
        if values["do_center_crop"]:
            side = values["crop_size"]
            large = np.pad(image, ((0, 0), (side, side), (side, side)))
            top, left = ((full - side) // 2 + side for full in image.shape[1:])
            image = large[:, top : top + side, left : left + side]
        pixels = image.astype(np.float64)
        std = np.reshape(values["image_std"], (-1, 1, 1))
        if values["do_rescale"]:
            pixels = pixels * values["rescale_factor"] - (kind == EFFICIENT and values.get("rescale_offset", False))
        if values["do_normalize"] and kind != MOBILE:
            pixels = (pixels - np.reshape(values["image_mean"], (-1, 1, 1))) / std
        if kind == EFFICIENT and values.get("include_top"):
            pixels = pixels / std
        flipped = kind == MOBILE and values.get("do_flip_channel_order")
        return (pixels[::-1] if flipped else pixels).astype(np.float32)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The size after resizing."""
        size = self.values["size"]
        if "height" in size:
            return size["height"], size["width"]
        side = size["shortest_edge"]
        return (side, int(side * width / height)) if height < width else (int(side * height / width), side)
