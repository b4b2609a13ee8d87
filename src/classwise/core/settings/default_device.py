"""The default device of torch: that of the user for the passes of models, and the CPU for everything else here.

``torch.set_default_device("cuda")`` moves every tensor without a stated device to the GPU: indices, masks and tables,
which belong on the CPU, as well as the constants that the code of a model makes in its forward pass.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

_users = threading.local()


@contextmanager
def default_on_cpu() -> Iterator[None]:
    """Context in which tensors without a stated device are on the CPU; the default device of the user is noted."""
    torch: Any = sys.modules.get("torch")  # not imported yet: there is no other default
    device = None if torch is None else torch.get_default_device()
    if device is None or device.type in ("cpu", "meta"):
        yield
        return
    before, _users.device = getattr(_users, "device", None), device
    try:
        with torch.device("cpu"):
            yield
    finally:
        _users.device = before


def default_of_user() -> AbstractContextManager[Any]:
    """Context with the default device of the user, within `default_on_cpu`."""
    return getattr(_users, "device", None) or nullcontext()
