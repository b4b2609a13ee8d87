"""Evaluation is that of the model's own `eval`; flags, weights and buffers come back exactly, whatever happens."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.models import evaluating, frozen
from classwise.models.logits import as_logits
from classwise.models.modes import set_evaluation_mode


class Base(nn.Module):
    """A layer whose evaluation differs from its training by more than a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("factor", torch.ones(()))
        self.switches = 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.get_buffer("factor")
        return out


class Merging(Base):
    """Adds to its weights in `eval`, as merged adapters do; the subtraction rounds."""

    def train(self, mode: bool = True) -> Merging:
        if mode != self.training:
            self.linear.weight.data += 0.1 if mode else -0.1
        super().train(mode)
        return self


class Averaged(Base):
    """Other weights in evaluation; each `eval` saves those that it finds, so a second one would lose them."""

    def train(self, mode: bool = True) -> Averaged:
        super().train(mode)
        self.switches += 1
        if mode:
            self.linear.weight = self.get_parameter("saved")
        else:
            self._parameters["saved"] = self.linear._parameters["weight"]
            self.linear.weight = nn.Parameter(torch.zeros(2, 2))
        return self


class OwnEval(Base):
    """Overrides only `eval`."""

    def eval(self) -> OwnEval:
        super().eval()
        self.factor = torch.tensor(3.0)
        return self


class KeepsDropout(Base):
    """Keeps one layer in training mode, for random predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(super().forward(x))
        return out

    def train(self, mode: bool = True) -> KeepsDropout:
        super().train(mode)
        self.drop.train()
        return self


class Refuses(nn.Module):
    """A program without modes, as exported ones are."""

    def train(self, mode: bool = True) -> Refuses:
        raise NotImplementedError(mode)


class Fails(Base):
    """Fails after it has changed something."""

    def train(self, mode: bool = True) -> Fails:
        super().train(mode)
        self.linear.weight.data.zero_()
        raise KeyError(mode)


def mixed() -> nn.Sequential:
    """In training mode but for a frozen norm; the second linear layer's weight does not learn."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)), Refuses())
    model[1].training = False
    model.get_parameter("2.1.weight").requires_grad_(False)
    return model


def flags(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def learning(model: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in model.parameters()]


@pytest.mark.parametrize("fails", [False, True])
def test_evaluating(fails: bool) -> None:
    model = mixed()
    before = flags(model)
    try:
        with evaluating(model) as was_training:
            assert was_training
            assert not any(flags(model))
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert flags(model) == before
    assert len(set(before)) == 2


OWN: list[type[Base]] = [Merging, Averaged, OwnEval, KeepsDropout]
AROUND: dict[str, Callable[[nn.Module], nn.Module]] = {
    "itself": lambda model: model,
    "logits": as_logits,
    "normalised": lambda model: cw.Normalized(model, 0.0 * torch.ones(1), torch.ones(1)),
    "function": lambda model: as_logits(lambda x: model(x) + 0),
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("around", AROUND)
def test_the_model_is_evaluated_as_after_its_own_eval(kind: type[Base], around: str) -> None:
    torch.manual_seed(0)
    network, x = kind(), torch.rand(5, 2)
    own, weight = type(network)(), network.linear.weight
    own.load_state_dict(network.state_dict())
    own.eval()
    torch.manual_seed(1)
    expected = own(x)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes = flags(network)
    with evaluating(AROUND[around](network)) as was_training, evaluating(network), torch.no_grad():
        torch.manual_seed(1)
        assert torch.equal(network(x), expected)
        assert was_training
    assert flags(network) == modes
    assert network.linear.weight is weight
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("kind", OWN)
def test_a_model_after_its_own_eval_is_not_switched(kind: type[Base]) -> None:
    network = kind().eval()
    before, modes, switches = network.linear.weight.clone(), flags(network), network.switches
    with evaluating(network) as was_training, evaluating(as_logits(network)):
        assert not was_training
        assert torch.equal(network.linear.weight, before)
    assert (flags(network), network.switches) == (modes, switches)


def test_part_of_a_network_is_switched_as_the_whole_switches_it() -> None:
    """`eval` of a module calls `train` of those in it, never their `eval`."""
    inner = OwnEval()
    with evaluating(nn.Sequential(inner)):
        assert not inner.training
        assert float(inner.get_buffer("factor")) == 1


def test_weights_are_restored_if_eval_fails() -> None:
    model = nn.Sequential(nn.Dropout(), Fails())
    before, modes = model.get_parameter("1.linear.weight").clone(), flags(model)
    with pytest.raises(KeyError), evaluating(model):
        pass
    assert torch.equal(model.get_parameter("1.linear.weight"), before)
    assert flags(model) == modes


def test_a_loaded_model_is_as_after_its_own_eval() -> None:
    network = KeepsDropout()
    set_evaluation_mode(network)
    assert network.drop.training
    assert not network.linear.training


def normalised_before_eval() -> cw.Normalized:
    model = cw.Normalized(nn.Linear(2, 2), [0.5], [0.2])
    model.model.eval()
    return model


IN_EVALUATION: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Dropout()).eval(),
    "container": lambda: nn.Sequential(nn.Linear(2, 2).eval()),
    "normalised": lambda: cw.Normalized(nn.Linear(2, 2).eval(), [0.5], [0.2]),
    "normalised earlier": normalised_before_eval,
    "function": lambda: as_logits(nn.Linear(2, 2).eval().forward),
}


