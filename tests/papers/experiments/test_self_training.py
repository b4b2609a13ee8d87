"""Robust self-training among the defences: source of the images and labels, and key in the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from classwise.data import Images
from classwise.papers import store as stores
from classwise.papers.experiment import Context, Training
from classwise.papers.scales import FULL, SMOKE
from classwise.papers.store import Store
from classwise.training.folder import Run

from ..conftest import Smoke


def test_spare_images_are_not_training_images(tmp_path: Path) -> None:
    context = Context(SMOKE, Store(tmp_path / "store"))
    spare = context.spare_images
    assert spare is not None
    assert len(spare) == len(context.train_images)
    assert not torch.isin(spare.index, context.train_images.index).any()
    assert Context(FULL, context.store).spare_images is None


def test_labels_are_predicted_by_the_teacher(smoke: Smoke) -> None:
    """The pseudo-labels in the file of the run are not those of the data set."""
    spare = Context(SMOKE, smoke.store).spare_images
    assert spare is not None
    with torch.no_grad():
        predicted = smoke.run_of("iclr21/T2", "standard").model()(spare.pixels()).argmax(1)
    labels = json.loads(smoke.run_of("iclr21/T2", "rst").pseudo_labels_file.read_text(encoding="utf-8"))["labels"]
    assert labels == predicted.tolist()
    assert labels != spare.y.tolist()


def test_the_key_depends_on_teacher_and_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "train", lambda *_args, out, **_more: Run(out))

    def key(folder: str, teacher: str, unlabelled: Images) -> str:
        context = Context(SMOKE, Store(tmp_path / folder))
        trained = Run(tmp_path / folder / "runs" / teacher)
        return context.train(Training(recipe="rst"), teacher=trained, unlabelled=unlabelled).path.name

    spare = Context(SMOKE, Store(tmp_path / "one")).spare_images
    assert spare is not None
    first = key("one", "a", spare)
    assert key("two", "a", spare) == first  # independent of the path of the store
    assert key("one", "b", spare) != first
    assert key("one", "a", spare.take(torch.arange(100))) != first
