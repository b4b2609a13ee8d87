"""The guard of the class order: modes, streams, shards, resumption, escaping; and guards that could not decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import classwise as cw
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.guards.budget import GUARDS, run_guards
from classwise.auditing.guards.evidence import Evidence, Undecided
from classwise.auditing.guards.report import AuditWarning, GuardMode, GuardReport
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.auditing.run.merging import shard_folder
from classwise.auditing.run.partition import Shard
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT
from classwise.data.images import Images
from classwise.stats.class_order import images_needed
from classwise.stats.counts import IntArray
from tests.auditing import toys
from tests.auditing.test_guard_budget import evidence_of
from tests.auditing.test_guard_budget import mislabelled as every_fourth
from tests.auditing.test_guards import InputTransform, reversed_gradient, table, unnormalised
from tests.auditing.test_shards import streamed

OPTIONS: dict[str, Any] = {"threat": "Linf:0.02", "attacks": "fgsm", "precision": EXACT, "batch_size": 32}
NAMES = ("cat", "=dog", "<b>frog</b>\r")


def rolled(count: int, by: int = 1, names: tuple[str, ...] = NAMES) -> Images:
    """Images whose class i is the output i + ``by`` of the toy model."""
    data = toys.images(count, strength=0.1)
    return Images(data.x, (data.y - by) % 3, names, data.name)


def found(result: Audit) -> list[str]:
    return [warning.sentence for warning in result.warnings if warning.name == "class-order"]


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_another_order_is_reported(by: int, mode: GuardMode) -> None:
    result = audit(toys.model(scale=2.0), rolled(90, by), guards=mode, **OPTIONS)
    sentences = found(result)
    assert len(sentences) == 1
    assert f"likely class i of the data is output i {'+' if by == 1 else '-'} 1 of the model: 'cat' -> " in sentences[0]
    assert "with it the clean accuracy of 45 other images is 100.0 % (95 % interval 92.1 % to 100.0 %)" in sentences[0]
    assert "instead of 0.0 %" in sentences[0]
    # Any change of the pixels raises an accuracy of 0 to chance, which is no sign of a missing normalisation.
    assert "normalised-outside" not in {warning.name for warning in result.warnings}


def test_the_result_does_not_depend_on_how_the_images_are_read(tmp_path: Path) -> None:
    model, data = toys.model(scale=2.0), rolled(90)
    expected = found(audit(model, data, **OPTIONS))
    assert expected
    assert found(audit(model, streamed(data), **OPTIONS)) == expected
    for shard in Shard.all(2):
        audit(model, data, shard=str(shard), out=shard_folder(tmp_path / "x", shard), **OPTIONS)
    assert found(audit(model, data, shards=2, out=tmp_path / "x", **OPTIONS)) == expected
    audit(model, data, out=tmp_path / "late", max_time=1e-6, **OPTIONS)
    assert found(audit(model, data, out=tmp_path / "late", resume=True, **OPTIONS)) == expected
    assert found(audit(model, data, out=tmp_path / "late", resume=True, **OPTIONS)) == expected
    assert found(Audit.load(tmp_path / "late")) == expected


def test_class_names_are_escaped(tmp_path: Path) -> None:
    result = audit(toys.model(scale=2.0), rolled(90), **OPTIONS)
    page = cw.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "\r" not in found(result)[0]
    assert "<b>frog" not in page
    assert "&lt;b&gt;frog&lt;/b&gt;\\r&#39;" in page


def evidence(labels: IntArray, predictions: IntArray, classes: int) -> Evidence:
    names = [f"class {label}" for label in range(classes)]
    return Evidence(Outcomes.from_predictions(labels, predictions, class_names=names))


def test_two_swapped_classes_are_named() -> None:
    labels = np.arange(400) % 10
    swapped = np.where(labels == 3, 5, np.where(labels == 5, 3, labels))
    warning = GUARDS["class-order"](evidence(labels, swapped, 10))
    assert isinstance(warning, AuditWarning)
    assert "likely 'class 3' -> 'class 5', 'class 5' -> 'class 3'; with it" in warning.sentence
    assert warning.value == 1.0


def test_many_moved_classes_are_counted() -> None:
    labels = np.arange(2000) % 100
    warning = GUARDS["class-order"](evidence(labels, (labels + 1) % 100, 100))
    assert isinstance(warning, AuditWarning)
    assert warning.sentence.count("->") == 3
    assert "and 97 more" in warning.sentence


@pytest.mark.parametrize(("images", "why"), [(400, "no other order"), (30, f"{images_needed()} images are needed")])
def test_an_accuracy_below_chance_is_reported_in_other_words(images: int, why: str) -> None:
    labels = np.arange(images) % 2
    wrong = np.where(np.arange(images) % 10 < (7 if images > 100 else 10), 1 - labels, labels)
    warning = GUARDS["class-order"](evidence(labels, wrong, 2))
    assert isinstance(warning, AuditWarning)
    assert "is significantly below chance (50.0 %)" in warning.sentence
    assert why in warning.sentence


@pytest.mark.parametrize("images", [3, 10, 20])
def test_too_few_images_for_another_order(images: int) -> None:
    labels = np.arange(images) % 10
    result = GUARDS["class-order"](evidence(labels, (labels + 1) % 10, 10))
    assert result == Undecided(f"{images_needed()} images needed, and there are {images}")
    assert GUARDS["class-order"](evidence(labels, labels, 10)) is None


def test_too_many_classes_for_other_orders() -> None:
    labels = np.arange(2500)
    assert GUARDS["class-order"](evidence(labels, labels, 2500)) == Undecided(
        "of more than 2,000 classes only usual orders are tested"
    )


def mislabelled(count: int, wrong: int) -> Images:
    """Images of which the first ``wrong`` ones have another label."""
    data = toys.images(count, strength=0.2, noise=0.0)
    return Images(data.x, torch.where(torch.arange(count) < wrong, (data.y + 1) % 3, data.y), data.class_names)


@pytest.mark.parametrize(
    ("images", "wrong", "needed"), [(20, 4, 55), (10, 10, 11), (10, 2, 55), (20, 2, None), (20, 11, None)]
)
def test_too_few_images_for_the_normalisation(images: int, wrong: int, needed: int | None) -> None:
    """Eleven corrected images have a p-value of 2^-10, below 0.001."""
    given = evidence_of(toys.model(scale=2.0), mislabelled(images, wrong), attacks="fgsm")
    assert given.probe is not None
    assert len(given.probe.logits) == images
    taken = given.probe.taken
    result = GUARDS["normalised-outside"](given)
    assert isinstance(result, Undecided) is (needed is not None)
    if needed is not None:
        assert result == Undecided(f"{needed} images needed, and there are {images}")
        assert given.probe.taken == taken  # no pass is wasted


@pytest.mark.parametrize(("count", "decided"), [(4, False), (60, True)])
def test_too_few_images_for_the_large_radius(count: int, decided: bool) -> None:
    model = InputTransform(reversed_gradient)
    given = evidence_of(model, toys.images(count, strength=0.2, noise=0.0), attacks="pgd:steps=5")
    result = GUARDS["large-radius"](given)
    assert isinstance(result, AuditWarning if decided else Undecided)


def test_one_image_is_no_batch() -> None:
    for count in (1, 2):
        result = GUARDS["batch-dependence"](evidence_of(toys.model(), toys.images(count), attacks="fgsm"))
        assert (result == Undecided("2 images needed, and there is 1")) is (count == 1)


@pytest.mark.parametrize(("robust", "undecided"), [(1, True), (2, False), (0, False)])
def test_one_robust_image_is_too_few_for_a_black_box(robust: int, undecided: bool) -> None:
    """The gradient-free attack succeeds on one image beyond those of the other attack."""
    white = {0: 5, 1: 5 - robust}
    given = Evidence(table(2, 5, white=white, black={0: 5, 1: min(5, 6 - robust)}), {"white": PGD()})
    assert isinstance(GUARDS["black-box-stronger"](given), Undecided) is undecided


@pytest.mark.parametrize("mode", ["auto", "full"])
def test_guards_that_could_not_decide_are_reported(tmp_path: Path, mode: GuardMode) -> None:
    model = InputTransform(unnormalised)
    data = toys.images(9)
    result = audit(model, data, guards=mode, out=tmp_path / "a", **OPTIONS)
    assert result.guards is not None
    reason = result.guards.undecided["normalised-outside"]
    assert "images needed, and there are 9" in reason
    assert f"Guard normalised-outside could not decide: {reason}." in result.guards.sentence
    assert result.guards.sentence in cw.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    saved = json.loads((tmp_path / "a" / "audit.json").read_text(encoding="utf-8"))["guards"]
    assert saved["undecided"]["normalised-outside"] == reason
    assert Audit.load(tmp_path / "a").guards == result.guards
    assert "normalised-outside" in result.guards.without_result


def test_a_smaller_sample_names_the_mode_that_takes_a_larger_one() -> None:
    given = evidence_of(toys.model(scale=2.0), every_fourth(100), attacks="fgsm")
    report = run_guards(given, "auto")[1]
    assert report.images == 16
    assert report.undecided["normalised-outside"].endswith("in the sample; the mode full of the guards takes up to 128")
    assert "normalised-outside" not in run_guards(given, "full")[1].undecided


def test_a_report_of_an_earlier_version_is_read() -> None:
    assert GuardReport.read({"mode": "full", "not_run": []}) == GuardReport("full")


def test_models_of_constant_outputs_have_no_order() -> None:
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0 * x.flatten(1)[:, :3] + torch.tensor([0.0, 5.0, 0.0])

    assert not found(audit(Constant().eval(), rolled(90), **OPTIONS))
