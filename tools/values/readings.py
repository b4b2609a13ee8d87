"""Values of the public results: what they mean, not how they are stored.

Where a step of a redesign renames a column or an attribute, edit the reading here and leave the keys unchanged.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tools.values.plain import Readings

import classwise as cw
from classwise.auditing.run.sampling import TwoPhaseEstimator

NOT_RESULTS = frozenset({"seconds", "version", "schema_version", "environment", "folder", "page", "path", "text"})
"""Names of entries that depend on the time or the place, or are sentences."""


def outcomes(table: cw.Outcomes) -> dict[str, object]:
    """Every column of the outcomes of each attack, in the order of the images."""
    found: dict[str, object] = {}
    for attack, rows in table.frame.sort_values("index", kind="stable").groupby("attack", sort=False):
        columns = rows.drop(columns="attack").dropna(axis=1, how="all")
        arrays = {name: columns[name].to_numpy(dtype=object, na_value=float("nan")) for name in columns}
        found[str(attack)] = {"images": len(rows), "correct images": int(rows["correct"].sum()), **arrays}
    return found


def attacked(result: cw.Audit) -> dict[str, object]:
    """The outcomes of an audit, and the tensors that it saved."""
    kinds = [kind for kind in result.artifacts.kinds() if kind != "examples"]
    pairs = [(kind, name) for kind in kinds for name in result.attacks if (kind, name) != ("images", "clean")]
    return {"outcomes": result.outcomes, **{f"{kind} {name}": result.artifacts.get(kind, name) for kind, name in pairs}}


def audit(result: cw.Audit) -> dict[str, object]:
    """Outcomes, tables, intervals, worst classes, warnings of guards, traces and estimates of an audit."""
    table = result.by_class
    if result.complete:
        table = table[["n", *result.names, "all_low", "all_high"]]
    under = {
        name: {
            "intervals": result.intervals(name),
            "simultaneous": result.intervals(name, simultaneous=True),
            "worst class": result.worst_class(name),
            "confusion": result.confusion(name).to_numpy(),
        }
        for name in (result.names if result.complete else ())
    }
    guards = {name: getattr(result.guards, name, None) for name in ("mode", "images", "passes", "budget", "not_run")}
    return attacked(result) | {
        "complete": [result.complete, result.finished],
        "by_attack": result.by_attack.rename(columns={"overall_low": "low", "overall_high": "high"}),
        "by_class": table,
        "under": under,
        "warnings": {warning.name: warning.value for warning in result.warnings},
        "guards": guards | {"undecided": sorted(getattr(result.guards, "undecided", ()))},
        "trace": result.trace,
        "two_phase": two_phase(result.estimator) if isinstance(result.estimator, TwoPhaseEstimator) else None,
    }


def two_phase(result: TwoPhaseEstimator) -> dict[str, object]:
    """The estimates from a sample, and its design."""
    names = ("estimate", "worst", "possibly", "passes", "full_audit_passes")
    design = {name: getattr(result.sampling, name) for name in ("settle", "first", "second")}
    return design | {name: getattr(result, name) for name in names} | {"by_class": result.estimates}


def curve(result: cw.Curve) -> dict[str, object]:
    """The bracket of each image's radius, and the tables."""
    tables = {"summary": result.summary, "table": result.table().drop(columns="class")}
    return tables | {"images": result.frame, "weakest": result.weakest, "width": result.width}


def worst_class(result: cw.WorstClass) -> dict[str, object]:
    """The verdict, the table of classes, and the images of a search for the worst class."""
    names = ("verdict", "by_class", "images", "full_audit_passes", "rounds", "passes", "worst", "possibly")
    return {name: getattr(result, name) for name in names}


def comparison(result: cw.Comparison) -> dict[str, object]:
    """The table of the methods, and the differences of each pair; bounds if an audit is incomplete."""
    if not result.complete:
        return {"bounds": result.bounds, "judged by all": result.judged_by_all}
    pairs = {f"{pair.first} - {pair.second}": pair for pair in result.pairs}
    return {"table": result.table, "pairs": pairs, "counts": result.counts}


def run(result: cw.Run) -> dict[str, object]:
    """The history of a training, its events, and the weights that it saved."""
    epochs = result.epochs.set_index("class").drop(columns="label")
    history = {
        f"{split} {epoch}": rows.drop(columns=["epoch", "split"]).dropna(axis=1, how="all")
        for (split, epoch), rows in epochs.groupby(["split", "epoch"])
    }
    weights = {which: result.model(which) for which in result.saved_weights()}
    return {"history": history, "events": result.events, "weights": weights, "default": result.default_weights()}


def network(model: torch.nn.Module) -> dict[str, object]:
    """The weights and buffers of a network as one vector, its norm, and those of the first and last tensors."""
    tensors = [tensor.detach().double().flatten() for tensor in model.state_dict().values()]
    norms = [float(tensor.norm()) for tensor in tensors]
    return {"all": torch.cat(tensors), "norm": float(torch.cat(tensors).norm()), "norms": [*norms[:2], *norms[-2:]]}


def runs_below(folder: str) -> dict[str, object]:
    """Every training in a folder with its audits, by the name of its folder."""
    runs = [cw.Run.open(file.parent) for file in sorted(Path(folder).rglob("recipe.yaml"))]
    audits = {run.path.name: {path.name: cw.Audit.load(path) for path in sorted(run.audits.iterdir())} for run in runs}
    return {run.path.name: {"run": run, "audits": audits[run.path.name]} for run in runs}


READINGS: Readings = {
    cw.Audit: audit,
    cw.Board: lambda board: board.table.drop(columns=[name for name in board.table if str(name).endswith("sha256")]),
    cw.Comparison: comparison,
    cw.Curve: curve,
    cw.Outcomes: outcomes,
    cw.Run: run,
    cw.WorstClass: worst_class,
    torch.nn.Module: network,
}
"""How `tools.values.plain.flat` reads each public result."""
