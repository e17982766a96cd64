"""What the mirror notices of one request on its way through. No fault here is ever the client's."""

import time
from dataclasses import replace

from bertsmith.mirror.call import QUEUE_FULL, STUDENT_ANSWER, Asked, NotMirrored
from bertsmith.mirror.call_routing import CallRouting
from bertsmith.mirror.exchange import Exchange, asked_of
from bertsmith.mirror.formats.wire_format import WireFormat
from bertsmith.mirror.identity import site_of
from bertsmith.mirror.llm_refusals import is_refusal, reason_of, refuses_the_call
from bertsmith.mirror.passing_on import SITE, SUBJECT, is_students
from bertsmith.mirror.upstream_connections import Headers, UpstreamAnswer
from bertsmith.serving import LOG

_READ = ("application/json", "text/event-stream")
GONE = 499  # the status of a call whose client went away before an answer began


class Passage:
    """`reason` says why the call isn't recorded; with none, it is. `routing` says what a student made of it,
    where one answers at this site. `is_over`: all of the answer is out.
    """

    def __init__(
        self, form: WireFormat | None, path: str, headers: Headers, most_bytes: int, query: bytes = b""
    ) -> None:
        self.form, self.path = form, path
        self.all_headers, self.headers = headers, dict(headers)
        self.most_bytes, self.query = most_bytes, query
        self.asked: Asked | None = None
        self.routing: CallRouting | None = None
        self.site = ""
        self.reason = "other-path" if self.form is None else "too-large"  # until it has been looked at
        self.status = GONE
        self.is_over = False
        self.began, self._clock = time.time(), time.perf_counter()
        self._first_seconds = 0.0
        self._request_bytes = self._answer_bytes = 0
        self._pieces: list[bytes] = []
        self._content_type = self._encoding = ""
        self._is_known = False

    @property
    def seconds(self) -> float:
        """Since it came."""
        return time.perf_counter() - self._clock

    @property
    def header(self) -> bytes:
        """Of the answer."""
        routing = self.routing
        reason = self.reason or (routing.reason if routing is not None else "")
        parts = ["passthrough" if self.reason else self._answered_by()]
        parts += [f"site={self.site}"] if self.site else []
        parts += [f"student={routing.student}"] if routing is not None and routing.student else []
        if routing is not None and routing.values is not None:
            parts.append(f"confidence={routing.confidence:.4f}")
        parts += [f"reason={reason}"] if reason else []
        return "; ".join(parts).encode("latin-1", "replace")

    def _answered_by(self) -> str:
        if self.routing is None:
            return "recorded"
        return "answered" if self.routing.is_ours else "relayed"

    def look_at_request(self, content: bytes, *, has_room: bool) -> None:
        """Whether it can be mirrored, and the recorder has room for it."""
        if self.form is None:
            return
        try:
            if len(content) > self.most_bytes:
                raise NotMirrored("too-large")
            if self.headers.get(b"content-encoding"):
                raise NotMirrored("encoding")
            self.asked = asked_of(self.form, content, self.path)
            self.site = site_of(self.asked, self.said(SITE))
            self._request_bytes, self.reason = len(content), "" if has_room else QUEUE_FULL
        except NotMirrored as found:
            self.reason = found.reason
        except Exception as error:
            self.reason = "mirror-error"
            LOG.error("a request could not be looked at: %s", type(error).__name__)

    def decline(self, reason: str) -> None:
        """The LLM is to answer what the student could have. No call like it is ever answered by the student,
        so it says nothing of the answers given, whatever the confidence.
        """
        if self.routing is not None:
            self.routing = replace(self.routing, reason=reason, audit="", is_sure=False, probability=1.0)

    def look_at_answer(self, answer: UpstreamAnswer, *, is_known: bool) -> None:
        """Its head has come. `is_known`: a student might have answered this caller."""
        self.status, self._first_seconds, self._is_known = answer.status, self.seconds, is_known
        if self.reason:
            return
        self._content_type = answer.header(b"content-type")
        self._encoding = answer.header(b"content-encoding")
        if answer.status != 200:
            self.reason = reason_of(answer.status)
        elif not self._content_type.startswith(_READ):
            self.reason = "content-type"
        elif is_students(answer):
            self.reason = STUDENT_ANSWER

    def keep(self, piece: bytes) -> None:
        """A piece of the answer that has been passed on."""
        if self.reason:
            return
        self._answer_bytes += len(piece)
        self._pieces.append(piece)
        if self._answer_bytes > self.most_bytes:
            self.reason = "too-large"
            self._pieces = []

    @property
    def is_whole(self) -> bool:
        """The answer comes at once, not as a stream."""
        return "event-stream" not in self._content_type

    @property
    def refusal(self) -> str:
        """Why no student's answer could agree with the LLM's, where a student might have answered."""
        is_told = refuses_the_call(self.status) and self._is_known if self.status != 200 else True
        return self.reason if self.asked is not None and is_told and is_refusal(self.reason) else ""

    def exchange(self) -> Exchange | None:
        """For the recorder; None where there is nothing to record, and no refusal to tell of."""
        if self.form is None or self.asked is None or (self.reason and not self.refusal):
            return None
        return Exchange(
            self.form,
            self.asked,
            self._request_bytes,
            self._content_type,
            self._encoding,
            self._pieces,
            self.is_over,
            self.began,
            self._first_seconds,
            self.seconds,
            self.said(SITE),
            self.subjects,
            self.routing,
            self.refusal,
        )

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whom the client's headers say that it is about: each may come several times."""
        values = (_decoded(value) for name, value in self.all_headers if name == SUBJECT)
        return tuple(value for value in values if value.strip())

    def said(self, name: bytes) -> str:
        """A header of the client's, empty where there is none."""
        return _decoded(self.headers.get(name, b""))


def _decoded(value: bytes) -> str:
    """In UTF-8, as its body is, else in Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
