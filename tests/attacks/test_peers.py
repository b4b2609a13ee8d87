"""Peers on the same model: the same images wherever both compute the same thing, else as many."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import classwise as cw
from classwise.attacks.base import Attack
from classwise.attacks.blackbox import square
from classwise.attacks.blackbox.square import Square, _bump_pair, _Window
from classwise.attacks.external import ExternalAttack
from classwise.attacks.gradient.apgd import APGD, APGDDLR, APGDT
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.attacks.gradient.momentum import DIFGSM, MIFGSM
from classwise.attacks.minimal.fab import FABTargeted
from classwise.threat.ball import Norm, Threat
from tests.documents import DOCS, blocks

from .models import Small, images, labelled
from .test_external import run as external
from .test_minimal import finished


def peer(name: str) -> Any:
    """Import a peer; its warnings while importing are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.fixture(scope="module")
def case() -> tuple[Small, Tensor, Tensor]:
    """Images away from 0 and 1: there, peers clip after shrinking an L2 step, which is not the nearest point."""
    model = Small(5).eval()
    x = 0.25 + 0.5 * images(24)
    return model, x, model(x).argmax(1)


STEPS, EPSILON, STEP = 8, 0.03, 0.007


def ours(case: tuple[Small, Tensor, Tensor], attack: Attack, threat: str) -> Tensor:
    model, x, y = case
    return cw.attack(model, x, y, attack, threat=threat, early_stop=False)


def test_torchattacks_linf(case: tuple[Small, Tensor, Tensor]) -> None:
    torchattacks = peer("torchattacks")
    model, x, y = case
    theirs = torchattacks.PGD(model, eps=EPSILON, alpha=STEP, steps=STEPS, random_start=False)(x, y)
    mine = ours(case, PGD(steps=STEPS, step_size=STEP, random_init="none"), f"Linf:{EPSILON}")
    assert float((theirs - mine).abs().max()) < 1e-5
    theirs = torchattacks.FGSM(model, eps=EPSILON)(x, y)
    assert float((theirs - ours(case, FGSM(), f"Linf:{EPSILON}")).abs().max()) < 1e-5


def test_torchattacks_l2(case: tuple[Small, Tensor, Tensor]) -> None:
    torchattacks = peer("torchattacks")
    model, x, y = case
    theirs = torchattacks.PGDL2(model, eps=0.2, alpha=0.05, steps=STEPS, random_start=False)(x, y)
    mine = ours(case, PGD(steps=STEPS, step_size=0.05, random_init="none"), "L2:0.2")
    assert float((theirs - mine).abs().max()) < 1e-5


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_torchattacks_momentum(case: tuple[Small, Tensor, Tensor], decay: float) -> None:
    torchattacks = peer("torchattacks")
    model, x, y = case
    numbers = {"eps": EPSILON, "alpha": STEP, "steps": STEPS, "decay": decay}
    mine = ours(case, MIFGSM(steps=STEPS, step_size=STEP, decay=decay), f"Linf:{EPSILON}")
    assert float((torchattacks.MIFGSM(model, **numbers)(x, y) - mine).abs().max()) < 1e-5
    undiverse = torchattacks.DIFGSM(model, **numbers, diversity_prob=0, resize_rate=0.5)(x, y)
    mine = ours(case, DIFGSM(steps=STEPS, step_size=STEP, decay=decay, diversity_prob=0), f"Linf:{EPSILON}")
    assert float((undiverse - mine).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("name", "norm", "radius", "step"), [("LinfPGD", "Linf", EPSILON, STEP), ("L2PGD", "L2", 0.2, 0.05)]
)
def test_foolbox(case: tuple[Small, Tensor, Tensor], name: str, norm: str, radius: float, step: float) -> None:
    foolbox = peer("foolbox")
    model, x, y = case
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    attack = getattr(foolbox.attacks, name)(abs_stepsize=step, steps=STEPS, random_start=False)
    _, theirs, _ = attack(wrapped, x, y, epsilons=radius)
    mine = ours(case, PGD(steps=STEPS, step_size=step, random_init="none"), f"{norm}:{radius}")
    assert float((theirs - mine).abs().max()) < 1e-5


@pytest.mark.parametrize("side", [3, 4, 5, 6, 11, 29])
def test_torchattacks_squares_bumps(side: int) -> None:
    theirs = peer("torchattacks").Square(Small().eval(), norm="L2")
    theirs.device = "cpu"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = [theirs.eta(side) for _ in range(8)]
    upright, turned = _bump_pair(side, torch.device("cpu"))
    for bump in drawn:
        assert min(float((bump - pattern).abs().max()) for pattern in (upright, turned)) < 1e-6


class NeverLast(_Window):
    """A square as torchattacks (and AutoAttack) place it: never on the last row and column."""

    def __init__(self, uniform: Tensor, side: Tensor, height: int, width: int) -> None:
        places = torch.stack([height - side, width - side], 1)
        super().__init__(uniform * (places.clamp_min(1) / (places + 1)), side, height, width)


