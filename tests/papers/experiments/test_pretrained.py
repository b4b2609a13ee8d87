"""Models and images that the user names: benz20/P1.2."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from classwise.data.sets.imagenet import ImageNet
from classwise.data.sets.loading import load_data
from classwise.models import load_model, save_weights
from classwise.models.normalization import Normalized
from classwise.papers.catalogue import experiment
from classwise.papers.experiment import Context
from classwise.papers.experiments import class_wise, protocol
from classwise.papers.runner import check_inputs, run
from classwise.papers.scales import SMOKE
from classwise.papers.store import Store
from classwise.papers.user_inputs import UserInputs, with_imagenet_labels
from tests.refusals import check_refused

IDS = (ImageNet.ids[3], ImageNet.ids[700], ImageNet.ids[950])
COLOURS = ((210, 40, 40), (40, 210, 40), (40, 40, 210))
PER_CLASS = 55


def photographs(folder: Path, names: tuple[str, ...], per_class: int, sides: tuple[int, ...] = (16,)) -> Path:
    """Noisy images, a colour per class; the sides alternate."""
    random = np.random.default_rng(0)
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            side = sides[number % len(sides)]
            pixels = np.clip(np.array(COLOURS[label]) + random.normal(0, 60, (side, side, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:03}.png")
    return folder


def weights(folder: Path, name: str, seed: int, classes: int = 3) -> Path:
    """A small network with random weights, in a file that names it."""
    torch.manual_seed(seed)
    file = folder / name
    save_weights(file, load_model("small-cnn", num_classes=classes, in_channels=3, width=0.1))
    return file


def test_two_models_on_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number equals a count of the models' own predictions; models at chance may be judged here."""
    monkeypatch.setattr(protocol, "BEYOND_CHANCE", 0)
    folder = photographs(tmp_path / "photos", ("ant", "bee", "cow"), PER_CLASS)
    files = [weights(tmp_path, f"{name}.safetensors", seed) for seed, name in enumerate(("plain", "robust"))]
    models = [str(file) for file in files]
    (result,) = run("benz20/P1.2", "small", tmp_path / "store", models=models, data=str(folder))
    images = load_data(folder)
    rows = {row.name: row.cells for row in result.tables[0].rows}
    assert list(rows) == [f"{file}, {attack}" for file in files for attack in ("clean", "PGD")]
    for file in files:
        with torch.no_grad():
            right = load_model(file)(images.pixels()).argmax(1) == images.y
        each = [float(right[images.y == label].float().mean()) for label in range(3)]
        shown = [float(cell.text) for cell in rows[f"{file}, clean"][:3]]
        assert shown == pytest.approx([100 * np.mean(each), 100 * min(each), 100 * np.ptp(each)], abs=0.06)
        weakest = rows[f"{file}, clean"][3].text.split(", ")
        assert weakest[0] == f"{images.class_names[int(np.argmin(each))]} {100 * min(each):.0f}"
        assert float(rows[f"{file}, PGD"][0].text) <= shown[0]
    assert {(verdict.claim, *verdict.covers) for verdict in result.verdicts if verdict.estimand} == {
        ("benz20/C1",),
        ("benz20/C2", "robustness"),
        ("benz20/C2", "accuracy"),
        ("benz20/C2", "same weak classes"),
    }
    assert not result.runs
    assert {row.name for row in result.tables[1].rows} == {str(file) for file in files}


def test_audits_of_the_same_weights_are_loaded(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "photos", ("ant", "bee", "cow"), 3)
    file, store = weights(tmp_path, "a.safetensors", 0), tmp_path / "store"
    again = functools.partial(run, "benz20/P1.2", "small", store, models=[str(file)], data=str(folder))
    (first,) = again()
    (audit,) = (store / "audits").glob("*/audit.json")
    before = audit.stat().st_mtime_ns
    assert again()[0].tables == first.tables
    assert audit.stat().st_mtime_ns == before
    assert [verdict.note for verdict in first.verdicts] == [
        "first model: 3 test images in a class, fewer than 50",
        "the claim compares a standard and an adversarially trained model",
    ]
    weights(tmp_path, "a.safetensors", 1)
    again()
    assert len(list((store / "audits").glob("*/audit.json"))) == 2


def test_at_most_1000_images_at_reduced_scale(tmp_path: Path) -> None:
    folder = photographs(tmp_path / "photos", ("ant", "bee", "cow"), 400, sides=(4,))
    models = [str(weights(tmp_path, "a.safetensors", 0))]
    (result,) = run("benz20/P1.2", "small", tmp_path / "store", models=models, data=str(folder))
    assert result.tables[0].note.startswith("1,000 images of 3 classes, Linf:4/255.")


def test_wordnet_ids_are_imagenet_labels(tmp_path: Path) -> None:
    images = with_imagenet_labels(load_data(photographs(tmp_path / "some", IDS, 2)))
    assert images.num_classes == 1000
    assert images.y.tolist() == [3, 3, 700, 700, 950, 950]
    assert images.class_names == ImageNet.class_names
    others = load_data(photographs(tmp_path / "others", (*IDS[:2], "cow"), 2))
    assert with_imagenet_labels(others) is others


