"""Fused copies: the same function, verified before use; which layers are fused, and which models are not copied."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.ascent import PGD
from classwise.core.compute.precision import FAST, Forward, Precision
from classwise.models import MODELS, build_model
from classwise.models.fused_copy import FusedCopy, foldable
from classwise.models.fusion import TOLERANCE, Fusion, Snapshot
from classwise.models.logits import LogitsModel
from classwise.threat.ball import Threat
from tests.models.networks import NETWORKS, ConvNeXt, PreActResNet
from tests.models.samples import trained
from tests.models.variants import (
    EXACT,
    Case,
    ControlFlow,
    CopiesDetached,
    CopiesOtherwise,
    Counting,
    DefaultArguments,
    Functional,
    Infinite,
    NoCopies,
    NoStatistics,
    NotAffine,
    OtherDimensions,
    OwnNorm,
    Parametrized,
    Random,
    Recomputes,
    RequiresFloat32,
    SharedConvolution,
    SharedLayers,
    SharedNorm,
    Statistics,
    Stores,
    StraightThrough,
    TiedWeights,
    TwoUsers,
    WeightRead,
    WithoutGradient,
    both,
    digits,
    error,
    variant,
)


def calls(forward: Forward, x: Tensor, name: str) -> int:
    with torch.profiler.profile() as profile, torch.no_grad():
        forward(x)
    return sum(int(event.count) for event in profile.key_averages() if event.key == name)


FOLDS = {"resnet": (10, 0), "preactresnet": (3, 4), "densenet": (3, 4), "mobilenet": (9, 0), "convnext": (0, 0)}
"""The numbers of normalisation layers that are folded, and that are multiply-adds."""


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_a_user_is_fused(name: str) -> None:
    torch.manual_seed(0)
    model = trained(NETWORKS[name]())
    exact = both(model, digits())
    fusion = Fusion(model)
    with fusion.forward(EXACT, digits()) as forward:
        logits, gradient = both(forward, digits())
        assert fusion.unfused == ""
        assert calls(forward, digits(), "aten::batch_norm") == 0
        assert calls(forward, digits(), "aten::addcmul") == FOLDS[name][1]
    assert len(foldable(model)) == FOLDS[name][0]
    assert float((logits - exact[0]).abs().max()) <= TOLERANCE * float(exact[0].abs().max())
    assert error(gradient, exact[1]) < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fused_copy_in_bfloat16_is_as_good_as_autocast(name: str) -> None:
    torch.manual_seed(0)
    model = trained(NETWORKS[name]())
    exact, mixed = both(model, digits(32)), both(Precision(dtype="bfloat16").forward(model), digits(32))
    fusion = Fusion(model)
    with fusion.forward(FAST, digits(32)) as forward:
        fast = both(forward, digits(32))
        assert fusion.unfused == ""
        assert all(value.dtype == torch.float32 for value in fast)
        assert not torch.equal(fast[0], exact[0])
        assert float((fast[0] != fast[0].bfloat16()).float().mean()) > 0.9  # finer than bfloat16
    copied = fusion._copies[FAST]
    assert isinstance(copied, FusedCopy)
    layers = [module for module in copied.network.modules() if isinstance(module, nn.Conv2d)]
    assert {layer.weight.dtype for layer in layers} == {torch.bfloat16}
    in_bfloat16 = [linear for linear in copied._linears if linear._lower]  # of those after all convolutions
    assert len(in_bfloat16) == (2 if name == "convnext" else 0)
    for found, usual, true in zip(fast, mixed, exact, strict=True):
        assert error(found, true) < 1.5 * error(usual, true) < 0.3


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fused_copy_is_the_same_function_but_for_rounding(name: str) -> None:
    torch.manual_seed(0)
    model = trained(NETWORKS[name]()).double()
    fused = FusedCopy(model, foldable(model), Precision()).network
    for found, expected in zip(both(fused, digits().double()), both(model, digits().double()), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("precision", [FAST, EXACT], ids=["bfloat16", "float32"])
def test_the_model_is_as_it_was(precision: Precision) -> None:
    torch.manual_seed(0)
    model = trained(NETWORKS["mobilenet"]())
    before, weights = Snapshot(model, values=True), copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    with Fusion(model).forward(precision, digits()) as forward:
        both(forward, digits())
        assert Snapshot(model, values=True) == before
    assert Snapshot(model, values=True) == before
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("case", [TiedWeights, PreActResNet, ConvNeXt], ids=lambda case: case.__name__)
def test_later_uses_read_the_current_weights_into_the_same_tensors(case: type[nn.Module]) -> None:
    """Also after a change that autograd does not count; a copy of its own has the same bits."""
    model = variant(case)
    fusion = Fusion(model)
    with fusion.forward(FAST, digits()) as forward:
        before = forward(digits())
    copies = fusion._copies[FAST]
    assert isinstance(copies, FusedCopy)
    addresses = [tensor.data_ptr() for tensor in copies.network.state_dict().values()]
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.data.mul_(1.5).add_(0.1)
    with fusion.forward(FAST, digits()) as forward:
        refreshed = both(forward, digits())
    assert fusion._copies[FAST] is copies
    assert addresses == [tensor.data_ptr() for tensor in copies.network.state_dict().values()]
    with Fusion(model).forward(FAST, digits()) as forward:
        for found, expected in zip(refreshed, both(forward, digits()), strict=True):
            assert torch.equal(found, expected)
    assert error(refreshed[0], before) > 0.1


class Scaled(Case):
    """Logits with a scale that is an attribute and one that is a tensor, but not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.options, self.factor = 1.0, {"scale": 1.0}, torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale * self.options["scale"] * self.factor


