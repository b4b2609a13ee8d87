"""Finished blocks of an engine as one block."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from classwise.attacks.engine import Finished

COLUMNS = [field.name for field in dataclasses.fields(Finished) if field.name != "records"]


def joined(blocks: Iterable[Finished]) -> Finished:
    """The rows of all blocks in the order of their index."""
    found = list(blocks)
    order = torch.cat([block.index for block in found]).argsort()
    columns = {name: torch.cat([getattr(block, name) for block in found])[order] for name in COLUMNS}
    records = {name: torch.cat([block.records[name] for block in found])[order] for name in found[0].records}
    return Finished(**columns, records=records)
