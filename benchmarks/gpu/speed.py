"""Speed: training steps, passes, steps of attacks, and AutoAttack, on a PreActResNet-18 for 32x32 images."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.ceilings import MATRIX, rate_of_products, tf32
from benchmarks.gpu.cells import Result, Stage, Timer, run_cells
from benchmarks.tables import table
from benchmarks.training_step import FAST as FAST_FIELDS
from benchmarks.training_step import PlainStep, network, prepared_trainer
from benchmarks.training_step import images as random_images
from classwise.attacks import ATTACKS
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.engine import Engine, Job
from classwise.attacks.engine.passes import Passes, value_and_gradient
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.graphs import WARM_UP, Graphs
from classwise.core.compute.precision import EXACT, FAST
from classwise.core.settings.config import make
from classwise.threat.ball import Threat
from classwise.training.graphed_step import MEASURED, VERIFIED

EPOCH = 50_000
"""Images of an epoch."""
COUNTED = 4
"""Images of the training step whose operations are counted."""


@dataclass(frozen=True)
class Size:
    """Sizes of the computations.

    Args:
        width: of the network.
        classes: of the network.
        batches: batches of the training step.
        pgd: steps of its attack.
        batch: batch of the passes.
        attack_batches: batches of the steps of attacks.
        attacks: specs of the attacks whose steps are timed.
        images: images of AutoAttack.
        steps: largest number of steps of its attacks.
        rounds: of each measurement.
    """

    width: float = 1.0
    classes: int = 10
    batches: tuple[int, ...] = (128, 256, 512)
    pgd: int = 10
    batch: int = 1024
    attack_batches: tuple[int, ...] = (128, 1024)
    attacks: tuple[str, ...] = ("apgd-ce:steps=100", "fab-t:steps=100,targets=1", "square:steps=200")
    images: int = 1000
    steps: int = 5000
    rounds: int = 15


QUICK = Size(0.0625, 4, (4,), 1, 8, (8,), ("apgd-ce:steps=7", "fab-t:steps=7,targets=1", "square:steps=7"), 8, 1, 1)


# Training steps

Step = Callable[[], object]
MakeStep = Callable[[Size, int, str], Step]
"""Makes a training step from the sizes, the number of images of a batch, and the device."""


def plain(context: Callable[[torch.device], contextlib.AbstractContextManager[None]]) -> MakeStep:
    """A loop without classwise, in the arithmetic of the context."""

    def make_step(size: Size, batch: int, device: str) -> Step:
        data = random_images(batch).to(device)
        step = PlainStep(size.width, data, device, size.pgd)

        def run() -> None:
            with context(torch.device(device)):
                step(data.x, data.y)

        return run

    return make_step


def trainer(epochs: int = 200, **precision: Any) -> MakeStep:
    """A step of the trainer in a precision of the recipe, in a training of some epochs."""

    def make_step(size: Size, batch: int, device: str) -> Step:
        if precision["compile"] == "on":
            torch.compiler.reset()  # the limit on recompilations counts those of earlier cells
        data = random_images(max(40, 2 * batch))
        fields = {"precision": precision, "batch_size": batch, "attack.steps": size.pgd, "epochs": epochs}
        trainer = prepared_trainer("at", size.width, data, device, **fields)
        rows, settings = torch.arange(batch, device=device), trainer.class_settings()
        step = functools.partial(trainer.train_step, rows, settings)
        if precision.get("graphs") == "on":
            for _ in range(WARM_UP + VERIFIED):  # steps before those that only repeat the graph
                step()
        return step

    return make_step


VARIANTS: dict[str, MakeStep] = {
    "plain loop, TF32": plain(tf32),
    "plain loop, float32": plain(true_float32),
    "eager": trainer(**FAST_FIELDS, compile="off", graphs="off"),
    "graph": trainer(**FAST_FIELDS, compile="off", graphs="on"),
    "compile": trainer(**FAST_FIELDS, compile="on", graphs="off"),
    "compile and graph": trainer(**FAST_FIELDS, compile="on", graphs="on"),
    "compile, graph, long training": trainer(epochs=MEASURED, **FAST_FIELDS, compile="on", graphs="on"),
}
"""Ways to run a training step; the time of each is compared with that of the first.

