"""`evidence`: write an evidence report; `verify`: compute it again from the outcomes."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, cast

import pydantic
from torch import nn
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.criteria.policy import Policy
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.audit_folder import ABOUT, audit_in
from classwise.auditing.run.requirements import checked_policy
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError, quoted
from classwise.core.files.json_values import json_text
from classwise.core.files.reading import open_regular, read_bytes
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import read_json, write_bytes, write_text
from classwise.core.settings import limits
from classwise.core.settings.arguments import checked
from classwise.core.settings.code_identity import compared_here
from classwise.core.version import __version__
from classwise.data.images import Images
from classwise.reporting.evidence.card import evidence_card
from classwise.reporting.evidence.facts import (
    RECORD,
    EvidenceFacts,
    OtherFacts,
    Verdict,
    evidence_facts,
    outcomes_digest,
)
from classwise.reporting.evidence.page import evidence_page
from classwise.reporting.evidence.supplements import files_of, kind_of, supplement

PAGE, FACTS, POLICY, MANIFEST = "evidence.html", "evidence.json", "policy.yaml", "manifest.json"
"""The files of an evidence report."""
CARD = "README.md"
"""The model card, if the report has one."""


SIGNATURES: Mapping[str, str] = {
    ".sig": "ssh-keygen -Y verify -f ALLOWED_SIGNERS -I SIGNER -n file -s {file} < {manifest}",
    ".minisig": "minisign -Vm {manifest} -p PUBLIC_KEY",
    ".sigstore.json": "sigstore verify identity --bundle {file} --cert-identity SIGNER --cert-oidc-issuer ISSUER "
    "{manifest}",
    ".tsr": "openssl ts -verify -data {manifest} -in {file} -CAfile AUTHORITY",
}
"""Endings of files beside the manifest that sign it or state when it existed, and the commands that check them."""


class ManifestFolder(TypedDict):
    """A result in ``manifest.json``: its folder, relative to the report, and the SHA-256 of each file."""

    folder: str
    files: dict[str, str]


class ManifestAudit(ManifestFolder):
    """An audit in ``manifest.json``.

    ``outcomes_sha256`` is the digest of what decides (`classwise.reporting.evidence.facts.outcomes_digest`).
    """

    outcomes_sha256: str


class Manifest(TypedDict):
    """The content of ``manifest.json``."""

    schema_version: int
    files: dict[str, str]
    audits: Annotated[list[ManifestAudit], pydantic.Field(min_length=1)]
    supplements: list[ManifestFolder]


class _Versioned(TypedDict):
    schema_version: int


@dataclass(frozen=True)
class Evidence:
    """A written evidence report.

    Attributes:
        folder: its folder.
        facts: the content of its JSON file.
    """

    folder: Path
    facts: EvidenceFacts

    @property
    def verdict(self) -> Verdict:
        """The first that holds for an audit: ``failed``, ``not as required``, ``undecided``, ``passed``."""
        return self.facts["verdict"]

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.folder / PAGE


@checked
def evidence(
    audits: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    policy: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    card: bool = False,
) -> Evidence:
    """Write an evidence report on audits: a page, a JSON file, the policy, and a manifest of SHA-256 digests.

    Args:
        audits: folders of audits, or of runs with one audit each; one or several. Beside them, folders of radius
            curves, worst-class searches and corruptions of the same models, on which no criterion is decided.
        policy: the YAML file of a `classwise.auditing.criteria.policy.Policy`.
        out: a new folder.
        card: also write a model card, ``README.md``, with the metadata that the Hugging Face Hub reads.

    Raises:
        ClasswiseError: if the policy is invalid or does not fit an audit, an audit cannot be read, or ``out`` is not
            empty.

    Example:
        >>> import os, tempfile
        >>> from pathlib import Path
        >>> import classwise as cw
        >>> policy = '''
        ... title: Digits
        ... intended_use: sorting of forms
        ... operating_domain: scanned forms
        ... threat_model: {goal: any other class, knowledge: white-box, capability: every pixel, radius: Linf:0.1,
        ...   why: the digits remain legible}
        ... model: {architecture: a small CNN, size: 4 thousand parameters, provenance: trained by us}
        ... data: {source: scikit-learn, licence: CC BY 4.0, sampling: all images, split: any, digest: any, images: 2,
        ...   images_per_class: 1}
        ... attacks: [pgd]
        ... guards: default
        ... precision: any
        ... fail_if: [worst(all) < 0.2]
        ... limits: [Only Linf perturbations were tested.]
        ... validity: {until: 2027-12-31, retest_if: [the weights change]}
        ... '''
        >>> outcomes = cw.Outcomes.from_predictions([0, 1], clean=[0, 1], attacks={"pgd": [0, 0]}, threat="Linf:0.1")
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = Path(name)
        ...     _ = (folder / "policy.yaml").write_text(policy)
        ...     _ = cw.Audit(outcomes).save(folder / "audit")
        ...     cw.evidence(folder / "audit", folder / "policy.yaml", folder / "evidence").verdict
        'failed'
    """
    given, supplements = _by_kind([audits] if isinstance(audits, str | os.PathLike) else audits)
    folder, file = Path(out), Path(policy)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClasswiseError(f"{folder} is not empty; give a new folder")
    if not given:
        raise ClasswiseError("audits is empty; give at least one folder of an audit")
    loaded = [_load(path) for path in given]
    facts = evidence_facts(loaded, _policy_for(loaded, file), _now(), [*map(supplement, supplements)])
    write_bytes(folder / POLICY, read_bytes(file, limits.RECIPE_BYTES))
    write_text(folder / FACTS, _text(facts))
    write_text(folder / PAGE, evidence_page(facts))
    if card:
        write_text(folder / CARD, evidence_card(facts))
    manifest: Manifest = {
        "schema_version": SCHEMA_VERSIONS["evidence"],
        "files": {name: _digest(folder / name) for name in (PAGE, FACTS, POLICY, *([CARD] if card else []))},
        "audits": [
            {
                "folder": _relative(audit.path, folder),
                "outcomes_sha256": outcomes_digest(audit),
                "files": _files(audit.path),
            }
            for audit in loaded
            if audit.path is not None
        ],
        "supplements": [
            {"folder": _relative(path, folder), "files": _digests_in(path, files_of(path))} for path in supplements
        ],
    }
    write_text(folder / MANIFEST, _text(manifest))
    return Evidence(folder, facts)


class Verification(NamedTuple):
    """What a verification has found.

    Attributes:
        differences: a line for each difference; the report is not to be trusted if there is one.
        notes: a line for each fact that is stated beside them.
    """

    differences: list[str]
    notes: list[str]


@checked
def verify(
    folder: str | os.PathLike[str],
    audits: Sequence[str | os.PathLike[str]] = (),
    *,
    model: nn.Module | None = None,
    images: Images | None = None,
    rerun: int | Literal["all"] | None = None,
    seed: int | None = None,
) -> Verification:
    """Compare an evidence report with its manifest, with what its audits and policy give, and with what they are about.

    Args:
        folder: the folder of the report.
        audits: the audits, in the order of the report, or repetitions of them, and its further results; none: those in
            the places that the manifest names, whose files must be unchanged.
        model: compared with the audited one, in weights, structure and code. None: not compared.
        images: compared with the audited ones. None: not compared.
        rerun: attack so many random images again, or ``"all"``, and compare the outcomes; needs model and images.
        seed: of the sample of images. None: a random one, which the notes state.

    Raises:
        IncompleteError: if an audit is not found, and nothing else differs.
        ClasswiseError: if there is no manifest, it is damaged, or it has another number of audits; if ``rerun`` lacks
            the model or the images.
    """
    place = Path(folder)
    manifest = _manifest(place / MANIFEST)
    recorded, further = manifest["audits"], manifest["supplements"]
    given, supplements = _by_kind(audits)
    for word, stated, found_here in (("audits", recorded, given), ("further results", further, supplements)):
        if found_here and len(found_here) != len(stated):
            count = len(found_here)
            raise ClasswiseError(
                f"{place} reports on {len(stated)} {word}, but {count} are given; give all, in the order of the report"
            )
    if rerun is not None and (model is None or images is None):
        raise ClasswiseError("rerun (--rerun) needs the model and the images: --model and --data")
    own = {PAGE, FACTS, POLICY, MANIFEST, *manifest["files"], *(f"{MANIFEST}{ending}" for ending in SIGNATURES)}
    others = sorted(file.name for file in place.iterdir() if file.name not in own)
    notes = [*_signatures(place), *(f"{name} is in the folder and no part of the report" for name in others)]
    found = [*_differing(place, {**dict.fromkeys((PAGE, FACTS, POLICY), ""), **manifest["files"]})]
    paths = given or [place / about["folder"] for about in recorded]
    supplements = supplements or [place / about["folder"] for about in further]
    if missing := [str(path) for path in (*paths, *supplements) if not path.is_dir()]:
        if found:
            return Verification(found, notes)
        raise IncompleteError(f"the files match their digests, but {missing[0]} is not found; give its folder")
    for path, stated_files in zip(supplements, further, strict=True):
        here = dict.fromkeys(_digests_in(path, files_of(path)), "")
        found += _differing(path, {**here, **stated_files["files"]})
    repeated = set[int]()
    for number, (path, about) in enumerate(zip(paths, recorded, strict=True)):
        changed = [*_differing(audit_in(path), {**dict.fromkeys(_files(audit_in(path)), ""), **about["files"]})]
        if changed and audits and _repeats(path, about):
            repeated.add(number)
            notes.append(f"{path} is a repetition: other files, and the same outcomes, settings and guards")
        else:
            found += changed
    if not found:
        reported = {(place / about["folder"]).resolve() for about in recorded}
        found += _recomputed(place, paths, supplements, repeated, reported)
        if not found:
            report = read_json(place / FACTS, kind=_OfReport)
            notes.insert(0, f"the verdict of the report is: {report['verdict']}. {report['criteria_sentence']}")
    if not found and rerun is not None and supplements:
        notes.append("further results are not repeated: their files match their digests")
    if not found and (model is not None or images is not None):
        found += _compared([_load(path) for path in paths], model, images, rerun, seed, notes)
    return Verification(found, notes)


def _repeats(path: Path, about: ManifestAudit) -> bool:
    """Whether an audit has the digest of what decides."""
    try:
        return outcomes_digest(_load(path)) == about["outcomes_sha256"]
    except ClasswiseError:
        return False


def _signatures(place: Path) -> Iterator[str]:
    """A line for each signature or time stamp beside the manifest."""
    files = [(place / f"{MANIFEST}{ending}", command) for ending, command in SIGNATURES.items()]
    present = [(file, command) for file, command in files if file.is_file()]
    for file, command in present:
        check = command.format(file=quoted(file), manifest=quoted(place / MANIFEST))
        yield f"{file} is beside the manifest, and classwise does not check it: {check}"
    if not present:
        yield "no signature is beside the manifest: whoever can change all files can compute all digests again"


def _compared(
    audits: Sequence[Audit],
    model: nn.Module | None,
    images: Images | None,
    rerun: int | Literal["all"] | None,
    seed: int | None,
    notes: list[str],
) -> Iterator[str]:
    """A line for each difference of the model and the images from those of the audits that are of this model."""
    from classwise.reporting.evidence.repetition import identity_differences, place_of, repeat

    of_model = [audit for audit in audits if model is None or not [*identity_differences(audit, model, None)]]
    for audit in of_model or audits:
        differences = [*identity_differences(audit, model, images)]
        yield from differences
        if differences:
            continue
        given = " and the ".join(name for name, value in (("model", model), ("images", images)) if value is not None)
        verb = "matches that" if given == "model" else "match those"
        notes.append(f"{place_of(audit)}: the {given} {verb} of the audit")
        if rerun is not None and model is not None and images is not None:
            chosen = secrets.randbelow(2**32) if seed is None else seed
            repetition = repeat(audit, model, images, None if rerun == "all" else rerun, chosen)
            line = f"{place_of(audit)}: {repetition}" + ("" if rerun == "all" else f" (seed {chosen})")
            if repetition.is_found:
                yield line
            else:
                notes.append(line)


def code_notes(folder: str | os.PathLike[str]) -> list[str]:
    """What can be said about the user's code of the audits of a report: whether its files here are the recorded ones.

    Args:
        folder: the folder of the report.

    Raises:
        ClasswiseError: if the report is missing or damaged.
    """
    notes, place = [], Path(folder)
    audits, recorded = read_json(place / FACTS, kind=_OfReport)["audits"], _manifest(place / MANIFEST)["audits"]
    for audit, about in zip(audits, recorded, strict=False):
        name = os.path.normpath(place / about["folder"])
        if (code := audit.get("code")) is None:
            notes.append(f"{name}: the code of the model and of the attacks is not recorded")
        else:
            notes += [f"{name}: {phrase}" for phrase in compared_here(code)]
    return notes


def seed_of_images(folder: str | os.PathLike[str]) -> int:
    """The seed of the audits of a report, with which a subset of their images was chosen; 0 if it is not recorded.

    Raises:
        ClasswiseError: if the report is missing or damaged.
    """
    settings = [row for audit in read_json(Path(folder) / FACTS, kind=_OfReport)["audits"] for row in audit["settings"]]
    return next((int(text) for name, text in settings if name == "Seed"), 0)


class _OfAudit(TypedDict):
    name: str
    others: list[OtherFacts]
    settings: list[tuple[str, str]]
    code: NotRequired[dict[str, dict[str, str]]]


class _OfReport(TypedDict):
    date: dt.datetime
    verdict: Verdict
    criteria_sentence: str
    audits: list[_OfAudit]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _manifest(file: Path) -> Manifest:
    if not file.exists():
        raise ClasswiseError(f"there is no {file}; give the folder of an evidence report")
    version = read_json(file, kind=_Versioned)["schema_version"]
    check_schema_version(version, SCHEMA_VERSIONS["evidence"], str(file.parent))
    return read_json(file, kind=Manifest)


def _recomputed(
    place: Path, paths: Sequence[Path], supplements: Sequence[Path], repeated: Collection[int], own: Collection[Path]
) -> Iterator[str]:
    """A line for each difference to a report that is computed again.

    Args:
        place: the folder of the report.
        paths: the audits.
        supplements: the further results.
        repeated: the numbers of those that are repetitions of the audits of the report.
        own: the folders of the audits of the report, which may be beside a repetition.
    """
    try:
        text, page = read_bytes(place / FACTS), read_bytes(place / PAGE)
        stored, known = read_json(place / FACTS), read_json(place / FACTS, kind=_OfReport)
        loaded, date = [_load(path) for path in paths], known["date"]
        policy = _policy_for(loaded, place / POLICY)
        facts: dict[str, Any] = dict(evidence_facts(loaded, policy, date, [*map(supplement, supplements)]))
    except ClasswiseError as error:
        yield f"cannot be computed again: {error}"
        return
    version = str(stored.get("classwise"))
    facts["classwise"] = version
    other = "" if version == __version__ else f"; it is of classwise {version}, and this is {__version__}"
    if repeated:  # whether the criteria were recorded is known of the first audits only
        facts |= {key: stored[key] for key in ("number", "criteria_recorded", "criteria_sentence") if key in stored}
    for number, (audit, before) in enumerate(zip(facts["audits"], stored["audits"], strict=False)):
        now = {row["name"]: row for row in audit["others"]}
        audit["others"] = [now.pop(row["name"], row) for row in before["others"]]
        for row in now.values():
            if row["date"] <= str(stored["date"]) and paths[number].resolve().parent / row["name"] not in own:
                subject = "with the same policy, or of the same model and images"
                yield f"{row['name']} is beside {paths[number]} {subject}, and is not in the report"
        if number in repeated:
            audit |= {key: before[key] for key in RECORD if key in before}
    if policy.validity.until < _now().date():
        yield f"the policy was valid until {policy.validity.until}: test again"
    if text != _text(facts).encode():
        differ = [key for key in {**facts, **stored} if _entry(facts, key) != _entry(stored, key)]
        for key in differ:
            yield f"{FACTS}: {key} differs from what the audits and the policy give{other}"
        if not differ:
            yield f"{FACTS} has the values that the audits and the policy give, but other bytes{other}"
    if page != evidence_page(cast("EvidenceFacts", facts)).encode():
        yield f"{PAGE} differs from the page that the audits and the policy give{other}"
    if (place / CARD).exists() and read_bytes(place / CARD) != evidence_card(cast("EvidenceFacts", facts)).encode():
        yield f"{CARD} differs from the card that the audits and the policy give{other}"


def _load(path: Path) -> Audit:
    audit = Audit.load(path)
    if audit.path is None or not (audit.path / ABOUT).is_file():
        raise ClasswiseError(f"{path} is not the folder of an audit; give a folder that contains {ABOUT}")
    return audit


def _policy_for(audits: Sequence[Audit], file: Path) -> Policy:
    """Read the policy, and check that it fits every audit."""
    policies = [checked_policy(file, audit.outcomes.meta, audit.group) for audit in audits]
    return policies[0]


def _files(audit: Path) -> dict[str, str]:
    """The SHA-256 of the record and the outcomes of an audit, by path."""
    return _digests_in(audit, [audit / ABOUT, *outcome_files.listed(audit / "outcomes")])


def _digests_in(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): _digest(file) for file in files}


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _by_kind(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Path], list[Path]]:
    """The audits among folders, and the further results."""
    found: tuple[list[Path], list[Path]] = ([], [])
    for path in map(Path, paths):
        found[kind_of(path) is not None].append(path)
    return found


def _differing(folder: Path, digests: dict[str, str]) -> Iterator[str]:
    """A line for each file with another digest; an empty one is that of a file that is not in the manifest."""
    for name, digest in digests.items():
        file = folder / name
        if not file.is_file():
            yield f"{file} is missing"
        elif not digest:
            yield f"{file} is not in the manifest"
        elif _digest(file) != digest:
            yield f"{file} differs from its SHA-256 in the manifest"


def _digest(file: Path) -> str:
    with open_regular(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _entry(facts: Mapping[str, Any], key: str) -> str | None:
    """The text of an entry, so that false is not 0; None for none."""
    return _text(facts[key]) if key in facts else None


def _text(facts: Any) -> str:
    return json_text(facts, indent=2, ensure_ascii=False) + "\n"
