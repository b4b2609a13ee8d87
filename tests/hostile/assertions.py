"""`classwise.testing.assert_robust` with absurd requirements, data, models and caches: its verdict is that of the audit."""

from __future__ import annotations

import decimal
import fractions
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

import classwise as cw
from classwise.testing import assert_robust
from tests.hostile.case import Case, Content, Shared
from tests.hostile.maite_protocols import WORDS, network, raises, same

HOLDS, FAILS, REFUSED, USER = frozenset({0}), frozenset({1}), frozenset({2}), frozenset({4})
VERDICT, EITHER = HOLDS | FAILS, frozenset({0, 1, 2, 3})
Given = dict[str, Any]

LIMITS: dict[str, tuple[Any, frozenset[int]]] = {
    "0": (0, HOLDS),
    "0.0": (0.0, HOLDS),
    "1": (1, VERDICT),
    "a float32": (np.float32(0.2), VERDICT),
    "a float16": (np.float16(0.2), VERDICT),
    "an int64": (np.int64(1), EITHER),
    "5e-324": (5e-324, REFUSED),
    "the float below 1": (float(np.nextafter(1, 0)), VERDICT),
    "NaN": (float("nan"), REFUSED),
    "infinity": (float("inf"), REFUSED),
    "-1": (-1.0, EITHER),
    "1.0000000000000002": (1.0000000000000002, EITHER),
    "20": (20, EITHER),
    "1e308": (1e308, EITHER),
    "text": ("0.2", REFUSED),
    "bytes": (b"0.2", REFUSED),
    "True": (True, REFUSED),
    "a list": ([0.2], REFUSED),
    "a tensor": (torch.tensor(0.2), EITHER),
    "an array": (np.array(0.2), EITHER),
    "a complex number": (0.2j, REFUSED),
    "a decimal": (decimal.Decimal("0.2"), EITHER),
    "a fraction": (fractions.Fraction(1, 5), EITHER),
    "an integer of 5000 digits": (10**5000, REFUSED),
    "a function": (raises, REFUSED),
}
"""The required accuracy of the worst class."""

CONDITIONS: dict[str, tuple[Any, frozenset[int]]] = {
    "text": ("worst(all) < 0.2", REFUSED),
    "bytes": ([b"worst(all) < 0.2"], REFUSED),
    "None": (None, REFUSED),
    "a number": ([5], REFUSED),
    "None in a list": ([None], REFUSED),
    "a blank": ([" "], REFUSED),
    "nothing": ([], REFUSED),
    "a set": ({"worst(all) < 0.2"}, REFUSED),
    "a dict": ({"worst(all) < 0.2": 1}, REFUSED),
    "a generator": ((text for text in ["worst(all) < 0.2"]), REFUSED),
    "a tuple": (("worst(all) < 0",), HOLDS),
    "10,000 times the same": (["worst(all) < 0"] * 10_000, HOLDS),
    "an unknown class": (["truck(all) < 0.2"], REFUSED),
    "an attack that was not run": (["worst(apgd) < 0.2"], REFUSED),
    "no number": (["worst(all) < x"], REFUSED),
    "NaN": (["worst(all) < nan"], REFUSED),
    "a NUL": (["worst(all) < 0.2\0"], REFUSED),
    "escapes": (["\x1b[2Jworst(all) < 0.2"], REFUSED),
    "code": (["__import__('os').system('touch evil') < 1"], REFUSED),
    "a long text": (["x" * 10**6], REFUSED),
}
"""Conditions that fail the test, and conditions that must be true."""

