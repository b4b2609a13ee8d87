"""The pixels of a viewer: where they come from, and sheets of many small images as WebP files."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from classwise.auditing.outcomes.artifacts import EXAMPLES
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images
from classwise.data.sets import DATA
from classwise.data.sets.loading import open_data
from classwise.data.stream import Stream
from classwise.reporting import formatting
from classwise.stats.counts import IntArray

logger = logging.getLogger(__name__)

SIDE = 64
"""Largest side of an image in pixels; larger images are reduced."""
TILES = 256
"""Number of images of a sheet."""
COLUMNS = 16
"""Number of images of a row of a sheet."""
MAX_BYTES = 20 << 20
"""Largest size of all sheets; compression without loss is replaced by the best quality that fits."""
QUALITIES = (None, 90, 75, 60, 45, 30, 15)
"""Qualities of WebP, the best first; None: without loss."""
_SAMPLE = 64
"""Number of images of each kind that the size is estimated with."""

Pixels = NDArray[np.uint8]
"""(N, H, W, 3)."""


@dataclass(frozen=True)
class Tiles:
    """Small images of some of the shown images.

    Attributes:
        places: their positions among the shown images, ascending.
        pixels: one for each.
    """

    places: IntArray
    pixels: Pixels

    @staticmethod
    def of(index: IntArray, rows: Any, wanted: IntArray) -> Tiles:
        """The tiles of images of some of the ``wanted`` indices (N,)."""
        order = np.argsort(wanted, kind="stable")
        position = np.minimum(np.searchsorted(wanted[order], index), len(wanted) - 1)
        known = np.flatnonzero(wanted[order][position] == index)
        places = order[position[known]]
        ascending = np.argsort(places)
        return Tiles(places[ascending], small(rows[torch.from_numpy(known[ascending])]))


@dataclass(frozen=True)
class PixelSources:
    """Clean and adversarial images of a viewer.

    Attributes:
        clean: the clean images; None if there are none.
        adversarial: by audit and attack, those that are misclassified though their clean image is not.
        sentence: where they come from.
    """

    clean: Tiles | None
    sentence: str
    adversarial: Mapping[tuple[int, str], Tiles] = field(default_factory=dict)


def small(rows: Any) -> Pixels:
    """Images (N, C, H, W), uint8 or float in [0, 1], as RGB of at most `SIDE` pixels a side.

    Images with another number of channels than three become grey.
    """
    pixels = torch.as_tensor(rows)
    unit = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
    height, width = unit.shape[2:]
    if max(height, width) > SIDE:
        scale = SIDE / max(height, width)
        size = max(1, round(height * scale)), max(1, round(width * scale))
        unit = torch.nn.functional.interpolate(unit, size, mode="area")
    if unit.shape[1] != 3:
        unit = unit.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    return (unit.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def pixels_of(audits: Sequence[Audit], shown: IntArray, data: Any, options: Mapping[str, Any]) -> PixelSources:
    """Read the clean images, and the saved adversarial images of attacks that succeeded.

    Args:
        audits: the audits.
        shown: positions of the shown images in the outcomes.
        data: the audited images; None: the data set that the audit names, if it is on this machine.
        options: of `open_data`.

    Raises:
        ClasswiseError: if ``data`` are given and are not the audited images.
    """
    outcomes = audits[0].outcomes
    wanted = outcomes.index[shown]
    clean, sentence = _clean(audits[0], wanted, data, options)
    adversarial = {}
    for number, audit in enumerate(audits):
        right = audit.outcomes.correct(CLEAN) if CLEAN in audit.attacks else np.ones(len(outcomes), np.bool_)
        for attack in audit.attacks:
            if attack != CLEAN and (
                found := _saved(audit, attack, wanted[(right & ~audit.outcomes.correct(attack))[shown]])
            ):
                index, rows = found
                adversarial[number, attack] = Tiles.of(index, rows, wanted)
    if adversarial:
        sentence += " Adversarial images are those that the audit saved, where the attack succeeded."
    else:
        sentence += " No adversarial images were saved (classwise audit --save images)."
    return PixelSources(clean, sentence, adversarial)


def _clean(audit: Audit, wanted: IntArray, data: Any, options: Mapping[str, Any]) -> tuple[Tiles | None, str]:
    """The clean images, and a sentence on where they come from.

    Raises:
        ClasswiseError: if ``data`` or ``options`` are given, and do not lead to the audited images.
    """
    meta = audit.outcomes.meta
    required = data is not None or bool(options)
    reason = "the audit names no data set of classwise"
    if required or meta.data in DATA:
        try:
            source = data if isinstance(data, Images | Stream) else _opened(data, audit, options)
            tiles = _audited(source, audit, wanted)
        except ClasswiseError as error:
            if required:
                raise
            tiles, reason = None, str(error).partition(";")[0]
        else:
            if tiles is not None:
                name = formatting.data_name(source.name, source.split)
                return tiles, f"Clean images: {name}, SHA-256 as in the audit."
            reason = f"the SHA-256 of {source.name} differs from that of the audit"
        if required:
            where = formatting.data_name(meta.data, meta.split) or "which are not named"
            raise ClasswiseError(f"data: not the audited images, {where}: {reason}")
    found = _saved(audit, CLEAN, wanted)
    sentence = "Clean images have a placeholder"
    if found:
        sentence = "Clean images: the examples that the audit saved; the others have a placeholder"
    sentence = f"{sentence}, since {reason}; give the data as in the audit (--data, --data-set)."
    logger.warning("%s", sentence)
    return Tiles.of(*found, wanted) if found else None, sentence


def _opened(data: Any, audit: Audit, options: Mapping[str, Any]) -> Images | Stream:
    """The data of a name or path; None: those that the audit names, which are not downloaded."""
    meta = audit.outcomes.meta
    return open_data(data or meta.data, **{"split": meta.split or "test", "download": data is not None, **options})


def _audited(source: Images | Stream, audit: Audit, wanted: IntArray) -> Tiles | None:
    """The tiles of the audited images; None if the data are others."""
    expected = audit.outcomes.meta.data_hash
    if isinstance(source, Stream):
        parts = [Tiles.of(batch.index.numpy(), batch.x, wanted) for batch in source.blocks(TILES)]
        tiles = Tiles(np.concatenate([part.places for part in parts]), np.concatenate([part.pixels for part in parts]))
        order = np.argsort(tiles.places)
        return Tiles(tiles.places[order], tiles.pixels[order]) if source.fingerprint() == expected else None
    source = source.to("cpu")
    if source.fingerprint() != expected:
        rows = np.flatnonzero(np.isin(source.index.numpy(), audit.outcomes.index))
        if not len(rows) or (source := source.take(rows)).fingerprint() != expected:
            return None
    return Tiles.of(source.index.numpy(), source.x, wanted)


def _saved(audit: Audit, attack: str, wanted: IntArray) -> tuple[IntArray, torch.Tensor] | None:
    """Index and pixels of saved images of an attack; of clean images, the examples. None if there are none."""
    kind = EXAMPLES if attack == CLEAN else "images"
    try:
        index, rows = audit.artifacts.get(kind, attack)
    except ClasswiseError:  # raised if none were saved
        return None
    chosen = np.isin(index, wanted)
    return (index[chosen], torch.from_numpy(rows[chosen].astype(np.float32))) if chosen.any() else None


def differences(tiles: Tiles, clean: Tiles) -> tuple[Tiles, float]:
    """The differences to the clean images around grey, amplified by a common factor, which is returned too."""
    both = np.isin(tiles.places, clean.places)
    places = tiles.places[both]
    change = tiles.pixels[both].astype(np.int16) - clean.pixels[np.searchsorted(clean.places, places)]
    largest = int(np.abs(change).max(initial=0))
    factor = 127.5 / largest if largest else 1.0
    return Tiles(places, np.rint(127.5 + factor * change).clip(0, 255).astype(np.uint8)), factor


def quality_of(kinds: Sequence[Tiles], most: int = MAX_BYTES) -> int | None:
    """The best quality at which all sheets are estimated to fit."""
    for quality in QUALITIES:
        size = 0.0
        for tiles in kinds:
            number = len(tiles.pixels)
            some = tiles.pixels[:: math.ceil(number / _SAMPLE)]
            size += len(sheet(some, quality)) * number / max(len(some), 1)
        if size <= most:
            return quality
    return QUALITIES[-1]


def sheet(pixels: Pixels, quality: int | None) -> bytes:
    """Up to `TILES` images in rows of `COLUMNS`, as a WebP file."""
    number, height, width, _ = pixels.shape
    rows = math.ceil(number / COLUMNS)
    grid = np.full((rows * COLUMNS, height, width, 3), 128, np.uint8)
    grid[:number] = pixels
    grid = grid.reshape(rows, COLUMNS, height, width, 3).transpose(0, 2, 1, 3, 4).reshape(rows * height, -1, 3)
    file = io.BytesIO()
    options: dict[str, Any] = {"lossless": True, "quality": 60} if quality is None else {"quality": quality}
    Image.fromarray(grid).save(file, format="WEBP", method=4, **options)
    return file.getvalue()


def sheets(tiles: Tiles, quality: int | None) -> Iterator[bytes]:
    """All sheets of the tiles, in their order."""
    for start in range(0, len(tiles.pixels), TILES):
        yield sheet(tiles.pixels[start : start + TILES], quality)
