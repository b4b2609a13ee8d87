"""Descriptions of parts."""

from __future__ import annotations

from typing import Any

import pytest

from classwise.attacks import ATTACKS
from classwise.core.settings.bibliography import PAPERS, line_of
from classwise.core.settings.config import make
from classwise.core.settings.description import CHANGES, Described, summary
from classwise.core.settings.registry import Registry
from classwise.training.citations import PARTS, sources

REGISTERED = [(registry, name) for registry in PARTS for name in registry]
TRAINING = [(registry, name) for registry, name in REGISTERED if registry is not ATTACKS]


def ids(value: object) -> str:
    return value.kind if isinstance(value, Registry) else str(value)


@pytest.mark.parametrize(("registry", "name"), REGISTERED, ids=ids)
def test_the_sources_of_every_part_are_in_the_bibliography(registry: Registry[Any], name: str) -> None:
    part = registry.load(name)
    if isinstance(part, type):
        assert issubclass(part, Described)
        assert "source" in vars(part), "it is not that of its base class"
    assert {source.partition(",")[0] for source in sources(part)} <= set(PAPERS)
    assert summary(part)


def test_every_paper_is_a_source_of_a_part() -> None:
    used = {source.partition(",")[0] for registry, name in REGISTERED for source in sources(registry.load(name))}
    assert used | {"carmon2019unlabeled"} == set(PAPERS)  # of unlabelled images, which are a setting of the data


def test_a_source_is_a_line() -> None:
    assert line_of("madry2018towards, eq. 2.1").endswith(", 2018, eq. 2.1")
    assert line_of("a report of our own, 2026") == "a report of our own, 2026"


@pytest.mark.parametrize(("registry", "name"), TRAINING, ids=ids)
def test_every_part_of_training_has_an_example_that_builds_it(registry: Registry[Any], name: str) -> None:
    cls: Any = registry.load(name)
    if not isinstance(cls, type):
        return  # a plain function, whose name is its example
    assert issubclass(cls, Described)
    assert set(cls.changes) <= set(CHANGES)
    assert type(make(registry, cls.example)) is cls
