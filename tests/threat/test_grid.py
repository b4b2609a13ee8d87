"""Rounding to the 8-bit grid inside a ball: against integer arithmetic, and against stored images."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from classwise.data.images import to_unit
from classwise.threat.ball import Threat
from classwise.threat.grid import from_levels, levels_of, rounded, snapped
from classwise.threat.text import Norm
from tests.refusals import check_refused

NORMS = st.sampled_from(["Linf", "L2", "L1", "recolour"])
RADII = {"Linf": 16 / 255, "recolour": 16 / 255, "L2": 0.7, "L1": 3.0}
SEEDS = st.integers(0, 2**31 - 1)


def pair(seed: int, norm: Norm, share: float, count: int = 3) -> tuple[Tensor, Tensor, Threat]:
    """Attacked images on and within the ball of a radius, their clean images on the grid, and the threat."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(0, 256, (count, 3, 5, 4), generator=generator, dtype=torch.uint8)
    clean[0, 0] = torch.tensor([0, 255])[torch.randint(0, 2, (5, 4), generator=generator)].byte()  # at the box
    x0, threat = to_unit(clean), Threat(norm, share * RADII[norm])
    return threat.project(x0 + torch.randn(x0.shape, generator=generator) * RADII[norm], x0), x0, threat


@given(SEEDS, NORMS, st.floats(0, 1))
def test_the_result_is_a_stored_image_inside_the_ball(seed: int, norm: Norm, share: float) -> None:
    x, x0, threat = pair(seed, norm, share)
    result = rounded(x, x0, threat)
    assert torch.equal(to_unit(levels_of(result).byte()), result)  # bit for bit
    assert bool((threat.distance(result, x0) <= threat.radius(x0).flatten() + 1e-6).all())
    assert bool(((result >= 0) & (result <= 1)).all())
    assert torch.equal(rounded(result, x0, threat), result)
    assert float((result - x).abs().max()) < 1.001 / 255


@given(SEEDS, NORMS)
def test_each_image_has_its_own_radius(seed: int, norm: Norm) -> None:
    x, x0, threat = pair(seed, norm, 1.0)
    radii = torch.tensor([0.2, 0.6, 1.0]) * RADII[norm]
    inside = threat.with_epsilon(radii).project(x, x0)
    together = rounded(inside, x0, threat.with_epsilon(radii))
    single = [rounded(inside[[row]], x0[[row]], Threat(norm, float(radii[row]))) for row in range(3)]
    assert torch.equal(together, torch.cat(single))


@given(SEEDS, st.integers(0, 40))
def test_linf_is_integer_arithmetic(seed: int, levels: int) -> None:
    x, x0, threat = pair(seed, "Linf", 1.0)
    threat = threat.with_epsilon(levels / 255)
    clean, nearest = np.rint(255 * x0.double().numpy()), np.rint(255 * x.double().numpy())
    expected = np.clip(np.clip(nearest, clean - levels, clean + levels), 0, 255)
    tied = np.abs(np.abs(255 * x.double().numpy() - nearest) - 0.5) < 1e-4
    assert np.array_equal(levels_of(rounded(x, x0, threat)).numpy()[~tied], expected[~tied])


def test_a_radius_of_whole_levels_allows_these_levels() -> None:
    levels, x0 = torch.arange(256.0), torch.tensor([[0.0, 1.0]]).expand(256, 2)
    expected = torch.stack([levels, 255 - levels], 1)
    threat = Threat("Linf", levels / 255)
    assert torch.equal(levels_of(rounded(threat.project(1 - x0, x0), x0, threat)), expected)
    for level in range(0, 256, 5):  # in float64, as a radius of all images is
        ball = Threat("Linf", level / 255)
        assert torch.equal(levels_of(rounded(ball.project(1 - x0, x0), x0, ball))[0], expected[level])


@given(SEEDS, st.sampled_from(["L2", "L1"]), st.floats(0, 1))
def test_balls_of_sums_are_used_as_far_as_whole_levels_allow(seed: int, norm: Norm, share: float) -> None:
    x, x0, threat = pair(seed, norm, share)
    result, power = rounded(x, x0, threat), 2 if norm == "L2" else 1
    clean = levels_of(x0)
    moved, wanted = levels_of(result) - clean, 255 * x.double() - clean
    assert bool((moved.abs() >= wanted.abs().sub(1e-4).floor()).all())
    assert bool((moved * wanted >= 0).all())  # toward the attacked image
    budget = (255 * (threat.radius(x0).double().flatten().expand(len(x)) + 5e-7)) ** power
    nearest = levels_of(x)
    for row in range(len(x)):
        if float(((nearest[row] - clean[row]).abs() ** power).sum()) <= float(budget[row]):
            assert torch.equal(levels_of(result[row]), nearest[row])
        # No pixel that is nearer to its next level could be rounded to it as well.
        spent, part = (moved[row].abs() ** power).sum(), wanted[row].abs() - moved[row].abs()
        waiting = part > 0.51
        if bool(waiting.any()):
            step = (moved[row].abs() + 1) ** power - moved[row].abs() ** power
            best = step.flatten()[torch.where(waiting, part, -1.0).argmax()]
            assert float(spent + best) > float(budget[row]) * 0.9999


def test_a_recolouring_remains_a_function_of_the_clean_values() -> None:
    x, x0, threat = pair(3, "recolour", 1.0)
    x0[:, :, 1:] = x0[:, :, :1]  # several pixels of each value
    before, after = x0.flatten(0, 1).flatten(1), rounded(threat.project(x, x0), x0, threat).flatten(0, 1).flatten(1)
    for clean, result in zip(before.tolist(), after.tolist(), strict=True):
        assert len({*zip(clean, result, strict=True)}) == len({*clean}) < len(clean)


def test_spatial_transformations_are_rounded_to_the_nearest_level() -> None:
    x, x0, _ = pair(1, "Linf", 1.0)
    assert torch.equal(rounded(x, x0, Threat("spatial", 1.0)), from_levels(levels_of(x)))


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_a_png_file_has_the_same_image(norm: Norm) -> None:
    x, x0, threat = pair(5, norm, 1.0, count=1)
    result, file = rounded(x, x0, threat), io.BytesIO()
    pixels = (255 * result[0]).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(file, format="PNG")
    assert torch.equal(to_unit(torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)[None]), result)


def test_rounding_errors_of_clean_images_are_removed_and_others_refused() -> None:
    exact = to_unit(torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16))
    noisy = exact + 5e-7 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    assert torch.equal(snapped(noisy, "toy"), exact)
    assert torch.equal(snapped(exact * 255 * (1 / 255), "toy"), exact)
    assert snapped(exact[:0], "toy").shape == (0, 1, 16, 16)
    for wrong in (exact + 2e-6, exact * 0.999, torch.full((1, 1, 2, 2), 0.5)):
        check_refused(r"^grid '8bit': the images of toy are not stored with 8 bits", snapped, wrong, "toy")
