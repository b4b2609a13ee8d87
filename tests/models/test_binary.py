"""Binary models with one output per image, and logits of -inf, as logits for attacks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import losses
from classwise.attacks.gradient.ascent import PGD
from classwise.models import LogitsModel
from classwise.models.logits import are_valid, predicts, raised
from tests.refusals import check_refused, refused

FLOATS = st.floats(-100, 100, width=32)


class Output(nn.Module):
    """A model whose output is a function of the first pixel."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x.flatten(1)[:, 0])


def images_of(values: list[float]) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_a_logit_is_the_margin_of_class_1(values: list[float]) -> None:
    logits = LogitsModel(Output(lambda z: z[:, None]), "binary-logits")(images_of(values))
    assert (logits[:, 1] - logits[:, 0]).tolist() == torch.tensor(values).tolist()
    assert logits.argmax(1).tolist() == [int(value > 0) for value in torch.tensor(values).tolist()]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8))
def test_a_probability_gives_finite_logits_of_the_same_class(values: list[float]) -> None:
    probabilities = torch.tensor(values)
    logits = LogitsModel(Output(lambda p: p), "binary-probabilities")(images_of(values))
    assert bool(logits.isfinite().all())
    # Below the resolution of 1 - p both are class 0, and a tie is class 0.
    assert logits.argmax(1).tolist() == (probabilities > 1 - probabilities).long().tolist()
    expected = torch.logit(probabilities.double(), 1e-7)
    inner = (probabilities > 1e-6) & (probabilities < 1 - 1e-6)
    torch.testing.assert_close((logits[:, 1] - logits[:, 0]).double()[inner], expected[inner], rtol=1e-4, atol=1e-4)


SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "(N,)": lambda z: z,
    "(N, 1)": lambda z: z[:, None],
    "(N, 1, 1, 1)": lambda z: z[:, None, None, None],
    "squeezed": lambda z: z.squeeze(),
    "a tuple": lambda z: (z, None),
    "a dict": lambda z: {"logits": z[:, None]},
    "half": lambda z: z.half(),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("values", [[0.5], [-2.0, 0.0, 3.0]])
def test_shapes(shape: str, values: list[float]) -> None:
    model = cw.load_model(Output(SHAPES[shape]), outputs="binary-logits")
    assert model(images_of(values)).tolist() == [[0.0, value] for value in values]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda z: torch.stack([z, z], 1),
            r"float32 of shape \(3, 2\) for 3 images; expected one floating-point number",
        ),
        (lambda z: z[:2], r"float32 of shape \(2,\) for 3 images"),
        (lambda z: z.long(), r"int64 of shape \(3,\) for 3 images"),
        (lambda z: z.to("meta"), r"float32 of shape \(3,\) for 3 images"),
        (lambda _: None, "a NoneType without logits"),
    ],
)
@pytest.mark.parametrize("outputs", ["binary-logits", "binary-probabilities"])
def test_other_outputs_are_one_line(function: Callable[[Tensor], Any], message: str, outputs: Any) -> None:
    with pytest.raises(cw.ClasswiseError, match=message):
        LogitsModel(Output(function), outputs)(torch.zeros(3, 1, 1, 1))


@pytest.mark.parametrize("shape", ["(N,)", "(N, 1)"])
def test_auto_names_the_option(shape: str) -> None:
    data = cw.Images(torch.rand(8, 1, 2, 2), torch.arange(8) % 2)
    assert "outputs='binary') (--outputs binary)" in refused(cw.audit, Output(SHAPES[shape]), data, "Linf:0.1", "fgsm")


