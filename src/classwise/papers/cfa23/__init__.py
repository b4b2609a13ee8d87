"""cfa23: Wei et al., CFA: Class-wise Calibrated Fair Adversarial Training (CVPR 2023)."""

from __future__ import annotations
