"""Models, attacks and other callables of the user's own that fail, or return what they should not."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

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
    "raises ClasswiseError": "from classwise.core.errors import ClasswiseError; raise ClasswiseError('no')",
    "raises IncompleteError": "from classwise.core.errors import IncompleteError; raise IncompleteError('no')",
    "asks classwise for what it has not": "import classwise; classwise.load_data('none')",
    "raises UnicodeDecodeError": "b'\\xff'.decode()",
    "raises an error that has no text": (
        "class Odd(Exception):\n"
        "            def __str__(self): raise ValueError('no text')\n"
        "        raise Odd"
    ),
    "raises a group of errors": "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])",
    "raises BrokenPipeError": "raise BrokenPipeError",
    "raises FileNotFoundError": "raise FileNotFoundError(2, 'no file', 'weights.pt')",
    "raises StopAsyncIteration": "raise StopAsyncIteration",
    "changes its weights": "self.linear.weight.data.add_(1e-3); return self.linear(x.flatten(1))",
    "changes its mode": "self.train(); return self.linear(x.flatten(1))",
    "returns logits that require grad": "return self.linear(x.flatten(1)).detach().requires_grad_()",
    "returns a subclass of tensors": "return nn.Parameter(self.linear(x.flatten(1)).detach())",
    "fails later": (
        "self.count = getattr(self, 'count', 0) + 1\n"
        "        if self.count > 2: raise ValueError('later')\n"
        "        return self.linear(x.flatten(1))"
    ),
}  # fmt: skip

LATER = {
    "returns fewer classes": "return self.linear(x.flatten(1))[:, :4]",
    "returns more classes": "return torch.cat([self.linear(x.flatten(1))] * 2, 1)",
    "raises StopIteration": "raise StopIteration",
    "raises StopIteration with a value": "next(iter(()))",
    "raises ClasswiseError": "from classwise.core.errors import ClasswiseError; raise ClasswiseError('later')",
    "raises SystemExit": "raise SystemExit(2)",
    "raises KeyError": "raise KeyError('later')",
    "returns None": "return None",
    "returns NaN": "return self.linear(x.flatten(1)) * float('nan')",
    "returns half of the rows": "return self.linear(x.flatten(1))[::2]",
    "returns half precision": "return self.linear(x.flatten(1)).half()",
    "has no gradient": "return self.linear(x.flatten(1)).detach()",
    "returns an array": "return self.linear(x.flatten(1)).detach().numpy()",
}
"""What a forward does from some pass on."""

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
    "returns a sparse tensor": "return x.to_sparse()",
    "returns a CSR tensor": "return x.flatten(1).to_sparse_csr()",
    "returns a quantised tensor": "return torch.quantize_per_tensor(x, 0.01, 0, torch.quint8)",
    "returns a tensor that requires grad": "return x.clone().requires_grad_()",
    "returns a double tensor": "return x.double()",
    "returns a view of one image": "return x[:1].expand(x.shape)",
    "returns an array": "return x.numpy()",
    "returns a list": "return list(x)",
    "raises StopIteration": "raise StopIteration",
    "raises ClasswiseError": "from classwise.core.errors import ClasswiseError; raise ClasswiseError('no')",
    "raises IncompleteError": "from classwise.core.errors import IncompleteError; raise IncompleteError('no')",
    "raises a group of errors": "raise ExceptionGroup('several', [ValueError('one')])",
    "sets the default type": "torch.set_default_dtype(torch.float64); return x",
    "disables gradients": "torch.set_grad_enabled(False); return x",
    "seeds the generators": "torch.manual_seed(1); return x",
}

CHANGES = {
    "weights in place": "[p.add_(1) for p in model.parameters()]",
    "weights through data": "[p.data.neg_() for p in model.parameters()]",
    "weights to NaN": "[p.fill_(float('nan')) for p in model.parameters()]",
    "the type of the weights": "model.half()",
    "the mode": "model.train()",
    "what requires gradients": "model.requires_grad_()",
    "a layer": "[setattr(m, n, nn.Identity()) for m in list(model.modules()) for n, c in list(m.named_children())[:1]]",
    "a parameter": "[m._parameters.update(weight=None) for m in list(model.modules()) if 'weight' in m._parameters]",
    "its weights by training": (
        "model.requires_grad_(); o = torch.optim.SGD(model.parameters(), 1.0)\n"
        "    with torch.enable_grad(): model(x).square().sum().backward()\n"
        "    o.step()"
    ),
}
"""What an attack changes in the model, which is restored, so that the numbers of all attacks are those without it."""
STEPS = {
    "returns None": "return None",
    "returns a list": "return [1]",
    "returns nothing": "return {}",
    "returns no margin": "return {key: value for key, value in new.items() if key != 'margin'}",
    "returns no column of its own": "return {key: value for key, value in new.items() if key != 'own'}",
    "returns a number": "return new | {'done': True}",
    "returns flags as numbers": "return new | {'done': new['done'].long()}",
    "returns fewer rows": "return {key: value[1:] for key, value in new.items()}",
    "returns fewer rows of a column": "return new | {'own': new['own'][:1]}",
    "returns a sparse iterate": "return new | {'x': new['x'].to_sparse()}",
    "returns a meta column": "return new | {'margin': new['margin'].to('meta')}",
    "returns images of another size": "return new | {'x': new['x'][..., :2], 'seen': new['x'][..., :2]}",
    "returns NaN": "return new | {'x': new['x'] * float('nan'), 'margin': new['margin'] * float('nan')}",
    "returns infinite images": "return new | {'x': new['x'] + float('inf'), 'seen': new['x'] - float('inf')}",
    "raises": "raise ValueError('no')",
    "raises StopIteration": "raise StopIteration",
    "is never done": "return new | {'done': torch.zeros_like(new['done'])}",
    "changes the model": "[p.data.neg_() for p in model.module.parameters()]; return new",
}
"""What a step of an attack of one's own does after it has computed its new state."""
STEPPING = b"""
import torch
from classwise.attacks.base import Attack
from classwise.core.settings.config import configurable

@configurable
class Mine(Attack):
    source = ()
    example = "mine:Mine"
    length = 2

    def start(self, model, inputs):
        zero = torch.zeros_like(inputs.y)
        return {"x": inputs.x.clone(), "iteration": zero, "done": zero.bool(), "own": zero.float()}

    def step(self, model, inputs, state):
        z = model(inputs.x)
        margin = z.gather(1, inputs.y[:, None])[:, 0] - z.scatter(1, inputs.y[:, None], -torch.inf).amax(1)
        new = state | {"seen": inputs.x, "margin": margin, "iteration": state["iteration"] + 1}
        new["done"] = new["iteration"] >= 2
        BODY
"""
SIGNATURES = {
    "step without a state": b"    def step(self, model, inputs): return {}\n    def start(self, model, inputs): return {}\n",
    "step with more": b"    def step(self, model, inputs, state, more): return {}\n    def start(self, model, inputs): return {}\n",
    "start without a model": b"    def step(self, model, inputs, state): return {}\n    def start(self, inputs): return {}\n",
    "start without self": b"    def step(self, model, inputs, state): return {}\n    def start(): return {}\n",
}
"""Methods of an attack with other signatures."""

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


