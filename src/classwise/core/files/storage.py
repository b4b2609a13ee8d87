"""Atomic writes, and checksums that detect later damage.

A file is written under a temporary name in its folder, synced, and renamed (`replacing`). The writing process locks
its temporary file, so that a later start removes the files of ended processes only.

Checksums: every folder of a run or an audit has a ``checksums.txt`` with a line ``SHA-256  NAME`` for each version
of each file written there. The line is appended and synced *before* the rename, and a file is valid if any of its
lines matches. So files are valid after a kill at any moment: before the rename the old content matches its old line,
after it the new content matches the new line. Lines are only appended, under a lock, so that several processes can
write into one folder. A file without a line (of an older version, or copied elsewhere) is read unverified.

The list is also that of the files that exist: a digest of zeros is that of a file that was removed, and the name of a
folder in the folder of a result, with a slash, that of a folder with a list of its own.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import json
import os
import platform
import re
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, TypeVar, overload

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.errors import ClasswiseError
from classwise.core.files import ownership, reading
from classwise.core.files.destinations import check_stream, destination, is_stream, permissions, send
from classwise.core.files.json_values import json_text
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.settings import limits

CHECKSUMS = "checksums.txt"
"""The file in a folder that lists the checksums of the other files."""
REMOTE_SECONDS = 86_400.0
"""Age from which a temporary file of another machine, whose lock may not be visible here, counts as abandoned."""
_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8}\.)?[a-z0-9_]{8}\.tmp")
_LINE = re.compile(rb"([0-9a-f]{64})  ([^\n]+)")
_BEGUN = re.compile(rb"[0-9a-f]{0,64} {0,2}")
"""A line that a killed process has begun."""
_REMOVED = "0" * 64
"""In place of the digest of a file that was removed."""
_FOLDER = hashlib.sha256().hexdigest()
"""In place of the digest of a folder."""
_REFUSALS = (
    errno.EACCES,
    errno.EBADF,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
"""Errors of paths at which no file can be created."""

T = TypeVar("T")


@contextmanager
def replacing(path: str | os.PathLike[str], *, checksum: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to ``path``, else removed.

    A file with the same content is left unchanged, so that a repeated command changes no file. A symbolic link is
    followed, and its target is replaced. A replaced file keeps its permissions. Devices, FIFOs and
    open descriptors (``/dev/stdout``) are never replaced: on success the content is written to them.

    Args:
        path: the file to write.
        checksum: append the file's digest to the folder's ``checksums.txt``; always done if that file exists.

    Raises:
        ClasswiseError: if the disk is full, the file cannot be written, or another process now owns its folder;
            ``path`` is then unchanged. Also if ``path`` is a FIFO that no process reads.
        BrokenPipeError: if the reader of a stream closes it.
    """
    with _explained(Path(path)):
        place = destination(path)
    if not isinstance(place, Path) or is_stream(place):
        with tempfile.TemporaryDirectory() as folder, _explained(Path(path)):
            content = Path(folder) / "content"
            yield content
            send(content, place)
        return
    target = place
    temporary: Path | None = None
    handle, announced = -1, False
    try:
        with _explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = _locked_temporary(target)
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            digest = _digest(temporary) if checksum or (target.parent / CHECKSUMS).exists() else None
            ownership.check(target)
            listed = _listed(target) if digest is not None else None
            if _is_same(temporary, target) and (digest in listed if listed else not checksum):
                return
            if digest is not None:
                announced = True
                _append_checksum(target, digest)
            temporary.chmod(permissions(target))
            temporary.replace(target)
            _sync_folder(target.parent)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # a failing file system; the next start removes the file
                if announced:
                    _note_missing(target)
                temporary.unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check, before long work, that a file can be created at ``path``; remove stale temporary files of that name.

    Raises:
        ClasswiseError: as `replacing`, except for a FIFO that no process reads, which only opening it detects.
    """
    with _explained(Path(path)):
        target = destination(path)
        if not isinstance(target, Path) or is_stream(target):
            check_stream(target)
            return
    with _explained(target):
        folder = next((folder for folder in target.absolute().parents if folder.exists()), target)
        handle, temporary = _locked_temporary(folder / target.name)
        temporary.unlink()
        os.close(handle)
        for stale in folder.glob(f".{target.name}.*.tmp"):
            _remove_if_abandoned(stale)


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Translate an `OSError` of writing a file into a `ClasswiseError`.

    Raises:
        ClasswiseError: with the file, the reason of the system, and a suggestion.
        BrokenPipeError: unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BrokenPipeError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ClasswiseError(
                f"no space left on the disk while writing {target}; free some and run again"
            ) from error
        if error.errno == errno.ENXIO:
            raise ClasswiseError(f"cannot write {target}: no process reads from it; start its reader first") from error
        if error.errno in _REFUSALS:
            raise ClasswiseError(f"cannot write {target}: {os.strerror(error.errno)}; give another path") from error
        advice = "check the disk and run again, or give another path"
        raise ClasswiseError(f"cannot write {target}: {os.strerror(error.errno)}; {advice}") from error


def write_bytes(path: str | os.PathLike[str], content: bytes | memoryview, *, checksum: bool = False) -> None:
    """Write a file atomically.

    Raises:
        ClasswiseError: as `replacing` does.
    """
    with replacing(path, checksum=checksum) as temporary, open(temporary, "wb") as file:
        file.write(content)


def write_text(path: str | os.PathLike[str], text: str, *, checksum: bool = False) -> None:
    """Write a text file atomically.

    Raises:
        ClasswiseError: as `replacing` does.
    """
    write_bytes(path, text.encode(), checksum=checksum)


def write_json(
    path: str | os.PathLike[str],
    value: Any,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    checksum: bool = False,
) -> None:
    """Write a JSON file atomically; see `classwise.core.files.json_values` for NaN and infinities.

    Raises:
        ClasswiseError: as `replacing` does.
    """
    write_text(path, json_text(value, indent=indent, ensure_ascii=ensure_ascii) + "\n", checksum=checksum)


# Temporary files


def is_unused(folder: Path, early: Sequence[str] = (), *, beside: Sequence[str] = ()) -> bool:
    """Whether a folder is missing, empty, or contains only files of a process that was killed at its start.

    Args:
        folder: the folder.
        early: names of files written before the file that marks the folder as used; ignored if they have a checksum.
        beside: names of subfolders that are ignored.
    """
    if folder.exists() and not folder.is_dir():  # in this order: another process may create it in between
        return False
    listed = _digests(folder)
    return all(
        _TEMPORARY.fullmatch(entry.name)
        or entry.name in (CHECKSUMS, *beside)
        or (entry.name in early and entry.name in listed)
        for entry in ownership.contents(folder)
    )


def remove_stale_temporaries(folder: Path) -> None:
    """Remove the temporary files of ended processes in a folder and its subfolders.

    Locked files are not removed, since a running process writes them. Neither are recent files of another machine,
    because some network file systems do not share locks.
    """
    for path in folder.rglob(".*.tmp"):
        if _TEMPORARY.fullmatch(path.name):
            _remove_if_abandoned(path)


def _locked_temporary(target: Path) -> tuple[int, Path]:
    """Create and lock a temporary file for a target; returns its descriptor and its path."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.{_HOST}.", suffix=".tmp", dir=target.parent)
        with contextlib.suppress(OSError):  # on a file system without locks no process removes the file
            ownership.lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # another process removed it between its creation and the lock


