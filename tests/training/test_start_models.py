"""Runs whose start model was trained on their validation images are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from classwise.core.files.storage import write_text
from classwise.core.progress.listener import NullProgress
from classwise.data import Images, load_data
from classwise.posthoc.logit_adjustment import adjust_logits
from classwise.posthoc.weight_interpolation import interpolate_weights
from classwise.training.folder import Run
from classwise.training.start_models import _IF_SEEN
from classwise.training.train import train

from ..refusals import refused
from .on_digits import NETWORK, TINY

ATTACK = "pgd:steps=1,step_size=eps"

CANNOT = "cannot check whether the start model "


class Heard(NullProgress):
    """Records the notes on start models."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        if "start model" in line:
            self.lines.append(line)


def trained(out: Path, start: Path | None = None, heard: Heard | None = None, share: float = 0.2, **fields: Any) -> Run:
    """A run of one epoch on 160 digits, of which 30 are held out."""
    data = fields.pop("data", "digits")
    quick: dict[str, Any] = {
        "attack": ATTACK,
        "validation_attack": ATTACK,
        "epochs": 1,
        "selection": "overall",
        "data.subset": fields.pop("subset", 160),
    }
    quick |= {"data.validation": share}
    overrides = TINY | quick | {"model": NETWORK | {"weights": start and str(start)}} | fields
    return train("at", data=data, out=out, overrides=overrides, progress=heard)


def notes_on_start(out: Path, start: Path, **fields: Any) -> list[str]:
    """The notes on start models of a run that is trained."""
    heard = Heard()
    trained(out, start, heard, **fields)
    return heard.lines


def not_trained(out: Path, start: Path, **fields: Any) -> str:
    message = refused(trained, out, start, **fields)
    assert not list(out.glob("*"))
    return message


def held_out(run: Run) -> set[int]:
    return set(json.loads((run.path / "validation.json").read_text())["index"])


