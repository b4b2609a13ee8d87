"""Run the experiment of an item, and save its result."""

from __future__ import annotations

import time

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.progress import Progress
from classwise.papers import catalogue
from classwise.papers.catalogue import EXPERIMENTS
from classwise.papers.claims import evaluate, not_tested
from classwise.papers.context import Context
from classwise.papers.experiment import Experiment
from classwise.papers.result import Figure, Result
from classwise.papers.scales import NAMES, Scale
from classwise.papers.store import Store


def experiment(name: str) -> Experiment:
    """The experiment of an item.

    Raises:
        ClasswiseError: for an unknown id, or an item that is covered or missing; the message names the alternative.
    """
    item = catalogue.find(name)
    if item.status == "covered":
        suggestion = f"see {item.command}" if item.command else f"it is covered by {', '.join(item.covered_by)}"
        raise ClasswiseError(f"{name} is a {item.kind} and does not run by itself; {suggestion}")
    if item.status == "missing":
        raise ClasswiseError(f"{name} cannot run yet; {item.missing}")
    return EXPERIMENTS.load(name)()


def scale_of(name: str, scale: str) -> Scale:
    """A scale of an experiment.

    Raises:
        ClasswiseError: for an unknown scale, or one that this experiment lacks.
    """
    if scale not in NAMES:
        raise unknown("scale", scale, NAMES)
    found = {str(key): value for key, value in experiment(name).scales.items()}
    if scale not in found:
        raise ClasswiseError(f"{name} has no scale {scale!r}; it has {', '.join(found)}")
    return found[scale]


def run(name: str, scale: str, store: Store, *, device: str = "cpu", progress: Progress | None = None) -> Result:
    """Run an experiment, and save its result in the store.

    Raises:
        ClasswiseError: for an unknown id or scale, or missing data.
    """
    started = time.monotonic()
    chosen = scale_of(name, scale)
    context = Context(chosen, store, device=device, progress=progress)
    with store.measured() as work:
        findings = experiment(name).run(context)
    own = time.monotonic() - started - work.waited
    result = Result(
        item=name,
        scale=chosen.name,
        setting=chosen.about,
        tables=tuple(findings.tables),
        figures=tuple(Figure(svg=drawing.svg(), caption=caption) for drawing, caption in findings.figures),
        verdicts=(*evaluate(findings.tests), *(not_tested(*pair) for pair in findings.not_tested.items())),
        runs=dict(context.trainings),
        seconds=round(own + sum(seconds for seconds in work.seconds.values() if seconds is not None), 2),
        work=work.seconds,
    )
    result.save(store.result_file(name, scale))
    return result
