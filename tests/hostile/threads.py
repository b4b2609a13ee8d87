"""Commands in a program whose other threads use torch, numpy and classwise meanwhile: nobody is disturbed."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from random import Random

from tests.hostile.ambient import COMMANDS
from tests.hostile.case import Case

Work = Callable[[], Callable[[], object]]
"""Prepares some work of a thread, which then runs it again and again; it raises if its results change."""


def inference() -> Callable[[], object]:
    """Passes of another network."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    model, x = nn.Sequential(*layers).eval(), torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        expected = model(x)

    def work() -> None:
        with torch.no_grad():
            torch.testing.assert_close(model(x), expected)
        assert model(x).requires_grad

    return work


def training() -> Callable[[], object]:
    """Steps of an optimiser."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.rand(4, 8)), torch.zeros(4, dtype=torch.long)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert model.training

    return work


def copies() -> Callable[[], object]:
    """Copies, and new modules with parameters."""
    from torch import nn

    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU())
    return lambda: copy.deepcopy(model)(nn.Parameter(layer.weight.detach().clone()))


def settings() -> Callable[[], object]:
    """Reads settings of the process, which no command with its defaults changes."""
    import torch

    def found() -> tuple[object, ...]:
        flags = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()
        return *flags, torch.get_num_threads(), torch.nn.Module.__call__, torch.is_grad_enabled()

    expected = found()

    def work() -> None:
        assert found() == expected

    return work


def warning() -> Callable[[], object]:
    """Warnings, which are shown."""

    def work() -> None:
        warnings.warn_explicit("an autograd kernel was not registered", UserWarning, "elsewhere.py", 1, registry={})

    return work


def audits() -> Callable[[], object]:
    """Audits of another model."""
    import torch
    from torch import nn

    import classwise as cw

    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 10)).train()
    data = cw.load_data("digits", split="test", subset=40)
    audit = functools.partial(cw.audit, model, data, "Linf:0.1", ["pgd:steps=2", "square:steps=2"], guards="off")
    expected = audit().by_class

    def work() -> None:
        assert audit().by_class.equals(expected)
        assert model.training

    return work


WORK: dict[str, Work] = {
    "inference": inference,
    "training": training,
    "copies": copies,
    "settings": settings,
    "warnings": warning,
    "audits": audits,
}
THREADS = 2


@contextlib.contextmanager
def beside(prepare: Work) -> Iterator[None]:
    """Context in which threads do some work; raises what they raised."""
    stop, errors = threading.Event(), list[BaseException]()

    def repeat(work: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(prepare(),)) for _ in range(THREADS)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


def cases(_: Random) -> Iterator[Case]:
    """Some commands beside every work."""
    for work, prepare in WORK.items():
        for name in ("audit", "audit without gradients", "audit in bfloat16", "curve"):
            words = COMMANDS[name]
            around = functools.partial(beside, prepare)
            yield Case(f"{name}, beside {work}", (*words, "--out=out"), {}, frozenset({0}), words, around=around)
