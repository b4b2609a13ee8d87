"""Estimates of passes, whose range has the passes of audits at both ends; and the batch size of large images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.gradient.ascent import PGD
from classwise.auditing.run import batch_sizes
from classwise.auditing.run import cost as cost_module
from classwise.auditing.run.audit import audit
from classwise.auditing.run.batch_sizes import Fit, fitting_batch, memory_of, saved_bytes, usual_batch
from classwise.auditing.run.cost import CostEstimate, estimate
from classwise.auditing.run.preparation import prepare
from classwise.auditing.run.result import Audit
from classwise.auditing.run.suite import parse_attacks
from classwise.core.compute.precision import EXACT
from classwise.data.images import Images
from tests.attacks.test_contract import named
from tests.auditing import toys
from tests.auditing.toys import Listener
from tests.refusals import check_refused

from ..pretend_cuda import PretendCuda

pytestmark = pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")

SUITES: dict[str, list[str]] = {
    "one attack": ["pgd:steps=5"],
    "restarts": ["pgd:steps=3,restarts=3", "fgsm"],
    "targets": ["apgd-t:steps=4,targets=2,restarts=2", "fab-t:steps=3,targets=2"],
    "ordered targets": ["apgd-t:steps=2,targets=2,order=linearised"],
    "without gradients": ["square:steps=30,restarts=2", "nattack:steps=3,samples=5"],
    "ends early": ["cw:steps=10,binary_search_steps=2", "pgd:steps=4"],
    "autoattack": ["apgd-ce:steps=8", "apgd-t:steps=4,targets=2", "fab-t:steps=3,targets=2", "square:steps=30"],
}
COMMON: dict[str, Any] = {"precision": EXACT, "batch_size": 32, "guards": "off"}


def labelled(accuracy: float, count: int = 40) -> Images:
    """Images of which the model classifies a fraction correctly."""
    data = toys.images(count)
    predicted = toys.model()(data.pixels()).argmax(1)
    wrong = torch.arange(count) >= round(accuracy * count)
    return Images(data.x, torch.where(wrong, (predicted + 1) % 3, predicted), data.class_names)


def passes(result: Audit) -> tuple[int, int]:
    """Recorded forward and backward passes of an audit, the clean pass included."""
    frame = result.outcomes.frame
    return int(frame["forwards"].sum()), int(frame["backwards"].sum())


def check(cost: CostEstimate, result: Audit) -> None:
    """Check that an audit took passes in the estimated range."""
    forwards, backwards = passes(result)
    assert cost.forwards_low <= forwards <= cost.forwards
    assert cost.backwards_low <= backwards <= cost.backwards
    assert 0 < cost.minutes_low <= cost.minutes
    assert cost.forwards_expected is not None
    assert cost.backwards_expected is not None
    assert cost.minutes_expected is not None
    assert cost.forwards_low <= cost.forwards_expected <= cost.forwards
    assert cost.forwards_expected / 3 <= forwards <= 3 * cost.forwards_expected
    assert cost.backwards_expected / 3 <= max(backwards, 1) <= 3 * max(cost.backwards_expected, 1)
    assert cost.minutes_expected > 0
    assert cost.correct == int(result.outcomes.verdicts("clean").sum())


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "radius"), [(0.25, 0.04), (1, 0.002)])
@pytest.mark.parametrize("suite", SUITES)
def test_audits_take_passes_in_the_range(suite: str, accuracy: float, radius: float) -> None:
    data, threat = labelled(accuracy), f"Linf:{radius}"
    for early_stop, cascade in ((True, True), (True, False), (False, False)):
        options: dict[str, Any] = {**COMMON, "early_stop": early_stop, "cascade": cascade}
        cost = estimate(toys.model(), data, threat, SUITES[suite], **options)
        assert (cost.evaluated, cost.correct) == (40, round(40 * accuracy))
        check(cost, cw.audit(toys.model(), data, threat, SUITES[suite], **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack(name: str) -> None:
    attack = named(name)
    if name == "transfer":  # whose surrogate takes other images
        attack = Transfer(surrogate=toys.model(), attack=PGD(steps=3, restarts=2))
    data, threat = labelled(0.5, 12), f"{attack.norms[0]}:0.05"
    for early_stop in (True, False):
        options: dict[str, Any] = {**COMMON, "early_stop": early_stop}
        cost = estimate(toys.model(), data, threat, attack, **options)
        assert cost.forwards_low <= cost.forwards
        check(cost, cw.audit(toys.model(), data, threat, attack, **options))


@settings(max_examples=8, deadline=None)
@given(
    right=st.integers(0, 34),
    steps=st.integers(1, 6),
    restarts=st.integers(1, 3),
    radius=st.sampled_from([0.001, 0.03, 0.2]),
    kind=st.sampled_from([(True, True), (True, False), (False, False)]),
)
def test_any_number_of_correct_images(
    right: int, steps: int, restarts: int, radius: float, kind: tuple[bool, bool]
) -> None:
    data, attacks = labelled(right / 34, 34), [f"pgd:steps={steps},restarts={restarts}", "fgsm"]
    options: dict[str, Any] = {**COMMON, "early_stop": kind[0], "cascade": kind[1]}
    cost = estimate(toys.model(), data, f"Linf:{radius}", attacks, **options)
    assert cost.correct == right
    check(cost, cw.audit(toys.model(), data, f"Linf:{radius}", attacks, **options))


def test_both_ends_are_reached() -> None:
    data, attacks = labelled(0.5), ["pgd:steps=5,random_init=none", "fgsm"]
    for cascade in (True, False):
        cost = estimate(toys.model(), data, "Linf:0.5", attacks, **COMMON, cascade=cascade)
        assert cost.forwards == 40 + 20 * ((5 + 2) + (1 + 2))
        assert cost.backwards == 20 * (5 + 1)
        assert cost.forwards_low == 40 + 20 * (2 if cascade else 4)
        assert cost.backwards_low == 20 * (1 if cascade else 2)
    robust = cw.audit(toys.model(), data, "Linf:0", attacks, **COMMON)
    assert passes(robust)[1] == cost.backwards
    fixed: dict[str, Any] = {**COMMON, "early_stop": False}
    cost = estimate(toys.model(), data, "Linf:0.1", attacks, **fixed)
    assert cost.forwards_low == cost.forwards == passes(cw.audit(toys.model(), data, "Linf:0.1", attacks, **fixed))[0]


def test_no_image_is_correct() -> None:
    """Such an audit evaluates every image once; the time is that of this pass."""
    cost = estimate(toys.model(), labelled(0), "Linf:0.1", "autoattack", precision=EXACT, batch_size=32)
    assert (cost.forwards_low, cost.forwards, cost.backwards) == (40, 40, 0)
    assert cost.minutes_low == cost.minutes > 0
    assert cost.guard_passes < 40 * 40  # those of the guards that always run


def test_guards_take_a_share_of_the_attacks() -> None:
    """The wrong images are not attacked, so the guards have a smaller budget."""
    shares = {}
    for accuracy in (0.25, 1):
        data = labelled(accuracy, 400)
        cost = estimate(toys.model(), data, "Linf:0.01", "pgd:steps=60", precision=EXACT, batch_size=32)
        attack_passes = cost.forwards + cost.backwards - 400
        assert cost.guard_passes <= max(0.2 * attack_passes, 28 * 16 + 1)
        shares[accuracy] = cost.guard_passes
    assert shares[0.25] == pytest.approx(shares[1] / 4, abs=2)


def test_a_sample_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "CLEAN_SECONDS", 0)
    data = labelled(0.5, 400)
    cost = estimate(toys.model(), data, "Linf:0.01", "pgd:steps=5", **COMMON)
    assert (cost.images, cost.evaluated) == (400, 32)
    low, high = (cost.backwards_low / 400, cost.backwards / 5 / 400)
    assert low < cost.correct / 32 < high
    assert low < 0.5 < high
    check(dataclasses.replace(cost, correct=200), cw.audit(toys.model(), data, "Linf:0.01", "pgd:steps=5", **COMMON))


@pytest.mark.parametrize("sized", [True, False])
def test_streams(sized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data = labelled(0.5)
    items: list[Any] = list(zip(data.pixels(), data.y, strict=True))

    def source() -> Any:
        return items if sized else (item for item in items)

    cost = estimate(toys.model(), source(), "Linf:0.04", "pgd:steps=5", **COMMON)
    assert (cost.images, cost.evaluated, cost.correct) == (40, 40, 20)
    check(cost, cw.audit(toys.model(), source(), "Linf:0.04", "pgd:steps=5", **COMMON))
    monkeypatch.setattr(cost_module, "CLEAN_SECONDS", 0)
    first = estimate(toys.model(), source(), "Linf:0.04", "pgd:steps=5", **COMMON)
    assert (first.images, first.evaluated) == (40 if sized else 32, 32)


def test_shards_and_radii_of_images() -> None:
    data = labelled(0.5)
    radii = cw.Threat("Linf", torch.linspace(0.001, 0.1, 40))
    whole = estimate(toys.model(), data, radii, "pgd:steps=5", **COMMON)
    check(whole, cw.audit(toys.model(), data, radii, "pgd:steps=5", **COMMON))
    shards = [
        estimate(toys.model(), data, "Linf:0.1", "pgd:steps=5", **COMMON, shard=(number, 3)) for number in (1, 2, 3)
    ]
    assert sum(shard.images for shard in shards) == whole.images
    assert sum(shard.forwards for shard in shards) == whole.forwards


def test_an_untrained_model_is_taken_as_right_and_robust() -> None:
    trained = estimate(toys.model(), labelled(1), "Linf:0.1", "pgd:steps=5", **COMMON)
    highest = estimate(toys.model(), labelled(0), "Linf:0.1", "pgd:steps=5", trained=False, **COMMON)
    assert (highest.forwards, highest.backwards) == (trained.forwards, trained.backwards)


class MayFail(nn.Module):
    """Returns a logit that is not finite for half of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toys.model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dark = x[:, 0, 0, 0] < x.new_tensor(0.5)
        logits: torch.Tensor = self.inner(x)
        return torch.where(dark[:, None], torch.nan, logits)


