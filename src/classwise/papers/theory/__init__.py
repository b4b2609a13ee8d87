"""Theory: the toy model in which the unfairness of adversarial training can be computed (cfa23 section 2)."""

from __future__ import annotations
