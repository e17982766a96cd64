"""`bertsmith serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from bertsmith.cli.options import Flag, given

_LIMITS = Group("Limits", help="How much a request may ask for, and how much may wait.")


@Parameter(name="*")
@dataclass(frozen=True)
class Listening:
    """Where the service listens, and to whom.

    Parameters
    ----------
    host
        The address to listen on: 127.0.0.1, this machine alone, unless said.
    port
        8000 unless said; 0 takes a free one.
    workers
        Processes that share the cores: 1 unless said.
    keys_file
        Lines of NAME KEY: who may ask. Without it everybody who reaches the address.
    page
        Offer the page at /.
    log_requests
        Write a line for each request.
    log_texts
        Write the bodies of requests to the log.
    drain_seconds
        How long a stopping service may go on with what it accepted.
    drain_delay
        Seconds between the readiness turning red and the socket closing, for a load balancer to notice.
    """

    host: str | None = None
    port: int | None = None
    workers: int | None = None
    keys_file: Path | None = None
    page: bool | None = None
    log_requests: bool | None = None
    log_texts: bool | None = None
    drain_seconds: float | None = None
    drain_delay: float | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class Limits:
    """How much is taken of a request, and of all that wait.

    Parameters
    ----------
    timeout_ms
        The most that a request may take, waiting included: 10,000 unless said. Requests may ask for less.
    max_body_bytes
        Of a request.
    max_inputs
        Texts of a request.
    max_input_tokens
        Tokens of one text, windows included.
    max_request_tokens
        Tokens of all texts of a request.
    queue_tokens
        Tokens that may wait at a time.
    batch_tokens
        Tokens that a core computes together.
    """

    timeout_ms: float | None = None
    max_body_bytes: int | None = None
    max_inputs: int | None = None
    max_input_tokens: int | None = None
    max_request_tokens: int | None = None
    queue_tokens: int | None = None
    batch_tokens: int | None = None


def serve(
    models: Annotated[list[str], Parameter(negative="")] = [],  # noqa: B006  cyclopts copies it
    /,
    *,
    config: Path | None = None,
    listening: Listening | None = None,
    limits: Annotated[Limits | None, Parameter(group=_LIMITS)] = None,
    show_settings: Flag = False,
) -> None:
    """Serve models over HTTP: predictions, vectors, re-ranking, search, and a page to try them.

    POST /v1/NAME asks a model; the clients of OpenAI, Cohere, Hugging Face and others find their own
    routes; a page to try the models is at /. Every setting may stand in a TOML file (--config) or in the
    environment, as BERTSMITH_SERVE_PORT; what is said here goes first.

    Parameters
    ----------
    models
        Folders, aliases such as minilm, or indexes. NAME=FOLDER says what clients call it.
    config
        A TOML file with the settings.
    show_settings
        Print all settings as JSON and stop.

    Examples
    --------
    bertsmith serve minilm

    bertsmith serve runs/intents/model names=runs/conll/model --port 9000

    bertsmith serve --config serving.toml --host 0.0.0.0 --keys-file keys.txt
    """
    from bertsmith.errors import require
    from bertsmith.serving.settings import read_settings

    settings = read_settings(models, config, given(listening, limits))
    if show_settings:
        print(settings.model_dump_json(indent=2))
        return
    for module in ("fastapi", "uvicorn", "prometheus_client", "orjson"):
        require(module, "serving", "Serving")
    from bertsmith.serving.server import serve as run

    run(settings)
