"""A script for ``torchrun``: two processes audit each public network, and compute fingerprints."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import classwise as cw
from classwise.core.distributed import launched
from classwise.models import fingerprint
from tests.auditing.public_data import SETTINGS, images
from tests.models.public_networks import PUBLIC
from tests.models.test_content import VALUES, Extra


def run(folder: Path) -> None:
    """Audit all networks and save the outcomes."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # int8 tensors are deprecated
    found: dict[str, Any] = {}
    with launched():
        for name, public in PUBLIC.items():
            found[name] = cw.audit(public.network(), images(name), guards="off", **SETTINGS).outcomes.frame
        found["fingerprints"] = {name: fingerprint(Extra(make())) for name, (make, _) in VALUES.items()}
        (folder / f"rank-{dist.get_rank()}.pkl").write_bytes(pickle.dumps(found))
        dist.barrier()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
