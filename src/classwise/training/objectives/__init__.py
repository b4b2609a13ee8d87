"""Objectives: what a batch's loss is, one file each."""
