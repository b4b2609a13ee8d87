"""A class without images: absent from accuracies, never the worst, named in every output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.auditing.compare.thresholds import Threshold
from classwise.core.errors import ClasswiseError
from classwise.data.images import Images
from classwise.reporting.pages.audit import audit_page

THREAT, ATTACKS = "Linf:0.02", ("fgsm", "pgd:steps=2")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def data() -> Images:
    """Classes a, c and d of four have 8 images each."""
    x = torch.rand(24, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Images(x, torch.tensor([0, 2, 3]).repeat(8), class_names=["a", "b", "c", "d"])


def test_audit(data: Images, tmp_path: Path) -> None:
    audit = cw.audit(network(), data, THREAT, ATTACKS, out=tmp_path / "audit")
    assert list(audit.by_class.index) == ["a", "c", "d"]
    assert not audit.by_attack[["overall", "worst", "worst20", "cv", "mcd"]].isna().any().any()
    assert audit.worst_class().name != "b"
    assert "0 images: b\n" in str(audit)
    assert "Without images: b." in audit_page(audit)
    assert list(cw.Audit.load(tmp_path / "audit").by_class.index) == ["a", "c", "d"]
    with pytest.raises(ClasswiseError, match=r"condition 'b\(all\) < 0.5': 0 images of this class"):
        Threshold.parse("b(all) < 1/2").decide(audit)


def test_comparison(data: Images) -> None:
    audits = [cw.audit(model, data, THREAT, ATTACKS) for model in (network(), nn.Sequential(nn.Flatten(), Zero()))]
    compared = cw.compare({"one": audits[0], "other": audits[1]})
    assert "b" not in [str(row["worst_class"]) for _, row in compared.table.iterrows()]
    assert not compared.table[["overall", "worst"]].isna().any().any()


class Zero(nn.Module):
    """Equal logits of every class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :4] * 0


def test_curve_and_worst_class(data: Images) -> None:
    curve = cw.robustness_curve(network(), data, "Linf", ATTACKS, highest=0.02, rounds=2)
    assert sorted(curve.summary.index) == ["a", "c", "d", "overall"]
    assert curve.weakest != "b"
    found = cw.find_worst_class(network(), data, THREAT, ATTACKS)
    assert found.worst != "b"
    assert found.by_class.loc["b", "n"] == 0
    assert not found.by_class.loc["b", "may_be_worst"]
