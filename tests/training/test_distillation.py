"""Distillation: losses, class weights and temperatures compared with the papers' equations, and whole runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.engine import AttackInputs
from classwise.core.compute.rng import CounterRNG
from classwise.core.settings.config import make
from classwise.models.modes import frozen
from classwise.threat.ball import Threat
from classwise.training import OBJECTIVES, SCHEDULES
from classwise.training.classes.signals import ClassSettings, ClassSums
from classwise.training.data_parallel import BatchShard
from classwise.training.folder import Run
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.recipe import Recipe
from classwise.training.train import train

from ..attacks.models import Small, images
from ..refusals import check_refused, refused
from .by_hand import NAN, classes, close
from .killing import killed_and_resumed
from .on_digits import TINY

Y = torch.arange(12) % 3
TEACHER = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))


def batch() -> TrainingBatch:
    return TrainingBatch(images(), Y, torch.arange(12), Threat("Linf", 0.1), teacher_logits=TEACHER)


def worked(spec: str, settings: ClassSettings | None = None) -> tuple[Small, Step, dict[str, Tensor]]:
    objective, model = make(OBJECTIVES, spec), Small().eval()
    attack, given = objective.inner(make(ATTACKS, "pgd:steps=3")), settings or ClassSettings()
    with frozen(model):
        points = objective.points(model, batch(), attack, given, CounterRNG(0))
    return model, objective.step(model, batch(), points, given), points


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(p ‖ q) of softmaxes, (N,), by the sum over classes of p log(p / q)."""
    p, q = teacher.softmax(1), student.softmax(1)
    return (p * (p / q).log()).sum(1)


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_ard_equals_its_equation(variant: str) -> None:
    model, step, points = worked(f"ard:alpha=0.7,temperature=4,variant={variant}")
    clean, robust = model(images()), model(points["robust"])
    scale = 3 if variant == "code" else 1  # classes
    assert torch.allclose(step.terms["clean"], 0.3 * F.cross_entropy(clean, Y, reduction="none"), atol=1e-6)
    assert torch.allclose(step.terms["robust"], 0.7 * 16 * kl(TEACHER / 4, robust / 4) / scale, atol=1e-5)


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_rslad_equals_its_equation_with_temperatures(variant: str) -> None:
    """The public code of ABSLD divides one tensor by both temperatures."""
    for_clean, for_robust = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([4.0, 1.0, 0.5])
    settings = ClassSettings(clean_temperature=for_clean, robust_temperature=for_robust)
    model, step, points = worked(f"rslad:alpha=0.75,variant={variant}", settings)
    clean, robust, scale = model(images()), model(points["robust"]), 1
    if variant == "code":
        for_clean = for_robust = for_clean * for_robust
        scale = 3
    assert torch.allclose(step.terms["clean"], 0.25 * kl(TEACHER / for_clean[Y, None], clean) / scale, atol=1e-6)
    assert torch.allclose(step.terms["robust"], 0.75 * kl(TEACHER / for_robust[Y, None], robust) / scale, atol=1e-6)


def test_the_attack_of_rslad_maximises_the_divergence_from_the_tempered_teacher() -> None:
    temperature = torch.tensor([4.0, 1.0, 0.5])
    model, _, points = worked("rslad", ClassSettings(robust_temperature=temperature))
    inputs = AttackInputs(
        images(), Y, torch.arange(12), Threat("Linf", 0.1), CounterRNG(0), reference=TEACHER / temperature[Y, None]
    )
    attack = make(ATTACKS, "pgd:steps=3,objective=kl,random_init=normal")
    with frozen(model):
        assert torch.equal(points["robust"], attack.run(model, inputs))
    soft = TEACHER / temperature[Y, None]
    assert bool((kl(soft, model(points["robust"])) > kl(soft, model(images()))).all())


