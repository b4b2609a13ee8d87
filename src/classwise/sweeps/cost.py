"""`estimate_sweep`: the passes and the hours of a sweep, from a few timed steps of each method, or rates."""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.auditing.run.cost import estimate
from classwise.core.compute.rates import Rates
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import checked
from classwise.data import Images
from classwise.models import build_model, load_model
from classwise.sweeps.cells import Cell
from classwise.sweeps.plan import Plan, read_recipe
from classwise.sweeps.settings import AuditSettings
from classwise.training.cost import check_rates, estimate_training
from classwise.training.recipe import Recipe
from classwise.training.setup import default_threat, network_spec, training_images


class SweepCost(NamedTuple):
    """The cost of all cells of a plan, one after the other.

    Training is without the validation at the end of each epoch. Audits are without guards, and as if every image were
    correctly classified and robust, since the accuracy of a model is unknown before its training or its audit.

    Attributes:
        cells: number of cells.
        passes: forward and backward passes of one image.
        training_hours: duration of the training steps.
        audit_hours: duration of the audits at most.
    """

    cells: int
    passes: int
    training_hours: float
    audit_hours: float

    @property
    def hours(self) -> float:
        """The duration of all cells, one after the other."""
        return self.training_hours + self.audit_hours


@checked
def estimate_sweep(
    plan: Plan, *, device: str = "cpu", rates: Rates | None = None, progress: Progress | None = None
) -> SweepCost:
    """Time two training steps, and a few passes of each audit, for every method of a plan; seeds cost the same.

    Training images that several methods share are loaded once. Models of the plan are loaded, and not trained.

    Args:
        plan: the plan.
        device: the device of the cells.
        rates: measured rates of a device (`classwise.core.compute.rates.RATES`), for the hours on it. Nothing is
            trained, and start weights need not exist.
        progress: a listener, which counts methods.

    Raises:
        ClasswiseError: if the plan is invalid, or data are not found.
    """
    cells, listener = plan.cells(), progress or NullProgress()
    seeds = collections.Counter(cell.method for cell in cells)
    first = {cell.method: cell for cell in reversed(cells)}
    passes, training, auditing = 0, 0.0, 0.0
    costs: dict[str, tuple[int, float]] = {}
    loaded: dict[str, Images] = {}
    listener.start("methods estimated", len(seeds))
    for method, cell in first.items():
        recipe = None if cell.model else read_recipe(cell)
        if recipe is not None:
            check_rates(recipe, rates)
        if recipe is not None and repr(recipe.data) not in loaded:
            loaded[repr(recipe.data)] = training_images(recipe.data)
        trained_on = None if recipe is None else loaded[repr(recipe.data)]
        subject = (cell.model, cell.data) if recipe is None else (recipe.model, recipe.data, recipe.threat)
        audits = []
        for audit in plan.audits.values():
            decides = repr((subject, dataclasses.replace(audit, which=None)))
            if decides not in costs:
                costs[decides] = _audit_cost(cell, recipe, trained_on, audit, device, rates)
            audits.append(costs[decides])
        passes += seeds[method] * sum(count for count, _ in audits)
        if recipe is not None:
            trained = estimate_training(recipe, device=device, rates=rates, images=trained_on)
            passes += seeds[method] * trained.passes
            training += seeds[method] * trained.seconds / 3600
        auditing += seeds[method] * sum(minutes for _, minutes in audits) / 60
        listener.advance(1)
    return SweepCost(len(cells), passes, training, auditing)


def _audit_cost(
    cell: Cell, recipe: Recipe | None, trained_on: Images | None, audit: AuditSettings, device: str, rates: Rates | None
) -> tuple[int, float]:
    """Passes and minutes of an audit; a corruption is not timed. The model of a recipe has random weights.

    Args:
        cell: a cell of the method.
        recipe: its recipe; None for a model.
        trained_on: the training images of the recipe.
        audit: the audit.
        device: the device.
        rates: see `estimate_sweep`.
    """
    images = audit.images(cell.data, None if recipe is None else recipe.data)
    threat = audit.threat
    if recipe is None or trained_on is None:
        settings = {key: value for key, value in cell.model_settings.items() if key not in ("name", "set")}
        model = load_model(cell.model, data=images, **settings, **cell.model_settings.get("set", {}))
    else:
        model = build_model(**network_spec(recipe, trained_on))
        threat = threat or recipe.threat or str(default_threat(trained_on))
    options: Evaluation = {**audit.options, "device": audit.options["device"] or device, "guards": "off"}
    cost = estimate(model, images, threat, audit.attacks, trained=False, rates=rates, **options)
    return cost.forwards + cost.backwards, cost.minutes
