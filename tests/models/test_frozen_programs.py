"""Frozen TorchScript has no modes, and its weights are constants; it is audited as the module that it was made of."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.core.compute.precision import FLOAT32
from classwise.maite import to_model

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations of TorchScript
DATA = cw.load_data("digits", split="test", subset=40)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(288, 10)).eval()


def frozen() -> nn.Module:
    program: nn.Module = torch.jit.freeze(torch.jit.script(network()))
    return program


def of_a_trace() -> nn.Module:
    traced = torch.jit.trace(network(), DATA.pixels()[:2])  # type: ignore[no-untyped-call]
    program: nn.Module = torch.jit.freeze(traced)
    return program


def loaded() -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(frozen(), file)
    file.seek(0)
    program: nn.Module = torch.jit.load(file)  # type: ignore[no-untyped-call]
    return program


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.program = frozen()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.program(x)
        return logits


def function() -> Callable[[Tensor], Tensor]:
    program = frozen()
    return lambda x: program(x) + 0


FORMS: dict[str, Callable[[], nn.Module | Callable[[Tensor], Tensor]]] = {
    "frozen": frozen,
    "frozen trace": of_a_trace,
    "saved and loaded": loaded,
    "in a module": Holds,
    "in a function": function,
    "normalised": lambda: cw.Normalized(frozen(), [0.0], [1.0]),
    "loaded by load_model": lambda: cw.load_model(frozen()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_frozen_program_is_audited_as_its_module(form: str) -> None:
    model = FORMS[form]()
    suite = "Linf:0.1", ["pgd:steps=2", "square:steps=5"]
    audit, expected = (cw.audit(audited, DATA, *suite) for audited in (model, network()))
    for column in ("clean", "pgd", "square"):
        difference = audit.by_class[column] * audit.by_class["n"] - expected.by_class[column] * expected.by_class["n"]
        assert abs(difference).max() <= 1
    x = DATA.pixels()
    assert cw.attack(model, x, DATA.y, "fgsm", threat="Linf:0.1").shape == x.shape
    assert len(to_model(model)([x[0].numpy()])[0]) == 10


def test_passes_of_a_frozen_program_itself() -> None:
    x = DATA.pixels()[:4]
    torch.testing.assert_close(FLOAT32.forward(frozen())(x), network()(x))


def test_a_program_optimised_for_inference_has_no_gradient() -> None:
    program: nn.Module = torch.jit.optimize_for_inference(torch.jit.script(network()))
    audit = cw.audit(program, DATA, "Linf:0.1", ["pgd:steps=2", "square:steps=2"])
    assert audit.outcomes.meta.not_applicable == ("pgd",)
