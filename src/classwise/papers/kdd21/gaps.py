"""kdd21/F1: robustness of each class over the epochs, on several data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.trend import trend
from classwise.auditing.outcomes import Outcomes
from classwise.papers.claims import Test
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import under_pgd
from classwise.papers.scales import CIFAR, LAPTOP, SMOKE, TIAN, Name, Scale
from classwise.papers.tables import Key, class_table, left_out
from classwise.stats.counts import ClassCounts
from classwise.stats.interval_estimators import widest

MNIST = "mnist"
DATA_SETS: Mapping[Name, Sequence[str]] = {
    "smoke": (SMOKE.data,),
    "laptop": (CIFAR, MNIST),
    "full": (CIFAR, MNIST, "svhn", "stl10", "cifar100"),
}
"""The paper's but ImageNet, whose models it trains in another way."""
LARGE, VISIBLE = 10, 1
"""A large gap between classes and a visible one, in points; the paper has 40 to 50 on CIFAR-10, and 6 on MNIST."""
HIGH = 95
"""The total that the paper has on MNIST at least, in percent."""


class GapsOverEpochs(Experiment):
    """kdd21 Figure 1: class-wise robustness over the epochs of adversarial training."""

    item = "kdd21/F1"
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": SMOKE,
        "laptop": replace(LAPTOP, about=f"{LAPTOP.about}; of MNIST 10,000 images and the four-layer CNN, at 0.3"),
        "full": replace(
            TIAN, about=f"{TIAN.about}, and its other data sets but ImageNet; one that is not there is left out"
        ),
    }

    def run(self, bench: Bench) -> Findings:
        """The validation splits over the epochs, and claims C1 and C2 on the test images at the end."""
        benches, absent = bench.on_all(DATA_SETS[bench.scale.name])
        tables, figures, ends = [], [], dict[str, Outcomes]()
        for data, own in benches.items():
            trained = own.trained("at")
            ends[data] = under_pgd(own, trained).outcomes
            caption = f"{data}: the validation split; shaded from the lowest to the highest class."
            figures.append((trend({"AT": trained.run}).figure(), caption))
            counts: dict[Key, ClassCounts] = {("AT",): ends[data].counts("PGD")}
            tables.append(class_table(f"{data}: test images at the end, in percent", counts, ends[data].class_names))
        tests, beyond = _asked(ends)
        return Findings(tables=[*tables, *left_out(absent)], figures=figures, tests=tests, beyond=beyond)


def _asked(ends: Mapping[str, Outcomes]) -> tuple[list[Test], dict[str, str]]:
    """Tests of C1 and C2 as far as there are data sets for them, and what cannot be asked."""
    tests, beyond = [], {"kdd21/C3": "the claim is about ImageNet, whose training takes a GPU for days"}
    at_once = "by intervals that hold for all classes at once"
    parts = [widest(table.counts("PGD"), VISIBLE if data == MNIST else LARGE) for data, table in ends.items()]
    large = f"{LARGE} points (on {MNIST}, where the paper has 6: {VISIBLE})"
    note = f"on {', '.join(ends)} of the six; 'large' is read as: more than {large} {at_once}"
    estimand = f"MCD under PGD at the end, minus {large}"
    tests.append(Test(claim="kdd21/C1", estimand=estimand, parts=parts, note=note, covers=tuple(ends)))
    if MNIST not in ends:
        beyond["kdd21/C2"] = f"the claim is about MNIST, and this run had {', '.join(ends)}"
    elif (total := 100 * float(ends[MNIST].counts("PGD").accuracy.mean())) <= HIGH:
        beyond["kdd21/C2"] = f"the claim is about a model above {HIGH} percent, and this one holds {total:.1f}"
    else:
        note = f"'visible' is read as: more than {VISIBLE} point {at_once}; this model holds {total:.1f} percent"
        parts = [widest(ends[MNIST].counts("PGD"), VISIBLE)]
        estimand = f"MCD under PGD at the end, minus {VISIBLE} point"
        tests.append(Test(claim="kdd21/C2", estimand=estimand, parts=parts, note=note))
    return tests, beyond
