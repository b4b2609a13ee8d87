"""Files and folders of results: written whole, owned by one process."""
