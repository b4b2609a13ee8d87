"""Suites: several attacks that go by one name and run in cascade, each on what those before it left standing."""

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
        "rand": ("apgd-ce:samples=20", "apgd-dlr:samples=20"),
    },
    "fast": {"standard": ("apgd-ce", "pma", "apgd-t")},
}
"""The members of every suite, by its name and version; the first version is the default.

``autoattack``: Croce and Hein, ICML 2020, section 5; ``rand`` is for models that draw at random. ``fast`` costs about a
sixth of AutoAttack's passes and leaves out every attack without gradients: where gradients are masked, it must not be
trusted, and its guard says so.
"""

_L1_ONLY = ("apgd-ce", "apgd-dlr", "apgd-t")
_L1_FORMS = {"apgd-ce": "apgd-ce:restarts=5", "apgd-t": "apgd-t:targets=5"}


def members(name: str, options: Mapping[str, str] | None = None, norm: str = "Linf") -> tuple[str, ...]:
    """The specs of a suite's attacks, in their order.

    Args:
        name: a name of `SUITES`.
        options: ``version``, and nothing else.
        norm: under L1 a suite is its APGD members, with 5 restarts or 5 targets each; FAB and Square are left out.

    Raises:
        ClasswiseError: for an unknown suite, version or option.
    """
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    given = dict(options or {})
    versions = SUITES[name]
    version = str(given.pop("version", next(iter(versions))))
    if given:
        raise unknown(f"option of {name}", next(iter(given)), ("version",))
    if version not in versions:
        raise unknown(f"version of {name}", version, versions)
    specs = versions[version]
    if norm != "L1":
        return specs
    kept = tuple(_L1_FORMS.get(spec, spec) for spec in specs if spec.partition(":")[0] in _L1_ONLY)
    if not kept:
        raise ClasswiseError(f"{name}:version={version} has no attack for L1; choose apgd-ce and apgd-t")
    return kept