def test_the_steps_are_those_at_whose_start_an_image_is_classified_correctly() -> None:
    model, step, points = worked("ard")
    inputs = AttackInputs(images(), Y, torch.arange(12), Threat("Linf", 0.1), CounterRNG(0))
    attack, right = make(ATTACKS, "pgd:steps=3"), torch.zeros(12, dtype=torch.int64)
    state = attack.start(model, inputs)
    for _ in range(3):
        right += model(state["x"]).argmax(1) == Y
        state = attack.step(model, inputs, state)
    assert torch.equal(points["robust"], state["x"])
    assert close(step.steps, right.tolist())
    assert 0 < float(right.float().mean()) < 3


def test_the_weights_of_fair_ard_by_hand() -> None:
    """Kappa 2, 4, 5: kappa^-2 is 0.25, 0.0625, 0.04; times 3 / 0.3525 that is 2.128, 0.532, 0.340, clamped below."""
    schedule: Any = make(SCHEDULES, "fair-ard")
    state = schedule.start(classes(4))
    assert close(schedule.settings(state, ClassSettings(), 0).robust_weight, [1.0, 1.0, 1.0, 1.0])
    state = schedule.after_epoch(state, {"train.steps": torch.tensor([2.0, 4.0, 5.0, NAN])}, 0)
    weights = schedule.settings(state, ClassSettings(), 1)
    assert close(weights.robust_weight, [3 * 0.25 / 0.3525, 5 / 6, 5 / 6, 1], tolerance=1e-4)
    assert weights.clean_weight is weights.robust_weight
    state = schedule.after_epoch(state, {"train.steps": torch.tensor([0.0, 4.0, NAN, NAN])}, 1)
    assert close(state["kappa"][:3], [0.0, 4.0, 5.0])
    assert close(schedule.settings(state, ClassSettings(), 2).robust_weight, [2.5, 5 / 6, 5 / 6, 1])
    free: Any = make(SCHEDULES, "fair-ard:beta=1,lowest=0.01,highest=100")
    assert close(free.weights(torch.tensor([2.0, 4.0, 5.0])), [1.5 / 0.95, 0.75 / 0.95, 0.6 / 0.95], tolerance=1e-4)


def test_the_temperatures_of_absld_by_hand() -> None:
    """The errors 1, 2, 6 have the mean 3 and the largest gap 3: changes of +0.2/3, +0.1/3 and -0.1."""
    schedule: Any = make(SCHEDULES, {"name": "absld", "rate": 0.1, "drop_epochs": [2], "highest": 1.07})
    state = schedule.start(classes(4))
    nothing = torch.tensor([NAN, NAN, NAN, NAN])
    errors = {"train.robust_error": torch.tensor([1.0, 2.0, 6.0, NAN]), "train.clean_error": nothing}
    state = schedule.after_epoch(state, errors, 0)
    settings = schedule.settings(state, ClassSettings(), 1)
    assert close(settings.robust_temperature, [1 + 0.2 / 3, 1 + 0.1 / 3, 0.9, 1])
    assert close(settings.clean_temperature, [1.0, 1.0, 1.0, 1.0])
    state = schedule.after_epoch(state, errors, 1)  # the second epoch: a tenth of the rate, and the upper bound
    assert close(state["robust"], [1.07, 1 + 0.11 / 3, 0.89, 1])


def test_the_sums_of_errors_and_steps() -> None:
    sums = ClassSums(3, frozenset({"train.clean_error", "train.robust_error", "train.steps"}), torch.device("cpu"))
    clean, robust = TEACHER, TEACHER.flip(0)
    y = torch.tensor([0, 1]).repeat(6)
    sums.add(y, clean, robust, steps=torch.arange(12))
    signals = sums.signals()
    for name, logits in (("clean", clean), ("robust", robust)):
        wanted = [float(F.cross_entropy(logits[y == label], y[y == label])) for label in (0, 1)]
        assert close(signals[f"train.{name}_error"][:2], wanted, tolerance=1e-5)
        assert bool(signals[f"train.{name}_error"][2].isnan())
    assert close(signals["train.steps"][:2], [5.0, 6.0])
    assert bool(signals["train.steps"][2].isnan())


