"""The inputs of an audit: models by path, their training attack, threats and groupings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.run.audit import audit
from classwise.auditing.run.inputs import name_of, network_of, threat_for, training_attack_of
from classwise.core.errors import ClasswiseError
from classwise.data import DATA
from classwise.data.images import Images
from classwise.data.sets.loading import load_data
from classwise.data.stream import Stream
from classwise.models import build_model, load_model, save_weights
from classwise.models.weights import fingerprint
from classwise.threat.ball import Threat
from tests.auditing import toys
from tests.auditing.listening import Listener


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


@pytest.mark.parametrize(
    ("model", "network"),
    [
        (build_model("lenet", num_classes=3, in_channels=1), "lenet"),
        (build_model("small-cnn", num_classes=3, in_channels=1, width=0.1), "small-cnn, width 0.1"),
        (toys.model(), "Linear"),
    ],
)
def test_names_of_models(model: nn.Module, network: str) -> None:
    assert (name_of(model), network_of(model)) == (network.partition(",")[0], network)


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


class Pooled(nn.Module):
    """Logits that do not depend on the image, beyond a small part: the bias decides."""

    def __init__(self, classes: int, bias: dict[int, float]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, classes)
        with torch.no_grad():
            self.linear.weight.mul_(1e-3)
            self.linear.bias.zero_()
            for number, value in bias.items():
                self.linear.bias[number] = value

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def test_predictions_are_restricted_to_the_classes_of_imagenet_a() -> None:
    known = DATA.load("imagenet-a")
    x = torch.rand(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    data = Images(x, torch.tensor([5, 5, 6]), known.class_names, "imagenet-a", "test")
    other = next(number for number in range(1000) if number not in known.logits)
    model = Pooled(1000, {other: 9.0, known.logits[5]: 5.0, known.logits[6]: 4.0})
    logged = Listener()
    result = audit(model, data, attacks="clean", progress=logged, guards="off")
    assert result.outcomes.class_names == known.class_names
    assert result.outcomes.rows("clean")["prediction"].tolist() == [5, 5, 5]
    assert result.outcomes.meta.model_hash == fingerprint(model)
    assert "restricted to the 200 of 1000 classes that imagenet-a has" in logged.lines[0]
    own = audit(Pooled(200, {6: 4.0}), data, attacks="clean", guards="off")
    assert own.outcomes.rows("clean")["prediction"].tolist() == [6, 6, 6]
    with pytest.raises(ClasswiseError, match="the model has 999 classes, the data set 'imagenet-a' has 200"):
        audit(Pooled(999, {}), data, "Linf:0", "fgsm")
    assert load_model(model, data=data) is not None


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        ([1, 2, 3], r"the labels are 1 to 3: load the data with load_data\(data, classes=range\(1, 4\)\)"),
        ([2, 9, 40], r"the labels are 2 to 40: load the data with load_data\(data, classes=\[2, 9, 40\]\)"),
        ([0, 1, 4], r"classes=\[0, 1, 4\]"),
        ([1, 2, 4, 5], "the numbers must agree$"),
    ],
)
def test_unusual_labels_are_named(labels: list[int], hint: str) -> None:
    x = torch.rand(len(labels), 3, 4, 4)
    with pytest.raises(ClasswiseError, match=hint):
        audit(Pooled(3, {}), (x, np.array(labels)), "Linf:0.1", "fgsm")
    if len(labels) == 3:
        data = load_data((x, np.array(labels)), classes=labels)
        assert audit(Pooled(3, {}), data, "Linf:0.1", "fgsm", guards="off").outcomes.labels.tolist() == [0, 1, 2]
