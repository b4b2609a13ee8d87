"""The accuracy that JPEG costs: one model on images that are encoded again at several qualities.

``WEIGHTS=runs/at/checkpoints/best.safetensors python -m benchmarks jpeg-quality``; by default the weights of the
checkpoint ``cifar10-at``. LOSSLESS names a file or folder of images that were never JPEG, which
`classwise.load_data` reads; without it only the stored test images of CIFAR-10 are measured.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.evaluation import CHECKPOINTS
from benchmarks.studies import percent
from benchmarks.tables import conditions, table
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.core.errors import ClasswiseError
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.stats.counts import PairedCounts
from classwise.stats.intervals import Estimate
from classwise.stats.paired import overall_difference

QUALITIES = (95, 85, 75, 60, 50, 30)
ATTACKED = 1000
ATTACK = "pgd:steps=20,step_size=0.1eps,objective=margin"
THREAT = "Linf:8/255"


def encoded(data: Images, quality: int) -> Images:
    """The images after encoding and decoding as JPEG, with the chroma subsampling that is Pillow's default (4:2:0)."""
    pixels = []
    for image in data.pixels().mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy():
        file = io.BytesIO()
        Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(file, "JPEG", quality=quality)
        pixels.append(np.asarray(Image.open(file)).reshape(image.shape))
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    return data.with_pixels(x, f"{data.name}, JPEG {quality}")


def psnr(data: Images, other: Images) -> float:
    """Peak signal-to-noise ratio of all pixels, in decibels."""
    error = (data.pixels() - other.pixels()).square().mean()
    return float(-10 * error.log10())


def outcomes(weights: Path, data: Images, attacked: int) -> tuple[Outcomes, Outcomes]:
    """The clean pass on all images, and the attack on the first ones."""
    clean = audit(weights, data, THREAT, ["clean"], guards="off").outcomes
    return clean, audit(weights, data.take(slice(attacked)), THREAT, [ATTACK], guards="off").outcomes


def rows_of(weights: Path, data: Images, qualities: Sequence[int], attacked: int) -> list[list[str]]:
    """A row for each quality: accuracies, and their differences from those on the images as given."""
    reference = outcomes(weights, data, attacked)
    rows = [["as given", "", *_cells(reference, None)]]
    for quality in qualities:
        other = encoded(data, quality)
        rows.append([f"{quality}", f"{psnr(data, other):.1f}", *_cells(outcomes(weights, other, attacked), reference)])
    return rows


def _cells(found: tuple[Outcomes, Outcomes], reference: tuple[Outcomes, Outcomes] | None) -> list[str]:
    cells = []
    for place, name in enumerate(("clean", "all")):
        correct = found[place].correct(name)
        cells.append(f"{100 * correct.mean():.1f}")
        if reference is None:
            cells.append("")
        else:
            labels = found[place].labels
            pairs = PairedCounts.from_labels(labels, correct, reference[place].correct(name), int(labels.max()) + 1)
            difference, low, high, *_ = overall_difference(pairs)
            cells.append(percent(Estimate(float(difference[0]), float(low[0]), float(high[0])), "+"))
    return cells


def run(*, quick: bool) -> str:
    """A table for the test images, and one for each set of lossless images."""
    weights = Path(os.environ.get("WEIGHTS", CHECKPOINTS / "cifar10-at.safetensors"))
    qualities, attacked = (QUALITIES[:1], 50) if quick else (QUALITIES, ATTACKED)
    try:
        load_model(weights)
        data = load_data("cifar10", split="test", subset=200 if quick else None, download=False)
        sets = {"CIFAR-10 test images as stored": data}
        for path in filter(None, os.environ.get("LOSSLESS", "").split(os.pathsep)):
            sets[Path(path).stem] = load_data(path)
    except ClasswiseError as error:
        return f"JPEG was not measured: {error}\n"
    header = ["quality", "PSNR, dB", "clean", "difference", "robust", "difference"]
    texts = [f"{conditions()}; {weights.name}, {THREAT}, {ATTACK}.\n"]
    for name, images in sets.items():
        title = f"{name}: {len(images):,} images, {min(attacked, len(images)):,} of them attacked; percent, points"
        texts.append(table(title, header, rows_of(weights, images, qualities, attacked)))
    return "\n".join(texts)
