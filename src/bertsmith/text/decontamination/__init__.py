"""What a corpus and test files have in common, found and taken out."""
