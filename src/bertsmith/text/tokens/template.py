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


def template_of(backend: Backend, cls_id: int, sep_id: int) -> Template:
    """As the post-processor has it, seen on a pair of texts. Where it adds nothing: BERT's, or RoBERTa's for
    a byte-level vocabulary without [CLS].
    """
    pair = backend.encode("a", "b", add_special_tokens=True)
    texts = pair.sequence_ids  # None for a special token
    if {None, 0, 1} == set(texts):
        first, second = texts.index(0), texts.index(1)
        ends = first + texts.count(0), second + texts.count(1)
        segments = pair.type_ids[first], pair.type_ids[second]
        ids = tuple(pair.ids)
        return Template(ids[:first], ids[ends[0] : second], ids[ends[1] :], segments)
    if isinstance(backend.model, models.BPE) and backend.id_to_token(cls_id) != "[CLS]":
        return Template((cls_id,), (sep_id, sep_id), (sep_id,), (0, 0))
    return Template((cls_id,), (sep_id,), (sep_id,))
