"""`checkpoint_epochs`: the weights after chosen epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from classwise.models import load_model
from classwise.training.folder import Run
from classwise.training.recipe import Recipe
from classwise.training.train import train

from ..refusals import refused
from .killing import KillAt, Killed
from .on_digits import TINY

STEPS = 3
"""Steps of an epoch: 128 images in batches of 48, the last one smaller."""
SETTINGS: dict[str, object] = {**TINY, "epochs": 4, "averaging": "ema:decay=0.5,start_fraction=0.25"}


def trained(out: Path, checkpoints: tuple[int, ...] = (1, 3, 4), **more: Any) -> Run:
    return train("at", data="digits", out=out, overrides=SETTINGS, checkpoint_epochs=checkpoints, **more)


def weights(run: Run) -> dict[str, bytes]:
    return {name: run.weights_file(name).read_bytes() for name in run.saved_weights()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("checkpoints") / "run")


def test_the_weights_of_the_given_epochs_are_saved(run: Run) -> None:
    """There is no average of epoch 1, since averaging starts after a quarter of the run."""
    assert run.saved_weights() == [
        *("last", "best", "average", "best-average"),
        *("epoch-1", "epoch-3", "epoch-4", "average-epoch-3", "average-epoch-4"),
    ]
    files = weights(run)
    assert files["epoch-4"] == files["last"] != files["epoch-3"]
    assert files["average-epoch-4"] == files["average"] != files["average-epoch-3"]
    assert len(set(files.values())) >= 5


def test_epochs_are_ordered_by_number(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for name in ("average-epoch-2", "epoch-10", "epoch-9", "last", "epoch-09", "epoch-x", "old-epoch-3"):
        run.weights_file(name).touch()
    assert run.saved_weights() == ["last", "epoch-9", "epoch-10", "average-epoch-2"]


def test_checkpoints_change_no_other_file(run: Run, tmp_path: Path) -> None:
    plain = trained(tmp_path / "run", checkpoints=())
    files = weights(plain)
    assert list(files) == ["last", "best", "average", "best-average"]
    assert files == {name: content for name, content in weights(run).items() if "epoch" not in name}
    assert plain.epochs.equals(run.epochs)
    assert plain.events == run.events


def test_a_checkpoint_is_the_last_model_of_a_run_that_stopped_there(run: Run, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path / "run", progress=KillAt(3 * STEPS + 1))
    stopped = weights(Run(tmp_path / "run"))
    assert (stopped["last"], stopped["average"]) == (weights(run)["epoch-3"], weights(run)["average-epoch-3"])


@pytest.mark.parametrize("death", [1, 2, 5])
def test_killed_between_the_end_of_an_epoch_and_its_state(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: int
) -> None:
    """The third epoch writes last, epoch-3, best, average, average-epoch-3 and others, in this order."""
    rename, writes = Path.replace, 0

    def dies(self: Path, target: Path) -> Path:
        nonlocal writes
        third = self.parent.name == "checkpoints" and Run(tmp_path / "run").epochs_done >= 2
        writes += third
        if third and writes > death:
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(Killed):
        trained(tmp_path / "run")
    monkeypatch.undo()
    assert "epoch-4" not in Run(tmp_path / "run").saved_weights()
    assert weights(trained(tmp_path / "run", resume=True)) == weights(run)


def test_the_weights_of_an_epoch_are_loaded_by_name(run: Run) -> None:
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        by_name, by_file = run.model("average-epoch-3")(x), load_model(run.weights_file("average-epoch-3"))(x)
        assert torch.equal(by_name, by_file)
        assert not torch.equal(by_name, run.model("epoch-3")(x))


@pytest.mark.parametrize("name", ["epoch-2", "epoch-03", "average-epoch-1", "../last"])
def test_other_epochs_are_refused_with_the_saved_ones(run: Run, name: str) -> None:
    saved = "last, best, average, best-average, epoch-1, epoch-3"
    assert f"has no weights {name!r}; saved: {saved}" in refused(run.model, name)


def test_epochs_are_sorted() -> None:
    assert Recipe.read("at", {"checkpoint_epochs": [30, 7, 7]}).checkpoint_epochs == (7, 30)
    assert Recipe.read("at", {"checkpoint_epochs": "[200]"}).checkpoint_epochs == (200,)


def test_another_number_of_epochs_scales_the_checkpoints() -> None:
    recipe = Recipe.read("at", {"checkpoint_epochs": [1, *range(101, 121), 200]})
    assert recipe.epochs == 200
    assert recipe.epoch_overrides(30)["checkpoint_epochs"] == [1, 15, 16, 17, 18, 30]
    assert Recipe.read(recipe, recipe.epoch_overrides(30)).checkpoint_epochs == (1, 15, 16, 17, 18, 30)


def test_the_digest_depends_on_the_checkpoints_but_not_on_the_default() -> None:
    """The digest before this field existed; it is part of the keys of existing runs."""
    recipe = Recipe(selection="overall+worst")
    assert recipe.digest() == "e78abcc39ea25a375de9eed9621255f49bf9b5a31b13588c67d956b2739646fc"
    assert recipe.digest() == Recipe.read(recipe, {"checkpoint_epochs": []}).digest()
    assert recipe.digest() != Recipe.read(recipe, {"checkpoint_epochs": [200]}).digest()


def test_a_run_is_not_resumed_with_other_checkpoints(run: Run) -> None:
    assert "checkpoint_epochs was [1, 3, 4], now [2]" in refused(trained, run.path, checkpoints=(2,), resume=True)
