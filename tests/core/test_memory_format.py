"""The memory format: channels-last where a model accepts it, else contiguous for its images, weights and copies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import classwise as cw
from classwise.core.compute.memory_format import channels_last, copy_of, format_of, is_contiguous
from classwise.core.compute.precision import EXACT, FAST, FLOAT32, Precision
from classwise.models.fusion import Fusion
from classwise.models.logits import LogitsModel
from classwise.models.modes import frozen
from tests.refusals import check_refused
from tests.training.killing import KillAt, Killed

Flatten = Callable[[Tensor], Tensor]


def view(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1)


class Passes:
    """Whether the images of each pass were contiguous."""

    def __init__(self) -> None:
        self.contiguous: list[bool] = []


class Net(nn.Module):
    """A convolution, batch normalisation, and a way to flatten the feature map; records its passes."""

    def __init__(self, flatten: Flatten = view, channels: int = 3, *, first: Flatten = lambda x: x) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv, self.norm, self.fc = nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 16, 3)
        self.drop, self.flatten, self.first = nn.Dropout(0.5), flatten, first
        self.passes = Passes()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.contiguous.append(is_contiguous(x))
        out = self.drop(self.norm(self.conv(self.first(x))))
        return self.fc(self.flatten(out))  # type: ignore[no-any-return]


def images(count: int = 5, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, 6, 6, generator=torch.Generator().manual_seed(1))


class ViewInBackward(torch.autograd.Function):
    """The identity, whose backward pass needs a contiguous gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].view(-1).view(gradients[0].shape)


def strict(x: Tensor) -> Tensor:
    if not x.is_contiguous():
        raise KeyError("a contiguous feature map is required")
    return x.flatten(1)


FLATTENS: dict[str, Flatten] = {
    "view": view,
    "an error of the model's own": strict,
    "several images only": lambda x: view(x) if len(x) > 1 else x.flatten(1),
    "recorded gradients only": lambda x: view(x) if torch.is_grad_enabled() else x.flatten(1),
    "bfloat16 only": lambda x: view(x) if torch.is_autocast_enabled("cpu") else x.flatten(1),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FLATTENS)
