"""The networks of the zoo, one family a file, and their last layers."""
