"""Names of classes and methods that break the formats of written files: formulas, line breaks, control characters."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

from tests.hostile.case import EITHER, Case, Content, small

STARTS = ("=1+1", "+1", "-1+1", "@SUM(A1)", '=HYPERLINK("http://x","y")', "\uff1d1+1", "'=1", "|x", "&x", "]]>", "\\x")
BREAKS = ("\r", "\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", ";", ",", '"', " ", "\u00a0")
CONTROLS = ("\x00", "\x07", "\x1b[31m", "\x7f", "\u200b", "\u202e", "\ufeff", "\ufffe")


def hostile_names(random: Random) -> Iterator[str]:
    """Each start after each line break, separator and control character, and random mixtures."""
    for between in ("", *BREAKS, *CONTROLS):
        start = random.choice(STARTS)
        yield random.choice(("", "cat")) + between + start
    for _ in range(20):
        yield "".join(random.choice((*STARTS, *BREAKS, *CONTROLS, "a")) for _ in range(random.randint(2, 5)))


def images(name: str) -> Content:
    """Digits-like images whose first class has this name."""

    def write(path: Path) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
        names = np.array([name, *(f"class {label}" for label in range(1, 10))])
        content = io.BytesIO()
        np.savez(content, x=pixels, y=np.arange(20) % 10, class_names=names)
        path.write_bytes(content.getvalue())

    return write


def cases(random: Random) -> list[Case]:
    """Curves and audits of data with such a class, and comparisons and viewers with such a method."""
    found = []
    attack = ("--threat=Linf:0.1", "--attack=fgsm")
    builds = ("--junit=out/a.xml", "--sarif=out/a.sarif", "--fail-if=worst(all) < 2")
    for place, name in enumerate(hostile_names(random)):
        files = {"images.npz": images(name)}
        words: tuple[str, ...]
        if place % 2:
            words = ("curve", "@run", "--data=images.npz", *attack, "--rounds=1", "--out=out")
            found.append(Case(f"a class of a curve named {small(name)}", words, files, EITHER))
        else:
            words = ("audit", "@run", "--data=images.npz", *attack, *builds, "--guards=off", "--out=out")
            found.append(Case(f"a class of an audit named {small(name)}", words, files, EITHER))
        method = name.replace("=", "\uff1d") if place % 3 else name
        words = ("compare", f"{method}=@audit", "b=@audit", "--export=csv,md,tex", "--files=out")
        found.append(Case(f"a method of a comparison named {small(method)}", words, {}, EITHER))
        words = ("view", f"{method}=@audit", "b=@audit", "--out=out")
        found.append(Case(f"an audit of a viewer named {small(method)}", words, {}, EITHER))
    return found
