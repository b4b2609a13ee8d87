"""Closed forms: the toy model of cfa23 (section 2) with its theorems, and the tempered softmax of iclr21."""

from __future__ import annotations