def test_a_model_that_needs_contiguous_feature_maps_is_run_in_this_format(
    name: str, dtype: Literal["float32", "bfloat16"], channels: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    model, reference = Net(FLATTENS[name], channels).eval(), Net(lambda x: x.flatten(1), channels).eval()
    precision, x = Precision(dtype=dtype, channels_last=True), images(channels=channels)
    expected = reference(x)
    for count, gradients in ((1, False), (5, False), (5, True)):
        with torch.set_grad_enabled(gradients):
            found = precision.forward(model)(x[:count])
        assert torch.allclose(found, expected[:count], atol=0.02 if dtype == "bfloat16" else 1e-5)
    fails = name != "bfloat16 only" or dtype == "bfloat16"
    assert format_of(model).contiguous == fails
    assert is_contiguous(x)
    EXACT.forward(model)(x)
    precision.forward(LogitsModel(model))(x)
    assert len(caplog.records) == fails, "once, also for a wrapper"


@settings(deadline=None, max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 3),
    gradient=st.booleans(),
    strided=st.booleans(),
    precision=st.sampled_from([EXACT, FLOAT32]),
)
def test_the_logits_are_those_of_a_contiguous_pass(
    shape: tuple[int, int, int, int], seed: int, gradient: bool, strided: bool, precision: Precision
) -> None:
    """For every shape, also with images whose strides are not those of the contiguous format."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    weight = torch.rand(x[0].numel(), 3, generator=torch.Generator().manual_seed(seed))

    class Vector(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, len(weight)) @ weight

    model, given_images = Vector(), (channels_last(x) if strided else x).requires_grad_(gradient)
    for _ in range(2):
        assert torch.equal(precision.forward(model)(given_images), x.flatten(1) @ weight)


def test_a_failed_pass_has_no_effects() -> None:
    """Not on random numbers, nor on the statistics of batch normalisation, nor on images that the model overwrites."""
    results = []
    for precision in (EXACT, FLOAT32):
        model, x = Net(first=lambda x: x.mul_(0.5)).train(), images()
        torch.manual_seed(3)
        forward = precision.forward(model)
        logits = [forward(x) for _ in range(3)]
        torch.autograd.backward(torch.cat(logits).square().sum())
        assert forward.overwrites
        assert torch.equal(x, images())
        results.append(
            [*logits, *model.buffers(), torch.rand(2), *(parameter.grad for parameter in model.parameters())]
        )
    assert format_of(model).contiguous
    for first, second in zip(*results, strict=True):
        assert first is not None
        assert second is not None
        assert torch.equal(first, second)


def test_a_model_that_accepts_channels_last_takes_no_more_passes() -> None:
    model = Net(lambda x: x.flatten(1)).eval()
    FLOAT32.prepare(model)
    forward, x = FLOAT32.forward(model), images()
    for count in (5, 5, 2):
        with torch.no_grad(), torch.random.fork_rng():
            before = torch.get_rng_state()
            assert torch.equal(forward(x[:count]), model(channels_last(x[:count])))
            assert torch.equal(before, torch.get_rng_state())
    assert model.passes.contiguous == [False] * 6
    assert not format_of(model).contiguous
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_error_of_the_contiguous_format_is_raised_where_both_fail() -> None:
    def wrong(x: Tensor) -> Tensor:
        raise ValueError(f"contiguous: {x.is_contiguous()}")

    model = Net(wrong).eval()
    FLOAT32.prepare(model)
    with pytest.raises(ValueError, match="contiguous: True") as caught:
        FLOAT32.forward(model)(images())
    assert caught.value.__context__ is None
    assert not format_of(model).contiguous
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last), "as before"
    with pytest.raises(RuntimeError, match=r"expected input.* to have 3 channels") as refused:
        cw.audit(model, cw.Images(images(channels=2), torch.arange(5) % 3), "Linf:0.1", "fgsm")
    assert refused.value.__notes__ == ["the model was called with images of shape (2, 6, 6) (channels, height, width)"]


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_the_error_of_a_program_is_named_by_its_cause() -> None:
    program = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    check_refused(
        r"does not accept images of shape \(2, 6, 6\) .*to have 3 channels",
        cw.audit,
        program,
        cw.Images(images(channels=2), torch.arange(5) % 3),
        "Linf:0.1",
        "fgsm",
    )


def test_memory_is_not_exhausted_twice() -> None:
    def full(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    model = Net(full)
    with pytest.raises(torch.OutOfMemoryError):
        FLOAT32.forward(model)(images())
    assert len(model.passes.contiguous) == 1


def test_weights_and_copies_are_converted_back() -> None:
    model = Net().eval()
    FLOAT32.prepare(model)
    copied = copy_of(model)
    assert not model.conv.weight.is_contiguous()
    FLOAT32.forward(model)(images())
    assert all(weight.is_contiguous() for net in (model, copied) for weight in net.parameters())
    copied.passes.contiguous.clear()
    FLOAT32.forward(copied)(images())
    assert copied.passes.contiguous == [True], "decided by the model"


@pytest.mark.parametrize("precision", [FLOAT32, FAST])
@pytest.mark.parametrize("first", [lambda x: x, lambda x: x.contiguous()])
def test_fused_copies_are_used(first: Flatten, precision: Precision) -> None:
    """Also of a model that converts the images, so that only the weights of the copy are channels-last."""
    model, x = Net(first=first).eval().requires_grad_(requires_grad=False), images(16)
    fusion = Fusion(model)
    for _ in range(2):
        with fusion.forward(precision, x) as forward:
            assert fusion.unfused == ""
            assert torch.allclose(forward(x), model(x), atol=0.03)
    assert format_of(model).contiguous


def test_a_backward_pass_that_needs_the_format_decides_as_well() -> None:
    model = Net(lambda x: x.flatten(1), first=ViewInBackward.apply).eval()
    data = cw.Images(images(40), torch.arange(40) % 3)
    result = cw.audit(model, data, "Linf:0.1", "fgsm", guards="off", batch_size=32)
    assert result.outcomes.meta.not_applicable == ()
    assert format_of(model).contiguous


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch.compile itself
def test_compiled_passes() -> None:
    model, x = Net().eval(), images()
    compiler = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda model, **options: compiler(model, backend="eager", **options))
        found = Precision(channels_last=True, compile="on").forward(model)(x)
    assert torch.allclose(found, model(x), atol=1e-6)
    assert format_of(model).contiguous


def test_frozen_and_trained_passes_are_different_kinds() -> None:
    """An objective attacks the frozen model, and then records gradients of its weights."""
    model = Net(lambda x: view(x) if x.requires_grad and model.fc.weight.requires_grad else x.flatten(1))
    forward, x = FLOAT32.forward(model), images()
    with frozen(model):
        forward(x.clone().requires_grad_())
    assert not format_of(model).contiguous
    forward(x)
    assert format_of(model).contiguous


@pytest.mark.slow
def test_training_in_channels_last_is_that_in_the_contiguous_format(tmp_path: Path) -> None:
    """Also if it is interrupted, so that the resumed run decides again."""
    x = torch.rand(48, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = cw.Images(x, torch.arange(48) % 3)
    settings: dict[str, Any] = {"model.name": "tests.models.networks:LeNet", "data.augment": "none"}
    settings |= {"threat": "Linf:0.01", "attack.steps": 1, "validation_attack": "pgd:steps=1", "averaging": "ema"}
    settings |= {"data.validation": 0.25, "batch_size": 16, "epochs": 2}
    found = {}
    for name, wanted in (("contiguous", False), ("whole", True), ("resumed", True)):
        arguments: dict[str, Any] = {"data": data, "out": tmp_path / name}
        overrides = settings | {"precision.channels_last": wanted}
        if name == "resumed":
            with pytest.raises(Killed):
                cw.train("at", **arguments, overrides=overrides, progress=KillAt(3))
        run = cw.train("at", **arguments, overrides=overrides, resume=name == "resumed")
        found[name] = {which: run.model(which).state_dict() for which in ("last", "average")}
    for which, weights in found["contiguous"].items():
        for name, value in weights.items():
            assert torch.equal(value, found["whole"][which][name])
            assert torch.equal(value, found["resumed"][which][name])