In a long training, cuDNN measures its algorithms.
"""
COUNTED_VARIANT = "eager"


def training_step(timer: Timer, size: Size, variant: str, batch: int) -> Result:
    """Seconds of a step of AT, and the operations of a step without gradients that are not used."""
    flops = batch * operations(size, timer.device)
    step = VARIANTS[variant](size, batch, timer.device)
    return {
        "variant": variant,
        "batch": batch,
        "attack steps": size.pgd,
        "flops": flops,
        **timer.seconds(step, size.rounds),
    }


@functools.cache
def operations(size: Size, device: str) -> int:
    """Floating-point operations of a training step per image; a multiplication and an addition are 2."""
    with FlopCounterMode(display=False) as counter:
        VARIANTS[COUNTED_VARIANT](size, COUNTED, device)()
    return int(counter.get_total_flops()) // COUNTED


# Passes and attacks

PASSES = {
    "float32": EXACT,
    "bfloat16, fused": FAST,
    "bfloat16, compiled": dataclasses.replace(FAST, compile="on"),
}


def model(size: Size, device: str) -> nn.Module:
    return network(size.width, size.classes).to(device).eval()


def batch_of(count: int) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def passes(timer: Timer, size: Size, variant: str) -> Result:
    """Images per second of passes, without and with the gradient of the image."""
    precision = PASSES[variant]
    if precision.compile == "on":
        torch.compiler.reset()
    x = batch_of(size.batch).to(timer.device)
    compiling = precision.compiling(x.device, size.batch, 0)
    passes_of = Passes(model(size, timer.device), precision, size.batch)
    with passes_of.for_gradients(x, precise=False, compiling=compiling) as forward:

        def without_gradient() -> None:
            with torch.no_grad():
                forward(x)

        def with_gradient() -> None:
            value_and_gradient(forward, x, lambda logits: logits.logsumexp(1))

        with forward.arithmetic():
            timing = timer.paired({"forward": without_gradient, "with gradient": with_gradient}, 2 * size.rounds)
    rates = {name: size.batch / timing.median(name) for name in timing.seconds}
    return {"batch": size.batch, "images/s": rates, "rounds": timing.rounds, "planned": 2 * size.rounds}


GRAPHS: dict[str, Graphs] = {"eager": "off", "graph": "on"}


def attack_step(timer: Timer, size: Size, spec: str, batch: int) -> Result:
    """Seconds of an attack that never stops early, kernel by kernel and with its steps as a CUDA graph.

    Start, verification and, of each run of the graph, warm-up and capture are included.
    """
    x = batch_of(batch)
    network = model(size, timer.device)
    y = torch.cat(list(Engine(network, batch_size=batch).predict([x]))).argmax(1).cpu()
    attack, threat, job = make(ATTACKS, spec), Threat("Linf", 8 / 255), Job(torch.arange(batch), x, y)

    def run(engine: Engine) -> None:
        for _ in engine.attack(attack, threat, [job]):
            pass

    engines = {
        name: Engine(network, precision=dataclasses.replace(FAST, graphs=graphs), batch_size=batch, early_stop=False)
        for name, graphs in GRAPHS.items()
    }
    rounds = -(-size.rounds // 2)
    timing = timer.paired({name: functools.partial(run, engine) for name, engine in engines.items()}, rounds)
    return {
        "spec": spec,
        "batch": batch,
        "steps": attack.length,
        "seconds": {name: timing.median(name) for name in engines},
        "ratio": timing.ratio("eager", "graph", f"{spec}, batch {batch}").median,
        "rounds": timing.rounds,
        "planned": rounds,
    }


def autoattack(timer: Timer, size: Size) -> Result:
    """AutoAttack at a radius of 1e-6 on images of which every second one is misclassified, and no other can be.

    A first run has a tenth of the steps. It predicts how many images fit into the time limit.
    """
    network, x = model(size, timer.device), batch_of(size.images)
    y = torch.cat(list(Engine(network).predict([x]))).argmax(1).cpu()
    y[::2] = (y[::2] + 1) % size.classes

    def run(images: int, divisor: int) -> tuple[float, int]:
        suite, returned = AutoAttack(network, eps=1e-6, precision=FAST, verbose=False), x[:images]
        for name, attack in suite.attacks.items():
            member: Any = attack
            steps = max(1, min(member.steps // divisor, size.steps))
            suite.attacks[name] = dataclasses.replace(member, steps=steps)

        def call() -> None:
            nonlocal returned
            returned = suite.run_standard_evaluation(x[:images], y[:images], bs=max(1, images // 2))

        seconds = timer.paired({"": call}, 1, warm_up=0).median("")
        return seconds, int((returned[1::2] == x[1:images:2]).flatten(1).all(1).sum())

    tenth, _ = run(size.images, 10)
    images = min(size.images, max(32, int(size.images * timer.remaining / (10 * tenth))))
    seconds, survivors = run(images, 1)
    return {"seconds": seconds, "images": images, "planned images": size.images, "survivors": survivors}


# The stage


def stage(size: Size) -> Stage:
    """The stage: training steps, passes and AutoAttack first, training steps of other batches last."""

    def steps(batches: tuple[int, ...]) -> dict[str, Callable[[Timer], Result]]:
        return {
            f"training step, {variant}, batch {batch}": functools.partial(
                training_step, size=size, variant=variant, batch=batch
            )
            for batch in batches
            for variant in VARIANTS
        }

    cells = steps(size.batches[:1])
    cells |= {f"passes, {variant}": functools.partial(passes, size=size, variant=variant) for variant in PASSES}
    cells["AutoAttack"] = functools.partial(autoattack, size=size)
    cells |= {
        f"attack, {spec}, batch {batch}": functools.partial(attack_step, size=size, spec=spec, batch=batch)
        for spec in size.attacks
        for batch in size.attack_batches
    }
    cells |= steps(size.batches[1:])
    return Stage("speed", "Speed of the GPU", functools.partial(run_cells, cells=cells), tables)


def tables(every: Mapping[str, Mapping[str, Result]]) -> str:
    """The tables of the finished cells."""
    results, rate = every.get("speed", {}), rate_of_products(every)
    parts = ["PreActResNet-18 with random weights, random 32x32 images. Medians over the rounds.\n"]
    steps = [result for name, result in results.items() if name.startswith("training step")]
    if steps:
        header = ["batch", "step", "seconds", "times the first", "TFLOP/s", "of the ceiling", "seconds per epoch"]
        parts.append(
            table(
                f"A step of AT with PGD-{steps[0]['attack steps']}", header, [_row(step, steps, rate) for step in steps]
            )
        )
        parts.append(
            "Operations are those of the eager step, in which the attack needs no gradients of the weights. The "
            f"ceiling is the measured rate of matrix products in {MATRIX}. An epoch has {EPOCH:,} images. The plain "
            "loops are in NCHW and augment nothing.\n"
        )
    rates = {name.partition(", ")[2]: result for name, result in results.items() if name.startswith("passes")}
    if rates:
        batch = next(iter(rates.values()))["batch"]
        rows = [[name, *(f"{rate:,.0f}" for rate in result["images/s"].values())] for name, result in rates.items()]
        parts.append(table(f"Passes, images/s, batch {batch:,}", ["pass", "forward", "with gradient"], rows))
    attacks = [result for name, result in results.items() if name.startswith("attack")]
    if attacks:
        header = ["attack", "steps", "batch", *(f"{name}: images x steps/s" for name in GRAPHS), "eager / graph"]
        rows = [
            [f"`{attack['spec']}`", f"{attack['steps']}", f"{attack['batch']:,}"]
            + [f"{attack['batch'] * attack['steps'] / attack['seconds'][name]:,.0f}" for name in GRAPHS]
            + [f"{attack['ratio']:.2f}"]
            for attack in attacks
        ]
        parts.append(
            table("Steps of attacks without early stopping, kernel by kernel and as a CUDA graph", header, rows)
        )
    if found := results.get("AutoAttack"):
        row = [f"{found['images']:,} of {found['planned images']:,}", f"{found['survivors']:,}"]
        row += [f"{found['seconds']:.1f}", f"{found['images'] / found['seconds']:,.1f}"]
        header = ["images", "survivors", "seconds", "images/s"]
        parts.append(table("AutoAttack, half of the images misclassified without an attack", header, [row]))
    return "\n".join(parts)


def _row(step: Result, steps: list[Result], ceiling: float | None) -> list[str]:
    first = next(iter(VARIANTS))
    plain_step = next((other for other in steps if (other["variant"], other["batch"]) == (first, step["batch"])), None)
    rate = step["flops"] / step["seconds"] / 1e12
    return [
        f"{step['batch']}",
        step["variant"],
        f"{step['seconds']:.4f}",
        "" if plain_step is None else f"{plain_step['seconds'] / step['seconds']:.2f}",
        f"{rate:,.1f}",
        "" if ceiling is None else f"{rate / ceiling:.1%}",
        f"{math.ceil(EPOCH / step['batch']) * step['seconds']:,.1f}",
    ]
