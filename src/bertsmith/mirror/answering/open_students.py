"""Which students are open, for which versions, as the event loop sees them; and a student beside the loop: it
computes in a thread of its own, on one core.

Texts that wait together are answered together. Several hundred may wait; what comes then is the LLM's. More
cores would make a sentence slower, not faster: the threads of two OpenMP teams, of two students or of one and
whoever opened it, sleep between any two operations of a layer.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bertsmith.mirror.answering.stage_store import VersionFacts
from bertsmith.mirror.answering.stages import Stage
from bertsmith.mirror.call import CompletionRequest, Json
from bertsmith.serving.http_server import give_way

if TYPE_CHECKING:
    from bertsmith.mirror.student import StudentAnswer


_TOGETHER = 32  # texts
_MOST_WAITING = 256  # texts


class StudentUnavailable(Exception):
    """Why the LLM has to: student-busy, student-slow, student-failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StudentLike(Protocol):
    """What is needed of a student; `bertsmith.mirror.student.MirrorStudent` is one."""

    file: Any

    def input_of(self, asked: CompletionRequest, version: str) -> str | None:
        """The text to answer for, None where the call doesn't fit."""

    def answer(self, texts: Sequence[str]) -> "list[StudentAnswer]":
        """One answer a text."""


class StudentThread:
    """A student under its `id`, opened in its thread; `close` ends it. Raises what `opening` raises."""

    def __init__(self, number: str, opening: Callable[[], StudentLike]) -> None:
        # torch, which a mirror without a student doesn't need
        from bertsmith.model.cpu.process import start_one_core_threads

        self.id = number
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Future[StudentAnswer]]] = deque()
        self._is_ending = False
        self.fails = False  # the last time it was asked
        self._thread = start_one_core_threads(1, f"student-{number}")
        try:
            self.student = self._thread.submit(opening).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._thread.submit(self._work)

    async def answer(self, text: str, seconds: float) -> "StudentAnswer":
        """Raises StudentUnavailable, after `seconds` at the latest."""
        future: Future[StudentAnswer] = Future()
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING or self._is_ending:
                raise StudentUnavailable("student-busy")
            self._waiting.append((text, future))
            self._changed.notify()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            raise StudentUnavailable("student-slow") from None
        except Exception:
            raise StudentUnavailable("student-failed") from None

    def differs(self, values: Any, taught: Json) -> bool:
        """Whether the LLM's answer says anything else."""
        shape = self.student.file.shape
        return bool(shape.differing(values, shape.read(taught)))

    def close(self) -> None:
        """What waits is still answered."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.shutdown()

    def _work(self) -> None:
        give_way()
        while taken := self._next():
            texts = [text for text, _ in taken]
            try:
                answers = self.student.answer(texts)
            except Exception as error:
                self.fails = True
                for _, future in taken:
                    future.set_exception(error)
                continue
            self.fails = False
            for (_, future), answer in zip(taken, answers, strict=True):
                future.set_result(answer)

    def _next(self) -> "list[tuple[str, Future[StudentAnswer]]]":
        """Waits for some; none at the end. What nobody waits for any more is left out."""
        with self._changed:
            while True:
                while self._waiting:
                    count = min(_TOGETHER, len(self._waiting))
                    some = [self._waiting.popleft() for _ in range(count)]
                    if wanted := [each for each in some if each[1].set_running_or_notify_cancel()]:
                        return wanted
                if self._is_ending:
                    return []
                self._changed.wait()


@dataclass(frozen=True)
class VersionStudents:
    """A version's stage with its students; None where there is none, or where it can't be opened."""

    stage: Stage
    student: StudentThread | None = None
    candidate: StudentThread | None = None

    @property
    def is_answering(self) -> bool:
        """Its student is to answer, and can."""
        return self.stage.answers and self.student is not None and not self.student.fails


@dataclass(frozen=True)
class OpenStudents:
    """`by_version`, of those that have a student; `answering` are facts of those that answer, by
    site.
    """

    by_version: Mapping[str, VersionStudents] = field(default_factory=dict)
    answering: Mapping[str, list[VersionFacts]] = field(default_factory=dict)

    def stage_version(self, version: str) -> str:
        """Whose student answers it: its own, but for a merged version."""
        students = self.by_version.get(version)
        return version if students is None else students.stage.version

    def is_merged(self, version: str) -> bool:
        """Another version's student is its own too."""
        return self.stage_version(version) != version

    @property
    def answers(self) -> bool:
        """Some call might be ours."""
        return bool(self.answering)

    def sent_to_llm(self, site: str, audit_share: float) -> float:
        """The least probability with which the LLM is asked about a call of the site, of any version."""
        stages = (each.stage for each in self.by_version.values() if each.stage.site == site)
        return min((stage.sent_to_llm(audit_share) for stage in stages), default=1.0)

    def why_new(self, site: str, asked: CompletionRequest) -> str:
        """What tells a call of a version that nobody answers from those of its site that somebody does."""
        known = self.answering[site]
        if all(each.schema != asked.schema for each in known):
            return "new-schema"
        return "new-model" if all(each.model != asked.model for each in known) else "new-prompt"


def add_merged_versions(students: Mapping[str, VersionStudents]) -> dict[str, VersionStudents]:
    """And versions that were merged with one of these (`bertsmith mirror merge`): a student trained on all of
    them answers all. Its stage is that of the version which it was trained for. A candidate, which answers
    nobody yet, takes no version from another one's student.
    """
    found = dict(students)
    by_student = [(each.student, each) for each in students.values()]
    by_candidate = [(each.candidate, each) for each in students.values()]
    for student, each in by_student + by_candidate:
        for version in () if student is None else student.student.file.templates:
            found.setdefault(version, each)
    return found