MORE: dict[str, tuple[Given, frozenset[int]]] = {
    "no requirement": ({"worst": None}, REFUSED),
    "an unknown option": ({"wurst": 0.2}, REFUSED),
    "an attack that does not exist": ({"attacks": "pgdd"}, REFUSED),
    "attacks of nothing": ({"attacks": []}, REFUSED),
    "attacks of numbers": ({"attacks": [5]}, REFUSED),
    "a radius of NaN": ({"threat": "Linf:nan"}, REFUSED),
    "a threat of a number": ({"threat": 0.1}, REFUSED),
    "out and cache": ({"out": "out", "cache": "cache"}, REFUSED),
    "out that is a file": ({"out": "file"}, REFUSED),
    "out of 300 letters": ({"out": "x" * 300}, REFUSED),
    "resume without out": ({"resume": True}, HOLDS),
    "a shard": ({"shard": "1/2"}, EITHER),
    "a shard, and a limit that half of the images do not decide": ({"shard": "1/2", "worst": 0.01}, EITHER),
    "a seed of text": ({"seed": "x"}, REFUSED),
    "no time": ({"max_time": 0}, EITHER),
    "little time": ({"max_time": 1e-9}, EITHER),
    "a cache that is a file": ({"cache": "file"}, REFUSED),
    "a cache below a file": ({"cache": "file/cache"}, REFUSED),
    "a cache of 300 letters": ({"cache": "out/" + "x" * 300}, REFUSED),
    "a cache with a NUL": ({"cache": "a\0b"}, REFUSED),
    "a cache of nothing": ({"cache": ""}, EITHER),
    "a cache of bytes": ({"cache": b"cache"}, REFUSED),
    "a cache of a number": ({"cache": 5}, REFUSED),
    "a cache in /dev/null": ({"cache": "/dev/null"}, REFUSED),
    "a cache in /proc": ({"cache": "/proc/classwise"}, REFUSED),
    "a cache in a loop": ({"cache": "loop"}, REFUSED),
    "a cache in a dangling link": ({"cache": "dangling"}, REFUSED),
    "data of nothing": ({"data": []}, REFUSED),
    "data of None": ({"data": None}, REFUSED),
    "data of a number": ({"data": 5}, REFUSED),
    "data of another size": ({"data": cw.Images(torch.rand(4, 3, 5, 5), torch.arange(4))}, REFUSED | USER),
    "data with labels beyond the model": ({"data": cw.Images(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 50]))}, REFUSED),
    "one image": ({"data": cw.Images(torch.rand(1, 1, 8, 8), torch.zeros(1, dtype=torch.long))}, EITHER),
    "a model of None": ({"model": None}, REFUSED),
    "a model that is a class": ({"model": nn.Linear}, REFUSED | USER),
    "a model that is a path": ({"model": "file"}, REFUSED),
    "a model of NaN": ({"model": lambda x: torch.full((len(x), 10), torch.nan)}, REFUSED),
    "a model of one class": ({"model": lambda x: x.flatten(1)[:, :1]}, REFUSED | USER),
    "a model that raises": ({"model": raises}, USER),
    "a model that asserts": ({"model": lambda x: (_ for _ in ()).throw(AssertionError("no"))}, USER),
    "a model that exits": ({"model": lambda x: (_ for _ in ()).throw(SystemExit(0))}, USER),
    "a model of another size": ({"model": lambda x: x.flatten(1)[:2]}, REFUSED | USER),
}  # fmt: skip
"""Other arguments."""


def asserted(given: Given) -> Callable[[Shared], object]:
    """Call `assert_robust`, also with a cache that has the audit; a verdict on ``worst`` must be that of the audit."""

    def call(shared: Shared) -> None:
        images = cw.load_data("digits", split="test", subset=40)
        settings: Given = {"threat": "Linf:0.05", "attacks": "fgsm", "model": network(shared), "data": images, **given}
        try:
            found = assert_robust(**settings)
        except AssertionError as error:
            if "not robust enough" not in str(error):
                raise RuntimeError("another AssertionError") from error
            check(settings, holds=False)
            raise
        check(settings, holds=True)
        if not {"out", "cache", "resume"} & given.keys() and found.complete:
            for _ in range(2):
                again = assert_robust(**settings, cache="out/cache")
                same(again.by_class["all"].tolist(), found.by_class["all"].tolist())

    return call


def check(settings: Given, *, holds: bool) -> None:
    """Compare a verdict on the worst class with the audit."""
    limit = settings.get("worst")
    if limit is None or {*settings} - {"threat", "attacks", "model", "data", "worst"}:
        return
    audit = cw.audit(settings["model"], settings["data"], settings["threat"], settings["attacks"])
    lowest = fractions.Fraction(audit.worst_class("all").accuracy).limit_denominator(1000)
    same(holds, not lowest < fractions.Fraction(str(float(limit))))


FILES: dict[str, Content] = {
    "file": b"x",
    "loop": lambda path: path.symlink_to("loop"),
    "dangling": lambda path: path.symlink_to("nowhere/at/all"),
}


def cases(random: Random) -> Iterator[Case]:
    """Every absurd argument."""
    del random
    given: dict[str, tuple[Given, frozenset[int]]] = {}
    given |= {f"worst of {name}": ({"worst": value}, right) for name, (value, right) in LIMITS.items()}
    given |= {f"overall of {name}": ({"overall": value}, right) for name, (value, right) in LIMITS.items()}
    given |= {f"fail_if of {name}": ({"fail_if": value}, right) for name, (value, right) in CONDITIONS.items()}
    given |= {f"require of {name}": ({"require": value}, right - HOLDS | FAILS if right == HOLDS else right)
              for name, (value, right) in CONDITIONS.items()}  # fmt: skip
    given |= {name: ({"worst": 0.0, **more}, right) for name, (more, right) in MORE.items()}
    for name, (arguments, right) in given.items():
        yield Case(f"assert_robust: {name}", WORDS, FILES, right, call=asserted(arguments))
