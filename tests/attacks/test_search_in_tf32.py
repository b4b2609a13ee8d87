"""Searches in TF32, emulated on a pretended GPU: verdicts and reports are those of float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.engine import Engine, Job, Passes
from classwise.attacks.engine.queue import _FAILURES, Queue
from classwise.core.compute.precision import EXACT, FAST, FLOAT32, Precision
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from ..pretend_cuda import PretendCuda, convolves_in_tf32
from .models import Small, images, labelled
from .test_graphed_queue import rows_of

CLASSES = 4
COUNT = 36


def attacked(
    spec: str, radius: float, device: str, *, early_stop: bool, precision: Precision = FAST
) -> dict[str, Tensor]:
    """All columns of the finished rows, in the order of the images."""
    model, x, y = labelled(Small(CLASSES).eval(), images(COUNT))
    engine = Engine(model.to(device), precision=precision, batch_size=32, early_stop=early_stop)
    attack = make(ATTACKS, spec)
    blocks = list(engine.attack(attack, Threat(attack.norms[0], radius), [Job(torch.arange(COUNT), x, y)]))
    assert engine.passes.unfused == ""
    return rows_of(blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "radius"),
    [("fab-t:steps=5,targets=1", 0.03), ("square:steps=60", 0.03), ("nattack:steps=4,samples=8", 0.06)],
)
def test_successes_are_those_of_float32(spec: str, radius: float) -> None:
    on_cpu = attacked(spec, radius, "cpu", early_stop=True, precision=FLOAT32)
    with PretendCuda(rounds=True) as gpu:
        on_gpu = attacked(spec, radius, "cuda", early_stop=True)
    assert gpu.in_tf32
    assert all(
        " _advance" in place for place in gpu.in_tf32
    )  # no pass of a verdict, of `confirm`, or of the copy's test
    assert int((on_gpu["success"] != on_cpu["success"]).sum()) <= 1
    assert 0 < int(on_cpu["success"].sum()) < COUNT
    assert not torch.equal(on_gpu["x"], on_cpu["x"])


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["fab-t:steps=5,targets=1", "fab:steps=4"])
def test_the_nearest_points_are_misclassified_in_float32(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, clean, y = labelled(Small(CLASSES).eval(), images(COUNT))

    def misclassified(rows: dict[str, Tensor]) -> Tensor:
        wrong: Tensor = model(rows["x"]).argmax(1) != y
        return wrong

    in_float32 = attacked(spec, 1.0, "cpu", early_stop=False, precision=FLOAT32)
    with PretendCuda(rounds=True) as gpu:
        confirmed = attacked(spec, 1.0, "cuda", early_stop=False)
        monkeypatch.setattr(Queue, "_confirmed", lambda _, rows: rows)
        unconfirmed = attacked(spec, 1.0, "cuda", early_stop=False)
    assert all(" _advance" in place for place in gpu.in_tf32)
    found = confirmed["minimal_distance"].isfinite()
    assert torch.equal(found, in_float32["minimal_distance"].isfinite())
    assert torch.equal(found, misclassified(confirmed))
    assert torch.equal(found, confirmed["success"])
    distance = Threat("Linf", 1.0).distance(confirmed["x"], clean)
    assert torch.equal(distance[found], confirmed["minimal_distance"][found])
    ratio = confirmed["minimal_distance"][found] / in_float32["minimal_distance"][found]
    assert float((ratio - 1).abs().median()) < 0.01  # the logits of this network change by 1 % in TF32
    assert int(found.sum()) > COUNT // 2
    assert not misclassified(unconfirmed)[unconfirmed["minimal_distance"].isfinite()].all()


class Disagreeing(nn.Module):
    """Predicts label 0 in true float32, and another one in TF32."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        first = x.new_full((len(x), 1), -1e-3 if convolves_in_tf32() else 2e-3)
        return torch.cat([first, x.new_zeros(len(x), 1)], 1) + self.zero * x.mean()


@pytest.mark.parametrize("spec", ["square:steps=20", "fab-t:steps=20,targets=1"])
def test_false_successes_of_a_row_are_bounded(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[int] = []
    decide = Passes.decide

    def counted(self: Passes, x: Tensor, y: Tensor) -> Any:
        decided.append(len(x))
        return decide(self, x, y)

    monkeypatch.setattr(Passes, "decide", counted)
    with PretendCuda():
        engine = Engine(Disagreeing().to("cuda"), precision=FAST, batch_size=4, poll=1)
        job = Job(torch.arange(4), images(4), torch.zeros(4, dtype=torch.int64))
        (rows,) = engine.attack(make(ATTACKS, spec), Threat("Linf", 0.1), [job])
    assert not rows.success.any()
    assert 4 * _FAILURES <= sum(decided) <= 4 * (_FAILURES + 3)


def test_an_audit_records_the_search_and_is_resumed_with_it(tmp_path: Path) -> None:
    data = cw.Images(images(40), torch.arange(40) % CLASSES)
    options: dict[str, Any] = {"threat": "Linf:0.05", "attacks": ["square:steps=3"], "guards": "off"}

    def recorded(device: str, folder: str, **more: Any) -> Any:
        audit = cw.audit(Small(CLASSES), data, device=device, out=tmp_path / folder, **options, **more)
        return audit.outcomes.meta.precision.get("search")

    with PretendCuda() as gpu:
        assert recorded("cuda", "default") == "tf32"
        assert any(" _advance" in place for place in gpu.in_tf32)
        del gpu.in_tf32[:]
        assert recorded("cuda", "float32", precision="float32") is None
        assert recorded("cuda", "chosen", precision=Precision(dtype="bfloat16", search="float32")) is None
        assert recorded("cuda", "chosen", resume=True) is None
        assert not any(" _advance" in place for place in gpu.in_tf32)
    assert recorded("cpu", "cpu", precision=FAST) is None
    assert recorded("cpu", "default", resume=True) == "tf32"
    with PretendCuda() as gpu:
        assert recorded("cuda", "cpu", resume=True) is None  # also where the rows of an older audit are resumed
        check_refused("precision", recorded, "cuda", "cpu", resume=True, precision=FAST)
        assert not any(" _advance" in place for place in gpu.in_tf32)


@pytest.mark.parametrize(("chosen", "tf32"), [(None, True), (EXACT, False), (FLOAT32, False)])
def test_autoattack_uses_the_fastest_precision_of_a_gpu(chosen: Precision | None, tf32: bool) -> None:
    engines: list[Precision] = []

    class Noted(Engine):
        def __init__(self, *args: Any, precision: Precision, **options: Any) -> None:
            engines.append(precision)
            super().__init__(*args, precision=precision, **options)

    model, x = Small(CLASSES), images(8)
    with pytest.MonkeyPatch.context() as patch, PretendCuda() as gpu:
        patch.setattr("classwise.attacks.autoattack.Engine", Noted)
        options: dict[str, Any] = {"eps": 0.01, "version": "custom", "attacks_to_run": ["fab-t"], "verbose": False}
        suite = AutoAttack(model, **options, precision=chosen)  # before the model is moved
        suite.attacks["fab-t"] = make(ATTACKS, "fab-t:steps=1,targets=1")
        suite.run_standard_evaluation(x, torch.zeros(8, dtype=torch.int64), bs=4)
        assert set(engines) == {EXACT if chosen is None else chosen}
        engines.clear()
        model.to("cuda")
        suite.run_standard_evaluation(x, torch.zeros(8, dtype=torch.int64), bs=4)
        assert set(engines) == {chosen or FAST}
    assert bool(gpu.in_tf32) == tf32
