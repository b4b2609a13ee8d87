"""Facts of curves, sentences on training runs, and the lines on worst-class searches, from random rows."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from classwise.auditing.curve.result import Curve
from classwise.auditing.outcomes.meta import Meta
from classwise.reporting.facts.training_curves import curves_of
from classwise.reporting.pages.curve import CurveFacts, radius_table
from classwise.reporting.text.layout import joined
from classwise.reporting.text.result import worst_class_parts
from classwise.stats.best_arm import WorstClassVerdict
from classwise.training.folder import Run
from classwise.training.recipe import Recipe

from .random_audits import CLASSES

QUICK = settings(max_examples=15, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
HIGHEST = 0.5


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Brackets of 1 to 40 images of up to 12 classes: clean errors, robust images, and all between; ties."""
    classes, images = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    step = draw(st.sampled_from((0.5, 0.25, 0.0625)))
    kind = draw(st.sampled_from(("mixed", "wrong", "robust", "equal")))
    place = random.integers(0, round(HIGHEST / step), images)
    low, high = place * step, (place + 1) * step
    high = np.minimum(high + step * random.integers(0, 3, images), HIGHEST)  # brackets of several widths
    if kind == "equal":
        low, high = np.full(images, 0.0), np.full(images, step)
    fate = random.random(images)
    wrong = np.full(images, True) if kind == "wrong" else (fate < 0.2) & (kind == "mixed")
    never = np.full(images, True) if kind == "robust" else (fate > 0.8) & (kind == "mixed")
    low, high = np.where(wrong, 0.0, low), np.where(wrong, 0.0, high)
    low, high = np.where(never, HIGHEST, low), np.where(never, np.inf, high)
    frame = pd.DataFrame(
        {"index": range(images), "label": random.integers(0, classes, images), "low": low, "high": high}
    )
    frame = frame.assign(first_success="pgd", probes=1, forwards=1, backwards=1)
    meta = Meta(class_names=CLASSES[:classes], attacks={"clean": None}, norm="L2", model="net")
    return Curve(frame, meta, HIGHEST, 3, alpha=draw(st.sampled_from((0.05, 0.1))))


