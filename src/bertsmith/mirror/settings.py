"""The settings of a mirror, from the command line, the environment (BERTSMITH_MIRROR_…) or a TOML file, and
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
    """The settings of any relay: a mirror or a guard.

    The four addresses are what the application's client had as its base URL; `upstream` gets all calls that
    none of the others is for. An upstream that sends nothing for `upstream_timeout_seconds` is given up. A
    relay that stops has `drain_seconds` to finish the calls under way. `format` names the user's own wire
    formats as module:Class.
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
    def _split_names(cls, value: object) -> object:
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @property
    def formats(self) -> tuple[WireFormat, ...]:
        """The user's own wire formats, then the built-in ones. Raises InputError for one that can't be
        imported.
        """
        return find_formats(self.format)

    @field_validator(*_UPSTREAMS)
    @classmethod
    def _check_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        except ValueError:
            is_valid = False
        if not is_valid or parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "expected an address such as https://api.openai.com/v1, without a name, a password or a query"
            )
        return url.rstrip("/")


def require_upstream(settings: RelaySettings, command: str) -> None:
    """Raises RecipeError if the settings name no upstream; its message shows how to start `command`
    with one.
    """
    if all(getattr(settings, name) is None for name in _UPSTREAMS):
        raise RecipeError(
            "There is nothing to relay to. Say what the application's base URL was: "
            f"{command} --upstream https://api.openai.com/v1"
        )


class PriceSettings(Strict):
    """Prices in one currency: of a `call`, or of a million input and output tokens, and the cost of an
    `error`: an answer that differs from the LLM's.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    call: float | None = Field(None, ge=0)
    million_input_tokens: float = Field(0, ge=0)
    million_output_tokens: float = Field(0, ge=0)
    error: float | None = Field(None, ge=0)


class MirrorSettings(RelaySettings):
    """The settings of a mirror.

    `store` is a file or postgresql://…. `redact` names built-in rules of redaction, `patterns` has the user's
    own regular expressions by name. Calls older than `retention_days` are deleted. A body of more than
    `max_recorded_bytes` is relayed but not recorded; up to `queue_bytes` of calls may wait to be stored.

    With `auto` the mirror trains students and promotes them by itself. It trains from `train_after` calls on,
    into the folder `students`, with `bertsmith mirror train` and `train_options`. A student may differ from
    the LLM in at most `epsilon` of its answers, with probability 1 - `delta`. Before the first training, from
    `forecast_after` calls on (0: never), it forecasts what a student could answer. After a change of the
    prompt or the model up to `replay_calls` recorded inputs are asked again, two beside each call. Shadow
    lasts for at least `shadow_calls` comparisons; canary for at least `canary_calls`, while the student
    answers `canary_share` of the calls it is sure of. `audit_share` of the student's answers are compared
    with the LLM's. A student that takes longer than `answer_seconds` leaves the call to the LLM. `seed` makes
    random draws repeatable.

    The page at /bertsmith/ is shown on this machine only, or with `page_keys_file` to everyone who has a key;
    keys of admins may change modes. `page_texts` shows texts of calls on it.
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
    forecast_after: int = Field(50, ge=0)
    replay_calls: int = Field(800, ge=0)
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
    def _check_rules(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in BUILT_IN:
                raise ValueError(f"there is no rule {name!r}; there are {', '.join(BUILT_IN)}, and patterns")
        return names

    @property
    def redactor(self) -> Redactor:
        """A redactor with these rules and patterns. Raises RecipeError for an invalid pattern."""
        return Redactor(self.redact, self.patterns)


def read_settings(
    config: Path | None, options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> MirrorSettings:
    """Reads a mirror's settings. The command line's `options` override the environment, and the environment
    overrides the `config` file.

    Raises RecipeError that names the key of an invalid value, and InputError if the file can't be read.
    """
    values = gather(MirrorSettings, ENVIRONMENT, config, options, environment)
    if isinstance(values.get("redact"), str):
        values["redact"] = values["redact"].replace(",", " ").split()
    settings = check(MirrorSettings, values, str(config) if config else "the settings of the mirror")
    settings.redactor.begin_call()  # reports an invalid pattern before anything is started
    return settings
