"""Model references: a zoo name, a path, ``package.module:callable``, or the prefix of a source and a name."""

from __future__ import annotations

import ast
import os
from pathlib import Path

from classwise.core.errors import ClasswiseError, did_you_mean, unknown
from classwise.models.loading.sources import SOURCES
from classwise.models.loading.sources.base import ModelSource
from classwise.models.loading.sources.functions import Function, Zoo
from classwise.models.registry import MODELS

ONNX = ".onnx"


def parse_reference(reference: str) -> tuple[ModelSource, str]:
    """The source of a model, and the model's name there.

    Args:
        reference: a name in `MODELS`; ``PREFIX:NAME`` with a prefix in `SOURCES`; ``package.module:callable``; or
            the path of an ONNX file.

    Raises:
        ClasswiseError: if it is none of these.
    """
    prefix, colon, name = reference.partition(":")
    if reference in MODELS:
        return Zoo(), reference
    if colon and prefix in SOURCES:
        return SOURCES.load(prefix)(), name
    if Path(reference).suffix == ONNX:
        return SOURCES.load("onnx")(), reference
    if colon:
        return Function(), reference
    raise unknown(MODELS.kind, reference, MODELS)


def is_stored(model: str | os.PathLike[str]) -> bool:
    """Whether a reference is a folder or file of weights, from which the model is built.

    Raises:
        ClasswiseError: if it is neither that nor a reference of another kind, or it is a Python file.
    """
    path, text = Path(model), os.fspath(model)
    if text in MODELS or path.suffix == ONNX:
        return False
    file, colon, name = text.rpartition(":")
    if path.suffix == ".py" or (colon and file.endswith(".py")):
        raise _python_file(path if path.suffix == ".py" else Path(file), name if file.endswith(".py") else "")
    if path.exists():
        return True
    if ":" in text:
        return False
    module = Path(*text.split(".")).with_suffix(".py") if os.sep not in text else path
    if module.is_file():
        raise _python_file(module, "")
    if os.sep in text or path.suffix:
        hint = did_you_mean(path) or "; classwise models lists what is accepted"
        raise ClasswiseError(f"there is no file or folder {text}{hint}")
    raise unknown(MODELS.kind, text, MODELS)


def _python_file(file: Path, name: str) -> ClasswiseError:
    """The error for a Python file, with the reference of a model in it."""
    if not file.is_file():
        return ClasswiseError(f"there is no file {file}; give a file with the function{did_you_mean(file)}")
    try:
        code = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ClasswiseError(f"{file} is not valid Python code; correct it")
    names = [node.name for node in code.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    public = [attribute for attribute in names if not attribute.startswith("_")]
    shown = name or next(iter(public), "build")
    folder = Path.cwd()
    if file.is_absolute() and not file.is_relative_to(folder):
        module, where = file.stem, f", from the folder {file.parent}"
    else:
        parts = (file.relative_to(folder) if file.is_absolute() else file).with_suffix("").parts
        module, where = ".".join(part for part in parts if part != "."), ""
    known = f" (it defines {', '.join(public[:8])})" if public and not name else ""
    return ClasswiseError(f"{file} is a Python file; name the model in it, such as {module}:{shown}{where}{known}")
