"""Weak classes across networks and optimisers: benz20/P1.3 to P1.10, P2.1, P2.2."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from classwise.analysis.consistency import Consistency, ranked_alike
from classwise.core.config import configurable
from classwise.core.precision import EXACT
from classwise.papers.claims import CORRELATION, Test
from classwise.papers.context import Context, Training, Trainings
from classwise.papers.experiment import Experiment, Findings
from classwise.papers.experiments.protocol import AT, STANDARD, under_pgd
from classwise.papers.interval_estimators import interval, lowered
from classwise.papers.scales import FASHION, FULL, PLANS, SMOKE, Name, Scale
from classwise.papers.tables import Key, class_table, estimate_cell
from classwise.reporting.tables import Cell, Row, Table
from classwise.stats.counts import ClassCounts

ADAM_LR = 1e-3
ADAM: Mapping[str, Any] = {"optimizer": {"name": "adam", "lr": ADAM_LR, "weight_decay": 5e-4}}
"""The optimiser of the recipe ``at-adam``, for standard training."""
CYCLIC_LR = 0.2
"""Maximum learning rate of the cyclic schedule."""
DECAYS: Mapping[Name, Sequence[float]] = {
    "smoke": (5e-4, 1e-3),
    "reduced": (0, 5e-4, 1e-3),
    "full": (0, 1e-4, 2e-4, 5e-4, 1e-3),
}
WIDTH, FULL_WIDTH = 0.125, ("lenet",)
"""Width factor of the networks at reduced scale, and the networks that keep their width."""
SMOKE_NETWORK = "lenet"
"""Network used for all of them at smoke scale: deep networks reduce an 8x8 image to one or two pixels."""
SCALES: Mapping[Name, Scale] = {
    "smoke": replace(SMOKE, about=f"{SMOKE.about}; {SMOKE_NETWORK} replaces every network"),
    "reduced": replace(
        FASHION,
        about="4,000 images of Fashion-MNIST, Linf 0.05, networks of an eighth of their width (LeNet and the reference "
        "at full width), 6 epochs, PGD-3 in training: indicative, with wide intervals",
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


def optimisers(scale: Scale) -> Trainings:
    """SGD and Adam; the learning rate of the scale applies to SGD only."""
    del scale
    return {"SGD": AT, "Adam": Training(recipe="at-adam", overrides={"optimizer.lr": ADAM_LR})}


def weight_decays(scale: Scale) -> Trainings:
    """Several weight decays; the recipe's own is the unmodified model."""
    return {
        f"weight decay {decay:g}": AT if decay == 5e-4 else replace(AT, overrides={"optimizer.weight_decay": decay})
        for decay in DECAYS[scale.name]
    }


def lr_schedules(scale: Scale) -> Trainings:
    """A stepwise and a cyclic (one triangle) learning rate; one of the two is the recipe's own."""
    if scale.budget == "short":
        return {"cyclic": AT, "stepwise": replace(AT, overrides={"lr_schedule": {"name": "step"}})}
    rate = {} if "optimizer.lr" in scale.overrides else {"optimizer.lr": CYCLIC_LR}
    return {"stepwise": AT, "cyclic": replace(AT, overrides={"lr_schedule": {"name": "cyclic"}, **rate})}


GRIDS: Mapping[str, Callable[[Scale], Trainings]] = {
    "optimisers": optimisers,
    "weight decays": weight_decays,
    "learning rates": lr_schedules,
}


