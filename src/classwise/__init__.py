"""Class-wise adversarial robustness: audit and train image classifiers.

This module is the whole public API. Names are imported on first use, so ``import classwise`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classwise.core.progress.display import log_in_cells
from classwise.core.version import __version__
from classwise.reporting.text.display import define_displays

if TYPE_CHECKING:
    from classwise import papers as papers
    from classwise.attacks import ATTACKS as ATTACKS
    from classwise.attacks.base import Attack as Attack
    from classwise.auditing.compare.compare import compare as compare
    from classwise.auditing.compare.comparison import Comparison as Comparison
    from classwise.auditing.curve.result import Curve as Curve
    from classwise.auditing.curve.search import robustness_curve as robustness_curve
    from classwise.auditing.outcomes.table import Outcomes as Outcomes
    from classwise.auditing.power_plan import plan as plan
    from classwise.auditing.run.attack import attack as attack
    from classwise.auditing.run.audit import Audit as Audit
    from classwise.auditing.run.audit import audit as audit
    from classwise.auditing.run.seeds import audit_seeds as audit_seeds
    from classwise.auditing.weakness import Weakness as Weakness
    from classwise.auditing.weakness import weakness as weakness
    from classwise.auditing.worst_class.result import WorstClass as WorstClass
    from classwise.auditing.worst_class.search import find_worst_class as find_worst_class
    from classwise.core.compute.precision import Precision as Precision
    from classwise.core.errors import ClasswiseError as ClasswiseError
    from classwise.data.images import Images as Images
    from classwise.data.sets.loading import load_data as load_data
    from classwise.data.sets.loading import stream_data as stream_data
    from classwise.models import Normalized as Normalized
    from classwise.models import load_model as load_model
    from classwise.posthoc.logit_adjustment import adjust_logits as adjust_logits
    from classwise.posthoc.weight_interpolation import interpolate_weights as interpolate_weights
    from classwise.reporting import report as report
    from classwise.reporting.board.board import board as board
    from classwise.reporting.board.result import Board as Board
    from classwise.reporting.evidence.build import evidence as evidence
    from classwise.reporting.exports.export import export as export
    from classwise.reporting.viewer.build import view as view
    from classwise.stats import metrics as metrics
    from classwise.sweeps.executors.run import sweep as sweep
    from classwise.threat.ball import Threat as Threat
    from classwise.training.class_wise_loss import ClassWiseLoss as ClassWiseLoss
    from classwise.training.folder import Run as Run
    from classwise.training.recipe import Recipe as Recipe
    from classwise.training.train import train as train

_PUBLIC = {
    "ATTACKS": "classwise.attacks",
    "Attack": "classwise.attacks.base",
    "Audit": "classwise.auditing.run.audit",
    "Board": "classwise.reporting.board.result",
    "ClassWiseLoss": "classwise.training.class_wise_loss",
    "Comparison": "classwise.auditing.compare.comparison",
    "Precision": "classwise.core.compute.precision",
    "Curve": "classwise.auditing.curve.result",
    "Images": "classwise.data.images",
    "Normalized": "classwise.models.normalization",
    "Outcomes": "classwise.auditing.outcomes.table",
    "Recipe": "classwise.training.recipe",
    "Run": "classwise.training.folder",
    "Threat": "classwise.threat.ball",
    "ClasswiseError": "classwise.core.errors",
    "Weakness": "classwise.auditing.weakness",
    "WorstClass": "classwise.auditing.worst_class.result",
    "adjust_logits": "classwise.posthoc.logit_adjustment",
    "attack": "classwise.auditing.run.attack",
    "audit": "classwise.auditing.run.audit",
    "audit_seeds": "classwise.auditing.run.seeds",
    "board": "classwise.reporting.board.board",
    "compare": "classwise.auditing.compare.compare",
    "evidence": "classwise.reporting.evidence.build",
    "export": "classwise.reporting.exports.export",
    "find_worst_class": "classwise.auditing.worst_class.search",
    "interpolate_weights": "classwise.posthoc.weight_interpolation",
    "load_data": "classwise.data.sets.loading",
    "load_model": "classwise.models.loading.loader",
    "metrics": "classwise.stats.metrics",
    "papers": "classwise.papers",
    "plan": "classwise.auditing.power_plan",
    "report": "classwise.reporting.pages.report",
    "robustness_curve": "classwise.auditing.curve.search",
    "stream_data": "classwise.data.sets.loading",
    "sweep": "classwise.sweeps.executors.run",
    "train": "classwise.training.train",
    "view": "classwise.reporting.viewer.build",
    "weakness": "classwise.auditing.weakness",
}
"""Public names and the modules that define them; ``metrics`` and ``papers`` are modules."""

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604  # all keys are strings


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'classwise' has no attribute {name!r}")
    module = importlib.import_module(_PUBLIC[name])
    value = module if name in ("metrics", "papers") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


define_displays()
log_in_cells()
