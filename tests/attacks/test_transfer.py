"""Transfer: the surrogate makes the image, the model under audit judges it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.engine import Engine, Finished, Job
from classwise.attacks.gradient.ascent import PGD, PGDT
from classwise.attacks.gradient.momentum import MIFGSM
from classwise.auditing.run.audit import audit
from classwise.core.settings.config import describe, make
from classwise.models import fingerprint, save_weights
from classwise.models.loading.loader import load_model
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .blocks import joined
from .models import Linear, Small, images, labelled

INNER = (MIFGSM(), PGD(objective="kl", random_init="normal"), PGDT(steps=3, targets=1))


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_the_image_is_the_one_that_the_surrogate_alone_gives(inner: Attack) -> None:
    """Also where the attack compares with clean logits: they are the surrogate's."""
    model, surrogate, x = Linear(3, side=4).eval(), Small(3), images(32)
    y = model(x).argmax(1)
    result = cw.attack(model, x, y, Transfer(surrogate=surrogate, attack=inner), threat="Linf:0.1")
    assert torch.equal(result, cw.attack(surrogate, x, y, inner, threat="Linf:0.1", early_stop=False))


@pytest.mark.parametrize(("inner", "norm"), [("spatial-grid", "Linf"), ("square", "L1"), ("cw-l2", "Linf")])
def test_the_inner_attack_must_support_the_threat(inner: str, norm: str) -> None:
    attack = Transfer(surrogate=Small(3), attack=make(ATTACKS, inner))
    x = images(8)
    check_refused(f"does not support {norm}", cw.attack, Small(3), x, [0] * 8, attack, threat=f"{norm}:0.1")


def test_the_model_judges_and_only_its_own_passes_count() -> None:
    """One pass for the clean logits and one verdict for each start; no gradient."""
    model, x, y = labelled(Small(3).eval(), 0.3 + 0.4 * images(64))
    attack = Transfer(surrogate=Linear(3, side=4), attack=PGD(restarts=3))
    blocks = list(Engine(model, batch_size=32).attack(attack, Threat("Linf", 0.1), [Job(torch.arange(64), x, y)]))
    for done in blocks:
        assert torch.equal(done.success, model(done.x).argmax(1) != done.y)
        assert bool((done.backwards == 0).all())
        assert bool((done.forwards[~done.success] == 4).all())
        assert bool((done.iterations[done.success] == 10).all())
    assert 0 < sum(int(done.success.sum()) for done in blocks) < 64


def test_on_itself_it_is_the_attack() -> None:
    model, x, y = labelled(Small(3).eval(), images(32))
    fooled = model(cw.attack(model, x, y, Transfer(surrogate=model, attack=PGD()), threat="Linf:0.1")).argmax(1) != y
    assert torch.equal(fooled, model(cw.attack(model, x, y, PGD(), threat="Linf:0.1", early_stop=False)).argmax(1) != y)


def blocks_of(model: torch.nn.Module, attack: Attack, x: torch.Tensor, y: torch.Tensor) -> Finished:
    return joined(Engine(model, batch_size=32).attack(attack, Threat("Linf", 0.1), [Job(torch.arange(len(x)), x, y)]))


@pytest.mark.parametrize("inner", [PGD(restarts=2), PGDT(steps=3, targets=9), MIFGSM()], ids=str)
def test_the_union_has_the_images_of_each_surrogate_in_turn(inner: Attack) -> None:
    """Bit for bit those of each surrogate alone; an image costs the verdicts up to its first success."""
    model, x, y = labelled(Small(3).eval(), 0.3 + 0.4 * images(64))
    surrogates = Linear(3, side=4, seed=2), Linear(3, side=4, seed=4)
    alone = [blocks_of(model, Transfer(surrogate=one, attack=inner), x, y) for one in surrogates]
    union = blocks_of(model, Transfer(surrogate=surrogates, attack=inner), x, y)
    assert torch.equal(union.success, alone[0].success | alone[1].success)
    assert all(bool((union.success & ~each.success).any()) for each in alone)
    first = alone[0].success.view(-1, 1, 1, 1)
    assert torch.equal(union.x[union.success], torch.where(first, alone[0].x, alone[1].x)[union.success])
    taken = alone[0].forwards + torch.where(alone[0].success, 0, alone[1].forwards - 1)  # one pass gives the classes
    assert torch.equal(union.forwards, taken)


