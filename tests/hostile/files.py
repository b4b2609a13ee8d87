"""Data files: headers that lie, archives that expand, pictures that are bombs, labels without end, folders without end."""

# mypy: disable-error-code="assignment, arg-type, dict-item, operator, func-returns-value"
# The tables hold values of every type on purpose.

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.data import writers
from tests.hostile.case import ATTACK, EITHER, Case, Content, audit


def sparse(path: Path, size: int) -> None:
    """Create a file that claims a size and takes no disk."""
    path.touch()
    os.truncate(path, size)


def npy(shape: object, descr: str = "|u1", data: bytes = b"", order: bool = False) -> bytes:
    """A .npy file with this header."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(padded)) + padded.encode() + data


def array(values: object) -> bytes:
    """A .npy file of these values."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values), allow_pickle=True)
    return buffer.getvalue()


def npz(members: Mapping[str, bytes], compress: bool = False) -> bytes:
    """A .npz archive of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def zeros_npz(gigabytes: float) -> Callable[[Path], object]:
    """An archive of so many zeros, a thousandth of it on the disk."""

    def write(path: Path) -> None:
        count = int(gigabytes * 2**30) // 64
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            with archive.open("x.npy", "w", force_zip64=True) as member:
                member.write(npy((count, 8, 8)))
                for _ in range(int(gigabytes * 1024)):
                    member.write(bytes(1 << 20))
            archive.writestr("y.npy", array(np.arange(10)))

    return write


X = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
Y = np.arange(20) % 10
GOOD_X, GOOD_Y = array(X), array(Y)


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil",)


def objects() -> bytes:
    """An array of objects that run code."""
    holder = np.empty(1, object)
    holder[0] = Evil()
    return array(holder)


def flagged(content: bytes) -> bytes:
    """The zip archive with every member marked as encrypted."""
    data = bytearray(content)
    for at in range(len(data) - 8):
        if data[at : at + 4] == b"PK\1\2":
            data[at + 8] |= 1
        elif data[at : at + 4] == b"PK\3\4":
            data[at + 6] |= 1
    return bytes(data)


NPZ: dict[str, Callable[[], bytes]] = {
    "no bytes": lambda: b"",
    "text": lambda: b"hello",
    "a zip of nothing": lambda: b"PK\5\6" + bytes(18),
    "a shape of 10^12": lambda: npz({"x": npy((10**12,)), "y": GOOD_Y}),
    "images of 10^12": lambda: npz({"x": npy((10**6, 1000, 1000)), "y": GOOD_Y}),
    "a shape that overflows": lambda: npz({"x": npy((2**40, 2**40)), "y": GOOD_Y}),
    "a negative shape": lambda: npz({"x": npy((-1, 8, 8)), "y": GOOD_Y}),
    "a shape of a huge integer": lambda: npz({"x": npy((10**50, 8, 8)), "y": GOOD_Y}),
    "a shape of text": lambda: npz({"x": npy("('a',)"), "y": GOOD_Y}),
    "a shape of floats": lambda: npz({"x": npy((1.5, 2)), "y": GOOD_Y}),
    "a header that is code": lambda: npz({"x": npy("__import__('os').system('touch evil')"), "y": GOOD_Y}),
    "a header nested deeply": lambda: npz({"x": npy("(" * 3000 + ")" * 3000), "y": GOOD_Y}),
    "a header of 60,000 bytes": lambda: npz({"x": npy("(8," + "1," * 25_000 + ")"), "y": GOOD_Y}),
    "items of 10^9 bytes": lambda: npz({"x": npy((1,), "|V1000000000"), "y": GOOD_Y}),
    "text of 10^9 letters": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": npy((1,), "<U1000000000")}),
    "labels of 10^12": lambda: npz({"x": GOOD_X, "y": npy((10**12,), "<i8")}),
    "names of 10^12": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": npy((10**12,), "<U1")}),
    "objects": lambda: npz({"x": objects(), "y": GOOD_Y}),
    "objects for labels": lambda: npz({"x": GOOD_X, "y": objects()}),
    "objects for names": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": objects()}),
    "an unknown type": lambda: npz({"x": npy((1,), "|Z9"), "y": GOOD_Y}),
    "wrong sizes": lambda: npz({"x": npy((20, 8, 8), data=b"\0" * 100), "y": GOOD_Y}),
    "no images": lambda: npz({"x": array(np.zeros((0, 8, 8), np.uint8)), "y": array(np.zeros(0, int))}),
    "no pixels": lambda: npz({"x": array(np.zeros((5, 0, 8), np.uint8)), "y": array(np.zeros(5, int))}),
    "no dimensions": lambda: npz({"x": array(5), "y": array(3)}),
    "seven dimensions": lambda: npz({"x": array(np.zeros((1,) * 7)), "y": array([0])}),
    "complex pixels": lambda: npz({"x": array(X * 1j), "y": GOOD_Y}),
    "text for pixels": lambda: npz({"x": array(["a", "b"]), "y": array([0, 1])}),
    "times for pixels": lambda: npz({"x": array(np.zeros((2, 8, 8), "datetime64[s]")), "y": array([0, 1])}),
    "structured pixels": lambda: npz({"x": array(np.zeros((2, 8, 8), [("a", "u1")])), "y": array([0, 1])}),
    "big-endian pixels": lambda: npz({"x": array((X / 255).astype(">f4")), "y": GOOD_Y}),
    "big-endian labels": lambda: npz({"x": GOOD_X, "y": array(Y.astype(">i8"))}),
    "long double pixels": lambda: npz({"x": array((X / 255).astype(np.longdouble)), "y": GOOD_Y}),
    "half pixels": lambda: npz({"x": array((X / 255).astype(np.float16)), "y": GOOD_Y}),
    "boolean pixels": lambda: npz({"x": array(X > 99), "y": GOOD_Y}),
    "NaN": lambda: npz({"x": array(np.full((20, 8, 8), np.nan)), "y": GOOD_Y}),
    "infinity": lambda: npz({"x": array(np.full((20, 8, 8), np.inf)), "y": GOOD_Y}),
    "one image of 20,000 pixels": lambda: npz({"x": array(np.zeros((1, 1, 20_000), np.uint8)), "y": array([0])}),
    "labels of 10^7": lambda: npz({"x": GOOD_X, "y": array(Y + 10**7)}),
    "labels of 10^9": lambda: npz({"x": GOOD_X, "y": array(Y + 10**9)}),
    "labels of 10^18": lambda: npz({"x": GOOD_X, "y": array(Y + 10**18)}),
    "labels of 2^63": lambda: npz({"x": GOOD_X, "y": array(Y.astype(np.uint64) + np.uint64(2**63))}),
    "labels of 30,000": lambda: npz({"x": GOOD_X, "y": array(Y + 30_000)}),
    "negative labels": lambda: npz({"x": GOOD_X, "y": array(-1 - Y)}),
    "the least label": lambda: npz({"x": GOOD_X, "y": array(np.full(20, -(2**63)))}),
    "fractional labels": lambda: npz({"x": GOOD_X, "y": array(Y + 0.5)}),
    "NaN labels": lambda: npz({"x": GOOD_X, "y": array(Y * np.nan)}),
    "labels of text": lambda: npz({"x": GOOD_X, "y": array(["a"] * 20)}),
    "one label": lambda: npz({"x": GOOD_X, "y": array(3)}),
    "labels of two dimensions": lambda: npz({"x": GOOD_X, "y": array(Y[:, None])}),
    "10^6 names": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array([f"c{n}" for n in range(10**6)])}, True),
    "no names": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array(np.zeros(0, "U1"))}),
    "one name": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array("abc")}),
    "equal names": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array(["a"] * 10)}),
    "names of control characters": lambda: npz(
        {"x": GOOD_X, "y": GOOD_Y, "class_names": array([f"\x1b[31m\n\0{n}x" for n in range(10)])}
    ),
    "names of numbers": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array(np.arange(10) + 0.5)}),
    "names of two dimensions": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array([["a", "b"]] * 5)}),
    "names of 10^5 letters": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array([f"{n}" * 10**5 for n in range(10)])}, True),
    "names of markup": lambda: npz({"x": GOOD_X, "y": GOOD_Y, "class_names": array([f"<script>alert({n})</script>" for n in range(10)])}),
    "encrypted": lambda: flagged(npz({"x": GOOD_X, "y": GOOD_Y})),
    "a member with a path": lambda: npz({"../../x": GOOD_X, "y": GOOD_Y}),
    "equal members": lambda: npz({"x": GOOD_X, "y": GOOD_Y}) * 2,
    "100,000 members": lambda: npz({**{f"m{n}": b"" for n in range(20_000)}, "x": GOOD_X, "y": GOOD_Y}),
    "a pickle for an array": lambda: npz({"x": pickle.dumps(Evil()), "y": GOOD_Y}),
    "no npy": lambda: npz({"x": b"hello", "y": GOOD_Y}),
    "version 9": lambda: npz({"x": b"\x93NUMPY\x09\0" + GOOD_X[8:], "y": GOOD_Y}),
    "a header of 4 GiB": lambda: npz({"x": b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1), "y": GOOD_Y}),
}  # fmt: skip


def idx(shape: tuple[int, ...], data: bytes = b"", kind: int = 8, rank: int | None = None) -> bytes:
    """An idx file with this header."""
    return bytes([0, 0, kind, len(shape) if rank is None else rank]) + struct.pack(f">{len(shape)}I", *shape) + data


def gzip_of(gigabytes: float, start: bytes = b"") -> bytes:
    """A gzip file of so many zeros."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    parts = [packer.compress(start), *(packer.compress(block) for _ in range(int(gigabytes * 1024))), packer.flush()]
    return b"".join(parts)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, data: bytes | None = None, extra: bytes = b"", depth: int = 8, colour: int = 0
) -> bytes:
    """A PNG with this header."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(data if data is not None else b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def encoded(kind: str, size: tuple[int, int] = (8, 8), mode: str = "L", **options: Any) -> bytes:
    """A picture by Pillow."""
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


PICTURES: dict[str, Callable[[], bytes]] = {
    "a PNG of 10^10 pixels": lambda: png(100_000, 100_000),
    "a PNG of 2^62 pixels": lambda: png(2**31 - 1, 2**31 - 1),
    "a PNG of 10^8 pixels": lambda: png(10_000, 10_000),
    "a true PNG bomb": lambda: png(20_000, 20_000, (b"\0" * 20_001) * 20_000),
    "a PNG of 170 million pixels": lambda: png(13_000, 13_000, (b"\0" * 13_001) * 13_000),
    "a PNG without pixels": lambda: png(0, 0),
    "a PNG with a text bomb": lambda: png(8, 8, extra=chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 10**8))),
    "a PNG with a profile bomb": lambda: png(8, 8, extra=chunk(b"iCCP", b"a\0\0" + zlib.compress(b"x" * 10**8))),
    "a PNG of 16 bits": lambda: png(8, 8, b"\0" * 17 * 8, depth=16),
    "a PNG of an unknown kind": lambda: png(8, 8, colour=9),
    "a PNG with a chunk of 4 GiB": lambda: b"\x89PNG\r\n\x1a\n" + b"\xff\xff\xff\xffIHDR",
    "a cut PNG": lambda: png(8, 8)[:40],
    "a GIF of 4 billion pixels": lambda: b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\xf0\0\0" + bytes(6) + b","
    + struct.pack("<HHHH", 0, 0, 65535, 65535) + b"\0\2\2L\1\0;",
    "a BMP of 10^10 pixels": lambda: encoded("BMP")[:18] + struct.pack("<ii", 100_000, 100_000) + encoded("BMP")[26:],
    "a BMP of negative size": lambda: encoded("BMP")[:18] + struct.pack("<ii", -5, -5) + encoded("BMP")[26:],
    "a JPEG of 4 billion pixels": lambda: encoded("JPEG").replace(b"\0\x08\0\x08", b"\xff\xff\xff\xff", 1),
    "a WebP of 268 million pixels": lambda: encoded("WEBP", (16383, 16383), "RGB", lossless=True, method=0),
    "a PPM of 10^12 pixels": lambda: b"P5 1000000 1000000 255\n" + b"\0" * 100,
    "a PPM of huge numbers": lambda: b"P5 " + b"9" * 5000 + b" 1 255\n",
    "a PPM of text": lambda: b"P2 8 8 255\n" + b"x " * 64,
    "a TIFF of 10^10 pixels": lambda: encoded("TIFF").replace(struct.pack("<HHII", 256, 4, 1, 8), struct.pack("<HHII", 256, 4, 1, 10**5))
    .replace(struct.pack("<HHII", 257, 4, 1, 8), struct.pack("<HHII", 257, 4, 1, 10**5)),
    "EPS that is code": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(touch evil) system\n",
    "a picture of many frames": lambda: encoded("GIF", save_all=True, append_images=[Image.new("L", (8, 8))] * 500),
    "an SVG": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script>x</script></svg>",
    "no picture": lambda: b"hello",
    "no bytes": lambda: b"",
    "of another size": lambda: encoded("PNG", (9, 9)),
    "with alpha": lambda: encoded("PNG", mode="RGBA"),
    "of floats": lambda: encoded("TIFF", mode="F"),
    "of one pixel": lambda: encoded("PNG", (1, 1)),
    "one pixel high": lambda: encoded("PNG", (60_000, 1)),
}  # fmt: skip


def folder_of(picture: Callable[[], bytes], suffix: str = ".png") -> dict[str, Content]:
    """Two classes; the first picture of the second is hostile."""
    good = encoded("PNG")
    return {"pics/a/1.png": good, "pics/a/2.png": good, f"pics/b/1{suffix}": made(picture), "pics/b/2.png": good}


def parquet_of(table: Callable[[], pa.Table], **options: Any) -> Callable[[Path], object]:
    """A writer of a Parquet file."""
    return lambda path: pq.write_table(table(), path, **options)


def image_table(contents: list[bytes | None], **columns: Any) -> pa.Table:
    """A table in the layout of image data sets."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = pa.array([None if content is None else {"bytes": content, "path": "x"} for content in contents], kind)
    return pa.table({"image": cells, **columns})


