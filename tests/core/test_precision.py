"""Precision: memory formats do not change results, and invalid devices are refused."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.auditing.run.audit import audit
from classwise.core.compute import compilation
from classwise.core.compute.compilation import Compiling
from classwise.core.compute.memory_format import channels_last
from classwise.core.compute.precision import EXACT, FAST, FLOAT32, Precision, check_device, fastest
from classwise.core.progress.listener import NullProgress
from classwise.core.settings.config import make
from classwise.data.images import Images
from classwise.models import load_model
from classwise.sweeps.plan import Plan
from classwise.threat.ball import Threat
from classwise.training.train import train
from tests.auditing.toys import Listener
from tests.refusals import check_refused


def network(channels: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    ("device", "amx", "instructions", "capability", "expected"),
    [
        ("cpu", True, "", (0, 0), FAST),
        ("cpu", False, "", (9, 0), FLOAT32),
        ("cpu", False, "avx512_bf16", (9, 0), FAST),  # Zen 4
        ("cpu", False, "avx_vnni", (9, 0), FLOAT32),
        ("cuda", True, "", (7, 5), FLOAT32),
        ("cuda", False, "", (8, 0), FAST),
        ("meta", True, "", (9, 0), FLOAT32),
    ],
)
def test_bfloat16_is_the_default_where_the_hardware_multiplies_it(
    device: str,
    amx: bool,
    instructions: str,
    capability: tuple[int, int],
    expected: Precision,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions.split(), True), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert fastest(torch.device(device)) == expected


def test_audits_use_the_fastest_precision_and_a_resumed_audit_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Images(torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8), torch.arange(40) % 4)
    where: dict[str, Any] = {"threat": "Linf:0.1", "attacks": "fgsm", "out": tmp_path / "a"}
    recorded = []
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    for amx, options in ((True, {}), (False, {"resume": True}), (False, {"resume": True, "precision": FLOAT32})):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        if "precision" in options:
            check_refused("precision", audit, network(1), data, **where, **options)
        else:
            recorded.append(audit(network(1), data, **where, **options).outcomes.meta.precision["dtype"])
    assert recorded == ["bfloat16", "bfloat16"]
    assert audit(network(1), data, "Linf:0.1", "fgsm").outcomes.meta.precision["dtype"] == "float32"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_runs_in_channels_last_for_any_number_of_channels(
    channels: int, dtype: Literal["float32", "bfloat16"]
) -> None:
    model, seen = network(channels), list[Tensor]()
    model[0].register_forward_hook(lambda _, __, out: seen.append(out))
    x = torch.rand(5, channels, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logits = {
        name: precision.forward(model)(x)
        for name, precision in {"plain": EXACT, "fast": Precision(dtype=dtype, channels_last=True)}.items()
    }
    plain, fast = seen
    assert plain.is_contiguous()
    assert fast.is_contiguous(memory_format=torch.channels_last)
    assert not fast.is_contiguous()
    assert logits["fast"].dtype == torch.float32
    close = {"float32": 1e-6, "bfloat16": 0.02}[dtype]
    assert torch.allclose(logits["fast"], logits["plain"], atol=close)
    one, other = (torch.autograd.grad(output[:, 0].sum(), x)[0] for output in logits.values())
    assert one.shape == other.shape == x.shape
    alike = {"float32": 0.99999, "bfloat16": 0.98}[dtype]  # a rounded value may win another maximum
    assert float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > alike


@pytest.mark.parametrize("device", ["cuda:99", "nope", torch.device("cuda", 99)])
def test_a_missing_device_is_one_line(device: str | torch.device, tmp_path: Path) -> None:
    data, out = Images(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]), ["a", "b"]), tmp_path / "out"
    calls: list[Callable[[], object]] = [
        lambda: check_device(device),
        lambda: audit(network(1), data, "Linf:0.1", device=device, out=out),
        lambda: load_model("lenet", num_classes=2, in_channels=1, device=device),
        lambda: train("at", data=data, device=str(device), out=out),
    ]
    for call in calls:
        check_refused(rf"^there is no device '{device}' on this machine(: torch .+)?; cpu is always available$", call)
    assert not out.exists()


@pytest.mark.parametrize(("device", "meant"), [("gpu", "cuda"), ("GPU:1", "cuda:1"), ("CUDA", "cuda"), ("CPU", "cpu")])
def test_a_misnamed_device_gets_a_suggestion(device: str, meant: str) -> None:
    check_refused(rf"^there is no device '{device}' on this machine; did you mean '{meant}'\?$", check_device, device)


@pytest.mark.parametrize(("build", "reason"), [(None, "is built without CUDA"), ("13.0", "finds 0 CUDA devices")])
def test_the_error_states_why_a_gpu_is_missing(build: str | None, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    check_refused(rf"no device 'cuda:99' on this machine: torch \S+ {reason}", check_device, "cuda:99")


COMPILED = Precision(dtype="bfloat16", compile="on")
EVERY = Compiling(1, math.inf)


class FakeCompile:
    """In place of `torch.compile`: the number of its calls, and the batches and gradients of compiled passes."""

    def __init__(self) -> None:
        self.calls = 0
        self.passes: list[tuple[int, bool, bool]] = []  # images, whether in bfloat16, whether with a gradient

    def __call__(self, model: nn.Module, *, dynamic: bool, backend: str) -> nn.Module:
        assert (dynamic, backend) == (False, "inductor")
        self.calls += 1
        return Watched(model, self)


class Watched(nn.Module):
    def __init__(self, model: nn.Module, fake: FakeCompile) -> None:
        super().__init__()
        self.model, self.fake = model, fake

    def forward(self, x: Tensor) -> Tensor:
        self.fake.passes.append((len(x), torch.is_autocast_enabled("cpu"), x.requires_grad))
        logits: Tensor = self.model(x)
        return logits


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCompile:
    """In place of the compiler, with a cache of its own."""
    fake = FakeCompile()
    monkeypatch.setattr(torch, "compile", fake)
    monkeypatch.setenv(compilation.VARIABLE, str(tmp_path / "compiled"))
    return fake


def test_a_model_is_compiled_once_while_it_is_in_use(fake: FakeCompile) -> None:
    model, other, x = network(1), network(1), torch.rand(2, 1, 6, 6)
    passes = [precision.forward(net) for net in (model, other) for precision in (COMPILED, Precision())]
    for forward in passes:
        forward.compile(EVERY)
        forward(x)
    assert fake.calls == 2
    gc.collect()
    assert {id(model), id(other)} <= set(compilation._networks)
    passes.clear()
    del forward
    gc.collect()
    assert not {id(model), id(other)} & set(compilation._networks)


@pytest.mark.parametrize(
    ("spec", "kinds"),
    {
        "pgd:steps=9,step_size=0.2eps": {(64, True, True)},
        "fab-t:steps=2,targets=1": {(64, False, True), (64, False, False)},
        "square:steps=20": {(64, False, False)},
    }.items(),
)
def test_every_attack_is_compiled_at_one_batch_size(
    spec: str, kinds: set[tuple[int, bool, bool]], fake: FakeCompile
) -> None:
    engine = Engine(network(1), precision=COMPILED, batch_size=64)
    x = torch.rand(80, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = engine.model(x).argmax(1)
    attack = make(ATTACKS, spec)
    for _ in range(2):
        found = list(engine.attack(attack, Threat("Linf", 0.01), [Job(torch.arange(80), x, y)]))
    assert sum(len(block.row) for block in found) == 80
    assert set(fake.passes) == kinds
    assert fake.calls == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, in tracing
def test_nothing_is_compiled_again_in_later_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not for the averaged model, which is a new module in each epoch."""
    from torch._dynamo.testing import CompileCounter  # takes seconds to import

    counter, counts = CompileCounter(), list[int]()
    monkeypatch.setenv(compilation.VARIABLE, str(tmp_path / "compiled"))
    monkeypatch.setattr(compilation, "BACKEND", counter)

    class Log(NullProgress):
        def log(self, line: str) -> None:
            if line.startswith("epoch"):
                counts.append(counter.frame_count)

    small: dict[str, Any] = {"data.subset": 100, "model.name": "lenet", "data.validation": 0.4, "batch_size": 32}
    small |= {"attack.steps": 1, "validation_attack": "pgd:steps=1", "precision.compile": "on", "averaging": "ema"}
    train("at", data="digits", out=tmp_path / "run", overrides=small, epochs=4, progress=Log())
    assert counts[1] >= 2  # of the attack and of the weights
    assert counts == [counts[0], *[counts[1]] * 3]


