"""Bad input: one line that names the value and what is accepted, exit status 2, and nothing written or half-written."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pooch
import pytest
import torch

from classwise.data.sets import loading
from classwise.models import build_model
from tests.data import writers

from ..options import with_options
from .conftest import QUICK, Classwise


class Place(NamedTuple):
    """Where a case may put its files, and a finished run."""

    folder: Path
    run: Path


AttackInputs = Callable[[Place], list[str | Path]]


def trained(*words: str) -> AttackInputs:
    def inputs(place: Place) -> list[str | Path]:
        start = ["train", "at", "--budget=short", "--data=digits", f"--out={place.folder / 'out'}", *QUICK]
        return [*with_options(start, *words)]

    return inputs


def audited(*words: str) -> AttackInputs:
    return lambda place: [
        *with_options(["audit", str(place.run), f"--out={place.folder / 'out'}", "--subset=40"], *words)
    ]


def audited_on(path: Path, place: Place) -> list[str | Path]:
    return ["audit", place.run, "--data", path, f"--out={place.folder / 'out'}", "--threat=Linf:0.1"]


def audited_with(weights: Path, place: Place, model: str = "lenet") -> list[str | Path]:
    return ["audit", model, "--weights", weights, "--data=digits", f"--out={place.folder / 'out'}"]


def truncated(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    return path


def other_classes(place: Place) -> list[str | Path]:
    file = place.folder / "three.npz"
    np.savez(file, x=np.zeros((6, 8, 8, 1), np.uint8), y=np.array([0, 1, 2, 0, 1, 2]))
    return audited_on(file, place)


def other_channels(place: Place) -> list[str | Path]:
    file = place.folder / "colour.npz"
    np.savez(file, x=np.zeros((10, 8, 8, 3), np.uint8), y=np.arange(10))
    return audited_on(file, place)


def truncated_idx(place: Place) -> list[str | Path]:
    return audited_on(truncated(writers.write_idx(place.folder / "idx")), place)


def truncated_cifar(place: Place) -> list[str | Path]:
    folder = writers.write_cifar10(place.folder / "cifar-10-batches-py")
    truncated(folder / "test_batch")
    return audited_on(folder, place)


def truncated_parquet(place: Place) -> list[str | Path]:
    return audited_on(truncated(writers.write_parquet(place.folder / "x.parquet", label=[0, 1, 2, 0, 1, 2])), place)


def corrupt_image_in_parquet(place: Place) -> list[str | Path]:
    contents = [writers.png(picture) for picture in writers.PICTURES]
    contents[3] = contents[3][:40]
    return audited_on(writers.write_parquet(place.folder / "x.parquet", contents, label=[0, 1, 2, 0, 1, 2]), place)


def labels_out_of_range(place: Place) -> list[str | Path]:
    names = {"label": ["cat", "dog"]}
    return audited_on(writers.write_parquet(place.folder / "x.parquet", names=names, label=[0, 1, 2, 0, 1, 2]), place)


def negative_labels(place: Place) -> list[str | Path]:
    file = place.folder / "negative.npz"
    np.savez(file, x=np.zeros((3, 8, 8, 1), np.uint8), y=np.array([0, -1, 1]))
    return audited_on(file, place)


def pictures(folder: Path) -> Path:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(writers.png(writers.PICTURES[0]))
    return folder


def empty_class(place: Place) -> list[str | Path]:
    folder = pictures(place.folder / "pictures")
    (folder / "fish").mkdir()
    (folder / "fish" / "notes.txt").touch()
    return audited_on(folder, place)


def corrupt_image(place: Place) -> list[str | Path]:
    folder = pictures(place.folder / "pictures")
    truncated(folder / "dog" / "1.png")
    return audited_on(folder, place)


def seeds(place: Place) -> list[str | Path]:
    for seed in (1, 10):
        folder = place.folder / "many" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "recipe.yaml").write_bytes((place.run / "recipe.yaml").read_bytes())
    return ["audit", place.folder / "many"]


def other_architecture(place: Place) -> list[str | Path]:
    return audited_with(place.run / "checkpoints" / "last.safetensors", place)


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil",)


def evil_pickle(place: Place) -> list[str | Path]:
    file = place.folder / "evil.pt"
    torch.save({"state_dict": Evil()}, file)
    return audited_with(file, place)


def evil_cifar(place: Place) -> list[str | Path]:
    folder = writers.write_cifar10(place.folder / "cifar-10-batches-py")
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": Evil()}))
    return audited_on(folder, place)


def nan_weights(place: Place) -> list[str | Path]:
    model = build_model("lenet", num_classes=10, in_channels=1)
    state = model.state_dict()
    next(iter(state.values()))[0] = torch.nan
    torch.save(state, place.folder / "nan.pt")
    return audited_with(place.folder / "nan.pt", place)


CASES: dict[str, tuple[AttackInputs, str]] = {
    "unknown recipe": (lambda place: ["train", "cfa-att", f"--out={place.folder / 'out'}"], "did you mean 'cfa-at'"),
    "unknown recipe file": (lambda place: ["train", "mine.yaml", f"--out={place.folder / 'out'}"], "mine.yaml"),
    "unknown attack": (audited("--attack=pdg"), "did you mean 'pgd'"),
    "unknown attack in a recipe": (trained("--set=attack=pdg"), "did you mean 'pgd'"),
    "unknown field": (trained("--set=optimiser.lr=1"), "did you mean 'optimizer'"),
    "unknown field of a part": (trained("--set=optimizer.lrr=1"), "did you mean 'lr'"),
    "unknown field of an attack": (audited("--attack=pgd:step=3"), "did you mean 'steps'"),
    "transfer from nothing": (audited("--attack=transfer"), "transfer: no surrogate"),
    "transfer from nothing in a recipe": (trained("--set=attack=transfer"), "transfer: no surrogate"),
    "external by nothing": (audited("--attack=external"), "external: no attack"),
    "negative epsilon": (audited("--threat=Linf:-8/255"), "epsilon"),
    "negative epsilon in a recipe": (trained("--set=threat=Linf:-0.1"), "epsilon"),
    "unknown norm": (audited("--threat=Linff:0.1"), "did you mean 'Linf'"),
    "step size 0": (audited("--attack=pgd:step_size=0"), "step_size"),
    "step size 0 in a recipe": (trained("--set=attack.step_size=0"), "step_size"),
    "no FIELD=VALUE": (trained("--set=epochs"), "--set 'epochs' should be FIELD=VALUE, as in --set epochs=30"),
    "an argument among the options of the data": (
        trained("--data-set=split=train"),
        "--data-set split: not an option of the data set; use --split, --subset, --seed or --root",
    ),
    "no KEY=VALUE": (trained("--data-set=64"), "--data-set '64' should be KEY=VALUE, as in --data-set size=64"),
    "other classes": (other_classes, "10 classes and the data 3"),
    "other channels": (other_channels, "image channels"),
    "truncated idx": (truncated_idx, "t10k-images-idx3-ubyte"),
    "truncated CIFAR": (truncated_cifar, "test_batch"),
    "truncated Parquet": (truncated_parquet, "x.parquet"),
    "corrupt image in Parquet": (corrupt_image_in_parquet, "row 3"),
    "labels out of range": (labels_out_of_range, "label"),
    "negative labels": (negative_labels, "label"),
    "empty class": (empty_class, "fish has no images"),
    "corrupt image": (corrupt_image, "1.png"),
    "another architecture": (other_architecture, "conv1.weight"),
    "a pickle that runs code": (evil_pickle, "evil.pt"),
    "a CIFAR pickle that runs code": (evil_cifar, "test_batch"),
    "NaN weights": (nan_weights, "NaN"),
    "no weights file": (lambda place: audited_with(place.folder / "none.pt", place), "none.pt"),
    "no data file": (lambda place: audited_on(place.folder / "none.npz", place), "none.npz"),
    "no data folder": (audited("--data=mist/"), "there is no file or folder mist/"),
    "no data folder in a recipe": (lambda place: ["train", "at", "--data=mist/"], "there is no file or folder mist/"),
    "unknown data": (audited("--data=cifr10"), "did you mean 'cifar10'"),
    "unknown split": (audited("--split=tset"), "did you mean 'test'"),
    "unknown model": (
        lambda place: ["audit", "resnet81", "--data=digits", f"--out={place.folder / 'out'}"],
        "did you mean 'resnet18'",
    ),
    "no data named": (lambda place: ["audit", "resnet18", f"--out={place.folder / 'out'}"], "--data"),
    "no such run": (lambda place: ["audit", place.folder / "nope"], "there is no file or folder"),
    "no such run here": (lambda place: ["audit", "nope"], "unknown model 'nope'"),
    "a folder without a run": (lambda place: ["audit", place.folder], "contains no run"),
    "two runs of one seed": (seeds, "seed-10 have the same training seed"),
    "no time": (audited("--max-time=0"), "classwise: max_time = 0.0: must be a number above 0"),
    "no distance": (audited("--attack=autoattack", "--settle=0"), "classwise: settle = 0.0: must be a number above 0"),
    "no pass": (audited("--repeats=0"), "classwise: repeats = 0: must be an integer from 1 to 1,000"),
    "unknown mode of the guards": (audited("--guards=none"), "classwise: guards = 'none': must be 'full', 'auto'"),
    "unknown precision": (audited("--precision=half"), "classwise: precision = 'half': must be"),
    "unknown group": (audited("--group=colour"), "colour"),
    "bad condition": (audited("--fail-if=wrst(all) < 0.2"), "wrst"),
    "bad mean": (audited("--mean=a,b", "--std=1,1"), "--mean"),
    "half a normalisation": (audited("--std=0.5"), "--mean and --std must be given together"),
    "no such device": (audited("--device=cuda:99"), "cuda:99"),
    "too large a subset": (audited("--subset=100000"), "100000"),
    "not a run or audit": (lambda place: ["report", place.folder], "audit"),
    "nothing to compare": (lambda place: ["compare", place.folder], "audit"),
    "a condition on another attack": (
        audited("--attack=fgsm", "--fail-if=worst(pgd) < 0.2"),
        "known: all, clean, fgsm",
    ),
    "a page that is a folder": (lambda place: ["audit", place.run, "--html", place.folder], "is a folder"),
    "a page that cannot be": (lambda place: ["audit", place.run, "--html=/proc/no/a.html"], "cannot write /proc/no"),
    "a name too long for a page": (lambda place: ["compare", place.run, f"--out={'x' * 300}"], "File name too long"),
    "an audit that cannot be": (
        lambda place: ["audit", place.run, "--subset=40", "--attack=fgsm", "--out=/proc/none/audit"],
        "cannot write /proc/none/audit",
    ),
    "a name too long for an audit": (
        lambda place: ["audit", place.run, "--subset=40", f"--out={'x' * 300}"],
        "a name in a path has at most 255 bytes",
    ),
    "methods with and without names": (lambda place: ["compare", place.run, "b=c"], "name all or none"),
}


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bad_input(
    classwise: Classwise, tmp_path: Path, run_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case, line = CASES[name]
    words = case(Place(tmp_path, run_folder))
    before = tree(tmp_path), tree(run_folder)
    assert line in classwise(*words).refusal
    assert (tree(tmp_path), tree(run_folder)) == before
    assert not (tmp_path / "out").exists()


def test_a_folder_with_another_run(classwise: Classwise, run_folder: Path) -> None:
    before = tree(run_folder)
    assert (
        "--resume" in classwise("train", "at", "--budget=short", "--data=digits", f"--out={run_folder}", *QUICK).refusal
    )
    assert tree(run_folder) == before


def test_resuming_another_recipe(classwise: Classwise, run_folder: Path) -> None:
    before = tree(run_folder)
    words = ["--data=digits", f"--out={run_folder}", "--resume", *QUICK, "--set=optimizer.lr=0.001"]
    assert "optimizer" in classwise("train", "cfa-at", "--budget=short", *words).refusal
    assert tree(run_folder) == before


@pytest.mark.slow
def test_a_folder_with_another_audit(classwise: Classwise, run_folder: Path, tmp_path: Path) -> None:
    words = ["audit", run_folder, "--subset=40", "--attack=fgsm", f"--out={tmp_path / 'audit'}"]
    assert classwise(*words).status == 0
    before = tree(tmp_path)
    for more in (["--seed=1"], ["--threat=Linf:0.2"], ["--seed=1", "--resume"]):
        assert str(tmp_path / "audit") in classwise(*words, *more).refusal
        assert tree(tmp_path) == before


def test_a_recipe_error_is_found_before_data_is_read(
    classwise: Classwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object, **__: object) -> None:
        pytest.fail("data was read")

    monkeypatch.setattr("classwise.training.setup.load_data", unread)
    assert "decay" in classwise("train", "at", f"--out={tmp_path / 'out'}", "--set=averaging.decay=2").refusal


@pytest.mark.parametrize(
    ("command", "number"), [("train", errno.ENOSPC), ("train", errno.EDQUOT), ("audit", errno.ENOSPC)]
)
def test_no_disk_space(
    classwise: Classwise, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, number: int
) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    place = Place(tmp_path, run_folder)
    said = classwise(*(trained() if command == "train" else audited("--attack=fgsm"))(place))
    assert (said.status, said.out) == (2, "")
    assert "no space left" in said.err.splitlines()[-1]
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("command", ["audit", "train", "data"])
def test_data_that_is_not_there_with_no_network(
    classwise: Classwise, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.delenv("CLASSWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(loading, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(pooch, "retrieve", offline)
    out = f"--out={tmp_path / 'out'}"
    words: dict[str, list[str | Path]] = {
        "audit": ["audit", run_folder, "--data=mnist", out],
        "train": ["train", "at", "--budget=short", "--data=mnist", out],
        "data": ["data", "mnist"],
    }
    said = classwise(*words[command])
    assert (said.status, said.out) == (2, "")
    assert said.err.splitlines()[-1].startswith("classwise: mnist (")
    assert "CLASSWISE_DATA" in said.err
    assert tree(tmp_path) == {}
