"""Keys of image processors, against arithmetic on Pillow; tests/integrations/test_huggingface.py uses the real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.models.loading.sources.processors import check, preprocessing
from classwise.models.resizing import CenterCrop, RelativeCrop, Resize
from tests.models.processors import EFFICIENT, MOBILE, Processor
from tests.refusals import check_refused

SIZES = st.one_of(
    st.fixed_dictionaries({"height": st.integers(4, 20), "width": st.integers(4, 20)}),
    st.fixed_dictionaries({"shortest_edge": st.integers(4, 20)}),
)
CHANNELS = st.lists(st.floats(0.2, 0.8), min_size=3, max_size=3)
VALUES = st.fixed_dictionaries(
    {
        "image_processor_type": st.sampled_from([EFFICIENT, MOBILE, "ViTImageProcessor"]),
        "size": SIZES,
        "resample": st.sampled_from([0, 2, 3]),
        "crop_size": st.integers(5, 20),
        "rescale_factor": st.sampled_from([1 / 255, 1 / 127.5, 1 / 128]),
        "image_mean": CHANNELS,
        "image_std": CHANNELS,
    }
    | {
        key: st.booleans()
        for key in ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "rescale_offset", "include_top")
    }
    | {"do_flip_channel_order": st.booleans(), "do_convert_rgb": st.booleans(), "do_reduce_labels": st.booleans()}
)


@given(values=VALUES, height=st.integers(6, 24), width=st.integers(6, 24))
@settings(max_examples=80, deadline=None)
def test_all_keys_together(values: dict[str, Any], height: int, width: int) -> None:
    processor = Processor(**values)
    found = preprocessing(processor.to_dict())
    assert len(found.mean) == len(found.std)
    image = np.random.default_rng(height * width).integers(0, 256, (3, height, width), dtype=np.uint8)
    expected = torch.from_numpy(processor.processed(image))
    x = (torch.from_numpy(image)[None] / 255).requires_grad_()
    ours = found(x)
    assert ours[0].shape == expected.shape
    errors = (ours[0] - expected).abs() * torch.tensor(found.std).view(-1, 1, 1) * 255
    exact = not values["do_resize"] or processor.resized(height, width) == (height, width)
    # Pillow rounds to 8 bits; of ties, its nearest pixel may be another one.
    assert float(errors.detach().median()) < (2e-3 if exact else 1)
    assert not exact or float(errors.detach().max()) < 2e-3
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())
    check(processor, found, processor.to_dict())


@pytest.mark.parametrize(
    ("kind", "values", "steps"),
    [
        ("ConvNext", {"size": {"shortest_edge": 28}, "crop_pct": 0.875}, (Resize(32), CenterCrop(28, 28))),
        ("ConvNext", {"size": {"shortest_edge": 384}, "crop_pct": 0.875}, (Resize((384, 384)),)),
        ("Levit", {"size": {"shortest_edge": 224}}, (Resize(256),)),
        ("PoolFormer", {"size": {"shortest_edge": 224}, "crop_pct": 0.9}, (Resize(248),)),
        ("PoolFormer", {"size": {"height": 9, "width": 18}, "crop_pct": 0.9}, (Resize((10, 20)),)),
        ("PoolFormer", {"size": {"height": 9, "width": 9}, "crop_pct": 0.9}, (Resize(10),)),
        ("TextNet", {"size": {"shortest_edge": 30}, "size_divisor": 8}, (Resize(30, multiple=8),)),
        ("ViT", {"size": {"shortest_edge": 8, "longest_edge": 10}}, (Resize(8, longest=10),)),
        ("ViT", {"size": {"max_height": 8, "max_width": 10}}, (Resize((8, 10), within=True),)),
        ("ViT", {"size": 8}, (Resize((8, 8)),)),
        ("ViT", {"size": [8, 9]}, (Resize((8, 9)),)),
        ("CLIP", {"size": 8, "default_to_square": False}, (Resize(8),)),
        ("ViT", {"size": 8, "crop_pct": 0.5, "size_divisor": 3}, (Resize((8, 8)),)),  # of other classes
        ("Segformer", {"size": 8, "do_center_crop": True, "crop_size": 4}, (Resize((8, 8)),)),
        (
            "Perceiver",
            {"size": 8, "do_center_crop": True, "crop_size": 16},
            (RelativeCrop(0.5, 0.5), Resize((8, 8))),
        ),
    ],
)
def test_sizes_of_each_class(kind: str, values: dict[str, Any], steps: tuple[Any, ...]) -> None:
    found = preprocessing({"image_processor_type": f"{kind}ImageProcessor", "do_resize": True, "resample": 2, **values})
    assert found.steps == steps
    assert not preprocessing({"image_processor_type": f"{kind}ImageProcessor", **values, "do_center_crop": False}).steps


@pytest.mark.parametrize(
    ("resize", "image", "expected"),
    [
        (Resize(8), (16, 33), (8, 16)),
        (Resize(8), (33, 16), (16, 8)),
        (Resize(8), (8, 9), (8, 9)),
        (Resize(8, longest=10), (16, 33), (5, 10)),
        (Resize(8, longest=10), (17, 16), (8, 8)),
        (Resize((8, 10), within=True), (16, 32), (5, 10)),
        (Resize(30, multiple=8), (60, 62), (32, 32)),
    ],
)
def test_size_of_resized_images(resize: Resize, image: tuple[int, int], expected: tuple[int, int]) -> None:
    assert resize.size_of(*image) == expected
    assert resize(torch.rand(1, 3, *image)).shape[-2:] == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_color_quantize": True}, r"do_color_quantize = True changes pixels and is not supported"),
        ({"do_thumbnail": True}, r"do_thumbnail = True changes pixels"),
        ({"do_align_long_axis": True}, r"do_align_long_axis = True changes pixels"),
        ({"do_grayscale": True}, r"do_grayscale = True changes pixels"),
        ({"do_something_new": 3}, r"do_something_new = 3 changes pixels"),
        ({"do_pad": True, "pad_size": {"height": 9, "width": 9}}, r"pad_size = \{'height': 9, 'width': 9\} changes"),
        ({"size": {"longest_edge": 9}}, r"size = \{'longest_edge': 9\} changes pixels"),
        ({"size": {"min_pixels": 9, "max_pixels": 99}}, r"size = \{'min_pixels': 9, 'max_pixels': 99\} changes"),
        ({"resample": 1}, r"resample = 1 is not supported; accepted are 0 \(nearest\), 2 \(bilinear\), 3 \(bicubic\)"),
        ({"do_center_crop": True, "crop_size": None}, "invalid value: KeyError: 'height'"),
        ({"image_mean": "half"}, "invalid value: ValueError"),
        ({"rescale_factor": 0}, "invalid value: ZeroDivisionError"),
    ],
)
def test_unsupported_values_are_named(values: dict[str, Any], message: str) -> None:
    check_refused(message, preprocessing, Processor(**values).to_dict())


@pytest.mark.parametrize("key", ["do_color_quantize", "do_thumbnail", "do_something_new", "do_pad"])
def test_keys_that_are_off_are_harmless(key: str) -> None:
    assert preprocessing(Processor(**{key: False}).to_dict()) == preprocessing(Processor().to_dict())


class Inverted(Processor):
    def processed(self, image: Any) -> Any:
        return super().processed(255 - image if self.values.get("invert") else image)


class Patches(Processor):
    def processed(self, image: Any) -> Any:
        return super().processed(image).reshape(3, 16, 4)


class Failing(Processor):
    def processed(self, image: Any) -> Any:
        raise ValueError("no\nimage")


def test_a_processor_that_computes_something_else_is_refused() -> None:
    for processor, message in (
        (Inverted(invert=2), "computes other pixels than its known keys describe.*invert = 2"),
        (Patches(patch_size=4), "computes other pixels than its known keys describe.*patch_size = 4"),
        (Failing(), "fails on an image: ValueError: no$"),
    ):
        check_refused(message, check, processor, preprocessing(processor.to_dict()), processor.to_dict())
    unused = Inverted(invert=False, note="text")
    check(unused, preprocessing(unused.to_dict()), unused.to_dict())
