"""Run the experiment of an item, combine its repetitions with other seeds, and save the result."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import checked
from classwise.papers import catalogue
from classwise.papers.catalogue import experiment
from classwise.papers.claims import Measurement, Test, evaluate, not_tested, unless
from classwise.papers.experiment import Context, Experiment, Findings, recipe_at
from classwise.papers.interval_estimators import over_trainings
from classwise.papers.result import Evidence, Figure, Result, save_result
from classwise.papers.scales import CIFAR, NAMES, Scale
from classwise.papers.store import Store
from classwise.papers.user_inputs import UserInputs
from classwise.stats.intervals import Estimate, student

TRAININGS = "new trainings of the same models and new images of the same classes"
"""Population of intervals over several trainings."""
_LAST = "; the last weights in place of the selected ones"


def combine(repetitions: Sequence[Findings]) -> Findings:
    """Combine the findings of repetitions that differ only in the seeds of their trainings.

    A test of the combination has estimates and intervals over the trainings. A test that some repetition does not
    have, since its trainings did not allow it, is not tested. Tables of every repetition are shown; figures are those
    of the first.

    Args:
        repetitions: findings of the same experiment, at least one.
    """
    first, *others = repetitions
    if not others:
        return first
    count = len(repetitions)
    return Findings(
        tables=[
            replace(table, caption=f"{table.caption}, training {place} of {count}")
            for place, repetition in enumerate(repetitions, 1)
            for table in repetition.tables
        ],
        figures=[(drawing, f"{caption} Training 1 of {count}.") for drawing, caption in first.figures],
        tests=_combined_tests(repetitions),
        measurements=_combined_measurements(repetitions),
    )


def _combined_tests(repetitions: Sequence[Findings]) -> list[Test]:
    """Tests that all repetitions have, over the trainings; and claims that some repetition does not test."""
    tests, missing = list[Test](), dict[tuple[str, tuple[str, ...]], Test]()
    by_key = [{_key(test): test for test in repetition.tests if test.estimators} for repetition in repetitions]
    for key in dict.fromkeys(key for known in by_key for key in known):
        same = [known[key] for known in by_key if key in known]
        if len(same) < len(repetitions):
            reason = f"{same[0].estimand}: tested in {len(same)} of {len(repetitions)} trainings only"
            missing[same[0].claim, tuple(same[0].covers)] = not_tested(same[0].claim, reason, covers=same[0].covers)
        elif same[0].basis != "experiment":
            tests.append(same[0])
        else:
            parts = [over_trainings(estimators) for estimators in zip(*(test.estimators for test in same), strict=True)]
            tests.append(replace(same[0], estimators=parts, exact=False, trainings=len(repetitions)))
    for repetition in reversed(repetitions):
        missing |= {(test.claim, tuple(test.covers)): test for test in repetition.tests if not test.estimators}
    return [*tests, *missing.values()]


def _key(test: Test) -> tuple[str, str, tuple[str, ...], int]:
    return test.claim, test.estimand, tuple(test.covers), len(test.estimators)


def _combined_measurements(repetitions: Sequence[Findings]) -> list[Measurement]:
    """Measurements that all repetitions have; intervals include the variation between trainings."""
    found = []
    for measurement in repetitions[0].measurements:
        same = [
            other
            for repetition in repetitions
            for other in repetition.measurements
            if (other.question, other.quantity) == (measurement.question, measurement.quantity)
        ]
        if len(same) < len(repetitions):
            continue
        if measurement.low != measurement.low:  # NaN: the measurement has no interval for images
            value, low, high = student([other.value for other in same])
        else:
            value, low, high = over_trainings(
                [lambda _, other=other: Estimate(other.value, other.low, other.high) for other in same]  # type: ignore[misc]
            )(0.05)
        found.append(replace(measurement, value=value, low=low, high=high, population=TRAININGS))
    return found


Value = TypeVar("Value", str, int, float)


def scale_of(name: str, scale: str, data_sets: Sequence[str] = ()) -> Scale:
    """Look up a scale of an experiment.

    Args:
        name: item id.
        scale: name of the scale.
        data_sets: the data sets to which it is limited; empty for all.

    Raises:
        ClasswiseError: if the scale is unknown, the experiment has no such scale or no such data set, or the data sets
            of an experiment on a single one are limited.
    """
    if scale not in NAMES:
        raise unknown("scale", scale, NAMES)
    scales = {str(key): value for key, value in experiment(name).scales.items()}
    if scale not in scales:
        raise ClasswiseError(f"{name} has no scale {scale!r}; available: {', '.join(scales)}")
    declared = experiment(name).trainings(scales[scale]).values() if data_sets else ()
    known = dict.fromkeys(training.data for training in declared if training.data)
    if data_sets and len(known) < 2:
        raise ClasswiseError(f"{name} has a single data set at scale {scale}; omit --data-sets")
    for data in data_sets:
        if data not in known:
            raise unknown(f"data set of {name} at scale {scale}", data, known)
    return replace(scales[scale], data_sets=tuple(data_sets))


def check_inputs(name: str, scale: str, inputs: UserInputs, data_sets: Sequence[str] = ()) -> None:
    """Check that models and images are named if and only if the experiment takes them.

    Raises:
        ClasswiseError: if they are missing or superfluous.
    """
    one = experiment(name)
    if not one.takes_models:
        if inputs and not one.pretrained:
            takers = ", ".join(item for item in catalogue.runnable() if experiment(item).takes_models)
            raise ClasswiseError(f"{name} does not accept --model or --data; only {takers} does")
        declared = one.trainings(scale_of(name, scale)).values() if inputs else ()
        used = {training.data for training in declared} & {*(data_sets or [one.pretrained])}
        if inputs and (one.pretrained not in used or len(inputs.models) != 1 or inputs.data):
            raise ClasswiseError(
                f"{name} accepts no --data and one --model, the standard model of {one.pretrained}, at scale full only"
            )
        return
    if bool(inputs.models) != bool(inputs.data) or not (inputs or scale == "smoke"):
        raise ClasswiseError(f"{name} needs --model and --data, such as --model resnet50=w.pth --data imagenet/val")


@checked
def run(
    names: str | Sequence[str],
    scale: str,
    store: str | os.PathLike[str],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
    models: Sequence[str] = (),
    data: str = "",
    trainings: int | None = None,
    data_sets: Sequence[str] = (),
) -> list[Result]:
    """Run the experiments of items and save their results in a store; an interrupted run is resumed.

    With several trainings, an experiment is repeated with other seeds of all of its trainings, and its tests have
    intervals over the trainings.

    Args:
        names: item ids such as ``kdd21/T1``.
        scale: ``smoke``, ``small``, ``reduced``, ``medium`` or ``full``.
        store: folder of models, audits and results, created if missing.
        device: PyTorch device.
        progress: progress listener.
        models: models of the user, for an experiment that takes them (`UserInputs`), or the standard model of ImageNet
            for an item that trains one.
        data: images of the user, for an experiment that takes them (`UserInputs`).
        trainings: number of independent trainings of each model, by default that of the scale; an experiment without
            trainings runs once.
        data_sets: the data sets to which items on several of them are limited, such as ``mnist``; empty for all. The
            result of an item at a scale is that of its last run.

    Returns:
        The results, whose claims are corrected jointly over all results of a paper in the store.

    Raises:
        ClasswiseError: if an id, the scale or a data set is unknown, an item on a single data set is limited to some,
            models or images are missing or superfluous, or data are missing.

    Example:
        >>> import tempfile
        >>> import classwise as cw
        >>> with tempfile.TemporaryDirectory() as store:
        ...     (result,) = cw.papers.run("cfa23/F1", "smoke", store)
        >>> result.verdicts[0].answer
        'supported'
    """
    items = [names] if isinstance(names, str) else names
    inputs, listener = UserInputs(models=models, data=data), progress or NullProgress()
    scales = {name: scale_of(name, scale, data_sets) for name in items}
    for name in scales:  # all of them before any work
        check_inputs(name, scale, inputs, data_sets)
    long = (name for name, chosen in scales.items() if chosen.as_published and experiment(name).trainings(chosen))
    if device == "cpu" and any(long):
        listener.log(f"scale {scale} takes days per network on a CPU; use --device cuda or --scale small")
    kept = Store(store)
    for name, chosen in scales.items():
        context = Context(chosen, kept, device=device, progress=listener, inputs=inputs)
        save_result(_result(experiment(name), context, trainings or chosen.trainings), kept)
    return [Result.load(kept.result_file(name, scale)) for name in items]  # each run may change those before it


def _result(chosen: Experiment, context: Context, trainings: int) -> Result:
    """Run an experiment and its repetitions."""
    started, scale = time.monotonic(), context.scale
    repetitions = trainings if chosen.trainings(scale) else 1
    with context.store.collect_work() as work:
        found = _findings(chosen, [context.repeated(repetition) for repetition in range(repetitions)])
    _check_declared(chosen, context, repetitions)
    findings = combine([replace(one, tests=for_data(scale.data, one.tests)) for one in found])
    _check_trainings(findings.tests, context)
    own = time.monotonic() - started - work.waited
    return Result(
        item=chosen.item,
        evidence=evidence_of(context),
        setting=scale.about,
        tables=tuple(findings.tables),
        figures=tuple(Figure(svg=drawing.svg(), caption=caption) for drawing, caption in findings.figures),
        verdicts=evaluate(with_parts(findings.tests)),
        measurements=tuple(findings.measurements),
        runs={key: requested.declared.recipe for key, requested in context.requests.trainings.items()},
        seconds=round(own + sum(seconds for seconds in work.seconds.values() if seconds is not None), 2),
        work=work.seconds,
    )


def _findings(chosen: Experiment, repetitions: Sequence[Context]) -> list[Findings]:
    """Run an experiment; if the scale asks for it, also on the last weights in place of the selected ones.

    An experiment that names all of its weights, or whose trainings select none, has the same tables again.
    """
    selected = [chosen.run(context) for context in repetitions]
    last = [chosen.run(context.with_last_weights()) for context in repetitions if context.scale.last_weights]
    same = [repr(one.tables) for one in last] == [repr(one.tables) for one in selected]
    return selected if same or not last else [_with_last(*pair) for pair in zip(selected, last, strict=True)]


def _with_last(selected: Findings, last: Findings) -> Findings:
    """Findings on the selected weights, followed by those on the last ones; their figures are left out."""
    return Findings(
        tables=[*selected.tables, *(replace(table, caption=table.caption + _LAST) for table in last.tables)],
        figures=selected.figures,
        tests=[
            *selected.tests,
            *(replace(test, estimand=test.estimand + _LAST) for test in last.tests if test.estimators),
        ],
        measurements=[
            *selected.measurements,
            *(replace(measurement, quantity=measurement.quantity + _LAST) for measurement in last.measurements),
        ],
    )


def _check_declared(one: Experiment, context: Context, trainings: int) -> None:
    """Check that every requested training was declared, so that the settings shown for an item are those of its run."""
    scales = [dataclasses.replace(context.scale, repetition=repetition) for repetition in range(trainings)]
    declared = {recipe_at(scale, training).digest() for scale in scales for training in one.trainings(scale).values()}
    recipes = [requested.recipe for requested in context.requests.trainings.values()]
    undeclared = sorted({recipe.name for recipe in recipes if recipe.digest() not in declared})
    if declared and undeclared:
        raise AssertionError(f"{one.item}: undeclared trainings: {', '.join(undeclared)}")


def for_data(data: str, tests: Sequence[Test]) -> list[Test]:
    """Tests on a data set, followed by the claims that are not tested, each once for each reason."""
    reason = f"the claim names classes of CIFAR-10; this scale uses {data}"
    suited = [test for one in tests for test in unless(reason if one.cifar10 and data != CIFAR else "", [one])]
    untested = dict[tuple[str, str], list[Sequence[str]]]()
    for test in suited:
        if not test.estimators:
            untested.setdefault((test.claim, test.note), []).append(test.covers)
    return [
        *(test for test in suited if test.estimators),
        *(
            not_tested(claim, note, covers=dict.fromkeys(itertools.chain(*covers)) if all(covers) else ())
            for (claim, note), covers in untested.items()
        ),
    ]


def with_parts(tests: Sequence[Test]) -> list[Test]:
    """Name the default part of its claim in each test that names none."""
    defaults = [catalogue.claim(test.claim).default_part for test in tests]
    return [
        replace(test, covers=(part,)) if part and test.estimators and not test.covers else test
        for test, part in zip(tests, defaults, strict=True)
    ]


def evidence_of(context: Context) -> Evidence:
    """The level of the evidence from the trainings and audits that an experiment requested.

    Trainings whose recipes differ only in the seed are trainings of one model.
    """
    requested = context.requests.trainings.values()
    return Evidence(
        scale=context.scale.name,
        trainings=min(_seeds_per_model(context), default=0),
        data=_distinct(training.data for training in requested),
        train_images=_distinct(training.images for training in requested),
        epochs=_distinct(training.recipe.epochs for training in requested),
        networks=_distinct(training.recipe.model.name for training in requested),
        widths=_distinct(training.recipe.model.width for training in requested),
        test_images=_distinct(context.requests.test_images),
        attacks=_distinct(context.requests.attacks),
    )


def _seeds_per_model(context: Context) -> list[int]:
    """Number of seeds of each requested model; a model is a recipe without its seed, and the training images."""
    seeds: dict[tuple[str, str, int], set[int]] = {}
    for _, recipe, data, images in context.requests.trainings.values():
        seeds.setdefault((replace(recipe, seed=0).digest(), data, images), set()).add(recipe.seed)
    return [len(known) for known in seeds.values()]


def _check_trainings(tests: Sequence[Test], context: Context) -> None:
    """Check that no test states more trainings of a model than the experiment requested."""
    most = max(_seeds_per_model(context), default=1)
    for test in tests:
        if test.trainings > most:
            raise AssertionError(f"{test.claim}: intervals over {test.trainings} trainings, of {most} requested")


def _distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(sorted(set(values)))
