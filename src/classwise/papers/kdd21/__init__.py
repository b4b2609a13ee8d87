"""kdd21: Tian et al., Analysis and Applications of Class-wise Robustness in Adversarial Training (KDD 2021)."""

from __future__ import annotations
