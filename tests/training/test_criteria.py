"""Criteria and the cosine head: hypersphere embedding by hand, under every objective."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from classwise.attacks import ATTACKS
from classwise.attacks.losses import divergence
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import make
from classwise.models import MODELS, build_model
from classwise.models.zoo.heads import CosineHead
from classwise.threat.ball import Threat
from classwise.training import CRITERIA, OBJECTIVES
from classwise.training.classes.signals import ClassSettings
from classwise.training.criteria.softmax import Hypersphere, LabelSmoothing, Softmax
from classwise.training.objectives.adversarial import boosted_cross_entropy
from classwise.training.objectives.base import TrainingBatch
from classwise.training.recipe import Recipe

from ..attacks.models import images
from ..refusals import check_refused, refused
from .by_hand import remembering


def test_hypersphere_by_hand() -> None:
    """Cosines (0.8, 0.5), s 10, m 0.2: logits (6, 5) for label 0, (8, 3) for label 1."""
    criterion, cosines = Hypersphere(scale=10, margin=0.2), torch.tensor([[0.8, 0.5], [0.8, 0.5]])
    logits = criterion.scaled(lambda x: x, ClassSettings())(cosines)
    assert torch.allclose(logits, 10 * cosines)
    expected = torch.tensor([math.log(1 + math.exp(5 - 6)), math.log(1 + math.exp(8 - 3))])
    assert torch.allclose(criterion(logits, torch.tensor([0, 1]), ClassSettings()), expected, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6, 1.0])
def test_label_smoothing_is_torch_s(classes: int, smoothing: float) -> None:
    logits, y = 5 * torch.randn(20, classes, generator=torch.Generator().manual_seed(0)), torch.arange(20) % classes
    found = LabelSmoothing(smoothing=smoothing)(logits, y, ClassSettings())
    expected = F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_label_smoothing_keeps_the_base_and_its_margin() -> None:
    logits, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 0, 1])
    found = LabelSmoothing(smoothing=0.2, margin=0.5)(logits, y, ClassSettings(), boosted_cross_entropy)
    base = boosted_cross_entropy(logits - 0.5 * F.one_hot(y, 4), y)
    assert torch.allclose(found, 0.8 * base - 0.2 * logits.log_softmax(1).mean(1))


@pytest.mark.parametrize("attack", ["pgd:steps=3,random_init=none", "fgsm"])
def test_the_inner_attack_maximises_the_smoothed_loss(attack: str) -> None:
    """Ascent of a loop with smoothed targets written out; plain targets lead elsewhere."""
    weight = torch.randn(4, 12, generator=torch.Generator().manual_seed(3)) * 3
    x, y = 0.4 + 0.2 * images(16, 3, 2), torch.arange(16) % 4
    batch = TrainingBatch(x, y, torch.arange(16), Threat("Linf", 0.1))
    chosen = make(ATTACKS, attack)

    def model(inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ weight.T

    def by_loop(smoothing: float) -> Tensor:
        targets = (1 - smoothing) * F.one_hot(y, 4) + smoothing / 4
        step = 0.1 if attack == "fgsm" else 0.025
        point = x
        for _ in range(chosen.length):
            gradient = ((point.flatten(1) @ weight.T).softmax(1) - targets) @ weight
            point = (point + step * gradient.sign().view_as(x)).clamp(x - 0.1, x + 0.1)
        return point

    def found(criterion: dict[str, object]) -> Tensor:
        objective = make(OBJECTIVES, {"name": "at", "criterion": {"name": "label-smoothing", **criterion}})
        return objective.points(model, batch, chosen, ClassSettings(), CounterRNG(0))["robust"]

    assert torch.allclose(found({"smoothing": 0.6, "attack": True}), by_loop(0.6), atol=1e-6)
    assert torch.allclose(found({"smoothing": 0.6}), by_loop(0), atol=1e-6)
    assert not torch.allclose(by_loop(0.6), by_loop(0), atol=1e-2)


@pytest.mark.parametrize(
    "overrides", [{"attack": "pgd:objective=margin"}, {"attack": "apgd-ce"}, {"objective.name": "standard"}]
)
def test_smoothing_is_refused_where_the_attack_maximises_another_loss(overrides: dict[str, object]) -> None:
    check_refused("criterion.attack = true", Recipe.read, "at-wa", overrides)


def test_class_settings_override_scale_and_margin() -> None:
    cosines, y = torch.rand(5, 3), torch.tensor([0, 2, 2, 2, 0])
    settings = ClassSettings(scale=torch.tensor(4.0), logit_margin=torch.tensor([0.1, 0.5, 0.3]))
    for criterion in (Softmax(), Hypersphere()):
        logits = criterion.scaled(lambda x: x, settings)(cosines)
        lowered = cosines - F.one_hot(y, 3) * torch.tensor([0.1, 0.3, 0.3, 0.3, 0.1])[:, None]
        assert torch.allclose(criterion(logits, y, settings), F.cross_entropy(4 * lowered, y, reduction="none"))


def test_the_default_criterion_changes_neither_the_model_nor_the_recipe() -> None:
    def model(x: Tensor) -> Tensor:
        return x

    assert Softmax().scaled(model, ClassSettings()) is model
    assert "criterion" not in Recipe.read("trades").completed(Threat("Linf", 0.1)).objective
    assert Recipe.read("he-trades").completed(Threat("Linf", 0.1)).objective == {
        "name": "trades",
        "beta": 6.0,
        "scaled": False,
        "criterion": {"name": "he", "scale": 15.0, "margin": 0.2},
    }


@pytest.mark.parametrize("name", list(CRITERIA))
def test_losses_are_per_image_and_not_negative(name: str) -> None:
    for classes in (2, 3, 10, 100):
        criterion = make(CRITERIA, CRITERIA.load(name).example)
        loss = criterion(torch.rand(7, classes), torch.zeros(7, dtype=torch.int64), ClassSettings())
        assert loss.shape == (7,)
        assert bool((loss >= 0).all())


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("name", ["standard", "at", "trades", "mart"])
def test_the_margin_applies_to_the_loss_and_the_scale_to_every_pass(name: str, classes: int) -> None:
    model = build_model("lenet", num_classes=classes, in_channels=2, head="cosine").eval()
    cosines = EXACT.forward(model)
    y = torch.tensor([0, 1, 1, 1])
    batch = TrainingBatch(images(4, 2, 8), y, torch.arange(4), Threat("Linf", 0.1))
    objective = make(OBJECTIVES, {"name": name, "criterion": {"name": "he"}})
    attack = objective.inner(make(ATTACKS, "pgd:steps=2"))
    points = objective.points(cosines, batch, attack, ClassSettings(), CounterRNG(0))
    plain = make(OBJECTIVES, name).points(lambda x: 15 * cosines(x), batch, attack, ClassSettings(), CounterRNG(0))
    for key in points:
        assert torch.equal(points[key], plain[key])  # the attack knows of no margin
    step = objective.step(cosines, batch, points, ClassSettings())

    def lowered(z: Tensor) -> Tensor:
        return z - 3 * F.one_hot(y, classes)

    clean, robust = 15 * cosines(batch.x), 15 * cosines(points.get("robust", batch.x))
    doubt = 1 - clean.softmax(1)[torch.arange(4), y]
    expected = {
        "standard": {"clean": F.cross_entropy(lowered(clean), y, reduction="none")},
        "at": {"robust": F.cross_entropy(lowered(robust), y, reduction="none")},
        "trades": {
            "clean": F.cross_entropy(lowered(clean), y, reduction="none"),
            "robust": 6 * divergence(clean, robust),
        },
        "mart": {"robust": boosted_cross_entropy(lowered(robust), y) + 5 * divergence(clean, robust) * doubt},
    }[name]
    assert step.terms.keys() == expected.keys()
    for key, term in expected.items():
        assert torch.allclose(step.terms[key], term, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "rslad"])  # its teacher has another scale
def test_every_objective_attacks_the_scaled_model(name: str) -> None:
    """With the scale of the criterion or of a schedule; attacks do not use the margin."""
    cosines = EXACT.forward(build_model("lenet", num_classes=3, in_channels=2, head="cosine").eval())
    batch = TrainingBatch(images(6, 2, 8), torch.tensor([0, 1, 1, 2, 2, 0]), torch.arange(6), Threat("Linf", 0.1))
    plain, own = make(OBJECTIVES, name), make(OBJECTIVES, {"name": name, "criterion": {"name": "he", "scale": 30}})
    attack = plain.inner(make(ATTACKS, "pgd:steps=3"))
    scheduled = ClassSettings(scale=torch.tensor(30.0), logit_margin=torch.tensor([0.5, 0.1, 0.2]))

    def points_of(objective: Any, model: Forward, settings: ClassSettings) -> dict[str, Tensor]:
        given = remembering(objective, model, batch, 3, settings)
        found: dict[str, Tensor] = objective.points(model, given, attack, settings, CounterRNG(0))
        return found

    expected = points_of(plain, lambda x: 30 * cosines(x), ClassSettings())
    for objective, settings in ((own, ClassSettings()), (plain, scheduled)):
        points = points_of(objective, cosines, settings)
        assert points.keys() == expected.keys()
        for key in points:
            assert torch.equal(points[key], expected[key]), key


def test_the_head_returns_cosines_and_its_rows_have_unit_norm() -> None:
    head = CosineHead(5, 3)
    with torch.no_grad():
        head.weight.mul_(7)
    before, z = head.weight.detach().clone(), 9 * torch.randn(4, 5)
    expected = F.cosine_similarity(z[:, None], before[None], dim=2)
    assert torch.allclose(head.eval()(z), expected, atol=1e-6)
    assert torch.equal(head.weight, before)  # looking at a model does not change it
    assert torch.allclose(head.train()(z), expected, atol=1e-6)
    assert torch.allclose(head.weight.norm(dim=1), torch.ones(3))
    assert torch.equal(head(torch.zeros(1, 5)), torch.zeros(1, 3))


def test_two_passes_and_one_backward_as_trades_needs() -> None:
    head = CosineHead(5, 3).train()
    z = torch.randn(4, 5, requires_grad=True)
    (head(z) + head(2 * z)).pow(2).sum().backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("wrn")])
def test_every_model_of_the_zoo_has_a_cosine_head(name: str) -> None:
    options: dict[str, Any] = {"depth": 10, "widen": 1} if name == "wideresnet" else {}
    model = build_model(name, num_classes=4, in_channels=1, width=0.25, head="cosine", **options).eval()
    logits = model(torch.rand(6, 1, 16, 16))
    assert logits.shape == (6, 4)
    assert float(logits.detach().abs().max()) <= 1 + 1e-6
    again = build_model(**model.spec)  # type: ignore[arg-type]
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(torch.ones(1, 1, 16, 16)), model(torch.ones(1, 1, 16, 16)))


def test_a_wrong_head_raises_an_error() -> None:
    assert "head = 'sine': must be linear or cosine" in refused(
        build_model, "lenet", num_classes=3, in_channels=1, head="sine"
    )


def hinge(logits: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(logits, y, reduction="none")


def mean_hinge(logits: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(logits, y)


def test_a_function_is_the_loss_of_logits_and_labels() -> None:
    """Its spec survives a run folder, class settings apply, and other shapes are refused."""
    recipe = Recipe.read("at", {"objective.criterion": f"{__name__}:hinge:margin=0.5"})
    stored = recipe.completed(Threat("Linf", 0.1)).objective["criterion"]  # type: ignore[index]
    assert stored == {"name": "function", "path": f"{__name__}:hinge", "scale": 1.0, "margin": 0.5}
    assert Recipe.read("at", {"objective.criterion": stored}).parts.objective == recipe.parts.objective
    logits, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 0, 1])
    criterion = recipe.parts.objective.criterion
    lowered = logits - 0.5 * F.one_hot(y, 4)
    assert torch.equal(criterion(logits, y, ClassSettings(), boosted_cross_entropy), hinge(lowered, y))
    with pytest.raises(ClasswiseError, match=r"returned shape \(\) for 6 images; return one loss for each image"):
        make(CRITERIA, f"function:path={__name__}:mean_hinge")(logits, y, ClassSettings())
    for spec, reason in (
        (f"{__name__}:hinge:scal=2", "did you mean 'scale'"),
        ("function:path=softmax", "'softmax' is a class"),
        (f"{__name__}:images", "a Python function of 2 arguments"),
    ):
        check_refused(reason, Recipe.read, "at", {"objective.criterion": spec})
