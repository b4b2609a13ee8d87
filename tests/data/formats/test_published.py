"""The published forms of SVHN, STL-10, Tiny-ImageNet, binary CIFAR and CIFAR-10-C, written here as their makers did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from classwise.data import DATA, load_data
from classwise.data.image_files import Decoder
from classwise.data.sets import imagenet
from tests.data.refusals import refused
from tests.data.writers import png, write_parquet

RANDOM = np.random.default_rng(0)


def write_svhn(folder: Path, split: str = "test", labels: tuple[int, ...] = (10, 1, 9)) -> np.ndarray[tuple[int, ...]]:
    """Images (N, 32, 32, 3); the file has them last and calls the digit 0 ten."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    y = np.array(labels, np.uint8)[:, None]
    savemat(folder / f"{split}_32x32.mat", {"X": pixels.transpose(1, 2, 3, 0), "y": y}, do_compression=True)
    return pixels


@pytest.mark.parametrize("place", ["", "svhn", "SVHN"])
def test_svhn(only_here: Path, place: str) -> None:
    pixels = write_svhn(only_here / "data" / place)
    images = load_data("svhn")
    assert torch.equal(images.x, torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()))
    assert images.y.tolist() == [0, 1, 9]
    assert (images.name, images.split, images.class_names) == ("svhn", "test", tuple("0123456789"))
    file = load_data(only_here / "data" / place / "test_32x32.mat", split="train")
    assert torch.equal(file.x, images.x)
    assert file.split == "test"
    refused("no split 'extra'", only_here / "data" / place, split="extra", data_format="mat")


@pytest.mark.parametrize("keep", [0, 100, 3000, -40])
def test_cut_svhn(only_here: Path, keep: int) -> None:
    write_svhn(only_here)
    file = only_here / "test_32x32.mat"
    file.write_bytes(file.read_bytes()[:keep])
    refused(r"test_32x32\.mat is truncated or not a MATLAB file", "svhn", root=only_here)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((4, 4, 3), np.uint8), "y": [1]}, "'X' must be a uint8 array"),
        ({"X": np.zeros((4, 4, 3, 2)), "y": [1, 2]}, "'X' must be a uint8 array"),
        ({"X": np.zeros((4, 4, 3, 2), np.uint8), "y": [1]}, "'y' must contain 2 labels"),
        ({"y": [1]}, "'X' must be"),
    ],
)
def test_other_mat_files(tmp_path: Path, content: dict[str, object], message: str) -> None:
    savemat(tmp_path / "some.mat", content)
    refused(message, tmp_path / "some.mat")


def write_stl10(folder: Path) -> np.ndarray[tuple[int, ...]]:
    """Images (N, 96, 96, 3); the file runs through channels, then columns, then rows."""
    folder.mkdir(parents=True)
    pixels = RANDOM.integers(0, 256, (3, 96, 96, 3), dtype=np.uint8)
    pixels.transpose(0, 3, 2, 1).tofile(folder / "test_X.bin")
    np.array([1, 10, 4], np.uint8).tofile(folder / "test_y.bin")
    return pixels


@pytest.mark.parametrize("place", ["stl10_binary", "stl10/stl10_binary"])
def test_stl10(only_here: Path, place: str) -> None:
    folder = only_here / "data" / place
    pixels = write_stl10(folder)
    for images in (load_data("stl10"), load_data(folder), load_data(folder / "test_X.bin")):
        assert torch.equal(images.x, torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()))
        assert images.y.tolist() == [0, 9, 3]
        assert images.split == "test"
    (folder / "class_names.txt").write_text("airplane\nbird\n")
    refused(r"label 9 of image 1 is not a class in 0\.\.1", folder)
    refused("no split 'train'", folder, split="train")
    (folder / "test_y.bin").write_bytes(b"\1")
    refused("1 labels for 3 images", "stl10")
    (folder / "test_X.bin").write_bytes(b"\1" * 100)
    refused("100 bytes, expected a multiple of 27648", "stl10")
    (folder / "test_y.bin").unlink()
    write_stl10(folder.with_name("other"))
    (folder / "test_X.bin").write_bytes((folder.with_name("other") / "test_X.bin").read_bytes())
    refused(r"cannot read .*test_y\.bin: No such file", "stl10")


