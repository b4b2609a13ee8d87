"""Signals at several moments: the right exit status, no process left, and the same numbers after resuming."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.hostile.callables import HEAD, ORDERED
from tests.hostile.case import QUICK, Case

SENDS = b"""
import os, signal
from pathlib import Path

def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

class Sends(Net):
    passes = 0
    def forward(self, x):
        Sends.passes += 1
        sent = Path("runs/sent")
        if Sends.passes == MOMENT and not sent.exists():
            sent.parent.mkdir(exist_ok=True)
            sent.touch()
            process = os.getpid()
            for _ in range(ABOVE):
                process = parent(process)
            os.kill(process, signal.NUMBER)
        return super().forward(x)
"""
STOPPED = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}
"""The signals that stop a command, which saves its work, and its status."""
KILLED = {"SIGKILL": -9, "SIGQUIT": -3, "SIGXCPU": -24, "SIGUSR1": -10, "SIGSEGV": -11, "SIGABRT": -6}
"""Signals that end a process at once."""
IGNORED = ("SIGPIPE", "SIGALRM", "SIGCHLD", "SIGWINCH", "SIGCONT")
STATUSES = STOPPED | KILLED | dict.fromkeys(IGNORED, 0)
MODEL = ("mine:build", "--data=digits", "--subset=40", "--threat=Linf:0.1", "--batch-size=32", "--json")
TRAINED = tuple(word for word in QUICK if "model." not in word and "epochs" not in word)
TRAIN = ("train", "at", "--budget=short", "--data=digits", "--epochs=2", "--set=model.name=mine:build", *TRAINED)
JUDGED = ("--subset=40", "--attack=fgsm", "--json")
PLAN = b"models: ['mine:build']\ndata: [digits]\naudits: {audit: {subset: 40, threat: 'Linf:0.1', attack: ['pgd:steps=3']}}\n"
COMMANDS = {
    "audit": (("audit", *MODEL, "--attack=pgd:steps=3"), (1, 3, 6)),
    "curve": (("curve", *MODEL[:-1], "--json", "--attack=pgd:steps=3", "--rounds=2"), (1, 5)),
    "worst": (("worst-class", *MODEL, "--attack=fgsm", "--attack=pgd:steps=3"), (1, 4)),
    "train": (TRAIN, (1, 4, 9)),
}
"""Commands that are resumed, and the passes of the model before which the signal is sent."""


def module(signal: str, moment: int, above: int = 0) -> bytes:
    """A module whose model sends a signal, once: to its process, or to the one so many above it."""
    code = SENDS.replace(b"NUMBER", signal.encode()).replace(b"MOMENT", b"%d" % moment).replace(b"ABOVE", b"%d" % above)
    order = b"ORDER = [*range(10)]\n" + ORDERED.replace(b"net = Net()", b"net = Sends()")
    return HEAD + code + order.replace(b"num_classes=10, in_channels=1", b"num_classes=10, in_channels=1, **_")


def cases(random: Random) -> Iterator[Case]:
    """Commands whose model sends a signal, and the commands that resume them, which give the numbers of a new run."""
    del random
    for command, (words, moments) in COMMANDS.items():
        for signal, status in STATUSES.items():
            for moment in moments if signal in ("SIGHUP", "SIGTERM", "SIGINT", "SIGKILL") else moments[-1:]:
                after = [(*words, "--out=out", "--resume"), (*words, "--out=audits/new")]
                if command == "train":
                    after += [("audit", model, *JUDGED, f"--out=runs/{model[:3]}") for model in ("out", "audits/new")]
                yield Case(
                    f"{signal} in pass {moment} of {command}",
                    (*words, "--out=out"),
                    {"mine.py": module(signal, moment)},
                    frozenset({status}),
                    after=tuple(after),
                    heavy=True,
                )
    # The call of a cell, its task, and the sweep.
    for above, name in enumerate(("call", "task", "sweep")):
        for signal in ("SIGHUP", "SIGTERM", "SIGINT", "SIGKILL"):
            status = (STOPPED | KILLED)[signal] if name == "sweep" else 3
            yield Case(
                f"{signal} to the {name} of a cell",
                ("sweep", "run", "plan.yaml", "--out=out"),
                {"mine.py": module(signal, 3, above), "plan.yaml": PLAN},
                frozenset({status}),
                after=(("sweep", "resume", "out"), ("audit", "mine:build", "--data=digits", *JUDGED, "--out=runs/new")),
                heavy=True,
            )
