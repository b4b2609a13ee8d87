"""The context of an experiment: trained models, audits and images at one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from classwise.auditing.artifacts import Kind
from classwise.auditing.result import Audit
from classwise.core.config import Spec
from classwise.core.errors import ClasswiseError
from classwise.core.progress import NullProgress, Progress
from classwise.data.images import Images
from classwise.data.loading import load_data
from classwise.data.splits import stratified_subset
from classwise.papers.scales import Scale, on
from classwise.papers.store import Store, Trained
from classwise.training.folder import Which
from classwise.training.recipe import Recipe


class Context:
    """The source of models, audits and images of an experiment: a scale and a store.

    Args:
        scale: the data, network and budget.
        store: saved trainings and audits.
        device: where to compute.
        progress: reports the progress.
    """

    def __init__(self, scale: Scale, store: Store, *, device: str = "cpu", progress: Progress | None = None) -> None:
        self.scale = scale
        self.store = store
        self.device = device
        self.progress: Progress = progress or NullProgress()
        self.trainings: dict[str, str] = {}
        """The recipe of each training that was requested, by its key in the store."""

    def on_all(self, names: Sequence[str]) -> tuple[dict[str, Context], dict[str, str]]:
        """A context for each available data set, with the same store and trainings; and why others are missing.

        Raises:
            ClasswiseError: if none is available.
        """
        found, absent = dict[str, Context](), dict[str, str]()
        for name in names:
            own = Context(on(self.scale, name), self.store, device=self.device, progress=self.progress)
            own.trainings = self.trainings
            try:
                _ = own.train_images, own.test_images
            except ClasswiseError as error:
                absent[name] = str(error)
                self.progress.log(f"{name} is left out: {error}")
                continue
            found[name] = own
        if not found:
            raise ClasswiseError(f"none of {', '.join(absent)} is there; {next(iter(absent.values()))}")
        return found, absent

    @cached_property
    def train_images(self) -> Images:
        """The training images of the scale."""
        return load_data(self.scale.data, split="train", subset=self.scale.train)

    @cached_property
    def spare_images(self) -> Images | None:
        """As many further training images, stratified by class; None if the scale takes all images."""
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
        """A stratified subset of the test images for expensive attacks."""
        if self.scale.few is None or self.scale.few >= len(self.test_images):
            return self.test_images
        return self.test_images.take(stratified_subset(self.test_images.y, self.scale.few))

    def recipe(self, name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
        """A recipe of the library at this scale, the epochs of its schedules scaled; ``overrides`` apply last."""
        chosen = Recipe.read(name, budget=self.scale.budget)
        wanted = {**self.scale.overrides, **(overrides or {})}
        epochs = chosen.epoch_overrides(wanted.get("epochs", chosen.epochs))
        return Recipe.read(chosen, {"threat": self.scale.threat, **epochs, **wanted})

    def pgd(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A PGD of the paper, with this scale's steps; together they are two radii long."""
        steps = self.scale.attack_steps
        return dict(spec) if steps is None else {**spec, "steps": steps, "step_size": f"{2 / steps:g}eps"}

    def trained(
        self,
        name: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        start: Trained | None = None,
        teacher: Trained | None = None,
        unlabelled: Images | None = None,
        images: Images | None = None,
    ) -> Trained:
        """The run of a recipe at this scale on its training images, or on others; loaded from the store if possible."""
        data = self.train_images if images is None else images
        found = self.store.trained(
            self.recipe(name, overrides),
            data,
            start=start,
            teacher=teacher,
            unlabelled=unlabelled,
            device=self.device,
            progress=self.progress,
        )
        self.trainings[found.key] = name
        return found

    def audited(
        self,
        trained: Trained,
        attacks: Mapping[str, Spec],
        *,
        few: bool = False,
        which: Which | None = None,
        early_stop: bool = False,
        surrogates: Sequence[Trained] = (),
        images: Images | None = None,
        trace: Sequence[int] = (),
        save: Sequence[Kind] = (),
    ) -> Audit:
        """The audit of a run by some attacks at this scale, loaded from the store if possible."""
        usual = self.few_images if few else self.test_images
        return self.store.audited(
            trained,
            usual if images is None else images,
            attacks,
            self.scale.threat,
            which=which,
            early_stop=early_stop,
            precision=self.scale.precision,
            surrogates=surrogates,
            trace=trace,
            save=save,
            device=self.device,
            progress=self.progress,
        )
