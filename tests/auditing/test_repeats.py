"""Audits of models with random outputs: verdicts over several passes against binomial laws and closed forms."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import classwise as cw
from classwise.auditing.compare.comparability import Named, check_alike
from classwise.auditing.outcomes import files as outcome_files
from classwise.auditing.outcomes.meta import Meta
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit, estimate
from classwise.auditing.run.audit_folder import ABOUT
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT
from classwise.core.compute.repeats import RepeatRule
from classwise.core.errors import IncompleteError
from classwise.core.files.storage import write_text
from classwise.data.images import Images
from classwise.reporting import report
from classwise.reporting.exports.export import export
from classwise.reporting.exports.robustbench import robustbench
from tests.auditing import toys
from tests.refusals import check_refused

EPSILON = 0.02
OPTIONS: dict[str, Any] = {"threat": f"Linf:{EPSILON}", "precision": EXACT, "batch_size": 64, "guards": "off"}


class Flipping(nn.Module):
    """Reads the label and the probability of a wrong prediction from the first two pixels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        label, probability = (4 * x[:, 0, 0, 0]).round().long(), (4 * x[:, 0, 0, 1]).round() / 5
        flips = torch.rand(len(x), generator=self.generator) < probability
        return 2 * nn.functional.one_hot((label + flips) % 3, 3).float()


def flipping_images(count: int) -> tuple[Images, np.ndarray[Any, Any]]:
    """Images of three classes for `Flipping`, and the probability of a correct pass of each."""
    y, level = torch.arange(count) % 3, torch.arange(count) // 3 % 4
    x = torch.full((count, 1, 2, 2), 0.5)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = y / 4, level / 4
    return Images(x, y, ["a", "b", "c"], name="flips"), 1 - level.numpy() / 5


class Smoothed(nn.Module):
    """The linear model of the toys on images with Gaussian noise, from torch's own generator."""

    def __init__(self, sigma: float = 0.2, classes: int = 2) -> None:
        super().__init__()
        self.net, self.sigma = toys.model(classes), sigma

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x + self.sigma * torch.randn_like(x))
        return out


@pytest.mark.parametrize(("passes", "rule"), [(1, "majority"), (4, "majority"), (5, "majority"), (3, "all")])
def test_verdicts_are_binomial(passes: int, rule: RepeatRule) -> None:
    data, right = flipping_images(960)
    found = audit(
        Flipping(), data, attacks=["square:steps=3"], early_stop=False, repeats=passes, repeat_rule=rule, **OPTIONS
    )
    needed = passes if rule == "all" else passes // 2 + 1
    expected = np.asarray(stats.binom.sf(needed - 1, passes, right))
    for attack in found.attacks:
        for share in np.unique(right):
            images, error = right == share, 4 * (0.25 / 240) ** 0.5
            assert found.outcomes.correct(attack)[images].mean() == pytest.approx(expected[images][0], abs=error)
    if passes == 1:
        assert found.outcomes.frame["correct_repeats"].isna().all()
        return
    rows = found.outcomes.frame
    votes = rows["correct_repeats"].to_numpy(dtype=np.int64)
    assert np.array_equal(votes >= needed, rows["correct"])
    wrong = rows[~rows["correct"]]
    assert (wrong["prediction"] == (wrong["label"] + 1) % 3).all()
    by_class, overall = found.probabilities(), found.probabilities(overall=True)
    for attack in found.attacks:
        assert overall[attack].item() == pytest.approx(right.mean(), abs=0.04)
        assert (overall[f"{attack}_low"] <= right.mean()).all()
        assert (overall[f"{attack}_high"] >= right.mean()).all()
    assert by_class.index.tolist() == ["a", "b", "c"]
    assert (by_class["all"] <= by_class[["clean", "square"]].min(axis=1) + 1e-12).all()


