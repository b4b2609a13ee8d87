"""Specs: attacks, threats, and names of Python objects that are not what is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.hostile.case import ATTACK, EITHER, REFUSED, Case, audit, small, train

ATTACKS = (
    "", " ", ":", "::", ",", "=", "pgd:", "pgd:,", "pgd:=", "pgd:steps", "pgd:steps=", "pgd:=3", "pgd:steps=1e99",
    "pgd:steps=-1", "pgd:steps=0", "pgd:steps=nan", "pgd:steps=1.5", "pgd:steps=99999999999999999999999999",
    "pgd:step_size=inf", "pgd:step_size=nan", "pgd:step_size=-1", "pgd:step_size=1/0", "pgd:step_size=1e400",
    "pgd:step_size=0eps", "pgd:step_size=-1eps", "pgd:step_size=naneps", "pgd:step_size=infeps", "pgd:step_size=1e400eps",
    "pgd:step_size=1e999999999", "pgd:step_size=1e999999999/3", "pgd:restarts=1e18", "pgd:restarts=1000000000000",
    "pgd:steps=1000000000000", "pgd:objective=", "pgd:objective=os:system", "pgd:steps=1,steps=2", "pgd.steps=1",
    "pgd:steps.steps=1", "pgd:steps.a.b.c=1", "pgd:name=fgsm", "pgd:__class__=1", "pgd:__init__=1", "pgd:self=1",
    "PGD", "pgd\0", "pgd\n", "\u202epgd", "ｐｇｄ", "pgd:steps=１", "pgd:steps=٣", "💥", "pgd:" + "steps=1," * 5000,
    "pgd:" + "a." * 1500 + "b=1", "pgd:" + "a." * 20000 + "b=1", "x" * 100_000, "pgd:steps=" + "9" * 5000,
    "transfer:attack=transfer", "transfer:attack=transfer,attack.attack=transfer,attack.attack.attack=transfer",
    "transfer:surrogate=/dev/zero", "transfer:surrogate=.", "transfer:surrogate=none.pt,attack=pgd",
    "transfer:attack=os:system,surrogate=@weights", "external", "external:attack=os:system", "external:build=os:system",
    "external:attack=builtins:exit", "external:build=builtins:print", "external:attack=x", "external:attack=os:sep",
    "external:attack=a:b,build=c:d", "external:attack=subprocess:run", "autoattack:version=", "autoattack:version=x",
    "autoattack:steps=3", "autoattack:version.x=3", "fast:version=rand", "nattack:samples=10000000000", "square:steps=-5",
    "square:steps=1e18", "square:p_init=2", "apgd-t:targets=0", "apgd-t:targets=1000000", "fab-t:targets=-1", "mim:decay=nan",
    "cw:confidence=nan", "tpgd:inverse_temperature=nan", "tpgd:inverse_temperature=0", "tpgd:inverse_temperature=1e400",
)  # fmt: skip

THREATS = (
    "", ":", "Linf", "Linf:", "Linf:1e400", "Linf:nan", "Linf:inf", "Linf:-inf", "Linf:8/0", "Linf:0/0", "Linf:-0.0",
    "L2:-1", "L2:1e-400", "L1:", "L0:1", "L3:1", "Linf:8/255/2", "Linf:8:255", "Linf:0x10", "Linf:1_0", "Linf:١",
    "Linf:1e999999999", "Linf:1e-999999999", "Linf:" + "9" * 5000, "Linf:1/" + "9" * 5000, "Linf:1e99999999999999999999",
    "linf:abc", "\0", "Linf:0.1\0", "\u202eLinf:0.1", "x" * 100_000, "Linf:" + "0" * 100_000 + "1", "cifar10:1",
    "os:system", "Linf:1e308", "L2:1e308", "L1:1e308", "Linf:1/3e-400", "Linf:True", "Linf:None", "Linf: 0.1 ",
)  # fmt: skip

OBJECTS = (
    "os:system", "os:abort", "os:_exit", "builtins:eval", "builtins:exec", "builtins:print", "builtins:exit",
    "builtins:int", "builtins:dict", "builtins:type", "subprocess:run", "subprocess:Popen", "sys:exit", "pathlib:Path",
    "torch:nn", "torch:load", "torch.nn:Module", "torch.nn:Linear", "os:sep", "os:environ", ":", "os:", ":system",
    "os:system:x", "no.such:thing", "..a:b", "os..path:join", "a b:c", "\0:x", "é:x", "classwise:__doc__",
    "classwise.attacks.gradient.ascent:PGD", "classwise.data.sets.digits:Digits", "classwise.models.zoo.small_cnn:LeNet",
    "collections:abc", "x" * 5000 + ":y", "os:" + "y" * 5000, "classwise.core.settings.config:settings", "abc:ABC",
    "classwise.attacks.base:Attack", "classwise.training.objectives.base:Objective",
)  # fmt: skip

PLACES = (
    "attack", "validation_attack", "objective", "objective.criterion", "schedules", "reduction", "update", "optimizer",
    "lr_schedule", "averaging", "selection", "data.augment", "model.name", "data.name",
)  # fmt: skip


def statuses(spec: str) -> frozenset[int]:
    """A external attack is the user's own code, which may raise."""
    return EITHER | {4} if spec.startswith("external") else EITHER


