"""Defences, attacks, scales and estimates with the settings of kdd21 and iclr21, shared by experiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from classwise.attacks.gradient.ascent import TEMPERATURES
from classwise.auditing.evaluation.evaluation import Tensors
from classwise.auditing.outcomes.table import CLEAN, Outcomes
from classwise.auditing.run.result import Audit
from classwise.core.settings.config import describe
from classwise.data.images import Images
from classwise.papers.experiment import Context, Training, recipe_at
from classwise.papers.interval_estimators import (
    IntervalEstimator,
    Resampled,
    Statistic,
    averaged,
    greatest,
    wider,
)
from classwise.papers.scales import CIFAR, CLASSWISE, DEFAULT_SCALES, FASHION, FULL, Name, Scale
from classwise.reporting.formatting import NONE
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import BoolArray, ClassCounts, FloatArray, IntArray
from classwise.stats.intervals import Estimate, proportion_estimate, proportion_interval
from classwise.stats.resampling import halves
from classwise.stats.stratified import sum_of_class_means
from classwise.training import SCHEDULES
from classwise.training.folder import Run, Which
from classwise.training.recipe import Recipe

STANDARD = Training(recipe="standard", overrides={"seed": 1})
"""Standard training; its seed differs from that of the robust models, since it is also the substitute of transfer."""
AT = Training(recipe="at")
DEFENCES: Mapping[str, Training] = {
    "Madry": AT,
    "TRADES": Training(recipe="trades"),
    "MART": Training(recipe="mart"),
    "HE": Training(recipe="he"),
}
"""The four defences of kdd21 with an equal budget."""
_ALL_IMAGES = {"data.validation": 0}
"""No validation split, for trainings with a fixed epoch."""
PUBLISHED: Mapping[str, Training] = {
    "Madry": Training(recipe="madry-wrn", overrides=_ALL_IMAGES),
    "TRADES": Training(recipe="trades-wrn", overrides=_ALL_IMAGES),
    "MART": Training(recipe="mart-wrn"),
    "HE": Training(recipe="he-wrn", overrides=_ALL_IMAGES),
}
"""The four defences of kdd21, each with the settings of its own paper for WideResNet-34-10.

