"""Transfer: the surrogate makes the image, the model under audit judges it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.blackbox.transfer import Transfer
from classwise.attacks.engine import Engine, Job
from classwise.attacks.gradient.ascent import PGD, PGDT
from classwise.attacks.gradient.momentum import MIFGSM
from classwise.auditing.run.audit import audit
from classwise.core.settings.config import describe, make
from classwise.models import fingerprint, save_weights
from classwise.models.loading.loader import load_model
from classwise.threat.ball import Threat
from tests.refusals import check_refused

from .models import Linear, Small, images, labelled

INNER = (MIFGSM(), PGD(objective="kl", random_init="normal"), PGDT(steps=3, targets=1))


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_the_image_is_the_one_that_the_surrogate_alone_gives(inner: Attack) -> None:
    """Also where the attack compares with clean logits: they are the surrogate's."""
    model, surrogate, x = Linear(3, side=4).eval(), Small(3), images(32)
    y = model(x).argmax(1)
    result = cw.attack(model, x, y, Transfer(surrogate=surrogate, attack=inner), threat="Linf:0.1")
    assert torch.equal(result, cw.attack(surrogate, x, y, inner, threat="Linf:0.1", early_stop=False))


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


@pytest.mark.parametrize(
    ("surrogate", "message"),
    [
        ("", "no surrogate; set one, such as"),
        (Linear(4, side=4), "surrogate Linear has 4 classes and the model 3"),
        (Linear(3, channels=1, side=4), r"surrogate Linear does not accept images of shape \(2, 4, 4\)"),
    ],
)
def test_a_surrogate_that_does_not_fit(surrogate: str | torch.nn.Module, message: str) -> None:
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
