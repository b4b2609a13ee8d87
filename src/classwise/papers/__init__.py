"""The four papers: their items, and experiments that repeat their tables, figures and claims."""