@pytest.mark.parametrize(("values", "kind"), [([0.2, 1.0], "binary-probabilities"), ([0.2, 1.1], "binary-logits")])
def test_without_an_audit_the_first_batch_decides(
    values: list[float], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = LogitsModel(Output(lambda z: z), "binary").eval()
    x = images_of(values)
    with caplog.at_level(logging.WARNING):
        model(x)
        model(x + 5)
        cw.attack(model, x.clamp(0, 1), torch.tensor([0, 1]), PGD(steps=1), threat="Linf:0.1")
    assert model.kind == kind
    assert [record.getMessage().partition("give ")[2] for record in caplog.records] == [
        f"outputs='{kind}' (--outputs {kind}) to state it"
    ]


def test_networks_built_for_the_data_have_one_output() -> None:
    data = cw.Images(torch.rand(8, 1, 8, 8), torch.arange(8) % 2)
    model = cw.load_model("small-cnn", data=data, width=0.1, outputs="binary-logits")
    assert model(data.x).shape == (8, 2)
    assert cast("Any", model).classifier.weight.shape[0] == 1
    check_refused(
        r"the model has 1 classes and the data 2; .* outputs='binary'",
        cw.load_model,
        "small-cnn",
        data=data,
        width=0.1,
        num_classes=1,
    )
    normalised = cw.load_model(Output(lambda z: z), mean=[0.5], std=[0.5], outputs="binary-logits")
    assert normalised(images_of([1.0])).tolist() == [[0.0, 1.0]]


ROWS = st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=1, max_size=5)
MASKS = st.lists(st.booleans(), min_size=4, max_size=4)


@given(ROWS, MASKS)
def test_rows_with_excluded_classes_are_valid(rows: list[list[float]], mask: list[bool]) -> None:
    logits = torch.tensor(rows).masked_fill(torch.tensor(mask), -math.inf)
    assert are_valid(logits).tolist() == [not all(mask)] * len(rows)
    for bad in (math.nan, math.inf):
        assert not are_valid(torch.cat([logits, torch.full((len(rows), 1), bad)], 1)).any()
    label = logits.argmax(1)
    assert predicts(logits, label).all() == (not all(mask))
    assert not predicts(logits, (label + 1) % 4).any()


@given(ROWS, MASKS, st.integers(0, 3))
def test_losses_with_excluded_classes_are_finite(rows: list[list[float]], mask: list[bool], label: int) -> None:
    mask[(label + 1) % 4] = False  # one class remains
    excluded = torch.tensor(mask)
    leaf = torch.tensor(rows).masked_fill(excluded, -math.inf).requires_grad_()
    y = torch.full((len(rows),), label)
    target = (y + 2) % 4
    for loss in (
        losses.cross_entropy,
        losses.margin,
        losses.dlr,
        losses.others_against_label,
        losses.probability_margin,
        lambda z, y: losses.towards(z, y, target),
        lambda z, y: losses.targeted_dlr(z, y, target),
        lambda z, y: losses.divergence(raised(leaf.detach()) * 0.5, z),
    ):
        logits = raised(leaf)
        value = loss(logits, y)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        assert bool(value.isfinite().all())
        assert bool(gradient.isfinite().all())
        assert not gradient[:, excluded].any()
        if mask[label]:
            assert bool((losses.margin(logits, y) < 0).all())


@given(ROWS)
def test_finite_logits_keep_their_bits(rows: list[list[float]]) -> None:
    leaf = torch.tensor(rows, requires_grad=True)
    logits = raised(leaf)
    assert torch.equal(logits, leaf)
    (gradient,) = torch.autograd.grad(
        losses.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.int64)).sum(), leaf
    )
    (expected,) = torch.autograd.grad(losses.cross_entropy(leaf, torch.zeros(len(rows), dtype=torch.int64)).sum(), leaf)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("value", [1e30, -1e30, 3e38, -3.4e38, 0.0])
def test_excluded_classes_are_below_logits_of_any_size(value: float) -> None:
    logits = raised(torch.tensor([[value, -math.inf]]))
    assert bool(logits.isfinite().all())
    assert float(logits[0, 1]) <= value
    assert logits.softmax(1).tolist() == [[1.0, 0.0]] or value < -1e38