MART's authors evaluate the best epoch, which is selected on a validation split here.
"""
CAR, CAT = 1, 3
"""The most robust and the most vulnerable class of CIFAR-10 in the papers."""
VULNERABLE, ROBUST = (2, 3, 4, 5), (0, 1, 6, 7, 8, 9)
"""The classes of CIFAR-10 below and above the total under PGD, for all four defences of the papers."""
RADIUS = "Linf:0.031"
"""The radius of the papers on CIFAR-10, to which the absolute step sizes belong."""
SCALES: Mapping[Name, Scale] = {
    **DEFAULT_SCALES,
    "full": replace(
        FULL,
        about="WideResNet-34-10 on CIFAR-10, each defence with the settings of its own paper",
        threat=RADIUS,
        few=2000,
        overrides={"model.name": "wrn-34-10", "attack.step_size": 0.007, "validation_attack.step_size": 0.007},
    ),
}
"""The tables of defences (kdd21 section 4.3, iclr21 section 3.3)."""
TEMPERATURE_SCALES: Mapping[Name, Scale] = {
    name: replace(scale, about=f"{scale.about}; Temperature-PGD in float32") for name, scale in SCALES.items()
}
"""Temperature-PGD on the models of `SCALES`."""
SPHERE_SCALES: Mapping[Name, Scale] = {**CLASSWISE, "small": FASHION}
"""ResNet-18 with the settings of the class-wise analysis (iclr21 appendix G): an equal budget for all models."""
HARDEST = (3, 4)
"""The classes of CIFAR-10 with the largest drops in the paper."""
FAMILY = "T-PGD"
UNLABELLED_NOTE = (
    "RST: an equal number of further training images without labels replaces the 500,000 unlabelled images of another "
    "source that the method uses."
)
HYPERSPHERE: Mapping[str, Training] = {
    "Madry": AT,
    "HE": Training(recipe="he", overrides={"objective.criterion.margin": 0}),
    "HE-LIS": Training(recipe="he-lis"),
    "HE-CMP": Training(recipe="he-cmp"),
}
"""Appendix G: hypersphere embedding without an angular margin."""
PGD: Mapping[str, Any] = {"name": "pgd", "steps": 20, "step_size": "0.1eps"}
"""PGD of kdd21 A.2, with its step size 0.003 at radius 0.031 as a share of the radius."""
TABLE_STEP, SETUP_STEP, RST_TEST_STEP = 0.003, 0.007, 0.01
"""Step sizes of PGD: tables of defences (kdd21 A.2), class-wise analysis (A.1), and RST (iclr21 appendix E)."""


def defences(scale: Scale) -> Mapping[str, Training]:
    """The four defences of kdd21: at full scale each with the settings of its own paper, otherwise an equal budget."""
    return PUBLISHED if scale.name == "full" else DEFENCES


def substitute(scale: Scale) -> Training:
    """The standard model that transfer attacks use: at full scale the network of the defences and 100 epochs."""
    if scale.name != "full":
        return STANDARD
    schedule = {"name": "step", "milestones": [0.74, 0.89], "gamma": 0.1}
    network = {"model.name": "wrn-34-10", "optimizer.weight_decay": 2e-4, "epochs": 100, "lr_schedule": schedule}
    overrides = {**STANDARD.overrides, **network, "selection": "last", **_ALL_IMAGES}
    return Training(recipe=STANDARD.recipe, overrides=overrides)


def with_rst(scale: Scale) -> Mapping[str, Training]:
    """The four defences of iclr21, and the teacher of RST, which labels `Context.spare_images`."""
    three = {name: defences(scale)[name] for name in ("Madry", "TRADES", "MART")}
    network = {"model.name": "wrn-28-10"} if scale.as_published else {}
    chosen = {"selection": "last", **_ALL_IMAGES} if scale.name == "full" else {}  # the authors' public model
    rst = Training(recipe="rst", overrides={**network, **chosen}, teacher="standard")
    return {**three, "standard": substitute(scale), "RST": rst}


def pgd(context: Context, step: float = TABLE_STEP, steps: int = 20) -> dict[str, Any]:
    """Spec of PGD with a step size of the papers.

    Args:
        context: the scale. At the radius of the papers the step size is absolute; at others it is the same share of the
            radius. A scale with `attack_steps` has its own steps.
        step: step size at radius 0.031.
        steps: number of steps.
    """
    at_radius = context.scale.threat == RADIUS
    size: float | str = step if at_radius else f"{round(step / float(RADIUS.partition(':')[2]), 2):g}eps"
    return context.pgd({**PGD, "steps": steps, "step_size": size})


def under_pgd(
    context: Context,
    trained: Run,
    *,
    step: float = SETUP_STEP,
    which: Which | None = None,
    save: Sequence[Tensors] = (),
    images: Images | None = None,
) -> Audit:
    """Audit a run under PGD, of 20 steps in the papers, on the test images or others.

    Args:
        context: the scale.
        trained: the run.
        step: step size at radius 0.031; that of the class-wise analysis by default.
        which: the saved weights; None for the default of the run.
        save: tensors to save for every image.
        images: test images; None for those of the scale.
    """
    return context.audit(trained, {"PGD": pgd(context, step)}, which=which, save=save, images=images)


def pgd_name(outcomes: Outcomes, attack: str = "PGD") -> str:
    """Name of PGD with the steps that it ran, such as ``PGD-20``.

    Args:
        outcomes: outcomes under it.
        attack: its label there.
    """
    spec = outcomes.meta.attacks[attack]
    assert spec is not None
    return f"PGD-{spec['steps']}"


def tpgd(context: Context, inverse: float, step: float = TABLE_STEP) -> dict[str, Any]:
    """Spec of Temperature-PGD at one 1/T, in the paper's arithmetic (float32)."""
    return {**pgd(context, step), "name": "tpgd", "inverse_temperature": inverse, "arithmetic": "paper"}


