"""PGD-20 robust accuracy of a trained model: classwise against torchattacks, foolbox and ART, in one process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pairing import paired
from benchmarks.tables import table
from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.precision import fastest
from classwise.core.errors import ClasswiseError
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.models.base import device_of
from classwise.threat.ball import Threat

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
BATCH = 128


def ours(engine: Engine, attack: PGD, data: Images, threat: Threat) -> float:
    is_correct = torch.cat(list(engine.predict(batch.x for batch in data.batches(BATCH)))).argmax(1).cpu() == data.y
    correct = data.take(is_correct)
    jobs = (Job(batch.index, batch.x, batch.y) for batch in correct.batches(BATCH))
    success = sum(int(done.success.sum()) for done in engine.attack(attack, threat, jobs))
    return (len(correct) - success) / len(data)


def with_attack(attack: Callable[[Tensor, Tensor], Tensor], model: nn.Module, data: Images) -> float:
    right = 0
    device = next(model.parameters()).device
    for batch in data.batches(BATCH):
        x, y = batch.x.to(device), batch.y.to(device)
        attacked = attack(x, y)
        with torch.no_grad():
            right += int((model(attacked).argmax(1) == y).sum())
    return right / len(data)


def torchattacks_pgd(model: nn.Module, epsilon: float, step: float, _: Images) -> Callable[[Tensor, Tensor], Tensor]:
    import torchattacks

    attack: Callable[[Tensor, Tensor], Tensor] = torchattacks.PGD(model, eps=epsilon, alpha=step, steps=20)
    return attack


def foolbox_pgd(model: nn.Module, epsilon: float, step: float, _: Images) -> Callable[[Tensor, Tensor], Tensor]:
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=next(model.parameters()).device)
    attack = foolbox.attacks.LinfPGD(abs_stepsize=step, steps=20)
    return lambda x, y: attack(wrapped, x, y, epsilons=epsilon)[1]


def art_pgd(model: nn.Module, epsilon: float, step: float, data: Images) -> Callable[[Tensor, Tensor], Tensor]:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    device = "gpu" if next(model.parameters()).is_cuda else "cpu"
    estimator = PyTorchClassifier(
        model, torch.nn.CrossEntropyLoss(), data.shape, data.num_classes, clip_values=(0, 1), device_type=device
    )
    attack = ProjectedGradientDescentPyTorch(
        estimator, eps=epsilon, eps_step=step, max_iter=20, num_random_init=1, batch_size=BATCH, verbose=False
    )
    return lambda x, y: torch.from_numpy(attack.generate(x.cpu().numpy(), y.cpu().numpy())).to(x.device)


PEERS: dict[str, Callable[[nn.Module, float, float, Images], Callable[[Tensor, Tensor], Tensor]]] = {
    "torchattacks": torchattacks_pgd,
    "foolbox": foolbox_pgd,
    "ART": art_pgd,
}


def compare(checkpoint: str, data: Images, threat: Threat, step: float, rounds: int, device: str) -> str:
    model = load_model(CHECKPOINTS / checkpoint).to(device)
    assert isinstance(threat.epsilon, float)
    epsilon = threat.epsilon
    accuracy: dict[str, float] = {}
    evaluations: dict[str, Callable[[], Any]] = {}

    def timed(name: str, evaluate: Callable[[], float]) -> None:
        evaluations[name] = lambda: accuracy.__setitem__(name, evaluate())

    precision = fastest(device_of(model))
    engine, pgd = Engine(model, precision=precision, batch_size=BATCH), PGD(steps=20, step_size=step)
    timed("classwise", lambda: ours(engine, pgd, data, threat))
    for name, make in PEERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                attack = make(model, epsilon, step, data)
        except ImportError as error:
            print(f"{name} was skipped: {error}")
            continue
        timed(name, lambda attack=attack: with_attack(attack, model, data))  # type: ignore[misc]
    timing = paired(evaluations, rounds, device=device)
    rows = []
    for name in evaluations:
        ratio = "1" if name == "classwise" else str(timing.ratio(name, "classwise", f"PGD-20, {checkpoint}"))
        rows.append([name, f"{timing.median(name):.2f}", ratio, f"{accuracy[name]:.1%}"])
    title = f"PGD-20 at {threat}, step {step * 255:.2g}/255, {checkpoint}, {len(data)} test images, batch {BATCH}"
    return table(title, ["library", "seconds (median)", "times as long as classwise", "robust accuracy"], rows)


def run(*, quick: bool, device: str = "cpu") -> str:
    count = 256 if quick else 1000
    try:
        data = load_data("cifar10", split="test", subset=count, download=False)
    except ClasswiseError as error:
        return f"PGD-20 evaluation was skipped: {error}\n"
    # The two common step sizes: 2/255, and the 0.003 of the papers, with which attacks need more steps to succeed.
    steps = (2 / 255, 0.003)
    threat, rounds = Threat.parse("cifar10"), 1 if quick else 3
    return "\n".join(compare("cifar10-at.safetensors", data, threat, step, rounds, device) for step in steps)


def threads() -> str:
    return f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, torch {torch.__version__}"
