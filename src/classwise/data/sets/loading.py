"""Load a named data set, a path or a data set object into memory, or decode its images while they are used."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import os
import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from classwise.core.errors import ClasswiseError, DataNotFoundError, did_you_mean, unknown
from classwise.core.settings import limits
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Count, Seed, build
from classwise.core.settings.registry import load_object
from classwise.data.corruptions import CORRUPTIONS
from classwise.data.corruptions.base import Severity
from classwise.data.corruptions.corrupt import corrupt
from classwise.data.encoded import EncodedImages
from classwise.data.formats import FORMATS
from classwise.data.formats.base import EncodedFormat, Format
from classwise.data.images import Images
from classwise.data.maite import is_dataset
from classwise.data.rows import text_labels
from classwise.data.sets import DATA
from classwise.data.sets.base import DataSet
from classwise.data.splits import stratified_subset
from classwise.data.stream import Stream, as_data

logger = logging.getLogger(__name__)

CACHE = Path("~/.cache/classwise")
SYSTEM = Path("/usr/share/datasets")
TIMEOUT = 20
"""Timeout of a download, in seconds."""
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]+:\w+")
"""``package.module:Class``; not a path with the letter of a drive."""
LARGE_BYTES = 1 << 30
"""Size of decoded images above which `open_data` decodes them while they are used."""


@checked
def load_data(
    source: Any,
    *,
    split: str = "test",
    root: str | os.PathLike[str] | None = None,
    subset: Count | None = None,
    seed: Seed = 0,
    download: bool = True,
    data_format: str | None = None,
    **options: Any,
) -> Images:
    """Load a data set by name, from a file or folder, or from a data set object of another library.

    Named data sets are searched in ``root``, ``$CLASSWISE_DATA``, ``./data``, ``~/.cache/classwise`` and
    ``/usr/share/datasets``, in this order. If none has the data set, its files are downloaded to ``root``, else
    ``$CLASSWISE_DATA``, else ``~/.cache/classwise``, and verified by their hashes.

    Args:
        source: a name in `classwise.data.DATA`, an import path ``"package.module:Class"`` of a `DataSet`, or a path.
            A name takes precedence over a file of the same name; use ``./name`` for the file. Or an object: a Dataset
            or DataLoader of torch, torchvision or Hugging Face `datasets`, a data set of MAITE, an iterable of (x, y)
            or of dicts, or a pair of arrays. The import path may also be that of a data set of MAITE.
        split: "train" or "test"; for a folder, the name of a subfolder or file in it. Ignored for the path of a file
            with one split, and for an object that is not a dict of splits.
        root: a data directory that is searched first.
        subset: number of images of a stratified subset (`stratified_subset`); by default all.
        seed: seed of the subset.
        download: whether to download a named data set that is not found.
        data_format: a name in `classwise.data.FORMATS`; by default the format of a path is recognised.
        **options: options of the file format or of the named data set, such as ``label="fine_label"``, ``size=64`` or
            ``corruption="fog"``; for an object, those of `classwise.data.rows.Rows`.

    Returns:
        The images, on the CPU, uint8 if stored as uint8.

    Raises:
        ClasswiseError: for an unknown name, path, split, format or option, or an invalid file.

    Example:
        >>> import classwise as cw
        >>> cw.load_data("digits", split="test", subset=100)
        Images(digits test: 100 of 1x8x8, 10 classes, torch.uint8, cpu)
    """
    source = _imported(source)
    if not isinstance(source, (str, os.PathLike)):
        opened = _open_object(source, split, options)
        images = opened.load() if isinstance(opened, Stream) else opened
    else:
        found = _find(source, root, data_format, options)
        if subset is not None and (encoded := _encoded(found, split, root)) is not None:
            part = encoded.images(stratified_subset(encoded.y, subset, seed))  # only these are decoded
            return found.named(part, split) if isinstance(found, DataSet) else part
        if isinstance(found, DataSet):
            images = _load_named(found, split, root, download)
        else:
            images = found.format.read(found.path, split)
    return images if subset is None else images.take(stratified_subset(images.y, subset, seed))


@checked
def stream_data(
    source: Any,
    *,
    split: str = "test",
    root: str | os.PathLike[str] | None = None,
    workers: Count | None = None,
    data_format: str | None = None,
    **options: Any,
) -> Stream:
    """Open a folder of images, tar files in the layout of WebDataset, ImageNet, or a data set object as a `Stream`.

    Threads decode images while earlier ones are attacked. An audit holds one piece of the images in memory, and at most
    `classwise.data.encoded.AHEAD_BYTES` of images that wait. The order of the images does not depend on the workers.
    An object is read by its own workers, if it is a DataLoader.

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
    source = _imported(source)
    if not isinstance(source, (str, os.PathLike)):
        opened = _open_object(source, split, options)
        if isinstance(opened, Images):
            raise ClasswiseError(f"{opened.name} is in memory already; use load_data")
        return opened
    encoded = _encoded(_find(source, root, data_format, options), split, root)
    if encoded is None:
        raise ClasswiseError(
            f"the images of {os.fspath(source)!r} cannot be decoded one by one; use load_data, which reads all of them"
        )
    return encoded.stream(workers)


