"""What is stored of a leaderboard: the conditions of an audit, and the counts of one model.

Everything else in a leaderboard is computed from these.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from classwise.auditing.compare.comparability import canonical, members_of, value_of
from classwise.auditing.outcomes.meta import UNSTATED, Meta, check_attack_labels, stated_threat
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.core.compute.repeats import RepeatCount, RepeatRule
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.settings.names import checked_name, checked_names
from classwise.stats.counts import ClassCounts
from classwise.threat.text import Grid


@dataclass(frozen=True)
class AttackSettings:
    """An attack of an audit.

    Attributes:
        label: its label.
        spec: its complete spec; None for the clean pass, or if it is unknown.
        code: SHA-256 of the files of the user's code that it runs, by module, as far as they are recorded.
    """

    label: str
    spec: dict[str, Any] | None = None
    code: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Conditions:
    """The conditions of an audit, which all rows of a table of a leaderboard share.

    Attributes:
        data: name of the data set.
        split: its split.
        data_sha256: SHA-256 of pixels and labels; empty if unknown.
        classes: names of the C classes.
        class_images: number of images of each class.
        threat: such as ``"Linf:8/255"``; None if unknown.
        radii_sha256: SHA-256 of the radii, if there is one for each image.
        attacks: the attacks in their order, ``clean`` included.
        early_stop: whether an attack stops at its first success; None if unknown.
        cascade: whether each attack ran only on the survivors of those before it.
        repeats: number of passes that decide whether an image is correct.
        repeat_rule: how many of them must be correct, ``"majority"`` or ``"all"``.
        grid: ``"8bit"`` if adversarial images were rounded to multiples of 1/255; else None.
    """

    data: str
    split: str
    data_sha256: str
    classes: tuple[str, ...]
    class_images: tuple[int, ...]
    threat: str | None
    radii_sha256: str
    attacks: tuple[AttackSettings, ...]
    early_stop: bool | None
    cascade: bool
    repeats: RepeatCount = 1
    repeat_rule: RepeatRule = "majority"
    grid: Grid | None = None

    def __post_init__(self) -> None:
        checked_names(self.classes, "classes")
        check_attack_labels(attack.label for attack in self.attacks if attack.label != CLEAN)
        if len(self.classes) != len(self.class_images) or not self.classes:
            counts = f"{len(self.classes)} classes and {len(self.class_images)} numbers of images"
            raise ClasswiseError(f"{counts}; expected one number for each class, and a class")
        if min(self.class_images) < 0 or not 0 < self.images < 1 << 53:
            raise ClasswiseError(f"class_images {self._short}: expected counts from 0, and a sum from 1 to 2^53 - 1")

    @property
    def _short(self) -> str:
        return f"[{', '.join(map(str, self.class_images[:4]))}{', ...' if len(self.class_images) > 4 else ''}]"

    @staticmethod
    def of(audit: Audit) -> Conditions:
        """The conditions of an audit, by the rules of comparisons (`classwise.auditing.compare.comparability`)."""
        outcomes = audit.outcomes
        meta, threat = outcomes.meta, value_of("threat", audit, ALL)
        per_image = isinstance(threat.key, tuple) and isinstance(threat.key[1], tuple)
        return Conditions(
            data=meta.data,
            split=meta.split,
            data_sha256=meta.data_hash,
            classes=meta.class_names,
            class_images=tuple(outcomes.counts(ALL).count.tolist()),
            threat=None if threat.text == UNSTATED else threat.text,
            radii_sha256=hashlib.sha256(json.dumps(threat.key[1]).encode()).hexdigest() if per_image else "",
            attacks=tuple(_attack(label, meta) for label in members_of(meta, ALL)),
            early_stop=meta.early_stop,
            cascade=meta.cascade,
            repeats=meta.repeats,
            repeat_rule=meta.repeat_rule,
            grid=meta.grid,
        )

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(self.class_images)

    @property
    def attacked(self) -> bool:
        """Whether there is an attack beside the clean pass."""
        return any(attack.label != CLEAN for attack in self.attacks)

    @property
    def key(self) -> str:
        """A text that is equal for conditions under which models may be ranked together.

        It has every field, the threat in its canonical form, attacks sorted unless they form a cascade, and the name of
        the data only where their hash is unknown. Without attacks, only the data count.
        """
        values = dataclasses.asdict(self)
        if self.data_sha256:
            del values["data"]
        values["threat"] = stated_threat(self.threat).text
        for attack in values["attacks"]:
            attack["spec"] = canonical(attack["spec"])
        if not self.cascade:
            values["attacks"] = sorted(values["attacks"], key=lambda attack: str(attack["label"]))
        if not self.attacked:
            values |= {"threat": None, "radii_sha256": "", "early_stop": None, "cascade": False, "grid": None}
        return json.dumps(values, sort_keys=True)


def _attack(label: str, meta: Meta) -> AttackSettings:
    spec, code = meta.attacks[label], (meta.code or {}).get(f"attack {label}", {})
    # Through JSON, so that tuples equal the lists that a file has in their place.
    return AttackSettings(label, None if spec is None else json.loads(json.dumps(dict(spec))), dict(code))


@dataclass(frozen=True)
class GuardWarning:
    """A warning of a guard: its name and its sentence."""

    name: str
    sentence: str = ""


@dataclass(frozen=True)
class Entry:
    """One audited model under some `Conditions`.

    Attributes:
        name: name of the row.
        correct: number of images of each class that are correct under all attacks together, ``clean`` included.
        clean_correct: the same without an attack; None if there was no clean pass.
        network: the architecture; empty if unknown.
        model_sha256: SHA-256 of the parameters and buffers; empty if unknown.
        extra_data: whether images beside the data set's own were used for training; None if unknown.
        teacher: the teacher that the training distilled, as its recipe names it; empty without one, or if unknown.
        warnings: warnings of the guards.
        guards: mode of the guards, ``full``, ``auto`` or ``off``; None for predictions made elsewhere.
        guards_not_run: names of the guards that did not run or could not decide.
        version: the version of classwise that made the audit; empty if unknown.
    """

    name: str
    correct: tuple[int, ...]
    clean_correct: tuple[int, ...] | None = None
    network: str = ""
    model_sha256: str = ""
    extra_data: bool | None = None
    teacher: str = ""
    warnings: tuple[GuardWarning, ...] = ()
    guards: str | None = None
    guards_not_run: tuple[str, ...] = ()
    version: str = ""

    def __post_init__(self) -> None:
        checked_name(self.name, "row of a leaderboard")

    @staticmethod
    def of(audit: Audit, name: str) -> Entry:
        """The entry of an audit.

        Raises:
            IncompleteError: if images are not judged, the accuracy is an estimate from a sample, or no attack is
                applicable to the model.
        """
        meta = audit.outcomes.meta
        if not audit.complete:
            what = meta.kind_if_incomplete
            raise IncompleteError(
                f"{name} is {what}, and a leaderboard needs all verdicts; {audit.outcomes.completion}"
            )
        clean = tuple(audit.outcomes.counts(CLEAN).correct.tolist()) if CLEAN in audit.names else None
        return Entry(
            name=name,
            correct=tuple(audit.outcomes.counts(ALL).correct.tolist()),
            clean_correct=clean,
            network=str(audit.environment.get("network") or ""),
            model_sha256=meta.model_hash,
            warnings=tuple(GuardWarning(warning.name, warning.sentence) for warning in audit.warnings),
            guards=None if audit.guards is None else audit.guards.mode,
            guards_not_run=() if audit.guards is None else audit.guards.without_result,
            version=str(audit.environment.get("packages", {}).get("classwise") or ""),
        )

    def check(self, conditions: Conditions) -> None:
        """Check that the counts fit the numbers of images.

        Raises:
            ClasswiseError: if there is another number of classes, or a count is negative or above that of the images,
                or more images are correct under attack than without one.
        """
        for field, counts in (("correct", self.correct), ("clean_correct", self.clean_correct)):
            if counts is None:
                continue
            if len(counts) != len(conditions.classes):
                expected = f"{len(conditions.classes)}, one for each class"
                raise ClasswiseError(f"{self.name!r}: {field} has {len(counts)} numbers, expected {expected}")
            for label, count, images in zip(conditions.classes, counts, conditions.class_images, strict=True):
                if not 0 <= count <= images:
                    raise ClasswiseError(
                        f"{self.name!r}: {field} of class {label!r} is {count}, expected 0 to {images}, its images"
                    )
        clean = self.correct if self.clean_correct is None else self.clean_correct
        for label, robust, most in zip(conditions.classes, self.correct, clean, strict=True):
            if robust > most:
                raise ClasswiseError(
                    f"{self.name!r}: correct of class {label!r} is {robust}, more than its clean_correct, {most}"
                )

    def counts(self, conditions: Conditions) -> ClassCounts:
        """Number of images and of correct images of each class under all attacks."""
        return ClassCounts(np.array(conditions.class_images), np.array(self.correct))

    def clean_counts(self, conditions: Conditions) -> ClassCounts | None:
        """The same without an attack; None if there was no clean pass."""
        clean = self.clean_correct
        return None if clean is None else ClassCounts(np.array(conditions.class_images), np.array(clean))