def set_start(run: Run, start: Path) -> Run:
    """The run with another start in its recipe, as a version without the check may have written it."""
    recipe = yaml.safe_load(run.recipe_file.read_text())
    recipe["model"]["weights"] = str(start)
    write_text(run.recipe_file, yaml.safe_dump(recipe, sort_keys=False), checksum=True)
    return Run.open(run.path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("starts") / "first")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with another split."""
    return trained(tmp_path_factory.mktemp("starts") / "other", seed=1)


@pytest.mark.parametrize("share", [0.2, 0.1])
def test_the_same_or_a_smaller_split_of_the_same_seed_is_accepted(first: Run, tmp_path: Path, share: float) -> None:
    heard = Heard()
    run = trained(tmp_path / "run", first.path, heard, share=share)
    assert held_out(run) <= held_out(first)
    assert len(held_out(run)) == {0.2: 30, 0.1: 20}[share]
    assert heard.lines == []


def test_another_seed_is_refused_with_the_number_of_images(first: Run, other: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = not_trained(out, first.path, seed=1)
    seen = len(held_out(other) - held_out(first))
    assert 20 < seen < 30
    assert said == (
        f"{out}: {seen} of the 30 validation images were training images of the start model {first.path}; train the "
        "start on the same data with the split of this run (data.validation=0.2, seed=1), or use its split here "
        "(data.validation=0.2, seed=0)"
    )
    trained(out, other.path, seed=1)  # the folder is still unused


def test_a_larger_split_is_refused(first: Run, tmp_path: Path) -> None:
    assert ": 20 of the 50 validation images" in not_trained(tmp_path / "run", first.path, share=0.3)


def test_a_start_without_a_validation_split_is_refused(tmp_path: Path) -> None:
    start = trained(tmp_path / "start", selection="last", share=0)
    said = not_trained(tmp_path / "run", start.path)
    assert ": 30 of the 30 validation images" in said
    assert said.endswith("(data.validation=0.2, seed=0)")
    assert notes_on_start(tmp_path / "none", start.path, selection="last", share=0) == []


def test_a_file_of_a_run_is_checked(first: Run, tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(first.weights_file("last").resolve())
    for start in (first.weights_file("last"), first.path / "checkpoints", link):
        assert f"training images of the start model {start};" in not_trained(tmp_path / "run", start, seed=1)


def test_a_file_outside_a_run_folder_is_noted(first: Run, tmp_path: Path) -> None:
    copied = Path(shutil.copy(first.weights_file("last"), tmp_path / "copied.safetensors"))
    assert notes_on_start(tmp_path / "run", copied, seed=1) == [
        f"{CANNOT}{copied} was trained on validation images of this run: no run folder{_IF_SEEN}"
    ]


def test_the_start_of_a_start_is_checked(other: Run, tmp_path: Path) -> None:
    middle = set_start(trained(tmp_path / "middle"), other.path)
    assert f"the start model {other.path}, from which {middle.path} started; train" in not_trained(
        tmp_path / "run", middle.path
    )
    missing = set_start(middle, tmp_path / "missing")
    name = f"{tmp_path / 'missing'}, from which {middle.path} started"
    assert notes_on_start(tmp_path / "run", missing.path) == [
        f"{CANNOT}{name} was trained on validation images of this run: it does not exist{_IF_SEEN}"
    ]


def test_a_start_that_names_itself_is_checked_once(tmp_path: Path) -> None:
    start = trained(tmp_path / "start")
    set_start(start, start.path)
    assert notes_on_start(tmp_path / "run", start.path) == []


def test_another_subset_of_the_same_data_set_is_compared_by_pixels(tmp_path: Path) -> None:
    """Both subsets are of one data set, whose indices give the number independently."""
    start = trained(tmp_path / "start", subset=300)
    used = set(load_data("digits", split="train", subset=300).index.tolist()) - held_out(start)
    seen = len(held_out(trained(tmp_path / "plain")) & used)
    assert 0 < seen < 30
    assert f": {seen} of the 30 validation images" in not_trained(tmp_path / "run", start.path)


def test_other_images_are_noted(first: Run, tmp_path: Path) -> None:
    images = load_data("digits", split="train", subset=160)
    flipped = Images(images.x.flip(-1), images.y, images.class_names, "digits", "train")
    assert notes_on_start(tmp_path / "run", first.path, data=flipped) == [
        f"{CANNOT}{first.path} was trained on validation images of this run: its training images differ{_IF_SEEN}"
    ]
    renamed = Images(images.x.flip(-1), images.y, images.class_names, "photos", "train")
    assert len(notes_on_start(tmp_path / "renamed", first.path, data=renamed)) == 1


def test_given_images_with_other_indices_are_compared_by_their_rows(first: Run, tmp_path: Path) -> None:
    images = load_data("digits", split="train", subset=160)
    given = Images(images.x, images.y, images.class_names, "mine", "train")
    assert not torch.equal(given.index, images.index)
    assert notes_on_start(tmp_path / "run", first.path, data=given) == []
    assert " of the 30 validation images" in not_trained(tmp_path / "other", first.path, data=given, seed=1)


def test_unlabelled_images_of_a_start_are_noted(first: Run, tmp_path: Path) -> None:
    recipe = yaml.safe_load(first.recipe_file.read_text())
    recipe["data"]["unlabelled"] = {"name": "digits", "teacher": "somewhere"}
    start = Run(shutil.copytree(first.path, tmp_path / "start"))
    write_text(start.recipe_file, yaml.safe_dump(recipe, sort_keys=False), checksum=True)
    (note,) = notes_on_start(tmp_path / "run", start.path)
    assert note.endswith(f": its unlabelled images are unknown{_IF_SEEN}")


def test_no_code_of_the_start_is_executed(first: Run, tmp_path: Path) -> None:
    start = Run(shutil.copytree(first.path, tmp_path / "start"))
    recipe = yaml.safe_load(start.recipe_file.read_text()) | {"objective": "tests.training.no_such_module:Loss"}
    write_text(start.recipe_file, yaml.safe_dump(recipe, sort_keys=False), checksum=True)
    assert " of the 30 validation images" in not_trained(tmp_path / "run", start.path, seed=1)


@pytest.mark.parametrize("file", ["recipe_file", "environment_file"])
def test_a_damaged_run_folder_is_noted(first: Run, tmp_path: Path, file: str) -> None:
    start = Run(shutil.copytree(first.path, tmp_path / "start"))
    getattr(start, file).write_text("{}")
    notes = notes_on_start(tmp_path / "run", start.path)
    assert len(notes) == 1
    assert notes[0].startswith(f"{CANNOT}{start.path} was trained on validation images of this run: {start.path}")


def test_interpolation_refuses_a_start_that_saw_the_validation_split(first: Run, other: Run, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", first.path)
    said = refused(interpolate_weights, run, start=other.path, attack=ATTACK)
    assert said.startswith(f"{run.path}: ")
    assert f" of the 30 validation images were training images of the start model {other.path};" in said
    assert not run.weights_file("interpolated").exists()
    heard = Heard()
    interpolate_weights(run, shares=[0.5], attack=ATTACK, progress=heard)
    assert heard.lines == []
    assert "training images of the start model" in refused(
        interpolate_weights, set_start(run, other.path), start=first.path, attack=ATTACK
    )


def test_logit_adjustment_refuses_a_run_whose_start_saw_its_validation_split(
    first: Run, other: Run, tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", first.path)
    heard = Heard()
    adjust_logits(run, attack=ATTACK, rates=[0.1], progress=heard)
    assert heard.lines == []
    assert " of the 30 validation images were training images of the start model" in refused(
        adjust_logits, set_start(run, other.path), attack=ATTACK
    )
    adjust_logits(set_start(run, tmp_path / "missing"), attack=ATTACK, rates=[0.1], progress=heard)
    assert len(heard.lines) == 1


def test_both_models_of_an_interpolation_are_checked(first: Run, tmp_path: Path) -> None:
    """The initial model and its copy have another split; the copy, in no run folder, cannot be checked at first."""
    other = trained(tmp_path / "other", seed=1)
    run = trained(tmp_path / "run")
    copied = Path(shutil.copy(other.weights_file("last"), tmp_path / "copied.safetensors"))
    mixed = interpolate_weights(run, start=copied, shares=[0.5], attack=ATTACK).path
    adjusted = adjust_logits(run, which="interpolated", attack=ATTACK, rates=[0.1]).path
    assert mixed is not None
    assert adjusted is not None
    copied.unlink()
    copied.symlink_to(other.weights_file("last"))
    for start in (mixed, adjusted):
        assert f"the start model {copied}, from which {run.path} started;" in not_trained(tmp_path / "tuned", start)
    trained(tmp_path / "tuned", run.weights_file("last"))
