"""Weights: files that run code, expand, lie about their shapes, or hold tensors that no network has."""

# mypy: disable-error-code="misc, assignment, arg-type, dict-item"
# The tables hold values of every type on purpose.

from __future__ import annotations

import collections
import io
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests.hostile.case import ATTACK, EITHER, Case, Content

Tensors = dict[str, Any]


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        import os

        return os.system, ("touch evil",)


class Exec:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return exec, ("open('evil', 'w')",)


def header(entries: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[Any], offsets: list[Any], dtype: str = "F32") -> dict[str, Any]:
    """One tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


SAFETENSORS: dict[str, Content] = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "a huge header": header(b"{}", length=2**63),
    "a header of 1 GiB": header(b"{}", length=2**30),
    "a header longer than the file": header(b"{}", length=1000),
    "a header that is no JSON": header(b"{" + b"x" * 100),
    "a header nested deeply": header(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "a list for a header": header([1, 2]),
    "no tensors": header({}),
    "metadata alone": header({"__metadata__": {"a": "b"}}),
    "metadata of numbers": header({"__metadata__": {"a": 5}}),
    "a shape of 10^12": header({"w": entry([10**12], [0, 4 * 10**12])}),
    "a shape that overflows": header({"w": entry([2**40, 2**40], [0, 16])}, b"\0" * 16),
    "a shape of 10^12 in a small file": header({"w": entry([10**6, 10**6], [0, 16])}, b"\0" * 16),
    "a negative shape": header({"w": entry([-1], [0, 4])}, b"\0" * 4),
    "a fractional shape": header({"w": entry([1.5], [0, 4])}, b"\0" * 4),
    "negative offsets": header({"w": entry([1], [-4, 0])}, b"\0" * 4),
    "reversed offsets": header({"w": entry([1], [4, 0])}, b"\0" * 4),
    "overlapping tensors": header({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, b"\0" * 12),
    "unknown type": header({"w": entry([1], [0, 4], "F33")}, b"\0" * 4),
    "a type of code": header({"w": entry([1], [0, 4], "os.system")}, b"\0" * 4),
    "100,000 empty tensors": lambda path: path.write_bytes(
        header({f"t{n}": entry([0], [0, 0]) for n in range(100_000)})
    ),
    "scalars": header({"w": entry([], [0, 4])}, b"\0" * 4),
    "a model spec that is code": header(
        {"__metadata__": {"classwise": json.dumps({"model": json.dumps({"name": "os:system"})})}, "w": entry([1], [0, 4])},
        b"\0" * 4,
    ),
    "a model spec that is huge": header(
        {
            "__metadata__": {
                "classwise": json.dumps({"model": json.dumps({"name": "lenet", "num_classes": 10**9, "in_channels": 1})})
            },
            "w": entry([1], [0, 4]),
        },
        b"\0" * 4,
    ),
    "a model spec of other types": header(
        {"__metadata__": {"classwise": json.dumps({"model": '{"name": "lenet", "width": "x"}'})}, "w": entry([1], [0, 4])},
        b"\0" * 4,
    ),
    "a model spec of nested lists": header(
        {"__metadata__": {"classwise": json.dumps({"model": "[" * 50_000})}, "w": entry([1], [0, 4])}, b"\0" * 4
    ),
    "a newer version": header(
        {"__metadata__": {"classwise": json.dumps({"schema_version": "9" * 5000})}, "w": entry([1], [0, 4])}, b"\0" * 4
    ),
    "a score that is none": header(
        {"__metadata__": {"classwise": json.dumps({"score": "x"})}, "w": entry([1], [0, 4])}, b"\0" * 4
    ),
}  # fmt: skip


def saved(value: object, **options: Any) -> bytes:
    """What ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def lenet() -> Tensors:
    """The state dict of a network that fits digits."""
    from classwise.models import build_model

    torch.manual_seed(0)
    return dict(build_model("lenet", num_classes=10, in_channels=1).state_dict())


