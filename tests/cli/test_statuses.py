"""Exit statuses: one meaning each, whoever raises what, and whoever closes which pipe."""

from __future__ import annotations

import errno
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import classwise as cw
from classwise.cli import console, listing, main
from classwise.cli.exit_status import ExitStatus
from classwise.core.errors import ClasswiseError, IncompleteError

from .conftest import Classwise

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} -m classwise"
AUDIT = ("--data=digits", "--threat=Linf:0.1", "--attack=fgsm", "--subset=40")


def shell(words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, run in a folder with the package on the path."""
    source = str(Path(console.__file__).parents[2])
    known = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error", **environment}
    return subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, check=False, cwd=folder, env=known, timeout=120
    )


def test_the_page_of_the_documentation_is_the_table() -> None:
    text = (ROOT / "docs" / "reference" / "exit-statuses.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*?) \|$", text, re.MULTILINE)
    assert rows == [(str(status.value), status.meaning) for status in ExitStatus]


def test_without_words_the_help_is_shown(classwise: Classwise) -> None:
    said = classwise()
    assert (said.status, said.err) == (2, "")
    assert said.out == classwise("--help").out


def test_both_ways_to_start_it_return_the_status(tmp_path: Path) -> None:
    script = f"{sys.executable} -c 'import sys; from classwise.cli import main; sys.exit(main())'"
    for program in (PROGRAM, script):
        done = shell(f"{program} --version && {program} --nothing", tmp_path)
        assert (done.returncode, done.stdout.strip()) == (2, cw.__version__)


class _Raised:
    """A function in a module of classwise that raises, so that no frame is of a user's file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        self.error = error
        code = compile("def fail(*_, **__):\n    raise error\n", listing.__file__, "exec")
        names = {"error": error, "__name__": listing.__name__}
        exec(code, names)
        monkeypatch.setattr(console, "show", names["fail"])


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ClasswiseError("this is wrong;\n do that"), 2, "this is wrong; do that"),
        (IncompleteError("3 images are not judged"), 3, "3 images are not judged"),
        (OSError(errno.ENOSPC, "full"), 2, "no space left"),
        (OSError(errno.ENOMEM, "none"), 2, "not enough memory"),
        (MemoryError(), 2, "not enough memory (MemoryError); free some, raise the limit"),
        (RuntimeError("could not create a primitive"), 2, "not enough memory (RuntimeError: could not create"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "not enough memory"),
        (SystemError("error return without exception set"), 2, "not enough memory"),
        (ImportError("backend.so: failed to map segment from shared object"), 2, "not enough memory"),
        (ImportError("backend.so: failed to map segment from shared object: Operation not permitted"), 70, "internal"),
        (PermissionError(errno.EACCES, "Permission denied", "x.html"), 2, "x.html: Permission denied"),
        (ZeroDivisionError("a bug"), 70, "internal error: ZeroDivisionError: a bug; please report"),
        (SystemExit(0), 70, "internal error: SystemExit"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_what_classwise_raises(
    classwise: Classwise, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    _Raised(monkeypatch, error)
    said = classwise("recipes")
    assert said.status == status
    assert (line in said.err) if line else (said.err == "")
    assert said.err.count("\n") == (1 if line else 0)


def test_debug_prints_the_trace(classwise: Classwise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(console, "show", operator.truth)  # takes one argument
    assert "Traceback" not in classwise("recipes").err
    for words in (("--debug", "recipes"), ("--debug", "report", tmp_path / "nothing")):
        said = classwise(*words)
        assert said.err.startswith("Traceback")
        assert said.err.splitlines()[-1].startswith("classwise: ")
    monkeypatch.setenv("CLASSWISE_DEBUG", "1")
    assert classwise("recipes").err.startswith("Traceback")


NETS = """
from torch import nn


class Net(nn.Module):
    def __init__(self, mode="right", passes=2):
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.mode, self.passes = mode, passes

    def forward(self, x):
        calls.append(1)
        if len(calls) > self.passes:
            self.fail()
        return 0 * self.last(x.flatten(1))

    def fail(self):
        if self.mode == "exit":
            raise SystemExit(0)
        if self.mode == "typer":
            import typer

            raise typer.Exit(0)
        if self.mode == "abort":
            raise KeyboardInterrupt
        if self.mode == "value":
            raise ValueError("a line\\nand another")
        if self.mode == "memory":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        if self.mode != "right":
            raise {"runtime": RuntimeError, "index": IndexError, "type": TypeError}[self.mode]("wrong")


calls = []


def build_exit():
    raise SystemExit(0)


def attack(images, labels):
    raise OSError(28, "No space left on device")


def shape(images, labels):
    return nn.Linear(3, 3)(images)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mynets.py").write_text(NETS)
    (tmp_path / "exits.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "wrong.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path)
    for module in ("mynets", "exits", "wrong"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["mynets:Net", "--model-set=mode=exit"], "mynets.Net.fail (mynets.py:19) exited with SystemExit(0)"),
        (["mynets:Net", "--model-set=mode=typer"], "mynets.Net.fail (mynets.py:23) raised Exit: 0"),
        (["mynets:Net", "--model-set=mode=abort"], "mynets.Net.fail (mynets.py:25) raised KeyboardInterrupt"),
        (["mynets:Net", "--model-set=mode=value"], "mynets.Net.fail (mynets.py:27) raised ValueError: a line and an"),
        (["mynets:build_exit"], "mynets.build_exit (mynets.py:38) exited with SystemExit(0)"),
        (["exits:build"], "exits (exits.py:3) exited with SystemExit(0)"),
        (["wrong:build"], "SyntaxError"),
        (["mynets:Net", "--attack=external:attack=mynets:attack"], "mynets.attack (mynets.py:42) raised OSError"),
    ],
)
def test_code_of_the_user_never_decides_the_status(
    classwise: Classwise, nets: Path, words: list[str], line: str
) -> None:
    """With a threshold that holds for nobody: only a finished audit may pass."""
    said = classwise("audit", *words, *AUDIT, f"--out={nets / 'audit'}", "--fail-if=worst(all) < 0")
    assert said.status == 4
    assert line in said.err.splitlines()[-1]
    assert "Traceback" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "passes", "error"),
    [
        ("runtime", 0, "raised RuntimeError: wrong"),
        ("runtime", 1, "raised RuntimeError: wrong"),
        ("runtime", 4, "raised RuntimeError: wrong"),
        ("index", 1, "raised IndexError: wrong"),
        ("type", 0, "raised TypeError: wrong"),
        ("value", 4, "raised ValueError: a line and another"),
        ("typer", 0, "raised Exit: 0"),
    ],
)
def test_an_error_of_a_model_names_it_in_whichever_pass(
    classwise: Classwise, nets: Path, mode: str, passes: int, error: str
) -> None:
    """The first passes see whether model and images fit, whether there is a gradient, and what memory they take."""
    words = ["mynets:Net", f"--model-set=mode={mode}", f"--model-set=passes={passes}"]
    said = classwise("audit", *words, *AUDIT, f"--out={nets / 'audit'}", "--fail-if=worst(all) < 0")
    shape = "; the model was called with images of shape (1, 8, 8) (channels, height, width)"
    named = rf"classwise: mynets\.Net\.fail \(mynets\.py:\d+\) {re.escape(error)}"
    assert said.status == 4
    assert re.fullmatch(named + re.escape(shape) * (passes == 0), said.err.splitlines()[-1])


@pytest.mark.parametrize("passes", [0, 2])
def test_a_model_that_lacks_memory_comes_with_advice(classwise: Classwise, nets: Path, passes: int) -> None:
    """No fault of the model: smaller batches may do."""
    words = ["mynets:Net", "--model-set=mode=memory", f"--model-set=passes={passes}"]
    line = classwise("audit", *words, *AUDIT, f"--out={nets / 'audit'}", "--fail-if=worst(all) < 0").refusal
    assert re.search(r"not enough memory in mynets\.Net\.fail \(mynets\.py:\d+\) \(RuntimeError: DefaultCPU", line)
    assert "--batch-size" in line


def test_images_that_a_layer_of_torch_refuses_are_bad_input(classwise: Classwise, nets: Path) -> None:
    words = ["torch.nn:Conv2d", *(f"--model-set={setting}" for setting in ("out_channels=10", "kernel_size=3"))]
    assert (
        "the model does not accept images of shape (1, 8, 8) (channels, height, width): Given groups=1"
        in classwise("audit", *words, "--model-set=in_channels=3", *AUDIT, f"--out={nets / 'audit'}").refusal
    )


def test_a_module_without_shapes_is_bad_input(classwise: Classwise, nets: Path) -> None:
    """Which torch refuses inside a context manager of the standard library."""
    (nets / "mynets.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.LazyLinear(3))\n"
    )
    assert (
        "parameter 'model.0.weight' of the model is not initialised"
        in classwise("audit", "mynets:build", *AUDIT, f"--out={nets / 'audit'}").refusal
    )


def test_in_python_an_error_of_the_user_is_raised_unchanged(nets: Path) -> None:
    model = cw.load_model("mynets:Net", mode="value")
    with pytest.raises(ValueError, match="a line\nand another"):
        cw.audit(model, cw.load_data("digits", split="test", subset=40), "Linf:0.1", "fgsm")


def test_an_installed_package_that_is_called_is_user_code(
    classwise: Classwise, nets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by who called it, as its files lie beside those of torch."""
    monkeypatch.setattr("classwise.core.settings.user_code._installed", lambda: [str(nets), *sys.path[1:]])
    said = classwise("audit", "mynets:build_exit", *AUDIT, f"--out={nets / 'audit'}")
    assert (said.status, said.err) == (4, "classwise: mynets.build_exit (mynets.py:38) exited with SystemExit(0)\n")


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "status"), [("0", 0), ("100%", 1), (None, 141)])
def test_a_gate_keeps_its_verdict_when_stdout_is_closed(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: str | None,
    status: int,
) -> None:
    """Both where the tables fit into the buffer and where each line is written at once; without a gate it is 141."""
    words = ["audit", str(run_folder), "--subset=40", "--attack=fgsm", f"--out={tmp_path / 'audit'}", "--resume"]
    words += [f"--fail-if=worst(all) < {limit}"] if limit else []
    for buffering in (-1, 1):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w", buffering=buffering, encoding="utf-8") as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            assert main(words) == status
            monkeypatch.undo()
        assert ("failed: " in capsys.readouterr().err) == (status == 1)


@pytest.mark.parametrize(("condition", "status"), [("worst(all) < 0", 1), ("worst(all) < -1", 0), (None, 141)])
def test_a_gate_of_a_comparison_keeps_its_verdict_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: str | None, status: int
) -> None:
    labels = [0, 1] * 20
    for name, attacked in (("former", labels), ("new", [1, 1] * 20)):
        outcomes = cw.Outcomes.from_predictions(labels, labels, {"pgd": attacked})
        cw.Audit(outcomes, name=name).save(tmp_path / name)
    words = ["compare", str(tmp_path / "former"), str(tmp_path / "new")]
    words += [f"--fail-if={condition}"] if condition else []
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1, encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(words) == status
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["audit --help", "--version"])
def test_a_closed_pipe_has_a_status_and_no_message(tmp_path: Path, words: str, unbuffered: str) -> None:
    line = f"{PROGRAM} {words} | true; exit ${{PIPESTATUS[0]}}"
    done = shell(line, tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("redirection", "status", "line"),
    [(">&-", 0, ""), ("2>&-", 0, ""), ("2>&- | true", 141, ""), ("> /dev/full", 2, "classwise: no space left")],
)
def test_streams_that_are_closed_or_full(tmp_path: Path, redirection: str, status: int, line: str) -> None:
    done = shell(f"{PROGRAM} --help {redirection}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == status
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == bool(line)


@pytest.mark.slow
def test_nobody_reads_the_progress(tmp_path: Path) -> None:
    """A log whose reader has gone stops no work, nor does it change the verdict."""
    reader, writer = os.pipe()
    os.close(reader)
    words = ["audit", "lenet", *AUDIT, f"--out={tmp_path / 'audit'}", "--fail-if=worst(all) < 0"]
    with open(writer, "wb") as pipe:
        done = subprocess.run([sys.executable, "-m", "classwise", *words], stdout=pipe, stderr=pipe, check=False)
    assert done.returncode == 0
    assert (tmp_path / "audit" / "page.html").is_file()


@pytest.mark.parametrize(("limit", "status"), [("0", 0), (None, 141)])
def test_a_terminal_that_is_closed_is_a_closed_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_folder: Path, limit: str | None, status: int
) -> None:
    """The verdict is kept, and the work is finished without the bar."""
    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf-8") as stdout, open(os.dup(theirs), "w", encoding="utf-8") as stderr:
        os.close(ours)
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            monkeypatch.setattr(stream, "isatty", lambda: True)  # it was one at the start
            monkeypatch.setattr(sys, name, stream)
        words = ["audit", str(run_folder), "--subset=40", "--attack=fgsm", f"--out={tmp_path / 'audit'}"]
        assert main([*words, *([f"--fail-if=worst(all) < {limit}"] if limit else [])]) == status
        monkeypatch.undo()
    assert (tmp_path / "audit" / "page.html").is_file()


def test_main_leaves_the_handlers_of_signals_as_they_were() -> None:
    import signal

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    assert main(["--version"]) == 0
    assert before == [signal.getsignal(number) for number in numbers]


@pytest.mark.slow
def test_the_page_goes_to_stdout_and_the_tables_to_stderr(
    run_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", str(run_folder), "--subset=40", "--attack=fgsm", f"--out={tmp_path / 'audit'}", "--resume"]
    assert main([*words, "--html=-"]) == 0
    said = capfd.readouterr()
    assert said.out.startswith("<!")
    assert said.out.rstrip().endswith("</html>")
    assert "worst class: " in said.err
    assert main([*words, "--html=/dev/stdout", "--json"]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("classwise: --json and a file")
