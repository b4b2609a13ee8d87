"""Starts of an image side by side: every column is that of starts one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import CountedForward, Engine, Job
from classwise.attacks.engine.queue import Queue
from classwise.attacks.gradient.ascent import PGD, PGDT
from classwise.attacks.minimal.fab import FABTargeted
from classwise.core.compute.precision import Precision
from classwise.core.settings.config import configurable, make
from classwise.threat.ball import Threat

from ..pretend_cuda import PretendCuda
from .models import Small, images, labelled
from .test_graphed_queue import rows_of, same

CLASSES = 5


@dataclass
class Run:
    """The rows of an attack, and the sizes of the passes of its steps."""

    rows: dict[str, Tensor] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    early: int = 0


def attacked(
    attack: Attack,
    count: int,
    *,
    model: nn.Module | None = None,
    device: str = "cpu",
    side_by_side: bool = True,
    early_stop: bool = True,
    poll: int | None = None,
    batch_size: int = 32,
    radius: float = 0.02,
) -> Run:
    """Attack some images, a few of which are misclassified when clean."""
    net, x, y = labelled((model or Small(CLASSES)).eval(), images(count))
    y[::9] = (y[::9] + 1) % CLASSES
    run, forward, early = Run(), CountedForward.__call__, Queue._early

    def counted(self: CountedForward, x: Tensor) -> Tensor:
        run.sizes.append(len(x))
        return forward(self, x)

    def begun(self: Queue, slots: dict[str, Tensor], live: Tensor, free: int) -> dict[str, Tensor] | None:
        rows = early(self, slots, live, free) if side_by_side else None
        run.early += 0 if rows is None else len(rows["row"])
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CountedForward, "__call__", counted)
        patch.setattr(Queue, "_early", begun)
        precision = Precision(graphs="off", search="float32")
        engine = Engine(net.to(device), precision=precision, batch_size=batch_size, early_stop=early_stop, poll=poll)
        jobs = [Job(rows, x[rows], y[rows]) for rows in torch.split(torch.arange(count), 15)]
        run.rows = rows_of(list(engine.attack(attack, Threat("Linf", radius), jobs, images=count)))
    return run


SPECS = ("apgd-t:steps=4", "pgd-t:steps=5", "pgd:steps=4,restarts=4", "md:steps=6,restarts=2", "fab-t:steps=4")


@pytest.mark.parametrize("count", [5, 40, 100])
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_all_columns_are_those_of_starts_one_after_the_other(spec: str, early_stop: bool, count: int) -> None:
    attack = make(ATTACKS, spec)
    found = attacked(attack, count, early_stop=early_stop)
    expected = attacked(attack, count, early_stop=early_stop, side_by_side=False)
    assert found.early > 0
    assert same(found.rows, expected.rows)
    assert 0 < int(found.rows["success"].sum()) < count
    assert len(found.sizes) <= len(expected.sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "early_stop"), [("pgd-t:steps=5", True), ("fab:steps=3,restarts=3", False)])
def test_flags_that_are_read_late_change_no_column(spec: str, early_stop: bool) -> None:
    attack, options = make(ATTACKS, spec), dict[str, Any](early_stop=early_stop, device="cuda", poll=2)
    with PretendCuda():
        found = attacked(attack, 20, **options)
        expected = attacked(attack, 20, side_by_side=False, **options)
    assert found.early > 0
    assert same(found.rows, expected.rows)


class Directions(nn.Module):
    """Three linear logits: the label's, that of a near class that changes slowly, and that of a far one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return (x.mean((2, 3)) - 0.5) @ self.weight.T - torch.tensor([0.0, 0.018, 0.045])


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_first_start_wins_also_if_a_later_one_succeeds_earlier(early_stop: bool) -> None:
    model, x, y = Directions(), torch.full((3, 2, 4, 4), 0.5), torch.zeros(3, dtype=torch.int64)
    attack = PGDT(steps=20, step_size=0.01, random_init="none")
    rows = {}
    for side_by_side in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not side_by_side:
                patch.setattr(Queue, "_early", lambda *_: None)
            engine = Engine(model, batch_size=32, early_stop=early_stop)
            job = Job(torch.arange(3), x, y)
            rows[side_by_side] = rows_of(list(engine.attack(attack, Threat("Linf", 0.2), [job])))
    assert same(rows[True], rows[False])
    assert rows[True]["prediction"].tolist() == [1] * 3
    if early_stop:
        assert rows[True]["iterations"].tolist() == [19] * 3  # the second start needs 5 steps


class Doubtful(Small):
    """Passes with gradients report a lower margin than others, so that candidates fail verification."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits - 0.4 * nn.functional.one_hot(logits.argmax(1), CLASSES) if x.requires_grad else logits


@pytest.mark.parametrize("spec", ["pgd-t:steps=6", "fab-t:steps=4"])
def test_starts_that_waited_for_a_false_candidate_are_resumed(spec: str) -> None:
    attack = make(ATTACKS, spec)
    found = attacked(attack, 40, model=Doubtful(CLASSES), batch_size=48)
    expected = attacked(attack, 40, model=Doubtful(CLASSES), batch_size=48, side_by_side=False)
    assert found.early > 0
    assert same(found.rows, expected.rows)


@configurable
class Carrying(FABTargeted):
    """FAB whose starts continue from the nearest point of the earlier ones."""

    carries: ClassVar[tuple[str, ...]] = ("minimal_distance", "best")


def test_starts_that_continue_from_earlier_ones_run_one_after_the_other() -> None:
    plain, carrying = attacked(FABTargeted(steps=4), 20), attacked(Carrying(steps=4), 20)
    assert plain.early > 0
    assert carrying.early == 0
    for name in ("success", "iterations", "forwards", "backwards", "minimal_distance"):
        assert torch.equal(plain.rows[name], carrying.rows[name])
    robust = ~plain.rows["success"]
    assert torch.equal(plain.rows["x"][~robust], carrying.rows["x"][~robust])


def test_starts_after_a_success_leave_the_batch_at_once() -> None:
    attack = PGD(steps=20, restarts=8)
    found, expected = (attacked(attack, 20, radius=0.03, side_by_side=chosen) for chosen in (True, False))
    assert same(found.rows, expected.rows)
    assert sum(found.sizes) < sum(expected.sizes)


def test_a_cpu_runs_starts_side_by_side_in_the_smallest_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = make(ATTACKS, "pgd:steps=3,restarts=3")
    assert attacked(attack, 48, radius=1e-4, batch_size=64).early == 0
    assert attacked(attack, 4, radius=1e-4, batch_size=64).early > 0
    monkeypatch.setattr("classwise.attacks.engine.queue._MOST_HELD", -1)
    assert attacked(attack, 4, radius=1e-4).early == 0
