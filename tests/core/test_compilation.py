"""Compilation: one graph for each network, where it is worthwhile, and the network itself where it fails."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.engine import CountedForward, Engine, Finished, Job, graphed
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute import compilation
from classwise.core.compute.compilation import COLD, RECORD, STARTUP, VARIABLE, Compiling, Cost, worthwhile
from classwise.core.compute.graphs import WARM_UP
from classwise.core.compute.precision import FAST, Precision
from classwise.models import load_model
from classwise.models.fusion import Fusion
from classwise.models.modes import evaluating, frozen
from classwise.threat.ball import Threat
from classwise.training.recipe import Recipe
from tests.refusals import check_refused

from ..attacks.models import Small, images, labelled
from ..auditing.toys import Listener
from ..pretend_cuda import PretendCuda
from ..training.test_graphed_step import TINY
from ..training.test_trainer import contents

COMPILED = Precision(dtype="bfloat16", channels_last=True, compile="on")
CLASSES = 4


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "compiled"))
    return tmp_path / "compiled"


class Passing:
    """In place of `torch.compile`: returns the network, and counts the passes of each number of images."""

    def __init__(self) -> None:
        self.calls = 0
        self.sizes: set[int] = set()

    def __call__(self, network: nn.Module, **_: object) -> Callable[[Tensor], Tensor]:
        self.calls += 1

        def forward(x: Tensor) -> Tensor:
            self.sizes.add(len(x))
            logits: Tensor = network(x)
            return logits

        return forward


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Passing:
    compiler = Passing()
    monkeypatch.setattr(torch, "compile", compiler)
    return compiler


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", "small-cnn", "resnet18", "preactresnet18", "wideresnet", "vgg16"])
def test_the_fused_copy_of_a_network_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without breaks, and not compiled again after its weights have changed; larger networks take seconds each."""
    from torch._dynamo.testing import CompileCounter  # takes seconds to import
    from torch._dynamo.utils import counters

    counter, x = CompileCounter(), images(2, 3, 32)
    monkeypatch.setattr(compilation, "BACKEND", counter)
    torch._dynamo.reset()
    counters.clear()
    model = load_model(name, num_classes=10, in_channels=3, width=0.0625)
    fusion, failures = Fusion(model), list[str]()
    compiling = COMPILED.compiling(torch.device("cpu"), 2, 0, failures.append)
    found = []
    with evaluating(model), frozen(model):
        for _ in range(2):
            with fusion.forward(COMPILED, x, compiling) as forward:
                logits = forward(x.requires_grad_())
                assert counter.frame_count == 1
            with fusion.forward(COMPILED, x) as forward:
                assert torch.equal(forward(x), logits)
            found.append(logits)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(0.9)
    assert not torch.equal(*found)
    assert (failures, fusion.unfused, dict(counters["graph_break"])) == ([], "", {})


def attacked(precision: Precision, device: str = "cpu") -> tuple[list[Finished], Engine, PGD]:
    count, attack = 8, PGD(steps=8)
    model, x, y = labelled(Small(CLASSES).eval(), images(count))
    engine = Engine(model.to(device), precision=precision, batch_size=8)
    jobs = [Job(torch.arange(count), x, y)]
    return list(engine.attack(attack, Threat("Linf", 0.01), jobs, images=count)), engine, attack


def same(one: list[Finished], other: list[Finished]) -> bool:
    return all(torch.equal(a.x.cpu(), b.x.cpu()) for a, b in zip(one, other, strict=True))


def raising(*_: object, **__: object) -> Any:
    raise OSError("no compiler\nin the path")


