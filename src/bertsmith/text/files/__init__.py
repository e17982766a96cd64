"""Files: lines and rows of whatever holds text, read as streams, each knowing where it stands."""
