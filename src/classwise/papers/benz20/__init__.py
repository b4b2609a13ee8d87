"""benz20: Benz et al., Robustness May Be at Odds with Fairness (2020): a plan without results."""

from __future__ import annotations