def unchanged(found: Any) -> list[str]:
    """The external attack returns clean images, so whatever it does to the model, its numbers are those without it."""
    rows = found["summary"]
    return [] if rows["external"]["overall"] == rows["clean"]["overall"] else ["an attack that does nothing succeeds"]


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
    for name, code in LATER.items():
        for passes in (1, 3, 6, 12):
            later = (
                "self.count = getattr(self, 'count', 0) + 1\n"
                f"        if self.count > {passes}:\n            {code}\n"
                "        return self.linear(x.flatten(1))"
            )
            files = {"mine.py": module(later)}
            yield Case(f"later, after {passes}: forward {name}", (*words, "--attack=pgd:steps=3"), files, user)
        yield Case(f"later: apgd-t: forward {name}", (*words, "--attack=apgd-t:steps=2"), files, user)
        training = [word for word in train() if "model." not in word]
        yield Case(f"later: train: forward {name}", (*training, "--set=model.name=mine:build"), files, user)
    for name, code in CHANGES.items():
        changing = (
            "import torch\nfrom torch import nn\n@torch.no_grad()\n"
            f"def attack(model, x, y):\n    {code}\n    return x\n"
        )
        attack = audit("--attack=external:attack=mine:attack", "--attack=fgsm")
        yield Case(f"external changes {name}", attack, {"mine.py": changing.encode()}, frozenset({0}),
                   guard="changed-model", check=unchanged)  # fmt: skip
    for name, code in STEPS.items():
        files = {"mine.py": STEPPING.replace(b"BODY", code.encode())}
        yield Case(f"step {name}", audit("--attack=mine:Mine"), files, user)
    for name, methods in SIGNATURES.items():
        content = STEPPING.partition(b"    def start")[0] + methods
        yield Case(f"signature: {name}", audit("--attack=mine:Mine"), {"mine.py": content}, REFUSED)
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
