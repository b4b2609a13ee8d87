"""The harness: one case in a process of its own, or in this one, and everything that must hold afterwards."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import resource
import shutil
import signal
import stat
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

from classwise.cli import concluded, main
from classwise.core.files.ownership import OWNER
from tests.hostile import (
    ambient,
    assertions,
    callables,
    checkpoints,
    comparisons,
    evaluation_options,
    files,
    image_folders,
    maite_protocols,
    names,
    optimisation,
    options,
    recipes,
    records,
    shards,
    signals,
    specs,
    surroundings,
    tables,
    tensors,
    threads,
)
from tests.hostile.case import AUDIT, QUICK, Case, Shared, filled

CATEGORIES = {
    "recipes": recipes,
    "specs": specs,
    "options": options,
    "files": files,
    "image folders": image_folders,
    "checkpoints": checkpoints,
    "callables": callables,
    "tables": tables,
    "comparisons": comparisons,
    "names": names,
    "shards": shards,
    "signals": signals,
    "tensors": tensors,
    "records": records,
    "optimisation levels": optimisation,
    "ambient states": ambient,
    "threads": threads,
    "MAITE": maite_protocols,
    "assert_robust": assertions,
    "evaluation options": evaluation_options,
    "surroundings": surroundings,
}
SEED = 20
SECONDS = 40.0
"""Processor time that a case may take."""
HEAVY = (
    "bomb",
    "million",
    "100,000",
    "20 MB",
    "GiB",
    "expands",
    "10^7",
    "10^6",
    "python -O",
    "30,000 files",
    "many fields",
    "WebP of",
    "members",
)
"""Words in the names of cases whose files or work take seconds."""
PATIENCE = 60.0
"""Seconds after which a case counts as hanging, whatever it computes."""
MEBIBYTES = 1024
"""Memory that a case may need beside the imported libraries."""
LINES = 3
"""Lines on stderr that a refusal may have."""
OUTPUTS = ("out", "runs", "audits")
"""Names in the working folder under which a command may write."""
ESCAPED, EXITED = 250, 251
"""Statuses of a child whose command raised, or raised SystemExit."""


def generate(seed: int = SEED) -> dict[str, list[Case]]:
    """All cases by category; the same ones for the same seed."""
    found: dict[str, list[Case]] = {}
    seen: Counter[str] = Counter()
    for category, module in CATEGORIES.items():
        found[category] = []
        for case in module.cases(Random(f"{seed}-{category}")):
            seen[case.name] += 1
            named = case if seen[case.name] == 1 else replace(case, name=f"{case.name} ({seen[case.name]})")
            found[category].append(replace(named, heavy=case.heavy or any(word in case.name for word in HEAVY)))
    return found


def prepare(folder: Path) -> Shared:
    """Train, audit and save what the cases share."""
    import matplotlib.font_manager  # noqa: F401  # writes its cache now, not into the home of a case
    import numpy as np
    import torch

    from classwise.data import load_data

    shared = Shared(folder / "run", folder / "audit", folder / "lenet.pt", folder / "images.npz", folder / "trained.pt")
    assert main(["train", "at", "--budget=short", "--data=digits", f"--out={shared.run}", *QUICK]) == 0
    audited = [filled(word, shared) for word in AUDIT if word != "--json"]
    assert main([*audited, "--attack=fgsm", f"--out={shared.audit}"]) == 0
    torch.save(checkpoints.lenet(), shared.weights)
    torch.save(_trained(), shared.trained)
    images = load_data("digits", split="test", subset=40)
    np.savez(shared.data, x=images.x.numpy(), y=images.y.numpy())
    return shared


def _trained() -> dict[str, Any]:
    """The state dict of a narrow PreActResNet-18 after some steps of Adam."""
    import torch

    from classwise.data import load_data
    from classwise.models import build_model

    torch.manual_seed(0)
    model, images = build_model("preactresnet18", num_classes=10, in_channels=1, width=1 / 16), load_data("digits")
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for rows in torch.randint(len(images), (60, 100)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.pixels(rows)), images.y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.state_dict()


@dataclass
class Result:
    """What a case did.

    Attributes:
        status: the exit status; `ESCAPED` for an exception, negative for a signal.
        out: standard output.
        err: standard error.
        seconds: processor time.
        mebibytes: memory beside the imported libraries.
        problems: what must not be, in words.
    """

    status: int
    out: str
    err: str
    seconds: float = 0.0
    mebibytes: float = 0.0
    problems: list[str] = field(default_factory=list)


def write_files(case: Case, folder: Path) -> None:
    """Write the files of a case."""
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)


def snapshot(folder: Path, skip: Sequence[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Kind, size and time of everything in a folder; links are not followed."""
    seen: dict[str, tuple[Any, ...]] = {}
    for place, folders, inside in os.walk(folder):
        if place == str(folder):
            folders[:] = [name for name in folders if name not in skip]
        for name in (*folders, *inside):
            about = os.lstat(os.path.join(place, name))
            size = () if stat.S_ISDIR(about.st_mode) else (about.st_size, about.st_mtime_ns)
            seen[os.path.relpath(os.path.join(place, name), folder)] = (about.st_mode, *size)
    return seen


