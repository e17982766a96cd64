"""Data: memory-mapped token store → sentence pairs → masks → packed batches, in a replayable order."""