def rescale(model: Scaled) -> None:
    model.scale = 3.0


def rescale_option(model: Scaled) -> None:
    model.options["scale"] = 3.0


def rescale_tensor(model: Scaled) -> None:
    model.factor.mul_(3)


def another_layer(model: Scaled) -> None:
    model.conv2 = nn.Conv2d(4, 4, 1).requires_grad_(requires_grad=False)


def another_weight(model: Scaled) -> None:
    model.linear.weight = nn.Parameter(-model.linear.weight.detach(), requires_grad=False)


@pytest.mark.parametrize("change", [rescale, rescale_option, rescale_tensor, another_layer, another_weight])
def test_a_model_that_was_changed_is_copied_again(change: Callable[[Scaled], None]) -> None:
    model = variant(Scaled)
    assert isinstance(model, Scaled)
    fusion = Fusion(model)
    with fusion.forward(EXACT, digits()) as forward:
        before = forward(digits())
    change(model)
    with fusion.forward(EXACT, digits()) as forward:
        assert error(forward(digits()), model(digits())) < 1e-5
        assert error(forward(digits()), before) > 0.1
    hook = model.conv1.register_forward_hook(lambda *_: None)
    with fusion.forward(EXACT, digits()):
        assert fusion.unfused == "its layer 'conv1' has hooks"
    hook.remove()
    with fusion.forward(EXACT, digits()):
        assert fusion.unfused == ""


def test_hooks_on_all_modules() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        fusion = Fusion(variant(Case))
        with fusion.forward(FAST, digits()):
            assert fusion.unfused == "there are hooks on all modules"
    finally:
        handle.remove()


