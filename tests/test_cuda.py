"""The package on a pretended GPU: no mixture of devices, no synchronisation in a step, and few kernel launches."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the field's own name for it
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

import classwise as cw
from classwise.analysis.feature_sets import NonRobustFeatures, RobustFeatures
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.engine import AttackInputs, CountedForward, Engine, Finished, Job
from classwise.attacks.engine.polling import EndedSlots
from classwise.attacks.engine.queue import Queue
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.run.loop import Attacked, AttackLoop
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.precision import EXACT, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.progress.listener import NullProgress
from classwise.core.settings.config import make
from classwise.data import load_data
from classwise.models.base import to_grid
from classwise.models.modes import evaluating, frozen
from classwise.models.weights import save_weights
from classwise.papers.experiments.weak_classes import clean_logits
from classwise.testing import assert_robust
from classwise.threat.ball import Threat
from classwise.training.batches import sampled_targets
from classwise.training.classes.signals import ClassSettings
from classwise.training.evaluation import validation_batch
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names
from classwise.training.state import write_state
from classwise.training.trainer import Trainer

from . import launches
from .attacks.models import Small, images
from .attacks.test_contract import VARIANTS, darken, named
from .pretend_cuda import Counted, PretendCuda, convolves_in_tf32, multiplies_in_tf32
from .training.killing import KillAt, Killed
from .training.on_digits import ELSEWHERE, METHODS, NETWORK, NORMALISED, TINY
from .training.test_trainer import contents

USER_CODE = {"external"}
"""Attacks that run code of the user, which needs the number of pending images."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTACKS, *VARIANTS])
def test_the_step_of_an_attack(name: str) -> None:
    attack = named(name, classes=4)
    for norm in attack.norms:
        with PretendCuda() as gpu:
            model = Small(4).to("cuda")
            x, y = images(4).to("cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
            forward = CountedForward(EXACT.forward(model), model)
            with evaluating(model), frozen(model):
                threat, rng = Threat(norm, 0.1), CounterRNG(0, "attack")
                reference, restart = forward(x).detach(), torch.zeros_like(y)
                inputs = AttackInputs(
                    x, y, torch.arange(4, device="cuda"), threat, rng, reference=reference, restart=restart
                )
                state = attack.start(forward, inputs)
                state = attack.step(forward, inputs, state)  # fills the caches
                with gpu.counted() as counted:
                    attack.step(forward, inputs, state)
        assert name in USER_CODE or counted.synchronisations == []
        most = launches.ATTACKS.get(name, {}).get(norm, launches.MOST_OF_ATTACK)
        assert name in USER_CODE or counted.launches <= most, (name, norm, counted.launches)


STOPPED = (
    "pgd:steps=24,step_size=0.1eps",
    "pgd:steps=9,objective=margin,restarts=3",
    "pgd:steps=41,step_size=1eps",  # cycles
    "square:steps=40",
    "nattack:steps=3,samples=2",  # some rows are done before their first step
)
WHOLE = ("fgsm", "apgd-t:steps=2,targets=2")


def attacked(model: nn.Module, attack: Attack, *, early_stop: bool) -> list[Finished]:
    """100 images, of which some are misclassified before any attack, 64 at a time."""
    precision = Precision(dtype="bfloat16", graphs="off", search="float32")  # a capture waits for the GPU
    engine = Engine(model, precision=precision, batch_size=64, early_stop=early_stop)
    x = images(100)
    with torch.no_grad():
        y = model.eval()(x.to(engine.device)).argmax(1).cpu()
    y[:12] = (y[:12] + 1) % 10
    columns = (torch.split(column, 50) for column in (torch.arange(100), x, y))
    jobs = [Job(*row) for row in zip(*columns, strict=True)]
    assert engine.passes.unfused == ""
    return list(engine.attack(attack, Threat(attack.norms[0], 0.02), jobs))


def rows_of(blocks: list[Finished]) -> dict[str, Tensor]:
    """All columns on the CPU, in the order of the images."""
    tables = [{**vars(block), **block.records} for block in blocks]
    joined = {name: torch.cat([table[name].cpu() for table in tables]) for name in tables[0] if name != "records"}
    order = joined["index"].argsort()
    return {name: column[order] for name, column in joined.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "early_stop"), [*((spec, True) for spec in STOPPED), *((spec, False) for spec in WHOLE)]
)
def test_reading_one_poll_late_changes_no_bit(spec: str, early_stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 some candidates are false alarms, so rows also return to their slots."""
    model, attack = Small(10), make(ATTACKS, spec)
    on_cpu = rows_of(attacked(model, attack, early_stop=early_stop))
    counts: list[int] = []
    with PretendCuda() as gpu:

        def noted(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                counts.append(len(gpu.synchronisations))
                return call(*args)

            return run

        for owner, name in ((EndedSlots, "poll"), (Queue, "_by_fate")):
            monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
        model.to("cuda")
        counts.append(len(gpu.synchronisations))
        blocks = attacked(model, attack, early_stop=early_stop)
        counts.append(len(gpu.synchronisations))
        on_gpu = rows_of(blocks)
    assert torch.equal(on_cpu["row"].sort().values, on_gpu.pop("row").sort().values)
    assert all(torch.equal(value, on_cpu[name]) for name, value in on_gpu.items())
    waits = [after - before for before, after in itertools.pairwise(counts)]
    # One for the flags, one for what becomes of the verified rows, and two for the trial of a smaller batch.
    assert max(waits[2:]) <= 3
    assert sum(waits[1:]) <= len(waits) + 2
    assert waits[0] <= 16  # before the first poll, the fused copy is verified and a smaller batch tried


AUDITS: dict[str, dict[str, Any]] = {
    "gradients": {
        "threat": cw.Threat("Linf", torch.full((40,), 0.1)),
        "attacks": ["pgd:steps=2"],
        "save": ("logits", "images"),
        "trace": [1],
    },
    "gradient-free": {"attacks": ["square:steps=3"], "batch_size": 32},
    "fused": {
        "attacks": ["fab-t:steps=1,targets=1"],
        "model": cw.load_model("small-cnn", num_classes=4, in_channels=2, width=0.1),
    },
    "external": {"attacks": [ExternalAttack(attack=darken)]},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", AUDITS.values(), ids=AUDITS)
def test_an_audit_with_its_guards(options: dict[str, Any]) -> None:
    x = torch.rand(40, 2, 8, 8, generator=torch.Generator().manual_seed(0)).mul_(255).to(torch.uint8)
    every: dict[str, Any] = {"model": Small(4), "threat": "Linf:0.1", "device": "cuda"}
    with PretendCuda() as gpu:
        audit = cw.audit(data=cw.Images(x, torch.arange(40) % 4), **(every | options))
    assert len(audit.outcomes.frame) == 80
    assert not any(re.search(r"engine/passes\.py:\d+ logits", place) for place in gpu.in_tf32)


class WithConstant(Small):
    """Its forward pass makes a tensor on the default device."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.zeros(4)


def darkened(x: Tensor, _: Tensor) -> Tensor:
    """An attack that makes a tensor on the default device."""
    return x - torch.full((1, 2, 4, 4), 0.05)


IN_GENERAL: dict[str, Callable[[nn.Module, cw.Images, Path], object]] = {
    "audit": lambda model, data, _: cw.audit(
        model,
        data,
        "Linf:0.1",
        {"own": "pgd:steps=2", "external": ExternalAttack(attack=darkened)},
        device="cuda",
    ),
    "curve": lambda model, data, _: cw.robustness_curve(
        model, data, "Linf", "pgd:steps=1", highest=0.2, rounds=1, device="cuda"
    ),
    "training": lambda _, __, folder: cw.train(
        "at", budget="short", data="digits", out=folder, overrides=TINY | {"data.subset": 40}, device="cuda"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", IN_GENERAL.values(), ids=IN_GENERAL)
def test_the_default_device_of_the_user_may_be_a_gpu(
    call: Callable[[nn.Module, cw.Images, Path], object], tmp_path: Path
) -> None:
    """Indices and tables are on the CPU all the same, and tensors that the user's code makes are on the GPU."""
    model, data = WithConstant(4), cw.Images(images(40), torch.arange(40) % 4)
    with PretendCuda(), torch.device("cuda"):
        call(model, data, tmp_path / "run")
        assert torch.get_default_device().type == "cuda"


NARROW = {"model": {"name": "preactresnet18", "width": 0.0625}}
VARIANTS_OF_AT: dict[str, dict[str, Any]] = {
    "at, ResNet": NARROW,
    "at, ResNet, bfloat16": NARROW | {"precision": {"dtype": "bfloat16", "channels_last": True}},
}


def trained(name: str, folder: Path) -> Counted:
    """A step and an epoch's end on digits, and a step; what happened in another one, with the schedules active."""
    threat = Threat("Linf", 0.1)
    tiny = {"data.subset": None, "batch_size": 16, "validation_attack": "pgd:steps=1", "attack.steps": 1, "epochs": 4}
    head = {"model": NETWORK | {"options": {"head": "cosine"}}} if name.startswith("he") else {}
    overrides = TINY | tiny | (METHODS | ELSEWHERE | VARIANTS_OF_AT).get(name, head) | {"precision.graphs": "off"}
    recipe = Recipe.read(name.partition(",")[0], overrides, budget="short")
    recipe = recipe.completed(threat, classes=10)
    with PretendCuda() as gpu, torch.random.fork_rng(devices=[]):
        trainer = Trainer(recipe, load_data("digits", split="train", subset=60), Run(folder), "cuda", NullProgress())
        folder.mkdir()
        trainer._start()
        for epoch in range(2):
            trainer.state.epoch, trainer.state.step = epoch, 0
            order = trainer.batches.order(epoch)
            for _ in range(1 + epoch):
                with gpu.counted() as counted:
                    settings = trainer.class_settings()
                    trainer.train_step(trainer.batches.rows(order, epoch, trainer.state.step, settings), settings)
                trainer.state.step += 1
            if epoch == 0:
                trainer._end_epoch(settings, seconds=1.0)
    return counted


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are written in the background, also those of a run that is ended by an exception."""
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    writers, written = set[str](), list[tuple[int, int]]()

    def watched(path: Path, content: dict[str, Any]) -> None:
        writers.add(threading.current_thread().name)
        written.append((content["epoch"], content["step"]))
        write_state(path, content)

    monkeypatch.setattr("classwise.training.trainer.write_state", watched)
    tiny: dict[str, Any] = {"data.subset": 60, "data.validation": 0.2, "model": NORMALISED, "batch_size": 16}
    tiny |= {"attack.steps": 1, "validation_attack": "pgd:steps=1", "optimizer": "adam", "averaging.start_fraction": 0}

    def trained(name: str, **options: Any) -> Run:
        return cw.train(
            "cfa-at", data="digits", out=tmp_path / name, overrides=tiny, epochs=2, device="cuda", **options
        )

    with PretendCuda():
        reference = trained("reference")
        assert written == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
        assert writers == {"writer_0"}
        for step in (2, 7):
            with pytest.raises(Killed):
                trained(f"run-{step}", progress=KillAt(step))
            assert contents(trained(f"run-{step}", resume=True)) == contents(reference)


class Watched(Small):
    """Records for each pass whether it has a gradient, and whether a GPU computes it in TF32."""

    def __init__(self) -> None:
        self.passes: set[tuple[bool, bool]] = set()
        super().__init__(4)
        self.passes.clear()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.add((x.requires_grad, convolves_in_tf32() or multiplies_in_tf32()))
        return super().forward(x)


BRIEF = (
    "pgd:steps=1",
    "apgd-t:steps=1,targets=1",
    "fab-t:steps=1,targets=1",
    "square:steps=1",
    "nattack:steps=1,samples=2",
    "cw:steps=1,binary_search_steps=1",
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spec", [*BRIEF, "transfer"])
def test_verdicts_and_exact_attacks_are_in_true_float32(spec: str, dtype: Literal["float32", "bfloat16"]) -> None:
    settings = convolves_in_tf32(), multiplies_in_tf32()
    assert settings == (True, False)  # torch's own
    model = Watched()
    attack = Transfer(surrogate=model, attack=PGD(steps=1)) if spec == "transfer" else named(spec, classes=4)
    with PretendCuda() as gpu:
        model.to("cuda")
        engine = Engine(model, precision=Precision(dtype=dtype), batch_size=4)
        job = Job(torch.arange(4), images(4), torch.arange(4))
        for _ in engine.attack(attack, Threat(attack.norms[0], 0.01), [job]):
            assert convolves_in_tf32()  # while the caller has the rows
        list(engine.predict([images(4)]))
    searches = dtype == "bfloat16" and spec != "transfer" and attack.precise is not True
    assert (False, False) in model.passes
    assert any(tf32 for _, tf32 in model.passes) == searches
    assert all(" _advance" in place for place in gpu.in_tf32)
    assert (convolves_in_tf32(), multiplies_in_tf32()) == settings


def trained_and_adjusted(model: nn.Module, data: cw.Images, folder: Path) -> None:
    """With the validation of a training, the adjustment of its logits and the interpolation of its weights."""
    save_weights(folder / "start.safetensors", model, {})
    overrides = TINY | {"model": {"name": "small-cnn", "width": 0.1}, "data.validation": 0.5, "epochs": 1}
    overrides |= {"batch_size": 16, "precision.graphs": "off", "data.subset": 40}
    run = cw.train("at", budget="short", data="digits", out=folder / "run", overrides=overrides, device="cuda")
    cw.adjust_logits(run, attack="pgd:steps=1", rates=[0.3], device="cuda")
    start = run.weights_file(run.chosen_weights(None))
    cw.interpolate_weights(run, start=start, shares=[0.5], attack="pgd:steps=1", device="cuda")


DEFAULT = cw.Precision(dtype="bfloat16", channels_last=True, search="float32")
"""That of a GPU, but that no search is in TF32, whose passes without gradients decide nothing."""
DECIDING: dict[str, Callable[[nn.Module, cw.Images, Path], object]] = {
    "audit with all guards": lambda model, data, _: cw.audit(
        model, data, "Linf:0.1", "pgd:steps=1", guards="full", device="cuda", grid="8bit", precision=DEFAULT
    ),
    "attack": lambda model, data, _: cw.attack(
        model.to("cuda"), data.pixels().to("cuda"), data.y.to("cuda"), "pgd:steps=1", threat="Linf:0.1"
    ),
    "curve": lambda model, data, _: cw.robustness_curve(
        model, data, "Linf", "pgd:steps=1", highest=0.2, rounds=1, device="cuda"
    ),
    "worst class": lambda model, data, _: cw.find_worst_class(model, data, "Linf:0.1", "pgd:steps=1", device="cuda"),
    "training and after it": trained_and_adjusted,
    "similarity of logits": lambda model, data, _: clean_logits(model.to("cuda"), data),
    "robust features": lambda model, data, _: RobustFeatures(steps=1)(model.to("cuda"), data.to("cuda")),
    "non-robust features": lambda model, data, _: NonRobustFeatures(steps=1)(model.to("cuda"), data.to("cuda")),
    "assertion": lambda model, data, folder: assert_robust(
        model.to("cuda"), data, worst=0, threat="Linf:0.1", attacks="pgd:steps=1", cache=folder, guards="off"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DECIDING)
def test_passes_that_decide_are_never_in_tf32(name: str, tmp_path: Path) -> None:
    """A pass without gradients decides, unless it is in bfloat16; sets of features are in float32 throughout."""
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)).mul_(255).to(torch.uint8)
    model = cw.load_model("small-cnn", num_classes=10, in_channels=1, width=0.1)
    passes: Counter[bool] = Counter()

    def watch(module: nn.Module, _: object) -> None:
        gradients = torch.is_grad_enabled() and "features" not in name
        if isinstance(module, nn.Conv2d | nn.Linear) and not gradients and not torch.is_autocast_enabled("cpu"):
            passes[convolves_in_tf32() or multiplies_in_tf32()] += 1

    with PretendCuda() as gpu:
        torch.set_float32_matmul_precision("high")
        hook = register_module_forward_pre_hook(watch)
        try:
            DECIDING[name](model, cw.Images(x, torch.arange(40) % 10), tmp_path)
        finally:
            hook.remove()
            torch.set_float32_matmul_precision("highest")
    assert passes[False] > 0
    assert passes[True] == 0
    assert "features" not in name or gpu.in_tf32 == []


@pytest.mark.parametrize("shape", [(4, 4), (5, 7), (2, 3), (13, 13)])
def test_pooling_on_a_gpu_has_a_deterministic_gradient(shape: tuple[int, int]) -> None:
    x, weight = torch.rand(2, 3, *shape), torch.rand(2, 3, 4, 4)

    def value_and_gradient(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        pooled = to_grid(leaf, 4)
        return pooled.detach(), torch.autograd.grad((pooled * weight).sum(), leaf)[0]

    on_cpu = value_and_gradient(x, weight)
    with PretendCuda(), deterministic_algorithms():
        on_gpu = [value.cpu() for value in value_and_gradient(x.to("cuda"), weight.to("cuda"))]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            half = to_grid(x.to("cuda").bfloat16(), 4).cpu()
    for expected, found in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-6)
    assert torch.equal(on_cpu[0], F.adaptive_avg_pool2d(x, 4))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), on_cpu[0], rtol=2e-2, atol=0)


def test_targets_are_sampled_by_deterministic_algorithms() -> None:
    y, index = torch.arange(40) % 4, torch.arange(40)
    target = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.1, 0.0, 0.2, 0.7], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])

    def sampled(device: str) -> list[int]:
        settings = ClassSettings(epsilon=torch.ones(4, device=device), target=target.to(device))
        chosen = sampled_targets(index.to(device), y.to(device), CounterRNG(0), settings)
        assert chosen is not None
        return chosen.tolist()

    on_cpu = sampled("cpu")
    with PretendCuda(), deterministic_algorithms():
        assert sampled("cuda") == on_cpu
    assert set(on_cpu) == {-1, 0, 1, 2, 3}


def test_operations_without_a_deterministic_gradient_are_refused() -> None:
    leaf = torch.rand(1, 1, 6, 6).requires_grad_()
    message = "adaptive_avg_pool2d_backward_cuda has no deterministic implementation"
    with PretendCuda(), pytest.raises(ClasswiseError, match=message), deterministic_algorithms():
        torch.autograd.grad(F.adaptive_avg_pool2d(leaf.to("cuda"), 4).sum(), leaf)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1 << 30, 1 << 10], ids=["fits", "too large"])
def test_the_images_of_an_audit_are_copied_as_uint8(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all attacks where they fit into memory, else in batches; the outcomes are those of the CPU."""
    pixels = torch.randint(256, (50, 2, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data, run = cw.Images(pixels, torch.arange(50) % 4), AttackLoop.run
    options: dict[str, Any] = {"threat": "Linf:0.1", "attacks": ["fgsm", "mifgsm:steps=1"], "batch_size": 32}
    options["precision"] = EXACT  # the default depends on the device
    on_cpu = cw.audit(Small(4), data, **options).outcomes.frame
    copied: list[int] = []
    monkeypatch.setattr("classwise.auditing.run.batch_sizes.memory_of", lambda _: memory)
    with PretendCuda() as gpu:

        def watched(loop: AttackLoop) -> Attacked:
            before = len(gpu.uploads)
            attacked = run(loop)
            copied.extend(gpu.uploads[before:])
            return attacked

        monkeypatch.setattr(AttackLoop, "run", watched)
        on_gpu = cw.audit(Small(4), data, device="cuda", **options).outcomes.frame
    assert on_gpu.equals(on_cpu)
    image = pixels[0].nbytes
    assert copied.count(50 * image) == (1 if memory > 1 << 20 else 0)
    assert (32 * image in copied) == (memory < 1 << 20)
    assert max(copied) < 4 * 32 * image  # nothing in float32


def test_validation_uses_large_batches_of_small_images() -> None:
    sizes = ((70, 8), (2000, 8), (1500, 65))
    few, many, large = (
        cw.Images(torch.zeros(count, 1, side, side), torch.zeros(count, dtype=torch.int64)) for count, side in sizes
    )
    assert [validation_batch(images, 128) for images in (few, many, large)] == [128, 128, 128]
    with PretendCuda():
        on_gpu = [data.to("cuda") for data in (few, many, large)]
        assert [validation_batch(data, 64) for data in on_gpu] == [96, 1024, 64]
        assert validation_batch(on_gpu[1], 2048) == 2048


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(name for name in recipe_names() if name not in ("absld", "fair-ard")), *VARIANTS_OF_AT]
)
def test_a_training_step(name: str, tmp_path: Path) -> None:
    counted = trained(name, tmp_path / "run")
    assert counted.synchronisations == []
    assert counted.launches <= launches.TRAINING.get(name, launches.MOST_OF_TRAINING), (name, counted.launches)
