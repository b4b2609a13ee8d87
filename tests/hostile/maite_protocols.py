"""Data sets, models, batches and predictions in the protocols of MAITE, malformed in one place each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import torch

import classwise as cw
from classwise.maite import AttackAugmentation, ClassAccuracy, to_dataset, to_model
from tests.hostile.case import Case, Shared

CLASSES = 10
RIGHT = frozenset({0})
REFUSED = frozenset({2})
ANY = frozenset({0, 2, 4})
WORDS = ("python",)


class Items:
    """A data set of MAITE: the test split of digits, with a change of every item and of the metadata."""

    def __init__(self, change: Callable[[Any, Any, Any, int], object] | None = None, **metadata: Any) -> None:
        self.data = to_dataset(cw.load_data("digits", split="test", subset=40))
        self.change = change
        self.metadata: Any = {"id": "photos", "index2label": {row: f"d{row}" for row in range(CLASSES)}, **metadata}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int, /) -> object:
        item = self.data[row]
        return item if self.change is None else self.change(*item, row)


def network(shared: Shared) -> Any:
    """A model with a high clean accuracy."""
    return cw.load_model("preactresnet18", weights=shared.trained, num_classes=CLASSES, in_channels=1)


def raises(*_: object) -> Any:
    """Code of the user that fails."""
    raise ValueError("no")


ITEMS: dict[str, tuple[Callable[[Any, Any, Any, int], object], frozenset[int]]] = {
    "as lists": (lambda x, y, m, row: (x.tolist(), y.tolist(), m), RIGHT),
    "as tensors": (lambda x, y, m, row: (torch.tensor(x), torch.tensor(y), m), RIGHT),
    "of float64": (lambda x, y, m, row: (x.astype(np.float64), y.astype(np.float64), m), RIGHT),
    "of float16 targets": (lambda x, y, m, row: (x, y.astype(np.float16), m), RIGHT),
    "of integer targets": (lambda x, y, m, row: (x, y.astype(np.int8), m), RIGHT),
    "with ids of text": (lambda x, y, m, row: (x, y, {"id": f"x{row}"}), RIGHT),
    "with equal ids": (lambda x, y, m, row: (x, y, {"id": 0}), RIGHT),
    "with negative ids": (lambda x, y, m, row: (x, y, {"id": -row}), RIGHT),
    "with huge ids": (lambda x, y, m, row: (x, y, {"id": 10**30 + row}), RIGHT),
    "with ids of lists": (lambda x, y, m, row: (x, y, {"id": [row]}), RIGHT),
    "without ids": (lambda x, y, m, row: (x, y, {}), RIGHT),
    "with a column of everything": (lambda x, y, m, row: (x, y, {"id": row, "c": (1, "a", None, [])[row % 4]}), RIGHT),
    "with keys of numbers": (lambda x, y, m, row: (x, y, {"id": row, 5: "a", None: "b"}), RIGHT),
    "with control characters": (lambda x, y, m, row: (x, y, {"id": f"\x1b[31m{row}\0"}), ANY),
    "with surrogates": (lambda x, y, m, row: (x, y, {"id": f"\ud800{row}"}), ANY),
    "of two parts": (lambda x, y, m, row: (x, y), REFUSED),
    "of lists": (lambda x, y, m, row: [x, y, m], REFUSED),
    "that are None": (lambda x, y, m, row: None, REFUSED),
    "without metadata": (lambda x, y, m, row: (x, y, None), REFUSED),
    "with later targets of another size": (lambda x, y, m, row: (x, y[: CLASSES - (row > 3)], m), REFUSED),
    "with later images of another size": (lambda x, y, m, row: (x[:, row > 3 :], y, m), REFUSED),
    "with later images of another type": (lambda x, y, m, row: ((x * 255).astype("u1") if row > 3 else x, y, m), RIGHT),
    "with labels": (lambda x, y, m, row: (x, int(y.argmax()), m), REFUSED),
    "with targets of zeros": (lambda x, y, m, row: (x, y * 0, m), REFUSED),
    "with multi-hot targets": (lambda x, y, m, row: (x, np.ones(CLASSES), m), REFUSED),
    "with targets of NaN": (lambda x, y, m, row: (x, y * np.nan, m), REFUSED),
    "with infinite targets": (lambda x, y, m, row: (x, np.where(y > 0, np.inf, 0), m), RIGHT),
    "with empty targets": (lambda x, y, m, row: (x, y[:0], m), REFUSED),
    "with targets in a matrix": (lambda x, y, m, row: (x, y[None], m), REFUSED),
    "with targets of text": (lambda x, y, m, row: (x, ["a"] * CLASSES, m), REFUSED),
    "with complex targets": (lambda x, y, m, row: (x, y.astype(complex), m), REFUSED),
    "without channels": (lambda x, y, m, row: (x[0], y, m), REFUSED),
    "with pixels up to 255": (lambda x, y, m, row: (x * 255, y, m), REFUSED),
    "with pixels of NaN": (lambda x, y, m, row: (x * np.nan, y, m), REFUSED),
    "with pixels beyond 1 by rounding": (lambda x, y, m, row: (x * np.float32(1.0000001), y, m), RIGHT),
    "with images of text": (lambda x, y, m, row: ("image.png", y, m), REFUSED),
    "with images of objects": (lambda x, y, m, row: (x.astype(object), y, m), ANY),
    "with ragged images": (lambda x, y, m, row: ([[[0.5], [0.5, 0.5]]], y, m), REFUSED),
    "with empty images": (lambda x, y, m, row: (x[:, :0], y, m), REFUSED),
    "with sparse images": (lambda x, y, m, row: (torch.tensor(x).to_sparse(), y, m), ANY),
    "with images on no device": (lambda x, y, m, row: (torch.tensor(x, device="meta"), y, m), REFUSED),
    "with images that require gradients": (lambda x, y, m, row: (torch.tensor(x).requires_grad_(), y, m), RIGHT),
    "that raise": (raises, frozenset({4})),
    "that raise later": (lambda x, y, m, row: raises() if row > 3 else (x, y, m), frozenset({4})),
    "that raise IndexError": (lambda x, y, m, row: [][row], frozenset({4})),
}  # fmt: skip
"""Items of a data set."""

METADATA: dict[str, tuple[Mapping[str, Any], frozenset[int]]] = {
    "index2label of text": ({"index2label": "0123456789"}, REFUSED),
    "index2label of a list": ({"index2label": ["a"] * CLASSES}, REFUSED),
    "index2label of words": ({"index2label": {"a": 0}}, REFUSED),
    "index2label of NaN": ({"index2label": {float("nan"): "a"}}, REFUSED),
    "index2label of infinity": ({"index2label": {float("inf"): "a"}}, REFUSED),
    "index2label of a negative class": ({"index2label": {-1: "a"}}, REFUSED),
    "index2label of a huge class": ({"index2label": {10**12: "a"}}, REFUSED),
    "index2label of more classes": ({"index2label": dict.fromkeys(range(20), "a")}, REFUSED),
    "index2label with equal names": ({"index2label": dict.fromkeys(range(CLASSES), "a")}, ANY),
    "index2label with blank names": ({"index2label": dict.fromkeys(range(CLASSES), " ")}, ANY),
    "index2label with None": ({"index2label": dict.fromkeys(range(CLASSES))}, ANY),
    "index2label with markup": ({"index2label": {row: f"<script>{row}" for row in range(CLASSES)}}, RIGHT),
    "index2label with escapes": ({"index2label": {row: f"\x1b[2J{row}" for row in range(CLASSES)}}, ANY),
    "index2label with long names": ({"index2label": {row: "x" * 10**5 + str(row) for row in range(CLASSES)}}, ANY),
    "index2label with keys of text": ({"index2label": {str(row): f"n{row}" for row in range(CLASSES)}}, RIGHT),
    "index2label is empty": ({"index2label": {}}, RIGHT),
    "an id of None": ({"id": None}, ANY),
    "an empty id": ({"id": ""}, ANY),
    "an id with a line break": ({"id": "a\nb"}, ANY),
    "a long id": ({"id": "x" * 10**5}, ANY),
    "a split of numbers": ({"split": 5}, RIGHT),
}
"""Metadata of a data set."""


class Scores:
    """A model of MAITE: the shared run, with a change of its scores."""

    def __init__(self, shared: Shared, change: Callable[[Any, int], object]) -> None:
        self.model, self.change, self.calls = to_model(network(shared)), change, 0
        self.metadata: Any = {"id": "scorer", "index2label": {row: str(row) for row in range(CLASSES)}}

    def __call__(self, batch: Sequence[Any], /) -> object:
        self.calls += 1
        return self.change(np.stack(self.model(batch)), self.calls)


SCORES: dict[str, tuple[Callable[[Any, int], object], frozenset[int]]] = {
    "as an array": (lambda z, calls: z, RIGHT),
    "as tensors": (lambda z, calls: [torch.tensor(row) for row in z], RIGHT),
    "as lists": (lambda z, calls: z.tolist(), RIGHT),
    "of float64": (lambda z, calls: list(z.astype(np.float64)), RIGHT),
    "that are None": (lambda z, calls: None, frozenset({4, 2})),
    "of one image": (lambda z, calls: z[:1], frozenset({4, 2})),
    "of no image": (lambda z, calls: [], frozenset({4, 2})),
    "of text": (lambda z, calls: ["a"] * len(z), frozenset({4, 2})),
    "that are labels": (lambda z, calls: z.argmax(1), frozenset({4, 2})),
    "of NaN": (lambda z, calls: z * np.nan, ANY),
    "of NaN later": (lambda z, calls: z * np.nan if calls > 4 else z, ANY),
    "of infinity": (lambda z, calls: z + np.inf, ANY),
    "in three dimensions": (lambda z, calls: z[:, :, None], frozenset({4, 2})),
    "of fewer classes": (lambda z, calls: z[:, :5], frozenset({4, 2})),
    "of fewer classes later": (lambda z, calls: z[:, :5] if calls > 4 else z, frozenset({4, 2})),
    "of more classes": (lambda z, calls: np.concatenate([z, z - 9], 1), RIGHT),
    "that are complex": (lambda z, calls: z.astype(complex), frozenset({4, 2})),
    "that are bool": (lambda z, calls: z > 0, ANY),
    "of objects": (lambda z, calls: z.astype(object), ANY),
    "that are ragged": (lambda z, calls: [z[0], *z[1:, :5]], frozenset({4, 2})),
    "that are probabilities": (lambda z, calls: np.exp(z) / np.exp(z).sum(1, keepdims=True), REFUSED),
    "of a generator": (lambda z, calls: (row for row in z), ANY),
    "that raise": (raises, frozenset({4})),
    "that raise later": (lambda z, calls: raises() if calls > 4 else z, frozenset({4})),
}
"""What a model returns."""


def batch(shared: Shared, rows: int = 4) -> tuple[list[Any], list[Any], list[Any]]:
    """Images, targets and metadata."""
    del shared
    data = to_dataset(cw.load_data("digits", split="test", subset=40))
    images, targets, metadata = zip(*(data[row] for row in range(rows)), strict=True)
    return list(images), list(targets), list(metadata)


def augmented(shared: Shared, attacks: Any = "fgsm", threat: Any = "Linf:0.1", **options: Any) -> AttackAugmentation:
    """An attack on the shared run."""
    return AttackAugmentation(network(shared), attacks, threat, **options)


BATCHES: dict[str, tuple[Callable[[Any, Any, Any], object], frozenset[int]]] = {
    "of nothing": (lambda x, y, m: ([], [], []), ANY),
    "of fewer targets": (lambda x, y, m: (x, y[:2], m), REFUSED),
    "of fewer metadata": (lambda x, y, m: (x, y, m[:2]), REFUSED),
    "of None": (lambda x, y, m: None, REFUSED),
    "of two parts": (lambda x, y, m: (x, y), REFUSED),
    "of images of several sizes": (lambda x, y, m: ([x[0][:, 1:], *x[1:]], y, m), REFUSED),
    "of integers": (lambda x, y, m: ([(image * 255).astype("i8") for image in x], y, m), REFUSED),
    "of NaN": (lambda x, y, m: ([image * np.nan for image in x], y, m), REFUSED),
    "of labels": (lambda x, y, m: (x, [int(target.argmax()) for target in y], m), REFUSED),
    "of targets of other classes": (lambda x, y, m: (x, [np.eye(99)[98]] * 4, m), REFUSED),
    "of targets of fewer classes": (lambda x, y, m: (x, [np.eye(3)[0]] * 4, m), ANY),
    "of metadata of None": (lambda x, y, m: (x, y, [None] * 4), REFUSED),
    "of ids of None": (lambda x, y, m: (x, y, [{"id": None}] * 4), ANY),
    "of ids of text": (lambda x, y, m: (x, y, [{"id": "\ud800\0"}] * 4), ANY),
    "of equal ids": (lambda x, y, m: (x, y, [{"id": 3}] * 4), RIGHT),
    "of huge ids": (lambda x, y, m: (x, y, [{"id": 10**40}] * 4), RIGHT),
    "of arrays": (lambda x, y, m: (np.stack(x), np.stack(y), m), RIGHT),
    "of tensors": (lambda x, y, m: (torch.tensor(np.stack(x)), torch.tensor(np.stack(y)), m), RIGHT),
}
"""Batches for an augmentation."""

AUGMENTATIONS: dict[str, tuple[dict[str, Any], frozenset[int]]] = {
    "no attack": ({"attacks": []}, REFUSED),
    "an unknown attack": ({"attacks": "pgdd"}, REFUSED),
    "attacks of None": ({"attacks": None}, ANY),
    "a threat of None": ({"threat": None}, REFUSED),
    "a negative radius": ({"threat": "Linf:-1"}, REFUSED),
    "a radius of NaN": ({"threat": "Linf:nan"}, REFUSED),
    "a radius of zero": ({"threat": "Linf:0"}, ANY),
    "a radius of each image": ({"threat": cw.Threat("Linf", torch.full((4,), 0.1))}, REFUSED),
    "a seed of text": ({"seed": "x"}, REFUSED),
    "a negative seed": ({"seed": -1}, REFUSED),
    "a huge seed": ({"seed": 10**30}, REFUSED),
    "a batch size of zero": ({"batch_size": 0}, REFUSED),
    "a batch size of 1.5": ({"batch_size": 1.5}, REFUSED),
}
"""Arguments of an augmentation."""

PREDICTIONS: dict[str, tuple[Callable[[Any, Any], object], frozenset[int]]] = {
    "of nothing": (lambda z, y: ([], []), REFUSED),
    "of fewer images": (lambda z, y: (z[:1], y), REFUSED),
    "of fewer classes": (lambda z, y: (z[:, :3], y), REFUSED),
    "of labels": (lambda z, y: (z.argmax(1), y), REFUSED),
    "of text": (lambda z, y: (["a"] * len(y), y), REFUSED),
    "of None": (lambda z, y: (None, y), REFUSED),
    "of objects": (lambda z, y: ([None] * len(y), y), REFUSED),
    "of complex numbers": (lambda z, y: (z.astype(complex), y), REFUSED),
    "of NaN": (lambda z, y: (z * np.nan, y), RIGHT),
    "of infinity": (lambda z, y: (z + np.inf, y), RIGHT),
    "of booleans": (lambda z, y: (z > 0, y), ANY),
    "of targets of zeros": (lambda z, y: (z, y * 0), REFUSED),
    "of targets of several sizes": (lambda z, y: (z, [y[0][:5], *y[1:]]), REFUSED),
    "of ragged rows": (lambda z, y: ([z[0], *z[1:, :5]], y), REFUSED),
    "of lists": (lambda z, y: (z.tolist(), y.tolist()), RIGHT),
    "of tensors": (lambda z, y: (torch.tensor(z), torch.tensor(y)), RIGHT),
}
"""Predictions and targets for the metric."""

METRICS: dict[str, tuple[Any, frozenset[int]]] = {
    "names of text": ({"class_names": "abcdefghij"}, REFUSED),
    "too few names": ({"class_names": ["a"]}, REFUSED),
    "equal names": ({"class_names": ["a"] * CLASSES}, REFUSED),
    "names of numbers": ({"class_names": list(range(CLASSES))}, REFUSED),
    "blank names": ({"class_names": [""] * CLASSES}, REFUSED),
    "names of several types": ({"class_names": {0: "a", "b": "c"}}, REFUSED),
    "names with a gap": ({"class_names": {row * 2: str(row) for row in range(CLASSES)}}, REFUSED),
    "a confidence of 1": ({"confidence": 1.0}, REFUSED),
    "a confidence of NaN": ({"confidence": float("nan")}, REFUSED),
    "a confidence of text": ({"confidence": "0.9"}, REFUSED),
}
"""Arguments of the metric."""


def loaded(change: Callable[..., object] | None, metadata: Mapping[str, Any]) -> Callable[[Shared], object]:
    """Audit the data, and compare its clean accuracy with that of the images themselves."""

    def call(shared: Shared) -> None:
        model, whole = network(shared), cw.load_data("digits", split="test", subset=40)
        settings: dict[str, Any] = {"attacks": "fgsm", "guards": "off"}
        found = cw.audit(model, Items(change, **metadata), "Linf:0.1", out="out", **settings)
        wanted = cw.audit(model, whole, "Linf:0.1", **settings)
        same(found.by_class["fgsm"].tolist(), wanted.by_class["fgsm"].tolist())
        cw.report(found, "out/page.html")

    return call


def modelled(change: Callable[[Any, int], object]) -> Callable[[Shared], object]:
    """Audit a model; its accuracies are fractions."""

    def call(shared: Shared) -> None:
        images = cw.load_data("digits", split="test", subset=40)
        found = cw.audit(Scores(shared, change), images, "Linf:0.1", "square:steps=3", out="out", guards="off")
        same(found.by_class["square"].between(0, 1).all(), True)

    return call


def attacked(change: Callable[..., object], options: Mapping[str, Any]) -> Callable[[Shared], object]:
    """Attack a batch; the images are in the ball, and the batch of the caller is unchanged."""

    def call(shared: Shared) -> None:
        images, targets, metadata = batch(shared)
        before = np.stack(images).copy()
        given: Any = change(images, targets, metadata)
        found, *_ = augmented(shared, **options)(given)
        same(np.stack(images).tobytes(), before.tobytes())
        if len(found):
            same(bool((np.abs(np.stack(found) - before) < 0.1001).all()), True)

    return call


def measured(change: Callable[..., object], options: Mapping[str, Any]) -> Callable[[Shared], object]:
    """Compute the metric; the result is JSON, and NaN is never correct."""

    def call(_: Shared) -> None:
        targets = np.eye(CLASSES)[np.arange(20) % CLASSES]
        metric = ClassAccuracy(**options)
        pair: Any = change(targets * 2, targets)
        scores, labels = pair
        metric.update(scores, labels, [{"id": row} for row in range(20)])
        found = metric.compute()
        json.dumps(found, allow_nan=False)
        finite = bool(np.isfinite(np.asarray(scores, dtype=float)).all())
        same(found["accuracy"], 1.0 if finite else 0.0)

    return call


def same(found: object, wanted: object) -> None:
    """Raise an error that is none of a user unless two values are equal."""
    if found != wanted:
        raise RuntimeError(f"found {found!r:.200}, expected {wanted!r:.200}")


def cases(random: Random) -> Iterator[Case]:
    """Every malformed object, in the call that reads it."""
    del random
    calls: dict[str, tuple[Callable[[Shared], object], frozenset[int]]] = {}
    calls |= {f"items {name}": (loaded(change, {}), right) for name, (change, right) in ITEMS.items()}
    calls |= {f"data: {name}": (loaded(None, metadata), right) for name, (metadata, right) in METADATA.items()}
    calls |= {f"scores {name}": (modelled(change), right) for name, (change, right) in SCORES.items()}
    calls |= {f"batch {name}": (attacked(change, {}), right) for name, (change, right) in BATCHES.items()}
    for name, (options, right) in AUGMENTATIONS.items():
        calls[f"augmentation: {name}"] = attacked(lambda *columns: columns, options), right
    calls |= {f"predictions {name}": (measured(change, {}), right) for name, (change, right) in PREDICTIONS.items()}
    for name, (options, right) in METRICS.items():
        calls[f"metric: {name}"] = measured(lambda *columns: columns, options), right
    for name, (call, right) in calls.items():
        yield Case(f"maite: {name}", WORDS, {}, right, call=call)
