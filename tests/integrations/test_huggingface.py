"""Models of transformers compute what their own image processor and network compute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import classwise as cw
from classwise.models.loading.sources.processors import preprocessing
from tests.integrations.test_models import imported

Record = Callable[[str, str, str], None]
VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
STAGES = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2, "patch_size": 4, "image_size": 32}
CROP = {"size": {"shortest_edge": 32}, "crop_size": 32}
EXACT = {"size": {"height": 32, "width": 32}}

# The network's configuration and the processor's values of each model type; other values are those of its class.
ARCHITECTURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vit": ({**VIT, "image_size": 32, "patch_size": 8}, EXACT),
    "deit": ({**VIT, "image_size": 32, "patch_size": 8}, {"size": 36, "crop_size": 32}),
    "beit": ({**VIT, "image_size": 32, "patch_size": 8}, EXACT),
    "dinov2": ({**VIT, "image_size": 32, "patch_size": 8, "mlp_ratio": 1}, {"size": 36, "crop_size": 32}),
    "convnext": ({"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2}, {"size": {"shortest_edge": 28}}),
    "convnextv2": ({"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2}, {"size": 28, "crop_pct": 0.8}),
    "swin": (STAGES, EXACT),
    "swinv2": (STAGES, EXACT),
    "focalnet": ({"image_size": 32, "embed_dim": 8, "depths": [1, 1], "focal_levels": [1, 1]}, CROP),
    "hiera": (
        {
            "embed_dim": 8,
            "image_size": [32, 32],
            "depths": [1, 1],
            "num_heads": [1, 2],
            "patch_stride": [4, 4],
            "query_stride": [2, 2],
            "masked_unit_size": [2, 2],
            "num_query_pool": 1,
        },
        CROP,
    ),
    "efficientnet": ({"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128}, EXACT),
    "mobilevit": (
        {"image_size": 32, "hidden_sizes": [8] * 3, "neck_hidden_sizes": [*[8] * 6, 16], "num_attention_heads": 2},
        {"size": {"shortest_edge": 32}, "crop_size": 32},
    ),
    "mobilevitv2": ({"image_size": 64, "width_multiplier": 0.25}, {"size": {"shortest_edge": 60}, "crop_size": 64}),
    "mobilenet_v1": ({"depth_multiplier": 0.1}, {"size": {"shortest_edge": 36}, "crop_size": 32}),
    "mobilenet_v2": ({"depth_multiplier": 0.1}, {"size": {"shortest_edge": 36}, "crop_size": 32}),
    "resnet": ({"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}, {"size": 28}),
    "regnet": ({"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "groups_width": 4}, {"size": 28}),
    "bit": ({"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_groups": 2}, CROP),
    "levit": (
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "num_attention_heads": [1, 1, 1],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        {"size": {"shortest_edge": 56}, "crop_size": 64},
    ),
    "poolformer": ({"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}, {"size": 32, "crop_size": 32}),
    "pvt_v2": ({"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}, EXACT),
    "swiftformer": ({"depths": [1, 1, 1, 1], "embed_dims": [8, 8, 8, 8], "drop_path_rate": 0.0}, EXACT),
    "segformer": (
        {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]},
        EXACT,
    ),
    "perceiver": (
        {"num_latents": 4, "d_latents": 16, "num_blocks": 1, "num_self_attends_per_block": 1, "image_size": 32,
         "num_self_attention_heads": 2, "num_cross_attention_heads": 1},
        {"size": {"height": 32, "width": 32}, "crop_size": {"height": 36, "width": 36}},
    ),
    "clip": ({"vision_config": {**VIT, "image_size": 32, "patch_size": 8}}, CROP),
    "siglip": ({"vision_config": {**VIT, "image_size": 32, "patch_size": 8}}, EXACT),
    "textnet": (
        {"stem_num_channels": 3, "stem_out_channels": 8, "hidden_sizes": [8, 8, 8, 8, 8]},
        {"size": {"shortest_edge": 32}, "size_divisor": 8},
    ),
}  # fmt: skip
SIZES = ((28, 28), (32, 32), (36, 36), (64, 64), (40, 56), (57, 41), (20, 24))
UNCHANGED = ("convnext", "vit", "deit", "beit", "dinov2", "swin", "swinv2", "focalnet", "hiera", "efficientnet")
"""Some of the model types whose processor resizes images of one of these sizes to the same size."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def saved(folder: Path, kind: str, **values: Any) -> tuple[Any, Any]:
    """Save a network with random weights and its processor in a folder; return both."""
    transformers = imported("transformers")
    names = imported("transformers.models.auto.image_processing_auto").IMAGE_PROCESSOR_MAPPING_NAMES
    classes = imported("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    if kind not in classes:
        pytest.skip(f"this version of transformers has no {kind}")
    settings, own = ARCHITECTURES[kind]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, num_labels=3, **settings)
    config.architectures = [classes[kind] if isinstance(classes[kind], str) else classes[kind][0]]
    network = transformers.AutoModelForImageClassification.from_config(config).eval()
    with torch.no_grad():
        for weights in network.parameters():
            if weights.ndim > 1:  # so that the logits depend on the images
                weights.normal_(0, (2 / weights[0].numel()) ** 0.5 if weights.ndim != 3 else 0.5)
    network.save_pretrained(folder)
    known = names[kind]
    name = known["torchvision"] if isinstance(known, dict) else known[0]
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": name, **own, **values}))
    newer = int(transformers.__version__.partition(".")[0]) >= 5
    backend = {"backend": "pil"} if newer else {"use_fast": False}
    return network, transformers.AutoImageProcessor.from_pretrained(folder, **backend)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_are_those_of_the_processor_and_the_network(kind: str, tmp_path: Path, compatibility: Record) -> None:
    network, processor = saved(tmp_path, kind)
    model: Any = cw.load_model(f"hf:{tmp_path}")
    prepare = preprocessing(processor.to_dict())
    exact = 0
    for height, width in SIZES:
        images = np.random.default_rng(0).integers(0, 256, (4, height, width, 3), dtype=np.uint8)
        x = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
        theirs = torch.from_numpy(np.stack(processor(list(images), return_tensors="np")["pixel_values"])).float()
        errors = (prepare(x) - theirs).abs() * torch.tensor(prepare.std).view(1, -1, 1, 1) * 255
        assert float(errors.mean()) < 0.5  # Pillow rounds resized images to 8 bits
        with torch.no_grad():
            torch.testing.assert_close(model(x), network(prepare(x)).logits, atol=1e-5, rtol=1e-4)
            if float(errors.max()) < 0.01:
                exact += 1
                expected = network(theirs).logits
                spread = float((expected - expected.mean(0)).abs().max())
                assert spread > 0
                assert float((model(x) - expected).abs().max()) < 1e-3 * spread
    assert exact or kind not in UNCHANGED
    compatibility("models", f"`hf:FOLDER` of {kind} with {processor.to_dict()['image_processor_type']}", "transformers")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("efficientnet", {"include_top": False}),
        ("efficientnet", {"include_top": True, "do_normalize": False}),
        ("efficientnet", {"rescale_offset": True, "rescale_factor": 1 / 127.5}),
        ("efficientnet", {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [9.0, 8.0, 7.0]}),
        ("efficientnet", {"do_center_crop": True, "crop_size": {"height": 41, "width": 36}}),
        ("mobilevit", {"do_flip_channel_order": False}),
        ("mobilevit", {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.1, 0.2, 0.3]}),
        ("mobilevit", {"crop_size": {"height": 48, "width": 48}}),
        ("convnext", {"size": {"shortest_edge": 384}}),
        ("convnext", {"resample": 0}),
        ("resnet", {"do_resize": False}),
        ("bit", {"size": {"shortest_edge": 36}, "crop_size": {"height": 33, "width": 31}}),
        ("bit", {"do_convert_rgb": False, "do_resize": False, "crop_size": {"height": 45, "width": 45}}),
        ("poolformer", {"size": {"height": 30, "width": 40}}),
        ("resnet", {"include_top": True, "do_flip_channel_order": True, "rescale_offset": True}),  # of other classes
    ],
)
def test_keys_of_the_processors(kind: str, values: dict[str, Any], tmp_path: Path) -> None:
    network, processor = saved(tmp_path, kind, **values)
    model: Any = cw.load_model(f"hf:{tmp_path}")
    prepare = preprocessing(processor.to_dict())
    images = np.random.default_rng(0).integers(0, 256, (2, 40, 56, 3), dtype=np.uint8)
    x = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
    theirs = torch.from_numpy(np.stack(processor(list(images), return_tensors="np")["pixel_values"])).float()
    errors = (prepare(x) - theirs).abs() * torch.tensor(prepare.std).view(1, -1, 1, 1) * 255
    assert float(errors.mean()) < 0.5
    with torch.no_grad():
        torch.testing.assert_close(model(x), network(prepare(x)).logits, atol=1e-5, rtol=1e-4)


def test_prepared_images_need_no_crop(tmp_path: Path) -> None:
    network, _ = saved(tmp_path, "convnext")
    x = torch.rand(2, 3, 28, 28)
    with torch.no_grad():
        got = cw.load_model(f"hf:{tmp_path}", do_resize=False)(x)
        torch.testing.assert_close(got, network((x - 0.5) / 0.5).logits)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("vit", {"do_something_new": True}, "do_something_new = True changes pixels"),
        ("vit", {"image_processor_type": "DonutImageProcessor"}, "do_thumbnail = True changes pixels"),
        ("vit", {"image_processor_type": "ImageGPTImageProcessor"}, "do_color_quantize = True changes pixels"),
        ("vit", {"resample": 1}, "resample = 1 is not supported"),
        ("vit", {"image_processor_type": "NoImageProcessor"}, "the image processor of 'hf:.*' cannot be loaded"),
        ("convnext", {"size": {"height": 8, "width": 8}}, "'shortest_edge'|fails on an image"),
    ],
)
def test_unsupported_processors(kind: str, values: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    with pytest.raises(cw.ClasswiseError, match=message) as error:
        cw.load_model(f"hf:{tmp_path}")
    assert "\n" not in str(error.value)
