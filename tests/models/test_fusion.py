"""Fused copies: the same function in lower precision, the model itself unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.ascent import PGD
from classwise.core.precision import FAST, Forward, Precision
from classwise.core.threat import Threat
from classwise.models import MODELS, build_model
from classwise.models.base import Classifier, pooled
from classwise.models.fusion import _fold_norms, _traced, affine_norms, fuse
from classwise.models.logits import LogitsModel


class Own(nn.BatchNorm2d):
    """A user's own normalisation."""


def trained(model: nn.Module) -> nn.Module:
    """The model with weights of its own, and statistics, scales and shifts that are not those of a fresh one."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                module.weight.data.uniform_(-0.5, 2, generator=generator)
                module.bias.data.normal_(generator=generator)
    return model.eval().requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (4, 6, 5)),
        (nn.BatchNorm2d(6), (4, 6, 5, 3)),
        (nn.BatchNorm2d(6, affine=False), (4, 6, 5, 3)),
        (nn.BatchNorm3d(6), (4, 6, 5, 3, 2)),
    ],
)
def test_values_and_gradients_are_those_of_the_layer(norm: nn.Module, shape: tuple[int, ...]) -> None:
    trained(norm)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2))

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        out = norm(leaf)
        (gradient,) = torch.autograd.grad((out * weight.to(out.dtype)).sum(), leaf)
        return out.detach().float(), gradient.float()

    expected = both(x)
    for layout in (x, x.to(memory_format=torch.channels_last) if x.ndim == 4 else x):
        with affine_norms(norm) as changed:
            assert changed == 1
            exact, mixed = both(layout), both(layout.bfloat16())
        for one, other, close in zip(exact, expected, mixed, strict=True):
            assert torch.equal(one, other)  # float32 is as it was
            assert torch.allclose(close, other, rtol=0.02, atol=0.05)


def test_a_whole_network_and_its_gradient() -> None:
    model = trained(build_model("preactresnet18", num_classes=5, in_channels=3, width=0.125))
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def gradient() -> Tensor:
        leaf = x.to(memory_format=torch.channels_last).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(leaf)
        return torch.autograd.grad(logits.float()[:, 0].sum(), leaf)[0]

    usual = gradient()
    with affine_norms(model) as changed:
        assert changed == 17
        fast = gradient()
    assert not torch.equal(fast, usual)  # it was another computation
    assert float(torch.cosine_similarity(fast.flatten(), usual.flatten(), dim=0)) > 0.99
    assert torch.equal(gradient(), usual)  # and is gone


@pytest.mark.parametrize("fails", [False, True])
def test_the_layers_are_themselves_again(fails: bool) -> None:
    layer = nn.BatchNorm2d(3)
    model = trained(nn.Sequential(layer))
    try:
        with affine_norms(model), affine_norms(model) as again:
            assert again == 0
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert "forward" not in layer.__dict__


def test_other_layers_are_left_alone() -> None:
    learning = nn.BatchNorm2d(3)
    batchwise = nn.BatchNorm2d(3, track_running_stats=False).eval()
    with affine_norms(nn.Sequential(learning, batchwise, Own(3).eval(), nn.GroupNorm(1, 3))) as changed:
        assert changed == 0


def both(forward: Forward, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    logits = forward(leaf)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), leaf)
    return logits.detach(), gradient


def alike(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("wrn-")])
def test_every_network_of_the_zoo(name: str, head: str) -> None:
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for normal in ({}, {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}):
        model = trained(build_model(name, num_classes=5, in_channels=3, width=0.125, head=head, **normal))
        before = {key: value.clone() for key, value in model.state_dict().items()}
        exact = both(Precision().forward(model), x)
        # Deep networks without shortcuts lose much of the gradient to bfloat16; the fused copy about as much.
        rounded = alike(both(Precision(dtype="bfloat16").forward(model), x)[1], exact[1])
        for precision in (FAST, Precision(dtype="bfloat16")):
            with fuse(model, precision) as forward:
                logits, gradient = both(forward, x)
            assert logits.dtype == gradient.dtype == torch.float32
            assert alike(logits, exact[0]) > 0.999
            assert alike(gradient, exact[1]) > min(0.9, 0.75 * rounded)
        with fuse(model, Precision(channels_last=True)) as forward:
            logits, gradient = both(forward, x)
        assert torch.allclose(logits, exact[0], rtol=1e-4, atol=1e-4)
        assert alike(gradient, exact[1]) > 0.9999
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert all(
            torch.equal(one, other) for one, other in zip(both(Precision().forward(model), x), exact, strict=True)
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("wrn-")])
def test_a_fused_copy_is_the_same_function_but_for_rounding(name: str) -> None:
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    model = trained(build_model(name, num_classes=5, in_channels=3, width=0.0625)).double()
    fused = _traced(model)
    assert fused is not None
    _fold_norms(fused)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in called(fused)) < max(norms, 1)
    for one, other in zip(both(fused, x), both(model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9 * float(other.abs().max()))


def called(network: fx.GraphModule) -> list[nn.Module]:
    layers = dict(network.named_modules())
    return [layers[str(node.target)] for node in network.graph.nodes if node.op == "call_module"]


def test_a_fused_copy_multiplies_less() -> None:
    """Half of the normalisations of a pre-activation network stand behind a convolution."""
    model = trained(build_model("preactresnet18", num_classes=5, in_channels=3, width=0.125))
    x = torch.rand(4, 3, 16, 16)
    with torch.profiler.profile() as usual, torch.no_grad():
        Precision(dtype="bfloat16").forward(model)(x)
    with fuse(model, FAST) as forward, torch.profiler.profile() as fused, torch.no_grad():
        forward(x)
    assert calls(usual, "aten::batch_norm") == 17
    assert calls(fused, "aten::batch_norm") == 0
    assert calls(fused, "aten::addcmul") == 9


def calls(profile: torch.profiler.profile, name: str) -> int:
    return sum(int(event.count) for event in profile.key_averages() if event.key == name)


class Noisy(nn.Module):
    """A model of a user: fresh noise in every pass, and a count of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return pooled(self.norm(x) + 0.1 * torch.randn(x.shape))


