"""The mirror's own page."""
