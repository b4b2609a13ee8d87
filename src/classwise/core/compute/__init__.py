"""Arithmetic, devices, random numbers and processes."""
