"""Whether a folder's model answers as it did when it was written, or as other tools do."""