@pytest.mark.slow
@QUICK
@given(curves())
def test_the_facts_of_a_curve_follow_from_the_brackets(found: Curve) -> None:
    rows, facts = found.frame.to_dict("records"), CurveFacts.of(found)
    radii: dict[str, list[float]] = {}
    for row in rows:
        radii.setdefault(CLASSES[row["label"]], []).append(min(row["high"], HIGHEST))
    order = [name for name in CLASSES if name in radii]
    means = {name: float(np.mean(radii[name])) for name in order}
    lowest = [name for name in order if means[name] == min(means.values())]
    assert (facts.classes, facts.worst, facts.unit, facts.highest) == (len(order), tuple(lowest), "", HIGHEST)
    assert facts.smallest == pytest.approx(min(means.values()))
    assert facts.images == sum(len(radii[name]) for name in lowest)
    assert facts.overall == pytest.approx(np.mean([min(row["high"], HIGHEST) for row in rows]))
    brackets = [
        (row["label"], row["low"], row["high"])
        for row in rows
        if math.isfinite(row["high"]) and row["high"] > row["low"]
    ]
    widths = [high - low for _, low, high in brackets]
    assert facts.widest == (pytest.approx(max(widths)) if widths else None)
    ends = sorted({end for _, *bracket in brackets for end in bracket})
    between = [(low + high) / 2 for low, high in itertools.pairwise(ends)]
    most = 0.0
    for label in {label for label, *_ in brackets}:
        size = int((found.frame["label"] == label).sum())
        for radius in between:
            inside = sum(low < radius < high for other, low, high in brackets if other == label)
            most = max(most, inside / size)
    assert facts.undecided == pytest.approx(most)
    table = radius_table(found)
    assert [row.name for row in table.rows[:-1]] == sorted(order, key=lambda name: (means[name], order.index(name)))
    for line in table.rows[:-1]:
        upper = [row["high"] for row in rows if CLASSES[row["label"]] == line.name]
        assert line.cells[0].text == str(len(upper))
        assert line.cells[1].text == f"{100 * np.mean([high > 0 for high in upper]):.1f}"
        assert line.cells[2].text == f"{means[line.name]:.3g}"
        median = sorted(upper)[(len(upper) - 1) // 2]
        assert line.cells[3].text == (f"{median:.3g}" if median <= HIGHEST else f"over {HIGHEST:.3g}")
        assert line.weak == (line.name == lowest[0] and [*means.values()].count(min(means.values())) == 1)
    for name, lines in found.table().groupby("class"):
        assert (np.diff(lines["accuracy"]) <= 0).all(), f"the line of {name} increases"


@pytest.mark.slow
@QUICK
@given(
    done=st.integers(1, 4),
    gates=st.lists(st.booleans(), max_size=4),
    classes=st.integers(1, 12),
    selected=st.booleans(),
    validated=st.booleans(),
)
def test_every_sentence_on_a_training_run_follows_from_its_files(
    done: int, gates: list[bool], classes: int, selected: bool, validated: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipe.yaml").write_text(Recipe.read("cfa-at", budget="short").yaml(), encoding="utf-8")
        rows = [
            {"epoch": epoch, "split": split, "class": CLASSES[label], "label": label, "count": 10}
            | {"clean": 0.9, "robust": 0.1 * (label % 5)}
            for epoch in range(done)
            for split in (("train", "valid") if validated else ("train",))
            for label in range(classes)
        ]
        pd.DataFrame(rows).to_parquet(folder / "epochs.parquet")
        events: list[dict[str, Any]] = [{"event": "fawa", "epoch": 0, "admitted": gate} for gate in gates]
        events += [{"event": "selected", "epoch": 0, "which": "best", "score": 0.5}] * selected
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        run = Run(folder)
        found = curves_of(run)
        assert found is not None
        total = run.recipe.epochs
        assert found.sentences[0].endswith(f", {done} of {total} epochs.")
        epochs = "1 epoch" if len(gates) == 1 else f"{len(gates)} epochs"
        end = "." if any(gates) else "; the plain average was saved."
        assert list(found.sentences[1:]) == (
            [f"Weight averaging (FAWA) accepted {sum(gates)} of {epochs}{end}"] if gates else []
        )
        assert ("dashed vertical line" in found.caption) == (selected and validated)
        drawn = "".join(drawing.svg() for drawing in found.drawings.values())
        assert ("selected weights" in drawn) == (selected and validated)
        assert found.caption.startswith("One line per class;")


@QUICK
@given(
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    settled=st.booleans(),
    unsettled=st.integers(0, 2000),
    passes=st.integers(1, 10**7),
    full=st.integers(1, 10**7),
    tolerance=st.sampled_from((0.0, 0.02)),
    alpha=st.sampled_from((0.05, 0.001)),
    others=st.integers(0, 11),
)
def test_the_terminal_output_of_a_worst_class_search(
    capsys: pytest.CaptureFixture[str],
    shares: list[float],
    settled: bool,
    unsettled: int,
    passes: int,
    full: int,
    tolerance: float,
    alpha: float,
    others: int,
) -> None:
    number = len(shares)
    worst = int(np.argmin(shares))
    possibly = tuple(sorted({worst, *range(min(others, number))}))
    verdict = WorstClassVerdict(
        worst, possibly, shares[worst], 0.1, 0.2, settled, unsettled, alpha, tolerance, (0.0, 0.5)
    )
    names = CLASSES[:number]
    columns = {"n": 10, "clean": 0.9, "first": 0.8, "estimate": shares, "low": 0.1, "high": 0.2, "unsettled": 0}
    table = pd.DataFrame({**columns, "may_be_worst": np.isin(range(number), possibly)}, index=pd.Index(names))
    meta = SimpleNamespace(
        applicable=("clean", "pgd"), attacks={"clean": None, "pgd": None}, model="net", threat="Linf:0.1"
    )
    result: Any = SimpleNamespace(
        by_class=table,
        verdict=verdict,
        worst=names[worst],
        these_images="these 10 images",
        meta=meta,
        passes=passes,
        full_audit_passes=float(full),
        seconds=3.0,
        environment={},
    )
    result.sentence = verdict.sentence(names, "these 10 images", "pgd")
    print(joined(worst_class_parts(result)))
    lines = capsys.readouterr().out.splitlines()
    assert f"all, {100 * (1 - alpha):.6g} % simultaneous" in lines[1]
    marked = [line.split()[0] for line in lines[2 : 2 + number] if line.endswith("yes")]
    assert marked == [names[label] for label in possibly]
    start = "worst class" if settled else "lowest estimate so far"
    worst_line = next(line for line in lines if line.startswith(start))
    at = f"{100 * shares[worst]:.1f} % [10.0, 20.0] of these 10 images; new images [0.0, 50.0]"
    assert worst_line == f"{start}: {names[worst]}, {at}"
    level = f"{100 * (1 - alpha):g} %"
    assert lines[lines.index(worst_line) + 1].replace("\u00a0", " ") == (
        f"in brackets: {level} interval of the lowest class accuracy, whichever class it is"
    )
    assert any(line.startswith("unsettled") for line in lines) == (unsettled > 0)
    if unsettled:
        assert f"unsettled: {unsettled:,} image{'s' * (unsettled != 1)} that" in "\n".join(lines)
    share = 100 * passes / full
    assert f"passes: {passes:,}, {'under 1' if share < 1 else f'about {share:.0f}'} % of" in lines[-1]
    guarantee = next(line for line in lines if line.startswith("guarantee"))
    assert f"with {100 * (1 - alpha):.6g} % confidence" in guarantee
    listed = ", ".join(names[label] for label in possibly)
    if not settled:
        assert f"the worst class is {'one of ' * (len(possibly) > 1)}{listed}, on these" in guarantee
        assert "no class is" not in guarantee
    else:
        bound = f"more than {100 * tolerance:.6g} points below" if tolerance else "below"
        assert f"no class is {bound} {names[worst]}, on these 10 images under pgd" in guarantee
        assert guarantee.endswith(f"the worst may be any of {listed}") == (len(possibly) > 1)
