"""The protocols of MAITE, by classes of these tests; integrations/test_maite.py has the package."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import classwise as cw
from classwise.cli import main
from classwise.maite import AttackAugmentation, ClassAccuracy, to_dataset, to_model
from classwise.models import fingerprint
from tests.auditing import toys
from tests.auditing.gradientless import detached

NAMES = {0: "class 0", 1: "class 1", 2: "class 2"}
THREAT = "Linf:0.05"
IMAGES = toys.images(60, strength=(0.01, 0.06, 0.08))


class Listed:
    """A data set in the protocol of MAITE."""

    def __init__(self, items: Sequence[Any], **metadata: Any) -> None:
        self.items = items
        self.metadata = {"id": "photos", **metadata}

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int, /) -> Any:
        return self.items[row]


class Scorer:
    """A model in the protocol of MAITE: a list of arrays to a list of scores."""

    def __init__(self, net: nn.Module, *, scale: float = 1.0, probabilities: bool = False) -> None:
        self.net, self.scale, self.probabilities = net, scale, probabilities
        self.metadata = {"id": "scorer", "index2label": NAMES}

    def __call__(self, batch: Sequence[Any], /) -> list[Any]:
        assert all(isinstance(image, np.ndarray) and image.dtype == np.float32 for image in batch)
        with torch.no_grad():
            scores = self.net(torch.from_numpy(np.stack(list(batch))) * self.scale)
        return list((scores.softmax(1) if self.probabilities else scores).numpy())


def evaluate(model: Any, dataset: Any, metric: Any, augmentation: Any, batch_size: int) -> Any:
    """What `maite.tasks.evaluate` computes."""
    metric.reset()
    for start in range(0, len(dataset), batch_size):
        items = [dataset[row] for row in range(start, min(start + batch_size, len(dataset)))]
        batch: Any = tuple(list(column) for column in zip(*items, strict=True))
        inputs, targets, metadata = batch if augmentation is None else augmentation(batch)
        metric.update(model(inputs), targets, metadata)
    return metric.compute()


def items_of(images: cw.Images, *, ids: Callable[[int], Any] = int, **columns: Sequence[Any]) -> list[Any]:
    """The items of a data set, with uint8 images and soft targets."""
    x = (images.pixels() * 255).round().to(torch.uint8).numpy()
    targets = np.full((len(images), images.num_classes), 0.1)
    targets[np.arange(len(images)), images.y.numpy()] = 0.8
    metadata = [{"id": ids(row)} | {key: values[row] for key, values in columns.items()} for row in range(len(images))]
    return list(zip(x, targets, metadata, strict=True))


WEATHER = [("sun", "rain", None)[row % 3] for row in range(60)]
DATA = Listed(items_of(IMAGES, ids="frame-{:02}".format, weather=WEATHER), index2label=NAMES, split="test")
MODEL = Scorer(toys.model())


def build() -> Scorer:
    return MODEL


def test_ids_names_and_metadata_are_read(caplog: pytest.LogCaptureFixture) -> None:
    night, run = [bool(row % 2) for row in range(60)], [np.int64(11 - row % 3) for row in range(60)]
    columns: dict[str, Any] = {"weather": WEATHER, "night": night, "run": run, "altitude": [0.5] * 60}
    items = items_of(IMAGES, ids=lambda row: 100 - row, **columns)
    del items[3][2]["weather"]
    with caplog.at_level(logging.INFO):
        images = cw.load_data(Listed(items, index2label=NAMES, split="val"))
    assert "photos: no groupings, since values are not text or integers: altitude" in caplog.text
    assert (images.name, images.split, images.class_names) == ("photos", "val", tuple(NAMES.values()))
    assert torch.equal(images.x, (IMAGES.x * 255).round().to(torch.uint8))
    assert torch.equal(images.y, IMAGES.y)
    assert images.index.tolist() == [100 - row for row in range(60)]
    named = {key: [column.names[int(number)] for number in column.ids] for key, column in images.columns.items()}
    assert named["weather"] == ["missing" if row == 3 else value or "missing" for row, value in enumerate(WEATHER)]
    assert named["night"] == [str(value) for value in night]
    assert images.columns["run"].names == ("9", "10", "11")
    assert named["run"] == [str(value) for value in run]
    assert named.keys() == {"weather", "night", "run"}


@pytest.mark.parametrize(
    "ids", ["frame {}".format, lambda row: row // 2, lambda row: -1 - row, lambda row: 2**70 + row]
)
def test_ids_that_are_no_index_are_a_column(ids: Callable[[int], Any]) -> None:
    images = cw.load_data(Listed(items_of(IMAGES, ids=ids)))
    assert images.index.tolist() == list(range(60))
    column = images.columns["id"]
    assert [column.names[int(number)] for number in column.ids] == [str(ids(row)) for row in range(60)]
    assert images.class_names == ("0", "1", "2")


def test_an_audit_by_metadata() -> None:
    audit = cw.audit(toys.model(), DATA, THREAT, "pgd:steps=2", group="weather", guards="off")
    wanted = cw.audit(toys.model(), cw.Images(IMAGES.x, IMAGES.y), THREAT, "clean", guards="off")
    truth = pd.Series(wanted.outcomes.correct("clean")).groupby([value or "missing" for value in WEATHER]).mean()
    assert audit.by_class["clean"].to_dict() == pytest.approx(truth.to_dict(), abs=0.06)  # rounded to 8 bits
    assert audit.outcomes.meta.groups["id"][:2] == ("frame-00", "frame-01")
    assert audit.outcomes.frame["id"].tolist()[:2] == [0, 1]


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for model in ("MODEL", "build"):
        words = ["audit", f"tests.test_maite:{model}", "--data=tests.test_maite:DATA", f"--threat={THREAT}"]
        assert main([*words, "--group=weather", "--attack=pgd", "--attack=square:steps=3", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["not_applicable"] == ["pgd"]
        assert (
            "unwrap='net'"
            in next(warning for warning in facts["warnings"] if warning["name"] == "no-gradient")["sentence"]
        )
    assert main(["audit", "tests.test_maite:evaluate", "--data=tests.test_maite:NAMES", f"--threat={THREAT}"]) == 2


ITEM = items_of(IMAGES)[0]
WRONG: dict[str, tuple[Any, str]] = {
    "no tuple": ([ITEM[:2]], r"item 0: tuple, expected a tuple of image, target and metadata"),
    "one-hot of two": (
        [(ITEM[0], [1, 0, 1], {"id": 0})],
        r"2 classes have the highest score; each image must have one",
    ),
    "NaN": ([(ITEM[0], [np.nan, 0, 1], {"id": 0})], r"some scores are NaN"),
    "number": ([(ITEM[0], 2, {"id": 0})], r"target of shape \(\) .*, expected \(C,\), one score per class"),
    "complex": (
        [(ITEM[0], np.ones(3, complex), {"id": 0})],
        r"target of shape \(3,\) and type torch.complex128, expected",
    ),
    "boxes": ([(ITEM[0], object(), {"id": 0})], r"item 0, target: values of type object cannot be converted"),
    "no channels": (
        [(ITEM[0][0], ITEM[1], {"id": 0})],
        r"image of shape \(6, 6\), expected \(channels, height, width\)",
    ),
    "scores": ([ITEM, (ITEM[0], [0, 1], {"id": 1})], r"item 1: 2 scores in the target, expected 3 as before"),
    "sizes": (
        [ITEM, (ITEM[0][:, :5], ITEM[1], {"id": 1})],
        r"item 1: image of shape \(1, 5, 6\), expected \(1, 6, 6\)",
    ),
    "pixels": ([(ITEM[0].astype(float), ITEM[1], {"id": 0})], r"expected \[0, 1\]; divide by 255"),
    "empty": ([], r"^photos has no images$"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_items(kind: str) -> None:
    items, message = WRONG[kind]
    with pytest.raises(cw.ClasswiseError, match=message):
        cw.load_data(Listed(items))


@pytest.mark.parametrize("names", [{3: "d"}, {-1: "a"}, {"a": 0}, ["a"], {float("inf"): "a"}])
def test_wrong_names_and_options(names: Any) -> None:
    with pytest.raises(cw.ClasswiseError, match=r"^photos: index2label"):
        cw.load_data(Listed([ITEM], index2label=names))
    with pytest.raises(cw.ClasswiseError, match="photos: a data set of MAITE has no option 'size'"):
        cw.load_data(Listed([ITEM]), size=8)


def test_images_survive_the_way_out_and_in() -> None:
    columns = {"weather": cw.load_data(DATA).columns["weather"]}
    images = cw.Images(
        IMAGES.x, IMAGES.y, list(NAMES.values()), "toy", "val", index=torch.arange(60) * 3, columns=columns,
        image_names=[f"{row}.png" for row in range(60)],
    )  # fmt: skip
    dataset = to_dataset(images)
    back = cw.load_data(dataset)
    assert torch.equal(back.x, images.x)
    assert back.fingerprint() == images.fingerprint()
    assert (back.class_names, back.name, back.split) == (images.class_names, "toy", "val")
    assert torch.equal(back.index, images.index)
    assert back.image_names is not None
    assert back.image_names.tolist() == [f"{row}.png" for row in range(60)]
    assert [*back.columns] == ["weather"]
    assert back.columns["weather"].names == columns["weather"].names
    assert torch.equal(back.columns["weather"].ids, columns["weather"].ids)
    assert to_dataset(cw.load_data(DATA)).get_metadata(-1) == {"id": "frame-59", "weather": "missing"}
    assert dataset[-1][0].dtype == dataset.get_target(0).dtype == np.float32
    with pytest.raises(IndexError):
        _ = dataset[60]


def test_a_model_is_audited_without_gradients() -> None:
    images, attacks = IMAGES, ["pgd:steps=2", "square:steps=5"]
    audit = cw.audit(MODEL, images, THREAT, attacks)
    network = cw.audit(toys.model(), images, THREAT, attacks[1], guards="off")
    assert audit.outcomes.meta.not_applicable == ("pgd",)
    assert "no-gradient" in {warning.name for warning in audit.warnings}
    assert audit.outcomes.meta.model == "scorer"
    assert audit.outcomes.correct("square").tolist() == network.outcomes.correct("square").tolist()
    with pytest.raises(cw.ClasswiseError, match=r"none of pgd is applicable: .*unwrap='net'.*; choose an attack"):
        cw.audit(MODEL, images, THREAT, "pgd")
    with pytest.raises(cw.ClasswiseError, match="outputs='probabilities'"):
        cw.audit(Scorer(toys.model(), probabilities=True), images, THREAT, "square:steps=2")
    read = cw.load_model(Scorer(toys.model(), probabilities=True), outputs="probabilities")
    assert read(images.x).softmax(1) == pytest.approx(toys.model()(images.x).softmax(1).detach(), abs=1e-6)


def test_the_order_of_the_classes_is_compared() -> None:
    model = Scorer(toys.model())
    model.metadata["index2label"] = {0: "class 1", 1: "class 0", 2: "class 2"}
    with pytest.raises(cw.ClasswiseError, match="the same classes in another order: label 0"):
        cw.audit(model, IMAGES, THREAT, "square:steps=2")


def test_the_identity_of_a_model_has_its_weights() -> None:
    class Linear:
        def __init__(self, weight: Any, name: str = "linear") -> None:
            self.weight, self.metadata = weight, {"id": name}

        def __call__(self, batch: Sequence[Any]) -> list[Any]:
            return [image.ravel() @ self.weight for image in batch]

    weight = np.eye(36, 3, dtype=np.float32)
    models = [Linear(weight), Linear(weight.copy()), Linear(2 * weight), Linear(weight, "other")]
    prints = [fingerprint(cw.load_model(model)) for model in models]
    assert prints[0] == prints[1]
    assert len({*prints}) == 3
    flat = Linear(weight)
    flat.weight = np.ones((36,), np.float32)
    with pytest.raises(cw.ClasswiseError, match=r"model linear returns scores of shape \(2,\) for 2 images"):
        cw.load_model(flat)(IMAGES.x[:2])
    with pytest.raises(cw.ClasswiseError, match="model linear returns complex scores of shape"):
        cw.load_model(Linear(weight * 1j))(IMAGES.x[:2])


def test_unwrap_evaluates_the_module() -> None:
    images = IMAGES
    for model in (MODEL, Scorer(toys.model(), probabilities=True)):
        audit = cw.audit(cw.load_model(model, unwrap="net", data=images), images, THREAT, "pgd:steps=2", guards="off")
        wanted = cw.audit(toys.model(), images, THREAT, "pgd:steps=2", guards="off")
        assert audit.outcomes.correct("pgd").tolist() == wanted.outcomes.correct("pgd").tolist()
    assert cw.load_model("tests.test_maite:MODEL", unwrap="net", data=images)(images.x).requires_grad
    own = to_model(toys.model())
    assert cw.load_model(own, unwrap="module.model", data=images)(images.x).shape == (60, 3)


def returned() -> nn.Module:
    return toys.model()


FORMS: dict[str, Any] = {
    "a module": toys.model(),
    "a function": lambda x: toys.model()(1 * x),
    "a function that returns a module": returned,
    "the same with options": lambda scale=1.0: toys.model(scale=scale),
    "a function that returns a model of MAITE": build,
    "a model of MAITE": MODEL,
    "a reference": "tests.test_maite:returned",
    "a reference to a model of MAITE": "tests.test_maite:build",
    "a function of optional images": lambda x=None: toys.model()(x),
}


@pytest.mark.parametrize("form", FORMS)
def test_augmentations_and_models_accept_what_audits_accept(form: str) -> None:
    given, dataset = FORMS[form], to_dataset(IMAGES)
    wanted = cw.audit(toys.model(), IMAGES, THREAT, "square:steps=3", guards="off", batch_size=64)
    audit = cw.audit(given, IMAGES, THREAT, "square:steps=3", guards="off", batch_size=64)
    assert audit.by_class.to_dict() == wanted.by_class.to_dict()
    attacked = AttackAugmentation(given, "square:steps=3", THREAT)
    found = evaluate(to_model(given), dataset, ClassAccuracy(IMAGES.class_names), attacked, batch_size=60)
    assert found["class_accuracy"] == wanted.by_class["all"].to_dict()


def test_functions_that_return_models_are_called_once() -> None:
    calls = list[nn.Module]()

    def other() -> nn.Module:
        calls.append(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)))
        return calls[-1]

    audit = cw.audit(other, IMAGES, THREAT, "square:steps=2", guards="off")
    assert (len(calls), audit.outcomes.meta.model) == (1, "Sequential")
    assert cw.load_model(build, unwrap="net", data=IMAGES)(IMAGES.x).requires_grad
    assert cw.load_model("tests.test_maite:build", unwrap="net", data=IMAGES)(IMAGES.x).requires_grad
    with pytest.raises(cw.ClasswiseError, match="the model is a dict; give a module, a function"):
        cw.load_model(lambda: {"net": None})
    with pytest.raises(ZeroDivisionError):
        cw.load_model(lambda: 1 // 0)


def test_images_of_bytes_are_attacked_as_in_an_audit() -> None:
    net, attacks = toys.model(), ["pgd:steps=3"]
    items = Listed(items_of(IMAGES), index2label=NAMES)
    audit = cw.audit(net, items, THREAT, attacks, guards="off", batch_size=64)
    found = evaluate(to_model(net), items, ClassAccuracy(NAMES), AttackAugmentation(net, attacks, THREAT), 60)
    assert found["class_accuracy"] == audit.by_class["all"].to_dict()
    assert audit.by_class["all"].mean() < audit.by_class["clean"].mean()


def test_a_model_of_pixels_up_to_255() -> None:
    """Its scale is found from its accuracy; the constants are numbers, or lists of one."""
    largest = list[float]()

    class Recorded(Scorer):
        def __call__(self, batch: Sequence[Any], /) -> list[Any]:
            largest.append(float(np.max(batch)))
            return super().__call__(batch)

    model = Recorded(toys.model(scale=2.0), scale=1 / 255)
    given: list[dict[str, Any]] = [{}, {"mean": 0.5, "std": 0.5}]
    for options in given:
        audit = cw.audit(cw.load_model(model, **options), IMAGES, THREAT, "square:steps=300")
        (sentence,) = [warning.sentence for warning in audit.warnings if warning.name == "normalised-outside"]
        verb = "correct" if options else "include"
        assert f"with pixels scaled to 0..255: {verb} the normalisation" in sentence
        assert "load_model(..., mean=[0], std=[1 / 255])" in sentence
        assert max(largest) == pytest.approx(255 * float(IMAGES.x.max()))  # also behind another normalisation
    scores = [cw.load_model(model, mean=mean, std=std)(IMAGES.x) for mean, std in ((0, 1 / 255), ([0], [1 / 255]))]
    assert torch.equal(*scores)
    assert scores[0].numpy() == pytest.approx(toys.model(scale=2.0)(IMAGES.x).detach().numpy(), abs=1e-5)
    wrong: list[tuple[Any, Any]] = [([0.0], [255.0]), (0, 255), ([123.7], [1.0])]
    for mean, std in wrong:
        with pytest.raises(cw.ClasswiseError, match=r"of pixels up to 255, .* give mean 0 and std 1/255"):
            cw.load_model(model, mean=mean, std=std)
    with pytest.raises(cw.ClasswiseError, match=r"differ by .*; with --mean 0 --std 1/255 .* they agree"):
        cw.load_model(Scorer(toys.model(), scale=255), unwrap="net", data=IMAGES)
    with pytest.raises(cw.ClasswiseError, match=r"differ by up to .*; without mean and std they agree"):
        cw.load_model(MODEL, unwrap="net", data=IMAGES, mean=0.5, std=0.1)


def test_a_model_that_refuses_other_scales_is_audited() -> None:
    images = cw.Images(IMAGES.x, (IMAGES.y + torch.arange(60) % 2) % 3)
    audit = cw.audit(to_model(toys.model()), images, THREAT, "square:steps=300")
    assert audit.guards is not None
    assert "normalised-outside" not in {*audit.guards.not_run, *(warning.name for warning in audit.warnings)}


def test_unwrap_refuses_another_function() -> None:
    scaled = Scorer(toys.model(scale=1.0), scale=0.5)
    with pytest.raises(
        cw.ClasswiseError, match=r"differ by up to 0\.\d+; if the model normalises images, give mean and std "
    ):
        cw.load_model(scaled, unwrap="net", data=IMAGES)
    assert cw.load_model(scaled, unwrap="net", data=IMAGES, mean=[0.0], std=[2.0])(IMAGES.x).shape == (60, 3)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: cw.load_model(MODEL, unwrap="net"), r"unwrap='net': needs data=, images on which"),
        (
            lambda: cw.load_model(MODEL, unwrap="nett", data=IMAGES),
            r"unknown module of the MAITE .* did you mean 'net'",
        ),
        (
            lambda: cw.load_model(MODEL, unwrap="scale", data=IMAGES),
            r"unknown module of the MAITE model 'scorer': 'scale'",
        ),
        (
            lambda: cw.load_model(toys.model(), unwrap="head", data=IMAGES),
            r"applies to a model in the protocol of MAITE",
        ),
        (lambda: cw.load_model("tests.test_maite:Scorer", unwrap="net", data=IMAGES), r"not to tests\.test_maite"),
        (lambda: cw.load_model("lenet", unwrap="net", data=IMAGES), r"applies to a model in the protocol of MAITE"),
    ]
    for wrong, message in calls:
        with pytest.raises(cw.ClasswiseError, match=message):
            wrong()


def test_a_module_as_a_model() -> None:
    net = toys.model().train()
    model = to_model(net)
    scores = model(list(IMAGES.x[:5].double().numpy()))
    assert net.training
    assert net.drop.training
    assert np.stack(scores) == pytest.approx(toys.model()(IMAGES.x[:5]).detach().numpy(), abs=1e-6)
    assert (model.metadata["id"], to_model(net, "mine").metadata["id"]) == ("Linear", "mine")
    bits = (IMAGES.x[:5] * 255).round()
    assert np.stack(model(list(bits.to(torch.uint8)))) == pytest.approx(np.stack(model(list(bits / 255))))
    with pytest.raises(cw.ClasswiseError, match=r"images: pixels of type torch.int64, expected uint8, or float"):
        model([np.zeros((1, 6, 6), np.int64)])
    with pytest.raises(cw.ClasswiseError, match=r"images: tensors of different sizes"):
        model([np.zeros((1, 6, 6)), np.zeros((1, 5, 6))])


def test_the_workflow_counts_what_an_audit_counts() -> None:
    """Also images that are misclassified without an attack; and batches do not change the images."""
    images, net, attacks = IMAGES, toys.model(), ["fgsm", "pgd:steps=3"]
    audit = cw.audit(net, images, THREAT, attacks, guards="off", batch_size=32)
    augmentation = AttackAugmentation(net, attacks, THREAT, batch_size=32)
    found = evaluate(to_model(net), to_dataset(images), ClassAccuracy(images.class_names), augmentation, 20)
    table = audit.by_class
    assert found["accuracy"] == audit.by_attack.loc["all", "overall"]
    assert found["class_accuracy"] == table["all"].to_dict()
    assert found["class_interval"] == {name: (row["all_low"], row["all_high"]) for name, row in table.iterrows()}
    assert found["n"] == table["n"].to_dict()
    worst = audit.worst_class("all")
    assert (found["lowest_class"], found["lowest_accuracy"]) == (worst.name, worst.accuracy)
    assert found["lowest_interval"] == (worst.low, worst.high)
    assert found["max_class_discrepancy"] == pytest.approx(table["all"].max() - table["all"].min())
    assert found["class_variance"] == pytest.approx(table["all"].var(ddof=0))
    clean = evaluate(to_model(net), to_dataset(images), ClassAccuracy(), None, 7)
    assert list(clean["class_accuracy"].values()) == table["clean"].tolist()
    assert 0 < found["accuracy"] < clean["accuracy"] < 1


def test_adversarial_images_are_in_the_ball() -> None:
    net, dataset = toys.model(), to_dataset(IMAGES)
    batch: Any = tuple(zip(*(dataset[row] for row in range(60)), strict=True))
    before = copy.deepcopy(batch)
    augmentation = AttackAugmentation(net, "pgd:steps=3", THREAT, batch_size=32)
    inputs, targets, metadata = augmentation(batch)
    assert augmentation.metadata["id"] == "pgd at Linf:0.05"
    assert all(np.array_equal(one, other) for one, other in zip(batch[0], before[0], strict=True))
    assert targets is batch[1]
    assert metadata is batch[2]
    moved = np.abs(np.stack(inputs) - np.stack(batch[0])).reshape(60, -1).max(1)
    correct = (net(IMAGES.x).argmax(1) == IMAGES.y).numpy()
    assert (moved[~correct] == 0).all()
    assert (moved[correct] > 0).all()
    assert moved.max() <= 0.05 + 1e-6
    assert 0 <= np.min(inputs) <= np.max(inputs) <= 1
    rows = [*range(40, 60), *range(20)]  # other neighbours, in another order
    reordered: Any = tuple([column[row] for row in rows] for column in batch)
    again, _, _ = augmentation(reordered)
    assert np.stack(again) == pytest.approx(np.stack(inputs)[rows], abs=1e-6)
    other, _, _ = AttackAugmentation(net, "pgd:steps=3", THREAT, seed=1, batch_size=32)(batch)
    assert not np.array_equal(np.stack(other), np.stack(inputs))
    renamed: Any = [{"id": f"frame {datum['id']}"} for datum in batch[2]]
    by_name, _, _ = augmentation((batch[0], batch[1], renamed))
    assert not np.array_equal(np.stack(by_name), np.stack(inputs))


def test_wrong_batches() -> None:
    dataset = to_dataset(IMAGES)
    image, target, datum = dataset[0]
    augmentation = AttackAugmentation(toys.model(), "fgsm", THREAT)
    batches: list[tuple[Any, str]] = [
        (([image], [target], [{}]), "image 0: the metadata have no id"),
        (([image], [target, target], [datum]), "batch of 1 images, 2 targets and 1 metadata"),
        (([image], [[1, 1]], [datum]), "image 0: target .* 2 classes have the highest score"),
        (([image * 255], [target], [datum]), r"images: pixels range .* divide by 255"),
        (([image], [target], [None]), "image 0: the metadata have no id"),
        (([image], [np.eye(9)[8]], [datum]), "targets: class 8, and the model has 3 classes"),
        (None, "batch: NoneType, expected a tuple of images, targets and metadata"),
        (([image], [target]), "batch: tuple, expected a tuple of images, targets and metadata"),
    ]
    for batch, message in batches:
        with pytest.raises(cw.ClasswiseError, match=message):
            augmentation(batch)
    with pytest.raises(cw.ClasswiseError, match="threat: has a radius for each image"):
        AttackAugmentation(toys.model(), "fgsm", cw.Threat("Linf", torch.full((3,), 0.1)))
    with pytest.raises(cw.ClasswiseError, match="do not depend on its input in autograd"):
        AttackAugmentation(toys.Wrapped(back=detached), "fgsm", THREAT)(([image], [target], [datum]))


def test_the_metric_adds_batches_and_is_reset() -> None:
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(40, 4)), np.eye(4)[np.arange(40) % 3]
    scores[0] = np.nan
    metric = ClassAccuracy({1: "b", 0: "a", 2: "c", 3: "d"})
    metadata: list[Any] = [{"id": row} for row in range(40)]
    for part in (slice(0, 7), slice(7, 7), slice(7, 40)):
        metric.update(list(scores[part]), list(targets[part]), metadata[part])
    found: Mapping[str, Any] = metric.compute()
    correct = scores.argmax(1) == targets.argmax(1)
    correct[0] = False
    wanted = {name: float(correct[np.arange(40) % 3 == label].mean()) for label, name in enumerate("abc")}
    assert found["class_accuracy"] == pytest.approx(wanted)  # no class d, which has no images
    assert found["lowest_class"] in found["possibly_worst"]
    assert found["accuracy"] == correct.mean()
    narrow = ClassAccuracy(confidence=0.5)
    narrow.update(list(scores), list(targets), metadata)
    assert narrow.compute()["lowest_interval"][1] < found["lowest_interval"][1]
    metric.reset()
    with pytest.raises(cw.ClasswiseError, match="class accuracy: no images; call update first"):
        metric.compute()
    for predictions, message in (
        (scores[:1], "1 predictions for 2 targets"),
        (scores[:2].astype(complex), "predictions of type torch.complex128; expected logits or probabilities"),
        (scores[:2, :3], r"predictions of shape \(2, 3\) and targets of 4 classes; expected \(2, 4\)"),
    ):
        with pytest.raises(cw.ClasswiseError, match=message):
            metric.update(list(predictions), list(targets[:2]), metadata[:2])
    unread: Any = None
    with pytest.raises(cw.ClasswiseError, match="predictions: NoneType, expected one for each image"):
        metric.update(unread, list(targets[:2]), metadata[:2])
    with pytest.raises(cw.ClasswiseError, match=r"class names: .* expected a name for each class from 0 on"):
        ClassAccuracy({0: "a", 2: "b", 4: "c", 6: "d"})
