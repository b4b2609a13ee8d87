"""A job: functions that are called one after the other with plain data, and its file ``job.json``.

`Job` is written by the command line and by sweeps, and run by every executor (`classwise.sweeps.tasks`) or by hand:
``python -m classwise.run job.json``. A job file is trusted as code is: it names functions and models.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pydantic
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from classwise.core.errors import ClasswiseError, unknown
from classwise.core.files.schema import check_schema_version
from classwise.core.files.storage import read_json, write_json
from classwise.core.settings import limits
from classwise.core.settings.config import Count, build, configurable, explain

SCHEMA_VERSION = 1
JOB = "job.json"
"""The file of a job."""
_EARLIER = "task.json"
"""The file of the earlier form, which had command lines."""


@configurable
class Call:
    """A call of a function, which continues its own work if it is repeated.

    Args:
        function: a name in `classwise.run.FUNCTIONS`, such as ``train``, or an import path ``package.module:function``.
        arguments: arguments by name, as plain data; for a command, its options.
        out: the output folder, which is the argument ``out``; None: the function has none.

    Raises:
        ClasswiseError: if a value is not plain data, or ``out`` is among the arguments.
    """

    function: Annotated[str, pydantic.Field(min_length=1, max_length=limits.NAME_LENGTH)]
    arguments: dict[str, pydantic.JsonValue] = dataclasses.field(default_factory=dict)
    out: str | None = None

    def __post_init__(self) -> None:
        if "out" in self.arguments:
            raise ClasswiseError(f"call of {self.function}: out is a key of the call, not one of its arguments")

    def bound(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The arguments with the types that the function declares.

        Args:
            function: the function that is called.

        Raises:
            ClasswiseError: for an unknown or missing argument, or one of another type.

        Example:
            >>> def scale(size: int, out: Path) -> None: ...
            >>> Call(function="mine:scale", arguments={"size": 3}, out="x").bound(scale)["size"]
            3
            >>> Call(function="mine:scale", arguments={"size": "3"}, out="x").bound(scale)
            Traceback (most recent call last):
            classwise.core.errors.ClasswiseError: call of mine:scale: size = '3': Input should be a valid integer
        """
        where = f"call of {self.function}"
        given = self.arguments if self.out is None else {**self.arguments, "out": self.out}
        try:
            parameters, hints = inspect.signature(function).parameters, get_type_hints(function)
        except (NameError, TypeError, ValueError) as error:
            raise ClasswiseError(f"{where}: the arguments of this function are not known ({error})") from error
        for name in given:
            if name not in parameters:
                raise unknown("argument", name, parameters, owner=where)
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty and name not in given:
                raise ClasswiseError(f"{where}: the argument {name} is missing")
        return {name: _typed(hints.get(name, Any), value, f"{where}: {name}") for name, value in given.items()}


def _typed(hint: Any, value: object, where: str) -> Any:
    try:
        return pydantic.TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        raise ClasswiseError(f"{where} = {value!r}: {explain(error)}") from error
    except pydantic.errors.PydanticUserError as error:
        raise ClasswiseError(f"{where}: plain data cannot have the type {hint}") from error


def _calls(value: object) -> object:
    if not isinstance(value, Sequence) or not value or not all(isinstance(call, Mapping | Call) for call in value):
        raise ValueError("must be a list of calls, each with a function and its arguments")
    return tuple(call if isinstance(call, Call) else build(Call, call, "call of a job") for call in value)


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or "\0" in text:
            raise ValueError(f"{name!r} is not a variable with a text, such as OMP_NUM_THREADS with 4")
    return value


class _Versioned(TypedDict):
    schema_version: int


@configurable
class Job:
    """Calls that are made one after the other, each in processes of its own, until one fails.

    Args:
        calls: the calls.
        processes: number of processes of each call; more than one are started by ``torchrun``.
        directory: the working directory, to which relative paths refer and in which modules are found; None: that of
            the process that runs the job.
        environment: variables of the processes, such as ``{"OMP_NUM_THREADS": "4"}``; they take precedence over those
            of the executor.

    Raises:
        ClasswiseError: for an invalid value.

    Example:
        >>> import tempfile
        >>> job = Job(calls=(Call(function="audit", arguments={"model": "runs/at"}, out="audits/x"),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     job.write(Path(folder))
        ...     Job.read(Path(folder) / JOB) == job
        True
    """

    calls: Annotated[tuple[Call, ...], pydantic.BeforeValidator(_calls)]
    processes: Count = 1
    directory: str | None = None
    environment: Annotated[dict[str, str], pydantic.AfterValidator(_variables)] = dataclasses.field(
        default_factory=dict
    )

    def write(self, folder: Path) -> None:
        """Write the file of the job into a folder.

        Raises:
            ClasswiseError: if it cannot be written.
        """
        facts = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}
        write_json(folder / JOB, facts, indent=1)

    @staticmethod
    def read(path: Path) -> Job:
        """Read the file of a job. `classwise.run` checks the functions and the types of their arguments.

        Raises:
            ClasswiseError: if it cannot be read, has an unknown field or an invalid value, or is of an earlier form.
        """
        if not path.exists() and path.with_name(_EARLIER).exists():
            raise ClasswiseError(
                f"{path.with_name(_EARLIER)} is of an earlier version, and {path.name} is missing; repeat the command "
                "that wrote it with --resume, or use classwise sweep resume"
            )
        values: dict[str, Any] = {**read_json(path, kind=_Versioned, limit=limits.JOB_BYTES)}
        check_schema_version(values.pop("schema_version"), SCHEMA_VERSION, str(path))
        return build(Job, values, f"job {str(path)!r}")

    def command(self, file: Path, number: int) -> list[str]:
        """The command line of the processes that make one of the calls.

        Args:
            file: the file of the job.
            number: the number of the call, from 1.
        """
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        call = ["-m", "classwise.run", str(file.absolute()), str(number)]
        return [sys.executable, *(launcher if self.processes > 1 else ()), *call]
