"""Items about single images: choice of the image, its trace, and the frequency of the pattern."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from classwise.data import Images, load_data
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Context, Training
from classwise.papers.experiments.protocol import PGD, choose_image, mean, official, proportion
from classwise.papers.experiments.temperature import AlongAttack, shown
from classwise.papers.scales import SMOKE
from classwise.papers.store import Store

RIGHT = np.array([[1, 1, 0, 0, 1], [1, 0, 1, 0, 0]], dtype=bool)


def cifar(name: str = "cifar10", size: int = 10_000, start: tuple[int, ...] = (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)) -> Images:
    """One-pixel images with the first labels of the official order."""
    labels = torch.arange(size) % 10
    labels[: len(start)] = torch.tensor(start)
    return Images(torch.zeros(size, 3, 1, 1, dtype=torch.uint8), labels, name=name)


def test_image_indices_of_a_paper_require_the_official_order() -> None:
    assert official(cifar())
    assert not official(cifar(name="cifar100"))
    assert not official(cifar(size=1000))
    assert not official(cifar(start=(0, 1, 2, 3)))
    assert choose_image(cifar(), 127, [5]) == (127, "Image 127 of CIFAR-10's test set, as in the paper.")
    number, found = choose_image(cifar(size=1000), 127, np.array([5, 2]))
    assert number == 5
    assert "shown is image 5, the first with the same property" in found
    last = cifar(size=20).take(torch.arange(7, 20))
    number, found = choose_image(last, 127, [])
    assert number == 7
    assert "no image here has the same property, and image 7 is shown" in found
    assert choose_image(last, 127, [], 12)[0] == 12


def test_patterns() -> None:
    tempered, outputs = experiment("iclr21/F5f-h"), experiment("iclr21/F5b-d")
    assert isinstance(tempered, AlongAttack)
    assert isinstance(outputs, AlongAttack)
    assert tempered.arises(RIGHT).tolist() == [False, True, False, False, True]
    assert outputs.arises(RIGHT).tolist() == [True, False, False, False, False]


def test_shares_and_means() -> None:
    ends = pytest.approx((0.6, 0.1466, 0.9473), abs=1e-4)  # Clopper and Pearson's interval of 3 in 5, from a table
    assert proportion(RIGHT[0]) == ends
    assert mean(np.array([1.0, 1.0, 1.0, 0.0, 0.0])) == ends
    value, low, high = mean(np.tile([0.2, 0.3], 500))  # for many values the normal interval
    assert value == pytest.approx(0.25)
    assert [low, high] == pytest.approx(
        [0.25 - 1.96 * 0.05 / np.sqrt(1000), 0.25 + 1.96 * 0.05 / np.sqrt(1000)], abs=2e-3
    )


def test_steps_shown() -> None:
    assert [shown(steps) for steps in (20, 5, 1)] == [(1, 10, 20), (1, 2, 5), (1,)]


@pytest.mark.slow
def test_the_trace_of_an_image_agrees_with_the_full_audit(tmp_path: Path) -> None:
    """The numbers are equal although only one image is attacked; the audit without a trace is a separate one."""
    context = Context(SMOKE, Store(tmp_path / "store"))
    images = load_data("digits", split="train", subset=120)
    trained = context.train(Training(recipe="at", overrides={"epochs": 2}), images=images)
    attack = {"PGD": context.pgd(PGD)}
    everything = context.audit(trained, attack).outcomes.rows("PGD").set_index("index")
    number = int(everything.index[7])
    one = context.test_images.take(context.test_images.index == number)
    audit = context.audit(trained, attack, images=one, trace=[number])
    assert audit.trace is not None
    assert context.audit(trained, attack, images=one).trace is None
    last = audit.trace[audit.trace["iteration"] == SMOKE.attack_steps].sort_values("class")
    assert set(last["index"]) == {number}
    confidence = last["confidence"].to_numpy()
    row = everything.loc[number]
    assert confidence.argmax() == row["prediction"]
    assert confidence[row["label"]] == pytest.approx(row["p_label"], rel=1e-6)
    again = context.audit(trained, attack, images=one, trace=[number])
    assert again.trace is not None
    assert again.trace.equals(audit.trace)
