"""Classes excluded by logits of -inf, classes without images, and logits that are not finite."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw
from classwise.analysis.similarity import similarity
from classwise.attacks import ATTACKS as ATTACK_REGISTRY
from classwise.auditing.criteria.thresholds import Threshold
from classwise.auditing.guards.model import _difference
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT, FAST
from classwise.core.settings.config import make
from classwise.data.images import Images
from classwise.models.logits import SelectedLogits
from classwise.reporting import report
from classwise.reporting.pages.audit import audit_page
from tests.auditing import toys
from tests.refusals import check_refused

pytestmark = pytest.mark.filterwarnings("ignore:the .*difference of logits ratio")

NAMES = [f"class {label}" for label in range(5)]
DATA = toys.images(60, classes=3, strength=(0.03, 0.05, 0.08))
WIDE = cw.Images(DATA.x, DATA.y, NAMES, "toy")
ATTACKS = ("fgsm", "pgd:steps=3", "pgd:steps=3,objective=dlr", "pgd:steps=3,objective=kl", "apgd-ce:steps=5",
           "apgd-dlr:steps=5", "apgd-t:steps=5", "fab:steps=3", "fab-t:steps=3", "square:steps=10", "cw:steps=5",
           "tpgd:steps=3", "pma:steps=3", "md:steps=4", "nattack:steps=2,samples=4")  # fmt: skip


class Masked(nn.Module):
    """The linear model with some logits of -inf."""

    def __init__(self, excluded: list[int], value: float = -torch.inf) -> None:
        super().__init__()
        self.inner, self.value = toys.model(5, 2.0), value
        self.excluded = torch.isin(torch.arange(5), torch.tensor(excluded))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits.masked_fill(self.excluded, self.value)


def audited(model: nn.Module, data: cw.Images, attacks: Any = ("pgd:steps=3",), **options: Any) -> cw.Audit:
    return cw.audit(model, data, "Linf:0.03", attacks, batch_size=32, **({"guards": "off"} | options))


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_treats_excluded_classes_as_absent(attack: str) -> None:
    selected, masked, one = SelectedLogits(toys.model(5, 2.0), [0, 1, 2]), Masked([3, 4]), Masked([1, 2, 3, 4])
    made, x, y = make(ATTACK_REGISTRY, attack), DATA.x[:32], DATA.y[:32]
    predictions = [
        model(cw.attack(model, x, y, made, threat="Linf:0.03")).argmax(1).tolist() for model in (selected, masked)
    ]
    assert predictions[0] == predictions[1]
    assert bool(cw.attack(one, x, y, made, threat="Linf:0.03").isfinite().all())


@pytest.mark.parametrize(("precision", "early_stop"), [(EXACT, True), (EXACT, False), (FAST, True)])
def test_excluded_classes_equal_a_selection(precision: cw.Precision, early_stop: bool) -> None:
    options: dict[str, Any] = {"precision": precision, "early_stop": early_stop}
    options["attacks"] = ["pgd:steps=3", "apgd-t:steps=3"]
    selected = audited(SelectedLogits(toys.model(5, 2.0), [0, 1, 2]), DATA, **options)
    masked = audited(Masked([3, 4]), WIDE, **options)
    for attack in selected.attacks:
        rows, expected = masked.outcomes.rows(attack), selected.outcomes.rows(attack)
        assert rows["status"].eq("ok").all()
        assert rows["correct"].tolist() == expected["correct"].tolist(), attack
        if attack != "apgd-t":  # its denominator has a fourth logit here
            np.testing.assert_allclose(rows["margin"], expected["margin"], rtol=1e-4, atol=1e-4)
        assert set(rows["prediction"]) <= {0, 1, 2}
    assert bool(0 < selected.by_class["all"].mean() < 1)


def test_guards_fusion_and_curves_accept_excluded_classes(tmp_path: Path) -> None:
    result = audited(Masked([3, 4]), WIDE, guards="full", save=("logits",), trace=[0], out=tmp_path / "a")
    names = [warning.name for warning in result.warnings]
    assert not set(names) & {
        "nan-logits",
        "nondeterministic",
        "batch-dependence",
        "misleading-gradients",
        "logit-range",
    }
    assert np.isneginf(result.artifacts.get("logits", "pgd")[1][:, 3:]).all()
    assert np.isfinite(similarity(result).cosines[:3, :3]).all()
    report(result, tmp_path / "page.html")
    json.dumps(result.by_class["all"].dropna().tolist(), allow_nan=False)
    options: dict[str, Any] = {"attacks": ["pgd:steps=3"], "batch_size": 32}
    curves = [
        cw.robustness_curve(model, data, norm="Linf", highest=0.1, rounds=3, **options)
        for model, data in ((Masked([3, 4]), WIDE), (SelectedLogits(toys.model(5, 2.0), [0, 1, 2]), DATA))
    ]
    assert curves[0].frame["low"].tolist() == curves[1].frame["low"].tolist()
    worst = [
        cw.find_worst_class(model, data, "Linf:0.03", **options)
        for model, data in ((Masked([3, 4]), WIDE), (SelectedLogits(toys.model(5, 2.0), [0, 1, 2]), DATA))
    ]
    assert worst[0].by_class["estimate"][:3].tolist() == worst[1].by_class["estimate"].tolist()


@pytest.mark.parametrize("early_stop", [True, False])
def test_one_remaining_class_is_always_predicted(early_stop: bool) -> None:
    rows = audited(Masked([1, 2, 3, 4]), WIDE, early_stop=early_stop).outcomes.rows("pgd")
    assert rows["prediction"].eq(0).all()
    assert rows["correct"].tolist() == (WIDE.y == 0).tolist()
    assert rows["margin"].tolist() == [torch.inf if right else -torch.inf for right in rows["correct"]]
    assert rows["p_label"].tolist() == rows["correct"].astype(float).tolist()


@pytest.mark.parametrize(("excluded", "value"), [([0, 1, 2, 3, 4], -torch.inf), ([3], torch.inf), ([3], torch.nan)])
def test_other_rows_that_are_not_finite_have_no_prediction(excluded: list[int], value: float) -> None:
    result = audited(Masked(excluded, value), WIDE)
    assert result.outcomes.rows("pgd")["status"].eq("nan").all()
    assert result.by_class["pgd"].dropna().eq(0).all()
    options: dict[str, Any] = {"attacks": ["pgd:steps=2"], "batch_size": 32}
    curve = cw.robustness_curve(Masked(excluded, value), WIDE, norm="Linf", highest=0.1, rounds=1, **options)
    assert curve.frame["high"].eq(0).all()


@pytest.mark.parametrize(
    ("labels", "logits", "text"),
    [
        (torch.arange(60) % 5, 10, "5-9; the model has 10 classes and the labels are 0 to 4"),
        (torch.arange(60) % 3 * 2, 7, "1, 3, 5-6; the model has 7 classes and the labels are 0 to 4"),
        (torch.arange(60) % 5, 6, "5; the model has 6 classes and the labels are 0 to 4"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_classes_without_images_are_noted_once(
    labels: Tensor, logits: int, text: str, streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, logits)).eval()
    data: Any = DataLoader(TensorDataset(DATA.x, labels), 16) if streamed else cw.Images(DATA.x, labels)
    with caplog.at_level(logging.WARNING):
        result = audited(model, data, guards="auto")
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [f"classes without images: {text}"]
    assert result.outcomes.meta.notes == (f"classes without images: {text}",)
    assert "not-repeatable" not in [warning.name for warning in result.warnings]


@pytest.mark.parametrize("names", [None, [f"c{label}" for label in range(5)]])
def test_classes_that_the_data_define_are_not_noted(names: list[str] | None, caplog: pytest.LogCaptureFixture) -> None:
    labels = torch.arange(60) % 5 if names is None else torch.arange(60) % 3
    with caplog.at_level(logging.WARNING):
        result = audited(toys.model(5), cw.Images(DATA.x, labels, names))
    assert (caplog.records, result.outcomes.meta.notes) == ([], ())


@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: lambda x: net(x).clone()], ids=["module", "function"])
def test_images_with_channels_last_are_named_where_the_model_rejects_them(wrap: Any) -> None:
    x = torch.rand(8, 4, 4, 3)  # four channels of 4 x 3, or 4 x 4 with channels last
    model = wrap(nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten()).eval())
    hint = "if they are (N, H, W, C), give x.permute(0, 3, 1, 2)"
    for images, is_hinted in ((x, True), (torch.rand(8, 4, 8, 8), False)):
        with pytest.raises((cw.ClasswiseError, RuntimeError)) as caught:  # a function's own error has a note
            audited(model, cw.Images(images, torch.arange(8) % 2))
        notes = getattr(caught.value, "__notes__", [])
        assert (hint in "".join([str(caught.value), *notes])) == is_hinted


Twist = Callable[[Tensor, Tensor], Tensor]


def marked(x: Tensor) -> Tensor:
    """Images with a bright corner, (N, 1): an attack of the radius below neither makes nor removes it."""
    return x[:, 0, 0, :1] > 0.9


TWISTS: dict[str, Twist] = {
    "all": lambda z, _: z * torch.nan,
    "infinite": lambda z, _: z * torch.inf,
    "one logit": lambda z, _: torch.cat([z[:, :1] * torch.nan, z[:, 1:]], 1),
    "one class": lambda z, _: torch.where((z.argmax(1) == 0)[:, None], torch.nan, z),
    "some": lambda z, x: torch.where(marked(x), torch.nan, z),
    "some infinite": lambda z, x: torch.where(marked(x), torch.inf, z),
}


def with_bright_corners() -> Images:
    data = toys.images(90, strength=(0.03, 0.08, 0.08))
    x = data.x.clone()
    x[::9, 0, 0, 0] = 1.0
    return Images(x, data.y, data.class_names, data.name)


def twisted(twist: Twist, **more: Any) -> Audit:
    chosen: dict[str, Any] = {
        "data": with_bright_corners(),
        "threat": "Linf:0.02",
        "precision": EXACT,
        "batch_size": 64,
    }
    chosen["attacks"] = ["pgd:steps=20,step_size=0.25eps", "pgd:steps=20,step_size=0.25eps,objective=margin"]
    return audit(toys.Wrapped(back=twist), **(chosen | more))


@pytest.mark.slow
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("name", TWISTS)
def test_one_guard_reports_them_and_no_other(name: str, early_stop: bool) -> None:
    result = twisted(TWISTS[name], early_stop=early_stop)
    others = {"same-images", "uninformative-radius"}  # of the radius, at which no other image is misclassified
    assert [warning.name for warning in result.warnings if warning.name not in others] == ["nan-logits"]
    assert result.warnings[0].name == "nan-logits"


def test_every_kind_of_attack_accepts_such_logits() -> None:
    attacks = ["apgd-ce:steps=5", "fab:steps=3", "square:steps=10", "cw:steps=10"]
    names = [warning.name for warning in twisted(TWISTS["some"], attacks=attacks).warnings]
    assert names[0] == "nan-logits"
    assert set(names) <= {"nan-logits", "same-images", "black-box-stronger"}


@pytest.mark.slow
@pytest.mark.parametrize("early_stop", [True, False])
def test_images_with_such_logits_are_misclassified(early_stop: bool, tmp_path: Path) -> None:
    result = twisted(TWISTS["some"], early_stop=early_stop, out=tmp_path / "a")
    honest = twisted(lambda z, _: z, early_stop=early_stop)
    bright = np.arange(90) % 9 == 0
    for attack in result.attacks:
        rows = result.outcomes.rows(attack)
        assert (rows["status"].to_numpy() == np.where(bright, "nan", "ok")).all()
        assert not rows["correct"][bright].any()
        assert rows[["prediction", "p_label"]][bright].isna().all(axis=None)
        others = honest.outcomes.rows(attack)
        assert rows["correct"][~bright].tolist() == others["correct"][~bright].tolist()
    assert int(result.counts("clean").count.sum()) == 90
    rows_without = int(bright.sum()) * len(result.attacks)
    assert result.warnings[0].sentence.startswith(
        f"{rows_without} rows have no prediction, since logits are NaN or +inf"
    )
    page = report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.index("nan-logits") < page.index("same-images") if "same-images" in page else "nan-logits" in page


def test_the_same_pattern_is_no_difference_and_another_is_infinite() -> None:
    nan, inf = torch.nan, torch.inf
    one = torch.tensor([[1.0, nan], [inf, -inf]])
    assert _difference(one, one.clone()) == 0
    assert _difference(one, torch.tensor([[3.0, nan], [inf, -inf]])) == pytest.approx(1.0)
    for other in ([[nan, nan], [inf, -inf]], [[1.0, 2.0], [inf, -inf]], [[1.0, nan], [inf, inf]]):
        assert _difference(one, torch.tensor(other)) == inf


def test_a_pattern_that_changes_is_nondeterministic() -> None:
    torch.manual_seed(0)
    result = twisted(lambda z, _: torch.where(torch.rand(len(z), 1) < 0.1, torch.nan, z))
    names = [warning.name for warning in result.warnings]
    assert names[0] == "nan-logits"
    assert "nondeterministic" in names


THREAT, TWO_ATTACKS = "Linf:0.02", ("fgsm", "pgd:steps=2")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def three_of_four() -> Images:
    """Classes a, c and d of four have 8 images each."""
    x = torch.rand(24, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Images(x, torch.tensor([0, 2, 3]).repeat(8), class_names=["a", "b", "c", "d"])


def test_audit(three_of_four: Images, tmp_path: Path) -> None:
    audit = cw.audit(network(), three_of_four, THREAT, TWO_ATTACKS, out=tmp_path / "audit")
    assert list(audit.by_class.index) == ["a", "c", "d"]
    assert not audit.by_attack[["overall", "worst", "worst20", "cv", "mcd"]].isna().any().any()
    assert audit.worst_class().name != "b"
    assert "0 images: b\n" in str(audit)
    assert "Without images: b." in audit_page(audit)
    assert list(cw.Audit.load(tmp_path / "audit").by_class.index) == ["a", "c", "d"]
    check_refused(r"condition 'b\(all\) < 0.5': 0 images of this class", Threshold.parse("b(all) < 1/2").decide, audit)


def test_comparison(three_of_four: Images) -> None:
    audits = [
        cw.audit(model, three_of_four, THREAT, TWO_ATTACKS)
        for model in (network(), nn.Sequential(nn.Flatten(), Zero()))
    ]
    compared = cw.compare({"one": audits[0], "other": audits[1]})
    assert "b" not in [str(row["worst_class"]) for _, row in compared.table.iterrows()]
    assert not compared.table[["overall", "worst"]].isna().any().any()


class Zero(nn.Module):
    """Equal logits of every class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :4] * 0


def test_curve_and_worst_class(three_of_four: Images) -> None:
    curve = cw.robustness_curve(network(), three_of_four, "Linf", TWO_ATTACKS, highest=0.02, rounds=2)
    assert sorted(curve.summary.index) == ["a", "c", "d", "overall"]
    assert curve.weakest != "b"
    found = cw.find_worst_class(network(), three_of_four, THREAT, TWO_ATTACKS)
    assert found.worst != "b"
    assert found.by_class.loc["b", "n"] == 0
    assert not found.by_class.loc["b", "may_be_worst"]
