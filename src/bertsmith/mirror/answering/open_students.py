"""The open students as the event loop sees them, by version (`OpenStudents`), and a student that computes
beside the loop, in a thread of its own on one core (`StudentThread`).

Texts that wait together are answered in one batch. Up to `_MOST_WAITING` may wait; further calls go to the
LLM. More cores would make a sentence slower, not faster: where two OpenMP teams share the cores, of two
students or of one and the thread that opened it, their threads sleep between any two operations of a layer.
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
from bertsmith.serving.http_server import lower_thread_priority

if TYPE_CHECKING:
    from bertsmith.mirror.student import StudentAnswer


_TOGETHER = 32  # texts
_MOST_WAITING = 256  # texts


class StudentUnavailable(Exception):
    """The student gave no answer; `reason` is student-busy, student-slow or student-failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StudentLike(Protocol):
    """The interface of a student; `bertsmith.mirror.student.MirrorStudent` implements it."""

    file: Any
    proven_threshold: float | None

    def input_of(self, request: CompletionRequest, version: str) -> str | None:
        """The call's input text; None where the request doesn't fit the version's template."""

    def answer(self, texts: Sequence[str]) -> "list[StudentAnswer]":
        """One answer for each text, in their order."""


class StudentThread:
    """A student under its `id`, opened and run in a thread of its own until `close`. Raises what `opening`
    raises.
    """

    def __init__(self, number: str, opening: Callable[[], StudentLike]) -> None:
        # torch, which a mirror without a student doesn't need
        from bertsmith.model.cpu.process import start_one_core_threads

        self.id = number
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Future[StudentAnswer]]] = deque()
        self._is_ending = False
        self.fails = False  # whether the last batch failed
        self._thread = start_one_core_threads(1, f"student-{number}")
        try:
            self.student = self._thread.submit(opening).result()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._thread.submit(self._work)

    async def answer(self, text: str, seconds: float) -> "StudentAnswer":
        """The student's answer to a text. Raises StudentUnavailable, after `seconds` at the latest."""
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

    def differs(self, values: Any, teacher_answer: Json) -> bool:
        """Whether `teacher_answer`, the LLM's, differs from the student's `values` in any field."""
        shape = self.student.file.shape
        return bool(shape.differing_paths(values, shape.read(teacher_answer)))

    def close(self) -> None:
        """Ends the thread once the waiting texts are answered."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.shutdown()

    def _work(self) -> None:
        lower_thread_priority()
        while batch := self._next_batch():
            texts = [text for text, _ in batch]
            try:
                answers = self.student.answer(texts)
            except Exception as error:
                self.fails = True
                for _, future in batch:
                    future.set_exception(error)
                continue
            self.fails = False
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)

    def _next_batch(self) -> "list[tuple[str, Future[StudentAnswer]]]":
        """Waits for texts; up to 32 of them, without those whose clients have gone. Empty at the end."""
        with self._changed:
            while True:
                while self._waiting:
                    count = min(_TOGETHER, len(self._waiting))
                    oldest = [self._waiting.popleft() for _ in range(count)]
                    if batch := [pair for pair in oldest if pair[1].set_running_or_notify_cancel()]:
                        return batch
                if self._is_ending:
                    return []
                self._changed.wait()


@dataclass(frozen=True)
class VersionStudents:
    """A version's stage and its open students; None for one that doesn't exist or can't be opened."""

    stage: Stage
    student: StudentThread | None = None
    candidate: StudentThread | None = None

    @property
    def is_answering(self) -> bool:
        """Whether its student should answer calls, and can."""
        return self.stage.student_answers and self.student is not None and not self.student.fails


@dataclass(frozen=True)
class OpenStudents:
    """`by_version`: the versions that have a student. `answering`: by site, the facts of the versions whose
    student answers calls.
    """

    by_version: Mapping[str, VersionStudents] = field(default_factory=dict)
    answering: Mapping[str, list[VersionFacts]] = field(default_factory=dict)

    def stage_version(self, version: str) -> str:
        """The version whose student answers this one: itself, or the version that it was merged with."""
        students = self.by_version.get(version)
        return version if students is None else students.stage.version

    def is_merged(self, version: str) -> bool:
        """Whether another version's student answers this one."""
        return self.stage_version(version) != version

    @property
    def answers(self) -> bool:
        """Whether a student may answer any call at all."""
        return bool(self.answering)

    def sent_to_llm(self, site: str, audit_share: float) -> float:
        """The least probability with which the LLM is asked about a call of the site, of any version."""
        stages = (entry.stage for entry in self.by_version.values() if entry.stage.site == site)
        return min((stage.sent_to_llm(audit_share) for stage in stages), default=1.0)

    def why_new(self, site: str, request: CompletionRequest) -> str:
        """Why no student answers a request of this site: new-schema, new-model or new-prompt, by comparison
        with the versions that a student answers.
        """
        versions = self.answering[site]
        if all(version.schema != request.schema for version in versions):
            return "new-schema"
        return "new-model" if all(version.model != request.model for version in versions) else "new-prompt"


def add_merged_versions(students: Mapping[str, VersionStudents]) -> dict[str, VersionStudents]:
    """Adds the versions that were merged with one of these (`bertsmith mirror merge`): a student trained on
    all of them answers all, under the stage of the version that it was trained for. A candidate, which
    answers no client yet, takes no version from another version's student.
    """
    by_version = dict(students)
    by_student = [(entry.student, entry) for entry in students.values()]
    by_candidate = [(entry.candidate, entry) for entry in students.values()]
    for student, entry in by_student + by_candidate:
        for version in () if student is None else student.student.file.templates:
            by_version.setdefault(version, entry)
    return by_version
