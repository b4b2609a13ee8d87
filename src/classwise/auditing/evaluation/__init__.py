"""What is asked of an evaluation: one record, from which its arguments, options, keys and metadata are derived."""
