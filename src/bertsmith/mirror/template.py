"""Where the input is in a call's messages: what a site's prompts share, with gaps for what varies.

user: "Which intent has this message?\\n\\n«text»\\n\\nAnswer as JSON."
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from bertsmith.mirror.call import Asked, Message

BETWEEN = "\n"  # what several varying parts are joined by
_SHOWN = 60  # characters of a long constant text, at each end


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


class Template(BaseModel):
    """What the messages of a version share, system prompt included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    messages: tuple[MessageTemplate, ...]

    @property
    def has_input(self) -> bool:
        """Whether anything varies."""
        return any(len(part.pieces) > 1 for message in self.messages for part in message.parts)

    def input_of(self, asked: Asked) -> str | None:
        """The text that a model reads: what stands in the gaps, joined by a line's end. None where the
        messages are not as these, and where nothing stands there; then the LLM answers.
        """
        return self.input_of_messages((*asked.system, *asked.inputs))  # in the order of stored calls

    def input_of_messages(self, messages: Sequence[Message]) -> str | None:
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
        names = iter(_names(sum(len(part.pieces) - 1 for each in self.messages for part in each.parts)))
        lines = []
        for message in self.messages:
            for part in message.parts:
                first, *others = (_shortened(piece) for piece in part.pieces)
                line = first + "".join(f"«{next(names)}»{piece}" for piece in others)
                lines.append(f"{message.role}: {line}")
        return "\n".join(lines)


def _names(count: int) -> list[str]:
    return ["text"] if count == 1 else [f"text {number}" for number in range(1, count + 1)]


def _shortened(text: str) -> str:
    if len(text) <= 2 * _SHOWN + 5:
        return text
    return f"{text[:_SHOWN]} … {text[-_SHOWN:]}"
