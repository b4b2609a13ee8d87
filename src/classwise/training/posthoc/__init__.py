"""Post-hoc methods: modify a trained classifier with its validation split, without training."""
