"""Which special tokens stand around a text, and around two: what the tokenizer's own post-processor says.

BERT       [CLS] text [SEP]       [CLS] first [SEP] second [SEP], the second half as segment 1
RoBERTa    <s> text </s>          <s> first </s> </s> second </s>, one segment (Liu et al. 2019)
"""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import models

from bertsmith.errors import TokenizerError

_MOST_AROUND_TWO = 6  # the shortest input has eight tokens


@dataclass(frozen=True)
class Template:
    """Ids before, between and behind the texts; `segments` of the two texts of a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]
    segments: tuple[int, int] = (0, 1)

    def special_tokens(self, texts: int) -> int:
        """How many there are around one text, or around two."""
        return len(self.before) + len(self.behind) + (len(self.between) if texts == 2 else 0)


def require_usable(template: Template, pieces: int, path: Path) -> None:
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


def template_of(backend: Backend, cls_id: int, sep_id: int, where: Path | str = "The tokenizer") -> Template:
    """As the post-processor has it, seen on a text and on a pair. Where it adds nothing: BERT's, or RoBERTa's
    for a byte-level vocabulary without [CLS].

    Raises TokenizerError where a text by itself stands between other tokens than the texts of a pair, or
    where segments change elsewhere than in front of the second text.
    """
    single, pair = backend.encode("a"), backend.encode("a", "b")
    if not any(single.special_tokens_mask) and not any(pair.special_tokens_mask):
        if isinstance(backend.model, models.BPE) and backend.id_to_token(cls_id) != "[CLS]":
            return Template((cls_id,), (sep_id, sep_id), (sep_id,), (0, 0))
        return Template((cls_id,), (sep_id,), (sep_id,))
    text = tuple(backend.encode("a", add_special_tokens=False).ids)
    ids, places = tuple(pair.ids), [at for at, special in enumerate(pair.special_tokens_mask) if not special]
    first, second = places[0], places[len(text)]
    segments = pair.type_ids[first], pair.type_ids[second]
    template = Template(ids[:first], ids[first + len(text) : second], ids[places[-1] + 1 :], segments)
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
