"""The package on a pretended GPU: no mixture of devices, no synchronisation in a step, and few kernel launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.engine import AttackInputs, CountedForward
from classwise.attacks.external import ExternalAttack
from classwise.core.precision import EXACT
from classwise.core.progress import NullProgress
from classwise.core.rng import CounterRNG
from classwise.core.threat import Threat
from classwise.data import load_data
from classwise.models.modes import evaluating, frozen
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.recipe_files import recipe_names
from classwise.training.trainer import Trainer

from . import launches
from .attacks.models import Small, images
from .attacks.test_contract import VARIANTS, darken, named
from .pretend_cuda import Counted, PretendCuda
from .training.on_digits import ELSEWHERE, METHODS, TINY

USER_CODE = {"external"}
"""Attacks that run code of the user, which needs the number of pending images."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTACKS, *VARIANTS])
def test_the_step_of_an_attack(name: str) -> None:
    attack = named(name, classes=4)
    for norm in attack.norms:
        with PretendCuda() as gpu:
            model = Small(4).to("cuda")
            x, y = images(4).to("cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
            forward = CountedForward(EXACT.forward(model), model)
            with evaluating(model), frozen(model):
                threat, rng = Threat(norm, 0.1), CounterRNG(0, "attack")
                reference, restart = forward(x).detach(), torch.zeros_like(y)
                inputs = AttackInputs(
                    x, y, torch.arange(4, device="cuda"), threat, rng, reference=reference, restart=restart
                )
                state = attack.start(forward, inputs)
                state = attack.step(forward, inputs, state)  # fills the caches
                with gpu.counted() as counted:
                    attack.step(forward, inputs, state)
        assert name in USER_CODE or counted.synchronisations == []
        assert name in USER_CODE or counted.launches <= launches.ATTACKS[name][norm], (name, norm, counted.launches)


AUDITS: dict[str, dict[str, Any]] = {
    "gradients": {"attacks": ["pgd:steps=2"], "save": ("logits", "images"), "trace": [1]},
    "gradient-free": {"attacks": ["square:steps=3"], "batch_size": 32},
    "radii": {"threat": cw.Threat("Linf", torch.full((40,), 0.1)), "attacks": ["pgd:steps=2"]},
    "minimal": {"threat": "L2:0.5", "attacks": ["fab-t:steps=1,targets=1"], "early_stop": False},
    "fused": {
        "attacks": ["mifgsm:steps=1"],
        "model": cw.load_model("small-cnn", num_classes=4, in_channels=2, width=0.1),
    },
    "external": {"attacks": [ExternalAttack(attack=darken)]},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", AUDITS.values(), ids=AUDITS)
def test_an_audit_with_its_guards(options: dict[str, Any]) -> None:
    x = torch.rand(40, 2, 8, 8, generator=torch.Generator().manual_seed(0)).mul_(255).to(torch.uint8)
    options = {"model": Small(4), "threat": "Linf:0.1", "device": "cuda"} | options
    with PretendCuda():
        audit = cw.audit(data=cw.Images(x, torch.arange(40) % 4), **options)
    assert len(audit.outcomes.frame) == 80


def trained(name: str, folder: Path) -> Counted:
    """Two steps and an epoch's end on digits; what happened in another step, with the schedules active."""
    threat = Threat("Linf", 0.1)
    tiny = {"data.subset": None, "batch_size": 16, "validation_attack": "pgd:steps=1", "attack.steps": 1, "epochs": 4}
    head = {"model": {"name": "lenet", "options": {"head": "cosine"}}} if name.startswith("he") else {}
    recipe = Recipe.read(name, TINY | tiny | (METHODS | ELSEWHERE).get(name, head), budget="short")
    recipe = recipe.completed(threat, classes=10)
    with PretendCuda() as gpu, torch.random.fork_rng(devices=[]):
        trainer = Trainer(recipe, load_data("digits", split="train", subset=60), Run(folder), "cuda", NullProgress())
        folder.mkdir()
        trainer._start()
        for epoch in range(2):
            trainer.state.epoch, trainer.state.step = epoch, 0
            order = trainer.batches.order(epoch)
            for _ in range(2):
                with gpu.counted() as counted:
                    settings = trainer.class_settings()
                    rows = trainer.batches.rows(order, epoch, trainer.state.step, settings)
                    trainer.train_step(rows, settings)
                trainer.state.step += 1
            if epoch == 0:
                trainer._end_epoch(settings, seconds=1.0)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_a_training_step(name: str, tmp_path: Path) -> None:
    counted = trained(name, tmp_path / "run")
    assert counted.synchronisations == []
    assert counted.launches <= launches.TRAINING[name], (name, counted.launches)