def _remove_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):  # in use, removed by another process, or no permission
        handle = os.open(path, os.O_RDWR)
        try:
            age = time.time() - os.fstat(handle).st_mtime
            if f".{_HOST}." in path.name or age > REMOTE_SECONDS:
                ownership.lock(handle)
                _note_missing(path.with_name(_target_name(path)))
                path.unlink()
        finally:
            os.close(handle)


def _target_name(temporary: Path) -> str:
    """The name of the file that a temporary file becomes."""
    name = temporary.name[1:].removesuffix(".tmp").rpartition(".")[0]
    return name.removesuffix(f".{_HOST}")


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, if the file system supports syncing a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# Checksums


def verify(path: str | os.PathLike[str], advice: str = "") -> None:
    """Check a regular file against the checksums of its folder; a file that is missing or has no checksum passes.

    Args:
        path: the file.
        advice: the suggestion in the message for a damaged file.

    Raises:
        ClasswiseError: if the file has checksums and matches none of them, cannot be read, or is not a regular file.
    """
    try:
        reading.check_regular(path)
        valid = matches(path)
    except OSError as error:
        raise ClasswiseError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    if valid is False:
        advice = advice or f"restore it from a copy, or delete its lines in {CHECKSUMS} to read it unverified"
        raise ClasswiseError(f"{os.fspath(path)} is damaged: its SHA-256 is not in {CHECKSUMS}; {advice}")


