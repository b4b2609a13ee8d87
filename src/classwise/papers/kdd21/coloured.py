"""kdd21/F5bc: confusion on digits with coloured backgrounds, clean and attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from classwise.analysis.confusion import confused
from classwise.data.derived import GROUPS, coloured_background
from classwise.data.images import Images
from classwise.papers.claims import Test, difference, interval
from classwise.papers.experiment import Bench, Experiment, Findings
from classwise.papers.kdd21.attacks import PGD
from classwise.papers.scales import USUAL, Name, Scale
from classwise.papers.tables import estimate_cell
from classwise.report.analyses import figure
from classwise.report.tables import Row, Table

_SMALL = {"model.name": "small-cnn", "model.width": 1.0, "data.augment": "none"}
ABOUT = "MNIST on two background colours, at 0.3: at the paper's 0.5 every image can become the grey one"


def _of_mnist(name: Name) -> Scale:
    scale = USUAL[name]
    about = f"{ABOUT}{', 5,000 images' if scale.train else ''}"
    return replace(scale, data="mnist", threat="Linf:0.3", about=about, changes={**scale.changes, **_SMALL})


class ColouredBackgrounds(Experiment):
    """kdd21 Figure 5: does the confusion follow groups of classes that share nothing but their background?"""

    item = "kdd21/F5bc"
    scales: ClassVar[Mapping[Name, Scale]] = {
        "smoke": USUAL["smoke"],
        "laptop": _of_mnist("laptop"),
        "full": _of_mnist("full"),
    }

    def run(self, bench: Bench) -> Findings:
        """Adversarial training on the coloured digits; claims C22 and C23."""
        train, test = _coloured(bench.train_images), _coloured(bench.test_images)
        audit = bench.audited(bench.trained("at", images=train), {"PGD": bench.pgd(PGD)}, images=test)
        found = {attack: confused(audit.outcomes, attack) for attack in ("clean", "PGD")}
        rows, excess = [], {}
        for attack, one in found.items():
            assert one.inside is not None
            excess[attack] = one.inside.excess
            rows.append(Row(attack, [estimate_cell(one.inside.share), estimate_cell(one.inside.excess)]))
        heads = ("images", "errors inside the group, percent", "beyond chance, points")
        beyond = {}
        if not found["clean"].matrix.sum() > found["clean"].matrix.trace():
            beyond["kdd21/C23"] = "no clean image is misclassified"
        tests = [
            Test(
                claim="kdd21/C22",
                estimand="share of errors inside the background group minus its chance value, attacked",
                parts=[interval(excess["PGD"], 100)],
            )
        ]
        if not beyond:
            tests.append(
                Test(
                    claim="kdd21/C23",
                    estimand="the same, attacked minus clean",
                    parts=[interval(difference(excess["PGD"], excess["clean"]), 100)],
                )
            )
        return Findings(
            tables=(Table("Confusion by background", heads, rows, "Small: 95 % intervals for new images."),),
            figures=[
                (figure(one), f"{attack}; classes of a background side by side.") for attack, one in found.items()
            ],
            tests=tests,
            beyond=beyond,
        )


def _coloured(images: Images) -> Images:
    """On coloured backgrounds, whose groups are superclasses."""
    found = coloured_background(images)
    group = [
        next(place for place, members in enumerate(GROUPS) if label in members) for label in range(found.num_classes)
    ]
    return Images(
        found.x,
        found.y,
        found.class_names,
        found.name,
        found.split,
        superclasses=group,
        superclass_names=("red", "blue"),
        index=found.index,
        columns=found.columns,
    )
