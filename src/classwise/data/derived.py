"""Data sets derived from others: classes removed, long tails, superclasses as classes, other backgrounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from classwise.core.compute.rng import CounterRNG
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.arguments import checked
from classwise.core.settings.config import Seed
from classwise.data.images import Images
from classwise.data.splits import long_tailed_subset

GROUPS = ((0, 2, 3, 6, 8), (1, 4, 5, 7, 9))
"""Digits that share a background. The paper only states that 2 and 3 do, and 2 and 5 do not; the rest is our choice."""
COLOURS = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))
"""The background of each group, RGB in [0, 1]; our choice."""


@checked
def class_number(images: Images, label: int | str) -> int:
    """The number of a class given by number or name.

    Raises:
        ClasswiseError: if there is no such class.
    """
    if isinstance(label, str) and label in images.class_names:
        return images.class_names.index(label)
    if isinstance(label, str) and not label.isdecimal():
        raise unknown(f"class of {images.name}", label, images.class_names)
    number = int(label)
    if not 0 <= number < images.num_classes:
        raise ClasswiseError(f"{images.name} has no class {number}; it has 0 to {images.num_classes - 1}")
    return number


@checked
def without_class(images: Images, label: int | str) -> Images:
    """Remove the images of one class; labels and class names do not change, so neither do a network's outputs.

    This is the training set of a homing matrix (KDD 2021, section 6.1).

    Args:
        images: any data set.
        label: the class, by number or name.

    Raises:
        ClasswiseError: if there is no such class, or no other class.
    """
    number = class_number(images, label)
    return images.renamed(f"{images.name} without {images.class_names[number]}").take(images.y != number)


@checked
def only_classes(images: Images, labels: Iterable[int | str]) -> Images:
    """Select the images of some classes and relabel them 0, 1, ... in the given order.

    Args:
        images: any data set.
        labels: the classes, by number or name.

    Raises:
        ClasswiseError: for an unknown class, a repeated class, or no class.
    """
    numbers = [class_number(images, label) for label in labels]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ClasswiseError(f"classes {numbers}: must be distinct, and at least one")
    new = torch.full((images.num_classes,), -1, device=images.device)
    new[torch.tensor(numbers, device=images.device)] = torch.arange(len(numbers), device=images.device)
    part = images.take(new[images.y] >= 0)
    parents = None if images.superclasses is None else [images.superclasses[number] for number in numbers]
    return Images(
        part.x,
        new[part.y],
        [images.class_names[number] for number in numbers],
        name=f"{images.name}, {len(numbers)} classes",
        split=part.split,
        superclasses=parents,
        superclass_names=images.superclass_names,
        index=part.index,
        columns=part.columns,
        image_names=part.image_names,
    )


@checked
def long_tailed(images: Images, imbalance: float, seed: Seed = 0) -> Images:
    """Select images so that the class counts decrease exponentially with the label, as in CIFAR-10-LT.

    Training images of long-tail learning (Cao et al., NeurIPS 2019, section 4): the k-th of K classes with images has
    floor(m imbalance^(-k/(K-1))) images, m the number of images of the smallest class of the data. The order of the
    classes matters: the last ones are rare. Test images remain balanced, so leave them as they are. In a recipe,
    ``data.imbalance`` does this to the training images.

    Args:
        images: any data set; each image keeps its `index` and its name.
        imbalance: the number of images of the first class relative to that of the last one, such as 10, 50 or 100.
        seed: seed of the choice. For one seed the images of a larger imbalance are among those of a smaller one.

    Raises:
        ClasswiseError: if the imbalance is below 1, or a class would have no image.

    Example:
        >>> import classwise as cw
        >>> train = cw.load_data("digits", split="train")
        >>> cw.data.long_tailed(train, 10).class_counts().tolist()
        [122, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    """
    rows = long_tailed_subset(images.y, imbalance, seed)
    return images.renamed(f"{images.name}, imbalance {imbalance:g}").take(rows)


@checked
def superclass_of(images: Images) -> Mapping[str, str]:
    """Map each class name to the name of its superclass.

    Raises:
        ClasswiseError: if the data set has no superclasses.
    """
    if images.superclasses is None:
        raise ClasswiseError(f"{images.name} has no superclasses")
    parents = images.superclasses
    return {name: images.superclass_names[parents[number]] for number, name in enumerate(images.class_names)}


@checked
def by_superclass(images: Images) -> Images:
    """Relabel the images with their superclasses.

    Raises:
        ClasswiseError: if the data set has no superclasses.
    """
    superclass_of(images)
    parents = torch.tensor(images.superclasses, device=images.device)
    return Images(
        images.x,
        parents[images.y],
        images.superclass_names,
        name=f"{images.name} by superclass",
        split=images.split,
        index=images.index,
        columns=images.columns,
        image_names=images.image_names,
    )


@checked
def coloured_background(
    images: Images,
    groups: Sequence[Sequence[int]] = GROUPS,
    colours: Sequence[Sequence[float]] = COLOURS,
) -> Images:
    """Put grayscale images g on a background in the colour of their class's group, ``g + (1 - g) colour``.

    The experiment of KDD 2021, section 6.2.

    Args:
        images: (N, 1, H, W), bright on dark, such as MNIST.
        groups: classes that share a background; every class must be in exactly one group.
        colours: RGB in [0, 1] of each group.

    Returns:
        Images (N, 3, H, W), uint8, with the column ``background``.

    Raises:
        ClasswiseError: if the images are not grayscale, a class is not in exactly one group, or a colour is invalid.
    """
    if images.shape[0] != 1:
        raise ClasswiseError(f"{images.name} has {images.shape[0]} channels; coloured backgrounds need 1 channel")
    if sorted(number for group in groups for number in group) != list(range(images.num_classes)):
        raise ClasswiseError(
            f"groups {groups}: must contain each of the {images.num_classes} classes of {images.name} once"
        )
    if len(colours) != len(groups) or any(
        len(colour) != 3 or not all(0 <= v <= 1 for v in colour) for colour in colours
    ):
        raise ClasswiseError(f"colours {colours}: must be three numbers in [0, 1] for each of {len(groups)} groups")
    group_of = torch.tensor(
        [next(g for g, group in enumerate(groups) if c in group) for c in range(images.num_classes)]
    )
    ids = group_of.to(images.device)[images.y]
    background = torch.tensor(colours, dtype=torch.float32, device=images.device)[ids].view(-1, 3, 1, 1)
    parts = []
    for start in range(0, len(images), 4096):
        rows = slice(start, start + 4096)
        grey = images.pixels(rows)
        parts.append((grey + (1 - grey) * background[rows]).mul(255).round().byte())
    names = tuple(",".join(images.class_names[number] for number in group) for group in groups)
    coloured = images.with_pixels(torch.cat(parts), f"{images.name} on colours")
    return coloured.with_column("background", ids.cpu(), names)


@checked
def white_background(images: Images, masks: Tensor) -> Images:
    """Set every pixel outside the mask of its image to white (KDD 2021, section 6.2).

    Args:
        images: any data set.
        masks: one mask per image, bool (N, H, W), true on the object; for example those of `masks.GrabCut`.

    Raises:
        ClasswiseError: if the masks have another shape or data type.
    """
    if masks.dtype != torch.bool or masks.shape != (len(images), *images.shape[1:]):
        shape = (len(images), *images.shape[1:])
        raise ClasswiseError(f"masks of {masks.dtype} {tuple(masks.shape)}: must be bool {shape}, true on the object")
    white = 255 if images.x.dtype == torch.uint8 else 1
    x = torch.where(masks[:, None].to(images.device), images.x, torch.full_like(images.x[:1], white))
    return images.with_pixels(x, f"{images.name} on white")


@checked
def random_regions(masks: Tensor, seed: Seed = 0) -> Tensor:
    """Shift each mask cyclically by a random offset; its area does not change.

    The control of `white_background`: the same number of pixels becomes white, but in random regions.

    Args:
        masks: one mask per image, bool (N, H, W).
        seed: seed of the offsets.
    """
    count, height, width = masks.shape
    rng = CounterRNG(seed, "regions")
    index = torch.arange(count)
    down = rng.integers(index, (), height)[:, None] + torch.arange(height)
    right = rng.integers(index, (), width, counter=1)[:, None] + torch.arange(width)
    return masks[index[:, None, None], (down % height)[:, :, None], (right % width)[:, None, :]]
