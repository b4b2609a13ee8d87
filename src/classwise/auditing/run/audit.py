"""`audit`: attack a model on every image and report its accuracy for each class."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from classwise.auditing.guards.report import GuardMode
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.artifacts import Kind
from classwise.auditing.run.audit_folder import folder_for
from classwise.auditing.run.cost import estimate
from classwise.auditing.run.execution import Execution, with_saved_choices
from classwise.auditing.run.inputs import Group, Model, group_name, training_attack_of
from classwise.auditing.run.merging import require_shards
from classwise.auditing.run.partition import check_shards, shard_of
from classwise.auditing.run.plan import AuditOptions, Distance, Plan, ShardLike, Shards, chosen_arithmetic
from classwise.auditing.run.preparation import Inputs, prepare
from classwise.auditing.run.result import Audit
from classwise.auditing.run.sampling import check_sampling
from classwise.auditing.run.suite import Attacks, Suite, norm_of, parse_attacks, require_applicable
from classwise.core.arguments import BatchSize, Seconds, check, checked
from classwise.core.config import Seed
from classwise.core.distributed import ProcessGroup, process_group
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Dtype, Precision
from classwise.core.progress import NullProgress, Progress
from classwise.core.progress_display import listening
from classwise.core.repeats import RepeatCount, RepeatRule
from classwise.core.storage import ResultFolder
from classwise.core.threat import ThreatLike
from classwise.core.threat_text import Grid
from classwise.data.images import Images
from classwise.models.base import bare
from classwise.models.loading.references import is_stored
from classwise.training.folder import runs_in

__all__ = ["Audit", "audit", "estimate"]


@checked
@torch.inference_mode(mode=False)
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
    device: str | torch.device | None = None,
    progress: Progress | bool | None = None,
    distributed: bool = True,
    precision: Precision | Dtype | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    early_stop: bool = True,
    cascade: bool | None = None,
    settle: Distance | None = None,
    save: Kind | Sequence[Kind] = (),
    trace: Sequence[int] = (),
    repeats: RepeatCount = 1,
    repeat_rule: RepeatRule = "majority",
    grid: Grid | None = None,
    guards: GuardMode = "auto",
    shard: ShardLike | None = None,
    shards: Shards | None = None,
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
        device: where to run; None: where the model is. A module is moved to the device.
        progress: True shows a progress bar; or a listener.
        distributed: where `torch.distributed` is initialised, all processes must call this function with the same
            arguments, share the images, and receive the outcomes of one process, bit for bit. False: this process only.
        precision: of the gradients, a `Precision` or its dtype; success is decided in float32. None: the fastest on the
            device (`classwise.core.precision.fastest`), or with ``resume`` that of the saved audit.
        batch_size: images on the device at once, at least 32. Results repeat bit for bit at one batch size. None: 128,
            on a GPU 1024 or as many as there are, and for images above 64 x 64 pixels as many as fit; with ``resume``
            that of the saved audit.
        seed: seed of the attacks' random numbers.
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
        shard: attack one shard of the images, such as ``"7/40"``; ``out`` is ``.../shards/007-of-040``.
        shards: merge this number of finished shards in ``out``; on a CPU, with the bits of an audit without shards.

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
    options = AuditOptions(
        precision=precision,
        batch_size=batch_size,
        seed=seed,
        early_stop=early_stop,
        cascade=cascade,
        settle=settle,
        save=save,
        trace=trace,
        repeats=repeats,
        repeat_rule=repeat_rule,
        grid=grid,
        guards=guards,
        shard=shard,
        shards=shards,
    )
    if isinstance(model, str | os.PathLike) and is_stored(model) and runs_in(Path(model)):
        raise ClasswiseError(
            f"{model} contains one run per seed; give one of them, or use classwise.audit_seeds for all"
        )
    with process_group(distributed=distributed) as processes, chosen_arithmetic(precision):
        started = time.monotonic()
        folder, ready = _prepared(
            model, data, threat, attacks, out, group, device, options, resume=resume, merges=shards is not None
        )
        with listening(progress, active=processes.is_main) as listener:
            execution = Execution(ready, folder, processes, listener, started, max_time, shard_of(options), shards)
            return execution.run(resume=resume, group=group_name(group), training_attack=training_attack_of(model))


def claim_for_shards(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    out: Path,
    resume: bool = False,
    group: Group | None = None,
    device: str | torch.device | None = None,
    **options: Unpack[AuditOptions],
) -> Plan:
    """Check all arguments of a sharded `audit`, and mark its folder with its settings, before the first shard runs.

    Args:
        model: as of `audit`, like all other arguments.
        data: the images.
        threat: the ball.
        attacks: the attacks.
        out: folder of the audit.
        resume: whether it may contain this audit already.
        group: the grouping.
        device: where to make a few passes of the model.
        **options: as of `audit`; ``shards`` among them.

    Returns:
        The plan, whose batch size and precision all shards must have.

    Raises:
        ClasswiseError: as `audit`.
    """
    check(audit, options)
    with chosen_arithmetic(options.get("precision")):
        folder, ready = _prepared(
            model, data, threat, attacks, out, group, device, options, resume=resume, merges=False
        )
    execution = Execution(ready, folder, ProcessGroup(), NullProgress(), time.monotonic(), shards=options.get("shards"))
    with execution.claimed(resume=resume):
        return ready.plan


def _prepared(
    model: Model,
    data: Any,
    threat: ThreatLike | None,
    attacks: Attacks | None,
    out: str | Path | None,
    group: Group | None,
    device: str | torch.device | None,
    options: AuditOptions,
    *,
    resume: bool,
    merges: bool,
) -> tuple[Path | None, Inputs]:
    """The folder and the inputs of an audit, after all checks; ``merges``: whether shards in the folder are merged."""
    suite = parse_attacks(attacks, norm_of(threat))
    check_sampling(options, suite, norm_of(threat), group)
    check_shards(options, out)
    folder = _checked_folder(out, merges=merges)
    options = with_saved_choices(options, folder if resume or merges else None)
    ready = prepare(model, data, suite, threat, group=group, device=device, **options)
    _check_ready(ready, suite, attacks)
    return folder, ready


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


def _checked_folder(out: str | Path | None, *, merges: bool = False) -> Path | None:
    """The folder of the audit; None without one.

    Args:
        out: the folder, or its parent.
        merges: whether shards in it are to be merged.

    Raises:
        ClasswiseError: if its files cannot be written, or there are no shards to merge.
    """
    if out is None:
        return None
    folder = ResultFolder(folder_for(Path(out)), "audit")
    folder.check(f"outcomes/{outcome_files.name(0)}")
    if merges:
        require_shards(folder)
    return folder.path
