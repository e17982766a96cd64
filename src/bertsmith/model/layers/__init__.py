"""The bricks of an encoder: values on axes, no class for a combination."""
