"""The trainer: the files of a run, and bit-identical resumption."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.core.files.storage import CHECKSUMS
from classwise.core.settings.config import configurable
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.models.affine import AffineNorms
from classwise.training.classes.signals import ClassSettings, Signals
from classwise.training.folder import Run
from classwise.training.objectives.base import Step, TrainingBatch
from classwise.training.schedules.base import Classes, ClassSchedule, State
from classwise.training.train import train

from ..refusals import refused
from .killing import KillAt, Killed, killed_and_resumed
from .on_digits import NORMALISED

SMALL: dict[str, Any] = {
    "model": NORMALISED,
    "data.subset": 200,
    "data.validation": 0.2,
    "data.augment": "crop:padding=1",
    "attack.steps": 2,
    "attack.step_size": "0.5eps",
    "validation_attack": "pgd:steps=2,step_size=0.5eps",
    "threat": "Linf:0.1",
    "batch_size": 48,
    "epochs": 3,
}


def trained(out: Path, recipe: str = "cfa-trades", **more: Any) -> Run:
    return train(recipe, budget="short", out=out, data="digits", overrides=SMALL, **more)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run."""
    return trained(tmp_path_factory.mktemp("reference") / "run")


def contents(run: Run) -> dict[str, bytes]:
    """The content of every file that must be bit-identical."""
    files = [
        run.epochs_file,
        run.events_file,
        run.recipe_file,
        *sorted((run.path / "checkpoints").glob("*.safetensors")),
    ]
    return {str(file.relative_to(run.path)): file.read_bytes() for file in files}


@pytest.mark.slow
def test_the_files_of_a_run(reference: Run) -> None:
    assert reference.complete
    assert set(reference.saved_weights()) == {"last", "best", "average", "best-average"}
    epochs = reference.epochs
    assert set(epochs["split"]) == {"train", "valid", "valid-average"}
    assert set(epochs["class"]) == set("0123456789")
    train_rows = epochs[epochs["split"] == "train"]
    assert len(train_rows) == 3 * 10
    assert int(train_rows.query("epoch == 0")["count"].sum()) == 160
    assert train_rows[["clean", "robust", "epsilon", "beta", "clean_weight"]].notna().all(axis=None)
    assert epochs[epochs["split"] == "valid"]["epsilon"].isna().all()
    environment = reference.environment
    assert torch.__version__.startswith(str(environment["packages"]["torch"]))  # less +cpu or +cu124, by the index
    assert sum(environment["data"]["counts"]["valid"]) == 40
    assert len(json.loads((reference.path / "validation.json").read_text())["index"]) == 40


@pytest.mark.slow
def test_the_radii_of_an_epoch_use_the_accuracy_of_the_previous_one(reference: Run) -> None:
    rows = reference.epochs.query("split == 'train'").set_index(["epoch", "label"]).sort_index()
    for epoch in (1, 2):
        before, now = rows.loc[epoch - 1], rows.loc[epoch]
        assert (now["epsilon"] - (0.3 + before["robust"]) * 0.1).abs().max() < 1e-6
        assert (now["beta"] - (0.5 + before["robust"]) * 6).abs().max() < 1e-5


