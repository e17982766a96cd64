"""What stands on an encoder."""