@pytest.mark.parametrize(("multiplies", "dtype"), [(True, "bfloat16"), (False, "bfloat16"), (False, "float32")])
def test_training_in_bfloat16_where_float32_is_faster_is_logged(
    multiplies: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: multiplies, raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    data, listener = Images(torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8), torch.arange(40) % 4), Listener()
    overrides = {
        "precision.dtype": dtype,
        "model.name": "small-cnn",
        "model.width": 0.1,
        "epochs": 1,
        "threat": "Linf:0.1",
    }
    train(
        "standard", out=tmp_path / "run", data=data, progress=listener, overrides={**overrides, "data.augment": "none"}
    )
    notes = [line for line in listener.lines if "precision.dtype=float32 is faster" in line]
    assert len(notes) == (not multiplies and dtype == "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize(("multiplies", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_the_dtype_auto_is_that_of_the_device_at_the_start(
    multiplies: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder has it, and a resumed run has it on any device."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    data, listener = Images(torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8), torch.arange(40) % 4), Listener()
    overrides = {"precision.dtype": "auto", "model.name": "small-cnn", "model.width": 0.1, "threat": "Linf:0.1"}
    options: dict[str, Any] = {"data": data, "progress": listener, "overrides": overrides | {"data.augment": "none"}}
    options |= {"out": tmp_path / "run", "epochs": 1}
    for resume, amx in ((False, multiplies), (True, not multiplies)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        run = train("standard", resume=resume, **options)
        assert (run.recipe.precision.dtype, run.recipe.precision.channels_last) == (dtype, dtype == "bfloat16")
    assert f"dtype: {dtype}" in run.recipe_file.read_text()
    note = "bfloat16 takes longer than float32" if multiplies else "1.7 to 3 times as fast"
    assert sum(note in line for line in listener.lines) == 1  # of the resumed run


def test_the_plan_that_compares_precisions() -> None:
    assert len(Plan.read(Path(__file__).parents[2] / "benchmarks" / "precision.yaml").cells()) == 2 * 2 * 3


class Strided(nn.Module):
    """A strided 1x1 convolution, the shortcut of a ResNet, that keeps the images of its last pass."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 8, 1, stride=2)
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return self.convolution(x).mean((2, 3))  # type: ignore[no-any-return]


@pytest.mark.parametrize("channels", [2, 4, 7, 8, 16])
@pytest.mark.parametrize("capability", ["AVX2", "AVX512", "DEFAULT"])
def test_images_are_contiguous_where_channels_last_overflows(
    channels: int, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model, x = Strided(channels), torch.rand(3, channels, 8, 8).contiguous(memory_format=torch.channels_last)
    FLOAT32.prepare(model)
    FLOAT32.forward(model)(x)
    assert model.seen is not None
    assert model.seen.is_contiguous() == (capability == "AVX2" and channels < 8)
    with torch.no_grad():
        FLOAT32.forward(model)(x)
    assert not model.seen.is_contiguous(), "no gradient of the weights: the faster format"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("precision", [EXACT, FLOAT32])
def test_gradients_of_the_weights_of_few_channels(precision: Precision, channels: int) -> None:
    """In channels-last they overflow on processors with AVX2 only (oneDNN, issue 6035)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = load_model("preactresnet18", num_classes=4, in_channels=channels, width=0.0625)
    x = torch.rand(6, channels, 16, 16, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6) % 4
    precise = copy.deepcopy(model).double()
    torch.autograd.backward(nn.functional.cross_entropy(precise(x.double()), y))
    precision.prepare(model)
    for _ in range(5):
        model.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(precision.forward(model)(channels_last(x)), y))
        for own, other in zip(model.parameters(), precise.parameters(), strict=True):
            assert own.grad is not None
            assert other.grad is not None
            assert torch.allclose(own.grad.double(), other.grad, rtol=1e-3, atol=1e-5)
