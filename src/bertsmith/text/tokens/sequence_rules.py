"""How a model input is built by the tokenizer's files: the special tokens around texts, and their truncation.

BERT       [CLS] text [SEP]       [CLS] first [SEP] second [SEP], the second half as segment 1
RoBERTa    <s> text </s>          <s> first </s> </s> second </s>, one segment (Liu et al. 2019)

Texts that are too long are truncated by the rules of the `tokenizers` library, with which published models
were trained.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer as Backend
from tokenizers import models

from bertsmith.errors import TokenizerError

Strategy = Literal["longest_first", "only_first", "only_second"]
Direction = Literal["right", "left"]

_MAX_AROUND_TWO = 6  # special tokens around two texts: the shortest input has eight tokens
# As tokenizer.json spells them.
_STRATEGIES: dict[Any, Strategy] = {
    "LongestFirst": "longest_first",
    "OnlyFirst": "only_first",
    "OnlySecond": "only_second",
}
_DIRECTIONS: tuple[Direction, ...] = ("right", "left")


@dataclass(frozen=True)
class SequenceTemplate:
    """Ids of the special tokens before, between and after the texts, and the segments of a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    segments: tuple[int, int] = (0, 1)

    def count_special_tokens(self, texts: int) -> int:
        """How many special tokens an input of one text, or of two, has."""
        return len(self.before) + len(self.behind) + (len(self.between) if texts == 2 else 0)


def read_template(
    backend: Backend, cls_id: int, sep_id: int, where: Path | str = "The tokenizer"
) -> SequenceTemplate:
    """The template of the post-processor, read off from its output for one text and for a pair.

    If it adds no tokens, the template is BERT's, or RoBERTa's for a byte-level or Unigram vocabulary
    without [CLS].
    `where` names the tokenizer in messages. Raises TokenizerError if a single text stands between other
    tokens than the texts of a pair, or if the segments don't change right before the second text.
    """
    single, pair = backend.encode("a"), backend.encode("a", "b")
    if not any(single.special_tokens_mask) and not any(pair.special_tokens_mask):
        if isinstance(backend.model, models.BPE | models.Unigram) and backend.id_to_token(cls_id) != "[CLS]":
            return SequenceTemplate((cls_id,), (sep_id, sep_id), (sep_id,), (0, 0))
        return SequenceTemplate((cls_id,), (sep_id,), (sep_id,))
    text = tuple(backend.encode("a", add_special_tokens=False).ids)
    ids = tuple(pair.ids)
    positions = [index for index, special in enumerate(pair.special_tokens_mask) if not special]
    first, second = positions[0], positions[len(text)]
    segments = pair.type_ids[first], pair.type_ids[second]
    template = SequenceTemplate(
        ids[:first], ids[first + len(text) : second], ids[positions[-1] + 1 :], segments
    )
    fits = (
        (*template.before, *text, *template.behind) == tuple(single.ids)
        and not any(single.type_ids)
        and pair.type_ids == [segments[0]] * second + [segments[1]] * (len(ids) - second)
    )
    if not fits:
        raise TokenizerError(
            f"{where}: its post-processor makes {' '.join(single.tokens)!r} of one text, with the segments "
            f"{single.type_ids}, and {' '.join(pair.tokens)!r} of two, with {pair.type_ids}. Bertsmith puts "
            "the same special tokens before and behind both, in segment 0 around one text, and the second "
            "text begins the second segment. Use a tokenizer with such a post-processor."
        )
    return template


def require_usable(template: SequenceTemplate, pieces: int, path: Path) -> None:
    """Raises TokenizerError if special tokens are outside the vocabulary, or leave no room for a short text.

    `pieces` is the size of the vocabulary, `path` the tokenizer's file.
    """
    count = template.count_special_tokens(2)
    if count > _MAX_AROUND_TWO:
        raise TokenizerError(
            f"{path}: its post-processor puts {count:,} special tokens around two texts; expected at most "
            f"{_MAX_AROUND_TWO}, such as [CLS] first [SEP] second [SEP]."
        )
    unknown_ids = [
        token_id for token_id in (*template.before, *template.between, *template.behind) if token_id >= pieces
    ]
    if unknown_ids:
        raise TokenizerError(
            f"{path}: its post-processor puts the id {unknown_ids[0]} around texts, but ids run from 0 to "
            f"{pieces - 1:,}. It may have been altered."
        )


@dataclass(frozen=True)
class Truncation:
    """Which text of a pair is truncated, and at which end (`direction`) tokens are left out."""

    strategy: Strategy = "longest_first"
    direction: Direction = "right"

    def divide_room(self, first: int, second: int, room: int) -> tuple[int, int]:
        """How many tokens of two texts, with `first` and `second` tokens, are kept: together at most `room`.

        The longer text is cut until it is as long as the other one, then both. If the room is odd, the text
        that was longer keeps one token more, or the second text if they were equally long. If the strategy
        allows to cut only one text and the other leaves no room for it, which `tokenizers` refuses, both are
        cut.
        """
        if first + second <= room:
            return first, second
        if self.strategy == "only_first" and second < room:
            return room - second, second
        if self.strategy == "only_second" and first < room:
            return first, room - first
        shorter = min(first, second, max(room, 0) // 2)
        longer = max(room, 0) - shorter
        return (longer, shorter) if first > second else (shorter, longer)

    def kept_range(self, tokens: int, kept: int) -> tuple[int, int]:
        """The start and end of the `kept` tokens among the `tokens` of a text."""
        return (0, kept) if self.direction == "right" else (tokens - kept, tokens)


USUAL_TRUNCATION = Truncation()


def read_truncation(stated: dict[str, Any] | None, config: dict[str, Any], where: str) -> Truncation:
    """The truncation `stated` in tokenizer.json, with the side of tokenizer_config.json if it names one.

    `where` names the folder in messages. Raises TokenizerError for an unknown strategy or side.
    """
    stated = stated or {}
    strategy = _STRATEGIES.get(stated.get("strategy", "LongestFirst"))
    direction = config.get("truncation_side") or str(stated.get("direction", "Right")).lower()
    if strategy is None or direction not in _DIRECTIONS:
        unknown_value = stated.get("strategy") if strategy is None else direction
        raise TokenizerError(
            f"{where}: {unknown_value!r} is no way to cut texts. Expected the truncation to be "
            f"{', '.join(_STRATEGIES)}, at the side {' or '.join(_DIRECTIONS)}."
        )
    return Truncation(strategy, cast(Direction, direction))
