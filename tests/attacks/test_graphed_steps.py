"""`GraphedSteps` on small columns, on a pretended GPU: what is copied into a graph, compared with it, and refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor

from classwise.attacks.engine.graphed import VERIFIED, GraphedSteps, GraphUse
from classwise.core.compute.graphs import WARM_UP
from classwise.core.compute.precision import Precision
from tests.refusals import check_refused

from ..pretend_cuda import PretendCuda
from ..pretend_streams import CUDAGraph
from .test_graphed_queue import same

Slots = dict[str, Tensor]
Advance = Callable[[Slots, int], Slots]
TRUSTED = WARM_UP + VERIFIED
"""Steps after which a graph is only repeated."""


@pytest.fixture
def gpu() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


def graphed(advance: Advance, graphs: Literal["auto", "on"] = "on") -> GraphedSteps:
    return GraphedSteps(advance, "attack", GraphUse(Precision(graphs=graphs), torch.empty(0, device="cuda").device))


def slots(size: int, first: int = 0) -> Slots:
    """Columns with values that differ between rows."""
    row = torch.arange(first, first + size, device="cuda")
    return {"row": row, "ended": torch.zeros_like(row).bool(), "state.x": row.double().view(-1, 1), "steps": 0 * row}


def changed(change: Callable[[Tensor], Tensor]) -> Advance:
    """Steps that change the images and count themselves."""

    def advance(columns: Slots, steps: int) -> Slots:
        for _ in range(steps):
            columns = columns | {"state.x": change(columns["state.x"]), "steps": columns["steps"] + 1}
        return columns

    return advance


advanced = changed(lambda x: 2 * x + 1)


@pytest.mark.usefixtures("gpu")
def test_slots_that_were_changed_outside_of_the_graph_are_copied_into_it() -> None:
    """A step that the queue computes itself returns other columns."""
    step = graphed(advanced)
    found = step(slots(6), TRUSTED + 1)
    assert step.owns(found)
    assert same(found, advanced(slots(6), TRUSTED + 1))
    assert not step.owns(slots(6, 10))
    assert same(step(slots(6, 10), 2), advanced(slots(6, 10), 2))
    step.release()
    assert not step.owns(found)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_another_number_of_slots_has_a_graph_of_its_own(gpu: PretendCuda, size: int) -> None:
    step = graphed(advanced)
    step(slots(6), TRUSTED + 1)
    found = step(slots(size, 20), TRUSTED + 2)
    with gpu.counted() as here:
        found = step(found, 1)
    assert (here.launches, here.synchronisations) == (0, [])
    assert same(found, advanced(slots(size, 20), TRUSTED + 3))
    assert [graph.replays for graph in gpu.graphs.made] == [VERIFIED + 1, VERIFIED + 3]


@pytest.mark.usefixtures("gpu")
def test_the_slots_of_the_caller_are_not_modified() -> None:
    step = graphed(advanced)
    given = step(slots(6), WARM_UP)  # the next step captures the graph
    step(given, VERIFIED + 1)
    assert same(given, advanced(slots(6), WARM_UP))


@pytest.mark.usefixtures("gpu")
def test_every_graph_is_verified() -> None:
    """The steps of three rows depend on a Python number, which a graph does not repeat."""
    numbers = itertools.cycle([0, 100])
    step = graphed(changed(lambda x: x + 1 + (next(numbers) if len(x) == 3 else 0)))
    step(slots(6), TRUSTED + 1)
    check_refused(r"^precision.graphs = on: the graph computes another 'x'", step, slots(3), TRUSTED + 1)


@pytest.mark.usefixtures("gpu")
def test_steps_of_ended_rows_verify_nothing() -> None:
    numbers = itertools.cycle([0, 100])
    step = graphed(changed(lambda x: x + 1 + next(numbers)))
    ended = slots(6) | {"ended": torch.ones(6, dtype=torch.bool, device="cuda")}
    after = step(ended, TRUSTED + 2)
    check_refused("the graph computes another 'x'", step, after | {"ended": ~after["ended"]}, 1)


def test_a_refused_step_is_computed_once(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the graph was computed: its result is dropped, and no other graph is tried."""
    monkeypatch.setattr("classwise.attacks.engine.graphed.FEWEST_STEPS", WARM_UP)
    step = graphed(changed(lambda x: x + 1 if gpu.graphs.capture is None else x * 3), "auto")
    assert same(step(slots(6), TRUSTED + 3), changed(lambda x: x + 1)(slots(6), TRUSTED + 3))
    assert [graph.replays for graph in gpu.graphs.made] == [1]


DIFFERENCES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], bool]] = {
    "not a number": (lambda x: x + 1, lambda x: x * torch.nan, True),
    "infinite": (lambda x: x + 1, lambda x: x + torch.inf, True),
    "both not a number": (lambda x: x * torch.nan, lambda x: x * torch.nan, False),
    "both infinite": (lambda x: x + torch.inf, lambda x: x + torch.inf, False),
    "few rows": (lambda x: x + 1, lambda x: torch.where(x > 6, x + 9, x + 1), False),
    "half of the change": (lambda x: x + 1, lambda x: x + 1.49, False),
    "more than half of the change": (lambda x: x + 1, lambda x: x + 1.51, True),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_differences_that_are_refused(gpu: PretendCuda, name: str) -> None:
    """The median over the rows, as a fraction of the change by the step."""
    eager, captured, refused = DIFFERENCES[name]
    step = graphed(changed(lambda x: captured(x) if gpu.graphs.capture is not None else eager(x)))
    if refused:
        check_refused("the graph computes another 'x'", step, slots(6), WARM_UP + 1)
    else:
        step(slots(6), WARM_UP + 1)


def test_both_computations_of_a_step_draw_the_same_numbers(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator of the device has the same state before the step and before the graph of it."""
    events: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: events.append("saved") or "state")  # type: ignore[func-returns-value]
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, _: events.append(state))
    replay = CUDAGraph.replay

    def noted(graph: CUDAGraph) -> None:
        events.append("graph")
        replay(graph)

    def change(x: Tensor) -> Tensor:
        events.append("capture" if gpu.graphs.capture is not None else "step")
        return x + 1

    monkeypatch.setattr(CUDAGraph, "replay", noted)
    graphed(changed(change))(slots(6), TRUSTED + 1)
    verified = ["saved", "step", "state", "graph"]
    assert events == [*["step"] * WARM_UP, "capture", *verified * VERIFIED, "graph"]
