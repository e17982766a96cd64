"""The guard as an ASGI application, and `bertsmith mirror guard`: a relay that judges what goes through.

GET /bertsmith/health   200 while it relays; 503 on its way out
GET /bertsmith/status   decisions counted, and how long they take

An answer that is judged is held back until it is whole, a stream too. x-bertsmith-guard says what was
decided.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from starlette.types import Receive, Scope, Send

from bertsmith.mirror.call import NotMirrored
from bertsmith.mirror.formats.registry import USUAL, format_of
from bertsmith.mirror.guard.guarded_texts import GuardedTexts, answer_texts, request_texts
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
    meaning_of,
    of_this_connection,
    sent_on,
)
from bertsmith.serving import LOG
from bertsmith.serving.http_server import listening

_CONNECT_SECONDS = 10.0
_HEADER = b"x-bertsmith-guard"
_NOT_IN_A_HEADER = re.compile(r"[^ -~\xa0-\xff]")  # a label may have line breaks
_ASKS_NO_LLM = ("GET", "HEAD", "OPTIONS", "DELETE")


class GuardApp(RelayApp):
    """What goes through is judged by `judge`."""

    def __init__(self, settings: GuardServerSettings, judge: GuardJudge) -> None:
        self.settings, self.judge = settings, judge
        settings.require_labels(judge.labels)
        self.log = AuditLog(Path(settings.log), with_texts=settings.log_texts)
        self.formats = settings.formats
        self.upstreams = Upstreams(settings, self.formats)
        self.connections = Connections(_CONNECT_SECONDS, settings.upstream_timeout_seconds)

    async def relay_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Where the policy lets it through."""
        await _GuardedCall(self, scope, receive, send).run()

    async def start(self) -> None:
        """The judge is warm already."""

    async def stop(self) -> None:
        """The connections, the model's threads, the log."""
        await self.connections.close()
        self.judge.close()
        LOG.info("stopped", extra={"facts": {"message": "stopped", **self.log.facts()}})
        self.log.close()

    def facts(self) -> dict[str, object]:
        """Of the log."""
        return self.log.facts()


