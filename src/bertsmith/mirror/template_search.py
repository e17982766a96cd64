"""What a site's prompts share → the template in whose gaps the input stands.

A constant text ends where a line, a colon, a quotation mark or a tag does, not where all inputs so far
happened to begin alike: that "How do I" opens each of thirty messages does not make it a part of the prompt.
"""

import re
from collections import Counter
from collections.abc import Sequence

from bertsmith.mirror.call import Message
from bertsmith.mirror.template import MessageTemplate, PartTemplate, Template

FEWEST = 20  # different calls, below which what they share may be chance
_MOST = 400  # that are compared
_SHORTEST = 3  # words without a mark behind them that are taken for a prompt
_ENDS = re.compile(r"[\n:>\"“”`\])}]\s*")
_BEGINS = re.compile(r"[\n<\"“”`\[({}\])]")
# Between two gaps: a closing tag, a line's beginning up to its colon or tag, a whole line, or the next key of
# a JSON object.
_BETWEEN = re.compile(r"</[\w-]+>|\n[^\n]{0,80}?[:>](?:[ \n]+|$|\"?)|\n[^\n]+\n|\",\s*\"[\w -]+\":\s*\"?")


def find_template(calls: Sequence[Sequence[Message]]) -> Template | None:
    """Of the messages of calls; None where fewer than twenty of them differ, or nothing varies. Calls whose
    messages follow another order of roles are left to the LLM.
    """
    shapes = Counter(_shape(messages) for messages in calls)
    if not shapes:
        return None
    shape = shapes.most_common(1)[0][0]
    alike = [messages for messages in calls if _shape(messages) == shape]
    different = list({_texts(messages): messages for messages in alike}.values())
    if len(different) < FEWEST:
        return None
    step = max(len(different) // _MOST, 1)
    some = different[::step]
    found = Template(
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


def _shape(messages: Sequence[Message]) -> tuple[tuple[str, int], ...]:
    return tuple((message.role, len(message.parts)) for message in messages)


def _texts(messages: Sequence[Message]) -> tuple[tuple[str, ...], ...]:
    return tuple(message.parts for message in messages)