def test_the_mean_of_linear_surrogates_is_that_of_their_weights() -> None:
    """Against a loop of sign steps on the cross-entropy of the mean logits."""
    model, x, y = labelled(Small(3).eval(), images(32))
    first, second = (Linear(3, side=4, seed=seed) for seed in (1, 2))
    attack = Transfer(surrogate=(first, second), combine="mean", attack=MIFGSM(steps=6, step_size=0.02, decay=0))
    weight, bias = (
        (one + other).detach() / 2 for one, other in zip(first.parameters(), second.parameters(), strict=True)
    )
    point = x
    for _ in range(6):
        probability = (point.flatten(1) @ weight.T + bias).softmax(1)
        gradient = (probability - torch.nn.functional.one_hot(y, 3)) @ weight  # of the cross-entropy
        step = point + 0.02 * gradient.sign().view_as(x)
        point = torch.minimum(torch.maximum(step, x - 0.1), x + 0.1).clamp(0, 1)
    assert torch.allclose(blocks_of(model, attack, x, y).x, point, atol=1e-6)
    alone = blocks_of(model, Transfer(surrogate=first, attack=attack.attack), x, y).x
    assert float((alone - point).abs().max()) > 0.05
    assert attack.starts_for(3) == 1


def test_clean_logits_are_those_of_the_surrogates() -> None:
    """For losses that compare with them: the divergence from other logits would have another gradient."""
    model, x, y = labelled(Small(3).eval(), images(32))
    first, second = (Linear(3, side=4, seed=seed) for seed in (1, 2))
    mean = Linear(3, side=4)
    mean.load_state_dict({name: (value + second.state_dict()[name]) / 2 for name, value in first.state_dict().items()})
    inner = PGD(objective="kl")
    found = blocks_of(model, Transfer(surrogate=(first, second), combine="mean", attack=inner), x, y)
    assert torch.allclose(found.x, blocks_of(model, Transfer(surrogate=mean, attack=inner), x, y).x, atol=1e-6)


def test_the_surrogate_is_left_as_it_was() -> None:
    model, surrogate, x = Linear(3, side=4), Small(3), images()
    surrogate.train()
    surrogate.norm.eval()
    surrogate.linear.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in surrogate.state_dict().items()}
    cw.attack(model, x, model(x).argmax(1), Transfer(surrogate=surrogate), threat="Linf:0.1")
    assert [surrogate.training, surrogate.norm.training, surrogate.dropout.training] == [True, False, True]
    assert [p.requires_grad for p in surrogate.linear.parameters()] == [True, False]
    assert all(torch.equal(value, before[name]) for name, value in surrogate.state_dict().items())
    assert surrogate.convolution.weight.grad is None


def test_a_spec_names_the_surrogate_and_the_options_of_the_attack_within(tmp_path: Path) -> None:
    surrogate = load_model("lenet", num_classes=3, in_channels=1)
    path = tmp_path / "lenet.safetensors"
    save_weights(path, surrogate)
    attack = make(ATTACKS, f"transfer:surrogate={path},attack=pgd,attack.steps=3,attack.step_size=2/255")
    assert attack == Transfer(surrogate=str(path), attack=PGD(steps=3, step_size=2 / 255))
    assert make(ATTACKS, describe(ATTACKS, attack)) == attack
    assert make(ATTACKS, {"name": "transfer", "surrogate": str(path), "attack": "pgd:steps=3"}).length == 3
    assert make(ATTACKS, f"transfer:surrogate={path},attack.decay=0") == Transfer(
        surrogate=str(path), attack=MIFGSM(decay=0)
    )
    model, x, y = labelled(load_model("lenet", num_classes=3, in_channels=1), images(8, 1, 28))
    expected = cw.attack(surrogate, x, y, PGD(steps=3, step_size=2 / 255), threat="Linf:0.1", early_stop=False)
    assert torch.equal(cw.attack(model, x, y, attack, threat="Linf:0.1"), expected)


