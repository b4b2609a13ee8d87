"""Training on robust or non-robust features (Ilyas et al., 2019): benz20/P2.5, P2.6."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from classwise.analysis.consistency import ranked_alike
from classwise.analysis.feature_sets import NonRobustFeatures, RobustFeatures
from classwise.core.storage import replacing
from classwise.data.images import Images
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.class_wise import class_dots
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd
from classwise.papers.measurements import Measurement
from classwise.papers.scales import FASHION, RESNET18, SMOKE, Name, Scale
from classwise.papers.store import Trained
from classwise.papers.tables import estimate_cell
from classwise.reporting import formatting
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats import metric_intervals
from classwise.stats.intervals import Estimate

Maker = NonRobustFeatures | RobustFeatures
_LETTERS = 16
_FEWER = replace(FASHION, train=5000, about=FASHION.about.replace("10,000", "5,000"))
ORIGINAL, OWN, MAKER = "trained on the original", "trained on the set", "the set's own network"


def cached_set(path: Path, maker: Maker, trained: Trained, images: Images, context: Context) -> Images:
    """Compute a feature set with the model of a run, or load it from its cache file.

    Args:
        path: folder of the cache files.
        maker: construction of the set; the file name is a hash of its settings and the images.
        trained: run that provides the model.
        images: training images.
        context: context of the experiment.
    """
    about = f"{type(maker).__name__} {maker} {images.fingerprint()}"
    file = path / f"features-{hashlib.sha256(about.encode()).hexdigest()[:_LETTERS]}.npz"
    if not file.is_file():
        made = maker(trained.run.model().to(context.device), images.to(context.device), progress=context.progress).to(
            "cpu"
        )
        with replacing(file) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, x=made.x.numpy(), y=made.y.numpy())
    with np.load(file) as arrays:
        pixels, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return images.with_pixels(pixels, f"{images.name}, {type(maker).__name__}").with_labels(labels)


class _FeatureSet(Experiment):
    """Standard training on a set derived from the training images, evaluated on the original test images."""

    makers: ClassVar[Mapping[Name, Maker]]
    untrained: ClassVar[Sequence[Name]] = ()
    """Scales that train no network on the set and use the source network instead."""

    @abstractmethod
    def source(self, scale: Scale) -> Training:
        """The training of the source network, with which the set is constructed."""

    def trainings(self, scale: Scale) -> Trainings:
        """Standard training on the original images and on the set, and the source network."""
        learner = {} if scale.name in self.untrained else {OWN: replace(STANDARD, images="the constructed set")}
        return {ORIGINAL: STANDARD, MAKER: self.source(scale), **learner}

    def run(self, context: Context) -> Findings:
        """Compare class accuracies with standard training on the original images.

        Which features cause the discrepancy is a question about claim C1; the discrepancy is measured, not tested.
        """
        own = MAKER if context.scale.name in self.untrained else OWN
        declared = self.trainings(context.scale)
        trained = context.train_all({name: declared[name] for name in (ORIGINAL, MAKER)})
        source = trained[MAKER]
        made = cached_set(source.run.path, self.makers[context.scale.name], source, context.train_images, context)
        if own == OWN:
            trained |= context.train_all({OWN: declared[OWN]}, images={OWN: made})
        audits = {name: under_pgd(context, trained[name]) for name in (ORIGINAL, own)}
        rows = []
        for name, audit in audits.items():
            cells = []
            for attack in ("clean", "PGD"):
                counts = audit.counts(attack)
                cells += [
                    estimate_cell(of(counts))
                    for of in (metric_intervals.macro, metric_intervals.worst, metric_intervals.discrepancy)
                ]
            cells.append(Cell(audit.outcomes.class_names[metric_intervals.worst_label(audit.counts("clean"))]))
            rows.append(Row(name, cells))
        alike = ranked_alike({name: audit.outcomes for name, audit in audits.items()}, {"clean": "clean"})
        heads = ["model"]
        for attack in ("clean", "PGD"):
            heads += [f"{attack}: average", "worst class", "MCD"]
        order = f"Spearman's correlation of the two class orders, clean: {alike.lowest.value:.2f}"
        if not np.isnan(alike.lowest.low):
            order = f"{order} ({alike.lowest.low:.2f} to {alike.lowest.high:.2f})"
        note = (
            f"{order}; p {formatting.probability(alike.agreement.p_value)}. Small print: 95 % confidence intervals "
            "for new images."
        )
        clean = [audit.counts("clean") for audit in audits.values()]
        names = context.test_images.class_names
        drawing = class_dots("Clean accuracy by training images, in percent", clean, list(audits), names)
        measurements = [
            Measurement.of(
                "benz20/C1",
                f"MCD of clean accuracy on the original test images, {name}",
                Estimate(*(100 * end for end in metric_intervals.discrepancy(counts))),
            )
            for name, counts in zip(audits, clean, strict=True)
        ]
        return Findings(
            tables=(Table("Original test images, in percent and points", (*heads, "weakest, clean"), rows, note),),
            figures=((drawing, "Original test images."),),
            measurements=measurements,
        )


class NonRobust(_FeatureSet):
    """benz20 plan: non-robust features; attacked images with the label that a standard network predicts for them."""

    makers: ClassVar[Mapping[Name, Maker]] = {
        "smoke": NonRobustFeatures(steps=3),
        "reduced": NonRobustFeatures(epsilon=1.0, steps=40),
        "full": NonRobustFeatures(),
    }
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": SMOKE,
        "reduced": replace(_FEWER, about=f"{_FEWER.about}; the set by PGD of 40 steps inside an L2 ball of 1"),
        "full": RESNET18,
    }

    def source(self, scale: Scale) -> Training:
        """A standard network."""
        del scale
        return STANDARD


class Robust(_FeatureSet):
    """benz20 plan, control: images with the features of an adversarially trained network on the originals."""

    untrained = ("smoke",)
    makers: ClassVar[Mapping[Name, Maker]] = {
        "smoke": RobustFeatures(steps=3),
        "reduced": RobustFeatures(steps=150),
        "full": RobustFeatures(),
    }
    radii: ClassVar[Mapping[Name, str]] = {"reduced": "L2:1", "full": "L2:0.25"}
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": replace(
            SMOKE, about=f"{SMOKE.about}; the network that constructs the set replaces a newly trained one"
        ),
        "reduced": replace(_FEWER, about=f"{_FEWER.about}; the set in 150 steps with a network trained in an L2 ball"),
        "full": RESNET18,
    }

    def source(self, scale: Scale) -> Training:
        """A network that is adversarially trained in an L2 ball."""
        if scale.name not in self.radii:
            return AT
        steps = {f"{attack}.step_size": "0.25eps" for attack in ("attack", "validation_attack")}
        return replace(AT, overrides={"threat": self.radii[scale.name], **steps})
