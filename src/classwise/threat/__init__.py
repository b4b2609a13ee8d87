"""Threats: balls of images, their text, and the grid of stored images."""
