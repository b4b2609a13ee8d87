"""Steps of attacks as CUDA graphs, on a pretended GPU: the bits are those of steps computed kernel by kernel."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Finished, Job
from classwise.attacks.engine import graphed as graphed_steps
from classwise.attacks.engine.graphed import VERIFIED, GraphedSteps, GraphUse
from classwise.attacks.engine.passes import CountedForward
from classwise.attacks.engine.polling import EndedSlots
from classwise.attacks.engine.queue import BatchSizes
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.graphs import FEWEST_STEPS, WARM_UP, waits_noted
from classwise.core.compute.precision import Precision
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training.evaluation import Evaluation
from classwise.training.recipe import Recipe
from tests.refusals import check_refused

from ..auditing.toys import Listener
from ..pretend_cuda import PretendCuda
from .models import Small, images
from .test_contract import named

CLASSES = 4
Arithmetic = Literal["float32", "bfloat16"]


def labels(model: nn.Module, x: Tensor) -> Tensor:
    """The predictions, except for some images, which are then misclassified before any attack."""
    y: Tensor = model.eval()(x).argmax(1)
    y[::9] = (y[::9] + 1) % CLASSES
    return y


def attacked(
    attack: Attack,
    graphs: Literal["auto", "on", "off"],
    *,
    model: nn.Module | None = None,
    count: int = 14,
    batch_size: int = 4,
    early_stop: bool = True,
    dtype: Arithmetic = "bfloat16",
    radius: float = 0.03,
    columns: dict[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], Engine]:
    """All columns of the finished rows in the order of the images, and the engine."""
    net, x = model or Small(CLASSES), images(count)
    y = labels(net.cpu(), x)
    precision = Precision(dtype=dtype, graphs=graphs)
    engine = Engine(net.to("cuda"), precision=precision, batch_size=batch_size, early_stop=early_stop)
    parts = [torch.split(column, 5) for column in (torch.arange(count), x, y)]
    more = [{name: value[rows] for name, value in (columns or {}).items()} for rows in parts[0]]
    jobs = [Job(index, x, y, extra) for index, x, y, extra in zip(*parts, more, strict=True)]
    return rows_of(list(engine.attack(attack, Threat(attack.norms[0], radius), jobs))), engine


def rows_of(blocks: list[Finished]) -> dict[str, Tensor]:
    tables = [{**vars(block), **block.records} for block in blocks]
    joined = {name: torch.cat([table[name].cpu() for table in tables]) for name in tables[0] if name != "records"}
    order = joined["index"].argsort()
    return {name: column[order] for name, column in joined.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def brief(name: str) -> Attack:
    """The attack with few steps."""
    attack: Any = named(name, CLASSES)
    fewer = {"samples": 3, "targets": 2, "binary_search_steps": 1, "decrease_factor": 0.1}
    fewer |= {"steps": 5} if attack.length > 1 else {}
    names = {field.name for field in dataclasses.fields(attack)}
    shorter: Attack = dataclasses.replace(attack, **{key: value for key, value in fewer.items() if key in names})
    return shorter


CAPTURABLE = [name for name in ATTACKS if name != "external"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")
@pytest.mark.parametrize("name", CAPTURABLE)
def test_the_bits_are_those_of_steps_without_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_steps, "WARM_UP", 2)  # the first fills caches
    monkeypatch.setattr(graphed_steps, "VERIFIED", 1)
    attack = brief(name)
    count = 20 if attack.length == 1 else 5
    with PretendCuda() as gpu:
        graphed, engine = attacked(attack, "on", count=count, dtype="float32")
        made = list(gpu.graphs.made)
        plain, _ = attacked(attack, "off", count=count, dtype="float32")
        assert len(gpu.graphs.made) == len(made)
    assert same(graphed, plain)
    assert engine.not_graphed(attack) == ""
    assert sum(graph.replays for graph in made) > 1


CASES: dict[str, dict[str, Any]] = {
    "all steps": {"early_stop": False, "count": 9},
    "radii, targets and step sizes": {
        "columns": {
            "epsilon": torch.linspace(0.01, 0.06, 14),
            "target": torch.arange(14) % 3 - 1,
            "step_size": torch.linspace(0.001, 0.01, 14),
        }
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_bits_for_other_options(options: dict[str, Any]) -> None:
    attack = PGD(steps=6, restarts=2)
    with PretendCuda() as gpu:
        graphed, _ = attacked(attack, "on", **options)
        assert sum(graph.replays for graph in gpu.graphs.made) > VERIFIED
        plain, _ = attacked(attack, "off", **options)
    assert same(graphed, plain)


def test_the_tail_has_graphs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once no row is pending, the batch is smaller, and so is its graph; a step in between is computed as before."""
    monkeypatch.setattr("classwise.attacks.engine.queue.SMALLEST_BATCH", 4)
    monkeypatch.setattr("classwise.attacks.engine.queue.NARROWEST", 1)
    monkeypatch.setattr(graphed_steps, "WARM_UP", 2)
    monkeypatch.setattr(graphed_steps, "VERIFIED", 1)
    sizes: list[int] = []
    capture = graphed_steps._Capture.__init__

    def noted(self: Any, step: Any, slots: dict[str, Tensor], side: Any) -> None:
        sizes.append(len(slots["row"]))
        capture(self, step, slots, side)

    monkeypatch.setattr(graphed_steps._Capture, "__init__", noted)
    attack, radius = PGD(steps=40, step_size="0.05eps"), 0.06
    with PretendCuda() as gpu:
        graphed, _ = attacked(attack, "on", count=16, batch_size=16, radius=radius)
        replays = [graph.replays for graph in gpu.graphs.made]
        plain, _ = attacked(attack, "off", count=16, batch_size=16, radius=radius)
    assert same(graphed, plain)
    assert sizes[0] == 16
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert min(replays) > 0


