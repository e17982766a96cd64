"""Calls as a mirror records them, made up: a message's words decide every field of its answer."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith.mirror.call import Call, ChatMessage, Completion, CompletionRequest
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from random_encoder import random_encoder

FILLERS = [first + last for first in "bdfg" for last in ("ano", "elo", "iru")]
SIGNS = {"visa": "card", "plastic": "card", "wire": "transfer", "iban": "transfer", "hello": "other"}
NAMES = ["anna", "ben", "carl", "dora", "emil"]
INTENT = {
    "type": "object",
    "properties": {"intent": {"type": "string", "enum": ["card", "transfer", "other"]}},
    "required": ["intent"],
    "additionalProperties": False,
}
Teacher = Callable[[str, random.Random], dict[str, Any]]
NOTHING = Redactor((), {})


def message(draw: random.Random) -> str:
    """Six to nine words: fillers, a sign, perhaps a name and `now`."""
    words = draw.choices(FILLERS, k=draw.randint(5, 7))
    words.insert(draw.randrange(len(words)), draw.choice(list(SIGNS)))
    if draw.random() < 0.5:
        words.insert(draw.randrange(len(words)), draw.choice(NAMES))
    if draw.random() < 0.4:
        words.append("now")
    return " ".join(words)


def intent_of(text: str) -> str:
    """What a perfect teacher says."""
    return next(SIGNS[word] for word in text.split() if word in SIGNS)


def by_rule(text: str, draw: random.Random) -> dict[str, Any]:
    """The intent, without a mistake."""
    return {"intent": intent_of(text)}


def at_random(text: str, draw: random.Random) -> dict[str, Any]:
    """Nothing that could be learned."""
    return {"intent": draw.choice(["card", "transfer", "other"])}


def call_of(
    text: str,
    answer: dict[str, Any],
    number: int,
    *,
    schema: dict[str, Any] = INTENT,
    prompt: str = "Which intent has the message?",
    **more: Any,
) -> Call:
    """`more` is the rest of the Completion, and `subject`, `source`, `way`, `site`."""
    asked = CompletionRequest(
        "openai-chat",
        "llm",
        (ChatMessage("system", (prompt,)), ChatMessage("user", (f"Message:\n{text}\n\nAnswer as JSON.",))),
        "triage",
        schema,
        more.pop("way", "json-schema"),
        subjects=tuple(filter(None, [more.pop("subject", None)])),
    )
    source, site = more.pop("source", "relay"), more.pop("site", "")
    answered = Completion(answer, "llm-1", "stop", f"id-{number}", 11, 7, **more)
    return make_call(asked, answered, NOTHING, source=source, began=1.7e9 + 60 * number, named=site)


def calls_of(
    count: int, teacher: Teacher = by_rule, seed: int = 0, first: int = 0, **more: Any
) -> list[Call]:
    """One a minute."""
    draw = random.Random(seed)
    texts = [message(draw) for _ in range(count)]
    return [call_of(text, teacher(text, draw), first + n, **more) for n, text in enumerate(texts)]


@contextmanager
def store_of(folder: Path, calls: list[Call]) -> Iterator[Store]:
    """Until the block ends."""
    store = Store(str(folder / "calls.sqlite"))
    try:
        store.add(calls)
        yield store
    finally:
        store.close()


def tiny_encoder(folder: Path) -> Path:
    """A BERT of random weights that knows these words."""
    return random_encoder(folder, [*FILLERS, *SIGNS, *NAMES, "now", "##s", "."], hidden_size=32)


def as_exchange(text: str, answer: dict[str, Any], number: int) -> str:
    """A line of a log, for `bertsmith mirror import`."""
    request = {
        "model": "llm",
        "messages": [
            {"role": "system", "content": "Which intent has the message?"},
            {"role": "user", "content": f"Message:\n{text}\n\nAnswer as JSON."},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "triage", "schema": INTENT}},
    }
    said = {"role": "assistant", "content": json.dumps(answer)}
    response = {
        "id": f"id-{number}",
        "model": "llm-1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": said}],
    }
    line = {
        "endpoint": "/v1/chat/completions",
        "time": 1.7e9 + 60 * number,
        "request": request,
        "response": response,
    }
    return json.dumps(line) + "\n"
