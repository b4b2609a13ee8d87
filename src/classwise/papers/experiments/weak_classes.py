"""Causes of weak classes: networks, optimisers, features, corruptions, similar logits (plans of benz20)."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import nn

from classwise.analysis.consistency import Consistency, ranked_alike
from classwise.analysis.feature_sets import NonRobustFeatures, RobustFeatures
from classwise.analysis.similarity import Similarity, similarity_of
from classwise.attacks.engine import Engine
from classwise.auditing.run.result import Audit
from classwise.core.compute.float32 import true_float32
from classwise.core.compute.precision import EXACT
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import replacing
from classwise.core.settings.config import configurable
from classwise.data import CORRUPTIONS, corrupt
from classwise.data.images import Images
from classwise.models.modes import evaluating
from classwise.papers.claims import CORRELATION, Measurement, Test, unless
from classwise.papers.experiment import Context, Evaluation, Experiment, Findings, Training, Trainings, pgd_of
from classwise.papers.experiments.class_wise import EVALUATED_UNDER, class_dots
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd, unmet_precondition
from classwise.papers.interval_estimators import Resampled, in_points, negative
from classwise.papers.scales import FASHION, FULL, PLANS, PRELIMINARY, RESNET18, SMOKE, Name, Scale
from classwise.papers.tables import HEADS_OF_BOTH, class_table, estimate_cell, metric_cells
from classwise.reporting import formatting
from classwise.reporting.figures.lines import class_lines, line_chart
from classwise.reporting.figures.points import scatter
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.correlations import Correlation, half_means, random_halves, rank_correlation
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate
from classwise.stats.metrics.discrepancy import mcd_estimate
from classwise.stats.metrics.lowest import worst_class
from classwise.training.folder import Run

ADAM_LR = 1e-3
ADAM: Mapping[str, Any] = {"optimizer": {"name": "adam", "lr": ADAM_LR, "weight_decay": 5e-4}}
"""The optimiser of the recipe ``at-adam``, for standard training."""
CYCLIC_LR = 0.2
"""Maximum learning rate of the cyclic schedule."""
DECAYS: Mapping[Name, Sequence[float]] = {
    "smoke": (5e-4, 1e-3),
    "small": (0, 5e-4, 1e-3),
    "full": (0, 1e-4, 2e-4, 5e-4, 1e-3),
}
WIDTH, FULL_WIDTH = 0.125, ("lenet",)
"""Width factor of the networks at small scale, and the networks that keep their width."""
SMOKE_NETWORK = "lenet"
"""Network used for all of them at smoke scale: deep networks reduce an 8x8 image to one or two pixels."""
SCALES: Mapping[Name, Scale] = {
    "smoke": replace(SMOKE, about=f"{SMOKE.about}; {SMOKE_NETWORK} replaces every network"),
    "small": replace(
        FASHION,
        about="4,000 images of Fashion-MNIST, Linf 0.05, networks of an eighth of their width (LeNet and the reference "
        "at full width), 6 epochs in float32, PGD-3 in training: indicative, with wide intervals",
        train=4000,
        test=1000,
        precision=EXACT,  # the input gradient of VGG and Inception-v3 vanishes in bfloat16
        overrides={
            **FASHION.overrides,
            "precision.dtype": EXACT.dtype,
            "epochs": 6,
            "batch_size": 64,
            "attack.steps": 3,
            "attack.step_size": "0.5eps",
            "validation_attack.steps": 3,
            "validation_attack.step_size": "0.5eps",
        },
    ),
    "full": replace(FULL, about="CIFAR-10, each network at its own width", precision=EXACT),
}


def lr_schedules(scale: Scale) -> Trainings:
    """A stepwise and a cyclic (one triangle) learning rate; one of the two is the recipe's own."""
    if scale.budget == "short":
        return {"cyclic": AT, "stepwise": replace(AT, overrides={"lr_schedule": {"name": "step"}})}
    rate = {} if "optimizer.lr" in scale.overrides else {"optimizer.lr": CYCLIC_LR}
    return {"stepwise": AT, "cyclic": replace(AT, overrides={"lr_schedule": {"name": "cyclic"}, **rate})}


GRIDS: Mapping[str, Callable[[Scale], Trainings]] = {
    # The learning rate of the scale applies to SGD only; the recipe's own weight decay is the unmodified model.
    "optimisers": lambda _: {"SGD": AT, "Adam": Training(recipe="at-adam", overrides={"optimizer.lr": ADAM_LR})},
    "weight decays": lambda scale: {
        f"weight decay {decay:g}": AT if decay == 5e-4 else replace(AT, overrides={"optimizer.weight_decay": decay})
        for decay in scale.entry(DECAYS)
    },
    "learning rates": lr_schedules,
}


