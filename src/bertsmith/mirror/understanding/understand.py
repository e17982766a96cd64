"""A site's calls → where their input is, what their answers hold, and how often each value comes."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bertsmith.errors import InputError
from bertsmith.mirror.call import AGAIN, Call
from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, as_text
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.template import Template
from bertsmith.mirror.template_search import FEWEST, find_template
from bertsmith.mirror.understanding.schema_fields import Observation, shape_of

_LOOKED_AT = 2000  # calls of a version, the latest
_ALL_SMALL = ""  # the template of versions that have too few calls for one of their own


@dataclass(frozen=True)
class Understood:
    """A group of versions that count as one. `templates` by version; `fitting` of the `looked_at` calls stand
    in theirs, and `odd` have answers that don't fit the fields; `shares` has for each field its values as
    text with how often each was seen. `why_not`: why no model can be trained; empty where one can.
    """

    versions: tuple[VersionCount, ...]
    templates: dict[str, Template]
    shape: AnswerShape
    looked_at: int
    fitting: int
    odd: int
    shares: dict[str, list[tuple[str, int]]]
    why_not: str

    @property
    def site(self) -> str:
        return self.versions[0].site

    @property
    def calls(self) -> int:
        """All, of all versions."""
        return sum(each.calls for each in self.versions)

    @property
    def latest(self) -> VersionCount:
        """The version with the latest call."""
        return max(self.versions, key=lambda each: each.ended)

    def require_mirrorable(self) -> None:
        """Raises InputError saying why it isn't."""
        if self.why_not:
            raise InputError(
                f"The site {self.site} can't be mirrored: {self.why_not}. "
                f"bertsmith mirror understand {self.site} shows what was found."
            )


def understand(
    store: Store, group: Sequence[VersionCount], to_prove: Collection[str] = frozenset()
) -> Understood:
    """Of the latest calls of each version. What answers may hold is told by other calls than those `to_prove`
    by, whose ids are given: it decides what counts as the same.
    """
    latest = {each.version: _latest(store, each.version) for each in group}
    templates = _templates(latest)
    calls = [call for some in latest.values() for call in some]
    fitting = sum(_input_of(call, templates) is not None for call in calls)
    newest = max(calls, key=lambda call: call.began, default=None)
    telling = calls
    if to_prove:
        telling = [call for each in group for call in _latest(store, each.version, to_prove)]
    observations = [Observation(call.answered.value, _input_of(call, templates) or "") for call in telling]
    shape = shape_of(newest.asked.schema if newest is not None else {}, observations)
    return Understood(
        tuple(group),
        templates,
        shape,
        len(calls),
        fitting,
        sum(not shape.holds(shape.read(call.answered.value)) for call in calls),
        {each.path: _shares(each, shape, observations) for each in shape.fields},
        _why_not(templates, shape, len(calls)),
    )


def _latest(store: Store, version: str, without: Collection[str] = frozenset()) -> list[Call]:
    traffic = (call for call in store.calls(version) if call.source != AGAIN and call.id not in without)
    return list(deque(traffic, maxlen=_LOOKED_AT))


def _input_of(call: Call, templates: Mapping[str, Template]) -> str | None:
    template = templates.get(call.version)
    return None if template is None else template.input_of(call.asked)


def _templates(latest: dict[str, list[Call]]) -> dict[str, Template]:
    """One a version; versions too small for that share one, which then spans their prompts too."""
    found: dict[str, Template] = {}
    small = list[Call]()
    for version, calls in latest.items():
        template = find_template([call.asked.messages for call in calls])
        if template is not None:
            found[version] = template
        else:
            small += calls
    together = find_template([call.asked.messages for call in small])
    if together is not None:
        found |= {call.version: together for call in small}
    return found


def _shares(field: Field, shape: AnswerShape, observations: Sequence[Observation]) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    for each in observations:
        value = shape.read(each.answer)[field.path]
        if field.kind == "labels" and isinstance(value, tuple):
            counts.update(map(as_text, value))
        elif field.kind == "spans" and isinstance(value, tuple):
            counts.update(kind or "quote" for kind, _ in value)
        elif field.kind == "number" and value is not None and value is not ABSENT:
            counts["a number"] += 1
        else:
            counts[as_text(value)] += 1
    return counts.most_common()


def _why_not(templates: dict[str, Template], shape: AnswerShape, calls: int) -> str:
    if not templates:
        return (
            f"its prompt can't be told from its input: it takes {FEWEST} calls whose messages have the same "
            f"roles and differ, and there are {calls:,} calls"
        )
    return shape.why_not
