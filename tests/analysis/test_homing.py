from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.analysis import homing as module
from classwise.analysis.homing import Homing, homing
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine
from classwise.core.compute.precision import EXACT, Precision
from classwise.core.settings.config import make
from classwise.data.images import Images
from classwise.data.sets.loading import load_data
from classwise.stats.paired import paired_interval
from classwise.threat.ball import Threat
from classwise.training.folder import Run
from classwise.training.train import train
from tests.refusals import check_refused

ATTACK = "pgd:steps=3,step_size=0.5eps"
THREAT = "Linf:0.08"
TRAIN, TEST = 200, 60
SEED = 4
CHANGES = {
    "model": {"name": "lenet", "width": 0.5},
    "data.validation": 0.1,
    "batch_size": 20,
    "attack": "pgd:steps=1,step_size=1eps",
    "validation_attack": "pgd:steps=1,step_size=1eps",
    "threat": THREAT,
    "epochs": 4,
    "optimizer": {"name": "adam", "lr": 0.005},
    "lr_schedule": "constant",
}


def four(split: str, count: int) -> Images:
    """The first images of the digits 0, 1, 8 and 9, renamed 0 to 3."""
    digits = load_data("digits", split=split)
    wanted = torch.tensor([0, 1, 8, 9])
    part = digits.take(torch.isin(digits.y, wanted)).take(slice(count))
    return Images(part.x, torch.searchsorted(wanted, part.y), ("zero", "one", "eight", "nine"), "four", split)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homing")


@pytest.fixture(scope="module")
def base(folder: Path) -> Run:
    return train("standard", out=folder / "run", data=four("train", TRAIN), overrides=CHANGES)


@pytest.fixture(scope="module")
def found(folder: Path, base: Run) -> Homing:
    return found_in(base, folder / "out")


def found_in(run: Run, out: Path, precision: Precision = EXACT) -> Homing:
    data, test = four("train", TRAIN), four("test", TEST)
    return homing(run, out=out, data=data, test=test, attack=ATTACK, precision=precision, control=SEED)


def attacked(run: Run, images: Images) -> list[int]:
    """The predictions on the attacked images, without the audit and its queue."""
    attack: Attack = make(ATTACKS, ATTACK)
    model, batch = run.model(), images.batch(slice(None))
    x = cw.attack(model, batch.x, batch.y, attack, threat=Threat.parse(THREAT), index=batch.index, early_stop=False)
    with torch.no_grad():
        return [int(logits.argmax()) for logits in model(x)]


@pytest.mark.slow
def test_the_matrix_by_a_loop_over_the_images(base: Run, found: Homing, folder: Path) -> None:
    """Definition 6.1 literally: re-train without y', attack x again, check whether the prediction is y."""
    data, test = four("train", TRAIN), four("test", TEST)
    matrix, home, control, beyond = (np.zeros((4, 4), int) for _ in range(4))
    other = attacked(train(base.recipe, out=folder / "loop-control", data=data, overrides={"seed": SEED}), test)
    predictions, again = attacked(base, test), dict[int, list[int]]()
    for row in range(len(test)):
        label, taken = int(test.y[row]), predictions[row]
        matrix[label, taken] += 1
        if label != taken:
            if taken not in again:
                kept = torch.tensor([int(y) != taken for y in data.y])
                without = train(base.recipe, out=folder / f"loop-{taken}", data=data.take(kept))
                again[taken] = attacked(without, test)
            home[label, taken] += again[taken][row] == label
            control[label, taken] += other[row] == label
            beyond[label, taken] += again[taken][row] == label != other[row]
    errors = matrix - np.diag(np.diag(matrix))
    assert 5 < errors.sum() < TEST - 5  # neither all correct nor all wrong
    assert 0 < home.sum() < errors.sum()
    assert found.matrix.tolist() == matrix.tolist()
    assert found.misclassified.tolist() == errors.tolist()
    assert found.homing.tolist() == home.tolist()
    assert 0 < control.sum() < errors.sum()
    assert 0 < beyond.sum() < home.sum()
    assert found.control is not None
    assert found.beyond is not None
    assert found.control.tolist() == control.tolist()
    assert found.beyond.tolist() == beyond.tolist()


@pytest.mark.slow
def test_the_table_and_the_figures(found: Homing) -> None:
    table = found.table
    assert table["misclassified"].is_monotonic_decreasing
    assert table["misclassified"].sum() == found.misclassified.sum()
    assert table["homing"].sum() == found.homing.sum()
    assert ((table["low"] <= table["share"]) & (table["share"] <= table["high"])).all()
    assert (table["difference"] * table["misclassified"]).sum() == pytest.approx(
        table["homing"].sum() - table["control"].sum()
    )
    assert ((table["difference_low"] <= table["difference"]) & (table["difference"] <= table["difference_high"])).all()
    assert "misclassified images" in found.misclassified_figure().svg()
    assert found.control is not None
    assert (
        found.control_figure().svg().count(", but classified correctly by the model with another seed")
        == (found.control > 0).sum()
    )
    assert found.figure().svg().count(", but classified correctly by the model without ") == (found.homing > 0).sum()


