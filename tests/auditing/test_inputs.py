"""The inputs of an audit: models by path, their training attack, threats and groupings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.audit import audit
from classwise.auditing.inputs import name_of, threat_for, training_attack_of
from classwise.core.errors import ClasswiseError
from classwise.core.threat import Threat
from classwise.data import DATA
from classwise.data.images import Images
from classwise.data.loading import load_data
from classwise.data.stream import Stream
from classwise.models import build_model, save_weights
from tests.auditing import toys


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text("name: mine\nobjective: trades\nattack: 'pgd:steps=30'\n")
    torch.manual_seed(0)
    model = build_model("small-cnn", num_classes=3, in_channels=1, width=0.1)
    save_weights(tmp_path / "checkpoints" / "best.safetensors", model)
    return tmp_path


@pytest.mark.slow
def test_a_run_folder_is_audited_with_its_own_weights(run_folder: Path) -> None:
    x = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    data = Images(x, torch.arange(40) % 3, name="toy")
    trained_against = training_attack_of(run_folder)
    assert isinstance(trained_against, PGD)
    assert (trained_against.steps, trained_against.objective) == (30, "kl")
    assert training_attack_of(run_folder / "checkpoints" / "best.safetensors") == trained_against
    result = audit(str(run_folder), data, "Linf:0.01", trained_against, batch_size=32)
    assert result.outcomes.meta.model == str(run_folder)
    assert "training-attack" in {found.name for found in result.warnings}
    assert "train-mode" not in {found.name for found in result.warnings}


def test_a_module_has_no_known_training_attack() -> None:
    assert training_attack_of(toys.model()) is None


def test_names_of_models() -> None:
    assert name_of(build_model("lenet", num_classes=3, in_channels=1)) == "lenet"
    assert name_of(toys.model()) == "Linear"


def test_the_usual_threat_is_that_of_the_data_set() -> None:
    assert threat_for(load_data("digits"), None) == Threat.parse(DATA.load("digits").threat)
    with pytest.raises(ClasswiseError, match="has no usual threat"):
        threat_for(Stream([(torch.rand(1, 4, 4), 0)], name="digits"), None)


def test_a_stream_can_be_grouped_by_superclass_only() -> None:
    data = toys.images()
    with pytest.raises(ClasswiseError, match="a stream can be grouped by superclass only"):
        audit(toys.model(), Stream(list(zip(data.x, data.y, strict=True))), "Linf:0.1", group=[0] * 90)


def test_an_attack_that_lacks_the_norm_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match="attack 'square' does not support L1; it supports Linf and L2"):
        audit(toys.model(), toys.images(), "L1:1", ["pgd", "square"], out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