def test_an_audit_records_which_surrogate_it_was() -> None:
    model, surrogate, x = Linear(3, side=4).eval(), Small(3), images(64)
    done = audit(model, (x, model(x).argmax(1)), "Linf:0.2", [Transfer(surrogate=surrogate)], batch_size=32)
    spec = done.outcomes.meta.attacks["transfer"]
    assert spec is not None
    assert (spec["surrogate"], spec["surrogate_hash"]) == ("Small", fingerprint(surrogate)[:12])
    assert spec["attack"]["name"] == "mifgsm"
    json.dumps(spec)


def test_a_recorded_spec_builds_the_same_attack_and_refuses_another_surrogate(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_weights(path, load_model("lenet", num_classes=3, in_channels=1))
    spec = describe(ATTACKS, Transfer(surrogate=str(path), attack=PGD()))
    assert describe(ATTACKS, make(ATTACKS, spec)) == spec
    save_weights(path, load_model("lenet", num_classes=3, in_channels=1))
    check_refused(f"have the fingerprint .*, and surrogate_hash is {spec['surrogate_hash']}", make, ATTACKS, spec)


def test_a_spec_names_several_surrogates_and_their_hashes(tmp_path: Path) -> None:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path in paths:
        save_weights(path, load_model("lenet", num_classes=3, in_channels=1))
    both = "+".join(map(str, paths))
    attack = make(ATTACKS, f"transfer:surrogate={both},combine=mean,attack=pgd")
    assert attack == Transfer(surrogate=tuple(map(str, paths)), combine="mean", attack=PGD())
    spec = describe(ATTACKS, attack)
    assert spec["surrogate_hash"] == "+".join(fingerprint(load_model(path))[:12] for path in paths)
    assert describe(ATTACKS, make(ATTACKS, spec)) == spec
    json.dumps(spec)
    assert "combine" not in describe(ATTACKS, Transfer(surrogate=str(paths[0])))
    first, second = spec["surrogate_hash"].split("+")
    check_refused("1 hashes for 2 surrogates", make, ATTACKS, spec | {"surrogate_hash": first})
    swapped = f"the surrogate {paths[0]} have the fingerprint {first}, and surrogate_hash is {second}"
    check_refused(swapped, make, ATTACKS, spec | {"surrogate_hash": f"{second}+{first}"})


@pytest.mark.parametrize(
    ("surrogate", "message"),
    [
        ("", "no surrogate; set one, such as"),
        (Linear(4, side=4), "surrogate Linear has 4 classes and the model 3"),
        ((Linear(3, side=4), Linear(4, side=4)), "surrogate Linear has 4 classes and the model 3"),
        (Linear(3, channels=1, side=4), r"surrogate Linear does not accept images of shape \(2, 4, 4\)"),
    ],
)
def test_a_surrogate_that_does_not_fit(surrogate: Any, message: str) -> None:
    model, x = Small(3).eval(), images(4)
    check_refused(message, cw.attack, model, x, model(x).argmax(1), Transfer(surrogate=surrogate), threat="Linf:0.1")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("transfer:surrogate=nowhere/model.pt", "there is no file or folder nowhere/model.pt"),
        ("transfer:attack=pdg", "unknown attack 'pdg'; did you mean 'pgd'"),
        ("transfer:attack=pgd,attack.stepz=3", "attack 'pgd' has no field 'stepz'; did you mean 'steps'"),
        ("transfer:surogate=x", "attack 'transfer' has no field 'surogate'; did you mean 'surrogate'"),
    ],
)
def test_a_spec_that_is_wrong(spec: str, message: str) -> None:
    check_refused(message, make, ATTACKS, spec)
