"""``classwise audit --worst``: the worst class by racing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from classwise.cli import console
from classwise.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from classwise.auditing.racing import RaceResult
    from classwise.data.images import Images
    from classwise.threat import Threat


class Certainty(NamedTuple):
    """How sure the answer has to be."""

    alpha: float
    tol: float | None


def asked(worst: bool, tol: str | None, confidence: str | None) -> Certainty | None:
    """What ``--tol`` and ``--confidence`` say; None without ``--worst``.

    Raises:
        UserError: if they come without it, or are out of range.
    """
    if not worst:
        for option, value in (("--tol", tol), ("--confidence", confidence)):
            if value is not None:
                raise UserError(f"{option} {value} means something with --worst only; add --worst or leave it out")
        return None
    sure = 0.95 if confidence is None else _share(confidence, "--confidence", "0.95 or 95%")
    if not 0 < sure < 1:
        raise UserError(f"--confidence {confidence} should lie between 0 and 1, as 0.95 or 95%")
    slack = None if tol is None else _share(tol, "--tol", "0.02 or 2%")
    if slack is not None and not 0 <= slack < 1:
        raise UserError(f"--tol {tol} should be at least 0 and below 1, as 0.02 or 2%")
    return Certainty(1 - sure, slack)


def _share(text: str, option: str, example: str) -> float:
    from classwise.settings import number

    percent = text.rstrip().endswith("%")
    value = number(text.rstrip().rstrip("%").rstrip())
    if not isinstance(value, float):
        raise UserError(f"{option} {text!r} is not a number; write {example}")
    return value / 100 if percent else value


def refuse_with_worst(given: Mapping[str, object]) -> None:
    """A race has no outcomes of all images, so what needs them does not go with it.

    Raises:
        UserError: naming the first such option that was given.
    """
    for option, value in given.items():
        if value:
            raise UserError(f"{option} does not go with --worst, which leaves most images undecided; leave one out")


def find_worst(
    network: nn.Module | str,
    images: Images,
    threat: Threat | None,
    attacks: list[str] | None,
    certainty: Certainty,
    settings: Mapping[str, Any],
    *,
    json: bool,
) -> None:
    """Run the race and print its answer."""
    from classwise.auditing.racing import race

    with console.resumable("continue with --resume"), console.progress() as listener:
        result = race(network, images, threat, attacks, **certainty._asdict(), **settings, progress=listener)
    if json:
        console.show_json(race_facts(result))
    else:
        show_race(result)


def show_race(result: RaceResult) -> None:
    """Print a race: a row per class, the worst class, what is guaranteed, what it cost."""
    rows = [
        (
            name,
            int(row["n"]),
            *(console.percent(row[column]) for column in ("clean", "first", "estimate")),
            console.interval(row["low"], row["high"]),
            int(row["unsettled"]),
            "yes" if row["may_be_worst"] else "",
        )
        for name, row in result.table.iterrows()
    ]
    first = result.meta.applicable[1]
    sure = f"{100 * (1 - result.verdict.alpha):.6g}"
    title = f"{result.meta.model}: accuracy in percent under {result.meta.threat}"
    columns = ["class", "n", "clean", first, "all, estimate", f"all, {sure} % together", "unsettled", "may be worst"]
    console.show(columns, rows, title)
    verdict = result.verdict
    at = f"{console.percent(verdict.estimate)} % {console.interval(verdict.low, verdict.high)}"
    console.echo("")
    what = "worst class" if verdict.settled else "lowest estimate so far"
    console.echo(f"{what}: {result.worst}, {at}")
    console.echo(f"guarantee: {result.sentence}")
    if verdict.unsettled:
        images = "1 image" if verdict.unsettled == 1 else f"{verdict.unsettled:,} images"
        console.echo(f"unsettled: {images} that only a full audit would attack to the end")
    share = result.passes / result.full
    part = "under 1 %" if share < 0.01 else f"about {100 * share:.0f} %"
    console.echo(f"passes: {result.passes:,}, {part} of a full audit's; {console.duration(result.seconds)}")


def race_facts(result: RaceResult) -> dict[str, Any]:
    """A race for programs; accuracies are fractions."""
    verdict = result.verdict
    return {
        "worst": {
            "class": result.worst,
            "accuracy": verdict.estimate,
            "low": verdict.low,
            "high": verdict.high,
            "possibly": list(result.possibly),
        },
        "settled": verdict.settled,
        "guarantee": result.sentence,
        "confidence": 1 - verdict.alpha,
        "tol": verdict.tol,
        "population": result.population,
        "suite": {name: spec for name, spec in result.meta.attacks.items() if spec is not None},
        "threat": result.meta.threat,
        "seed": result.meta.seed,
        "unsettled": verdict.unsettled,
        "passes": result.passes,
        "full_audit_passes": result.full,
        "rounds": result.rounds,
        "seconds": result.seconds,
        "classes": result.table.to_dict("index"),
    }
