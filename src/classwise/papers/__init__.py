"""Inventory of four papers, and experiments that reproduce their tables, figures and claims."""