def test_large_images_are_resized_and_small_ones_are_not(tmp_path: Path) -> None:
    for name, sides, shape in (("small", (20,), 20), ("large", (230,), 224), ("different", (20, 24), 224)):
        inputs = UserInputs(data=str(photographs(tmp_path / name, ("ant", "bee"), 2, sides)))
        assert inputs.load_images().shape == (3, shape, shape), name


def test_imagenet_weights_get_its_normalisation(tmp_path: Path) -> None:
    """Raw weights of ImageNet get its mean; a file with its own normalisation and other classes keep theirs."""
    images = with_imagenet_labels(load_data(photographs(tmp_path / "photos", IDS, 1)))
    other = load_data(tmp_path / "photos")
    torch.save(load_model("small-cnn", num_classes=1000, in_channels=3).state_dict(), tmp_path / "bare.pth")
    (loaded,) = UserInputs(models=[f"small-cnn={tmp_path / 'bare.pth'}"]).load_models(images, "cpu").values()
    normalised = [part for part in loaded.modules() if isinstance(part, Normalized)]
    assert len(normalised) == 1
    assert normalised[0].mean.flatten().tolist() == pytest.approx(ImageNet.mean)
    torch.save(load_model("small-cnn", num_classes=3, in_channels=3).state_dict(), tmp_path / "small.pth")
    (loaded,) = UserInputs(models=[f"small-cnn={tmp_path / 'small.pth'}"]).load_models(other, "cpu").values()
    assert not any(isinstance(part, Normalized) for part in loaded.modules())


def test_a_model_is_named_once(tmp_path: Path) -> None:
    file = str(weights(tmp_path, "a.safetensors", 0))
    images = load_data(photographs(tmp_path / "photos", ("ant", "bee", "cow"), 1))
    check_refused(r"--model .*a.safetensors is given twice", UserInputs(models=[file, file]).load_models, images, "cpu")


@pytest.mark.parametrize(
    ("item", "scale", "inputs", "line"),
    [
        ("kdd21/T1", "small", {"models": ["a.pt"]}, "kdd21/T1 does not accept --model or --data"),
        ("kdd21/T1", "smoke", {"data": "photos"}, "kdd21/T1 does not accept --model or --data"),
        ("benz20/P1.2", "small", {}, "benz20/P1.2 needs --model and --data, such as --model resnet50=w.pth"),
        ("benz20/P1.2", "full", {"models": ["a.pt"]}, "benz20/P1.2 needs --model and --data"),
        ("benz20/P1.2", "smoke", {"data": "photos"}, "benz20/P1.2 needs --model and --data"),
    ],
)
def test_inputs_are_checked(item: str, scale: str, inputs: dict[str, object], line: str) -> None:
    check_refused(line, check_inputs, item, scale, UserInputs(**inputs))  # type: ignore[arg-type]


@pytest.mark.parametrize("item", ["iclr21/F7", "iclr21/F4"])
def test_the_standard_model_of_a_data_set(item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a training: its clean accuracies and the norms of its rows are those of the file."""
    monkeypatch.setattr(class_wise, "PRETRAINED", "digits")
    monkeypatch.setattr(type(experiment(item)), "pretrained", "digits")
    file = tmp_path / "plain.safetensors"
    torch.manual_seed(0)
    save_weights(file, load_model("small-cnn", num_classes=10, in_channels=1, width=0.1))
    (result,) = run(item, "smoke", tmp_path / "store", models=[str(file)])
    (trained,) = result.runs.values()
    assert trained == "at"
    note = next(table.note for table in result.tables if table.caption == "Data sets")
    assert f"The standard model of digits is {file}, which was not trained here." in note
    if item == "iclr21/F4":
        context = Context(SMOKE, Store(tmp_path / "store"))
        model = load_model(file)
        images = context.test_images
        with torch.no_grad():
            right = (model(images.pixels()).argmax(1) == images.y).float()
        accuracy = [float(right[images.y == label].mean()) for label in range(10)]
        row = next(row for row in result.tables[0].rows if "standard" in row.name)
        norms = list(model.modules())[-1].get_parameter("weight").detach().norm(dim=1).numpy()
        assert float(row.cells[0].text) == pytest.approx(np.corrcoef(accuracy, norms)[0, 1], abs=0.01)


def test_who_takes_a_standard_model() -> None:
    one = UserInputs(models=["resnet50=w.pth"])
    for item in ("iclr21/F4", "iclr21/F7"):
        check_inputs(item, "full", one)
        check_inputs(item, "full", one, ["mnist", "imagenet"])
        refused = f"{item} accepts no --data and one --model, the standard model of imagenet, at scale full only"
        check_refused(refused, check_inputs, item, "medium", one)
        check_refused(refused, check_inputs, item, "full", one, ["mnist"])
        check_refused(refused, check_inputs, item, "full", UserInputs(models=["a", "b"]))
        check_refused(refused, check_inputs, item, "full", UserInputs(models=["a"], data="images"))
    check_refused("kdd21/F1 does not accept --model or --data", check_inputs, "kdd21/F1", "full", one)