def test_stl10_of_parquet(only_here: Path) -> None:
    write_parquet(only_here / "stl10-test.parquet", [png(np.zeros((96, 96, 3), np.uint8))] * 2, label=[9, 0])
    assert load_data("stl10", root=only_here).y.tolist() == [9, 0]


def test_stl10_of_the_shared_subset(shared: Path) -> None:
    images = load_data(shared / "stl10-train-subset.parquet")
    assert images.class_names == DATA.load("stl10").class_names
    assert images.shape == DATA.load("stl10").shape
    pixels = images.pixels()
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(DATA.load("stl10").mean, abs=0.03)  # of 250 images only
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(DATA.load("stl10").std, abs=0.02)


TINY = ("n01443537", "n03126707", "n12267677")


def picture(file: Path, value: int, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).convert(mode).save(file, quality=95)


def write_tiny(folder: Path, published: bool) -> None:
    for number, identity in enumerate(TINY):
        for copy in range(2):
            file = folder / "train" / identity / "images" / f"{identity}_{copy}.JPEG"
            picture(file, 40 * number + copy, mode="L" if copy else "RGB")
        (folder / "train" / identity / f"{identity}_boxes.txt").write_text("a box")
    lines = []
    for number, identity in enumerate((TINY[2], TINY[0])):
        place = "images" if published else f"{identity}/images"
        picture(folder / "val" / place / f"val_{number}.JPEG", 200 + 20 * number)
        lines.append(f"val_{number}.JPEG\t{identity}\t0\t0\t63\t63\n")
    if published:
        (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(reversed(TINY)))
    (folder / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn03126707\tcrane\nn00000000\tentity\n")


@pytest.mark.parametrize("published", [True, False])
def test_both_layouts_of_tiny_imagenet(only_here: Path, published: bool) -> None:
    folder = only_here / "data" / "tiny-imagenet-200"
    write_tiny(folder, published)
    train, test = load_data(folder, split="train"), load_data(folder)
    assert train.class_names == test.class_names == ("n01443537 goldfish", "n03126707 crane", "n12267677")
    assert train.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert (train.shape, test.shape) == ((3, 64, 64), (3, 64, 64))
    shown = dict(zip(test.y.tolist(), test.x[:, 0, 0, 0].tolist(), strict=True))
    assert shown[2] == pytest.approx(200, abs=2)
    assert shown[0] == pytest.approx(220, abs=2)
    named = load_data("tiny-imagenet")
    assert [named.class_names[label] for label in sorted(named.y.tolist())] == ["goldfish", "acorn"]
    assert named.num_classes == 200
    assert torch.equal(named.x, test.x)
    refused("no split 'extra'", folder, split="extra")


def test_tiny_imagenet_with_pieces_missing(only_here: Path) -> None:
    folder = only_here / "tiny-imagenet-200"
    write_tiny(folder, published=True)
    table = folder / "val" / "val_annotations.txt"
    table.write_text(table.read_text() + "val_9.JPEG\n")
    refused("line 3: expected a file name, a tab and a class", "tiny-imagenet", root=only_here)
    table.write_text("val_9.JPEG\tn01443537\n")
    refused(r"val_9\.JPEG cannot be decoded: .*No such file", "tiny-imagenet", root=only_here)
    table.write_text("val_0.JPEG\tn99999999\n")
    refused("unknown class 'n99999999'", "tiny-imagenet", root=only_here)


def test_tiny_imagenet_of_parquet(only_here: Path, shared: Path) -> None:
    (only_here / "tiny-imagenet-test.parquet").symlink_to((shared / "tiny-imagenet-40-val.parquet").resolve())
    images = load_data("tiny-imagenet", root=only_here)
    assert images.class_counts().nonzero().flatten().tolist() == list(range(0, 200, 5)), "every fifth class"
    assert images.class_names[0] == "goldfish"


def test_wordnet_ids() -> None:
    assert (len(imagenet.ImageNet.ids), len(imagenet.TinyImageNet.ids)) == (1000, 200)
    assert list(imagenet.ImageNet.ids) == sorted(imagenet.ImageNet.ids)
    assert set(imagenet.TinyImageNet.ids) < set(imagenet.ImageNet.ids)
    # Numbers that everybody knows
    known = {1: "goldfish", 207: "golden retriever", 281: "tabby", 817: "sports car", 999: "toilet tissue"}
    assert {number: imagenet.ImageNet.class_names[number] for number in known} == known


def test_imagenet_is_scaled_and_cut(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = only_here / "data" / "imagenet"
    picture(folder / "val" / "n01443537" / "a.JPEG", 90, size=(400, 300))
    picture(folder / "val" / "n15075141" / "b.JPEG", 30, size=(100, 500), mode="L")
    images = load_data("imagenet")
    assert (images.shape, images.y.tolist(), images.split) == ((3, 224, 224), [1, 999], "test")
    refused(r"imagenet \(train\) is not in", "imagenet", split="train")
    monkeypatch.setattr(imagenet, "MOST", 1)
    refused(r"has 2 images; at most 1 .* per_class=50", "imagenet")
    assert load_data(folder / "val", size=224, resize=256, per_class=1).x.shape == (2, 3, 224, 224)
    refused("resize = 100 with size = 224: give a size of at most 100", folder / "val", size=224, resize=100)


def test_imagenet_of_parquet(only_here: Path, shared: Path) -> None:
    (only_here / "imagenet-test.parquet").symlink_to((shared / "imagenet-sample-30.parquet").resolve())
    images = load_data("imagenet", root=only_here)
    assert images.shape == (3, 224, 224)
    assert images.class_names[images.y[0]] == "tench"


def test_imagenet_unsorted(only_here: Path) -> None:
    picture(only_here / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG", 9)
    refused("has no subfolders; sort its images", "imagenet", root=only_here)


def test_the_middle_square_is_that_of_the_scaled_picture() -> None:
    """A picture twice as large, its pixels in blocks: scaling by half gives back the small one."""
    small = RANDOM.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(small).resize((60, 40), Image.Resampling.NEAREST))
    expected = small[2:18, 7:23]
    found = Decoder(size=16, resize=20)(png(large), "here").astype(int)
    assert np.abs(found - expected).mean() < np.abs(expected - expected.mean((0, 1))).mean()
    flat = np.full((40, 60, 3), 7, np.uint8)
    flat[:, 30:] = 200
    half = Decoder(size=16, resize=20)(png(flat), "here")
    assert half.shape == (16, 16, 3)
    assert (half[:, :6] == 7).all()
    assert (half[:, 10:] == 200).all()


def test_binary_cifar10(only_here: Path) -> None:
    folder = only_here / "cifar-10-batches-bin"
    folder.mkdir()
    pixels = RANDOM.integers(0, 256, (6, 3072), dtype=np.uint8)
    for number in range(5):
        (folder / f"data_batch_{number + 1}.bin").write_bytes(bytes([number]) + pixels[number].tobytes())
    (folder / "test_batch.bin").write_bytes(bytes([9]) + pixels[5].tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(DATA.load("cifar10").class_names) + "\n\n")
    for root in (only_here, folder):
        train = load_data("cifar10", root=root, split="train")
        assert train.y.tolist() == [0, 1, 2, 3, 4]
        assert torch.equal(train.x, torch.from_numpy(pixels[:5].reshape(5, 3, 32, 32)))
        assert train.class_names == DATA.load("cifar10").class_names
    assert load_data(folder / "test_batch.bin").y.tolist() == [9]
    assert load_data(folder).class_names[9] == "truck"
    refused("no split 'valid'", folder, split="valid")
    (folder / "data_batch_3.bin").write_bytes(b"\0" * 3000)
    refused(r"data_batch_3\.bin has 3000 bytes, not complete records", folder, split="train")
    (folder / "data_batch_3.bin").unlink()
    refused(r"cannot read .*data_batch_3\.bin", folder, split="train")


def test_binary_cifar100_has_superclasses(only_here: Path) -> None:
    folder = only_here / "cifar-100-binary"
    folder.mkdir()
    pixels = RANDOM.integers(0, 256, (2, 3072), dtype=np.uint8)
    records = bytes([13, 99]) + pixels[0].tobytes() + bytes([4, 0]) + pixels[1].tobytes()
    (folder / "test.bin").write_bytes(records)
    images = load_data("cifar100", root=only_here)
    assert images.y.tolist() == [99, 0]
    assert images.columns["coarse_label"].ids.tolist() == [13, 4]
    assert images.superclasses is not None
    assert [images.superclasses[label] for label in images.y] == [13, 4], "the table says what the file says"
    assert torch.equal(images.x, torch.from_numpy(pixels.reshape(2, 3, 32, 32)))
    (folder / "train.bin").write_bytes(b"")
    refused(r"train\.bin has 0 bytes", folder, split="train")


@pytest.fixture
def corrupted(tmp_path: Path) -> Path:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    for value, name in enumerate(("fog", "gaussian_noise")):
        blocks = np.arange(5).repeat(3) * 10 + np.tile(np.arange(3), 5) + 100 * value
        np.save(folder / f"{name}.npy", np.broadcast_to(blocks[:, None, None, None], (15, 4, 4, 3)).astype(np.uint8))
    np.save(folder / "labels.npy", np.tile([1, 0, 2], 5))
    return folder


def test_cifar_c(corrupted: Path) -> None:
    images = load_data(corrupted, corruption="gaussian_noise", severity=4)
    assert images.x[:, 0, 0, 0].tolist() == [130, 131, 132]
    assert (images.y.tolist(), images.index.tolist()) == ([1, 0, 2], [0, 1, 2])
    assert (images.name, images.shape) == ("CIFAR-10-C, gaussian_noise 4", (3, 4, 4))
    every = load_data(corrupted / "fog.npy")
    severity = every.columns["severity"]
    assert [severity.names[level] for level in severity.ids] == [str(level) for level in (1, 2, 3, 4, 5) for _ in "abc"]
    assert every.index.tolist() == [0, 1, 2] * 5
    np.save(corrupted / "labels.npy", np.array([1, 0, 2]))  # some copies have them once
    assert load_data(corrupted / "fog.npy").y.tolist() == [1, 0, 2] * 5


def test_bad_cifar_c(corrupted: Path) -> None:
    refused(
        r"has 2 corruptions; give corruption \(--data-set corruption=NAME\), one of: fog, gaussian_noise", corrupted
    )
    refused(r"unknown corruption 'foog'.*fog", corrupted, corruption="foog")
    refused("severity = 6: Input should be less than or equal to 5", corrupted, corruption="fog", severity=6)
    refused("no split 'train'", corrupted, split="train", corruption="fog")
    np.save(corrupted / "labels.npy", np.array([1, 0]))
    refused(r"has 2 labels for 15 images of fog\.npy", corrupted / "fog.npy")
    np.save(corrupted / "fog.npy", np.zeros((4, 4, 4, 3), np.uint8))
    refused(r"expected uint8 \(5 N, H, W, channels\)", corrupted / "fog.npy")
    (corrupted / "fog.npy").write_bytes(b"nothing")
    refused(r"fog\.npy is truncated or not a \.npy file", corrupted / "fog.npy")


@pytest.mark.parametrize("name", ["svhn", "stl10", "tiny-imagenet", "imagenet"])
def test_absent_is_one_line(only_here: Path, name: str) -> None:
    refused(rf"{name} \(test\) is not in .*; copy its files into one of them", name, download=False)
