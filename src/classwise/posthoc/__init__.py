"""Post-hoc methods: modify a trained classifier with images that it was not trained on, without training."""
