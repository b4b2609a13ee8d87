"""A run is accepted as a model, and as the source of audits: its folder, or the weights that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

import classwise as cw

from ..training.on_digits import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cw.Run:
    out = tmp_path_factory.mktemp("runs") / "at"
    return cw.train("at", data="digits", out=out, overrides=TINY | {"epochs": 1, "checkpoint_epochs": [1]})


@pytest.fixture(scope="module")
def images() -> cw.Images:
    return cw.load_data("digits", split="test", subset=40)


@pytest.mark.parametrize("default", [None, "epoch-1"])
def test_an_audit_of_a_run_is_that_of_its_path(run: cw.Run, images: cw.Images, default: str | None) -> None:
    path = run.path if default is None else run.weights_file(default)
    given, named = (cw.audit(model, images, attacks="fgsm") for model in (cw.Run(run.path, default), path))
    assert given.outcomes.meta == named.outcomes.meta
    assert given.outcomes.meta.model == str(path)
    assert given.by_class.equals(named.by_class)


def test_other_functions_of_models_accept_a_run(run: cw.Run, images: cw.Images, tmp_path: Path) -> None:
    assert cw.find_worst_class(run, images, "Linf:0.1", ["fgsm"]).meta.model == str(run.path)
    assert cw.robustness_curve(run, images, attacks=["fgsm"], highest=0.1, rounds=1).class_names == images.class_names
    overrides = TINY | {"epochs": 1, "model.weights": str(run.path)}
    tuned = cw.train("at", data="digits", out=tmp_path / "tuned", overrides=overrides)
    found = cw.interpolate_weights(tuned, run, shares=[0.5], attack="fgsm")
    assert found.path == tuned.weights_file("interpolated")


def test_functions_of_audits_accept_a_run(run: cw.Run, images: cw.Images, tmp_path: Path) -> None:
    cw.audit(run, images, attacks="fgsm", out=run.path)
    assert cw.compare(run).audits.keys() == {"at"}
    assert len(cw.board(run).table) == 1
    assert cw.view(run, out=tmp_path / "viewer").is_file()
