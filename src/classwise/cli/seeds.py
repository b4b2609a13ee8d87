"""``classwise audit`` of a folder of seed runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.builds import NOT_AS_REQUIRED, lacking_now
from classwise.cli.exit_status import ExitStatus
from classwise.cli.options import page_in
from classwise.cli.tables import audit_facts
from classwise.core.errors import ClasswiseError, IncompleteError, printable, quoted

if TYPE_CHECKING:
    from classwise.auditing.criteria.policy import Policy
    from classwise.auditing.criteria.thresholds import Threshold
    from classwise.cli.inputs import ModelSource
    from classwise.data.stream import Stream


def refuse_for_seeds(model: ModelSource, **given: object) -> None:
    """Refuse options that apply to a single model.

    Raises:
        ClasswiseError: naming the first such option that was given.
    """
    of_model = {name: getattr(model, name) for name in ("weights", "width", "mean", "std", "model_set")}
    outputs = "" if model.outputs == "auto" else model.outputs
    for name, value in (of_model | {"outputs": outputs} | given).items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise ClasswiseError(
                f"{option} applies to one model, and {model.model} contains a run per seed; name one of the runs"
            )


def audit_all_seeds(
    runs: list[cw.Run],
    images: cw.Images | Stream,
    threat: cw.Threat | None,
    attacks: list[str] | None,
    thresholds: Mapping[str, Threshold],
    policy: Policy | None,
    settings: Mapping[str, Any],
    *,
    json: bool,
) -> None:
    """Audit every run, write a page for each, and print a row per seed and the mean over the seeds.

    Raises:
        IncompleteError: if no condition holds for any seed, but one depends on verdicts that are missing, or an audit
            lacks something of the policy.
        typer.Exit: with 1 if a condition, or a criterion of the policy, holds for any seed.
    """
    from classwise.core.compute.distributed import process_group
    from classwise.reporting.facts.condition_text import decision_text, result_text

    folder = runs[0].path.parent
    with process_group() as processes:
        with console.progress() as listener:
            audits = cw.audit_seeds(folder, images, threat, attacks, progress=listener, **settings)
        if not processes.is_main:
            return
    by_seed = {run.recipe.seed: run for run in runs}
    for seed, audit in audits.items():
        assert audit.path is not None
        cw.report(audit, page_in(audit.path, audit.group), run=by_seed[seed])
    whole = {seed: audit for seed, audit in audits.items() if audit.complete}
    decided = {
        text: {seed: threshold.decide(audit) for seed, audit in audits.items()}
        for text, threshold in thresholds.items()
    }
    held = {text: [seed for seed, holds in decisions.items() if holds] for text, decisions in decided.items()}
    undecided = {text: [seed for seed in by_seed if decisions.get(seed) is None] for text, decisions in decided.items()}
    lacks = {seed: lacking_now(audit, policy) for seed, audit in audits.items()}
    withheld = policy.fail_if if policy is not None and any(lacks.values()) else ()
    with console.status_decided(decided=bool(thresholds)):
        if json:
            required = {} if policy is None else {"not_as_required": lacks}
            facts = _facts(folder, whole, held, len(runs))
            results = {
                text: bool(seeds) or (None if undecided[text] or text in withheld else False)
                for text, seeds in held.items()
            }
            console.show_json(facts | {"fail_if": results} | required)
        else:
            _show(folder, whole, len(runs))
            for text in thresholds:
                if text not in withheld and not held[text] and not undecided[text]:
                    console.echo(f"passed: {decision_text(text, fails=False)} for every seed")
    for text, seeds in held.items():
        if seeds:
            console.echo(f"failed: {decision_text(text, fails=True)} (seeds {', '.join(map(str, seeds))})", err=True)
        for seed in seeds:
            console.echo(f"  seed {seed}: {result_text(audits[seed], thresholds[text])}", err=True)
    for seed, lines in lacks.items():
        for line in lines:
            console.print_error(printable(f"not as required, seed {seed}: {line}"))
    for text, seeds in undecided.items():
        if seeds and not held[text]:
            console.print_error(printable(f"undecided: {text} (seeds {', '.join(map(str, seeds))})"))
    if any(held.values()):
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    missing = {*itertools.chain(*undecided.values())} if thresholds else by_seed.keys() - whole.keys()
    lacking = [str(seed) for seed in by_seed if seed in missing]
    if lacking:
        raise IncompleteError(
            f"the audits of these seeds are incomplete: {', '.join(lacking)}; continue them with --resume"
        )
    if any(lacks.values()):
        raise IncompleteError(NOT_AS_REQUIRED)


def _show(folder: Path, audits: Mapping[int, cw.Audit], total: int) -> None:
    """A row for each seed, and the mean of all with the interval over seeds and images."""
    from classwise.auditing.compare.comparison import population
    from classwise.reporting import formatting
    from classwise.reporting.facts.audit_summary import shown_warnings
    from classwise.reporting.facts.provenance import weights_name
    from classwise.reporting.facts.sentences import caveats
    from classwise.reporting.text.comparison import heads, method_row, optional_heads

    if not audits:
        return
    name = folder.name
    group = next(iter(audits.values())).group
    each = cw.Comparison({f"seed {seed}": (audit,) for seed, audit in audits.items()}, group=group)
    rows = [method_row(label, row) for label, row in each.table.iterrows()]
    if len(audits) > 1:
        mean = cw.Comparison({name: tuple(audits.values())}, group=group).table.iloc[0]
        rows.append(method_row(f"mean of {len(audits)} seeds", mean))
    columns, cells = ("seed", *heads(each.alpha, group)[2:]), [(row[0], *row[2:]) for row in rows]
    console.show(columns, cells, f"{name}: accuracy in percent under all", optional=optional_heads())
    name_of_interval = formatting.lowest_interval_name(each.alpha, group)
    equal = any(len(names) > 1 for names in each.lowest_classes.values())
    first = f"; of equally low {formatting.plural(group)} the first" if equal else ""
    console.echo(f"intervals per seed: new images, fixed model; beside worst, the {name_of_interval}{first}")
    if len(audits) > 1:
        row = formatting.singular(group)
        lowest = f"worst is the mean of each seed's lowest {row}; worst {row} is that of the lowest mean"
        console.echo(f"mean over seeds: {population({name: len(audits)})}; {lowest}")
    for seed, audit in audits.items():
        for warning in shown_warnings(audit, group):
            console.echo(f"warning, seed {seed} ({warning.name}): {warning.sentence}")
        for caveat in caveats(audit):
            console.echo(f"seed {seed}: {caveat}")
    for seed, audit in audits.items():
        if weights := weights_name(audit.environment):
            console.echo(f"weights, seed {seed}: {weights}")
    for audit in audits.values():
        console.echo(f"audit: {audit.path}")
    if len(audits) == total > 1:
        console.echo(f"next: classwise compare {quoted(folder)} OTHER")


def _facts(folder: Path, audits: Mapping[int, cw.Audit], held: Mapping[str, list[int]], total: int) -> dict[str, Any]:
    from classwise.auditing.compare.comparison import population

    seeds = {str(seed): audit_facts(audit) | {"folder": str(audit.path)} for seed, audit in audits.items()}
    facts: dict[str, Any] = {"folder": str(folder), "complete": len(audits) == total, "seeds": seeds}
    if len(audits) > 1:
        comparison = cw.Comparison({folder.name: tuple(audits.values())}, group=next(iter(audits.values())).group)
        facts |= {"mean": comparison.table.iloc[0].to_dict(), "population": population({folder.name: len(audits)})}
    return facts | {"fail_if_seeds": held}
