"""Models by name: the spec that builds them again, and every mistake in one line."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.models import MODELS, build_model, fingerprint
from classwise.models.logits import LogitsModel
from classwise.models.normalization import Normalized

OWN = "tests.models.samples:Own"


def test_listing_the_models_imports_no_torch() -> None:
    code = "import sys, classwise.models as m; print(len(m.MODELS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(MODELS)), "False"]


def test_the_spec_builds_the_model_again() -> None:
    torch.manual_seed(3)
    model = build_model("small-cnn", num_classes=3, in_channels=1, width=0.1, mean=[0.3], std=[0.2], hidden=50)
    torch.manual_seed(3)
    again = build_model(**model.spec)  # type: ignore[arg-type]
    assert again.spec == model.spec
    assert fingerprint(again) == fingerprint(model)
    assert isinstance(again, Normalized)
    assert copy.deepcopy(model).spec == model.spec


def test_a_user_s_own_model_receives_only_the_arguments_that_it_accepts() -> None:
    model = build_model(OWN, num_classes=7, in_channels=3, hidden=4)
    assert isinstance(model, LogitsModel)
    assert model(torch.rand(2, 3, 2, 2)).shape == (2, 7)


@pytest.mark.parametrize("name", ["wide", "forwarding"])
def test_a_width_that_nobody_requested_is_not_passed(name: str) -> None:
    """It is a factor for the zoo, and may be a number of channels elsewhere."""
    model = build_model(f"tests.models.samples:{name}", num_classes=3, in_channels=3)
    assert [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)] == [64, 3]
    again = build_model(**model.spec)  # type: ignore[arg-type]
    assert again.spec == model.spec
    model = build_model(f"tests.models.samples:{name}", num_classes=3, in_channels=3, width=32.0)  # as of --width 32
    assert [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)] == [32, 3]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "unknown model 'resnet81'; did you mean 'resnet18'"),
        ("resnet18", {"block": [1]}, "model 'resnet18' has no option 'block'; did you mean 'blocks'"),
        ("resnet18", {"num_classes": 0}, "num_classes = 0"),
        ("resnet18", {"in_channels": -1}, "in_channels = -1"),
        ("resnet18", {"mean": [0.5]}, "mean and std must be given together"),
        ("resnet18", {"mean": [0.5, 0.5], "std": [0.2, 0.2]}, "mean has 2 channels and the images 3"),
        ("resnet18", {"mean": [0.5], "std": [0.0]}, "std = .*: must be positive"),
        (OWN, {"width": 0.5}, "has no parameter width"),
        (
            "tests.models.samples:sized",
            {},
            r"a required argument: 'width'; .* \(--width VALUE\)",
        ),
        (f"{OWN}.grown", {}, "Own.grown' is a method of an instance; give a class method or a function"),
        ("tests.models.samples:Owm", {}, "'Owm'; did you mean 'Own'"),
        ("tests.models.samples:not_a_module", {}, "not a torch.nn.Module"),
    ],
)
def test_mistakes(name: str, options: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"num_classes": 10, "in_channels": 3, **options}
    with pytest.raises(ClasswiseError, match=message):
        build_model(name, **settings)  # type: ignore[arg-type]
