"""What pages, texts and exports state of results: counts, tables, sentences and settings."""