@pytest.mark.slow
def test_it_costs_c_trainings_and_two_audits_and_resumes(
    base: Run, found: Homing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an interruption before the last class, finished classes are neither trained nor attacked again."""
    last = max(label for label, run in enumerate(found.runs) if run is not None)
    place = folder / "killed"
    shutil.copytree(folder / "out", place)
    shutil.rmtree(place / f"without-{last}")
    trained, attacked, before = list[Path](), list[int](), (place / "without-0" / "epochs.parquet").stat().st_mtime_ns
    real_attack = Engine.perturb

    def counting_train(*args: Any, **kwargs: Any) -> Run:
        trained.append(kwargs["out"])
        return train(*args, **kwargs)

    def counting_attack(
        self: Engine, attacks: list[Attack], x: Tensor, y: Tensor, threat: Threat, *, index: Tensor
    ) -> Tensor:
        attacked.append(len(x))
        return real_attack(self, attacks, x, y, threat, index=index)

    monkeypatch.setattr(module, "train", counting_train)
    monkeypatch.setattr(Engine, "perturb", counting_attack)
    assert found_in(base, place).homing.tolist() == found.homing.tolist()
    without = [place / f"without-{label}" for label, run in enumerate(found.runs) if run is not None]
    assert trained == [*without, place / f"control-{SEED}"]
    assert len(trained) <= 5
    assert sum(attacked) == found.misclassified[:, last].sum()  # the misclassified images of the last class, once
    assert (place / "without-0" / "epochs.parquet").stat().st_mtime_ns == before


@pytest.mark.slow
def test_attacks_are_deterministic_on_request(
    base: Run, found: Homing, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainings follow their recipe."""
    place = folder / "deterministic"
    shutil.copytree(folder / "out", place)
    shutil.rmtree(place / "base")
    for file in place.glob(f"*/{module.FILE}"):
        file.unlink()
    seen = {"train": set[bool](), "attack": set[bool]()}

    def watched(function: Any, name: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            seen[name].add(torch.are_deterministic_algorithms_enabled())
            return function(*args, **kwargs)

        return run

    monkeypatch.setattr(module, "train", watched(train, "train"))
    monkeypatch.setattr(Engine, "perturb", watched(Engine.perturb, "attack"))
    again = found_in(base, place, precision=Precision(deterministic=True))
    assert again.homing.tolist() == found.homing.tolist()
    assert seen == {"train": {False}, "attack": {True}}


@pytest.fixture
def unfinished(tmp_path: Path, base: Run) -> Run:
    (tmp_path / "recipe.yaml").write_text(base.recipe_file.read_text())
    return Run(tmp_path)


def test_an_unfinished_run_is_refused(unfinished: Run, tmp_path: Path) -> None:
    check_refused("0 of 4 epochs", homing, unfinished, out=tmp_path / "out")


MATRIX = np.array([[30, 10, 0], [20, 30, 5], [0, 0, 9]])


def of_counts(home: int, control: int, both: int) -> Homing:
    """A homing matrix with these counts among the 20 images of class 1 misclassified as class 0."""
    homing, other, beyond = (np.zeros((3, 3), dtype=np.int64) for _ in range(3))
    homing[1, 0], other[1, 0], beyond[1, 0] = home, control, home - both
    return Homing(("a", "b", "c"), MATRIX, homing, (None,) * 3, control=other, beyond=beyond)


def test_the_difference_from_the_control_is_paired() -> None:
    """By hand: of 35 errors, 12 home and 5 are robust for the control, 4 of them for both models."""
    found = of_counts(12, 5, 4)
    value, low, high = found.difference()
    assert value == pytest.approx(7 / 35)
    assert (low, high) == tuple(float(end) for end in paired_interval(8, 1, 35))
    row = found.table.iloc[0]
    assert (row["truth"], row["taken_for"], row["misclassified"], row["control"]) == ("b", "a", 20, 5)
    assert row["difference"] == pytest.approx(7 / 20)
    assert row["difference_low"] == pytest.approx(float(paired_interval(8, 1, 20).low))
    assert row["p"] == pytest.approx(2 * 10 / 2**9)  # at most one of nine discordant images
    assert found.difference(0.001).low < low
    assert of_counts(5, 5, 5).difference().value == 0


def test_without_errors_the_difference_is_undefined() -> None:
    nothing = np.zeros((2, 2), dtype=np.int64)
    found = Homing(("a", "b"), np.diag([3, 4]), nothing, (None,) * 2, control=nothing, beyond=nothing)
    assert all(np.isnan(end) for end in found.difference())
    assert found.table.empty


def test_a_matrix_without_a_control(base: Run, folder: Path) -> None:
    found = Homing(("a", "b", "c"), MATRIX, np.zeros((3, 3), dtype=np.int64), (None,) * 3)
    assert "control" not in found.table
    for read in (found.difference, found.control_figure):
        check_refused("no control; pass control=SEED", read)
    check_refused(
        "control = 0: must differ from the seed of the base run", homing, base, out=folder / "same", control=0
    )


def test_two_attacks_are_refused(base: Run, folder: Path) -> None:
    check_refused(
        "requires one attack, got 2",
        homing,
        base,
        out=folder / "two",
        data=four("train", 40),
        test=four("test", 40),
        attack=[ATTACK, "fgsm"],
    )