def matches(path: str | os.PathLike[str]) -> bool | None:
    """Whether a file matches one of the digests listed for it; None if none is listed or the file does not exist.

    Raises:
        OSError: if the file or its checksums cannot be read.
    """
    file = Path(os.path.realpath(path))
    if not (file.parent / CHECKSUMS).exists() or not file.exists():
        return None
    digest = _digest(file)  # first, because another process lists a new digest before it renames the file
    listed = _listed(file)
    return digest in listed if listed else None


class CheckedFiles(NamedTuple):
    """The files of a folder and its subfolders, each group in sorted order.

    Attributes:
        valid: files that match a digest of theirs.
        damaged: files that match none, and what is no regular file in the place of one.
        missing: files and folders that are listed and do not exist; of a folder, its list.
        unverified: files that are not listed.
    """

    valid: list[Path]
    damaged: list[Path]
    missing: list[Path]
    unverified: list[Path]


def check_files(folder: Path) -> CheckedFiles:
    """Check the files in a folder and its subfolders against their checksums and against the lists of files.

    Raises:
        ClasswiseError: if the folder does not exist, or a file cannot be read.
    """
    if not folder.is_dir():
        raise ClasswiseError(f"there is no folder {folder}; give the folder of a run or an audit")
    found = CheckedFiles([], [], [], [])
    try:
        lists = [path for path in sorted(folder.rglob(CHECKSUMS)) if path.exists()]
        listed = {place.parent / name for place in lists for name in _existing(place.parent)}
        for path in sorted({*folder.rglob("*"), *listed}):
            if path in listed and not path.exists():
                if not any(
                    _TEMPORARY.fullmatch(file.name) for file in path.parent.glob(f".{glob.escape(path.name)}.*")
                ):
                    found.missing.append(path)  # else its writer was killed before the rename
            elif path in listed and not path.is_file():
                found.damaged.append(path)
            elif path.is_file() and path.name != CHECKSUMS and not _TEMPORARY.fullmatch(path.name):
                {True: found.valid, False: found.damaged, None: found.unverified}[matches(path)].append(path)
    except OSError as error:
        raise ClasswiseError(f"cannot read {error.filename}: {error.strerror}") from error
    return found


def _existing(folder: Path) -> Iterator[str]:
    """The names of the files that the list of a folder has and that were not removed; of a folder, that of its list."""
    for name, digests in _digests(folder).items():
        if digests[-1] != _REMOVED:
            yield f"{name}{CHECKSUMS}" if name.endswith("/") else name


def note_missing_files(folder: Path) -> None:
    """Note in the list of a folder that the files that somebody has removed are not missing, before they are replaced.

    Advice in error messages is to remove damaged files, and to resume what has written them.
    """
    for name in [*_existing(folder)]:
        _note_missing(folder / name)


def _note_missing(path: Path) -> None:
    if not path.exists() and path.name in {*_existing(path.parent)}:
        _append_checksum(path, _REMOVED)


