"""Results as text: what the commands print, and ``str(result)``."""
