"""`find_worst_class`: the worst class at a stated confidence, for a fraction of the passes of a full audit."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Annotated, Any, Unpack, cast

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.evaluation.evaluation import ON_COMMAND_LINE, Computed, Evaluation
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.plan import chosen_arithmetic
from classwise.auditing.run.preparation import prepare, with_recorded_code
from classwise.auditing.run.suite import Attacks, norm_of, parse_attacks
from classwise.auditing.worst_class.result import WorstClass
from classwise.auditing.worst_class.rounds import Rounds, SavedSearch, SurvivorCounts
from classwise.core.files.storage import Marker, ResultFolder
from classwise.core.progress import interruption
from classwise.core.progress.display import listening
from classwise.core.progress.listener import Progress
from classwise.core.settings.arguments import Level, Seconds, checked
from classwise.models.modes import evaluating
from classwise.stats.best_arm import BestArmSearch, Rules, default_sample_size, default_tolerance
from classwise.stats.intervals import alpha_of
from classwise.threat.ball import ThreatLike

ROUNDS = "rounds.parquet"
"""The file with the state of the search."""
SUITE = "autoattack"
"""The default suite: APGD on the cross-entropy on all images, targeted APGD on all survivors of an escalated class,
FAB-T and Square on the sampled survivors only. The first two succeed on nearly all images on which the suite succeeds,
so few samples are sufficient to bound the rest."""
SUITES_BY_NORM = {
    "recolour": ("apgd-ce", "apgd-t"),
    "spatial": ("worst-of-10=spatial-grid:samples=10", "spatial-grid"),
}
"""The default suites of threats that AutoAttack does not support."""


@checked
@evaluates
def find_worst_class(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    confidence: Level = 0.95,
    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None,
    max_time: Seconds | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    **options: Unpack[Computed],
) -> WorstClass:
    """Find the worst class by racing (best-arm identification), without running every attack on every image.

    The first attack runs on all images. Of the images that survive it, random samples are attacked by all others, until
    the intervals separate the worst class; a class that stays undecided gets the second attack on all its survivors.
    See `classwise.stats.best_arm`. No attack runs twice on an image, so a search never takes more passes than the audit
    with ``cascade=True``, whose outcomes it samples.

    Args:
        model: as `classwise.auditing.run.audit.audit` takes it.
        data: as `audit` takes them; of a stream, the survivors of the first attack are held in memory.
        threat: the ball; None: the usual one of a data set that is known by name.
        attacks: the suite: first the attack for all images, then the escalating one, then the rest. None: `SUITE`, or
            `SUITES_BY_NORM` for recolouring and spatial threats.
        confidence: of the answer, above 0 and below 1; over the random order of the samples.
        tolerance: the answer may be this much (a fraction) above the worst class. None: 0; 0.02 from 100 classes on.
        max_time: seconds after which no further round is begun; then more classes may be the worst.
        out: a folder for the search; the first pass is written into it every `SAVE_SECONDS`, and each finished round.
        resume: continue the search in ``out``, or load it if it has finished; it must have the same settings.
        progress: True shows a progress bar; or a listener.
        **options: see `Computed`.

    Returns:
        The worst class with its interval, and the classes that may be it.

    Raises:
        ClasswiseError: as `audit` does, for a confidence, tolerance or size out of range, and for a folder that holds
            something else or is in use; all before any attack.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> cw.find_worst_class(model, data, "Linf:0.1", ["fgsm", "pgd:steps=2"], tolerance=0.05).verdict.settled
        True
    """
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    chosen = {"alpha": alpha_of(confidence), "tolerance": tolerance}
    folder = None if out is None else ResultFolder(Path(out), "worst-class search")
    if folder is not None:
        folder.check()
    norm = norm_of(threat)
    suite = parse_attacks(SUITES_BY_NORM.get(norm, SUITE) if attacks is None else attacks, norm)
    with contextlib.ExitStack() as stack:
        stack.enter_context(chosen_arithmetic(options.get("precision")))
        asked = cast("Evaluation", {**options, "cascade": True})
        ready = prepare(model, data, suite, threat, asked)
        stack.enter_context(evaluating(ready.model))
        if folder is not None:
            named = {**ON_COMMAND_LINE, "alpha": "--confidence", "tolerance": "--tolerance"}
            settings, code = ready.settings | chosen, ready.meta.code
            stack.enter_context(folder.claimed(settings, resume=resume, options=named, code=code))
            ready = with_recorded_code(ready, folder, finished=bool(folder.read(Finished).get("complete")))
        saved = SavedSearch(None if folder is None else folder.path / ROUNDS)
        search = Rounds(ready, stack.enter_context(listening(progress)), saved)
        race, counts, rounds = _run(search, chosen, deadline)
        environment = dict(search.saved.environment)  # as of the last round, also of a finished search that is loaded
        result = WorstClass(
            verdict=race.verdict(),
            by_class=_table(ready.meta, race, counts),
            images=search.ledger.frame(list(ready.plan.suite.attacks)),
            meta=ready.meta,
            full_audit_passes=search.full_audit_passes(race),
            rounds=rounds,
            seconds=environment.pop("seconds"),
            environment=environment,
        )
        if folder is not None and not race.next():
            folder.write(**{**folder.read(), "complete": True, "result": _recorded(result)})
    return result


class FoundClass(TypedDict):
    """A class of a finished search: its images, and the estimate of its accuracy with the interval."""

    name: str
    n: int
    value: float
    low: float
    high: float


class Found(TypedDict):
    """The result of a finished search in its marker."""

    sentence: str
    classes: list[FoundClass]


class Finished(Marker, total=False):
    """The marker of a search; ``result``: of one that has ended."""

    complete: bool
    result: Found


def _recorded(result: WorstClass) -> Found:
    rows = result.by_class[result.by_class["n"] > 0].reset_index(names="name")[["name", "n", "estimate", "low", "high"]]
    records = rows.rename(columns={"estimate": "value"}).to_dict("records")
    return {"sentence": result.sentence, "classes": cast("list[FoundClass]", records)}


def _run(search: Rounds, chosen: dict[str, Any], deadline: float) -> tuple[BestArmSearch, SurvivorCounts, int]:
    """Run the first attack, then the race; returns the race, the survivors, and the number of rounds."""
    saved = search.saved
    search.ready.log_notes(search.progress)
    try:
        counts = search.first_pass()
        race = BestArmSearch(counts.images, counts.survivors, _rules(chosen, counts, search.plan.batch_size))
        return race, counts, search.run(race, deadline)
    except interruption.STOPS as stop:
        if saved.path is not None and saved.path.is_file():
            stop.add_note(f"the finished {'rounds are' if saved.rounds else 'images are'} saved in {saved.path.parent}")
        raise


def _rules(chosen: dict[str, Any], counts: SurvivorCounts, batch_size: int) -> Rules:
    """The rules of the search: sample sizes by class size, from as many classes at once as fill a batch."""
    sample_size = default_sample_size(counts.images)
    usual = default_tolerance(int((counts.images > 0).sum()))
    return Rules(
        alpha=chosen["alpha"],
        tolerance=usual if chosen["tolerance"] is None else chosen["tolerance"],
        sample_size=sample_size,
        classes_per_round=max(1, batch_size // sample_size),
    )


def _table(meta: Meta, race: BestArmSearch, counts: SurvivorCounts) -> pd.DataFrame:
    may_be_worst = np.isin(np.arange(len(counts.images)), race.verdict().possibly)
    size = np.where(counts.images > 0, counts.images, np.nan)
    table = pd.DataFrame(
        {
            "n": counts.images,
            "clean": counts.clean / size,
            "first": counts.survivors / size,
            "estimate": race.estimate,
            "low": race.low,
            "high": race.high,
            "unsettled": race.unsettled,
            "may_be_worst": may_be_worst,
        },
        index=pd.Index(meta.class_names, name="class"),
    )
    return table.replace({np.inf: np.nan})
