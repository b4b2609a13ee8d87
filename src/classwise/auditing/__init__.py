"""Auditing: attacks in, outcomes out; everything that a report says is computed from the outcomes."""
