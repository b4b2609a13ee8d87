"""The counted cost of a step: the numbers of docs/reference/updates.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tools import reference
from torch import Tensor, nn

from classwise.training.train import train

from .test_trainer import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "updates.md"
PASSES: Counter[str] = Counter()


class Counting(nn.Module):
    """A linear model that counts the rows of forward and backward passes."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64 * in_channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        PASSES["forward"] += len(x)
        if logits.requires_grad:
            logits.register_hook(lambda _: PASSES.update(backward=len(x)))  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [
        ("at", 11, 11),
        ("trades", 13, 12),
        ("at-awp", 12, 12),
        ("trades-awp", 15, 14),
        ("fast-at", 2, 2),
        ("n-fgsm", 2, 2),
        ("at-swa", 11, 11),
        ("at-ema-step", 11, 11),
    ],
)
def test_passes_of_an_image_in_a_step(recipe: str, forward: int, backward: int, tmp_path: Path) -> None:
    PASSES.clear()
    own: dict[str, Any] = {"model": {"name": f"{__name__}:Counting"}, "data.validation": 0, "selection": "last"}
    small = {key: value for key, value in SMALL.items() if not key.startswith(("attack", "model", "data.validation"))}
    overrides = small | own | {"epochs": 1, "batch_size": 50, "data.subset": 100}
    if "awp" in recipe:
        overrides["update.start_fraction"] = 0.0
    train(recipe, out=tmp_path / "run", data="digits", overrides=overrides)
    assert (PASSES["forward"] / 100, PASSES["backward"] / 100) == (forward, backward)


def test_the_page_has_these_numbers() -> None:
    lines = f"{PAGE.read_text()}\n{reference.update_table()}".splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| `")}
    found = {name: re.findall(r"(\d+) \+ (\d+)", line) for name, line in rows.items()}
    assert found["`update: plain`"] == [("11", "11"), ("13", "12")]
    assert found["`update: awp`"] == [("12", "12"), ("15", "14")]
    assert found["`attack: n-fgsm`"] == [("2", "2")]
