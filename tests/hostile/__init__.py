"""Hostile inputs: a seeded generator of cases, and the harness that runs them through the command line."""
