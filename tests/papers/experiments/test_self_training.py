"""Robust self-training among the papers' defences: whose images, whose labels, and under which key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from classwise.data import Images
from classwise.papers import store as stores
from classwise.papers.context import Context
from classwise.papers.scales import FULL, SMOKE
from classwise.papers.store import Store, Trained
from classwise.training.folder import Run

from ..conftest import Smoke


def test_spare_images_are_others(tmp_path: Path) -> None:
    context = Context(SMOKE, Store(tmp_path / "store"))
    spare = context.spare_images
    assert spare is not None
    assert len(spare) == len(context.train_images)
    assert not torch.isin(spare.index, context.train_images.index).any()
    assert Context(FULL, context.store).spare_images is None


def test_the_labels_are_the_teacher_s(smoke: Smoke) -> None:
    """Not those of the data set: counted from the file of the run."""
    runs = smoke.results["iclr21/T2"].runs
    key, teacher = (next(key for key, name in runs.items() if name == wanted) for wanted in ("rst", "standard"))
    run = Run.open(smoke.store.path / "runs" / key)
    spare = Context(SMOKE, smoke.store).spare_images
    assert spare is not None
    with torch.no_grad():
        said = Run.open(smoke.store.path / "runs" / teacher).model()(spare.pixels()).argmax(1)
    labels = json.loads(run.pseudo_labels_file.read_text(encoding="utf-8"))["labels"]
    assert labels == said.tolist()
    assert labels != spare.y.tolist()


def test_the_key_is_of_the_teacher_and_the_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "train", lambda *_args, out, **_more: Run(out))

    def key(folder: str, teacher: str, unlabelled: Images) -> str:
        context = Context(SMOKE, Store(tmp_path / folder))
        kept = Trained(Run(tmp_path / folder / "runs" / teacher), teacher)
        return context.trained("rst", teacher=kept, unlabelled=unlabelled).key

    spare = Context(SMOKE, Store(tmp_path / "one")).spare_images
    assert spare is not None
    first = key("one", "a", spare)
    assert key("two", "a", spare) == first  # wherever the store lies
    assert key("one", "b", spare) != first
    assert key("one", "a", spare.take(torch.arange(100))) != first
