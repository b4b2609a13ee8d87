"""Leaderboards: audited models, ranked by their worst-class accuracy among audits under the same conditions."""
