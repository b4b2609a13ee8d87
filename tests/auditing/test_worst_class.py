from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import classwise as cw
from classwise.auditing.run import inputs
from classwise.auditing.run.audit import Audit
from classwise.auditing.worst_class import rounds
from classwise.auditing.worst_class.result import WorstClass
from classwise.data.images import Images
from classwise.models import build_model
from tests.auditing.toys import Listener
from tests.refusals import check_refused

from .toys import Linear, images, model, patterns

SUITE = ("fgsm:step_size=0.9eps", "fgsm:step_size=0.97eps", "fgsm:step_size=0.99eps", "pgd:steps=2,step_size=1eps")
"""On a linear model one full step is the strongest attack, so that later attacks succeed on survivors."""
REAL = ("pgd:steps=2", "pgd:steps=4,objective=margin", "tpgd:steps=4,inverse_temperature=5")
STRENGTH = (0.032, 0.037, 0.042, 0.04)
EPSILON = "Linf:0.03"
QUICK: dict[str, Any] = {"batch_size": 32}


@pytest.fixture(scope="module")
def data() -> Images:
    return images(480, classes=4, strength=STRENGTH, noise=0.05)


@pytest.fixture(scope="module")
def full(data: Images) -> Audit:
    """The ground truth: the whole suite in cascade on every image."""
    return cw.audit(model(4), data, EPSILON, SUITE, cascade=True, **QUICK)


@pytest.fixture(scope="module")
def found(data: Images) -> WorstClass:
    return cw.find_worst_class(model(4), data, EPSILON, SUITE, **QUICK)


def passes(audit: Audit) -> int:
    frame = audit.outcomes.frame
    return int(frame["forwards"].sum() + frame["backwards"].sum())


@pytest.mark.slow
def test_it_finds_the_worst_class_of_the_full_audit(found: WorstClass, full: Audit) -> None:
    assert found.worst == full.worst_class().name
    assert found.verdict.settled
    truth = full.by_class["all"].to_numpy()
    assert (found.by_class["low"].to_numpy() <= truth + 1e-12).all()
    assert (truth <= found.by_class["high"].to_numpy() + 1e-12).all()
    assert found.by_class["clean"].to_numpy() == pytest.approx(full.by_class["clean"].to_numpy())
    assert found.by_class["first"].to_numpy() == pytest.approx(full.by_class["fgsm"].to_numpy())


@pytest.mark.slow
def test_settled_images_have_the_verdicts_of_the_full_audit(found: WorstClass, full: Audit) -> None:
    frame = full.outcomes.frame
    success = frame[~frame["correct"].astype(bool)].groupby("index")["first_success"].first()
    settled = found.images[found.images["settled"]].set_index("index")
    assert len(settled) < len(found.images)
    theirs = success.reindex(settled.index)
    assert settled["first_success"].fillna("").tolist() == theirs.fillna("").tolist()
    cost = frame.groupby("index")[["forwards", "backwards"]].sum().loc[settled.index]
    assert np.array_equal(settled[["forwards", "backwards"]].to_numpy(), cost.to_numpy())
    assert found.verdict.unsettled == int((~found.images["settled"]).sum()) == int(found.by_class["unsettled"].sum())


def test_it_costs_less_and_estimates_the_cost_of_a_full_audit(found: WorstClass, full: Audit) -> None:
    assert found.passes < 0.9 * passes(full)
    assert found.full_audit_passes == pytest.approx(passes(full), rel=0.1)


@pytest.mark.slow
def test_a_tie_costs_no_more_than_the_full_audit() -> None:
    """Two mirror-image classes have the same verdicts, so that the race is decided by the last image."""
    one = images(40, classes=1, strength=0.032)
    x = torch.cat([one.pixels(), 1 - one.pixels()])
    mirrored = Images(x, torch.arange(2).repeat_interleave(40), name="mirrored")
    net = Linear(torch.cat([patterns(1), -patterns(1)]), 0.2).eval()
    result = cw.find_worst_class(net, mirrored, EPSILON, SUITE, **QUICK)
    whole = cw.audit(net, mirrored, EPSILON, SUITE, cascade=True, **QUICK)
    assert 0 < whole.worst_class().accuracy < whole.by_class["fgsm"].min()
    assert result.possibly == ("0", "1")
    assert result.verdict.low <= whole.worst_class().accuracy <= result.verdict.high
    assert result.verdict.unsettled < 5
    assert result.passes <= 1.01 * passes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_short_suites(data: Images, count: int) -> None:
    """With one attack the first pass settles every image; with two, the second attack is the rest of the suite."""
    result = cw.find_worst_class(model(4), data, EPSILON, SUITE[:count], **QUICK)
    whole = cw.audit(model(4), data, EPSILON, SUITE[:count], cascade=True, **QUICK)
    assert result.worst == whole.worst_class().name
    assert result.passes <= passes(whole)
    if count == 1:
        assert (result.verdict.unsettled, result.rounds) == (0, 0)
        assert result.by_class["estimate"].to_numpy() == pytest.approx(whole.by_class["all"].to_numpy())


