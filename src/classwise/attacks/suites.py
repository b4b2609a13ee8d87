"""Attack suites: named lists of attacks that run in cascade, each on the images that are still robust."""

from __future__ import annotations

from collections.abc import Mapping

from classwise.core.errors import ClasswiseError, unknown

SUITES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "autoattack": {
        "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
        "plus": (
            "apgd-ce:restarts=5",
            "apgd-dlr:restarts=5",
            "fab:restarts=5",
            "square",
            "apgd-t",
            "fab-t",
        ),
        "rand": ("apgd-ce:eot_iter=20", "apgd-dlr:eot_iter=20"),
    },
    "fast": {"standard": ("apgd-ce", "pma", "apgd-t")},
}
"""Attack specs by suite and version; the first version is the default.

``autoattack``: Croce and Hein, ICML 2020, section 5; ``rand`` is for randomised models. ``fast`` takes about a sixth of
AutoAttack's passes. It has no black-box attack, so it is unreliable where gradients are masked; a guard reports this.
"""

_L1_ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t")
_L1_FORMS = {"apgd-ce": "apgd-ce:restarts=5", "apgd-t": "apgd-t:targets=5"}


def members(name: str, options: Mapping[str, str] | None = None, norm: str = "Linf") -> tuple[str, ...]:
    """The specs of a suite's attacks, in order.

    Args:
        name: a key of `SUITES`.
        options: may have the key ``version``, no other.
        norm: under L1 only the APGD attacks of a suite are used, with 5 restarts or 5 targets each.

    Raises:
        ClasswiseError: for an unknown suite, version or option.
    """
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    remaining = dict(options or {})
    versions = SUITES[name]
    version = str(remaining.pop("version", next(iter(versions))))
    if remaining:
        raise unknown("option", next(iter(remaining)), ("version",), owner=f"suite {name!r}")
    if version not in versions:
        raise unknown(f"version of {name}", version, versions)
    specs = versions[version]
    if norm != "L1":
        return specs
    supported = tuple(_L1_FORMS.get(spec, spec) for spec in specs if spec.partition(":")[0] in _L1_ATTACKS)
    if not supported:
        raise ClasswiseError(f"{name}:version={version} has no attack for L1; use apgd-ce and apgd-t")
    return supported
