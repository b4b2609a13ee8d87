"""``classwise audit``."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import classwise as cw
from classwise.auditing.evaluation.evaluation import FLAGS, Evaluation
from classwise.cli import console
from classwise.cli.builds import NOT_AS_REQUIRED, BuildOptions, lacking_now
from classwise.cli.cluster import ClusterOptions
from classwise.cli.evaluation import Flags, flags
from classwise.cli.exit_status import ExitStatus
from classwise.cli.help import RECORDS, HelpAll
from classwise.cli.inputs import DataSource, ModelSource
from classwise.cli.options import (
    Estimate,
    Json,
    Page,
    RatesName,
    Resume,
    grouped,
    measured_rates,
    new_file,
    out_option,
    page_in,
    printing_beside,
)
from classwise.cli.seeds import audit_all_seeds, refuse_for_seeds
from classwise.cli.sharding import ShardOptions, options_of, run_tasks
from classwise.cli.tables import audit_facts
from classwise.cli.trackers import TrackerOptions
from classwise.core.errors import ClasswiseError, IncompleteError, printable
from classwise.reporting.formatting import bare_percent

if TYPE_CHECKING:
    from torch import nn

    from classwise.auditing.criteria.policy import Policy
    from classwise.auditing.criteria.thresholds import Threshold
    from classwise.core.compute.rates import Rates
    from classwise.data.stream import Stream


@grouped
def audit(
    model: ModelSource,
    data: DataSource,
    asked: Annotated[
        Flags,
        flags(
            *FLAGS,
            threat="that of the policy, the run or the data set",
            attacks="those of the policy, or the suite of the threat",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        out_option("The audit's folder.", "RUN/audits/DATA-SPLIT[-WEIGHTS]; without a run audits/MODEL-DATA-SPLIT"),
    ] = None,
    html: Page = None,
    json: Json = False,
    build: BuildOptions,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="DIR",
            help="In place of --out: load the same audit from this folder, or save it there ($CLASSWISE_CACHE).",
            rich_help_panel=RECORDS,
        ),
    ] = None,
    resume: Resume = False,
    estimate: Estimate = False,
    rates: RatesName = None,
    trackers: TrackerOptions,
    sharding: ShardOptions,
    cluster: ClusterOptions,
    help_all: HelpAll = False,
) -> None:
    """Report robust accuracy per class under attack.

    MODEL may also be a folder of the runs of several seeds.

    \b
    Examples:
        classwise audit runs/cfa
        classwise audit resnet18 --weights model.pt --data photos/ \\
            --threat Linf:4/255 --html page.html
        classwise audit mypackage.nets:build --weights w.pt --data cifar10
        classwise audit runs/cfa --fail-if 'cat(all) < 0.1' \\
            --junit audit.xml --sarif audit.sarif
        classwise audit runs/cfa --attack autoattack --settle 0.5  # estimate
        classwise audit runs/cfa --policy policy.yaml  # decides its criteria
        classwise audit runs/cfa-seeds --resume     # every run of a folder
        torchrun --nproc-per-node 4 -m classwise audit runs/cfa --device cuda
        classwise audit runs/cfa --attack autoattack --shards 40 --on slurm
    """  # noqa: D301  # \b keeps the lines of the example apart
    del help_all  # printed before the command starts
    from classwise.auditing.run.audit_cache import environment_cache
    from classwise.auditing.run.inputs import group_name
    from classwise.auditing.run.merging import is_finished
    from classwise.core.compute.distributed import launched, local_device

    # Options are validated before the model and the images are loaded.
    policy = _policy(asked)
    thresholds = _thresholds(asked, build, policy)
    options, seeds = asked.options, model.seed_runs()
    page, measured = new_file(html, "--html", json=json), measured_rates(rates, estimate=estimate)
    of_whole = {**vars(trackers), "junit": build.junit, "sarif": build.sarif, "html": html, "estimate": estimate}
    sharding.check(cluster, str(options["device"]), **of_whole, fail_if=build.conditions)
    _check_cache(cache, out, sharding)
    if seeds:
        refuse_for_seeds(model, **of_whole, settle=options["settle"], cache=cache, **vars(sharding))
    run = seeds[0] if seeds else model.run(needed=data.data is None)
    threat = asked.threat_of(run if policy is None else None)
    with launched() as processes, contextlib.ExitStack() as stack:
        device = sharding.device(cluster, local_device(str(options["device"])), options)
        options = {**options, "device": device}
        images = data.open(run, options["seed"])
        if known := _groups(images, group := group_name(options["group"])):
            count = images.class_counts().numpy() if group is None and isinstance(images, cw.Images) else None
            for threshold in thresholds.values():
                threshold.check_group(known, count)
        if seeds:
            place = {"name": f"{images.name}-{images.split}", "out": out, "resume": resume}
            audit_all_seeds(seeds, images, threat, asked.suite, thresholds, policy, {**options, **place}, json=json)
            return
        network = model.load(images, device)
        if estimate:
            if processes.is_main:
                conditions = _decidable(thresholds, options, images)
                _estimate(network, images, threat, asked.suite, options, measured, conditions, json)
            return
        # Before the attacks, so that a missing package or server is found.
        logger = stack.enter_context(trackers.logging()) if processes.is_main else None
        folder = _place(model, run, images, out, sharding)
        named, suite_name = page_in(folder, group), None
        settings = {**options, **sharding.arguments, "out": folder, "resume": resume}
        if cluster.on is None:
            from classwise.models.loading.loader import normalization_layer

            cached = None if out is not None or sharding.arguments else cache or environment_cache()
            with console.resumable("continue with --resume", saved=resume), console.progress() as listener:
                result = cw.audit(network, images, threat, asked.suite, progress=listener, cache=cached, **settings)
                if (scale := model.scale) and (isinstance(network, str) or normalization_layer(network) is None):
                    listener.log(scale)
            if cached is not None and result.path is not None:  # whose folder has a hash as its name
                folder, named = result.path, page_in(result.path, group)
                suite_name = result.outcomes.meta.model
        else:
            given = {**vars(model), **vars(data), **vars(asked)}
            result = _run_shards(network, images, threat, asked.suite, settings, given, sharding, cluster)
        if sharding.shard is not None:
            if processes.is_main:
                sharding.conclude(folder, len(result.outcomes), finished=is_finished(folder), json=json)
            return
        page = page or named
        if processes.is_main:  # before a process exits, since torchrun then stops the others
            lacks = lacking_now(result, policy)
            saved = console.resumable(f"the audit is saved in {result.path}; continue with --resume", saved=True)
            with saved, console.status_decided(decided=bool(thresholds)), printing_beside(page):
                cw.report(result, page, run=run)
            build.write(result, thresholds, page, policy, lacks, name=suite_name)
            if logger is not None:
                from classwise.reporting.tracking import log_audit

                log_audit(result, logger, page)
    if processes.is_main:
        _conclude(result, thresholds, policy, lacks, folder, page, json=json)


def _policy(asked: Flags) -> Policy | None:
    """The policy of ``--policy``.

    Raises:
        ClasswiseError: as `Policy.read`.
    """
    from classwise.auditing.criteria.policy import Policy

    file = asked.options["policy"]
    return None if file is None else Policy.read(file)


def _thresholds(asked: Flags, build: BuildOptions, policy: Policy | None) -> dict[str, Threshold]:
    """The conditions and the criteria of the policy, whose attacks must be among those asked for.

    Raises:
        ClasswiseError: if a condition or an attack is invalid.
    """
    from classwise.auditing.run.requirements import asked_by
    from classwise.auditing.run.suite import norm_of, parse_attacks

    threat, attacks, _ = asked_by(asked.options, asked.threat_of(None), asked.suite)
    return build.thresholds(parse_attacks(attacks, norm_of(threat)), policy)


def _groups(images: cw.Images | Stream, group: str | None) -> tuple[str, ...]:
    """Names of the classes, or of the groups; empty if they are known only with the model."""
    if group is None:
        return images.class_names or ()
    if group == "superclass":
        return images.superclass_names
    return images.columns[group].names if isinstance(images, cw.Images) and group in images.columns else ()


def _check_cache(cache: Path | None, out: Path | None, sharding: ShardOptions) -> None:
    """Refuse a cache beside another place for the audit.

    Raises:
        ClasswiseError: naming the other option.
    """
    if cache is not None and (out is not None or sharding.arguments):
        other = "--shards or --shard" if out is None else "--out"
        raise ClasswiseError(f"--cache does not apply with {other}; omit one of them")


def _place(
    model: ModelSource, run: cw.Run | None, images: cw.Images | Stream, out: Path | None, sharding: ShardOptions
) -> Path:
    """The folder of an audit, or of its shard."""
    name = "-".join(filter(None, (images.name, images.split)))
    return out or sharding.place(model.folder(run, "audits", name))


def _run_shards(
    network: nn.Module | str,
    images: cw.Images | Stream,
    threat: cw.Threat | None,
    attacks: list[str] | None,
    settings: dict[str, Any],
    given: dict[str, Any],
    sharding: ShardOptions,
    cluster: ClusterOptions,
) -> cw.Audit:
    """Run the shards of an audit and their merge as tasks, with the options ``given``."""
    from classwise.auditing.run.audit import claim_for_shards
    from classwise.auditing.run.claim import finished_audit
    from classwise.auditing.run.merging import is_finished

    folder = settings["out"]
    plan = claim_for_shards(network, images, threat, attacks, **settings | {"max_time": None})
    finished = finished_audit(folder, plan) if settings["resume"] else None
    if finished is None:
        shared = {name: value for name, value in given.items() if name != "max_time"} | options_of(plan)
        of_shards = {name: given[name] for name in ("max_time",) if given[name] is not None}
        run_tasks("audit", shared, folder, sharding, cluster, is_finished, of_shards)
    return finished or cw.Audit.load(folder)


def _conclude(
    result: cw.Audit,
    thresholds: dict[str, Threshold],
    policy: Policy | None,
    lacks: list[str],
    folder: Path,
    page: Path,
    *,
    json: bool,
) -> None:
    """Print an audit and exit with the status of its conditions and of the criteria of its policy.

    Raises:
        IncompleteError: if no condition is true, but one is undecided, images are not evaluated, or the audit lacks
            something of its policy.
        typer.Exit: with 1 if a condition is true.
    """
    from classwise.reporting.facts.condition_text import decision_text, result_text

    criteria = () if policy is None else policy.fail_if
    held = {text: threshold.decide(result) for text, threshold in thresholds.items()}
    failed = [text for text, holds in held.items() if holds]
    undecided = [text for text, holds in held.items() if holds is None]
    if lacks:  # then no criterion is passed
        held |= {text: held[text] or None for text in criteria}
    with console.status_decided(decided=bool(thresholds)), printing_beside(page):
        if json:
            facts = audit_facts(result) | {"folder": str(folder), "page": str(page)}
            required = {} if policy is None else {"not_as_required": lacks}
            console.show_json(facts | {"fail_if": held} | required)
        else:
            console.show_result(result)
            console.echo(f"audit: {folder}")
            console.echo(f"page: {page}")
            for text in (text for text, holds in held.items() if holds is False):
                passed = f"passed: {decision_text(text, fails=False)}"
                console.echo(printable(f"{passed}: {result_text(result, thresholds[text])}"))
    for text in failed:
        line = f"failed: {decision_text(text, fails=True)}: {result_text(result, thresholds[text])}"
        console.print_error(printable(line))
    for line in lacks:
        console.print_error(printable(f"not as required: {line}"))
    for text in undecided:
        console.print_error(printable(f"undecided: {text}"))
    if failed:
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    if undecided or not (held or result.finished):
        how = result.outcomes.meta.completion if result.finished else "--resume"
        raise IncompleteError(f"{result.outcomes.gap}; repeat the command with {how} to continue")
    if lacks:
        raise IncompleteError(NOT_AS_REQUIRED)


_LEAST = {
    True: "least: the correctly classified images are misclassified after one step, and no others are attacked",
    False: "least: all images are misclassified at the first start of an attack",
}
"""What the lower ends of an estimate assume, by ``--early-stop``."""


def _estimate(
    network: nn.Module | str,
    images: cw.Images | Stream,
    threat: cw.Threat | None,
    attacks: list[str] | None,
    options: Evaluation,
    rates: Rates | None,
    conditions: dict[str, str],
    json: bool,
) -> None:
    from classwise.auditing.run.cost import estimate

    cost = estimate(network, images, threat, attacks, rates=rates, **options)
    device = str(rates or options["device"])
    if json:
        console.show_json(dataclasses.asdict(cost) | {"device": device, "conditions": conditions})
        return
    sample = "" if cost.evaluated == cost.images else "a sample of "
    right = f"{cost.correct:,} of {sample}{cost.evaluated:,} ({bare_percent(cost.correct / cost.evaluated)} %)"
    console.echo(f"{cost.images:,} images; {right} are correctly classified without attack")
    forwards, backwards = f"{cost.forwards_low:,} to {cost.forwards:,}", f"{cost.backwards_low:,} to {cost.backwards:,}"
    console.echo(f"passes in total, of one image each: {forwards} forward, {backwards} backward")
    low, high, guards = (
        console.duration(60 * minutes) for minutes in (cost.minutes_low, cost.minutes, cost.guard_minutes)
    )
    console.echo(f"time on {device}: {low} to {high}; the guards take up to {guards} more")
    console.echo(f"{_LEAST[options['early_stop']]}; most: they are robust to all attacks")
    if cost.minutes_expected is not None:
        numbers = f"{cost.forwards_expected:,} forward, {cost.backwards_expected:,} backward passes"
        console.echo(f"expected, as of a sample: {numbers}, {console.duration(60 * cost.minutes_expected)}")
    for text, about in conditions.items():
        console.echo(f"{text}: {about}")
    if cost.note:
        console.echo(f"warning: {cost.note}", err=True)


def _decidable(thresholds: dict[str, Threshold], options: Evaluation, images: cw.Images | Stream) -> dict[str, str]:
    """Whether so many images can decide the conditions and the criteria of the policy, by text, where it is known."""
    from classwise.reporting.facts.condition_size import size_before

    if options["group"] is not None or not isinstance(images, cw.Images):
        return {}
    count, names = images.class_counts().numpy(), images.class_names
    about = {text: size_before(threshold, count, names) for text, threshold in thresholds.items()}
    return {text: sentence for text, sentence in about.items() if sentence}
