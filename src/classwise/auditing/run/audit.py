"""`audit`: attack a model on every image and report its accuracy for each class."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Unpack

from classwise.auditing.evaluation.evaluation import Evaluation
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.arguments import evaluates
from classwise.auditing.run.audit_cache import cached_folder
from classwise.auditing.run.audit_folder import folder_for
from classwise.auditing.run.claim import Claim, with_saved_choices
from classwise.auditing.run.cost import estimate
from classwise.auditing.run.execution import execute
from classwise.auditing.run.inputs import Model, group_name, training_of
from classwise.auditing.run.merging import checked_folder
from classwise.auditing.run.partition import check_shards, shard_of
from classwise.auditing.run.plan import Plan, chosen_arithmetic
from classwise.auditing.run.preparation import Inputs, prepare
from classwise.auditing.run.requirements import asked_by
from classwise.auditing.run.result import Audit
from classwise.auditing.run.sampling import check_sampling
from classwise.auditing.run.suite import Attacks, Suite, norm_of, parse_attacks
from classwise.core.compute.distributed import ProcessGroup, process_group
from classwise.core.errors import ClasswiseError
from classwise.core.progress.display import listening
from classwise.core.progress.listener import NullProgress, Progress
from classwise.core.settings.arguments import check, checked
from classwise.data.images import Images
from classwise.models.loading.references import is_stored
from classwise.threat.ball import ThreatLike
from classwise.training.folder import runs_in

__all__ = ["Audit", "audit", "estimate"]


@checked
@evaluates
def audit(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    distributed: bool = True,
    **options: Unpack[Evaluation],
) -> Audit:
    """Attack a model on every image and report its accuracy for each class.

    Args:
        model: a module or function that maps images in [0, 1] to logits (N, C), a run folder, or anything else that
            `load_model` accepts. It is evaluated in evaluation mode, and its modes are restored afterwards.
        data: `Images`, a pair (x, y), a Dataset, a DataLoader, or an iterable of (x, y) or dicts, which is streamed.
        threat: the ball, such as ``"Linf:8/255"`` or ``("Linf", 8/255)``; its radius may be a tensor with one value for
            each image in memory. None: that of the policy, or the usual one of a named data set.
        attacks: see `classwise.auditing.run.suite.parse_attacks`; None: those of the policy, or its
            `DEFAULT_SPECS`. Attacks that need
            gradients are skipped for a model without gradients, and the guard ``no-gradient`` lists them.
        out: folder for the audit, written in blocks; a run folder stores it as ``audits/audit``.
        cache: a folder of audits, in place of ``out``: the same audit is loaded from it, or saved there.
            Attacks of your own and streams are not cached, since the key may not cover all that they read; they are
            saved in ``out``, if it is given.
        resume: continue the audit in ``out``, which must have the same settings.
        progress: True shows a progress bar; or a listener.
        distributed: where `torch.distributed` is initialised, all processes must call this function with the same
            arguments, share the images, and receive the outcomes of one process, bit for bit. False: this process only.
        **options: see `Evaluation`.

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
    threat, attacks, options = asked_by(options, threat, attacks, resume=resume)
    with process_group(distributed=distributed) as processes, chosen_arithmetic(options.get("precision")):
        started, suite = time.monotonic(), parse_attacks(attacks, norm_of(threat))
        folder, ready = _prepared(model, data, threat, suite, out, options, resume=resume, merges=shards is not None)
        cached = None if cache is None else cached_folder(Path(cache), ready, suite)
        with listening(progress, active=processes.is_main) as listener:
            claim = Claim(ready, cached or folder, processes, listener, shard_of(options), shards)
            group, max_time = group_name(options.get("group")), options.get("max_time")
            resume = resume or cached is not None
            training = training_of(model)
            return execute(claim, started, max_time, resume=resume, group=group, training=training)


def claim_for_shards(
    model: Model,
    data: Any,
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    *,
    out: Path,
    resume: bool = False,
    **options: Unpack[Evaluation],
) -> Plan:
    """Check all arguments of a sharded `audit`, and mark its folder with its settings, before the first shard runs.

    The arguments and errors are those of `audit`; ``shards`` is among them.

    Returns:
        The plan, whose batch size and precision all shards must have.
    """
    check(audit, options)
    threat, attacks, options = asked_by(options, threat, attacks, resume=resume)
    suite = parse_attacks(attacks, norm_of(threat))
    with chosen_arithmetic(options.get("precision")):
        folder, ready = _prepared(model, data, threat, suite, out, options, resume=resume, merges=False)
    with Claim(ready, folder, ProcessGroup(), NullProgress(), shards=options.get("shards")).held(resume=resume):
        return ready.plan


def _prepared(
    model: Model,
    data: Any,
    threat: ThreatLike | None,
    suite: Suite,
    out: str | Path | None,
    options: Evaluation,
    *,
    resume: bool,
    merges: bool,
) -> tuple[Path | None, Inputs]:
    """The folder and the inputs of an audit, after all checks; ``merges``: whether shards in the folder are merged."""
    check_sampling(options, suite, norm_of(threat))
    check_shards(options, out)
    path = None if out is None else folder_for(Path(out))
    checked_folder(path, "audit", f"outcomes/{outcome_files.name(0)}", merges=merges)
    ready = prepare(model, data, suite, threat, with_saved_choices(options, path if resume or merges else None))
    if ready.plan.sampling is not None and not isinstance(ready.source, Images):
        raise ClasswiseError(
            "settle samples from images in memory, not from a stream; give Images, or omit settle (--settle)"
        )
    if ready.plan.sampling is not None and ready.meta.not_applicable:
        names = ", ".join(ready.meta.not_applicable)
        raise ClasswiseError(
            f"settle requires all attacks, and the model has no gradient for {names}; omit settle (--settle)"
        )
    return path, ready