@pytest.mark.slow
def test_on_digits() -> None:
    digits = cw.load_data("digits").take(slice(0, 200))
    torch.manual_seed(0)
    net = build_model("small-cnn", num_classes=10, in_channels=1, width=0.1)
    fit(net, digits)
    result = cw.find_worst_class(net, digits, "Linf:0.1", REAL, **QUICK)
    whole = cw.audit(net, digits, "Linf:0.1", REAL, cascade=True, **QUICK)
    truth = whole.by_class["all"]
    assert truth[result.worst] == truth.min()
    assert set(truth.index[truth == truth.min()]) <= set(result.possibly)
    assert result.passes <= 1.01 * passes(whole)


def fit(net: nn.Module, data: Images) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x, y = data.pixels(), data.y
    for _ in range(30):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(net(x), y))
        optimizer.step()


def test_the_guarantee_is_stated(found: WorstClass) -> None:
    said = found.sentence
    for part in ("95 % confidence", f"no class is below {found.worst}", "these 480 images (toy)", "seed 0"):
        assert part in said
    assert "fgsm, fgsm-2, fgsm-3, pgd at Linf:0.03" in said
    slack = cw.find_worst_class(
        model(4), images(48, 4, strength=STRENGTH), EPSILON, SUITE, tolerance=0.05, confidence=0.9
    )
    assert "90 % confidence" in slack.sentence
    assert f"no class is more than 5 points below {slack.worst}" in slack.sentence


def test_the_seed_determines_the_order(data: Images, found: WorstClass) -> None:
    again, other = (cw.find_worst_class(model(4), data, EPSILON, SUITE, seed=seed, **QUICK) for seed in (0, 1))
    pd.testing.assert_frame_equal(again.images, found.images)
    assert not again.images["settled"].equals(other.images["settled"])


def test_a_stream_gives_the_same_result(data: Images, found: WorstClass) -> None:
    blocks = [(data.pixels(slice(i, i + 100)), data.y[i : i + 100]) for i in range(0, len(data), 100)]
    streamed = cw.find_worst_class(model(4), blocks, EPSILON, SUITE, **QUICK)
    assert streamed.images.drop(columns="index").equals(found.images.drop(columns="index"))


def test_images_keep_their_names(tmp_path: Path) -> None:
    toy = images(48, 4, strength=STRENGTH)
    names = np.array([f"{row}.png" if row % 4 else "" for row in range(48)], dtype=object)
    found = cw.find_worst_class(model(4), dataclasses.replace(toy, image_names=names), EPSILON, SUITE, out=tmp_path)
    expected = [name or None for name in names]
    for table in (found.images, pd.read_parquet(tmp_path / "rounds.parquet")):
        assert table["name"].astype(object).where(table["name"].notna(), None).tolist() == expected
    assert cw.find_worst_class(model(4), toy, EPSILON, SUITE).images["name"].isna().all()


def test_radii_may_differ_between_images() -> None:
    toy = images(96, classes=3, strength=0.045)
    radius = torch.where(toy.y == 1, 0.05, 0.01)
    result = cw.find_worst_class(model(3), toy, cw.Threat("Linf", radius), SUITE)
    assert result.worst == "class 1"


def test_the_time_limit(data: Images) -> None:
    result = cw.find_worst_class(model(4), data, EPSILON, SUITE, max_time=1e-6, **QUICK)
    assert not result.verdict.settled
    assert "stopped" in result.sentence
    assert result.possibly == ("class 0", "class 1", "class 2", "class 3")


def test_the_model_is_unchanged(data: Images) -> None:
    net = model(4).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    cw.find_worst_class(net, data, EPSILON, SUITE, **QUICK)
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"confidence": 0.0}, "confidence = 0.0"),
        ({"tolerance": -1.0}, "tolerance = -1.0"),
        ({"early_stop": True}, "unknown argument of find_worst_class"),
        ({"max_time": 0}, "max_time = 0"),
        ({"batch_size": 8}, "batch_size = 8"),
        ({"attacks": "pdg"}, "did you mean"),
    ],
)
def test_bad_input(data: Images, settings: dict[str, object], said: str) -> None:
    with pytest.raises(cw.ClasswiseError, match=said):
        cw.find_worst_class(model(4), data, EPSILON, **settings)  # type: ignore[arg-type]


