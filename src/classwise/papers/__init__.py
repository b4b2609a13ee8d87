"""The four papers by name: what each item is, what covers it, and experiments that redo tables, figures and claims.

An experiment is one class, registered here in one line under its item's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.registry import Registry

if TYPE_CHECKING:
    from classwise.papers.experiment import Experiment

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    {
        "kdd21/F1": "classwise.papers.kdd21.gaps:GapsOverEpochs",
        "kdd21/F2": "classwise.papers.kdd21.confusion:ConfusionUnderAttack",
        "kdd21/F3a": "classwise.papers.kdd21.smoothness:ConfidencesOfDefences",
        "kdd21/F4a": "classwise.papers.kdd21.homing:MisclassifiedMatrix",
        "kdd21/F4b": "classwise.papers.kdd21.homing:HomingMatrix",
        "kdd21/F5bc": "classwise.papers.kdd21.coloured:ColouredBackgrounds",
        "kdd21/T1": "classwise.papers.kdd21.attacks:DefencesByAttacks",
        "kdd21/T3": "classwise.papers.kdd21.temperature:Temperature",
        "kdd21/E3": "classwise.papers.kdd21.attacks:RankConsistency",
        "kdd21/E4": "classwise.papers.kdd21.attacks:WhiteBoxDrop",
        "kdd21/E5": "classwise.papers.kdd21.attacks:BlackBoxDrop",
        "kdd21/E1": "classwise.papers.iclr21.gap:LargerGaps",
        "kdd21/E2": "classwise.papers.kdd21.confusion:Symmetry",
        "kdd21/E6": "classwise.papers.iclr21.temperatures:TemperatureGrid",
        "iclr21/T2": "classwise.papers.iclr21.self_training:DefencesWithRST",
        "iclr21/T3": "classwise.papers.iclr21.self_training:ChosenTemperatures",
        "iclr21/T4": "classwise.papers.iclr21.temperatures:TemperatureAblation",
        "iclr21/T5": "classwise.papers.iclr21.hypersphere:Hypersphere",
        "iclr21/T6": "classwise.papers.iclr21.hypersphere:LargeTemperatures",
        "iclr21/F4": "classwise.papers.iclr21.norms:NormsAndRobustness",
        "iclr21/F5a": "classwise.papers.kdd21.smoothness:ConfidencesOfVariants",
        "iclr21/F5e": "classwise.papers.kdd21.smoothness:ConfidencesOnTheSphere",
        "iclr21/F6": "classwise.papers.iclr21.spread:RobustnessHistogram",
        "iclr21/F7": "classwise.papers.iclr21.gap:StandardAgainstAdversarial",
        "iclr21/E1": "classwise.papers.iclr21.norms:NormsOfRobustModels",
        "iclr21/E2": "classwise.papers.iclr21.norms:NormsOfStandardModels",
        "iclr21/E3": "classwise.papers.iclr21.gap:ClassOrder",
        "iclr21/F8": "classwise.papers.iclr21.features:FeaturesOnAPlane",
        "iclr21/F9": "classwise.papers.iclr21.softmax:Sketch",
        "iclr21/E4": "classwise.papers.iclr21.softmax:GradientOfWeights",
        "iclr21/E5": "classwise.papers.iclr21.temperatures:SmoothLabels",
        "iclr21/E6": "classwise.papers.iclr21.strength:HiddenGradients",
        "iclr21/E7": "classwise.papers.iclr21.balance:EqualNorms",
        "benz20/F2": "classwise.papers.iclr21.gap:AdversarialModel",
        "benz20/P1.8": "classwise.papers.benz20.plans:Optimisers",
        "benz20/P1.10": "classwise.papers.benz20.plans:WeightDecays",
        "benz20/P1.11": "classwise.papers.benz20.plans:ClassTrend",
        "benz20/P2.2": "classwise.papers.benz20.plans:Optimisation",
        "benz20/P2.3": "classwise.papers.kdd21.confusion:ConfusedLabels",
        "benz20/P4.1": "classwise.papers.benz20.corruptions:ClassesUnderCorruptions",
        "benz20/P4.2": "classwise.papers.benz20.corruptions:CorruptionsAndAttacks",
        "cfa23/F1": "classwise.papers.cfa23.toy:Toy",
        "cfa23/F2a": "classwise.papers.cfa23.sweeps:RadiusSweep",
        "cfa23/F2bc": "classwise.papers.cfa23.sweeps:RadiusSweepByClass",
        "cfa23/F3": "classwise.papers.cfa23.sweeps:BetaSweep",
        "cfa23/F4": "classwise.papers.cfa23.fluctuation:Fluctuation",
        "cfa23/F5": "classwise.papers.cfa23.lambdas:MarginBase",
        "cfa23/F6": "classwise.papers.cfa23.classes:ClassesOfAverages",
        "cfa23/F7": "classwise.papers.cfa23.lambdas:RegularisationBase",
        "cfa23/T1": "classwise.papers.cfa23.methods:MainTable",
        "cfa23/T2": "classwise.papers.cfa23.parts:CalibrationAlone",
        "cfa23/T3": "classwise.papers.cfa23.parts:AveragingAlone",
        "cfa23/T4": "classwise.papers.cfa23.classes:TinyImageNet",
        "cfa23/E1": "classwise.papers.cfa23.selections:UnfairChoice",
        "cfa23/E2": "classwise.papers.cfa23.classes:FairnessOfFRL",
    },
)
"""The tables, figures, experiments and plans that run, by the id of their item."""
