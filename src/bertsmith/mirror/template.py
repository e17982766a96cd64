"""Where the input is in a call's messages: what a site's prompts share, with gaps for what varies.

user: "Which intent has this message?  «text»  Answer as JSON."

A constant text ends where a line, a colon, a quotation mark or a tag does, not where all inputs so far
happened to begin alike: that "How do I" opens each of thirty messages does not make it a part of the prompt.
"""

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from bertsmith.mirror.call import ChatMessage, CompletionRequest

BETWEEN = "\n"  # what several varying parts are joined by
_SHOWN = 60  # characters of a long constant text, at each end
FEWEST = 20  # different calls, below which what they share may be chance
_MOST = 400  # that are compared
_SHORTEST = 3  # words without a mark behind them that are taken for a prompt
_ENDS = re.compile(r"[\n:>\"“”`\])}]\s*")
_BEGINS = re.compile(r"[\n<\"“”`\[({}\])]")
# Between two gaps: a closing tag, a line's beginning up to its colon or tag, a whole line, or the next key of
# a JSON object.
_BETWEEN = re.compile(r"</[\w-]+>|\n[^\n]{0,80}?[:>](?:[ \n]+|$|\"?)|\n[^\n]+\n|\",\s*\"[\w -]+\":\s*\"?")


class PartTemplate(BaseModel):
    """One text of a message: the constant `pieces` around its gaps. One piece: the whole text is constant;
    ("", ""): all of it varies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pieces: tuple[str, ...]

    def gaps(self, text: str) -> list[str] | None:
        """What stands in the gaps, None where the text doesn't fit. A piece is where it first occurs."""
        first, *others = self.pieces
        if not others:
            return [] if text == first else None
        *middle, last = others
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return None
        place, end, found = len(first), len(text) - len(last), list[str]()
        for piece in middle:
            at = text.find(piece, place, end)
            if at < 0:
                return None
            found.append(text[place:at])
            place = at + len(piece)
        return [*found, text[place:end]]


class MessageTemplate(BaseModel):
    """A message of this role with these parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str
    parts: tuple[PartTemplate, ...]


class PromptTemplate(BaseModel):
    """What the messages of a version share, system prompt included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    messages: tuple[MessageTemplate, ...]

    @property
    def has_input(self) -> bool:
        """Whether anything varies."""
        return any(len(part.pieces) > 1 for message in self.messages for part in message.parts)

    def input_of(self, request: CompletionRequest) -> str | None:
        """The text that a model reads: what stands in the gaps, joined by a line's end. None where the
        messages are not as these, and where nothing stands there; then the LLM answers.
        """
        return self.input_of_messages((*request.system, *request.inputs))  # in the order of stored calls

    def input_of_messages(self, messages: Sequence[ChatMessage]) -> str | None:
        """The same of messages alone."""
        if len(messages) != len(self.messages):
            return None
        found: list[str] = []
        for message, wanted in zip(messages, self.messages, strict=True):
            if message.role != wanted.role or len(message.parts) != len(wanted.parts):
                return None
            for text, part in zip(message.parts, wanted.parts, strict=True):
                gaps = part.gaps(text)
                if gaps is None:
                    return None
                found += gaps
        return BETWEEN.join(found) if any(gap.strip() for gap in found) else None

    def shown(self) -> str:
        """For people: a line a part, gaps as «text», long constant texts shortened."""
        gaps = sum(len(part.pieces) - 1 for each in self.messages for part in each.parts)
        names = iter(["text"] if gaps == 1 else [f"text {number}" for number in range(1, gaps + 1)])
        lines = []
        for message in self.messages:
            for part in message.parts:
                first, *others = (
                    each if len(each) <= 2 * _SHOWN + 5 else f"{each[:_SHOWN]} … {each[-_SHOWN:]}"
                    for each in part.pieces
                )
                line = first + "".join(f"«{next(names)}»{piece}" for piece in others)
                lines.append(f"{message.role}: {line}")
        return "\n".join(lines)


def find_template(calls: Sequence[Sequence[ChatMessage]]) -> PromptTemplate | None:
    """Of the messages of calls; None where fewer than twenty of them differ, or nothing varies. Calls whose
    messages follow another order of roles are left to the LLM.
    """
    shapes = Counter(_shape(messages) for messages in calls)
    if not shapes:
        return None
    shape = shapes.most_common(1)[0][0]
    alike = [messages for messages in calls if _shape(messages) == shape]
    different = list({tuple(each.parts for each in messages): messages for messages in alike}.values())
    if len(different) < FEWEST:
        return None
    step = max(len(different) // _MOST, 1)
    some = different[::step]
    found = PromptTemplate(
        messages=tuple(
            MessageTemplate(
                role=role,
                parts=tuple(
                    PartTemplate(pieces=pieces_of([messages[number].parts[part] for messages in some]))
                    for part in range(parts)
                ),
            )
            for number, (role, parts) in enumerate(shape)
        )
    )
    return found if found.has_input else None


def pieces_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The constant pieces around the gaps of texts that are made alike: one piece where all are the same."""
    texts = list(dict.fromkeys(texts))
    if len(texts) == 1:
        return (texts[0],)
    first = _settled_beginning(_shared_beginning(texts))
    rests = [text[len(first) :] for text in texts]
    last = _settled_end(_shared_beginning([rest[::-1] for rest in rests])[::-1])
    return (first, *_between([rest[: len(rest) - len(last)] for rest in rests]), last)


def _shared_beginning(texts: Sequence[str]) -> str:
    """What all begin with: as much as the first and the last by alphabet do."""
    first, last = min(texts), max(texts)
    length = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def _settled_beginning(shared: str) -> str:
    """Up to the last mark that ends a prompt; without one, whole words if they are several."""
    marks = list(_ENDS.finditer(shared))
    if marks:
        return shared[: marks[-1].end()]
    words = shared[: shared.rfind(" ") + 1]
    return words if len(words.split()) >= _SHORTEST else ""


def _settled_end(shared: str) -> str:
    """From the first mark that begins what follows an input."""
    mark = _BEGINS.search(shared)
    if mark:
        return shared[mark.start() :]
    words = shared[shared.find(" ") :] if " " in shared else ""
    return words if len(words.split()) >= _SHORTEST else ""


def _between(gaps: list[str]) -> list[str]:
    """Pieces that all gaps have in this order, as the shortest has them."""
    shortest, found = min(gaps, key=len), list[str]()
    places = [0] * len(gaps)
    for match in _BETWEEN.finditer(shortest):
        piece = match.group()
        at = [gap.find(piece, place) for gap, place in zip(gaps, places, strict=True)]
        if not piece.strip() or min(at) < 0:
            continue
        if found and at == places:  # nothing ever stands between it and the one before
            found[-1] += piece
        else:
            found.append(piece)
        places = [place + len(piece) for place in at]
    return found


def _shape(messages: Sequence[ChatMessage]) -> tuple[tuple[str, int], ...]:
    return tuple((message.role, len(message.parts)) for message in messages)
