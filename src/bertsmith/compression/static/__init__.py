"""An encoder's vectors as a table: one vector a piece of the vocabulary."""
