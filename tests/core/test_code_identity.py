"""The identity of user code: which files it covers, and what changes it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from classwise.attacks.external import ExternalAttack
from classwise.core.settings.code_identity import (
    STRUCTURE,
    changes,
    check_unchanged,
    compared_here,
    identity,
    without_empty,
)
from classwise.models.structure import code_of
from tests.refusals import refused
from tests.user_modules import UserModules, user_modules  # noqa: F401  # a fixture

NETS = """
from torch import nn
import lays
class Net(nn.Module):
    def forward(self, x):
        return lays.double(x)
def call(x): return x
def decorated(function): return function
"""
LAYS = "SCALE = 2\ndef double(x):\n    return SCALE * x\n"
FORMS: dict[str, Callable[[Any], object]] = {
    "instance": lambda nets: nets.Net(),
    "class": lambda nets: nets.Net,
    "function": lambda nets: nets.call,
    "method": lambda nets: nets.Net().forward,
    "partial": lambda nets: functools.partial(nets.call, 1),
    "closure": lambda nets: closed(nets.call),
    "in a module of torch": lambda nets: nn.Sequential(nn.Flatten(), nets.Net()),
    "in an attack": lambda nets: ExternalAttack(attack=nets.Net()),
    "by its path": lambda nets: ExternalAttack(attack="usernets:decorate"),
    "hook": lambda nets: hooked(nets.call),
    "replaced forward": lambda nets: replaced(nets.call),
    "in a collection": lambda nets: [{"a": (nets.Net(),)}],
    "subclass in a session": lambda nets: type("Own", (nets.Net,), {})(),
}


def closed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x) + 1


def hooked(function: Callable[..., Any]) -> nn.Module:
    module = nn.Flatten()
    module.register_forward_hook(function)
    return module


def replaced(function: Callable[..., Any]) -> nn.Module:
    module = nn.Flatten()
    module.forward = function  # type: ignore[method-assign]
    return module


def written(modules: UserModules, nets: str = NETS, lays: str = LAYS) -> ModuleType:
    nets = nets.replace("lays", "userlays").replace("decorated(function)", "decorate(x, y)").replace("function", "x")
    modules.write(usernets=nets, userlays=lays)
    return modules.load("usernets")


@pytest.mark.parametrize("form", FORMS)
def test_a_change_of_the_file_or_of_one_that_it_imports_changes_the_identity(
    user_modules: UserModules,  # noqa: F811
    form: str,
) -> None:
    def found(**texts: str) -> dict[str, str]:
        digests = identity({"x": FORMS[form](written(user_modules, **texts))})["x"]
        return {module: digest for module, digest in digests.items() if module.startswith("user")}

    before = found()
    assert before == found()
    assert before["userlays"] == hashlib.sha256(LAYS.encode()).hexdigest()
    own, imported = found(nets=NETS + "# a comment\n"), found(lays=LAYS.replace("2", "3"))
    assert [name for name in before if before[name] != own[name]] == ["usernets"]
    assert [name for name in before if before[name] != imported[name]] == ["userlays"]


def test_packages_relative_and_later_imports_are_followed(
    user_modules: UserModules,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user_modules.write(
        userpack__a="from . import b\nfrom .c import C\nimport numpy, torch\ndef f(x):\n    from usersolo import g\n",
        userpack__b="import nothing_here\n",
        userpack__c="C = 1\n",
        usersolo="from userpack import d\n",
        userpack__d="(this is no Python\n",
        userother="",
    )
    (user_modules.folder / "userpack" / "__init__.py").write_text("")
    monkeypatch.setitem(sys.modules, "nothing_here", ModuleType("nothing_here"))
    function = user_modules.load("userpack.a").f
    expected = {f"userpack{end}" for end in ("", ".a", ".b", ".c", ".d")} | {"usersolo"}
    assert set(identity({"f": function})["f"]) == expected


def test_modules_that_are_loaded_from_a_file_alone_are_covered(user_modules: UserModules) -> None:  # noqa: F811
    user_modules.write(userfile="import userlays\nclass Net:\n    def call(self, x): return x\n", userlays=LAYS)
    spec = importlib.util.spec_from_file_location("userfile", user_modules.folder / "userfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    user_modules.forget()
    for value in (module.Net(), module.Net.call):
        assert set(identity({"x": value})["x"]) == {"userfile", "userlays"}


class Hostile(dict[str, object]):
    """An object of the user whose own methods fail."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    __eq__ = values = __len__ = __repr__ = __iter__  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        raise RuntimeError


def test_methods_of_objects_are_not_called() -> None:
    cycle: list[object] = [Hostile()]
    cycle.append(cycle)
    assert __name__ in identity({"x": cycle})["x"]


