"""`assert_robust`: a test that fails if a class of a model is not robust enough."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classwise.auditing.criteria.policy import Policy
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.run.audit import audit
from classwise.auditing.run.audit_cache import environment_cache
from classwise.auditing.run.inputs import Model
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import Attacks
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.rounding import in_percent
from classwise.core.settings.arguments import checked
from classwise.reporting.evidence.facts import not_as_required
from classwise.reporting.facts.audit_summary import shown_warnings
from classwise.reporting.facts.condition_text import result_text
from classwise.reporting.formatting import lowest_interval_name, plural, singular
from classwise.stats.rational import as_rational, rational_text
from classwise.testing.cache import cache_folder
from classwise.threat.ball import ThreatLike

SHOWN = 10
"""Number of classes in a failure message, the weakest ones."""


@checked
def assert_robust(
    model: Model,
    data: Any,
    *,
    worst: float | np.floating[Any] | None = None,
    overall: float | np.floating[Any] | None = None,
    fail_if: Sequence[str] = (),
    require: Sequence[str] = (),
    threat: ThreatLike | None = None,
    attacks: Attacks | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> Audit:
    """Audit a model, and fail if its robust accuracy is too low.

    The audit is saved under a key of the model (parameters, code and logits), the data and the settings, and loaded if
    the same audit is requested again. Attacks of the user are not cached, since they may read what the key does not
    cover; streams are not cached either.

    Args:
        model: as of `classwise.audit`, like ``data``, ``threat``, ``attacks`` and the options.
        data: the images.
        worst: the required accuracy of the worst class under all attacks, a fraction.
        overall: the required accuracy over all images under all attacks, a fraction.
        fail_if: further conditions, such as ``"truck(all) < 0.1"``; see
            `classwise.auditing.criteria.thresholds.Threshold.parse`.
        require: conditions that must be true, such as ``"worst(all).low >= 0.2"``.
        threat: the ball; None: the usual one of the data.
        attacks: the attacks; None: the default suite.
        cache: folder of the cache, which ``classwise audit --cache`` shares; None: that of the environment variable
            ``CLASSWISE_CACHE``, else the cache of pytest in a pytest session, otherwise none.
        **options: further arguments of `classwise.audit`, such as ``seed`` or ``device``. The criteria of a ``policy``
            are conditions.

    Returns:
        The audit.

    Raises:
        AssertionError: if a condition is met; the message has the weakest classes, and the interval of the lowest class
            accuracy.
        IncompleteError: if none is met, and one depends on images that are not judged, or the audit is not as the
            policy requires.
        ClasswiseError: without a requirement, with a cache beside ``out``, ``resume`` or shards, or as
            `classwise.audit`.

    Example:
        >>> import classwise as cw
        >>> from classwise.testing import assert_robust
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> audit = assert_robust(model, data, worst=0.0, threat="Linf:0.1", attacks="fgsm")
        >>> audit.names
        ('clean', 'fgsm', 'all')
    """
    __tracebackhide__ = True
    policy = None if options.get("policy") is None else Policy.read(options["policy"])
    conditions = _conditions(worst, overall, [*fail_if, *(() if policy is None else policy.fail_if)], require)
    if cache and (other := {"out", "resume", "shards", "shard"} & options.keys()):
        raise ClasswiseError(f"assert_robust: cache does not apply with {min(other)}; omit one of them")
    if not {"out", "resume"} & options.keys():
        options["cache"] = cache or environment_cache() or cache_folder()
    result = audit(model, data, threat, attacks, **options)
    if failed := [threshold for threshold in conditions if threshold.decide(result)]:
        raise AssertionError(_message(result, failed))
    for threshold in conditions:
        threshold.holds(result)  # raises an error if it is undecided
    if policy is not None and (lacks := not_as_required(result, policy, dt.datetime.now(dt.UTC))):
        raise IncompleteError(f"the audit is not as the policy requires: {' '.join(lacks)}")
    return result


def _conditions(
    worst: float | np.floating[Any] | None,
    overall: float | np.floating[Any] | None,
    fail_if: Sequence[str],
    require: Sequence[str],
) -> list[Threshold]:
    """The conditions that fail the test.

    Raises:
        ClasswiseError: for a malformed condition, or if there is none.
    """
    required = {"worst": worst, "overall": overall}
    limits = {measure: as_rational(limit) for measure, limit in required.items() if limit is not None}
    texts = [f"{measure}(all) < {rational_text(limit)}" for measure, limit in limits.items()]
    conditions = list(Threshold.parse_all([*texts, *fail_if], require).values())
    if not conditions:
        raise ClasswiseError(
            "assert_robust: nothing is required; give worst=0.2, overall=, require=, fail_if= or policy="
        )
    return conditions


def _message(result: Audit, failed: Sequence[Threshold]) -> str:
    """The conditions with their values, and the weakest classes."""
    meta = result.outcomes.meta
    lines = ["the model is not robust enough"]
    lines += [f"  {result_text(result, threshold)}" for threshold in failed]
    over = (f"{len(result.outcomes)} images", meta.threat, ", ".join(result.attacks))
    lines.append(f"accuracy by {singular(result.group)} under all, in percent ({'; '.join(filter(None, over))}):")
    if result.complete:
        table = result.by_class.sort_values("all", kind="stable")
        lines += [f"  {name}: {in_percent(row['all']):.1f}" for name, row in table.head(SHOWN).iterrows()]
        lines += [f"  and {len(table) - SHOWN} more {plural(result.group)}"] if len(table) > SHOWN else []
        lowest, name = result.worst_class(), lowest_interval_name(result.alpha, result.group)
        lines.append(f"{name}, for new images: [{in_percent(lowest.low):.1f}, {in_percent(lowest.high):.1f}]")
    else:
        lines.append(f"  unknown: {result.outcomes.gap}")
    lines += [f"warning ({warning.name}): {warning.sentence}" for warning in shown_warnings(result, result.group)]
    lines += [f"audit: {result.path}"] if result.path is not None else []
    return "\n".join(lines)
