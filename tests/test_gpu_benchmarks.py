"""The benchmarks of a GPU, on a pretended one: whole stages, refusals, tables, parity with the CPU, and the peers."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import __main__ as benchmarks
from benchmarks.gpu import ceilings, cells, command, machine, parity, peers, speed
from benchmarks.gpu.cells import Result, Timer
from benchmarks.pairing import paired
from benchmarks.training_step import prepared_trainer
from torch import Tensor, nn

from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.engine.graphed import VERIFIED
from classwise.core.compute.compilation import Compiling
from classwise.core.compute.graphs import WARM_UP
from classwise.core.compute.precision import Forward, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.models.fusion import Fusion

from .pretend_cuda import PretendCuda, convolves_in_tf32, multiplies_in_tf32
from .toy_cells import Clock, toy


@pytest.fixture
def gpu() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


BENCHMARKS = ("parity", "speed", "ceilings")
"""The stages without the tests, which run in another process, on a real device."""
BRIEF = dataclasses.replace(speed.QUICK, attacks=("square:steps=7",))
"""Sizes with one attack, whose steps are those of the others."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick run of all benchmarks."""
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch, PretendCuda():
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setattr(torch, "compile", lambda model, **_: model)
        patch.setattr(torch.compiler, "reset", lambda: None)
        patch.setattr(speed, "QUICK", BRIEF)
        patch.setattr(ceilings, "ROUNDS", 1)
        patch.setattr(cells, "MOST", 900.0)  # on a machine that is busy
        patch.setattr(cells, "gc", SimpleNamespace(collect=lambda: None))  # this process has far more objects
        one = functools.partial(AutoAttack, version="custom", attacks_to_run=["apgd-ce"])
        patch.setattr(speed, "AutoAttack", one)
        assert command.run(BENCHMARKS, folder, "make gpu", quick=True) == 0
    return folder


# Whole stages


@pytest.mark.slow
def test_every_stage_runs_to_its_end(whole: Path) -> None:
    assert sorted(file.name for file in whole.iterdir()) == ["results.json", "results.md"]
    content, text = json.loads((whole / "results.json").read_text()), (whole / "results.md").read_text()
    assert list(content["stages"]) == list(BENCHMARKS)
    for stage in content["stages"].values():
        assert list(stage["cells"]) == stage["names"]
        assert all("result" in cell for cell in stage["cells"].values())
        assert f"Sources {stage['sources']} (src, benchmarks, checkpoints)." in text
    assert "| device | pretended, 16 GiB |" in text
    assert f"| torch, Python, cores | {torch.__version__}, " in text
    assert "| command | `make gpu` |" in text
    assert "No cell has failed." in text
    assert "have been run" not in text


