"""``classwise audit``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

import classwise as cw
from classwise.cli import console
from classwise.cli.builds import BuildOptions
from classwise.cli.cluster import ClusterOptions
from classwise.cli.exit_status import ExitStatus
from classwise.cli.help import ATTACK, EVALUATION, RECORDS, HelpAll
from classwise.cli.inputs import AttackSelection, DataSource, ModelSource, threat_of
from classwise.cli.options import (
    Estimate,
    Group,
    Guards,
    Json,
    MaxTime,
    Page,
    Policy,
    RatesName,
    Resume,
    Threat,
    grouped,
    measured_rates,
    new_file,
    out_option,
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

    from classwise.auditing.criteria.thresholds import Threshold
    from classwise.core.compute.rates import Rates
    from classwise.data.stream import Stream


@dataclass(frozen=True)
class RowOptions:
    """Options that determine the rows of the outcomes table."""

    panel: ClassVar[str] = EVALUATION
    cascade: Annotated[
        bool | None,
        typer.Option(
            "--cascade/--no-cascade",
            help="Run each attack on the survivors of those before it.",
            show_default="on for autoattack and fast",
        ),
    ] = None
    early_stop: Annotated[
        bool,
        typer.Option(
            "--early-stop/--no-early-stop",
            help="Stop an attack at its first success, or run all steps (for confusion figures).",
        ),
    ] = True
    group: Group = None
    settle: Annotated[
        float | None,
        typer.Option(
            "--settle",
            metavar="POINTS",
            min=0,
            max=100,
            help="Estimate the accuracy under --attack autoattack: FAB and Square run on a random sample of the "
            "survivors, until the overall and the worst-class accuracy are known to this many points.",
            rich_help_panel=ATTACK,
        ),
    ] = None
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            metavar="PASSES",
            help="For models with random outputs: passes that decide whether an image is correct.",
        ),
    ] = 1
    repeat_rule: Annotated[
        str,
        typer.Option(
            "--repeat-rule",
            metavar="majority|all",
            help="An image is correct if more than half of the passes of --repeats are, or all.",
        ),
    ] = "majority"
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="8bit",
            help="Round adversarial images to multiples of 1/255 in the ball before success is decided, as stored "
            "images are.",
        ),
    ] = None
    save: Annotated[
        list[str] | None,
        typer.Option(
            "--save",
            metavar="logits|features|images",
            help="Tensors to save. May be repeated.",
            rich_help_panel=RECORDS,
        ),
    ] = None


@grouped
def audit(
    model: ModelSource,
    data: DataSource,
    attacks: AttackSelection,
    *,
    threat: Threat = None,
    rows: RowOptions,
    out: Annotated[Path | None, out_option("The audit's folder.", "RUN/audits/DATA-SPLIT")] = None,
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
    guards: Guards = "auto",
    policy: Policy = None,
    max_time: MaxTime = None,
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
        classwise audit runs/cfa --policy policy.yaml  # see evidence
        classwise audit runs/cfa-seeds --resume     # every run of a folder
        torchrun --nproc-per-node 4 -m classwise audit runs/cfa --device cuda
        classwise audit runs/cfa --attack autoattack --shards 40 --on slurm
    """  # noqa: D301  # \b keeps the lines of the example apart
    del help_all  # printed before the command starts
    from classwise.auditing.criteria import policy as policies
    from classwise.auditing.run.audit_cache import VARIABLE, cached_folder
    from classwise.auditing.run.merging import is_finished
    from classwise.auditing.run.suite import norm_of, parse_attacks
    from classwise.core.compute.distributed import launched, local_device
    from classwise.core.settings.arguments import check
    from classwise.reporting.tracking import log_audit

    # Options are validated before the model and the images are loaded.
    thresholds = build.thresholds(parse_attacks(attacks.suite, norm_of(threat_of(threat, None))))
    settings: dict[str, Any] = {
        "cascade": rows.cascade,
        "early_stop": rows.early_stop,
        "settle": rows.settle and rows.settle / 100,
        "repeats": rows.repeats,
        "repeat_rule": rows.repeat_rule,
        "grid": rows.grid,
        "guards": guards,
        "policy": policy,
        **attacks.settings,
    }
    limits = {
        "resume": resume,
        "save": tuple(rows.save or ()),
        "max_time": max_time and 60 * max_time,
        "group": rows.group,
    }
    check(cw.audit, settings | limits)
    if policy is not None:
        policies.Policy.read(policy)
    page = new_file(html, "--html", json=json)
    measured = measured_rates(rates, estimate=estimate)
    seeds = model.seed_runs()
    of_whole = {**vars(trackers), "junit": build.junit, "sarif": build.sarif, "html": html, "estimate": estimate}
    sharding.check(cluster, attacks.device, **of_whole, fail_if=build.fail_if)
    if cache is not None and (out is not None or sharding.arguments):
        other = "--shards or --shard" if out is None else "--out"
        raise ClasswiseError(f"--cache does not apply with {other}; omit one of them")
    if seeds:
        of_one = {**of_whole, "settle": rows.settle, "cache": cache}
        refuse_for_seeds(model, **of_one, shards=sharding.shards, shard=sharding.shard)
    run = seeds[0] if seeds else model.run(needed=data.data is None)
    ball = threat_of(threat, run)
    with launched() as processes:
        settings["device"] = sharding.device(cluster, local_device(attacks.device), attacks.batch_size)
        images = data.open(run, attacks.seed)
        if rows.group is None and images.class_names is not None:
            for threshold in thresholds.values():
                threshold.check_group(images.class_names)
        if seeds:
            settings |= limits | {"out": out, "name": f"{images.name}-{images.split}"}
            audit_all_seeds(seeds, images, ball, attacks.suite, thresholds, settings, json=json)
            return
        network = model.load(images, settings["device"])
        if estimate:
            if processes.is_main:
                conditions = _decidable(thresholds, policy, None if rows.group else images)
                _estimate(network, images, ball, attacks.suite, settings, measured, conditions, json)
            return
        variable = os.environ.get(VARIABLE)
        cache = Path(variable) if cache is None and variable else cache
        if cache is not None and out is None and not sharding.arguments:
            out = cached_folder(
                cache, network, images, ball, attacks.suite, group=rows.group, save=limits["save"], **settings
            )
            limits["resume"] = resume or out is not None
        folder = _place(model, run, images, out, sharding)
        settings |= limits | {"out": folder}
        given = {
            **vars(model),
            **vars(data),
            **vars(attacks),
            **vars(rows),
            "threat": threat,
            "guards": guards,
            "policy": policy,
        }
        result = _run(network, images, ball, attacks.suite, settings, given, sharding, cluster)
        if sharding.shard is not None:
            if processes.is_main:
                sharding.conclude(folder, len(result.outcomes), finished=is_finished(folder), json=json)
            return
        page = page or folder / "page.html"
        if processes.is_main:  # before a process exits, since torchrun then stops the others
            with _decided(thresholds), printing_beside(page):
                cw.report(result, page, run=run)
            build.write(result, thresholds, page)
            with trackers.logging() as logger:
                if logger is not None:
                    log_audit(result, logger, page)
    if processes.is_main:
        _conclude(result, thresholds, folder, page, json=json)


