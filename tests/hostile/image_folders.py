"""Folders of images as operating systems, archives and cameras leave them, beside those that hold images only."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.hostile.case import ATTACK, EITHER, REFUSED, Case, Content

RIGHT = frozenset({0})
COUNT = 2
"""Images of each class."""
HIDDEN = (".ipynb_checkpoints", ".git", ".cache", ".Trash-1000", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found")
ORIENTATION = 0x0112


def on(path: str, *words: str) -> tuple[str, ...]:
    """An audit of the shared run on a folder."""
    return ("audit", "@run", "--data", path, "--threat=Linf:0.1", "--json", ATTACK, *words)


def digit(number: int) -> Image.Image:
    """An image in the size of the digits."""
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8))


def png(image: Image.Image, exif: Image.Exif | bytes = b"") -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG", exif=exif)
    return content.getvalue()


def tree(root: str, labels: str = "0123456789", suffix: str = ".png") -> dict[str, Content]:
    """Images of some digits."""
    return {f"{root}/{label}/{n}{suffix}": png(digit(int(label) * COUNT + n)) for label in labels for n in range(COUNT)}


def counted(expected: Mapping[str, int]) -> Callable[[Any], list[str]]:
    """A check of the number of images of each class in the JSON of an audit."""

    def check(facts: Any) -> list[str]:
        found = {name: row["n"] for name, row in facts["classes"].items()}
        return [] if found == expected else [f"images by class: {found}, not {expected}"]

    return check


ALL = counted(dict.fromkeys("0123456789", COUNT))


def turned(orientation: int) -> dict[str, Content]:
    """An image of each digit with an orientation."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return {f"a/pics/{label}/0.png": png(digit(label), exif) for label in range(10)}


def link(target: str) -> Content:
    return lambda path: path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()


TREES: dict[str, tuple[dict[str, Content], frozenset[int], Callable[[Any], list[str]]]] = {
    "a class that the test split lacks": (
        tree("a/pics/train") | tree("a/pics/test", "012456789"),
        RIGHT,
        counted(dict.fromkeys("012456789", COUNT)),
    ),
    "an empty class": (tree("a/pics", "12345678") | {"a/pics/0": folder, "a/pics/9": folder}, RIGHT,
                       counted(dict.fromkeys("12345678", COUNT))),
    "only empty classes": ({f"a/pics/{label}": folder for label in "0123456789"}, REFUSED, ALL),
    "a class of other files": (tree("a/pics", "123456789") | {"a/pics/0/1.heic": b"x"}, REFUSED, ALL),
    "splits in capitals": (tree("a/pics/TRAIN") | tree("a/pics/Test"), RIGHT, ALL),
    "splits with long names": (tree("a/pics/training") | tree("a/pics/testing"), RIGHT, ALL),
    "suffixes in capitals": (tree("a/pics", suffix=".PnG"), RIGHT, ALL),
    "files beside the classes": (tree("a/pics") | {"a/pics/labels.csv": b"a,b", "a/pics/x.png": b"", "a/pics/0/a.json": b"{}"},
                                 RIGHT, ALL),
    "an image of no bytes": (tree("a/pics") | {"a/pics/0/z.png": b""}, REFUSED, ALL),
    "a link to a missing image": (tree("a/pics") | {"a/pics/0/z.png": link("gone.png")}, REFUSED, ALL),
    "a link to itself": (tree("a/pics") | {"a/pics/0/z.png": link("z.png")}, REFUSED, ALL),
    "links in a circle": (tree("a/pics") | {"a/pics/0/up": link("../.."), "a/pics/1/same": link(".")}, RIGHT, ALL),
    "a class that is a link": (tree("a/pics", "123456789") | {"a/0/deep/1.png": png(digit(0)), "a/0/2.png": png(digit(1)),
                                                              "a/pics/0": link("../0")}, RIGHT, ALL),
}  # fmt: skip


HEAD = "file_name,camera,label"
"""The columns of a file of metadata; the last has the name of a column of outcomes."""
ROWS = [f"{label}/{n}.png,{'ab'[n]},{n}" for label in "0123456789" for n in range(COUNT)]


