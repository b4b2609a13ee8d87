"""Limits on input: what a file or an option may make the program allocate, checked before anything is allocated.

Sizes that a file declares are compared with the file's own size and with the memory that is free. `SECURITY.md` lists
the limits; each is far above what recipes, data sets and checkpoints of the field need.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from classwise.core.errors import ClasswiseError

RECIPE_BYTES = 256 << 10
"""Size of a recipe file."""
YAML_VALUES = 10_000
"""Values of a YAML text, where each alias counts as all that it stands for."""
YAML_DEPTH = 32
"""Collections inside each other in a YAML text."""
EXTENDS = 16
"""Recipes that extend each other."""
ATTACKS = 100
"""Attacks of an audit."""
TENSORS = 20_000
"""Tensors of a checkpoint."""
INTEGER = 2**63 - 1
"""Magnitude of an integer in settings."""
SPEC_LENGTH = 4096
"""Letters of a spec of an attack or another part."""
SPEC_DEPTH = 8
"""Parts inside each other in a spec, and dots in the name of a field."""
NAME_LENGTH = 255
"""Letters of a dotted name of a Python object."""
CLASSES = 1 << 15
"""Classes, and groups of another column; more where there are as many images."""
GROUPINGS = 64
"""Columns of whole numbers in a Parquet file."""
PICTURE_PIXELS = 64 << 20
"""Pixels of one encoded or scaled picture."""
TEXT_BYTES = 16 << 20
"""Size of a text file beside data, such as a list of class names."""
FOLDER_ENTRIES = 100_000
"""Files and folders without a picture among them that a search for pictures looks at."""
EXPANSION = 200
"""How many times a compressed file may grow, beyond `FREE_BYTES`. Images grow about tenfold at most."""
FREE_BYTES = 64 << 20
"""Size up to which nothing is asked about expansion or memory."""
MODEL_DEPTH = 1000
"""Layers of a network of the zoo."""
NUMBER = 1e30
"""Magnitude of a number in settings; float32 ends at 3.4e38."""
COUNT = 10_000_000
"""Epochs, images of a batch or a subset, steps of an attack and other counts in settings, each."""
RADIUS = 1_000_000
"""Radius of a threat; images in [0, 1] are nearer to each other in every norm."""
SEED = 2**63 - 1
"""The largest seed; the least is 0."""


def check_size(needed: int, what: str, stored: int | None = None) -> None:
    """Refuse a size that the memory cannot hold, or that a compressed file of its length should not expand to.

    Args:
        needed: the bytes that are about to be allocated.
        what: begins the line of the error, such as the file's name.
        stored: the bytes that the data have on the disk.

    Raises:
        ClasswiseError: if there are fewer bytes of memory, or more than `EXPANSION` bytes for each stored one.
    """
    if needed <= FREE_BYTES:
        return
    if stored is not None and needed > EXPANSION * max(stored, 1):
        raise ClasswiseError(
            f"{what} expands to {_shown(needed)} from {_shown(stored)}, more than {EXPANSION} times: "
            "it is refused as a decompression bomb; store it uncompressed"
        )
    free = free_bytes()
    if needed > free:
        raise ClasswiseError(
            f"{what} needs {_shown(needed)} of memory and {_shown(free)} are free; use a smaller part of it"
        )


def free_bytes() -> int:
    """The bytes of memory that this process can still get: of the machine, and of its own limit (``ulimit -v``)."""
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
    """Refuse more classes (or groups) than `CLASSES` and than there are images.

    Raises:
        ClasswiseError: naming the count.
    """
    if count > max(CLASSES, images):
        raise ClasswiseError(
            f"{where}: {count} classes for {images} images; at most {CLASSES}, or one per image, are read: "
            "labels should count from 0 without gaps"
        )


def _shown(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
