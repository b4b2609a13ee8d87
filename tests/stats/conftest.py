"""Properties try the same examples each time, however slow the machine."""

from hypothesis import settings

settings.register_profile("same-examples", derandomize=True, deadline=None)
settings.load_profile("same-examples")
