"""Load a named data set, a file or a folder into memory, or decode its images while they are used."""

from __future__ import annotations

import logging
import math
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from classwise.core.config import build
from classwise.core.errors import ClasswiseError, DataNotFoundError, unknown
from classwise.data.encoded import EncodedImages
from classwise.data.formats import FORMATS
from classwise.data.formats.base import EncodedFormat, Format
from classwise.data.images import Images
from classwise.data.sets import DATA
from classwise.data.sets.base import DataSet
from classwise.data.splits import stratified_subset
from classwise.data.stream import Stream

logger = logging.getLogger(__name__)

CACHE = Path("~/.cache/classwise")
SYSTEM = Path("/usr/share/datasets")
TIMEOUT = 20
"""Timeout of a download, in seconds."""
LARGE_BYTES = 1 << 30
"""Size of decoded images above which `open_data` decodes them while they are used."""


def load_data(
    source: str | os.PathLike[str],
    *,
    split: str = "test",
    root: str | os.PathLike[str] | None = None,
    subset: int | None = None,
    seed: int = 0,
    download: bool = True,
    data_format: str | None = None,
    **options: Any,
) -> Images:
    """Load a data set by name, or from a file or folder.

    Named data sets are searched in ``root``, ``$CLASSWISE_DATA``, ``./data``, ``~/.cache/classwise`` and
    ``/usr/share/datasets``, in this order. If none has the data set, its files are downloaded to ``root``, else
    ``$CLASSWISE_DATA``, else ``~/.cache/classwise``, and verified by their hashes.

    Args:
        source: a name in `classwise.data.DATA`, an import path ``"package.module:Class"`` of a `DataSet`, or a path.
            A name takes precedence over a file of the same name; use ``./name`` for the file.
        split: "train" or "test"; for a folder, the name of a subfolder or file in it. Ignored for the path of a file.
        root: a data directory that is searched first.
        subset: number of images of a stratified subset (`stratified_subset`); by default all.
        seed: seed of the subset.
        download: whether to download a named data set that is not found.
        data_format: a name in `classwise.data.FORMATS`; by default the format of a path is recognised.
        **options: options of the file format, such as ``label="fine_label"`` or ``size=64``.

    Returns:
        The images, on the CPU, uint8 if stored as uint8.

    Raises:
        ClasswiseError: for an unknown name, path, split, format or option, or an invalid file.

    Example:
        >>> import classwise as cw
        >>> cw.load_data("digits", split="test", subset=100)
        Images(digits test: 100 of 1x8x8, 10 classes, torch.uint8, cpu)
    """
    found = _find(source, root, data_format, options)
    if isinstance(found, DataSet):
        images = _load_named(found, split, root, download)
    else:
        images = found.format.read(found.path, split)
    return images if subset is None else images.take(stratified_subset(images.y, subset, seed))


def stream_data(
    source: str | os.PathLike[str],
    *,
    split: str = "test",
    root: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    data_format: str | None = None,
    **options: Any,
) -> Stream:
    """Open a folder of images, tar files in the layout of WebDataset, or ImageNet as a `Stream`.

    Threads decode images while earlier ones are attacked. An audit holds one piece of the images in memory, and at most
    `classwise.data.encoded.AHEAD_BYTES` of images that wait. The order of the images does not depend on the workers.

    Args:
        source: as in `load_data`.
        split: as in `load_data`.
        root: as in `load_data`.
        workers: number of threads that decode; None: one per CPU core, at most 16.
        data_format: as in `load_data`.
        **options: options of the file format, such as ``size=224, resize=256``.

    Returns:
        The stream. Images are RGB if any of them has colours.

    Raises:
        ClasswiseError: as in `load_data`, or if the data are not separate encoded images.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import classwise as cw
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp(), "photos")
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir(parents=True)
        ...     Image.new("RGB", (40, 30)).save(folder / name / "one.png")
        >>> stream = cw.stream_data(folder, size=24)
        >>> stream.expected, stream.shape, stream.class_names
        (2, (3, 24, 24), ('cat', 'dog'))
    """
    encoded = _encoded(_find(source, root, data_format, options), split, root)
    if encoded is None:
        raise ClasswiseError(
            f"the images of {os.fspath(source)!r} cannot be decoded one by one; use load_data, which reads all of them"
        )
    return encoded.stream(workers)


