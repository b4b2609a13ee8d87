"""The steps and seconds that an attack has left, and those that its engine reports."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch

from classwise.attacks.engine import Engine, Job, StepsLeft
from classwise.attacks.engine import steps as steps_module
from classwise.attacks.gradient.ascent import PGD
from classwise.threat.ball import Threat
from tests.auditing import toys

LENGTH = 50


def simulated(hazard: float, images: int, until: int, slots: int = 20) -> tuple[StepsLeft, float]:
    """The estimate after some steps of images that end with a fixed probability at each, and their true mean steps."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.geometric(hazard, images) if hazard else np.full(images, LENGTH), LENGTH)
    left = StepsLeft()
    left.begin(images, 1, LENGTH, slots)
    waiting, running = list(range(slots, images)), dict.fromkeys(range(slots), 0)
    for _ in range(until):
        if not running:
            break
        running = {image: taken + 1 for image, taken in running.items()}
        ids = torch.tensor([[image, 0] for image in running])
        taken = torch.tensor(list(running.values()))
        ended = taken >= torch.from_numpy(lengths)[ids[:, 0]]
        left.stepped(1, ids, LENGTH - taken, ended, ended & (taken < LENGTH))
        running = {image: taken for image, taken in running.items() if taken < lengths[image]}
        while waiting and len(running) < slots:
            running[waiting.pop(0)] = 0
    return left, float(lengths.mean())


@pytest.mark.parametrize("hazard", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("until", [10, 45, 90])
def test_the_mean_steps_are_in_the_range_before_the_first_image_has_run_to_the_end(hazard: float, until: int) -> None:
    left, mean = simulated(hazard, 200, until)
    low, high = left.of_an_image()
    assert 0.6 * low <= mean <= 1.6 * high
    if until > LENGTH:
        assert low == pytest.approx(high)
        assert mean == pytest.approx(high, rel=0.35)


def test_the_last_images_need_no_longer_than_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one have ended at their first step, and it has five left."""
    times = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))
    left = StepsLeft()
    left.begin(images=10, starts=1, length=100, slots=10)
    every = torch.tensor([[image, 0] for image in range(10)])
    ended = torch.arange(10) > 0
    left.stepped(1, every, torch.full((10,), 99), ended, ended)
    left.stepped(94, every[:1], torch.tensor([5]), ended[:1], ended[:1])
    low, high = left.seconds()
    assert 0 < low <= high <= 5


def test_an_engine_reports_the_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "REPORT_SECONDS", 0.0)
    reports: list[tuple[float, float]] = []
    engine, data = Engine(toys.model(), batch_size=32), toys.images(40)
    jobs = [Job(data.index, data.pixels(), data.y)]
    for images, expected in ((40, True), (None, False)):
        reports.clear()
        left = StepsLeft(lambda low, high: reports.append((low, high)))
        list(engine.attack(PGD(steps=10), Threat("Linf", 0.001), jobs, images=images, steps_left=left))
        assert bool(reports) == expected
        assert all(0 <= low <= high for low, high in reports)
        assert not reports or reports[-1][1] < reports[0][1] or reports[-1][1] == 0