def wrong(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *inputs: tuple(-output for output in graph(*inputs))


@pytest.mark.slow  # imports of torch.compile
@pytest.mark.parametrize(
    ("backend", "reason"), [(raising, "OSError: no compiler$"), (wrong, ".*logits differ by 2.0e")]
)
def test_the_network_itself_runs_where_compilation_fails(
    backend: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", backend)
    torch._dynamo.reset()
    expected, eager, _ = attacked(FAST)
    found, engine, _ = attacked(COMPILED)
    assert same(found, expected)
    assert eager.not_compiled == ""
    assert re.match(reason, engine.not_compiled)
    assert "\n" not in engine.not_compiled
    log = Listener()
    data = cw.Images(images(12), torch.arange(12) % CLASSES)
    options: dict[str, Any] = {"precision": COMPILED, "batch_size": 32, "guards": "off", "progress": log}
    audit = cw.audit(Small(CLASSES), data, "Linf:0.01", ["pgd:steps=2", "apgd-ce:steps=2"], **options)
    assert re.match(reason, audit.environment["not_compiled"])
    assert sum("passes are not compiled: " in line for line in log.lines) == 1
    assert audit.outcomes.meta.precision["compile"] is True


@pytest.mark.slow  # imports of torch.compile
def test_many_kinds_of_passes_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the limit of torch, such as those of several audits with batches of other sizes."""
    graphs: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(inputs))
        return graph

    monkeypatch.setattr(compilation, "BACKEND", counting)
    torch._dynamo.reset()
    forward, failures = FAST.forward(Small(CLASSES).eval()), list[str]()
    sizes = range(2, 13)
    assert len(sizes) > torch._dynamo.config.cache_size_limit
    for size in sizes:
        forward.compile(Compiling(size, math.inf, failures.append))
        forward(images(size))
    assert failures == []
    assert len(graphs) == len(sizes)


@pytest.mark.parametrize(
    ("passes", "cost", "expected"),
    [
        (4e6, Cost(2.0, 2.6e-6), True),
        (4e6, Cost(6.0, 2.6e-6), False),
        (1e9, Cost(2.0, -1e-6), False),  # the compiled kernels are slower
        (0, Cost(0.0, 1e-6), False),
    ],
)
def test_compilation_must_save_twice_its_time(passes: float, cost: Cost, expected: bool) -> None:
    assert worthwhile(passes, cost) == expected


@pytest.mark.parametrize(
    ("passes", "image", "calls"),
    [
        (4441 * 900, 18e-6, 0),  # FAB-T on 10,000 images would save 18 s, and compilation take 20 s
        (4440 * 5000, 8.5e-6, 1),  # Square: 47 s
        (1e8, 12e-6, 1),  # 200 epochs of CIFAR-10
        (math.inf, 0.0, 1),
    ],
)
def test_without_a_record_a_quarter_of_a_pass_is_expected_to_be_saved(
    passes: float, image: float, calls: int, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "_seconds", lambda _, __, x: len(x) * image)
    monkeypatch.setattr(compilation, "_compiles", [])
    forward = COMPILED.forward(Small(CLASSES).eval())
    forward.compile(Compiling(4, passes))
    forward(images(4))
    forward(images(4))
    assert passing.calls == calls


def test_nothing_is_compiled_meanwhile(passing: Passing) -> None:
    forward, x, compiling = COMPILED.forward(Small(CLASSES).eval()), images(4), Compiling(4, math.inf)
    forward.compile(compiling)
    counted = CountedForward(forward, nn.Identity(), compiling=compiling)
    with counted.not_compiled():
        counted(x)
        assert passing.calls == 0
    counted(x)
    assert passing.calls == 1


def test_what_is_compiled() -> None:
    def passes(device: str, **settings: Any) -> float | None:
        found = Precision(**settings).compiling(torch.device(device), 128, 1e9)
        return None if found is None else found.passes

    assert passes("cpu") is None
    assert passes("cuda") == 1e9
    assert passes("cuda", compile="off") is None
    assert passes("cuda", deterministic=True) is None
    assert passes("cpu", compile=True) == math.inf
    check_refused(
        r"^precision.compile = on: compiled kernels are chosen by measurements",
        Precision,
        compile="on",
        deterministic=True,
    )
    check_refused("compile = 'maybe': Input should be 'auto', 'on' or 'off'", Precision, compile="maybe")


def test_older_records_and_keys_do_not_change() -> None:
    device = torch.device("cuda")
    for value, text in ((False, "False"), ("auto", "False"), ("off", "False"), (True, "True")):
        precision = Precision(compile=value)  # type: ignore[arg-type]
        assert repr(precision) == f"Precision(dtype='float32', channels_last=False, compile={text})"
        assert precision.recorded(device)["compile"] is (text == "True")
    digests = [Recipe.read("at", {"precision.compile": value}).digest() for value in ("auto", False, "off", True)]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_the_cost_of_each_kind_of_pass_is_recorded(
    folder: Path, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation from the cache takes less than the first one; a damaged record counts as none."""
    model, x = Small(CLASSES).eval(), images(4)
    for count in (1, 2):
        forward = COMPILED.forward(model)
        forward.compile(Compiling(4, math.inf))
        with torch.no_grad():
            assert torch.equal(forward(x), FAST.forward(model)(x))
            forward(images(3))  # another size
        compilation._networks.clear()
        ((key, entry),) = json.loads((folder / RECORD).read_text()).items()
        assert entry["count"] == count
    assert key.startswith(f"torch {torch.__version__}, cpu, network ")
    assert "(4, 2, 4, 4)" in key
    assert key.endswith("torch.bfloat16, training False, gradients False")
    assert passing.sizes == {4}
    assert compilation._compiles
    for count, seconds in ((1, 2.0), (2, 10.0)):
        (folder / RECORD).write_text(json.dumps({key: {"seconds": 10.0, "saved": 1e-6, "count": count}}))
        assert compilation.recorded_cost(key) == Cost(seconds, 1e-6)
        with monkeypatch.context() as context:
            context.setattr(compilation, "_compiles", [])
            assert compilation.recorded_cost(key) == Cost(seconds + STARTUP, 1e-6)
    assert compilation.recorded_cost(f"another {key}") is None
    (folder / RECORD).write_text("{")
    assert compilation.recorded_cost(key) is None


def test_without_a_home_folder_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch, passing: Passing) -> None:
    """Such as that of a user of a container that only has a number."""

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(Path, "expanduser", homeless)
    for passes in (1.0, math.inf):  # the cost of a compilation is read only where few passes are left
        forward, failures = FAST.forward(Small(CLASSES)), list[str]()
        forward.compile(Compiling(4, passes, failures.append))
        assert len(forward(images(4))) == 4
        message = f"ClasswiseError: the user has no home folder for compiled kernels; set {VARIABLE}"
        assert failures == ([message] if passes == math.inf else [])
    assert passing.calls == 0


def test_the_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passing: Passing) -> None:
    def compiled() -> str:
        compilation._networks.clear()
        forward, failures = COMPILED.forward(Small(CLASSES)), list[str]()
        forward.compile(Compiling(4, math.inf, failures.append))
        forward(images(4))
        return "".join(failures)

    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(compilation, "FOLDER", tmp_path / "home" / "compiled")
    assert compiled() == ""
    assert os.environ[VARIABLE] == str(tmp_path / "home" / "compiled")
    assert (tmp_path / "home" / "compiled").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compilation, "FOLDER", tmp_path / "file" / "compiled")
    assert compiled().startswith("NotADirectoryError: ")
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.slow
def test_attacks_on_a_gpu_are_compiled_if_the_kernels_are_in_the_cache(
    folder: Path, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs, at the size of the slots only, and with the same bits, since nothing is changed by this compiler."""
    monkeypatch.setattr(graphed, "FEWEST_STEPS", WARM_UP)
    with PretendCuda() as gpu:
        expected, _, _ = attacked(Precision(dtype="bfloat16", channels_last=True, compile="off"), "cuda")
        attacked(FAST, "cuda")
        assert passing.calls == 0
        attacked(COMPILED, "cuda")
        assert passing.calls == 1
        ((key, entry),) = json.loads((folder / RECORD).read_text()).items()
        (folder / RECORD).write_text(json.dumps({key: entry | {"seconds": 1.0, "saved": 1e-6}}))
        attacked(FAST, "cuda")
        assert passing.calls == 1  # too few passes
        (folder / RECORD).write_text(json.dumps({key: entry | {"seconds": 1.0, "saved": 1.0}}))
        graphs = len(gpu.graphs.made)
        found, engine, attack = attacked(FAST, "cuda")
        assert passing.calls == 2
        assert len(gpu.graphs.made) == graphs + 1
    assert passing.sizes == {8}
    assert (engine.not_compiled, engine.not_graphed(attack)) == ("", "")
    assert same(found, expected)


def test_the_compiled_batches_are_those_of_starts_side_by_side(passing: Passing) -> None:
    """70 images would have 96 slots one start after another; their starts fill 128."""
    model, x = Small(CLASSES), images(70)
    with PretendCuda():
        y = model.eval().to("cuda")(x.to("cuda")).argmax(1)
        precision = Precision(dtype="bfloat16", channels_last=True, compile="on", graphs="off")
        engine = Engine(model, precision=precision, batch_size=128)
        jobs = [Job(torch.arange(70), x, y)]
        list(engine.attack(PGD(steps=2, restarts=3), Threat("Linf", 0.01), jobs, images=70))
    assert engine.not_compiled == ""
    assert passing.sizes == {128}


@pytest.mark.slow
def test_training_on_a_gpu_is_compiled_if_it_is_long(
    tmp_path: Path, folder: Path, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs, at the batch size, and with the same bits; buffers are those of one pass for each step."""
    log, more = Listener(), dict[str, Any]()
    more |= {"precision.graphs": "on", "epochs": 1}

    def trained(name: str, **precision: Any) -> cw.Run:
        overrides = TINY | more | {f"precision.{key}": value for key, value in precision.items()}
        options: dict[str, Any] = {"data": "digits", "overrides": overrides, "device": "cuda", "progress": log}
        return cw.train("at", out=tmp_path / name, **options)

    with PretendCuda() as gpu:
        runs = [trained("short")]
        assert passing.calls == 0
        graphs = len(gpu.graphs.made)
        with mock.patch.object(compilation, "_seconds", lambda _, __, x: 1e6 * len(x)):
            runs.append(trained("long"))
            assert passing.sizes == {TINY["batch_size"]}
            assert len(gpu.graphs.made) == 2 * graphs
            (folder / RECORD).unlink()
            monkeypatch.setattr(torch, "compile", raising)
            runs.append(trained("failed"))
    assert COLD > 0
    assert [run.environment["graphs"] for run in runs] == ["used"] * 3
    assert [run.environment.get("not_compiled") for run in runs] == [None, None, "OSError: no compiler"]
    assert [line for line in log.lines if "not compiled" in line] == ["passes are not compiled: OSError: no compiler"]
    assert contents(runs[0]) == contents(runs[1]) == contents(runs[2])
