"""Whether two audits are comparable: the fields that must agree, and the error for the first that differs."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from classwise.auditing.evaluation.evaluation import STORED
from classwise.auditing.evaluation.option import COMPARED, Decides
from classwise.auditing.outcomes.meta import UNSTATED, FieldValue, Meta, identity_of, setting_of, threat_of
from classwise.auditing.outcomes.table import ALL, BEST, CLEAN, UNION
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import flat_options, number
from classwise.core.settings.names import checked_names

CODE = "code of attacks"
"""The field of the user's code of the attacks."""
CROSSED: Mapping[str, tuple[str, ...]] = {"threat": ("threat",), "attacks": ("attacks", "cascade", CODE)}
"""The fields that a comparison may be made across, and the fields that may then differ."""


class Named(NamedTuple):
    """An audit and its name in messages."""

    name: str
    audit: Audit


def members_of(meta: Meta, attack: str) -> tuple[str, ...]:
    """The attacks that decide the verdict under ``attack``, in their order, including ``clean`` where it counts.

    In a cascade these include all earlier attacks, since an attack runs on their survivors only. Attacks that are not
    applicable to the model are left out.
    """
    labels = list(meta.applicable)
    family = next((attack.removesuffix(f"-{kind}") for kind in (BEST, UNION) if attack.endswith(f"-{kind}")), "")
    if attack == ALL:
        chosen = labels
    elif attack not in labels and family in meta.families:
        chosen = [label for label in labels if label in meta.families[family]]
    else:
        chosen = [attack] if attack in labels else []
    if meta.cascade and chosen:
        chosen = labels[: labels.index(chosen[-1]) + 1]
    return tuple(chosen)


def check_alike(one: Named, other: Named, attack: str, group: str | None, across: str | None = None) -> None:
    """Check that two audits are comparable under an attack: all fields but ``across`` agree.

    The fields are classes, images (indices, labels, hash of the data), grouping, and the options that decide verdicts
    (`classwise.auditing.evaluation.option.COMPARED`); if clean images are compared, only those that decide these.

    Raises:
        ClasswiseError: naming both audits, the first field that differs, and both values.
    """
    _check("class names", one, other, lambda meta: FieldValue(meta.class_names, ", ".join(meta.class_names)))
    _check_images(one, other)
    _check("data", one, other, _data)
    _check_grouping(one, other, group)
    ignored = CROSSED.get(across or "", ())
    differing: dict[str, tuple[str, str]] = {}
    for field, read in _fields(attack).items():
        first, second = (read(named.audit, attack) for named in (one, other))
        if first.key != second.key and (read is not _code or (first.stated and second.stated)):
            texts = _differing(one.audit, other.audit, attack) if read is _attacks else (first.text, second.text)
            differing[field] = texts
    for field, texts in differing.items():
        if field not in ignored:
            others = [name for name in differing if name not in (field, *CROSSED.get(field, ()))]
            more = [name for name in others if name not in ignored]
            raise _difference(field, one, other, *texts, more, crossed=not others)


def unstated(audits: list[Audit], attack: str) -> tuple[str, ...]:
    """The fields that no audit records, so that their agreement cannot be checked."""
    values_of = {"data hash": [_data(audit.outcomes.meta) for audit in audits]}
    values_of |= {field: [read(audit, attack) for audit in audits] for field, read in _fields(attack).items()}
    return tuple(field for field, values in values_of.items() if not any(value.stated for value in values))


def value_of(field: str, audit: Audit, attack: str) -> FieldValue:
    """The value of a field of `CROSSED` in an audit."""
    return _fields(ALL)[field](audit, attack)


def radius_of(audit: Audit) -> tuple[str, float] | None:
    """The norm and the radius of an audit; None if it has one radius per image, or records none."""
    key = _threat(audit, ALL).key
    return key if isinstance(key, tuple) and isinstance(key[1], float) else None