def remove(path: Path) -> None:
    """Remove a file, and note in the list of its folder that it is not missing."""
    if path.name in _digests(path.parent):
        _append_checksum(path, _REMOVED)
    path.unlink(missing_ok=True)  # another process may have removed it


def note_removal(folder: Path) -> None:
    """Note, before a folder is removed, in the list of the result that it belongs to that it is not missing."""
    above = _result_of(folder)
    if above is not None and (name := _name_in(above, folder)) in _digests(above):
        _append_line(above, _REMOVED, name)


def _note_folder(folder: Path) -> None:
    """Note a folder with checksums in the list of the result that it belongs to."""
    above = _result_of(folder)
    if above is not None and _digests(above).get(name := _name_in(above, folder), (_REMOVED,))[-1] == _REMOVED:
        try:
            _append_line(above, _FOLDER, name, durable=False)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # not of a read-only folder
                raise


def _result_of(folder: Path) -> Path | None:
    """The folder of a result that a subfolder belongs to: the one above it or above that, if its marker is listed."""
    above = (place for place in folder.parents[:2] if not {*MARKERS.values()}.isdisjoint(_digests(place)))
    return next(above, None)


def _name_in(above: Path, folder: Path) -> str:
    return f"{folder.relative_to(above).as_posix()}/"


@overload
def read_json(path: Path, advice: str = "", kind: None = None, *, limit: int = ...) -> dict[str, Any]: ...
@overload
def read_json(path: Path, advice: str = "", *, kind: type[T], limit: int = ...) -> T: ...
def read_json(
    path: Path, advice: str = "", kind: type[T] | None = None, *, limit: int = limits.TEXT_BYTES
) -> T | dict[str, Any]:
    """Read a JSON object and check it against its checksum and a type.

    Args:
        path: the file.
        advice: the suggestion in the message for a damaged file.
        kind: a `TypedDict` of its keys, or a dataclass; None: any JSON object.
        limit: the largest size in bytes.

    Raises:
        ClasswiseError: if the file is missing or damaged, larger, not a regular file, or of another type, which names
            the key.
    """
    content = reading.read_bytes(path, limit)
    verify(path, advice)
    try:
        value = reading.parse_json(content)
    except ValueError as error:
        raise reading.damaged(str(path), "not JSON", advice) from error
    if not isinstance(value, dict):
        raise reading.damaged(str(path), "not a JSON object", advice)
    return value if kind is None else reading.fitting(kind, value, str(path), advice)


def _is_same(path: Path, other: Path) -> bool:
    """Whether two files have the same content."""
    try:
        return other.is_file() and path.stat().st_size == other.stat().st_size and _digest(path) == _digest(other)
    except OSError:  # a file that may be replaced, but not read
        return False


def _listed(path: Path) -> tuple[str, ...]:
    """The digests listed for a file in its folder."""
    return _digests(path.parent).get(path.name, ())


def _digest(path: Path) -> str:
    with reading.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _append_checksum(target: Path, digest: str) -> None:
    """Append the line of a file that will be renamed to ``target``."""
    if not _append_line(target.parent, digest, target.name):
        _note_folder(target.parent)