class _GuardedCall:
    """One request on its way through. `said` is what was decided so far, by side."""

    def __init__(self, app: GuardApp, scope: Scope, receive: Receive, send: Send) -> None:
        self.app, self.scope, self.send = app, scope, send
        self.form = format_of(scope["method"], scope["path"], app.formats)
        # Answers that the provider keeps, as of requests in the background, are fetched by its path or below.
        paths = [f"{each.PATH}/" for each in app.formats]
        self.is_kept = scope["method"] == "GET" and any(path in f"{scope['path']}/" for path in paths)
        self.body = RequestBody(receive, app.settings.max_judged_bytes)
        self.call = uuid.uuid4().hex
        self.said: dict[str, GuardVerdict] = {}

    @property
    def is_other(self) -> bool:
        """Whether it changes something by a path of which neither side can be judged."""
        return self.form is None and self.scope["method"] not in _ASKS_NO_LLM

    @property
    def header(self) -> tuple[bytes, bytes]:
        """request=allow; response=review; label=toxic; probability=0.9312"""
        parts = [f"{side}={each.action}" for side, each in self.said.items()]
        worst = max(self.said.values(), key=lambda each: ACTIONS.index(each.action), default=None)
        if worst is not None and worst.action != ALLOW and worst.label:
            parts += [f"label={worst.label}", f"probability={worst.probability:.4f}"]
        if reason := next((each.reason for each in self.said.values() if each.reason), ""):
            parts.append(f"reason={reason}")
        said = "; ".join(parts or ["not-judged"])
        return _HEADER, _NOT_IN_A_HEADER.sub("?", said).encode("latin-1")

    async def run(self) -> None:
        """From the request to the end of the answer, or until the client goes away."""
        work = asyncio.ensure_future(self._run())
        watching = asyncio.ensure_future(self.body.client_gone())
        try:
            await asyncio.wait({work, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    async def _run(self) -> None:
        target = self.app.upstreams.target(
            self.scope["raw_path"], self.scope["query_string"], dict(self.scope["headers"])
        )
        if target is None:
            await self._refuse(404, "This guard has no upstream for this path.", "no_upstream")
            return
        try:
            content = await self.body.begin(whole=True)
            settings, read = self.app.settings, self._read_request(content)
            if await self._is_blocked("request", settings.request, read):
                return
            if self.is_other and await self._is_blocked("response", settings.response, read):
                return
            await self._pass(target, content)
        except ClientGone:
            return
        except FAILED as error:
            status, said, code = meaning_of(error)
            await self._refuse(status, said, code)

    def _read_request(self, content: bytes | None) -> Callable[[], GuardedTexts]:
        def read() -> GuardedTexts:
            if self.is_other:
                raise NotMirrored("other-path")
            if self.form is None:
                return GuardedTexts([])
            if content is None or len(content) > self.app.settings.max_judged_bytes:
                raise NotMirrored("too-large")
            if dict(self.scope["headers"]).get(b"content-encoding"):
                raise NotMirrored("encoding")
            return request_texts(self.form, content)

        return read

    async def _is_blocked(
        self, side: str, policy: SidePolicy | None, read: Callable[[], GuardedTexts]
    ) -> bool:
        """Judges, writes it down, and answers where it is blocked."""
        if policy is None:
            return False
        is_open, guarded, verdict = self.app.settings.fail == "open", GuardedTexts([]), GuardVerdict("allow")
        try:
            guarded = await asyncio.to_thread(read)  # which takes seconds for 300,000 strings of JSON
            if is_open or not guarded.reason:
                verdict = await self.app.judge.judge(guarded.texts, policy)
            reason = guarded.reason
        except NotMirrored as found:
            reason = found.reason
        except CantJudge as found:
            reason, verdict = found.reason, GuardVerdict("allow", milliseconds=found.milliseconds)
        # An image passes, and a text beside it is judged all the same.
        if reason and verdict.action == "allow":
            verdict = replace(verdict, action="allow" if is_open else "block", reason=reason)
        self.said[side] = verdict
        name = "other" if self.form is None else self.form.NAME
        self.app.log.write(side, name, self.call, verdict, guarded.texts)
        if verdict.action != "block":
            return False
        why = "could not be judged" if verdict.reason else "was blocked by this application's policy"
        await self._refuse(403, f"The {side} {why}.", "blocked_by_policy")
        return True

    async def _pass(self, target: Target, content: bytes | None) -> None:
        app, policy = self.app, self.app.settings.response
        is_judged = policy is not None and (self.form is not None or self.is_kept)
        answer = await app.connections.ask(
            self.scope["method"],
            target.url,
            sent_on(self.scope["headers"], target.host, narrow=is_judged),
            self.body if content is None else content,
        )
        try:
            if is_judged:
                await self._judged(answer, policy, content)
            else:
                await self._on(answer, (), answer.pieces())
        finally:
            await answer.close()

    async def _judged(self, answer: UpstreamAnswer, policy: SidePolicy | None, content: bytes | None) -> None:
        """Held back until it is whole, an error too: some quote the model. `content` is the request."""
        pieces, size, most = list[bytes](), 0, self.app.settings.max_judged_bytes
        coming = answer.pieces()
        async for piece in coming:
            pieces.append(piece)
            size += len(piece)
            if size > most:
                break

        def read() -> GuardedTexts:
            if size > most:
                raise NotMirrored("too-large")
            if 300 <= answer.status < 400 and answer.header(b"location"):
                raise NotMirrored("redirect")  # the client would go around this guard
            return answer_texts(
                None if self.is_kept else content or b"",
                b"".join(pieces),
                answer.header(b"content-encoding"),
                is_stream="event-stream" in answer.header(b"content-type").lower(),
                is_error=answer.status != 200,
                largest=most,
                form=self.form or USUAL,
            )

        if await self._is_blocked("response", policy, read):
            return
        await self._on(answer, pieces, coming)

    async def _on(
        self, answer: UpstreamAnswer, pieces: Iterable[bytes], coming: AsyncIterator[bytes]
    ) -> None:
        """What has come, and the rest as it comes."""
        dropped = of_this_connection(answer.headers) | {_HEADER}
        headers = [(name, value) for name, value in answer.headers if name not in dropped]
        start = {"type": "http.response.start", "status": answer.status, "headers": [*headers, self.header]}
        await self.send(start)
        for piece in pieces:
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        try:
            async for piece in coming:
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        except FAILED as error:
            LOG.warning("the upstream's answer ended too early: %s", type(error).__name__)
            return
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, status: int, said: str, code: str) -> None:
        """In the protocol's envelope."""
        form = self.form or USUAL
        await send_json(self.send, status, form.error_body(said, code), self.header)


def serve_guard(settings: GuardServerSettings) -> None:
    """Serves until a signal comes. Raises RecipeError without an upstream and for labels that the model
    doesn't have, ModelError for the model, InputError for an address or a log that can't be used.
    """
    require_upstream(settings, "bertsmith mirror guard --policy policy.toml")
    with listening(settings.host, settings.port) as listener:
        app = GuardApp(settings, GuardJudge(settings.model, settings.judge_seconds))
        told = settings.model_dump(mode="json")
        run(settings, app, listener, doing="guarding", into=f"deciding into {settings.log}", told=told)
