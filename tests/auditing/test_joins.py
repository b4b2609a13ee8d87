"""Joined tables: whatever would make the result false is refused, the rest is recorded as unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from classwise.auditing.outcomes.table import Outcomes
from classwise.core.errors import ClasswiseError

LABELS = [0, 0, 0, 1, 1, 1]
CLEAN = [0, 0, 1, 1, 1, 1]
FIRST, SECOND = [0, 1, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0]
HASH = "ab" * 32


def table(attack: str = "pgd", predicted: list[int] | None = None, **changes: Any) -> Outcomes:
    given = {
        "labels": LABELS,
        "clean": CLEAN,
        "attacks": {attack: FIRST if predicted is None else predicted},
        "class_names": ["cat", "dog"],
        "threat": "Linf:8/255",
    }
    return Outcomes.from_predictions(**given | changes)


def other(**changes: Any) -> Outcomes:
    return table("cw", SECOND, **changes)


def with_radii(outcomes: Outcomes, radii: list[float]) -> Outcomes:
    radius = outcomes.frame["index"].map(dict(enumerate(radii)))
    frame = outcomes.frame.assign(epsilon=radius.where(outcomes.frame["attack"] != "clean", 0.0))
    return Outcomes(frame, dataclasses.replace(outcomes.meta, threat="Linf:per-image", norm="Linf"))


RADII = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
DIFFERENT: dict[str, Callable[[], tuple[Outcomes, Outcomes, str]]] = {
    "radius": lambda: (table(), other(threat="Linf:4/255"), "differ in threat: Linf:8/255 and Linf:4/255"),
    "norm": lambda: (table(), other(threat="L2:1"), "differ in threat: Linf:8/255 and L2:1"),
    "threat in words": lambda: (table(), other(threat="patch of 5x5"), "differ in threat: Linf:8/255 and patch of 5x5"),
    "one threat": lambda: (table(), other(threat=None), "differ in threat: Linf:8/255 and not stated"),
    "radii of images": lambda: (
        with_radii(table(), RADII),
        with_radii(other(), RADII[::-1]),
        "differ in threat: .*per-image",
    ),
    "radius of one image": lambda: (
        with_radii(table(), RADII),
        with_radii(other(), [*RADII[:5], 0.07]),
        "differ in threat",
    ),
    "clean predictions": lambda: (
        table(),
        other(clean=LABELS),
        r"clean predictions of 1 of 6 images \(image 2\).*: 1 and 0",
    ),
    "all clean": lambda: (table(), other(clean=[1 - label for label in CLEAN]), "clean predictions of 6 of 6 images"),
    "cascade": lambda: (table(), other(cascade=True), "cascade"),
    "cascade first": lambda: (table(cascade=True), other(), "cascade"),
    "two cascades": lambda: (table(cascade=True), other(cascade=True), "cascade"),
    "early stop": lambda: (table(early_stop=True), other(early_stop=False), "differ in early stop: True and False"),
    "model": lambda: (table(model="a"), other(model="b"), "differ in model: 'a' and 'b'"),
    "model hash": lambda: (table(model_hash=HASH), other(model_hash="cd" * 32), "differ in model hash"),
    "data": lambda: (table(data="a"), other(data="b"), "differ in data: 'a' and 'b'"),
    "split": lambda: (table(split="train"), other(split="test"), "differ in split"),
    "class order": lambda: (table(), other(class_names=["dog", "cat"]), "differ in class names: cat, dog and dog, cat"),
    "labels": lambda: (table(), other(labels=[1, *LABELS[1:]]), "different images or labels"),
    "attack": lambda: (table(), table(), "attack 'pgd' is in both"),
    "blank": lambda: (table(), table("pgd "), "but for blanks"),
    "family": lambda: (
        table(attacks={"a": FIRST, "b": FIRST}, families={"t": ("a", "b")}),
        table(attacks={"c": FIRST, "d": FIRST}, families={"t": ("c", "d")}),
        "family of attacks 't' is in both",
    ),
    "derived name": lambda: (
        table(attacks={"a": FIRST, "b": FIRST}, families={"t": ("a", "b")}),
        table("t-union"),
        "'t-union' is reserved",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_tables_that_contradict_each_other_do_not_join(what: str) -> None:
    first, second, message = DIFFERENT[what]()
    with pytest.raises(ClasswiseError, match=message):
        first.join(second)
    with pytest.raises(ClasswiseError, match=r"cannot be joined|is in both|is reserved|but for blanks"):
        second.join(first)


EQUAL: dict[str, Callable[[], tuple[Outcomes, Outcomes]]] = {
    "nothing stated": lambda: (table(threat=None), other(threat=None)),
    "threat in another form": lambda: (table(threat="linf:8/255"), other(threat="cifar10")),
    "radii of images": lambda: (with_radii(table(), RADII), with_radii(other(), RADII)),
    "one clean pass": lambda: (table(), other(clean=None)),
    "one model name": lambda: (table(model="net"), other()),
    "two paths of one model": lambda: (table(model="a", model_hash=HASH), other(model="b", model_hash=HASH)),
    "one early stop": lambda: (table(early_stop=True), other()),
}


@pytest.mark.parametrize("what", EQUAL)
def test_tables_that_agree_join(what: str) -> None:
    first, second = EQUAL[what]()
    for left, right in ((first, second), (second, first)):
        joined = left.join(right)
        assert joined.names[0] == "clean"
        assert {*joined.names} == {"clean", "pgd", "cw", "all"}
        np.testing.assert_array_equal(joined.correct("all"), left.correct("all") & right.correct("all"))


def test_settings_that_differ_by_attack_are_unknown_in_the_result() -> None:
    first = table(seed=1, batch_size=64, precision={"compute": "float32"}, early_stop=True, notes=("a",))
    joined = first.join(other(seed=2, batch_size=64, precision={"compute": "bfloat16"}, notes=("b", "a"))).meta
    assert (joined.seed, joined.batch_size, joined.precision, joined.early_stop) == (None, 64, {}, None)
    assert joined.notes == ("a", "b")
    assert joined.threat == "Linf:8/255"


def test_the_settings_of_a_clean_pass_do_not_count() -> None:
    """A table without attacks has no threat, and joins a cascade."""
    clean = table(attacks={}, threat="Linf:0", seed=5)
    attacked = other(cascade=True, early_stop=True, seed=3)
    for joined in (clean.join(attacked), attacked.join(clean)):
        assert joined.meta == attacked.meta
        pd.testing.assert_frame_equal(joined.frame, attacked.frame)


def test_an_attack_that_one_table_ran_is_applicable() -> None:
    lacking = table(attacks={"pgd": FIRST})
    meta = dataclasses.replace(lacking.meta, attacks={**lacking.meta.attacks, "cw": None}, not_applicable=("cw",))
    joined = Outcomes(lacking.frame, meta).join(other())
    assert joined.meta.not_applicable == ()
    assert joined.attacks == ("clean", "pgd", "cw")


def test_a_table_of_attacks_within_different_balls_is_refused() -> None:
    one, two = with_radii(table(), RADII), with_radii(other(), [*RADII[:5], 0.07])
    frame = pd.concat([one.frame, two.frame[two.frame["attack"] == "cw"]])
    meta = dataclasses.replace(one.meta, attacks={**one.meta.attacks, "cw": None})
    with pytest.raises(ClasswiseError, match=r"image 5 has the radius 0\.06 under one attack and 0\.07 under another"):
        Outcomes(frame, meta)


def test_rounding_may_change_a_clean_prediction_of_one_model() -> None:
    """On a GPU, one of two hundred; more, or any of models that are not known to be one, are other models."""
    labels = np.arange(200) % 2

    def audited(attack: str, changed: int, digest: str) -> Outcomes:
        clean = np.where(np.arange(200) < changed, 1 - labels, labels)
        return Outcomes.from_predictions(
            labels, clean, {attack: labels}, ["cat", "dog"], threat="Linf:8/255", model_hash=digest
        )

    joined = audited("pgd", 0, HASH).join(audited("cw", 2, HASH))
    assert joined.counts("clean").correct.tolist() == [100, 100]
    for changed, digest in ((3, HASH), (1, "")):
        with pytest.raises(ClasswiseError, match=f"clean predictions of {changed} of 200 images"):
            audited("pgd", 0, digest).join(audited("cw", changed, digest))