def temperature_grid(
    context: Context, temperatures: Sequence[float] = TEMPERATURES, step: float = TABLE_STEP
) -> dict[str, dict[str, Any]]:
    """Specs of PGD, and of Temperature-PGD at each 1/T, named by 1/T; the grid of the paper by default."""
    return {"PGD": pgd(context, step), **{f"{inverse:g}": tpgd(context, inverse, step) for inverse in temperatures}}


def audit_temperatures(
    context: Context, models: Mapping[str, Run], temperatures: Sequence[float], step: float = TABLE_STEP
) -> dict[str, Outcomes]:
    """Audit models under PGD and under Temperature-PGD at each 1/T, which form a family of attacks."""
    families = {FAMILY: tuple(f"{inverse:g}" for inverse in temperatures)}
    outcomes = {}
    for name, trained in models.items():
        table = context.audit(trained, temperature_grid(context, temperatures, step)).outcomes
        outcomes[name] = Outcomes(table.frame, dataclasses.replace(table.meta, families=families))
    return outcomes


EXEMPT: Sequence[Name] = ("smoke",)
"""Scales without preconditions: their numbers mean nothing."""
LEAST_IMAGES = 50
"""Test images of a class below which there are intervals but no verdict about classes."""
BEYOND_CHANCE = 2
"""Multiple of chance that a total, or the clean accuracy of a single class, must exceed for a verdict."""
RECOGNISED = 0.5
"""Least clean accuracy of a single class for a verdict about what changes its images."""


def unmet_precondition(scale: Scale, counts: ClassCounts) -> str:
    """The reason why images or a model allow intervals but no verdict about classes; empty if they allow one.

    Args:
        scale: the scale.
        counts: per-class counts of the model on the images of the claim.
    """
    if scale.name in EXEMPT:
        return ""
    least = int(counts.count[counts.present].min())
    if least < LEAST_IMAGES:
        return f"{least} test images in a class, fewer than {LEAST_IMAGES}"
    chance = BEYOND_CHANCE / int(counts.present.sum())
    low, _ = proportion_interval(counts.correct.sum(), counts.count.sum())
    return f"the total is not above {BEYOND_CHANCE} times chance ({100 * chance:.3g} percent)" if low <= chance else ""


def unmet_preconditions(scale: Scale, tables: Mapping[str, Outcomes], attack: str = "PGD") -> dict[str, str]:
    """Models with an `unmet_precondition` under an attack, to a reason that names the model.

    Args:
        scale: the scale.
        tables: outcomes by the name of the model.
        attack: name of the attack, or ``clean``.
    """
    reasons = {name: unmet_precondition(scale, table.counts(attack)) for name, table in tables.items()}
    return {name: f"{name}: {reason}" for name, reason in reasons.items() if reason}


def unrecognised(scale: Scale, table: Outcomes, label: int) -> str:
    """The reason why the images of a class allow no verdict about what changes them; empty if they allow one.

    A model must recognise the class: its accuracy on clean images is above `BEYOND_CHANCE` times chance and at least
    `RECOGNISED`.

    Args:
        scale: the scale.
        table: outcomes of the model.
        label: label of the class.
    """
    correct = table.correct(CLEAN)[table.labels == label]
    if scale.name in EXEMPT:
        return ""
    if len(correct) < LEAST_IMAGES:
        return f"{len(correct)} test images of the class, fewer than {LEAST_IMAGES}"
    found, chance = proportion(correct), BEYOND_CHANCE / table.num_classes
    if found.low > chance and found.value >= RECOGNISED:
        return ""
    return (
        f"{correct.sum()} of {len(correct)} clean images of the class are correct; a verdict requires half of them and "
        f"more than {BEYOND_CHANCE} times chance"
    )


def settings_table(scale: Scale, trainings: Mapping[str, Training]) -> Table:
    """Table of the training settings of each model: network, budget, optimiser, loss and attack.

    Args:
        scale: the scale.
        trainings: declared trainings by the name of the model.
    """
    heads = ("model", "recipe", "network", "epochs", "batch", "learning rate", "schedule", "weight decay", "loss")
    rows = [
        Row(name, [Cell(text) for text in _settings(recipe_at(scale, training))])
        for name, training in trainings.items()
    ]
    note = "Learning-rate drops are shares of the epochs. The attack is that of training."
    return Table("Settings of the trainings", (*heads, "threat", "attack"), rows, note)


