"""Data experiments that need no model: a class removed, superclasses as classes, backgrounds in colour or white."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.rng import CounterRNG
from classwise.data.images import Images

GROUPS = ((0, 2, 3, 6, 8), (1, 4, 5, 7, 9))
"""Which digits share a background; the paper says of it only that 2 and 3 do, 2 and 5 do not. The rest is ours."""
COLOURS = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))
"""The background of each group, red, green and blue in [0, 1]; ours."""


def class_number(images: Images, which: int | str) -> int:
    """The number of a class given by number or name.

    Raises:
        ClasswiseError: if there is no such class.
    """
    if isinstance(which, str) and which in images.class_names:
        return images.class_names.index(which)
    if isinstance(which, str) and not which.isdecimal():
        raise unknown(f"class of {images.name}", which, images.class_names)
    number = int(which)
    if not 0 <= number < images.num_classes:
        raise ClasswiseError(f"{images.name} has no class {number}; it has 0 to {images.num_classes - 1}")
    return number


def without_class(images: Images, which: int | str) -> Images:
    """The images of all other classes; labels and class names stay, so that networks keep their outputs.

    This is the training set of a homing matrix (KDD 2021, section 6.1).

    Args:
        images: any set.
        which: the class, by number or name.

    Raises:
        ClasswiseError: if there is no such class, or nothing is left.
    """
    number = class_number(images, which)
    return images.renamed(f"{images.name} without {images.class_names[number]}").take(images.y != number)


def only_classes(images: Images, which: Iterable[int | str]) -> Images:
    """The images of some classes, relabelled 0, 1, ... in the order given, under the names of those classes alone.

    Raises:
        ClasswiseError: for an unknown class, one given twice, or none.
    """
    numbers = [class_number(images, one) for one in which]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ClasswiseError(f"classes {numbers} should be different ones, and at least one")
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
    )


def superclass_of(images: Images) -> Mapping[str, str]:
    """The name of each class's superclass.

    Raises:
        ClasswiseError: if the set has none.
    """
    if images.superclasses is None:
        raise ClasswiseError(f"{images.name} has no superclasses")
    parents = images.superclasses
    return {name: images.superclass_names[parents[number]] for number, name in enumerate(images.class_names)}


def by_superclass(images: Images) -> Images:
    """The same images with their superclasses as classes.

    Raises:
        ClasswiseError: if the set has none.
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
    )


def coloured_background(
    images: Images,
    groups: Sequence[Sequence[int]] = GROUPS,
    colours: Sequence[Sequence[float]] = COLOURS,
) -> Images:
    """Grey images on backgrounds in the colour of their class's group: ``g + (1 - g) colour`` (KDD 2021, section 6.2).

    Args:
        images: (N, 1, H, W), bright on dark, such as MNIST.
        groups: classes that share a background; every class in one group.
        colours: red, green and blue in [0, 1] of each group.

    Returns:
        (N, 3, H, W) uint8, with the column ``background``.

    Raises:
        ClasswiseError: if images are not grey, a class is in no group or in two, or a colour is none.
    """
    if images.shape[0] != 1:
        raise ClasswiseError(f"{images.name} has {images.shape[0]} channels; coloured backgrounds need grey images")
    if sorted(number for group in groups for number in group) != list(range(images.num_classes)):
        raise ClasswiseError(
            f"groups {groups} should hold each of the {images.num_classes} classes of {images.name} once"
        )
    if len(colours) != len(groups) or any(len(one) != 3 or not all(0 <= v <= 1 for v in one) for one in colours):
        raise ClasswiseError(f"colours {colours} should be three numbers in [0, 1] for each of {len(groups)} groups")
    group_of = torch.tensor(
        [next(g for g, group in enumerate(groups) if c in group) for c in range(images.num_classes)]
    )
    ids = group_of.to(images.device)[images.y]
    paint = torch.tensor(colours, dtype=torch.float32, device=images.device)[ids].view(-1, 3, 1, 1)
    parts = []
    for start in range(0, len(images), 4096):
        rows = slice(start, start + 4096)
        grey = images.pixels(rows)
        parts.append((grey + (1 - grey) * paint[rows]).mul(255).round().byte())
    names = tuple(",".join(images.class_names[number] for number in group) for group in groups)
    coloured = images.with_pixels(torch.cat(parts), f"{images.name} on colours")
    return coloured.with_column("background", ids.cpu(), names)


def white_background(images: Images, masks: Tensor) -> Images:
    """The images with every pixel outside its mask white (KDD 2021, section 6.2).

    Args:
        images: any set.
        masks: (N, H, W) bool, true on the object, a row for each image: your own, or those of `object_masks`.

    Raises:
        ClasswiseError: if the masks have another shape or type.
    """
    if masks.dtype != torch.bool or masks.shape != (len(images), *images.shape[1:]):
        wanted = (len(images), *images.shape[1:])
        raise ClasswiseError(f"masks of {masks.dtype} {tuple(masks.shape)} should be bool {wanted}, true on the object")
    white = 255 if images.x.dtype == torch.uint8 else 1
    x = torch.where(masks[:, None].to(images.device), images.x, torch.full_like(images.x[:1], white))
    return images.with_pixels(x, f"{images.name} on white")


def random_regions(masks: Tensor, seed: int = 0) -> Tensor:
    """Masks of the same areas in other places: each image's mask moved round by a random offset, over the border.

    The control of `white_background`: as many pixels become white, and not those of the background.
    """
    count, height, width = masks.shape
    rng = CounterRNG(seed, "regions")
    index = torch.arange(count)
    down = rng.integers(index, (), height)[:, None] + torch.arange(height)
    right = rng.integers(index, (), width, counter=1)[:, None] + torch.arange(width)
    return masks[index[:, None, None], (down % height)[:, :, None], (right % width)[:, None, :]]
