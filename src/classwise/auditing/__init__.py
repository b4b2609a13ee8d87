"""Audits: evaluation of every image under attack, and the tables that are computed from the outcomes."""
