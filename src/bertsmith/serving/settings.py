"""The settings of a service, from the command line, BERTSMITH_SERVE_… in the environment, or a TOML file."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from bertsmith.errors import InputError, RecipeError
from bertsmith.validation import Listed, Strict, check

ENVIRONMENT = "BERTSMITH_SERVE_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_DRAIN = 86_400  # seconds: uvicorn takes a whole number, which infinity is not


class ModelSettings(Strict):
    """One model to serve. `path` is a folder, an alias such as minilm, or an index; `name` is what clients
    call it. `task`, written package.module:Class, is needed for a model whose task is a class of your own.
    """

    name: str
    path: str
    compute_dtype: Literal["float32", "int16"] | None = None
    task: str | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                "expected up to 64 letters, digits, '.', '_' and '-', the first a letter or a digit; "
                "to give a model a name of your own write NAME=FOLDER"
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

    `models` are PATH or NAME=PATH; the others are the arguments of `gather`. Raises RecipeError naming the
    key, InputError for a file that can't be read.
    """
    values = gather(ServingSettings, ENVIRONMENT, config, given, environment)
    if isinstance(values.get("models"), str):
        values["models"] = values["models"].split()
    if models:
        values["models"] = models
    if not values.get("models"):
        raise RecipeError("There is nothing to serve. Name a model: bertsmith serve minilm, or NAME=FOLDER.")
    values["models"] = [_parse_model(model, values.get("task")) for model in values["models"]]
    return check(ServingSettings, values, str(config) if config else "the settings of the service")


def _parse_model(model: Any, task: Any) -> Any:
    """The table of one model, from PATH or NAME=PATH or a TOML table; `task` is the default for its task."""
    if isinstance(model, dict):
        return {"task": task} | model
    if not isinstance(model, str):
        return model
    name, mark, path = model.partition("=")
    if not mark or "/" in name:  # a folder may have = in its name
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
