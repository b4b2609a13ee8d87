"""Speed, shown: paired runs in one process against a peer or a baseline; medians and ratios."""
