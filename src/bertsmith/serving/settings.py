"""The settings of a service, from the command line, BERTSMITH_SERVE_… in the environment, or a TOML file."""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from bertsmith.errors import InputError, RecipeError
from bertsmith.validation import Listed, Strict, check

ENVIRONMENT = "BERTSMITH_SERVE_"
LONGEST_NAME = 128  # characters
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*){0,7}")
PREFIX = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
# As browsers send it: in small letters, without the scheme's usual port.
_ORIGIN = re.compile(
    r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://"
    r"(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::\d{1,5})?"
)
LONGEST_DRAIN = 86_400  # seconds: uvicorn takes a whole number, which infinity is not


class ModelSettings(Strict):
    """One model to serve. `path` is a folder, an alias such as minilm, or an index; `name` is what clients
    call it. `task`, written package.module:Class, is needed for a model whose task is a class of your own.
    """

    name: str
    path: str
    compute_dtype: Literal["float32", "int16", "int8"] | None = None
    task: str | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
            raise ValueError(
                f"expected up to {LONGEST_NAME} letters, digits, '.', '_' and '-', each part after '/' "
                "beginning with a letter or a digit; to give a model a name of your own write NAME=FOLDER"
            )
        return name


class ServingSettings(Strict):
    """The settings of a service.

    `task` is the default for models that name none. `routes` name the user's own protocols, each as
    package.module:PROTOCOL. `timeout_ms` is the longest time that a request may ask for, and the default.

    One request may have `max_inputs` texts, `max_input_characters` in a text (counted before truncation),
    `max_input_tokens` in a text with its overlapping windows, and `max_request_tokens` in all. At most
    `queue_tokens` wait at a time. `batch_tokens` are computed together on a core; None: what suits the
    device.

    When it stops, a service reports that it isn't ready for `drain_delay` seconds, closes its socket, and has
    `drain_seconds` to answer what it accepted. `pid_file` holds its process id while it runs.
    """

    models: tuple[ModelSettings, ...] = Field((), min_length=1)
    """What is served: `["minilm", "intents=runs/intents/model"]`."""
    task: str | None = None
    """For models with a task of your own: `package.module:Class`."""
    routes: Listed[str] = ()
    """Routes of your own, as `package.module:PROTOCOL`; on the command line separated by commas."""
    host: str = "127.0.0.1"
    """The address to listen on: this machine alone."""
    port: int = Field(8000, ge=0, le=65535)
    """0 takes a free one."""
    uds: Path | None = None
    """A Unix socket to listen on, in place of `host` and `port`; its owner and group may ask."""
    tls_cert: Path | None = None
    """A PEM file with the certificate, and those that it rests on: https in place of http. Read again at
    SIGHUP."""
    tls_key: Path | None = None
    """The PEM file of its key."""
    root_path: str = ""
    """A prefix such as `/bert`, under which a proxy offers the service."""
    trusted_proxies: Listed[str] = ("127.0.0.1", "::1")
    """Addresses and networks whose `X-Forwarded-Proto`, `-Host` and `-Prefix` are believed."""
    cors_origins: Listed[str] = ()
    """Origins, such as `https://app.example.com`, whose web pages may ask; `*`, with keys, are all."""
    workers: int = Field(1, ge=1, le=256)
    """Processes that share the cores; more than one only if Python itself is the limit."""
    pid_file: Path | None = None
    """A file for the number of the service's process, while it runs. Each service has its own: one that
    another has is refused at the start."""
    keys_file: Path | None = None
    """Who may ask."""
    timeout_ms: float = Field(10_000, gt=0, le=3_600_000)
    """The longest that a request may take, waiting included."""
    max_body_bytes: int = Field(2_000_000, ge=1024)
    """Bytes of a request."""
    max_inputs: int = Field(2048, ge=1)
    """Texts of a request."""
    max_input_characters: int = Field(1_000_000, ge=1024)
    """Characters of a text, however few of them are read."""
    max_input_tokens: int = Field(8192, ge=8)
    """Tokens of a text, overlaps of windows included."""
    max_request_tokens: int = Field(300_000, ge=8)
    """Tokens of all texts of a request."""
    queue_tokens: int = Field(1_000_000, ge=8)
    """Tokens that may wait; if several keys wait, each has an equal share, and all together at most twice as
    many."""
    batch_tokens: int | None = Field(None, ge=8)
    """Tokens computed together by a core: 384, and 32,768 on a GPU."""
    drain_seconds: float = Field(30, ge=1, le=LONGEST_DRAIN)
    """Time to finish what was accepted, when the service stops."""
    drain_delay: float = Field(0, ge=0, le=600)
    """Seconds for which readiness is red before the socket closes."""
    log_texts: bool = False
    """Bodies in the log."""
    log_requests: bool = True
    """A line for each request."""
    page: bool = True
    """The page at `/`."""

    @field_validator("root_path")
    @classmethod
    def _check_root_path(cls, prefix: str) -> str:
        prefix = prefix.rstrip("/")
        if prefix and not PREFIX.fullmatch(prefix):
            raise ValueError("expected a prefix such as /bert, of letters, digits, '_', '-', '~' and '.'")
        return prefix

    @field_validator("trusted_proxies")
    @classmethod
    def _check_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        addresses = tuple(filter(None, addresses))
        for address in addresses:
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError:
                raise ValueError(
                    f"{address!r} is no address or network; expected some such as 10.0.0.5 or 10.0.0.0/8"
                ) from None
        return addresses

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        origins = tuple(filter(None, origins))
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin; expected some as a browser sends them, such as "
                    "https://app.example.com, without a path"
                )
        return origins

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("cert", "key") if self.tls_key is None else ("key", "cert")
            raise ValueError(f"tls_{given} needs tls_{missing}: a certificate and its key, each a PEM file")
        if "*" in self.cors_origins and self.keys_file is None:
            raise ValueError(
                "cors_origins = * needs keys_file: without keys every page that a browser opens could ask. "
                "Name the origins, such as https://app.example.com"
            )
        return self

    @field_validator("models")
    @classmethod
    def _check_unique_names(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [model.name for model in models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two models are called {name!r}: name one of them NAME=PATH")
        return models


def read_settings(
    models: list[str],
    config: Path | None,
    given: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> ServingSettings:
    """Reads and validates the settings: the command line overrides the environment, which overrides the file.

    `models` are PATH or NAME=PATH, and PATH may be a folder of models; the others are the arguments of
    `gather`. Raises RecipeError naming the key, InputError for a file that can't be read.
    """
    values = gather(ServingSettings, ENVIRONMENT, config, given, environment)
    if isinstance(values.get("models"), str):
        values["models"] = values["models"].split()
    if models:
        values["models"] = models
    if not values.get("models"):
        raise RecipeError("There is nothing to serve. Name a model: bertsmith serve minilm, or NAME=FOLDER.")
    values["models"] = [
        _parse_model(model, values.get("task")) for given in values["models"] for model in _list_models(given)
    ]
    return check(ServingSettings, values, str(config) if config else "the settings of the service")


def _list_models(given: Any) -> list[Any]:
    """What was given or, of a path to a folder of models and runs, the paths of those."""
    folder = Path(given) if isinstance(given, str) else None
    if folder is None or not folder.is_dir() or _is_model(folder) or _is_model(folder / "model"):
        return [given]
    inside = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    places = [path if _is_model(path) else path / "model" for path in inside]
    return [str(place) for place in places if _is_model(place)] or [given]


def _is_model(path: Path) -> bool:
    """Whether a folder has the settings of a model, an adapter or an index."""
    names = "config.json", "bertsmith.json", "modules.json", "adapter_config.json", "index.json"
    return any((path / name).is_file() for name in names)


def _parse_model(model: Any, task: Any) -> Any:
    """The table of one model, from PATH or NAME=PATH or a TOML table; `task` is the default for its task."""
    if isinstance(model, dict):
        return {"task": task} | model
    if not isinstance(model, str):
        return model
    name, mark, path = model.partition("=")
    # A folder may have = in its name, and a name a slash: what is there decides.
    is_folder = "/" in name and (Path(model).exists() or ("/" in path and not Path(path).exists()))
    if not mark or is_folder:
        return {"name": usual_name(model), "path": model, "task": task}
    return {"name": name, "path": path, "task": task}


def usual_name(path: str) -> str:
    """The default name of a model: the folder's own name, or NAME of runs/NAME/model."""
    parts = [part for part in Path(path).parts if part not in ("/", "..", ".")]
    name = parts[-1] if parts else path
    return parts[-2] if name == "model" and len(parts) > 1 else name


def gather(
    kind: type[BaseModel],
    prefix: str,
    config: Path | None,
    given: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """The values for the settings class `kind`, by name, not yet validated.

    `config` is a TOML file or None. `given` holds the command line's values, None for an option that was not
    used. In the environment a setting is called `prefix` and its name in capitals. Raises InputError for a
    file that can't be read.
    """
    values: dict[str, Any] = {}
    if config is not None:
        expected = "Expected a TOML file with the service's settings."
        try:
            values = tomllib.loads(config.read_text("utf-8"))
        except FileNotFoundError:
            raise InputError(f"{config} is not there. {expected}") from None
        except OSError as error:
            raise InputError(f"{config} can't be read: {error.strerror}. {expected}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{config} is no TOML: {error}.") from None
    for name in kind.model_fields:
        if (value := environment.get(prefix + name.upper())) is not None:
            values[name] = value
    return values | {name: value for name, value in given.items() if value is not None}
