"""iclr21/E6: do the variants of adversarial training hide gradients in their vulnerable classes?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from classwise.attacks.suites import SUITES
from classwise.auditing.outcomes import ALL, Outcomes
from classwise.papers.experiment import Bench
from classwise.papers.kdd21.attacks import PGD, Drops
from classwise.papers.scales import USUAL, Name, Scale
from classwise.settings import Spec

SUITE: Mapping[Name, Mapping[str, Spec]] = {
    "smoke": {"apgd-ce": "apgd-ce:steps=5", "apgd-dlr": "apgd-dlr:steps=5"},
    "laptop": {spec: spec for spec in SUITES["fast"]["standard"]},
    "full": {spec: spec for spec in SUITES["autoattack"]["standard"]},
}
"""AutoAttack where the scale can pay for it, else the suite ``fast``, which has no black box."""


class HiddenGradients(Drops):
    """iclr21 Appendix F: is the gap between PGD and a stronger attack larger in vulnerable classes?"""

    item = "iclr21/E6"
    claim = "iclr21/C21"
    weak = "PGD"
    strong = ALL
    recipes: ClassVar[Mapping[str, str]] = {"TRADES": "trades", "MART": "mart"}
    scales: ClassVar[Mapping[Name, Scale]] = {
        name: replace(scale, about=f"{scale.about}; PGD against {', '.join(SUITE[name])}")
        for name, scale in USUAL.items()
    }

    def tables(self, bench: Bench) -> Mapping[str, Outcomes]:
        """PGD and a suite on the same images, each attack alone; together they are what stands against all."""
        attacks = {"PGD": bench.pgd(PGD), **SUITE[bench.scale.name]}
        return {
            name: bench.audited(bench.trained(recipe), attacks, stop="broken").outcomes
            for name, recipe in self.recipes.items()
        }
