"""Audits of two processes of one group, which write their results into a folder."""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import classwise as cw
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.run import inputs
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.cli import main
from classwise.core.compute.precision import EXACT
from classwise.core.errors import ClasswiseError
from classwise.data.stream import Stream
from classwise.models import fingerprint, load_model
from tests.auditing import toys
from tests.auditing.public_data import SETTINGS as PUBLIC_SETTINGS
from tests.auditing.public_data import images
from tests.auditing.toys import Listener
from tests.models.networks import PUBLIC
from tests.models.test_content import VALUES, Extra

NETWORKS = ("perceptron", "static int8", "scripted", "function")
"""Public networks of several kinds, whose outputs do not depend on the other images of a batch."""
SETTINGS: dict[str, Any] = {
    "threat": "Linf:0.05",
    "attacks": ["pgd:steps=3", "fgsm"],
    "precision": EXACT,
    "batch_size": 32,
}


class Failing(toys.Linear):
    """A model that fails after some passes."""

    left = 3

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise ClasswiseError("the cat sat on the power switch")
        return super().forward(x)


def said(call: Any) -> str:
    """The error message of a call."""
    try:
        call()
    except ClasswiseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def command_line(folder: Path) -> dict[str, Any]:
    words = ["audit", str(folder / "model.safetensors"), "--data=digits", "--subset=120", "--cascade"]
    words += ["--threat=Linf:0.03"]
    words += ["--attack=pgd:steps=3", "--attack=fgsm", f"--out={folder / 'cli'}"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    first = status, out.getvalue(), err.getvalue()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    return {"cli": first, "cli again": (status, out.getvalue(), err.getvalue())}


def sampled(net: toys.Linear, **settings: Any) -> Audit:
    """An estimate from a sample under a small AutoAttack."""
    with toys.small_autoattack():
        data = toys.images(201, strength=(0.033, 0.036, 0.04))
        found = audit(net, data, "Linf:0.03", "autoattack", settle=0.05, batch_size=32, precision=EXACT, **settings)
        assert found.estimator is not None  # it depends on these suites, and is cached in the pickled result
        return found


def python(folder: Path, rank: int) -> dict[str, Any]:
    data, net = toys.images(101), toys.model()
    inputs.PIECE_BYTES = 10_000  # a stream in several pieces
    found: dict[str, Any] = {}
    found["shared"] = audit(net, data, save="logits", trace=[4, 80], **SETTINGS)
    if rank == 0:
        found["alone"] = audit(net, data, save="logits", trace=[4, 80], distributed=False, **SETTINGS)
        with contextlib.suppress(KeyboardInterrupt):
            audit(net, data, out=folder / "killed", progress=Listener(120), distributed=False, **SETTINGS)
        found["begun"] = len(list((folder / "killed" / "outcomes").glob("part-*")))
    dist.barrier()
    found["resumed"] = audit(net, data, out=folder / "killed", resume=True, **SETTINGS)
    found["stream"] = audit(net, Stream(list(zip(data.x, data.y, strict=True)), data.class_names), **SETTINGS)
    search: dict[str, Any] = {
        "highest": 0.1,
        "rounds": 4,
        "precision": EXACT,
        "batch_size": 32,
        "attacks": "pgd:steps=4",
    }
    found["curve"] = robustness_curve(net, data, "Linf", **search)
    with contextlib.suppress(KeyboardInterrupt):
        cut = said(lambda: robustness_curve(net, data, "Linf", out=folder / "curve", progress=Listener(120), **search))
        found["curve cut"] = cut, sorted(path.name for path in (folder / "curve" / "rounds").iterdir())
    found["sample"] = sampled(net, distributed=True)
    if rank == 0:
        found["sample alone"] = sampled(net, distributed=False)
    dist.barrier()
    if rank == 0:
        found["curve alone"] = robustness_curve(net, data, "Linf", distributed=False, **search)
        resumed = robustness_curve(net, data, "Linf", distributed=False, out=folder / "curve", resume=True, **search)
        found["curve resumed"] = resumed
    pairs = toys.images(101, classes=2)
    binary = load_model(lambda x: net(x)[:, 1] - net(x)[:, 0], outputs="binary")
    found["binary"] = audit(binary, pairs, **SETTINGS)
    if rank == 0:
        found["binary alone"] = audit(binary, pairs, distributed=False, **SETTINGS)
    dist.barrier()
    began = time.monotonic()
    other = Failing(toys.patterns(3), 0.2).eval()
    other.left = 3 if rank == 1 else 1 << 30
    found["failure"] = said(lambda: audit(other, data, **SETTINGS))
    found["failure seconds"] = time.monotonic() - began
    found["differ"] = said(lambda: audit(net, data, seed=rank, **SETTINGS))
    shuffled = data.take(torch.arange(101).flip(0)) if rank else data
    stream = Stream(list(zip(shuffled.x, shuffled.y, strict=True)), data.class_names)
    found["shuffled"] = said(lambda: audit(net, stream, **SETTINGS))
    found["after"] = audit(net, data, **SETTINGS).outcomes.frame
    return found


def public(rank: int) -> dict[str, Any]:
    """Audits of networks of several kinds, and fingerprints of contents."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # int8 tensors and TorchScript are deprecated
        for name in NETWORKS:
            network, data = PUBLIC[name].network(), images(name)
            found[name] = cw.audit(network, data, guards="off", **PUBLIC_SETTINGS).outcomes.frame
            if rank == 0:
                alone = cw.audit(network, data, guards="off", distributed=False, **PUBLIC_SETTINGS)
                found[f"{name} alone"] = alone.outcomes.frame
            dist.barrier()
        found["fingerprints"] = {name: fingerprint(Extra(make())) for name, (make, _) in VALUES.items()}
    return found


def run(folder: Path) -> None:
    """Run all evaluations and save their results."""
    torch.set_num_threads(1)
    found = command_line(folder)  # which initialises the group
    rank = dist.get_rank()
    found |= python(folder, rank) | public(rank)
    found["threads"] = [thread.name for thread in threading.enumerate()]
    (folder / f"rank-{rank}.pkl").write_bytes(pickle.dumps(found))
    dist.barrier()
