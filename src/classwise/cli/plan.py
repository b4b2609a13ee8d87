"""``classwise plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import classwise as cw
from classwise.auditing.evaluation.evaluation import ATTACKS
from classwise.cli import console
from classwise.cli.evaluation import declared
from classwise.cli.help import ATTACK, COMPUTE, DATA, MODEL, OUTPUT, QUESTION
from classwise.cli.options import Json, integers, named_sources, new_file, printing_beside, share
from classwise.core.errors import ClasswiseError


def _asked(option: str, what: str, metavar: str = "SHARE") -> Any:
    return typer.Option(option, metavar=metavar, help=what, rich_help_panel=QUESTION)


def _assumption(option: str, what: str, default: str | bool = "none") -> Any:
    return typer.Option(option, metavar="SHARE", help=what, show_default=default, rich_help_panel=MODEL)


def plan(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[AUDIT...]",
            help="Earlier audits of one method, or of two to compare, such as those of a --subset; named as in "
            "classwise compare.",
        ),
    ] = None,
    above: Annotated[str | None, _asked("--above", "The worst class is above this accuracy, such as 20%.")] = None,
    below: Annotated[
        str | None, _asked("--below", "The class of --class, chosen beforehand, is below this accuracy.")
    ] = None,
    difference: Annotated[
        str | None,
        _asked("--difference", "The worst class of a second model is higher, if all its classes are higher by this."),
    ] = None,
    identity: Annotated[
        bool,
        typer.Option(
            "--identity", help="The worst class is identified: no other class can be it.", rich_help_panel=QUESTION
        ),
    ] = False,
    half_width: Annotated[
        str | None,
        _asked(
            "--half-width",
            "The interval of the overall accuracy, or of --class, extends at most this far to each side.",
        ),
    ] = None,
    overall_difference: Annotated[
        str | None, _asked("--overall-difference", "As --difference, for the overall accuracy.")
    ] = None,
    class_name: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="NAME",
            help="The class of --below or --half-width by its name; without audits by its number.",
            show_default="the worst; of --half-width all images",
            rich_help_panel=QUESTION,
        ),
    ] = None,
    accuracy: Annotated[
        str | None,
        typer.Option(
            "--accuracy",
            metavar="A,B,...",
            help="Assumed accuracy of each class, in place of audits.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    worst: Annotated[str | None, _assumption("--worst", "Assumed accuracy of the worst class.")] = None,
    others: Annotated[str | None, _assumption("--others", "Assumed accuracy of all other classes.")] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", metavar="N", min=1, help="Number of classes.", rich_help_panel=MODEL),
    ] = None,
    different: Annotated[
        str | None,
        _assumption(
            "--different",
            "Share of the images on which one of two models, or runs, is correct and the other is not.",
            "from the audits; else half of that of unrelated models",
        ),
    ] = None,
    run_sd: Annotated[
        str | None,
        _assumption(
            "--run-sd", "Standard deviation of an accuracy over training runs.", "from the audits of several; else 1%"
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            "--images",
            metavar="N",
            min=1,
            help="Images of each class; the answer is how often they suffice.",
            show_default="search for 80 % and 90 %",
            rich_help_panel=DATA,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N,N,...",
            help="Training runs of each model.",
            show_default="1; 3,5 for overall accuracies",
            rich_help_panel=DATA,
        ),
    ] = None,
    attack: Annotated[list[str] | None, declared(ATTACKS, "those of the audits; else the suite of the threat")] = None,
    threat: Annotated[
        str | None,
        typer.Option(
            "--threat",
            metavar="NORM:RADIUS",
            help="The threat of --attack.",
            show_default="Linf:8/255",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence", metavar="LEVEL", help="Confidence level of the intervals.", rich_help_panel=OUTPUT
        ),
    ] = 0.95,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed of the simulation.", rich_help_panel=COMPUTE)
    ] = 0,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page; - is stdout.", rich_help_panel=OUTPUT),
    ] = None,
    json: Json = False,
) -> None:
    """Plan how many images and seeds answer a question.

    A question is what an audit or a comparison is to show. Audits are simulated and decided by their intervals and
    tests; the result is a number of images of a class with which at least 80 % and 90 % show it.

    \b
    Examples:
        classwise plan --worst 30% --others 60% --classes 10 --above 20%
        classwise plan --worst 0.3 --others 0.6 --classes 10 \\
            --difference 5% --seeds 1,3
        classwise plan audits/pilot --above 20% --identity
        classwise plan runs/at runs/cfa             # their difference
        classwise plan audits/at --half-width 2% --images 500 --seeds 3,5,10
    """  # noqa: D301  # \b keeps the lines of the example apart
    page = new_file(html, "--html", json=json)
    with console.progress() as listener:
        found = cw.plan(
            named_sources(sources) if sources else None,
            accuracy=_accuracies(accuracy, worst, others, classes, sources),
            above=_share(above, "--above"),
            below=_share(below, "--below"),
            difference=_share(difference, "--difference"),
            identity=identity,
            half_width=_share(half_width, "--half-width"),
            overall_difference=_share(overall_difference, "--overall-difference"),
            different=_share(different, "--different"),
            run_sd=_share(run_sd, "--run-sd"),
            class_name=class_name,
            images=images,
            seeds=None if seeds is None else integers(seeds, "--seeds"),
            attacks=attack or None,
            threat=threat,
            confidence=confidence,
            seed=seed,
            progress=listener,
        )
    with printing_beside(page):
        if page is not None:
            cw.report(found, page)
        if json:
            console.show_json(found.to_dict() | ({} if page is None else {"page": str(page)}))
            return
        console.show_result(found)
        if page is not None:
            console.echo(f"page: {page}")


def _share(text: str | None, option: str) -> float | None:
    return None if text is None else share(text, option, "0.2 or 20%")


def _accuracies(
    accuracy: str | None, worst: str | None, others: str | None, classes: int | None, sources: list[str] | None
) -> list[float] | None:
    """The assumed accuracies; None with audits.

    Raises:
        ClasswiseError: unless exactly one of audits, ``--accuracy`` and the other three options is given.
    """
    three = {"--worst": worst, "--others": others, "--classes": classes}
    given = [name for name, value in three.items() if value is not None]
    if sum(map(bool, (sources, accuracy is not None, given))) != 1:
        raise ClasswiseError("give audits, --accuracy, or --worst, --others and --classes; one of the three")
    if sources:
        return None
    if accuracy is not None:
        return [share(item.strip(), "--accuracy", "0.3,0.6 or 30%,60%") for item in accuracy.split(",")]
    if missing := [name for name in three if name not in given]:
        raise ClasswiseError(f"{given[0]} requires {' and '.join(missing)}")
    assert worst is not None
    assert others is not None
    lowest, rest = share(worst, "--worst", "0.3 or 30%"), share(others, "--others", "0.6 or 60%")
    return [lowest, *[rest] * ((classes or 1) - 1)]
