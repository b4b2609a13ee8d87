"""The model card of an evidence report: Markdown with the metadata of the Hugging Face Hub, from the facts only.

The metadata are those of https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from classwise.auditing.outcomes.table import CLEAN
from classwise.reporting import formatting
from classwise.reporting.escape import markdown_text, visible
from classwise.reporting.evidence.facts import AuditFacts, ClassFacts, EvidenceFacts, Proportion
from classwise.reporting.evidence.page import VERDICTS, attacks_table, classes_table, supplement_table

TAGS = ("image-classification", "adversarial-robustness", "classwise")
LICENCES = re.compile(
    r"apache-2\.0|mit|isc|zlib|unlicense|wtfpl|afl-3\.0|artistic-2\.0|bsd(-[23]-clause)?|bsl-1\.0|cc0-1\.0|cc-by-[234]\.0|"
    r"cc-by-(nc|sa)-[34]\.0|cc-by-nd-4\.0|cc-by-nc-(nd|sa)-4\.0|ecl-2\.0|epl-[12]\.0|eupl-1\.[12]|[al]?gpl-3\.0|gpl-2\.0|"
    r"lgpl-2\.1|mpl-2\.0|ms-pl|ncsa|ofl-1\.1|openrail|osl-3\.0|postgresql|other|unknown"
)
"""Usual identifiers of licences on the Hub; another licence is ``other`` with its name."""
UNFINISHED = "Not all images are evaluated. The table has bounds, for all possible results on the others."
HUB_DATA: Mapping[str, str] = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "svhn": "ufldl-stanford/svhn",
}
"""Ids on the Hub of named data sets."""


def evidence_card(facts: EvidenceFacts) -> str:
    """Write the model card.

    Args:
        facts: the content of ``evidence.json``.

    Returns:
        YAML between lines ``---``, then Markdown. ``model-index`` has the accuracy of each class with and without
        attacks, a fraction, with its interval in ``args``. Those of a class are ``simultaneous``: they hold for all
        classes at once. Accuracies of an incomplete audit are not in it.
    """
    metadata = yaml.safe_dump(_visible(_metadata(facts)), sort_keys=False, allow_unicode=True, width=10**6)
    return f"---\n{metadata}---\n\n{_body(facts)}"


def _metadata(facts: EvidenceFacts) -> dict[str, Any]:
    results = [(audit["model"] or audit["name"], _result(audit)) for audit in facts["audits"]]
    return {
        **_licence(facts["policy"]["model"].get("licence")),
        "metrics": ["accuracy"],
        "tags": [*TAGS],
        "model-index": [{"name": name, "results": [result]} for name, result in results if result["metrics"]],
    }


def _licence(stated: str | None) -> dict[str, str]:
    """The licence of the model; ``unknown`` if the policy does not state it."""
    name = re.sub(r"[^a-z0-9.]+", "-", (stated or "unknown").lower()).strip("-.")
    if LICENCES.fullmatch(name):
        return {"license": name}
    return {"license": "other", **({"license_name": name} if name else {})}


def _result(audit: AuditFacts) -> dict[str, Any]:
    """The results of an audit, in the terms of ``model-index``."""
    names = [row["name"] for row in audit["attacks"] if row["applicable"] and row["name"] != CLEAN]
    attacked = f"under {', '.join(names) or 'no attack'} at {audit['threat'] or 'an unknown threat'}"
    rows = [audit["overall"], *audit["classes"]]
    metrics = [
        *(_metric(f"clean accuracy of {row['name']}", row, row["clean"], audit) for row in rows),
        *(_metric(f"robust accuracy of {row['name']} {attacked}", row, row["robust"], audit) for row in rows),
    ]
    name = audit["data"] or "images without a name"
    return {
        "task": {"type": "image-classification", "name": "Image classification"},
        "dataset": {
            "name": name,
            "type": HUB_DATA.get(name, re.sub(r"[^\w.-]+", "-", name).strip("-.") or "images"),
            **({"split": audit["split"]} if audit["split"] else {}),
            **({"args": {"sha256": audit["data_sha256"]}} if audit["data_sha256"] else {}),
        },
        "metrics": [metric for metric in metrics if metric is not None],
    }


def _metric(name: str, row: ClassFacts, found: Proportion, audit: AuditFacts) -> dict[str, Any] | None:
    """An accuracy with its interval; None without images, or if images are not judged."""
    if found["accuracy"] is None:
        return None
    of_class = {} if row is audit["overall"] else {audit["group"] or "class": row["name"], "simultaneous": True}
    interval = {"confidence": round(audit["confidence"], 6), "low": found["low"], "high": found["high"]}
    args = {**of_class, "n": found["n"], "correct": found["count"], **interval}
    return {"type": "accuracy", "value": found["accuracy"], "name": name, "args": args}


def _body(facts: EvidenceFacts) -> str:
    policy = facts["policy"]
    threat, model, data, validity = (policy[name] for name in ("threat_model", "model", "data", "validity"))
    uses = {"Intended use": policy["intended_use"], "Operating domain": policy["operating_domain"]}
    attacker = {
        **{name.capitalize(): threat[name] for name in ("goal", "knowledge", "capability", "radius")},
        "Why this radius": threat["why"],
    }
    valid = {"Valid until": validity["until"], "Test again if": "; ".join(validity["retest_if"])}
    about = {
        "Number": facts["number"],
        "Date": facts["date"],
        "Policy SHA-256": policy["digest"],
        "Written by": f"classwise {facts['classwise']}",
    }
    parts = [
        f"# {markdown_text(policy['title'])}",
        markdown_text(f"{VERDICTS[facts['verdict']]}. {facts['criteria_sentence']} {facts['meaning']}"),
        _pairs("Use", uses),
        _pairs("Model", _stated(model, "architecture", "size", "provenance", "licence")),
        _pairs("Data", _stated(data, "source", "licence", "sampling")),
        _pairs("Threat", attacker),
        *(_audit(audit) for audit in facts["audits"]),
        _listed("Limits", [*policy["limits"], *facts["not_excluded"]]),
        _pairs("Validity", valid),
        *(f"## Further result\n\n{supplement_table(found).markdown()}" for found in facts["supplements"]),
        _pairs("Report", about),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _audit(audit: AuditFacts) -> str:
    """The section on one audit."""
    name = audit["model"] or audit["name"]
    criteria = [f"{row['status']}: fails if {row['fails_if']}: {row['detail']}" for row in audit["criteria"]]
    where = {
        "Data": formatting.data_name(audit["data"], audit["split"]),
        "Threat": audit["threat"] or "",
        "Model SHA-256": audit["model_sha256"],
        "Data SHA-256": audit["data_sha256"],
    }
    parts = [
        _pairs(f"Robust accuracy of {name}", where),
        "" if audit["complete"] else UNFINISHED,
        _listed("Warnings and caveats", [*audit["warnings"], *audit["caveats"]], level=3),
        classes_table(audit).markdown(),
        attacks_table(audit).markdown(),
        _listed("Criteria", criteria, level=3),
        _listed("Not as the policy requires", audit["not_as_required"], level=3),
    ]
    return "\n\n".join(part.strip() for part in parts if part)


def _stated(statements: Mapping[str, str | None], *names: str) -> dict[str, str | None]:
    return {name.capitalize(): statements.get(name) for name in names}


def _pairs(title: str, pairs: Mapping[str, Any]) -> str:
    lines = [f"- {name}: {markdown_text(str(text))}" for name, text in pairs.items() if text]
    return "\n".join([f"## {markdown_text(title)}", "", *lines])


def _listed(title: str, texts: list[str], level: int = 2) -> str:
    """A list under a heading; nothing for no texts."""
    return "\n".join([f"{'#' * level} {title}", "", *(f"- {markdown_text(text)}" for text in texts)]) if texts else ""


def _visible(value: Any) -> Any:
    """The same value with control characters and line breaks of all texts replaced, as YAML of any reader accepts."""
    if isinstance(value, Mapping):
        return {key: _visible(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_visible(item) for item in value]
    return visible(value) if isinstance(value, str) else value
