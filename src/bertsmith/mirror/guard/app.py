"""`bertsmith mirror guard`: an ASGI application that relays requests and judges their texts with a
classifier.

GET /bertsmith/health   200 while it relays; 503 while it stops
GET /bertsmith/status   counts of decisions, and how long they take

An answer that is judged is held back until it is complete, also a stream. The header x-bertsmith-guard tells
the decisions.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from starlette.types import Receive, Scope, Send

from bertsmith.mirror.call import NotMirrored
from bertsmith.mirror.formats.registry import DEFAULT_FORMAT, find_format
from bertsmith.mirror.guard.guarded_texts import GuardedTexts, collect_answer_texts, collect_request_texts
from bertsmith.mirror.guard.judge import AuditLog, CantJudge, GuardJudge, GuardVerdict
from bertsmith.mirror.guard.policy import ACTIONS, ALLOW, GuardServerSettings, SidePolicy
from bertsmith.mirror.relay_server import ClientGone, RelayApp, RequestBody, run, send_json
from bertsmith.mirror.settings import require_upstream
from bertsmith.mirror.upstreams import (
    FAILED,
    Connections,
    Target,
    UpstreamAnswer,
    Upstreams,
    connection_headers,
    describe_failure,
    forwarded_headers,
)
from bertsmith.serving import LOG
from bertsmith.serving.http_server import bind_socket

_CONNECT_SECONDS = 10.0
_HEADER = b"x-bertsmith-guard"
_INVALID_IN_HEADER = re.compile(r"[^ -~\xa0-\xff]")  # a label may have line breaks
_READ_METHODS = ("GET", "HEAD", "OPTIONS", "DELETE")


class GuardApp(RelayApp):
    """The guard. `judge` classifies the texts that go through; the settings' policy decides."""

    def __init__(self, settings: GuardServerSettings, judge: GuardJudge) -> None:
        self.settings, self.judge = settings, judge
        settings.require_labels(judge.labels)
        self.log = AuditLog(Path(settings.log), with_texts=settings.log_texts)
        self.formats = settings.formats
        self.upstreams = Upstreams(settings, self.formats)
        self.connections = Connections(_CONNECT_SECONDS, settings.upstream_timeout_seconds)

    async def relay_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judges a request, relays it, and judges its answer, by the policy."""
        await _GuardedCall(self, scope, receive, send).run()

    async def start(self) -> None:
        """Does nothing: the judge has loaded its model already."""

    async def stop(self) -> None:
        """Closes the connections, the judge and the audit log."""
        await self.connections.close()
        self.judge.close()
        LOG.info("stopped", extra={"facts": {"message": "stopped", **self.log.facts()}})
        self.log.close()

    def facts(self) -> dict[str, object]:
        """The audit log's counts, for /bertsmith/status."""
        return self.log.facts()


