"""Training: objective x class schedules x averager x selection, each a part with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classwise.registry import Registry

if TYPE_CHECKING:
    from classwise.training.averaging import Averager
    from classwise.training.criteria import Criterion
    from classwise.training.objectives.base import Objective
    from classwise.training.optimisers import Optimiser
    from classwise.training.rates import Rate
    from classwise.training.schedules.base import ClassSchedule
    from classwise.training.updates import Update

OBJECTIVES: Registry[Objective] = Registry(
    "objective",
    {
        "standard": "classwise.training.objectives.standard:Standard",
        "at": "classwise.training.objectives.adversarial:AdversarialTraining",
        "trades": "classwise.training.objectives.trades:Trades",
        "trix": "classwise.training.objectives.trix:Trix",
        "mart": "classwise.training.objectives.mart:Mart",
        "fat": "classwise.training.objectives.friendly:Friendly",
        "fat-trades": "classwise.training.objectives.friendly:FriendlyTrades",
        "csr": "classwise.training.objectives.csr:ConfusionWeighted",
        "bat": "classwise.training.objectives.balanced:Balanced",
    },
    base="classwise.training.objectives.base:Objective",
    group="classwise.objectives",
)
CRITERIA: Registry[Criterion] = Registry(
    "criterion",
    {
        "softmax": "classwise.training.criteria:Softmax",
        "he": "classwise.training.criteria:Hypersphere",
        "focal": "classwise.training.criteria:Focal",
        "label-smoothing": "classwise.training.criteria:LabelSmoothing",
    },
    base="classwise.training.criteria:Criterion",
)
SCHEDULES: Registry[ClassSchedule] = Registry(
    "schedule",
    {
        "ccm": "classwise.training.schedules.cfa:CCM",
        "ccr": "classwise.training.schedules.cfa:CCR",
        "frl": "classwise.training.schedules.frl:FRL",
        "margins": "classwise.training.schedules.margins:Margins",
        "dafa": "classwise.training.schedules.dafa:DAFA",
        "dafa-average": "classwise.training.schedules.dafa:AverageDAFA",
        "cfol": "classwise.training.schedules.cfol:CFOL",
        "wat": "classwise.training.schedules.wat:WAT",
        "fair-tat": "classwise.training.schedules.fair_tat:FairTAT",
        "class-weights": "classwise.training.schedules.long_tail:ClassWeights",
        "ldam": "classwise.training.schedules.ldam:LDAM",
        "vector-beta": "classwise.training.schedules.vector_beta:VectorBeta",
        "csr": "classwise.training.schedules.csr:ConfusionSpectrum",
        "auto-beta": "classwise.training.schedules.auto_beta:AutoBeta",
        "critical-class": "classwise.training.schedules.critical:CriticalClass",
        "towards-class": "classwise.training.schedules.critical:TowardsClass",
        "lis": "classwise.training.schedules.temperature:LIS",
        "cmp": "classwise.training.schedules.temperature:CMP",
    },
    base="classwise.training.schedules.base:ClassSchedule",
    group="classwise.schedules",
)
AVERAGERS: Registry[Averager] = Registry(
    "averaging",
    {
        "none": "classwise.training.averaging:NoAverage",
        "swa": "classwise.training.averaging:SWA",
        "ema": "classwise.training.averaging:EMA",
        "fawa": "classwise.training.averaging:FAWA",
        "fawa-chart": "classwise.training.averaging:ChartFAWA",
        "fawa-iut": "classwise.training.averaging:IUTFAWA",
    },
    base="classwise.training.averaging:Averager",
)
OPTIMISERS: Registry[Optimiser] = Registry(
    "optimizer",
    {
        "sgd": "classwise.training.optimisers:SGD",
        "adam": "classwise.training.optimisers:Adam",
    },
    base="classwise.training.optimisers:Optimiser",
)
RATES: Registry[Rate] = Registry(
    "rate",
    {
        "constant": "classwise.training.rates:Constant",
        "step": "classwise.training.rates:Step",
        "one-cycle": "classwise.training.rates:OneCycle",
        "cosine": "classwise.training.rates:Cosine",
        "cyclic": "classwise.training.rates:Cyclic",
        "three-stage": "classwise.training.rates:Linear",
    },
    base="classwise.training.rates:Rate",
)
UPDATES: Registry[Update] = Registry(
    "update",
    {
        "plain": "classwise.training.updates:Plain",
        "awp": "classwise.training.updates:AWP",
    },
    base="classwise.training.updates:Update",
)
REDUCTIONS: Registry[object] = Registry(
    "reduction",
    {
        "mean": "classwise.training.reductions.base:mean",
        "normalised": "classwise.training.reductions.base:normalised",
        "faal": "classwise.training.reductions.faal:FAAL",
        "codat": "classwise.training.reductions.codat:Codat",
        "logit-similarity": "classwise.training.reductions.logit_similarity:LogitSimilarity",
    },
    arguments=3,
)
SELECTIONS: Registry[object] = Registry(
    "selection",
    {
        "overall+worst": "classwise.training.selection:overall_plus_worst",
        "overall": "classwise.training.selection:overall",
        "worst": "classwise.training.selection:worst",
        "last": "classwise.training.selection:last",
        "within-error": "classwise.training.selection:within_error",
        "three-quarters": "classwise.training.selection:three_quarters",
    },
    arguments=2,
    instances=("classwise.training.selection:WithinError", "classwise.training.selection:AtShare"),
)
