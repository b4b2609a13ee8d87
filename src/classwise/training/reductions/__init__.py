"""Reductions: from the terms of a training step to one number, the loss."""
