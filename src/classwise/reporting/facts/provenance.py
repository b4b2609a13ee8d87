"""Settings of an audit as a list of names and texts, sufficient to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classwise.auditing.compare.comparability import members_of
from classwise.auditing.evaluation.evaluation import STORED
from classwise.auditing.guards.report import GuardReport
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import ALL, CLEAN
from classwise.auditing.run.result import Audit
from classwise.auditing.training_run import run_of
from classwise.core.settings.code_identity import STRUCTURE, CodeRecord
from classwise.core.settings.config import spec_text
from classwise.reporting import formatting

if TYPE_CHECKING:
    from classwise.training.folder import Run

EARLY_STOP: Mapping[bool, str] = {
    True: "yes: an attack stops at its first success, verified in float32",
    False: "no: an attack runs all steps and returns its last iterate",
}
"""Description of the values of `Meta.early_stop`."""
GRID = "8-bit: adversarial images are rounded to multiples of 1/255 in the ball before success is decided"
"""Description of `Meta.grid`."""


def attack_settings(meta: Meta) -> list[tuple[str, str]]:
    """Attacks with their settings; attacks that are not applicable to the model are marked."""
    note = dict.fromkeys(meta.not_applicable, " (not applicable: the model has no gradient)")
    return [(f"Attack {label}", spec_text(spec) + note.get(label, "")) for label, spec in meta.attacks.items() if spec]


def search_settings(
    meta: Meta,
    environment: Mapping[str, Any],
    *,
    before: Sequence[tuple[str, str]] = (),
    between: Sequence[tuple[str, str]] = (),
    after: Sequence[tuple[str, str]] = (),
) -> list[tuple[str, str]]:
    """Known settings of a curve or a search: its own ones come before, between and after those of its attacks."""
    items = [
        ("Data", formatting.data_name(meta.data, meta.split)),
        ("Data SHA-256", meta.data_hash),
        ("Model", meta.model),
        ("Model SHA-256", meta.model_hash),
        *code_settings(meta.code),
        *before,
        *attack_settings(meta),
        *between,
        ("Seed", str(meta.seed)),
        ("Precision", flat(meta.precision)),
        ("Batch size", str(meta.batch_size)),
        *after,
        *environment_settings(environment),
    ]
    return [(name, text) for name, text in items if text]


def code_settings(code: CodeRecord | None) -> list[tuple[str, str]]:
    """The SHA-256 of the printed structure of a model, and of the files of the user's code, by object."""
    rows = []
    for name, digests in (code or {}).items():
        files = [f"{module} {digest}" for module, digest in digests.items() if module != STRUCTURE]
        rows.append(("Model structure SHA-256", digests.get(STRUCTURE, "")))
        rows.append((f"Code of {name}, SHA-256", "; ".join(files)))
    return [(name, text) for name, text in rows if text]


_IN_WORDS = {"early_stop", "cascade", "settle", "repeats", "repeat_rule", "grid", "seed", "precision", "batch_size"}
"""The settings with a text of their own; the policy is in the evidence."""


def _other_settings(meta: Meta) -> Iterator[tuple[str, str]]:
    """The other settings that are not the defaults."""
    for name, value in meta.settings.items():
        if name not in (*_IN_WORDS, "policy") and value != STORED[name].default:
            yield STORED[name].words.capitalize(), STORED[name].shown(value)


def settings_of(audit: Audit, run: Run | None = None) -> list[tuple[str, str]]:
    """Known settings of an audit: data, model, threat, attacks, evaluation rules, seed, precision, hashes, machine.

    Args:
        audit: the audit.
        run: the training run of the model; by default the run whose folder contains the audit. Of its record, entries
            that differ from those of the audit are added.
    """
    meta = audit.outcomes.meta
    known = [
        ("Data", _data(meta, len(audit.outcomes))),
        ("Data SHA-256", meta.data_hash),
        ("Model", meta.model),
        ("Model SHA-256", meta.model_hash),
        *code_settings(meta.code),
        ("Threat", meta.threat or ""),
        *attack_settings(meta),
        ("Early stop", "" if meta.early_stop is None else EARLY_STOP[meta.early_stop]),
        (
            "Cascade",
            "yes: each attack runs only on the images that survive all earlier ones, so counts are cumulative"
            if meta.cascade
            else "",
        ),
        ("Repeats", "" if meta.repeats == 1 else f"an image is correct if {meta.decided_by} are correct"),
        ("Grid", "" if meta.grid is None else GRID),
        ("Seed", "" if meta.seed is None else str(meta.seed)),
        ("Precision", flat(meta.precision)),
        ("Batch size", "" if meta.batch_size is None else str(meta.batch_size)),
        *_other_settings(meta),
        ("Guards", "" if audit.guards is None else _guards(audit.guards)),
        ("Notes", "; ".join(meta.notes)),
        *environment_settings(audit.environment),
        *_training_settings(audit, run or run_of(audit)),
    ]
    imported = ("Predictions", "imported, not computed by classwise") if not meta.model_hash else ("", "")
    return [(name, text) for name, text in (*known, imported) if text]


