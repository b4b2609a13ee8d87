"""Commands with little memory, folders that cannot be written, and without shared memory.

What succeeds gives the numbers of usual surroundings. Folders that cannot be written even by root are mounts in a
namespace of the case's process, so those cases exist for root on Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.case import CLEAN_AUDIT, QUICK, Case, Shared

DONE, EITHER = frozenset({0}), frozenset({0, 2, 3})
LITTLE = EITHER | {-signal.SIGSEGV, -signal.SIGABRT}
"""Libraries in C may end the process where memory lacks."""
INPUTS = ("preactresnet18", "--weights=@trained", "--data=digits", "--subset=100", "--json")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "audit": ("audit", *INPUTS, "--threat=Linf:0.05", "--attack=pgd:steps=2"),
    "audit without gradients": ("audit", *INPUTS, "--threat=Linf:0.05", "--attack=square:steps=4"),
    "curve": ("curve", *INPUTS, "--threat=Linf:0.1", "--attack=fgsm", "--rounds=2"),
    "worst class": ("worst-class", *INPUTS, "--threat=Linf:0.05", "--attack=fgsm", "--attack=pgd:steps=2"),
    "corruptions": ("corruptions", *INPUTS, "--corruption=fog", "--severity=1"),
}
"""Commands that print JSON, without their output folder."""
MEBIBYTES = (0, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Memory above what the process has mapped."""
SWEEP = (
    b"recipes: [at]\nbudgets: [short]\ndata: [digits]\nset:\n"
    + b"".join(
        b"  %s: %s\n" % tuple(part.encode() for part in word.removeprefix("--set=").split("=", 1))
        for word in QUICK
        if word.startswith("--set=")
    )
    + b"  epochs: 1\nseeds: [0]\n"
)
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_NEW_NAMESPACE, _READ_ONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18


@contextlib.contextmanager
def limited(mebibytes: int) -> Iterator[None]:
    """Limit the address space of this process."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + mebibytes * 2**20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def mount(source: str, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Call mount(2)."""
    arguments = (None if text is None else text.encode() for text in (source, place, kind))
    if _LIBRARY.mount(*arguments, flags, None if options is None else options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount {place}")


@contextlib.contextmanager
def mounted(*setups: Callable[[], object], **variables: str) -> Iterator[None]:
    """A namespace of mounts of this process, which lasts until it ends, and environment variables."""
    if _LIBRARY.unshare(_NEW_NAMESPACE):
        raise OSError(ctypes.get_errno(), "cannot make a namespace")
    mount("none", "/", None, _REC | _PRIVATE)
    for setup in setups:
        setup()
    os.environ.update(variables)
    yield


def read_only(name: str) -> None:
    """Make a folder of the case read-only, with its content."""
    Path(name).mkdir(parents=True, exist_ok=True)
    mount(name, name, None, _BIND)
    mount(name, name, None, _REMOUNT | _BIND | _READ_ONLY)


def full(name: str) -> None:
    """Put a full file system in place of a folder."""
    Path(name).mkdir(parents=True, exist_ok=True)
    mount("none", str(Path(name).resolve()), "tmpfs", 0, "size=4k")
    with contextlib.suppress(OSError):
        (Path(name) / "filling").write_bytes(bytes(1 << 20))


def without_inodes(name: str) -> None:
    """Put a file system without a free inode in place of a folder."""
    Path(name).mkdir(parents=True, exist_ok=True)
    mount("none", str(Path(name).resolve()), "tmpfs", 0, "nr_inodes=1")


def without_shared_memory() -> None:
    """Hide everything in /dev but the usual devices."""
    mount("none", "/dev", "tmpfs", 0)
    for number, name in ((3, "null"), (5, "zero"), (7, "full"), (8, "random"), (9, "urandom")):
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(1, number))


CACHED = ("audit", "@run", "--subset=40", "--json", "--attack=fgsm")


def filled(shared: Shared) -> None:
    """Load an audit from a cache that is made read-only once it has the audit."""
    import classwise as cw

    images = cw.load_data("digits", split="test", subset=40)
    model = cw.load_model("preactresnet18", weights=shared.trained, num_classes=10, in_channels=1)
    settings: dict[str, Any] = {"attacks": "fgsm", "guards": "off", "cache": "runs/cache"}
    first = cw.audit(model, images, "Linf:0.05", **settings)
    with mounted(functools.partial(read_only, "runs/cache")):
        second = cw.audit(model, images, "Linf:0.05", **settings)
    if first.by_class["fgsm"].tolist() != second.by_class["fgsm"].tolist():
        raise RuntimeError("other accuracies than were saved")


STATES: Mapping[str, Callable[[str], None]] = {
    "read-only": read_only,
    "full": full,
    "without inodes": without_inodes,
}
"""What makes a folder impossible to write."""
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "home": ("HOME",),
    "cache of matplotlib": ("MPLCONFIGDIR",),
    "cache of the user": ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    "cache of torch": ("TORCH_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR"),
    "data": ("CLASSWISE_DATA",),
}
"""Folders that no result needs, by the variables that name them."""
DEVICES: Mapping[str, Callable[[], None]] = {
    "missing": without_shared_memory,
    "read-only": lambda: read_only("/dev/shm"),
    "full": lambda: full("/dev/shm"),
    "without inodes": lambda: without_inodes("/dev/shm"),
}
"""States of the shared memory."""


