"""Options: absurd numbers, texts and paths for every command."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from random import Random

from tests.hostile.case import ATTACK, CLEAN_AUDIT, EITHER, REFUSED, Case, audit, small, train

NUMBERS = (
    "0", "-1", "1", "1e9", "1000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "1" + "0" * 30, "9" * 5000, "nan", "inf", "-inf", "1e400", "", " ", "x", "0x10", "1_000", "１", "٣", "1.5", "8/0",
    "true", "\0", "\u202e1",
)  # fmt: skip

TEXTS = (
    "", " ", "\0", "a\0b", "\n", "\u202e", "\ud800", "x" * 100_000, "../../../../etc/passwd", "/dev/zero", "/dev/null/x",
    "/proc/self/mem", "..", ".", "/", "-", "--", "=", "a=", "=b", "a=b=c", "💥", "os:system", "%s%n", "{0}", "${HOME}",
    "$(touch evil)", "`touch evil`", "; touch evil", "| touch evil", "<script>", "'", '"',
)  # fmt: skip

CONDITIONS = (
    "", "worst", "worst(all)", "worst(all) <", "worst(all) < nan", "worst(all) < inf", "worst(all) < 1e400",
    "worst(all) < 8/0", "worst(all) < 1e999999999", "worst(all) < 0.2 and 1", "worst(os:system) < 0.2", "worst() < 0.2",
    "worst(all).low.low < 0.2", "worst(all).split < 0.2", "cv(all) < 5", "worst(all) < " + "9" * 5000,
    "worst(all) <" + " " * 50_000 + "x", "worst" + "(" * 5000 + "all" + ")" * 5000 + " < 0.2", "worst(all) < 0.2\0",
    "__import__('os').system('touch evil') < 1", "worst(all) < __import__('os')", "worst(all) == 0.2", "x" * 100_000,
    "worst(all)" + " " * 20_000 + "<" + " " * 20_000, "worst(all) < " + "0" * 50_000 + "%", "w" * 30_000 + "(all) <",
)  # fmt: skip

LIMIT_PARTS = (
    "0",
    "1",
    "20",
    "0.2",
    ".",
    "/",
    "%",
    " ",
    "-",
    "+",
    "e",
    "_",
    "٣",
    "５",
    "½",
    "nan",
    "inf",
    "\0",
    "−",
    "％",
)
"""Parts of malformed limits."""

FIELDS = {
    "model.width": ("1e9", "-1", "0", "1e400", ".nan", "1e5", "[]", "1e-300", "3e2"),
    "epochs": ("1" + "0" * 30, "-1", "0", "1.5", "1e9", "[]"),
    "batch_size": ("1" + "0" * 30, "0", "-1", "1", "1000000000", "2.5"),
    "seed": ("1" + "0" * 30, "-1", "-" + "9" * 40, "18446744073709551616", "9223372036854775808", "1.5", "[]"),
    "data.subset": ("0", "-1", "1", "1" + "0" * 30, "9", "10", "[]"),
    "data.subset_seed": ("-1", "1" + "0" * 30, "4294967296"),
    "data.validation": ("1", "0.999", "-1", "2", ".nan", "1e-300", "0"),
    "model.options": ("{depth: 1000000000}", "{x: 1}", "{head: os}", "{num_classes: 5}", "{in_channels: 3}", "{width: 3}"),
    "model.name": ("wrn-34-10", "small-cnn:x", "../x", "x" * 5000, "", "null"),
    "model.weights": ("/dev/zero", ".", "none.pt", "/etc/passwd", "", "x\0y", "os:system", "@run"),
    "data.options": ("{size: 1000000000}", "{x: 1}", "{size: -1}"),
    "data.root": ("/dev/null", "\0", "/proc/self", "x" * 5000),
    "optimizer.lr": ("0", "-1", "1e400", ".nan", "1e308", "8/0"),
    "precision": ("{dtype: float16}", "{dtype: os}", "{compile: maybe}", "5"),
    "attack.steps": ("1" + "0" * 18, "0", "-3", "2.5"),
    "schedules": ("[" + "ccm," * 3000 + "]", "[ccm, ccm]", "ccm", "[[]]", "[null]", "[{}]", "{name: ccm}", "[5]"),
    "selection": ("[]", "os:system", "x", "null", "{name: last}", "5"),
    "averaging": ("{name: ema, decay: 2}", "{name: ema, decay: .nan}", "fawa:start_fraction=1e400", "5", "[]"),
    "data.unlabelled": ("5", "{name: digits}", "{name: digits, teacher: none.pt}", "{name: digits, teacher: os:system}",
                        "{name: digits, teacher: /dev/zero, share: 0.99}", "{name: /, teacher: x, subset: 10}"),
}  # fmt: skip

AUDIT_NUMBERS = ("--subset", "--seed", "--batch-size", "--width", "--max-time")
OTHER_NUMBERS = (("curve", "--rounds"), ("worst-class", "--tolerance"), ("worst-class", "--confidence"))
TEXT_OPTIONS = ("--data", "--split", "--root", "--threat", "--attack", "--group", "--out", "--html",
                "--fail-if", "--save", "--mean", "--device", "--data-set", "--model-set", "--weights")  # fmt: skip

PLAIN: tuple[tuple[str, ...], ...] = (
    ("compare",), ("compare", "@audit"), ("compare", "@audit", "@audit", "@audit=x"), ("compare", "=@audit", "b=@audit"),
    ("compare", "a=@audit", "a=@audit"), ("compare", "@audit", "/"), ("compare", "/dev/zero", "@audit"),
    ("compare", "@audit", "@audit", "--attack", "os:system"), ("compare", "@audit", "@audit", "--group", "\0"),
    ("compare", "@audit", "@audit", "--out", "/dev/full/x"), ("compare", "x" * 5000, "@audit"),
    ("compare", "a\0b=@audit", "@audit"), ("compare", "@audit", "@audit", "--attack", ""),
    ("board",), ("board", "/dev"), ("board", "."), ("board", "\0"), ("board", "x" * 5000), ("board", "/dev/zero"),
    ("board", "@audit", "--out", "/dev/full/x"), ("board", "a=@audit", "a=@audit"),
    ("view", "@audit", "--out", "/dev/full/x"), ("view", "a\0b=@audit", "@audit", "--out", "site"), ("view", "@audit", "--data", "/"),
    ("view", "@audit", "@weights", "--out", "site"), ("view", "@audit", "--out", "site", "--split", "\0"), ("view", "=@audit"),
    ("board", "@audit", "--extra-data", "\0=yes"), ("board", "@audit", "--confidence", "nan"), ("board", "@weights"),
    ("report", "/"), ("report", "."), ("report", "/dev/zero"), ("report", "\0"), ("report", "x" * 5000), ("report", "@data"),
    ("report", "@weights"), ("report", "@audit", "--out", "out/p.html", "--export", "exe"),
    ("report", "@audit", "--out", "out/p.html", "--export", ",,,"), ("report", "@audit", "--out", "out/p.html", "--export", ""),
    ("report", "@audit", "--out", ".", "--export", "csv"), ("report", "@audit", "--out", "out/p.html", "--files", "\0"),
    ("report", "@audit", "--out", "out/p.html", "--robustbench", "out/x.json"),
    ("report", "@audit", "--out", "out/p.html", "--robustbench-info", "venue=a"),
    ("report", "@audit", "--out", "out/p.html", "--robustbench", "out/x.json", "--robustbench-info", "=b"),
    ("report", "@audit", "--out", "out/p.html", "--robustbench", "out/x.json", "--robustbench-info", "os:system=x"),
    ("report", "@audit", "--out", "out/p.html", "--robustbench", "out/x.json", "--robustbench-info", "venue=" + "x" * 100_000),
    ("interpolate-weights", "@run"), ("interpolate-weights", "/"), ("interpolate-weights", "\0"), ("interpolate-weights", "@run", "--start", "/dev/zero"),
    ("interpolate-weights", "@run", "--start", "."), ("interpolate-weights", "@run", "--start", "@run", "--shares", "nan", "--out=out/o.st"),
    ("interpolate-weights", "@run", "--start", "@run", "--shares", "", "--out=out/o.st"),
    ("interpolate-weights", "@run", "--start", "@run", "--shares", "1e400", "--out=out/o.st"),
    ("interpolate-weights", "@run", "--start", "@run", "--shares", "-1", "--out=out/o.st"),
    ("interpolate-weights", "@run", "--start", "@run", "--shares", "0.5," * 20000, "--out=out/o.st"),
    ("interpolate-weights", "@run", "--start", "@weights", "--shares", "0.5", "--out=.", "--which", "os:system"),
    ("interpolate-weights", "@run", "--start", "@run", "--which", "../../x", "--out=out/o.st"),
    ("interpolate-weights", "@run", "--start", "@run", "--shares", "0.5", "--attack", "os:system", "--out=out/o.st"),
    ("adjust-logits", "@audit"), ("adjust-logits", "/dev/zero"), ("adjust-logits", "\0"), ("adjust-logits", "@run", "--which", "/etc/passwd"),
    ("adjust-logits", "@run", "--which", "", "--out=out/o.st"), ("adjust-logits", "@run", "--out", "."), ("adjust-logits", "@run", "--out", "/dev/null/x"),
    ("adjust-logits", "@run", "--attack", "", "--out=out/o.st"), ("adjust-logits", "@run", "--device", "cuda:-1", "--out=out/o.st"),
    ("adjust-logits", "@run", "--device", "meta", "--out=out/o.st"), ("adjust-logits", "@run", "--device", "os:system", "--out=out/o.st"),
    ("papers", "list", "x"), ("papers", "show"), ("papers", "show", "os:system"), ("papers", "show", "kdd21/T99"),
    ("papers", "show", "../../etc/passwd"), ("papers", "x"), ("papers", "run", "\0"), ("papers", "run", "kdd21/\u202e"),
    ("papers", "page", "kdd21", "--store", "/dev/null", "--out", "out/pages"), ("papers", "page", "x" * 5000),
    ("papers", "run", "kdd21/T1", "--scale", "os:system"), ("papers", "run", "kdd21/T1", "--store", "/dev/full/x"),
    ("papers", "run", "kdd21/T1", "--store", "\0"), ("papers", "run", "kdd21/T1", "--device", "meta", "--store", "out/s"),
    ("papers", "list", "--scale", "x" * 50_000), ("attacks", ""), ("attacks", "os:system"), ("attacks", "\0"),
    ("attacks", "x" * 100_000), ("attacks", "builtins:eval"), ("models", "x"), ("models", "--json", "--json", "--x"),
    ("data", "os:system"), ("data", "\0"), ("data", "/dev/zero"), ("data", "/proc/self/mem"), ("data", "x" * 100_000),
    ("data", "/dev/null"), ("data", "digits", "--split", "\0"), ("data", "digits", "--data-set", "size=1"),
    ("data", "digits", "--root", "x" * 5000), ("data", "@data", "--data-set", "os=system"),
    ("data", "cifar10", "--root", "/dev/zero"), ("data", "cifar10", "--root", "\0"),
    ("recipes", "os:system"), ("recipes", "show"), ("recipes", "show", "\0"), ("recipes", "show", "../at"),
    ("recipes", "show", "at", "--set", "\0=1"), ("recipes", "show", "at", "--set", "name=" + "x" * 100_000),
    ("recipes", "a", "b", "c"), ("recipes", "at", "--set", "a" + ".a" * 3000 + "=1"),
    ("recipes", "at", "--set", "model.options" + ".a" * 3000 + "=1"),
    ("recipes", "at", "--set", "model.options" + ".a" * 50 + "=1"), ("recipes", "at", "--set", "x=" + "[" * 100_000),
    ("recipes", "at", "--set", "schedules.99999999999999999999=1"), ("recipes", "at", "--set", "schedules.-1=1"),
    ("recipes", "at", "--set", "schedules.²=1"), ("recipes", "at", "--set", "name.a=1"), ("recipes", "at", "--set", ".=1"),
    ("cite", ""), ("cite", "os:system"), ("cite", "\0"), ("cite", "x" * 100_000), ("cite", "at.yaml"), ("cite", ".yaml"),
    ("x",), ("",), ("\0",), ("--x",), ("-",), ("--",), ("audit",), ("train",), ("audit", ""), ("audit", "\0"), ("train", ""),
    ("audit", "/"), ("audit", "."), ("audit", "/dev/zero", "--data=digits"), ("audit", "/dev/null", "--data=digits"),
    ("audit", "/proc/self/mem", "--data=digits"), ("audit", "x" * 100_000), ("audit", "@data", "--data=digits"),
    ("audit", "@weights", "--data=digits"), ("audit", "@weights", "--data=/"), ("audit", "@run", "--data=/proc"),
    ("audit", "@run", "--data=/dev"), ("audit", "@run", "--data=/sys"), ("audit", "@run", "--data=/usr"),
    ("audit", "@run", "--data=/", "--split=usr"), ("data", "/"), ("data", "/proc"), ("data", "/dev"), ("data", "/usr"),
    ("train", "at", "--budget=short", "--data=/", "--out=out"), ("train", "at", "--budget=short", "--data=/usr", "--out=out"),
)  # fmt: skip


def malformed_limits(random: Random, number: int) -> Iterator[str]:
    """Limits of conditions that are not numbers: random sequences of parts that are not a decimal or a fraction."""
    well_formed = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*%?|[+-]?[0-9]+ ?/ ?[0-9]+")
    found = 0
    while found < number:
        limit = "".join(random.choices(LIMIT_PARTS, k=random.randint(2, 5)))
        if not well_formed.fullmatch(limit.strip()):
            found += 1
            yield limit


def at_equality() -> Iterator[Case]:
    """Conditions whose measure equals the limit: the extreme values, and the change of a model against itself."""
    for measure in ("overall", "worst", "macro", "worst20", "mcd", "nrr", "hmw", "'3'"):
        for limit, never, always in (("0/7", "<", ">="), ("100%", ">", "<=")):
            for comparison, status in ((never, 0), (always, 1)):
                condition = f"{measure}(all) {comparison} {limit}"
                words = audit(ATTACK, f"--fail-if={condition}")
                yield Case(f"at equality: {condition}", words, {}, frozenset({status}))
    for measure in ("overall", "worst", "macro", "worst20", "cv", "mcd", "nrr", "hmw", "'3'"):
        for comparison, status in (("<", 0), (">", 0), ("<=", 1), (">=", 1)):
            condition = f"{measure}(all) {comparison} 0"
            words = ("compare", "a=@audit", "b=@audit", f"--fail-if={condition}")
            yield Case(f"compare at equality: {condition}", words, {}, frozenset({status}))


def cases(random: Random) -> Iterator[Case]:
    """Hostile options."""
    for command, option in (*(("audit", option) for option in AUDIT_NUMBERS), *OTHER_NUMBERS):
        for value in random.sample(NUMBERS, 12):
            words = (command, "@run", ATTACK, *(() if option == "--subset" else ("--subset=40",)))
            words = (*words, *(() if command == "worst-class" else ("--out=out",)), f"{option}={value}")
            yield Case(f"{command} {option}={small(value)}", words, {}, EITHER)
    for option in ("--epochs", "--seed", "--seeds"):
        for value in random.sample(NUMBERS, 9):
            words = tuple(word for word in train("--estimate", f"{option}={value}") if word != "--epochs=1")
            yield Case(f"train {option}={small(value)}", words, {}, EITHER)
    for option in TEXT_OPTIONS:
        for value in random.sample(TEXTS, 5):
            words = ("audit", "@run", "--subset=40", *(() if option == "--attack" else (ATTACK,)), f"{option}={value}")
            if option in ("--out", "--html") and "/" not in value and value.strip(".\0"):
                words = (*words[:-1], f"{option}=out/{value}")  # perhaps a harmless name
            words = words if option == "--out" else (*words, "--out=out")
            yield Case(f"audit {option}={small(value)}", words, {}, EITHER)
    for condition in CONDITIONS:
        yield Case(f"--fail-if {small(condition)}", audit(ATTACK, f"--fail-if={condition}"), {}, EITHER)
    for limit in malformed_limits(random, 40):
        yield Case(f"--fail-if limit {small(limit)}", audit(ATTACK, f"--fail-if=worst(all) < {limit}"))
    for limit in malformed_limits(random, 10):
        words = ("compare", "@audit", "@audit", f"--fail-if=worst(all) < {limit}")
        yield Case(f"compare --fail-if limit {small(limit)}", words)
    yield from at_equality()
    for field, values in FIELDS.items():
        for value in values:
            yield Case(f"set {field}={small(value)}", train(f"--set={field}={value}"), {}, EITHER)
    for setting in ("width=1e9", "width=-1", "width=[", "width=nan", "depth=3", "=", "x", "head=os", "num_classes=1000000000",
                    "in_channels=-1", "width=" + "9" * 5000, "mean=[0.5]", "name=lenet", "weights=x", "data=3", "device=meta",
                    "state_dict_key=x", "width=!!python/name:os.system", "width=*a", "model=x", "head=[cosine]"):  # fmt: skip
        for model in ("lenet", "small-cnn"):
            words = ("audit", model, "--data=digits", "--subset=40", ATTACK, "--out=out", f"--model-set={setting}")
            yield Case(f"{model} --model-set {small(setting)}", words, {}, EITHER)
    for setting in ("depth=1000000000", "depth=-4", "depth=x", "width=1e7", "width=300"):
        words = ("audit", "wideresnet", "--data=digits", "--subset=40", ATTACK, "--out=out", f"--model-set={setting}")
        yield Case(f"wideresnet --model-set {setting}", words, {}, EITHER)
    for width in ("1e9", "1e5", "-1", "nan", "inf", "1e400", "0"):
        words = ("audit", "resnet18", "--data=digits", "--subset=40", ATTACK, "--out=out", f"--width={width}")
        yield Case(f"resnet18 --width={width}", words, {}, EITHER)
    for setting in ("size=0", "size=-1", "size=1000000000", "size=1e9", "size=nan", "size=", "resize=5", "x=1", "per_class=0",
                    "label=x", "corruption=../x", "severity=9" + "9" * 30, "__class__=1", "size=" + "9" * 5000):  # fmt: skip
        yield Case(f"data --data-set {small(setting)}", ("data", "@data", "--data-set", setting), {}, EITHER)
    for words in PLAIN:
        yield Case(f"plain: {' '.join(map(small, words))}", words, {}, EITHER if words[0] in HARMLESS else REFUSED)
    yield Case("one seed twice", train("--estimate", "--seeds=0,0"))
    yield Case("a million seeds", train("--seeds=" + ",".join(map(str, range(100_000))), "--estimate"), {}, EITHER)
    yield Case("ten thousand attacks", audit(*[ATTACK] * 3000, "--estimate"), {}, EITHER)
    yield Case("ten thousand conditions", audit(ATTACK, *["--fail-if=worst(all) < 0"] * 3000), {}, EITHER)
    yield Case("ten thousand changes", train(*["--set=seed=1"] * 5000, "--estimate"), {}, EITHER)
    yield Case("out is a FIFO", (*audit(ATTACK)[:4], "--out=pipe", ATTACK), {"pipe": os.mkfifo})
    yield Case("out is a file", (*audit(ATTACK)[:4], "--out=file", ATTACK), {"file": b"x"})
    yield Case(
        "out is a link to a file",
        (*audit(ATTACK)[:4], "--out=link", ATTACK),
        {"link": lambda p: p.symlink_to("/dev/null")},
    )
    for number, batch in enumerate(("32", "33", "64", "200")):
        yield Case(f"control: batch {number}", audit(ATTACK, f"--batch-size={batch}"), {}, frozenset({0}), CLEAN_AUDIT)


HARMLESS = (
    "compare",
    "report",
    "data",
    "recipes",
    "cite",
    "papers",
    "attacks",
    "models",
    "interpolate-weights",
    "adjust-logits",
    "--",
)
"""Commands whose hostile words may be harmless."""
