"""The benchmarks of a GPU, on a pretended one: cells, resumption, refusals, and pages."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import __main__ as benchmarks
from benchmarks.gpu import ceilings, command, machine, parity, speed
from benchmarks.gpu.cells import Result, Stage, Timer, page, run_stage
from benchmarks.pairing import paired
from benchmarks.training_step import prepared_trainer
from torch import Tensor

from classwise.core.precision import Forward, Precision
from classwise.core.rng import CounterRNG
from classwise.models.fusion import Fusion

from .pretend_cuda import PretendCuda, convolves_in_tf32, multiplies_in_tf32

HERE: dict[str, Any] = {
    "device": "pretended",
    "memory": "16 GiB",
    "driver": "580.1",
    "cuda": "13.0",
    "cudnn": 91000,
    "torch": "2.11.0",
    "python": "3.12.3",
    "classwise": "0.1.0",
    "cores": 16,
    "sources": "abc",
    "commit": "f00",
    "modified": False,
}


class Clock:
    """A clock that only functions advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick run of all stages."""
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch, PretendCuda():
        patch.setattr(torch, "compile", lambda model, **_: model)
        patch.setattr(torch.compiler, "reset", lambda: None)
        assert command.run(command.STAGES, folder, "make gpu", quick=True) == 0
    return folder


# Whole stages


@pytest.mark.slow
def test_every_stage_runs_to_its_end(whole: Path) -> None:
    assert sorted(file.name for file in whole.iterdir()) == [
        f"{name}.{suffix}" for name in sorted(command.STAGES) for suffix in ("json", "md")
    ]
    for name in command.STAGES:
        content = json.loads((whole / f"{name}.json").read_text())
        assert all("result" in cell for cell in content["cells"].values())
        text = (whole / f"{name}.md").read_text()
        assert "| device | pretended, 16 GiB |" in text
        assert f"| torch, Python, cores | {torch.__version__}, " in text
        assert content["machine"]["sources"] in text
        assert "| command | `make gpu` |" in text
        assert "have finished" not in text


@pytest.mark.slow
def test_a_finished_run_is_not_repeated(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {file: file.read_bytes() for file in whole.iterdir()}
    monkeypatch.setattr(Timer, "__init__", lambda *_, **__: None)  # no cell can time anything
    with PretendCuda():
        assert command.run(command.STAGES, whole, "another command", quick=True) == 0
    assert before == {file: file.read_bytes() for file in whole.iterdir()}


@pytest.mark.slow
def test_the_operations_of_a_training_step_are_those_of_its_convolutions(whole: Path) -> None:
    """Passes with gradients of the image, and one with gradients of the weights and of all layers but the first."""
    cells = json.loads((whole / "speed.json").read_text())["cells"]
    size = speed.QUICK
    step = cells[f"training step, compile, batch {size.batches[0]}"]["result"]
    counts = ceilings.convolutions(size.width)
    first = next(shape for shape in counts if shape.inputs == 3)
    forward = sum(shape.flops * layers for shape, layers in counts.items())
    linear = 2 * max(shape.outputs for shape in counts) * 10
    expected = (2 * size.pgd + 3) * (forward + linear) - first.flops
    assert step["flops"] == size.batches[0] * expected


def test_the_convolutions_are_those_of_a_resnet_18() -> None:
    """0.56 GMAC, of 17 layers and 3 shortcuts."""
    counts = ceilings.convolutions(1.0)
    assert sum(counts.values()) == 20
    assert sum(shape.flops * layers for shape, layers in counts.items()) == pytest.approx(2 * 0.556e9, rel=0.01)
    assert str(max(counts)) == "512 to 512, 3x3, 4x4"


@pytest.mark.parametrize(("name", "expected"), [("TF32", True), ("float32", False)])
def test_the_arithmetic_of_the_ceilings(name: str, expected: bool) -> None:
    before = convolves_in_tf32(), multiplies_in_tf32()
    with PretendCuda() as gpu:
        for cell in (ceilings.product, functools.partial(ceilings.convolved, batch=2)):
            gpu.in_tf32.clear()
            cell(Timer("cuda"), ceilings.QUICK, name)
            assert bool(gpu.in_tf32) == expected
    assert (convolves_in_tf32(), multiplies_in_tf32()) == before


# Parity


@pytest.fixture
def gpu() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


def check(name: str) -> Result:
    return parity.checks(parity.QUICK)[name]("cuda")


@pytest.mark.parametrize(
    ("method", "error", "passed"),
    [
        ("uniform", 2.0**-24, False),
        ("normal", 1e-6, True),
        ("normal", 1e-4, False),
    ],
)
def test_other_random_numbers_are_found(
    gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch, method: str, error: float, passed: bool
) -> None:
    original = getattr(CounterRNG, method)

    def changed(rng: CounterRNG, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        numbers: Tensor = original(rng, index, *args, **kwargs)
        return numbers + error if gpu.holds(index) else numbers

    monkeypatch.setattr(CounterRNG, method, changed)
    assert check("random numbers")["passed"] == passed


@pytest.mark.parametrize("name", ["PGD in float32", "PGD in bfloat16", "FAB", "Square"])
@pytest.mark.parametrize("lost", [3, 8])
def test_a_weaker_attack_is_found(monkeypatch: pytest.MonkeyPatch, name: str, lost: int) -> None:
    """Eight lost images in one direction are beyond chance; three are not, and are within the tolerance of PGD."""

    def success(size: parity.Size, device: str, spec: str, count: int, precision: object = None) -> Tensor:
        return torch.arange(count) < (20 - lost if device == "cuda" else 20)

    monkeypatch.setattr(parity, "success", success)
    monkeypatch.setattr(parity, "success_on_cpu", lambda size, spec, count: success(size, "cpu", spec, count))
    assert check(name)["passed"] == (lost == 3)


def test_differences_that_cancel_are_within_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "success", lambda *_, **__: torch.arange(32) % 2 == 0)
    monkeypatch.setattr(parity, "success_on_cpu", lambda *_: torch.arange(32) % 2 == 1)
    result = check("FAB")
    assert result["passed"]
    assert "16 lost, 16 gained" in result["measured"]


@pytest.mark.parametrize(("margin", "passed"), [(0.5e-4, True), (2e-4, False)])
def test_only_predictions_near_the_boundary_may_differ(
    gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch, margin: float, passed: bool
) -> None:
    x, logits = parity.images(parity.ATTACKED, parity.QUICK.images)
    changed = logits.clone()
    label = int(logits[3].argmax())
    changed[3, (label + 1) % 10] = changed[3, label] + margin  # the margin of the CPU, which predicts another class
    monkeypatch.setattr(parity, "images", lambda *_: (x, changed))
    result = check(f"predictions, {parity.ATTACKED}")
    assert result["measured"].startswith(f"1 of {len(x)} predictions differ")
    assert result["passed"] == passed


def test_the_training_step_of_parity_is_in_true_float32(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("training step")["passed"]
    assert gpu.in_tf32 == []
    monkeypatch.setattr(parity, "UPDATE", 1e-9)  # the rounding errors of float32 are measured
    assert not check("training step")["passed"]


def test_another_training_step_is_found(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:

    def other(recipe: str, width: float, data: Any, device: str, **options: Any) -> Any:
        lr = {"optimizer.lr": 0.1001 if device == "cuda" else 0.1}
        return prepared_trainer(recipe, width, data, device, **options, **lr)

    monkeypatch.setattr(parity, "prepared_trainer", other)
    assert not check("training step")["passed"]


def test_a_model_that_cannot_be_fused_is_found(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classwise.models.fusion.TOLERANCE", -1.0)
    result = check(f"fused copy, {parity.ATTACKED}")
    assert not result["passed"]
    assert result["measured"].startswith("its copy's logits differ")


def test_another_fused_copy_is_found(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    class Inexact(Fusion):
        @contextmanager
        def forward(self, precision: Precision, images: Tensor) -> Iterator[Forward]:
            with super().forward(precision, images) as forward:
                yield lambda x: forward(x) * (1 + 2e-5)

    monkeypatch.setattr(parity, "Fusion", Inexact)
    assert not check(f"fused copy, {parity.ATTACKED}")["passed"]


@pytest.mark.parametrize("stages", [("speed",), command.STAGES])
def test_speed_is_refused_without_parity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stages: tuple[str, ...]
) -> None:
    outcome = {"passed": False, "measured": "1", "accepted": "0"}
    monkeypatch.setattr(parity, "checks", lambda _: {"sums": lambda device: outcome})
    monkeypatch.setattr(command, "_stage", lambda name, *_: parity.stage(parity.QUICK) if name == "parity" else EMPTY)
    with PretendCuda():
        assert command.run(stages, tmp_path, "make gpu", quick=True) == 1
        assert capsys.readouterr().out.splitlines()[-1] == (
            "speed was not measured: no parity with the CPU on pretended in sums"
        )
        assert not (tmp_path / "speed.json").exists()
        outcome["passed"] = True
        command.run(("parity",), tmp_path, "make gpu", quick=True)
        assert command.run(("speed",), tmp_path, "make gpu", quick=True) == ("parity" in stages)


EMPTY = Stage("ceilings", "Empty", {}, lambda _: "")


# Cells


def toy(cells: dict[str, Callable[[Timer], Result]]) -> Stage:
    return Stage("toy", "Toy", cells, lambda results: " ".join(f"{name}={each['n']}" for name, each in results.items()))


def test_an_interrupted_stage_is_resumed(tmp_path: Path) -> None:
    calls: list[str] = []

    def cell(name: str) -> Callable[[Timer], Result]:
        def run(_: Timer) -> Result:
            calls.append(name)
            if calls == ["a", "b"]:
                raise KeyboardInterrupt
            return {"n": len(calls)}

        return run

    stage = toy({name: cell(name) for name in "abc"})
    with pytest.raises(KeyboardInterrupt):
        run_stage(stage, tmp_path, HERE, "x", "cpu")
    text = (tmp_path / "toy.md").read_text()
    assert "- 1 of 3 cells have finished." in text
    assert text.endswith("a=1")
    assert run_stage(stage, tmp_path, HERE, "x", "cpu")
    assert calls == ["a", "b", "b", "c"]
    assert (tmp_path / "toy.md").read_text().endswith("a=1 b=3 c=4")


@pytest.mark.parametrize("name", [*HERE, "quick"])
def test_cells_of_another_machine_or_code_are_measured_again(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def cell(_: Timer) -> Result:
        calls.append(0)
        return {"n": 0}

    stage = toy({"a": cell})
    other = HERE | {name: "other"}
    for here in (HERE, other, other):
        assert run_stage(stage, tmp_path, here, "x", "cpu")
    output = capsys.readouterr().out
    if name in machine.NOT_COMPARED:
        assert len(calls) == 1
    else:
        assert len(calls) == 2
        assert f"is of another {name}" in output


def test_a_cell_that_fails_is_reported_and_repeated(tmp_path: Path) -> None:
    ready: list[int] = []

    def cell(_: Timer) -> Result:
        if not ready:
            raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")
        return {"n": 2}

    stage = toy({"a": cell, "b": lambda _: {"n": 3}})
    assert not run_stage(stage, tmp_path, HERE, "x", "cpu")
    text = (tmp_path / "toy.md").read_text()
    assert "- 1 of 2 cells have finished.\n- `a` has failed: RuntimeError: CUDA out of memory..\n\nb=3" in text
    ready.append(1)
    assert run_stage(stage, tmp_path, HERE, "x", "cpu")
    assert (tmp_path / "toy.md").read_text().endswith("|\n\na=2 b=3")


@pytest.mark.parametrize(("each", "rounds"), [(1, 15), (20, 3), (44, 1), (200, 1)])
def test_the_rounds_fit_the_time_limit(each: float, rounds: int, tmp_path: Path) -> None:
    """Besides the warm-up: 20 s, then rounds that end at 40, 60 and 80 s."""
    clock = Clock()
    stage = toy({"a": lambda timer: timer.seconds(lambda: clock.advance(each), 15) | {"n": 0}})
    assert run_stage(stage, tmp_path, HERE, "x", "cpu", clock)
    cell = json.loads((tmp_path / "toy.json").read_text())["cells"]["a"]
    assert cell["result"] == {"seconds": each, "rounds": rounds, "planned": 15, "n": 0}
    assert cell["seconds"] == (rounds + 1) * each
    text = (tmp_path / "toy.md").read_text()
    assert (f"`a`: {rounds} of 15 rounds, to end within 90 s." in text) == (rounds < 15)
    assert ("`a` took 400" in text) == (each == 200)


def test_preparation_counts_towards_the_time_limit() -> None:
    clock = Clock()
    timer = Timer("cpu", 90.0, clock)
    clock.advance(40)
    assert timer.seconds(lambda: clock.advance(20), 15)["rounds"] == 1


@pytest.mark.parametrize(("tenth", "images"), [(4.0, 100), (20.0, 35), (80.0, 32)])
def test_autoattack_attacks_as_many_images_as_fit(tenth: float, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, attacked = Clock(), []

    class Suite:
        def __init__(self, *_: object, **__: object) -> None:
            self.attacks: dict[str, Any] = {}

        def run_standard_evaluation(self, x: Tensor, y: Tensor, bs: int) -> Tensor:
            clock.advance(tenth)
            attacked.append(len(x))
            result = x.clone()
            result[:4] = 0  # two misclassified images, and two on which an attack succeeds
            return result

    monkeypatch.setattr(speed, "AutoAttack", Suite)
    result = speed.autoattack(Timer("cpu", 90.0, clock), dataclasses.replace(speed.QUICK, images=100))
    assert attacked == [100, images]
    assert result == {"seconds": tenth, "images": images, "planned images": 100, "survivors": images // 2 - 2}


def test_the_device_has_finished_whenever_the_clock_is_read(gpu: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("wait"))

    def clock() -> float:
        events.append("clock")
        return 0.0

    paired({"a": lambda: events.append("a")}, 2, clock=clock, device="cuda")
    joined = " ".join(events)
    assert joined.count("wait clock a wait clock") == 3  # the warm-up and two rounds
    events.clear()
    paired({"a": lambda: events.append("a")}, 2, clock=clock)
    assert "wait" not in events


# Pages


def test_the_page_of_speed() -> None:
    """At 100 TFLOP/s of 800, an epoch of 391 steps of 0.1 s takes 39.1 s."""
    plain = next(iter(speed.VARIANTS))
    step = {"batch": 128, "flops": 10**13, "rate": 800.0, "attack steps": 10, "rounds": 15, "planned": 15}
    results: dict[str, Result] = {
        f"training step, {plain}, batch 128": step | {"variant": plain, "seconds": 0.4},
        "training step, eager, batch 128": step | {"variant": "eager", "seconds": 0.1},
        "training step, eager, batch 256": step | {"variant": "eager", "batch": 256, "seconds": 0.2, "rate": None},
        "AutoAttack": {"seconds": 80.0, "images": 500, "planned images": 1000, "survivors": 250},
    }
    text = speed.tables(results)
    assert f"| 128 | {plain} | 0.4000 | 1.00 | 25.0 | 3.1% | 156.4 |" in text
    assert "| 128 | eager | 0.1000 | 4.00 | 100.0 | 12.5% | 39.1 |" in text
    assert "| 256 | eager | 0.2000 |  | 50.0 |  | 39.2 |" in text
    assert "| 500 of 1,000 | 250 | 80.0 | 6.2 |" in text


def test_the_rates_of_the_ceilings() -> None:
    """A copy of 8 bytes in 1 s; 2 x 2 x 2 multiplications and additions in 1 s; 9 of them in each of 4 places."""
    clock = Clock()
    fake = SimpleNamespace(
        device="cpu",
        paired=lambda functions, _: SimpleNamespace(seconds=functions, rounds=ceilings.ROUNDS, median=lambda name: 1.0),
        seconds=lambda function, rounds: {"seconds": 1.0, "rounds": rounds, "planned": rounds},
        clock=clock,
    )
    timer: Any = fake
    size = ceilings.Size(copied=8, matrix=2, batches=(3,), width=0.0625, repeats=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "pin_memory", Tensor.clone)
        patch.setattr(ceilings, "convolutions", lambda _: {ceilings.Convolution(1, 1, 3, 2, 4): 2})
        rates = ceilings.copies(timer, size)["GB/s"]
        product = ceilings.product(timer, size, "float32")
        convolved = ceilings.convolved(timer, size, "float32", 3)
    assert rates == pytest.approx(dict.fromkeys(rates, 8e-9) | {"on the device": 16e-9})
    assert product["TFLOP/s"] == pytest.approx(16e-12)
    assert convolved["TFLOP/s"] == pytest.approx(dict.fromkeys(ceilings.PARTS, 5 * 3 * 2 * 9 * 4 * 1e-12))


def test_the_page_of_a_folder_without_a_repository() -> None:
    content = {"machine": HERE | {"commit": "f00", "modified": None}, "command": "x", "date": "2026-01-01", "cells": {}}
    text = page(toy({}), content)
    assert "| classwise | 0.1.0, commit f00, without a repository, sources abc |" in text
    assert "| driver, CUDA, cuDNN | 580.1, 13.0, 91000 |" in text


def test_the_sources_of_a_result(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "docs").mkdir()
    code = tmp_path / "src" / "a.py"
    code.write_text("1")
    before = machine.sources(tmp_path)
    (tmp_path / "docs" / "a.py").write_text("2")
    assert machine.sources(tmp_path) == before
    code.write_text("2")
    assert machine.sources(tmp_path) != before


# The command


def test_without_a_device_one_line_reports_what_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmarks.main(["gpu"]) == 0
    assert capsys.readouterr().out == "no CUDA device: the GPU benchmarks were skipped\n"


def test_the_options_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def run(*args: Any, **options: Any) -> int:
        calls.append((*args, options))
        return 0

    monkeypatch.setattr(command, "run", run)
    benchmarks.main(["gpu"])
    benchmarks.main(["gpu", "parity", "--quick"])
    benchmarks.main(["gpu", "--out", str(tmp_path), "--commit", "f00"])
    start, every = "python3 -m benchmarks gpu", command.STAGES
    assert calls == [
        (every, command.PAGES, start, {"quick": False, "commit": None}),
        (["parity"], command.TRIAL, f"{start} parity --quick", {"quick": True, "commit": None}),
        (every, tmp_path, f"{start} --out {tmp_path} --commit f00", {"quick": False, "commit": "f00"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu", "speeed"], "unknown stage 'speeed'; known: parity, ceilings, speed"),
        (["nothing"], "unknown benchmark 'nothing'; known: training_step, "),
        (["methods", "--device", "meta"], "'methods' has no --device; known: training_step, evaluation, "),
        (["fusion", "--device", "meta"], "device 'meta' computes no values"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        benchmarks.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_gpu_machine_needs_no_other_packages() -> None:
    """Those of the list in CONTRIBUTING.md, besides what these import."""
    absent = ("pooch", "foolbox", "torchattacks", "art", "adv_lib", "pyautoattack", "typer", "rich", "jinja2")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent})); sys.path.insert(0, {str(machine.ROOT)!r})\n"
        "import benchmarks.__main__, tests.gpu.test_parity\n"
        "from benchmarks.gpu import parity\n"
        "checks = parity.checks(parity.QUICK)\n"
        "assert checks['predictions, mnist-trades']('cpu')['passed'] and checks['training step']('cpu')['passed']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_benchmark_receives_its_device(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def run(*, quick: bool, device: str = "cpu") -> str:
        return f"on {device}, {quick}"

    monkeypatch.setitem(benchmarks.ALL, "fusion", run)
    with PretendCuda():
        assert benchmarks.main(["fusion", "--quick", "--device", device]) == 0
    output = capsys.readouterr().out
    assert f"device {'pretended' if device == 'cuda' else 'cpu'}\n" in output
    assert output.endswith(f"on {device}, True\n")
