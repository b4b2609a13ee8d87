"""`audit`: attack a model on every image and report its accuracy for each class."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Unpack

import torch

from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.audit_folder import folder_for
from classwise.auditing.run.claim import Claim, with_saved_choices
from classwise.auditing.run.cost import estimate
from classwise.auditing.run.execution import execute
from classwise.auditing.run.inputs import Group, Model, group_name, training_attack_of
from classwise.auditing.run.merging import checked_folder
from classwise.auditing.run.options import AuditOptions, with_options
from classwise.auditing.run.partition import check_shards, shard_of
from classwise.auditing.run.plan import Plan, chosen_arithmetic
from classwise.auditing.run.preparation import Inputs, prepare
from classwise.auditing.run.result import Audit
from classwise.auditing.run.sampling import check_sampling
from classwise.auditing.run.suite import Attacks, Suite, norm_of, parse_attacks, require_applicable
from classwise.core.compute.distributed import ProcessGroup, process_group
from classwise.core.errors import ClasswiseError
from classwise.core.progress.display import listening
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import Seconds, check, checked
from classwise.data.images import Images
from classwise.models.base import bare
from classwise.models.loading.references import is_stored
from classwise.threat.ball import ThreatLike
from classwise.training.folder import runs_in

__all__ = ["Audit", "audit", "estimate"]


@checked
@torch.inference_mode(mode=False)
@with_options
def audit(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    group: Group | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    max_time: Seconds | None = None,
    progress: Progress | bool | None = None,
    distributed: bool = True,
    **options: Unpack[AuditOptions],
) -> Audit:
    """Attack a model on every image and report its accuracy for each class.

    Args:
        model: a module or function that maps images in [0, 1] to logits (N, C), a run folder, or anything else that
            `load_model` accepts. It is evaluated in evaluation mode, and its modes are restored afterwards.
        data: `Images`, a pair (x, y), a Dataset, a DataLoader, or an iterable of (x, y) or dicts, which is streamed.
        threat: the ball, such as ``"Linf:8/255"`` or ``("Linf", 8/255)``; its radius may be a tensor with one value for
            each image in memory. None: the usual one of a named data set.
        attacks: see `classwise.auditing.run.suite.parse_attacks`; None: its `DEFAULT_SPECS`. Attacks that need
            gradients are skipped for a model without gradients, and the guard ``no-gradient`` lists them.
        group: report by group instead of class: ``"superclass"``, a column of the data, or a value for each image.
        out: folder for the audit, written in blocks; a run folder stores it as ``audits/audit``.
        resume: continue the audit in ``out``, which must have the same settings.
        max_time: seconds after which no further image is started. Tables of an incomplete audit contain bounds.
        progress: True shows a progress bar; or a listener.
        distributed: where `torch.distributed` is initialised, all processes must call this function with the same
            arguments, share the images, and receive the outcomes of one process, bit for bit. False: this process only.
        **options: see `AuditOptions`.

    Returns:
        The audit with its outcomes and the warnings of the guards.

    Raises:
        ClasswiseError: before any attack, for invalid or inapplicable attacks, invalid threat, data or options, a model
            that does not fit the data, a folder that is in use or contains something else, or unfinished shards.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=64)
        >>> model = cw.load_model("small-cnn", data=data, width=0.25)  # or any nn.Module
        >>> audit = cw.audit(model, data, threat="Linf:0.1", attacks=["pgd:steps=5", "fgsm"])
        >>> audit.names, audit.by_class.shape  # a row per class
        (('clean', 'pgd', 'fgsm', 'all'), (10, 13))
    """
    if isinstance(model, str | os.PathLike) and is_stored(model) and runs_in(Path(model)):
        raise ClasswiseError(
            f"{model} contains one run per seed; give one of them, or use classwise.audit_seeds for all"
        )
    shards = options.get("shards")
    with process_group(distributed=distributed) as processes, chosen_arithmetic(options.get("precision")):
        started = time.monotonic()
        folder, ready = _prepared(
            model, data, threat, attacks, out, group, options, resume=resume, merges=shards is not None
        )
        with listening(progress, active=processes.is_main) as listener:
            claim = Claim(ready, folder, processes, listener, shard_of(options), shards)
            trained_on = training_attack_of(model)
            return execute(claim, started, max_time, resume=resume, group=group_name(group), training_attack=trained_on)


def claim_for_shards(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    out: Path,
    resume: bool = False,
    group: Group | None = None,
    **options: Unpack[AuditOptions],
) -> Plan:
    """Check all arguments of a sharded `audit`, and mark its folder with its settings, before the first shard runs.

    The arguments and errors are those of `audit`; ``shards`` is among them.

    Returns:
        The plan, whose batch size and precision all shards must have.
    """
    check(audit, options)
    with chosen_arithmetic(options.get("precision")):
        folder, ready = _prepared(model, data, threat, attacks, out, group, options, resume=resume, merges=False)
    with Claim(ready, folder, ProcessGroup(), NullProgress(), shards=options.get("shards")).held(resume=resume):
        return ready.plan


def _prepared(
    model: Model,
    data: Any,
    threat: ThreatLike | None,
    attacks: Attacks | None,
    out: str | Path | None,
    group: Group | None,
    options: AuditOptions,
    *,
    resume: bool,
    merges: bool,
) -> tuple[Path | None, Inputs]:
    """The folder and the inputs of an audit, after all checks; ``merges``: whether shards in the folder are merged."""
    suite = parse_attacks(attacks, norm_of(threat))
    check_sampling(options, suite, norm_of(threat), group)
    check_shards(options, out)
    path = None if out is None else folder_for(Path(out))
    checked_folder(path, "audit", f"outcomes/{outcome_files.name(0)}", merges=merges)
    options = with_saved_choices(options, path if resume or merges else None)
    ready = prepare(model, data, suite, threat, group=group, **options)
    _check_ready(ready, suite, attacks)
    return path, ready


def _check_ready(ready: Inputs, suite: Suite, attacks: Attacks | None) -> None:
    """Check that attacks are applicable, and that a second phase is possible.

    Raises:
        ClasswiseError: for given attacks that all need gradients, and a network that states that it has none, such as
            an ONNX model; for ``settle`` with a stream, or with a model without gradients.
    """
    stated = getattr(bare(ready.model), "no_gradient", "")
    if attacks is not None and suite.attacks and stated:
        require_applicable(ready.plan.suite, suite, ready.no_gradient)
    if ready.plan.sampling is None:
        return
    if not isinstance(ready.source, Images):
        raise ClasswiseError("settle samples from images in memory, not from a stream; give Images, or omit settle")
    if ready.meta.not_applicable:
        names = ", ".join(ready.meta.not_applicable)
        raise ClasswiseError(f"settle requires all attacks, and the model has no gradient for {names}; omit settle")
