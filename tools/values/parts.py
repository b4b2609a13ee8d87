"""The recorded parts by name; each runs in a process of its own. The longest come first, so that they overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tools.values import evaluations, trainings
from tools.values.inputs import Cases

import classwise as cw

PARTS: Mapping[str, Callable[[], Cases]] = {
    "recipes": trainings.recipes,
    **{f"papers/{name}": partial(trainings.paper, name) for name in ("kdd21", "iclr21", "benz20", "cfa23")},
    "audit/suites": evaluations.suites,
    "audit/guards": evaluations.guards,
    "audit/options": evaluations.audits,
    "audit/shards": evaluations.shards,
    "audit/processes": evaluations.processes,
    "commands": evaluations.commands,
    **{f"attack/{name}": partial(evaluations.attack, name) for name in sorted(cw.ATTACKS)},
    "comparisons": evaluations.comparisons,
    "curves": evaluations.curves,
    "searches": evaluations.searches,
    "statistics": evaluations.statistics,
    **{f"training/{name}": partial(trainings.training, name) for name in trainings.TRAININGS},
    "training/after": trainings.after_training,
    "sweep": trainings.sweep,
}
