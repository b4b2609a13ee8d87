"""New test sets of CIFAR-10 and ImageNet, and their corrupted images, written here in the published layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from classwise.data import DATA, Images, load_data, named_set, stream_data
from classwise.data.sets.cifar import Cifar10
from classwise.data.sets.imagenet import ImageNet, ImageNetA, ImageNetR
from tests.data.refusals import refused

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)


def first(images: Images) -> torch.Tensor:
    return images.x[:, 0, 0, 0]


def picture(file: Path, value: int, size: tuple[int, int] = (224, 224)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(file, "PNG")


@pytest.mark.parametrize("place", ["", "cifar10.1", "CIFAR-10.1/datasets"])
def test_cifar10_1(only_here: Path, place: str) -> None:
    folder = only_here / "data" / place
    folder.mkdir(parents=True)
    for version, count in (("v4", 3), ("v6", 2)):
        np.save(folder / f"cifar10.1_{version}_data.npy", PIXELS[:count])
        np.save(folder / f"cifar10.1_{version}_labels.npy", np.array([9, 3, 0][:count], np.int32))
    images = load_data("cifar10.1")
    assert torch.equal(images.x, torch.from_numpy(PIXELS[:2].transpose(0, 3, 1, 2).copy()))
    assert (images.name, images.y.tolist(), images.class_names) == ("cifar10.1", [9, 3], Cifar10.class_names)
    older = load_data("cifar10.1", version="v4")
    assert (older.name, older.y.tolist()) == ("cifar10.1, v4", [9, 3, 0])
    assert named_set(older) is named_set(images) is DATA.load("cifar10.1")
    refused("version = 'v5'", "cifar10.1", version="v5")
    refused(r"'cifar10\.1' has no option 'size'; it has version", "cifar10.1", size=3)
    np.save(folder / "cifar10.1_v6_data.npy", PIXELS[:2] / 255)
    refused("arrays of float64 and int32, expected uint8 images", "cifar10.1")


def test_cifar10_2(only_here: Path) -> None:
    names = np.array(["airplane", None], dtype=object)  # as pickled in the published file, and never read
    for split, label in (("train", 1), ("test", 2)):
        np.savez(only_here / f"cifar102_{split}.npz", images=PIXELS, labels=np.full(10, label), label_names=names)
    assert load_data("cifar10.2", root=only_here).y.tolist() == [2] * 10
    train = load_data("cifar10.2", root=only_here, split="train")
    assert (train.name, train.split, train.y.tolist()) == ("cifar10.2", "train", [1] * 10)
    refused(r"cifar10.2 \(test\) is not in", "cifar10.2", root=only_here / "empty")


def test_cifar10_c(only_here: Path) -> None:
    folder = only_here / "data" / "CIFAR-10-C"
    folder.mkdir(parents=True)
    np.save(folder / "labels.npy", np.array([9, 3] * 5))
    np.save(folder / "fog.npy", PIXELS)
    np.save(folder / "snow.npy", PIXELS[::-1])
    images = load_data("cifar10-c", corruption="fog", severity="3")
    assert torch.equal(images.x, torch.from_numpy(PIXELS[4:6].transpose(0, 3, 1, 2).copy()))
    assert (images.name, images.split, images.index.tolist()) == ("cifar10-c, fog 3", "test", [0, 1])
    assert (images.y.tolist(), images.superclass_names) == ([9, 3], Cifar10.superclass_names)
    assert named_set(images) is DATA.load("cifar10-c")
    assert load_data("cifar10-c", corruption="snow", severity=5).x[0, 0, 0, 0] == PIXELS[1, 0, 0, 0]
    options: dict[str, Any]
    for options, message in (
        ({}, "cifar10-c needs a corruption and a severity from 1 to 5; corruptions: fog, snow"),
        ({"corruption": "fog"}, "needs a corruption and a severity"),
        ({"corruption": "frog", "severity": 1}, "unknown corruption of cifar10-c 'frog'; did you mean 'fog'"),
        (
            {"corruption": "frost", "severity": 1},
            "cifar10-c lack the corruption frost; name one of: fog, snow",
        ),
        ({"corruption": "fog", "severity": 6}, "severity = 6"),
        ({"corruption": "fog", "severity": 1, "size": 3}, "no option 'size'; it has corruption, severity"),
    ):
        refused(message, "cifar10-c", **options)


@pytest.mark.parametrize("variant", ["matched-frequency", "threshold-0.7"])
def test_imagenet_v2_has_numbered_classes(only_here: Path, variant: str) -> None:
    folder = only_here / f"imagenetv2-{variant.replace('-0.7', '0.7')}-format-val"
    for number in (0, 2, 10, 999):
        picture(folder / str(number) / "a.jpeg", number % 256, size=(300, 256))
    images = load_data("imagenet-v2", root=only_here, variant=variant)
    assert images.y.tolist() == [0, 2, 10, 999]
    assert first(images).tolist() == [0, 2, 10, 999 % 256]
    assert (images.shape, images.class_names) == ((3, 224, 224), ImageNet.class_names)
    assert images.name == "imagenet-v2" + (", threshold-0.7" if variant != "matched-frequency" else "")
    refused("is not in", "imagenet-v2", root=only_here, variant="top-images")


def test_parts_of_imagenet_have_their_own_classes(only_here: Path) -> None:
    for name, known in (("imagenet-a", ImageNetA), ("imagenet-r", ImageNetR)):
        assert len(known.ids) == len(set(known.ids)) == len(known.class_names) == 200
        assert [ImageNet.ids[number] for number in known.logits] == list(known.ids) == sorted(known.ids)
        for number in (0, 7):
            picture(only_here / name / known.ids[number] / "a.jpg", number, size=(256, 300))
        (only_here / name / "README.txt").write_text("about")
        images = load_data(name, root=only_here)
        assert (images.y.tolist(), images.class_names, images.name) == ([0, 7], known.class_names, name)
        assert named_set(stream_data(name, root=only_here)) is named_set(images) is known
    assert ImageNetA.logits[:4] == (6, 11, 13, 15)  # the first of the authors' list
    assert ImageNetR.logits[:4] == (1, 2, 4, 6)
    picture(only_here / "imagenet-a" / "n01440764" / "a.jpg", 1)  # a class of ImageNet only
    refused("unknown class 'n01440764'", "imagenet-a", root=only_here)


@pytest.mark.parametrize("group", ["", "weather"])
def test_imagenet_c(only_here: Path, group: str) -> None:
    folder = only_here / "imagenet-c" / group
    for level in (1, 3):
        picture(folder / "fog" / str(level) / "n01443537" / "a.JPEG", level)
        picture(folder / "fog" / str(level) / "n15075141" / "b.JPEG", 10 * level)
    images = load_data("imagenet-c", root=only_here, corruption="fog", severity=3)
    assert (images.name, images.y.tolist(), first(images).tolist()) == ("imagenet-c, fog 3", [1, 999], [3, 30])
    assert named_set(images) is DATA.load("imagenet-c")
    assert stream_data("imagenet-c", root=only_here, corruption="fog", severity=1).name == "imagenet-c, fog 1"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "imagenet-c needs a corruption and a severity from 1 to 5; corruptions: fog$"),
        ({"corruption": "snow", "severity": 1}, "the files of imagenet-c lack the corruption snow; name one of: fog"),
        ({"corruption": "fog", "severity": 2}, "unknown severity of fog '2'; known: 1, 3"),
    ]
    for options, message in wrong:
        refused(message, "imagenet-c", root=only_here, **options)
