"""`evidence`: write an evidence report; `verify`: compute it again from the outcomes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, cast

import pydantic
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.auditing.criteria.policy import Policy, checked_policy
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.run.audit_folder import ABOUT, audit_in
from classwise.auditing.run.result import Audit
from classwise.core.errors import ClasswiseError, IncompleteError
from classwise.core.files.json_values import json_text
from classwise.core.files.reading import open_regular, read_bytes
from classwise.core.files.schema import SCHEMA_VERSIONS, check_schema_version
from classwise.core.files.storage import read_json, write_bytes, write_text
from classwise.core.settings import limits
from classwise.core.settings.arguments import checked
from classwise.core.settings.code_identity import compared_here
from classwise.core.version import __version__
from classwise.reporting.evidence.facts import EvidenceFacts, evidence_facts
from classwise.reporting.evidence.page import evidence_page
from classwise.reporting.exports.builds import Status

PAGE, FACTS, POLICY, MANIFEST = "evidence.html", "evidence.json", "policy.yaml", "manifest.json"
"""The files of an evidence report."""


class ManifestAudit(TypedDict):
    """An audit in ``manifest.json``: its folder, relative to the report, and the SHA-256 of its files."""

    folder: str
    files: dict[str, str]


class Manifest(TypedDict):
    """The content of ``manifest.json``."""

    schema_version: int
    files: dict[str, str]
    audits: Annotated[list[ManifestAudit], pydantic.Field(min_length=1)]


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
    def verdict(self) -> Status:
        """``failed`` if a criterion failed in an audit, else ``undecided`` if one is, else ``passed``."""
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
) -> Evidence:
    """Write an evidence report on audits: a page, a JSON file, the policy, and a manifest of SHA-256 digests.

    Args:
        audits: folders of audits, or of runs with one audit each; one or several.
        policy: the YAML file of a `classwise.auditing.criteria.policy.Policy`.
        out: a new folder.

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
        ... data: {source: scikit-learn, licence: CC BY 4.0, sampling: all images}
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
    given = [audits] if isinstance(audits, str | os.PathLike) else [*audits]
    folder, file = Path(out), Path(policy)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ClasswiseError(f"{folder} is not empty; give a new folder")
    if not given:
        raise ClasswiseError("audits is empty; give at least one folder of an audit")
    loaded = [_load(Path(path)) for path in given]
    facts = evidence_facts(loaded, _policy_for(loaded, file))
    write_bytes(folder / POLICY, read_bytes(file, limits.RECIPE_BYTES))
    write_text(folder / FACTS, _text(facts))
    write_text(folder / PAGE, evidence_page(facts))
    manifest: Manifest = {
        "schema_version": SCHEMA_VERSIONS["evidence"],
        "files": {name: _digest(folder / name) for name in (PAGE, FACTS, POLICY)},
        "audits": [
            {"folder": Path(os.path.relpath(place, folder)).as_posix(), "files": _files(place)}
            for place in (audit.path for audit in loaded)
            if place is not None
        ],
    }
    write_text(folder / MANIFEST, _text(manifest))
    return Evidence(folder, facts)


@checked
def verify(folder: str | os.PathLike[str], audits: Sequence[str | os.PathLike[str]] = ()) -> list[str]:
    """Compare an evidence report with its manifest and with what its audits and policy give.

    Args:
        folder: the folder of the report.
        audits: the audits, in the order of the report; none: those in the places that the manifest names.

    Returns:
        A line for each difference; empty if there is none.

    Raises:
        IncompleteError: if an audit is not found, and nothing else differs.
        ClasswiseError: if there is no manifest, it is damaged, or it has another number of audits.
    """
    place = Path(folder)
    manifest = _manifest(place / MANIFEST)
    recorded = manifest["audits"]
    if audits and len(audits) != len(recorded):
        raise ClasswiseError(f"{place} is on {len(recorded)} audits, and {len(audits)} are given; give all, in order")
    found = [*_differing(place, {**dict.fromkeys((PAGE, FACTS, POLICY), ""), **manifest["files"]})]
    paths = [Path(path) for path in audits] or [place / about["folder"] for about in recorded]
    if missing := [str(path) for path in paths if not path.is_dir()]:
        if found:
            return found
        raise IncompleteError(
            f"the files match their digests, but the audit {missing[0]} is not found; give its folder"
        )
    for path, about in zip(paths, recorded, strict=True):
        found += _differing(audit_in(path), {**dict.fromkeys(_files(audit_in(path)), ""), **about["files"]})
    return found or [*_recomputed(place, paths)]


def code_notes(folder: str | os.PathLike[str]) -> list[str]:
    """What can be said about the user's code of the audits of a report: whether its files here are the recorded ones.

    Args:
        folder: the folder of the report.

    Raises:
        ClasswiseError: if the report is missing or damaged.
    """
    notes = []
    for audit in read_json(Path(folder) / FACTS, kind=_OfAudits)["audits"]:
        if (code := audit.get("code")) is None:
            notes.append(f"{audit['name']}: the code of the model and of the attacks is not recorded")
        else:
            notes += [f"{audit['name']}: {phrase}" for phrase in compared_here(code)]
    return notes


class _OfAudit(TypedDict):
    name: str
    code: NotRequired[dict[str, dict[str, str]]]


class _OfAudits(TypedDict):
    audits: list[_OfAudit]


def _manifest(file: Path) -> Manifest:
    if not file.exists():
        raise ClasswiseError(f"there is no {file}; give the folder of an evidence report")
    version = read_json(file, kind=_Versioned)["schema_version"]
    check_schema_version(version, SCHEMA_VERSIONS["evidence"], str(file.parent))
    return read_json(file, kind=Manifest)


def _recomputed(place: Path, paths: Sequence[Path]) -> Iterator[str]:
    """A line for each difference to a report that is computed again."""
    try:
        text, page = read_bytes(place / FACTS), read_bytes(place / PAGE)
        stored = read_json(place / FACTS)
        loaded = [_load(path) for path in paths]
        facts: dict[str, Any] = dict(evidence_facts(loaded, _policy_for(loaded, place / POLICY)))
    except ClasswiseError as error:
        yield f"cannot be computed again: {error}"
        return
    version = str(stored.get("classwise"))
    facts["classwise"] = version
    other = "" if version == __version__ else f"; it is of classwise {version}, and this is {__version__}"
    if text != _text(facts).encode():
        differ = [key for key in {**facts, **stored} if _entry(facts, key) != _entry(stored, key)]
        for key in differ:
            yield f"{FACTS}: {key} differs from what the audits and the policy give{other}"
        if not differ:
            yield f"{FACTS} has the values that the audits and the policy give, but other bytes{other}"
    if page != evidence_page(cast("EvidenceFacts", facts)).encode():
        yield f"{PAGE} differs from the page that the audits and the policy give{other}"


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
    files = [audit / ABOUT, *outcome_files.listed(audit / "outcomes")]
    return {file.relative_to(audit).as_posix(): _digest(file) for file in files}


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
