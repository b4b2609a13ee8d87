"""Training steps as CUDA graphs, on a pretended GPU: the bits are those of steps computed kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.core.compute.graphs import WARM_UP, Compared
from classwise.core.settings.config import configurable
from classwise.training import graphed_step
from classwise.training.classes.signals import ClassSettings
from classwise.training.folder import Run
from classwise.training.graphed_step import VERIFIED
from classwise.training.recipe import Recipe
from classwise.training.step import TrainingStep
from classwise.training.trainer import Trainer
from classwise.training.updates import Plain

from ..auditing.toys import Listener
from ..pretend_cuda import Counted, PretendCuda
from ..refusals import check_refused
from .killing import killed_and_resumed
from .test_trainer import contents

TINY: dict[str, Any] = {
    "model": {"name": "small-cnn", "width": 0.125},
    "data.subset": 70,
    "data.validation": 0.15,
    "data.augment": "none",
    "attack.steps": 1,
    "validation_attack": "pgd:steps=1",
    "threat": "Linf:0.1",
    "batch_size": 8,
    "epochs": 2,
}
FULL_STEPS = 7
"""Steps of an epoch with a full batch; one more has fewer images."""


def trained(out: Path, recipe: str, graphs: str, gpu: PretendCuda, **more: Any) -> tuple[Run, list[str], list[int]]:
    """The run, its log, and the number of replays of each graph."""
    log, made = Listener(), len(gpu.graphs.made)
    overrides = TINY | more | {"precision.graphs": graphs}
    run = cw.train(recipe, budget="short", data="digits", out=out, overrides=overrides, device="cuda", progress=log)
    return run, log.lines, [graph.replays for graph in gpu.graphs.made[made:]]


RESNET = {"model": {"name": "preactresnet18", "width": 0.0625}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "at": ("at", {}),
    "at, bfloat16": ("at", RESNET | {"precision": {"dtype": "bfloat16", "channels_last": True}}),
    "cfa-trades": ("cfa-trades", {}),
    "awp from the middle of an epoch": ("at-awp", {"update.start_fraction": 0.7, "epochs": 2}),
    "fat": ("fat", {"objective.milestones": [0.5, 0.8]}),
    "faal": ("faal", {}),
    "adam": ("at-adam", {}),
    "nuat": ("nuat", {}),
    "fgsm-pgi": ("fgsm-pgi", {}),
    "liet": ("liet", {"objective.every": 2}),
    "targets": ("towards-class", {"schedules.0.target": "0"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_steps_without_graphs(name: str, tmp_path: Path) -> None:
    recipe, more = CASES[name]
    with PretendCuda() as gpu:
        run, log, replays = trained(tmp_path / "on", recipe, "on", gpu, **more)
        plain, _, none = trained(tmp_path / "off", recipe, "off", gpu, **more)
    assert contents(run).keys() == contents(plain).keys()
    changed = [file for file, content in contents(run).items() if content != contents(plain)[file]]
    assert changed == ["recipe.yaml"]
    assert run.recipe.digest() == plain.recipe.digest()
    assert run.environment["graphs"] == "used"
    assert "graphs" not in plain.environment
    assert none == []
    assert not any("CUDA graph" in line for line in log)
    if "middle" in name or name == "fat":
        assert len(replays) > 2
    else:
        assert replays == [FULL_STEPS - WARM_UP, FULL_STEPS - 1]


def test_nothing_waits_for_the_gpu_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch, augmentation, replay, optimiser and averaging: only the host's own work is between two graphs."""
    counts: list[Counted] = []
    run, size = Trainer.train_step, TINY["batch_size"]

    def train_step(self: Trainer, rows: Tensor, settings: ClassSettings) -> None:
        order = self.batches.order(0)
        with gpu.counted() as counted:
            run(self, self.batches.rows(order, 0, self.state.step, settings), settings)
        if len(rows) == size:
            counts.append(counted)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    more = {"data.augment": "crop-flip", "averaging": {"name": "ema", "start_fraction": 0}, "epochs": 1}
    with PretendCuda() as gpu:
        _, _, replays = trained(tmp_path / "run", "at", "on", gpu, **more)
    assert replays == [FULL_STEPS - WARM_UP]
    repeated = counts[WARM_UP + VERIFIED :]
    assert [counted.synchronisations for counted in repeated] == [[]] * (FULL_STEPS - WARM_UP - VERIFIED)
    assert max(counted.launches for counted in repeated) <= 120


class Counting(nn.Module):
    """A model whose passes depend on their number."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(in_channels * 64, num_classes))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        logits: Tensor = self.layers(x)
        return logits * (1 + 0.1 * self.passes)


class Reading(Counting):
    """A model that reads a value from the GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.detach().mean()) > -1 else x


@configurable
class Undeclared(Plain):
    """An update that does not declare that the optimiser step is last."""

    steps_last = False


def counting(num_classes: int, in_channels: int, **_: Any) -> nn.Module:
    return Counting(in_channels, num_classes)