def canonical(value: Any) -> Any:
    """The settings of an attack in a form that is equal for equal settings, such as 10 and 10.0 steps.

    A text of a number is that number, also as the factor of a relative step size such as ``0.25eps``.
    """
    if isinstance(value, Mapping):
        return {str(key): canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(inner) for inner in value]
    if isinstance(value, str) and value.endswith("eps"):
        return [canonical(value.removesuffix("eps") or 1), "eps"]
    plain = number(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def check_runs(methods: Mapping[str, Sequence[Audit]], attack: str, across: str | None = None) -> None:
    """Check that the names of methods are distinct, and that the runs of each are different models.

    Audits of one model that differ in the field ``across`` are accepted.

    Raises:
        ClasswiseError: for a name that is not text or blank, or the same audit, folder or model twice in a method.
    """
    checked_names([*methods], "names of methods")
    for name, audits in methods.items():
        known: dict[Any, int] = {}
        for place, audit in enumerate(audits):
            model, path, code = audit.outcomes.meta.model_hash, audit.path, audit.outcomes.meta.code or {}
            identities = {
                f"the same model (SHA-256 {model[:12]})": model and (model, *sorted(code.get("model", {}).items())),
                f"the same folder {path}": None if path is None else path.resolve(),
                "the same outcomes": id(audit.outcomes),
            }
            level = value_of(across, audit, attack).key if across else None
            for what, identity in identities.items():
                first = known.setdefault((identity, level), place) if identity else place
                if first != place:
                    runs = f"runs {first + 1} and {place + 1} of {name!r}"
                    raise ClasswiseError(f"{runs} are audits of {what}; give each training seed once")


def seed_notes(audits: Sequence[Audit], attack: str) -> list[str]:
    """A sentence on audits whose attacks used different random numbers."""
    seeds = sorted({audit.outcomes.meta.seed for audit in audits if audit.outcomes.meta.seed is not None})
    if attack == CLEAN or len(seeds) < 2:
        return []
    return [f"The audits used different seeds of the attacks' random numbers: {', '.join(map(str, seeds))}."]


def _check(field: str, one: Named, other: Named, read: Callable[[Meta], FieldValue]) -> None:
    first, second = (read(named.audit.outcomes.meta) for named in (one, other))
    if first.key != second.key:
        raise _difference(field, one, other, first.text, second.text)


def _difference(
    field: str, one: Named, other: Named, first: str, second: str, more: Sequence[str] = (), *, crossed: bool = True
) -> ClasswiseError:
    crossed = crossed and field in CROSSED
    hint = f", or across={field!r} (--across {field}) to compare them without tests" if crossed else ""
    if field == "attacks" and crossed:
        hint += ", or for tests of two attacks by class classwise.analysis.drop.drop with one audit that has both"
    if UNSTATED in first or UNSTATED in second:
        hint += ", or predictions of both (Outcomes.from_predictions), whose settings are not checked"
    return ClasswiseError(
        f"{one.name} and {other.name} differ in {field}: {_short(first)} and {_short(second)}; use audits with "
        f"the same {' and '.join((field, *more))}{hint}"
    )


def _short(text: str) -> str:
    return textwrap.shorten(text, 120, placeholder=" ...")


def _data(meta: Meta) -> FieldValue:
    name = " ".join(filter(None, (meta.data, meta.split)))
    if meta.data_hash:
        return FieldValue(meta.data_hash, " ".join(filter(None, (name, f"SHA-256 {meta.data_hash[:12]}"))))
    return FieldValue(name, f"{name}, hash {UNSTATED}" if name else UNSTATED, stated=False)


def _check_images(one: Named, other: Named) -> None:
    first, second = one.audit.outcomes, other.audit.outcomes
    if one.audit.complete and other.audit.complete and not np.array_equal(first.index, second.index):
        texts = [f"{len(outcomes):,} ({_span(outcomes.index)})" for outcomes in (first, second)]
        if texts[0] == texts[1]:
            index = int(np.setxor1d(first.index, second.index)[0])
            in_first = index in first.index
            texts = [f"{'with' if present else 'without'} index {index}" for present in (in_first, not in_first)]
        raise _difference("images", one, other, *texts)
    known = [
        max(outcomes.meta.images, len(outcomes)) for outcomes in (first, second) if outcomes.meta.images is not None
    ]
    if len(set(known)) > 1:
        raise _difference("images", one, other, *(f"{count:,}" for count in known))
    shared, rows, other_rows = np.intersect1d(first.index, second.index, assume_unique=True, return_indices=True)
    differ = np.flatnonzero(first.labels[rows] != second.labels[other_rows])
    if differ.size:
        place = differ[0]
        labels = (first, first.labels[rows[place]]), (second, second.labels[other_rows[place]])
        texts = [f"image {int(shared[place])} is {outcomes.class_names[label]!r}" for outcomes, label in labels]
        raise _difference("labels", one, other, *texts)


def _span(index: Any) -> str:
    return f"indices {index[0]} to {index[-1]}" if len(index) else "none"


def _check_grouping(one: Named, other: Named, group: str | None) -> None:
    if group is None:
        return
    first, second = (named.audit.outcomes.grouping(group) for named in (one, other))
    field = f"grouping {group}"
    if first.names != second.names:
        raise _difference(field, one, other, ", ".join(first.names), ", ".join(second.names))
    shared, rows, other_rows = np.intersect1d(one.audit.outcomes.index, other.audit.outcomes.index, return_indices=True)
    differ = np.flatnonzero(first.ids[rows] != second.ids[other_rows])
    if differ.size:
        place = differ[0]
        ids = first.ids[rows[place]], second.ids[other_rows[place]]
        raise _difference(field, one, other, *(f"image {shared[place]} in {first.names[label]!r}" for label in ids))


def _threat(audit: Audit, attack: str) -> FieldValue:
    """The norm with the radius, or with the radii of all images."""
    outcomes = audit.outcomes
    return threat_of(outcomes.frame, outcomes.meta, members_of(outcomes.meta, attack))


def _attacks(audit: Audit, attack: str) -> FieldValue:
    """The complete spec of each attack that decides the verdict; in a cascade also their order."""
    meta = audit.outcomes.meta
    specs = {label: meta.attacks[label] for label in members_of(meta, attack)}
    order = tuple((label, json.dumps(canonical(identity_of(spec)), sort_keys=True)) for label, spec in specs.items())
    stated = all(spec for label, spec in specs.items() if label != CLEAN)
    return FieldValue(
        order if meta.cascade else tuple(sorted(order)),
        "; ".join(_spec(item) for item in specs.items() if item[0] != CLEAN),
        stated,
    )


def _code(audit: Audit, attack: str) -> FieldValue:
    """The user's code of the attacks that decide the verdict; stated if it is recorded, or they need none."""
    meta = audit.outcomes.meta
    members = members_of(meta, attack)
    own = [label for label in members if any(":" in str(value) for value in (meta.attacks[label] or {}).values())]
    found = {label: digests for label in members if (digests := (meta.code or {}).get(f"attack {label}"))}
    texts = [
        f"{label} " + ", ".join(f"{module} {digest[:12]}" for module, digest in digests.items())
        for label, digests in found.items()
    ]
    recorded = meta.code is not None
    return FieldValue(found, "; ".join(texts) or ("none" if recorded else UNSTATED), recorded or not own)


def _differing(one: Audit, other: Audit, attack: str) -> tuple[str, str]:
    """The texts of the attacks that are in one of two audits only."""
    both = [
        {label: audit.outcomes.meta.attacks[label] for label in members_of(audit.outcomes.meta, attack)}
        for audit in (one, other)
    ]
    first, second = both
    if first == second:
        return " then ".join(first), " then ".join(second)  # a cascade in another order
    texts = [
        "; ".join(_spec(item) for item in specs.items() if item[0] not in rest or rest[item[0]] != item[1])
        for specs, rest in ((first, second), (second, first))
    ]
    absent = [f"no {', '.join(names)}" for names in (second.keys() - first.keys(), first.keys() - second.keys())]
    return texts[0] or absent[0], texts[1] or absent[1]


def _spec(item: tuple[str, Mapping[str, Any] | None]) -> str:
    label, spec = item
    if spec is None:
        return label if label == CLEAN else f"{label} (settings {UNSTATED})"
    options = flat_options(spec)
    chosen = ",".join(f"{key}={value}" for key, value in options.items() if key != "name" and value is not None)
    return f"{label}:{chosen}" if chosen else label


def _fields(attack: str) -> dict[str, Callable[[Audit, str], FieldValue]]:
    """How the fields are read that must agree where verdicts under an attack are compared."""
    decides = (Decides.VERDICTS,) if attack == CLEAN else COMPARED
    settings: dict[str, Callable[[Audit, str], FieldValue]] = {
        option.words: functools.partial(_setting, name) for name, option in STORED.items() if option.decides in decides
    }
    of_attacks = {"attacks": _attacks, CODE: _code}
    return settings if attack == CLEAN else {"threat": _threat, **settings, **of_attacks}


def _setting(name: str, audit: Audit, _: str) -> FieldValue:
    return setting_of(audit.outcomes.meta, name)
