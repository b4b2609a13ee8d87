"""Texts of verdicts at each level of evidence, and the evidence of a run."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from classwise.papers import runner
from classwise.papers.claims import Answer, Basis, Test, Verdict, evaluate
from classwise.papers.experiment import Context, Requested, Training, recipe_at
from classwise.papers.interval_estimators import exactly, interval
from classwise.papers.result import CONFIRMING, Evidence, verdict_text
from classwise.papers.scales import FASHION, NAMES, SMALL, SMOKE, Name
from classwise.papers.store import Store
from classwise.stats.intervals import Estimate
from classwise.stats.seeds import difference_over_seeds
from classwise.training.folder import Run

ANSWERS: tuple[Answer, ...] = ("supported", "contradicted", "inconclusive")
BUDGET = Evidence(
    scale="small",
    trainings=1,
    data=("cifar10",),
    train_images=(5000,),
    epochs=(12,),
    networks=("preactresnet18",),
    widths=(0.25,),
)
SETTINGS = "1 training, 5,000 images, 12 epochs, quarter width"


def verdict(answer: Answer, *, basis: Basis = "experiment", trainings: int = 1) -> Verdict:
    return Verdict(claim="kdd21/C8", answer=answer, estimand="a number", basis=basis, trainings=trainings)


FULL = dataclasses.replace(BUDGET, scale="full")
MEDIUM = Evidence(scale="medium", trainings=3, data=("cifar10",), train_images=(50_000,), epochs=(30,))
OF_MEDIUM = "3 trainings, 50,000 images, 30 epochs"


@pytest.mark.parametrize(
    ("evidence", "trainings", "covered", "answer", "text"),
    [
        (BUDGET, 1, 1, "supported", f"supported at small scale ({SETTINGS})"),
        (BUDGET, 1, 1, "contradicted", f"not observed at small scale ({SETTINGS})"),
        (BUDGET, 1, 1, "inconclusive", f"inconclusive at small scale ({SETTINGS})"),
        (MEDIUM, 3, 3, "supported", f"supported at medium scale ({OF_MEDIUM})"),
        (MEDIUM, 3, 3, "contradicted", f"not observed at medium scale ({OF_MEDIUM})"),
        (MEDIUM, 3, 3, "inconclusive", f"inconclusive at medium scale ({OF_MEDIUM})"),
        *((dataclasses.replace(BUDGET, scale="smoke"), 1, 1, answer, "smoke run, no evidence") for answer in ANSWERS),
        (FULL, 1, 1, "supported", "supported at full scale (1 training)"),
        (FULL, 2, 2, "supported", "supported at full scale (2 trainings)"),
        (FULL, 3, 1, "supported", "supported at full scale (3 trainings, intervals for fixed models)"),
        (FULL, 3, 3, "supported", "confirmed at full scale (3 trainings)"),
        # Another model of the item has one training.
        (FULL, 1, 3, "supported", "confirmed at full scale (3 trainings)"),
    ],
)
def test_texts_of_verdicts(evidence: Evidence, trainings: int, covered: int, answer: Answer, text: str) -> None:
    """Reduced and medium evidence neither confirms nor refutes."""
    level = dataclasses.replace(evidence, trainings=trainings)
    assert verdict_text(verdict(answer, trainings=covered), level) == text
    assert verdict_text(verdict(answer, trainings=covered), level, short=True) == text.partition(" (")[0]


@pytest.mark.parametrize("scale", NAMES)
@pytest.mark.parametrize(
    ("basis", "words"), [("computation", "exact computation"), ("printed numbers", "the printed numbers")]
)
def test_computations_have_no_scale(scale: Name, basis: Basis, words: str) -> None:
    for answer in ANSWERS:
        assert verdict_text(verdict(answer, basis=basis), Evidence(scale=scale)) == f"{answer} by {words}"


def test_confirmed_and_refuted_require_full_scale_and_intervals_over_three_trainings() -> None:
    """Over all combinations of the scale, the trainings of each model, and those that the interval covers."""
    found = set()
    for scale, trainings, covered, answer in itertools.product(NAMES, (0, 1, 2, 3, 4, 10), (1, 2, 3, 4, 10), ANSWERS):
        text = verdict_text(verdict(answer, trainings=covered), Evidence(scale=scale, trainings=trainings))
        word = text.partition(" ")[0]
        if word in {"confirmed", "refuted"}:
            assert (scale, covered >= 3, answer) == (
                "full",
                True,
                "supported" if word == "confirmed" else "contradicted",
            )
            found.add(covered)
        if scale == "full" and covered >= 3:
            assert (word in {"confirmed", "refuted"}) == (answer != "inconclusive")
    assert found == {3, 4, 10}
    assert CONFIRMING == 3


@pytest.mark.parametrize(("sign", "texts"), [(1, ("confirmed", "supported")), (-1, ("refuted", "contradicted"))])
def test_intervals_over_seeds_and_images(sign: int, texts: tuple[str, str]) -> None:
    """Two methods with three seeds each: over the seeds a claim is confirmed or refuted, for fixed models it is not."""
    random = np.random.default_rng(0)
    first, second = (random.random((3, 400)) < rate for rate in (0.5 + 0.2 * sign, 0.5 - 0.2 * sign))
    labels = np.zeros(400, dtype=np.int64)

    def over_seeds(level: float) -> Estimate:
        found = difference_over_seeds(first, second, labels, 1, level, paired=True)
        return Estimate(*(100 * float(end[0]) for end in (found.difference, found.low, found.high)))

    fixed = Test(claim="cfa23/C11", estimand="gain", estimators=[over_seeds])
    level = dataclasses.replace(BUDGET, scale="full", trainings=3)
    found = [
        verdict_text(verdict, level, short=True)
        for verdict in evaluate([dataclasses.replace(fixed, trainings=3), fixed])
    ]
    assert found == [f"{text} at full scale" for text in texts]


def test_settings_name_what_differs_from_the_usual() -> None:
    several = dataclasses.replace(
        BUDGET,
        trainings=2,
        data=("cifar10", "mnist"),
        train_images=(5000, 10_000),
        epochs=(6, 12),
        networks=("lenet", "vgg16"),
        widths=(0.125, 1.0),
    )
    expected = (
        "2 trainings, 5,000 to 10,000 images of cifar10 and mnist, 6 to 12 epochs, lenet and vgg16, width 0.125 to 1"
    )
    assert several.settings == expected
    assert "4 networks" in dataclasses.replace(several, networks=("lenet", "vgg16", "vgg19", "resnet18")).settings
    small = dataclasses.replace(BUDGET, data=("mnist",), epochs=(1,), networks=("small-cnn",), widths=(1.0,))
    assert small.settings == "1 training, 5,000 images of mnist, 1 epoch, small-cnn"
    assert Evidence(scale="small").settings == ""
    assert verdict_text(verdict("supported"), Evidence(scale="small")) == "supported at small scale"


def requested(context: Context, overrides: dict[str, object], count: int = 5000) -> None:
    """Record a training as `Context.train` does, without training."""
    declared = Training(recipe="at", overrides=overrides)
    entry = Requested(declared, recipe_at(context.scale, declared), context.scale.data, count)
    context.requests.trainings[f"key {len(context.requests.trainings)}"] = entry


def test_evidence_counts_the_seeds_of_each_model(tmp_path: Path) -> None:
    context = Context(SMALL, Store(tmp_path / "store"))
    assert runner.evidence_of(context) == Evidence(scale="small")
    requested(context, {})
    context.requests.test_images.update((200, 1000))
    assert runner.evidence_of(context) == dataclasses.replace(BUDGET, test_images=(200, 1000))
    assert runner.evidence_of(context).settings == SETTINGS
    for seed in (1, 2):
        requested(context, {"seed": seed})
    assert runner.evidence_of(context).trainings == 3
    requested(context, {"seed": 2, "model.width": 0.5})
    found = runner.evidence_of(context)
    assert (found.trainings, found.widths) == (1, (0.25, 0.5))


def test_evidence_of_several_data_sets_is_shared(tmp_path: Path) -> None:
    context = Context(FASHION, Store(tmp_path / "store"))
    requested(context, {})
    own = Context(dataclasses.replace(FASHION, data="mnist"), context.store, requests=context.requests)
    requested(own, {"seed": 1}, 10_000)
    found = runner.evidence_of(context)
    assert (found.data, found.train_images, found.trainings) == (("fashion-mnist", "mnist"), (5000, 10_000), 1)


def test_a_test_cannot_state_more_trainings_than_were_requested(tmp_path: Path) -> None:
    context = Context(SMALL, Store(tmp_path / "store"))
    one = Test(claim="cfa23/C11", estimand="a number", estimators=[interval(Estimate(2.0, 1.0, 3.0))], trainings=3)
    for seed in range(2):
        requested(context, {"seed": seed})
    with pytest.raises(AssertionError, match="cfa23/C11: intervals over 3 trainings, of 2 requested"):
        runner._check_trainings([one], context)
    requested(context, {"seed": 2})
    runner._check_trainings([one], context)
    (found,) = evaluate([one])
    assert (found.trainings, found.basis) == (3, "experiment")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"basis": "computation"}, "no sampling error"),
        ({"exact": True, "trainings": 3}, "fixed models"),
        ({"trainings": 0}, "fixed models"),
    ],
)
def test_exact_tests_are_not_over_trainings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Test(claim="cfa23/C1", estimand="a", estimators=[exactly(1)], **options)


def test_a_test_without_parts_covers_the_default_part() -> None:
    part = interval(Estimate(2.0, 1.0, 3.0))
    tests = [Test(claim=claim, estimand="a", estimators=[part]) for claim in ("kdd21/C17", "kdd21/C22")]
    named = dataclasses.replace(tests[0], covers=("much smaller",))
    assert [test.covers for test in runner.with_parts([*tests, named])] == [("smaller",), (), ("much smaller",)]


def test_a_verdict_keeps_the_basis_of_its_test() -> None:
    one = Test(claim="cfa23/C1", estimand="a", estimators=[exactly(1)], exact=True, basis="computation")
    (found,) = evaluate([one])
    assert verdict_text(found, BUDGET) == "supported by exact computation"


def test_audits_count_their_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(SMOKE, Store(tmp_path / "store"))
    monkeypatch.setattr(context.store, "audit", lambda *_args, **_options: None)
    trained = Run(tmp_path)
    context.audit(trained, {})
    context.audit(trained, {}, few=True)
    context.audit(trained, {}, images=context.test_images.take(context.test_images.y == 3))
    assert context.requests.test_images == {40, 100, int((context.test_images.y == 3).sum())}
