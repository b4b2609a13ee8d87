"""torchvision beside a torch for which its binary was not built.

The wheel of torchvision on PyPI is built for torch with CUDA. Beside the CPU build its binary does not load, and then
its Python part fails at import, because it registers functions for operators that the binary would have defined.
Declaring these operators first makes the Python part importable: all classifiers and transforms work, detection
operators do not.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

import torch


@functools.cache
def declare_operators() -> torch.library.Library | None:
    """Declare the operators for which torchvision registers functions; None without torchvision, or if it can load."""
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return None
    code = (Path(found.submodule_search_locations[0]) / "_meta_registrations.py").read_text(encoding="utf-8")
    names = re.findall(r'register_meta\("(\w+)"\)', code) + re.findall(r'register_fake\("torchvision::(\w+)"\)', code)
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in names:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    return library