def test_probabilities_of_a_smoothed_linear_model_are_exact() -> None:
    """A pass is correct with probability Phi(margin / (sigma |w_1 - w_2|)); PGD finds the least margin of the ball."""
    data, net = toys.images(300, classes=2, strength=0.03), Smoothed()
    weight = net.net.head.weight.detach()
    deviation = net.sigma * float((weight[0] - weight[1]).norm())
    options = {**OPTIONS, "attacks": "apgd-ce:steps=10", "early_stop": False}
    found = audit(net, data, repeats=15, **options)
    clean = toys.margins(data, net.net, 0.0).numpy()
    attacked = toys.margins(data, net.net, EPSILON).numpy()
    table = found.probabilities()
    for attack, margins in (("clean", clean), ("apgd-ce", attacked)):
        truth = stats.norm.cdf(margins / deviation)
        shares = found.outcomes.rows(attack)["correct_repeats"].to_numpy(dtype=np.float64) / 15
        assert shares.mean() == pytest.approx(truth.mean(), abs=4 * (0.25 / (15 * 300)) ** 0.5)
        for label, name in enumerate(table.index):
            mean = truth[data.y.numpy() == label].mean()
            assert table.loc[name, f"{attack}_low"] < mean < table.loc[name, f"{attack}_high"]
            width = table.loc[name, f"{attack}_high"] - table.loc[name, f"{attack}_low"]
            low, high = found.intervals(attack)
            assert width < high[label] - low[label]  # passes are more precise than verdicts


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_deterministic_model_has_the_same_verdicts(early_stop: bool) -> None:
    settings = {**OPTIONS, "attacks": ["pgd:steps=4", "square:steps=9"], "early_stop": early_stop}
    data = toys.images(strength=0.02)
    one = audit(toys.model(), data, **settings)
    several = audit(toys.model(), data, repeats=3, repeat_rule="all", **settings)
    same = [
        "index",
        "attack",
        "prediction",
        "correct",
        "distance",
        "iterations",
        "backwards",
        "first_success",
        "status",
    ]
    pd.testing.assert_frame_equal(one.outcomes.frame[same], several.outcomes.frame[same])
    pd.testing.assert_frame_equal(one.by_class, several.by_class)
    assert {*several.outcomes.frame["correct_repeats"]} == {0, 3}
    assert several.outcomes.rows("clean")["forwards"].eq(3).all()


