"""Progress of long work, and its interruption."""