def _place(
    model: ModelSource, run: cw.Run | None, images: cw.Images | Stream, out: Path | None, sharding: ShardOptions
) -> Path:
    """The folder of an audit, or of its shard."""
    checkpoint = Path(model.model).stem if run is not None and Path(model.model).is_file() else ""
    name = "-".join(filter(None, (images.name, images.split, checkpoint)))
    return out or sharding.place(model.folder(run, "audits", name))


def _run(
    network: nn.Module | str,
    images: cw.Images | Stream,
    threat: cw.Threat | None,
    attacks: list[str] | None,
    settings: dict[str, Any],
    given: dict[str, Any],
    sharding: ShardOptions,
    cluster: ClusterOptions,
) -> cw.Audit:
    """Run an audit; with ``--on``, its shards and their merge as tasks, with the options ``given``."""
    from classwise.auditing.run.audit import claim_for_shards
    from classwise.auditing.run.claim import finished_audit
    from classwise.auditing.run.merging import is_finished

    if cluster.on is None:
        with console.resumable("continue with --resume"), console.progress() as listener:
            return cw.audit(network, images, threat, attacks, progress=listener, **settings, **sharding.arguments)
    max_time = settings.pop("max_time")
    plan = claim_for_shards(network, images, threat, attacks, **settings, **sharding.arguments)
    of_shards = {} if max_time is None else {"max_time": max_time / 60}
    finished = finished_audit(settings["out"], plan) if settings["resume"] else None
    if finished is None:
        given |= options_of(plan)
        run_tasks("audit", given, settings["out"], sharding, cluster, is_finished, of_shards)
    return finished or cw.Audit.load(settings["out"])


