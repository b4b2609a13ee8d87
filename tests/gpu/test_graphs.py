"""Steps of training and of attacks as CUDA graphs on a GPU: the same bits as steps computed kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.attacks.engine import graphed as graphed_steps
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.threat.ball import Threat

from ..attacks.models import Small
from ..attacks.test_graphed_queue import CAPTURABLE, CLASSES, Reading, attacked, brief, rows_of, same
from ..auditing.toys import Listener
from ..refusals import check_refused
from ..training.test_graphed_step import CASES, REFUSED, TINY
from ..training.test_trainer import contents
from . import MARKS, PRETENDED

pytestmark = MARKS


def dropout(num_classes: int, in_channels: int, **_: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 64, 16), nn.Dropout(), nn.Linear(16, num_classes))


GENERATOR = "a graph of the pretended device has no random numbers of its own"
EQUAL = CASES | {"dropout": ("at", {"model": {"name": f"{__name__}:dropout"}})}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.skipif(PRETENDED and name == "dropout", reason=GENERATOR)) for name in EQUAL],
)
def test_the_bits_are_those_of_steps_without_graphs(name: str, tmp_path: Path) -> None:
    recipe, more = EQUAL[name]
    runs = []
    for graphs in ("on", "off"):
        overrides = TINY | more | {"precision.graphs": graphs, "precision.deterministic": True}
        runs.append(
            cw.train(recipe, budget="short", data="digits", out=tmp_path / graphs, overrides=overrides, device="cuda")
        )
    first, second = map(contents, runs)
    assert [file for file, content in first.items() if content != second[file]] == ["recipe.yaml"]
    assert runs[0].environment["graphs"] == "used"


@pytest.mark.parametrize("name", ["python state", "synchronisation"])
def test_other_steps_are_computed_kernel_by_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.training.trainer.FEWEST_STEPS", 1)
    recipe, more, reason = REFUSED[name]
    log = Listener()
    run = cw.train(
        recipe, budget="short", data="digits", out=tmp_path / "run", overrides=TINY | more, device="cuda", progress=log
    )
    assert run.complete
    assert run.environment["graphs"] != "used"
    assert reason in run.environment["graphs"]
    assert sum("CUDA graph" in line for line in log.lines) == 1


def both_ways(attack: Attack, **options: Any) -> None:
    """Check that an attack has the same bits with graphs and without."""
    count = 60 if attack.length == 1 else 14
    found = []
    with deterministic_algorithms():
        for graphs in ("on", "off"):
            torch.manual_seed(0)
            found.append(attacked(attack, graphs, **{"count": count} | options)[0])
    assert same(*found)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are computed by graphs, in each call."""
    steps: list[int] = []
    replay = graphed_steps._Capture.replay

    def noted(self: Any, slots: dict[str, Tensor], count: int) -> dict[str, Tensor]:
        steps.append(count)
        return replay(self, slots, count)

    monkeypatch.setattr(graphed_steps._Capture, "replay", noted)
    return steps


@pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_the_bits_of_an_attack_are_those_of_steps_without_graphs(name: str, dtype: str, replays: list[int]) -> None:
    both_ways(brief(name), dtype=dtype)
    assert len(replays) >= graphed_steps.VERIFIED


class Noisy(Small):
    """A model with dropout also in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.1))


@pytest.mark.skipif(PRETENDED, reason=GENERATOR)
def test_a_randomised_model_draws_the_same_numbers(replays: list[int]) -> None:
    both_ways(PGD(steps=12), model=Noisy(CLASSES), dtype="float32", early_stop=False)
    assert max(replays) > 1


def test_the_attack_of_a_network_with_early_stops_and_a_tail(replays: list[int]) -> None:
    """At a real batch size: rows that enter, a batch that becomes smaller, and restarts."""
    data = cw.load_data("digits", split="test").take(torch.arange(256))
    model = cw.load_model("preactresnet18", data=data, width=0.25, device="cuda").eval()
    found = []
    with deterministic_algorithms():
        for graphs in ("on", "off"):
            precision = cw.Precision(dtype="bfloat16", channels_last=True, deterministic=True, graphs=graphs)
            engine = Engine(model, precision=precision, batch_size=128)
            jobs = [Job(part, data.pixels(part), data.y[part]) for part in torch.split(torch.arange(256), 64)]
            found.append(rows_of(list(engine.attack(PGD(steps=20, restarts=2), Threat("Linf", 0.1), jobs))))
    assert same(*found)
    assert sum(replays) > 10


def test_a_step_that_waits_is_refused_before_it_is_captured() -> None:
    """So torch's allocator is not left in the state of a capture, and later captures succeed."""
    attack = PGD(steps=40)
    _, engine = attacked(attack, "auto", model=Reading(CLASSES), dtype="float32")
    assert engine.not_graphed(attack) == "it waits for the GPU"
    check_refused(
        r"^precision.graphs = on: it waits for the GPU", attacked, attack, "on", model=Reading(CLASSES), dtype="float32"
    )
    torch.cuda.empty_cache()
    assert attacked(attack, "on")[1].not_graphed(attack) == ""


def test_the_memory_of_a_graph_is_freed_with_its_attack() -> None:
    model = Small(CLASSES)
    attacked(PGD(steps=12), "on", model=model)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        attacked(PGD(steps=12), "on", model=model)
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
