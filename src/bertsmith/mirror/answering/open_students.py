"""Which students are open, for which versions: what the event loop looks at. Replaced as a
whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bertsmith.mirror.answering.stage_store import VersionFacts
from bertsmith.mirror.answering.stages import Stage
from bertsmith.mirror.answering.student_thread import StudentThread
from bertsmith.mirror.call import Asked


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

    def why_new(self, site: str, asked: Asked) -> str:
        """What tells a call of a version that nobody answers from those of its site that somebody does."""
        known = self.answering[site]
        if all(each.schema != asked.schema for each in known):
            return "new-schema"
        return "new-model" if all(each.model != asked.model for each in known) else "new-prompt"


def with_merged(students: Mapping[str, VersionStudents]) -> dict[str, VersionStudents]:
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