def reading(num_classes: int, in_channels: int, **_: Any) -> nn.Module:
    return Reading(in_channels, num_classes)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "python state": ("at", {"model": {"name": f"{__name__}:counting"}}, "the loss of the graph differs by"),
    "synchronisation": ("at", {"model": {"name": f"{__name__}:reading"}}, "it waits for the GPU"),
    "schedule": ("cfol-weights", {"schedules.0.rate": 0.01}, "the schedule CFOL reads each batch"),
    "update": ("at", {"update": f"{__name__}:Undeclared"}, "the update Undeclared does not declare"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_other_steps_are_computed_kernel_by_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.training.trainer.FEWEST_STEPS", 1)
    recipe, more, reason = REFUSED[name]
    with PretendCuda() as gpu:
        run, log, replays = trained(tmp_path / "auto", recipe, "auto", gpu, **more)
        if name != "python state":  # a model that counts its passes also counts those of the verification
            plain, _, _ = trained(tmp_path / "off", recipe, "off", gpu, **more)
            same = [file for file, content in contents(run).items() if content == contents(plain)[file]]
            assert len(same) == len(contents(run)) - 1
        check_refused(
            rf"^precision.graphs = on: .*{reason}.*; set it to auto or off$",
            trained,
            tmp_path / "on",
            recipe,
            "on",
            gpu,
            **more,
        )
    assert sum(replays) <= VERIFIED
    if name == "synchronisation":  # a capture that fails leaves torch's allocator in the state of a capture
        assert replays == []
    (line,) = [line for line in log if "CUDA graph" in line]
    assert line.startswith("training steps are not CUDA graphs: ")
    assert reason in line
    assert reason in run.environment["graphs"]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps after which a graph is captured differ in a resumed run."""
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    overrides = TINY | {"precision.graphs": "on"}

    def train(**options: Any) -> Run:
        return cw.train("at", budget="short", data="digits", overrides=overrides, device="cuda", **options)

    with PretendCuda():
        reference = train(out=tmp_path / "reference")
        for step in (5, 10):
            resumed = killed_and_resumed(train, out=tmp_path / str(step), step=step)
            assert contents(resumed) == contents(reference)
            assert resumed.environment["graphs"] == "used"


def test_few_steps_are_computed_kernel_by_kernel(tmp_path: Path) -> None:
    with PretendCuda() as gpu:
        run, log, replays = trained(tmp_path / "run", "at", "auto", gpu, epochs=1)
    assert replays == []
    assert run.environment["graphs"] == "an epoch has 8 steps, fewer than 30"
    assert log.count("training steps are not CUDA graphs: an epoch has 8 steps, fewer than 30") == 1


def test_a_step_as_a_graph_is_a_few_launches_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    run: Callable[..., Any] = graphed_step._Capture.run
    with PretendCuda() as gpu:

        def counted(*arguments: Any) -> Any:
            with gpu.counted() as here:
                result = run(*arguments)
            counts.append((here.synchronisations, here.launches))
            return result

        monkeypatch.setattr(graphed_step._Capture, "run", counted)
        trained(tmp_path / "run", "at", "on", gpu)
    assert len(counts) == 2 * FULL_STEPS - WARM_UP - VERIFIED - 1
    assert all(waits == [] and launches <= 20 for waits, launches in counts)


def test_algorithms_are_measured_in_long_trainings_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, step = list[bool](), TrainingStep.compute

    def compute(*arguments: Any) -> Any:
        found.append(torch.backends.cudnn.benchmark)
        return step(*arguments)

    monkeypatch.setattr(TrainingStep, "compute", compute)
    for steps, deterministic, measured in ((8, False, True), (8, True, False), (9, False, False)):
        monkeypatch.setattr(graphed_step, "MEASURED", steps)
        with PretendCuda() as gpu:
            more = {"epochs": 1, "precision.deterministic": deterministic}
            trained(tmp_path / f"{steps}-{deterministic}", "at", "on", gpu, **more)
        assert set(found) == {measured, False}  # the last batch has fewer images
        found.clear()
    assert torch.backends.cudnn.benchmark is False


def test_graphs_are_for_gpus() -> None:
    recipe = Recipe.read("at", {"precision.graphs": True})  # as YAML reads "on"
    assert recipe.precision.graphs == "on"
    assert recipe.digest() == Recipe.read("at", {"precision.graphs": False}).digest() == Recipe.read("at").digest()


def test_a_gpu_is_needed(tmp_path: Path) -> None:
    check_refused(
        r"^precision.graphs = on: device 'cpu' is not a GPU",
        cw.train,
        "at",
        data="digits",
        out=tmp_path / "run",
        overrides=TINY | {"precision.graphs": "on"},
    )
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_comparisons_of_a_captured_number() -> None:
    number: Any = Compared(0.4)
    assert sum(number >= bar for bar in (0.1, 0.3, 0.5)) == 2
    assert number < 0.5
    assert number < 0.5
    assert number.holds(0.3)
    assert number.holds(0.45)
    assert not number.holds(0.2)
    assert not number.holds(0.5)
    for use in (lambda: number + 1, lambda: torch.ones(()) * number, lambda: float(number), lambda: hash(number)):
        with pytest.raises(TypeError):
            use()
