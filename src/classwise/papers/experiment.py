"""What an experiment is: from a scale and a store to tables, figures and verdicts."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from classwise import __version__
from classwise.auditing.keeping import Kind
from classwise.auditing.result import Audit
from classwise.data.images import Images
from classwise.data.loading import load_data
from classwise.data.splits import stratified_subset
from classwise.errors import UserError, unknown
from classwise.papers import EXPERIMENTS, catalogue
from classwise.papers.claims import Test, Verdict, judge, untestable
from classwise.papers.scales import NAMES, Name, Scale, on
from classwise.papers.store import Store, Trained
from classwise.progress import Progress, Silent
from classwise.report.drawing import Drawing
from classwise.report.tables import Cell, Row, Table
from classwise.settings import Spec
from classwise.storage import write_text
from classwise.training.folder import Which
from classwise.training.recipe import Recipe

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing as it stands on a page: an ``<svg>`` element, and what to say below it."""

    svg: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run of an experiment found.

    Attributes:
        item: its id.
        scale: the name of the scale.
        setting: what was run, in words.
        tables: numbers, with intervals, beside the printed ones.
        figures: drawings.
        verdicts: one for each claim.
        runs: the trainings it rests on: key to recipe name.
        seconds: how long it took. With ``work``, the trainings and audits that it rests on count with the time that
            they took when they were made, each once; without (results of earlier versions), stored ones do not count.
        work: seconds of each of these trainings and audits, by its place in the store; None where it is not known.
        version: of classwise.
    """

    item: str
    scale: Name
    setting: str
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    verdicts: Sequence[Verdict] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    work: Mapping[str, float | None] | None = None
    version: str = __version__

    @property
    def own_seconds(self) -> float:
        """The seconds that neither a training nor an audit of the store took."""
        return self.seconds - sum(seconds for seconds in (self.work or {}).values() if seconds is not None)

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        plain = {"schema_version": SCHEMA_VERSION, **_finite(dataclasses.asdict(self))}
        write_text(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")

    @staticmethod
    def load(path: Path) -> Result:
        """Read what `save` wrote.

        Raises:
            UserError: if the file is damaged or of another format.
        """
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            version = plain.pop("schema_version")
            if version != SCHEMA_VERSION:
                raise UserError(f"{path} is of format {version}, this classwise reads {SCHEMA_VERSION}; run it again")
            tables = [
                Table(
                    table["caption"],
                    tuple(table["heads"]),
                    tuple(
                        Row(row["name"], tuple(Cell(*cell) for cell in row["cells"]), row["weak"], row["good"])
                        for row in table["rows"]
                    ),
                    table["note"],
                )
                for table in plain.pop("tables")
            ]
            figures = [Figure(**figure) for figure in plain.pop("figures")]
            verdicts = [Verdict(**_known(verdict)) for verdict in plain.pop("verdicts")]
            return Result(tables=tables, figures=figures, verdicts=verdicts, **plain)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged; run the experiment again") from error


class Bench:
    """Where an experiment gets models and audits from: a scale on a store.

    Args:
        scale: how much of the paper's setting.
        store: what was trained and attacked before.
        device: where to compute.
        progress: who is told how it goes.
    """

    def __init__(self, scale: Scale, store: Store, *, device: str = "cpu", progress: Progress | None = None) -> None:
        self.scale = scale
        self.store = store
        self.device = device
        self.progress: Progress = progress or Silent()
        self.used: dict[str, str] = {}

    def on_all(self, names: Sequence[str]) -> tuple[dict[str, Bench], dict[str, str]]:
        """A bench for each data set that is there, on the same store and record; and why the others are not.

        Raises:
            UserError: if none is.
        """
        found, absent = dict[str, Bench](), dict[str, str]()
        for name in names:
            own = Bench(on(self.scale, name), self.store, device=self.device, progress=self.progress)
            own.used = self.used
            try:
                _ = own.train_images, own.test_images
            except UserError as error:
                absent[name] = str(error)
                self.progress.say(f"{name} is left out: {error}")
                continue
            found[name] = own
        if not found:
            raise UserError(f"none of {', '.join(absent)} is there; {next(iter(absent.values()))}")
        return found, absent

    @cached_property
    def train_images(self) -> Images:
        """The training images of the scale."""
        return load_data(self.scale.data, split="train", subset=self.scale.train)

    @cached_property
    def spare_images(self) -> Images | None:
        """As many training images that the scale leaves out, classes in proportion; None where it takes all."""
        if self.scale.train is None:
            return None
        whole = load_data(self.scale.data, split="train")
        rest = whole.take(~torch.isin(whole.index, self.train_images.index))
        return rest.take(stratified_subset(rest.y, min(self.scale.train, len(rest))))

    @cached_property
    def test_images(self) -> Images:
        """The test images of the scale."""
        return load_data(self.scale.data, split="test", subset=self.scale.test)

    @cached_property
    def few_images(self) -> Images:
        """The first of the test images, class by class, for attacks that cost much."""
        if self.scale.few is None or self.scale.few >= len(self.test_images):
            return self.test_images
        return self.test_images.take(stratified_subset(self.test_images.y, self.scale.few))

    def recipe(self, name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
        """A recipe of the library at this scale, its schedules' moments at their shares; ``changes`` come last."""
        chosen = Recipe.read(name, budget=self.scale.budget)
        wanted = {**self.scale.changes, **(changes or {})}
        moments = chosen.moments(wanted.get("epochs", chosen.epochs))
        return Recipe.read(chosen, {"threat": self.scale.threat, **moments, **wanted})

    def pgd(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A PGD of the paper, with this scale's steps; together they are two radii long."""
        steps = self.scale.attack_steps
        return dict(spec) if steps is None else {**spec, "steps": steps, "step_size": f"{2 / steps:g}eps"}

    def trained(
        self,
        name: str,
        changes: Mapping[str, Any] | None = None,
        *,
        start: Trained | None = None,
        teacher: Trained | None = None,
        unlabelled: Images | None = None,
        images: Images | None = None,
    ) -> Trained:
        """The run of a recipe at this scale on its training images, or on others; from the store if it is there."""
        data = self.train_images if images is None else images
        found = self.store.trained(
            self.recipe(name, changes),
            data,
            start=start,
            teacher=teacher,
            unlabelled=unlabelled,
            device=self.device,
            progress=self.progress,
        )
        self.used[found.key] = name
        return found

    def audited(
        self,
        trained: Trained,
        attacks: Mapping[str, Spec],
        *,
        few: bool = False,
        which: Which | None = None,
        stop: str = "never",
        surrogates: Sequence[Trained] = (),
        images: Images | None = None,
        trace: Sequence[int] = (),
        keep: Sequence[Kind] = (),
    ) -> Audit:
        """The audit of a run by some attacks at this scale, from the store if it is there."""
        usual = self.few_images if few else self.test_images
        return self.store.audited(
            trained,
            usual if images is None else images,
            attacks,
            self.scale.threat,
            which=which,
            stop=stop,
            compute=self.scale.compute,
            surrogates=surrogates,
            trace=trace,
            keep=keep,
            device=self.device,
            progress=self.progress,
        )


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an experiment hands over; the rest of a `Result` is the frame's.

    Attributes:
        tables: numbers beside the printed ones.
        figures: drawings with their captions.
        tests: of the claims; they are corrected together.
        beyond: claims that this scale cannot speak about, each with the reason.
    """

    tables: Sequence[Table] = ()
    figures: Sequence[tuple[Drawing, str]] = ()
    tests: Sequence[Test] = ()
    beyond: Mapping[str, str] = field(default_factory=dict)


class Experiment(ABC):
    """A table, figure or claim of a paper that runs: store, then outcomes, then analysis, then verdicts."""

    item: ClassVar[str]
    """The id of its row in the inventory; the one under which it is registered."""
    scales: ClassVar[Mapping[Name, Scale]]
    """The scales that it has."""

    @abstractmethod
    def run(self, bench: Bench) -> Findings:
        """Get what is needed from the bench, and compute."""


def experiment(name: str) -> Experiment:
    """The experiment of an item.

    Raises:
        UserError: for an unknown id, or an item that is covered or missing: with what to do instead.
    """
    item = catalogue.find(name)
    if item.status == "covered":
        remedy = f"see {item.command}" if item.command else f"it is covered by {', '.join(item.covered_by)}"
        raise UserError(f"{name} is a {item.kind} and does not run by itself; {remedy}")
    if item.status == "missing":
        raise UserError(f"{name} cannot run yet; {item.missing}")
    return EXPERIMENTS.load(name)()


def scale_of(name: str, scale: str) -> Scale:
    """A scale of an experiment.

    Raises:
        UserError: for an unknown scale, or one that this experiment lacks.
    """
    if scale not in NAMES:
        raise unknown("scale", scale, NAMES)
    found = {str(key): value for key, value in experiment(name).scales.items()}
    if scale not in found:
        raise UserError(f"{name} has no scale {scale!r}; it has {', '.join(found)}")
    return found[scale]


def run(name: str, scale: str, store: Store, *, device: str = "cpu", progress: Progress | None = None) -> Result:
    """Run an experiment, and keep its result in the store.

    Raises:
        UserError: for an unknown id or scale, or data that are not there.
    """
    started = time.monotonic()
    chosen = scale_of(name, scale)
    bench = Bench(chosen, store, device=device, progress=progress)
    with store.measured() as work:
        found = experiment(name).run(bench)
    own = time.monotonic() - started - work.waited
    beyond = [untestable(claim, reason) for claim, reason in found.beyond.items()]
    result = Result(
        item=name,
        scale=chosen.name,
        setting=chosen.about,
        tables=tuple(found.tables),
        figures=tuple(Figure(svg=drawing.svg(), caption=caption) for drawing, caption in found.figures),
        verdicts=(*judge(found.tests), *beyond),
        runs=dict(bench.used),
        seconds=round(own + sum(seconds for seconds in work.seconds.values() if seconds is not None), 2),
        work=work.seconds,
    )
    result.save(store.result_file(name, scale))
    return result


def _known(plain: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's null is a number that is not there, or no limits; a list is a pair of limits."""
    found = {key: math.nan if value is None else value for key, value in plain.items()}
    limits = plain.get("limits")
    return {**found, "limits": None if limits is None else tuple(limits), "covers": tuple(plain.get("covers", ()))}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):
        return _finite(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
