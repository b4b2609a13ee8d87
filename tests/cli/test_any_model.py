"""Models of users at the command line: their functions, files and outputs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ..options import with_options
from .conftest import Classwise

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, hidden=4):
        super().__init__()
        torch.manual_seed(hidden)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def forward(self, x):
        return self.layers(x)

class One(Net):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        assert num_classes == 1

    def forward(self, x):
        return self.layers(x)[:, 0]

class Soft(Net):
    def forward(self, x):
        return self.layers(x).softmax(1)

def build(**kwargs):
    return Net(**kwargs)

ready = Net(10)
"""
WORDS = (
    "--data",
    "digits",
    "--subset",
    "40",
    "--attack",
    "fgsm",
    "--threat",
    "Linf:0.1",
    "--guards",
    "off",
    "--out",
    "out",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mynet.py").write_text(NET)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "nets.py").write_text("def small(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    return tmp_path


def test_a_function_with_kwargs_receives_the_settings(classwise: Classwise) -> None:
    done = classwise("audit", "mynet:build", "--model-set", "hidden=7", *WORDS)
    assert done.status == 0, done.err
    torch.save(sys.modules["mynet"].Net(10, 7).state_dict(), "w.pt")
    done = classwise("audit", "mynet:build", "--weights", "w.pt", *WORDS[:-1], "again")
    assert done.status == 2
    assert "size mismatch for layers.1.weight: (7, 64) in the file and (4, 64) in the model" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mynet.py", "--weights", "w.pt"), "mynet.py is a Python file; name the model in it, such as mynet:Net"),
        (("mynet",), "mynet.py is a Python file; name the model in it, such as mynet:Net"),
        (("pack.nets",), "pack/nets.py is a Python file; name the model in it, such as pack.nets:small"),
        (
            ("mynet:ready", "--model-set", "hidden=7"),
            "mynet:ready' is a module, not a function: it has no option 'hidden'",
        ),
        (("mynet:ready", "--width", "0.5"), "model 'mynet:ready' has no parameter width"),
        (("mynet:Soft",), "the model returns probabilities (each row is nonnegative and sums to 1)"),
        (("mynet:Net", "--outputs", "probabilities"), "the model returns rows that are negative or do not sum to 1"),
        (("mynet:Net", "--outputs", "softmax"), "outputs = 'softmax': must be 'auto'"),
        (("mynet:Net", "--model-set", "outputs=logits"), "not a setting of the model; use --weights"),
        (("mynet:One", "--model-set", "num_classes=1"), "use load_model(model, outputs='binary') (--outputs binary)"),
        (("mynet:One", "--outputs", "binary"), "the model has 2 classes, the data set 'digits' has 10"),
        (("mynet:Net", "--outputs", "binary-logits", "--model-set", "num_classes=2"), "of shape (8, 2) for 8 images"),
        (("hf:no/such/model",), "there is no such folder; a hub id is ORGANISATION/NAME"),
    ],
)
def test_one_line(words: tuple[str, ...], message: str, classwise: Classwise) -> None:
    done = classwise("audit", *words, *WORDS)
    assert done.status == 2
    assert message in done.err
    assert not Path("out").exists()


def test_a_module_is_copied(classwise: Classwise) -> None:
    done = classwise("audit", "mynet:ready", *WORDS)
    assert done.status == 0, done.err
    ready = sys.modules["mynet"].ready
    assert ready.training
    torch.save({key: torch.zeros_like(tensor) for key, tensor in ready.state_dict().items()}, "w.pt")
    done = classwise("audit", "mynet:ready", "--weights", "w.pt", *WORDS[:-1], "again")
    assert done.status == 0, done.err
    assert all(bool(parameter.any()) for parameter in ready.parameters())


def test_probabilities_on_request(classwise: Classwise) -> None:
    done = classwise("audit", "mynet:Soft", "--outputs", "probabilities", *WORDS)
    assert done.status == 0, done.err


@pytest.mark.parametrize("command", ["audit", "curve", "worst-class", "estimate", "shards"])
def test_binary_on_request(command: str, classwise: Classwise) -> None:
    pixels = np.random.default_rng(0).random((40, 8, 8), dtype=np.float32)
    np.savez("two.npz", x=pixels, y=np.arange(40) % 2, class_names=np.array(["no", "yes"]))
    words = ["mynet:One", "--outputs", "binary", "--data", "two.npz", "--attack", "fgsm", "--threat", "Linf:0.1"]
    options = {
        "estimate": [["--estimate", "--out=out"]],
        "shards": [[f"--shard={n}/2", f"--out=out/shards/00{n}-of-002"] for n in (1, 2)]
        + [["--shards=2", "--out=out"]],
        "worst-class": [["--attack", "pgd:steps=2", "--out=out"]],
    }
    for extra in options.get(command, [["--out=out"]]):
        done = classwise(command if command in ("curve", "worst-class") else "audit", *words, *extra)
        assert done.status == 0, done.err
    assert ("yes" in done.out) == (command != "estimate")


def test_a_network_of_the_user_gets_pixels_unless_a_normalisation_is_given(classwise: Classwise) -> None:
    note = "mynet:build gets pixels in [0, 1]; if it was trained on normalised pixels and does not normalise them"
    for number, (model, *more) in enumerate(
        (("mynet:build",), ("mynet:build", "--mean=0.5", "--std=0.5"), ("small-cnn", "--width=0.1"))
    ):
        said = classwise("audit", model, *with_options(WORDS, *more, f"--out=out-{number}"))
        assert said.status == 0, said.err
        assert (note in said.err) == (number == 0)
