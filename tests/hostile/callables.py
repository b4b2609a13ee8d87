"""Models, attacks and other callables of the user's own that fail, or return what they should not."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.hostile.case import ATTACK, EITHER, REFUSED, USER_CODE, Case, audit, train

HEAD = b"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10, in_channels=1, **_):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)
    def forward(self, x):
        return self.linear(x.flatten(1))
"""

FORWARD = {
    "raises": "raise ValueError('no')",
    "raises without words": "raise RuntimeError",
    "raises a long error": "raise RuntimeError('x\\n' * 100000)",
    "raises KeyError": "raise KeyError('k')",
    "raises AssertionError": "assert False",
    "raises MemoryError": "raise MemoryError",
    "raises RecursionError": "return self.forward(x)",
    "raises StopIteration": "raise StopIteration",
    "raises OSError": "open('/none/none')",
    "raises in C": "return torch.zeros(2, 3) @ torch.zeros(5, 7)",
    "exits": "raise SystemExit(0)",
    "interrupts": "raise GeneratorExit",
    "returns None": "return None",
    "returns text": "return 'logits'",
    "returns a number": "return 5",
    "returns a list": "return [1, 2]",
    "returns an array": "return self.linear(x.flatten(1)).detach().numpy()",
    "returns an empty tuple": "return ()",
    "returns a tuple": "return (self.linear(x.flatten(1)), x)",
    "returns a tuple of two logits": "y = self.linear(x.flatten(1)); return (y, y)",
    "returns a mapping": "return {'logits': self.linear(x.flatten(1))}",
    "returns an empty mapping": "return {}",
    "returns NaN": "return self.linear(x.flatten(1)) * float('nan')",
    "returns infinity": "return self.linear(x.flatten(1)) + float('inf')",
    "returns integers": "return self.linear(x.flatten(1)).long()",
    "returns booleans": "return self.linear(x.flatten(1)) > 0",
    "returns complex numbers": "return self.linear(x.flatten(1)).to(torch.complex64)",
    "returns half precision": "return self.linear(x.flatten(1)).half()",
    "returns one logit": "return self.linear(x.flatten(1))[:, :1]",
    "returns no logit": "return self.linear(x.flatten(1))[:, :0]",
    "returns eleven logits": "return torch.cat([self.linear(x.flatten(1)), x.flatten(1)[:, :1]], 1)",
    "returns one row": "return self.linear(x.flatten(1))[:1]",
    "returns no row": "return self.linear(x.flatten(1))[:0]",
    "returns half of the rows": "return self.linear(x.flatten(1))[::2]",
    "returns each row twice": "y = self.linear(x.flatten(1)); return torch.cat([y, y])",
    "returns a vector": "return self.linear(x.flatten(1)).argmax(1)",
    "returns a scalar": "return self.linear(x.flatten(1)).sum()",
    "returns four dimensions": "return self.linear(x.flatten(1))[:, :, None, None].expand(-1, -1, 3, 3)",
    "returns a sparse tensor": "return self.linear(x.flatten(1)).to_sparse()",
    "returns a meta tensor": "return self.linear(x.flatten(1)).to('meta')",
    "returns another size each time": "return self.linear(x.flatten(1))[:torch.randint(1, len(x) + 1, ())]",
    "returns images": "return x",
    "writes into its input": "x.zero_(); return self.linear(x.flatten(1))",
    "changes directory": "import os; os.chdir('/'); return self.linear(x.flatten(1))",
    "prints": "print('hello'); return self.linear(x.flatten(1))",
    "fails later": (
        "self.count = getattr(self, 'count', 0) + 1\n"
        "        if self.count > 2: raise ValueError('later')\n"
        "        return self.linear(x.flatten(1))"
    ),
}  # fmt: skip

BUILDERS = {
    "raises": "raise ValueError('no')",
    "exits": "raise SystemExit(0)",
    "raises KeyboardInterrupt's kin": "raise GeneratorExit",
    "returns None": "return None",
    "returns text": "return 'net'",
    "returns a class": "return Net",
    "returns a function": "return lambda x: x",
    "returns a list": "return [Net()]",
    "returns a tensor": "return torch.zeros(3)",
    "returns an empty module": "return nn.Module()",
    "returns an identity": "return nn.Identity()",
    "returns a meta module": "return Net().to('meta')",
    "returns a double module": "return Net().double()",
    "returns a half module": "return Net().half()",
    "returns a module of NaN": "n = Net(); nn.init.constant_(n.linear.weight, float('nan')); return n",
    "returns a module without parameters": "return nn.Flatten()",
    "returns a lazy module": "return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))",
    "returns a sequence with itself": "n = Net(); n.extra = [n]; return n",
    "needs an argument": None,
    "is a number": None,
}  # fmt: skip

FILES = {
    "syntax error": b"def build(:\n",
    "not UTF-8": b"x = '\xff'\n",
    "NUL": b"x = 1\0\n",
    "raises on import": b"raise ValueError('no')\n",
    "exits on import": b"raise SystemExit(0)\n",
    "imports nothing that exists": b"import no_such_module_at_all\n",
    "imports a missing name": b"from os import no_such_name\n",
    "imports itself": b"from mine import build\n",
    "empty": b"",
    "build is None": b"build = None\n",
    "build is text": b"build = 'x'\n",
    "build is a module": b"import os as build\n",
    "a getattr that raises": b"def __getattr__(name):\n    raise ValueError('no')\n",
    "nested too deeply": b"build = " + b"(" * 3000 + b")" * 3000 + b"\n",
}

