"""Attacks without gradients of the model under audit: random search, estimated gradients, transfer."""
