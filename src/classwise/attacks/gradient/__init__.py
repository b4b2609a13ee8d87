"""Gradient-ascent attacks: FGSM, PGD and variants, momentum attacks, margin attacks, Auto-PGD."""