def _settings(recipe: Recipe) -> list[str]:
    """Cells of a row of `settings_table`."""
    parts = recipe.parts
    assert parts.threat is not None, "set by the scale"
    whole = recipe.completed(parts.threat)
    optimiser, schedule, loss, attack = (
        dict(part) if isinstance(part, Mapping) else {"name": part}
        for part in (whole.optimizer, whole.lr_schedule, whole.objective, whole.attack)
    )
    width = f", width {recipe.model.width:g}" if recipe.model.width != 1 else ""
    return [
        recipe.name,
        f"{recipe.model.name}{width}",
        str(recipe.epochs),
        str(recipe.batch_size),
        f"{optimiser['lr']:g}",
        _options(schedule),
        f"{optimiser['weight_decay']:g}",
        "; ".join([_options(loss), *(_options(describe(SCHEDULES, part)) for part in parts.schedules)]),
        str(recipe.threat),
        _options({key: attack[key] for key in ("name", "steps", "step_size")}) if parts.objective.attacks else NONE,
    ]


def _options(part: Mapping[str, Any]) -> str:
    """A part in words: ``trades, beta 6``."""
    words = [str(part["name"])]
    for key, value in part.items():
        if isinstance(value, Mapping):
            words.append(_options(value))
        elif key != "name" and value not in (None, False):
            shown = [f"{element:.3g}" if isinstance(element, float) else str(element) for element in _listed(value)]
            words.append(f"{key.replace('_', ' ')} {' '.join(shown)}")
    return ", ".join(words)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def unlabelled_note(context: Context, trainings: Mapping[str, Training]) -> str:
    """Note on the source of the unlabelled images of RST; empty without it."""
    if "RST" not in trainings:
        return ""
    return (
        UNLABELLED_NOTE
        if context.spare_images is not None
        else "RST: the unlabelled images are read from unlabelled.npz."
    )


def proportion(where: BoolArray) -> Estimate:
    """Share of true values with its 95 % `proportion_interval`.

    Args:
        where: (N,) bool.
    """
    return proportion_estimate(where.sum(), len(where))


def mean(values: FloatArray, low: float = 0.0, high: float = 1.0) -> Estimate:
    """Mean with its 95 % interval (`classwise.stats.stratified.sum_of_class_means`).

    Args:
        values: (N,), at least one.
        low: the least possible value.
        high: the greatest possible value.
    """
    return sum_of_class_means(values, np.zeros(len(values), dtype=np.int64), [low], [high])


def resampled(table: Outcomes, attacks: Sequence[str]) -> Resampled:
    """Resample attacks on the same images jointly, a row for each attack."""
    return Resampled(np.stack([table.correct(attack) for attack in attacks]), table.labels, table.num_classes)


def largest_drop(table: Outcomes, attacks: Sequence[str]) -> IntervalEstimator:
    """Largest drop of the total from the first attack to any of the others, in points."""
    images = resampled(table, attacks)
    return greatest([images.total(0, place) for place in range(1, len(attacks))])


def paired_models(one: Audit, other: Audit, attack: str = "all") -> Resampled:
    """Resample two models on the same images jointly."""
    return resampled_models([one.outcomes, other.outcomes], attack)


def resampled_models(tables: Sequence[Outcomes], attack: str) -> Resampled:
    """Resample models on the same images jointly, a row for each model."""
    return Resampled(np.stack([table.correct(attack) for table in tables]), tables[0].labels, tables[0].num_classes)


def strongest(table: Outcomes, attacks: Sequence[str], where: BoolArray | None = None) -> str:
    """The attack with the lowest robust accuracy; the first at a tie.

    Args:
        table: outcomes of the attacks on the same images.
        attacks: names of the attacks.
        where: (N,) the images that are counted; None for all.
    """
    return min(attacks, key=lambda name: int(table.correct(name)[slice(None) if where is None else where].sum()))


