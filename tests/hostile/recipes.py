"""Recipes: damaged bytes, YAML that nests, expands or runs code, and every field with values of every type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.hostile.case import EITHER, REFUSED, Case, train

BASE = """
name: mine
data: {name: digits, subset: 120, validation: 0.2, augment: none}
model: {name: small-cnn, width: 0.1}
threat: Linf:0.1
objective: at
attack: {name: pgd, steps: 1, step_size: 0.25eps}
validation_attack: {name: pgd, steps: 1, step_size: 0.25eps}
optimizer: {name: sgd, lr: 0.01}
schedules: []
epochs: 1
batch_size: 32
seed: 3
"""

BOMB = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)


def bomb_in(path: str, kind: str = "list") -> str:
    """A recipe whose field holds 9^9 items through aliases."""
    levels = []
    for level in range(10):
        inner = ["x"] * 9 if level == 0 else [f"*a{level - 1}"] * 9
        items = ", ".join(inner) if kind == "list" else ", ".join(f"k{n}: {item}" for n, item in enumerate(inner))
        levels.append(f"a{level}: &a{level} " + (f"[{items}]" if kind == "list" else f"{{{items}}}"))
    *within, last = path.split(".")
    pad = "  " * (len(within) + 1)
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate((*within, last))]
    return "\n".join([*lines, *(pad + level for level in levels)]) + "\n"


TEXTS: dict[str, bytes] = {
    "not UTF-8": b"name: \xff\xfe\xfa\n",
    "latin-1": "name: caf\xe9\n".encode("latin-1"),
    "utf-16 without a mark": "name: a\n".encode("utf-16-le"),
    "NUL": b"name: a\0b\n",
    "control characters": b"name: a\x07\x1b[31m\n",
    "binary": bytes(range(256)) * 8,
    "empty": b"",
    "comments only": b"# nothing\n" * 100,
    "a scalar": b"hello\n",
    "a list": b"- a\n- b\n",
    "null": b"null\n",
    "two documents": b"name: a\n---\nname: b\n",
    "tabs": b"name:\n\t- a\n",
    "unclosed": b"data: {name: digits\n",
    "unclosed quote": b'name: "abc\n',
    "bad anchor": b"name: *missing\n",
    "python object": b"!!python/object/apply:os.system ['touch evil']\n",
    "python object in a field": b"name: !!python/object/apply:os.system ['touch evil']\n",
    "python name": b"objective: !!python/name:os.system\n",
    "python module": b"objective: !!python/module:os\n",
    "unknown tag": b"name: !mine a\n",
    "bad binary": b"name: !!binary '***'\n",
    "binary value": b"name: !!binary aGVsbG8=\n",
    "set": b"data: !!set {a, b}\n",
    "omap": b"data: !!omap [a: 1]\n",
    "bad int": b"epochs: !!int abc\n",
    "bad float": b"model: {width: !!float abc}\n",
    "bad timestamp": b"name: 2001-99-99\n",
    "timestamp": b"name: 2001-01-01\nepochs: 2001-01-01\n",
    "bad date with time": b"name: 2001-01-01T25:61:61Z\n",
    "number keys": b"1: 2\n2.5: 3\n",
    "null key": b"null: 2\n",
    "list key": b"[a, b]: 2\n",
    "mapping key": b"? {a: b}\n: 2\n",
    "key within": b"data: {1: 2}\n",
    "null key within": b"model: {options: {null: 3}}\n",
    "list key within": b"model: {options: {[a]: 3}}\n",
    "merge of nothing": b"<<: 5\n",
    "merge of a list": b"<<: [1, 2]\n",
    "integer of 400 digits": b"seed: 1" + b"0" * 400 + b"\n",
    "integer of 5,000 digits": b"seed: 1" + b"0" * 5000 + b"\n",
    "integer of a million digits": b"seed: 1" + b"0" * 1_000_000 + b"\n",
    "hexadecimal of a million digits": b"seed: 0x1" + b"0" * 1_000_000 + b"\n",
    "sexagesimal": b"seed: 1" + b":59" * 20000 + b"\n",
    "key of a million letters": b"k" * 1_000_000 + b": 1\n",
    "value of a million letters": b"objective: " + b"k" * 1_000_000 + b"\n",
    "alias bomb": BOMB.encode(),
    "alias bomb of mappings": bomb_in("data.options", "map").encode(),
    "alias bomb in model.options": bomb_in("model.options").encode(),
    "alias bomb in data.options": bomb_in("data.options").encode(),
    "alias bomb in unlabelled options": bomb_in("data.unlabelled.options", "map").encode(),
    "alias bomb in schedules": bomb_in("schedules").encode(),
    "alias bomb in objective": bomb_in("objective", "map").encode(),
    "alias bomb in name": bomb_in("name").encode(),
    "merge bomb": (
        "m0: &m0 {" + ", ".join(f"k{n}: 1" for n in range(50)) + "}\n"
        + "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 9))
    ).encode(),
    "recursive list": b"schedules: &a [*a]\n",
    "recursive mapping": b"data: &a {options: *a}\n",
    "recursive options": b"model: {name: small-cnn, options: &a {b: *a}}\n",
    "recursive document": b"&a {name: x, objective: *a}\n",
    "extends itself": b"extends: mine.yaml\n",
    "extends a list": b"extends: [at, trades]\n",
    "extends a number": b"extends: 5\n",
    "extends nothing": b"extends: none.yaml\n",
    "extends a folder": b"extends: .\n",
    "extends bytes": b"extends: !!binary aGVsbG8=\n",
    "extends with NUL": b'extends: "a\\0.yaml"\n',
    "extends a device": b"extends: /dev/zero\n",
    "extends a secret": b"extends: /etc/passwd\n",
    "budgets are a number": b"extends: at\nbudgets: 3\n",
    "a budget is a list": b"extends: at\nbudgets: {short: [1]}\n",
    "budgets with numbers for names": b"extends: at\nbudgets: {1: {2: 3}}\n",
    "a budget of budgets": b"extends: at\nbudgets: {short: {budgets: {short: {}}}}\n",
    "a budget of another name": b"extends: at\nname: 5\nbudgets: {../at: {}}\n",
    "20 MB of comments": b"# " + b"x" * 20_000_000 + b"\nname: a\n",
    "20 MB of items": b"schedules: [" + b"1," * 10_000_000 + b"]\n",
    "many fields": b"".join(b"f%d: 1\n" % n for n in range(50_000)),
}  # fmt: skip

DEEP: dict[str, Callable[[int], bytes]] = {
    "flow lists": lambda depth: b"schedules: " + b"[" * depth + b"]" * depth,
    "flow mappings": lambda depth: b"model: {options: " + b"{a: " * depth + b"1" + b"}" * depth + b"}",
    "open lists": lambda depth: b"[" * depth,
    "block lists": lambda depth: b"schedules:\n" + b"- " * depth + b"1\n",
    "block mappings": lambda depth: b"data:\n" + b"".join(b" " * (n + 1) + b"a:\n" for n in range(min(depth, 2000))),
}

FIELDS = (
    "name", "description", "source", "data", "data.name", "data.root", "data.subset", "data.subset_seed",
    "data.validation", "data.augment", "data.unlabelled", "data.options", "model", "model.name", "model.width",
    "model.options", "model.weights", "model.sync_batch_norm", "threat", "objective", "attack", "attack.steps",
    "attack.step_size", "attack_mode", "schedules", "schedules.0", "reduction", "update", "optimizer", "optimizer.lr", "lr_schedule",
    "averaging", "selection", "validation_attack", "epochs", "batch_size", "seed", "precision", "precision.dtype",
)  # fmt: skip

VALUES = (
    "null", "[]", "{}", "-1", "0", "1000000000000000000000000000000", "-1000000000000000000000000000000", "1e400",
    "-.inf", ".nan", "true", '""', '"\\0"', '"\\u202e\\u0000"', "x" * 100_000, "[[[[1]]]]", "{name: }", "{name: [a]}",
    "{name: {name: {name: pgd}}}", "2001-01-01", "!!binary aGVsbG8=", "!!set {a}", '"name:=,"', '":"', '"a:b"', "1_0",
    "0x7fffffffffffffff", "9223372036854775808", '"8/0"', '"../../../../etc/passwd"', "{1: 2}", "!!python/name:os.system",
    "&a [*a]", '"\\ud800"',
)  # fmt: skip


def link_to(target: str) -> object:
    """A writer of a symbolic link."""
    return lambda path: path.symlink_to(target)


def cases(random: Random) -> Iterator[Case]:
    """Hostile recipes."""
    for name, text in TEXTS.items():
        yield Case(f"recipe: {name}", train(recipe="mine.yaml"), {"mine.yaml": text}, EITHER)
    for name, text in TEXTS.items():
        if name.startswith(("alias", "integer", "recursive", "not", "bad", "list key")):
            yield Case(f"recipes show: {name}", ("recipes", "show", "mine.yaml"), {"mine.yaml": text}, EITHER)
        if "budget" in name:
            words = train("--budget=short", recipe="mine.yaml")
            yield Case(f"recipe on a budget: {name}", words, {"mine.yaml": text}, EITHER)
    for name in ("", "shrot", "../short", "short.yaml", "/etc/passwd", "\u202ea", "x" * 300):
        yield Case(f"budget: {name[:30]!a}", train(f"--budget={name}"), {}, REFUSED)
    for name, make in DEEP.items():
        for depth in (50, 400, 3000, 100_000):
            yield Case(f"recipe: {name}, {depth} deep", train(recipe="mine.yaml"), {"mine.yaml": make(depth)}, EITHER)
    yield Case(
        "recipe: two that extend each other",
        train(recipe="mine.yaml"),
        {"mine.yaml": b"extends: other.yaml\n", "other.yaml": b"extends: mine.yaml\n"},
    )
    chain = {f"r{n}.yaml": f"extends: r{n + 1}.yaml\n".encode() for n in range(1500)}
    yield Case("recipe: extends 1,500 times", train(recipe="r0.yaml"), {**chain, "r1500.yaml": b"extends: at\n"})

    def folder(path: Path) -> None:
        path.mkdir()

    for name, write in {
        "a folder": folder,
        "a FIFO": os.mkfifo,
        "a link to itself": lambda path: path.symlink_to(path),
        "a link to a device": lambda path: path.symlink_to("/dev/zero"),
        "a link to nothing": lambda path: path.symlink_to("/none/none"),
        "unreadable bytes": lambda path: path.symlink_to("/proc/self/mem"),
    }.items():
        yield Case(f"recipe: {name}", train(recipe="mine.yaml"), {"mine.yaml": write}, REFUSED)
    for name in ("", ".yaml", "a\n.yaml", "\u202eabc.yaml", "x" * 300 + ".yaml", "/proc/self/environ", "..", "at\0"):
        yield Case(f"recipe: named {name[:30]!a}", train(recipe=name), {}, REFUSED)
    grid = [(field, value) for field in FIELDS for value in VALUES]
    for field, value in random.sample(grid, 130):
        short = value if len(value) < 40 else f"{value[:20]}..."
        yield Case(f"field: {field}={short!a}", train(f"--set={field}={value}"), {}, EITHER)
    for field, value in random.sample(grid, 60):
        *within, last = field.split(".")
        lines = BASE + "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(within))
        lines += f"{'  ' * len(within)}{last}: {value}\n"
        short = value if len(value) < 40 else f"{value[:20]}..."
        words = ("recipes", "show", "mine.yaml")
        yield Case(f"show: {field}={short!a}", words, {"mine.yaml": lines.encode("utf-8", "surrogatepass")}, EITHER)
    for number in range(30):
        mutated = bytearray(BASE.encode())
        for _ in range(random.randrange(1, 12)):
            mutated[random.randrange(len(mutated))] = random.randrange(32, 127 if number % 3 else 256)
        yield Case(f"recipe: mutated {number}", ("recipes", "show", "mine.yaml"), {"mine.yaml": bytes(mutated)}, EITHER)
