"""Images and outputs of models as tensors of unusual kinds, shapes and values."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.hostile.case import ATTACK, REFUSED, USER_CODE, Case

DATA = b"""
import numpy as np
import torch
from torch import nn
from classwise.data.images import Images
from classwise.data.sets.base import DataSet

X = torch.arange(40 * 64).remainder(17).reshape(40, 1, 8, 8) / 16
Y = torch.arange(40) % 2

class Mine(DataSet):
    name, class_names, shape = "mine", ("a", "b"), (1, 8, 8)
    def read(self, root, split):
        x, y = X.clone(), Y.clone()
        BODY
        return Images(x, y, self.class_names, self.name, split)

class Net(nn.Module):
    def __init__(self, num_classes=2, in_channels=1, **_):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 3)
    def forward(self, x):
        z = self.linear(x.flatten(1))
        RETURN
"""
"""A data set of two classes and a model, with a statement in each."""

HARMLESS = {
    "requires gradients": "x = x.requires_grad_()",
    "in a graph": "x = x.requires_grad_() * 1",
    "a parameter": "x = nn.Parameter(x)",
    "an inference tensor": "with torch.inference_mode(): x = x * 1",
    "half precision": "x = x.half()",
    "bfloat16": "x = x.bfloat16()",
    "double precision": "x = x.double()",
    "expanded": "x = x[:1].expand(40, -1, -1, -1)",
    "channels-last memory": "x = x.contiguous(memory_format=torch.channels_last)",
    "big-endian": "x = x.numpy().astype('>f4')",
    "objects": "x = x.numpy().astype(object)",
    "negative strides": "x, y = x.numpy()[::-1], y.numpy()[::-1]",
    "long double": "x = x.numpy().astype(np.longdouble)",
    "labels of type uint16": "y = y.to(torch.uint16)",
    "big-endian labels": "y = y.numpy().astype('>i2')",
}
FATAL = {
    "meta": "x = x.to('meta')",
    "sparse": "x = x.to_sparse()",
    "nested": "x = torch.nested.nested_tensor([x[0], x[1, :, :4]])",
    "quantised": "x = torch.quantize_per_tensor(x, 1 / 255, 0, torch.quint8)",
    "complex": "x = x.to(torch.complex64)",
    "bool": "x = x > 0.5",
    "uint16": "x = x.mul(65535).to(torch.uint16)",
    "channels last": "x = x.permute(0, 2, 3, 1)",
    "masked": "x = np.ma.masked_array(x.numpy(), mask=True)",
    "meta labels": "y = y.to('meta')",
    "sparse labels": "y = y.to_sparse()",
    "bool labels": "y = y.bool()",
    "float labels": "y = y.float().requires_grad_()",
    "complex labels": "y = y.to(torch.complex64)",
    "labels of None": "y = [None] * 40",
}

BINARY = {
    "(N,)": "return z[:, 0]",
    "(N, 1)": "return z[:, :1]",
    "(N, 1, 1)": "return z[:, :1, None]",
    "squeezed": "return z[:, :1].squeeze()",
    "sigmoid": "return z[:, 0].sigmoid()",
    "constant": "return z[:, 0] * 0",
    "minus infinity": "return z[:, 0] - torch.inf",
    "infinity": "return z[:, 0] + torch.inf",
    "NaN": "return z[:, 0] * torch.nan",
    "huge": "return z[:, 0] * 1e38",
}
NOT_BINARY = {
    "three outputs": "return z",
    "integers": "return z[:, 0].long()",
    "one row": "return z[:1, 0]",
    "a scalar": "return z.sum()",
    "nothing": "return None",
}
EXCLUDED = {
    "one class": "return torch.cat([z[:, :1], z[:, 1:2] - torch.inf], 1)",
    "each image's own class": "z = z[:, :2]; return z.masked_fill(z == z.amin(1, keepdim=True), -torch.inf)",
    "all classes": "return z[:, :2] - torch.inf",
    "the logarithm of a one-hot output": "return nn.functional.one_hot(z[:, :2].argmax(1), 2).float().log() + 0 * z[:, :2]",
}


def cases(random: Random) -> Iterator[Case]:
    """Hostile tensors."""
    del random
    words = ("audit", "mine:Net", "--data=mine:Mine", "--out=out", "--threat=Linf:0.1", "--json")
    done = frozenset({0, 1, 3})
    for name, body in HARMLESS.items():
        files = {"mine.py": module(body, "return z[:, :2]")}
        yield Case(f"images: {name}", (*words, ATTACK), files, done)
    for name, body in FATAL.items():
        yield Case(f"images: {name}", (*words, ATTACK), {"mine.py": module(body, "return z[:, :2]")}, REFUSED)
    for outputs in ("binary", "binary-logits", "binary-probabilities"):
        fits = done if outputs != "binary-probabilities" else done | REFUSED
        for name, returned in BINARY.items():
            files = {"mine.py": module("pass", returned)}
            yield Case(f"{outputs}: {name}", (*words, ATTACK, f"--outputs={outputs}"), files, fits)
        for name, returned in NOT_BINARY.items():
            files = {"mine.py": module("pass", returned)}
            yield Case(f"{outputs}: {name}", (*words, ATTACK, f"--outputs={outputs}"), files, REFUSED | USER_CODE)
    for name, returned in BINARY.items():
        yield Case(f"auto: {name}", (*words, ATTACK), {"mine.py": module("pass", returned)}, REFUSED)
    for name, returned in EXCLUDED.items():
        for attack in (
            "pgd:steps=2",
            "apgd-dlr:steps=2",
            "apgd-t:steps=2",
            "fab:steps=2",
            "square:steps=5",
            "cw:steps=2",
        ):
            files = {"mine.py": module("pass", returned)}
            yield Case(f"excluded: {name}, {attack}", (*words, f"--attack={attack}"), files, done)
    for name in ("(N, 1)", "sigmoid"):
        files = {"mine.py": module("pass", BINARY[name])}
        yield Case(
            f"curve: binary: {name}", ("curve", *words[1:-1], ATTACK, "--rounds=1", "--outputs=binary"), files, done
        )
        yield Case(f"estimate: binary: {name}", (*words[:-1], ATTACK, "--estimate", "--outputs=binary"), files, done)


def module(body: str, returned: str) -> bytes:
    """The module with these statements."""
    return DATA.replace(b"BODY", body.encode()).replace(b"RETURN", returned.encode())