@dataclass(frozen=True)
class Selected:
    """The strongest of several attacks, selected on one half of the images and evaluated on the other.

    Attributes:
        attack: name of the selected attack.
        images: the images of the other half under the selected attack (row 0) and the baseline (row 1).
    """

    attack: str
    images: Resampled

    def variance_change(self) -> IntervalEstimator:
        """CV under the attack minus that under the baseline, in percent squared, without the bias of the plug-in CV."""

        def unbiased(accuracy: FloatArray) -> FloatArray:
            classes = accuracy.shape[-1]
            noise = accuracy * (1 - accuracy) / np.maximum(self.images.count - 1, 1)
            return np.asarray(accuracy.var(axis=-1) - (1 - 1 / classes) * noise.mean(axis=-1))

        return self.images.part(lambda a: unbiased(a[..., 0, :]) - unbiased(a[..., 1, :]), 1e4)

    def discrepancy_change(self) -> IntervalEstimator:
        """MCD under the attack minus that under the baseline, in points."""
        labels, classes = self.images.labels, len(self.images.count)
        attacked, plain = (ClassCounts.from_labels(labels, row, classes) for row in self.images.right)
        return wider(attacked, plain)


def select_on_halves(table: Outcomes, attacks: Sequence[str], baseline: str, seed: int = 0) -> tuple[Selected, ...]:
    """Select the strongest attack on each half of the images, and evaluate it on the other half.

    An attack that is selected on the images on which it is evaluated looks stronger than it is. Given the selection on
    the other half, an estimate on one half is as valid as for an attack that was fixed in advance; the mean over both
    halves has the interval of `averaged`, since the two selections make the halves dependent.

    Args:
        table: outcomes of the attacks on the same images.
        attacks: names of the attacks to select from.
        baseline: the attack that they are compared with.
        seed: seed of the halves.
    """
    first = halves(table.labels, seed)
    selected = []
    for selection, evaluation in ((first, ~first), (~first, first)):
        attack = strongest(table, attacks, selection)
        rows = np.stack([table.correct(name)[evaluation] for name in (attack, baseline)])
        selected.append(Selected(attack, Resampled(rows, table.labels[evaluation], table.num_classes)))
    return tuple(selected)


def mean_of_halves(selected: Sequence[Selected], statistic: Statistic, scale: float = 100) -> IntervalEstimator:
    """Mean over the halves of a statistic of the class accuracies (..., 2, C), times ``scale`` (100 for points)."""
    return averaged([half.images.part(statistic, scale) for half in selected])


_FIRST = (3, 8, 8, 0, 6, 6, 1, 6, 3, 1)
"""Labels of the first test images of CIFAR-10 in the official files; re-packed data sets have another order."""
_TEST_IMAGES = 10_000


def official(images: Images) -> bool:
    """Whether the images are the full test set of CIFAR-10 in the order of the official files."""
    start = images.y[: len(_FIRST)].tolist()
    return images.name == CIFAR and len(images) == _TEST_IMAGES and start == list(_FIRST)


def choose_image(
    images: Images, number: int, candidates: Sequence[int] | IntArray, otherwise: int | None = None
) -> tuple[int, str]:
    """Choose the image that a paper names if it can be identified, else the first candidate, else ``otherwise``.

    Args:
        images: test images.
        number: the paper's image index.
        candidates: indices of images with the property that the paper shows, best first.
        otherwise: index of the image to show if there is no candidate; None for the first test image.

    Returns:
        The index of an image, and a sentence that explains the choice.
    """
    if official(images):
        return number, f"Image {number} of CIFAR-10's test set, as in the paper."
    reason = f"Image {number} of the paper can be identified only in the official order of CIFAR-10's full test set"
    if len(candidates):
        first = int(np.asarray(candidates)[0])
        return first, f"{reason}; shown is image {first}, the first with the same property."
    shown = int(images.index[0]) if otherwise is None else otherwise
    return shown, f"{reason}; no image here has the same property, and image {shown} is shown."
