"""Building and loading of models: by registered name, import path, checkpoint, run folder or module."""
