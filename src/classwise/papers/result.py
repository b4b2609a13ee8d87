"""The result of an experiment: evidence, verdicts corrected over a store, its JSON file; and summaries of claims."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from classwise.core.errors import ClasswiseError
from classwise.core.files.json_values import json_value
from classwise.core.files.reading import parse_json, read_bytes
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import write_json
from classwise.core.version import __version__
from classwise.papers import catalogue
from classwise.papers.claims import Answer, Basis, Measurement, Verdict, correct_jointly
from classwise.papers.scales import CIFAR, NAMES, Name
from classwise.papers.store import Store
from classwise.reporting.formatting import listed
from classwise.reporting.tables import Table
from classwise.training.recipe_settings import ModelSettings

CONFIRMING = 3
"""Smallest number of trainings of each model for which a claim is confirmed or refuted at full scale."""
NOT_TESTED = "not tested"
NO_EVIDENCE = "smoke run, no evidence"
EXACT: dict[Basis, str] = {"computation": "by exact computation", "printed numbers": "by the printed numbers"}
"""What is stated of an exact verdict, in place of a scale."""
_OBSERVED: dict[Answer, str] = {"contradicted": "not observed"}
_FINAL: dict[Answer, str] = {"supported": "confirmed", "contradicted": "refuted"}
_NAMED = 3
"""More networks are counted."""
_WIDTHS = {0.25: "quarter width", 0.5: "half width"}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The level at which a result was obtained.

    Each sequence has the distinct values over all models of the result, in increasing order; it is empty for a result
    without trainings.

    Attributes:
        scale: name of the scale.
        trainings: number of independent trainings (seeds) of each model, the smallest over the models.
        data: names of the data sets.
        train_images: numbers of training images, including the validation split.
        epochs: numbers of epochs.
        networks: names of the networks.
        widths: width factors of the networks.
        test_images: numbers of test images of the audits.
        attacks: names of the attacks of the audits, each with its threat, as in ``pgd in Linf:8/255``.
    """

    scale: Name
    trainings: int = 0
    data: Sequence[str] = ()
    train_images: Sequence[int] = ()
    epochs: Sequence[int] = ()
    networks: Sequence[str] = ()
    widths: Sequence[float] = ()
    test_images: Sequence[int] = ()
    attacks: Sequence[str] = ()

    @property
    def settings(self) -> str:
        """Number of trainings, images and epochs, and the network, as in ``1 training, 5,000 images, 12 epochs``.

        The data set and the network are named unless they are CIFAR-10 and a PreActResNet-18.
        """
        return ", ".join([number_of_trainings(self.trainings), *self._budget()]) if self.trainings else ""

    def details(self, verdict: Verdict) -> str:
        """The settings of a verdict in parentheses, with the trainings that its interval covers; empty without any."""
        if not self.trainings:
            return ""
        fixed = verdict.trainings < self.trainings
        trainings = number_of_trainings(self.trainings if fixed else verdict.trainings)
        parts = [f"{trainings}, intervals for fixed models" if fixed else trainings]
        several = len(self.data) > 1  # the verdict may be on one of them
        budget = [f"models of {len(self.data)} data sets"] if several else self._budget()
        return f" ({', '.join([*parts, *([] if self.scale == 'full' else budget)])})"

    def _budget(self) -> list[str]:
        parts = []
        if self.train_images:
            of = "" if tuple(self.data) == (CIFAR,) else f" of {' and '.join(self.data)}"
            parts.append(f"{_several(self.train_images)} images{of}")
        if self.epochs:
            parts.append(f"{_several(self.epochs)} epoch{'' if tuple(self.epochs) == (1,) else 's'}")
        if len(self.networks) > _NAMED:
            parts.append(f"{len(self.networks)} networks")
        elif self.networks and tuple(self.networks) != (ModelSettings().name,):
            parts.append(listed(self.networks))
        if len(self.widths) > 1:
            parts.append(f"width {min(self.widths):g} to {max(self.widths):g}")
        elif self.widths and self.widths[0] != 1:
            parts.append(_WIDTHS.get(self.widths[0], f"width {self.widths[0]:g}"))
        return parts


