"""Data, models, attacks and a metric in the protocols of MAITE, such as for `maite.tasks.evaluate`.

The package `maite` is imported by type checkers only. Data sets and models in its protocols are accepted by
`classwise.audit`, `classwise.load_data` and `classwise.load_model`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from classwise.auditing.run.attack import attack
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.suite import Attacks, norm_of, parse_attacks
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError
from classwise.core.settings import limits
from classwise.core.settings.ambient_state import in_known_state
from classwise.core.settings.arguments import BatchSize, Level, checked
from classwise.core.settings.config import Seed
from classwise.core.settings.names import checked_names
from classwise.data.images import Images, as_pixels
from classwise.data.maite import label_of
from classwise.models.base import bare, device_of
from classwise.models.loading.loader import load_model
from classwise.models.logits import as_logits, predicts
from classwise.models.modes import evaluating
from classwise.stats.counts import ClassCounts
from classwise.stats.intervals import alpha_of, class_intervals, lowest_interval
from classwise.stats.metrics import class_variance, max_class_discrepancy, overall_micro, worst_class
from classwise.stats.worst_class import possibly_worst
from classwise.threat.ball import Threat, ThreatLike

if TYPE_CHECKING:
    from maite.protocols import AugmentationMetadata, DatasetMetadata, DatumMetadata, MetricMetadata, ModelMetadata

__all__ = ["AttackAugmentation", "ClassAccuracy", "to_dataset", "to_model"]

Array = NDArray[np.float32]


class ImagesDataset:
    """`Images` as a data set of MAITE, a ``FieldwiseDataset``, made by `to_dataset`."""

    metadata: DatasetMetadata

    def __init__(self, images: Images) -> None:
        self._images = images
        metadata: Any = {"id": images.name, "index2label": dict(enumerate(images.class_names)), "split": images.split}
        self.metadata = metadata

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int, /) -> tuple[Array, Array, DatumMetadata]:
        """An image, its target and its metadata."""
        return self.get_input(index), self.get_target(index), self.get_metadata(index)

    def get_input(self, index: int, /) -> Array:
        """An image, float32 (C, H, W) in [0, 1]."""
        row = range(len(self))[index]
        pixels: Array = self._images.batch(slice(row, row + 1)).x[0].cpu().numpy()
        return pixels

    def get_target(self, index: int, /) -> Array:
        """The class of an image, one-hot float32 (C,)."""
        target = np.zeros(self._images.num_classes, np.float32)
        target[int(self._images.y[range(len(self))[index]])] = 1
        return target

    def get_metadata(self, index: int, /) -> DatumMetadata:
        """The ``id``, the columns and, unless it is the id, the name of an image as ``file_name``."""
        row = range(len(self))[index]
        columns = {key: column.names[int(column.ids[row])] for key, column in self._images.columns.items()}
        metadata = {"id": int(self._images.index[row]), **columns}
        names = self._images.image_names
        if names is not None and names[row] not in ("", metadata["id"]):
            metadata = {"file_name": names[row], **metadata}
        return cast("DatumMetadata", metadata)


@checked
def to_dataset(images: Images) -> ImagesDataset:
    """Present images as a data set of MAITE.

    Args:
        images: the images.

    Returns:
        Items are an image, float32 (C, H, W) in [0, 1]; a target, one-hot float32 (C,); and a dict with the columns,
        the name of the image as ``file_name``, and the ``id``, which is the `index` unless it is a column.
        `classwise.load_data` reads them back.

    Example:
        >>> import classwise as cw
        >>> from classwise.maite import to_dataset
        >>> image, target, metadata = to_dataset(cw.load_data("digits", subset=20))[0]
        >>> image.shape, target.shape, sorted(metadata)
        ((1, 8, 8), (10,), ['id'])
    """
    return ImagesDataset(images)


class ModuleModel:
    """A module as a model of MAITE, made by `to_model`; ``module`` is the module."""

    metadata: ModelMetadata

    def __init__(self, model: Model, name: str | None = None) -> None:
        self.module = _network(model)
        names = getattr(self.module, "class_names", ())
        metadata: Any = {"id": name or type(bare(self.module)).__name__}
        if names and isinstance(names, tuple):
            metadata["index2label"] = dict(enumerate(names))
        self.metadata = metadata

    @in_known_state
    def __call__(self, batch: Sequence[ArrayLike], /) -> Sequence[Array]:
        """Logits, float32 (C,), of each image (C, H, W), uint8 or float in [0, 1]."""
        x, device = _pixels(batch), device_of(self.module)
        with evaluating(self.module), torch.no_grad(), true_float32(device):
            logits = self.module(x.to(device))
        return list(logits.float().cpu().numpy())


@checked
def to_model(model: Model, name: str | None = None) -> ModuleModel:
    """Present a module, a function from images to logits, or another model that audits accept as a model of MAITE.

    Args:
        model: maps images (N, C, H, W) in [0, 1] to logits; it runs in evaluation mode, and its modes are restored. A
            text or a path is a model as of `classwise.load_model`.
        name: the id of the model; None: the name of its class.

    Returns:
        A function from a list of images to a list of logits.

    Example:
        >>> import numpy as np
        >>> import classwise as cw
        >>> from classwise.maite import to_model
        >>> model = to_model(cw.load_model("small-cnn", num_classes=3, in_channels=1, width=0.1))
        >>> [scores.shape for scores in model([np.zeros((1, 8, 8)), np.ones((1, 8, 8))])]
        [(3,), (3,)]
    """
    return ModuleModel(model, name)


class AttackAugmentation:
    """Attacks as an augmentation of MAITE: batches with adversarial images in place of the clean ones.

    Images are uint8, or float in [0, 1]; the returned ones are float32 in [0, 1].

    An image that the model misclassifies is unchanged; it counts as misclassified, as in an audit. Several attacks run
    in cascade, each on the images that survive the previous ones. The random numbers of an image depend on its ``id``,
    not on its batch.

    Args:
        model: the attacked model, as of `classwise.audit`. Of a model of MAITE give the module: to the model itself
            only attacks without gradients apply.
        attacks: as of `classwise.attack`.
        threat: the ball, with one radius, such as ``"Linf:8/255"``.
        seed: the seed of the attacks' random numbers.
        batch_size: images on the device at once, at least 32; None: all of a batch.

    Raises:
        ClasswiseError: for invalid attacks, or a threat with a radius for each image.

    Example:
        >>> import classwise as cw
        >>> from classwise.maite import AttackAugmentation, to_dataset
        >>> images = cw.load_data("digits", subset=20)
        >>> augmentation = AttackAugmentation(cw.load_model("small-cnn", data=images, width=0.1), "fgsm", "Linf:0.1")
        >>> dataset = to_dataset(images)
        >>> inputs, _, _ = augmentation(([dataset[0][0]], [dataset[0][1]], [dataset[0][2]]))
        >>> bool(abs(inputs[0] - dataset[0][0]).max() < 0.1001)
        True
    """

    metadata: AugmentationMetadata

    @checked
    def __init__(
        self,
        model: Model,
        attacks: Attacks,
        threat: ThreatLike,
        *,
        seed: Seed = 0,
        batch_size: BatchSize | None = None,
    ) -> None:
        self._model, self._threat = _network(model), Threat.parse(threat).validated()
        if isinstance(self._threat.epsilon, Tensor):
            raise ClasswiseError("threat: has a radius for each image; an augmentation has one, such as 'Linf:8/255'")
        self._suite = parse_attacks(attacks, norm_of(self._threat)).attacks
        self._seed, self._batch_size = seed, batch_size
        self.metadata = {"id": f"{', '.join(self._suite)} at {self._threat}"}

    @in_known_state
    def __call__(
        self, batch: tuple[Sequence[ArrayLike], Sequence[ArrayLike], Sequence[DatumMetadata]], /
    ) -> tuple[Sequence[Array], Sequence[ArrayLike], Sequence[DatumMetadata]]:
        """A batch of adversarial images, with the same targets and metadata.

        Raises:
            ClasswiseError: for images that `classwise.attack` rejects, targets without a class or of a class that the
                model does not have, or a missing ``id``.
        """
        parts = batch if isinstance(batch, tuple | list) else ()
        if len(parts) != 3 or not all(hasattr(part, "__len__") for part in parts):
            raise ClasswiseError(f"batch: {type(batch).__name__}, expected a tuple of images, targets and metadata")
        inputs, targets, metadata = batch
        x = _pixels(inputs)
        y = torch.tensor([label_of(target, f"image {row}")[0] for row, target in enumerate(targets)])
        index = torch.tensor([_index_of(datum, row) for row, datum in enumerate(metadata)])
        if not len(x) == len(y) == len(index):
            raise ClasswiseError(f"batch of {len(x)} images, {len(y)} targets and {len(index)} metadata; must be equal")
        device = device_of(self._model)
        with evaluating(self._model), torch.no_grad(), true_float32(device):
            logits = self._model(x.to(device))
            if len(y) and int(y.max()) >= logits.shape[1]:
                raise ClasswiseError(f"targets: class {int(y.max())}, and the model has {logits.shape[1]} classes")
            correct = predicts(logits, y.to(device)).cpu()
        if bool(correct.any()):
            given = x[correct], y[correct], self._suite
            options: dict[str, Any] = {"batch_size": self._batch_size, "seed": self._seed}
            x[correct] = attack(self._model, *given, threat=self._threat, index=index[correct], **options)
        return list(x.numpy()), targets, metadata


class ClassAccuracy:
    """A metric of MAITE: the accuracy of each class with its interval, the lowest class, MCD and CV.

    On the images of an `AttackAugmentation` the accuracy is the robust accuracy.

    Args:
        class_names: one name per class, such as the ``index2label`` of a data set; None: the class numbers.
        confidence: of the intervals.

    Raises:
        ClasswiseError: for names that are not distinct, or a mapping without a name for each class from 0 on.

    Example:
        >>> from classwise.maite import ClassAccuracy
        >>> metric = ClassAccuracy(["cat", "dog"])
        >>> metric.update([[2.0, 1.0], [2.0, 1.0]], [[1, 0], [0, 1]], [{"id": 0}, {"id": 1}])
        >>> metric.compute()["lowest_class"], metric.compute()["class_accuracy"]
        ('dog', {'cat': 1.0, 'dog': 0.0})
    """

    metadata: MetricMetadata

    @checked
    def __init__(
        self, class_names: Sequence[str] | Mapping[int, str] | None = None, *, confidence: Level = 0.95
    ) -> None:
        if isinstance(class_names, Mapping):
            if {*class_names} != {*range(len(class_names))}:
                raise ClasswiseError(f"class names: {class_names!r:.80}: expected a name for each class from 0 on")
            class_names = [class_names[label] for label in range(len(class_names))]
        self._names = None if class_names is None else checked_names(class_names, "class names")
        self._alpha = alpha_of(confidence)
        self.metadata = {"id": "class accuracy"}
        self.reset()

    def reset(self) -> None:
        """Forget all images."""
        self._counts: ClassCounts | None = None

    @in_known_state
    def update(
        self, predictions: Sequence[ArrayLike], targets: Sequence[ArrayLike], metadata: Sequence[DatumMetadata], /
    ) -> None:
        """Add logits or probabilities (C,), and one-hot targets or scores (C,); NaN and +inf count as misclassified.

        Raises:
            ClasswiseError: for another number of predictions than targets, or of classes than before.
        """
        del metadata
        for name, value in (("predictions", predictions), ("targets", targets)):
            if not hasattr(value, "__len__"):
                raise ClasswiseError(f"{name}: {type(value).__name__}, expected one for each image")
        if not len(predictions) == len(targets):
            raise ClasswiseError(f"{len(predictions)} predictions for {len(targets)} targets; must be equal")
        if not len(targets):
            return
        labels, classes = zip(*(label_of(target, f"image {row}") for row, target in enumerate(targets)), strict=True)
        scores = as_tensor([np.asarray(prediction) for prediction in predictions], "predictions")
        expected = len(self._names) if self._names else classes[0] if self._counts is None else self._counts.num_classes
        if {*classes} != {expected} or scores.shape != (len(labels), expected):
            raise ClasswiseError(
                f"predictions of shape {tuple(scores.shape)} and targets of {max(classes)} classes; expected "
                f"({len(labels)}, {expected})"
            )
        if scores.is_complex():
            raise ClasswiseError(f"predictions of type {scores.dtype}; expected logits or probabilities")
        correct = predicts(scores.double(), torch.tensor(labels)).numpy()
        counts = ClassCounts.from_labels(np.asarray(labels), correct, expected)
        self._counts = counts if self._counts is None else self._counts + counts

    def compute(self) -> Mapping[str, Any]:
        """The accuracies of the images since the last `reset`.

        Returns:
            ``accuracy``: the share of correct images. ``n``, ``class_accuracy`` and ``class_interval``, by the names of
            the classes that have images: their number, accuracy, and interval as in `classwise.Audit.by_class`.
            ``lowest_class``, ``lowest_accuracy`` and ``lowest_interval``: the class of lowest accuracy, and an interval
            of the lowest accuracy that accounts for the selection. ``possibly_worst``: the classes that may be the
            worst. ``max_class_discrepancy`` (MCD), and ``class_variance`` (CV), a fraction squared. All accuracies are
            fractions.

        Raises:
            ClasswiseError: before the first image.
        """
        if self._counts is None:
            raise ClasswiseError("class accuracy: no images; call update first")
        counts, accuracy = self._counts, self._counts.accuracy
        names = self._names or tuple(map(str, range(counts.num_classes)))
        low, high = class_intervals(counts, self._alpha)
        present = [label for label in range(counts.num_classes) if counts.present[label]]
        lowest, possible = worst_class(accuracy), possibly_worst(counts, self._alpha)
        return {
            "accuracy": overall_micro(counts),
            "n": {names[label]: int(counts.count[label]) for label in present},
            "class_accuracy": {names[label]: float(accuracy[label]) for label in present},
            "class_interval": {names[label]: (float(low[label]), float(high[label])) for label in present},
            "lowest_class": names[lowest.label],
            "lowest_accuracy": lowest.accuracy,
            "lowest_interval": lowest_interval(counts, self._alpha),
            "possibly_worst": [names[label] for label in present if possible[label]],
            "max_class_discrepancy": max_class_discrepancy(accuracy),
            "class_variance": class_variance(accuracy),
        }


def _network(model: Model) -> nn.Module:
    """A model, as an audit accepts it, as a module that returns logits."""
    return load_model(model) if isinstance(model, str | os.PathLike) else as_logits(model)


def _pixels(images: Sequence[ArrayLike]) -> Tensor:
    """Images (C, H, W), uint8 or float in [0, 1], as float32 (N, C, H, W); a copy."""
    tensors = [as_tensor(image, f"image {row}").cpu() for row, image in enumerate(images)]
    x = as_pixels(as_tensor(tensors, "images"), "images")
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _index_of(metadata: Mapping[str, Any], row: int) -> int:
    """The number of an image in the random numbers: its id if that is such a number, else a hash of it."""
    if not isinstance(metadata, Mapping) or "id" not in metadata:
        raise ClasswiseError(f"image {row}: the metadata have no id")
    value = metadata["id"]
    if isinstance(value, int | np.integer) and 0 <= value <= limits.INTEGER:
        return int(value)
    text = str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
