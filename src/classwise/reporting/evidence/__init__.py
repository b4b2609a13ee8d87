"""Evidence reports: a page, a JSON file with a schema, and a manifest of digests, for people who vouch for a model."""