def test_the_saved_models_have_the_measured_accuracy(reference: Run) -> None:
    scores = {event["which"]: float(event["score"] or 0) for event in reference.events if event["event"] == "selected"}
    assert set(scores) == {"best", "best-average"}
    assert scores[reference.default_weights()] == max(scores.values())
    assert f"{reference.default_weights()}.safetensors" in str(load_model(reference.path).loaded)
    images = load_data("digits", split="train", subset=200, seed=0)
    held = json.loads((reference.path / "validation.json").read_text())["index"]
    valid = images.take(torch.isin(images.index, torch.tensor(held)))
    with torch.no_grad():
        right = reference.model("last")(valid.pixels()).argmax(1) == valid.y
    rows = reference.epochs.query("split == 'valid' and epoch == 2")
    assert int(right.sum()) == round((rows["clean"] * rows["count"]).sum())


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 4, 6, 11])
def test_killed_at_any_step_and_resumed_gives_the_same_bits(
    reference: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Steps 1, 3, 6 and 11 are within an epoch of 4 steps; 4 is at its end, before the epoch is finished."""
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    assert contents(killed_and_resumed(trained, tmp_path / "run", step=step)) == contents(reference)


@pytest.mark.slow
def test_killed_without_a_checkpoint_inside_the_epoch(reference: Run, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path / "run", progress=KillAt(7))
    assert Run.open(tmp_path / "run").epochs_done == 1
    assert contents(trained(tmp_path / "run", resume=True)) == contents(reference)


@pytest.mark.slow
def test_dropout_of_a_resumed_run_has_the_masks_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classwise.training.trainer.CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every step
    overrides = {**SMALL, "model": {"name": "small-cnn", "width": 0.1, "options": {"dropout": 0.5}}, "epochs": 1}
    uninterrupted = train("at", budget="short", out=tmp_path / "whole", data="digits", overrides=overrides)
    more: dict[str, Any] = {"budget": "short", "data": "digits", "overrides": overrides}
    assert contents(killed_and_resumed(train, "at", out=tmp_path / "run", step=2, **more)) == contents(uninterrupted)


@pytest.mark.slow
def test_killed_in_the_middle_of_any_write(reference: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed before a rename; the temporary file remains."""
    rename: Callable[[Path, Path], Path] = Path.replace
    for death in range(1, 20, 4):
        writes = 0
        out = tmp_path / f"run-{death}"

        def dies(self: Path, target: Path, death: int = death) -> Path:
            nonlocal writes
            writes += 1
            if writes == death:
                shutil.copy(self, self.with_name(f"{self.name}.left"))
                raise Killed
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", dies)
        with pytest.raises(Killed):
            trained(out)
        monkeypatch.setattr(Path, "replace", rename)
        if not Run(out).recipe_file.is_file():
            shutil.rmtree(out)  # it died before it was a run
        assert contents(trained(out, resume=True)) == contents(reference)


def test_resuming_a_finished_run_changes_nothing(reference: Run, tmp_path: Path) -> None:
    shutil.copytree(reference.path, tmp_path / "run")
    assert contents(trained(tmp_path / "run", resume=True)) == contents(reference)


def test_a_finished_run_needs_no_checkpoint(reference: Run, tmp_path: Path) -> None:
    shutil.copytree(reference.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    run.state_file.unlink()
    run.weights_file("last").write_bytes(b"other")  # is not trained again
    assert trained(run.path, resume=True).complete
    assert run.weights_file("last").read_bytes() == b"other"
    assert not run.state_file.exists()


@pytest.mark.slow
def test_another_seed_gives_different_results(reference: Run, tmp_path: Path) -> None:
    other = trained(tmp_path / "run", seed=1)
    assert contents(other)["checkpoints/last.safetensors"] != contents(reference)["checkpoints/last.safetensors"]


def test_the_random_state_of_the_caller_is_unchanged(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(tmp_path / "run", recipe="standard", epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["standard", "at", "at-ema", "cfa-code", "at-awp", "at-adam", "n-fgsm"])
def test_every_kind_of_recipe_learns(recipe: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in SMALL.items() if recipe != "n-fgsm" or not name.startswith("attack")}
    overrides = kept | {"data.subset": 400, "epochs": 4, "batch_size": 16, "optimizer.lr": 0.03}
    run = train(recipe, budget="short", out=tmp_path / "run", data="digits", overrides=overrides)
    assert run.epochs.query("split == 'valid'").groupby("epoch")["clean"].mean().max() > 0.5  # chance is 0.1


def test_a_folder_is_never_overwritten(reference: Run, tmp_path: Path) -> None:
    before = contents(reference)
    assert "contains a run; add --resume to load or continue it" in refused(trained, reference.path)
    assert contents(reference) == before
    (tmp_path / "notes.txt").write_text("mine")
    assert "is not empty and contains no run" in refused(trained, tmp_path)
    assert "is a file" in refused(trained, tmp_path / "notes.txt")


def test_resuming_another_recipe_is_rejected_with_the_field(reference: Run) -> None:
    for more in ({}, {"description": "mine"}, {"source": "mine"}):  # those two may change
        assert "batch_size was 48, now 32" in refused(trained, reference.path, resume=True, batch_size=32, **more)


def test_resuming_with_other_images_is_rejected(reference: Run) -> None:
    images = load_data("digits", split="train", subset=200, seed=0)
    other = Images(images.x.clone().fill_(3), images.y, images.class_names, "digits", "train")
    message = refused(train, "cfa-trades", budget="short", out=reference.path, data=other, overrides=SMALL, resume=True)
    assert "other images" in message


def test_a_damaged_state_raises_an_error(reference: Run, tmp_path: Path) -> None:
    shutil.copytree(reference.path, tmp_path / "run")
    state = tmp_path / "run" / "checkpoints" / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    assert "is damaged" in refused(trained, tmp_path / "run", resume=True)


def test_without_a_validation_split_selection_must_not_use_one(tmp_path: Path) -> None:
    overrides = SMALL | {"data.validation": 0}
    assert "data.validation = 0" in refused(
        train, "at", budget="short", out=tmp_path / "a", data="digits", overrides=overrides
    )
    run = train(
        "at", budget="short", out=tmp_path / "b", data="digits", overrides=overrides, selection="last", epochs=1
    )
    assert set(run.epochs["split"]) == {"train"}


def test_a_newer_schema_version_is_rejected(reference: Run, tmp_path: Path) -> None:
    shutil.copytree(reference.path, tmp_path / "run")
    file = tmp_path / "run" / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 99}))
    assert "environment.json is damaged" in refused(Run.open, tmp_path / "run")
    (tmp_path / "run" / CHECKSUMS).unlink()
    assert "schema_version 99" in refused(Run.open, tmp_path / "run")
    assert "contains no run" in refused(Run.open, tmp_path / "nothing")
    (tmp_path / "audit.json").write_text("{}")
    assert "is an audit, not a run; show it with: classwise report" in refused(Run.open, tmp_path)


