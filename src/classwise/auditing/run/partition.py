"""The partition of images among the processes of an audit, and among shards that run one by one.

The k-th image of class c, counted from 0 in the order of the data, belongs to share (k + c) mod n. The shares of every
class thus differ by at most one image, and the remainders of the classes are spread over the shares. The rule needs
the labels up to the image only, so images in memory and a stream that is read once have the same shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from classwise.auditing.evaluation.shard import Shard, check_count
from classwise.auditing.run import inputs
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.errors import ClasswiseError
from classwise.data.image_names import joined
from classwise.data.images import Images


def rows_of(shard: Shard, y: Tensor, seen: Tensor | None = None) -> Tensor:
    """Rows of the images of a shard, ascending.

    Args:
        shard: the shard.
        y: labels (N,).
        seen: (C,) number of earlier images of each class; None: none.

    Example:
        >>> rows_of(Shard(1, 2), torch.tensor([0, 0, 0, 1, 1])).tolist()
        [0, 2, 4]
    """
    place = _occurrence(y) if seen is None else _occurrence(y) + seen[y]
    return ((place + y) % shard.count == shard.number - 1).nonzero().squeeze(1)


def pieces_of_shard(shard: Shard, pieces: Iterable[Images]) -> Iterator[Images]:
    """The images of a shard, in pieces of about the same size as those of the data.

    All pieces are read, so that the fingerprint of a stream is that of the data.

    Args:
        shard: the shard.
        pieces: all images, in the order of the data.
    """
    seen, own = torch.zeros(0, dtype=torch.int64), list[Images]()
    for piece in pieces:
        y = piece.y.cpu()
        counts = torch.bincount(y, minlength=len(seen))
        seen = pad(seen, (0, len(counts) - len(seen)))
        rows = rows_of(shard, y, seen)
        seen = seen + counts
        if not len(rows):
            continue
        if own and own[0].x.dtype != piece.x.dtype:
            yield _joined(own)
            own = []
        own.append(piece.take(rows))
        if sum(piece.x.nbytes for piece in own) >= inputs.PIECE_BYTES:
            yield _joined(own)
            own = []
    if own:
        yield _joined(own)


def shard_of(options: Mapping[str, Any]) -> Shard | None:
    """The shard of the options of an evaluation; None for all images."""
    return None if options.get("shard") is None else Shard.parse(options["shard"])


def check_shards(options: Mapping[str, Any], out: object) -> None:
    """Check the options ``shard`` and ``shards`` of an evaluation.

    Args:
        options: see `classwise.auditing.evaluation.evaluation.Sharded`.
        out: the folder of the evaluation, or None.

    Raises:
        ClasswiseError: for a shard and a merge, or for a merge without a folder.
    """
    shard, shards = shard_of(options), options.get("shards")
    if shards is not None:
        check_count(shards)
        if shard is not None:
            raise ClasswiseError("shard attacks one shard and shards merges all of them; give one of the two")
        if out is None:
            raise ClasswiseError("shards requires out, the folder whose shards are merged")


def balanced_order(y: Tensor) -> Tensor:
    """Order of the rows in which classes alternate, so that a stopped audit has similar numbers of each class."""
    return torch.argsort(_occurrence(y), stable=True)


def part_of(order: Tensor, y: Tensor, processes: ProcessGroup) -> Tensor:
    """This process's share of an order; the shares of each class differ by at most one row.

    The share depends on the labels ``y`` only, and the outcome of a row does not depend on the process.
    """
    if processes.world_size == 1:
        return order
    label = y[order]
    return order[(_occurrence(label) + label) % processes.world_size == processes.rank]


def _occurrence(y: Tensor) -> Tensor:
    """(N,) number of earlier rows with the same label."""
    by_class = torch.argsort(y, stable=True)
    counts = torch.bincount(y)
    occurrence = torch.empty_like(by_class)
    occurrence[by_class] = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[by_class]]
    return occurrence


def _joined(pieces: Sequence[Images]) -> Images:
    """One piece of several pieces of a stream, which have no columns."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    x, y, index = (torch.cat([getattr(piece, name) for piece in pieces]) for name in ("x", "y", "index"))
    names = joined((piece.image_names, len(piece)) for piece in pieces)
    return Images(x, y, first.class_names, first.name, first.split, index=index, image_names=names)
