"""The live view: a running training as people watch it."""
