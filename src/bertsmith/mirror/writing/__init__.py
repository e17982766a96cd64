"""A student's answer in the bytes that each protocol's clients read: whole, or as a stream."""