def verdict_text(verdict: Verdict, evidence: Evidence, *, short: bool = False) -> str:
    """Text of a verdict and of the level at which it was obtained.

    At small and medium scale a claim is *supported*, *not observed* or *inconclusive*. *Confirmed* and *refuted*
    require the full scale and an interval over at least three trainings of each model.

    Args:
        verdict: verdict on a claim.
        evidence: level of the result that has the verdict.
        short: whether to omit the settings in parentheses.

    Example:
        >>> from classwise.papers.claims import Verdict
        >>> from classwise.papers.result import Evidence, verdict_text
        >>> budget = {"data": ["cifar10"], "train_images": [5000], "epochs": [12], "widths": [0.25]}
        >>> evidence = Evidence(scale="small", trainings=1, **budget)
        >>> verdict_text(Verdict(claim="kdd21/C8", answer="contradicted", estimand="rank of class 3"), evidence)
        'not observed at small scale (1 training, 5,000 images, 12 epochs, quarter width)'
    """
    if not verdict.estimand:
        return NOT_TESTED
    if verdict.basis in EXACT:
        return f"{verdict.answer} {EXACT[verdict.basis]}"
    if evidence.scale == "smoke":
        return NO_EVIDENCE
    details = "" if short else evidence.details(verdict)
    if evidence.scale != "full":
        return f"{_OBSERVED.get(verdict.answer, verdict.answer)} at {evidence.scale} scale{details}"
    final = _FINAL if verdict.trainings >= CONFIRMING else {}
    return f"{final.get(verdict.answer, verdict.answer)} at full scale{details}"


def conclusive(verdict: Verdict, evidence: Evidence) -> Answer:
    """The answer of a verdict; "inconclusive" for a smoke run, which is no evidence, unless the test is exact."""
    if evidence.scale == "smoke" and verdict.basis == "experiment" and verdict.answer != "not tested":
        return "inconclusive"
    return verdict.answer


def number_of_trainings(count: int) -> str:
    """A number of trainings in words."""
    return f"{count} training{'' if count == 1 else 's'}"


