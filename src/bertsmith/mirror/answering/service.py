"""Who answers: the student or the LLM. Asked by the relay for each call that may be mirrored.

A student answers only callers whom the LLM has answered of late: whether a key is good, only the provider
knows. They are in memory, as salted digests.
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
from bertsmith.mirror.identity import version_of
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.settings import MirrorSettings

# Whatever header a provider or a gateway knows a caller by.
_NAMES = (
    b"authorization", b"x-api-key", b"api-key", b"ocp-apim-subscription-key", b"x-goog-api-key", b"cookie",
    b"openai-organization", b"openai-project",
)  # fmt: skip
_SECONDS = 3600.0  # after which a caller is the LLM's once more: keys are withdrawn
_MOST = 10_000  # callers


class KnownKeys:
    """By the headers that say who asks, and the query, which may hold a key too."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self.seconds = seconds
        self._salt = secrets.token_bytes(16)
        self._until: dict[bytes, float] = {}

    def has(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> bool:
        """The LLM has answered this caller within these seconds."""
        return self._until.get(self._digest(headers, query), 0.0) > time.monotonic()

    def note(self, headers: Mapping[bytes, bytes], status: int, query: bytes = b"") -> None:
        """What the LLM's answer had as its status. Only calls that ask the LLM tell: other paths may be open
        to everybody.
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
    """`seed` makes its draws repeatable, where one client asks one call after the other."""

    def __init__(self, settings: MirrorSettings, reconciler: Reconciler, redactor: Redactor) -> None:
        self.settings, self.reconciler, self.redactor = settings, reconciler, redactor
        self.keys = KnownKeys()
        self._draw = random.Random(settings.seed)

    @property
    def answers(self) -> bool:
        """Some call might be ours, and bodies are to be read before they are sent on."""
        return self.reconciler.open_students.answers

    async def routing(
        self,
        asked: CompletionRequest,
        site: str,
        headers: Mapping[bytes, bytes],
        *,
        can_audit: bool,
        query: bytes = b"",
    ) -> CallRouting | None:
        """None where no student answers at this site: then nothing is different from recording. The audit is
        drawn here, before anybody is asked; `can_audit`: there is room for it. `headers` and `query` are the
        client's.
        """
        open_students = self.reconciler.open_students
        if site not in open_students.answering:
            return None
        asked = self.redactor.begin().redact_request(asked)
        version = version_of(asked, site)
        students = open_students.by_version.get(version)
        share = self.settings.audit_share
        # What can't be audited is not answered: at such a moment the LLM is asked about all calls alike.
        of_site = open_students.sent_to_llm(site, share) if can_audit else 1.0
        if students is None or not students.stage.answers:
            return CallRouting(version, "", open_students.why_new(site, asked), site_least=of_site)
        stage = students.stage
        to_llm = stage.sent_to_llm(share) if can_audit else 1.0
        if not self.keys.has(headers, query):
            return CallRouting(stage.version, stage.student, "new-key", least=to_llm, site_least=of_site)
        routing = await self._asked(asked, version, students)
        probability = to_llm if routing.is_sure else 1.0
        routing = replace(routing, probability=probability, least=to_llm, site_least=of_site)
        if not routing.is_ours:
            return routing
        if not can_audit:
            return replace(routing, reason="audits-behind")
        if self._draw.random() >= stage.share:
            return replace(routing, reason="canary")
        return replace(routing, audit="drawn") if self._draw.random() < share else routing

    async def _asked(self, asked: CompletionRequest, version: str, students: VersionStudents) -> CallRouting:
        stage, student = students.stage, students.student
        routing = CallRouting(stage.version, stage.student)
        if student is None:
            return replace(routing, reason="student-failed")
        text = student.student.input_of(asked, version)
        if text is None:
            return replace(routing, reason="new-template")
        try:
            answer = await student.answer(text, self.settings.answer_seconds)
        except StudentUnavailable as found:
            return replace(routing, reason=found.reason)
        return replace(
            routing,
            reason="" if answer.is_sure else answer.reason,
            confidence=answer.confidence,
            values=answer.values,
            answer=answer.answer,
            probabilities=answer.probabilities,
            is_sure=answer.is_sure,
        )
