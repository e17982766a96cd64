"""Prose: what a document says, freed of markup, as paragraphs and sentences."""