def cases(random: Random) -> Iterator[Case]:
    """Hostile specs."""
    for spec in ATTACKS:
        yield Case(f"audit --attack {small(spec)}", audit(f"--attack={spec}", "--estimate"), {}, statuses(spec))
    for spec in random.sample(ATTACKS, 40):
        yield Case(f"train attack={small(spec)}", train("--set", f"attack={spec}", "--estimate"), {}, statuses(spec))
    for spec in random.sample(ATTACKS, 12):
        yield Case(
            f"adjust-logits --attack {small(spec)}",
            ("adjust-logits", "@run", "--attack", spec, "--out=out/o.pt"),
            {},
            statuses(spec),
        )
    for spec in random.sample(ATTACKS, 12):
        yield Case(f"attacks {small(spec)}", ("attacks", spec), {}, EITHER)
    for spec in random.sample(ATTACKS, 12):
        yield Case(f"cite {small(spec)}", ("cite", spec), {}, EITHER)
    for threat in THREATS:
        yield Case(f"audit --threat {small(threat)}", audit(ATTACK, f"--threat={threat}"), {}, EITHER)
    for threat in random.sample(THREATS, 20):
        yield Case(f"train threat={small(threat)}", train("--set", f"threat={threat}", "--estimate"), {}, EITHER)
    for threat in random.sample(THREATS, 20):
        words = ("curve", "@run", "--subset=40", ATTACK, f"--threat={threat}", "--rounds=1", "--out=out")
        yield Case(f"curve --threat {small(threat)}", words, {}, EITHER)
    for threat in random.sample(THREATS, 12):
        search = ("worst-class", "@run", "--subset=40", ATTACK, f"--threat={threat}")
        yield Case(f"worst-class --threat {small(threat)}", search, {}, EITHER)
    for path in OBJECTS:
        yield Case(f"audit {small(path)}", ("audit", path, "--data=digits", "--out=out", ATTACK), {}, EITHER | {4})
        yield Case(f"audit --attack {small(path)}", audit(f"--attack={path}"), {}, EITHER)
        yield Case(f"audit --data {small(path)}", audit(ATTACK, f"--data={path}"), {}, EITHER)
    grid = [(place, path) for place in PLACES for path in OBJECTS]
    for place, path in random.sample(grid, 130):
        value = f"[{path!r}]" if place == "schedules" else path
        yield Case(f"object: {place}={small(path)}", train(f"--set={place}={value}"), {}, EITHER)
    for place in PLACES:
        if place.endswith(".name"):
            continue
        value = '{name: "subprocess:run", args: [touch, evil]}'
        value = f"[{value}]" if place == "schedules" else value
        yield Case(f"object with arguments: {place}", train(f"--set={place}={value}"))
    for data in random.sample(OBJECTS, 12):
        yield Case(f"data {small(data)}", ("data", data), {}, REFUSED)
