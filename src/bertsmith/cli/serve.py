"""`bertsmith serve`: answers HTTP requests with models and indexes. The service itself is in serving/."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from bertsmith.cli.options import Flag, collect_options
from bertsmith.errors import require

_LIMITS = Group("Limits", help="How much a request may ask for, and how much may wait.")


@Parameter(name="*")
@dataclass(frozen=True)
class ListeningOptions:
    """Where the service listens, and to whom.

    Parameters
    ----------
    host
        Address to listen on. Default: 127.0.0.1, reached from this machine alone.
    port
        Default: 8000; 0 takes a free one.
    uds
        A Unix socket to listen on, in place of host and port. Its owner and group may ask.
    tls_cert
        A PEM file with a certificate, and those that it rests on: serve https. Read again at SIGHUP.
    tls_key
        The PEM file of the certificate's key.
    root_path
        A prefix such as /bert, under which a proxy offers the service.
    trusted_proxies
        Addresses and networks, separated by commas, whose X-Forwarded-Proto, -Host and -Prefix are believed.
        Default: 127.0.0.1,::1.
    cors_origins
        Origins, separated by commas, whose web pages may ask, such as https://app.example.com; * with
        --keys-file: all.
    workers
        Processes, which share the cores. Default: 1.
    pid_file
        A file for the number of the service's process, there while it runs: kill -HUP "$(cat FILE)" has it
        open its models again.
    keys_file
        A file with a line NAME KEY for each client that may ask. Without it, everybody who reaches the
        address may.
    page
        Offer a page at /, to try the models. On by default.
    log_requests
        Write a line to the log for each request. On by default.
    log_texts
        Write the bodies of requests to the log. Off by default.
    drain_seconds
        Seconds that a stopping service may take to finish what it accepted. Default: 30.
    drain_delay
        Seconds between readiness turning red and the socket closing, for a load balancer to notice. Default:
        0.
    """

    host: str | None = None
    port: int | None = None
    uds: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    root_path: str | None = None
    trusted_proxies: str | None = None
    cors_origins: str | None = None
    workers: int | None = None
    pid_file: Path | None = None
    keys_file: Path | None = None
    page: bool | None = None
    log_requests: bool | None = None
    log_texts: bool | None = None
    drain_seconds: float | None = None
    drain_delay: float | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class LimitOptions:
    """Limits on one request, and on all requests that wait.

    Parameters
    ----------
    timeout_ms
        Milliseconds that a request may take, waiting included. A request may ask for less. Default: 10000.
    max_body_bytes
        Bytes per request. Default: 2000000.
    max_inputs
        Texts per request. Default: 2048.
    max_input_characters
        Characters per text, however few of them the model reads. Default: 1000000.
    max_input_tokens
        Tokens per text, all its windows together. Default: 8192.
    max_request_tokens
        Tokens of all texts in a request. Default: 300000.
    queue_tokens
        Tokens that may wait at once. Default: 1000000.
    batch_tokens
        Tokens that a core computes together. By default 384; on a GPU 32768.
    """

    timeout_ms: float | None = None
    max_body_bytes: int | None = None
    max_inputs: int | None = None
    max_input_characters: int | None = None
    max_input_tokens: int | None = None
    max_request_tokens: int | None = None
    queue_tokens: int | None = None
    batch_tokens: int | None = None


def serve(
    models: Annotated[list[str], Parameter(negative="")] = [],  # noqa: B006  cyclopts copies it
    /,
    *,
    config: Path | None = None,
    task: str | None = None,
    routes: str | None = None,
    listening: ListeningOptions | None = None,
    limits: Annotated[LimitOptions | None, Parameter(group=_LIMITS)] = None,
    show_settings: Flag = False,
) -> None:
    """Serve models over HTTP: predictions, vectors, re-ranking, search, and a page to try them.

    POST /v1/NAME asks a model. Clients of OpenAI, Cohere, Hugging Face and others find the routes that they
    know. The page is at /. You can also give every setting in a TOML file (--config) or in the environment
    (BERTSMITH_SERVE_PORT and so on). The command line wins.

    Parameters
    ----------
    models
        Folders, aliases such as minilm, or indexes. NAME=FOLDER chooses the name that clients use. Of a
        folder of models or runs, all are served.
    config
        A TOML file with the settings.
    task
        For models with a task of your own: package.module:Class.
    routes
        Routes of your own, as package.module:PROTOCOL; several, separated by commas. See
        docs/add-a-format-or-route.md.
    show_settings
        Print all settings as JSON and stop.

    Examples
    --------
    bertsmith serve minilm

    bertsmith serve runs/intents/model names=runs/conll/model --port 9000

    bertsmith serve --config serving.toml --host 0.0.0.0 --keys-file keys.txt
    """
    if hasattr(signal, "SIGHUP"):  # it reloads the models: nothing to do until one is open
        signal.signal(signal.SIGHUP, lambda *_: None)
    from bertsmith.serving.settings import read_settings

    settings = read_settings(
        models, config, collect_options(listening, limits) | {"task": task, "routes": routes}
    )
    if show_settings:
        print(settings.model_dump_json(indent=2))
        return
    for module in ("fastapi", "uvicorn", "prometheus_client", "orjson"):
        require(module, "serving", "Serving")
    from bertsmith.serving.serve import serve as run

    run(settings)
