"""The options that evaluations share: each with its type, its default and its description."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import torch
from pydantic import Field

from classwise.auditing.guards.report import GuardMode
from classwise.auditing.outcomes.artifacts import Kind
from classwise.auditing.run.partition import MOST_SHARDS, Shard
from classwise.core.compute.precision import Dtype, Precision
from classwise.core.compute.repeats import RepeatCount, RepeatRule
from classwise.core.settings.arguments import BatchSize, Distance
from classwise.core.settings.config import Seed
from classwise.threat.text import Grid

F = TypeVar("F", bound=Callable[..., Any])

ShardLike = Annotated[str | tuple[int, int] | Shard, "text such as '7/40', a pair of integers, or a Shard"]
Shards = Annotated[int, Field(ge=1, le=MOST_SHARDS)]


class EvaluationOptions(TypedDict, total=False):
    """Options of every evaluation; see `AuditOptions`."""

    device: str | torch.device | None
    precision: Precision | Dtype | None
    batch_size: BatchSize | None
    seed: Seed


class ShardedOptions(EvaluationOptions, total=False):
    """Options of an evaluation that can run in shards; see `AuditOptions`."""

    shard: ShardLike | None
    shards: Shards | None


class AuditOptions(ShardedOptions, total=False):
    """Options of `audit`; other evaluations have some of them.

    Args:
        device: where to run; None: where the model is. A module is moved to the device.
        precision: of the gradients, a `Precision` or its dtype; success is decided in float32. None: the fastest on the
            device (`classwise.core.compute.precision.fastest`); if an audit is resumed, that of the saved audit.
        batch_size: images on the device at once, at least 32. Results repeat bit for bit at one batch size. None: 128,
            on a GPU 1024 or as many as there are, and for images above 64 x 64 pixels as many as fit; if an audit is
            resumed, that of the saved audit.
        seed: seed of the random numbers of the attacks, and of samples of the images.
        shard: evaluate one shard of the images, such as ``"7/40"``; ``out`` is ``.../shards/007-of-040``.
        shards: merge this number of finished shards in ``out``; on a CPU, with the bits of an evaluation without
            shards.
        early_stop: stop attacking an image at the first success. False: every attack runs all its steps on every image,
            and the last iterate counts.
        cascade: run each attack on the survivors of the previous attacks only, so that none is measured separately.
            None: True if ``attacks`` contains a named suite, such as ``autoattack``.
        settle: estimate the accuracy under ``attacks="autoattack"`` (`Audit.estimator`) to this distance, such as
            0.005: FAB and Square run on a sample of the survivors of APGD. Requires images in memory. None: every
            attack on every image.
        save: tensors to save for every attacked image: ``"logits"``, ``"features"``, ``"images"``.
        trace: indices of the images whose confidences are recorded step by step.
        repeats: number of passes that decide whether an image is correct, each with new random numbers of the model;
            for models with random outputs.
        repeat_rule: ``"majority"``: an image is correct if more than half of the passes are; ``"all"``: if all are.
        grid: ``"8bit"``: adversarial images are rounded to multiples of 1/255 inside the ball before success is
            decided, as stored images are.
        guards: ``"auto"`` limits the guards to 20 % of the passes of the attacks, ``"full"`` runs all, ``"off"`` none.
            Outcomes do not depend on it.
        policy: file of a `classwise.auditing.criteria.policy.Policy`, whose SHA-256 is recorded before the first
            attack. It is not recorded if the folder, or another audit of the same model and images beside it, was begun
            without it.
    """

    early_stop: bool
    cascade: bool | None
    settle: Distance | None
    save: Kind | Sequence[Kind]
    trace: Sequence[int]
    repeats: RepeatCount
    repeat_rule: RepeatRule
    grid: Grid | None
    guards: GuardMode
    policy: str | Path | None


DEFAULTS: AuditOptions = {
    "seed": 0,
    "early_stop": True,
    "save": (),
    "trace": (),
    "repeats": 1,
    "repeat_rule": "majority",
    "guards": "auto",
}
"""The default values that are not None."""
_DESCRIPTIONS = {
    text.partition(":")[0].strip(): text
    for text in re.findall(r"^ {4}\w+:.*(?:\n {8}.*)*", inspect.getdoc(AuditOptions) or "", re.MULTILINE)
}


def with_options(function: F) -> F:
    """List the options of a function, its last argument ``**options: Unpack[...]``, in its signature and docstring.

    So `help`, completion in notebooks and `classwise.core.settings.arguments.checked` know each of them.

    Example:
        >>> import inspect
        >>> from typing import Unpack
        >>> from classwise.auditing.run.options import EvaluationOptions, with_options
        >>> @with_options
        ... def evaluate(model: object, **options: Unpack[EvaluationOptions]) -> None: ...
        >>> list(inspect.signature(evaluate).parameters)
        ['model', 'device', 'precision', 'batch_size', 'seed']
    """
    signature = inspect.signature(function)
    *parameters, last = signature.parameters.values()
    written = types.SimpleNamespace(__annotations__={last.name: function.__annotations__.pop(last.name)})
    (record,) = typing.get_args(typing.get_type_hints(written, function.__globals__)[last.name])
    options = record.__annotations__
    parameters += [
        inspect.Parameter(name, last.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=hint.__forward_arg__)
        for name, hint in options.items()
    ]
    function.__annotations__ |= typing.get_type_hints(record, include_extras=True)
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    descriptions = "\n".join(_DESCRIPTIONS[name] for name in options)
    function.__doc__ = re.sub(rf" *\*\*{last.name}: .*", lambda _: descriptions, inspect.getdoc(function) or "")
    return function
