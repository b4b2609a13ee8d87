"""Limits on input, checked before memory is allocated for a file or an option.

The sizes that a file declares are compared with its length and with the free memory. `SECURITY.md` lists the limits;
each is far above the size of usual recipes, data sets and checkpoints.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

from classwise.core.errors import ClasswiseError

RECIPE_BYTES = 256 << 10
"""Size of a recipe file."""
JOB_BYTES = 1 << 20
"""Size of a job file."""
YAML_VALUES = 10_000
"""Values of a YAML text with its aliases expanded."""
YAML_DEPTH = 32
"""Nested collections in a YAML text."""
EXTENDS = 16
"""Length of a chain of recipes in which each extends the next."""
ATTACKS = 100
"""Attacks of an audit."""
TENSORS = 20_000
"""Tensors of a checkpoint."""
INTEGER = 2**63 - 1
"""Magnitude of an integer in settings."""
SPEC_LENGTH = 4096
"""Characters of a spec of an attack or another part."""
SPEC_DEPTH = 8
"""Nested parts of a spec, and dots in the name of a field."""
NAME_LENGTH = 255
"""Characters of a dotted name of a Python object."""
FILE_NAME_BYTES, PATH_BYTES = 255, 4095
"""Length of the name of a file or folder, and of a path: those of usual file systems."""
IMAGE_NAME = 4096
"""Characters of the name of an image."""
CLASSES = 1 << 15
"""Classes, and groups of another column; more are allowed up to the number of images."""
GROUPINGS = 64
"""Integer columns in a Parquet file."""
IMAGE_PIXELS = 64 << 20
"""Pixels of one image, as encoded and as resized."""
TEXT_BYTES = 16 << 20
"""Size of a text file that accompanies data, such as a list of class names."""
FOLDER_ENTRIES = 100_000
"""Files and folders that are not images in a folder of images."""
EXPANSION = 200
"""Maximal expansion factor of a compressed file larger than `FREE_BYTES` when expanded; about 10 is usual at most."""
FREE_BYTES = 64 << 20
"""Size up to which expansion and free memory are not checked."""
MODEL_DEPTH = 1000
"""Layers of a network of the zoo."""
NUMBER = 1e30
"""Magnitude of a number in settings; the maximum of float32 is 3.4e38."""
COUNT = 10_000_000
"""Each count in settings: epochs, batch size, images of a subset, steps of an attack and others."""
RADIUS = 1_000_000
"""Radius of a threat; the distance between two images in [0, 1] is smaller in every norm."""
REPEATS = 1000
"""Passes that decide whether an image is classified correctly."""
SEED = 2**63 - 1
"""The largest seed; the smallest is 0."""


def check_size(needed: int, what: str, stored: int | None = None) -> None:
    """Refuse data larger than the free memory, or much larger than their compressed file.

    Args:
        needed: bytes to be allocated.
        what: the prefix of the error message, such as the name of the file.
        stored: size of the data on disk in bytes.

    Raises:
        ClasswiseError: if less memory is free, or if ``needed`` exceeds `EXPANSION` times ``stored``.
    """
    if needed <= FREE_BYTES:
        return
    if stored is not None and needed > EXPANSION * max(stored, 1):
        raise ClasswiseError(
            f"{what} expands to {_formatted(needed)} from {_formatted(stored)}, more than {EXPANSION} times: "
            "rejected as a decompression bomb; store it uncompressed"
        )
    free = free_bytes()
    if needed > free:
        raise ClasswiseError(
            f"{what} needs {_formatted(needed)} of memory and {_formatted(free)} are free; use a smaller part of it"
        )


def impossible_path(path: str | os.PathLike[str]) -> str:
    """Why no usual file system accepts a path; empty if one does."""
    text = os.fspath(path)
    if "\0" in text:
        return "a path must not contain a NUL character"
    longest = max((len(os.fsencode(name)) for name in Path(text).parts), default=0)
    if longest > FILE_NAME_BYTES or len(os.fsencode(text)) > PATH_BYTES:
        return f"a name in a path has at most {FILE_NAME_BYTES} bytes, and a path {PATH_BYTES}"
    try:
        Path(text).stat()
    except OSError as error:
        return "a symbolic link in it leads to itself" if error.errno == errno.ELOOP else ""
    return ""


def free_bytes() -> int:
    """Free memory in bytes: of the machine, and below this process's limit (``ulimit -v``)."""
    free = math.inf
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    statm = Path("/proc/self/statm")
    if os.name == "posix" and statm.is_file():
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            free = min(free, soft - int(statm.read_text(encoding="ascii").split()[0]) * resource.getpagesize())
    return 2**62 if math.isinf(free) else max(int(free), 0)


def check_classes(count: int, images: int, where: str) -> None:
    """Refuse more classes (or groups) than both `CLASSES` and the number of images.

    Raises:
        ClasswiseError: with the number of classes and the limit.
    """
    if count > max(CLASSES, images):
        raise ClasswiseError(
            f"{where}: {count} classes for {images} images; the limit is {CLASSES} classes, or one per image: "
            "labels should be consecutive integers from 0"
        )


def _formatted(size: float) -> str:
    """Format a number of bytes with a unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
