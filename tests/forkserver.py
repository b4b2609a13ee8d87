"""Python processes that are forked from one that has imported the package, since its imports take seconds.

With the fixture ``forked``, `subprocess` asks a server for them. They are children of the process that starts them,
with its arguments, environment, streams and working folder, and fork the Python processes that they start or become.
What an interpreter reads at its start is that of the server; a process with other such settings is started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

ROOT = Path(__file__).parents[1]
FLAGS = ("-I", "-S")
"""Options with which `classwise.sweeps.commands` starts its launcher, to be fast."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans below this process become its children."""
SERVED = sys.platform == "linux"
"""Whether processes are forked; elsewhere they are started as usual."""
VARIABLES = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""The variables of the server that its processes may have with other values."""

_fork_exec: Any = getattr(subprocess, "_fork_exec", None)
_execv: Any = os.execv
_installed = [path for path in sys.path if Path(path).resolve() not in (ROOT, ROOT / "src")]


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an interpreter or torch reads when it starts or is imported."""
    prefixes = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "TORCH_")
    return {name: text for name, text in environment.items() if name.startswith(prefixes) and name not in VARIABLES}


def _words(words: Sequence[str]) -> list[str]:
    """The arguments of an interpreter without `FLAGS`."""
    return list(itertools.dropwhile(FLAGS.__contains__, words[1:]))


def _is_served(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command runs a module or a program in this interpreter, without other settings."""
    is_run = words[0] == sys.executable and _words(words)[0] in ("-m", "-c")
    return is_run and _at_start(environment) == _at_start(os.environ)


def _command(words: Sequence[Any], *settings: Any) -> tuple[list[int], dict[str, Any]] | None:
    """The streams and the facts of a process, by the arguments of `subprocess._fork_exec`; None: it is not served."""
    _, _, _, folder, variables, stdin, _, _, stdout, _, stderr, _, _, _, session, *_ = settings
    pairs = (os.fsdecode(variable).partition("=") for variable in variables or ())
    environment = dict(os.environ) if variables is None else {name: text for name, _, text in pairs}
    words = [os.fsdecode(word) for word in words]
    if not _is_served(words, environment):
        return None
    streams = [place if number == -1 else number for place, number in enumerate((stdin, stdout, stderr))]
    folder = str(Path.cwd() if folder is None else folder)
    return streams, {"words": words, "environment": environment, "folder": folder, "session": bool(session)}


class Server:
    """A process that forks another for each command; a context manager."""

    def __enter__(self) -> Self:
        if SERVED:
            self._connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                number = other.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.forkserver", str(number)],
                    pass_fds=[number], env=os.environ | VARIABLES, cwd=ROOT, start_new_session=True,
                )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        if SERVED:
            self._connection.close()
            self._process.wait()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Context in which the Python processes that this one starts are forked by the server."""
        if SERVED:
            subprocess._fork_exec = self._ask  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]

    def _ask(self, words: Sequence[Any], *settings: Any) -> int:
        """In place of `subprocess._fork_exec`."""
        command = _command(words, *settings)
        if command is None:
            return int(_fork_exec(words, *settings))
        libc, (streams, facts) = ctypes.CDLL(None), command
        libc.prctl(SUBREAPER, 1)
        try:
            socket.send_fds(self._connection, [json.dumps(facts).encode()], streams)
            return int(self._connection.recv(16))
        finally:
            libc.prctl(SUBREAPER, 0)


def serve(connection: socket.socket) -> None:
    """Fork a process for each command until the connection is closed.

    Another one forks it and ends, so that it becomes a child of the nearest process above that is a subreaper.
    """
    subprocess._fork_exec, os.execv = _fork, _replace  # type: ignore[attr-defined, assignment]
    while (received := socket.recv_fds(connection, 1 << 20, 3))[0]:
        message, streams, *_ = received
        reader, writer = os.pipe()
        between = os.fork()
        if not between:
            parent, child = os.getpid(), os.fork()
            if child:
                os.write(writer, str(child).encode())
                os._exit(0)
            while os.getppid() == parent:  # the death of the later parent is of interest to the launcher
                time.sleep(0.001)
            _begin(streams, json.loads(message))
        os.waitpid(between, 0)
        connection.send(os.read(reader, 16))
        for number in (reader, writer, *streams):
            os.close(number)


def _fork(words: Sequence[Any], *settings: Any) -> int:
    """In place of `subprocess._fork_exec` in the processes that are forked."""
    command = _command(words, *settings)
    if command is None:
        return int(_fork_exec(words, *settings))
    return os.fork() or _begin(*command)


def _replace(program: str, words: Sequence[str]) -> None:
    """In place of `os.execv` in the processes that are forked."""
    if program == words[0] and _is_served(words, os.environ):
        _become(words)
    _execv(program, words)


def _begin(streams: Sequence[int], facts: Mapping[str, Any]) -> NoReturn:
    """Run a command in this forked process."""
    for number, stream in enumerate([os.dup(stream) for stream in streams]):
        os.dup2(stream, number)
    if facts["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(facts["environment"])
    os.chdir(facts["folder"])
    _become(facts["words"])


def _become(words: Sequence[str]) -> NoReturn:
    """Do what an interpreter with these words does that replaces this process."""
    import torch

    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    option, target, *arguments = _words(words)
    sys.argv = [target if option == "-m" else option, *arguments]
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(Path.cwd()) if option == "-m" else "", *added, *_installed]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    os._exit(_run(option, target))


def _run(option: str, target: str) -> int:
    """Run a module or a program; returns the exit status."""
    status: Any = 1
    try:
        if option == "-m":
            sys.modules.pop(target, None)  # which is run again, as __main__
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(target, "<string>", "exec"), vars(main))
        status = 0
    except SystemExit as ended:
        status = ended.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:  # noqa: BLE001  # as the interpreter does
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return status & 0xFF if isinstance(status, int) else int(status is not None)


def prepare() -> None:
    """Import what most commands import; it starts no thread."""
    import torch._dynamo  # noqa: F401  # which optimisers import

    import classwise.auditing.run.audit
    import classwise.cli.app
    import classwise.reporting
    import classwise.run
    import classwise.sweeps.tasks
    import classwise.training.trainer  # noqa: F401

    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    import tests.forkserver as server  # noqa: PLW0406  # not as __main__, which the processes replace

    server.prepare()
    server.serve(socket.socket(fileno=int(sys.argv[1])))
