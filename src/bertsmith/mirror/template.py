"""Finds the template of a site's prompts: the constant texts that its calls share, with gaps for the input.

user: "Which intent has this message? «text» Answer as JSON."

A constant text ends at the end of a line, a colon, a quotation mark or a tag, not where the inputs so far
happen to differ: thirty messages that begin with "How do I" don't make that a part of the prompt. Read
`find_template`.
"""

import re
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from bertsmith.mirror.call import ChatMessage, CompletionRequest
from bertsmith.text.files.values import is_blank

BETWEEN = "\n"  # joins the texts of several gaps
_SHOWN = 60  # characters of a long constant text, at each end
FEWEST = 20  # different calls; what fewer of them share may be chance
_MAX_COMPARED = 400  # calls that are compared
_MIN_WORDS = 3  # shared words without a mark that count as a part of the prompt
_ENDS = re.compile(r"[\n:>\"“”`\])}]\s*")
_BEGINS = re.compile(r"[\n<\"“”`\[({}\])]")
# Between two gaps: a closing tag, a line's beginning up to its colon or tag, a whole line, or the next key of
# a JSON object.
_BETWEEN = re.compile(r"</[\w-]+>|\n[^\n]{0,80}?[:>](?:[ \n]+|$|\"?)|\n[^\n]+\n|\",\s*\"[\w -]+\":\s*\"?")


class PartTemplate(BaseModel):
    """The template of one text of a message: the constant `pieces` around its gaps. With one piece the text
    is constant; with ("", "") all of it varies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pieces: tuple[str, ...]

    def gaps(self, text: str) -> list[str] | None:
        """The texts in the gaps; None if `text` doesn't fit. Each piece is matched where it first occurs."""
        first, *others = self.pieces
        if not others:
            return [] if text == first else None
        *middle, last = others
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return None
        begin, end, gaps = len(first), len(text) - len(last), list[str]()
        for piece in middle:
            position = text.find(piece, begin, end)
            if position < 0:
                return None
            gaps.append(text[begin:position])
            begin = position + len(piece)
        return [*gaps, text[begin:end]]


class MessageTemplate(BaseModel):
    """The template of one message: its role and the templates of its parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str
    parts: tuple[PartTemplate, ...]


class PromptTemplate(BaseModel):
    """The template of a version's messages, including the system prompt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    messages: tuple[MessageTemplate, ...]

    @property
    def has_input(self) -> bool:
        """Whether there is a gap, so that calls differ in their input."""
        return any(len(part.pieces) > 1 for message in self.messages for part in message.parts)

    def input_of(self, request: CompletionRequest) -> str | None:
        """The text that a student reads: the texts in the gaps, joined by line breaks. None if the messages
        don't fit the template or the gaps are blank, as fine-tuning understands it; then the LLM answers.
        """
        return self.input_of_messages((*request.system, *request.inputs))  # in the order of stored calls

    def input_of_messages(self, messages: Sequence[ChatMessage]) -> str | None:
        """As `input_of`, for messages in the order in which the store has them: system messages first."""
        if len(messages) != len(self.messages):
            return None
        texts: list[str] = []
        for message, template in zip(messages, self.messages, strict=True):
            if message.role != template.role or len(message.parts) != len(template.parts):
                return None
            for text, part in zip(message.parts, template.parts, strict=True):
                gaps = part.gaps(text)
                if gaps is None:
                    return None
                texts += gaps
        return None if all(map(is_blank, texts)) else BETWEEN.join(texts)

    def describe(self) -> str:
        """The template in words: one line a part, gaps as «text», long constant texts shortened."""
        gaps = sum(len(part.pieces) - 1 for message in self.messages for part in message.parts)
        names = iter(["text"] if gaps == 1 else [f"text {number}" for number in range(1, gaps + 1)])
        lines = []
        for message in self.messages:
            for part in message.parts:
                first, *others = (
                    piece if len(piece) <= 2 * _SHOWN + 5 else f"{piece[:_SHOWN]} … {piece[-_SHOWN:]}"
                    for piece in part.pieces
                )
                line = first + "".join(f"«{next(names)}»{piece}" for piece in others)
                lines.append(f"{message.role}: {line}")
        return "\n".join(lines)


def find_template(calls: Sequence[Sequence[ChatMessage]]) -> PromptTemplate | None:
    """Finds the template of calls, given as their messages. None if fewer than twenty of them differ, or
    nothing varies. The most frequent order of roles counts; calls with another one are left to the LLM.
    """
    shapes = Counter(_message_shape(messages) for messages in calls)
    if not shapes:
        return None
    shape = shapes.most_common(1)[0][0]
    alike = [messages for messages in calls if _message_shape(messages) == shape]
    different = list({tuple(message.parts for message in messages): messages for messages in alike}.values())
    if len(different) < FEWEST:
        return None
    step = max(len(different) // _MAX_COMPARED, 1)
    sample = different[::step]
    template = PromptTemplate(
        messages=tuple(
            MessageTemplate(
                role=role,
                parts=tuple(
                    PartTemplate(
                        pieces=find_constant_pieces([messages[number].parts[part] for messages in sample])
                    )
                    for part in range(parts)
                ),
            )
            for number, (role, parts) in enumerate(shape)
        )
    )
    return template if template.has_input else None


def find_constant_pieces(texts: Sequence[str]) -> tuple[str, ...]:
    """Finds the constant pieces around the gaps of texts from one template; one piece if all are the same."""
    texts = list(dict.fromkeys(texts))
    if len(texts) == 1:
        return (texts[0],)
    first = _cut_prefix(_common_prefix(texts))
    rests = [text[len(first) :] for text in texts]
    last = _cut_suffix(_common_prefix([rest[::-1] for rest in rests])[::-1])
    return (first, *_find_middle_pieces([rest[: len(rest) - len(last)] for rest in rests]), last)


def _common_prefix(texts: Sequence[str]) -> str:
    """The longest common prefix: that of the alphabetically first and last text."""
    first, last = min(texts), max(texts)
    length = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def _cut_prefix(shared: str) -> str:
    """Cuts a common prefix after its last mark that ends a prompt; without a mark, after its last whole word,
    if it has at least three.
    """
    marks = list(_ENDS.finditer(shared))
    if marks:
        return shared[: marks[-1].end()]
    words = shared[: shared.rfind(" ") + 1]
    return words if len(words.split()) >= _MIN_WORDS else ""


def _cut_suffix(shared: str) -> str:
    """Cuts a common suffix before its first mark; without a mark, before its first whole word, if it has at
    least three.
    """
    mark = _BEGINS.search(shared)
    if mark:
        return shared[mark.start() :]
    words = shared[shared.find(" ") :] if " " in shared else ""
    return words if len(words.split()) >= _MIN_WORDS else ""


def _find_middle_pieces(gaps: list[str]) -> list[str]:
    """The pieces that all gaps share, in the order of the shortest gap."""
    shortest, pieces = min(gaps, key=len), list[str]()
    ends = [0] * len(gaps)  # of the last shared piece, in each gap
    for match in _BETWEEN.finditer(shortest):
        piece = match.group()
        begins = [gap.find(piece, end) for gap, end in zip(gaps, ends, strict=True)]
        if not piece.strip() or min(begins) < 0:
            continue
        if pieces and begins == ends:  # there is never anything between it and the one before
            pieces[-1] += piece
        else:
            pieces.append(piece)
        ends = [begin + len(piece) for begin in begins]
    return pieces


def _message_shape(messages: Sequence[ChatMessage]) -> tuple[tuple[str, int], ...]:
    return tuple((message.role, len(message.parts)) for message in messages)
