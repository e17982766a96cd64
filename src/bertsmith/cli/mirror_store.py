"""The store that a command of `bertsmith mirror` works on."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertsmith.serving.mirror.settings import MirrorSettings
    from bertsmith.serving.mirror.store import Store

_PACKAGES = ("sqlalchemy", "httpx", "orjson")


def require_mirror(what: str) -> None:
    """Raises MissingExtra."""
    from bertsmith.errors import require

    for module in _PACKAGES:
        require(module, "mirror", what)


def mirror_settings(config: Path | None, **said: object) -> "MirrorSettings":
    """From the command line, the environment and the file. Raises MissingExtra, RecipeError, InputError."""
    require_mirror("The mirror")
    from bertsmith.serving.mirror.settings import read_settings

    return read_settings(config, said)


def open_store(config: Path | None, store: str | None) -> "Store":
    """One that is there. Raises InputError otherwise."""
    settings = mirror_settings(config, store=store)
    from bertsmith.serving.mirror.store import Store

    return Store(settings.store, create=False)
