"""The texts of golden answers: the same for every model, and some of its own vocabulary."""

from typing import NamedTuple

from bertsmith.text.tokens.tokenizer import Tokenizer

# Several scripts, accents, numbers, odd characters, special tokens as text, and a text of almost nothing.
FIXED: tuple[str | tuple[str, str], ...] = (
    "The court granted the motion on 3 May 2019, at 10:45 a.m.",
    "my card hasn't arrived yet :( can u help??",
    "WHY IS THIS IN CAPITALS? Because It Matters.",
    "Der Käufer zahlte 1.234,56 € für die Wohnung in Köln; naïve coöperation, déjà vu.",
    "Москва — столица России. Київ — столиця України.",
    "他在北京大学学习计算机科学。東京は日本の首都です。",
    "서울은 대한민국의 수도이다.",
    "القاهرة عاصمة مصر، والنيل أطول أنهارها.",
    "नई दिल्ली भारत की राजधानी है।",
    "ประเทศไทยมีเมืองหลวงคือกรุงเทพ",
    "[CLS] a [SEP] b [MASK] c [PAD] <s> </s> <mask>",
    "e\u0301 é \u00a0 \u200b \ufeff a\u0000b\tc\r\nd 👩‍👩‍👧 🇫🇷 \U0001d518 ﬁ ½",
    "https://example.org/a_b?q=1&r=x#top mail@example.org C:\\dir\\file.txt x=y+z;",
    ".",
    ("Who wrote it?", "It was written by Ada in 1843, and translated from French."),
    ("他是谁？", "鲁迅，原名周树人，是中国作家。"),
    ("A man is playing a guitar.", "Someone makes music."),
)
_PIECES = 96  # of the vocabulary, evenly over it
_LINES = 4  # that they are divided among
_ADDED = 16  # tokens that were added to the vocabulary
_LONGEST = 512  # tokens: a text of 8,192 would take a large model half a minute


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


def golden_inputs(tokenizer: Tokenizer, max_length: int) -> list[GoldenInput]:
    """The fixed texts; pieces from the whole of the vocabulary, some in capitals, and those that were added
    to it, so that no part of the table of embeddings goes unread; and, last, a text and a pair of more than
    `max_length` tokens.
    """
    size = tokenizer.vocab_size
    chosen = range(0, size, max(1, size // _PIECES))
    lines = [tokenizer.decode(chosen[start::_LINES]).strip() for start in range(_LINES)]
    added = sorted(tokenizer.backend.get_added_tokens_decoder())
    behind = " ".join(tokenizer.id_to_token(number) for number in added[-_ADDED:])
    found = [GoldenInput(text) for text in (*FIXED, *lines, lines[0].upper(), f"a {behind} b") if text]
    most = max(lines, key=len) or "a"
    times = 1 + min(max_length, _LONGEST) // max(1, len(tokenizer.encode(most).ids))
    return [*found, GoldenInput(most, times), GoldenInput(("Is it so?", most), times)]
