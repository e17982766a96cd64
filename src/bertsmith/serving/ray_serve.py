"""The same application on many machines: replicas under Ray Serve, behind a door that retries.

    Ray's HTTP proxy → Door → one of the Replicas, each the whole application with its models

If a replica dies, Ray's proxy doesn't repeat its requests. The door does: it holds each request until it is
answered. That is safe because an answer depends on nothing but the request and the model. A replica that is
removed on purpose first answers what it has accepted.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.serving.admission import BodyReader
from bertsmith.serving.app import make_app, refuse_early
from bertsmith.serving.http_server import log_to_stderr
from bertsmith.serving.refusals import ServiceUnavailable
from bertsmith.serving.settings import ServingSettings

_ATTEMPTS = 5  # replicas that may die during one request
_MOST_REQUESTS = 10_000  # that Ray passes on at a time: the replica's own queue sets the real limit
_FORWARDED = (  # the parts of an ASGI scope that a replica needs
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "headers",
    "client",
)


class Reply(NamedTuple):
    """A replica's whole HTTP response: status, headers as bytes, and body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def deployment(
    settings: ServingSettings,
    replicas: int = 1,
    *,
    autoscaling: Mapping[str, Any] | None = None,
    cores: float = 1.0,
    doors: int = 1,
    actor_options: Mapping[str, Any] | None = None,
) -> serve.Application:
    """The Ray Serve application to pass to `serve.run`. Every machine needs the models at the same paths.

    There are `replicas` of `cores` each, or as many as `autoscaling`, Ray's AutoscalingConfig as a mapping,
    decides; `doors` is the number of doors. `actor_options` are Ray's options for a replica, such as
    {"num_gpus": 1}. Ray decides host, port and processes: those of `settings` are ignored.
    """
    scale: dict[str, Any] = (
        {"autoscaling_config": dict(autoscaling)} if autoscaling else {"num_replicas": replicas}
    )
    drain = {"graceful_shutdown_timeout_s": settings.drain_seconds, "graceful_shutdown_wait_loop_s": 0.5}
    replica = serve.deployment(
        Replica,
        name="Replica",
        max_ongoing_requests=_MOST_REQUESTS,
        ray_actor_options={"num_cpus": cores, **(actor_options or {})},
        **drain,
        **scale,
    )
    door = serve.deployment(
        serve.ingress()(Door),
        name="Door",
        num_replicas=doors,
        max_ongoing_requests=_MOST_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        **drain,
    )
    return door.bind(settings.model_dump_json(), replica.bind(settings.model_dump_json(), cores))


class Replica:
    """The whole application with its models, called through Ray instead of a socket."""

    def __init__(self, settings_json: str, cores: float) -> None:
        torch.set_num_threads(max(1, int(cores)))
        log_to_stderr()
        settings = ServingSettings.model_validate_json(settings_json)
        # `workers` above 1 turns off what only the single process of a service can do; `host` is not loopback
        # because requests come from the door's machine.
        self.app = make_app(settings.model_copy(update={"workers": 2, "host": "0.0.0.0"}))
        self._lifespan = self.app.router.lifespan_context(self.app)
        self._starting = asyncio.Lock()
        self._started = False

    async def check_health(self) -> None:
        """Raises RuntimeError if the replica isn't ready, upon which Ray replaces it."""
        await self._start()
        if problem := self.app.state.health.problem():
            raise RuntimeError(problem)

    async def answer(self, scope: Mapping[str, Any], body: bytes) -> Reply:
        """The application's response to a request, given its ASGI `scope` and whole body."""
        await self._start()
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # a client that disconnects cancels the whole call
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        await self.app({**scope, "state": {}}, receive, send)
        start, *parts = sent
        return Reply(
            start["status"], list(start["headers"]), b"".join(part.get("body", b"") for part in parts)
        )

    async def _start(self) -> None:
        async with self._starting:
            if not self._started:
                await self._lifespan.__aenter__()
                self._started = True

    async def __del__(self) -> None:
        if self._started:
            await self._lifespan.__aexit__(None, None, None)


class Door:
    """The entry: reads a whole request, within the service's limits, and has a replica answer it."""

    def __init__(self, settings_json: str, replicas: DeploymentHandle) -> None:
        self.settings, self.replicas = ServingSettings.model_validate_json(settings_json), replicas

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return BodyReader(self._forward, self.settings.max_body_bytes, refuse_early)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the request to a replica, and to another one if that dies."""
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
            return
        body = (await receive())["body"]
        forwarded_scope = {name: scope[name] for name in _FORWARDED if name in scope}
        reply: Reply | None = None
        for _ in range(_ATTEMPTS):
            pending = self.replicas.answer.remote(forwarded_scope, body)
            try:
                reply = await pending
                break
            except asyncio.CancelledError:  # the client has gone
                pending.cancel()
                raise
            except (RayActorError, DeploymentUnavailableError):
                continue
        if reply is None:
            refusal = ServiceUnavailable("No replica could answer. Send the request again.", retry_after=1.0)
            await refuse_early(refusal, scope, receive, send)
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Completes ASGI's startup and shutdown messages: a door has nothing to start."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return