def same(one: WorstClass, other: WorstClass) -> bool:
    pd.testing.assert_frame_equal(one.images, other.images, check_exact=True)
    pd.testing.assert_frame_equal(one.by_class, other.by_class, check_exact=True)
    facts = [(result.verdict, result.rounds, result.full_audit_passes, result.passes) for result in (one, other)]
    return facts[0] == facts[1]


@pytest.mark.slow
@pytest.mark.parametrize("attacks", [SUITE, SUITE[:2], SUITE[:1]])
def test_interruption_does_not_change_the_result(attacks: tuple[str, ...], data: Images, tmp_path: Path) -> None:
    def search(**more: Any) -> WorstClass:
        return cw.find_worst_class(model(4), data, EPSILON, attacks, **QUICK, **more)

    whole, out = search(), tmp_path / "search"
    stops, notes = 0, set[str]()
    for limit in (100, 490, 30, 30):  # in the first pass, which has 480 images, and in rounds
        rest = Listener(limit)
        try:
            search(out=out, resume=True, progress=rest)
        except KeyboardInterrupt as stop:
            stops += 1
            notes |= {*getattr(stop, "__notes__", ())}
    assert stops >= (1 if len(attacks) == 1 else 2)
    assert notes == (set() if len(attacks) == 1 else {f"the finished rounds are saved in {out}"})
    rest = Listener()
    assert same(search(out=out, resume=True, progress=rest), whole)
    assert "clean, fgsm" not in rest.totals
    rest = Listener()
    assert same(search(out=out, resume=True, progress=rest), whole)
    assert rest.totals == {}


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_the_first_pass_is_continued(
    data: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    """Interrupted after every 100 images, the search attacks only the others."""
    source: Any = list(zip(torch.split(data.x, 50), torch.split(data.y, 50), strict=True)) if streamed else data
    monkeypatch.setattr(inputs, "PIECE_BYTES", 150 * data.x[0].nbytes)

    def search(**more: Any) -> WorstClass:
        return cw.find_worst_class(model(4), source, EPSILON, SUITE, **QUICK, **more)

    whole, out = search(), tmp_path / "search"
    monkeypatch.setattr(rounds, "SAVE_SECONDS", 0.0)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt) as stop:
            search(out=out, resume=True, progress=Listener(100))
        assert stop.value.__notes__ == [f"the finished images are saved in {out}"]
    rest = Listener()
    assert same(search(out=out, resume=True, progress=rest), whole)
    assert 0 < rest.totals["clean, fgsm"] < 480 - 3 * 50 or streamed  # nobody knows the length of a stream


def test_a_search_that_reached_its_time_limit_is_continued(data: Images, found: WorstClass, tmp_path: Path) -> None:
    out = tmp_path / "search"
    short = cw.find_worst_class(model(4), data, EPSILON, SUITE, **QUICK, out=out, max_time=1e-9)
    assert short.rounds == 0
    assert not short.verdict.settled
    assert same(cw.find_worst_class(model(4), data, EPSILON, SUITE, **QUICK, out=out, resume=True), found)


def test_another_search_is_refused(data: Images, tmp_path: Path) -> None:
    def search(attacks: tuple[str, ...] = SUITE[:1], **more: Any) -> WorstClass:
        return cw.find_worst_class(model(4), data, EPSILON, attacks, **QUICK, out=tmp_path, **more)

    search()
    check_refused("contains this worst-class search with these settings: add --resume", search)
    for changes, differs in (({"confidence": 0.9}, "alpha was 0.05, now 0.1"), ({"seed": 3}, "seed was 0, now 3")):
        check_refused(f"contains a worst-class search with other settings: {differs}", search, resume=True, **changes)
    (tmp_path / "rounds.parquet").write_bytes(b"PAR1")
    check_refused(r"is damaged.*; remove it and resume", search, resume=True)


@pytest.mark.parametrize(
    ("threat", "labels"),
    [
        ("Linf:0.03", ["apgd-ce", "apgd-t", "fab-t", "square"]),
        ("L1:1", ["apgd-ce", "apgd-t"]),
        ("recolour:0.03", ["apgd-ce", "apgd-t"]),
        ("spatial:0.1", ["worst-of-10", "spatial-grid"]),
    ],
)
def test_the_default_suite_supports_the_threat(threat: str, labels: list[str]) -> None:
    misclassified = images(4, classes=4, strength=-0.2)
    assert list(cw.find_worst_class(model(4), misclassified, threat, **QUICK).meta.applicable) == ["clean", *labels]
