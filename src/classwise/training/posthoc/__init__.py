"""Post-hoc methods: change a trained classifier by its validation split, without training."""
