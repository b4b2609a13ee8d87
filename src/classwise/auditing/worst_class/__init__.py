"""The search for the worst class: which class is the worst at a stated confidence, without a full audit."""