def _append_line(folder: Path, digest: str, name: str, *, durable: bool = True) -> int:
    """Append a line to the list of a folder, and sync it if it must be ``durable``; returns the size before."""
    reading.check_regular(folder / CHECKSUMS)
    handle = os.open(folder / CHECKSUMS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(OSError):  # without locks, one write call still appends on local file systems
            ownership.lock(handle, wait=True)
        size = os.fstat(handle).st_size
        os.lseek(handle, max(size - 1, 0), os.SEEK_SET)
        truncated = size > 0 and os.read(handle, 1) != b"\n"  # the last line of a process that was killed
        line = b"\n" * truncated + f"{digest}  ".encode() + os.fsencode(name) + b"\n"
        while line:
            line = line[os.write(handle, line) :]
        if durable:
            os.fsync(handle)
        return size
    finally:
        os.close(handle)


def _digests(folder: Path) -> Mapping[str, tuple[str, ...]]:
    """The digests listed for each file in a folder, in order."""
    file = folder / CHECKSUMS
    if not file.exists():
        return {}
    status = file.stat()
    return _parsed(str(file), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _parsed(file: str, size: int, changed: int) -> Mapping[str, tuple[str, ...]]:
    """Parse a checksum file; its size and modification time are keys of the cache.

    Raises:
        ClasswiseError: if it is damaged.
    """
    del size, changed
    parsed: dict[str, list[str]] = {}
    *lines, last = reading.read_bytes(file).split(b"\n")
    for number, line in enumerate([*lines, last], 1):
        if (match := _LINE.fullmatch(line)) is not None and number <= len(lines):
            parsed.setdefault(os.fsdecode(match[2]), []).append(match[1].decode())
        elif match is None and not _BEGUN.fullmatch(line):
            raise ClasswiseError(
                f"{file} is damaged: line {number} is not a SHA-256 and a file name; restore it from a copy, or delete "
                "it to read the files unverified"
            )
    return {name: tuple(digests) for name, digests in parsed.items()}


# Folders of results


class Marker(TypedDict):
    """What every marker of a folder has."""

    schema_version: int
    settings: NotRequired[dict[str, Any]]
    kind: NotRequired[str]


MARKERS: Mapping[str, str] = {
    "run": "recipe.yaml",
    "audit": "audit.json",
    "curve": "search.json",
    "worst-class search": "search.json",
    "store": "store.json",
}
"""The file that marks a folder of each kind."""


@dataclass(frozen=True)
class ResultFolder:
    """The folder of a result, or of an evaluation that computes one: one owner, one marker, and one set of settings.

    The marker is a JSON file (of a run, its recipe). It has the ``schema_version``, the ``kind``, the ``settings``,
    which decide the result and which a resumed evaluation must equal, and further entries.

    Args:
        path: the folder.
        kind: a key of `MARKERS`, also the noun in error messages.

    Example:
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = ResultFolder(Path(name) / "a", "audit")
        ...     with folder.claimed({"seed": 0}, resume=False) as resumed:
        ...         resumed, folder.read()["settings"]
        (False, {'seed': 0})
    """

    path: Path
    kind: str

    @property
    def marker(self) -> Path:
        """The file that marks the folder."""
        return self.path / MARKERS[self.kind]

    def check(self, *files: str) -> None:
        """Check, before data are read, that files can be written into the folder.

        Args:
            files: their names, beside the marker.

        Raises:
            ClasswiseError: if the folder is a file, or a file in it cannot be written.
        """
        self._check_no_file()
        for file in (self.marker.name, *files):
            check_writable(self.path / file)

    def check_unused(self, early: Sequence[str] = (), *, beside: Sequence[str] = ()) -> None:
        """Check that the folder is new (`is_unused`).

        Raises:
            ClasswiseError: if it is a file, or has other contents.
        """
        self._check_no_file()
        if not is_unused(self.path, early, beside=beside):
            raise ClasswiseError(f"{self.path} is not empty and contains no {self.kind}; give a new folder")

    def _check_no_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ClasswiseError(f"{self.path} is a file; give a folder for the {self.kind}")

    @contextmanager
    def claimed(
        self,
        settings: Mapping[str, Any],
        *,
        resume: bool,
        beside: Sequence[str] = (),
        options: Mapping[str, str] = MappingProxyType({}),
        inherited: Sequence[str] = (),
        **entries: Any,
    ) -> Iterator[bool]:
        """Own the folder for the duration of the block; mark it, or check that it contains this evaluation.

        Args:
            settings: every setting that decides the result, as JSON values.
            resume: whether the folder may contain this evaluation already.
            beside: names of subfolders that a new folder may contain.
            options: the options of the command line that decide settings, for messages.
            inherited: settings that a resumed evaluation takes from the folder if they are not given, for messages.
            **entries: further entries of the marker of a new folder.

        Yields:
            Whether the folder already contained this evaluation.

        Raises:
            ClasswiseError: if another process owns the folder, or it contains something else, an evaluation with other
                settings (naming the setting that differs), or this evaluation although ``resume`` is false.
        """
        with ownership.owned(self.path):
            remove_stale_temporaries(self.path)
            resumed = self.marker.is_file()
            if resumed:
                self._check_same(settings, options, inherited, resume=resume)
            else:
                self.check_unused(beside=beside)
                self.write(settings=settings, **entries)
            yield resumed

    def _check_same(
        self, settings: Mapping[str, Any], options: Mapping[str, str], inherited: Sequence[str], *, resume: bool
    ) -> None:
        whole = {"shard": None, **settings}  # a shard is not the whole
        recorded = self.read()["settings"]
        if differs := difference(recorded, whole, options):
            article = "an" if self.kind[0] in "aeiou" else "a"
            advice = "give another --out, or --resume with the same settings"
            omitted = [options.get(name, name) for name in inherited if recorded.get(name) != whole.get(name)]
            if omitted and not resume:
                advice = f"{advice}, of which {' and '.join(omitted)} may be omitted"
            raise ClasswiseError(f"{self.path} contains {article} {self.kind} with other settings: {differs}; {advice}")
        if not resume:
            advice = f"add --resume, which loads a finished {self.kind} or continues it; or give another --out"
            raise ClasswiseError(f"{self.path} already contains this {self.kind} with these settings: {advice}")

    def read(self, kind: type[Any] = Marker) -> dict[str, Any]:
        """Read the marker, as JSON values.

        Args:
            kind: a `TypedDict` of its entries, derived from `Marker`, which they are checked against.

        Raises:
            ClasswiseError: if it is missing or damaged, has another schema version, or is of another kind.
        """
        advice = f"start the {self.kind} again in another folder"
        marker = read_json(self.marker, advice, kind=Marker)
        check_schema_version(marker["schema_version"], SCHEMA_VERSIONS[self.kind], str(self.path))
        if (found := marker.get("kind", self.kind)) != self.kind:
            raise ClasswiseError(f"{self.path} is the folder of a {found}, not of a {self.kind}; give another folder")
        content: dict[str, Any] = {"settings": {}, "kind": self.kind, **marker}
        reading.fitting(kind, content, str(self.marker), advice)
        return content

    def write(self, **entries: Any) -> None:
        """Replace the marker atomically."""
        content = {"schema_version": SCHEMA_VERSIONS[self.kind], "kind": self.kind, **entries}
        write_json(self.marker, content, indent=2, checksum=True)
        for pattern in (f"*/{CHECKSUMS}", f"*/*/{CHECKSUMS}"):  # folders that were written before the marker
            for file in sorted(self.path.glob(pattern)):
                _note_folder(file.parent)


def difference(before: Mapping[str, Any], settings: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """The first of these settings that was another one before, in words, with its option; empty if none was."""
    for key, value in settings.items():
        if before.get(key) != value:
            return _changed_value(key, before.get(key), value) + (f" ({options[key]})" if key in options else "")
    return ""


def _changed_value(key: str, was: Any, now: Any) -> str:
    """The first difference between two values of a setting; of mappings, in their keys, then within a value."""
    if isinstance(was, dict) and isinstance(now, dict):
        if was.keys() != now.keys():
            return f"{key} was {', '.join(was) or 'none'}, now {', '.join(now) or 'none'}"
        within = next(name for name in now if was[name] != now[name])
        return _changed_value(f"{key}.{within}", was[within], now[within])
    before, after = (textwrap.shorten(json.dumps(value), 80, placeholder=" ...") for value in (was, now))
    changed = f"{key} was {before}, now {after}"
    identified = {"data_hash": "other images", "model_hash": "another model, or another normalisation of it"}.get(key)
    return f"{identified} ({changed})" if identified else changed
