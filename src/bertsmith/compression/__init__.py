"""Models into smaller and faster ones."""
