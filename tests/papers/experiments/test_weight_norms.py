"""Rows of a classifier rescaled to equal norm."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from classwise.models.base import Classifier, bare
from classwise.posthoc.equal_norms import equalise_norms
from classwise.training.folder import Run

from ..conftest import Smoke


def test_only_the_norms_of_the_rows_change(smoke: Smoke) -> None:
    run = smoke.run_of("iclr21/E7")
    model = bare(run.model())
    assert isinstance(model, Classifier)
    weight = next(name for name, value in model.named_parameters() if value is model.classifier.weight)
    before, after = model.state_dict(), bare(run.model("equal-norms")).state_dict()
    rows, rescaled = before.pop(weight), after.pop(weight)
    assert torch.allclose(rescaled.norm(dim=1), rows.norm(dim=1).mean().expand(len(rows)), rtol=1e-5)
    assert torch.allclose(torch.cosine_similarity(rows, rescaled), torch.ones(len(rows)), atol=1e-6)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert run.default_weights() != "equal-norms"


def test_rescaling_is_deterministic(smoke: Smoke, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(smoke.run_of("iclr21/E7").path, tmp_path / "run"))
    saved = run.weights_file("equal-norms").read_bytes()
    assert equalise_norms(run).read_bytes() == saved
