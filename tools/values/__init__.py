"""Record the numbers that the package computes, to show that a change of its structure changes none of them."""
