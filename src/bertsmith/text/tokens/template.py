"""Which special tokens stand around a text, and around two: what the tokenizer's own post-processor says.

BERT       [CLS] text [SEP]       [CLS] first [SEP] second [SEP], the second half as segment 1
RoBERTa    <s> text </s>          <s> first </s> </s> second </s>, one segment (Liu et al. 2019)
"""

from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import models


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