@pytest.mark.parametrize(("norm", "radius"), [("Linf", 0.02), ("L2", 0.15)])
def test_torchattacks_square(norm: str, radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other draws, so other images; but as many with squares in the same places, and more with squares in all."""
    torchattacks = peer("torchattacks")
    model, x, y = labelled(Small(5).eval(), images(200, side=10))
    theirs = torchattacks.Square(model, norm=norm, eps=radius, n_queries=60, seed=0, resc_schedule=False)
    with torch.random.fork_rng():
        stand = int((model(theirs(x, y)).argmax(1) == y).sum())
    attack = Square(steps=60)
    everywhere = int((model(cw.attack(model, x, y, attack, threat=f"{norm}:{radius}")).argmax(1) == y).sum())
    monkeypatch.setattr(square, "_Window", NeverLast)
    alike = int((model(cw.attack(model, x, y, attack, threat=f"{norm}:{radius}")).argmax(1) == y).sum())
    assert 40 < stand < 180
    assert abs(alike - stand) <= 8
    assert everywhere < min(stand, alike)


@pytest.mark.slow
def test_the_tutorial_for_users_of_torchattacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop and its audit have the same accuracy but for the random starts; the attack of the library runs."""
    peer("torchattacks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    network = next(block for block in blocks(DOCS / "tutorials/audit.md") if block.file == "digits_net.py")
    Path("digits_net.py").write_text(network.text.replace("range(20)", "range(6)"), encoding="utf-8")
    runpy.run_path("digits_net.py", run_name="__main__")
    page = DOCS / "tutorials" / "from-torchattacks.md"
    loop, audit, theirs = (block.text for block in blocks(page) if block.language in ("py", "python"))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        space: dict[str, Any] = {}
        for text in (loop, audit):
            exec(compile(text, page.name, "exec"), space)
    sys.modules.pop("digits_net")
    first, second = map(float, re.findall(r"robust accuracy: ([\d.]+)%", printed.getvalue()))
    assert 10 < first < 90
    assert abs(first - second) < 2
    exec(compile(theirs, page.name, "exec"), space)
    assert space["audit"].by_attack.loc["all", "overall"] < space["audit"].by_attack.loc["clean", "overall"]


@pytest.mark.parametrize(("norm", "epsilon"), [("Linf", 0.05), ("L2", 0.3)])
def test_fab_t_finds_the_distances_that_torchattacks_finds(norm: Norm, epsilon: float) -> None:
    """One target, from the image itself: the same arithmetic, so the same points up to rounding."""
    torchattacks = peer("torchattacks")
    model, x, y = labelled(Small(5).eval(), 0.2 + 0.6 * images(16))
    theirs = torchattacks.FAB(model, norm=norm, eps=10.0, steps=20, n_restarts=1, n_classes=2, multi_targeted=True)
    reached = theirs(x, y)
    wrong = model(reached).argmax(1) != y
    distance = Threat(norm, 1.0).distance(reached, x)[wrong].detach()
    mine = finished(model, FABTargeted(steps=20, targets=1), Threat(norm, epsilon), x, y).records["minimal_distance"]
    assert int(wrong.sum()) > 8
    assert float((mine[wrong] / distance - 1).abs().median()) < 1e-3
    assert float((mine[wrong] / distance).max()) < 1.02


def test_torchattacks_as_an_external_attack() -> None:
    torchattacks = peer("torchattacks")
    model, x = Small(5).eval(), images(32)
    attack = torchattacks.MIFGSM(model, eps=0.1, alpha=0.01, steps=7)
    done = external(ExternalAttack(attack=attack), model, x, Threat("Linf", 0.1))
    assert float((done.x - attack(done.x0, done.y)).abs().max()) < 1e-6
    assert set(done.forwards.tolist()) == {7 + 1}
    assert set(done.backwards.tolist()) == {7}
    with pytest.warns(UserWarning, match=r"MIFGSM has eps = 0\.1 and the threat 0\.05; its images are projected"):
        smaller = external(ExternalAttack(attack=attack), model, x, Threat("Linf", 0.05))
    assert float((smaller.x - smaller.x0).abs().max()) <= 0.05 + 1e-6


@pytest.mark.parametrize("given", [True, False], ids=["its own wrapped model", "ours"])
def test_foolbox_as_an_external_attack(given: bool) -> None:
    foolbox = peer("foolbox")
    model, x = Small(5).eval(), images(32)
    attack = foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=6, random_start=False)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    radii = torch.tensor([0.02, 0.1]).repeat(16)
    y = model(x).argmax(1)
    ours = ExternalAttack(attack=attack, model=wrapped if given else None)
    result = cw.attack(model, x, y, ours, threat=Threat("Linf", radii), early_stop=False)
    for radius in (0.02, 0.1):
        of = radii == radius
        _, expected, _ = attack(wrapped, x[of], y[of], epsilons=radius)
        assert float((result[of] - expected).abs().max()) < 1e-6
    assert bool((external(ours, model, x, Threat("Linf", 0.1)).backwards == 6).all())


@pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")
@pytest.mark.filterwarnings("ignore:there are .* points with zero gradient")
@pytest.mark.parametrize("kind", ["ce", "dlr", "t"])
@pytest.mark.parametrize(("norm", "epsilon", "spread"), [("Linf", 0.03, 1), ("L2", 0.12, 1), ("L1", 0.8, 4)])
def test_the_reference_breaks_as_many(kind: str, norm: Norm, epsilon: float, spread: int) -> None:
    """Of 100 images, as many within the spread that the seeds of either have on this model."""
    theirs = peer("pyautoattack.autopgd_base")
    model, x, y = labelled(Small(6).eval(), images(100, side=6))
    mine = {"ce": APGD(steps=30), "dlr": APGDDLR(steps=30), "t": APGDT(steps=30)}[kind]
    options = {"n_iter": 30, "norm": norm, "eps": epsilon, "use_largereps": norm == "L1", "device": "cpu"}
    if kind == "t":
        attack = theirs.APGDAttack_targeted(model, n_target_classes=5, **options)
    else:
        attack = theirs.APGDAttack(model, loss=kind, **options)
    is_robust = [
        float((model(result).argmax(1) == y).sum())
        for result in (cw.attack(model, x, y, mine, threat=Threat(norm, epsilon)), attack.perturb(x, y))
    ]
    assert 10 < is_robust[1] < 90
    assert abs(is_robust[0] - is_robust[1]) <= spread