def changed(change: Callable[[torch.Tensor], Any], which: int = 0) -> Tensors:
    """The state dict with one tensor changed."""
    tensors = lenet()
    key = list(tensors)[which]
    return {**tensors, key: change(tensors[key])}


def recursive() -> Tensors:
    """A checkpoint that holds itself."""
    value: Tensors = {}
    value["state_dict"] = {"model": value}
    value["model"] = value
    return value


def itself() -> Tensors:
    """A checkpoint that holds nothing but itself."""
    value: Tensors = {}
    value["state_dict"] = value
    return value


def nested(depth: int) -> Tensors:
    """A state dict inside so many containers."""
    value: Tensors = lenet()
    for _ in range(depth):
        value = {"state_dict": value}
    return value


def save(value: object, path: Path) -> None:
    """As torch.save, of values nested deeper than the interpreter allows by default."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        torch.save(value, path)
    finally:
        sys.setrecursionlimit(limit)


def huge_storage() -> torch.Tensor:
    """A tensor of 4 TB that costs nothing: one number, seen often."""
    return torch.zeros(1).expand(10**6, 10**6)


VALUES: dict[str, Callable[[], object]] = {
    "code": lambda: {"state_dict": Evil()},
    "code that is executed": Exec,
    "code in a key": lambda: {"state_dict": {"w": Exec()}},
    "nothing": dict,
    "None": lambda: None,
    "a tensor": lambda: torch.zeros(3),
    "a list": lambda: [torch.zeros(3)],
    "text": lambda: "weights",
    "a whole module": lambda: torch.nn.Linear(3, 3),
    "number keys": lambda: {1: torch.zeros(3)},
    "empty state": lambda: {"state_dict": {}},
    "a state of text": lambda: {"state_dict": {"w": "x"}},
    "itself": recursive,
    "itself, nothing else": itself,
    "nested 5 deep": lambda: nested(5),
    "nested 900 deep": lambda: nested(900),
    "sparse weights": lambda: changed(lambda w: w.to_sparse()),
    "sparse CSR weights": lambda: changed(lambda w: w.flatten(1).to_sparse_csr()),
    "quantised weights": lambda: changed(lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8)),
    "meta weights": lambda: changed(lambda w: w.to("meta")),
    "complex weights": lambda: changed(lambda w: w.to(torch.complex64)),
    "boolean weights": lambda: changed(lambda w: w > 0),
    "integer weights": lambda: changed(lambda w: w.to(torch.int64)),
    "8-bit weights": lambda: changed(lambda w: w.to(torch.float8_e4m3fn)),
    "half weights": lambda: changed(lambda w: w.half()),
    "double weights": lambda: changed(lambda w: w.double()),
    "doubles too large": lambda: changed(lambda w: w.double() + 1e300),
    "NaN weights": lambda: changed(lambda w: w * float("nan")),
    "infinite weights": lambda: changed(lambda w: w + float("inf")),
    "conjugate weights": lambda: changed(lambda w: w.to(torch.complex64).conj()),
    "transposed weights": lambda: changed(lambda w: w.transpose(0, 1)),
    "expanded weights": lambda: changed(lambda w: torch.zeros(1).expand(w.shape)),
    "weights of 4 TB": lambda: changed(lambda w: huge_storage()),
    "a name of weights of 4 TB": lambda: {**lenet(), "x": huge_storage()},
    "another shape": lambda: changed(lambda w: w[:-1]),
    "no dimensions": lambda: changed(lambda w: w.sum()),
    "six dimensions": lambda: changed(lambda w: w[None, None]),
    "empty weights": lambda: changed(lambda w: w[:0]),
    "all empty": lambda: {key: value[:0] for key, value in lenet().items()},
    "parameters": lambda: {key: torch.nn.Parameter(value) for key, value in lenet().items()},
    "an ordered dictionary": lambda: collections.OrderedDict(lenet()),
    "100,000 tensors": lambda: {f"t{n}": torch.zeros(()) for n in range(100_000)},
    "prefixes": lambda: {"module." * 400 + key: value for key, value in lenet().items()},
    "a key of 10^6 letters": lambda: {**lenet(), "k" * 10**6: torch.zeros(1)},
    "control characters in a key": lambda: {**lenet(), "a\n\x1b[31m\0": torch.zeros(1)},
    "a normalisation of zero": lambda: {**lenet(), "mean": torch.zeros(1), "std": torch.zeros(1)},
    "a normalisation of NaN": lambda: {**lenet(), "mean": torch.zeros(1), "std": torch.full((1,), float("nan"))},
    "a normalisation of nothing": lambda: {**lenet(), "mean": torch.zeros(0), "std": torch.zeros(0)},
    "a normalisation of 10^4": lambda: {**lenet(), "mean": torch.zeros(10**4), "std": torch.ones(10**4)},
    "a normalisation of text": lambda: {"state_dict": lenet(), "mean": "x", "std": "y"},
    "a billion classes": lambda: changed(lambda w: torch.zeros(1).expand(10**9, *w.shape[1:]), which=-2),
    "a huge last layer": lambda: changed(lambda w: torch.zeros(1).expand(10, 10**9), which=-2),
}  # fmt: skip


def archive(change: Callable[[zipfile.ZipInfo, bytes], tuple[zipfile.ZipInfo, bytes]], compress: bool = False) -> bytes:
    """A file of ``torch.save`` whose members are changed."""
    buffer = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(io.BytesIO(saved(lenet()))) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for info in old.infolist():
            changed_info, content = change(info, old.read(info))
            new.writestr(changed_info, content, method)
    return buffer.getvalue()


def bomb(path: Path) -> None:
    """A .pt whose largest member expands to 1.5 GiB."""
    with zipfile.ZipFile(io.BytesIO(saved(lenet()))) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            if info.filename.endswith("data/0"):
                with new.open(info.filename, "w", force_zip64=True) as member:
                    block = bytes(1 << 20)
                    for _ in range(1536):
                        member.write(block)
            else:
                new.writestr(info.filename, old.read(info))


def pickled(member: bytes) -> bytes:
    """A .pt with another pickle in it."""
    return archive(lambda info, content: (info, member if info.filename.endswith("data.pkl") else content))


DEEP = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
"""A pickle of a list in a list in a list ..."""

PICKLES: dict[str, bytes] = {
    "no bytes": b"",
    "a stop": b"\x80\x02.",
    "a deep list": DEEP,
    "a memo bomb": b"\x80\x02" + b"]q\0" + b"(h\0h\0h\0h\0h\0h\0h\0h\0h\0e" * 20 + b".",
    "a huge long": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\1.",
    "a negative long": b"\x80\x02\x8b" + struct.pack("<i", -5) + b"\1.",
    "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
    "a huge memo": b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".",
    "protocol 5": pickle.dumps({"w": 1}, 5),
    "protocol 9": b"\x80\x09.",
    "text protocol": pickle.dumps({"w": 1}, 0),
    "a global": b"cos\nsystem\n(S'touch evil'\ntR.",
    "builtins": b"c__builtin__\neval\n(S'open(\"evil\",\"w\")'\ntR.",
    "getattr": b"c__builtin__\ngetattr\n(cos\nS'system'\ntR.",
    "torch.load": b"ctorch\nload\n(S'x'\ntR.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"\x80\x02X\x01\0\0\0aQ.",
}  # fmt: skip


def cases(random: Random) -> Iterator[Case]:
    """Hostile checkpoints."""

    def on(name: str, file: str) -> tuple[str, ...]:
        return ("audit", name, "--weights", file, "--data=digits", "--subset=40", "--out=out", ATTACK)

    for name, content in SAFETENSORS.items():
        yield Case(f"safetensors: {name}", on("lenet", "w.safetensors"), {"w.safetensors": content}, EITHER)
    for name in list(SAFETENSORS)[-8:]:
        words = ("audit", "w.safetensors", "--data=digits", "--subset=40", "--out=out", ATTACK)
        yield Case(f"safetensors alone: {name}", words, {"w.safetensors": SAFETENSORS[name]}, EITHER)
    for name, make in VALUES.items():
        yield Case(f"pt: {name}", on("lenet", "w.pt"), {"w.pt": lambda path, make=make: save(make(), path)}, EITHER)
    for name in ("code", "itself", "sparse weights", "meta weights", "weights of 4 TB", "a whole module", "text"):
        make = VALUES[name]
        files = {"w.pt": lambda path, make=make: torch.save(make(), path, _use_new_zipfile_serialization=False)}
        yield Case(f"old pt: {name}", on("lenet", "w.pt"), files, EITHER)
        words = ("interpolate-weights", "@run", "--start", "w.pt", "--shares=0.5", "--out=out/o.safetensors")
        yield Case(f"interpolate pt: {name}", words, files, EITHER)
    for name, content in PICKLES.items():
        yield Case(f"pickle: {name}", on("lenet", "w.pt"), {"w.pt": content}, EITHER)
        yield Case(f"pickle in a zip: {name}", on("lenet", "w.pt"), {"w.pt": lambda p, c=content: p.write_bytes(pickled(c))},
                   EITHER)  # fmt: skip
    yield Case("pt: deflated", on("lenet", "w.pt"), {"w.pt": lambda p: p.write_bytes(archive(lambda i, c: (i, c), True))},
               EITHER)  # fmt: skip
    yield Case("pt: zip bomb", on("lenet", "w.pt"), {"w.pt": bomb}, EITHER)

    def flagged(path: Path) -> None:
        data = bytearray(archive(lambda info, content: (info, content)))
        for at in range(len(data) - 4):
            if data[at : at + 4] == b"PK\1\2":
                data[at + 8] |= 1
            elif data[at : at + 4] == b"PK\3\4":
                data[at + 6] |= 1
        path.write_bytes(bytes(data))

    yield Case("pt: encrypted", on("lenet", "w.pt"), {"w.pt": flagged}, EITHER)
    yield Case("pt: a zip of nothing", on("lenet", "w.pt"), {"w.pt": b"PK\5\6" + bytes(18)}, EITHER)
    whole = saved(lenet())
    for number in range(24):
        damaged = bytearray(whole)
        for _ in range(random.randrange(1, 6)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        cut = bytes(damaged[: random.randrange(len(damaged))] if number % 3 == 0 else damaged)
        yield Case(f"pt: damaged {number}", on("lenet", "w.pt"), {"w.pt": cut}, EITHER)
    for file in ("/dev/zero", "/dev/urandom", "/proc/self/mem", "/etc/passwd", ".", "/", "\0", "x" * 5000, "none.pt"):
        yield Case(f"weights: {file[:20]!a}", on("lenet", file))
    same: dict[str, Callable[[Tensors], object]] = {
        "doubles": lambda state: {key: value.double() for key, value in state.items()},
        "parameters": lambda state: {key: torch.nn.Parameter(value) for key, value in state.items()},
        "another memory order": lambda state: {key: value.t().contiguous().t() if value.ndim == 2 else value
                                               for key, value in state.items()},
        "a prefix": lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
        "a view of a larger storage": lambda state: {key: torch.stack([value, value])[1] for key, value in state.items()},
    }  # fmt: skip
    for name, change in same.items():
        files = {"w.pt": lambda path, change=change: torch.save(change(lenet()), path)}
        yield Case(f"control: {name}", (*on("lenet", "w.pt"), "--json"), files, frozenset({0}), CLEAN)


CLEAN = ("audit", "lenet", "--weights", "@weights", "--data=digits", "--subset=40", "--json", ATTACK)
"""The audit of `lenet` whose numbers the same weights must give, however they are stored."""
