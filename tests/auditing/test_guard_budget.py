"""The budget of the guards: passes counted by the model, omissions, records, resumption; results that are reused."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from classwise.attacks.engine import State
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.evaluation.evaluation import GuardMode
from classwise.auditing.guards import evidence as evidence_module
from classwise.auditing.guards.budget import BY_PRIORITY, GUARDS, run_guards
from classwise.auditing.guards.evidence import Evidence, Memory, memory_of
from classwise.auditing.guards.report import MODES, AuditWarning, GuardReport
from classwise.auditing.run import execution
from classwise.auditing.run.audit import audit, estimate
from classwise.auditing.run.audit_folder import ABOUT, read_about
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT
from classwise.core.files.storage import write_text
from classwise.data.images import Images
from classwise.threat.ball import Threat
from tests.auditing import toys
from tests.refusals import check_refused

ORDER = ["normalised-outside", "single-step", "random-noise", "batch-dependence", "no-black-box"]
ORDER += ["not-falling"]
"""The guards that a budget may omit, the least useful last."""
SAMPLED = [name for name, guard in GUARDS.items() if guard.reads != "outcomes"]
"""The guards that need the sample."""
CORE = 16 * (1 + 1 + 3 + 3 + 21) + 1
"""Most passes on 16 images: logits, twice, misleading gradients, radius 0, large radius; the grey image."""
RESCALED = 64 * (1 + 5)
"""Most passes of the search for a normalisation, where the clean accuracy is at chance."""
OTHER_RADIUS = 16 * 55
"""Most passes of the search for another radius, where this one is too large or too small."""
BOTH_LOSSES = ["pgd:steps=20,step_size=0.25eps", "pgd:steps=20,step_size=0.25eps,objective=margin"]


class Counting(nn.Module):
    """A toy model that counts the images of its forward and backward passes; optionally with reversed gradients."""

    def __init__(self, *, reverse: bool = False) -> None:
        super().__init__()
        self.inner = toys.model(scale=2.0)
        self.reverse = reverse
        self.passes = 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x)
        logits: Tensor = self.inner(2 * x.detach() - x if self.reverse else x)
        if logits.requires_grad:
            logits.register_hook(self.count)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return logits

    def count(self, gradient: Tensor) -> None:
        self.passes += len(gradient)


@dataclasses.dataclass
class Spent:
    """The passes of the model: all before the guards, and those of the guards."""

    before: int = 0
    guards: int = 0


@contextmanager
def counted(model: Counting) -> Iterator[Spent]:
    """Count the passes before and during the guards of an audit."""
    spent = Spent()

    def run(evidence: Evidence, mode: GuardMode, *, late: bool) -> tuple[tuple[AuditWarning, ...], GuardReport]:
        spent.before = model.passes
        result = run_guards(evidence, mode, late=late)
        spent.guards = model.passes - spent.before
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "run_guards", run)
        yield spent


def mislabelled(count: int, every: int = 4) -> Images:
    """Images without noise, some of which have another label, so that the clean accuracy is below 90 %."""
    data = toys.images(count, strength=0.2, noise=0.0)
    wrong = torch.arange(count) % every == 0
    return Images(data.x, torch.where(wrong, (data.y + 1) % 3, data.y), data.class_names, data.name)


def run(model: nn.Module, data: Images, **more: Any) -> Audit:
    chosen: dict[str, Any] = {"threat": "Linf:0.02", "attacks": BOTH_LOSSES, "precision": EXACT, "batch_size": 64}
    return audit(model, data, **(chosen | more))


def evidence_of(model: nn.Module, data: Images, **more: Any) -> Evidence:
    """The evidence that an audit passes to its guards, without a memory of earlier audits."""
    passed: list[Evidence] = []

    def record(evidence: Evidence, mode: GuardMode, *, late: bool) -> tuple[tuple[AuditWarning, ...], GuardReport]:
        del late
        passed.append(evidence)
        return (), GuardReport(mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "run_guards", record)
        run(model, data, **more)
    assert passed[0].probe is not None
    return dataclasses.replace(passed[0], probe=dataclasses.replace(passed[0].probe, memory=Memory()))


@pytest.fixture(scope="module")
def resistant() -> Evidence:
    """An audit whose model resists every attack of the guards, so that each takes all its steps."""
    return evidence_of(Counting(reverse=True), mislabelled(100), attacks="pgd:steps=30")


@pytest.mark.parametrize("name", SAMPLED)
def test_the_declared_passes_are_those_of_the_model(resistant: Evidence, name: str) -> None:
    probe = resistant.probe
    assert probe is not None
    assert isinstance(probe.engine.model, nn.Module)
    model = next(module for module in probe.engine.model.modules() if isinstance(module, Counting))
    assert len(probe.logits) == 100  # these passes are shared by all guards
    before, taken = model.passes, probe.taken
    GUARDS[name](resistant)
    passes = model.passes - before
    assert passes == GUARDS[name].cost(resistant) == probe.taken - taken
    assert (passes > 0) is (GUARDS[name].most > 0)
    assert passes <= GUARDS[name].most * 100 + (name == "large-radius")  # the grey image


def test_guards_without_declared_passes_do_not_run_the_model(resistant: Evidence) -> None:
    probe = resistant.probe
    assert probe is not None
    taken = probe.taken
    for name in GUARDS.keys() - {*SAMPLED}:
        GUARDS[name](resistant)
    assert probe.taken == taken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "reverse", "attacks"),
    [
        (toys.images(60), False, BOTH_LOSSES),
        (toys.images(60), True, ["pgd:steps=20", "square:steps=50"]),
        (toys.images(150, strength=0.2, noise=0.0), False, ["fgsm", "pgd:steps=40"]),
        (toys.images(150, strength=0.2, noise=0.0), True, BOTH_LOSSES),
        (mislabelled(300), False, ["pgd:steps=20", "square:steps=50"]),
        (mislabelled(300), True, ["fgsm", "pgd:steps=40"]),
    ],
)
def test_the_guards_take_at_most_a_fifth_of_the_passes_of_the_attacks(
    data: Images, reverse: bool, attacks: list[str]
) -> None:
    model = Counting(reverse=reverse)
    with counted(model) as spent:
        result = run(model, data, attacks=attacks)
    attack_rows = result.outcomes.frame[result.outcomes.frame["attack"] != "clean"]
    attack_passes = int(attack_rows[["forwards", "backwards"]].sum().sum())
    assert 0 < attack_passes <= spent.before
    assert result.guards is not None
    assert 0 < spent.guards == result.guards.passes
    assert spent.guards <= max(0.2 * attack_passes, CORE + OTHER_RADIUS)
    assert spent.guards <= 0.2 * attack_passes or result.guards.images == 16


@pytest.mark.parametrize("images", [80, 300])
def test_a_guard_with_a_symptom_runs_beyond_the_budget(images: int) -> None:
    """A model at chance on few images and a single step: its missing normalisation is found."""

    class Unnormalised(Counting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x / 255)  # trained on pixels up to 255

    model = Unnormalised()
    with counted(model) as spent:
        result = run(model, toys.images(images), attacks="fgsm")
    assert result.by_attack["overall"]["clean"] < 0.5
    assert "normalised-outside" in {found.name for found in result.warnings}
    assert result.guards is not None
    assert "normalised-outside" not in result.guards.without_result
    assert spent.guards == result.guards.passes
    assert spent.guards <= max(int(result.guards.budget or 0), CORE + OTHER_RADIUS + RESCALED)
    cost = estimate(model, toys.images(images), "Linf:0.02", attacks="fgsm", precision=EXACT, batch_size=64)
    assert spent.guards <= cost.guard_passes


def test_without_the_symptom_the_budget_holds() -> None:
    result = run(Counting(), mislabelled(80), attacks="fgsm")
    assert result.guards is not None
    assert "normalised-outside" in result.guards.without_result


def test_the_core_alone_runs_beyond_the_budget() -> None:
    model = Counting(reverse=True)
    with counted(model) as spent:
        result = run(model, toys.images(30, strength=0.2, noise=0.0), attacks="fgsm")
    assert spent.guards == CORE  # no other radius is searched for, since the gradients mislead
    assert result.guards is not None
    assert (result.guards.images, result.guards.reason) == (16, "budget")
    # One step is not compared with itself, and no rescaling can raise an accuracy of 100 %.
    assert {*result.guards.not_run} == {*ORDER} - {"single-step", "normalised-outside"}
    assert {"misleading-gradients", "large-radius"} <= {found.name for found in result.warnings}


@pytest.mark.slow
def test_the_least_useful_guards_are_omitted_first(resistant: Evidence) -> None:
    assert [guard.name for guard in BY_PRIORITY if guard.priority] == ORDER
    seen = set()
    for budget in range(0, 20_000, 1_250):
        evidence = dataclasses.replace(resistant)
        evidence.__dict__["attack_passes"] = 5 * budget
        report = run_guards(evidence, "auto")[1]
        assert report.budget == budget
        assert report.passes <= max(budget, CORE + OTHER_RADIUS)
        decided = [name for name in ORDER if name not in report.undecided]
        omitted = [name for name in decided if name in report.not_run]
        assert omitted == decided[len(decided) - len(omitted) :]
        assert len(omitted) == len(report.not_run)
        assert report.reason == ("budget" if omitted else "")
        seen.add(len(omitted))
    assert {0, 1, 2, len(ORDER) - 1} <= seen  # on 16 images `normalised-outside` cannot decide, without a pass


def test_the_documented_order_is_current() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "guards.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page.partition("## Budget")[2], re.MULTILINE)
    assert rows == [guard.name for guard in BY_PRIORITY if guard.most]
    assert f"at most {CORE} passes, and {OTHER_RADIUS} more" in page


def test_a_larger_budget_gives_a_larger_sample(resistant: Evidence) -> None:
    sizes = []
    for budget in (100, 2_000, 6_500, 50_000):
        evidence = dataclasses.replace(resistant)
        evidence.__dict__["attack_passes"] = 5 * budget
        sizes.append(run_guards(evidence, "auto")[1].images)
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (16, 100)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.02, torch.linspace(0.01, 0.03, 90)])
def test_the_outcomes_do_not_depend_on_the_mode(epsilon: float | Tensor) -> None:
    threat = Threat("Linf", epsilon)
    results = [run(toys.model(scale=2.0), toys.images(90), threat=threat, guards=mode) for mode in MODES]
    for result in results[1:]:
        pd.testing.assert_frame_equal(result.outcomes.frame, results[0].outcomes.frame, check_exact=True)
        assert result.outcomes.meta == results[0].outcomes.meta


def test_without_guards_the_model_runs_for_the_attacks_only() -> None:
    model = Counting()
    with counted(model) as spent:
        result = run(model.train(), toys.images(60), guards="off")
    assert spent.guards == 0
    assert result.warnings == ()
    assert result.guards == GuardReport("off", not_run=tuple(GUARDS), reason="off")


def test_all_guards_run_if_requested() -> None:
    result = run(toys.model(scale=2.0), toys.images(60), attacks="fgsm", guards="full")
    assert result.guards is not None
    assert (result.guards.images, result.guards.budget, result.guards.not_run) == (60, None, ())


@pytest.mark.parametrize("mode", ["none", None, 1, True, ["full"]])
def test_an_unknown_mode_is_refused_before_any_pass(mode: Any) -> None:
    model = Counting()
    check_refused(
        r"^audit\(\): guards = .*: must be 'full', 'auto' or 'off'$", run, model, toys.images(60), guards=mode
    )
    assert model.passes == 0


@pytest.mark.slow
def test_a_resumed_audit_reuses_the_guards(tmp_path: Path) -> None:
    model = Counting(reverse=True)
    first = run(model, toys.images(60), out=tmp_path / "a")
    with counted(model) as spent:
        again = run(model, toys.images(60), out=tmp_path / "a", resume=True)
    assert spent == Spent(0, 0)  # `run_guards` was not called
    assert (again.guards, again.warnings) == (first.guards, first.warnings)
    with counted(model) as spent:
        full = run(model, toys.images(60), out=tmp_path / "a", resume=True, guards="full")
    assert spent.guards > 0
    assert full.guards is not None
    assert full.guards.mode == "full"
    for mode in MODES:  # those of the mode "full" include the others
        assert run(model, toys.images(60), out=tmp_path / "a", resume=True, guards=mode).guards == full.guards


@pytest.mark.slow
def test_guards_that_an_interrupted_audit_lacks_are_run_on_resumption(tmp_path: Path) -> None:
    def interrupted(evidence: Evidence, mode: GuardMode, *, late: bool) -> tuple[tuple[AuditWarning, ...], GuardReport]:
        raise KeyboardInterrupt

    expected = run(toys.model(scale=2.0), toys.images(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "run_guards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(toys.model(scale=2.0), toys.images(60), out=tmp_path / "a")
    resumed = run(toys.model(scale=2.0), toys.images(60), out=tmp_path / "a", resume=True)
    assert (resumed.guards, resumed.warnings) == (expected.guards, expected.warnings)


def test_guards_without_a_sample_are_named_after_the_time_limit(tmp_path: Path) -> None:
    model = toys.model(scale=2.0)
    late = run(model, toys.images(60), out=tmp_path / "a", max_time=1e-6)
    assert late.guards is not None
    assert late.guards.reason == "time"
    assert {*late.guards.not_run} == {*SAMPLED}
    assert "incomplete" in {found.name for found in late.warnings}
    whole = run(model, toys.images(60), out=tmp_path / "a", resume=True)
    assert whole.guards == run(model, toys.images(60)).guards


def test_guards_are_run_on_resumption_of_an_audit_that_had_no_time_for_them(tmp_path: Path) -> None:
    model = toys.model(scale=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution._Finish, "_probe", lambda *_: None)  # the limit is reached after the last image
        late = run(model, toys.images(60), out=tmp_path / "a")
    assert late.complete
    assert late.guards is not None
    assert late.guards.reason == "time"
    resumed = run(model, toys.images(60), out=tmp_path / "a", resume=True)
    assert resumed.guards == run(model, toys.images(60)).guards


def test_the_guards_of_an_incomplete_audit_are_not_reused(tmp_path: Path) -> None:
    """They may have run although another process reached the time limit."""
    model = Counting()
    run(model, toys.images(60), out=tmp_path / "a")
    about = read_about(tmp_path / "a")
    write_text(tmp_path / "a" / ABOUT, json.dumps({**about, "complete": False}), checksum=True)
    with counted(model) as spent:
        run(model, toys.images(60), out=tmp_path / "a", resume=True)
    assert spent.guards > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_passes_of_the_guards_are_estimated(mode: GuardMode) -> None:
    """For a model that resists every attack the estimate is an upper bound, and not far above.

    It includes the search for another radius, which no audit with a guard of masked gradients takes, and guards that
    run only if the outcomes show a symptom.
    """
    model, data = Counting(reverse=True), mislabelled(100)
    options: dict[str, Any] = {"attacks": "pgd:steps=40", "precision": EXACT, "batch_size": 64, "guards": mode}
    cost = estimate(model, data, "Linf:0.02", **options)
    with counted(model) as spent:
        audit(model, data, "Linf:0.02", **options)
    assert spent.guards <= cost.guard_passes <= 5 * spent.guards
    assert cost.guard_minutes == pytest.approx(cost.minutes * cost.guard_passes / (cost.forwards + cost.backwards))


LONG, OTHER = "pgd:steps=30", "pgd:steps=30,objective=margin"


def reused(model: Counting, data: Images, **more: Any) -> tuple[Audit, int]:
    """An audit, and the passes of its guards that the model did not take."""
    chosen: dict[str, Any] = {"threat": "Linf:0.02", "attacks": LONG, "precision": EXACT, "batch_size": 64}
    with counted(model) as spent:
        result = audit(model, data, **(chosen | more))
    assert result.guards is not None
    return result, result.guards.passes - spent.guards


@pytest.mark.parametrize("reverse", [True, False])
def test_an_audit_by_other_attacks_reuses_the_results_of_the_guards(reverse: bool) -> None:
    """Also where an attack of the guards succeeds, so that it ends early; the report is that of a first audit."""
    data, model = mislabelled(160), Counting(reverse=reverse)
    first, before = reused(model, data)
    second, saved = reused(model, data, attacks=OTHER)
    expected, none = reused(Counting(reverse=reverse), data, attacks=OTHER)
    assert before == none == 0 < saved
    assert (second.guards, second.warnings) == (expected.guards, expected.warnings)
    assert {"misleading-gradients", "large-radius"} <= {warning.name for warning in first.warnings} or not reverse


def with_other_weights(model: nn.Module) -> None:
    next(model.parameters()).data.mul_(1.001)


def with_other_logits(model: nn.Module) -> None:
    inner: Any = model.get_submodule("inner")
    forward = inner.forward
    inner.forward = lambda x: forward(x) / 2


@pytest.mark.parametrize("change", [with_other_weights, with_other_logits])
def test_nothing_is_reused_after_a_change_of_the_model(change: Callable[[nn.Module], None]) -> None:
    data, model = mislabelled(160), Counting(reverse=True)
    reused(model, data)
    change(model)
    assert reused(model, data)[1] == 0


@pytest.mark.parametrize("change", ["images", "labels", "norm", "seed", "guards"])
def test_nothing_is_reused_after_a_change_of_the_audit(change: str) -> None:
    data, model = mislabelled(160), Counting(reverse=True)
    reused(model, data)
    options: dict[str, dict[str, Any]] = {
        "images": {"data": Images(data.x * 0.999, data.y, data.class_names, data.name)},
        "labels": {"data": Images(data.x, data.y.roll(3), data.class_names, data.name)},
        "norm": {"threat": "L2:0.1"},
        "seed": {"seed": 1},
        "guards": {"guards": "full"},
    }
    assert reused(model, **({"data": data} | options[change]))[1] == 0


def test_another_radius_shares_the_attack_at_the_radius_of_the_grey_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on the norm only: 20 passes and a verification of each survivor. No other radius is searched for."""
    monkeypatch.setattr("classwise.auditing.guards.radius._fault", lambda _: None)
    data, model = mislabelled(160), Counting(reverse=True)
    reused(model, data)
    result, saved = reused(model, data, threat="Linf:0.03")
    assert result.guards is not None
    assert 0 < saved <= 21 * result.guards.images
    assert saved % 21 == 0


