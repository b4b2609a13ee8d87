"""Verdicts follow from adjusted intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from classwise.papers import catalogue
from classwise.papers.claims import (
    ALPHA,
    CORRELATION,
    Answer,
    Limits,
    Test,
    Verdict,
    correct_jointly,
    evaluate,
    not_tested,
)
from classwise.papers.interval_estimators import exactly, interval
from classwise.papers.result import Evidence, Result
from classwise.papers.scales import Name
from classwise.papers.tables import (
    Overview,
    by_construction,
    claim_text,
    claim_verdict,
    claims_table,
    deciding,
    estimate_text,
    findings_sentence,
    images_to_decide,
    overviews,
    parts_supported,
    summary_text,
    verdict_table,
    whole_answer,
)
from classwise.reporting.tables import Cell
from classwise.stats.intervals import Estimate, two_sided_z


def normal(value: float, error: float = 1.0) -> Callable[[float], Estimate]:
    def at(level: float) -> Estimate:
        reach = two_sided_z(level) * error
        return Estimate(value, value - reach, value + reach)

    return at


def claim(*values: float) -> Test:
    return Test(claim="kdd21/C1", estimand="a number", estimators=[normal(value) for value in values])


@pytest.mark.parametrize(("value", "answer"), [(2.5, "supported"), (-2.5, "contradicted"), (1.5, "inconclusive")])
def test_one_claim(value: float, answer: Answer) -> None:
    (verdict,) = evaluate([claim(value)])
    assert verdict.answer == answer
    assert verdict.value == value
    assert (verdict.low, verdict.high) == pytest.approx((value - 1.96, value + 1.96), abs=1e-3)
    assert verdict.p_value == pytest.approx(2 * stats.norm.sf(abs(value)), rel=1e-4)


@pytest.mark.parametrize("noise", [4.4e-16, -4.4e-16, 0.3 - 0.1 - 0.2])
def test_rounding_errors_of_zero_decide_no_claim(noise: float) -> None:
    sampled = Test(claim="cfa23/C11", estimand="gain", estimators=[interval(Estimate(1.0, noise, 2.0))])
    fallen = Test(claim="cfa23/C11", estimand="gain", estimators=[interval(Estimate(-1.0, -2.0, noise))])
    computed = Test(claim="cfa23/C11", estimand="gain", estimators=[exactly(noise)], exact=True)
    assert [test.decide(0.05)[0] for test in (sampled, fallen, computed)] == [
        "inconclusive",
        "inconclusive",
        "contradicted",
    ]
    assert sampled.estimate(0, 0.05).low == 0


def test_family_wise_error_rate_of_true_nulls() -> None:
    random = np.random.default_rng(1)
    found = [
        any(verdict.answer != "inconclusive" for verdict in evaluate([claim(float(v)) for v in random.normal(size=5)]))
        for _ in range(150)
    ]
    assert np.mean(found) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)


@pytest.mark.parametrize(
    ("values", "answer", "decides"),
    [
        ((3, 4), "supported", 3),
        ((3, 1), "inconclusive", 1),
        ((5, -3), "contradicted", -3),
        ((-2.1,), "contradicted", -2.1),
        ((5, -2.1), "inconclusive", -2.1),
    ],
)
def test_all_estimates_must_be_above_zero(values: tuple[float, ...], answer: Answer, decides: float) -> None:
    """-2.1 is below zero at 0.05, but not at half of that, which each of two has."""
    (verdict,) = evaluate([claim(*values)])
    assert (verdict.answer, verdict.value) == (answer, decides)


def test_exact_claims_do_not_count_for_holm() -> None:
    exact = Test(claim="cfa23/C1", estimand="a fact", estimators=[exactly(1.0)], exact=True)
    false = Test(claim="cfa23/C2", estimand="a fact", estimators=[exactly(0.0)], exact=True)
    verdicts = evaluate([exact, claim(2.0), false])
    assert [verdict.answer for verdict in verdicts] == ["supported", "supported", "contradicted"]
    assert verdicts[1].level == 0.05


def test_untested_claims_give_the_reason() -> None:
    _, verdict = evaluate([claim(2.0), not_tested("kdd21/C8", "no cats here")])
    assert (verdict.answer, verdict.note) == ("not tested", "no cats here")
    assert np.isnan(verdict.value)


def test_joint_correction_equals_one_evaluation() -> None:
    """Correcting the verdicts of single items jointly equals evaluating all of their claims at once."""
    random = np.random.default_rng(2)
    for _ in range(10):
        tests = [claim(float(value)) for value in random.normal(0, 2.5, size=7)]
        single = [verdict for test in tests for verdict in evaluate([test])]
        whole = evaluate(tests)
        found = correct_jointly([*single, *evaluate([not_tested("kdd21/C8", "no cats here")])])
        assert [verdict.answer for verdict in found[:7]] == [verdict.answer for verdict in whole]
        for joint, expected in zip(found, whole, strict=False):
            assert (joint.low, joint.high, joint.level) == pytest.approx(
                (expected.low, expected.high, expected.level), rel=1e-6
            )
        assert found[7].note == "no cats here"


_FAMILIES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.floats(-8, 8).map(lambda value: round(value, 2)), st.sampled_from((1.0, 0.5, 3.0))),
            min_size=1,
            max_size=3,
        ),
        st.integers(1, 3),
        st.sampled_from((None, CORRELATION)),
    ),
    min_size=1,
    max_size=5,
)
"""Families of tests: estimates with their standard errors, number of items that repeat the test, and its range."""


@pytest.mark.slow
@given(_FAMILIES, st.randoms(use_true_random=False))
@example([([(0, 1), (-2, 1)], 2, None)], Random(0)).via("one estimator decides at the level of an item, two at another")
@example([([(2.1, 1), (1, 0.5)], 2, None)], Random(0)).via("another estimator has the lowest end at each level")
def test_a_repeated_test_has_one_interval(
    family: list[tuple[list[tuple[float, float]], int, Limits]], random: Random
) -> None:
    """Items correct it with other tests, at other levels; together it has one answer, level, interval and p-value."""
    items = list[list[Test]]()
    for number, (estimates, repeats, limits) in enumerate(family):
        scale = 1.0 if limits is None else 0.1
        parts = [normal(scale * value, scale * error) for value, error in estimates]
        test = Test(claim="kdd21/C1", estimand=f"number {number}", estimators=parts, limits=limits)
        for _ in range(repeats):
            items.append([test, *(claim(random.uniform(-3, 3)) for _ in range(random.randrange(3)))])
    found = correct_jointly([verdict for item in items for verdict in evaluate(item)])
    shown = dict[str, set[str]]()
    for verdict in found:
        if verdict.estimand != "a number":
            shown.setdefault(verdict.estimand, set()).add(repr(verdict))
        assert verdict.level <= ALPHA
        assert verdict.answer == "inconclusive" or (verdict.adjusted <= ALPHA and (verdict.low > 0 or verdict.high < 0))
    assert all(len(texts) == 1 for texts in shown.values()), shown
    assert repr(correct_jointly(found)) == repr(found), "a second correction changes nothing"


def test_a_repeated_test_counts_once() -> None:
    """The verdicts of three items with the same test are those of two of them, and of one."""
    other, same = evaluate([claim(2.6)]), evaluate([replace(claim(2.1), claim="kdd21/C9")])
    alone, *_ = correct_jointly([*same, *other])
    for repeats in (2, 3):
        assert [repr(one) for one in correct_jointly([*same * repeats, *other])[:repeats]] == [repr(alone)] * repeats
    assert alone.level == ALPHA
    (distinct,) = evaluate([replace(claim(2.1), claim="kdd21/C10", estimand="another number")])
    assert correct_jointly([*same, distinct, *other])[0].level < ALPHA


def test_a_rescaled_interval_that_includes_zero_is_inconclusive() -> None:
    """Such as the interval of the worst class, whose p-value and width are not those of a normal interval."""
    found = Verdict(
        claim="kdd21/C1", answer="contradicted", estimand="worst class", value=-17, low=-28, high=-0.5, p_value=0.0049
    )
    assert [verdict.answer for verdict in correct_jointly([found])] == ["contradicted"]
    unclear = Verdict(claim="kdd21/C2", answer="inconclusive", estimand="", value=0, low=-2, high=2, p_value=0.9)
    wide, narrow, *_ = correct_jointly([found, replace(found, claim="kdd21/C3", high=-8.0), *[unclear] * 3])
    assert (wide.answer, wide.high > 0) == ("inconclusive", True)
    assert (narrow.answer, narrow.high < 0) == ("contradicted", True)


def test_correlations_stay_within_their_limits() -> None:
    """At the original level and after a joint correction."""
    sure = Test(claim="kdd21/C1", estimand="rho", estimators=[normal(0.8, 0.25)], unit="", limits=CORRELATION)
    unsure = replace(sure, estimators=[normal(0.3, 0.25)])
    single = [verdict for test in (sure, unsure) for verdict in evaluate([test])]
    assert [(verdict.answer, verdict.high) for verdict in single] == [
        ("supported", 1.0),
        ("inconclusive", pytest.approx(0.79, abs=0.001)),
    ]
    for verdict in correct_jointly(single):
        assert -1 <= verdict.low < verdict.value < verdict.high <= 1
        assert verdict.limits == CORRELATION


def test_intervals_at_other_levels() -> None:
    part = interval(Estimate(0.30, 0.30 - 0.10, 0.30 + 0.05), 100)
    assert part(0.05) == pytest.approx((30, 20, 40))
    assert part(0.01).low == pytest.approx(30 - 10 * 2.5758 / 1.9600, abs=1e-3)
    assert interval(Estimate(0.3, 0.2, 0.4), -1)(0.05) == pytest.approx((-0.3, -0.4, -0.2))


def test_zero_variance_is_inconclusive() -> None:
    for estimate in (Estimate(1.0, 1.0, 1.0), Estimate(0.4, float("nan"), float("nan"))):
        (verdict,) = evaluate([Test(claim="kdd21/C1", estimand="a", estimators=[normal(5), interval(estimate)])])
        assert verdict.answer == "inconclusive"
        assert verdict.p_value == 1


def test_no_negative_zeros_are_printed() -> None:
    """Rounding errors in a difference that is zero."""
    one = Verdict(claim="kdd21/C1", answer="inconclusive", estimand="", value=-6e-15, low=-1e-9, high=2, unit="points")
    assert estimate_text(one) == ("+0.00 points", "+0.00 to +2.00 (95\N{NO-BREAK SPACE}%)")


CLAIMS = [claim.id for paper in catalogue.papers() for claim in catalogue.paper(paper).claims]


def result_of(scale: Name, *verdicts: Verdict, item: str = "kdd21/T1") -> Result:
    return Result(item=item, evidence=Evidence(scale=scale, trainings=1), setting="", verdicts=verdicts)


FULL = result_of("full")


def verdict_of(claim: str, part: str, answer: Answer = "supported") -> tuple[Result, Verdict]:
    covers = (part,) if part else ()
    return (FULL, Verdict(claim=claim, answer=answer, estimand="a number", covers=covers))


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_has_a_verdict_only_if_each_of_its_parts_was_tested(claim: str) -> None:
    parts = catalogue.claim_parts(claim)
    verdicts = [verdict_of(claim_id, part) for claim_id, part in parts]
    whole = claim_verdict(claim, verdicts)
    assert (claim_text(whole), whole.untested) == ("supported at full scale (1 training)", ())
    assert whole_answer(whole) == "supported"
    assert len(whole.tested) == len(parts) == len(set(parts))
    for left_out in range(len(parts)):
        others = verdicts[:left_out] + verdicts[left_out + 1 :]
        fewer = claim_verdict(claim, others)
        assert "supported" not in claim_text(fewer)
        assert whole_answer(fewer) == ("inconclusive" if others else "not tested")
        assert len(fewer.untested) == 1
        assert fewer.partial == bool(others)
    one = parts[0][0]  # an untested claim, or a test of another part, does not complete the claim
    assert claim_verdict(claim, [*verdicts[1:], (FULL, evaluate([not_tested(one, "no cats")])[0])]).untested
    beside = claim_verdict(claim, [*verdicts[1:], verdict_of(one, "something else")])
    assert beside.untested
    assert not beside.tested or claim_text(beside).startswith("partly tested: ")
    part_failed = claim_verdict(claim, [verdict_of(*parts[0], "contradicted")])
    assert whole_answer(part_failed) == "not observed"
    assert "contradicted at full scale" in claim_text(part_failed)


def test_every_part_belongs_to_a_claim() -> None:
    for claim in CLAIMS:
        for claim_id, part in catalogue.claim_parts(claim):
            assert catalogue.claim(claim_id)
            assert part.strip() == part


def test_each_part_has_the_verdict_of_the_largest_scale_that_tested_it() -> None:
    """Of one claim, one part is decided at reduced and another at small scale; a smoke run, what no other tested."""

    def verdict(answer: Answer, *covers: str, claim: str = "kdd21/C1") -> Verdict:
        return Verdict(claim=claim, answer=answer, estimand=" ".join(covers), covers=covers)

    (untested,) = evaluate([not_tested("kdd21/C3", "the reason at reduced scale")])
    reduced = result_of("reduced", verdict("supported", "cifar10"), untested)
    small = result_of(
        "small", verdict("contradicted", "cifar10"), verdict("inconclusive", "mnist"), replace(untested, note="another")
    )
    smoke = result_of("smoke", verdict("contradicted", "mnist"), verdict("supported", claim="kdd21/C7"))
    found = deciding({"kdd21/T1": [reduced, small, smoke]})
    assert [(result.scale, one.claim, one.answer, *one.covers) for result, one in found] == [
        ("reduced", "kdd21/C1", "supported", "cifar10"),
        ("reduced", "kdd21/C3", "not tested"),
        ("small", "kdd21/C1", "inconclusive", "mnist"),
        ("smoke", "kdd21/C7", "supported"),
    ]


def test_a_test_of_two_parts_is_shown_where_it_decides_one_of_them() -> None:
    both = Verdict(claim="kdd21/C1", answer="inconclusive", estimand="both", covers=("mnist", "cifar10"))
    one = replace(both, answer="supported", covers=("cifar10",))
    large, little = result_of("reduced", one, item="kdd21/F1"), result_of("small", both, item="kdd21/E1")
    assert deciding({"kdd21/F1": [large], "kdd21/E1": [little]}) == [(large, one), (little, both)]


def test_the_overview_of_a_claim() -> None:
    """Its mark, the test that decides, its reason in a few words, and the scales of its tests."""

    def overview(claim: str, *results: Result) -> Overview:
        found = overviews("kdd21", {str(place): [result] for place, result in enumerate(results)})
        return next(one for one in found if one.claim.id == claim)

    def tested(covers: str, value: float, scale: Name = "small") -> Result:
        test = Test(claim="kdd21/C8", estimand=covers, estimators=[normal(value)], covers=(covers,))
        return result_of(scale, *evaluate([test]))

    assert overview("kdd21/C1")[2:] == ("not tested", None, "", "not run yet", "", "")
    costly = catalogue.claim("kdd21/C8").missing
    assert overview("kdd21/C8")[2:] == ("not tested", None, "", f"needs {costly}", "", "")
    good, bad, unclear = tested("on average", 3), tested("in every row", -3, "reduced"), tested("in every row", 1)
    one = overview("kdd21/C8", good)
    assert (one.whole, one.why, one.scales) == ("inconclusive", "not tested: in every row", "small")
    one, scales = overview("kdd21/C8", good, bad), "reduced + small"
    assert (one.whole, one.why, one.scales) == ("not observed", "part “in every row”: interval is below zero", scales)
    assert one.shown == (bad, bad.verdicts[0])
    one = overview("kdd21/C8", good, unclear)
    assert (one.whole, one.why) == ("inconclusive", "part “in every row”: interval includes zero")
    one = overview("kdd21/C8", good, tested("in every row", 4))
    assert (one.whole, one.why, one.shown) == ("supported", "interval is above zero", (good, good.verdicts[0]))
    (untested,) = evaluate([not_tested("kdd21/C8", "no cats here, only dogs")])
    assert overview("kdd21/C8", result_of("small", untested))[2:] == (
        "not tested",
        None,
        "",
        "no cats here, only dogs",
        "",
        "",
    )


def test_parts_that_are_supported_at_their_largest_scale() -> None:
    """A part that a larger scale supports, although a smaller one has an unclear test of it and of another part."""
    parts = [replace(claim(value), claim="benz20/C5", covers=covers) for value, covers in SUPERSEDED]
    good, unclear = result_of("reduced", *evaluate(parts[:1])), result_of("small", *evaluate(parts[1:]))
    tests = [(result, verdict) for result in (good, unclear) for verdict in result.verdicts]
    assert parts_supported("benz20/C5", tests) == (1, 3)
    assert parts_supported("benz20/C5", tests[1:]) == (0, 3)
    assert parts_supported("iclr21/C2", [])[1] == len(catalogue.claim_parts("iclr21/C2"))


SUPERSEDED = (
    (4.0, ("cifar10: mutual inside superclasses",)),
    (0.5, ("cifar10: mutual inside superclasses", "cifar100: mutual inside superclasses")),
)
"""Estimates and parts of the tests at the larger and at the smaller scale."""


@pytest.mark.parametrize("value", [0.4, -1.2, 1.9])
def test_the_images_that_decide_have_the_power(value: float) -> None:
    """With so many times the images, four of five new estimates around the value are conclusive."""
    (verdict,) = evaluate([replace(claim(value), trainings=1)])
    evidence = Evidence(scale="small", trainings=1, data=["cifar10"], test_images=[10_000])
    needed = images_to_decide(verdict, evidence)
    factor = float(needed.removeprefix("about ").removesuffix(" times its 10,000 test images").replace(",", ""))
    assert stats.norm.cdf(abs(value) * factor**0.5 - two_sided_z(ALPHA)) == pytest.approx(0.8, abs=0.02)
    result = result_of("small", verdict)
    assert overviews("kdd21", {"kdd21/T1": [replace(result, evidence=evidence)]})[0].why.endswith(
        f"; {needed} would decide"
    )


def test_images_decide_nothing_where_they_are_not_the_reason() -> None:
    (unclear,) = evaluate([claim(1.0)])
    evidence = Evidence(scale="small", trainings=1, data=["cifar10"], test_images=[1000])
    assert images_to_decide(unclear, evidence)
    for other in (
        replace(unclear, answer="supported"),
        replace(unclear, trainings=3),
        replace(unclear, basis="computation"),
        replace(unclear, value=0.0),
        replace(unclear, low=0.9),  # only its adjusted p-value makes it inconclusive
        replace(unclear, low=float("nan")),
        replace(unclear, low=-1.0, limits=CORRELATION),
    ):
        assert not images_to_decide(other, evidence)
    assert not images_to_decide(unclear, replace(evidence, scale="smoke"))
    assert not images_to_decide(unclear, replace(evidence, test_images=[]))


def test_the_sentence_on_a_paper() -> None:
    exact = Test(claim="cfa23/C1", estimand="a fact", estimators=[exactly(1.0)], exact=True, basis="computation")
    gain = Test(claim="cfa23/C13", estimand="a gain", estimators=[normal(9)])
    note = "the verdict follows by construction"
    constructed = Test(claim="cfa23/C12", estimand="a gain", estimators=[normal(99)], covers=("AT",), note=note)
    results = {"cfa23/T1": [result_of("reduced", *evaluate([exact, gain, constructed]))]}
    main = "Main statements: “Near the best epoch, larger radii harm hard classes”: not tested; "
    main += "“CFA improves average and worst class of AT, TRADES, FAT”: not tested. "
    assert findings_sentence("cfa23", results) == (
        f"{main}Of 27 statements, at reduced scale with 1 training of each model: "
        "2 supported (1 by exact computation), 1 inconclusive and 24 not tested."
    )
    several = result_of("medium", replace(evaluate([gain])[0], trainings=3))
    assert ", at reduced and medium scale with 1 to 3 trainings of each model: " in findings_sentence(
        "cfa23", {**results, "cfa23/E1": [several]}
    )
    assert findings_sentence("cfa23", {}) == f"{main}Of 27 statements: 27 not tested."
    assert findings_sentence("benz20", {}).endswith("Of 9 statements: 9 not tested; 2 open questions.")
    one = next(one for one in overviews("cfa23", results) if one.claim.id == "cfa23/C12")
    assert (one.whole, one.remark) == ("inconclusive", "1 of 3 parts supported")


def test_an_inconclusive_interval_that_excludes_zero_has_its_adjusted_p_value_beside_it() -> None:
    one = Verdict(claim="kdd21/C8", answer="inconclusive", estimand="rows", value=-1, low=-1, high=-0.4, adjusted=0.215)
    assert estimate_text(one) == ("-1.00", "-1.00 to -0.40 (95\N{NO-BREAK SPACE}%); adjusted p 0.215")
    assert "adjusted" not in estimate_text(replace(one, answer="contradicted"))[1]
    assert "adjusted" not in estimate_text(replace(one, high=0.1))[1]


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_claim_has_a_title_in_words(claim: str) -> None:
    title = catalogue.claim(claim).title
    assert len(title) <= catalogue.LONGEST_TITLE
    assert len(title.split()) >= 3
    assert title[-1] != "."


SMALL = Evidence(scale="small", trainings=1, data=("mnist",), train_images=(5000,), epochs=(5,))


def test_half_of_a_claim_is_partly_tested() -> None:
    """kdd21/C23 has three parts, two of them about attacked images."""
    half = Verdict(claim="kdd21/C23", answer="supported", estimand="a number", covers=("attacked against clean",))
    result = Result(item="kdd21/F5bc", evidence=SMALL, setting="", verdicts=(half,))
    (row,) = (row for row in claims_table("kdd21", {"kdd21/F5bc": [result]}).rows if row.name == "C23")
    assert (
        row.cells[-1].text
        == "partly tested: attacked against clean; not tested: much more on attacked images, standard training"
    )
    assert not row.good
    assert not row.weak
    assert row.cells[-1].span == "attacked against clean: supported at small scale: kdd21/F5bc"
    assert row.cells[3] == Cell("small", "1 training, 5,000 images of mnist, 5 epochs")
    assert verdict_table([half], SMALL).rows[0].cells[1].text == "attacked against clean: supported at small scale"


def test_a_summary_marks_verdicts_by_construction() -> None:
    """Where notes are not shown. An inconclusive verdict has no mark, nor has an exact one, whose text says "exact"."""
    note = "cosines: the verdict follows by construction"
    one = Verdict(claim="kdd21/C17", answer="supported", estimand="a number", covers=("smaller",), note=note)
    assert summary_text(one, SMALL, short=True) == "supported at small scale, by construction"
    assert summary_text(replace(one, note=""), SMALL, short=True) == "supported at small scale"
    assert summary_text(replace(one, answer="inconclusive"), SMALL, short=True) == "inconclusive at small scale"
    computed = replace(one, basis="computation", exact=True, note="")
    assert not by_construction(computed)
    assert summary_text(computed, SMALL) == "supported by exact computation"
    result = Result(
        item="kdd21/F3a", evidence=SMALL, setting="", verdicts=(replace(one, claim="kdd21/C16", covers=()),)
    )
    (row,) = (row for row in claims_table("kdd21", {"kdd21/F3a": [result]}).rows if row.name == "C16")
    assert "by construction" in row.cells[-1].text + str(row.cells[-1].span)


def test_default_parts_are_parts_of_their_claims() -> None:
    with_default = [claim for claim in CLAIMS if catalogue.claim(claim).default_part]
    assert "kdd21/C17" in with_default
    for claim in with_default:
        assert (claim, catalogue.claim(claim).default_part) in catalogue.claim_parts(claim)


def test_an_equivalent_part_of_a_claim() -> None:
    """iclr21/C13 includes the smoother confidences of kdd21/C29, not the distance to the decision boundary."""
    assert catalogue.claim_parts("iclr21/C13") == (
        ("iclr21/C13", "stronger models"),
        ("kdd21/C29", "smoother confidences"),
    )


PARTLY = ("kdd21/C1", "kdd21/C4", "iclr21/C5")


@pytest.mark.parametrize("claim", PARTLY)
def test_claims_with_sizes_that_no_test_checks_are_partly_tested(claim: str) -> None:
    """Even if every data set or base method is tested."""
    sizes = ("as printed", "almost monotonic")
    parts = [part for _, part in catalogue.claim_parts(claim)]
    tested = [verdict_of(claim, part) for part in parts if not part.endswith(sizes)]
    whole = claim_verdict(claim, tested)
    assert whole.partial
    assert all(part.endswith(sizes) for part in whole.untested)
