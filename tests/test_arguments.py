"""Every documented function refuses arguments of a wrong type with one line that names the argument."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import classwise as cw
from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import Arguments

from .refusals import check_refused

ROOT = Path(__file__).parents[1]
FURTHER = {
    "auditing.run.corruptions": "audit_corruptions",
    "auditing.run.cost": "estimate",
    "threat.ball": "Threat.parse Threat.with_epsilon",
    "data.derived": "long_tailed only_classes without_class",
    "data.images": "Images.take Images.batches Images.to",
    "data.sets.loading": "open_data",
    "models.normalization": "Normalized.__init__",
    "reporting.exports.robustbench": "write_robustbench",
    "stats.intervals": "wilson alpha_of lowest_interval class_intervals",
    "stats.paired": "difference_of_minima",
    "stats.pareto": "pareto_front",
    "stats.seeds": "worst_over_seeds",
    "sweeps.collect": "collect",
    "sweeps.cost": "estimate_sweep",
    "sweeps.executors.run": "resume_sweep",
    "sweeps.status": "sweep_status",
    "testing": "assert_robust",
    "training.recipe": "Recipe.read",
}
"""Further functions of the documents, and methods that are decorated one by one, by module."""
VALIDATED_BY_PYDANTIC = {"Precision", "Recipe", "Attack"}
"""Configurable classes, whose constructor validates every field, and the base class of others."""
UNDECORATED = {"Images", "Normalized", "Threat", "ClasswiseError", "ATTACKS", *VALIDATED_BY_PYDANTIC}
"""Public names whose methods are decorated one by one: others run in every step, or check each value by content."""


def decorated() -> dict[str, Arguments]:
    """The arguments of every decorated function and method of the public API, by its name in messages."""
    found = list[Any]()
    for name in sorted(set(cw.__all__) - {"__version__", "metrics", "papers"}):
        value = getattr(cw, name)
        found += [value] if not inspect.isclass(value) else [value.__init__, *members(value)]
    found += [getattr(module, name) for module in (cw.metrics, cw.papers) for name in module.__all__]
    for module, names in FURTHER.items():
        found += [operator.attrgetter(name)(importlib.import_module(f"classwise.{module}")) for name in names.split()]
    every = [getattr(function, "arguments", None) for function in found]
    return {arguments.label: arguments for arguments in every if isinstance(arguments, Arguments)}


def members(cls: type) -> Iterator[Any]:
    for name, member in inspect.getmembers(cls):
        if not name.startswith("_") and isinstance(member, types.FunctionType | types.MethodType):
            yield member


DECORATED = decorated()
WRONG: dict[str, Any] = {
    "None": None, "True": True, "text": "x", "number as text": "8", "empty text": "", "bytes": b"x", "int": 5,
    "huge": 10**30, "negative": -1, "zero": 0, "float": 1.5, "nan": math.nan, "inf": math.inf, "object": object(),
    "list": [object()], "empty list": [], "tuple": (object(), 1, 2), "mapping": {object(): object()}, "set": {1},
    "class": type("Wrong", (), {}), "complex": 1j, "array of text": np.array(["x"]), "null character": "a\0b",
    "meta tensor": torch.zeros(3, device="meta"),
}  # fmt: skip
WORDS = {
    bool: r"bool|True|Literal|Any|object|ArrayLike|Number",
    int: r"int|float|Any|object|ArrayLike|Seed|Count|Number|Level|Rounds|Radius|Seconds|Severity|BatchSize",
    float: r"float|Any|object|ArrayLike|Number|Level|Radius|Seconds",
    str: r"str|Any|object|Source|Model|Attacks|Group|ThreatLike|Compared|Spec|Which|Choice",
    bytes: r"bytes|Any|object",
    type(None): r"None|Optional|Any|object",
}
"""Words of an annotation, one of which must occur if a value of the type is accepted."""


def values() -> list[tuple[str, str]]:
    return [(label, name) for label, arguments in DECORATED.items() for name in names_of(arguments)]


def names_of(arguments: Arguments) -> list[str]:
    """The arguments of a function; not those that it passes on without a name."""
    parameters = arguments.signature.parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in ("self", "cls")
    ]


def test_every_public_function_is_decorated() -> None:
    functions = [name for name in cw.__all__ if inspect.isfunction(getattr(cw, name))]
    classes = [name for name in cw.__all__ if inspect.isclass(getattr(cw, name)) and name not in UNDECORATED]
    members = {name: getattr(module, name) for module in (cw.metrics, cw.papers) for name in module.__all__}
    of_modules = [name for name, member in members.items() if inspect.isfunction(member)]
    assert {*functions, *classes, *of_modules} <= DECORATED.keys() | {"ClasswiseError"}
    further = {name.removesuffix(".__init__") for names in FURTHER.values() for name in names.split()}
    assert further <= DECORATED.keys()


def test_every_function_in_the_documents_is_decorated() -> None:
    """Those that a page imports from the package, except the modules of attacks, parts and papers."""
    imported = set[tuple[str, str]]()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for module, names in re.findall(r"from (classwise[\w.]*) import ([\w, ]+)", page.read_text(encoding="utf-8")):
            imported |= {(module, name.strip()) for name in names.split(",") if name.strip()}
    lacking = [
        f"{module}.{name}"
        for module, name in sorted(imported)
        if inspect.isfunction(found := getattr(importlib.import_module(module), name, None))
        and not hasattr(found, "arguments")
        and not module.startswith(("classwise.analysis", "classwise.papers"))
    ]
    per_step = ["classwise.training.schedules.class_weighting.apply_class_weights"]
    assert lacking == ["classwise.core.settings.config.configurable", *per_step]


def test_all_annotations_are_resolved() -> None:
    """An argument is unchecked only where its annotation says that it may be anything."""
    for label, arguments in DECORATED.items():
        written = inspect.unwrap(arguments._function).__annotations__
        for name, hint in arguments.hints.items():
            unchecked = hint is Any and not re.search("Any|object", str(written.get(name)))
            assert not unchecked, f"{label}: {name}"


@pytest.mark.parametrize("label", sorted(DECORATED))
def test_wrong_types_are_refused_in_one_line(label: str) -> None:
    """Each value is refused in one line, or its type is one that the annotation names."""
    arguments = DECORATED[label]
    for name in names_of(arguments):
        hint = str(arguments.hints.get(name, "Any"))
        written = str(inspect.unwrap(arguments._function).__annotations__.get(name, hint))
        lines, accepted = dict[str, str](), list[str]()
        for what, value in WRONG.items():
            try:
                arguments.validated(name, value)
            except ClasswiseError as error:
                lines[what] = str(error)
            else:
                accepted.append(what)
        for line in lines.values():
            assert re.match(rf"({re.escape(label)}\(\): {name}|epsilon) = .+: ", line), line
            assert "must be" in line
            assert len(line) < 600
            assert "\n" not in line
        for what in accepted:
            expected = WORDS.get(type(WRONG[what]), "")
            assert re.search(expected, f"{written} {hint}"), f"{label}: {name} accepts {what}"


def test_ranges_and_spellings() -> None:
    accepts = DECORATED["audit"].validated
    assert accepts("precision", "float32") == "float32"
    assert accepts("batch_size", np.int64(64)) == 64
    assert type(accepts("batch_size", np.array(64))) is int
    assert accepts("max_time", np.float32(0.5)) == 0.5
    assert accepts("trace", np.array([1, 2])) == [1, 2]
    assert accepts("threat", ["Linf", 0.1]) == ("Linf", 0.1)
    assert accepts("resume", np.bool_(True)) is True
    for name, value in {"batch_size": 31, "seed": -1, "shards": 0, "settle": 1.0, "max_time": math.nan}.items():
        check_refused(rf"^audit\(\): {name} = {value}: must be a", accepts, name, value)


@pytest.mark.parametrize("path", ["x" * 300, "a/" + "é" * 200, "a/" * 2100, "a\0b"])
def test_a_path_that_no_file_system_accepts(path: str) -> None:
    for label, name in (("audit", "out"), ("train", "out"), ("load_model", "weights"), ("Audit.load", "path")):
        for value in (path, Path(path)):
            check_refused(rf"^{label}\(\): {name} = .+ path", DECORATED[label].validated, name, value)
    check_refused("path", cw.load_data, path)
    assert DECORATED["audit"].validated("out", "x" * 255) == "x" * 255


def test_a_path_through_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / "loop" / "below"):
        message = r"audit\(\): out = .* must be .*path.*; a symbolic link in it leads to itself"
        check_refused(message, DECORATED["audit"].validated, "out", path)


def test_data_are_neither_copied_nor_read() -> None:
    stream, array, model, attacks = iter([1]), np.zeros((3, 2)), nn.Sequential(nn.Flatten()), iter(["fgsm"])
    accepts = DECORATED["audit"].validated
    assert accepts("data", stream) is stream
    assert next(stream) == 1
    assert accepts("model", model) is model
    assert accepts("group", array) is array
    assert accepts("attacks", attacks) is attacks
    assert next(attacks) == "fgsm"


@pytest.fixture(scope="module")
def calls() -> dict[str, Callable[..., object]]:
    """The functions of the public API with valid arguments."""
    torch.manual_seed(0)
    x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 4  # the targeted difference of logits ratio needs four classes
    data, model = cw.Images(x, y), nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).eval()
    outcomes = cw.Outcomes.from_predictions([0, 1], attacks={"pgd": [0, 0]})
    audit = cw.Audit(outcomes)
    audited: dict[str, Any] = {"model": model, "data": data, "attacks": "fgsm"}
    return {
        "audit": lambda **changed: cw.audit(**{**audited, "threat": "Linf:0.1", "guards": "off", **changed}),
        "find_worst_class": lambda **changed: cw.find_worst_class(**{**audited, "threat": "Linf:0.1", **changed}),
        "robustness_curve": lambda **changed: cw.robustness_curve(
            **{**audited, "highest": 0.1, "rounds": 1, **changed}
        ),
        "compare": lambda **changed: cw.compare(**{"audits": [audit, audit], **changed}),
        "board": lambda **changed: cw.board(**{"sources": {"a": audit}, **changed}),
        "load_data": lambda **changed: cw.load_data(**{"source": "digits", "subset": 10, **changed}),
        "load_model": lambda **changed: cw.load_model(**{"model": model, **changed}),
        "Images": lambda **changed: cw.Images(**{"x": x, "y": y, **changed}),
        "Threat": lambda **changed: cw.Threat(**{"norm": "Linf", "epsilon": 0.1, **changed}),
        "Precision": cw.Precision,
        "from_predictions": lambda **changed: cw.Outcomes.from_predictions(
            **{"labels": [0, 1], "clean": [0, 1], **changed}
        ),
    }


ARGUMENTS = {
    "audit": ("model", "data", "threat", "attacks", "group", "max_time", "device", "progress", "precision",
              "batch_size", "seed", "early_stop", "cascade", "settle", "save", "trace", "guards", "shard", "shards",
              "resume"),
    "find_worst_class": ("model", "data", "threat", "attacks", "confidence", "tolerance", "max_time", "seed", "resume"),
    "robustness_curve": ("norm", "attacks", "highest", "rounds", "precision", "batch_size", "shard", "distributed"),
    "compare": ("audits", "attack", "group", "confidence", "across", "allow_incomplete"),
    "board": ("sources", "confidence", "extra_data"),
    "load_data": ("source", "split", "subset", "seed", "download", "data_format"),
    "load_model": ("model", "weights", "num_classes", "width", "mean", "device", "state_dict_key", "outputs"),
    "Images": ("class_names", "name", "split", "superclasses", "columns"),
    "Threat": ("norm", "epsilon"),
    "Precision": ("dtype", "channels_last", "compile", "graphs"),
    "from_predictions": ("labels", "clean", "attacks", "class_names", "confidences", "threat", "bogus"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_calls_with_wrong_types(
    name: str, calls: dict[str, Callable[..., object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call itself: only a `ClasswiseError`, or a result where the value is right."""
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    for argument in ARGUMENTS[name]:
        for what, value in WRONG.items():
            if what == "text" and argument in ("out", "root"):
                continue
            try:
                calls[name](**{argument: value})
            except ClasswiseError as error:
                lines.append(str(error))
            except Exception as error:  # noqa: BLE001  # any other type is what this test is for
                pytest.fail(f"{name}({argument}={what}): {type(error).__name__}: {error}")
    assert len(lines) > 10 * len(ARGUMENTS[name])
    assert not [line for line in lines if "\n" in line]


def test_names_and_numbers_of_arguments() -> None:
    for call, message in (
        (lambda: cw.compare(*[]), r"^compare\(\): missing a required argument: 'audits'$"),
        (lambda: cw.board([], 5), r"^board\(\): too many positional arguments; at most sources: pass "),  # type: ignore[call-arg]
        (lambda: cw.load_model("x", weight="y"), r"unknown model|weight"),
        (lambda: cw.board([], confidences=0.9), r"^unknown argument of board\(\): .* did you mean 'confidence'"),  # type: ignore[call-arg]
        (lambda: cw.audit("x", "digits", sed=1), r"^unknown argument of audit\(\): .* did you mean 'seed'"),  # type: ignore[call-arg]
        (lambda: cw.audit("x", "digits", seed="8"), r"^audit\(\): seed = '8': must be an integer"),  # type: ignore[arg-type]
    ):
        check_refused(message, call)
