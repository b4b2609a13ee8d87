"""The optimality of attacks: areas under curves by integration, values by hand, and curves that cannot be compared."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classwise.auditing.curve.optimality import optimality
from classwise.auditing.curve.result import Curve
from classwise.auditing.curve.search import robustness_curve
from classwise.core.compute.precision import EXACT
from tests.auditing import toys
from tests.auditing.test_curve import search
from tests.refusals import check_refused

RADII = (0.0, 0.01, 0.025, 0.05, 0.1, np.inf)


@cache
def plain() -> Curve:
    """A curve of two images of each of three classes, up to 0.1."""
    return search(data=toys.images(6), attacks="fgsm", rounds=1)


def with_radii(radii: Any) -> Curve:
    return dataclasses.replace(plain(), frame=plain().frame.assign(high=np.asarray(radii, dtype=np.float64)))


def integrated(radii: list[float], best: list[float]) -> float:
    """1 minus the area between the curves over the largest one possible, on a fine grid up to the largest radius."""
    largest = min(max(best), plain().highest)
    grid = (np.arange(5_000) + 0.5) / 5_000 * largest
    known = np.array(best)[:, None] > 0
    accuracy, least = (((np.array(values)[:, None] > grid) & known).mean(axis=0) for values in (radii, best))
    possible = (known.mean() - least).sum()
    return float(1 - (accuracy - least).sum() / possible) if possible else 1.0


def test_by_hand() -> None:
    """Images 0 and 3 are of class 0: the best radii are 0.01 and 0.03, so D = 0.03, A* = 0.02 and A0 = 0.03."""
    found = optimality(
        {
            "best": with_radii([0.01, 0, 0.02, 0.03, 0.05, 0.02]),
            "half": with_radii([0.02, 0, 0.02, 0.03, 0.05, 0.02]),
            "none": with_radii([np.inf, 0, 0.02, np.inf, 0.07, 0.09]),
        }
    )
    assert found["n"].tolist() == [2, 2, 2, 6]
    values = found[["best", "half", "none"]].to_numpy()
    assert values[0].tolist() == pytest.approx([1, 0.5, 0])
    assert values[1:3].tolist() == [[1, 1, 1]] * 2  # the attacks differ only above the largest best radius


@settings(max_examples=30)
@given(st.lists(st.lists(st.sampled_from(RADII), min_size=6, max_size=6), min_size=2, max_size=3))
def test_it_is_the_area_between_the_curves(radii: list[list[float]]) -> None:
    found = optimality({f"attack {place}": with_radii(values) for place, values in enumerate(radii)})
    columns = [name for name in found if name != "n"]
    assert found[columns].to_numpy().min() >= -1e-12
    assert found[columns].to_numpy().max() <= 1 + 1e-12
    best = np.min(radii, axis=0)
    for place, values in enumerate(radii):
        assert found.loc["overall", f"attack {place}"] == pytest.approx(integrated(values, best.tolist()), abs=2e-3)
        for label in range(3):
            expected = integrated(values[label::3], best[label::3].tolist())
            assert found.loc[f"class {label}", f"attack {place}"] == pytest.approx(expected, abs=2e-3)
    found = optimality({"least": with_radii(best), "first": with_radii(radii[0])})
    assert (found["least"] == 1).all()


@pytest.mark.slow
def test_a_weaker_attack_has_less_on_a_linear_model() -> None:
    """There PGD on the margin finds the exact radii, up to a bracket; half of such a step needs nearly twice these."""
    net, data = toys.model(), toys.images(30)
    named = {
        name: robustness_curve(net, data, "Linf", attack, highest=0.1, rounds=6, precision=EXACT, batch_size=32)
        for name, attack in (("strong", "pgd:objective=margin,step_size=1eps"), ("weak", "fgsm:step_size=0.5eps"))
    }
    found = optimality(named)
    assert float(found["strong"].min()) > 0.95
    assert float(found["weak"].max()) < 0.9
    assert found.index.tolist() == ["class 0", "class 1", "class 2", "overall"]


def test_curves_that_cannot_be_compared_are_refused() -> None:
    check_refused("at least two attacks; got 1", optimality, {"a": plain()})
    others = {
        "images": dataclasses.replace(
            plain(), frame=plain().frame.assign(label=plain().frame["label"].to_numpy()[::-1])
        ),
        "models": dataclasses.replace(plain(), meta=dataclasses.replace(plain().meta, model_hash="0" * 64)),
        "threats": dataclasses.replace(plain(), highest=0.2),
    }
    for what, other in others.items():
        check_refused(f"the curves 'a' and 'b' have different {what}", optimality, {"a": plain(), "b": other})
