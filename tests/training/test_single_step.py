"""NuAT, FGSM-PGI and LIET compared with plain loops written from their formulas, and the memory of objectives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.gradient.ascent import Ascent
from classwise.core.compute.precision import EXACT
from classwise.core.compute.rng import CounterRNG
from classwise.core.progress.listener import NullProgress
from classwise.core.settings.config import make
from classwise.data import load_data
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES
from classwise.training.averaging import EMA
from classwise.training.classes.signals import ClassSettings
from classwise.training.criteria.softmax import LabelSmoothing
from classwise.training.folder import Run
from classwise.training.objectives.base import Objective, TrainingBatch
from classwise.training.objectives.single_step import (
    LabelInformation,
    NuclearNorm,
    PriorGuided,
    jensen_shannon,
    nuclear_norm_terms,
    polar_factor,
)
from classwise.training.recipe import Recipe
from classwise.training.reductions.base import mean
from classwise.training.step import StepInputs, StepResult, TrainingStep
from classwise.training.train import train
from classwise.training.trainer import Trainer

from ..attacks.models import Small, images
from ..refusals import refused
from .by_hand import remembering
from .on_digits import TINY

ONE_STEP = "fgsm:step_size=1eps"
RADII = torch.tensor([0.02, 0.05, 0.08])
"""Of each class."""
Y = torch.arange(12) % 3
RNG = CounterRNG(3)
LINF = Threat("Linf", 0.1)


def given_batch(progress: float = 0.5) -> TrainingBatch:
    return TrainingBatch(images(), Y, torch.arange(12) + 7, Threat("Linf", RADII[Y]), progress=progress)


def radius() -> Tensor:
    return RADII[Y].view(-1, 1, 1, 1)


def gradient_at(model: Any, x: Tensor, loss: Any) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(model(x)), x)
    return gradient


def clipped(x: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    return torch.minimum(torch.maximum(x, torch.as_tensor(low)), torch.as_tensor(high))


def weight_gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 100))
def test_the_terms_add_up_to_the_nuclear_norm_and_so_do_their_gradients(rows: int, columns: int, seed: int) -> None:
    """Singular values and the derivative of the norm are those of torch, by a decomposition in float64."""
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    difference = matrix.float().requires_grad_()
    batch = TrainingBatch(torch.zeros(rows, 1, 1, 1), torch.zeros(rows, dtype=torch.int64), torch.arange(rows), LINF)
    terms = nuclear_norm_terms(difference, batch)
    exact = matrix.float().double().requires_grad_()
    norm = torch.linalg.matrix_norm(exact, ord="nuc")
    assert float(terms.detach().sum()) == pytest.approx(float(norm.detach()), rel=1e-5)
    assert bool((terms >= -1e-5 * norm.detach()).all())
    smallest = float(torch.linalg.svdvals(exact.detach()).min() / norm.detach())
    (found,), (expected,) = (torch.autograd.grad(*pair) for pair in ((terms.sum(), difference), (norm, exact)))
    if smallest > 1e-4:
        assert torch.allclose(found.double(), expected, atol=1e-4)
    assert torch.linalg.matrix_norm(found.double(), ord=2) <= 1 + 1e-5  # as every subgradient of the norm


def test_a_term_is_the_entry_of_the_root_of_the_gram_matrix() -> None:
    """(D D^T)^(1/2) = U S U^T, by its eigenvectors."""
    difference = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    batch = TrainingBatch(torch.zeros(6, 1, 1, 1), Y[:6], torch.arange(6), LINF)
    values, vectors = np.linalg.eigh((difference.double() @ difference.double().T).numpy())
    root = vectors @ np.diag(np.sqrt(values.clip(0))) @ vectors.T
    assert np.allclose(nuclear_norm_terms(difference, batch).numpy(), root.diagonal(), atol=1e-5)


def test_small_singular_values_count_and_zero_has_no_gradient() -> None:
    diagonal = torch.diag(torch.tensor([1.0, 1e-3, 1e-5]))
    assert torch.allclose(polar_factor(diagonal), torch.eye(3), atol=1e-4)
    assert torch.equal(polar_factor(torch.zeros(4, 3)), torch.zeros(4, 3))
    rank_one = torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert torch.allclose(polar_factor(rank_one), rank_one / 5, atol=1e-6)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_nuat_equals_its_formulas(step: int) -> None:
    """nu is 4 times the fraction of training; the norm is in the attack of every second batch."""
    module = Small().eval()
    model, objective, batch = EXACT.forward(module), NuclearNorm(), given_batch(0.75)
    batch = remembering(objective, model, batch, 3)
    objective.before_step(model, batch, ClassSettings(), step, RNG)
    points = objective.points(model, batch, objective.inner(make(ATTACKS, ONE_STEP)), ClassSettings(), RNG)
    nu, x = 4 * 0.75, batch.x

    def norm(difference: Tensor) -> Tensor:
        total: Tensor = torch.linalg.svdvals(difference).sum()
        return total / len(x)

    half = torch.where(RNG.child("signs").uniform(batch.index, (2, 4, 4)) < 0.5, -0.5, 0.5)
    start = (x + radius() * half).clamp(0, 1)
    clean = model(x).detach()
    gradient = gradient_at(
        model, start, lambda logits: F.cross_entropy(logits, Y) + (step % 2) * nu * norm(clean - logits)
    )
    robust = clipped(start + radius() * gradient.sign(), x - radius(), x + radius()).clamp(0, 1)
    assert torch.allclose(points["robust"], robust, atol=1e-7)
    found = mean(objective.step(model, batch, points, ClassSettings()), batch, ClassSettings())
    expected = F.cross_entropy(model(x), Y) + nu * norm(model(x) - model(robust))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for one, other in zip(weight_gradients(module, found), weight_gradients(module, expected), strict=True):
        assert torch.allclose(one, other, atol=1e-4 * float(other.abs().max()) + 1e-7)


def test_nuat_is_that_of_the_full_batch_in_every_process() -> None:
    """Two processes have the rows before and after the fifth; the sum of their gradients is that of all rows."""
    module = Small().eval()
    model, objective = EXACT.forward(module), NuclearNorm()
    batch = remembering(objective, model, given_batch(1.0), 3)
    attack = objective.inner(make(ATTACKS, ONE_STEP))
    points = objective.points(model, batch, attack, ClassSettings(), RNG)["robust"]
    whole = objective.step(model, batch, {"robust": points}, ClassSettings()).terms["robust"]
    clean = model(batch.x).detach()
    gradients = []
    for rows in (slice(0, 5), slice(5, 12)):
        threat, names = batch.threat.of(rows), ("x", "y", "index", "memory_rows")
        part = dataclasses.replace(
            batch, threat=threat, rows=rows, **{name: getattr(batch, name)[rows] for name in names}
        )
        gathered = iter([clean - model(half_way(batch)).detach(), clean - model(points).detach()])
        part = dataclasses.replace(part, gather=functools.partial(checked, gathered, rows))
        found = objective.points(model, part, attack, ClassSettings(), RNG)["robust"]
        assert torch.allclose(found, points[rows], atol=1e-6)
        terms = objective.step(model, part, {"robust": found}, ClassSettings()).terms["robust"]
        assert torch.allclose(terms, whole[rows], atol=1e-5)
        gradients.append(weight_gradients(module, terms.sum()))
    for first, second, both in zip(*gradients, weight_gradients(module, whole.sum()), strict=True):
        assert torch.allclose(first + second, both, atol=1e-4)


def half_way(batch: TrainingBatch) -> Tensor:
    signs = torch.where(RNG.child("signs").uniform(batch.index, (2, 4, 4)) < 0.5, -1.0, 1.0)
    return (batch.x + radius() / 2 * signs).clamp(0, 1)


def checked(gathered: Iterator[Tensor], rows: slice, local: Tensor) -> Tensor:
    """The next tensor that a process gathers; its own rows are those that it gave."""
    all_rows = next(gathered)
    assert torch.allclose(all_rows[rows], local, atol=1e-5)
    return all_rows


@pytest.mark.parametrize("kind", [NuclearNorm, PriorGuided, LabelInformation])
def test_the_step_may_follow_the_smoothed_loss(kind: type[Objective]) -> None:
    model = EXACT.forward(Small().eval())
    objective = kind(criterion=LabelSmoothing(smoothing=0.9, attack=True))
    batch = remembering(objective, model, given_batch(), 3)
    objective.before_step(model, batch, ClassSettings(), 0, RNG)  # without the norm of NuAT
    points = objective.points(model, batch, objective.inner(make(ATTACKS, ONE_STEP)), ClassSettings(), RNG)
    start = points.get("start", half_way(batch))

    def robust(smoothing: float) -> Tensor:
        loss = functools.partial(F.cross_entropy, target=Y, label_smoothing=smoothing)
        end = start + radius() * gradient_at(model, start, loss).sign()
        return clipped(end, batch.x - radius(), batch.x + radius()).clamp(0, 1)

    if kind is PriorGuided:  # from the perturbation before it is clipped to [0, 1]
        same = (start > 0) & (start < 1)
        assert torch.allclose(points["robust"][same], robust(0.9)[same], atol=1e-6)
    else:
        assert torch.allclose(points["robust"], robust(0.9), atol=1e-6)
    assert not torch.allclose(points["robust"], robust(0.0), atol=1e-3)


def test_class_weights_and_betas_multiply_the_terms_of_the_norm() -> None:
    model, objective, plain = EXACT.forward(Small().eval()), NuclearNorm(beta=2), ClassSettings()
    batch = remembering(objective, model, given_batch(0.5), 3)
    points = objective.points(model, batch, objective.inner(make(ATTACKS, ONE_STEP)), plain, RNG)
    terms = objective.step(model, batch, points, plain).terms
    beta, weight = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.0, 1.0, 3.0])
    settings = ClassSettings(beta=beta, robust_weight=weight)
    found = objective.step(model, batch, points, settings)
    assert torch.allclose(found.terms["robust"], terms["robust"] * beta[Y] / 2, atol=1e-6)
    expected = (terms["clean"] + weight[Y] * terms["robust"] * beta[Y] / 2).mean()
    assert float(mean(found, batch, settings).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_fgsm_pgi_equals_its_formulas_over_epochs() -> None:
    """Epochs of four batches with other radii, flipped images and weights in each; every second one is a reset."""
    module = Small().eval()
    model, objective = EXACT.forward(module), PriorGuided(reset_epochs=2)
    attack = objective.inner(make(ATTACKS, "pgd:steps=10"))
    memory = objective.memory(12, (2, 4, 4), 3)
    deltas: dict[int, Tensor] = {}
    momenta: dict[int, Tensor] = {}
    kinds = set()
    for epoch in range(5):
        radii = RADII.roll(epoch)
        for rows in torch.split(torch.randperm(12, generator=torch.Generator().manual_seed(epoch)), 5):
            x, y, rng = images()[rows], Y[rows], RNG.at(epoch)
            x = x.flip(3) if epoch % 2 else x
            batch = TrainingBatch(x, y, rows + 7, Threat("Linf", radii[y]), memory=memory, memory_rows=rows)
            points = objective.points(model, batch, attack, ClassSettings(), rng)
            eps = radii[y].view(-1, 1, 1, 1)
            if epoch % 2 == 0:
                uniform = RNG.at(epoch // 2 + 1).child("signs").uniform(rows + 7, (2, 4, 4)) - 0.5
                uniform[uniform == 0] = 1
                for row, image in enumerate(rows.tolist()):
                    deltas[image], momenta[image] = uniform[row].sign(), torch.zeros(2, 4, 4)
            delta = eps * torch.stack([deltas[image] for image in rows.tolist()])
            start = (x + delta).clamp(0, 1)
            gradient = gradient_at(model, start, lambda logits, y=y: F.cross_entropy(logits, y))
            robust = (x + clipped(delta + eps * gradient.sign(), -eps, eps)).clamp(0, 1)
            assert torch.allclose(points["start"], start, atol=1e-6)
            assert torch.allclose(points["robust"], robust, atol=1e-6)
            for row, image in enumerate(rows.tolist()):
                momenta[image] = gradient[row] / gradient.abs().sum() + 0.3 * momenta[image]
                moved = clipped(delta[row] + eps[row] * momenta[image].sign(), -eps[row], eps[row])
                deltas[image] = (moved / eps[row]).round()
                kinds |= set(deltas[image].flatten().tolist())
                assert torch.equal(memory["perturbation"][image].float(), deltas[image])
                assert torch.allclose(memory["momentum"][image], momenta[image], rtol=1e-4, atol=1e-7)
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(1 + 0.1 * torch.rand(weight.shape, generator=torch.Generator().manual_seed(epoch)))
    assert kinds == {-1.0, 0.0, 1.0}


def test_the_loss_of_fgsm_pgi() -> None:
    module = Small().eval()
    model, objective, batch = EXACT.forward(module), PriorGuided(), given_batch()
    points = {"start": batch.x + 0.02, "robust": batch.x - 0.03}
    found = mean(objective.step(model, batch, points, ClassSettings()), batch, ClassSettings())
    robust, start = model(points["robust"]), model(points["start"])
    expected = F.cross_entropy(robust, Y) + 10 * F.mse_loss(robust, start)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for one, other in zip(weight_gradients(module, found), weight_gradients(module, expected), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_every_process_saves_the_results_of_all_rows() -> None:
    """The norm of the gradient is that of the full batch, too."""
    model, objective = EXACT.forward(Small().eval()), PriorGuided()
    attack = objective.inner(make(ATTACKS, ONE_STEP))
    whole = remembering(objective, model, given_batch(), 3)
    points = objective.points(model, whole, attack, ClassSettings(), RNG)
    size = gradient_at(model, points["start"], lambda logits: F.cross_entropy(logits, Y, reduction="sum")).abs()
    for rows in (slice(0, 5), slice(5, 12)):
        memory = objective.memory(12, (2, 4, 4), 3)
        values = [
            size.flatten(1).sum(1),
            torch.arange(12),
            whole.memory["perturbation"].float(),
            whole.memory["momentum"],
        ]
        gathered = iter(values)
        part = dataclasses.replace(
            given_batch(),
            **{name: getattr(whole, name)[rows] for name in ("x", "y", "index", "memory_rows")},
            threat=whole.threat.of(rows),
            memory=memory,
            rows=rows,
            gather=functools.partial(checked, gathered, rows),
        )
        found = objective.points(model, part, attack, ClassSettings(), RNG)
        assert torch.equal(found["robust"], points["robust"][rows])
        for name, tensor in whole.memory.items():
            assert torch.equal(memory[name], tensor), name


@pytest.mark.parametrize("first", [0, 40])
def test_liet_equals_its_formulas(first: int) -> None:
    module = Small().eval()
    model, objective, batch = EXACT.forward(module), LabelInformation(), given_batch(0.75)
    attack = objective.inner(make(ATTACKS, ONE_STEP))
    assert isinstance(attack, Ascent)
    batch = remembering(objective, model, batch, 3)
    signs, x = set(), batch.x
    before = [weight.clone() for weight in module.parameters()]
    for step in range(first, first + 22):
        objective.before_step(model, batch, ClassSettings(), step, RNG)
        if step % 20 == 0:
            grey = torch.full((3, 2, 4, 4), 0.5)
            information = torch.stack(
                [
                    gradient_at(model, grey[:1], lambda logits, c=c: F.cross_entropy(logits, torch.tensor([c])))[
                        0
                    ].sign()
                    for c in range(3)
                ]
            )
            with torch.no_grad():
                for weight in module.parameters():
                    weight.mul_(-1)  # the information of the next steps is that of the former weights
        assert torch.equal(batch.memory["label_information"].float(), information)
        sign = float(batch.memory["sign"])
        signs.add(sign)
    for weight, value in zip(module.parameters(), before, strict=True):
        weight.data.copy_(value)
    assert signs == {-1.0, 1.0}
    assert float(information.abs().mean()) > 0.9
    points = objective.points(model, batch, attack, ClassSettings(), RNG)
    units = (points["start"] - x) / radius()
    kept = (units - sign * information[Y]).abs() < 1e-4
    shares = 1 - kept.float().mean((1, 2, 3))
    assert bool((units.abs() <= 1 + 1e-4).all())
    uniform = RNG.child("share").uniform(batch.index, (1, 1, 1))
    replaced = RNG.child("replaced").uniform(batch.index, (2, 4, 4)) < 0.1 + 0.4 * uniform
    inside = (x > 0.1) & (x < 0.9)
    assert torch.equal(kept[inside], ~replaced[inside])
    noise = 2 * RNG.child("noise").uniform(batch.index, (2, 4, 4)) - 1
    assert torch.allclose(units[inside & replaced], noise[inside & replaced], atol=1e-4)
    assert 0.05 < float(shares.detach().mean()) < 0.6
    gradient = gradient_at(model, points["start"], lambda logits: F.cross_entropy(logits, Y))
    robust = clipped(points["start"] + radius() * gradient.sign(), x - radius(), x + radius()).clamp(0, 1)
    assert torch.allclose(points["robust"], robust, atol=1e-7)
    p, q = model(points["start"]).softmax(1), model(robust).softmax(1)
    m = (p + q) / 2
    divergences = ((p * (p / m).log()).sum(1) + (q * (q / m).log()).sum(1)) / 2
    expected = F.cross_entropy(model(robust), Y) + 100 * 0.75 * divergences.mean()
    found = mean(objective.step(model, batch, points, ClassSettings()), batch, ClassSettings())
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert bool((divergences >= 0).all())


def test_the_shares_of_noise_are_uniform_between_the_bounds() -> None:
    """Of 400 images with 1,000 values each: the mean share is 0.3 and its deviation 0.4 / sqrt(12)."""
    objective, x = LabelInformation(), torch.full((400, 1, 25, 40), 0.5)
    batch = TrainingBatch(x, torch.zeros(400, dtype=torch.int64), torch.arange(400), LINF)
    memory = objective.memory(400, (1, 25, 40), 2) | {"label_information": torch.ones(2, 1, 25, 40)}
    batch = dataclasses.replace(batch, memory=memory)
    model, attack = nn.Sequential(nn.Flatten(), nn.Linear(1000, 2)), objective.inner(make(ATTACKS, ONE_STEP))
    start = objective.points(EXACT.forward(model), batch, attack, ClassSettings(), RNG)["start"]
    shares = ((start - x).abs() < 0.0999).float().mean((1, 2, 3))
    assert float(shares.mean()) == pytest.approx(0.3, abs=0.02)
    assert float(shares.std()) == pytest.approx(0.4 / 12**0.5, abs=0.015)
    assert float(shares.min()) > 0.05
    assert float(shares.max()) < 0.56


def test_the_divergence_is_symmetric_bounded_and_finite() -> None:
    first, second = torch.tensor([[1000.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 1000.0], [1.0, 1.0]])
    first.requires_grad_()
    found = jensen_shannon(first, second)
    assert torch.allclose(found, torch.tensor([np.log(2), 0.0]).float(), atol=1e-6)
    assert torch.equal(found, jensen_shannon(second, first))
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert first.grad is not None
    assert bool(first.grad.isfinite().all())


@pytest.mark.parametrize("name", ["nuat", "fgsm-pgi", "liet"])
def test_recipes_of_other_norms_and_attacks_are_refused(name: str) -> None:
    kind = type(make(OBJECTIVES, name)).__name__
    message = f"{kind} does not support L2; it supports Linf"
    assert message in refused(Recipe.read, name, {"threat": "L2:0.5"})
    assert message in refused(Recipe.read(name, {"threat": None}).completed, Threat("L2", 0.5))
    assert "use fgsm" in refused(Recipe.read, name, {"attack": "square"})


def test_a_step_without_the_memory_is_refused() -> None:
    model = EXACT.forward(Small().eval())
    for objective in (NuclearNorm(), PriorGuided(), LabelInformation()):
        attack = objective.inner(make(ATTACKS, ONE_STEP))
        assert "needs its memory of earlier steps" in refused(
            objective.points, model, given_batch(), attack, ClassSettings(), RNG
        )


def test_the_recipes_have_the_settings_of_the_benchmark() -> None:
    smoothing = {"nuat": 0.4, "fgsm-pgi": 0.4, "liet": 0.6}
    for name, share in smoothing.items():
        recipe = Recipe.read(name)
        assert recipe.parts.objective.described()["criterion"]["smoothing"] == share
        assert (recipe.epochs, recipe.batch_size, recipe.data.validation) == (100, 128, 0.02)
        assert recipe.parts.attack.length == 1
        assert recipe.parts.averaging == EMA(decay=0.9995, start_fraction=0, every="step")


MEMORY: dict[str, Any] = TINY | {"data.subset": 120, "data.augment": "crop", "epochs": 3, "batch_size": 20}


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_an_image_has_its_row_of_the_memory(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the training split, whose images are a part of the data, in any order, also with replacement."""
    schedules = [{"name": "class-weights", "kind": "robust-error", "mode": "sampling"}] if sampled else []
    recipe = Recipe.read("fgsm-pgi", MEMORY | {"schedules": schedules}, budget="short")
    data = load_data("digits", split="train", subset=120)
    trainer = Trainer(recipe, data, Run(Path("unused")), "cpu", NullProgress())
    seen: list[TrainingBatch] = []
    compute = TrainingStep.compute

    def noted(self: TrainingStep, inputs: StepInputs, *arguments: Any) -> StepResult:
        seen.append(inputs.batch)
        return compute(self, inputs, *arguments)

    monkeypatch.setattr(TrainingStep, "compute", noted)
    settings, order = trainer.class_settings(), trainer.batches.order(0)
    for step in range(2):
        trainer.train_step(trainer.batches.rows(order, 0, step, settings), settings)
    memory = trainer.state.memory
    assert memory["perturbation"].shape == (len(trainer.train), 1, 8, 8)
    for batch in seen:
        assert batch.memory_rows is not None
        assert torch.equal(trainer.train.index[batch.memory_rows], batch.index & 0xFFFFFFFF)
    used = torch.cat([batch.memory_rows for batch in seen if batch.memory_rows is not None])
    assert set(memory["resets"].nonzero().flatten().tolist()) == set(used.tolist())
    assert bool(memory["momentum"][used].flatten(1).any(1).all())


