"""A task that is none of Bertsmith's, for models that only its class opens."""

from bertsmith.tasks.classification import Classification


class Species(Classification):
    """Classes under another name."""

    name = "species"