def in_a_child(case: Case, shared: Shared, folder: Path, streams: Path) -> Result:
    """Run the command in a forked process with limits on time and memory."""
    streams.mkdir(parents=True, exist_ok=True)
    base = _resident()
    pid = os.fork()
    if pid == 0:
        status = ESCAPED
        try:
            status = _child(case, shared, folder, streams)
        finally:
            os._exit(status)
    start, done = time.monotonic(), 0
    while not done:
        done, waited, usage = os.wait4(pid, os.WNOHANG)
        if not done:
            if time.monotonic() - start > PATIENCE:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
    out, err = ((streams / name).read_text("utf-8", "backslashreplace") for name in ("out", "err"))
    seconds = usage.ru_utime + usage.ru_stime
    return Result(os.waitstatus_to_exitcode(waited), out, err, seconds, usage.ru_maxrss / 1024 - base)


def _resident() -> float:
    """The resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _child(case: Case, shared: Shared, folder: Path, streams: Path) -> int:
    os.chdir(folder)
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, name, flags in ((0, "/dev/null", os.O_RDONLY), (1, "out", new), (2, "err", new)):
        os.dup2(os.open(streams / name, flags, 0o600), number)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + 3 * MEBIBYTES * 2**20  # address space: so that a fault cannot take the machine's memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(4 * SECONDS), int(4 * SECONDS)))
    if case.optimise:
        level = f"-{'O' * case.optimise}"
        os.execv(sys.executable, [sys.executable, level, "-m", "classwise", *case.command(shared)])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it,
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # and this
    try:
        with case.around():
            status = status_of(case, shared)
    except SystemExit:
        traceback.print_exc()
        status = EXITED
    except BaseException:
        traceback.print_exc()
        status = ESCAPED
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def status_of(case: Case, shared: Shared) -> int:
    """Run the command, or the call of the Python API, in this process; returns the exit status."""
    call = case.call
    if call is None:
        return main(case.command(shared))

    def work() -> int:
        try:
            call(shared)
        except AssertionError as error:
            print(str(error).partition("\n")[0], file=sys.stderr)
            return 1
        return 0

    return concluded(work)


def judge(case: Case, result: Result, touched: Sequence[str], reference: Result | None = None) -> list[str]:
    """Everything that is wrong with how a case ended."""
    problems = []
    lines = [line for line in result.err.splitlines() if line.strip() and not _is_progress(line)]
    if "Traceback (most recent call last)" in result.err:
        problems.append(f"a traceback: {lines[-1][:200]}")
    elif result.status not in case.statuses:
        problems.append(f"status {result.status}, not in {sorted(case.statuses)}: {' | '.join(lines)[:300]}")
    elif result.status != 0 and len(lines) > LINES:
        problems.append(f"{len(lines)} lines on stderr")
    if result.status in (1, 2, 3) and not lines:
        problems.append("nothing is said")
    if any(len(line) > 2000 for line in lines):
        problems.append(f"a line of {max(map(len, lines))} letters")
    if any(
        ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0
        for line in result.err.split("\n")
        for letter in line
        if letter != "\t"
    ):
        problems.append("control characters on stderr")
    if result.seconds > SECONDS:
        problems.append(f"{result.seconds:.1f} s of processor time")
    if result.mebibytes > MEBIBYTES:
        problems.append(f"{result.mebibytes:.0f} MiB")
    if touched:
        problems.append(f"touched {', '.join(touched[:4])}")
    if result.status in (0, 1) and "--json" in case.words:
        try:
            json.loads(result.out, parse_constant=_refuse)
        except ValueError as error:
            problems.append(f"no JSON on stdout: {error}")
    if (
        case.guard
        and not problems
        and case.guard not in {warning["name"] for warning in json.loads(result.out)["warnings"]}
    ):
        problems.append(f"no warning of {case.guard}")
    if case.check and not problems and result.status == 0:
        problems += case.check(json.loads(result.out))
    succeeded = not problems and result.status in (0, 1)
    if reference is not None and succeeded and numbers(result.out) != numbers(reference.out):
        problems.append("other numbers than the clean command")
    return problems


def problems_in_files(case: Case, folder: Path) -> list[str]:
    """Written CSV files whose rows differ in length or with a cell that is a formula, and invalid XML and JSON."""
    problems = list[str]()
    own = any(name.partition("/")[0] in OUTPUTS for name in case.files)  # which may be damaged on purpose
    for path in sorted(path for name in OUTPUTS for path in (folder / name).rglob("*") if path.is_file()):
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as lines:
                rows = list(csv.reader(lines))
            cells = (start for row in rows for cell in row for start in _starts(cell))
            if len({len(row) for row in rows}) != 1 or any(
                cell[:1] in {*"=+-@"} for cell in cells if not _number(cell)
            ):
                problems.append(f"{path.name} has a formula, or rows of several lengths")
        elif path.suffix in (".xml", ".svg"):
            try:
                ET.parse(path)  # written by the command
            except ET.ParseError as error:
                problems.append(f"{path.name}: {error}")
        elif path.suffix in (".json", ".jsonl", ".sarif") and not own:
            text = path.read_text(encoding="utf-8")
            try:
                for record in text.splitlines() if path.suffix == ".jsonl" else [text]:
                    json.loads(record, parse_constant=_refuse)
            except ValueError as error:
                problems.append(f"{path.name}: {error}")
    return problems


def _starts(cell: str) -> list[str]:
    """A cell, and its parts after line breaks, without the white space before them."""
    return [part.strip().strip("\x00\ufeff\u200b") for part in (cell, *cell.splitlines())]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _is_progress(line: str) -> bool:
    return len(line) > 8 and line[2] == ":" and line[5] == ":" and line[:2].isdigit()


def numbers(text: str) -> Any:
    """The JSON of an audit without what names places."""
    found = json.loads(text)
    return {
        key: value
        for key, value in found.items()
        if key not in ("name", "folder", "page", "model", "seconds", "environment")
    }


@contextlib.contextmanager
def folder_for(case: Case, place: Path) -> Iterator[Path]:
    """The case's folder with its files, removed afterwards."""
    folder = place / "case"
    folder.mkdir(parents=True)
    try:
        write_files(case, folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def differences(before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]) -> list[str]:
    """The names that are new, gone or changed."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def changes(before: dict[str, tuple[Any, ...]], see: Callable[[], dict[str, tuple[Any, ...]]]) -> list[str]:
    """The differences, without locks that a command of another job holds for a few seconds."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = differences(before, see())
        if not any(Path(name).name == OWNER for name in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


_references: dict[tuple[str, ...], Result] = {}
"""What the clean commands of this process have given."""


def run_forked(case: Case, shared: Shared, place: Path) -> Result:
    """Run and judge a case in a process of its own; and its reference, if it has one."""
    reference = _references.get(case.reference or ())
    if case.reference is not None and reference is None:
        clean = Case("reference", (*case.reference, "--out=out"))
        with folder_for(clean, place) as folder:
            reference = in_a_child(clean, shared, folder, place / "streams-reference")
            assert reference.status == 0, reference
            _references[case.reference] = reference
    common = shared.run.parent
    with folder_for(case, place) as folder:
        before = snapshot(folder, OUTPUTS) | snapshot(common)
        shutil.rmtree(place / "streams", ignore_errors=True)
        result = in_a_child(case, shared, folder, place / "streams")
        later = problems_afterwards(case, shared, folder, place)
        touched = changes(before, lambda: snapshot(folder, OUTPUTS) | snapshot(common))
        found = problems_in_files(case, folder)
    result.problems = [*judge(case, result, touched, reference), *later, *found]
    return result


def problems_afterwards(case: Case, shared: Shared, folder: Path, place: Path) -> list[str]:
    """The processes that a case has left, and what is wrong with the commands after it."""
    problems, deadline = list[str](), time.monotonic() + PATIENCE / 2
    while left := processes_in(folder):
        if time.monotonic() > deadline:
            problems.append(f"{len(left)} processes are left")
            for process in left:
                os.kill(process, signal.SIGKILL)
            break
        time.sleep(0.1)
    printed = list[Any]()
    for words in case.after:
        result = in_a_child(Case("after", words), shared, folder, place / "streams-after")
        if result.status != 0:
            return [*problems, f"status {result.status} of {' '.join(words[:3])}: {result.err[-300:]}"]
        printed += [numbers(result.out)] if "--json" in words else []
    if any(found != printed[0] for found in printed):
        problems.append("other numbers after resuming than in a new run")
    return problems


def processes_in(folder: Path) -> list[int]:
    """The processes whose working folder is this one."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder.resolve():
                found.append(int(link.parent.name))
    return found
