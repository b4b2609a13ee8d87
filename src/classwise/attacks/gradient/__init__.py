"""Attacks that ascend the gradient of a loss: PGD and its relatives, momentum, margin losses, Auto-PGD."""