class Counting(Small):
    """A model whose passes depend on their number."""

    def __init__(self) -> None:
        self.passes = 0
        super().__init__(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x) * (1 + self.passes % 2)


class Reading(Small):
    """A model that reads a value from the GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.detach().mean()) > -1 else x


class Failing(Small):
    """A model that cannot be captured, for a reason that only the capture shows."""

    def __init__(self, gpu: PretendCuda) -> None:
        object.__setattr__(self, "gpu", gpu)
        super().__init__(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.gpu.graphs.capture is not None:  # type: ignore[union-attr]
            raise RuntimeError("not in a capture\nmore")
        return super().forward(x)


REFUSED: dict[str, tuple[Any, str]] = {
    "python state": (lambda _: Counting(), r"the graph computes another '\w+'"),
    "synchronisation": (lambda _: Reading(CLASSES), "it waits for the GPU"),
    "error": (Failing, "RuntimeError: not in a capture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_steps_are_computed_kernel_by_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_steps, "FEWEST_STEPS", WARM_UP)
    make_model, reason = REFUSED[name]
    attack = PGD(steps=8)
    with PretendCuda() as gpu:
        graphed, engine = attacked(attack, "auto", model=make_model(gpu), dtype="float32", count=8)
        assert re.fullmatch(reason, engine.not_graphed(attack))
        made = list(gpu.graphs.made)
        assert len(made) == (0 if name == "synchronisation" else 1)  # once, also for other batches
        assert sum(graph.replays for graph in made) <= VERIFIED
        if name != "python state":
            plain, _ = attacked(attack, "off", model=make_model(gpu), dtype="float32", count=8)
            assert same(graphed, plain)
        check_refused(
            rf"^precision.graphs = on: {reason}; set it to auto or off$",
            attacked,
            attack,
            "on",
            model=make_model(gpu),
            dtype="float32",
            count=8,
        )


def test_an_audit_reports_attacks_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_steps, "FEWEST_STEPS", WARM_UP)
    data = cw.Images(images(32), torch.arange(32) % CLASSES)
    progress = Listener()
    with PretendCuda():
        options: dict[str, Any] = {"threat": "Linf:0.03", "device": "cuda", "progress": progress, "guards": "off"}
        attacks = {"many": "pgd:steps=8", "few": "fgsm"}
        audit = cw.audit(Reading(CLASSES), data, attacks=attacks, precision=Precision(), **options)
    assert audit.environment["without_graphs"] == {"many": "it waits for the GPU"}
    assert [line for line in progress.lines if "CUDA graph" in line] == [
        "the steps of many are not CUDA graphs: it waits for the GPU"
    ]


def test_between_two_polls_a_graph_is_repeated_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel is launched and nothing waits, unless rows entered; then one copy fills their slots in each column."""
    attack, counts = PGD(steps=28), list[tuple[int, int, bool]]()
    run = GraphedSteps.__call__
    with PretendCuda() as gpu:

        def counted(self: GraphedSteps, slots: dict[str, Tensor], steps: int) -> Any:
            own = self.owns(slots)
            with gpu.counted() as here:
                result = run(self, slots, steps)
            counts.append((here.launches, len(here.synchronisations), own))
            return result

        monkeypatch.setattr(GraphedSteps, "__call__", counted)
        attacked(attack, "on", batch_size=8, count=8, radius=0.001)
        (graph,) = gpu.graphs.made
    assert counts[-5:] == [(0, 0, True)] * 5
    assert graph.replays == 28 - WARM_UP
    assert min(launches for launches, _, _ in counts[: (WARM_UP + VERIFIED) // 4]) > 40


def test_rows_enter_the_columns_of_the_graph_in_place() -> None:
    attack, owned = PGD(steps=8), list[bool]()
    run = GraphedSteps.__call__
    with PretendCuda(), pytest.MonkeyPatch.context() as patch:

        def noted(self: GraphedSteps, slots: dict[str, Tensor], steps: int) -> Any:
            owned.append(self.owns(slots))
            return run(self, slots, steps)

        patch.setattr(GraphedSteps, "__call__", noted)
        attacked(attack, "on", count=12, radius=0.03, dtype="float32")
    first = owned.index(True)
    assert first <= 2
    assert all(owned[first:])


def test_few_steps_are_computed_kernel_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FEWEST_STEPS > WARM_UP
    monkeypatch.setattr(graphed_steps, "FEWEST_STEPS", 8)
    attack = PGD(steps=8)
    with PretendCuda() as gpu:
        _, engine = attacked(attack, "auto", count=4, dtype="float32")
        assert gpu.graphs.made == []
        assert engine.not_graphed(attack) == ""
        attacked(PGD(steps=12), "auto", count=4, radius=0.001, dtype="float32")
        assert [graph.replays for graph in gpu.graphs.made] == [4]


def test_a_gpu_is_needed() -> None:
    model = Small(CLASSES)
    check_refused(
        r"^precision.graphs = on: device 'cpu' is not a GPU; set it to auto or",
        Engine,
        model,
        precision=Precision(graphs="on"),
    )
    with PretendCuda():
        device = model.to("cuda").linear.weight.device
        assert GraphUse(Precision(graphs="on", compile="on"), device).wanted("pgd")
        assert GraphUse(Precision(), device).wanted("pgd")


def test_other_warnings_are_passed_on() -> None:
    def warned() -> list[str]:
        with waits_noted() as waits:
            warnings.warn("of the user", stacklevel=1)
            torch.ones(3, device="cuda").sum().item()
        torch.ones(3, device="cuda").sum().item()
        return waits

    with PretendCuda():
        with pytest.warns(UserWarning, match="^of the user$") as caught:
            waits = warned()
        assert waits == ["it waits for the GPU"]
        assert len(caught) == 1
        assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("deterministic", "fewest", "most"), [(False, 64, 70), (True, 118, 128)])
def test_few_rows_are_computed_in_smaller_batches(
    deterministic: bool, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where kernels of another batch size give other bits, as on a GPU, unless algorithms are deterministic."""
    monkeypatch.setattr("classwise.attacks.engine.queue.same_bits", lambda *_: False)
    sizes: list[int] = []
    forward = CountedForward.__call__

    def counted(self: CountedForward, x: Tensor) -> Tensor:
        sizes.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(CountedForward, "__call__", counted)
    model, x = Small(CLASSES), images(45)
    y, attack = labels(model, x), PGD(steps=40, step_size="0.02eps")
    found = {}
    for device in ("cpu", "cuda"):
        sizes.clear()
        with PretendCuda():
            precision = Precision(graphs="off", deterministic=deterministic)
            engine = Engine(model.to(device), precision=precision, batch_size=128)
            job = Job(torch.arange(45), x, y)
            found[device] = rows_of(list(engine.attack(attack, Threat("Linf", 0.002), [job])))
            assert engine.not_reduced(attack) == ""
        if device == "cpu":
            assert (sizes.count(48), sizes.count(96)) == (1, 1)  # the tests of smaller batches
            assert {*sizes} == {48, 96, 128}
    assert same(found["cpu"], found["cuda"])
    assert fewest <= sum(sizes) / len(sizes) <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "batch_size", "slots"), [(45, 128, 64), (100, 64, 64), (70, 64, 64), (130, 96, 96), (5, 4, 4)]
)
def test_the_batches_of_a_gpu_have_equal_sizes(count: int, batch_size: int, slots: int) -> None:
    sizes = BatchSizes(PGD(), rounded=True)
    assert sizes.slots(batch_size, count) == slots
    assert sizes.slots(batch_size, None) == batch_size
    assert BatchSizes(PGD()).slots(batch_size, count) == batch_size


def evaluated_in_training(model: nn.Module, data: cw.Images) -> None:
    """After an epoch, and for an adjustment of logits."""
    arguments = PGD(steps=2), Threat("Linf", 0.01), Recipe.read("at", {"batch_size": 128})
    Evaluation(model.to("cuda"), data.to("cuda"), *arguments)()
    cw.adjust_logits(model, data, "Linf:0.01", attack="pgd:steps=2", folds=0, batch_size=128, device="cuda")


def searched(model: nn.Module, data: cw.Images) -> None:
    cw.find_worst_class(model, data, "Linf:0.01", "pgd:steps=2", batch_size=128, device="cuda")


@pytest.mark.parametrize("evaluate", [evaluated_in_training, searched])
def test_no_evaluation_on_a_gpu_computes_more_slots_than_it_has_images(
    evaluate: Callable[[nn.Module, cw.Images], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    advance = GraphedSteps.__call__

    def noted(self: GraphedSteps, slots: dict[str, Tensor], steps: int) -> Any:
        sizes.append(len(slots["row"]))
        return advance(self, slots, steps)

    monkeypatch.setattr(GraphedSteps, "__call__", noted)
    model, x = Small(CLASSES), images(40)
    data = cw.Images(x, labels(model, x))
    with PretendCuda():
        evaluate(model, data)
    assert sizes
    assert max(sizes) <= 64


class Mixing(Small):
    """Its logits depend on the number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if len(x) > 32 else -1)


def test_a_smaller_batch_with_other_results_is_not_used() -> None:
    model, x, attack = Mixing(CLASSES), images(20), PGD(steps=40, step_size="0.02eps")
    y = labels(model, images(64))[:20]
    with PretendCuda():
        engine = Engine(model.to("cuda"), precision=Precision(graphs="off"), batch_size=64)
        list(engine.attack(attack, Threat("Linf", 0.001), [Job(torch.arange(20), x, y)]))
    assert engine.not_reduced(attack).startswith("it computes another ")


class Sum(nn.Module):
    """Two logits of the mean; they depend on the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return (x.mean((1, 2, 3)) - 0.545)[:, None] * self.weight * (1 if len(x) > 32 else -1)


def test_rows_that_have_ended_do_not_show_that_a_smaller_batch_may_be_used() -> None:
    """Most images succeed in the first step, the others at the sixth one, whose flags are read two polls later."""
    attack, x = PGD(steps=40, step_size=0.01, random_init="none"), torch.full((64, 2, 4, 4), 0.5)
    y = (torch.arange(64) < 44).long()
    first, second = (Job(torch.arange(64)[rows], x[rows], y[rows]) for rows in (slice(64), slice(44, 64)))
    with PretendCuda():
        engine = Engine(Sum().to("cuda"), precision=Precision(graphs="off"), batch_size=64, poll=4)
        rows = rows_of(list(engine.attack(attack, Threat("Linf", 0.2), [first])))
        assert rows["success"].all()
        assert rows["iterations"].tolist() == [0] * 44 + [5] * 20
        assert engine.not_reduced(attack) == ""
        list(engine.attack(attack, Threat("Linf", 0.001), [second]))
    assert engine.not_reduced(attack).startswith("it computes another ")


def test_rows_leave_after_their_last_step_also_where_flags_are_read_late() -> None:
    slots = EndedSlots(3, 10, late=True)
    ids = torch.tensor([[0, 0], [0, 1], [1, 0]])
    slots.filled(torch.tensor([0, 1]), ids[:2])
    live, none, first = torch.tensor([True, True, False]), torch.zeros(3).bool(), torch.tensor([True, False, False])

    def left(flags: Tensor, steps: int) -> tuple[list[bool], list[bool]]:
        leaving, hit = slots.poll({"ended": flags, "hit": flags}, live, steps)
        return leaving.tolist(), hit.tolist()

    assert left(none, 4) == ([False] * 3, [False] * 3)
    slots.filled(torch.tensor([1]), ids[2:])  # another row
    assert slots.ids[:2].equal(ids[[0, 2]])
    assert left(first, 4) == ([False] * 3, [False] * 3)  # what was read is older
    assert slots.steps_left(live) == 6
    assert left(first, 2) == ([True, False, False], [True, False, False])


def test_a_row_that_left_before_it_ended_is_not_taken_for_the_next_one() -> None:
    slots, live, first = EndedSlots(1, 10, late=True), torch.tensor([True]), torch.tensor([[0, 0]])
    slots.filled(torch.tensor([0]), first)
    slots.poll({"ended": live, "hit": live}, live, 4)
    slots.emptied(live)
    slots.filled(torch.tensor([0]), first + 1)
    leaving, hit = slots.poll({"ended": ~live, "hit": ~live}, live, 4)
    assert not leaving.any()
    assert not hit.any()


@pytest.mark.parametrize(("spec", "poll"), [("pgd:steps=20", 4), ("apgd-ce:steps=300", 6), ("square", 32)])
def test_flags_are_read_less_often_in_long_attacks(spec: str, poll: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, steps = make(ATTACKS, spec), set[int]()

    def advanced(self: GraphedSteps, slots: dict[str, Tensor], count: int) -> dict[str, Tensor]:
        steps.add(count)
        return slots | {"ended": torch.ones_like(slots["ended"])}

    monkeypatch.setattr(GraphedSteps, "__call__", advanced)
    with PretendCuda():
        attacked(attack, "off", count=4)
    assert max(steps) == poll