@pytest.mark.parametrize("value", [None, 3, "text", "no.such:thing", [torch.zeros(2)], nn.Linear(2, 2), print, Path])
def test_other_code_has_no_identity(value: object) -> None:
    assert identity({"x": value}) == {"x": {}}


def run_as_main(text: str, monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, str]:
    """The identity of an object of a script without a file, such as a cell of a notebook."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(text, "<stdin>", "exec"), vars(main))
    return identity({"x": vars(main)[name]})["x"]


def test_of_a_script_the_used_definitions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SCALE = 2\ndef double(x): return SCALE * x\nclass Net:\n    def call(self, x): return double(x)\n"
    digests = {
        name: run_as_main(other, monkeypatch, "Net")
        for name, other in {
            "same": text,
            "with other settings": text + "resume = True\ndef unused(): pass\n",
            "another constant": text.replace("2", "3"),
            "another function": text.replace("* x", "+ x"),
            "another method": text.replace("double(x)\n", "double(x) + 1\n"),
        }.items()
    }
    assert digests["same"].keys() == {"__main__"}
    same = [name for name, found in digests.items() if found == digests["same"]]
    assert same == ["same", "with other settings"]


def test_the_file_that_was_imported_counts_until_it_is_imported_again(
    user_modules: UserModules,  # noqa: F811
) -> None:
    net = written(user_modules).Net()
    before = identity({"net": net})
    (user_modules.folder / "usernets.py").write_text("changed = True\n")
    assert identity({"net": net}) == before
    assert compared_here(before) == [
        f"the code of userlays ({user_modules.folder / 'userlays.py'}) is unchanged",
        f"the code of usernets ({user_modules.folder / 'usernets.py'}) has changed",
    ]
    assert compared_here({"x": {"no_such_module": "1f", STRUCTURE: "2e"}}) == [
        "the code of no_such_module is not found here"
    ]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
    "another layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Softmax(1)),
    "another setting": lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)),
    "another order": lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten()),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)),
    "more dropout": lambda: nn.Sequential(nn.Dropout(0.6), nn.Linear(4, 2)),
    "a program": lambda: torch.jit.script(MODELS["plain"]()),
    "another program": lambda: torch.jit.script(MODELS["another layer"]()),
    "a frozen program": lambda: torch.jit.freeze(torch.jit.script(MODELS["plain"]().eval())),
    "another frozen program": lambda: torch.jit.freeze(torch.jit.script(MODELS["another layer"]().eval())),
    "a traced program": lambda: torch.fx.symbolic_trace(MODELS["plain"]()),
}


@pytest.mark.filterwarnings("ignore")  # deprecations of TorchScript
def test_the_printed_structure_of_models_differs() -> None:
    found = {name: code_of(build())["model"][STRUCTURE] for name, build in MODELS.items()}
    assert len({*found.values()}) == len(found)
    assert found == {name: code_of(build())["model"][STRUCTURE] for name, build in MODELS.items()}


class Printed(nn.Module):
    """Prints its address."""

    def extra_repr(self) -> str:
        return f"function={object.__repr__(self)}"


class Failing(nn.Module):
    """Cannot be printed."""

    def extra_repr(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize("kind", [Printed, Failing])
def test_the_structure_has_no_addresses_and_needs_no_text(kind: type[nn.Module]) -> None:
    first, second = kind(), kind()
    assert code_of(first) == code_of(second)


def test_batch_normalisation_over_processes_is_the_same_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert code_of(nn.SyncBatchNorm.convert_sync_batchnorm(model)) == code_of(model)  # type: ignore[no-untyped-call]


def test_changes_are_named_and_decide_by_what_is_left_to_do() -> None:
    before = {"model": {"a": "1", "b": "2"}, "attack": {"a": "1"}}
    now: dict[str, dict[str, str]] = {"model": {"a": "3", "c": "4"}, "schedule": {}}
    assert changes(before, now) == [
        "the code of model: a has changed",
        "the code of model: b is no longer used",
        "the code of model: c is new",
    ]
    assert without_empty(now) == {"model": now["model"]}
    assert check_unchanged(before, before, "runs/a", finished=False) == ""
    assert "runs/a was computed with other code: the code of model: a has" in check_unchanged(
        before, now, "runs/a", finished=True
    )
    message = refused(check_unchanged, before, now, "runs/a", finished=False)
    assert "restore it to continue, or give another folder" in message
    assert "does not record the code" in check_unchanged(None, now, "runs/a", finished=False)
    assert check_unchanged(None, {"model": {STRUCTURE: "1"}}, "runs/a", finished=False) == ""
