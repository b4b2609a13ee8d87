"""Models whose gradients only ``backward()`` computes are attacked as the same networks without such operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import classwise as cw
from classwise.attacks.engine import NoGradientError, value_and_gradient
from classwise.core.compute.precision import EXACT


class Recomputed(torch.autograd.Function):
    """Recomputes a network in its backward pass, which adds the gradient to the input itself."""

    @staticmethod
    def forward(ctx: Any, given: list[Any], dummy: Tensor) -> Tensor:
        del dummy
        ctx.given = given
        network, x = given
        with torch.no_grad():
            logits: Tensor = network(x)
        return logits

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        network, x = ctx.given
        with torch.enable_grad():
            torch.autograd.backward(network(x), gradient)
        return None, None


class Network(nn.Module):
    """A network of two blocks whose forward pass is a function of them."""

    def __init__(self, run: Callable[[nn.Sequential, Tensor], Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.blocks = nn.Sequential(
                nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten()), nn.Linear(256, 5)
            )
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.blocks, x)


def added(blocks: nn.Sequential, x: Tensor) -> Tensor:
    out: Tensor = Recomputed.apply([blocks, x], torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
    return out


def partly_added(blocks: nn.Sequential, x: Tensor) -> Tensor:
    other: Tensor = blocks(x)
    return 0.5 * added(blocks, x) + 0.5 * other


pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")

RUNS: dict[str, Callable[[nn.Sequential, Tensor], Tensor]] = {
    "whole": lambda blocks, x: checkpoint(blocks, x, use_reentrant=True),
    "first block": lambda blocks, x: blocks[1](checkpoint(blocks[0], x, use_reentrant=True)),
    "second block": lambda blocks, x: checkpoint(blocks[1], blocks[0](x), use_reentrant=True),
    "sequence": lambda blocks, x: checkpoint_sequential(blocks, 2, x, use_reentrant=True),  # type: ignore[no-untyped-call]
    "gradient added to the input": added,
    "part of the gradient added to the input": partly_added,
}
PLAIN: Callable[[nn.Sequential, Tensor], Tensor] = nn.Sequential.__call__


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(32, 1, 8, 8, generator=generator), torch.randint(0, 5, (32,), generator=generator)


@pytest.mark.parametrize("name", [name for name in RUNS if not name.startswith("part")])
def test_gradients_are_those_of_the_plain_network(name: str) -> None:
    x, y = images()
    model, plain = Network(RUNS[name]).requires_grad_(False), Network(PLAIN).requires_grad_(False)
    forward, expected = EXACT.forward(model), EXACT.forward(plain)
    for _ in range(2):  # the second pass knows how

        def loss(logits: Tensor) -> Tensor:
            return nn.functional.cross_entropy(logits, y, reduction="none")

        logits, gradient = value_and_gradient(forward, x, loss)
        torch.testing.assert_close(logits, expected(x))
        torch.testing.assert_close(gradient, value_and_gradient(expected, x, loss)[1])


@pytest.mark.parametrize(
    "spec", ["pgd:steps=3", "apgd-ce:steps=3", "apgd-t:steps=2,targets=2", "fab:steps=2", "fab-t:steps=2,targets=2"]
)
def test_attacks_return_the_images_of_the_plain_network(spec: str) -> None:
    x, y = images()
    found, expected = (
        cw.attack(Network(run), x, y, spec, threat="Linf:0.1", early_stop=False) for run in (RUNS["first block"], PLAIN)
    )
    assert not torch.equal(expected, x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["whole", "part of the gradient added to the input"])
def test_an_audit_finds_the_gradient_and_warns_of_nothing(name: str) -> None:
    x, y = images()
    found, expected = (cw.audit(Network(run), (x, y), "Linf:0.1", "pgd:steps=3") for run in (RUNS[name], PLAIN))
    assert "no-gradient" not in {warning.name for warning in found.warnings}
    margins, others = (audit.outcomes.frame["margin"].to_numpy() for audit in (found, expected))
    np.testing.assert_allclose(margins, others, atol=1e-5)


@pytest.mark.parametrize("name", ["trades", "at"])
def test_trainings_learn_the_weights_of_the_plain_network(name: str) -> None:
    x, y = images()

    def gradients(run: Callable[[nn.Sequential, Tensor], Tensor]) -> list[Tensor]:
        model = Network(run)
        loss = cw.ClassWiseLoss(name, [9] * 5, steps_per_epoch=1, threat="Linf:0.1")
        loss(model, x, y).backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    found, expected = gradients(RUNS["second block"]), gradients(PLAIN)
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def flattened(x: Tensor, backward: Callable[[], None]) -> Tensor:
    """The images as logits, whose gradient is what a function returns."""

    class Flattened(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            del ctx
            return x.flatten(1).clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            del ctx, gradient
            return backward()

    logits: Tensor = Flattened.apply(x)  # type: ignore[no-untyped-call]
    return logits


def test_an_error_of_both_ways_is_the_first_one() -> None:
    calls: list[int] = []

    def refused() -> None:
        calls.append(len(calls))
        raise LookupError(f"call {len(calls)}")

    with pytest.raises(LookupError, match="call 1"):
        value_and_gradient(lambda x: flattened(x, refused), images()[0], lambda logits: logits[:, 0])
    assert len(calls) == 2


def test_logits_without_a_gradient_have_none_either_way() -> None:
    with pytest.raises(NoGradientError):
        value_and_gradient(lambda x: flattened(x, lambda: None), images()[0], lambda logits: logits[:, 0])
