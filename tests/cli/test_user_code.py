"""Code of a user that reports statuses, or returns something else in a later pass: exit 4, or a refusal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Classwise

AUDIT = ("--data=digits", "--threat=Linf:0.1", "--subset=40", "--out=out")
NET = """
import classwise
import torch
from classwise.core.errors import ClasswiseError, IncompleteError
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__(); torch.manual_seed(0)
        self.linear, self.count = nn.Linear(64, 10), 0

    def forward(self, x):
        self.count += 1
        logits = self.linear(x.flatten(1))
        if self.count > PASSES:
            BODY
        return logits

def attack(x, y):
    BODY
    return x
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    def write(body: str, passes: int = 0) -> Path:
        (tmp_path / "mine.py").write_text(NET.replace("BODY", body).replace("PASSES", str(passes)))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, "mine", sys)  # so that the module is removed at the end
        monkeypatch.delitem(sys.modules, "mine")
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return tmp_path

    return write


RAISED = {
    "raise ClasswiseError('no')": "raised ClasswiseError: no",
    "raise IncompleteError('no')": "raised IncompleteError: no",
    "raise StopIteration": "raised StopIteration",
    "next(iter(()))": "raised StopIteration",
}


@pytest.mark.parametrize("body", RAISED)
@pytest.mark.parametrize("passes", [0, 3])
def test_errors_of_a_forward_that_mean_something_else(
    classwise: Classwise, mine: Callable[[str, int], Path], body: str, passes: int
) -> None:
    mine(body, passes)
    said = classwise("audit", "mine:Net", "--attack=fgsm", *AUDIT)
    assert said.status == 4
    assert f"mine.Net.forward (mine.py:16) {RAISED[body]}" in said.err.splitlines()[-1]


@pytest.mark.parametrize("body", RAISED)
def test_errors_of_an_attack_that_mean_something_else(
    classwise: Classwise, mine: Callable[..., Path], body: str
) -> None:
    mine(body, 1000)
    said = classwise("audit", "mine:Net", "--attack=external:attack=mine:attack", *AUDIT)
    assert said.status == 4
    assert f"mine.attack (mine.py:20) {RAISED[body]}" in said.err.splitlines()[-1]


def test_a_refusal_by_classwise_that_the_user_s_code_has_called_remains_one(
    classwise: Classwise, mine: Callable[..., Path]
) -> None:
    mine("classwise.load_data('digitz')")
    said = classwise("audit", "mine:Net", "--attack=fgsm", *AUDIT)
    assert (said.status, "did you mean 'digits'?" in said.err) == (2, True)


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("kept", [":, :4", ":, [*range(10), 0]"])
def test_another_number_of_classes_in_a_later_pass_is_refused(
    classwise: Classwise, mine: Callable[[str, int], Path], passes: int, kept: str
) -> None:
    mine(f"return logits[{kept}]", passes)
    said = classwise("audit", "mine:Net", "--attack=pgd:steps=3", *AUDIT)
    assert said.status == 2
    assert "for each image before, and now" in said.err.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # quantised tensors are deprecated
@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return x.to_sparse()", "a sparse tensor (sparse_coo)"),
        ("return torch.quantize_per_tensor(x, 0.01, 0, torch.quint8)", "a quantised tensor"),
    ],
)
def test_attacks_return_dense_images(classwise: Classwise, mine: Callable[..., Path], body: str, what: str) -> None:
    mine(body, 1000)
    said = classwise("audit", "mine:Net", "--attack=external:attack=mine:attack", *AUDIT)
    assert said.status == 2
    assert f"mine:attack returns {what}; expected images of shape (" in said.err
