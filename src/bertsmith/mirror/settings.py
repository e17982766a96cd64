"""Every choice of a mirror: from the command line, from BERTSMITH_MIRROR_… in the environment, from TOML; and
those that every relay has: where calls go, and where it listens.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator

from bertsmith.errors import RecipeError
from bertsmith.mirror.formats.registry import find_formats
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.redaction import BUILT_IN, Redactor
from bertsmith.serving.settings import LONGEST_DRAIN, gather
from bertsmith.validation import Strict, check

_UPSTREAMS = ("upstream", "openai_base_url", "anthropic_base_url", "systemone_base_url")
ENVIRONMENT = "BERTSMITH_MIRROR_"
STORE = "mirror.sqlite"


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


class PriceSettings(Strict):
    """In one currency: of a `call`, or of a million tokens in and out, and of an answer that differs."""

    model_config = ConfigDict(allow_inf_nan=False)

    call: float | None = Field(None, ge=0)
    million_input_tokens: float = Field(0, ge=0)
    million_output_tokens: float = Field(0, ge=0)
    error: float | None = Field(None, ge=0)


class MirrorSettings(RelaySettings):
    """`store` is a file, or postgresql://…. `redact` names rules of ours, `patterns` has the user's own as
    regular expressions by name. Calls older than `retention_days` are deleted. A body of more than
    `max_recorded_bytes` is relayed and not recorded; `queue_bytes` of calls may wait to be stored.

    With `auto` modes rise by themselves and students are trained by themselves, from `train_after` calls on,
    into the folder `students`, by `bertsmith mirror train` with `train_options`: a student has to differ in
    at most `epsilon` of what it answers, with probability 1 - `delta`. Shadow takes at least `shadow_calls`
    comparisons, canary `canary_calls` with `canary_share` of the sure calls answered. `audit_share` of what
    is answered is put to the LLM too. A student that takes more than `answer_seconds` leaves the call to the
    LLM. `seed` makes draws repeatable.

    The page at /bertsmith/ shows itself to this machine alone; with `page_keys_file` to whoever has a key,
    and who is an admin there may change modes. Texts of calls stand on it with `page_texts`.
    """

    store: str = Field(STORE, min_length=1)
    redact: tuple[str, ...] = tuple(BUILT_IN)
    patterns: dict[str, str] = Field(default_factory=dict)
    retention_days: float | None = Field(None, gt=0)
    max_recorded_bytes: int = Field(4_000_000, ge=1024)
    queue_bytes: int = Field(64_000_000, ge=1024)
    auto: bool = False
    epsilon: float = Field(0.05, gt=0, lt=1)
    delta: float = Field(0.05, gt=0, lt=1)
    students: str = Field("students", min_length=1)
    train_after: int = Field(500, ge=1)
    train_options: tuple[str, ...] = ()
    shadow_calls: int = Field(100, ge=0)
    canary_share: float = Field(0.1, gt=0, lt=1)
    canary_calls: int = Field(100, ge=0)
    audit_share: float = Field(0.05, gt=0, le=1)
    answer_seconds: float = Field(1.0, gt=0)
    seed: int | None = None
    page_keys_file: Path | None = None
    page_texts: bool = False
    prices: PriceSettings = Field(default_factory=PriceSettings)

    @field_validator("redact")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in BUILT_IN:
                raise ValueError(f"there is no rule {name!r}; there are {', '.join(BUILT_IN)}, and patterns")
        return names

    @property
    def redactor(self) -> Redactor:
        """By these rules. Raises RecipeError."""
        return Redactor(self.redact, self.patterns)


def read_settings(
    config: Path | None, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> MirrorSettings:
    """What the command line gives goes before the environment, and that before the file.

    Raises RecipeError naming the key, InputError for a file that can't be read.
    """
    found = gather(MirrorSettings, ENVIRONMENT, config, given, environment)
    if isinstance(found.get("redact"), str):
        found["redact"] = found["redact"].replace(",", " ").split()
    settings = check(MirrorSettings, found, str(config) if config else "the settings of the mirror")
    settings.redactor.begin()  # whatever is wrong with a pattern is said before anything is begun
    return settings
