"""Parity: a GPU computes what the CPU computes, within stated tolerances.

The images are the digits of scikit-learn, resized, and the models are two checkpoints of the project. Every image has
the class that its model predicts on the CPU, so that all are attacked.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from scipy import stats
from torch import Tensor, nn

from benchmarks.evaluation import CHECKPOINTS
from benchmarks.gpu.cells import Result, Stage, run_cells
from benchmarks.tables import table
from benchmarks.training_step import images as random_images
from benchmarks.training_step import prepared_trainer
from classwise.attacks import ATTACKS
from classwise.attacks.engine import Engine, Job
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT, FAST, Precision
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.data import load_data
from classwise.models import load_model
from classwise.models.fusion import TOLERANCE, Fusion
from classwise.models.modes import evaluating, frozen
from classwise.threat.ball import Threat

MODELS = {"mnist-trades": (1, 28), "cifar10-at": (3, 32)}
"""Checkpoints with the channels and the side of their images."""
ATTACKED = "mnist-trades"
THREAT = Threat("Linf", 0.1)
"""PGD-20 misclassifies about half of the images."""
NORMAL = 1e-5
"""Largest difference between normal random numbers, which are computed with logarithms and cosines."""
NEAR = 1e-4
"""Margin between the two largest logits up to which predictions may differ."""
PGD_IMAGES = 3
"""Largest difference between the numbers of images on which PGD-20 succeeds."""
CHANCE = 0.05
"""An attack is weaker if a sign test over the images with different outcomes has a smaller p-value."""
UPDATE = 1e-4
"""Largest error of the weights after a training step, relative to their change; 4e-6 on a CPU, above 1e-3 in TF32."""
MOVED = 1e-4
"""Difference from which the attack has moved a pixel elsewhere."""
SHARE = 0.02
"""Largest share of such pixels; 0.5 % on a CPU in float32, and 0.6 % on an H100."""


@dataclass(frozen=True)
class Size:
    """Numbers of images and steps.

    Args:
        numbers: random numbers per image, for 100 images.
        images: images of the predictions and of PGD.
        subset: images of FAB and Square.
        pgd: spec of PGD.
        fab: spec of FAB.
        square: spec of Square.
        batch: images of the training step.
        width: of its network.
    """

    numbers: int = 3072
    images: int = 1000
    subset: int = 200
    pgd: str = "pgd:steps=20,step_size=0.1eps"
    fab: str = "fab-t:steps=20,targets=3"
    square: str = "square:steps=500"
    batch: int = 32
    width: float = 0.25


QUICK = Size(12, 32, 32, "pgd:steps=2,step_size=0.5eps", "fab-t:steps=1,targets=1", "square:steps=3", 4, 0.0625)


@functools.cache
def model(name: str) -> nn.Module:
    """A checkpoint on the CPU."""
    return load_model(CHECKPOINTS / f"{name}.safetensors").eval()


@functools.cache
def images(name: str, count: int) -> tuple[Tensor, Tensor]:
    """Digits in the shape of a checkpoint's images, and its logits on the CPU."""
    channels, side = MODELS[name]
    x = load_data("digits", split="train").pixels(slice(0, count))
    x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
    x = x.expand(-1, channels, -1, -1).contiguous()
    return x, torch.cat(list(Engine(model(name)).predict([x])))


def random_numbers(size: Size, device: str) -> Result:
    rng, index = CounterRNG(0, "parity"), torch.arange(100)
    shape = (size.numbers,)
    samples: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda rows: rng.uniform(rows, shape, counter=7),
        lambda rows: rng.integers(rows, shape, 10, counter=rows),
        lambda rows: rng.permutation(size.numbers, rows.device),
    )
    differ = 0
    for sample in samples:
        differ += int((sample(index) != sample(index.to(device)).cpu()).sum())
    normal = rng.normal(index, shape)
    error = float((normal - rng.normal(index.to(device), shape).cpu()).abs().max())
    return {
        "passed": differ == 0 and error <= NORMAL,
        "measured": f"{differ} uniform numbers, integers and places of permutations differ; normal ones by {error:.1e}",
        "accepted": f"0; {NORMAL:.0e}",
    }


