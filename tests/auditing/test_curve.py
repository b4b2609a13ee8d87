"""Robust radii of linear models, which have a closed form, and the curves computed from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from classwise.attacks.engine import AttackInputs, State
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.curve.bisection import Bisection, Brackets
from classwise.auditing.curve.result import COLUMNS, Curve
from classwise.auditing.curve.search import robustness_curve
from classwise.core.compute.precision import EXACT, Forward
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.data import load_data
from classwise.data.images import Images
from classwise.data.stream import Stream
from classwise.models import build_model
from classwise.reporting import export, report
from classwise.reporting.pages.curve import radius_table
from tests.auditing import toys
from tests.auditing.toys import Listener
from tests.refusals import check_refused

STRONG = "pgd:steps=20,step_size=0.1eps,objective=margin"


def exact(data: Images, net: toys.Linear, order: int) -> np.ndarray[Any, Any]:
    """(N,): the distance to the nearest face between two classes, in the norm whose dual has this order."""
    weight, logits = net.head.weight.detach().double(), net(data.pixels()).detach().double()
    rows = torch.arange(len(data))
    faces = torch.linalg.vector_norm(weight[data.y][:, None] - weight, ord=order, dim=2)
    radius = (logits[rows, data.y][:, None] - logits) / faces
    radius[rows, data.y] = torch.inf
    found: np.ndarray[Any, Any] = radius.min(1).values.clamp_min(0).numpy()
    return found


def search(**more: Any) -> Curve:
    chosen: dict[str, Any] = {
        "model": toys.model(),
        "data": toys.images(60),
        "attacks": STRONG,
        "highest": 0.1,
        "rounds": 5,
        "precision": EXACT,
        "batch_size": 32,
    }
    return robustness_curve(**(chosen | more))


@pytest.mark.parametrize(("norm", "order", "highest"), [("Linf", 1, 0.06), ("L2", 2, 0.3)])
def test_radii_of_a_linear_model_are_its_closed_form(norm: str, order: int, highest: float) -> None:
    data, net = toys.images(64, classes=2, strength=(0.0, 0.06)), toys.model(classes=2)
    truth = exact(data, net, order)
    # Whole steps, each of which halves the angle that is left in L2: exact in 20.
    attack = "pgd:steps=20,step_size=1eps,objective=margin"
    found = search(model=net, data=data, norm=norm, highest=highest, attacks=attack)
    frame, width = found.frame, highest / 2**5
    wrong, beyond = truth == 0, truth > highest
    assert 2 < wrong.sum() < 30
    assert 2 < beyond.sum() < 60, "the range should not hold every image"
    assert (frame[wrong]["high"] == 0).all()
    assert (frame[wrong]["first_success"] == "clean").all()
    assert np.isinf(frame[beyond]["high"]).all()
    assert frame[beyond]["first_success"].isna().all()
    between = frame[~wrong & ~beyond]
    inside = truth[~wrong & ~beyond]
    assert (between["low"] <= inside + 1e-6).all()
    assert (between["high"] >= inside - 1e-6).all()
    assert (between["high"] - inside).max() <= width * (1 + 1e-6)
    assert (between["high"] - between["low"]).max() <= width * (1 + 1e-6)
    assert found.width == pytest.approx(width)
    assert set(between["probes"]) == {6}


def test_accuracy_never_rises_and_brackets_the_audit() -> None:
    found = search(attacks=["pgd:steps=5", "fgsm"], model=toys.model(scale=1.0))
    table = found.table(np.linspace(0, 0.1, 41).tolist())
    for _, rows in table.groupby("class"):
        assert (np.diff(rows["accuracy"]) <= 0).all()
        assert (np.diff(rows["tested"]) <= 0).all()
        assert (rows["tested"] <= rows["accuracy"]).all()
        assert ((rows["low"] <= rows["accuracy"]) & (rows["accuracy"] <= rows["high"])).all()
    clean = table[(table["class"] == "overall") & (table["radius"] == 0)]
    assert clean["accuracy"].item() == clean["tested"].item() == (found.frame["high"] > 0).mean()
    wide = table[table["radius"] == 0.05].set_index("class")
    assert wide.loc["class 1", "n"] == 20


@pytest.mark.slow
def test_the_summary_agrees_with_the_radii() -> None:
    high = [0.0, 0.02, 0.04, 0.06, np.inf, 0.01, 0.03, np.inf, np.inf, np.inf]
    frame = pd.DataFrame({"index": range(10), "label": [0] * 5 + [2] * 5, "low": 0.0, "high": high})
    frame = frame.assign(first_success="pgd", probes=1, forwards=1, backwards=0)
    meta = search(rounds=1, attacks="fgsm").meta
    found = Curve(frame, meta, highest=0.1, rounds=3)
    assert list(found.summary.index) == ["class 0", "class 2", "overall"]
    assert found.weakest == "class 0"
    row = found.summary.loc["class 0"]
    assert row["mean"] == pytest.approx(0.044)
    assert row["clean"] == 0.8
    assert row["median"] == 0.04
    assert found.summary["median"]["class 2"] == np.inf
    # Ranks 2 and 9 of ten: P(Bin(10, 1/2) <= 1) = 0.011, and with rank 3 it would be 0.055.
    assert found.summary.loc["overall", "median_low"] == 0.01
    assert found.summary["median_high"]["overall"] == np.inf
    # The area under the accuracy, which is the mean radius.
    fine = found.table(np.linspace(0, 0.1, 201).tolist())
    assert fine[fine["class"] == "class 0"]["accuracy"].mean() * 0.1 == pytest.approx(0.044, abs=1e-3)
    check_refused(r"radius 0.2: must be from 0 to 0.1", found.table, [0.2])


def test_the_last_successful_attack_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[tuple[int, int], tuple[int, int]] = {}
    attack = Bisection._attack

    def watched(self: Bisection, place: int, *more: Any) -> Any:
        rows, found = more[3], more[5]
        for row in rows.tolist():
            first.setdefault((row, int(found.probes[row])), (place, int(found.attack[row])))
        return attack(self, place, *more)

    monkeypatch.setattr(Bisection, "_attack", watched)
    search(attacks=["pgd:steps=2,step_size=0.25eps", STRONG])
    known = [(place, last) for place, last in first.values() if last >= 0]
    assert {last for _, last in known} == {0, 1}
    assert all(place == last for place, last in known)
    assert {place for place, last in first.values() if last < 0} == {0}


def test_rows_do_not_depend_on_the_other_images() -> None:
    data = toys.images(60)
    whole = search(data=data, attacks=["fgsm", "pgd:steps=3"])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:20]
    some = search(data=data.take(order), attacks=["fgsm", "pgd:steps=3"])
    expected = whole.frame[whole.frame["index"].isin(order.numpy())].reset_index(drop=True)
    pd.testing.assert_frame_equal(some.frame, expected, check_exact=True)
    stream = search(data=Stream(list(zip(data.x, data.y, strict=True)), data.class_names), attacks="fgsm")
    pd.testing.assert_frame_equal(stream.frame, search(data=data, attacks="fgsm").frame, check_exact=True)


@configurable
class Nearest(PGD):
    """A PGD that records an adversarial example at a third of the radius."""

    records: ClassVar[Any] = (*PGD.records, "minimal_distance")

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        radius = inputs.threat.radius(inputs.x).flatten().expand(len(inputs.x))
        return super().start(model, inputs) | {"minimal_distance": radius / 3}


def test_the_minimal_distance_of_an_attack_narrows_the_bracket() -> None:
    assert search(attacks=Nearest(steps=2), rounds=1).frame["high"].max() < 0.1 / 3 + 1e-6
    plain = search(attacks=Nearest(steps=2), rounds=1, precision=type(EXACT)(dtype="bfloat16"))
    assert plain.frame["high"].max() > 0.1 / 3 + 1e-3, "what bfloat16 saw is not believed"


@pytest.mark.parametrize("attack", ["fab:steps=10", "fab-t:steps=10", "cw:steps=20,binary_search_steps=2"])
def test_an_example_beyond_the_probed_radius_is_no_success_at_it(attack: str) -> None:
    """A minimum-norm attack finds examples outside the ball of the probe; none is nearer than the closed form."""
    data, net = toys.images(40, classes=2, strength=(0.0, 0.06)), toys.model(classes=2)
    found, truth = search(model=net, data=data, attacks=attack, highest=0.06), exact(data, net, 1)
    assert (found.frame["high"].to_numpy() >= truth - 1e-6).all()
    assert (found.frame["high"].to_numpy() < np.inf).any()


def test_the_search_restarts_below_after_a_contradictory_success() -> None:
    found = Brackets(np.array([False, False]))
    assert found.probe(0.1, 1.0).tolist() == [1.0, 1.0]
    rows = np.array([0])
    found.set_adversarial(rows, np.array([0.8]), 0)
    found.set_robust(rows, np.array([0.4]))
    assert found.probe(0.1, 1.0)[0] == pytest.approx(0.6)
    found.set_adversarial(rows, np.array([0.3]), 1)
    assert (found.low[0], found.high[0], found.attack[0]) == (0.0, 0.3, 1)
    found.set_adversarial(rows, np.array([0.5]), 0)
    assert (found.high[0], found.attack[0]) == (0.3, 1)
    found.set_robust(np.array([1]), np.array([1.0]))
    assert np.isnan(found.probe(0.1, 1.0)[1])


def test_a_curve_is_loaded_from_its_folder(tmp_path: Path) -> None:
    found = search(attacks="fgsm", rounds=2)
    folder = found.save(tmp_path / "curve")
    again = Curve.load(folder)
    pd.testing.assert_frame_equal(again.frame, found.frame, check_exact=True)
    assert (again.meta, again.highest, again.rounds) == (found.meta, found.highest, found.rounds)
    assert list(again.frame.columns) == list(COLUMNS)
    found.save(folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    check_refused("not empty and contains no curve", found.save, tmp_path / "full")
    check_refused("contains no curve; create one with", Curve.load, tmp_path / "full")


@pytest.mark.slow
def test_the_page_and_the_files(tmp_path: Path) -> None:
    found = search(attacks="fgsm", rounds=3, highest=16 / 255)
    text = report(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"<em>{found.weakest}</em>" in text
    assert "Linf radius, in 1/255" in text
    assert "<svg" in text
    written = export(found, tmp_path / "files", ("csv", "md", "svg", "png"))
    assert {path.name for path in written} == {"curve.csv", "radii.csv", "radii.md", "curve.svg", "curve.png"}
    curves = pd.read_csv(tmp_path / "files" / "curve.csv")
    assert list(curves.columns) == ["class", "radius", "n", "accuracy", "low", "high", "tested"]
    assert len(curves) == 4 * 65
    assert [row.weak for row in radius_table(found).rows] == [True, False, False, False]


def test_the_range_is_twice_the_usual_one() -> None:
    data = load_data("digits", split="test", subset=20)
    net = build_model("small-cnn", num_classes=10, in_channels=1, width=0.1)
    found = robustness_curve(net, data, attacks="fgsm", rounds=1, batch_size=32)
    assert found.highest == pytest.approx(0.2)


class Hungry(toys.Linear):
    """A model that runs out of memory."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 40:
            raise torch.OutOfMemoryError
        return super().forward(x)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rounds": 0}, "rounds = 0: must be an integer from 1 to 30"),
        ({"highest": 0.0}, "highest = 0.0: must be a number above 0"),
        ({"highest": None}, "data set 'toy' has no usual Linf radius; give the largest to search"),
        ({"norm": "Linv"}, "norm = 'Linv': must be 'Linf'"),
        ({"norm": "Linf:0.1", "highest": None}, "norm = 'Linf:0.1': must be 'Linf'"),
        ({"attacks": "pdg"}, "did you mean 'pgd'"),
        ({"model": Hungry(toys.patterns(3), 0.2).eval(), "batch_size": 64}, "no memory for 64 images"),
    ],
)
def test_mistakes_are_one_line(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ClasswiseError, match=message) as caught:
        search(**more)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_interruption_does_not_change_the_result(tmp_path: Path) -> None:
    heard, out = Listener(), tmp_path / "curve"
    whole = search(progress=heard)
    assert [*heard.totals] == ["largest radius", *(f"round {number}" for number in range(1, 6))]
    for limit in (70, 130):
        with pytest.raises(KeyboardInterrupt) as stop:
            search(out=out, resume=True, progress=Listener(limit))
        assert stop.value.__notes__ == [f"the finished rounds are saved in {out}"]
    assert not (out / "radii.parquet").exists()
    rest = Listener()
    resumed = search(out=out, resume=True, progress=rest)
    assert rest.totals.keys().isdisjoint({"largest radius", "round 1"})
    pd.testing.assert_frame_equal(resumed.frame, whole.frame, check_exact=True)
    assert not (out / "rounds").exists()
    rest = Listener()
    loaded = search(out=out, resume=True, progress=rest)
    pd.testing.assert_frame_equal(loaded.frame, whole.frame, check_exact=True)
    assert rest.totals == {}


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"rounds": 4}, "rounds was 5, now 4"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"highest": 0.3}, 'threat was "Linf:0.1", now "Linf:0.3"'),
        ({"attacks": "fgsm"}, "attacks"),
        ({"model": toys.model(scale=2.0)}, "another model, or another normalisation of it (model_hash was "),
    ],
)
def test_another_search_is_refused(changes: dict[str, Any], differs: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(out=tmp_path / "curve", progress=Listener(1))
    check_refused(
        f"contains a curve with other settings: {re.escape(differs)}",
        search,
        out=tmp_path / "curve",
        resume=True,
        **changes,
    )


def test_a_search_is_not_repeated_by_mistake(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(out=tmp_path / "curve", progress=Listener(70))
    check_refused("already contains this curve with these settings: add --resume", search, out=tmp_path / "curve")
    (part,) = (tmp_path / "curve" / "rounds").glob("part-*")
    part.write_bytes(part.read_bytes()[:-20])
    check_refused(r"is damaged.*; remove it and resume", search, out=tmp_path / "curve", resume=True)
