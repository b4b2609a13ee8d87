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
        "kdd21/T1": "classwise.papers.kdd21.attacks:DefencesByAttacks",
        "kdd21/T3": "classwise.papers.kdd21.temperature:Temperature",
        "kdd21/E3": "classwise.papers.kdd21.attacks:RankConsistency",
        "kdd21/E4": "classwise.papers.kdd21.attacks:WhiteBoxDrop",
        "kdd21/E5": "classwise.papers.kdd21.attacks:BlackBoxDrop",
        "cfa23/F1": "classwise.papers.cfa23.toy:Toy",
        "cfa23/F2a": "classwise.papers.cfa23.sweeps:RadiusSweep",
        "cfa23/F2bc": "classwise.papers.cfa23.sweeps:RadiusSweepByClass",
        "cfa23/F3": "classwise.papers.cfa23.sweeps:BetaSweep",
        "cfa23/T1": "classwise.papers.cfa23.methods:MainTable",
    },
)
"""The tables, figures, experiments and plans that run, by the id of their item."""