@pytest.mark.slow
@pytest.mark.parametrize(("quick", "count"), [(1e9, 4), (1e-15, 1)])
def test_slow_checkpoints_are_rare(quick: float, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the four times between the five steps of the epoch; 1e-15 makes every checkpoint a slow one."""
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 1e-9)
    monkeypatch.setattr("classwise.training.trainer.QUICK_SECONDS", quick)
    checkpoint, written = Trainer._checkpoint, []

    def noted(self: Trainer, settings: ClassSettings) -> None:
        written.append(self.state.step)
        checkpoint(self, settings)

    monkeypatch.setattr(Trainer, "_checkpoint", noted)
    train("fgsm-pgi", budget="short", out=tmp_path / "run", data="digits", overrides=MEMORY | {"epochs": 1})
    assert len(written) == count


@pytest.mark.slow
def test_the_memory_is_in_the_state_of_its_recipes_only(tmp_path: Path) -> None:
    shapes = {}
    for name in ("at", "nuat", "fgsm-pgi", "liet"):
        run = train(name, budget="short", out=tmp_path / name, data="digits", overrides=MEMORY | {"epochs": 1})
        state = torch.load(run.state_file, weights_only=True)
        shapes[name] = {key: tuple(value.shape) for key, value in state.get("memory", {}).items()}
        assert ("memory" in state) == (name != "at")
    count = sum(run.data["counts"]["train"])
    assert shapes == {
        "at": {},
        "nuat": {"progress": (), "attack_norm": ()},
        "fgsm-pgi": {"perturbation": (count, 1, 8, 8), "momentum": (count, 1, 8, 8), "resets": (count,)},
        "liet": {"progress": (), "sign": (), "label_information": (10, 1, 8, 8)},
    }