@configurable
class WeakClasses(Experiment, scales=PLANS):
    """Adversarial training in several settings: do the rankings of the classes agree?

    Attributes:
        varied: parts of the claim that the grid covers.
        claim: the claim that is tested.
    """

    varied: tuple[str, ...]
    claim: str = "benz20/C4"

    @abstractmethod
    def grids(self, scale: Scale) -> tuple[Trainings, Trainings]:
        """Settings of adversarial and of standard training at a scale; the latter ranks classes by clean accuracy."""

    def covers(self, scale: Scale) -> Sequence[str]:
        """Parts of the claim that the grid of a scale covers."""
        return self.varied

    def trainings(self, scale: Scale) -> Trainings:
        """A training for each setting of the two grids."""
        adversarial, standard = self.grids(scale)
        return {**adversarial, **{f"{name}, standard training": training for name, training in standard.items()}}

    def run(self, context: Context) -> Findings:
        """Attack each model by PGD; test the part of the claim that the grid covers."""
        grids = zip(("adversarial, PGD", "standard, clean"), self.grids(context.scale), strict=True)
        ranked = {name: _ranked(context, grid, name.partition(", ")[2]) for name, grid in grids if grid}
        columns = [agreement for agreement, _ in ranked.values()]
        _, of_models = next(iter(ranked.values()))
        reasons = (unmet_precondition(context.scale, counts) for counts in of_models.values())
        unmet = "; ".join(f"{name}: {reason}" for name, reason in zip(of_models, reasons, strict=True) if reason)
        test = Test(
            claim=self.claim,
            estimand="lowest of Spearman's correlations of class robustness over the grid",
            estimators=[columns[0].lowest_at],
            unit="",
            limits=CORRELATION,
            covers=self.covers(context.scale),
        )
        tests = unless(unmet, [test])
        lowest = [estimate_cell(column.lowest, 1, 2, tests=tests if column is columns[0] else ()) for column in columns]
        rows = [
            Row("lowest pairwise correlation", lowest),
            Row(
                "Kendall's W",
                [Cell(f"{w.value:.2f}", f"p = {w.p_value:.3f}") for w in (column.agreement for column in columns)],
            ),
            Row(
                "weakest classes",
                [Cell(", ".join(dict.fromkeys(map(str, column.extremes["worst"])))) for column in columns],
            ),
        ]
        return Findings(
            tables=(
                Table(
                    "Agreement of the class rankings",
                    ("quantity", *ranked),
                    rows,
                    "95 % confidence interval.",
                ),
                *(
                    class_table(f"Class accuracy, {head}, in percent", counts, context.test_images.class_names)
                    for head, (_, counts) in ranked.items()
                ),
            ),
            figures=[
                (agreement.figure(), f"Spearman's correlation of the class rankings, {head}.")
                for head, (agreement, _) in ranked.items()
            ],
            tests=tests,
        )


def _ranked(context: Context, grid: Trainings, attack: str) -> tuple[Consistency, Mapping[str, ClassCounts]]:
    """Train and audit the models of a grid: the agreement of their class rankings, and the counts of each model."""
    audits = {name: under_pgd(context, model) for name, model in context.train_all(grid).items()}
    agreement = ranked_alike({name: audit.outcomes for name, audit in audits.items()}, {attack: attack})
    return agreement, {name: audit.counts(attack) for name, audit in audits.items()}


@configurable
class Optimisation(WeakClasses):
    """benz20 plan: several settings of the optimisation.

    Attributes:
        varied: names of the grids, of `GRIDS`, whose settings are trained; the unmodified model once.
        with_standard: whether the same settings of standard training are compared, too; never at smoke scale.
    """

    varied: tuple[Literal["optimisers", "weight decays", "learning rates"], ...]
    with_standard: bool = False

    def grids(self, scale: Scale) -> tuple[Trainings, Trainings]:
        """Settings of the grids, with the unmodified model once; of standard training not at smoke scale."""
        settings = {
            name: training
            for key, grid in GRIDS.items()
            if key in self.varied
            for name, training in grid(scale).items()
        }
        unmodified, *others = settings.items()
        adversarial = dict([unmodified, *(other for other in others if other[1] != unmodified[1])])
        if not self.with_standard or scale.name == "smoke":
            return adversarial, {}
        of_recipe = {"at-adam": ADAM}
        return adversarial, {
            name: replace(
                STANDARD, overrides={**STANDARD.overrides, **training.overrides, **of_recipe.get(training.recipe, {})}
            )
            for name, training in adversarial.items()
        }


