"""Tiny data sets in the layouts of the real ones."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IDX_PIXELS = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
IDX_LABELS = np.array([2, 0, 1], np.uint8)


def packed_idx(values: np.ndarray[Any, Any], kind: int = 8) -> bytes:
    return bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_idx(folder: Path, prefix: str = "t10k", dot: str = "-", zipped: bool = False) -> Path:
    """A tiny set in the layout of MNIST; the path of its images."""
    folder.mkdir(parents=True, exist_ok=True)
    for what, values in (("images", IDX_PIXELS), ("labels", IDX_LABELS)):
        content = packed_idx(values)
        name = f"{prefix}-{what}{dot}idx{values.ndim}-ubyte"
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return folder / (f"{prefix}-images{dot}idx3-ubyte" + ".gz" * zipped)


def write_mnist(folder: Path, value: int = 7, zipped: bool = False) -> None:
    folder.mkdir(parents=True)
    pixels = struct.pack(">4B3I", 0, 0, 8, 3, 2, 28, 28) + bytes([value]) * 2 * 28 * 28
    labels = struct.pack(">4B1I", 0, 0, 8, 1, 2) + bytes([3, 9])
    for name, content in (("t10k-images-idx3-ubyte", pixels), ("t10k-labels-idx1-ubyte", labels)):
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)


CIFAR_PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)


def write_pickle(path: Path, content: Any, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def write_cifar10(folder: Path) -> Path:
    """Five train files of 4 images and a test file, as python 2 wrote them: keys and names are bytes."""
    for number in range(1, 6):
        write_pickle(
            folder / f"data_batch_{number}",
            {b"data": CIFAR_PIXELS + np.uint8(number), b"labels": [number % 10, 0, 1, 2]},
        )
    write_pickle(folder / "test_batch", {b"data": CIFAR_PIXELS, b"labels": [3, 1, 2, 0], b"filenames": [b"a.png"] * 4})
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    write_pickle(folder / "batches.meta", {b"label_names": names, b"num_vis": 3072})
    return folder


def write_cifar100(folder: Path) -> Path:
    for split in ("train", "test"):
        write_pickle(
            folder / split, {b"data": CIFAR_PIXELS, b"fine_labels": [0, 1, 2, 0], b"coarse_labels": [1, 0, 0, 1]}
        )
    write_pickle(folder / "meta", {b"fine_label_names": [b"x", b"y", b"z"], b"coarse_label_names": [b"up", b"down"]})
    return folder


PICTURES = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write_parquet(
    path: Path,
    contents: list[Any] | None = None,
    names: dict[str, list[str]] | None = None,
    column: str = "image",
    **labels: list[Any],
) -> Path:
    contents = [png(picture) for picture in PICTURES] if contents is None else contents
    cells = [{"bytes": content, "path": f"{row}.png"} for row, content in enumerate(contents)]
    features: dict[str, Any] = {column: {"_type": "Image"}}
    for key, texts in (names or {}).items():
        features[key] = {"_type": "ClassLabel", "names": texts}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({column: pa.array(cells, kind), **{key: pa.array(ids) for key, ids in labels.items()}})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if names is not None else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path