def loaded(workers: int, batch: int) -> Callable[[Shared], object]:
    """Audit a loader whose processes share memory with this one."""

    def call(shared: Shared) -> None:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import classwise as cw

        images = cw.load_data("digits", split="test", subset=100)
        model = cw.load_model("preactresnet18", weights=shared.trained, num_classes=10, in_channels=1)
        loader: Any = DataLoader(TensorDataset(images.pixels(), images.y), batch, num_workers=workers)
        settings: dict[str, Any] = {"attacks": "fgsm", "guards": "off"}
        sys.unraisablehook = lambda _: None  # torch prints the end of a loader that could not start
        found = cw.audit(model, loader, "Linf:0.05", **settings)
        wanted = cw.audit(model, images, "Linf:0.05", **settings)
        if not torch.equal(*(torch.tensor(audit.by_class["fgsm"].to_numpy()) for audit in (found, wanted))):
            raise RuntimeError("other accuracies than of the images in memory")

    return call


def cases(random: Random) -> Iterator[Case]:
    """Every command in every state."""
    del random
    for name, words in COMMANDS.items():
        for mebibytes in MEBIBYTES:
            around = functools.partial(limited, mebibytes)
            text = f"{mebibytes} MiB of memory: {name}"
            yield Case(text, (*words, "--out=out"), {}, LITTLE, words, around=around, heavy=True)
    if os.geteuid() or sys.platform != "linux":
        return
    yield from in_mounts()


def in_mounts() -> Iterator[Case]:
    """The cases whose folders are mounts."""

    def around(*setups: Callable[[], object], **variables: str) -> Callable[[], AbstractContextManager[object]]:
        return functools.partial(mounted, *setups, **variables)

    for state, make in STATES.items():
        broken = functools.partial(make, "runs")
        for folder, names in FOLDERS.items():
            for command in ("audit", "curve", "corruptions"):
                words, variables = COMMANDS[command], dict.fromkeys(names, "runs")
                yield Case(f"{folder} {state}: {command}", (*words, "--out=out"), {}, DONE, words,
                           around=around(broken, **variables), heavy=True)  # fmt: skip
        for name, words in {
            "cache": (*CACHED, "--cache=runs"),
            "out": (*CLEAN_AUDIT, "--out=runs/out"),
            "html": (*CLEAN_AUDIT, "--out=out", "--html=runs/page.html"),
            "curve": (*COMMANDS["curve"], "--out=runs/out"),
            "corruptions": (*COMMANDS["corruptions"], "--out=runs/out"),
            "worst class": (*COMMANDS["worst class"], "--out=runs/out"),
            "training": ("train", "at", "--budget=short", "--data=digits", "--out=runs/out", *QUICK),
            "sweep": ("sweep", "run", "plan.yaml", "--out=runs/out"),
            "report": ("report", "@audit", "--out=runs/page.html"),
            "viewer": ("view", "@audit", "--out=runs/site"),
            "board": ("board", "@audit", "--out=runs/board"),
            "export": ("report", "@audit", "--out=out/page.html", "--export=csv", "--files=runs/files"),
        }.items():
            files = {"plan.yaml": SWEEP}
            yield Case(f"written into a folder that is {state}: {name}", words, files, frozenset({2}),
                       around=around(broken), heavy=True)  # fmt: skip
        yield Case(f"temporary files {state}", (*CLEAN_AUDIT, "--out=out"), {}, EITHER, CLEAN_AUDIT,
                   around=around(broken, TMPDIR="runs"), heavy=True)  # fmt: skip
    for name, words in {
        "shards": (*CLEAN_AUDIT, "--out=out", "--shards=2", "--on=local"),
        "sweep": ("sweep", "run", "plan.yaml", "--out=out"),
    }.items():
        yield Case(f"shared memory missing: {name}", words, {"plan.yaml": SWEEP}, DONE,
                   around=around(without_shared_memory), heavy=True)  # fmt: skip
    yield Case("a cache that has the audit and is read-only", ("python",), {}, DONE, call=filled, heavy=True)
    for state, break_it in DEVICES.items():
        for name, words in COMMANDS.items():
            yield Case(f"shared memory {state}: {name}", (*words, "--out=out"), {}, DONE, words,
                       around=around(break_it), heavy=True)  # fmt: skip
        for name, words in {
            "report": ("report", "@audit", "--out=out/page.html"),
            "training": ("train", "at", "--budget=short", "--data=digits", "--out=out", *QUICK),
        }.items():
            yield Case(f"shared memory {state}: {name}", words, {}, DONE, around=around(break_it), heavy=True)
        for workers, batch in ((0, 20), (1, 20), (2, 50)):
            yield Case(f"shared memory {state}: a loader with {workers} workers", ("python",), {},
                       DONE if not workers else EITHER | {4}, call=loaded(workers, batch),
                       around=around(break_it), heavy=True)  # fmt: skip
