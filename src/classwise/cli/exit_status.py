"""Exit statuses of the command line."""

from __future__ import annotations

import enum


class ExitStatus(enum.IntEnum):
    """Exit statuses of ``classwise``; statuses above 128 follow the shell convention 128 + signal."""

    SUCCESS = 0, "the command finished; no --fail-if condition and no criterion of a policy failed"
    THRESHOLD_FAILED = (
        1,
        "a --fail-if condition is true, a criterion of a policy failed, or evidence differs; no other cause",
    )
    BAD_INPUT = 2, "an argument, a file or the environment is wrong; one line on stderr states what is accepted"
    INCOMPLETE = (
        3,
        (
            "neither passed nor failed: the evaluation or the sweep is incomplete (--resume continues it), "
            "or, having run, is not as its policy requires"
        ),
    )
    USER_CODE = 4, "user code (a model, an attack, a callable) raised or exited; --debug prints the trace"
    INTERNAL_ERROR = 70, "an error inside classwise; please report it with the trace that --debug prints"
    HUNG_UP = 129, "stopped by SIGHUP (the terminal was closed)"
    INTERRUPTED = 130, "stopped by Ctrl-C (SIGINT)"
    CLOSED_PIPE = 141, "stdout was closed before the command had finished: a pipe (SIGPIPE), or a terminal"
    TERMINATED = 143, "stopped by SIGTERM"

    meaning: str

    def __new__(cls, status: int, meaning: str) -> ExitStatus:
        """An integer with its meaning."""
        member = int.__new__(cls, status)
        member._value_ = status
        member.meaning = meaning
        return member
