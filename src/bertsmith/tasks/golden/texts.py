"""The texts of golden answers: the same for every model, and some of its own vocabulary."""

from typing import NamedTuple

from bertsmith.text.tokens.tokenizer import Tokenizer

# Several scripts, accents, numbers, odd characters, special tokens as text, and a text of almost nothing.
FIXED: tuple[str | tuple[str, str], ...] = (
    "The court granted the motion on 3 May 2019, at 10:45 a.m.",
    "my card hasn't arrived yet :( can u help??",
    "WHY IS THIS IN CAPITALS? Because It Matters.",
    "Der Käufer zahlte 1.234,56 € für die Wohnung in Köln; naïve coöperation, déjà vu.",
    "Москва — столица России. Київ.",
    "他在北京大学学习计算机科学。東京は日本の首都です。",
    "서울은 대한민국의 수도이다.",
    "القاهرة عاصمة مصر، والنيل.",
    "नई दिल्ली भारत की राजधानी है।",
    "ประเทศไทยมีเมืองหลวงคือกรุงเทพ",
    "[CLS] a [SEP] b [MASK] c [PAD] <s> </s> <mask>",
    "e\u0301 é \u00a0 \u200b \ufeff a\u0000b\tc\r\nd 👩‍👩‍👧 🇫🇷 \U0001d518 ﬁ ½",
    "https://example.org/a_b?q=1#top mail@x.org C:\\dir x=y+z;",
    ".",
    ("Who wrote it?", "It was written by Ada in 1843, and translated from French."),
    ("他是谁？", "鲁迅，原名周树人，是中国作家。"),
    ("A man is playing a guitar.", "Someone makes music."),
)
_PIECES = 96  # of the vocabulary, evenly over it
_LINES = 4  # that they are divided among
_ADDED = 8  # tokens in a text, which the shortest models read whole
_ADDED_LINES = 16
_CAPITALS = 32  # characters
_LONGEST = 512  # tokens: a text of 8,192 would take a large model half a minute
_QUESTION = "Is it so?"


class GoldenInput(NamedTuple):
    """A text or a pair, of which the last text is repeated so many `times`, with blanks between."""

    text: str | tuple[str, str]
    times: int = 1

    @property
    def given(self) -> str | tuple[str, str]:
        """As a model is asked."""
        *before, last = (self.text,) if isinstance(self.text, str) else self.text
        whole = " ".join([last] * self.times)
        return (before[0], whole) if before else whole


def golden_inputs(tokenizer: Tokenizer, max_length: int, *, pairs_alone: bool = False) -> list[GoldenInput]:
    """The fixed texts; all tokens that were added to the vocabulary, and pieces from the whole of it, some in
    capitals, so that no part of the table of embeddings goes unread; and, last, a text and a pair of more
    than `max_length` tokens. Of a model of `pairs_alone` each text is the second one of a pair.
    """
    size = tokenizer.vocab_size
    chosen = range(0, size, max(1, size // _PIECES))
    lines = [tokenizer.decode(chosen[start::_LINES]).strip() for start in range(_LINES)]
    capitals = lines[0].upper()[:_CAPITALS]
    most = max(lines, key=len) or "a"
    times = 1 + min(max_length, _LONGEST) // max(1, len(tokenizer.encode(most).ids))
    fixed = [text for text in FIXED if not pairs_alone or not isinstance(text, str)]
    own = [text for text in (*_added_lines(tokenizer), *lines, capitals) if text]
    own_inputs = [GoldenInput((_QUESTION, text) if pairs_alone else text) for text in own]
    long = [] if pairs_alone else [GoldenInput(most, times)]
    return [*map(GoldenInput, fixed), *own_inputs, *long, GoldenInput((_QUESTION, most), times)]


def _added_lines(tokenizer: Tokenizer) -> list[str]:
    """The tokens between full stops, next to which each stands as a whole; with blanks around those that
    aren't blank themselves, and would be another one.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    tokens = [added[number].content for number in sorted(added) if number not in tokenizer.special_ids]
    apart = [token if token.isspace() else f" {token} " for token in tokens]
    starts = range(0, min(len(apart), _ADDED * _ADDED_LINES), _ADDED)
    return [f"a.{'.'.join(apart[start : start + _ADDED])}.b" for start in starts]
