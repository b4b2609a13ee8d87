"""Outcomes: the table with one row per image and attack, its files, and what is computed from its rows."""
