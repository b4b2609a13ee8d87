"""`load_data`: a name or a path to images in memory."""

from __future__ import annotations

import logging
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from classwise.core.config import build
from classwise.core.errors import ClasswiseError, unknown
from classwise.data.formats import FORMATS
from classwise.data.images import Images
from classwise.data.sets import DATA
from classwise.data.sets.base import DataSet
from classwise.data.splits import stratified_subset

logger = logging.getLogger(__name__)

CACHE = Path("~/.cache/classwise")
SYSTEM = Path("/usr/share/datasets")
TIMEOUT = 20
"""Seconds without an answer after which a download is given up."""


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
    """Load a data set by name, or from a file or folder whose format is recognised.

    A named set is looked for in ``root``, ``$CLASSWISE_DATA``, ``./data``, ``~/.cache/classwise`` and
    ``/usr/share/datasets``, in this order; if it is in none of them, its files are fetched into the first of ``root``,
    ``$CLASSWISE_DATA`` and ``~/.cache/classwise`` that was given, and checked against their known hashes.

    Args:
        source: a name (see `classwise.data.DATA`), ``"package.module:Class"`` of a `DataSet` of your own, or a path.
            A name wins over a file of the same name; write ``./name`` for the file.
        split: "train" or "test"; of a folder, the subfolder or the file of that name. A path of one file is that
            file whatever the split.
        root: a data directory, looked at first.
        subset: if given, only so many images, classes in proportion (`stratified_subset`).
        seed: which subset.
        download: whether to fetch a named set that is not there.
        data_format: the format of a path (see `classwise.data.FORMATS`), where it should not be recognised.
        **options: options of the file format, such as ``label="fine_label"`` or ``size=64``.

    Returns:
        The images, on the CPU, uint8 where they are stored so.

    Raises:
        ClasswiseError: if the name, path, split, format or option is not known, or a file is not as it should be.

    Example:
        >>> import classwise as cw
        >>> cw.load_data("digits", split="test", subset=100)
        Images(digits test: 100 of 1x8x8, 10 classes, torch.uint8, cpu)
    """
    text = os.fspath(source)
    for what, given in (("data", text), ("root", "" if root is None else os.fspath(root))):
        if "\0" in given:
            raise ClasswiseError(f"{what} {given!r}: a path has no NUL character")
    path = Path(text).expanduser()
    if text in DATA or (":" in text and not path.exists()):
        if data_format is not None or options:
            given = "data_format" if data_format is not None else next(iter(options))
            raise ClasswiseError(f"data set {text!r} takes no option {given!r}; options are for files and folders")
        images = _load_named(DATA.load(text)(), split, root, download)
    else:
        if not path.exists():
            named = text == path.name and not path.suffix
            raise unknown("data set", text, DATA) if named else ClasswiseError(f"there is no file or folder {text}")
        images = _load_path(path, split, data_format, options)
    return images if subset is None else images.take(stratified_subset(images.y, subset, seed))


def data_directories(root: str | os.PathLike[str] | None = None) -> list[Path]:
    """Where named sets are looked for, in order."""
    given = [Path(place) for place in (root, os.environ.get("CLASSWISE_DATA")) if place]
    return [place.expanduser() for place in (*given, Path("data"), CACHE, SYSTEM)]


def _load_named(known: DataSet, split: str, root: str | os.PathLike[str] | None, download: bool) -> Images:
    if split not in known.splits:
        raise unknown(f"split of {known.name}", split, known.splits)
    places = data_directories(root)
    for place in places:
        images = known.read(place, split)
        if images is not None:
            if known.remote:
                logger.info("%s (%s) read from %s", known.name, split, place)
            return images
    looked = f"{known.name} ({split}) is not in {', '.join(str(place) for place in places)}"
    if not download or not known.remote:
        raise ClasswiseError(f"{looked}; put its files into one of them, or set CLASSWISE_DATA to their folder")
    target = Path(root or os.environ.get("CLASSWISE_DATA") or CACHE).expanduser()
    _fetch(known, target, looked)
    images = known.read(target, split)
    if images is None:
        raise ClasswiseError(f"{looked}, and the files fetched into {target} do not hold it")
    return images


def _fetch(known: DataSet, target: Path, looked: str) -> None:
    """Download every file of the set; nothing is left half-written."""
    import pooch

    folder = target / known.folder
    for remote in known.remote:
        logger.warning("%s; fetching %s into %s", looked, remote.url, folder)
        try:
            path = pooch.retrieve(
                remote.url,
                known_hash=remote.digest,
                fname=remote.file_name,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
            )
        except (OSError, ValueError) as error:  # no network, no permission, another hash
            fault = "its content is not the known one" if isinstance(error, ValueError) else type(error).__name__
            reason = f"{remote.url} could not be fetched ({fault})"
            raise ClasswiseError(
                f"{looked}, and {reason}; get it elsewhere and set CLASSWISE_DATA to its folder"
            ) from error
        if remote.file_name.endswith(".tar.gz"):
            _unpack(Path(path), folder)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive so that its folders appear whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as temporary:
        with tarfile.open(archive) as content:
            content.extractall(temporary, filter="data")
        for item in Path(temporary).iterdir():
            item.rename(folder / item.name)


def named_set(data: Images) -> type[DataSet] | None:
    """The known data set that the images belong to, by name, classes and shape; it has their mean and usual threat."""
    known = DATA.load(data.name) if data.name in DATA else None
    return known if known and (known.class_names, known.shape) == (data.class_names, data.shape) else None


def _load_path(path: Path, split: str, data_format: str | None, options: dict[str, Any]) -> Images:
    name = data_format or _recognise(path)
    return build(FORMATS.load(name), options, f"data format {name!r}").read(path, split)


def _recognise(path: Path) -> str:
    """The name of the first format that accepts the path."""
    for name in FORMATS:
        if FORMATS.load(name)().accepts(path):
            return name
    raise ClasswiseError(f"{path} is in no known format; known: {', '.join(FORMATS)}")
