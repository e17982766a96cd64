"""Which students are open, for which versions: what the event loop looks at. A new panel replaces the old one
as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bertsmith.serving.mirror.answering.stage_store import VersionFacts
from bertsmith.serving.mirror.answering.stages import Stage
from bertsmith.serving.mirror.answering.understudy import Understudy
from bertsmith.serving.mirror.call import Asked


@dataclass(frozen=True)
class Playing:
    """A version's stage with its students; None where there is none, or where it can't be opened."""

    stage: Stage
    student: Understudy | None = None
    candidate: Understudy | None = None


@dataclass(frozen=True)
class Panel:
    """`playing` by version, of those that have a student; `answering` are facts of those that answer, by
    site.
    """

    playing: Mapping[str, Playing] = field(default_factory=dict)
    answering: Mapping[str, list[VersionFacts]] = field(default_factory=dict)

    def is_merged(self, version: str) -> bool:
        """Another version's student is its own too."""
        playing = self.playing.get(version)
        return playing is not None and playing.stage.version != version

    @property
    def answers(self) -> bool:
        """Some call might be ours."""
        return bool(self.answering)

    def why_new(self, site: str, asked: Asked) -> str:
        """What tells a call of a version that nobody answers from those of its site that somebody does."""
        known = self.answering[site]
        if all(each.schema != asked.schema for each in known):
            return "new-schema"
        return "new-model" if all(each.model != asked.model for each in known) else "new-prompt"


def with_merged(playing: Mapping[str, Playing]) -> dict[str, Playing]:
    """And versions that were merged with one of these (`bertsmith mirror merge`): a student trained on all of
    them answers all. Its stage is that of the version which it was trained for.
    """
    found = dict(playing)
    for each in playing.values():
        for student in (each.student, each.candidate):
            for version in () if student is None else student.student.file.templates:
                found.setdefault(version, each)
    return found