def test_images_without_finite_logits_are_not_attacked() -> None:
    data = labelled(1)
    cost = estimate(MayFail(), data, "Linf:0.02", "pgd:steps=5", **COMMON)
    assert 0 < cost.correct < 40
    check(cost, cw.audit(MayFail(), data, "Linf:0.02", "pgd:steps=5", **COMMON))


def network() -> nn.Module:
    """One convolution with four channels, a rectifier, and a linear layer on the means."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    ).eval()


def random_images(side: int, count: int = 40) -> Images:
    x = torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))
    return Images(x, torch.arange(count) % 2, ["a", "b"])


def memory(monkeypatch: pytest.MonkeyPatch, megabytes: float) -> None:
    monkeypatch.setattr(batch_sizes, "memory_of", lambda device: megabytes * 1e6)


def test_bytes_saved_by_a_forward_pass() -> None:
    """The convolution and the pooling save no output of their own; the rectifier saves its output once."""
    x = torch.rand(1, 1, 80, 80)
    found, output = saved_bytes(network(), x), 4 * 4 * 80 * 80
    assert output <= found <= 2 * output + 4 * 80 * 80
    assert saved_bytes(network(), torch.rand(2, 1, 80, 80)) == pytest.approx(2 * found, rel=0.01)


def test_small_images_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 0.001)
    monkeypatch.setattr(batch_sizes, "saved_bytes", None)
    for side in (28, 32, 64):
        assert fitting_batch(network(), torch.rand(1, 3, side, side)) == Fit(128)


def test_the_batch_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(1, 1, 80, 80)
    each = batch_sizes.OVERHEAD * saved_bytes(network(), x) + batch_sizes.COPIES * 4 * 80 * 80
    for fits, batch in ((128, 128), (127, 64), (40, 32), (5, 4)):
        memory(monkeypatch, fits * each / batch_sizes.SHARE / 1e6 + 0.001)
        assert fitting_batch(network(), x).batch_size == batch
    found = fitting_batch(network(), x)
    assert found.note.startswith("batch size 4 instead of 128: 4 images of 80 x 80 pixels need about ")
    given = fitting_batch(network(), x, 64)
    assert given.batch_size == 64
    assert given.note.startswith("batch size 64 may not fit: 64 images of 80 x 80 pixels")


@pytest.mark.parametrize(
    ("count", "cpu", "gpu"),
    [
        (None, 128, 1024),
        (1, 32, 128),
        (33, 64, 128),
        (128, 128, 128),
        (129, 128, 160),
        (1000, 128, 1024),
        (1024, 128, 1024),
        (50_000, 128, 1024),
    ],
)
def test_batches_have_no_more_rows_than_there_are_images(count: int | None, cpu: int, gpu: int) -> None:
    assert usual_batch(torch.device("cpu"), count) == cpu
    assert usual_batch(torch.device("cuda"), count) == gpu


def test_the_batch_size_on_a_gpu_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with PretendCuda():
        small, large = (
            prepare(
                network(), random_images(side, 200), parse_attacks(["fgsm"], "Linf"), "Linf:0.01", {"device": "cuda"}
            )
            for side in (8, 80)
        )
        memory(monkeypatch, 60)
        limited = prepare(
            network(), random_images(80, 200), parse_attacks(["fgsm"], "Linf"), "Linf:0.01", {"device": "cuda"}
        )
        few = fitting_batch(network().to("cuda"), torch.rand(1, 1, 8, 8).to("cuda"), 64, images=200)
    for ready in (small, large):
        assert ready.plan.batch_size == ready.meta.batch_size == 224
    assert limited.meta.batch_size == limited.plan.batch_size < 224
    assert limited.note.startswith(f"batch size {limited.meta.batch_size} instead of 224")
    assert few == Fit(64)


@pytest.mark.slow
def test_the_batch_size_is_logged_recorded_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Listener()
    memory(monkeypatch, 60)
    made = audit(network(), random_images(80, 100), "Linf:0.01", ["fgsm"], out=tmp_path / "a", progress=lines)
    batch = made.outcomes.meta.batch_size
    assert batch is not None
    assert 32 <= batch < 128
    assert lines.lines[0].startswith(f"batch size {batch} instead of 128")
    memory(monkeypatch, 1e6)
    again = audit(network(), random_images(80, 100), "Linf:0.01", ["fgsm"], out=tmp_path / "a", resume=True)
    assert again.outcomes.meta.batch_size == batch == Audit.load(tmp_path / "a").outcomes.meta.batch_size
    check_refused(
        "batch_size was",
        audit,
        network(),
        random_images(80, 100),
        "Linf:0.01",
        ["fgsm"],
        out=tmp_path / "a",
        resume=True,
        batch_size=128,
    )


@pytest.mark.slow
def test_a_batch_size_below_the_smallest_reproducible_one_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 1)
    made = audit(network(), random_images(80, 6), "Linf:0.01", ["fgsm"])
    assert made.outcomes.meta.batch_size is not None
    assert made.outcomes.meta.batch_size < 32
    assert "not-repeatable" in {warning.name for warning in made.warnings}
    check_refused(
        "batch_size = 16: must be an integer from 32",
        audit,
        network(),
        random_images(80, 6),
        "Linf:0.01",
        ["fgsm"],
        batch_size=16,
    )


def test_an_estimate_notes_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 10)
    assert "instead of 128" in estimate(network(), random_images(80, 100), "Linf:0.01", ["fgsm"]).note
    assert estimate(network(), random_images(32), "Linf:0.01", ["fgsm"]).note == ""


def test_the_memory_of_a_cpu_is_that_of_the_machine_or_less() -> None:
    assert 1e8 < memory_of(torch.device("cpu")) < 1e14
