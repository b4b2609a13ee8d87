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
        "kdd21/F3b-d": "classwise.papers.kdd21.steps:MartAndTemperature",
        "kdd21/F4a": "classwise.papers.kdd21.homing:MisclassifiedMatrix",
        "kdd21/F4b": "classwise.papers.kdd21.homing:HomingMatrix",
        "kdd21/F4c": "classwise.papers.kdd21.beta:BetaOfOneClass",
        "kdd21/F5a": "classwise.papers.kdd21.coloured:PictureOfDigits",
        "kdd21/F5bc": "classwise.papers.kdd21.coloured:ColouredBackgrounds",
        "kdd21/F6": "classwise.papers.kdd21.white:SingleImages",
        "kdd21/T1": "classwise.papers.kdd21.attacks:DefencesByAttacks",
        "kdd21/T3": "classwise.papers.kdd21.temperature:Temperature",
        "kdd21/T4": "classwise.papers.kdd21.white:WhiteBackground",
        "kdd21/E3": "classwise.papers.kdd21.attacks:RankConsistency",
        "kdd21/E4": "classwise.papers.kdd21.attacks:WhiteBoxDrop",
        "kdd21/E5": "classwise.papers.kdd21.attacks:BlackBoxDrop",
        "kdd21/E1": "classwise.papers.iclr21.gap:LargerGaps",
        "kdd21/E2": "classwise.papers.kdd21.confusion:Symmetry",
        "kdd21/E6": "classwise.papers.iclr21.temperatures:TemperatureGrid",
        "kdd21/E7": "classwise.papers.kdd21.sensitivity:SmoothVulnerableSensitive",
        "kdd21/E8": "classwise.papers.kdd21.homing:GroupRelations",
        "kdd21/E9": "classwise.papers.kdd21.brightness:SortedByConfidence",
        "kdd21/E10": "classwise.papers.kdd21.coloured:BackgroundsAndStandardTraining",
        "iclr21/T4": "classwise.papers.iclr21.temperatures:TemperatureAblation",
        "iclr21/T5": "classwise.papers.iclr21.hypersphere:Hypersphere",
        "iclr21/T6": "classwise.papers.iclr21.hypersphere:LargeTemperatures",
        "iclr21/F4": "classwise.papers.iclr21.norms:NormsAndRobustness",
        "iclr21/F5a": "classwise.papers.kdd21.smoothness:ConfidencesOfVariants",
        "iclr21/F5b-d": "classwise.papers.kdd21.steps:MadryAndMart",
        "iclr21/F5e": "classwise.papers.kdd21.smoothness:ConfidencesOnTheSphere",
        "iclr21/F5f-h": "classwise.papers.kdd21.steps:HypersphereAndTemperature",
        "iclr21/F6": "classwise.papers.iclr21.spread:RobustnessHistogram",
        "iclr21/F7": "classwise.papers.iclr21.gap:StandardAgainstAdversarial",
        "iclr21/E1": "classwise.papers.iclr21.norms:NormsOfRobustModels",
        "iclr21/E2": "classwise.papers.iclr21.norms:NormsOfStandardModels",
        "iclr21/E3": "classwise.papers.iclr21.gap:ClassOrder",
        "benz20/F1": "classwise.papers.benz20.standard:StandardModel",
        "benz20/F2": "classwise.papers.iclr21.gap:AdversarialModel",
        "benz20/P1.1": "classwise.papers.benz20.data_sets:DataSets",
        "benz20/P1.3": "classwise.papers.benz20.networks:LeNets",
        "benz20/P1.4": "classwise.papers.benz20.networks:VGGs",
        "benz20/P1.5": "classwise.papers.benz20.networks:ResNets",
        "benz20/P1.6": "classwise.papers.benz20.networks:DenseNets",
        "benz20/P1.7": "classwise.papers.benz20.networks:Inceptions",
        "benz20/P1.8": "classwise.papers.benz20.plans:Optimisers",
        "benz20/P1.9": "classwise.papers.benz20.plans:Rates",
        "benz20/P1.10": "classwise.papers.benz20.plans:WeightDecays",
        "benz20/P1.11": "classwise.papers.benz20.plans:ClassTrend",
        "benz20/P2.1": "classwise.papers.benz20.networks:AllNetworks",
        "benz20/P2.2": "classwise.papers.benz20.plans:Optimisation",
        "benz20/P2.3": "classwise.papers.kdd21.confusion:ConfusedLabels",
        "benz20/P2.4": "classwise.papers.benz20.similarity:SimilarityAndRobustness",
        "benz20/P2.5": "classwise.papers.benz20.features:NonRobust",
        "benz20/P2.6": "classwise.papers.benz20.features:Robust",
        "benz20/P3.1": "classwise.papers.benz20.long_tail:ClassWeighted",
        "benz20/P3.2": "classwise.papers.benz20.long_tail:EqualClasses",
        "benz20/P3.3": "classwise.papers.benz20.long_tail:OneClass",
        "benz20/P3.4": "classwise.papers.benz20.long_tail:EffectiveNumbers",
        "benz20/P3.5": "classwise.papers.benz20.long_tail:LargeMargins",
        "benz20/P3.6": "classwise.papers.benz20.long_tail:Resampling",
        "benz20/P3.7": "classwise.papers.benz20.long_tail:CosinePenalty",
        "benz20/P3.8": "classwise.papers.benz20.long_tail:TowardsWeakest",
        "cfa23/F1": "classwise.papers.cfa23.toy:Toy",
        "cfa23/F2a": "classwise.papers.cfa23.sweeps:RadiusSweep",
        "cfa23/F2bc": "classwise.papers.cfa23.sweeps:RadiusSweepByClass",
        "cfa23/F3": "classwise.papers.cfa23.sweeps:BetaSweep",
        "cfa23/F4": "classwise.papers.cfa23.fluctuation:Fluctuation",
        "cfa23/F5": "classwise.papers.cfa23.lambdas:MarginBase",
        "cfa23/F7": "classwise.papers.cfa23.lambdas:RegularisationBase",
        "cfa23/T1": "classwise.papers.cfa23.methods:MainTable",
        "cfa23/T2": "classwise.papers.cfa23.parts:CalibrationAlone",
        "cfa23/T3": "classwise.papers.cfa23.parts:AveragingAlone",
    },
)
"""The tables, figures, experiments and plans that run, by the id of their item."""