@configurable
class Networks(WeakClasses, scales=SCALES):
    """benz20 plan: several networks and the reference network of the scale.

    Attributes:
        networks: names of the networks.
    """

    networks: tuple[str, ...]

    def covers(self, scale: Scale) -> Sequence[str]:
        """Names of the networks, or of their substitute at smoke scale."""
        return (SMOKE_NETWORK,) if scale.name == "smoke" else self.varied

    def grids(self, scale: Scale) -> tuple[Trainings, Trainings]:
        """Training of each network; standard training not at smoke scale."""
        return self._each(scale, AT), {} if scale.name == "smoke" else self._each(scale, STANDARD)

    def _each(self, scale: Scale, plain: Training) -> Trainings:
        """Training of each network; that of the reference is unmodified, so that its run is shared."""
        reference = str(scale.overrides.get("model.name", "preactresnet18"))
        chosen = (SMOKE_NETWORK,) if scale.name == "smoke" else self.networks
        width = WIDTH if scale.name == "small" else 1
        own = {name: {"model.name": name, "model.width": 1 if name in FULL_WIDTH else width} for name in chosen}
        others = {name: Training(recipe=plain.recipe, overrides=overrides) for name, overrides in own.items()}
        return {f"{reference} (reference)": plain, **others}


Maker = NonRobustFeatures | RobustFeatures
_LETTERS = 16
_FEWER = replace(FASHION, train=5000, about=FASHION.about.replace("10,000", "5,000"))
IN_L2: Mapping[str, Any] = {f"{attack}.step_size": "0.25eps" for attack in ("attack", "validation_attack")}
"""Steps of adversarial training in an L2 ball."""
ORIGINAL, OWN, MAKER = "trained on the original", "trained on the set", "the set's own network"


def cached_set(path: Path, maker: Maker, trained: Run, images: Images, context: Context) -> Images:
    """Compute a feature set with the model of a run, or load it from its cache file.

    Args:
        path: folder of the cache files.
        maker: construction of the set; the file name is a hash of its settings and the images.
        trained: run that provides the model.
        images: training images.
        context: context of the experiment.
    """
    about = f"{type(maker).__name__} {maker} {images.fingerprint()} {trained.default or ''}".rstrip()
    file = path / f"features-{hashlib.sha256(about.encode()).hexdigest()[:_LETTERS]}.npz"
    if not file.is_file():
        made = maker(trained.model().to(context.device), images.to(context.device), progress=context.progress).to("cpu")
        with replacing(file) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, x=made.x.numpy(), y=made.y.numpy())
    with np.load(file) as arrays:
        pixels, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return images.with_pixels(pixels, f"{images.name}, {type(maker).__name__}").with_labels(labels)


