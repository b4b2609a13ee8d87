"""Commands in a program whose state of torch is not its usual one: they print the numbers of the usual state."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.ambient_states import STATES
from tests.hostile.case import Case

INPUTS = ("preactresnet18", "--weights=@trained", "--data=digits", "--subset=100", "--json")
AUDIT = ("audit", *INPUTS, "--threat=Linf:0.05")
COMMANDS = {
    "audit": (*AUDIT, "--attack=pgd:steps=3", "--attack=apgd-dlr:steps=2"),
    "audit without gradients": (*AUDIT, "--attack=square:steps=5"),
    "audit of minimal perturbations": (*AUDIT, "--attack=fab:steps=2", "--attack=cw:steps=2"),
    "audit in bfloat16": (*AUDIT, "--attack=pgd:steps=2", "--precision=bfloat16"),
    "curve": ("curve", *INPUTS, "--attack=fgsm", "--rounds=3"),
    "worst class": ("worst-class", *INPUTS, "--threat=Linf:0.05", "--attack=fgsm", "--attack=pgd:steps=2"),
}
"""Commands that print JSON."""


def cases(_: Random) -> Iterator[Case]:
    """Every command in every state."""
    for state, context in STATES.items():
        for name, words in COMMANDS.items():
            yield Case(f"{name}, {state}", (*words, "--out=out"), {}, frozenset({0}), words, around=context)
