"""``classwise audit``."""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classwise.cli import console
from classwise.cli.exit_status import ExitStatus
from classwise.cli.options import (
    DataOptions,
    Device,
    Estimate,
    Json,
    Resume,
    Root,
    check_device,
    new_file,
    numbers,
    pairs,
    printing_beside,
    refuse_json,
)
from classwise.cli.racing import asked, find_worst, refuse_with_worst
from classwise.cli.seeds import audit_all_seeds, refuse_for_seeds
from classwise.cli.showing import audit_facts, show_audit, show_curve
from classwise.errors import IncompleteError, UserError, unknown

if TYPE_CHECKING:
    from torch import nn

    from classwise.auditing.condition import Condition
    from classwise.auditing.radii import Curve
    from classwise.auditing.suite import Suite
    from classwise.data.images import Images
    from classwise.threat import Norm, Threat
    from classwise.training.folder import Run


def audit(
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder, a folder of the runs of several seeds, a weights file that names its model, a zoo "
            "name, or package.module:callable."
        ),
    ],
    weights: Annotated[Path | None, typer.Option("--weights", help="A .safetensors, .pt or .pth file.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="A data set's name, or a path; of a run folder, the run's own data.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="The split to attack.")] = "test",
    subset: Annotated[
        int | None, typer.Option("--subset", metavar="N", help="Only N images, classes in proportion.")
    ] = None,
    root: Root = None,
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat", metavar="NORM:RADIUS", help="Such as Linf:8/255; else the run's, else the data's usual one."
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="SPEC", help="Such as pgd:steps=50; may be repeated. Else the default suite."),
    ] = None,
    cascade: Annotated[
        bool | None,
        typer.Option(
            "--cascade/--no-cascade",
            help="Hand only the images that still stand to the next attack. [so for autoattack and fast]",
        ),
    ] = None,
    stop: Annotated[
        str,
        typer.Option(
            "--stop", metavar="broken|never", help="never attacks every image to the end, as confusion needs."
        ),
    ] = "broken",
    group: Annotated[
        str | None, typer.Option("--group", metavar="COLUMN", help="Group by this column, not by class.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The audit's folder. [RUN/audits/DATA-SPLIT; none with --worst]"),
    ] = None,
    resume: Resume = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="The page; - is stdout, and tables go to stderr. [page.html in --out]"
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 if it holds (for several seeds: for any of them), as 'worst(all) < 0.2' or "
            "'mcd(pgd) > 20%'; with 3 if that depends on images that are not judged. May be repeated. It can name "
            "overall, macro, worst, worst20, cv, mcd, nrr, hmw, overall.low, overall.high, worst.low, worst.high and "
            "worst.split; write the ends as worst(all).low.",
        ),
    ] = None,
    max_time: Annotated[
        float | None,
        typer.Option(
            "--max-time",
            metavar="MINUTES",
            help="Stop after so many minutes, above 0; exit with 3 if images are left, and give bounds.",
        ),
    ] = None,
    estimate: Estimate = False,
    worst: Annotated[
        bool,
        typer.Option("--worst", help="Only find the worst class, by racing, for a fraction of the passes."),
    ] = False,
    tol: Annotated[
        str | None,
        typer.Option("--tol", metavar="SHARE", help="With --worst: be content this near to the worst, as 2%."),
    ] = None,
    confidence: Annotated[
        str | None, typer.Option("--confidence", metavar="SHARE", help="With --worst: of the answer. [0.95]")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="logits|features|images", help="Save these too. May be repeated."),
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve", help="Find each image's smallest breaking radius, up to --threat. [twice the data's usual one]"
        ),
    ] = False,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="With --curve: how often the range is halved. [6]")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the attacks and of --subset.")] = 0,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Images on the device at once. [128, or as many large images as fit]"),
    ] = None,
    width: Annotated[float | None, typer.Option("--width", help="The model's width factor.")] = None,
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="A,B,C", help="With --std: the normalisation the weights expect.")
    ] = None,
    std: Annotated[str | None, typer.Option("--std", metavar="A,B,C", help="The deviation of each channel.")] = None,
    model_options: Annotated[
        list[str] | None,
        typer.Option("--model-set", metavar="KEY=VALUE", help="A setting of the model, such as depth=34."),
    ] = None,
    data_options: DataOptions = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Attack a classifier and tell class by class how robust it is.

    \b
    Examples:
        classwise audit runs/cfa
        classwise audit resnet18 --weights model.pt --data photos/ --threat Linf:4/255 --html page.html
        classwise audit mypackage.nets:build --weights w.pt --data cifar10 --fail-if 'worst(all) < 0.2'
        classwise audit runs/cfa --worst --tol 1% --confidence 0.99
        classwise audit runs/cfa --curve --threat Linf:16/255
        classwise audit runs/cfa-seeds --resume             every run of classwise train --seeds
        torchrun --nproc-per-node 4 -m classwise audit runs/cfa --device cuda
    """  # noqa: D301  # \b keeps the lines of the example apart
    from classwise.auditing.suite import norm_of, parse_attacks
    from classwise.team import launched, local_device
    from classwise.threat import Threat

    # Everything that can be wrong with the words alone is found before data or weights are read.
    ball = None if threat is None else Threat.parse(threat)
    conditions = _conditions(fail_if, parse_attacks(attack or None, norm_of(ball)))
    normalisation = {"mean": numbers(mean, "--mean"), "std": numbers(std, "--std")}
    if (mean is None) != (std is None):
        raise UserError("--mean and --std go together; give both or neither")
    if stop not in ("broken", "never"):
        raise unknown("--stop", stop, ("broken", "never"))
    if max_time is not None and not max_time > 0:
        raise UserError(f"--max-time {max_time:g}: give the minutes that the audit may take, above 0")
    certainty = asked(worst, tol, confidence)
    if worst:
        given = {"--cascade": cascade, "--stop": stop == "never", "--group": group}
        refuse_with_worst(
            given | {"--html": html, "--curve": curve, "--fail-if": fail_if, "--estimate": estimate, "--keep": keep}
        )
        if resume and out is None:
            raise UserError("--resume with --worst needs the folder of the search; give --out")
    page = new_file(html, "--html")
    refuse_json(json, page)
    if curve:
        _only_for_audits(fail_if=fail_if, group=group, keep=keep, max_time=max_time, estimate=estimate)
        _only_for_audits(stop=stop != "broken", cascade=cascade is not None)
    elif rounds is not None:
        raise UserError("--rounds belongs to --curve; give both, or neither")

    seeds = _seeds_of(model)
    if seeds:
        refuse_for_seeds(model, weights=weights, html=html, worst=worst, curve=curve, estimate=estimate)
        refuse_for_seeds(model, width=width, mean=mean, model_set=model_options)
    run = seeds[0] if seeds else _run_of(model, needed=data is None)
    if ball is None and run is not None and run.recipe.threat is not None and not curve:
        ball = Threat.parse(run.recipe.threat)
    settings: dict[str, Any]
    with launched() as team:
        device = local_device(device)
        check_device(device)
        images = _images(run, data, split, root, subset, seed, data_options)
        if seeds:
            settings = {"cascade": cascade, "stop": stop, "batch": batch, "seed": seed, "device": device}
            settings |= {"group": group, "out": out, "resume": resume, "keep": tuple(keep or ())}
            settings |= {"max_time": None if max_time is None else 60 * max_time}
            settings |= {"name": f"{images.name}-{images.split}"}
            audit_all_seeds(seeds, images, ball, attack or None, conditions, settings, json=json)
            return
        network = _network(model, weights, images, device, width, normalisation, model_options)
        settings = {"cascade": cascade, "stop": stop, "batch": batch, "seed": seed, "device": device}
        seconds = None if max_time is None else 60 * max_time
        if certainty is not None:
            if team.first:
                chosen: dict[str, Any] = {"batch": batch, "seed": seed, "device": device, "max_time": seconds}
                chosen |= {"out": out, "resume": resume}
                find_worst(network, images, ball, attack or None, certainty, chosen, json=json)
            return
        if curve:
            name = f"curve-{images.name}-{images.split}"
            folder = out or (run.path / "curves" / name if run else Path("audits") / f"{Path(model).stem}-{name}")
            settings = {"rounds": rounds, "batch": batch, "seed": seed, "device": device, "name": name}
            settings |= {"out": folder, "resume": resume}
            _curve(network, images, ball, attack or None, settings, folder, page, json)
            return
        if estimate:
            if team.first:
                _estimate(network, images, ball, attack or None, settings, json)
            return
        from classwise.auditing.audit import audit as run_audit

        name = "-".join(
            filter(None, (images.name, images.split, Path(model).stem if run and Path(model).is_file() else ""))
        )
        folder = out or (run.audits / name if run else Path("audits") / f"{Path(model).stem.replace(':', '-')}-{name}")
        with console.resumable("continue with --resume"), console.progress() as listener:
            result = run_audit(
                network,
                images,
                ball,
                attack or None,
                group=group,
                out=folder,
                resume=resume,
                keep=tuple(keep or ()),
                max_time=seconds,
                progress=listener,
                name=name,
                **settings,
            )
        if team.first:  # before any process ends: torchrun ends the others then
            page = page or folder / "page.html"
            with _decided(conditions), printing_beside(page):
                result.html(page, run)
    if not team.first:
        return
    held = {text: condition.decide(result) for text, condition in conditions.items()}
    failed = [text for text, holds in held.items() if holds]
    with _decided(conditions), printing_beside(page):
        if json:
            facts = audit_facts(result) | {"folder": str(folder), "page": str(page)}
            console.show_json(facts | {"fail_if": held})
        else:
            show_audit(result)
            console.echo(f"audit: {folder}")
            console.echo(f"page: {page}")
    for text in failed:
        console.print_error(f"failed: {text}")
    if failed:
        raise typer.Exit(ExitStatus.THRESHOLD_FAILED)
    undecided = [text for text, holds in held.items() if holds is None]
    if undecided or not (held or result.complete):
        verdict = f"; --fail-if {undecided[0]!r} is undecided" if undecided else ""
        raise IncompleteError(f"{result.outcomes.gap}{verdict}; repeat the command with --resume to continue")


def _decided(conditions: dict[str, Condition]) -> AbstractContextManager[None]:
    """What is printed after a verdict does not change it."""
    return console.status_decided() if conditions else contextlib.nullcontext()


def _only_for_audits(**options: object) -> None:
    """Refuse what says nothing about a curve."""
    for name, value in options.items():
        if value:
            raise UserError(f"--{name.replace('_', '-')} does not go with --curve; leave one of them out")


def _curve(
    network: nn.Module | str,
    images: Images,
    ball: Threat | None,
    attacks: list[str] | None,
    settings: dict[str, Any],
    folder: Path,
    page: Path | None,
    json: bool,
) -> None:
    """Search, and write the radii, the tables, the figure and the page into a folder."""
    from classwise.auditing.curve import ROUNDS
    from classwise.auditing.curve import curve as find_curve
    from classwise.reporting import curve_page, export_curve
    from classwise.team import joined

    settings["rounds"] = ROUNDS if settings["rounds"] is None else settings["rounds"]
    norm: Norm = "Linf" if ball is None else ball.norm
    highest = None if ball is None else float(ball.epsilon)
    with joined() as team:
        with console.resumable("continue with --resume"), console.progress() as listener:
            found = find_curve(network, images, norm, attacks, highest=highest, progress=listener, **settings)
        if not team.first:
            return
        export_curve(found, folder)
    with printing_beside(page):
        written = curve_page(found, page or folder / "page.html")
        _print_curve(found, folder, written, json)


def _print_curve(found: Curve, folder: Path, page: Path, json: bool) -> None:
    if json:
        facts = {"folder": str(folder), "page": str(page), "highest": found.highest, "width": found.width}
        classes = {str(name): row.to_dict() for name, row in found.summary.iterrows()}
        console.show_json(facts | {"weakest": found.weakest, "classes": classes})
        return
    show_curve(found)
    console.echo(f"curve: {folder}")
    console.echo(f"page: {page}")


def _conditions(texts: list[str] | None, suite: Suite) -> dict[str, Condition]:
    """The conditions by their text; each must speak of something that the audit will know."""
    from classwise.auditing.condition import Condition
    from classwise.auditing.outcomes import ALL, BEST, CLEAN, UNION

    families = [f"{family}-{kind}" for family in suite.families for kind in (BEST, UNION)]
    known = [CLEAN, *suite.attacks, *families, ALL]
    conditions = {text: Condition.parse(text) for text in texts or ()}
    for text, condition in conditions.items():
        if condition.attack not in known:
            raise unknown(f"attack in condition {text!r}:", condition.attack, known)
    return conditions


def _seeds_of(model: str) -> list[Run]:
    """The runs in a folder of seeds, or nothing."""
    from classwise.models.loading.loader import is_stored
    from classwise.training.folder import runs_in

    if not is_stored(model) or not runs_in(Path(model)):
        return []
    from classwise.auditing.seeds import seed_runs

    return seed_runs(model)


def _run_of(model: str, *, needed: bool) -> Run | None:
    """The run whose folder, or one of whose weights files, is to be audited.

    Raises:
        UserError: for a path or a name of nothing, or one without a run that is needed.
    """
    from classwise.models.loading.loader import is_stored
    from classwise.training.folder import Run

    if not is_stored(model):
        return None
    path = Path(model)
    for folder in (path, path.parent.parent):
        if (folder / "recipe.yaml").is_file() and (path == folder or path.parent.name == "checkpoints"):
            return Run.open(folder)
    return Run.open(path) if needed and path.is_dir() else None


def _images(
    run: Run | None,
    data: str | None,
    split: str,
    root: str | None,
    subset: int | None,
    seed: int,
    options: list[str] | None,
) -> Images:
    from classwise.data.loading import load_data

    chosen: dict[str, Any] = {}
    if data is None and run is None:
        raise UserError("give the images to attack, as in --data cifar10 or --data photos/")
    if data is None:
        assert run is not None
        data, root = run.recipe.data.name, root or run.recipe.data.root
        chosen |= run.recipe.data.options
    chosen |= pairs(options, "--data-set")
    return load_data(data, split=split, root=root, subset=subset, seed=seed, **chosen)


def _network(
    model: str,
    weights: Path | None,
    images: Images,
    device: str,
    width: float | None,
    normalisation: dict[str, Any],
    options: list[str] | None,
) -> nn.Module | str:
    """The model; the path itself where it says everything, so that the audit knows the run behind it."""
    if weights is None and width is None and not options and not any(normalisation.values()) and Path(model).exists():
        return model
    from classwise.models import load_model
    from classwise.settings import read_yaml

    chosen = {
        key: read_yaml(value, f"--model-set {key}={value}") for key, value in pairs(options, "--model-set").items()
    }
    for key in chosen:
        if key in ("model", "name", "weights", "data", "device", "mean", "std", "width", "container"):
            raise UserError(
                f"--model-set {key}: not an option of a model; see --weights, --width, --mean and their like"
            )
    return load_model(model, weights, data=images, device=device, width=width, **normalisation, **chosen)


def _estimate(
    network: nn.Module | str,
    images: Images,
    threat: Threat | None,
    attacks: list[str] | None,
    settings: dict[str, Any],
    json: bool,
) -> None:
    from classwise.auditing.estimating import estimate

    cost = estimate(network, images, threat, attacks, **settings)
    if json:
        console.show_json(dataclasses.asdict(cost))
        return
    passes = f"{cost.forwards:,} forward and {cost.backwards:,} backward passes of one image"
    time = f"{console.duration(60 * cost.minutes)} on {settings['device']}"
    guards = f"the guards take up to {console.duration(60 * cost.guard_minutes)} more"
    console.echo(f"{cost.images:,} images: at most {passes}, {time}; images misclassified early cost less; {guards}")
    if cost.note:
        console.echo(f"warning: {cost.note}", err=True)
