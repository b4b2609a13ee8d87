"""Options that several commands share are the same in each of them."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from classwise.cli.app import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SHARED = {
    "--weights --width --mean --std --model-set --outputs",
    "--data --split --subset --root --data-set",
    "--corruption --severity",
    "--attack --seed --batch-size --precision --device",
    "--resume --html --json",
}
SHARDS = "--shards --shard --gpus-per-shard --on --workers --ray-address --slurm "
OWN = {
    "audit": SHARDS + "--threat --cascade --early-stop --settle --repeats --repeat-rule --grid --group --save --guards"
    " --out --fail-if --max-time --estimate"
    " --junit --sarif --tensorboard --mlflow --wandb",
    "curve": SHARDS + "--threat --rounds --out",
    "worst-class": "--threat --confidence --tolerance --out --max-time --shards",
}


def options(command: str) -> dict[str, Any]:
    return {parameter.opts[0]: parameter for parameter in COMMANDS[command].params}


@pytest.mark.parametrize("command", OWN)
def test_a_command_has_the_shared_options_and_its_own(command: str) -> None:
    expected = {option for group in (*SHARED, OWN[command]) for option in group.split()}
    assert set(options(command)) == expected | {"model"}


@pytest.mark.parametrize("option", ["model", *(option for group in sorted(SHARED) for option in group.split())])
def test_a_shared_option_is_the_same_everywhere(option: str) -> None:
    declared = {
        (found.help, found.metavar, *found.opts, found.required)
        for found in (options(command)[option] for command in OWN)
    }
    assert len(declared) == 1
