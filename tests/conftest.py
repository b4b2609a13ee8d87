"""What every test shares: repeatable examples and one torch thread."""

from __future__ import annotations

import hypothesis
import torch

hypothesis.settings.register_profile("same-examples", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same-examples")

torch.set_num_threads(1)
