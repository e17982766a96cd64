"""The settings and the store that the mirror's commands work on."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertsmith.serving.mirror.settings import MirrorSettings
    from bertsmith.serving.mirror.store import Store

_PACKAGES = ("sqlalchemy", "httpx", "orjson")


def mirror_settings(config: Path | None, **said: object) -> "MirrorSettings":
    """Raises MissingExtra, and as `read_settings`."""
    from bertsmith.errors import require

    for module in _PACKAGES:
        require(module, "mirror", "The mirror")
    from bertsmith.serving.mirror.settings import read_settings

    return read_settings(config, said)


def opened_store(settings: "MirrorSettings") -> "Store":
    """One that is there. Raises InputError."""
    from bertsmith.serving.mirror.store import Store

    return Store(settings.store, create=False)
