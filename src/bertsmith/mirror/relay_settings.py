"""What every relay has to be told: where calls go, and where it listens."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from bertsmith.errors import RecipeError
from bertsmith.mirror.formats.registry import find_formats
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.serving.settings import LONGEST_DRAIN
from bertsmith.validation import Strict

_UPSTREAMS = ("upstream", "openai_base_url", "anthropic_base_url", "systemone_base_url")


class RelaySettings(Strict):
    """`upstream` takes what no other address is for; each is what the application's client had as its base
    URL. An upstream that sends nothing for `upstream_timeout_seconds` is given up. A relay that stops has
    `drain_seconds` for all that was begun. `format` names wire formats of the user's own.
    """

    upstream: str | None = None
    openai_base_url: str | None = None
    anthropic_base_url: str | None = None
    systemone_base_url: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(8100, ge=0, le=65535)
    upstream_timeout_seconds: float = Field(600, gt=0)
    drain_seconds: float = Field(30, ge=1, le=LONGEST_DRAIN)
    log_requests: bool = True
    format: tuple[str, ...] = ()

    @field_validator("format", mode="before")
    @classmethod
    def _names(cls, given: object) -> object:
        return given.replace(",", " ").split() if isinstance(given, str) else given

    @property
    def formats(self) -> tuple[WireFormat, ...]:
        """Those, and ours. Raises InputError for one that isn't there."""
        return find_formats(self.format)

    @field_validator(*_UPSTREAMS)
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        except ValueError:
            is_right = False
        if not is_right or parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "expected an address such as https://api.openai.com/v1, without a name, a password or a query"
            )
        return url.rstrip("/")


def require_upstream(settings: RelaySettings, command: str) -> None:
    """Raises RecipeError where there is nothing to relay to."""
    if all(getattr(settings, name) is None for name in _UPSTREAMS):
        raise RecipeError(
            "There is nothing to relay to. Say what the application's base URL was: "
            f"{command} --upstream https://api.openai.com/v1"
        )