@checked
def open_data(
    source: str | os.PathLike[str],
    *,
    split: str = "test",
    root: str | os.PathLike[str] | None = None,
    subset: Count | None = None,
    seed: Seed = 0,
    download: bool = True,
    **options: Any,
) -> Images | Stream:
    """As `load_data`, but encoded images of more than `LARGE_BYTES` are opened as by `stream_data`.

    Args:
        source: as in `load_data`.
        split: as in `load_data`.
        root: as in `load_data`.
        subset: as in `load_data`; a subset is always loaded.
        seed: as in `load_data`.
        download: as in `load_data`.
        **options: as in `load_data`.

    Raises:
        ClasswiseError: as in `load_data`.
    """
    if subset is None and isinstance(_imported(source), (str, os.PathLike)):
        found = _find(source, root, None, options)
        encoded = _encoded(found, split, root)
        if encoded is not None and len(encoded) * math.prod(encoded.shape()) > LARGE_BYTES:
            stream = encoded.stream()
            logger.info("%s: %d images are decoded while they are used", stream.name, len(encoded))
            return stream
        if encoded is not None and isinstance(found, _Path):
            return encoded.images()
    return load_data(source, split=split, root=root, subset=subset, seed=seed, download=download, **options)


def _imported(source: Any) -> Any:
    """The data set of MAITE that an import path names; any other source unchanged."""
    is_import = isinstance(source, str) and source not in DATA and _IMPORT_PATH.fullmatch(source)
    if not is_import or Path(source).expanduser().exists():
        return source
    found = load_object(source, DATA.kind)
    return found if is_dataset(found) else source


def _open_object(source: Any, split: str, options: dict[str, Any]) -> Images | Stream:
    """A data set object, or its split if it is a dict of splits.

    Raises:
        ClasswiseError: for a split that it does not have, or as `as_data`.
    """
    if isinstance(source, Mapping) and source and not any(hasattr(value, "ndim") for value in source.values()):
        if split not in source:
            raise unknown("split", split, [str(key) for key in source])
        if "classes" not in options and (labels := text_labels(source, options.get("label"))):
            options = {**options, "classes": labels}
        return as_data(source[split], split=split, **options)
    own = getattr(source, "split", None)  # of Hugging Face or torchvision
    return as_data(source, split="" if own is None or callable(own) else str(own), **options)


@checked
def open_corrupted(
    source: str | os.PathLike[str] | Images, corruption: str, severity: Severity, **options: Any
) -> Images | Stream:
    """Open images under a corruption: those of a published set, or others with the corruption computed.

    Args:
        source: a name or path as in `load_data`, or images. ``cifar10-c``, ``cifar100-c``, ``imagenet-c`` and the
            folder ``CIFAR-10-C`` are published sets; images of other sources are corrupted by `corrupt`.
        corruption: name of the corruption.
        severity: 1 to 5.
        **options: as of `open_data`, for a name or path.

    Raises:
        ClasswiseError: as `open_data`, or for an unknown corruption or severity.
    """
    if isinstance(source, Images):
        return corrupt(source, corruption, severity)
    text, path = os.fspath(source), Path(source).expanduser()
    part: type | None = DATA.load(text) if text in DATA else None
    if part is None and path.exists():
        part = FORMATS.load(_recognise(path))
    if part is not None and "corruption" in options_of(part):
        return open_data(source, corruption=corruption, severity=severity, **options)
    if corruption not in CORRUPTIONS:
        raise unknown("corruption", corruption, CORRUPTIONS)
    return corrupt(load_data(source, **options), corruption, severity)


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
        if reason := limits.impossible_path(value):
            raise ClasswiseError(f"{what} {value[:60]!r}: {reason}")
    path = Path(text).expanduser()
    if text in DATA or (_IMPORT_PATH.fullmatch(text) and not path.exists()):
        if data_format is not None:
            raise ClasswiseError(f"data set {text!r} has no option 'data_format'; it applies to files and folders")
        return _named(text, options)
    if not path.exists():
        raise _missing(text, path)
    name = data_format or _recognise(path)
    return _Path(path, build(FORMATS.load(name), options, f"data format {name!r}"))


def _named(name: str, options: dict[str, Any]) -> DataSet:
    """A named data set with its options, such as the corruption of CIFAR-10-C."""
    found = DATA.load(name)
    known = options_of(found)
    other = next((option for option in options if option not in known), None)
    if other is not None:
        accepted = f"it has {', '.join(known)}" if known else "options apply to files and folders"
        raise ClasswiseError(f"data set {name!r} has no option {other!r}; {accepted}")
    return build(found, options, f"data set {name!r}") if known else found()


def options_of(part: type) -> list[str]:
    """The names of the options of a named data set or a file format."""
    return [field.name for field in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else []


def _missing(text: str, path: Path) -> ClasswiseError:
    """The error for a name or path that does not exist, with the nearest data set or path."""
    hint = did_you_mean(path)
    if text == path.name and not path.suffix and "\\" not in text:
        if not hint or difflib.get_close_matches(text, DATA, cutoff=0.5):
            return unknown("data set", text, DATA)
        return ClasswiseError(f"there is no data set or folder {text}{hint}")
    hint = hint or "; classwise data lists the named data sets"
    if "\\" in text and os.sep == "/":
        hint = "; on this system the folders of a path are separated by /"
    return ClasswiseError(f"there is no file or folder {text}{hint}")


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
    """The registered data set with the name, classes and shape of the images, which has their mean and usual threat.

    Of the name of corrupted images, such as ``cifar10-c, fog 3``, the part before the comma counts.
    """
    name = data.name.partition(", ")[0]
    named = DATA.load(name) if name in DATA else None
    return named if named and (named.class_names, named.shape) == (data.class_names, data.shape) else None


def _recognise(path: Path) -> str:
    """The name of the first format that accepts the path."""
    for name in FORMATS:
        if FORMATS.load(name)().accepts(path):
            return name
    raise ClasswiseError(f"{path}: unknown format; supported formats: {', '.join(FORMATS)}")