def test_the_steps_of_a_step_are_gathered_like_its_terms() -> None:
    class Two:
        world_size, rank = 2, 0

        def all_reduce(self, tensor: Tensor) -> None:
            tensor[6:] = tensor[:6]

    shard: Any = BatchShard(Two(), 12)  # type: ignore[arg-type]
    assert torch.equal(shard.of_batch(batch()).teacher_logits, TEACHER[:6])
    full = shard.of_step(Step({"robust": torch.arange(6.0)}, None, TEACHER[:6], torch.arange(6)))
    assert full.steps.tolist() == [*range(6), *range(6)]
    assert torch.equal(full.robust_logits[6:], TEACHER[:6])


def test_other_numbers_of_epochs_scale_the_drops_of_the_rate() -> None:
    assert Recipe.read("absld").epoch_overrides(30)["schedules.0.drop_epochs"] == [22, 26, 28]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = TINY | {"epochs": 1, "data.subset": 60}
    return train("at", out=tmp_path_factory.mktemp("teacher") / "run", data="digits", overrides=overrides)


def tiny(teacher: Run) -> dict[str, object]:
    return TINY | {"data.subset": 100, "objective.teacher": str(teacher.path)}


@pytest.mark.parametrize("name", ["fair-ard", "absld"])
def test_a_run_resumes_to_the_same_bits_and_records_its_teacher(
    name: str, teacher: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "teacher.safetensors"
    file.write_bytes(teacher.weights_file("last").read_bytes())
    overrides = tiny(teacher) | {"objective.teacher": str(file)}
    whole = train(name, budget="short", out=tmp_path / "whole", data="digits", overrides=overrides)
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)
    more: dict[str, Any] = {"budget": "short", "data": "digits", "overrides": overrides}
    resumed = killed_and_resumed(train, name, out=tmp_path / "killed", step=3, **more)
    for written in ("epochs.parquet", "checkpoints/last.safetensors"):
        assert (whole.path / written).read_bytes() == (resumed.path / written).read_bytes(), written
    changed = "robust_weight" if name == "fair-ard" else "robust_temperature"
    assert whole.epochs.query("split == 'train' and epoch == 1")[changed].nunique() > 1
    file.write_bytes((whole.path / "checkpoints/last.safetensors").read_bytes())
    assert "was started with a teacher of other weights" in refused(train, name, out=resumed.path, resume=True, **more)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "recipe 'absld-short' needs a teacher: set objective.teacher"),
        (
            {"objective.teacher": "small-cnn"},
            "objective.teacher = 'small-cnn' has random weights; set objective.teacher_weights",
        ),
        ({"objective.teacher": "runs/none"}, "there is no file or folder runs/none"),
    ],
)
def test_a_missing_teacher_is_refused(fields: dict[str, object], says: str, tmp_path: Path) -> None:
    check_refused(says, train, "absld", budget="short", out=tmp_path / "run", data="digits", overrides=TINY | fields)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_a_teacher_may_be_a_network_with_a_file_of_weights(teacher: Run, tmp_path: Path) -> None:
    weights = teacher.weights_file("last")
    named = {"objective.teacher": "small-cnn", "objective.teacher_weights": str(weights), "epochs": 1}
    first, second = (
        train("absld", out=tmp_path / name, data="digits", overrides=tiny(teacher) | fields)
        for name, fields in (("by-name", named), ("by-file", {"objective.teacher": str(weights), "epochs": 1}))
    )
    files = [(run.path / "checkpoints/last.safetensors").read_bytes() for run in (first, second)]
    assert files[0] == files[1]


def test_no_teacher_no_logits() -> None:
    without = dataclasses.replace(batch(), teacher_logits=None)
    assert "this objective needs a teacher" in refused(
        make(OBJECTIVES, "ard").step, Small(), without, {"robust": images(), "steps": Y}, ClassSettings()
    )
