"""What recorded calls ask and answer: the input in the messages, the fields of the answers."""
