from __future__ import annotations

import pytest
import torch

from classwise.data import (
    Images,
    by_superclass,
    coloured_background,
    load_data,
    only_classes,
    superclass_of,
    white_background,
    without_class,
)
from classwise.data.derived import random_regions
from classwise.data.images import Column
from tests.refusals import check_refused

PARENTS = (0, 0, 1, 1)


@pytest.fixture
def images() -> Images:
    x = torch.randint(0, 256, (12, 3, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    side = Column(torch.arange(12) % 2, ("left", "right"))
    names = ("ant", "bee", "cat", "dog")
    return Images(
        x, torch.arange(12) % 4, names, "pets", "train", (0, 0, 1, 1), ("small", "large"), columns={"side": side}
    )


@pytest.mark.parametrize("which", [2, "2", "cat"])
def test_a_class_removed(images: Images, which: int | str) -> None:
    left = without_class(images, which)
    assert left.class_counts().tolist() == [3, 3, 0, 3]
    assert left.class_names == images.class_names, "networks keep their outputs"
    assert torch.equal(left.x, images.x[left.index])
    assert left.name == "pets without cat"
    assert left.columns["side"].ids.tolist() == (left.index % 2).tolist()
    assert images.name == "pets"


def test_some_classes_only(images: Images) -> None:
    part = only_classes(images, ["dog", 0])
    assert part.class_names == ("dog", "ant")
    assert (images.y[part.index] == torch.tensor([3, 0])[part.y]).all()
    assert part.superclasses == (1, 0)
    assert len(part) == 6
    check_refused(r"classes \[1, 1\]: must be distinct", only_classes, images, [1, "bee"])


def test_superclasses(images: Images) -> None:
    assert superclass_of(images) == {"ant": "small", "bee": "small", "cat": "large", "dog": "large"}
    coarse = by_superclass(images)
    assert coarse.class_names == ("small", "large")
    assert torch.equal(coarse.y, images.y // 2)
    check_refused("pets by superclass has no superclasses", superclass_of, coarse)


@pytest.mark.parametrize(
    ("which", "message"), [(4, "has no class 4; it has 0 to 3"), ("act", "unknown class of pets 'act'")]
)
def test_no_such_class(images: Images, which: int | str, message: str) -> None:
    check_refused(message, without_class, images, which)


def test_coloured_digits() -> None:
    digits = load_data("digits")
    coloured = coloured_background(digits)
    assert coloured.shape == (3, 8, 8)
    grey = digits.pixels()
    for row in range(20):
        red = int(digits.y[row]) in (0, 2, 3, 6, 8)
        full, empty = (0, 2) if red else (2, 0)
        found = coloured.pixels(slice(row, row + 1))[0]
        assert torch.equal(found[full], torch.ones(8, 8))
        assert torch.equal(found[empty], grey[row, 0])
        assert torch.equal(found[1], grey[row, 0])
    background = coloured.columns["background"]
    assert background.names == ("0,2,3,6,8", "1,4,5,7,9")
    of_class = {int(label): int(group) for label, group in zip(coloured.y, background.ids, strict=True)}
    assert of_class[2] == of_class[3] != of_class[5], "all that the paper says"
    grown = coloured_background(digits, colours=((0, 0, 0), (0, 0, 0)))
    assert torch.equal(grown.x, digits.x.expand(-1, 3, -1, -1))


def test_bad_backgrounds(images: Images) -> None:
    check_refused("pets has 3 channels; coloured backgrounds need 1 channel", coloured_background, images)
    digits = load_data("digits")
    check_refused(
        "must contain each of the 10 classes of digits once", coloured_background, digits, groups=((0, 1), (1, 2))
    )
    check_refused(
        r"must be three numbers in \[0, 1\] for each of 2 groups",
        coloured_background,
        digits,
        colours=((1, 0, 0), (0, 0, 2)),
    )


def test_white_background(images: Images) -> None:
    masks = torch.zeros(12, 4, 5, dtype=torch.bool)
    masks[:, 1:3, 2] = True
    white = white_background(images, masks)
    kept = masks[:, None].expand(-1, 3, -1, -1)
    assert torch.equal(white.x[kept], images.x[kept])
    assert (white.x[~kept] == 255).all()
    assert torch.equal(white_background(Images(images.pixels(), images.y), masks).x, white.pixels())
    check_refused(
        r"masks of torch.bool \(12, 5, 4\): must be bool \(12, 4, 5\)", white_background, images, masks.transpose(1, 2)
    )
    check_refused(r"masks of torch.float32", white_background, images, masks.float())


def test_random_regions_have_the_same_area_elsewhere() -> None:
    masks = torch.zeros(50, 6, 7, dtype=torch.bool)
    masks[:, :2, :3] = True
    regions = random_regions(masks)
    assert torch.equal(regions.sum((1, 2)), masks.sum((1, 2)))
    assert regions.float().mean(0).min() > 0, "everywhere some time"
    assert torch.equal(regions, random_regions(masks))
    assert not torch.equal(regions, random_regions(masks, seed=1))
