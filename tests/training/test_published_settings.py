"""The settings of the recipes that reproduce a paper or its public code, compared with a table of those settings.

The epochs of a lower learning rate are counted from 1, as in the code of these papers: ``for epoch in range(1, epochs +
1)`` with ``if epoch >= 75`` lowers the rate in the 75th epoch, after 74 epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from classwise.core.settings.config import relative_step
from classwise.threat.ball import Threat
from classwise.training.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """Published settings.

    Args:
        model: the network.
        epochs: the number of epochs.
        drops: the first epochs, from 1, with a tenth of the learning rate of the epoch before.
        weight_decay: the weight decay.
        beta: beta of the objective, or None.
        nesterov: whether the momentum is that of Nesterov.
        more: further fields of the recipe.
    """

    model: str
    epochs: int
    drops: tuple[int, ...]
    weight_decay: float
    beta: float | None = 6.0
    nesterov: bool = False
    more: tuple[tuple[str, Any], ...] = ()


COMMON = {"radius": 0.031, "step_size": 0.007, "steps": 10, "lr": 0.1, "momentum": 0.9, "batch_size": 128}
"""The settings that all of these share."""

PUBLISHED = {
    # github.com/rucy74/DAFA: arguments.py, train.py (adjust_learning_rate, bag_of_tricks), scripts/trades_dafa.sh
    "dafa": Published("resnet18", 110, (100, 105), 5e-4, nesterov=True),
    # github.com/Fairness-a11y/TRIX: arguments.py, train.py, scripts/trix.sh
    "trix": Published("resnet18", 150, (140, 145), 5e-4, nesterov=True),
    # github.com/yaodongyu/TRADES: train_trades_cifar10.py since November 2019
    "trades-wrn": Published("wrn-34-10", 76, (75,), 2e-4, more=(("selection", "last"),)),
    # github.com/YisenWang/MART: train_wideresnet.py since March 2020
    "mart-wrn": Published("wrn-34-10", 90, (75, 90), 7e-4),
    # Tian et al., KDD 2021, appendix A.1; the 75th epoch: their ICLR 2021 submission, section 3
    "madry-wrn": Published("wrn-34-10", 100, (75, 90), 2e-4, None, more=(("selection", "three-quarters"),)),
    # github.com/ShawnXYang/AT_HE: CIFAR-10/train_adv_cifar10.py and losses.py
    "he-wrn": Published("wrn-34-10", 77, (75,), 2e-4, None, more=(("selection", "last"),)),
    # github.com/silvercherry/Improving-Robust-Fairness-via-Balance-Adversarial-Training: train.py
    "bat-code": Published("resnet18", 200, (75, 90, 100), 2e-4),
    # the public code of WAT (Li and Liu, AAAI 2023): worst_class_adversarial_training.py, data_loader.py
    "wat-code": Published("resnet18", 100, (75, 90, 100), 2e-4),
}


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_a_recipe_has_the_published_settings(name: str) -> None:
    published, recipe = PUBLISHED[name], Recipe.read(name)
    parts = recipe.parts
    assert parts.threat == Threat("Linf", COMMON["radius"])
    attack: Any = parts.attack
    factor, relative = relative_step(attack.step_size)
    assert factor * (COMMON["radius"] if relative else 1) == pytest.approx(COMMON["step_size"])
    assert (attack.steps, recipe.batch_size) == (COMMON["steps"], COMMON["batch_size"])
    optimizer: Any = parts.optimizer
    assert (optimizer.lr, optimizer.momentum) == (COMMON["lr"], COMMON["momentum"])
    assert (optimizer.weight_decay, optimizer.nesterov) == (published.weight_decay, published.nesterov)
    assert (recipe.model.name, recipe.epochs) == (published.model, published.epochs)
    assert getattr(parts.objective, "beta", None) == published.beta
    for field, value in published.more:
        assert getattr(recipe, field) == value
    for epoch in range(1, recipe.epochs + 1):
        expected = 0.1 ** sum(epoch >= drop for drop in published.drops)
        for within in (1e-4, 0.5, 0.9999):  # the fraction of the epoch
            assert parts.lr_schedule.factor((epoch - 1 + within) / recipe.epochs) == pytest.approx(expected), epoch


def test_the_inner_attacks_start_where_those_of_the_code_do() -> None:
    starts = {name: Recipe.read(name).parts.attack.random_init for name in PUBLISHED}  # type: ignore[attr-defined]
    assert starts == dict.fromkeys(PUBLISHED, "normal") | {"madry-wrn": "uniform"}


@pytest.mark.parametrize(("name", "warm_up"), [("dafa", 70), ("trix", 70)])
def test_dafa_and_trix_scale_radius_and_step_after_70_epochs(name: str, warm_up: int) -> None:
    recipe = Recipe.read(name)
    (dafa,) = recipe.schedules
    assert dafa == {"name": "dafa", "strength": 1, "start_epoch": warm_up}
    assert relative_step(recipe.parts.attack.step_size)[1]  # type: ignore[attr-defined]
    assert recipe.description.endswith("Set schedules.0.strength to 1.5 for CIFAR-100 and STL-10.")


def test_the_further_settings_of_code_recipes() -> None:
    assert Recipe.read("wat-code").data.validation == 0.06  # 300 of 5,000 images of a class
    criterion: Any = Recipe.read("he-wrn").parts.objective.criterion
    assert (criterion.scale, criterion.margin) == (15, 0.2)
    # github.com/TejaswiniMedi/FAIR-TAT: target_train_new.py --mode AT --ccm --lambda-r 0.5 --adaptive_eps G-rob
    targets = Recipe.read("fair-tat-code")
    assert (targets.epochs, targets.model.name, targets.attack_mode) == (200, "preactresnet18", "train")
    assert targets.schedules == (
        {"name": "fair-tat", "variant": "code"},
        {"name": "ccm", "lambda1": 0.5, "start_epoch": 1},
    )
    fawa = targets.completed(Threat("Linf", 8 / 255), 10).averaging
    assert isinstance(fawa, dict)
    assert fawa.items() >= {"name": "fawa", "decay": 0.85, "start_fraction": 0, "gate": "absolute"}.items()
    assert fawa["threshold"] == 0.2


def test_short_runs_of_dafa_and_trix_have_the_network_and_the_radius_of_the_other_short_runs() -> None:
    trades = Recipe.read("trades", budget="short")
    for name in ("dafa", "trix", "bat-code", "wat-code"):
        short = Recipe.read(name, budget="short")
        assert (short.model, short.parts.threat) == (trades.model, trades.parts.threat)
        assert (short.parts.optimizer, short.validation_attack["name"]) == (trades.parts.optimizer, "pgd")  # type: ignore[index]