ATTACK_CODE = {
    "raises": "raise ValueError('no')",
    "exits": "raise SystemExit(0)",
    "returns None": "return None",
    "returns text": "return 'x'",
    "returns one image": "return x[:1]",
    "returns another shape": "return x[:, :, :2]",
    "returns NaN": "return x * float('nan')",
    "returns infinity": "return x / 0 - 5",
    "returns integers": "return (x * 255).long()",
    "returns far away images": "return x + 100",
    "returns complex numbers": "return x.to(torch.complex64)",
    "returns labels": "return y",
    "writes into its input": "x.zero_(); return x",
    "returns a meta tensor": "return x.to('meta')",
}

ORDERS = {
    "shifted by one": "[*range(1, 10), 0]",
    "shifted by one backwards": "[9, *range(9)]",
    "shifted by four": "[*range(4, 10), *range(4)]",
    "reversed": "[*range(9, -1, -1)]",
    "of two classes swapped": "[0, 6, 2, 3, 4, 5, 1, 7, 8, 9]",
    "of three classes rotated": "[2, 1, 4, 3, 0, 5, 6, 7, 8, 9]",
    "of pairs swapped": "[1, 0, 3, 2, 5, 4, 7, 6, 9, 8]",
    "mixed": "[3, 8, 0, 6, 1, 9, 2, 5, 7, 4]",
}
"""Orders of the outputs, as the class of each."""
ORDERED = b"""
def build(num_classes=10, in_channels=1):
    from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    means = torch.stack([torch.tensor(images[labels == label].mean(0) / 16).float() for label in range(10)])
    net = Net()
    net.linear.weight.data, net.linear.bias.data = means, -means.square().sum(1) / 2
    net.linear.weight.data, net.linear.bias.data = net.linear.weight[ORDER].detach(), net.linear.bias[ORDER].detach()
    return net
"""
"""A network with the nearest class mean, whose outputs are in another order."""


def module(code: str) -> bytes:
    """A module whose network has this forward."""
    text = HEAD.replace(b"return self.linear(x.flatten(1))", code.encode())
    return text + b"\ndef build(num_classes=10, in_channels=1):\n    return Net(num_classes)\n"


def cases(random: Random) -> Iterator[Case]:
    """Hostile callables."""
    del random
    user = USER_CODE | EITHER
    words = ("audit", "mine:build", "--data=digits", "--subset=40", "--out=out", "--threat=Linf:0.1")
    for name, code in FORWARD.items():
        yield Case(f"forward {name}", (*words, ATTACK), {"mine.py": module(code)}, user)
    for name in ("raises", "exits", "returns None", "returns NaN", "returns one row", "fails later", "returns text"):
        files = {"mine.py": module(FORWARD[name])}
        yield Case(f"curve: forward {name}", ("curve", *words[1:], ATTACK, "--rounds=1"), files, user)
        yield Case(f"worst: forward {name}", ("worst-class", *words[1:4], "--threat=Linf:0.1", ATTACK), files, user)
        yield Case(f"estimate: forward {name}", (*words, ATTACK, "--estimate"), files, user)
        yield Case(f"square: forward {name}", (*words, "--attack=square:queries=5"), files, user)
        training = [word for word in train() if "model." not in word]
        yield Case(f"train: forward {name}", (*training, "--set=model.name=mine:build"), files, user)
    for name, body in BUILDERS.items():
        if body is None:
            extra = b"def build(needed):\n    return Net()\n" if "argument" in name else b"build = 5\n"
        else:
            extra = f"def build(num_classes=10, in_channels=1):\n    {body}\n".encode()
        yield Case(f"builder {name}", (*words, ATTACK), {"mine.py": HEAD + extra}, user)
    for name, order in ORDERS.items():
        content = HEAD + f"ORDER = {order}\n".encode() + ORDERED
        audited = ("audit", "mine:build", "--data=digits", "--out=out", "--threat=Linf:0.1", "--json", ATTACK)
        yield Case(f"outputs {name}", audited, {"mine.py": content}, frozenset({0}), guard="class-order")
    for name, content in FILES.items():
        yield Case(f"module: {name}", (*words, ATTACK), {"mine.py": content}, user)
        yield Case(f"module of an attack: {name}", audit("--attack=mine:build"), {"mine.py": content}, user)
    for name, body in ATTACK_CODE.items():
        source = f"import torch\ndef attack(x, y):\n    {body}\n".encode()
        yield Case(f"external {name}", audit("--attack=external:attack=mine:attack"), {"mine.py": source}, user)
    for name, body in list(ATTACK_CODE.items())[:4]:
        source = f"import torch\ndef build(model):\n    {body.replace('x', '1')}\n".encode()
        yield Case(f"external build {name}", audit("--attack=external:build=mine:build"), {"mine.py": source}, user)
    for kind in (
        "objective",
        "reduction",
        "update",
        "optimizer",
        "lr_schedule",
        "averaging",
        "selection",
        "attack",
        "data.augment",
    ):
        for what, content in {
            "a class of nothing": b"class Mine:\n    pass\n",
            "a function": b"def Mine(*a, **k):\n    open('evil', 'w')\n",
            "a callable class": b"class Mine:\n    def __init__(self, *a, **k): open('evil', 'w')\n    def __call__(self, *a): pass\n",
        }.items():
            yield Case(f"{kind} is {what}", train(f"--set={kind}=mine:Mine"), {"mine.py": content}, user)
    yield Case("shadowed module", ("audit", "lenet", "--data=digits", "--out=out", "--subset=40", ATTACK),
               {"torch.py": b"open('evil', 'w')\n", "json.py": b"open('evil', 'w')\n"}, EITHER)  # fmt: skip
    yield Case("a data set of one's own that raises", audit(ATTACK, "--data=mine:Mine"),
               {"mine.py": b"class Mine:\n    def __init__(self): raise ValueError('no')\n"}, REFUSED | user)  # fmt: skip