def weights_name(environment: Mapping[str, Any]) -> str:
    """The weights of a result: a name of a run's weights, or of a file, and the epoch; empty if they are not known.

    Example:
        >>> weights_name({"weights_file": "runs/cfa/checkpoints/best-average.safetensors", "weights_epoch": 15})
        'best-average, epoch 15'
        >>> weights_name({"weights_file": "models/model.pt"})
        'model.pt'
    """
    file, epoch = environment.get("weights_file"), environment.get("weights_epoch")
    if not isinstance(file, str):
        return ""
    path = Path(file)
    name = path.stem if path.parent.name == "checkpoints" else path.name
    return name if epoch is None else f"{name}, epoch {epoch}"


def with_weights(model: str, environment: Mapping[str, Any]) -> str:
    """The name of a model with its weights if they are known: ``runs/cfa, weights best-average, epoch 15``."""
    weights = weights_name(environment)
    return f"{model}, weights {weights}" if weights else model


def environment_settings(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The record of the runs of a result: command, model, versions, machine, duration."""
    return [(_title(key), flat(value)) for key, value in environment.items()]


def _training_settings(audit: Audit, run: Run | None) -> list[tuple[str, str]]:
    """The record of a training where it differs from that of an audit of its model."""
    if run is None or not run.environment_file.is_file():
        return []
    shown = run.environment.keys() - {"schema_version", "data", "code"}
    record = {key: value for key, value in run.environment.items() if key in shown}
    differing = {key: value for key, value in record.items() if value != audit.environment.get(key)}
    code = {name: digests for name, digests in run.environment.get("code", {}).items() if name != "model"}
    facts = [(_words(key), flat(value)) for key, value in differing.items()] + code_settings(code)
    return [(f"Training: {name}", text) for name, text in facts]


def flat(value: Any) -> str:
    """Format nested settings as one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {flat(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        between = "; " if any(isinstance(item, Mapping) for item in value) else ", "
        return f"({between.join(map(flat, value))})"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def conditions(audit: Audit, attack: str = ALL) -> str:
    """Data, threat and attacks of accuracies, a phrase each: what a table that is read alone must state.

    Args:
        audit: the audit.
        attack: under which its accuracies are; ``all``: also those under each attack.
    """
    meta = audit.outcomes.meta
    names = ", ".join(
        name for name in (audit.names if attack == ALL else members_of(meta, attack)) if name not in (CLEAN, ALL)
    )
    known = (
        _data(meta, len(audit.outcomes)),
        f"threat {meta.threat}" if meta.threat and attack != CLEAN else "",
        f"attacks {names}" if names else "no attack" if attack == CLEAN else "",
    )
    return "; ".join(filter(None, known))


def _data(meta: Meta, images: int) -> str:
    where = formatting.data_name(meta.data, meta.split)
    size = f"{formatting.count(images)} images, {len(meta.class_names)} classes"
    return f"{where}: {size}" if where else size


def _guards(report: GuardReport) -> str:
    """The mode of the guards, and the passes that they took."""
    if not report.passes:
        return report.mode
    images, passes = formatting.counted(report.images, "image"), formatting.count(report.passes)
    limit = "" if report.budget is None else f" of a budget of {formatting.count(report.budget)}"
    return f"{report.mode}: {images}, {passes} passes{limit}"


def _title(key: str) -> str:
    words = _words(key)
    return words if words.startswith("classwise") else words[:1].upper() + words[1:]


def _words(key: str) -> str:
    if key == "git":  # the name of earlier versions
        return "classwise commit"
    return key.replace("_", " ").replace("sha256", "SHA-256")