@pytest.mark.slow
def test_a_finished_run_is_not_repeated(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on another machine, which continues from the file of this one."""
    monkeypatch.setattr(speed, "QUICK", BRIEF)
    monkeypatch.setattr(Timer, "__init__", lambda *_, **__: None)  # no cell can time anything
    before = json.loads((whole / "results.json").read_text())["stages"]
    with PretendCuda():
        assert command.run(BENCHMARKS, tmp_path, "another command", quick=True, start=whole / "results.json") == 0
        assert command.run(BENCHMARKS, tmp_path / "limit", "x", quick=True, limit=1.0) == command.UNFINISHED
    assert json.loads((tmp_path / "results.json").read_text())["stages"] == before


@pytest.mark.slow
def test_the_operations_of_a_training_step_are_those_of_its_convolutions(whole: Path) -> None:
    """Passes with gradients of the image, and one with gradients of the weights and of all layers but the first."""
    cells = json.loads((whole / "results.json").read_text())["stages"]["speed"]["cells"]
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


def test_a_failed_check_of_parity_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome, calls = {"passed": False, "measured": "1", "accepted": "0"}, list[str]()

    def step(_: Timer) -> Result:
        calls.append("step")
        return {"n": 1}

    stages = {
        "parity": toy({"sums": lambda _: outcome}, "parity"),
        "speed": toy({"step": step}, "speed"),
    }
    monkeypatch.setattr(command, "STAGES", {name: lambda _, stage=stage: stage for name, stage in stages.items()})
    with PretendCuda():
        assert command.run(stages, tmp_path, "make gpu", quick=True) == 1
        assert "| parity | sums | 1; accepted: 0 |" in capsys.readouterr().out
        assert command.run(["speed"], tmp_path, "make gpu", quick=True) == 0
        outcome["passed"] = True
        assert command.run(stages, tmp_path, "make gpu", quick=True) == 0
    assert calls == ["step"]
    assert "no cell has failed" in capsys.readouterr().out


# Speed and ceilings


@pytest.mark.slow
def test_a_step_as_a_graph_is_timed_without_its_capture(gpu: PretendCuda) -> None:
    size = speed.QUICK
    step = speed.VARIANTS["graph"](size, size.batches[0], "cuda")
    (graph,) = gpu.graphs.made
    before = graph.replays
    for _ in range(3):
        step()
    assert graph.replays == before + 3
    assert len(gpu.graphs.made) == 1
    speed.VARIANTS["eager"](size, size.batches[0], "cuda")()
    assert len(gpu.graphs.made) == 1


@pytest.mark.slow
def test_steps_of_attacks_are_timed_with_and_without_graphs(gpu: PretendCuda) -> None:
    """In each run, the graph is captured after the warm-up, verified, and repeated for the remaining steps."""
    size = dataclasses.replace(speed.QUICK, rounds=3)
    result = speed.attack_step(Timer("cuda"), size, size.attacks[-1], 8)
    assert (result["rounds"], result["planned"]) == (2, 2)
    assert result["steps"] > WARM_UP + VERIFIED
    assert [graph.replays for graph in gpu.graphs.made] == [result["steps"] - WARM_UP] * 3
    assert set(result["seconds"]) == {"eager", "graph"}


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
    assert " ".join(events).count("wait clock a wait clock") == 3  # the warm-up and two rounds
    events.clear()
    paired({"a": lambda: events.append("a")}, 2, clock=clock)
    assert "wait" not in events


def test_the_page_of_speed() -> None:
    """At 100 TFLOP/s of 800, an epoch of 391 steps of 0.1 s takes 39.1 s."""
    plain = next(iter(speed.VARIANTS))
    step = {"batch": 128, "flops": 10**13, "attack steps": 10, "rounds": 15, "planned": 15}
    results: dict[str, Result] = {
        f"training step, {plain}, batch 128": step | {"variant": plain, "seconds": 0.4},
        "training step, eager, batch 128": step | {"variant": "eager", "seconds": 0.1},
        "training step, eager, batch 256": step | {"variant": "eager", "batch": 256, "seconds": 0.2},
        "attack, pgd, batch 8": {
            "spec": "pgd",
            "batch": 8,
            "steps": 100,
            "seconds": {"eager": 2.0, "graph": 0.5},
            "ratio": 3.9,
        },
        "AutoAttack": {"seconds": 80.0, "images": 500, "planned images": 1000, "survivors": 250},
    }
    text = speed.tables({"speed": results, "ceilings": {f"product, {ceilings.MATRIX}": {"TFLOP/s": 800.0}}})
    assert f"| 128 | {plain} | 0.4000 | 1.00 | 25.0 | 3.1% | 156.4 |" in text
    assert "| 128 | eager | 0.1000 | 4.00 | 100.0 | 12.5% | 39.1 |" in text
    assert "| 256 | eager | 0.2000 |  | 50.0 | 6.2% | 39.2 |" in text
    assert "| 128 | eager | 0.1000 | 4.00 | 100.0 |  | 39.1 |" in speed.tables({"speed": results})
    assert "| `pgd` | 100 | 8 | 400 | 1,600 | 3.90 |" in text
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


# The command


def test_without_a_device_one_line_reports_what_is_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmarks.main(["gpu"]) == 0
    assert capsys.readouterr().out == "no CUDA device: the GPU tests and benchmarks were skipped\n"


def test_the_options_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def run(*args: Any, **options: Any) -> int:
        calls.append((*args, options))
        return 0

    monkeypatch.setattr(command, "run", run)
    benchmarks.main(["gpu"])
    benchmarks.main(["gpu", "parity", "--quick"])
    benchmarks.main(["gpu", "--out", str(tmp_path), "--commit", "f00", "--minutes", "2", "--from", __file__])
    begin, every, pages = "python3 -m benchmarks.gpu", command.STAGES, command.PAGES
    rest = {"quick": False, "commit": None, "limit": 480.0}
    assert calls == [
        (every, pages, begin, rest | {"start": pages / "results.json"}),
        (
            ["parity"],
            command.TRIAL,
            f"{begin} parity --quick",
            rest | {"quick": True, "start": command.TRIAL / "results.json"},
        ),
        (
            every,
            tmp_path,
            f"{begin} --out {tmp_path} --commit f00 --minutes 2 --from {__file__}",
            {"quick": False, "commit": "f00", "limit": 120.0, "start": Path(__file__)},
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu", "speeed"], "unknown stage 'speeed'; known: parity, tests, speed, ceilings, peers"),
        (["gpu", "--minutes", "0"], "--minutes 0: must be positive"),
        (["gpu", "--from", "none.json"], "--from none.json: no such file"),
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
        "import benchmarks.gpu.__main__, tests.gpu.test_graphs, tests.gpu.test_recipes, tests.gpu.test_attacks\n"
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
        def forward(
            self, precision: Precision, images: Tensor, compiling: Compiling | None = None, *, objection: str = ""
        ) -> Iterator[Forward]:
            with super().forward(precision, images, compiling, objection=objection) as forward:
                yield lambda x: forward(x) * (1 + 2e-5)

    monkeypatch.setattr(parity, "Fusion", Inexact)
    assert not check(f"fused copy, {parity.ATTACKED}")["passed"]


class Pretended:
    """The interfaces of pyautoattack and torchattacks; both return the images unmodified, but the first one."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        assert settings.pop("eps") == peers.EPSILON
        self.calls: list[dict[str, Any]] = []
        self.apgd, self.apgd_targeted, self.fab = (SimpleNamespace(n_iter=100) for _ in range(3))
        self.square = SimpleNamespace(n_queries=5000)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        assert len(x) == len(y) == peers.QUICK.batch
        return x.clone()

    def run_standard_evaluation(self, x: Tensor, y: Tensor, *, batch_size: int) -> tuple[Tensor, Tensor]:
        assert (self.fab.n_iter, self.square.n_queries, batch_size) == (1, 1, peers.QUICK.batch)
        return x.clone(), y


@pytest.mark.slow
def test_the_stage_runs_to_its_end_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the packages their cells fail, and say what to install; the next call runs only these."""
    stage = peers.stage(peers.QUICK, [peers.TRAINED])  # which is smaller than the checkpoint
    monkeypatch.setattr(command, "STAGES", {"peers": lambda _: stage})
    for package in ("pyautoattack", "torchattacks"):
        monkeypatch.setitem(sys.modules, package, None)
    with PretendCuda():
        assert command.run(["peers"], tmp_path, "make gpu", quick=True) == 1
        text = capsys.readouterr().out
        assert "pyautoattack is missing; pip install --no-deps pyautoattack, then repeat the command" in text
        steps = json.loads((tmp_path / "results.json").read_text())["stages"]["peers"]["cells"]
        for package, name in (("pyautoattack", "AutoAttack"), ("torchattacks", "PGD")):
            monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{name: Pretended}))
        assert command.run(["peers"], tmp_path, "make gpu", quick=True) == 0
    cells = json.loads((tmp_path / "results.json").read_text())["stages"]["peers"]["cells"]
    for name in ("training step, at", "training step, cfa-at"):
        assert cells[name] == steps[name]
        assert len(cells[name]["result"]["seconds"]) == 2
    attacks = {name: cell["result"] for name, cell in cells.items() if not name.startswith("training")}
    assert list(attacks) == [f"{attack}, {peers.TRAINED}" for attack in ("PGD-20", "AutoAttack")]
    assert len(peers.stage(peers.Size()).run.keywords["cells"]) == 6  # type: ignore[attr-defined]
    for name, result in attacks.items():
        ours, theirs = result["robust"].values()
        assert len(result["seconds"]) == 2
        assert 0 <= ours <= theirs == result["images"] == peers.QUICK.images, name
    page = (tmp_path / "results.md").read_text()
    assert "## Beside the peers" in page
    assert f"| AutoAttack, {peers.TRAINED} | 4 images | pyautoattack |" in page


def test_a_network_is_trained_once() -> None:
    timer = Timer("cpu")
    size = peers.Size(images=4, trained=40, batch=4, width=0.0625, seconds=0.0, pgd=1)
    model, x, y = peers.subject(size, peers.TRAINED, timer.device)
    assert peers.subject(size, peers.TRAINED, timer.device)[0] is model
    assert not model.training
    assert peers.robust(model, x, y) == len(x) == 4
    assert peers.robust(model, x, y + 1) == 0
    assert torch.equal(x, peers.subject(size, peers.CHECKPOINT, timer.device)[1])
