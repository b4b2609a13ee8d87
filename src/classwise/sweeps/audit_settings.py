"""The audits of a plan: options of ``classwise audit``, checked before anything starts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import pydantic

from classwise.auditing.guards.report import GuardMode
from classwise.auditing.run import plan as audit_plan
from classwise.auditing.run.options import AuditOptions
from classwise.auditing.run.suite import norm_of, parse_attacks
from classwise.core.compute.repeats import RepeatCount, RepeatRule
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.arguments import BatchSize
from classwise.core.settings.config import Count, Seed, build, configurable
from classwise.data import CORRUPTIONS, DATA
from classwise.threat.ball import Threat
from classwise.threat.text import Grid


@configurable
class AuditSettings:
    """An audit of each cell; the fields are the options of ``classwise audit``.

    Args:
        which: the weights of the run, such as ``"last"``; None for those selected by validation.
        attack: the attacks; None for the default suite.
        threat: the threat, such as ``"Linf:8/255"``; None for that of the run.
        data: a data set's name or a path; None for the data of the run.
        split: the split to attack.
        subset: number of images, stratified by class; None for all.
        corruption: the corruption of the images, with ``severity``.
        severity: from 1 to 5.
        group: the column that is used instead of the class.
        seed: seed of the attacks and of the subset.
        batch_size: images per batch.
        cascade: whether each attack runs on the survivors of those before it; None: on for suites.
        early_stop: whether an attack stops at its first success.
        guards: which guards run.
        repeats: number of passes that decide whether an image is correct.
        repeat_rule: how many of them must be correct.
        grid: the grid that adversarial images are rounded to.

    Raises:
        ClasswiseError: for an unknown attack, data set or corruption, or an invalid value.
    """

    which: str | None = None
    attack: tuple[str, ...] | None = None
    threat: str | None = None
    data: str | None = None
    split: str = "test"
    subset: Count | None = None
    corruption: str | None = None
    severity: Annotated[int, pydantic.Field(ge=1, le=5)] | None = None
    group: str | None = None
    seed: Seed = 0
    batch_size: BatchSize | None = None
    cascade: bool | None = None
    early_stop: bool = True
    guards: GuardMode = "auto"
    repeats: RepeatCount = 1
    repeat_rule: RepeatRule = "majority"
    grid: Grid | None = None

    def __post_init__(self) -> None:
        if (self.corruption is None) != (self.severity is None):
            raise ClasswiseError("corruption and severity must be given together")
        if self.corruption is not None and self.corruption not in CORRUPTIONS:
            raise unknown("corruption", self.corruption, CORRUPTIONS)
        if self.data is not None:
            data_source(self.data)
        if self.threat is None:
            parse_attacks(self.attack)  # their names; the norm is that of each recipe
        else:
            self.check(self.threat)

    def check(self, threat: str) -> None:
        """Check the attacks and their options under a threat.

        Raises:
            ClasswiseError: for an unknown attack, or one that does not support the norm.
        """
        audit_plan.Plan.of(parse_attacks(self.attack, norm_of(threat)), Threat.parse(threat), self.audit_options)

    @property
    def audit_options(self) -> AuditOptions:
        """The fields that are options of `classwise.audit`."""
        names = AuditOptions.__annotations__.keys() & {field.name for field in dataclasses.fields(self)}
        return cast("AuditOptions", {name: getattr(self, name) for name in names})

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as JSON values."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        given = {name: getattr(self, name) for name, default in defaults.items() if getattr(self, name) != default}
        if self.data is not None:
            given["data"] = data_source(self.data)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def build_audits(value: object) -> object:
    """Build the audits of a plan, whose unknown keys are refused with the nearest known one."""
    if not isinstance(value, Mapping):
        raise ClasswiseError(f"plan: audits = {value!r} must map names to options of an audit, such as full: {{}}")
    for name, options in value.items():
        if not re.fullmatch(r"\w[\w.-]{0,60}", str(name)):
            raise ClasswiseError(f"plan: the audit name {name!r} must consist of letters, digits, '.', '_' and '-'")
        if not isinstance(options, Mapping | AuditSettings | None):
            raise ClasswiseError(f"plan: audits.{name} = {options!r} must be a mapping of options")
    return {
        str(name): settings
        if isinstance(settings, AuditSettings)
        else build(AuditSettings, _listed(settings or {}), f"audit {name!r}")
        for name, settings in value.items()
    }


def _listed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with a single attack as a list, and ``guards: off`` as text, which YAML reads as false."""
    given = dict(options)
    if isinstance(given.get("attack"), str):
        given["attack"] = [given["attack"]]
    if given.get("guards") is False:
        given["guards"] = "off"
    return given


def data_source(data: str) -> str:
    """A data set's name or import path, or the absolute path of a file or folder.

    Raises:
        ClasswiseError: if there is neither.
    """
    if data in DATA:
        return data
    if Path(data).exists():
        return str(Path(data).absolute())
    DATA.load(data)
    return data