def open_data(
    source: str | os.PathLike[str],
    *,
    split: str = "test",
    root: str | os.PathLike[str] | None = None,
    subset: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Images | Stream:
    """As `load_data`, but encoded images of more than `LARGE_BYTES` are opened as by `stream_data`.

    Args:
        source: as in `load_data`.
        split: as in `load_data`.
        root: as in `load_data`.
        subset: as in `load_data`; a subset is always loaded.
        seed: as in `load_data`.
        **options: as in `load_data`.

    Raises:
        ClasswiseError: as in `load_data`.
    """
    if subset is None:
        encoded = _encoded(_find(source, root, None, options), split, root)
        if encoded is not None and len(encoded) * math.prod(encoded.shape()) > LARGE_BYTES:
            stream = encoded.stream()
            logger.info("%s: %d images are decoded while they are used", stream.name, len(encoded))
            return stream
    return load_data(source, split=split, root=root, subset=subset, seed=seed, **options)


class _Path(NamedTuple):
    """A file or folder and its format."""

    path: Path
    format: Format


def _find(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    data_format: str | None,
    options: dict[str, Any],
) -> DataSet | _Path:
    """The named data set, or the path and its format."""
    text = os.fspath(source)
    for what, value in (("data", text), ("root", "" if root is None else os.fspath(root))):
        if "\0" in value:
            raise ClasswiseError(f"{what} {value!r}: a path must not contain a NUL character")
    path = Path(text).expanduser()
    if text in DATA or (":" in text and not path.exists()):
        if data_format is not None or options:
            option = "data_format" if data_format is not None else next(iter(options))
            raise ClasswiseError(f"data set {text!r} has no option {option!r}; options apply to files and folders")
        return DATA.load(text)()
    if not path.exists():
        is_name = text == path.name and not path.suffix
        raise unknown("data set", text, DATA) if is_name else ClasswiseError(f"there is no file or folder {text}")
    name = data_format or _recognise(path)
    return _Path(path, build(FORMATS.load(name), options, f"data format {name!r}"))


def _encoded(found: DataSet | _Path, split: str, root: str | os.PathLike[str] | None) -> EncodedImages | None:
    """The encoded images of a data set or path; None if they are not separate."""
    if isinstance(found, _Path):
        return found.format.encoded(found.path, split) if isinstance(found.format, EncodedFormat) else None
    if split not in found.splits:
        raise unknown(f"split of {found.name}", split, found.splits)
    candidates = (found.encoded(directory, split) for directory in data_directories(root))
    return next((encoded for encoded in candidates if encoded is not None), None)


def data_directories(root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The directories in which named data sets are searched, in order."""
    first = [Path(directory) for directory in (root, os.environ.get("CLASSWISE_DATA")) if directory]
    return [directory.expanduser() for directory in (*first, Path("data"), CACHE, SYSTEM)]


def _load_named(data_set: DataSet, split: str, root: str | os.PathLike[str] | None, download: bool) -> Images:
    if split not in data_set.splits:
        raise unknown(f"split of {data_set.name}", split, data_set.splits)
    directories = data_directories(root)
    for directory in directories:
        images = data_set.read(directory, split)
        if images is not None:
            if data_set.remote:
                logger.info("%s (%s) read from %s", data_set.name, split, directory)
            return images
    missing = f"{data_set.name} ({split}) is not in {', '.join(str(directory) for directory in directories)}"
    if not download or not data_set.remote:
        raise DataNotFoundError(f"{missing}; copy its files into one of them, or set CLASSWISE_DATA to their folder")
    target = Path(root or os.environ.get("CLASSWISE_DATA") or CACHE).expanduser()
    _fetch(data_set, target, missing)
    images = data_set.read(target, split)
    if images is None:
        raise ClasswiseError(f"{missing}, nor in the files downloaded to {target}")
    return images


def _fetch(data_set: DataSet, target: Path, missing: str) -> None:
    """Download every file of the data set, atomically."""
    import pooch

    folder = target / data_set.folder
    for remote in data_set.remote:
        logger.warning("%s; downloading %s to %s", missing, remote.url, folder)
        try:
            path = pooch.retrieve(
                remote.url,
                known_hash=remote.digest,
                fname=remote.file_name,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
            )
        except (OSError, ValueError) as error:  # no network, no permission, wrong hash
            fault = "hash mismatch" if isinstance(error, ValueError) else type(error).__name__
            reason = f"{remote.url} could not be downloaded ({fault})"
            raise DataNotFoundError(
                f"{missing}, and {reason}; get it elsewhere and set CLASSWISE_DATA to its folder"
            ) from error
        if remote.file_name.endswith(".tar.gz"):
            _unpack(Path(path), folder)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; its folders appear atomically."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as temporary:
        with tarfile.open(archive) as content:
            content.extractall(temporary, filter="data")
        for item in Path(temporary).iterdir():
            item.rename(folder / item.name)


def named_set(data: Images | Stream) -> type[DataSet] | None:
    """The registered data set with the name, classes and shape of the images, which has their mean and usual threat."""
    named = DATA.load(data.name) if data.name in DATA else None
    return named if named and (named.class_names, named.shape) == (data.class_names, data.shape) else None


def _recognise(path: Path) -> str:
    """The name of the first format that accepts the path."""
    for name in FORMATS:
        if FORMATS.load(name)().accepts(path):
            return name
    raise ClasswiseError(f"{path}: unknown format; supported formats: {', '.join(FORMATS)}")