def test_a_lack_of_memory_is_not_hidden() -> None:
    class Large(Case):
        def second(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError

    fusion = Fusion(Large().eval())
    with pytest.raises(torch.OutOfMemoryError), fusion.forward(FAST, digits()):
        raise AssertionError


def test_a_wrapped_model_is_fused() -> None:
    """The wrapper that selects the logits cannot be traced."""
    model = trained(LogitsModel(build_model("lenet", num_classes=5, in_channels=3, mean=[0.5], std=[0.2])))
    for wrapped, count in ((model, 0), (trained(LogitsModel(nn.Sequential(ControlFlow()))), 1)):
        fusion = Fusion(wrapped)
        with fusion.forward(EXACT, digits()) as forward:
            assert error(forward(digits()), wrapped(digits())) < 1e-5
        assert fusion.unfused == ""
        assert len(foldable(wrapped)) == count


SAME_LAYERS = ("wrn-", "densenet169", "resnet34", "vgg19")
"""Networks with the layers of others, which are also tested."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head"),
    [
        *((name, "linear") for name in MODELS if not name.startswith(SAME_LAYERS)),
        ("lenet", "cosine"),
        ("resnet18", "cosine"),
    ],
)
def test_every_network_of_the_zoo(name: str, head: str) -> None:
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    normal = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)} if head == "linear" else {}
    model = trained(build_model(name, num_classes=5, in_channels=3, width=0.125, head=head, **normal))
    exact = both(model, x)
    # Deep networks without shortcuts lose much of the gradient to bfloat16; the fused copy about as much.
    rounded = alike(both(Precision(dtype="bfloat16").forward(model), x)[1], exact[1])
    fusion = Fusion(model)
    for precision in (FAST, Precision(dtype="bfloat16")):
        with fusion.forward(precision, x) as forward:
            logits, gradient = both(forward, x)
        assert fusion.unfused == ""
        assert logits.dtype == gradient.dtype == torch.float32
        assert alike(logits, exact[0]) > 0.999
        assert alike(gradient, exact[1]) > min(0.9, 0.75 * rounded)
    with fusion.forward(EXACT, x) as forward:
        logits, gradient = both(forward, x)
        assert calls(forward, x, "aten::batch_norm") == 0
    assert fusion.unfused == ""
    assert torch.allclose(logits, exact[0], rtol=1e-4, atol=1e-4)
    assert alike(gradient, exact[1]) > 0.999


def alike(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 16, 28, 40])
@pytest.mark.parametrize("name", ["lenet", "small-cnn", "inception-v3"])
def test_a_fused_copy_adapts_to_the_size_of_images(name: str, size: int) -> None:
    """These pad small images."""
    model = trained(build_model(name, num_classes=5, in_channels=1, width=0.125))
    x = torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with Fusion(model).forward(EXACT, x) as fused, torch.no_grad():
        for side in (32, size):
            x = torch.rand(4, 1, side, side, generator=torch.Generator().manual_seed(side))
            torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


def test_the_engine_attacks_the_fused_copy_and_verifies_on_the_model() -> None:
    """The copy is made once; verdicts are those of the model."""
    torch.manual_seed(0)
    model = trained(PreActResNet())
    x = digits(40)
    y = model(x).argmax(1)
    engine = Engine(model, precision=FAST, batch_size=32)
    copies: list[object] = []
    for attack in (PGD(steps=3), PGD(steps=2)):
        blocks = list(engine.attack(attack, Threat.parse("Linf:0.05"), [Job(torch.arange(40), x, y)]))
        assert sum(len(done.row) for done in blocks) == 40
        for done in blocks:
            with torch.no_grad():
                judged = model(done.x)
            assert torch.allclose(judged, done.logits, atol=1e-4)
            assert torch.equal(judged.argmax(1) != done.y, done.success)
        assert engine.passes.unfused == ""
        copies += engine.passes._fusion._copies.values()
    assert isinstance(copies[0], FusedCopy)
    assert copies[0] is copies[1]


def test_an_engine_without_images_copies_nothing() -> None:
    engine = Engine(NoCopies().eval(), precision=FAST, batch_size=32)
    empty = Job(torch.arange(0), digits()[:0], torch.arange(0))
    for jobs in ([], [empty]):
        assert list(engine.attack(PGD(steps=3), Threat.parse("Linf:0.05"), jobs)) == []
    assert engine.passes.unfused == ""


VARIANTS: dict[type[Case], set[str]] = {
    Case: {"norm1", "norm2"},
    SharedLayers: {"norm1", "norm2"},
    SharedConvolution: {"norm1"},
    SharedNorm: set(),
    TwoUsers: {"norm1"},
    WeightRead: {"norm1"},
    TiedWeights: {"norm1", "norm2"},
    ControlFlow: {"block.1"},
    DefaultArguments: {"norm1", "norm2"},
    Functional: {"norm1"},
    NoStatistics: {"norm1"},
    NotAffine: {"norm1", "norm2"},
    OwnNorm: {"norm1"},
    OtherDimensions: {"norm1", "norm2", "norm3", "norm5"},
    Parametrized: {"norm1"},
    StraightThrough: {"norm1", "norm2"},
    WithoutGradient: {"norm1", "norm2"},
    Random: {"norm1", "norm2"},
    Recomputes: {"norm1", "norm2"},
}
"""Variants that are fused, and their folded layers."""


@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: case.__name__)
def test_a_variant_is_fused(case: type[Case]) -> None:
    model = variant(case)
    assert set(foldable(model)) == VARIANTS[case]
    torch.manual_seed(1)
    exact = both(EXACT.forward(model), digits())
    fusion = Fusion(model)
    for precision, tolerance in ((EXACT, 1e-5), (FAST, 0.2)):
        with fusion.forward(precision, digits()) as forward:
            assert fusion.unfused == ""
            torch.manual_seed(1)
            for found, expected in zip(both(forward, digits()), exact, strict=True):
                assert error(found, expected) < tolerance
            if case is Random:
                assert error(forward(digits()), forward(digits())) > 0.01
    torch.manual_seed(1)
    assert all(
        torch.equal(found, expected)
        for found, expected in zip(both(EXACT.forward(model), digits()), exact, strict=True)
    )


def test_what_a_model_stores_is_no_symbolic_value() -> None:
    """It changes an attribute in its first pass, and in no later one."""
    model = variant(Stores)
    fusion = Fusion(model)
    with fusion.forward(EXACT, digits()):
        assert fusion.unfused == "its forward pass modifies its attributes"
    assert isinstance(model.grid, Tensor)
    with fusion.forward(EXACT, digits()) as forward:
        assert fusion.unfused == ""
        assert error(forward(digits()), model(digits())) < 1e-5


def hooked(model: Case) -> nn.Module:
    model.conv2.register_forward_hook(lambda *_: None)
    return model


def watched(model: Case) -> nn.Module:
    model.register_full_backward_hook(lambda *_: None)
    return model


def replaced(model: Case) -> nn.Module:
    model.norm1.forward = F.relu  # type: ignore[method-assign]
    return model


FALLBACKS: dict[str, tuple[nn.Module, str]] = {
    "forward hook": (hooked(Case()), "its layer 'conv2' has hooks"),
    "backward hook": (watched(Case()), "it has hooks"),
    "pre-hook": (nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 5, 3)), nn.AvgPool2d(14), nn.Flatten()), "hooks"),
    "replaced": (replaced(Case()), "its layer 'norm1' has a forward pass that was replaced"),
    "wrapped": (nn.DataParallel(Case()), "it is a DataParallel"),
    "float64": (Case().double(), "it has weights in float64"),
    "counts": (Counting(), "its forward pass modifies its attributes"),
    "adapts": (Statistics(), "its forward pass modifies its attributes"),
    "copies otherwise": (CopiesOtherwise(), r"its copy's logits differ by \d\.\de-0[45] of the largest"),
    "copies detached": (CopiesDetached(), r"its copy's gradient differs by \d\.\de[+-]0\d of its norm"),
    "no copies": (NoCopies(), r"its copy fails \(TypeError: not to be copied\)"),
    "infinite": (Infinite(), "its copy's logits differ by nan of the largest"),
    "requires float32": (RequiresFloat32(), r"its copy fails \(RuntimeError: .*BFloat16"),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_a_model_that_cannot_be_fused_is_used_itself(name: str) -> None:
    model, reason = FALLBACKS[name]
    model = trained(model)
    images = digits().to(next(model.parameters()).dtype)
    before = Snapshot(model)
    usual = Precision(dtype="bfloat16").forward(model)(images)
    fusion = Fusion(model)
    with torch.no_grad(), fusion.forward(FAST, images) as forward:
        found = forward(images)
    assert re.search(reason, fusion.unfused), fusion.unfused
    assert name in {"counts", "infinite"} or error(found, usual) < 0.05
    assert name in {"counts", "pre-hook"} or Snapshot(model) == before
