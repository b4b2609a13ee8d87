"""Hypothesis strategies for random results of the items of a paper."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from hypothesis import strategies as st

from classwise.papers.catalogue import runnable
from classwise.papers.scales import Name

from .raw_evidence import RawEvidence, RawMeasurement
from .statements import CAPTIONS, SIZES, Paper, RawResult, RawTable, RawTest, facts, parts_of

_TEXTS = st.sampled_from(("", "on mnist of the six", "a <b>note</b> & more", "one = two\u202e"))
_CLASSES = ("ant", "bee", "cow", "dog", "elk", "<fox>")


@st.composite
def tests(draw: st.DrawFn, claim: str, number: int) -> RawTest:
    """Tests with one to three estimates, conclusive or not; some exact, some without an interval, some limited."""
    kind = draw(st.sampled_from(("one", "one", "one", "all", "mixed", "exact", "none", "zero")))
    sizes = {"one": 1, "exact": 1, "none": 1, "zero": 1}
    count = sizes.get(kind, draw(st.integers(2, 3)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)) + number)
    ratios = random.uniform(0.3, 5.4, count) * (1 if kind == "all" else random.choice((-1, 1), count))
    errors = random.choice((0.002, 0.3, 4.0), count) * random.uniform(1, 2, count)
    values = ratios * errors
    if kind == "exact":
        values, errors = random.choice((-2.0, 0.0, 0.004, 3.5), 1), np.zeros(1)
    elif kind == "none":
        errors = np.full(1, math.nan)
    elif kind == "zero":
        values, errors = np.array([-6e-15 * (1 + number)]), np.array([random.uniform(0.0001, 2)])
    parts = [part for one, part in parts_of(claim) if one == claim and part]
    covers = draw(st.lists(st.sampled_from([*parts, "something else"]), unique=True)) if parts else []
    limits = (-1.0, 1.0) if kind == "one" and abs(values[0]) <= 1 and draw(st.booleans()) else None
    return RawTest(
        claim=claim,
        parts=tuple((float(value), float(error)) for value, error in zip(values, errors, strict=True)),
        unit=draw(st.sampled_from(("points", "%²", ""))),
        note=draw(_TEXTS),
        covers=tuple(covers),
        limits=limits,
        basis=draw(st.sampled_from(("experiment", "computation", "printed numbers")))
        if kind == "exact"
        else "experiment",
        trainings=1 if kind == "exact" else draw(st.sampled_from((1, 1, 2, 3, 5))),
    )


@st.composite
def evidence(draw: st.DrawFn, scale: Name) -> RawEvidence:
    """Levels of a result without trainings, or with one to five trainings of each of one or more models."""
    trainings = draw(st.sampled_from((0, 1, 1, 2, 3, 5)))
    if trainings == 0:
        return RawEvidence(scale)
    return RawEvidence(
        scale,
        trainings,
        data=draw(st.sampled_from((("cifar10",), ("fashion-mnist",), ("cifar10", "mnist")))),
        images=draw(st.sampled_from(((5000,), (10_000,), (500, 5000, 50_000)))),
        epochs=draw(st.sampled_from(((1,), (12,), (6, 12, 200)))),
        networks=draw(st.sampled_from((("preactresnet18",), ("small-cnn",), ("lenet", "preactresnet18", "vgg16")))),
        widths=draw(st.sampled_from(((1.0,), (0.25,), (0.5,), (0.1,), (0.125, 0.25, 1.0)))),
    )


@st.composite
def measurements(draw: st.DrawFn, claim: str) -> RawMeasurement:
    value = draw(st.sampled_from((0.0, -1e-9, 0.9, 12.345, -3.0)))
    reach = draw(st.sampled_from((0.001, 0.5, math.nan)))
    return RawMeasurement(claim, value, value - reach, value + reach, draw(st.sampled_from(("points", ""))))


@st.composite
def tables(draw: st.DrawFn) -> RawTable:
    """Tables of 1 to 6 classes with 0 to 4,000 images; accuracies of 0, 1 and near both, ties; printed rows or none."""
    number, lines = draw(st.integers(1, len(_CLASSES))), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for line in range(lines):
        images = random.choice((0, 1, 7, 100, 400), number) if line else random.choice((1, 100, 4000), number)
        images[0] = max(images[0], 1)
        shares = random.choice((0.0, 0.0001, 0.02, 0.5, 0.5, 0.9996, 1.0), number)
        right = np.rint(images * shares).astype(int)
        rows.append((f"AT {line}", tuple(right.tolist()), tuple(images.tolist())))
    printed = [random.choice((12.0, 30.5, 71.25), number) if random.random() < 0.7 else None for _ in rows]
    values = random.choice((-0.0004, 0.0, 0.123456, -0.5, 1.0, math.nan), 3)
    reach = random.choice((0.0001, 0.25, math.nan), 3)
    return RawTable(
        form=draw(st.sampled_from(("class", "summary", "estimates"))),
        caption=draw(st.sampled_from(CAPTIONS)),
        names=_CLASSES[:number],
        rows=tuple(rows),
        printed=tuple(None if one is None else tuple(one.tolist()) for one in printed),
        estimates=tuple((float(v), float(v - r), float(v + r)) for v, r in zip(values, reach, strict=True)),
    )


REPEATED = {
    "kdd21": ("kdd21/F2", "kdd21/E2"),
    "iclr21": ("iclr21/F4", "iclr21/E1"),
    "benz20": ("benz20/F1", "benz20/F2"),
    "cfa23": ("cfa23/F2a", "cfa23/F2bc"),
}
"""Two items of each paper with equal settings, of which the second may have the tables of the first."""
_SECONDS = st.sampled_from((0.04, 0.05, 0.25, 8.0, 61.3, 1234.56, 100000.0))


@st.composite
def papers(draw: st.DrawFn) -> Paper:
    """Results of some items of a paper, and of at most one item of another, at one or two scales each."""
    name = draw(st.sampled_from(("kdd21", "iclr21", "benz20", "cfa23")))
    own = [item for item in runnable() if item.startswith(f"{name}/")]
    others = [item for item in runnable() if not item.startswith(f"{name}/")]
    chosen = draw(st.lists(st.sampled_from(own), max_size=4, unique=True))
    if REPEATED[name][0] not in chosen and draw(st.booleans()):
        chosen.append(REPEATED[name][0])
    chosen += draw(st.lists(st.sampled_from(others), max_size=1))
    shared = {f"training {key}": draw(st.one_of(st.none(), _SECONDS)) for key in range(3)}
    results: list[RawResult] = []
    for item in chosen:
        claims = [one["id"] for one in facts(item.partition("/")[0])["claims"]]
        for scale in draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=2, unique=True)):
            measured = draw(st.lists(st.sampled_from(claims), max_size=2))
            tested = draw(st.lists(st.sampled_from(claims), max_size=4))
            work = draw(st.none() | st.lists(st.sampled_from(sorted(shared)), unique=True))
            results.append(
                RawResult(
                    item=item,
                    evidence=draw(evidence(scale)),
                    setting=f"{item} at {scale} & its setting",
                    tests=tuple(draw(tests(claim, len(results) + place)) for place, claim in enumerate(tested)),
                    untested=dict.fromkeys(draw(st.lists(st.sampled_from(claims), max_size=1)), "no cats here"),
                    tables=tuple(draw(st.lists(tables(), max_size=2))),
                    figures=tuple(draw(st.lists(st.sampled_from(CAPTIONS), max_size=1))),
                    trainings=draw(st.integers(0, 2)),
                    own=draw(_SECONDS),
                    measurements=tuple(draw(measurements(claim)) for claim in measured),
                    work=None if work is None else {key: shared[key] for key in work},
                )
            )
    first, second = REPEATED[name]
    if second not in chosen and draw(st.booleans()):
        kept = draw(st.booleans())  # the same tests, as of items that share models
        repeated = [one if kept else dataclasses.replace(one, tests=()) for one in results if one.item == first]
        results += [dataclasses.replace(one, item=second) for one in repeated]
    return Paper(name, tuple(results))