def features(**names: Any) -> dict[bytes, bytes]:
    """The metadata that names classes."""
    return {b"huggingface": json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", **names}}}}).encode()}


GOOD = [encoded("PNG")] * 10
TEN = list(range(10))
PARQUET: dict[str, Callable[[Path], object]] = {
    "no bytes": lambda path: path.write_bytes(b""),
    "magic alone": lambda path: path.write_bytes(b"PAR1PAR1"),
    "a footer of 2 GiB": lambda path: path.write_bytes(b"PAR1" + b"\0" * 50 + struct.pack("<I", 2**31 - 1) + b"PAR1"),
    "a footer of zeros": lambda path: path.write_bytes(b"PAR1" + b"\0" * 50 + struct.pack("<I", 40) + b"PAR1"),
    "no rows": parquet_of(lambda: image_table([], label=pa.array([], pa.int64()))),
    "no columns": parquet_of(lambda: pa.table({})),
    "no pictures": parquet_of(lambda: pa.table({"label": TEN})),
    "no labels": parquet_of(lambda: image_table(GOOD)),
    "empty pictures": parquet_of(lambda: image_table([*GOOD[:9], None], label=TEN)),
    "empty labels": parquet_of(lambda: image_table(GOOD, label=[*TEN[:9], None])),
    "labels of 10^7": parquet_of(lambda: image_table(GOOD, label=[n + 10**7 for n in TEN])),
    "labels of 10^9": parquet_of(lambda: image_table(GOOD, label=[n + 10**9 for n in TEN])),
    "labels of 10^18": parquet_of(lambda: image_table(GOOD, label=[n + 10**18 for n in TEN])),
    "labels of 2^63": parquet_of(lambda: image_table(GOOD, label=pa.array([2**63] * 10, pa.uint64()))),
    "negative labels": parquet_of(lambda: image_table(GOOD, label=[-n - 1 for n in TEN])),
    "a column of 10^9": parquet_of(lambda: image_table(GOOD, label=TEN, group=[10**9] * 10)),
    "a negative column": parquet_of(lambda: image_table(GOOD, label=TEN, group=[-5] * 10)),
    "superclasses of 10^9": parquet_of(lambda: image_table(GOOD, label=TEN, coarse_label=[10**9] * 10)),
    "negative superclasses": parquet_of(lambda: image_table(GOOD, label=TEN, coarse_label=[-3] * 10)),
    "two label columns": parquet_of(lambda: image_table(GOOD, a=TEN, b=TEN)),
    "metadata that is no JSON": parquet_of(lambda: image_table(GOOD, label=TEN).replace_schema_metadata({b"huggingface": b"x"})),
    "metadata nested deeply": parquet_of(
        lambda: image_table(GOOD, label=TEN).replace_schema_metadata({b"huggingface": b"[" * 100_000})
    ),
    "names that are a number": parquet_of(lambda: image_table(GOOD, label=TEN).replace_schema_metadata(features(names=5))),
    "names that are text": parquet_of(lambda: image_table(GOOD, label=TEN).replace_schema_metadata(features(names="abcdefghij"))),
    "names that are lists": parquet_of(lambda: image_table(GOOD, label=TEN).replace_schema_metadata(features(names=[[1]] * 10))),
    "names that are a mapping": parquet_of(lambda: image_table(GOOD, label=TEN).replace_schema_metadata(features(names={"a": 1}))),
    "too few names": parquet_of(lambda: image_table(GOOD, label=TEN).replace_schema_metadata(features(names=["a"]))),
    "a million names": parquet_of(
        lambda: image_table(GOOD, label=TEN).replace_schema_metadata(features(names=[str(n) for n in range(10**6)]))
    ),
    "a column that expands to 3 GB": parquet_of(
        lambda: image_table([bytes(30_000_000)] * 50, label=list(range(50))), compression="zstd"
    ),
    "a dictionary that expands to 5 GB": parquet_of(
        lambda: image_table([bytes(50_000_000)] * 100, label=[0, 1] * 50), use_dictionary=True, compression="zstd"
    ),
    "another column that expands": parquet_of(
        lambda: image_table(GOOD * 8, label=TEN * 8, text=pa.array(["x" * 20_000_000] * 80)), compression="zstd"
    ),
    "10^7 rows of nothing": parquet_of(
        lambda: pa.table({"image": pa.nulls(10**7, pa.struct([("bytes", pa.binary())])), "label": pa.nulls(10**7, pa.int64())})
    ),
    "3,000 columns": parquet_of(lambda: image_table(GOOD, label=TEN, **{f"c{n}": TEN for n in range(3000)})),
    "a picture that is a bomb": parquet_of(lambda: image_table([*GOOD[:9], png(100_000, 100_000)], label=TEN)),
    "a picture of 10^8 pixels": parquet_of(lambda: image_table([*GOOD[:9], png(13_000, 13_000)], label=TEN)),
    "one column twice": parquet_of(lambda: pa.table([pa.array(TEN), pa.array(TEN)], names=["label", "label"])),
    "columns of control characters": parquet_of(lambda: image_table(GOOD, label=TEN, **{"a\n\x1b\0": TEN})),
    "pictures of text": parquet_of(lambda: pa.table({"image": ["a"] * 10, "label": TEN})),
    "a column of many groups": parquet_of(lambda: image_table(GOOD, label=TEN, label2=[n * 10**6 for n in TEN])),
}  # fmt: skip


def cifar(content: object, protocol: int = 2) -> dict[str, Content]:
    """The folder of CIFAR-10 with a hostile test file."""

    def write(path: Path) -> None:
        writers.write_cifar10(path)
        data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
        (path / "test_batch").write_bytes(data)

    return {"cifar": write}


def shaped(shape: tuple[int, ...], payload: bytes = b"\0") -> bytes:
    """A pickle that makes an array of this shape through the permitted functions."""
    out = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(" + b"".join(
        b"\x8a\x09" + int(side).to_bytes(9, "little", signed=True) for side in shape
    )
    return out + b"tU\x01b\x87R."


CIFAR: dict[str, dict[str, Content]] = {
    "code": cifar({b"data": Evil()}),
    "an array of 10^12 by _reconstruct": cifar(b"\x80\x02}U\4data" + shaped((10**12,))[2:-1] + b"s."),
    "an array of objects": cifar(b"\x80\x02" + shaped((3,)).replace(b"U\x01b", b"U\x01O")[2:]),
    "np.ndarray of 10^12": cifar(b"\x80\x02cnumpy\nndarray\n(\x8a\x06\0\0\0\0\0\1t\x85R."),
    "np.dtype of objects": cifar(b"\x80\x02cnumpy\ndtype\nU\x01O\x85R."),
    "np.dtype of 10^9 bytes": cifar(b"\x80\x02cnumpy\nndarray\nK\x01U\x0bV1000000000\x86R."),
    "another codec": cifar(b"\x80\x02c_codecs\nencode\nX\1\0\0\0aX\3\0\0\0rot\x86R."),
    "a deep list": cifar(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "a memo bomb": cifar(
        b"\x80\x02" + b"]q\0U\3lola" + b"".join(b"](h" + bytes([n]) + (b"h" + bytes([n])) * 9 + b"eq" + bytes([n + 1]) for n in range(12)) + b"."
    ),
    "huge bytes": cifar(b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x."),
    "a huge long": cifar(b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\1."),
    "a huge memo": cifar(b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b"."),
    "a list": cifar([1, 2]),
    "nothing": cifar({}),
    "labels of text": cifar({b"data": writers.CIFAR_PIXELS, b"labels": ["a"] * 4}),
    "labels of 10^9": cifar({b"data": writers.CIFAR_PIXELS, b"labels": [10**9] * 4}),
    "labels of 10^30": cifar({b"data": writers.CIFAR_PIXELS, b"labels": [10**30] * 4}),
    "ragged labels": cifar({b"data": writers.CIFAR_PIXELS, b"labels": [[1], [1, 2], 3, 4]}),
    "no labels": cifar({b"data": writers.CIFAR_PIXELS, b"labels": []}),
    "keys of numbers": cifar({1: 2, b"data": writers.CIFAR_PIXELS, b"labels": [0] * 4}),
    "BUILD on a dictionary": cifar(b"\x80\x02}}b."),
    "protocol 5": cifar({b"data": writers.CIFAR_PIXELS, b"labels": [0, 1, 2, 3]}, 5),
}  # fmt: skip


def mat(values: Mapping[str, Any], **options: Any) -> bytes:
    """A MATLAB file."""
    from scipy.io import savemat

    buffer = io.BytesIO()
    savemat(buffer, dict(values), **options)
    return buffer.getvalue()


SVHN = {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": np.arange(1, 11)[:, None]}


def mat_with_shape(shape: tuple[int, ...]) -> bytes:
    """A MATLAB file whose first array claims this shape."""
    content = bytearray(mat(SVHN))
    at = content.find(struct.pack("<iiii", 32, 32, 3, 10))
    content[at : at + 16] = struct.pack("<iiii", *shape)
    return bytes(content)


def compressed_mat(gigabytes: float) -> bytes:
    """A MATLAB file whose array expands to so much."""
    side = int(gigabytes * 2**30) // (32 * 32 * 3)
    size = side * 32 * 32 * 3
    head = struct.pack("<IIIIIIiiiiIII", 6, 8, 9, 0, 5, 16, 32, 32, 3, side, 1 | (1 << 16), ord("X"), 2) + struct.pack(
        "<I", size
    )
    packer = zlib.compressobj(1)
    body = packer.compress(struct.pack("<II", 14, len(head) + size) + head)
    for _ in range(int(gigabytes * 1024)):
        body += packer.compress(bytes(1 << 20))
    body += packer.flush()
    return mat({})[:128] + struct.pack("<II", 15, len(body)) + body


MATS: dict[str, Callable[[], bytes]] = {
    "no bytes": lambda: b"",
    "text": lambda: b"hello" * 100,
    "labels of 10^7": lambda: mat({**SVHN, "y": SVHN["y"] + 10**7}),
    "labels of 10^9": lambda: mat({**SVHN, "y": SVHN["y"] + 10**9}),
    "negative labels": lambda: mat({**SVHN, "y": -SVHN["y"]}),
    "NaN labels": lambda: mat({**SVHN, "y": SVHN["y"] * np.nan}),
    "infinite labels": lambda: mat({**SVHN, "y": SVHN["y"] * np.inf}),
    "labels of 1e300": lambda: mat({**SVHN, "y": SVHN["y"] * 1e300}),
    "no labels": lambda: mat({"X": SVHN["X"]}),
    "no images": lambda: mat({"X": np.zeros((32, 32, 3, 0), np.uint8), "y": np.zeros((0, 1))}),
    "cells": lambda: mat({"X": np.array([1, "a"], object), "y": SVHN["y"]}),
    "structures": lambda: mat({"X": {"a": 1}, "y": SVHN["y"]}),
    "sparse labels": lambda: mat({"X": SVHN["X"], "y": __import__("scipy.sparse").sparse.csc_matrix(SVHN["y"])}),
    "a shape of 10^9": lambda: mat_with_shape((32, 32, 3, 10**6)),
    "a shape that overflows": lambda: mat_with_shape((2**31 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1)),
    "a negative shape": lambda: mat_with_shape((-32, 32, 3, 10)),
    "version 7.3": lambda: b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + b"\x89HDF\r\n\x1a\n" + bytes(600),
    "version 4": lambda: mat({"X": np.zeros((3, 3)), "y": np.zeros((3, 1))}, format="4"),
    "a zip bomb": lambda: compressed_mat(1.5),
    "a damaged stream": lambda: compressed_mat(0.01)[:-200],
}


def many_files(count: int, depth: int) -> Callable[[Path], object]:
    """A folder of empty files, or of folders in folders."""

    def write(path: Path) -> None:
        place = path / "a"
        for _ in range(depth):
            place = place / "d"
        place.mkdir(parents=True)
        (path / "b").mkdir()
        for number in range(count):
            (place / f"{number}.txt").touch()

    return write


def loop(path: Path) -> None:
    """A folder that holds a link to itself, and a picture."""
    (path / "a").mkdir(parents=True)
    (path / "a" / "up").symlink_to(path)
    (path / "a" / "1.png").write_bytes(encoded("PNG"))
    (path / "b").symlink_to(path / "a")


def fifo_folder(path: Path) -> None:
    """A folder whose picture is a FIFO."""
    (path / "a").mkdir(parents=True)
    os.mkfifo(path / "a" / "1.png")
    (path / "b").mkdir()
    (path / "b" / "1.png").symlink_to("/dev/zero")


TEXT_FILES: dict[str, dict[str, Content]] = {
    "names that are not UTF-8": {"bin/test_batch.bin": bytes(3073 * 3), "bin/batches.meta.txt": b"\xff\xfe\n"},
    "10^6 names": {"bin/test_batch.bin": bytes(3073 * 3), "bin/batches.meta.txt": b"a\n" * 10**6},
    "no records": {"bin/test_batch.bin": bytes(3072)},
    "two sets": {"bin/test_batch.bin": bytes(3074 * 3), "bin/test.bin": bytes(3073)},
    "a sparse file of 1 TB": {"bin/test_batch.bin": lambda path: sparse(path, 3073 * 3 * 10**8)},
    "stl without labels": {"bin/test_X.bin": bytes(27648 * 2)},
    "stl with label 0": {"bin/test_X.bin": bytes(27648 * 2), "bin/test_y.bin": b"\0\1"},
    "stl with names that are not UTF-8": {"bin/test_X.bin": bytes(27648 * 2), "bin/test_y.bin": b"\1\2", "bin/class_names.txt": b"\xff"},
    "stl of 1 TB": {
        "bin/test_X.bin": lambda path: sparse(path, 27648 * 4 * 10**7),
        "bin/test_y.bin": b"\1",
    },
    "tiny with bytes": {"bin/val/val_annotations.txt": b"\xff\xfe\tx\n", "bin/val/images/a.png": encoded("PNG")},
    "tiny with paths outside": {"bin/val/val_annotations.txt": b"../../../etc/passwd\tx\n", "bin/val/images/a.png": encoded("PNG")},
    "tiny with NUL": {"bin/val/val_annotations.txt": b"a\0b\tx\n", "bin/val/images/a.png": encoded("PNG")},
    "tiny with nothing": {"bin/val/val_annotations.txt": b"", "bin/val/images/a.png": encoded("PNG")},
    "tiny with one word": {"bin/val/val_annotations.txt": b"a.png\n", "bin/val/images/a.png": encoded("PNG")},
    "tiny with a device": {"bin/val/val_annotations.txt": b"/dev/zero\tx\n", "bin/val/images/a.png": encoded("PNG")},
    "corrupted of 10^12": {"bin/fog.npy": npy((10**12, 8, 8, 3)), "bin/labels.npy": array(Y)},
    "corrupted with labels of 10^9": {"bin/fog.npy": array(np.zeros((20, 8, 8, 3), np.uint8)), "bin/labels.npy": array(Y[:4] + 10**9)},
    "corrupted with objects": {"bin/fog.npy": objects(), "bin/labels.npy": objects()},
    "corrupted with labels of text": {"bin/fog.npy": array(np.zeros((20, 8, 8, 3), np.uint8)), "bin/labels.npy": array(["a"] * 4)},
    "corrupted with negative labels": {"bin/fog.npy": array(np.zeros((20, 8, 8, 3), np.uint8)), "bin/labels.npy": array(Y[:4] - 50)},
    "corrupted with a scalar": {"bin/fog.npy": array(5), "bin/labels.npy": array(5)},
    "corrupted, sparse, of 1 TB": {
        "bin/fog.npy": lambda path: (path.write_bytes(npy((5 * 10**7, 32, 32, 3))), os.truncate(path, 128 + 5 * 10**7 * 3072)),
        "bin/labels.npy": array(np.zeros(10**7, np.uint8)),
    },
}  # fmt: skip


def made(make: Callable[[], bytes]) -> Callable[[Path], object]:
    """A writer of the bytes that a function makes when they are needed."""
    return lambda path: path.write_bytes(make())


def on(path: str, *words: str) -> tuple[str, ...]:
    """An audit of the shared run on data of one's own."""
    return ("audit", "@run", "--data", path, "--threat=Linf:0.1", ATTACK, "--out=out", *words)


def cases(random: Random) -> Iterator[Case]:
    """Hostile data files."""
    for name, content in NPZ.items():
        yield Case(f"npz: {name}", on("x.npz"), {"x.npz": made(content)}, EITHER)
    for name in random.sample(list(NPZ), 12):
        yield Case(f"data npz: {name}", ("data", "x.npz"), {"x.npz": made(NPZ[name])}, EITHER)
    for name in random.sample(list(NPZ), 12):
        words = ("train", "at", "--budget=short", "--data=x.npz", "--out=out", "--set=threat=Linf:0.1", "--set=model.name=lenet",
                 "--epochs=1", "--set=attack=pgd:steps=1", "--set=validation_attack=pgd:steps=1")  # fmt: skip
        yield Case(f"train npz: {name}", words, {"x.npz": made(NPZ[name])}, EITHER)
    for size in (0.5, 3.0):
        yield Case(f"npz: a zip bomb of {size} GiB", on("x.npz"), {"x.npz": zeros_npz(size)}, EITHER)
    whole = npz({"x": GOOD_X, "y": GOOD_Y}, compress=True)
    for number in range(24):
        damaged = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        cut = bytes(damaged[: random.randrange(len(damaged))] if number % 3 == 0 else damaged)
        yield Case(f"npz: damaged {number}", on("x.npz"), {"x.npz": cut}, EITHER)
    labels = idx((3,), b"\0\1\2")
    for name, content in {
        "a shape of 10^12": idx((10**6, 1000, 1000)),
        "a shape that overflows": idx((2**32 - 1, 2**32 - 1, 2**32 - 1)),
        "255 dimensions": idx((2,) * 255, b"\0"),
        "a rank without shape": idx((), b"", rank=200),
        "no images": idx((0, 8, 8)),
        "no pixels": idx((3, 0, 0)),
        "another type": idx((3, 8, 8), bytes(192), kind=0x0D),
        "two dimensions": idx((3, 64), bytes(192)),
        "a gzip bomb of zeros": made(lambda: gzip_of(1.5)),
        "a gzip bomb with a header": made(lambda: gzip_of(1.5, idx((24 * 2**20, 8, 8)))),
        "a gzip bomb behind the pixels": made(lambda: gzip_of(1.5, idx((3, 8, 8)))),
        "gzip in gzip": gzip.compress(gzip.compress(idx((3, 8, 8), bytes(192)))),
        "cut gzip": gzip.compress(idx((3, 8, 8), bytes(192)))[:-9],
        "many members": gzip.compress(b"") * 20_000 + gzip.compress(idx((3, 8, 8), bytes(192))),
        "garbage behind": gzip.compress(idx((3, 8, 8), bytes(192))) + b"garbage",
    }.items():
        files = {"m/t10k-images-idx3-ubyte": content, "m/t10k-labels-idx1-ubyte": labels}
        yield Case(f"idx: {name}", on("m"), files, EITHER)
    yield Case("idx: labels are a bomb", on("m"),
               {"m/t10k-images-idx3-ubyte": idx((3, 8, 8), bytes(192)), "m/t10k-labels-idx1-ubyte": made(lambda: gzip_of(1.5))}, EITHER)  # fmt: skip
    for name, picture in PICTURES.items():
        suffix = "." + (
            name.split()[1].lower() if name.startswith(("a JPEG", "a GIF", "a BMP", "a PPM", "a WebP")) else "png"
        )
        yield Case(f"picture: {name}", on("pics"), folder_of(picture, suffix), EITHER)
        if name.startswith(("a true", "a JPEG", "of", "with", "one")):
            yield Case(
                f"picture cut to a square: {name}", on("pics", "--data-set=size=8"), folder_of(picture, suffix), EITHER
            )
    for setting in (
        "size=100000",
        "size=10000000",
        "size=8,resize=4",
        "per_class=1000000",
        "size=99999999999999999999",
    ):
        parts = [f"--data-set={part}" for part in setting.split(",")]
        yield Case(f"pictures: {setting}", on("pics", *parts), folder_of(lambda: encoded("PNG")), EITHER)
    yield Case("picture: one pixel high, cut", on("pics", "--data-set=size=4096"),
               folder_of(lambda: encoded("PNG", (60_000, 1))), EITHER)  # fmt: skip
    for name, write in PARQUET.items():
        yield Case(f"parquet: {name}", on("x.parquet"), {"x.parquet": write}, EITHER)
    buffer = io.BytesIO()
    pq.write_table(image_table(GOOD, label=TEN), buffer)
    table = buffer.getvalue()
    for number in range(30):
        damaged = bytearray(table)
        for _ in range(random.randrange(1, 6)):
            # The footer decides what is allocated, so most of the damage is there.
            damaged[random.randrange(len(damaged) - 900 if number % 4 else 0, len(damaged))] = random.randrange(256)
        yield Case(f"parquet: damaged {number}", on("x.parquet"), {"x.parquet": bytes(damaged)}, EITHER)
    for name, files in CIFAR.items():
        yield Case(f"cifar: {name}", on("cifar"), files, EITHER)
    for name, make in MATS.items():
        yield Case(f"mat: {name}", on("x.mat"), {"x.mat": made(make)}, EITHER)
    for name, files in TEXT_FILES.items():
        extra = ("--data-set=corruption=fog",) if name.startswith("corrupted") else ()
        yield Case(f"files: {name}", on("bin", *extra), files, EITHER)
    for name, content in {
        "a folder of 30,000 files": many_files(30_000, 0),
        "a folder 300 deep": many_files(3, 300),
        "a folder that links to itself": loop,
        "a folder of FIFOs": fifo_folder,
    }.items():
        yield Case(f"folder: {name}", on("f"), {"f": content}, EITHER)
    for name in ("a\nb", "a\tb", "\x1b[31mred", "\u202eabc", "a" * 255, "<script>", "=cmd()", "a|b", "`x`"):
        files = {f"pics/{name}/1.png": encoded("PNG"), **{f"pics/{n}/1.png": encoded("PNG") for n in range(9)}}
        yield Case(f"class named {name[:20]!a}", on("pics"), files, EITHER)
    for file in ("x.npz", "x.parquet", "x.mat", "x.bin", "x.npy", "x.pkl", "x", "t10k-images-idx3-ubyte"):
        for kind, write in {"FIFO": os.mkfifo, "link to zeros": lambda path: path.symlink_to("/dev/zero")}.items():
            yield Case(f"{file} is a {kind}", on(file), {file: write}, EITHER)
    report_cases = {
        "text": {"out/outcomes/part-00000.parquet": b"hello"},
        "a Parquet file of others": {"out/outcomes/part-00000.parquet": table},
        "an empty folder": {"out/outcomes/x": b""},
        "a part that is a link to zeros": {
            "out/outcomes/part-00000.parquet": lambda path: path.symlink_to("/dev/zero")
        },
    }
    for name, files in report_cases.items():
        yield Case(f"report: {name}", ("report", "out"), files, EITHER)
        yield Case(f"compare: {name}", ("compare", "out", "@audit"), files, EITHER)
        yield Case(f"resume: {name}", audit(ATTACK, "--resume"), files, EITHER)
    yield Case("control: the shared data", ("audit", "@run", "--data=@data", "--threat=Linf:0.1", "--json", ATTACK, "--out=out"),
               {}, frozenset({0}), ("audit", "@run", "--data=@data", "--threat=Linf:0.1", "--json", ATTACK))  # fmt: skip