@configurable
class WeakClasses(Experiment):
    """Adversarial training in several settings: do the rankings of the classes agree?

    Attributes:
        varied: parts of claim C4 that the grid covers.
    """

    scales: ClassVar[Mapping[Name, Scale]] = PLANS
    varied: tuple[str, ...]

    @abstractmethod
    def grid(self, scale: Scale) -> Trainings:
        """Settings of adversarial training at a scale."""

    def standard(self, scale: Scale) -> Trainings:
        """Settings of standard training at a scale, whose classes are ranked by clean accuracy; none by default."""
        del scale
        return {}

    def covers(self, scale: Scale) -> Sequence[str]:
        """Parts of claim C4 that the grid of a scale covers."""
        del scale
        return self.varied

    def trainings(self, scale: Scale) -> Trainings:
        """A training for each setting of the two grids."""
        clean = {f"{name}, standard training": training for name, training in self.standard(scale).items()}
        return {**self.grid(scale), **clean}

    def run(self, context: Context) -> Findings:
        """Attack each model by PGD; test the part of claim C4 that the grid covers."""
        robust = _ranked(context, self.grid(context.scale), "PGD")
        columns, sides = [robust.agreement], [robust]
        if standard := self.standard(context.scale):
            sides.append(_ranked(context, standard, "clean"))
            columns.append(sides[1].agreement)
        test = Test(
            claim="benz20/C4",
            estimand="lowest of Spearman's correlations of class robustness over the grid",
            estimators=[lowered(interval(robust.agreement.lowest), CORRELATION[1])],
            unit="",
            limits=CORRELATION,
            note="one training of each; sampling noise lowers the estimate, so the claim cannot be contradicted",
            covers=self.covers(context.scale),
        )
        lowest = [estimate_cell(one.lowest, 1, 2, tests=[test] if one is columns[0] else ()) for one in columns]
        rows = [
            Row("lowest pairwise correlation", lowest),
            Row(
                "Kendall's W", [Cell(f"{w.value:.2f}", f"p = {w.p_value:.3f}") for w in (a.agreement for a in columns)]
            ),
            Row(
                "weakest classes", [Cell(", ".join(dict.fromkeys(map(str, one.extremes["worst"])))) for one in columns]
            ),
        ]
        heads = ("quantity", *("adversarial, PGD", "standard, clean")[: len(sides)])
        captions = [f"Spearman's correlation of the class rankings, {head}." for head in heads[1:]]
        return Findings(
            tables=(
                Table("Agreement of the class rankings", heads, rows, "Small print: 95 % confidence interval."),
                *(
                    class_table(f"Class accuracy, {head}, in percent", one.counts, context.test_images.class_names)
                    for head, one in zip(heads[1:], sides, strict=True)
                ),
            ),
            figures=[(one.figure(), caption) for one, caption in zip(columns, captions, strict=True)],
            tests=[test],
        )


@dataclass(frozen=True)
class _Ranked:
    agreement: Consistency
    counts: Mapping[Key, ClassCounts]


def _ranked(context: Context, grid: Trainings, attack: str) -> _Ranked:
    """Train and audit the models of a grid, and measure the agreement of their class rankings."""
    audits = {name: under_pgd(context, one) for name, one in context.train_all(grid).items()}
    agreement = ranked_alike({name: audit.outcomes for name, audit in audits.items()}, {attack: attack})
    return _Ranked(agreement, {(name,): audit.counts(attack) for name, audit in audits.items()})


@configurable
class Optimisation(WeakClasses):
    """benz20 plan: several settings of the optimisation.

    Attributes:
        varied: names of the grids, of `GRIDS`, whose settings are trained; the unmodified model once.
        with_standard: whether the same settings of standard training are compared, too; never at smoke scale.
    """

    varied: tuple[Literal["optimisers", "weight decays", "learning rates"], ...]
    with_standard: bool = False

    def grid(self, scale: Scale) -> Trainings:
        """Settings of the grids, with the unmodified model once."""
        settings = {name: one for key, grid in GRIDS.items() if key in self.varied for name, one in grid(scale).items()}
        unmodified, *others = settings.items()
        return dict([unmodified, *(one for one in others if one[1] != unmodified[1])])

    def standard(self, scale: Scale) -> Trainings:
        """The same settings of standard training; none at smoke scale."""
        if not self.with_standard or scale.name == "smoke":
            return {}
        of_recipe = {"at-adam": ADAM}
        return {
            name: replace(STANDARD, overrides={**STANDARD.overrides, **one.overrides, **of_recipe.get(one.recipe, {})})
            for name, one in self.grid(scale).items()
        }


@configurable
class Networks(WeakClasses):
    """benz20 plan: several networks and the reference network of the scale.

    Attributes:
        networks: names of the networks.
    """

    networks: tuple[str, ...]
    scales: ClassVar[Mapping[Name, Scale]] = SCALES

    def covers(self, scale: Scale) -> Sequence[str]:
        """Names of the networks, or of their substitute at smoke scale."""
        return (SMOKE_NETWORK,) if scale.name == "smoke" else self.varied

    def grid(self, scale: Scale) -> Trainings:
        """Adversarial training of each network."""
        return self._each(scale, AT)

    def standard(self, scale: Scale) -> Trainings:
        """Standard training of each network; none at smoke scale."""
        return {} if scale.name == "smoke" else self._each(scale, STANDARD)

    def _each(self, scale: Scale, plain: Training) -> Trainings:
        """Training of each network; that of the reference is unmodified, so that its run is shared."""
        reference = str(scale.overrides.get("model.name", "preactresnet18"))
        chosen = (SMOKE_NETWORK,) if scale.name == "smoke" else self.networks
        width = WIDTH if scale.name == "reduced" else 1
        own = {name: {"model.name": name, "model.width": 1 if name in FULL_WIDTH else width} for name in chosen}
        others = {name: Training(recipe=plain.recipe, overrides=overrides) for name, overrides in own.items()}
        return {f"{reference} (reference)": plain, **others}
