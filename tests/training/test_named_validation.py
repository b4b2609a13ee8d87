"""Validation images of a split of their own: `data.validation` is its name."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from classwise.core.progress.listener import NullProgress
from classwise.data import Images, load_data
from classwise.posthoc.logit_adjustment import adjust_logits
from classwise.training.cost import estimate_training
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.train import train

from ..refusals import check_refused
from .on_digits import NETWORK, TINY

ATTACK = "pgd:steps=1,step_size=eps"
SIZES = {"train": 120, "val": 40}
SMALL: dict[str, Any] = TINY | {"data.subset": None, "attack": ATTACK, "validation_attack": ATTACK, "epochs": 1}
NAMED = SMALL | {"data.validation": "val"}


class Heard(NullProgress):
    """Records log lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def write(folder: Path, images: Images) -> None:
    """Write the images of a split, in place of those before."""
    shutil.rmtree(folder, ignore_errors=True)
    for row, (x, label) in enumerate(zip(images.x, images.y.tolist(), strict=True)):
        file = folder / str(label) / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[0].numpy()).save(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with the splits train and val of digits."""
    folder, digits, start = tmp_path / "photos", load_data("digits", split="train"), 0
    for split, size in SIZES.items():
        write(folder / split, digits.take(range(start, start + size)))
        start += size
    return folder


def trained(out: Path, photos: Path, **fields: Any) -> Run:
    progress = fields.pop("progress", None)
    return train("at", data=photos, out=out, overrides=NAMED | fields, progress=progress)


def test_all_training_images_are_trained_on_and_the_split_validates(photos: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", photos)
    counts = run.epochs.groupby("split")["count"].sum()
    assert counts["train"] == SIZES["train"]
    assert counts["valid"] == SIZES["val"]
    assert run.data["validation"] == load_data(photos, split="val").fingerprint()
    assert json.loads((run.path / "validation.json").read_text())["index"] == []
    assert Recipe.read(str(run.recipe_file)).data.validation == "val"
    found = adjust_logits(run, attack=ATTACK, rates=[0.1], folds=0)
    assert found.classes["n"].sum() == SIZES["val"]
    check_refused("has the validation split 'val'; omit data", adjust_logits, run, data=load_data(photos, split="val"))


def test_a_run_is_resumed_with_the_same_validation_images_only(photos: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", photos)
    again = train("at", data=photos, out=run.path, overrides=NAMED, resume=True)
    assert again.recipe.digest() == run.recipe.digest()
    write(photos / "val", load_data(photos, split="val").take(range(30)))
    message = "validated on other images in the split 'val'"
    check_refused(message, train, "at", data=photos, out=run.path, overrides=NAMED, resume=True)
    check_refused(message, adjust_logits, run, attack=ATTACK)


def test_the_estimate_of_given_images_reads_the_split_by_its_name(photos: Path) -> None:
    recipe = Recipe.read("at", NAMED | {"data.name": str(photos)})
    images = load_data(photos, split="train")
    assert estimate_training(recipe, images=images).steps == -(-SIZES["train"] // 48)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((name, "should be a fraction, or a split that neither") for name in ("test", "Train", "testing", "")),
        ("1.5", "less than or equal to 1"),
        (True, "should be a number"),
    ],
)
def test_other_values_are_refused(value: object, message: str) -> None:
    check_refused(message, Recipe.read, {"data": {"validation": value}})


def test_fractions_as_text_are_numbers() -> None:
    digests = {Recipe.read("at", {"data.validation": value}).digest() for value in (0.02, "0.02", "1/50")}
    assert digests == {Recipe.read("at").digest()}


def test_splits_that_cannot_validate_are_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    check_refused("'dev'", trained, out, photos, **{"data.validation": "dev"})
    given = load_data(photos, split="train")
    check_refused("read from a data set's name or a path", train, "at", data=given, out=out, overrides=NAMED)
    val = load_data(photos, split="val")
    write(photos / "val", Images(val.x[..., 1:], val.y, val.class_names))
    check_refused(r"shape = \(1, 8, 7\), and \(1, 8, 8\) of the training images", trained, out, photos)
    write(photos / "val", given.take(range(20)))
    check_refused("all images are training images", trained, out, photos)
    assert not list(out.glob("*"))


def test_some_training_images_in_the_split_are_noted(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (photos / "train" / "3").iterdir():
        shutil.copy(file, photos / "val" / "3" / f"copy-{file.name}")
    copies = len(list((photos / "train" / "3").iterdir()))
    with caplog.at_level(logging.WARNING):
        trained(tmp_path / "run", photos)
    assert f"'val': {copies} of the {SIZES['val'] + copies} images are training images" in caplog.text


def test_start_weights_of_unknown_origin_select_the_last_epoch(photos: Path, tmp_path: Path) -> None:
    """With held-out images only, unless a selection is set, and also if the run is resumed."""
    weights = tmp_path / "weights.safetensors"
    trained(tmp_path / "start", photos).weights_file("last").rename(weights)
    start = {"model": NETWORK | {"weights": str(weights)}}
    selected = {}
    cases: dict[str, dict[str, Any]] = {
        "held-out": {"data.validation": 0.2},
        "set": {"data.validation": 0.2, "selection": "overall"},
        "named": {},
    }
    for name, fields in cases.items():
        heard = Heard()
        run = trained(tmp_path / name, photos, progress=heard, **start, **fields)
        selected[name] = run.recipe.selection, sum("selection = last" in line for line in heard.lines)
    assert selected == {"held-out": ("last", 1), "set": ("overall", 0), "named": ("overall+worst", 0)}
    run = Run.open(tmp_path / "held-out")
    weights.unlink()
    fields = NAMED | start | {"data.validation": 0.2}
    assert train("at", data=photos, out=run.path, overrides=fields, resume=True).recipe.selection == "last"
