"""Models and attacks as their users have them: functions, other outputs, compiled and exported programs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.gradient.ascent import FGSM
from classwise.models.functions import FunctionModel
from tests.auditing import toys

DATA = toys.images(40)
RADIUS = "Linf:0.2"


def network() -> nn.Module:
    return toys.model(scale=2.0)


def audited(model: Any, attacks: Any = "fgsm", **options: Any) -> cw.Audit:
    return cw.audit(model, DATA, RADIUS, attacks, batch_size=32, guards="off", **options)


class Output(nn.Module):
    """A model whose output is not a tensor."""

    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.network, self.wrap = network(), wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.network(x))


def expected() -> Any:
    return audited(network()).by_class


OUTPUTS: dict[str, Callable[[Tensor], object]] = {
    ".logits": lambda logits: SimpleNamespace(logits=logits),
    "a tuple": lambda logits: (logits, None),
    "a dict": lambda logits: {"logits": logits, "loss": None},
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs(output: str) -> None:
    assert audited(Output(OUTPUTS[output]).eval()).by_class.equals(expected())


def test_a_lambda() -> None:
    inner = network().train()
    result = audited(lambda x: inner(x).clone())
    assert result.by_class.equals(expected())
    assert result.outcomes.meta.model.endswith("<lambda>")
    assert inner.training  # restored
    assert all(module.training for module in inner.modules())
    assert result.outcomes.meta.not_applicable == ()


@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: lambda x: model(x).clone()], ids=["module", "lambda"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_type_are_named(dtype: torch.dtype, wrap: Callable[[nn.Module], Any]) -> None:
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(cw.ClasswiseError, match=rf"weights of type {name} and .* float32; convert it with model.float"):
        audited(wrap(network().to(dtype)))


def traced(model: nn.Module) -> nn.Module:
    program: nn.Module = torch.jit.trace(model, DATA.x[:2])  # type: ignore[no-untyped-call]
    return program


@pytest.mark.slow  # imports of torch.compile
@pytest.mark.parametrize(
    "wrap",
    [lambda model: torch.compile(model, backend="eager"), traced],
    ids=["compiled", "TorchScript"],
)
@pytest.mark.filterwarnings("ignore")  # of torch.compile and TorchScript themselves
def test_compiled_and_scripted_modules(wrap: Callable[[nn.Module], nn.Module]) -> None:
    assert audited(wrap(network())).by_class.equals(expected())


@pytest.mark.slow
def test_an_exported_program() -> None:
    shapes = ({0: torch.export.Dim("n", min=1, max=64)},)
    program = torch.export.export(network(), (DATA.x[:2],), dynamic_shapes=shapes)
    assert audited(program.module()).by_class.equals(expected())
    assert cw.load_model(program.module())(DATA.x[:3]).shape == (3, 3)


def test_probabilities_are_refused_or_made_logits() -> None:
    model = Output(lambda logits: logits.softmax(1)).eval()
    with pytest.raises(cw.ClasswiseError, match=r"returns probabilities .*; return logits, or load it with outputs="):
        audited(model)
    converted = cw.load_model(model, outputs="probabilities")
    torch.testing.assert_close(converted(DATA.x), network()(DATA.x).log_softmax(1))
    result = audited(converted)
    assert result.by_class.equals(expected())
    assert result.outcomes.meta.model_hash != audited(cw.load_model(model, outputs="logits")).outcomes.meta.model_hash
    with pytest.raises(cw.ClasswiseError, match="returns rows that are negative or do not sum to 1"):
        audited(cw.load_model(network(), outputs="probabilities"))
    with pytest.raises(cw.ClasswiseError, match="outputs = 'probability': must be 'auto', 'logits', 'prob"):
        cw.load_model(network(), outputs="probability")  # type: ignore[arg-type]


def test_a_confident_model_of_probabilities_has_gradients() -> None:
    model = cw.load_model(Output(lambda logits: (20 * logits).softmax(1)).eval(), outputs="probabilities")
    x = DATA.x[:8].clone().requires_grad_()
    logits = model(x)
    assert float(logits.detach().exp().max()) == 1.0
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits, DATA.y[:8], reduction="sum"), x)
    assert bool((gradient.flatten(1).abs().sum(1) > 0).any())


def test_class_names_of_the_model() -> None:
    model = network()
    model.class_names = ("cat", "dog", "frog")  # type: ignore[assignment]
    unnamed = cw.Images(DATA.x, DATA.y, name="toy")
    result = cw.audit(model, unnamed, RADIUS, "fgsm", batch_size=32, guards="off")
    assert list(result.by_class.index) == ["cat", "dog", "frog"]
    other = cw.Images(DATA.x, DATA.y, ["Cat", "Frog", "Dog"], name="toy")
    with pytest.raises(
        cw.ClasswiseError, match=r"in another order: label 1 is 'dog' in the model and 'Frog' in the data"
    ):
        cw.audit(model, other, RADIUS, "fgsm", batch_size=32, guards="off")
    renamed = cw.Images(DATA.x, DATA.y, ["one", "two", "three"], name="toy")
    assert list(cw.audit(model, renamed, RADIUS, "fgsm", batch_size=32).by_class.index) == ["one", "two", "three"]


class Theirs:
    """An attack object like those of torchattacks."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.eps = model, 0.2

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        return cw.attack(self.model, images, labels, FGSM(), threat=RADIUS)


def test_attack_objects_and_functions() -> None:
    model = network()
    single = audited(model, Theirs(model))
    assert single.names == ("clean", "external", "all")
    own = audited(model, {"theirs": Theirs(model), "noise": lambda x, y: x + 0.1 * torch.ones_like(x) * (y == 0)[0]})
    assert own.names == ("clean", "theirs", "noise", "all")
    fractions = [own.by_class["theirs"], single.by_class["external"], audited(model).by_class["fgsm"]]
    assert fractions[0].tolist() == fractions[1].tolist() == fractions[2].tolist()
    with pytest.raises(cw.ClasswiseError, match=r"Theirs is a class; give an attack of it, such as Theirs\(\.\.\.\)"):
        audited(model, [Theirs])


def test_autoattack_and_attacks_on_a_model_with_other_outputs() -> None:
    model = Output(OUTPUTS[".logits"]).eval()
    attack = AutoAttack(model, eps=0.2)
    attack.attacks = {"apgd-ce": attack.attacks["apgd-ce"]}
    plain = AutoAttack(network(), eps=0.2)
    plain.attacks = attack.attacks
    x, y = DATA.x[:32], DATA.y[:32]
    found, expected = (suite.run_standard_evaluation(x, y, bs=32) for suite in (attack, plain))
    assert torch.equal(found, expected)
    assert torch.equal(cw.attack(model, x, y, FGSM(), threat=RADIUS), cw.attack(network(), x, y, FGSM(), threat=RADIUS))
    assert isinstance(AutoAttack(model.forward).model.model, FunctionModel)