@configurable
class TwiceAsOftenTowardTheNext(ClassSchedule):
    """Sample class 0 only from the second step of an epoch on, and target every attack at the next class."""

    def start(self, classes: Classes) -> State:
        return {"steps": torch.zeros((), dtype=torch.int64), "seen": torch.zeros(2, len(classes))}

    def after_batch(self, state: State, step: Step, batch: TrainingBatch) -> State:
        assert batch.target is not None
        assert torch.equal(batch.target, torch.where(batch.y == 0, -1, (batch.y + 1) % 10))
        seen = state["seen"].clone()
        seen[int(state["steps"] > 0)] += torch.bincount(batch.y, minlength=10)
        return {"steps": state["steps"] + 1, "seen": seen}

    def after_epoch(self, state: State, signals: Signals, epoch: int) -> State:
        assert int((state["seen"][0] > 0).sum()) > 5  # the first step held what the data hold
        assert int((state["seen"][1] > 0).sum()) == 1  # the others class 0 alone
        return state

    def settings(self, state: State, before: ClassSettings, epoch: int) -> ClassSettings:
        law = torch.eye(10).roll(1, 1)
        law[0] = 0
        only_first = torch.eye(10)[0] if int(state["steps"]) > 0 else None
        return dataclasses.replace(before, target=law, sampling=only_first)


def test_a_schedule_may_change_sampling_and_targets_in_each_step(tmp_path: Path) -> None:
    part = f"{__name__}:TwiceAsOftenTowardTheNext"
    assert trained(tmp_path / "run", recipe="at", epochs=1, schedules=[part]).recipe.schedules == ({"name": part},)


@pytest.mark.slow
def test_attacks_use_affine_normalisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In mixed precision, attacks do not use the normalisation layers of torch; updates do."""
    seen: list[tuple[bool, torch.dtype]] = []
    usual = torch.nn.functional.batch_norm

    def watched(x: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.append((more[4], x.dtype))
        return usual(x, *more)

    monkeypatch.setattr(torch.nn.functional, "batch_norm", watched)
    overrides = {**SMALL, "epochs": 1, "precision": {"dtype": "bfloat16"}}
    train("at", budget="short", out=tmp_path / "run", data="digits", overrides=overrides)
    assert (True, torch.bfloat16) in seen
    assert (False, torch.bfloat16) not in seen


@pytest.mark.slow
def test_refreshed_normalisation_has_the_bits_of_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks of all steps use the same tensors, into which the weights and statistics of each step are copied."""

    def weights(out: Path) -> bytes:
        overrides = {**SMALL, "epochs": 1, "precision": {"dtype": "bfloat16"}}
        return (
            train("at", budget="short", out=out, data="digits", overrides=overrides).weights_file("last").read_bytes()
        )

    first = weights(tmp_path / "refreshed")
    usual = AffineNorms.replaced
    monkeypatch.setattr(AffineNorms, "replaced", lambda norms: usual(AffineNorms(norms._model)))
    assert weights(tmp_path / "new") == first
    monkeypatch.setattr(AffineNorms, "replaced", lambda norms: nullcontext(0))
    assert weights(tmp_path / "without") != first  # it would be seen
