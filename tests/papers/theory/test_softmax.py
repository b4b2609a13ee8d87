"""Gradient of the classifier weights, compared with torch autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classwise.papers.theory import softmax


@pytest.mark.parametrize("case", softmax.grid(samples=1), ids=lambda case: f"{case.weights.shape} {case.inverse}")
def test_against_autograd(case: softmax.Case) -> None:
    weights = torch.tensor(case.weights, requires_grad=True)
    logits = case.inverse * (weights @ torch.tensor(case.features))
    loss = torch.nn.functional.cross_entropy(logits[None], torch.tensor([case.label]))
    (expected,) = torch.autograd.grad(loss, weights)
    assert softmax.gradient(case) == pytest.approx(expected.numpy(), abs=1e-12)
    p = softmax.probabilities(case.logits, case.inverse)
    assert p == pytest.approx(logits.detach().softmax(0).numpy(), abs=1e-14)


def test_statements() -> None:
    cases = softmax.grid()
    assert softmax.closed_form(cases).holds
    assert softmax.limits(cases).holds
    assert softmax.as_printed([case for case in cases if case.inverse == 1]).holds
    printed = softmax.as_printed([case for case in cases if case.inverse != 1])
    assert printed.cases == 100
    assert len(printed.failures) > 90
    assert "off by" in printed.failures[0]


def test_a_false_statement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "probabilities", lambda logits, inverse: np.full(len(logits), 1 / len(logits)))
    cases = softmax.grid(samples=1)
    assert not softmax.closed_form(cases).holds
    assert len(softmax.limits(cases).failures) == len(cases)
