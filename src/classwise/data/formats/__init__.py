"""File formats: one file each, all giving `Images`."""