class _FeatureSet(Experiment):
    """Standard training on a set derived from the training images, evaluated on the original test images."""

    makers: ClassVar[Mapping[Name, Maker]]
    sources: ClassVar[Mapping[Name, Training]]
    """The training of the source network, with which the set is constructed."""
    untrained: ClassVar[Sequence[Name]] = ()
    """Scales that train no network on the set and use the source network instead."""

    def trainings(self, scale: Scale) -> Trainings:
        """Standard training on the original images and on the set, and the source network."""
        learner = {} if scale.name in self.untrained else {OWN: replace(STANDARD, images="the constructed set")}
        return {ORIGINAL: STANDARD, MAKER: scale.entry(self.sources), **learner}

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """PGD; and the construction of the set from the training images by the source network."""
        attacked = Evaluation(attacks=pgd_of(scale))
        steps = {"set": {"name": "pgd", "steps": scale.entry(self.makers).steps}}
        return [attacked, Evaluation(attacks=steps, images="train")] if name == MAKER else [attacked]

    def run(self, context: Context) -> Findings:
        """Compare class accuracies with standard training on the original images.

        Which features cause the discrepancy is a question about claim C1; the discrepancy is measured, not tested.
        """
        own = MAKER if context.scale.name in self.untrained else OWN
        declared = self.trainings(context.scale)
        trained = context.train_all({name: declared[name] for name in (ORIGINAL, MAKER)})
        source = trained[MAKER]
        made = cached_set(source.path, context.scale.entry(self.makers), source, context.train_images, context)
        if own == OWN:
            trained |= context.train_all({OWN: declared[OWN]}, images={OWN: made})
        audits = {name: under_pgd(context, trained[name]) for name in (ORIGINAL, own)}
        names = context.test_images.class_names
        clean = [audit.counts("clean") for audit in audits.values()]
        rows = [
            Row(
                name,
                [
                    *metric_cells(counts),
                    *metric_cells(audit.counts("PGD")),
                    Cell(names[worst_class(counts.accuracy).label]),
                ],
            )
            for (name, audit), counts in zip(audits.items(), clean, strict=True)
        ]
        alike = ranked_alike({name: audit.outcomes for name, audit in audits.items()}, {"clean": "clean"})
        order = f"Spearman's correlation of the two class orders, clean: {alike.lowest.value:.2f}"
        if not np.isnan(alike.lowest.low):
            order = f"{order} ({alike.lowest.low:.2f} to {alike.lowest.high:.2f})"
        note = (
            f"{order}; p {formatting.probability(alike.agreement.p_value)}. 95 % confidence intervals for new images."
        )
        drawing = class_dots("Clean accuracy by training images, in percent", clean, list(audits), names)
        return Findings(
            tables=(
                Table(
                    "Original test images, in percent and points",
                    ("model", *HEADS_OF_BOTH, "weakest, clean"),
                    rows,
                    note,
                ),
            ),
            figures=((drawing, "Original test images."),),
            measurements=[
                Measurement.of(
                    "benz20/C1",
                    f"MCD of clean accuracy on the original test images, {name}",
                    in_points(mcd_estimate(counts)),
                )
                for name, counts in zip(audits, clean, strict=True)
            ],
        )


class NonRobust(_FeatureSet):
    """benz20 plan: non-robust features; attacked images with the label that a standard network predicts for them."""

    sources: ClassVar[Mapping[Name, Training]] = {"smoke": STANDARD, "small": STANDARD, "full": STANDARD}

    makers: ClassVar[Mapping[Name, Maker]] = {
        "smoke": NonRobustFeatures(steps=3),
        "small": NonRobustFeatures(epsilon=1.0, steps=40),
        "full": NonRobustFeatures(),
    }
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": SMOKE,
        "small": replace(_FEWER, about=f"{_FEWER.about}; the set by PGD of 40 steps inside an L2 ball of 1"),
        "full": RESNET18,
    }


class Robust(_FeatureSet):
    """benz20 plan, control: images with the features of an adversarially trained network on the originals."""

    untrained = ("smoke",)
    makers: ClassVar[Mapping[Name, Maker]] = {
        "smoke": RobustFeatures(steps=3),
        "small": RobustFeatures(steps=150),
        "full": RobustFeatures(),
    }
    sources: ClassVar[Mapping[Name, Training]] = {
        "smoke": AT,
        "small": replace(AT, overrides={"threat": "L2:1", **IN_L2}),
        "full": replace(AT, overrides={"threat": "L2:0.25", **IN_L2}),
    }
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": replace(
            SMOKE, about=f"{SMOKE.about}; the network that constructs the set replaces a newly trained one"
        ),
        "small": replace(_FEWER, about=f"{_FEWER.about}; the set in 150 steps with a network trained in an L2 ball"),
        "full": RESNET18,
    }


COLOUR = ("saturate",)
"""Corruptions that require three channels."""
GRID: Mapping[Name, tuple[Sequence[str], Sequence[int]]] = {
    "smoke": (("contrast", "fog"), (1, 5)),
    "small": (tuple(CORRUPTIONS), (1, 3, 5)),
    "full": (tuple(CORRUPTIONS), (1, 2, 3, 4, 5)),
}
"""Corruptions and severities; the plan names fog and contrast."""
MODELS: Mapping[str, Training] = {"standard": STANDARD, "adversarial": AT}


@dataclass(frozen=True, eq=False)
class Corrupted:
    """Predictions of a model on corrupted images.

    Attributes:
        correct: (corruption, severity) to (N,) bool, whether the prediction is correct.
        labels: (N,) int64.
        names: class names.
    """

    correct: Mapping[tuple[str, int], BoolArray]
    labels: np.ndarray[tuple[int], np.dtype[np.int64]]
    names: tuple[str, ...]

    def counts(self, severity: int) -> ClassCounts:
        """Per-class counts over all corruptions at a severity; each image counts once per corruption."""
        rows = [right for (_, level), right in self.correct.items() if level == severity]
        each = [ClassCounts.from_labels(self.labels, right, len(self.names)) for right in rows]
        return sum(each[1:], start=each[0])