def _conclude(result: cw.Audit, thresholds: dict[str, Threshold], folder: Path, page: Path, *, json: bool) -> None:
    """Print an audit and exit with the status of its thresholds.

    Raises:
        IncompleteError: if no condition is true, but one is undecided, or images are not evaluated.
        typer.Exit: with 1 if a condition is true.
    """
    from classwise.reporting.facts.condition_text import result_text

    held = {text: threshold.decide(result) for text, threshold in thresholds.items()}
    failed = [text for text, holds in held.items() if holds]
    with _decided(thresholds), printing_beside(page):
        if json:
            facts = audit_facts(result) | {"folder": str(folder), "page": str(page)}
            console.show_json(facts | {"fail_if": held})
        else:
            console.show_result(result)
            console.echo(f"audit: {folder}")
            console.echo(f"page: {page}")
            for text in (text for text, holds in held.items() if holds is False):
                console.echo(printable(f"passed: {text}: {result_text(result, thresholds[text])}"))
    for text in failed:
        console.print_error(printable(f"failed: {text}: {result_text(result, thresholds[text])}"))
    if failed:
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    undecided = [text for text, holds in held.items() if holds is None]
    if undecided or not (held or result.finished):
        verdict = f"; --fail-if {undecided[0]!r} is undecided" if undecided else ""
        how = result.outcomes.meta.completion if result.finished else "--resume"
        raise IncompleteError(f"{result.outcomes.gap}{verdict}; repeat the command with {how} to continue")


def _decided(thresholds: dict[str, Threshold]) -> AbstractContextManager[None]:
    """Ignore errors of printing once the thresholds are decided."""
    return console.status_decided() if thresholds else contextlib.nullcontext()


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
    settings: dict[str, Any],
    rates: Rates | None,
    conditions: dict[str, str],
    json: bool,
) -> None:
    from classwise.auditing.run.cost import estimate

    cost = estimate(network, images, threat, attacks, rates=rates, **settings)
    device = str(rates or settings["device"])
    if json:
        console.show_json(dataclasses.asdict(cost) | {"device": device, "conditions": conditions})
        return
    sample = "" if cost.evaluated == cost.images else "a sample of "
    right = f"{cost.correct:,} of {sample}{cost.evaluated:,} ({bare_percent(cost.correct / cost.evaluated)} %)"
    console.echo(f"{cost.images:,} images; {right} are correctly classified without attack")
    forwards, backwards = f"{cost.forwards_low:,} to {cost.forwards:,}", f"{cost.backwards_low:,} to {cost.backwards:,}"
    console.echo(f"passes of one image: {forwards} forward, {backwards} backward")
    low, high, guards = (
        console.duration(60 * minutes) for minutes in (cost.minutes_low, cost.minutes, cost.guard_minutes)
    )
    console.echo(f"time on {device}: {low} to {high}; the guards take up to {guards} more")
    console.echo(f"{_LEAST[settings['early_stop']]}; most: they are robust to all attacks")
    for text, about in conditions.items():
        console.echo(f"{text}: {about}")
    if cost.note:
        console.echo(f"warning: {cost.note}", err=True)


def _decidable(
    thresholds: dict[str, Threshold], policy: Path | None, images: cw.Images | Stream | None
) -> dict[str, str]:
    """Whether so many images can decide the conditions and the criteria of a policy, by their text, where it is known.

    Args:
        thresholds: the conditions.
        policy: the policy.
        images: the images; None if conditions are on groups of them.
    """
    from classwise.auditing.criteria import policy as policies
    from classwise.reporting.facts.condition_size import size_before

    if not isinstance(images, cw.Images):
        return {}
    count, names = images.class_counts().numpy(), images.class_names
    criteria = {} if policy is None else policies.Policy.read(policy).thresholds
    about = {text: size_before(threshold, count, names) for text, threshold in (thresholds | criteria).items()}
    return {text: sentence for text, sentence in about.items() if sentence}
