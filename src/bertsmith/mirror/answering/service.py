"""Routing: whether the student or the LLM answers a call. The relay asks for each call that may be mirrored.

A student answers only callers whom the LLM has answered recently, since only the provider knows whether a key
is valid. Callers are kept in memory, as salted digests. Read `MirrorService.routing` first.
"""

import hashlib
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from bertsmith.mirror.answering.open_students import StudentUnavailable, VersionStudents
from bertsmith.mirror.answering.reconciler import Reconciler
from bertsmith.mirror.call import CallRouting, CompletionRequest
from bertsmith.mirror.identity import version_id
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.settings import MirrorSettings

# The headers by which a provider or a gateway identifies a caller.
_NAMES = (
    b"authorization", b"x-api-key", b"api-key", b"ocp-apim-subscription-key", b"x-goog-api-key", b"cookie",
    b"openai-organization", b"openai-project",
)  # fmt: skip
_SECONDS = 3600.0  # until the LLM answers a caller again: keys are revoked
_MOST = 10_000  # callers


class KnownKeys:
    """The callers that the LLM has answered recently, by the headers that identify them and the query string,
    which may hold a key too.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self.seconds = seconds
        self._salt = secrets.token_bytes(16)
        self._until: dict[bytes, float] = {}

    def has(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> bool:
        """Whether the LLM has answered this caller within the last `seconds`."""
        return self._until.get(self._digest(headers, query), 0.0) > time.monotonic()

    def note(self, headers: Mapping[bytes, bytes], status: int, query: bytes = b"") -> None:
        """Records the status of the LLM's answer to this caller: 200 admits it, 401 and 403 revoke it. Only
        for calls of the LLM: other paths may be open to everybody.
        """
        digest = self._digest(headers, query)
        if status == 200:
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[digest] = time.monotonic() + self.seconds
        elif status in (401, 403):
            self._until.pop(digest, None)

    def _digest(self, headers: Mapping[bytes, bytes], query: bytes) -> bytes:
        parts = b"\0".join([*(headers.get(name, b"") for name in _NAMES), query])
        return hashlib.blake2b(parts, key=self._salt, digest_size=16).digest()


class MirrorService:
    """Routes calls. With `settings.seed` the draws of one client's calls in sequence are repeatable."""

    def __init__(self, settings: MirrorSettings, reconciler: Reconciler, redactor: Redactor) -> None:
        self.settings, self.reconciler, self.redactor = settings, reconciler, redactor
        self.keys = KnownKeys()
        self._draw = random.Random(settings.seed)

    @property
    def answers(self) -> bool:
        """Whether a student may answer some call, so that bodies have to be read before they are relayed."""
        return self.reconciler.open_students.answers

    async def routing(
        self,
        request: CompletionRequest,
        site: str,
        headers: Mapping[bytes, bytes],
        *,
        can_audit: bool,
        query: bytes = b"",
    ) -> CallRouting | None:
        """Who answers a request, with the student's answer where it gave one; None where no student answers
        at this site. The audit is drawn here, before anybody is asked; `can_audit`: there is room for one.
        `headers` and `query` are the client's.
        """
        open_students = self.reconciler.open_students
        if site not in open_students.answering:
            return None
        request = self.redactor.begin_call().redact_request(request)
        version = version_id(request, site)
        students = open_students.by_version.get(version)
        share = self.settings.audit_share
        # Without room for audits no student answers: the LLM is asked about all calls alike.
        of_site = open_students.sent_to_llm(site, share) if can_audit else 1.0
        if students is None or not students.stage.student_answers:
            return CallRouting(version, "", open_students.why_new(site, request), site_least=of_site)
        stage = students.stage
        to_llm = stage.sent_to_llm(share) if can_audit else 1.0
        if not self.keys.has(headers, query):
            return CallRouting(stage.version, stage.student, "new-key", least=to_llm, site_least=of_site)
        routing = await self._ask_student(request, version, students)
        probability = to_llm if routing.is_sure else 1.0
        routing = replace(routing, probability=probability, least=to_llm, site_least=of_site)
        if not routing.is_ours:
            return routing
        if not can_audit:
            return replace(routing, reason="audits-behind")
        if self._draw.random() >= stage.share:
            return replace(routing, reason="canary")
        return replace(routing, audit="drawn") if self._draw.random() < share else routing

    async def _ask_student(
        self, request: CompletionRequest, version: str, students: VersionStudents
    ) -> CallRouting:
        stage, student = students.stage, students.student
        routing = CallRouting(stage.version, stage.student)
        if student is None:
            return replace(routing, reason="student-failed")
        text = student.student.input_of(request, version)
        if text is None:
            return replace(routing, reason="new-template")
        try:
            answer = await student.answer(text, self.settings.answer_seconds)
        except StudentUnavailable as failure:
            return replace(routing, reason=failure.reason)
        return replace(
            routing,
            reason="" if answer.is_sure else answer.reason,
            confidence=answer.confidence,
            values=answer.values,
            answer=answer.answer,
            probabilities=answer.probabilities,
            is_sure=answer.is_sure,
        )