def evaluate_corruptions(context: Context, trained: Run) -> Corrupted:
    """Evaluate the model of a run on the test images under every corruption and severity of the scale."""
    images = context.test_images
    context.note_audit(images, {})
    engine = Engine(trained.model().to(context.device), precision=context.scale.precision)

    def right(corrupt_images: Images) -> BoolArray:
        batches = corrupt_images.to(torch.device(context.device)).batches(engine.batch_size)
        predicted = torch.cat([logits.argmax(1).cpu() for logits in engine.predict(batch.x for batch in batches)])
        correct: BoolArray = (predicted == images.y).numpy()
        return correct

    kinds, severities = context.scale.entry(GRID)
    applicable = [kind for kind in kinds if kind not in COLOUR or images.shape[0] == 3]
    correct = {(kind, level): right(corrupt(images, kind, level)) for kind in applicable for level in severities}
    return Corrupted(correct, images.y.numpy(), tuple(images.class_names))


class _Corrupted(Experiment, scales=PRELIMINARY, trainings=MODELS):
    """An experiment that evaluates both models on corrupted images."""

    def evaluations(self, scale: Scale, name: str, training: Training) -> Sequence[Evaluation]:
        """Each corruption and severity without attack, and PGD."""
        corruptions, severities = scale.entry(GRID)
        clean = Evaluation(attacks={}, weights=len(corruptions) * len(severities))
        return [clean, Evaluation(attacks=pgd_of(scale))]


class ClassesUnderCorruptions(_Corrupted):
    """benz20 plan: class accuracy under corruptions, of a standard and an adversarially trained model."""

    def run(self, context: Context) -> Findings:
        """Draw class accuracies over the severity, averaged over corruptions, and tabulate each corruption.

        The gap between the classes is a measurement for the open question C10.
        """
        tables, figures, measurements = [], [], []
        _, severities = context.scale.entry(GRID)
        for name, trained in context.train_all(MODELS).items():
            predictions = evaluate_corruptions(context, trained)
            lines = pd.DataFrame(
                [predictions.counts(at).accuracy for at in severities], list(severities), list(predictions.names)
            )
            title = f"{name.capitalize()} model: accuracy under corruptions, in percent"
            figures.append((line_chart(title, class_lines(lines), "severity"), "Mean over all corruptions."))
            counts = {
                f"{kind}, severity {level}": ClassCounts.from_labels(predictions.labels, right, len(predictions.names))
                for (kind, level), right in predictions.correct.items()
                if level == severities[-1]
            }
            tables.append(class_table(f"{name.capitalize()} model, by class, in percent", counts, predictions.names))
            rows = Resampled(np.stack([*predictions.correct.values()]), predictions.labels, len(predictions.names))
            mcd = rows.part(lambda a: np.ptp(a.mean(axis=-2), axis=-1), 100)(0.05)
            quantity = f"MCD of the accuracy under corruptions, mean over kinds and severities, {name} model"
            measurements.append(Measurement.of("benz20/C10", quantity, mcd, limits=(0, 100)))
        return Findings(tables=tables, figures=figures, measurements=measurements)


class CorruptionsAndAttacks(_Corrupted):
    """benz20 plan: are the classes weak under corruptions also weak under attack?"""

    def run(self, context: Context) -> Findings:
        """Correlate the ranks of class accuracies under corruptions and under PGD, for the open question C10."""
        models = context.train_all(MODELS)
        attacked = under_pgd(context, models["adversarial"]).outcomes.correct("PGD")
        rows, measurements = [], []
        for name, trained in models.items():
            predictions = evaluate_corruptions(context, trained)
            own = np.stack([*predictions.correct.values()])
            overall = agreement(own, attacked, predictions.labels, len(predictions.names))
            rows.append(Row(f"{name}, all", [estimate_cell(overall, 1, 2)]))
            quantity = f"Spearman's correlation of the classes under corruptions ({name} model) and under PGD"
            measurements.append(Measurement.of("benz20/C10", quantity, overall, unit=""))
            places = np.array([kind for kind, _ in predictions.correct])
            for kind in dict.fromkeys(places.tolist()):
                found = agreement(own[places == kind], attacked, predictions.labels, len(predictions.names))
                rows.append(Row(f"{name}, {kind}", [estimate_cell(found, 1, 2)]))
        note = (
            "Over the classes, averaged over severities. 95 % confidence intervals of the correlation of the true "
            "accuracies. PGD is run on the adversarially trained model."
        )
        table = Table("Rank correlation with robustness", ("model, corruption", "Spearman"), rows, note)
        return Findings(tables=(table,), measurements=measurements)


