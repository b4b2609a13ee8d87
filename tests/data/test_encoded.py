from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import classwise as cw
from classwise.core.errors import ClasswiseError
from classwise.data import Images, Stream, encoded, load_data, stratified_subset, stream_data
from classwise.data.encoded import EncodedImages
from classwise.data.image_files import Decoder
from classwise.data.sets import loading
from classwise.data.sets.imagenet import ImageNet
from classwise.data.sets.loading import open_data
from tests.data.writers import png
from tests.refusals import check_refused

from ..attacks.models import Small

CLASSES = ("cat", "dog")


def picture(number: int, mode: str = "RGB", size: tuple[int, int] = (9, 8)) -> Image.Image:
    values = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def folder(root: Path, modes: str = "RGB", count: int = 20) -> Path:
    """Twenty images: the first half cats, the others dogs."""
    for number in range(count):
        file = root / CLASSES[2 * number // count] / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        picture(number, modes).save(file)
    return root


def shards(root: Path, count: int = 20) -> Path:
    """The images of `folder` in two shards."""
    root.mkdir(parents=True)
    (root / "classnames.txt").write_text("\n".join(CLASSES) + "\n")
    for shard in range(2):
        files: dict[str, bytes] = {}
        for number in range(shard * count // 2, (shard + 1) * count // 2):
            label = str(2 * number // count).encode()
            files |= {f"{number:02}.cls": label, f"{number:02}.png": png(np.asarray(picture(number)))}
        write_tar(root / f"test-{shard}.tar", files)
    return root


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the mode is not a literal
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


SOURCES: dict[str, Callable[..., Path]] = {"folder": folder, "webdataset": shards}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_stream_has_the_images_that_are_loaded(kind: str, workers: int, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "photos")
    images = load_data(source, size=6)
    stream = stream_data(source, size=6, workers=workers)
    assert (stream.class_names, stream.shape, stream.expected) == (CLASSES, (3, 6, 6), 20)
    assert (stream.name, stream.split) == (images.name, images.split)
    for _ in range(2):
        blocks = list(stream.blocks(7))
        assert [len(block.y) for block in blocks] == [7, 7, 6]
        assert torch.equal(torch.cat([block.x for block in blocks]), images.x)
        assert torch.equal(torch.cat([block.y for block in blocks]), images.y)
    assert images.y.tolist() == [0] * 10 + [1] * 10


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_an_image_that_is_a_link_in_a_shard_is_not_left_out(kind: bytes, tmp_path: Path) -> None:
    source = shards(tmp_path / "photos")
    with tarfile.open(source / "test-1.tar", "a") as archive:
        member = tarfile.TarInfo("99.png")
        member.type, member.linkname = kind, "10.png"
        archive.addfile(member)
    check_refused(r"test-1\.tar: 99\.png is a link to 10\.png; write .* copies", stream_data, source)


@pytest.mark.parametrize("modes", ["L", "RGB"])
def test_grey_images_have_three_channels_only_beside_coloured_ones(modes: str, tmp_path: Path) -> None:
    source = folder(tmp_path / "photos", "L")
    picture(0, modes).save(source / "dog" / "99.png")
    images, stream = load_data(source), stream_data(source)
    assert stream.shape == images.shape == (1 if modes == "L" else 3, 8, 9)
    assert torch.equal(torch.cat([block.x for block in stream.blocks(4)]), images.x)


def test_images_of_another_size(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos")
    picture(0, size=(5, 4)).save(source / "dog" / "wide.png")
    with pytest.raises(ClasswiseError, match=r"wide\.png is 5x4 and the first image 9x8 .*size=64") as refusal:
        list(stream_data(source).batches(4))
    with pytest.raises(ClasswiseError, match="wide") as expected:
        load_data(source)
    assert str(refusal.value) == str(expected.value)


def test_a_damaged_image_is_named_and_stops_the_threads(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos")
    (source / "dog" / "15.png").write_bytes(b"\x89PNG\r\n")
    check_refused(r"15\.png cannot be decoded", list, stream_data(source, size=6).batches(2))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode") and thread.is_alive()]


@pytest.mark.parametrize("kind", SOURCES)
def test_few_images_are_decoded_before_they_are_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    original = EncodedImages.decoded

    def noted(self: EncodedImages, location: Any, shape: tuple[int, int, int]) -> torch.Tensor:
        decoded.append(str(location))
        return original(self, location, shape)

    monkeypatch.setattr(EncodedImages, "decoded", noted)
    monkeypatch.setattr(encoded, "AHEAD_BYTES", 4 * 3 * 6 * 6)
    items = iter(stream_data(SOURCES[kind](tmp_path / "photos"), size=6, workers=1)._source)
    for used in range(1, 6):
        next(items)
        assert used <= len(decoded) <= used + 3
    items.close()


@pytest.mark.parametrize("kind", SOURCES)
def test_images_are_decoded_while_an_earlier_one_is_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = threading.Semaphore(0)
    original = EncodedImages.decoded

    def counted(self: EncodedImages, location: Any, shape: tuple[int, int, int]) -> torch.Tensor:
        x = original(self, location, shape)
        decoded.release()
        return x

    monkeypatch.setattr(EncodedImages, "decoded", counted)
    monkeypatch.setattr(encoded, "AHEAD_BYTES", 4 * 3 * 6 * 6)
    items = iter(stream_data(SOURCES[kind](tmp_path / "photos"), size=6, workers=1)._source)
    next(items)
    assert all(decoded.acquire(timeout=60) for _ in range(4))  # the first one and three that were not asked for
    assert not decoded.acquire(blocking=False)
    items.close()


@pytest.mark.parametrize("workers", [0, -1])
def test_no_worker(workers: int, tmp_path: Path) -> None:
    check_refused(
        f"workers = {workers}: must be an integer from 1", stream_data, folder(tmp_path / "photos"), workers=workers
    )


def test_data_without_separate_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.zeros((2, 4, 4), np.uint8), y=np.arange(2))
    for source in ("digits", tmp_path / "all.npz"):
        check_refused(r"cannot be decoded one by one; use load_data", stream_data, source)
    check_refused("unknown split of digits 'tset'", stream_data, "digits", split="tset")


@pytest.mark.parametrize("kind", SOURCES)
def test_an_audit_of_a_stream_is_that_of_the_images(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES[kind](tmp_path / "photos", count=80)
    monkeypatch.setattr("classwise.auditing.run.inputs.PIECE_BYTES", 40 * 3 * 8 * 8)  # several pieces
    model = Small(2, channels=3)
    options: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ["pgd:steps=3"], "batch_size": 32}
    expected = cw.audit(model, load_data(source, size=8), **options)
    found = cw.audit(model, stream_data(source, size=8), **options)
    columns = ["index", "attack", "label", "correct", "margin"]
    frames = [audit.outcomes.frame.sort_values(["attack", "index"])[columns] for audit in (expected, found)]
    assert frames[0].reset_index(drop=True).equals(frames[1].reset_index(drop=True))
    assert found.outcomes.meta.images == 80


def test_many_large_images_are_streamed_and_others_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "photos")
    monkeypatch.setattr(loading, "LARGE_BYTES", 20 * 3 * 8 * 9 - 1)
    assert isinstance(open_data(source), Stream)
    assert isinstance(open_data(source, size=8), Images)
    assert isinstance(open_data(source, subset=4), Images)
    assert isinstance(open_data("digits"), Images)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_subset_decodes_only_its_images(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES[kind](tmp_path / "photos")
    images = load_data(source)
    expected = images.take(stratified_subset(images.y, 6, 2))
    decoded = list[str]()
    decode = Decoder.__call__

    def counted(self: Decoder, source: Any, where: str) -> Any:
        decoded.append(where)
        return decode(self, source, where)

    monkeypatch.setattr(Decoder, "__call__", counted)
    found = load_data(source, subset=6, seed=2)
    assert len(decoded) == 6
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.index, expected.index)
    assert found.fingerprint() == expected.fingerprint()
    assert found.class_names == expected.class_names
    assert np.array_equal(found.image_names, expected.image_names)  # type: ignore[arg-type]


def test_a_grey_subset_of_coloured_images_has_their_channels(tmp_path: Path) -> None:
    source = folder(tmp_path / "photos", "L")
    assert load_data(source, subset=4).shape == (1, 8, 9)
    coloured = next(row for row in range(20) if row not in load_data(source, subset=4).index)
    picture(coloured).save(source / CLASSES[2 * coloured // 20] / f"{coloured:02}.png")
    images = load_data(source)
    found, expected = load_data(source, subset=4), images.take(stratified_subset(images.y, 4))
    assert torch.equal(found.x, expected.x)
    assert found.shape == (3, 8, 9)


def test_a_subset_of_imagenet_decodes_only_its_images(tmp_path: Path) -> None:
    part = tmp_path / "imagenet" / "val"
    for label in (1, 7):
        (part / ImageNet.ids[label]).mkdir(parents=True)
        for number in range(3):
            picture(number, size=(260, 258)).save(part / ImageNet.ids[label] / f"{number}.png")
    images = load_data("imagenet", root=tmp_path)
    expected = images.take(stratified_subset(images.y, 4))
    for row in set(range(6)) - set(expected.index.tolist()):
        (part / ImageNet.ids[(1, 7)[row // 3]] / f"{row % 3}.png").write_bytes(b"damaged")
    found = load_data("imagenet", root=tmp_path, subset=4)
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.index, expected.index)
    assert found.fingerprint() == expected.fingerprint()


def test_imagenet_has_its_classes_and_threat(tmp_path: Path) -> None:
    names = [ImageNet.ids[1], ImageNet.ids[7]]
    for name in names:
        (tmp_path / "imagenet" / "val" / name).mkdir(parents=True)
        picture(0, size=(300, 260)).save(tmp_path / "imagenet" / "val" / name / "a.JPEG")
    stream = stream_data("imagenet", root=tmp_path)
    assert stream.class_names == ImageNet.class_names
    assert loading.named_set(stream) is ImageNet
    (batch,) = stream.batches(8)
    images = load_data("imagenet", root=tmp_path)
    assert batch.y.tolist() == images.y.tolist() == [1, 7]
    assert torch.equal(batch.x, images.pixels())
    (tmp_path / "imagenet" / "val" / names[0]).rename(tmp_path / "imagenet" / "val" / "other")
    check_refused("unknown class 'other'", stream_data, "imagenet", root=tmp_path)