def fused_copy(size: Size, device: str, name: str) -> Result:
    on_device = copy.deepcopy(model(name)).to(device)
    x = images(name, size.images)[0][:128].to(device)
    fusion = Fusion(on_device)
    with evaluating(on_device), frozen(on_device), torch.no_grad(), true_float32(torch.device(device)):
        logits = on_device(x)
        with fusion.forward(Precision(channels_last=True), x) as forward:
            error = float((forward(x) - logits).abs().max() / logits.abs().max())
    return {
        "passed": not fusion.unfused and error <= TOLERANCE,
        "measured": fusion.unfused or f"logits differ by {error:.1e} of the largest",
        "accepted": f"{TOLERANCE:.0e}",
    }


def predictions(size: Size, device: str, name: str) -> Result:
    x, expected = images(name, size.images)
    logits = torch.cat(list(Engine(copy.deepcopy(model(name)).to(device)).predict([x]))).cpu()
    first, second = expected.topk(2).values.unbind(1)
    differ = logits.argmax(1) != expected.argmax(1)
    far = int((differ & (first - second >= NEAR)).sum())
    return {
        "passed": far == 0,
        "measured": f"{int(differ.sum())} of {len(x)} predictions differ, {far} of them with a margin of {NEAR:.0e} or "
        f"more; logits by {float((logits - expected).abs().max()):.1e}",
        "accepted": "0 with such a margin",
    }


def success(size: Size, device: str, spec: str, count: int, precision: Precision = EXACT) -> Tensor:
    """Whether an attack succeeds on each of the first images, (count,), on the CPU."""
    x, logits = images(ATTACKED, size.images)
    engine = Engine(copy.deepcopy(model(ATTACKED)).to(device), precision=precision, batch_size=min(128, count))
    result = torch.zeros(count, dtype=torch.bool)
    job = Job(torch.arange(count), x[:count], logits.argmax(1)[:count])
    for done in engine.attack(make(ATTACKS, spec), THREAT, [job]):
        result[done.row.cpu()] = done.success.cpu()
    return result


@functools.cache
def success_on_cpu(size: Size, spec: str, count: int) -> Tensor:
    """`success` on the CPU in float32."""
    return success(size, "cpu", spec, count)


def pgd(size: Size, device: str) -> Result:
    expected = int(success_on_cpu(size, size.pgd, size.images).sum())
    found = int(success(size, device, size.pgd, size.images).sum())
    return {
        "passed": abs(expected - found) <= PGD_IMAGES,
        "measured": f"success on {found} of {size.images} images, {expected} on the CPU",
        "accepted": f"a difference of {PGD_IMAGES}",
    }


def no_weaker(size: Size, device: str, spec: str, precision: Precision = EXACT) -> Result:
    """An attack on the device against the same attack on the CPU in float32, image by image."""
    count = size.images if spec == size.pgd else size.subset
    expected, found = success_on_cpu(size, spec, count), success(size, device, spec, count, precision)
    lost, gained = int((expected & ~found).sum()), int((found & ~expected).sum())
    chance = float(stats.binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue) if lost else 1.0
    return {
        "passed": chance >= CHANCE,
        "measured": f"success on {int(found.sum())} of {count} images, {int(expected.sum())} on the CPU: {lost} lost, "
        f"{gained} gained (p = {chance:.2g})",
        "accepted": f"p >= {CHANCE:g}, one-sided sign test",
    }


