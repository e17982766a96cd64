"""The same application on many machines: replicas under Ray Serve, behind a door that asks another one where
one dies.

    Ray's HTTP proxy → Door → one of the Replicas, each the whole application with its models

Ray's proxy doesn't send a request again that a dead replica had. The door does: it holds each request until
it is answered, and an answer depends on nothing but request and model. A replica that is taken away on
purpose answers first what it has.
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

_ATTEMPTS = 5  # replicas that may die of a request, or beside it
_MANY = 10_000  # requests at a time: what is too much is known by the replica's own queue
_PASSED_ON = (
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
    """What a replica answers."""

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
    """For `serve.run`. The models' paths are those of every machine.

    `replicas` have `cores` each; `autoscaling`, Ray's AutoscalingConfig as a mapping, says how many instead.
    `actor_options` are Ray's for a replica, as {"num_gpus": 1}. The host, port and workers of `settings` are
    Ray's to choose.
    """
    many: dict[str, Any] = (
        {"autoscaling_config": dict(autoscaling)} if autoscaling else {"num_replicas": replicas}
    )
    drain = {"graceful_shutdown_timeout_s": settings.drain_seconds, "graceful_shutdown_wait_loop_s": 0.5}
    replica = serve.deployment(
        Replica,
        name="Replica",
        max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": cores, **(actor_options or {})},
        **drain,
        **many,
    )
    door = serve.deployment(
        serve.ingress()(Door),
        name="Door",
        num_replicas=doors,
        max_ongoing_requests=_MANY,
        ray_actor_options={"num_cpus": 0},
        **drain,
    )
    return door.bind(settings.model_dump_json(), replica.bind(settings.model_dump_json(), cores))


class Replica:
    """The whole application, asked without a socket."""

    def __init__(self, settings_json: str, cores: float) -> None:
        torch.set_num_threads(max(1, int(cores)))
        log_to_stderr()
        settings = ServingSettings.model_validate_json(settings_json)
        # One of several, whatever number, behind a door that listens elsewhere.
        self.app = make_app(settings.model_copy(update={"workers": 2, "host": "0.0.0.0"}))
        self._lifespan = self.app.router.lifespan_context(self.app)
        self._starting = asyncio.Lock()
        self._started = False

    async def check_health(self) -> None:
        """Ray begins another replica in the place of one that doesn't compute."""
        await self._start()
        if problem := self.app.state.health.problem():
            raise RuntimeError(problem)

    async def answer(self, scope: Mapping[str, Any], body: bytes) -> Reply:
        """All of it at once: no answer here comes in parts."""
        await self._start()
        left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if left:
                return left.pop()
            await asyncio.Event().wait()  # whoever goes away cancels all of this
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
    """Reads a request wholly, within the service's limits, and has it answered by a replica."""

    def __init__(self, settings_json: str, replicas: DeploymentHandle) -> None:
        self.settings, self.replicas = ServingSettings.model_validate_json(settings_json), replicas

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return BodyReader(self._pass_on, self.settings.max_body_bytes, refuse_early)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        body = (await receive())["body"]
        facts = {name: scope[name] for name in _PASSED_ON if name in scope}
        reply: Reply | None = None
        for _ in range(_ATTEMPTS):
            pending = self.replicas.answer.remote(facts, body)
            try:
                reply = await pending
                break
            except asyncio.CancelledError:  # the client has gone
                pending.cancel()
                raise
            except (RayActorError, DeploymentUnavailableError):
                continue
        if reply is None:
            late = ServiceUnavailable("No replica could answer. Send the request again.", retry_after=1.0)
            await refuse_early(late, scope, receive, send)
            return
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        await send({"type": "http.response.body", "body": reply.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
