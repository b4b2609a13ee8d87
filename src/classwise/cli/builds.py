"""Options of conditions that fail a build, and of their files for build servers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

import classwise as cw
from classwise.cli.help import OUTPUT
from classwise.cli.options import new_file
from classwise.core.errors import ClasswiseError, unknown
from classwise.stats import OWN_METRICS

if TYPE_CHECKING:
    from classwise.auditing.criteria.policy import Policy
    from classwise.auditing.criteria.thresholds import Threshold
    from classwise.auditing.run.suite import Suite

JUNIT = "Write the results of the conditions as JUnit XML."


NOT_AS_REQUIRED = "an audit is not as the policy requires, so it passes no criterion"
"""The end of a command whose audit lacks something of its policy."""


def lacking_now(audit: cw.Audit, policy: Policy | None) -> list[str]:
    """What an audit lacks today of its policy, a sentence for each; empty without a policy."""
    from classwise.reporting.evidence.facts import not_as_required

    return [] if policy is None else not_as_required(audit, policy, dt.datetime.now(dt.UTC))


def checked_junit(path: Path | None, conditions: Sequence[str], example: str = "worst(all).low >= 0.2") -> None:
    """Check the file of ``--junit`` before long work.

    Raises:
        ClasswiseError: without a condition, or if it cannot be written.
    """
    if path is not None and not conditions:
        raise ClasswiseError(f"--junit requires a condition, such as --require '{example}'")
    new_file(path, "--junit")


@dataclass(frozen=True)
class BuildOptions:
    """Conditions that fail a build.

    Raises:
        ClasswiseError: for a file that cannot be written.
    """

    panel: ClassVar[str] = OUTPUT
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 if the condition is true (for several seeds: for any), such as 'worst(all) < 0.2', or "
            "for one class 'truck(all) < 0.1'; with 3 if it depends on images not evaluated. May be repeated. "
            f"Measures: {', '.join(OWN_METRICS)}, metrics of installed packages; bounds: worst(all).low, .high and "
            ".split, overall(all).low and .high.",
        ),
    ] = None
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="CONDITION",
            help="Exit with 1 if the condition is false, such as 'worst(all).low >= 0.2'; otherwise as --fail-if.",
        ),
    ] = None
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help=JUNIT)] = None
    sarif: Annotated[
        Path | None,
        typer.Option("--sarif", metavar="FILE", help="Write failed conditions and guards' warnings as SARIF 2.1.0."),
    ] = None

    def __post_init__(self) -> None:
        new_file(self.sarif, "--sarif")

    @property
    def conditions(self) -> list[str]:
        """The texts of all conditions."""
        return [*(self.fail_if or ()), *(self.require or ())]

    def thresholds(self, suite: Suite, policy: Policy | None = None) -> dict[str, Threshold]:
        """Parse the conditions, by their text, and add the criteria of a policy.

        Raises:
            ClasswiseError: if one is malformed, or names an attack that is not in the suite; for ``--junit`` without a
                condition.
        """
        from classwise.auditing.criteria.thresholds import Threshold
        from classwise.auditing.outcomes.table import ALL, BEST, CLEAN, UNION

        families = [f"{family}-{kind}" for family in suite.families for kind in (BEST, UNION)]
        known = [CLEAN, *suite.attacks, *families, ALL]
        thresholds = Threshold.parse_all(self.fail_if, self.require)
        thresholds |= {} if policy is None else policy.thresholds
        checked_junit(self.junit, [*thresholds])
        for text, threshold in thresholds.items():
            if threshold.attack not in known:
                raise unknown(f"attack in condition {text!r}:", threshold.attack, known)
        return thresholds

    def write(
        self,
        result: cw.Audit,
        thresholds: dict[str, Threshold],
        page: Path,
        policy: Policy | None = None,
        lacks: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        """Write the files.

        Args:
            result: the audit.
            thresholds: the conditions and the criteria of the policy by their text.
            page: what the results of SARIF refer to.
            policy: the policy.
            lacks: what the audit lacks of it.
            name: name of the suite of the JUnit file; None: that of the audit.

        Raises:
            ClasswiseError: if a file cannot be written.
        """
        if self.junit is None and self.sarif is None:
            return
        from classwise.reporting.exports.builds import checks_of, policy_checks, write_junit, write_sarif
        from classwise.reporting.facts.audit_summary import shown_warnings
        from classwise.reporting.facts.sentences import objective_caveat

        criteria = {} if policy is None else policy.thresholds
        own = {text: threshold for text, threshold in thresholds.items() if text not in criteria}
        checks = [*checks_of(result, own), *policy_checks(result, criteria, lacks)]
        caveat = objective_caveat(result.outcomes.meta)
        if self.junit is not None:
            write_junit(self.junit, checks, name or result.name, caveat)
        if self.sarif is not None:
            write_sarif(self.sarif, checks, page, shown_warnings(result, result.group), caveat)
