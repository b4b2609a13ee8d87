"""EXIF orientations: one rule on every route, that of Pillow's `exif_transpose` in Hugging Face `datasets`."""

from __future__ import annotations

import io
import logging
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies
from PIL import ExifTags, Image, ImageOps

from classwise.data import load_data, stream_data
from classwise.data.image_files import Decoder, is_coloured, size_of
from classwise.data.sets.loading import open_data
from tests.data.formats.test_arrow import write as write_arrow
from tests.data.test_encoded import write_tar
from tests.data.writers import write_parquet

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
LOSSLESS: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF")


def encoded(form: str, exif: Image.Exif | bytes | None = None, image: Image.Image | None = None) -> bytes:
    content = io.BytesIO()
    options = LOSSLESS.get(form, {}) | ({} if exif is None else {"exif": exif})
    (image or Image.fromarray(PIXELS)).save(content, form, **options)
    return content.getvalue()


def tagged(orientation: Any) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Make] = "a camera"
    return exif


def displayed(content: bytes) -> Any:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def late(png: bytes) -> bytes:
    """A PNG file whose EXIF data follow the pixels, as some programs write them."""
    start = png.index(b"eXIf") - 4
    end = start + 12 + struct.unpack(">I", png[start : start + 4])[0]
    return png[:start] + png[end:-12] + png[start:end] + png[-12:]


@pytest.mark.parametrize("form", [*FORMATS, "MPO"])
@pytest.mark.parametrize("orientation", range(10))  # 0 and 9 are invalid
def test_every_orientation_is_applied(form: str, orientation: int, caplog: pytest.LogCaptureFixture) -> None:
    content = encoded(form, tagged(orientation))
    decode, expected = Decoder(), displayed(content)
    for source in (content, Image.open(io.BytesIO(content)), Image.open(io.BytesIO(content)).convert("RGB")):
        assert np.array_equal(decode(source, "here"), expected)
        assert size_of(source, "here") == (expected.shape[1], expected.shape[0])
    applied = 2 <= orientation <= 8
    assert [record.message.partition(";")[0] for record in caplog.records] == (
        [f"here has EXIF orientation {orientation}"] if applied else []
    )
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert np.array_equal(decode(upright, "here"), expected), "not twice"


def test_where_the_orientation_is() -> None:
    after_pixels = late(encoded("PNG", tagged(6)))
    assert np.array_equal(Decoder()(after_pixels, "here"), np.rot90(PIXELS, -1))
    assert size_of(after_pixels, "here") == (4, 6)
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    text = b"iTXt" + b"XML:com.adobe.xmp\0\0\0\0\0" + xmp
    plain = encoded("PNG")
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    in_xmp = plain[:33] + chunk + plain[33:]
    assert np.array_equal(Decoder()(in_xmp, "here"), np.rot90(PIXELS, 2))


def test_the_orientation_precedes_size_and_colours() -> None:
    grey = encoded("PNG", tagged(8), Image.fromarray(PIXELS).convert("L"))
    assert Decoder()(grey, "here").shape == (6, 4)
    assert not is_coloured(grey, "here")
    wide = Image.fromarray(np.repeat(np.arange(8, dtype=np.uint8)[None], 4, 0) * 30)
    cut = Decoder(size=4)(encoded("PNG", tagged(6), wide), "here")
    assert cut.tolist() == np.rot90(np.asarray(wide), -1)[2:6].tolist()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@settings(max_examples=40)
@given(data=strategies.data())
def test_damaged_exif_data_are_ignored(form: str, data: strategies.DataObject) -> None:
    block = bytearray(tagged(data.draw(strategies.integers(1, 8))).tobytes())
    for _ in range(data.draw(strategies.integers(0, 4))):
        block[data.draw(strategies.integers(6, len(block) - 1))] = data.draw(strategies.integers(0, 255))
    block = block[: data.draw(strategies.integers(6, len(block)))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Decoder()(encoded(form, bytes(block)), "here")
    stored = Image.open(io.BytesIO(encoded(form))).convert("RGB")
    candidates = [stored, *(stored.transpose(method) for method in Image.Transpose)]
    assert any(np.array_equal(found, np.asarray(candidate)) for candidate in candidates)


def in_folder(root: Path, content: bytes) -> Any:
    for name in ("cat/1.jpg", "dog/1.jpg"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(content)
    return root


def in_tiny_imagenet(root: Path, content: bytes) -> Any:
    in_folder(root / "val", content)
    (root / "train").mkdir()
    (root / "wnids.txt").write_text("cat\ndog\n")
    return root


def in_tar(root: Path, content: bytes) -> Any:
    return write_tar(root / "a.tar", {"1.jpg": content, "1.cls": b"0", "2.jpg": content, "2.cls": b"1"})


def in_arrow(root: Path, content: bytes) -> Any:
    return write_arrow(root / "a", contents=[content] * 2, label=[0, 1])


ROUTES: dict[str, Callable[[Path, bytes], Any]] = {
    "folder": in_folder,
    "tar": in_tar,
    "Tiny-ImageNet": in_tiny_imagenet,
    "Parquet": lambda root, content: write_parquet(root / "a.parquet", [content] * 2, label=[0, 1]),
    "Arrow": in_arrow,
    "bytes": lambda _, content: [(content, 0), (content, 1)],
    "rows of datasets": lambda _, content: [{"image": {"bytes": content, "path": None}, "label": y} for y in (0, 1)],
    "Pillow images": lambda _, content: [(Image.open(io.BytesIO(content)), y) for y in (0, 1)],
    "converted images": lambda _, content: [(Image.open(io.BytesIO(content)).convert("RGB"), y) for y in (0, 1)],
    "batches": lambda _, content: [{"image": [content, Image.open(io.BytesIO(content))], "label": [0, 1]}],
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("orientation", [1, 6])
def test_one_rule_and_one_notice_on_every_route(
    tmp_path: Path, route: str, orientation: int, caplog: pytest.LogCaptureFixture
) -> None:
    content = encoded("JPEG", tagged(orientation))
    expected = torch.from_numpy(displayed(content).copy()).permute(2, 0, 1)
    with caplog.at_level(logging.WARNING, "classwise"):
        images = load_data(ROUTES[route](tmp_path, content))
    notices = [record.message for record in caplog.records if "EXIF orientation 6" in record.message]
    assert (len(images), len(notices)) == (2, orientation == 6)
    assert all(torch.equal(x, expected) for x in images.x)


@pytest.mark.parametrize("route", ["folder", "tar"])
def test_streams_and_shapes(tmp_path: Path, route: str, caplog: pytest.LogCaptureFixture) -> None:
    source = ROUTES[route](tmp_path, encoded("JPEG", tagged(6)))
    stream = stream_data(source, workers=2)
    assert stream.shape == (3, 6, 4)
    for _ in range(2):
        assert [batch.x.shape[2:] for batch in stream.batches(2)] == [(6, 4)]
    assert len([record for record in caplog.records if "EXIF" in record.message]) == 1, "one for all passes and threads"
    caplog.clear()
    assert open_data(str(source)).shape == (3, 6, 4)
    assert len([record for record in caplog.records if "EXIF" in record.message]) == 1
