"""A file labelled by an LLM, and inputs asked again: calls that nobody's application made.

label    the rows of a file under a prompt and a schema; what is in the store already isn't asked
again    recorded inputs once more, drawn at random, to see how often the LLM contradicts itself
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import read_json
from bertsmith.mirror.asking import Asking, Budget, ask_all
from bertsmith.mirror.call import AGAIN, LABELLED, Answered, Asked, Call, Json
from bertsmith.mirror.call_records import CallRecords
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.identity import site_of, version_of
from bertsmith.mirror.learned_calls import part_of
from bertsmith.mirror.parts import is_drawn
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.student import Student
from bertsmith.mirror.upstream import Upstream
from bertsmith.progress import Progress
from bertsmith.text.labelled.rows import stream_texts

GAP = "{text}"
_NAME = "labels"


@dataclass(frozen=True)
class Question:
    """How each text is asked. `prompt` is what the system is told, or where it has {text} in it, the user's
    message.
    """

    model: str
    prompt: str
    schema: Mapping[str, Json]

    def body(self, text: str) -> dict[str, Json]:
        """As OpenAI's chat completions have it."""
        user = {"role": "user", "content": text}
        messages = [{"role": "system", "content": self.prompt}, user]
        if GAP in self.prompt:
            messages = [{"role": "user", "content": self.prompt.replace(GAP, text)}]
        described = {"name": _NAME, "schema": self.schema, "strict": True}
        return {
            "model": self.model,
            "messages": messages,
            "response_format": {"type": "json_schema", "json_schema": described},
        }


def read_schema(path: Path) -> dict[str, Json]:
    """Raises InputError for what is no schema of an object."""
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("properties"), dict):
        raise InputError(f"{path}: expected a JSON schema of an object, with its properties.")
    return found


def read_texts(path: Path, text: str | None = None, **layout: Any) -> list[str]:
    """Each text of a table or of a file of lines once, in order. Raises InputError as `stream_texts` does."""
    return list(dict.fromkeys(stream_texts(path, text, **layout)))


def unsure_first(texts: Sequence[str], student: Student) -> list[str]:
    """In the order in which they teach a student most: those first that it is least sure of."""
    answers = student.answer(texts)
    return [texts[n] for n in sorted(range(len(texts)), key=lambda number: answers[number].confidence)]


def label_texts(
    texts: Sequence[str],
    question: Question,
    upstream: Upstream,
    store: Store,
    redactor: Redactor,
    budget: Budget,
    *,
    site: str = "",
    at_once: int = 4,
    progress: Progress | None = None,
) -> Asking:
    """Asks for those that the store doesn't have under this prompt, schema and model. The LLM reads a text
    as the store will have it: redacted; texts that are the same then are one. Raises InputError as `ask_all`.
    """
    redacted = (redactor.begin().asked(upstream.asked(question.body(text))) for text in texts)
    asked = list({_inputs(each): each for each in redacted}.values())
    known = _known(store, asked, site)
    new = [each for each in asked if _inputs(each) not in known]

    def as_call(each: Asked, answered: Answered, began: float, seconds: float) -> Call:
        return make_call(each, answered, redactor, source=LABELLED, began=began, named=site, seconds=seconds)

    found = ask_all(new, upstream, store, as_call, budget, at_once, progress)
    return replace(found, known=len(asked) - len(new))


def learned_apart(
    question: Question, upstream: Upstream, store: Store, redactor: Redactor, site: str
) -> tuple[str, str] | None:
    """The latest other version of the site, and the one that these calls are of: a student learns from them
    apart. None where they were merged, or there is no other.
    """
    own = version_of(redactor.begin().asked(upstream.asked(question.body(GAP))), site)
    groups = [group for group in CallRecords(store).groups() if group[0].site == site]
    others = [group for group in groups if own not in {each.version for each in group}]
    if not others or len(others) == len(groups):  # none of them was answered
        return None
    return max(others[-1], key=lambda each: each.ended).version, own


def version_to_ask(store: Store, group: Sequence[VersionCount], named: str | None = None) -> VersionCount:
    """Of versions that count as one, the one whose inputs are asked again: the one that was `named`, else the
    one with the latest call of the traffic, or of a labelled file where there is no traffic.
    """

    def latest(version: VersionCount) -> tuple[bool, float]:
        calls = store.calls(version.version)
        times = ((call.source not in (AGAIN, LABELLED), call.began) for call in calls)
        return max(times, default=(False, 0.0))

    return next((each for each in group if each.version == named), None) or max(group, key=latest)


def ask_again(
    store: Store,
    version: str,
    upstream: Upstream,
    count: int,
    redactor: Redactor,
    budget: Budget,
    *,
    seed: int = 0,
    at_once: int = 4,
    progress: Progress | None = None,
) -> Asking:
    """`count` recorded inputs of a version once more, drawn by their ids, as they came in the traffic; those
    asked again before are among them. Raises InputError as `ask_all`.
    """
    if count < 1:
        raise InputError(f"count must be 1 or more inputs to ask again, found {count:,}.")
    first: dict[tuple[tuple[str, ...], ...], Call] = {}
    again: set[tuple[tuple[str, ...], ...]] = set()
    for call in store.calls(version):
        if call.source == AGAIN:
            again.add(_inputs(call.asked))
        elif is_drawn(call, seed):  # as in proving
            first.setdefault(_inputs(call.asked), call)
    drawn = sorted(first.values(), key=lambda call: part_of(call.id, seed))[:count]
    calls = {id(call.asked): call for call in drawn}
    wanted = [call.asked for call in drawn if _inputs(call.asked) not in again]

    def as_call(each: Asked, answered: Answered, began: float, seconds: float) -> Call:
        """Of its site and version."""
        made = make_call(each, answered, redactor, source=AGAIN, began=began, seconds=seconds)
        return replace(made, site=calls[id(each)].site, version=calls[id(each)].version)

    found = ask_all(wanted, upstream, store, as_call, budget, at_once, progress)
    return replace(found, known=len(drawn) - len(wanted))


def _known(store: Store, asked: Sequence[Asked], site: str) -> set[tuple[tuple[str, ...], ...]]:
    """What was asked before, of the versions that these questions are of."""
    versions = {version_of(each, site_of(each, site)) for each in asked[:1]}
    return {_inputs(call.asked) for version in versions for call in store.calls(version)}


def _inputs(asked: Asked) -> tuple[tuple[str, ...], ...]:
    return tuple(each.parts for each in asked.inputs)
