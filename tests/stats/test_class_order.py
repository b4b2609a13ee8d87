"""The tests of the class order: false alarms by regime, detections by fault and number of images, exactness.

The table of ``docs/reference/guards/class-order.md`` is printed by ``python -m tests.stats.test_class_order``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from classwise.stats.class_order import (
    LEVEL,
    MOST_CLASSES,
    Chance,
    ClassOrder,
    at_chance,
    below_chance,
    explains_best,
    images_needed,
    likely_order,
)
from classwise.stats.counts import FloatArray, IntArray

Fault = Callable[[int], IntArray]


def names(classes: int) -> list[str]:
    return [str(label) for label in range(classes)]


def balanced(classes: int, images: int) -> IntArray:
    return np.arange(images) % classes


def predict(rates: FloatArray, labels: IntArray, seed: int) -> IntArray:
    """Sample predictions (N,) from the rates (C, C) of the outputs of each class."""
    uniform = np.random.default_rng(seed).random(len(labels))
    predictions: IntArray = np.minimum((uniform[:, None] > rates.cumsum(1)[labels]).sum(1), len(rates) - 1)
    return predictions


def accurate(classes: int, accuracy: float) -> FloatArray:
    """Rates of a model with the same accuracy in each class and uniform errors."""
    rates = np.full((classes, classes), (1 - accuracy) / max(classes - 1, 1))
    np.fill_diagonal(rates, accuracy)
    return rates


def faulty(order: IntArray, accuracy: float, images: int, seed: int) -> tuple[IntArray, IntArray]:
    """Labels and predictions of a model that is right up to an order of the classes."""
    labels = balanced(len(order), images)
    return labels, order[predict(accurate(len(order), accuracy), labels, seed)]


def rolled(classes: int) -> IntArray:
    return np.roll(np.arange(classes), -1)


def reverse(classes: int) -> IntArray:
    return np.arange(classes)[::-1]


def swapped(classes: int) -> IntArray:
    order = np.arange(classes)
    order[[0, classes - 1]] = classes - 1, 0
    return order


def as_text(classes: int) -> IntArray:
    """Folders sorted as text: 0, 1, 10, 11, 2."""
    text = sorted(names(classes))
    return np.array([text.index(name) for name in names(classes)])


def mixed(classes: int) -> IntArray:
    return np.random.default_rng(classes).permutation(classes)


def alarms(rates: FloatArray, labels: IntArray, runs: int = 40) -> int:
    """In how many runs a warning is raised."""
    found = 0
    for seed in range(runs):
        predictions = predict(rates, labels, seed)
        order = likely_order(labels, predictions, names(len(rates)))
        found += order is not None or below_chance(labels, predictions) is not None
    return found


def confused(own: float, other: float) -> FloatArray:
    """Cat (3) is recognised less often than it is mistaken for dog (5)."""
    rates = accurate(10, 0.6)
    rates[3] = (1 - own - other) / 8
    rates[3, 3], rates[3, 5] = own, other
    return rates


def dead(merged: float) -> FloatArray:
    """An output, 3, that is never predicted, and a class, 5, that takes all images of class 3."""
    rates = accurate(10, 0.8)
    rates[[3, 5]] = 0
    rates[3, 5], rates[5, 5], rates[5, 8] = 1, 1 - merged, merged
    return rates


def few_outputs(outputs: int) -> FloatArray:
    """A network that predicts a few outputs only, with an accuracy above chance."""
    rates = np.zeros((10, 10))
    rates[:, :outputs] = 0.4 / outputs
    rates[np.arange(10), np.arange(10) % outputs] += 0.6
    return rates


@pytest.mark.parametrize("images", [10, 60, 1000])
@pytest.mark.parametrize(
    "rates",
    [confused(0.25, 0.35), confused(0.2, 0.6), dead(0.5), dead(0.9), few_outputs(2), few_outputs(4)]
    + [accurate(classes, accuracy) for classes in (2, 3, 10, 100) for accuracy in (1.0, 0.6, 0.4)],
)  # fmt: skip
def test_real_confusions_are_no_order(rates: FloatArray, images: int) -> None:
    if rates.shape == (2, 2) and rates[0, 0] < 0.5:
        return  # that is below chance
    assert alarms(rates, balanced(len(rates), images), 3) == 0


@pytest.mark.parametrize("classes", [1, 2, 10, 100])
@pytest.mark.parametrize("images", [10, 150])
@pytest.mark.parametrize("kind", ["balanced", "majority", "single"])
@pytest.mark.parametrize("outputs", ["uniform", "skewed", "constant"])
def test_chance_is_no_order(classes: int, images: int, kind: str, outputs: str) -> None:
    """Of 6 runs at most one raises a warning; at a rate of 1 % two or more have a probability of 0.15 %."""
    labels = balanced(classes, images)
    if kind == "majority":
        labels = np.where(np.arange(images) < 0.9 * images, 0, labels)
    elif kind == "single":
        labels = np.where((labels == 0) & (np.arange(images) > 0), (labels + 1) % classes, labels)
    share = {"uniform": np.ones(classes), "skewed": 0.5 ** np.arange(min(classes, 50)), "constant": np.ones(1)}[outputs]
    row = np.zeros(classes)
    row[classes - len(share) :] = share / share.sum()
    found = alarms(np.tile(row, (classes, 1)), labels, 6)
    assert found <= (0 if outputs == "constant" else 1)


@pytest.mark.parametrize(
    ("fault", "classes", "accuracy", "images"),
    [
        (rolled, 2, 0.95, 100),
        (rolled, 3, 0.9, 120),
        (rolled, 10, 0.9, 100),
        (rolled, 10, 0.5, 400),
        (rolled, 100, 0.9, 100),
        (rolled, 100, 0.4, 400),
        (rolled, 1000, 0.7, 200),
        (reverse, 10, 0.9, 100),
        (reverse, 101, 0.7, 200),
        (as_text, 12, 0.9, 150),
        (as_text, 100, 0.4, 1000),
        (swapped, 10, 0.9, 400),
        (swapped, 10, 0.6, 2000),
        (swapped, 100, 0.8, 5000),
        (mixed, 10, 0.9, 150),
        (mixed, 10, 0.5, 1000),
        (mixed, 100, 0.4, 2000),
        (mixed, 300, 0.7, 3000),
    ],
)
def test_an_order_is_found(fault: Fault, classes: int, accuracy: float, images: int) -> None:
    order = fault(classes)
    for seed in range(2):
        found = likely_order(*faulty(order, accuracy, images, seed), names(classes))
        assert found is not None
        assert found.present < found.accuracy.value
        assert found.accuracy.low <= accuracy <= found.accuracy.high or seed  # a 95 % interval
        assert (found.order == order).mean() > (0.6 if fault is mixed else 0.99)


@pytest.mark.parametrize(
    ("fault", "classes", "name"),
    [
        (rolled, 10, "class i of the data is output i + 1 of the model"),
        (lambda classes: np.roll(np.arange(classes), 1), 10, "class i of the data is output i - 1 of the model"),
        (reverse, 10, "the outputs are in reverse order"),
        (as_text, 12, "the outputs are sorted by name as text"),
        (swapped, 10, ""),
    ],
)
def test_usual_orders_are_named(fault: Fault, classes: int, name: str) -> None:
    found = likely_order(*faulty(fault(classes), 0.9, 600, 0), names(classes))
    assert found is not None
    assert found.name == name


def test_folders_sorted_as_text_and_outputs_in_numeric_order() -> None:
    text = sorted(names(12))
    order = np.array([int(name) for name in text])
    found = likely_order(*faulty(order, 0.9, 200, 0), text)
    assert found is not None
    assert found.name == "the outputs are sorted by name with numbers in numeric order"
    assert found.order.tolist() == order.tolist()


@pytest.mark.parametrize("absent", [0, 4, 9])
def test_a_class_without_images_does_not_hide_a_shift(absent: int) -> None:
    labels, predictions = faulty(rolled(10), 0.9, 300, 0)
    there = labels != absent
    found = likely_order(labels[there], predictions[there], names(10))
    assert found is not None
    assert found.name.endswith("output i + 1 of the model")


def test_the_images_needed_are_the_fewest() -> None:
    needed = images_needed()
    for images in (needed - 2, needed):
        labels = balanced(10, images)
        found = likely_order(labels, (labels + 1) % 10, names(10))
        assert (found is not None) is (images == needed)


def test_many_classes_are_tested_for_usual_orders_only() -> None:
    classes = MOST_CLASSES + 1
    labels = balanced(classes, 2 * classes)
    assert likely_order(labels, (labels + 1) % classes, names(classes)) is not None
    assert likely_order(labels, mixed(classes)[labels], names(classes)) is None


@pytest.mark.parametrize(
    ("images", "hits", "expected"),
    [(80, 6, False), (80, 10, False), (80, 18, False), (80, 21, True), (8, 3, False), (8, 5, True), (8, 0, False)],
)
def test_above_chance_by_the_binomial_distribution(images: int, hits: int, expected: bool) -> None:
    """Balanced labels and outputs of 8 classes: the probability of as many hits at a rate of 1/8."""
    labels = np.arange(images) % 8
    predictions = labels.copy()
    predictions[hits:] = (predictions[hits:] + 1) % 8  # nearly balanced outputs
    outputs = np.bincount(predictions, minlength=8)
    rate = sum(np.bincount(labels, minlength=8)[label] * outputs[label] for label in range(8)) / images**2
    assert bool(stats.binom.sf(hits - 1, images, rate) < LEVEL) is expected
    found = at_chance(labels, predictions)
    assert (found is None) is expected
    assert found is None or found == pytest.approx((hits / images, rate))


def test_a_constant_output_is_at_chance_whatever_the_frequencies() -> None:
    labels = np.repeat([0, 1], [95, 5])
    assert at_chance(labels, np.zeros_like(labels)) == (0.95, 0.95)
    assert at_chance(labels, np.full_like(labels, -1)) == (0.0, 0.0)  # no prediction
    assert at_chance(labels, labels) is None
    assert at_chance(labels[:0], labels[:0]) is None
    assert at_chance(labels[labels == 0], labels[labels == 0]) is None  # of one class, no predictions depend on labels


def test_below_chance_is_an_exact_test() -> None:
    """Two classes of n images each, all wrong: of (2n)! / (n!)^2 tables one has no correct prediction."""
    for images in (2, 4, 8, 40):
        labels = balanced(2, 2 * images)
        expected = 1 / math.comb(2 * images, images) < LEVEL
        assert below_chance(labels, 1 - labels) == (Chance(0.0, 0.5) if expected else None)


@pytest.mark.parametrize("accuracy", [0.0, 0.05, 0.3])
def test_swapped_binary_labels_are_below_chance(accuracy: float) -> None:
    found = below_chance(*faulty(np.arange(2), accuracy, 200, 0))
    assert found is not None
    assert found.expected == pytest.approx(0.5, abs=0.02)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_any_table_has_a_valid_result(classes: int, pairs: list[tuple[int, int]]) -> None:
    labels, predictions = (np.array([pair[place] % classes for pair in pairs], dtype=np.int64) for place in (0, 1))
    found: ClassOrder | None = likely_order(labels, predictions, names(classes))
    if found is not None:
        assert sorted(found.order) == list(range(classes))
        assert found.accuracy.value > found.present
    low = below_chance(labels, predictions)
    assert low is None or low.accuracy < low.expected
    if explains_best(labels, predictions):
        assert found is None


SIZES = (20, 60, 200, 1_000, 10_000)


def uniform(classes: int) -> FloatArray:
    return np.full((1, classes), 1 / classes)


def skewed(classes: int) -> FloatArray:
    share = 0.7 ** np.arange(classes)
    rates: FloatArray = share[None, ::-1] / share.sum()
    return rates


def constant(classes: int) -> FloatArray:
    return np.eye(classes)[[-1]]


def majority(labels: IntArray) -> IntArray:
    """Nine tenths of the images are of class 0."""
    return np.where(np.arange(len(labels)) % 10 > 0, 0, labels)


MODELS: dict[str, tuple[FloatArray, IntArray | None]] = {
    **{f"at chance, {classes:,} classes": (uniform(classes), None) for classes in (2, 10, 100, 1000)},
    "at chance, unequal outputs, 10 classes": (skewed(10), None),
    "constant, 90 % of the images of another class, 10 classes": (constant(10), None),
    "at chance, unequal outputs, 90 % of the images of another class, 10 classes": (skewed(10), None),
    **{f"accuracy 40 %, {classes:,} classes": (accurate(classes, 0.4), None) for classes in (10, 100, 1000)},
    "accuracy 25 % of cat, 35 % of cats predicted as dog, 10 classes": (confused(0.25, 0.35), None),
    "one output never predicted, its class predicted as another, 10 classes": (dead(0.5), None),
    "two outputs only, 10 classes": (few_outputs(2), None),
    "**another order**": (uniform(1), None),
    "shifted by one, 2 classes, accuracy 95 %": (accurate(2, 0.95), rolled(2)),
    "swapped, 2 classes, accuracy 70 %": (accurate(2, 0.7), rolled(2)),
    "shifted by one, 10 classes, accuracy 90 %": (accurate(10, 0.9), rolled(10)),
    "shifted by one, 10 classes, accuracy 50 %": (accurate(10, 0.5), rolled(10)),
    "shifted by one, 100 classes, accuracy 40 %": (accurate(100, 0.4), rolled(100)),
    "shifted by one, 1,000 classes, accuracy 70 %": (accurate(1000, 0.7), rolled(1000)),
    "reversed, 10 classes, accuracy 90 %": (accurate(10, 0.9), reverse(10)),
    "sorted as text, 100 classes, accuracy 60 %": (accurate(100, 0.6), as_text(100)),
    "two of 10 classes swapped, accuracy 90 %": (accurate(10, 0.9), swapped(10)),
    "two of 10 classes swapped, accuracy 60 %": (accurate(10, 0.6), swapped(10)),
    "two of 100 classes swapped, accuracy 80 %": (accurate(100, 0.8), swapped(100)),
    "random order, 10 classes, accuracy 90 %": (accurate(10, 0.9), mixed(10)),
    "random order, 100 classes, accuracy 50 %": (accurate(100, 0.5), mixed(100)),
    "random order, 1,000 classes, accuracy 70 %": (accurate(1000, 0.7), mixed(1000)),
}
"""Models with their rates, and the order of their outputs; None for the right one."""


def warned(what: str, images: int, seed: int) -> bool:
    """Whether there is a warning about one set of images."""
    rates, order = MODELS[what]
    classes, generator = rates.shape[1], np.random.default_rng(seed)
    labels = majority(balanced(classes, images)) if "90 % of the images" in what else balanced(classes, images)
    predictions = np.empty_like(labels)
    for label in np.unique(labels):
        which = labels == label
        predictions[which] = generator.choice(classes, which.sum(), p=rates[label % len(rates)])
    predictions = predictions if order is None else order[predictions]
    found = likely_order(labels, predictions, names(classes))
    return found is not None or below_chance(labels, predictions) is not None


def main() -> None:
    """Print the shares of warnings, in percent."""
    heads = " | ".join(f"{images:,}" for images in SIZES)
    sys.stdout.write(f"| model | {heads} |\n| --- |{' --- |' * len(SIZES)}\n")
    for what in MODELS:
        cells = []
        for images in SIZES:
            runs = 0 if what.startswith("**") else 200 if images > 1000 else 1000
            cells.append(f"{100 * np.mean([warned(what, images, seed) for seed in range(runs)]):.1f}" if runs else "")
        sys.stdout.write(f"| {what} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
