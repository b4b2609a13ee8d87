"""The options of ``curve``, ``corruptions`` and ``worst-class``; what succeeds prints accuracies that are possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from tests.hostile.case import EITHER, Case, small
from tests.hostile.options import NUMBERS, TEXTS

USED = ("@run", "--subset=40", "--json")
OUT = "--out=out"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "curve": ("--threat=Linf:0.1", "--attack=fgsm", "--rounds=2", OUT),
    "corruptions": ("--corruption=fog", "--severity=1", OUT),
    "worst-class": ("--threat=Linf:0.1", "--attack=fgsm", "--attack=pgd:steps=2"),
}
SHARED: Mapping[str, tuple[str, ...]] = {
    "--threat": ("Linf:0", "Linf:1e-45", "Linf:1", "Linf:2", "L2:1e9", "L1:0.5", "L3:1", "spatial:1", "recolor:0.1",
                 "Linf", "Linf:", ":0.1", "Linf:0.1:0.2", "Linf:-0.1", "Linf:nan", "linf:0.1", "L2:" + "9" * 400),
    "--attack": ("pgdd", "", "pgd:", "pgd:steps", "pgd:steps=0", "fab:steps=1", "cw:steps=1", "square:steps=1",
                 "a=fgsm", "=fgsm", "clean=fgsm", "all=fgsm", "autoattack:x=1", "os:system", "fgsm,pgd"),
    "--batch-size": ("1", "31", "32", "100000"),
    "--precision": ("bfloat16", "float16", ""),
    "--outputs": ("probabilities", "binary", "binary-logits", "x"),
    "--mean": ("0.5", "0.5,0.5", "nan", ""),
    "--split": ("train", "val", ""),
    "--unique": ("",),
    "--data": ("digits", "@data", "cifar10", "/dev/null", ""),
    "--data-set": ("size=8", "size=0", "per_class=1", "x"),
    "--device": ("cuda", "meta", "cpu:1", ""),
    "--root": ("/", "none"),
}  # fmt: skip
"""Values of options that every one of the commands has."""
OWN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "curve": {
        "--rounds": ("0", "1", "-1", "20", "64", "1000", "1e3", "2.0", ""),
        "--shards": ("0", "1", "2", "41", "100000", "-1"),
        "--shard": ("1/2", "0/2", "3/2", "1/0", "1/41", "/", "1", "-1/2"),
        "--workers": ("0", "-1", "1"),
        "--threads": ("0", "1"),
        "--gpus-per-shard": ("1", "-1"),
        "--on": ("ray", "slurm", "x"),
        "--ray-address": ("x",),
        "--slurm": ("x", "a=b"),
        "--corruption": ("fog", "FOG", "", "fog,snow"),
        "--severity": ("1", "0", "6"),
    },
    "corruptions": {
        "--corruption": ("fog", "snow", "FOG", "", "all", "fog,snow", "mean", "clean", "../fog", "x" * 300),
        "--severity": ("1", "5", "0", "6", "-1", "1.5", "1,2", "", "1e0"),
    },
    "worst-class": {
        "--confidence": ("0", "1", "0.5", "0.999999999999", "1e-12", "95%", "95", "-0.1", "nan", "19/20", ""),
        "--tolerance": ("0", "1", "100%", "0.5", "1e-12", "-1%", "2", "nan", "1/3", ""),
        "--max-time": ("0", "1e-9", "-1", "nan", "inf", "1e300"),
        "--corruption": ("fog", "FOG", ""),
        "--severity": ("1", "6"),
    },
}
"""Values of the options of each command."""
TOGETHER: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "curve": (
        ("--shards=2", "--shard=1/2"), ("--shards=2", "--on=local", "--html=-"), ("--resume",), ("--severity=1",),
        ("--attack=fgsm", "--attack=fgsm"), ("--attack=pgd:steps=1", "--threat=spatial:1"), ("--html=-",),
        ("--shards=2", "--on=local", "--subset=1"), ("--html=out/page.html", "--html=-"), ("--seed=1", "--resume"),
    ),
    "corruptions": (
        ("--corruption=fog",), ("--corruption=fog", "--corruption=snow", "--severity=2"), ("--severity=1",), ("--resume",),
        ("--attack=fgsm",), ("--attack=fgsm", "--threat=L2:0.1"), ("--threat=Linf:0.1",), ("--subset=1",), ("--seed=1", "--resume"),
    ),
    "worst-class": (
        ("--resume",), (OUT, "--resume"), ("--html=-",), ("--html=out/page.html",), ("--subset=1",), (OUT, "--html=-"),
        ("--attack=fgsm",), ("--confidence=0.5", "--tolerance=1"), ("--max-time=1e-9", OUT), ("--max-time=0", "--resume"),
    ),
}  # fmt: skip
"""Options that are given together."""


def fraction(value: Any, highest: float = 1) -> bool:
    """Whether a value is a number from 0 on."""
    return isinstance(value, int | float) and -1e-9 <= value <= highest * (1 + 1e-9)


def of_curve(found: Any) -> list[str]:
    """The means of the robust radius are within their intervals and the radii."""
    problems, highest = [], found["highest"]
    for name, row in found["classes"].items():
        if not fraction(row["clean"]) or not fraction(row["mean"], highest):
            problems.append(f"class {name}: {row}")
        if not row["mean_low"] - 1e-9 <= row["mean"] <= row["mean_high"] + 1e-9:
            problems.append(f"class {name}: outside its interval: {row}")
    return problems


def of_corruptions(found: Any) -> list[str]:
    """Accuracies are fractions within their intervals, and their mean is that of the corruptions."""
    table = dict(found["accuracy"])
    problems = [f"{name}: {row}" for name, row in table.items() if not all(map(fraction, row.values()))]
    names = [name for name in table if f"{name}_low" in table]
    lows, highs = ({name: table.pop(f"{name}_{end}") for name in names} for end in ("low", "high"))
    for name, row in table.items():
        outside = [key for key, value in row.items() if not lows[name][key] - 1e-9 <= value <= highs[name][key] + 1e-9]
        problems += [f"{name}: {key} is outside its interval" for key in outside]
    mean = table.pop("mean", None)
    for key, value in (mean or {}).items():
        expected = sum(row[key] for row in table.values()) / len(table)
        problems += [] if abs(value - expected) < 1e-9 else [f"the mean of {key} is {value}"]
    return problems


def of_search(found: Any) -> list[str]:
    """The accuracy of the worst class is within its bounds, and it is one of the possible classes."""
    worst = found["worst"]
    inside = worst["low"] - 1e-9 <= worst["accuracy"] <= worst["high"] + 1e-9
    return [] if inside and worst["class"] in worst["possibly"] else [f"worst class: {worst}"]


CHECKS: Mapping[str, Callable[[Any], list[str]]] = {
    "curve": of_curve,
    "corruptions": of_corruptions,
    "worst-class": of_search,
}


def cases(random: Random) -> Iterator[Case]:
    """Every value of every option, in place of that of a usual command."""
    for command, usual in COMMANDS.items():
        check = CHECKS[command]
        for option, values in {**SHARED, **OWN[command]}.items():
            more = random.sample((*NUMBERS, *TEXTS), 1) if option in OWN[command] else []
            for value in (*values, *more):
                words = tuple(word for word in usual if not word.startswith(f"{option}="))
                more_words = ("--std=0.5",) if option == "--mean" else ()
                given = (option if option == "--unique" else f"{option}={value}", *more_words)
                name = f"{command} {option}={small(value)}"
                heavy = "--rounds=1000" in given or (command == "corruptions" and option in ("--data", "--severity"))
                prints_tables = option != "--shard"  # whose tables are printed once the shards are merged
                yield Case(name, (command, *USED, *words, *given), {}, EITHER,
                           check=check if prints_tables else None, heavy=heavy)  # fmt: skip
        for given in TOGETHER[command]:
            options = {word.partition("=")[0] for word in given}
            words = tuple(word for word in usual if word.partition("=")[0] not in options)
            named = tuple(word for word in USED if word.partition("=")[0] not in options)
            yield Case(f"{command} {' '.join(given)}", (command, *named, *words, *given), {}, EITHER, check=check)
