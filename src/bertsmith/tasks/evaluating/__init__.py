"""A model's figures, and how far they are to be believed."""
