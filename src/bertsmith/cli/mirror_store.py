"""The store that a command of `bertsmith mirror` works on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertsmith.serving.mirror.settings import MirrorSettings
    from bertsmith.serving.mirror.store import Store

_LACKING = ("no such table", "no such column")  # SQLite's words
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


@contextmanager
def opened_store(
    config: Path | None, store: str | None, *, create: bool = False, reads: bool = False
) -> Iterator["Store"]:
    """One that is there, or is made; closed at the end. What only `reads` it waits for nobody who writes.
    Raises InputError where there is none, and where the database can't be read or written meanwhile, is
    damaged, or holds what Bertsmith never wrote.
    """
    settings = mirror_settings(config, store=store)
    from sqlalchemy.exc import DBAPIError

    from bertsmith.errors import BertsmithError, InputError
    from bertsmith.serving.mirror.database import damaged, is_damaged, lacking, locked, shown, why_refused
    from bertsmith.serving.mirror.odd_rows import odd_row
    from bertsmith.serving.mirror.store import Store

    opened = Store(settings.store, create=create, reads=reads)
    try:
        yield opened
    except DBAPIError as error:
        if is_damaged(error):
            raise damaged(opened.engine, error.orig) from None
        if (why := why_refused(error)) is None:
            raise
        if why.startswith(_LACKING):
            raise InputError(lacking(shown(settings.store), why.removeprefix("no such "))) from None
        if "is locked" in why:
            raise InputError(locked(shown(settings.store))) from None
        raise InputError(
            f"The store {shown(settings.store)} can't be read or written just now: {why}. Run this again "
            "when that is mended; what was done before it stays."
        ) from None
    except BertsmithError:
        raise
    except Exception:
        if odd := odd_row(opened.engine):
            raise InputError(
                f"The store {shown(settings.store)} holds what Bertsmith doesn't write: {odd}. Mend or "
                "delete that row, or put a copy of yours in its place. Then run this again."
            ) from None
        raise
    finally:
        opened.close()
