"""Predictions from measured rates: those of the committed measurements; nothing is timed or trained."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.auditing.run.cost import estimate
from classwise.core.compute.rates import RATES, named_rates
from classwise.models import build_model, save_weights
from classwise.sweeps.cost import estimate_sweep
from classwise.sweeps.plan import Plan
from classwise.training.cost import estimate_training
from classwise.training.recipe import Recipe
from tests.auditing import toys
from tests.refusals import check_refused
from tests.training.on_digits import TINY

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "gpu"
H100 = RATES["h100"]


def test_the_rates_are_those_of_the_results() -> None:
    results = json.loads((RESULTS / "results.json").read_text())
    cells = {name: cell["result"] for name, cell in results["stages"]["speed"]["cells"].items()}
    step, equivalents = cells["training step, graph, batch 128"], Recipe.read("at").parts.passes.equivalents
    assert H100.device == results["machine"]["device"]
    assert H100.images["training"] == pytest.approx(equivalents * step["batch"] / step["seconds"], rel=1e-3)
    assert H100.operations == pytest.approx(step["flops"] / step["batch"] / equivalents)
    assert H100.images["decision"] == pytest.approx(cells["passes, float32"]["images/s"]["forward"], rel=1e-3)
    square = cells["attack, square:steps=200, batch 1024"]
    assert H100.images["forward"] == pytest.approx(
        square["steps"] * square["batch"] / square["seconds"]["eager"], rel=1e-3
    )
    audit = json.loads((RESULTS / "autoattack.json").read_text())["runs"]["NVIDIA H100 80GB HBM3, 10000 images"]
    attacks = {row["attack"]: row for row in audit["attacks"]}
    steps = 100 * attacks["apgd-ce"]["robust"] + 900 * attacks["apgd-t"]["robust"]
    seconds = attacks["apgd-ce"]["seconds"] + attacks["apgd-t"]["seconds"]
    assert H100.images["gradient"] == pytest.approx(steps / seconds, rel=1e-3)


def test_training_follows_from_the_passes_of_the_recipe() -> None:
    tiny: dict[str, Any] = {"data.name": "digits", "data.subset": 160, "data.validation": 0.2, "model.width": 0.1}
    tiny |= {"epochs": 2, "batch_size": 42, "precision.dtype": "auto"}
    at, single, trades = (estimate_training(Recipe.read(name, tiny), rates=H100) for name in ("at", "n-fgsm", "trades"))
    assert at.steps == single.steps == 2 * 4  # 128 images: the last batch of each epoch has two
    assert at.seconds == pytest.approx(8 * 42 / 128 * 0.02471)
    assert single.seconds == pytest.approx(at.seconds * 5 / 23)
    assert trades.seconds == pytest.approx(at.seconds * 27 / 23)
    slow = dataclasses.replace(H100, operations=1)
    seconds = [estimate_training(Recipe.read("at", tiny | {"model.width": w}), rates=slow).seconds for w in (0.25, 0.5)]
    check_refused(
        r"'float32': the rates are those of training in bfloat16; set it to auto",
        estimate_training,
        Recipe.read("at", tiny | {"precision.dtype": "float32"}),
        rates=H100,
    )
    assert 3.5 < seconds[1] / seconds[0] < 4  # larger networks in proportion to their operations


def test_an_audit_follows_from_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", pytest.fail)
    cost = estimate(
        toys.model(), toys.images(64), "Linf:0.1", "pgd:steps=5", trained=False, rates=H100, guards="off", batch_size=64
    )
    clean = 3 * 64  # the images, the last iterate and that of lowest margin
    steps = cost.backwards
    assert steps == 64 * 5
    assert 60 * cost.minutes == pytest.approx(clean / H100.images["decision"] + steps / H100.images["gradient"])


def test_a_sweep_is_predicted_before_its_start_weights_exist() -> None:
    audits: dict[str, Any] = {
        name: {"which": name, "attack": "fgsm", "subset": 40, "guards": "off"} for name in ("last", "best")
    }
    plan = Plan.read(
        {"recipes": ["faal"], "data": ["digits"], "seeds": [0, 1], "audits": audits}
        | {
            "set": TINY
            | {
                "precision.dtype": "auto",
                "model": {"name": "small-cnn", "weights": "sweeps/at/runs/at-digits-seed{seed}"},
            }
        }
    )
    cost = estimate_sweep(plan, rates=H100)
    assert cost == estimate_sweep(plan, rates=H100)  # nothing is timed
    recipe = Recipe.read("faal", {"data.name": "digits", "precision.dtype": "auto", **TINY})
    assert cost.training_hours == pytest.approx(2 * estimate_training(recipe, rates=H100).seconds / 3600)
    one = dataclasses.replace(plan, audits={"last": plan.audits["last"]})
    assert cost.audit_hours == pytest.approx(2 * estimate_sweep(one, rates=H100).audit_hours)


def test_models_are_predicted_without_a_training(tmp_path: Path) -> None:
    model = str(tmp_path / "mine.safetensors")
    network: dict[str, Any] = {"name": "small-cnn", "num_classes": 10, "in_channels": 1, "width": 0.1}
    save_weights(model, build_model(**network), {"model": network})
    audit = {"attack": "pgd:steps=5", "subset": 64, "guards": "off", "threat": "Linf:0.1"}
    cost = estimate_sweep(Plan.read({"models": [model], "data": ["digits"], "audits": {"a": audit}}), rates=H100)
    one = estimate(
        cw.load_model(model),
        cw.load_data("digits", subset=64),
        "Linf:0.1",
        "pgd:steps=5",
        trained=False,
        rates=H100,
        guards="off",
    )
    assert (cost.cells, cost.training_hours, cost.passes) == (1, 0, one.forwards + one.backwards)
    assert cost.audit_hours == one.minutes / 60


def test_a_clock_does_not_call_the_work() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    clock = named_rates("h100").clock(model, torch.zeros(1, 3, 2, 2))
    assert clock("forward", 1000, pytest.fail) == 1000 / H100.images["forward"]
