"""iclr21: Tian et al., the first version of the KDD paper (ICLR 2021 submission)."""

from __future__ import annotations