def agreement(corrupted: BoolArray, attacked: BoolArray, labels: IntArray, num_classes: int) -> Estimate:
    """Spearman's correlation over classes between the mean accuracy of some rows and that of another one.

    Args:
        corrupted: (K, N) true where a prediction is correct.
        attacked: (N,) the same of the other row, on the same images.
        labels: (N,) integers in 0 .. C-1.
        num_classes: C; every class has images.

    Returns:
        The correlation with its interval; 0 if either is constant.
    """
    values = np.stack([corrupted.mean(axis=0), attacked])
    means = np.stack([np.bincount(labels, row, num_classes) for row in values]) / np.bincount(labels)
    found = rank_correlation(means, half_means(values, labels, num_classes, random_halves(labels))).estimate()
    return found if not np.isnan(found.value) else Estimate(0.0, np.nan, np.nan)


BATCH = 256


class SimilarityAndRobustness(Experiment, scales=PRELIMINARY, trainings={"adversarial": AT, "standard": STANDARD}):
    """benz20 plan: correlation of the greatest logit cosine of each class with its accuracy."""

    def run(self, context: Context) -> Findings:
        """Evaluate the adversarial model under PGD and the standard one on clean images; test claim C6."""
        rows, figures, links, unmet = [], [], dict[str, Correlation](), dict[str, str]()
        for name, trained in context.train_all(self.trainings(context.scale)).items():
            attack = EVALUATED_UNDER[name]
            audit = under_pgd(context, trained)
            similarity = _similarity(trained.model().to(context.device), context.test_images, audit, attack)
            assert similarity.link is not None
            assert similarity.ranked is not None
            links[name] = similarity.ranked
            unmet[name] = unmet_precondition(context.scale, audit.counts(attack))
            alike = int(np.nanargmax(similarity.nearest))
            cells = [
                estimate_cell(similarity.ranked.estimate(), 1, 2),
                Cell(formatting.probability(similarity.link.p_value)),
                Cell(f"{similarity.nearest[alike]:.2f}", similarity.class_names[alike]),
            ]
            rows.append(Row(f"{name}, {attack}", cells))
            figures.append((similarity.figure(), f"The {name} model, clean images."))
            drawing = scatter(
                "Class accuracy and similarity to the nearest class",
                similarity.class_names,
                similarity.nearest,
                audit.counts(attack).accuracy,
                ("greatest cosine with another class", f"accuracy, {attack}, percent"),
                f"Spearman {similarity.link.value:.2f}",
            )
            figures.append((drawing, f"The {name} model."))
        heads = ("model", "Spearman", "p", "greatest cosine")
        note = (
            "Correlation of each class's greatest cosine with another class and its accuracy. 95 % "
            "confidence "
            "intervals for new images."
        )
        return Findings(
            tables=(Table("Rank correlation of logit similarity and accuracy", heads, rows, note),),
            figures=figures,
            tests=unless(
                unmet["adversarial"],
                [
                    Test(
                        claim="benz20/C6",
                        estimand="minus Spearman's correlation of the greatest cosine and robust accuracy over the "
                        "classes",
                        estimators=[negative(links["adversarial"].estimate)],
                        unit="",
                        limits=CORRELATION,
                        note="one adversarial training; uses the greatest cosine, where the plan may mean the average",
                    )
                ],
            ),
        )


def _similarity(model: nn.Module, images: Images, audit: Audit, attack: str) -> Similarity:
    outcomes, order = audit.outcomes, torch.argsort(images.index)
    if not np.array_equal(images.index[order].cpu().numpy(), outcomes.index):
        raise ClasswiseError("the audit evaluated other images than the given ones; give the images that it evaluated")
    logits = clean_logits(model, images.take(order))
    return similarity_of(logits, outcomes.labels, images.class_names, outcomes.correct(attack))


def clean_logits(model: nn.Module, images: Images) -> FloatArray:
    """Logits of a model in evaluation mode, float64 (N, C), in the order of the images."""
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad(), true_float32(device):
        forward = EXACT.forward(model)
        parts = [forward(batch.x.to(device)).double().cpu() for batch in images.batches(BATCH)]
    logits: FloatArray = torch.cat(parts).numpy()
    return logits
