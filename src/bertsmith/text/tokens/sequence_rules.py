"""What a tokenizer's files say of an input: which special tokens stand around texts, and what of them is cut.

BERT       [CLS] text [SEP]       [CLS] first [SEP] second [SEP], the second half as segment 1
RoBERTa    <s> text </s>          <s> first </s> </s> second </s>, one segment (Liu et al. 2019)

How texts that are too long are cut, and which of two, follows the rules of the `tokenizers` library, by which
the models of others were trained.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer as Backend
from tokenizers import models

from bertsmith.errors import TokenizerError

Strategy = Literal["longest_first", "only_first", "only_second"]
Direction = Literal["right", "left"]

_MOST_AROUND_TWO = 6  # the shortest input has eight tokens
# As tokenizer.json spells them.
_STRATEGIES: dict[Any, Strategy] = {
    "LongestFirst": "longest_first",
    "OnlyFirst": "only_first",
    "OnlySecond": "only_second",
}
_DIRECTIONS: tuple[Direction, ...] = ("right", "left")


@dataclass(frozen=True)
class SequenceTemplate:
    """Ids before, between and behind the texts; `segments` of the two texts of a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    segments: tuple[int, int] = (0, 1)

    def special_tokens(self, texts: int) -> int:
        """How many there are around one text, or around two."""
        return len(self.before) + len(self.behind) + (len(self.between) if texts == 2 else 0)


def read_template(
    backend: Backend, cls_id: int, sep_id: int, where: Path | str = "The tokenizer"
) -> SequenceTemplate:
    """As the post-processor has it, seen on a text and on a pair. Where it adds nothing: BERT's, or RoBERTa's
    for a byte-level vocabulary without [CLS].

    Raises TokenizerError where a text by itself stands between other tokens than the texts of a pair, or
    where segments change elsewhere than in front of the second text.
    """
    single, pair = backend.encode("a"), backend.encode("a", "b")
    if not any(single.special_tokens_mask) and not any(pair.special_tokens_mask):
        if isinstance(backend.model, models.BPE) and backend.id_to_token(cls_id) != "[CLS]":
            return SequenceTemplate((cls_id,), (sep_id, sep_id), (sep_id,), (0, 0))
        return SequenceTemplate((cls_id,), (sep_id,), (sep_id,))
    text = tuple(backend.encode("a", add_special_tokens=False).ids)
    ids, places = tuple(pair.ids), [at for at, special in enumerate(pair.special_tokens_mask) if not special]
    first, second = places[0], places[len(text)]
    segments = pair.type_ids[first], pair.type_ids[second]
    template = SequenceTemplate(ids[:first], ids[first + len(text) : second], ids[places[-1] + 1 :], segments)
    usual = (
        (*template.before, *text, *template.behind) == tuple(single.ids)
        and not any(single.type_ids)
        and pair.type_ids == [segments[0]] * second + [segments[1]] * (len(ids) - second)
    )
    if not usual:
        raise TokenizerError(
            f"{where}: its post-processor makes {' '.join(single.tokens)!r} of one text, with the segments "
            f"{single.type_ids}, and {' '.join(pair.tokens)!r} of two, with {pair.type_ids}. Bertsmith puts "
            "the same special tokens before and behind both, in segment 0 around one text, and the second "
            "text begins the second segment. Use a tokenizer with such a post-processor."
        )
    return template


def require_usable(template: SequenceTemplate, pieces: int, path: Path) -> None:
    """Raises TokenizerError where special tokens are no pieces, or leave no room for a short text."""
    count = template.special_tokens(2)
    if count > _MOST_AROUND_TWO:
        raise TokenizerError(
            f"{path}: its post-processor puts {count:,} special tokens around two texts; expected at most "
            f"{_MOST_AROUND_TWO}, such as [CLS] first [SEP] second [SEP]."
        )
    strange = [n for n in (*template.before, *template.between, *template.behind) if n >= pieces]
    if strange:
        raise TokenizerError(
            f"{path}: its post-processor puts the id {strange[0]} around texts, but ids run from 0 to "
            f"{pieces - 1:,}. It may have been altered."
        )


@dataclass(frozen=True)
class Truncation:
    """`direction` is the end at which tokens are left out."""

    strategy: Strategy = "longest_first"
    direction: Direction = "right"

    def kept(self, first: int, second: int, room: int) -> tuple[int, int]:
        """How many of the tokens of two texts stay, which together are at most `room`.

        Of the longer text so many are left out that it has as many as the other; if the room is odd, the one
        that was longer keeps one more, and the second of two that were as long. Where one text alone may be
        cut and the other leaves it no room, which `tokenizers` refuses, both are.
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

    def range(self, tokens: int, kept: int) -> tuple[int, int]:
        """Which of a text's tokens are the `kept` ones: start and end."""
        return (0, kept) if self.direction == "right" else (tokens - kept, tokens)


USUAL_TRUNCATION = Truncation()


def read_truncation(stated: dict[str, Any] | None, config: dict[str, Any], where: str) -> Truncation:
    """What tokenizer.json has `stated`, but for the side, if tokenizer_config.json names one. Raises
    TokenizerError for a value that is none.
    """
    stated = stated or {}
    strategy = _STRATEGIES.get(stated.get("strategy", "LongestFirst"))
    direction = config.get("truncation_side") or str(stated.get("direction", "Right")).lower()
    if strategy is None or direction not in _DIRECTIONS:
        named = stated.get("strategy") if strategy is None else direction
        raise TokenizerError(
            f"{where}: {named!r} is no way to cut texts. Expected the truncation to be "
            f"{', '.join(_STRATEGIES)}, at the side {' or '.join(_DIRECTIONS)}."
        )
    return Truncation(strategy, cast(Direction, direction))
