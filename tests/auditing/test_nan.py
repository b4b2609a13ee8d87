"""Non-finite logits: their images count as misclassified, and exactly one guard reports them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from classwise.auditing.guards.model import _difference
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT
from classwise.data.images import Images
from classwise.reporting import report
from tests.auditing import toys

Twist = Callable[[Tensor, Tensor], Tensor]


class Twisted(nn.Module):
    def __init__(self, twist: Twist) -> None:
        super().__init__()
        self.inner = toys.model(scale=2.0)
        self.twist = twist
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.twist(self.inner(x), x)


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


def images() -> Images:
    data = toys.images(90, strength=(0.03, 0.08, 0.08))
    x = data.x.clone()
    x[::9, 0, 0, 0] = 1.0
    return Images(x, data.y, data.class_names, data.name)


def run(twist: Twist, **more: Any) -> Audit:
    chosen: dict[str, Any] = {"data": images(), "threat": "Linf:0.02", "precision": EXACT, "batch_size": 64}
    chosen["attacks"] = ["pgd:steps=20,step_size=0.25eps", "pgd:steps=20,step_size=0.25eps,objective=margin"]
    return audit(Twisted(twist), **(chosen | more))


@pytest.mark.slow
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("name", TWISTS)
def test_one_guard_reports_them_and_no_other(name: str, early_stop: bool) -> None:
    result = run(TWISTS[name], early_stop=early_stop)
    assert [warning.name for warning in result.warnings if warning.name != "same-images"] == ["nan-logits"]
    assert result.warnings[0].name == "nan-logits"


def test_every_kind_of_attack_accepts_such_logits() -> None:
    attacks = ["apgd-ce:steps=5", "fab:steps=3", "square:steps=10", "cw:steps=10"]
    names = [warning.name for warning in run(TWISTS["some"], attacks=attacks).warnings]
    assert names[0] == "nan-logits"
    assert set(names) <= {"nan-logits", "same-images", "black-box-stronger"}


@pytest.mark.slow
@pytest.mark.parametrize("early_stop", [True, False])
def test_images_with_such_logits_are_misclassified(early_stop: bool, tmp_path: Path) -> None:
    result = run(TWISTS["some"], early_stop=early_stop, out=tmp_path / "a")
    honest = run(lambda z, _: z, early_stop=early_stop)
    bright = np.arange(90) % 9 == 0
    for attack in result.attacks:
        rows = result.outcomes.rows(attack)
        assert (rows["status"].to_numpy() == np.where(bright, "nan", "ok")).all()
        assert not rows["correct"][bright].any()
        assert rows["prediction"][bright].isna().all()
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
    result = run(lambda z, _: torch.where(torch.rand(len(z), 1) < 0.1, torch.nan, z))
    names = [warning.name for warning in result.warnings]
    assert names[0] == "nan-logits"
    assert "nondeterministic" in names