def _several(values: Sequence[int]) -> str:
    """One number, or the smallest and the largest."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of a page: an ``<svg>`` element and its caption."""

    svg: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an experiment.

    Attributes:
        item: item id, such as ``kdd21/T1``.
        evidence: scale and budget of the result.
        setting: description of the scale.
        tables: numbers with intervals, next to the printed ones.
        figures: figures with captions.
        verdicts: verdicts on claims.
        measurements: measured quantities for open questions.
        runs: store key of each training to its recipe name.
        seconds: duration. If ``work`` is given, it includes each training and audit once; otherwise (results of
            earlier versions) it excludes those loaded from the store.
        work: store key of each training and audit to its duration in seconds; None if unknown.
        version: version of classwise that produced the result.
    """

    item: str
    evidence: Evidence
    setting: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    verdicts: Sequence[Verdict] = ()
    measurements: Sequence[Measurement] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    work: Mapping[str, float | None] | None = None
    version: str = __version__

    @property
    def scale(self) -> Name:
        """Name of the scale."""
        return self.evidence.scale

    @property
    def own_seconds(self) -> float:
        """Seconds spent outside trainings and audits."""
        return self.seconds - sum(seconds for seconds in (self.work or {}).values() if seconds is not None)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; the ``text`` of a verdict states its answer and the level of its evidence."""
        plain: dict[str, Any] = json_value(dataclasses.asdict(self))
        for row in (row for table in plain["tables"] for row in table["rows"]):
            row["cells"] = [cell[:2] for cell in row["cells"]]  # no cell of a paper's table is in bold
        for fields, verdict in zip(plain["verdicts"], self.verdicts, strict=True):
            fields["text"] = verdict_text(verdict, self.evidence)
        return plain

    def save(self, path: Path) -> None:
        """Write the result as JSON, atomically."""
        plain = {"schema_version": SCHEMA_VERSIONS["experiment"], **self.to_json()}
        write_json(path, plain, indent=1, ensure_ascii=False)

    @staticmethod
    def load(path: Path) -> Result:
        """Read a result that `save` wrote.

        Raises:
            ClasswiseError: if the file is damaged or has another schema version.
        """
        damaged = f"{path} is damaged; run its item again with classwise papers run, or delete the file"
        try:
            plain = parse_json(read_bytes(path))
            version = int(plain.pop("schema_version"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClasswiseError(damaged) from error
        check_schema_version(version, SCHEMA_VERSIONS["experiment"], str(path))
        try:
            for values in (*plain["verdicts"], *plain["measurements"]):
                values |= {key: math.nan for key, value in values.items() if value is None and key != "limits"}
            return _reader().validate_python(plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClasswiseError(damaged) from error


@dataclass(frozen=True)
class ClaimSummary:
    """Verdicts of several results on a claim.

    Attributes:
        claim: claim id.
        verdicts: pairs of result and verdict from the results that tested the claim; if none did, from all results.
        tested: parts of the claim that were tested.
        untested: parts that were not tested. If there are any, the claim has no verdict.
    """

    claim: str
    verdicts: Sequence[tuple[Result, Verdict]]
    tested: Sequence[str]
    untested: Sequence[str]

    @property
    def tests(self) -> list[tuple[Result, Verdict]]:
        """The pairs whose verdict is that of a test."""
        return [(result, verdict) for result, verdict in self.verdicts if verdict.estimand]

    @property
    def partial(self) -> bool:
        """Whether some parts were tested and others were not."""
        return bool(self.tested and self.untested)


def summarise_claim(
    claim: str, parts: Sequence[tuple[str, str]], verdicts: Sequence[tuple[Result, Verdict]]
) -> ClaimSummary:
    """Combine the verdicts of several results on parts of a claim.

    Args:
        claim: claim id.
        parts: result of `catalogue.claim_parts`: pairs of a claim and a part, empty if the claim has one part.
        verdicts: pairs of result and verdict, on any claims.
    """
    claims = {claim, *(known for known, _ in parts)}

    def about(one: Verdict) -> bool:
        """Whether a verdict is on the claim, or on an equivalent part of another one."""
        known = any((one.claim, part) in parts for part in one.covers or ("",))
        return one.claim == claim or (one.claim in claims and (known or not one.estimand))

    related = [(result, verdict) for result, verdict in verdicts if about(verdict)]
    tests = [(result, verdict) for result, verdict in related if verdict.estimand]
    testing = {(result.item, result.scale) for result, _ in tests}
    tested = [(result, verdict) for result, verdict in related if (result.item, result.scale) in testing]
    covered = {(verdict.claim, part) for _, verdict in tests for part in (verdict.covers or ("",))}
    unlisted = [(known, part) for known, part in sorted(covered) if (known, part) not in parts]

    def named(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        names = (part if known == claim else f"{known}: {part}" if part else known for known, part in pairs)
        return tuple(name or "the claim" for name in names)

    return ClaimSummary(
        claim,
        tested or related,
        named([*(pair for pair in parts if pair in covered), *unlisted]),
        named([pair for pair in parts if pair not in covered]),
    )


@functools.cache
def _reader() -> pydantic.TypeAdapter[Result]:
    """Validates the JSON values of a result; it takes much longer to build than to use."""
    return pydantic.TypeAdapter(Result)


def stored_results(store: Store | None) -> dict[str, list[Result]]:
    """Every item of the catalogue to its results, largest scale first, corrected jointly.

    Args:
        store: store of results; None for no results.

    Raises:
        ClasswiseError: if a result is damaged.
    """
    found: dict[str, list[Result]] = {item: [] for item in catalogue.items()}
    files = [] if store is None else [store.result_file(item, scale) for item in found for scale in reversed(NAMES)]
    for result in _corrected([Result.load(file) for file in files if file.is_file()]):
        found[result.item].append(result)
    return found


def save_result(result: Result, store: Store) -> None:
    """Save a result, and the other results of its paper and scale whose verdicts it changes.

    Args:
        result: result of an item.
        store: store of results.

    Raises:
        ClasswiseError: if another result of the paper is damaged.
    """
    paper = result.item.partition("/")[0]
    with store.locked(f"results-{paper}-{result.scale}"):
        others = [item.id for item in catalogue.items().values() if item.paper == paper and item.id != result.item]
        files = [store.result_file(item, result.scale) for item in others]
        saved = [Result.load(file) for file in files if file.is_file()]
        first, *changed = _corrected([result, *saved])
        first.save(store.result_file(first.item, first.scale))
        for before, after in zip(saved, changed, strict=True):
            if repr([*after.verdicts]) != repr([*before.verdicts]):  # as text, since NaN differs from itself
                after.save(store.result_file(after.item, after.scale))


def _corrected(results: Sequence[Result]) -> list[Result]:
    """Correct the verdicts jointly over all results of the same paper and scale.

    The items are in the order of the catalogue, which decides the levels of tests with equal p-values.
    """
    order = list(catalogue.items())
    families = [(result.item.partition("/")[0], result.scale) for result in results]
    replaced = list(results)
    for family in dict.fromkeys(families):
        places = [place for place, other in enumerate(families) if other == family]
        places.sort(key=lambda place: order.index(results[place].item))
        verdicts = iter(correct_jointly([verdict for place in places for verdict in results[place].verdicts]))
        for place in places:
            count = len(results[place].verdicts)
            replaced[place] = dataclasses.replace(results[place], verdicts=tuple(itertools.islice(verdicts, count)))
    return replaced