class Shifted(nn.Module):
    """A model that moves images by random numbers of numpy and of Python, and masks pixels by those of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = toys.model(2)

    def forward(self, x: Tensor) -> Tensor:
        shift = float(np.random.randn()) + random.gauss(0, 1)  # noqa: NPY002
        out: Tensor = self.net((x + 0.02 * shift) * (torch.rand_like(x) < 0.7))
        return out


@pytest.mark.parametrize("net", [Smoothed(), Shifted()])
def test_outcomes_repeat_whatever_the_generators_were(net: nn.Module) -> None:
    data = toys.images(100, classes=2)
    settings = {**OPTIONS, "attacks": ["pgd:steps=2", "square:steps=3"], "repeats": 3, "guards": "full"}
    frames, warnings = [], []
    for manual in (1, 2):
        torch.manual_seed(manual)
        np.random.seed(manual)  # noqa: NPY002
        random.seed(manual)
        found = audit(net, data, **settings)
        frames.append(found.outcomes.frame)
        warnings.append([*found.warnings])
    pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)
    assert repr(warnings[0]) == repr(warnings[1])
    other = audit(net, data, seed=1, **settings).outcomes.frame
    assert not other["correct_repeats"].equals(frames[0]["correct_repeats"])


def test_a_cascade_counts_the_lowest_fraction_so_far() -> None:
    found = audit(
        Smoothed(),
        toys.images(80, classes=2),
        attacks=["pgd:steps=2", "square:steps=3"],
        cascade=True,
        repeats=5,
        **OPTIONS,
    )
    skipped = found.outcomes.frame["status"] == "skipped"
    assert skipped.any()
    assert found.outcomes.frame.loc[skipped, "correct_repeats"].isna().all()
    table = found.probabilities()
    assert (table["all"] == table["square"]).all()
    assert (table["square"] <= table["pgd"]).all()
    assert (table["pgd"] <= table["clean"]).all()


def test_resuming_needs_the_same_repeats_and_completes_the_rows(tmp_path: Path) -> None:
    data, settings = toys.images(100, classes=2), {**OPTIONS, "attacks": ["pgd:steps=2"], "out": tmp_path / "x"}
    whole = audit(Smoothed(), data, repeats=5, **settings)
    for other in ({}, {"repeats": 3}, {"repeats": 5, "repeat_rule": "all"}):
        check_refused(
            "contains an audit with other settings: repeat", audit, Smoothed(), data, resume=True, **settings, **other
        )
    max((tmp_path / "x" / "outcomes").glob("part-*.parquet")).unlink()
    with pytest.raises(IncompleteError):
        Audit.load(tmp_path / "x").probabilities()
    resumed = audit(Smoothed(), data, repeats=5, resume=True, **settings)
    assert resumed.complete
    assert resumed.outcomes.rows("clean").equals(whole.outcomes.rows("clean"))
    assert (Audit.load(tmp_path / "x").outcomes.meta.decided_by.count, resumed.outcomes.meta.repeat_rule) == (
        5,
        "majority",
    )


def test_an_audit_without_entries_for_repeats_has_one_pass(tmp_path: Path) -> None:
    """Audits of earlier versions have neither the columns nor the settings."""
    folder, settings = tmp_path / "x", {**OPTIONS, "attacks": ["pgd:steps=2"], "out": tmp_path / "x"}
    audit(toys.model(), toys.images(), **settings)
    about = json.loads((folder / ABOUT).read_text())
    for name in ("repeats", "repeat_rule", "grid"):
        assert about["settings"].pop(name) is None
    write_text(folder / ABOUT, json.dumps(about), checksum=True)
    for file in outcome_files.listed(folder / "outcomes"):
        table, meta = outcome_files.read_table(file)
        written = json.loads(meta.to_json())
        older = {key: value for key, value in written.items() if key not in ("repeats", "repeat_rule", "grid")}
        assert Meta.from_json(json.dumps(older), "older") == meta
        outcome_files.write_table(file, table.drop_columns(["correct_repeats"]), meta)
    again = audit(toys.model(), toys.images(), resume=True, **settings)
    assert (again.outcomes.meta.repeats, again.outcomes.meta.grid, again.complete) == (1, None, True)
    assert again.outcomes.frame["correct_repeats"].isna().all()


def test_different_repeats_are_not_comparable_and_do_not_join() -> None:
    data, options = toys.images(60), {**OPTIONS, "attacks": "pgd:steps=2"}
    one, three, all_three = (
        audit(toys.model(), data, **options, **more)
        for more in ({}, {"repeats": 3}, {"repeats": 3, "repeat_rule": "all"})
    )
    for first, second in ((one, three), (three, all_three)):
        for attack in ("clean", "pgd", "all"):
            check_refused("differ in repeats: ", check_alike, Named("one", first), Named("other", second), attack, None)
        only = dataclasses.replace(second.outcomes.meta, attacks={"clean": None})
        clean = Outcomes(second.outcomes.frame[second.outcomes.frame["attack"] == "clean"], only)
        check_refused("differ in repeats", first.outcomes.join, clean)
    check_refused("differ in repeats", cw.compare, {"one": one, "three": three})
    check_refused("each image was evaluated in one pass", one.probabilities)


def test_reports_state_the_rule_and_the_probabilities(tmp_path: Path) -> None:
    found = audit(
        Smoothed(), toys.images(60, classes=2), attacks="pgd:steps=2", repeats=3, repeat_rule="all", **OPTIONS
    )
    text = report(found, tmp_path / "page.html").read_text()
    assert "Probability of a correct pass per class" in text
    assert "an image is correct if all of 3 passes are correct" in text
    names = {path.name for path in export(found, tmp_path / "tables", formats=["csv", "md", "tex"])}
    assert {"probabilities.csv", "probabilities.md", "probabilities.tex"} <= names
    written = pd.read_csv(tmp_path / "tables" / "probabilities.csv", index_col="class")
    np.testing.assert_allclose(written["pgd_low"], found.probabilities()["pgd_low"], rtol=1e-5)
    board = cw.board({"model": found})
    (table,) = board.tables
    assert (table.conditions.repeats, table.conditions.repeat_rule, table.conditions.grid) == (3, "all", None)


def test_the_estimate_counts_the_repeats() -> None:
    settings = {**OPTIONS, "attacks": ["pgd:steps=4", "square:steps=9"], "early_stop": False}
    cost = estimate(toys.model(), toys.images(), repeats=3, **settings)
    found = audit(toys.model(), toys.images(), repeats=3, **settings)
    assert cost.forwards >= found.outcomes.frame["forwards"].sum()
    assert cost.forwards <= 1.2 * found.outcomes.frame["forwards"].sum()


def test_the_guard_names_repeats_and_the_expectation() -> None:
    data = toys.images(60, classes=2)
    options = {**OPTIONS, "guards": "full"}
    texts = []
    for more in (
        {"attacks": "square:steps=4"},
        {"attacks": "square:steps=4", "repeats": 3},
        {"attacks": "square:steps=4,eot_iter=4"},
        {"attacks": "square:steps=4,eot_iter=4", "repeats": 3},
    ):
        found = audit(Smoothed(), data, **options, **more)
        texts.append("".join(warning.sentence for warning in found.warnings if warning.name == "nondeterministic"))
    assert ["--repeats 8" in text for text in texts] == [True, False, True, False]
    assert ["eot_iter" in text for text in texts] == [True, True, False, False]
    assert texts[3] == ""


def test_robustbench_entries_have_one_pass() -> None:
    data = toys.images(24, classes=4, strength=0.2)
    wrong = Images(data.x, (data.y + 1) % 4, data.class_names, name="toy")  # images that no attack runs on
    found = audit(toys.model(4), wrong, attacks="autoattack", repeats=2, **OPTIONS)
    check_refused(
        "repeats = 2: RobustBench evaluates each image in one pass", robustbench, found, {"dataset": "cifar10"}
    )