def metadata(random: Random) -> Iterator[Case]:
    """Files of metadata beside the class folders: valid ones, with one fault, and with changed bytes."""
    shuffled = random.sample(ROWS, len(ROWS))
    row = random.choice(ROWS)
    texts: dict[str, tuple[str, frozenset[int]]] = {
        "in another order": ("\n".join([HEAD, *shuffled]), RIGHT),
        "of Excel": ("\ufeff" + "\r\n".join([HEAD, *ROWS]), RIGHT),
        "with quotes, empty lines and cells": (
            f"{HEAD}\n\n" + "\n\n".join(f'"{row.split(",")[0]}","",1' for row in ROWS),
            RIGHT,
        ),
        "without a row": ("\n".join([HEAD, *(other for other in ROWS if other != row)]), REFUSED),
        "with a row twice": ("\n".join([HEAD, *ROWS, row]), REFUSED),
        "of another image": ("\n".join([HEAD, *ROWS, "0/gone.png,a,1"]), REFUSED),
        "of an image above": ("\n".join([HEAD, *ROWS, "../pics/0/1.png,a,1"]), REFUSED),
        "with a short row": ("\n".join([HEAD, *ROWS, "0/1.png"]), REFUSED),
        "with a column twice": ("\n".join([f"{HEAD},camera", *(f"{row},c" for row in ROWS)]), REFUSED),
        "with an open quote": ("\n".join([HEAD, *ROWS, '"']), REFUSED),
        "without file_name": ("\n".join(["file,camera,label", *ROWS]), REFUSED),
        "of no bytes": ("", REFUSED),
    }
    for name, (text, statuses) in texts.items():
        yield Case(f"metadata {name}", on("a/pics", "--group=camera", "--out=out"),
                   tree("a/pics") | {"a/pics/metadata.csv": text.encode()}, statuses)  # fmt: skip
    for group in ("label", "clean", "", "cam", "n"):
        files = tree("a/pics") | {"a/pics/metadata.csv": "\n".join([HEAD, *ROWS]).encode()}
        yield Case(f"metadata grouped by {group!r}", on("a/pics", f"--group={group}", "--out=out"), files, REFUSED)
    for number in range(6):
        block = bytearray("\n".join([HEAD, *ROWS]).encode())
        for _ in range(random.randrange(1, 4)):
            block[random.randrange(len(block))] = random.choice(b'",\n\r\0;. a\xff')
        files = tree("a/pics") | {"a/pics/metadata.csv": bytes(block)}
        yield Case(f"metadata with changed bytes {number}", on("a/pics", "--group=camera", "--out=out"), files, EITHER)


def cases(random: Random) -> Iterator[Case]:
    """Folders of images."""
    for name in HIDDEN:
        places = ("a", "a/pics", f"a/pics/{random.randrange(10)}", f"a/pics/{random.randrange(10)}/deep/deeper")
        hidden: dict[str, Content] = {
            f"{place}/{name}/{random.randrange(10)}/1.png": png(digit(99)) for place in places
        }
        hidden |= {f"{place}/._1.png": b"AppleDouble" for place in places} | {f"{places[2]}/Thumbs.db": b"x"}
        yield Case(f"folder with {name}", on("a/pics", "--out=out"), tree("a/pics") | hidden, RIGHT, check=ALL)
        yield Case(f"split beside {name}", on("a/pics", "--out=out"),
                   tree("a/pics/test") | {f"a/pics/{name}/test/1/1.png": b""}, RIGHT, check=ALL)  # fmt: skip
    for name, (files, statuses, check) in TREES.items():
        yield Case(f"folder: {name}", on("a/pics", "--out=out"), files, statuses, check=check)
    yield from metadata(random)
    for orientation in (*range(10), 65535):
        yield Case(f"EXIF orientation {orientation}", on("a/pics", "--out=out"),
                   tree("a/pics") | turned(orientation), RIGHT, check=ALL)  # fmt: skip
    exif = Image.Exif()
    exif[ORIENTATION], exif[0x010F] = 3, "a camera"
    for number in range(12):
        block = bytearray(exif.tobytes())
        for _ in range(random.randrange(1, 6)):
            block[random.randrange(6, len(block))] = random.randrange(256)
        cut = bytes(block[: random.randrange(7, len(block))] if number % 3 == 0 else block)
        files = tree("a/pics") | {"a/pics/0/0.png": png(digit(0), cut)}
        yield Case(f"damaged EXIF data {number}", on("a/pics", "--out=out"), files, RIGHT, check=ALL)
    for path in ("a/pisc", "b/pics", "a/pics/0/0.pgn", "A/PICS"):
        yield Case(f"missing path {path}", on(path, "--out=out"), tree("a/pics"), EITHER - RIGHT)
