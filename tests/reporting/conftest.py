from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.result import Audit
from classwise.stats.counts import ClassCounts

NAMES = ("airplane", "automobile", "bird", "cat")
SUPERCLASSES: dict[str, Any] = {"superclasses": (0, 0, 1, 1), "superclass_names": ("vehicles", "animals")}


@pytest.fixture
def names() -> tuple[str, ...]:
    return NAMES


@pytest.fixture
def counts() -> dict[str, ClassCounts]:
    """Four classes of 1000 images under three attacks; the cat is worst but for the clean images."""
    images = np.full(4, 1000)
    return {
        "clean": ClassCounts(images, np.array([900, 950, 700, 710])),
        "pgd": ClassCounts(images, np.array([600, 650, 300, 150])),
        "all": ClassCounts(images, np.array([590, 640, 290, 140])),
    }


MakeAudit = Callable[..., Audit]


@pytest.fixture
def make_audit() -> MakeAudit:
    return audit_of


def audit_of(
    classes: int = 4,
    per_class: int = 100,
    names: tuple[str, ...] | None = None,
    accuracy: tuple[float, ...] | None = None,
    seed: int = 0,
    meta: dict[str, Any] | None = None,
    **audit: Any,
) -> Audit:
    """An audit under clean, pgd and cw: class c keeps exactly ``accuracy[c]`` under both attacks together.

    The first images of a class stand. The rest fall to pgd, but for the last tenth of a class, which falls to cw only.
    Errors go to the next class. One image in twenty is wrong when clean.
    """
    known = names or (NAMES if classes == 4 else tuple(f"class {label}" for label in range(classes)))
    share = accuracy or tuple(np.random.default_rng(seed).uniform(0.1, 0.8, classes))
    labels = np.repeat(np.arange(classes), per_class)
    place = np.tile(np.arange(per_class), classes) / per_class
    other = (labels + 1) % classes
    robust = place < np.asarray(share)[labels] - 1e-9
    clean = np.where((place >= 0.85) & (place < 0.9) & ~robust, other, labels)
    pgd = np.where(robust | (place >= 0.9), labels, other)
    cw = np.where(robust, labels, other)
    about: dict[str, Any] = {
        "data": "toy",
        "split": "test",
        "threat": "Linf:8/255",
        "model": "tiny",
        "model_hash": "ab" * 32,
        "seed": 0,
    }
    outcomes = Outcomes.from_predictions(labels, clean, {"pgd": pgd, "cw": cw}, known, **about | (meta or {}))
    return Audit(outcomes, **audit)
