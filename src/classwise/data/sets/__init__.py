"""Data sets that have a name: one file a family."""
