"""Loggers of experiment trackers: TensorBoard, MLflow, Weights & Biases."""