def test_the_logits_of_a_fused_copy_are_finer_than_bfloat16() -> None:
    model = trained(build_model("preactresnet18", num_classes=5, in_channels=3, width=0.125))
    with fuse(model, FAST) as forward, torch.no_grad():
        logits = forward(torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert float((logits != logits.bfloat16()).float().mean()) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 16, 28, 40])
@pytest.mark.parametrize("name", ["lenet", "small-cnn", "inception-v3"])
def test_a_fused_copy_adapts_to_the_size_of_images(name: str, size: int) -> None:
    """These pad small images: traced once, they must do so for each size anew."""
    model = trained(build_model(name, num_classes=5, in_channels=1, width=0.125))
    with fuse(model, Precision(channels_last=True)) as fused, torch.no_grad():
        for side in (32, size):
            x = torch.rand(4, 1, side, side, generator=torch.Generator().manual_seed(side))
            torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


def test_anybody_elses_logits_are_finer_too() -> None:
    class Own(nn.Module):
        """A user's network, which is not fused."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = nn.Linear(12, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]

    model = Own().eval()
    x = torch.rand(8, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    with fuse(model, FAST) as forward, torch.no_grad():
        logits = forward(x)
        assert model.hidden(x.flatten(1)).dtype == torch.float32  # as ever where nothing is mixed
    with torch.no_grad():
        assert float((logits != logits.bfloat16()).float().mean()) > 0.9
        torch.testing.assert_close(logits, model(x), rtol=0.02, atol=0.02)
    assert "forward" not in model.last.__dict__
    with fuse(model.double(), Precision()) as forward, torch.no_grad():
        assert torch.equal(forward(x.double()), model(x.double()).float())


def test_anybody_elses_code_runs_itself() -> None:
    model = Noisy().eval()
    x = torch.rand(4, 3, 8, 8)
    with fuse(LogitsModel(model), FAST) as forward:
        first, second = forward(x), forward(x)
        assert "forward" in model.norm.__dict__  # its normalisation is shortened all the same
    assert model.passes == 2
    assert not torch.equal(first, second)


def test_a_watched_network_is_still_watched() -> None:
    model = build_model("lenet", num_classes=5, in_channels=3).eval()
    seen: list[int] = []
    network = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    network.register_forward_hook(lambda *_: seen.append(1))
    with fuse(model, FAST) as forward:
        forward(torch.rand(2, 3, 32, 32))
    assert seen == [1]


def test_a_convolution_used_twice_keeps_its_weights() -> None:
    class Twice(Classifier):
        """Of the two outputs of one convolution, one is normalised."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.norm = nn.BatchNorm2d(3)
            self.linear = nn.Linear(3, 5)

        def features(self, x: Tensor) -> Tensor:
            return pooled(self.norm(self.conv(torch.relu(self.conv(x)))))

    Twice.__module__ = "classwise.models.twice"
    model = trained(Twice())
    x = torch.rand(8, 3, 8, 8)
    exact = both(Precision().forward(model), x)
    with fuse(model, FAST) as forward:
        found = both(forward, x)
    assert alike(found[0], exact[0]) > 0.999
    assert alike(found[1], exact[1]) > 0.9


def test_the_engine_attacks_the_fused_copy_and_verifies_on_the_model() -> None:
    model = trained(build_model("preactresnet18", num_classes=5, in_channels=3, width=0.125))
    x = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    engine = Engine(model, precision=FAST, batch_size=32)
    for done in engine.attack(PGD(steps=3), Threat.parse("Linf:0.05"), [Job(torch.arange(40), x, y)]):
        with torch.no_grad():
            judged = model(done.x)
        assert torch.allclose(judged, done.logits, atol=1e-4)
        assert torch.equal(judged.argmax(1) != done.y, done.success)