@pytest.mark.parametrize("case", IN_EVALUATION)
def test_a_model_in_evaluation_mode_was_not_in_training_mode(case: str) -> None:
    with evaluating(IN_EVALUATION[case]()) as was_training:
        assert not was_training


@pytest.mark.parametrize("fails", [False, True])
def test_frozen(fails: bool) -> None:
    model = mixed()
    before = learning(model)
    try:
        with frozen(model):
            assert not any(learning(model))
            x = torch.rand(3, 2, requires_grad=True)
            (gradient,) = torch.autograd.grad(model[0](x).sum(), x)
            assert gradient.abs().sum() > 0
            if fails:
                raise KeyError  # noqa: TRY301
    except KeyError:
        assert fails
    assert learning(model) == before
    assert len(set(before)) == 2
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("context", [evaluating, frozen])
@pytest.mark.parametrize("kind", [Averaged, Merging, KeepsDropout])
def test_threads_share_a_model(
    kind: type[Base], context: Callable[[nn.Module], AbstractContextManager[object]], first: int
) -> None:
    """Contexts of two threads overlap, on modules around one network; either may end first."""
    network = kind()
    weight, before = network.linear.weight, (flags(network), learning(network))
    contexts = [context(nn.Sequential(network)), context(as_logits(network))]
    for one in contexts:
        in_a_thread(one.__enter__)
    within = (flags(network), learning(network))
    assert within != before
    in_a_thread(lambda: contexts[first].__exit__(None, None, None))
    assert (flags(network), learning(network)) == within
    in_a_thread(lambda: contexts[1 - first].__exit__(None, None, None))
    assert (flags(network), learning(network)) == before
    assert network.linear.weight is weight


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


SUITE = "Linf:0.05", "fgsm"


@pytest.mark.parametrize("around", ["itself", "normalised"])
def test_an_audit_of_averaged_weights_calls_eval_a_few_times_and_restores_them(around: str) -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Averaged()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x.flatten(1)[:, 20:22])
            return out

    network = Images()
    weight = network.inner.linear.weight
    data = cw.Images(torch.rand(40, 1, 8, 8), torch.arange(40) % 2, ["a", "b"])
    audit = cw.audit(AROUND[around](network), data, *SUITE, guards="off")
    bias = int(network.inner.linear.bias.argmax())  # the weights of evaluation are 0
    assert audit.by_class["clean"].tolist() == [float(bias == label) for label in (0, 1)]
    assert network.inner.switches <= 8
    assert network.inner.linear.weight is weight
    assert network.inner.training


def test_a_model_that_keeps_dropout_is_random() -> None:
    class Images(KeepsDropout):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1)[:, 20:22])

    data = cw.Images(torch.rand(64, 1, 8, 8), torch.arange(64) % 2, ["a", "b"])
    audit = cw.audit(Images().eval(), data, *SUITE, guards="full")
    names = {warning.name for warning in audit.warnings}
    assert "nondeterministic" in names
    assert "train-mode" not in names


def test_every_flag_of_a_network_comes_back() -> None:
    for kept in itertools.product([False, True], repeat=3):
        model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2))
        for module, training in zip(model, kept, strict=True):
            module.training = training
        before = flags(model)
        with evaluating(model):
            assert not any(flags(model))
        assert flags(model) == before