def training_step(size: Size, device: str) -> Result:
    """A step of AT (PGD-10) in true float32: images, attack and weights, against the CPU.

    Signs of gradients near 0 differ by rounding, through a network with ReLUs also between two precisions on one CPU.
    So the pixels that the attack moves elsewhere are counted, and the weights are compared after a step on the same
    attacked images, computed in float64 on the CPU.
    """
    data = random_images(max(40, 2 * size.batch))
    options = {"precision": {}, "batch_size": size.batch}
    on_cpu, on_device = (prepared_trainer("at", size.width, data, place, **options) for place in ("cpu", device))
    settings, rows, parts = on_cpu.class_settings(), torch.arange(size.batch), on_cpu.recipe.parts
    initial = {name: weight.detach().double().clone() for name, weight in on_cpu.model.named_parameters()}
    model = copy.deepcopy(on_cpu.model).double().eval()
    batch = on_cpu.batches.batch(rows, 0, 0, settings, 0.0)
    other = on_device.batches.batch(rows.to(device), 0, 0, on_device.class_settings(), 0.0)
    images = int((other.x.cpu() != batch.x).sum())
    exact = dataclasses.replace(batch, x=batch.x.double())
    with frozen(model):
        attacked = parts.attack.run(model, exact.attack_inputs(on_cpu.rng.child("craft").at(0))).float()
    with true_float32(torch.device(device)), evaluating(on_device.model), frozen(on_device.model):
        found = parts.attack.run(on_device.model, other.attack_inputs(on_device.rng.child("craft").at(0))).cpu()
    moved = float(((found - attacked).abs() > MOVED).double().mean())
    optimizer = parts.optimizer.build(model)
    F.cross_entropy(model.train()(attacked.double()), batch.y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    given = attacked.to(device)
    with true_float32(torch.device(device)), mock.patch.object(type(parts.attack), "run", return_value=given):
        on_device.train_step(rows.to(device), on_device.class_settings())
    after = {name: weight.detach().cpu().double() for name, weight in on_device.model.named_parameters()}
    wanted = {name: weight.detach() for name, weight in model.named_parameters()}
    error = _distance(after, wanted) / _distance(initial, wanted)
    return {
        "passed": images == 0 and moved <= SHARE and error <= UPDATE,
        "measured": f"{images} pixels of the images differ; the attack moves {moved:.2%} elsewhere; on the same "
        f"attacked images, the weights differ by {error:.1e} of their change",
        "accepted": f"0; {SHARE:.0%}; {UPDATE:.0e}",
    }


def _distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return float(torch.stack([(first[name] - second[name]).square().sum() for name in second]).sum().sqrt())


def checks(size: Size) -> dict[str, Callable[[str], Result]]:
    """The checks by name, functions of the device."""
    every: dict[str, Callable[..., Result]] = {"random numbers": random_numbers}
    every |= {f"fused copy, {name}": functools.partial(fused_copy, name=name) for name in MODELS}
    every |= {f"predictions, {name}": functools.partial(predictions, name=name) for name in MODELS}
    every |= {"PGD in float32": pgd}
    every |= {"PGD in bfloat16": functools.partial(no_weaker, spec=size.pgd, precision=FAST)}
    every |= {"FAB": functools.partial(no_weaker, spec=size.fab)}
    every |= {"Square": functools.partial(no_weaker, spec=size.square)}
    every |= {"training step": training_step}
    return {name: functools.partial(check, size) for name, check in every.items()}


def stage(size: Size) -> Stage:
    cells = {name: (lambda timer, check=check: check(timer.device)) for name, check in checks(size).items()}
    return Stage("parity", "Parity of the GPU with the CPU", functools.partial(run_cells, cells=cells), tables)


def tables(every: Mapping[str, Mapping[str, Result]]) -> str:
    rows = [
        [name, result["measured"], result["accepted"], "passed" if result["passed"] else "**failed**"]
        for name, result in every.get("parity", {}).items()
    ]
    text = (
        "The same computation on both devices. Images: digits of scikit-learn, resized; each has the class that the "
        f"model predicts on the CPU. Attacks: {ATTACKED} at {THREAT}; PGD in bfloat16 is compared with float32 on the "
        "CPU. The training step (PGD-10, true float32) is compared with float64 on the CPU, on the same attacked "
        "images.\n"
    )
    return text + "\n" + table("Checks", ["check", "measured", "accepted", ""], rows)