def test_a_memory_gives_the_results_of_the_attacks_themselves() -> None:
    """On overlapping parts of a sample, for two attacks, at a number and at radii per image, with the same passes."""
    evidence = evidence_of(toys.model(), toys.images(60))
    assert evidence.probe is not None
    kept = dataclasses.replace(evidence.probe, memory=Memory()).first(60)
    parts = [torch.arange(60) < 40, torch.arange(60) >= 20, torch.arange(60) % 3 == 0, torch.zeros(60).bool()]
    balls = [None, Threat("Linf", 0.05), Threat("Linf", torch.linspace(0.01, 0.1, 60))]
    for attack in (FGSM(), PGD(steps=5)):
        for ball in balls:
            for part in parts:
                plain = dataclasses.replace(kept, memory=Memory()).first(60)
                assert len(kept.logits) == len(plain.logits)
                before = kept.taken
                expected = plain.succeeds_on(part, attack, ball)
                assert torch.equal(kept.succeeds_on(part, attack, ball), expected)
                assert kept.taken - before == plain.taken - 60
                assert not expected[~part].any()


@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_results_do_not_depend_on_how_often_the_end_of_an_attack_is_checked(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = evidence_of(toys.model(), toys.images(60))
    assert evidence.probe is not None
    steps, places, ball = [], torch.arange(32), Threat("Linf", epsilon)
    step = PGD.step

    def noted(attack: PGD, *arguments: Any) -> State:
        steps.append(attack)
        return step(attack, *arguments)

    monkeypatch.setattr(PGD, "step", noted)
    at_each = evidence.probe._attack(places, PGD(steps=20), ball)
    fewest = len(steps)
    monkeypatch.setattr(evidence_module, "_POLL", {"cpu": 8})
    assert evidence.probe._attack(places, PGD(steps=20), ball) == at_each
    assert len(steps) - fewest == min(20, -(-fewest // 8) * 8)
    assert (fewest < 20) == all(success for success, _ in at_each)


def test_a_memory_ends_with_its_model() -> None:
    model = toys.model()
    memory = weakref.ref(memory_of(model, "weights", "data"))
    assert memory() is memory_of(model, "weights", "data")
    assert memory() is not memory_of(model, "weights", "other data")
    gc.collect()
    assert memory() is None
    last = weakref.ref(memory_of(model, "weights", "data"))
    del model
    gc.collect()
    assert last() is None
