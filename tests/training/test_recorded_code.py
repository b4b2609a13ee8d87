"""The code of a user in the record of a training: every part of a recipe, the network, and resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from classwise.training.train import train
from tests.refusals import refused
from tests.training.killing import KillAt, Killed
from tests.training.on_digits import TINY
from tests.user_modules import UserModules, user_modules  # noqa: F401  # a fixture

NETWORK = """
from tests.training.on_digits import normalised

def own(num_classes, in_channels):
    return normalised(num_classes, in_channels)
"""


def subclass(path: str) -> str:
    """A module with a subclass of a part of classwise."""
    module, _, name = path.partition(":")
    return f"from classwise.{module} import {name}\nclass own({name}): pass\n"


PARTS: dict[str, tuple[str, Any]] = {
    "model": (NETWORK, {"model": {"name": "userpart:own"}}),
    "objective": (
        subclass("training.objectives.adversarial:AdversarialTraining"),
        {"objective": "userpart:own"},
    ),
    "schedules.0": (subclass("training.schedules.cfa:CCM"), {"schedules": ["userpart:own"]}),
    "attack": (subclass("attacks.gradient.ascent:PGD"), {"attack": "userpart:own:steps=2"}),
    "validation_attack": (subclass("attacks.gradient.ascent:PGD"), {"validation_attack": "userpart:own:steps=2"}),
    "averaging": (subclass("training.averaging:NoAverage"), {"averaging": "userpart:own"}),
    "update": (subclass("training.updates:Plain"), {"update": "userpart:own"}),
    "selection": ("def own(robust, count): return float(robust.sum())\n", {"selection": "userpart:own"}),
}


def run(folder: Path, part: str, **more: Any) -> Any:
    chosen: dict[str, Any] = {key: value for key, value in TINY.items() if key != "attack.steps"} | {"epochs": 1}
    return train("at", data="digits", out=folder, overrides=chosen | PARTS[part][1], **more)


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_part_stops_a_resumed_training(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
    part: str,
) -> None:
    text = PARTS[part][0]
    user_modules.write(userpart=text)
    with pytest.raises(Killed):
        run(tmp_path / "run", part, progress=KillAt(1))
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())["code"]
    assert "userpart" in recorded[part]
    user_modules.write(userpart=text + "# changed\n")
    message = refused(run, tmp_path / "run", part, resume=True)
    assert f"the code of {part}: userpart ({user_modules.folder / 'userpart.py'}) has changed" in message


def test_a_finished_training_is_loaded_with_a_warning(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, text = tmp_path / "run", PARTS["model"][0]
    user_modules.write(userpart=text)
    run(folder, "model")
    user_modules.forget()
    run(folder, "model", resume=True)
    assert "other code" not in caplog.text
    user_modules.write(userpart=text + "# changed\n")
    run(folder, "model", resume=True)
    assert "run was computed with other code: the code of model: userpart" in caplog.text
    caplog.clear()
    (folder / "checkpoints" / "state.pt").unlink()
    run(folder, "model", resume=True)
    assert "run was computed with other code: the code of model: userpart" in caplog.text


def test_a_training_without_a_record_is_resumed_with_a_note(
    tmp_path: Path,
    user_modules: UserModules,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    user_modules.write(userpart=PARTS["model"][0])
    with pytest.raises(Killed):
        run(tmp_path / "run", "model", progress=KillAt(1))
    file = tmp_path / "run" / "environment.json"
    content = json.loads(file.read_text())
    del content["code"]
    file.write_text(json.dumps(content))
    (tmp_path / "run" / "checksums.txt").unlink()
    assert run(tmp_path / "run", "model", resume=True).complete
    assert "does not record the code of your own" in caplog.text
