"""The claim of an audit's folder: its owner, its settings, its policy, and the shards that are merged in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from classwise.attacks.engine import SMALLEST_BATCH
from classwise.auditing.evaluation.evaluation import ON_COMMAND_LINE, Evaluation, complete
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit_folder import ABOUT, earlier_audits, read_about
from classwise.auditing.run.merging import SHARDS, Merged, is_finished, merge
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.preparation import Inputs, with_recorded_code
from classwise.auditing.run.result import Audit, about_of
from classwise.auditing.run.sampling import Sampling
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.precision import Precision
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.storage import ResultFolder
from classwise.core.progress.listener import Progress

INHERITED: tuple[Literal["save", "trace"], ...] = ("save", "trace")
"""Options whose recorded values a resumed audit has, if these include what is asked for."""


@dataclass(frozen=True)
class Claim:
    """A prepared audit, the folder that it is written into, and the processes that run it.

    Args:
        inputs: the model, the images and the plan.
        folder: the audit's folder; None: rows are held in memory.
        processes: the processes that share the images; each attacks its share of every class.
        progress: receives the progress of this process.
        shard: the shard that is attacked; None: all images.
        shards: number of the shards of which the audit is merged; None: it is not.
    """

    inputs: Inputs
    folder: Path | None
    processes: ProcessGroup
    progress: Progress
    shard: Shard | None = None
    shards: int | None = None

    @property
    def name(self) -> str:
        """Name of the audit: that of its folder."""
        return "audit" if self.folder is None else self.folder.resolve().name

    @property
    def main_folder(self) -> Path | None:
        """The folder, in the first process only, which alone writes its records."""
        return self.folder if self.processes.is_main else None

    @property
    def of_shards(self) -> dict[str, int]:
        """The entry of ``audit.json`` and of the environment on the shards that are merged."""
        return {} if self.shards is None else {SHARDS: self.shards}

    @contextlib.contextmanager
    def held(self, *, resume: bool) -> Iterator[Meta]:
        """Own the folder, from the first process; yield the metadata with the policy that is recorded.

        Args:
            resume: whether the folder may contain this audit already.

        Raises:
            ClasswiseError: if it contains something else, or this audit although ``resume`` is false, or the processes
                have different settings.
        """
        _check_same_settings(self.processes.all_gather(self.inputs.settings | {"code": self.inputs.code}))
        policy, code = self.processes.broadcast((self._policy(), self._code()) if self.processes.is_main else None)
        meta = dataclasses.replace(self.inputs.meta.stating(policy=policy), code=code)
        if self.main_folder is None:
            yield meta
            return
        frame = pd.DataFrame(columns=[*outcome_files.COLUMNS, *meta.groups])
        about = about_of(Audit(Outcomes(frame, meta), name=self.name)) | self.of_shards
        folder = ResultFolder(self.main_folder, "audit")
        beside, settings = [*self.of_shards], self.inputs.settings
        with folder.claimed(
            settings, resume=resume, beside=beside, options=ON_COMMAND_LINE, inherited=INHERITED, **about
        ):
            yield meta

    def _code(self) -> Mapping[str, Mapping[str, str]] | None:
        """The code that is recorded: that in the folder, or the present one of a new audit."""
        if self.folder is None or not (self.folder / ABOUT).is_file():
            return self.inputs.meta.code
        recorded: dict[str, dict[str, str]] | None = read_about(self.folder).get("code")
        return recorded

    def check_code(self, *, finished: bool) -> None:
        """Compare the recorded code of the user with the present one, in the first process.

        Args:
            finished: whether nothing is left to do.

        Raises:
            ClasswiseError: naming what has changed, if the audit is not finished.
        """
        if self.main_folder is not None:
            with_recorded_code(self.inputs, ResultFolder(self.main_folder, "audit"), finished=finished)

    def _policy(self) -> str | None:
        """The digest of the policy that is recorded: the one in the folder, or the given one of a new audit.

        None if an audit of the same model and images without it precedes this one, or a shard does not have it.
        """
        policy, folder, reason = self.inputs.meta.policy, self.folder, ""
        if folder is None:
            return policy
        if (folder / ABOUT).is_file():
            recorded = read_about(folder).get("policy")
            if policy not in (None, recorded):
                reason = f"{folder} contains an audit that was begun without it"
        else:
            recorded = policy
            if policy is not None and (earlier := earlier_audits(folder, self.inputs.settings, policy)):
                reason, recorded = f"{earlier[0]} has evaluated this model on these images without it", None
        shards = (folder / SHARDS).glob(f"*/{ABOUT}")
        if recorded is not None and not all(read_about(shard.parent).get("policy") == recorded for shard in shards):
            reason, recorded = "a shard was begun without it", None
        if reason:
            self.progress.log(
                f"the policy is not recorded, and evidence will say that criteria were stated after the run: {reason}"
            )
        return recorded

    def merged(self, meta: Meta) -> Merged:
        """Merge the shards, from the first process, unless the audit is complete.

        Raises:
            IncompleteError: if shards are not finished.
            ClasswiseError: if they do not belong to this audit, or the folder contains an audit without shards.
        """
        folder = self.main_folder
        if self.shards is None or folder is None:
            return Merged()
        about = read_about(folder)
        if about.get("complete"):
            return Merged()
        if SHARDS not in about:
            raise ClasswiseError(f"{folder} contains an audit without shards; omit --shards to continue it")
        return merge(folder, self.shards, meta, self.inputs.settings, self.inputs.code)


def finished_audit(folder: Path, plan: Plan, *, is_shard: bool = False) -> Audit | None:
    """The audit in a folder if nothing of a plan is left to do; else None.

    Args:
        folder: the folder, whose audit has the settings of the plan.
        plan: the plan, whose guards, trace and sampling the audit must have.
        is_shard: whether the folder is that of a shard.
    """
    try:
        saved = Audit.load(folder)
    except IncompleteError:
        return None
    # A record that is not complete, beside complete outcomes, is that of a process that was stopped before the guards.
    noted = read_about(folder).get("complete") == saved.complete
    finished = noted and (is_finished(folder) if is_shard else saved.finished)
    guarded = saved.guards is not None and saved.guards.covers(plan.asked["guards"])
    same = Sampling.of_meta(saved.outcomes.meta) == plan.sampling and (
        saved.trace is not None or not plan.asked["trace"]
    )
    return saved if finished and guarded and same and saved.environment else None


def with_saved_choices(options: Evaluation, folder: Path | None) -> Evaluation:
    """The options with the choices of the audit in a folder, or of its shards.

    Its batch size and its precision, unless given, since both depend on the machine by default, and rows depend on
    both. What it saves and traces, if that includes what is asked for.
    """
    if folder is None:
        return options
    abouts = (path / ABOUT for path in (folder, *sorted((folder / SHARDS).glob("*-of-*"))))
    first = next((path.parent for path in abouts if path.is_file()), None)
    settings = {} if first is None else read_about(first).get("settings", {})
    batch_size, precision = settings.get("batch_size"), settings.get("precision")
    if options.get("batch_size") is None and isinstance(batch_size, int) and batch_size >= SMALLEST_BATCH:
        options = {**options, "batch_size": batch_size}
    if options.get("precision") is None and isinstance(precision, Mapping):
        # Records without this entry are of a search in float32.
        options = {**options, "precision": Precision(**{"search": "float32", **precision})}
    for name in INHERITED:
        recorded, asked = settings.get(name), complete(options)[name]
        if isinstance(recorded, list) and all(value in recorded for value in asked):
            options = cast("Evaluation", {**options, name: recorded})
    return options


def _check_same_settings(settings: Sequence[Mapping[str, Any]]) -> None:
    """Check that all processes run the same audit.

    Raises:
        ClasswiseError: naming the first process and setting that differ.
    """
    for rank, other in enumerate(settings):
        for key, value in settings[0].items():
            if other[key] != value:
                first, differing = json.dumps(value)[:80], json.dumps(other[key])[:80]
                raise ClasswiseError(
                    f"all processes need the same {key}; process {rank} has {differing}, process 0 has {first}"
                )
