"""What every layer uses: errors, random numbers, threats, precision, registries, storage, processes."""