class _GuardedCall:
    """One request on its way through the guard. `verdicts` holds them by side: request or response."""

    def __init__(self, app: GuardApp, scope: Scope, receive: Receive, send: Send) -> None:
        self.app, self.scope, self.send = app, scope, send
        self.form = find_format(scope["method"], scope["path"], app.formats)
        # Answers that the provider stores, as for background requests, are fetched at its path or below.
        paths = [f"{form.PATH}/" for form in app.formats]
        self.is_stored = scope["method"] == "GET" and any(path in f"{scope['path']}/" for path in paths)
        self.body = RequestBody(receive, app.settings.max_judged_bytes)
        self.call = uuid.uuid4().hex
        self.verdicts: dict[str, GuardVerdict] = {}

    @property
    def is_other(self) -> bool:
        """Whether it may reach an LLM on a path of an unknown format, so that it can't be judged."""
        return self.form is None and self.scope["method"] not in _READ_METHODS

    @property
    def header(self) -> tuple[bytes, bytes]:
        """x-bertsmith-guard with the decisions: request=allow; response=review; label=toxic;
        probability=0.9312
        """
        parts = [f"{side}={verdict.action}" for side, verdict in self.verdicts.items()]
        worst = max(self.verdicts.values(), key=lambda verdict: ACTIONS.index(verdict.action), default=None)
        if worst is not None and worst.action != ALLOW and worst.label:
            parts += [f"label={worst.label}", f"probability={worst.probability:.4f}"]
        if reason := next((verdict.reason for verdict in self.verdicts.values() if verdict.reason), ""):
            parts.append(f"reason={reason}")
        value = "; ".join(parts or ["not-judged"])
        return _HEADER, _INVALID_IN_HEADER.sub("?", value).encode("latin-1")

    async def run(self) -> None:
        """Runs from the request to the end of the answer, or until the client goes away."""
        work = asyncio.ensure_future(self._relay())
        watching = asyncio.ensure_future(self.body.client_gone())
        try:
            await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    async def _relay(self) -> None:
        target = self.app.upstreams.target(
            self.scope["raw_path"], self.scope["query_string"], dict(self.scope["headers"])
        )
        if target is None:
            await self._refuse(404, "This guard has no upstream for this path.", "no_upstream")
            return
        try:
            content = await self.body.begin(wait_for_all=True)
            settings, read = self.app.settings, self._request_reader(content)
            if await self._is_blocked("request", settings.request, read):
                return
            if self.is_other and await self._is_blocked("response", settings.response, read):
                return
            await self._ask_upstream(target, content)
        except ClientGone:
            return
        except FAILED as error:
            await self._refuse(*describe_failure(error))

    def _request_reader(self, content: bytes | None) -> Callable[[], GuardedTexts]:
        def read() -> GuardedTexts:
            if self.is_other:
                raise NotMirrored("other-path")
            if self.form is None:
                return GuardedTexts([])
            if content is None or len(content) > self.app.settings.max_judged_bytes:
                raise NotMirrored("too-large")
            if dict(self.scope["headers"]).get(b"content-encoding"):
                raise NotMirrored("encoding")
            return collect_request_texts(self.form, content)

        return read

    async def _is_blocked(
        self, side: str, policy: SidePolicy | None, read: Callable[[], GuardedTexts]
    ) -> bool:
        """Judges one side by `policy` and logs the decision. True if it was blocked, and the client has its
        answer.

        `read` gives the texts, in a thread, and raises NotMirrored where there are none to judge.
        """
        if policy is None:
            return False
        is_open, guarded, verdict = self.app.settings.fail == "open", GuardedTexts([]), GuardVerdict("allow")
        try:
            guarded = await asyncio.to_thread(read)  # it takes seconds for 300,000 strings of JSON
            if is_open or not guarded.reason:
                verdict = await self.app.judge.judge(guarded.texts, policy)
            reason = guarded.reason
        except NotMirrored as error:
            reason = error.reason
        except CantJudge as error:
            reason, verdict = error.reason, GuardVerdict("allow", milliseconds=error.milliseconds)
        # Where `fail` is open, an image passes, and the texts beside it are judged all the same.
        if reason and verdict.action == "allow":
            verdict = replace(verdict, action="allow" if is_open else "block", reason=reason)
        self.verdicts[side] = verdict
        name = "other" if self.form is None else self.form.NAME
        self.app.log.write(side, name, self.call, verdict, guarded.texts)
        if verdict.action != "block":
            return False
        why = "could not be judged" if verdict.reason else "was blocked by this application's policy"
        await self._refuse(403, f"The {side} {why}.", "blocked_by_policy")
        return True

    async def _ask_upstream(self, target: Target, content: bytes | None) -> None:
        app, policy = self.app, self.app.settings.response
        is_judged = policy is not None and (self.form is not None or self.is_stored)
        answer = await app.connections.ask(
            self.scope["method"],
            target.url,
            forwarded_headers(self.scope["headers"], target.host, narrow=is_judged),
            self.body if content is None else content,
        )
        try:
            if is_judged:
                await self._judge_answer(answer, policy, content)
            else:
                await self._send_answer(answer, (), answer.pieces())
        finally:
            await answer.close()

    async def _judge_answer(
        self, answer: UpstreamAnswer, policy: SidePolicy | None, content: bytes | None
    ) -> None:
        """Reads the whole answer, judges it and sends it. Errors too: some quote the model. `content` is the
        request's body.
        """
        pieces, size, max_bytes = list[bytes](), 0, self.app.settings.max_judged_bytes
        remaining = answer.pieces()
        async for piece in remaining:
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                break

        def read() -> GuardedTexts:
            if size > max_bytes:
                raise NotMirrored("too-large")
            if 300 <= answer.status < 400 and answer.header(b"location"):
                raise NotMirrored("redirect")  # the client would go around this guard
            return collect_answer_texts(
                None if self.is_stored else content or b"",
                b"".join(pieces),
                answer.header(b"content-encoding"),
                is_stream="event-stream" in answer.header(b"content-type").lower(),
                is_error=answer.status != 200,
                largest=max_bytes,
                form=self.form or DEFAULT_FORMAT,
            )

        if await self._is_blocked("response", policy, read):
            return
        await self._send_answer(answer, pieces, remaining)

    async def _send_answer(
        self, answer: UpstreamAnswer, pieces: Iterable[bytes], remaining: AsyncIterator[bytes]
    ) -> None:
        """Sends the pieces that were read already, then the rest of the answer as it comes."""
        dropped = connection_headers(answer.headers) | {_HEADER}
        headers = [(name, value) for name, value in answer.headers if name not in dropped]
        start = {"type": "http.response.start", "status": answer.status, "headers": [*headers, self.header]}
        await self.send(start)
        for piece in pieces:
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        try:
            async for piece in remaining:
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        except FAILED as error:
            LOG.warning("the upstream's answer ended too early: %s", type(error).__name__)
            return
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, status: int, message: str, code: str) -> None:
        """Sends an error in the protocol's own form."""
        form = self.form or DEFAULT_FORMAT
        await send_json(self.send, status, form.error_body(message, code), self.header)


def serve_guard(settings: GuardServerSettings) -> None:
    """Serves until a signal comes. Raises RecipeError without an upstream and for labels that the model
    doesn't have, ModelError for the model, InputError for an address or a log that can't be used.
    """
    require_upstream(settings, "bertsmith mirror guard --policy policy.toml")
    with bind_socket(settings.host, settings.port) as listener:
        app = GuardApp(settings, GuardJudge(settings.model, settings.judge_seconds))
        run(
            settings,
            app,
            listener,
            activity="guarding",
            destination=f"deciding into {settings.log}",
            logged_settings=settings.model_dump(mode="json"),
        )
