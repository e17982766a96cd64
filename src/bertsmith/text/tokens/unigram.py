"""What SentencePiece's Unigram tokenizers (Kudo 2018) need beside the `tokenizers` library, which finds their
pieces: the most likely ones that spell a text.

"▁" is how their pieces write a blank, and it stands before the first word of a text too. Where a script has
no blanks, a text is one long run.

    V   pieces in the vocabulary        T   pieces of a text
"""

import base64
import binascii
import json
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertsmith.text.tokens.long_texts import PART, CompactEncoding, TextEncoding

MARK = "\u2581"
#: How a piece for one byte is spelt, in vocabularies that fall back on bytes.
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
#: Bytes of a table of characters; SentencePiece's own have 0.3 million.
MAX_TABLE = 1 << 22
_BYTES = np.arange(1, 256)
_PLACES_AT_ONCE = 1 << 14
#: Characters of a piece; the library frees its tree of characters by recursion.
MAX_PIECE = 512
_PARTS_AT_ONCE = 8
_CHARACTERS_PER_TOKEN = 16
_NEAR_END = 1 << 10  # characters
_MOST_CACHED = 1 << 16  # pairs of characters
_NO_OFFSETS = np.zeros((0, 2), np.int32)
_BLANK = re.compile(r"(?<=\S) (?=\S)")
#: Scripts that write no blanks between words, with their digits: Thai, Lao, Tibetan, Burmese, Khmer, kana and
#: Chinese characters.
_WITHOUT_BLANKS = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aad\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff]"
)
# Letters that the library's normalizer reads together with the one before, or with the one behind (Unicode
# Annex 29, rules GB6 to GB9b). Other characters that do so are no letters, digits or punctuation.
_JOINED_TO_LAST = re.compile("[\u0e33\u0eb3\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\uff9e\uff9f]")
_JOINED_TO_NEXT = re.compile(
    "[\u0d4e\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\U000111c2\U000111c3\U000113d1\U0001193f\U00011941"
    "\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02]"
)


def build_normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """The normalizer of vocabularies that are learned here: NFKC, and with `lowercase` small letters. Accents
    stay: vowels are such marks in Thai and Hindi.
    """
    return normalizers.Sequence([normalizers.NFKC(), *([normalizers.Lowercase()] if lowercase else [])])


def build_unigram_backend(
    pieces: Sequence[tuple[str, float]], special: dict[str, str], *, lowercase: bool
) -> Backend:
    """XLM-RoBERTa's tokenizer with BERT's special tokens, over `pieces` with their scores, in the order of
    their ids. `special` maps roles to tokens.

    If the pieces have those of all 256 bytes, unknown characters are spelt by these.
    """
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    falls_back = ids.keys() >= set(BYTE_PIECES)
    backend = Backend(models.Unigram(list(pieces), ids[special["unk"]], falls_back))
    backend.normalizer = build_normalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(MARK, "always")]
    )
    backend.decoder = decoders.Metaspace(MARK, "always")
    if falls_back:
        blanks = decoders.Replace(MARK, " "), decoders.Strip(" ", 1, 0)
        backend.decoder = decoders.Sequence([blanks[0], decoders.ByteFallback(), decoders.Fuse(), blanks[1]])
    cls, sep = special["cls"], special["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )
    backend.add_special_tokens(sorted(special.values(), key=ids.__getitem__))
    return backend


def find_charsmap_fault(encoded: str) -> str | None:
    """What is wrong with SentencePiece's table of characters, in base64; None if it can be read safely.

    It has a length in 4 bytes, a double-array trie of that length (the format of darts-clone) from spellings
    to places in what follows, and the replacements, each ended by a zero byte. The library follows the trie
    without looking where it leads.
    """
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "is no base64"
    size = int.from_bytes(content[:4], "little")
    if len(content) > MAX_TABLE:
        return f"has {len(content):,} bytes, and at most {MAX_TABLE:,} are read"
    if len(content) < 8 or size % 4 or not 4 <= size <= len(content) - 4:
        return f"says that its trie has {size:,} of {max(0, len(content) - 4):,} bytes"
    units, replacements = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64), content[4 + size :]
    try:
        text = replacements.decode("utf-8")
    except UnicodeDecodeError:
        return "has replacements that are not UTF-8"
    ends = np.cumsum([0, *(len(character.encode()) for character in text)])
    labels, offsets = units & 0x800000FF, (units >> 10) << ((units & 0x200) >> 6)
    seen = np.zeros(len(units), bool)
    pending = [offsets[:1]]  # places from which a byte leads on, each (P,)
    while pending:
        places = pending.pop()
        steps = places[:, None] ^ _BYTES  # (P, 255)
        if steps.max() >= len(units) or places.max() >= len(units):
            return "leads out of its trie"
        seen[places] = True
        taken = steps[labels[steps] == _BYTES]
        places = taken ^ offsets[taken]
        if places.max(initial=0) >= len(units):
            return "leads out of its trie"
        values = units[places[(units[taken] >> 8) & 1 == 1]] & 0x7FFFFFFF
        if not np.isin(values, ends).all():
            return "leads to no replacement"
        new = np.unique(places[~seen[places]])
        pending += [new[start : start + _PLACES_AT_ONCE] for start in range(0, len(new), _PLACES_AT_ONCE)]
    return None


def read_rules(backend: Backend) -> dict[str, Any]:
    """The content of the backend's tokenizer.json, but for its pieces and added tokens."""
    shell = Backend(models.Unigram([("?", 0.0)], 0))
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (component := getattr(backend, name)) is not None:
            setattr(shell, name, component)
    rules: dict[str, Any] = json.loads(shell.to_str())
    return rules


def build_backend(rules: dict[str, Any], model: models.Unigram, tokens: Sequence[AddedToken]) -> Backend:
    """A tokenizer with this model, which it shares, the rules of `read_rules` and added tokens."""
    backend = Backend.from_str(json.dumps(rules))
    backend.model = model
    backend.add_tokens(list(tokens))
    backend.encode_special_tokens = True
    return backend


def build_text_backend(backend: Backend, special_ids: Sequence[int]) -> Backend:
    """A copy of `backend` to which special tokens are plain text, while other added tokens are recognised.

    To the library they are pieces like others, and the most likely ones. Here they have names with a blank,
    which no text has when it is split into pieces. Their scores stay: unknown characters are rated by the
    lowest of all.
    """
    state = json.loads(backend.model.__getstate__())
    pieces = [(piece, score) for piece, score in state["vocab"]]
    names = {piece for piece, _ in pieces}
    for number in special_ids:
        if number < len(pieces):
            name, score = pieces[number]
            while name in names:
                name = " " + name
            names.add(name)
            pieces[number] = (name, score)
    model = models.Unigram(pieces, state["unk_id"], state["byte_fallback"])
    tokens = backend.get_added_tokens_decoder()
    kept = sorted(number for number in tokens if number not in special_ids or number >= len(pieces))
    for number in kept:
        tokens[number].special = number in special_ids
    return build_backend(read_rules(backend), model, [tokens[number] for number in kept])


def build_reading_backend(
    backend: Backend, text_backend: Backend, special_ids: Sequence[int]
) -> tuple[Backend, dict[int, int]]:
    """A copy of `text_backend` that recognises special tokens, and the true ids of those that have another
    one there.
    """
    tokens, others = backend.get_added_tokens_decoder(), text_backend.get_added_tokens_decoder()
    hidden = [tokens[number] for number in special_ids if number not in others]
    kept = [others[number] for number in sorted(others)]
    reading = build_backend(read_rules(backend), text_backend.model, [*kept, *hidden])
    reading.encode_special_tokens = False
    true_ids = {token.content: number for number, token in tokens.items()}
    return reading, {
        number: true_ids[token.content]
        for number, token in reading.get_added_tokens_decoder().items()
        if number != true_ids[token.content]
    }


def replaces_blanks(content: dict[str, Any]) -> bool:
    """Whether a tokenizer.json leaves no blank in what is split into pieces."""
    if "Metaspace" in (part["type"] for part in list_parts(content.get("pre_tokenizer"), "pretokenizers")):
        return True
    parts = list_parts(content.get("normalizer"), "normalizers")
    return bool(parts) and parts[-1].get("pattern") == {"String": " "} and " " not in parts[-1]["content"]


def list_parts(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The parts of a component of tokenizer.json, under `key` if it is a sequence."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [inner for part in component[key] for inner in list_parts(part, key)]


def lone_marks(backend: Backend) -> frozenset[int]:
    """The ids of the pieces that are blanks and nothing else."""
    ids = (backend.token_to_id(MARK * length) for length in range(1, MAX_PIECE + 1))
    return frozenset(number for number in ids if number is not None)


def trim_offsets(
    text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]], lone: frozenset[int]
) -> list[tuple[int, int]]:
    """The offsets (T, 2) without white space in front. A piece of `lone` that a text doesn't spell is empty,
    where the next word begins: the library gives it the blank before, or that word's first character.
    """
    trimmed = []
    for token_id, (start, end) in zip(ids, offsets, strict=True):
        while start < end and text[start].isspace():
            start += 1
        if token_id in lone and not text.startswith(MARK, start, end):
            while start < len(text) and text[start].isspace():
                start += 1
            end = start
        trimmed.append((start, end))
    return trimmed


class PieceEncoding:
    """A TextEncoding of the library whose offsets are trimmed, when they are first read."""

    def __init__(self, text: str, encoding: TextEncoding, lone: frozenset[int]) -> None:
        self._text, self._encoding, self._lone = text, encoding, lone

    @property
    def ids(self) -> Sequence[int]:
        """The ids of the pieces (T,), special ones included."""
        return self._encoding.ids

    @cached_property
    def offsets(self) -> list[tuple[int, int]]:
        """The offsets (T, 2) in characters."""
        offsets: Any = self._encoding.offsets
        return trim_offsets(self._text, self._encoding.ids, offsets, self._lone)


def word_marks(pieces: Sequence[str]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int8]]:
    """(V,) whether a piece continues the word before it, and (V,) what it makes of the next piece: 1 if that
    continues its word whatever it is ("▁" alone), -1 if that begins a word (behind a script without blanks),
    0 if the next piece decides.

    In a script without blanks each piece is a word of its own, as each character is to BERT.
    """
    continues = [not piece.startswith(MARK) and not _WITHOUT_BLANKS.match(piece) for piece in pieces]
    decides = [
        1 if not piece.strip(MARK) else -1 if _WITHOUT_BLANKS.match(piece[-1]) else 0 for piece in pieces
    ]
    return np.array(continues, np.bool_), np.array(decides, np.int8)


def can_be_cut(backend: Backend) -> bool:
    """Whether `UnigramSplitter` knows the rules of a backend: one of SentencePiece's three shapes, and added
    tokens that are found wherever a text has them, with nothing around.
    """
    rules = read_rules(backend)
    kinds = [part["type"] for part in list_parts(rules["pre_tokenizer"], "pretokenizers")]
    searched = [token for token in backend.get_added_tokens_decoder().values() if not token.special]
    return kinds in ([], ["Metaspace"], ["WhitespaceSplit", "Metaspace"]) and not any(
        token.lstrip or token.rstrip or token.single_word or token.normalized or _has_blank(token.content)
        for token in searched
    )


class UnigramSplitter:
    """Tokenizes long texts part by part, with the pieces of the whole text.

    A text is cut at a blank or, in a run without blanks, between two characters that stand next to each other
    in no piece: every way to spell the text has a boundary there. Such a part begins without "▁". Scores are
    added up from a part's beginning, so that between two spellings that are equally likely the rounding may
    choose another one.

    Where no such place is within a part, as in a million times the same letter, it is cut all the same, and
    up to two pieces there may be others.
    """

    def __init__(self, backend: Backend, unk_id: int, lone: frozenset[int]) -> None:
        """`backend` tokenizes the parts; `can_be_cut` tells where a text may be divided into them."""
        self._backend, self._unk_id, self._lone = backend, unk_id, lone
        content = read_rules(backend)
        splitters = list_parts(content["pre_tokenizer"], "pretokenizers")
        rules = list_parts(content["normalizer"], "normalizers")
        kinds = [part["type"] for part in splitters]
        always = any(part.get("prepend_scheme") == "always" for part in splitters)
        # XLM-RoBERTa's shape: no blank is left, and each word is marked. Elsewhere a blank becomes the mark.
        self._marks_words = "WhitespaceSplit" in kinds and always
        self._is_one_run = "WhitespaceSplit" not in kinds and not any(part.get("split") for part in splitters)
        added = list(backend.get_added_tokens_decoder().values())
        tokens = sorted((token.content for token in added if not token.special), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        patterns = [part["pattern"].get("String") or "" for part in rules if part["type"] == "Replace"]
        self._read_together = _neighbours([*tokens, *patterns])
        for part in splitters:
            if part["type"] == "Metaspace":
                part["prepend_scheme"] = "never"
        local = [part for part in rules if part["type"] not in ("Prepend", "Strip")]
        content["normalizer"] = {"type": "Sequence", "normalizers": local}
        self._normalizer = build_backend(content, backend.model, []).normalizer
        later = [
            part | {"strip_left": False} if part["type"] == "Strip" else part
            for part in rules
            if part["type"] != "Prepend"
        ]
        content["normalizer"] = {"type": "Sequence", "normalizers": later}
        self._continuing_backend = build_backend(content, backend.model, added)
        self._normalised: dict[str, str] = {}
        self._cuts: dict[tuple[str, str], bool] = {}

    @cached_property
    def _in_pieces(self) -> set[tuple[str, str]]:
        """The pairs of characters that stand next to each other in a piece."""
        return _neighbours(self._backend.get_vocab(with_added_tokens=False))

    def encode(self, texts: Sequence[str], enough: int | None, offsets: bool) -> list[TextEncoding]:
        """The pieces of many texts. With `enough`, a long text is read until it has at least that many."""
        size = PART if enough is None else min(PART, _CHARACTERS_PER_TOKEN * enough)
        firsts = [next(self.split(text, size), (0, "", False))[1] for text in texts]
        encodings = self._encode_parts([(0, first, False) for first in firsts], offsets)
        for index, (text, first) in enumerate(zip(texts, firsts, strict=True)):
            if len(first) < len(text) and (enough is None or len(encodings[index].ids) < enough):
                encodings[index] = self._encode_long_text(self.split(text, size), enough, offsets)
        return encodings

    def _encode_parts(self, parts: Sequence[tuple[int, str, bool]], offsets: bool) -> list[TextEncoding]:
        encodings: list[TextEncoding] = [CompactEncoding((), _NO_OFFSETS)] * len(parts)
        for continues, backend in ((False, self._backend), (True, self._continuing_backend)):
            indices = [index for index, part in enumerate(parts) if part[2] == continues]
            texts = [parts[index][1] for index in indices]
            encode = backend.encode_batch if offsets else backend.encode_batch_fast
            for index, text, encoding in zip(
                indices, texts, encode(texts, add_special_tokens=False), strict=True
            ):
                encodings[index] = PieceEncoding(text, encoding, self._lone) if offsets else encoding
        return encodings

    def _encode_long_text(
        self, parts: Iterator[tuple[int, str, bool]], enough: int | None, offsets: bool
    ) -> CompactEncoding:
        ids, spans = array("i"), array("i")
        while batch := list(islice(parts, _PARTS_AT_ONCE)):
            for (start, _, continues), encoding in zip(
                batch, self._encode_parts(batch, offsets), strict=True
            ):
                # unknown characters in a row are one piece
                joined = int(
                    continues and bool(ids) and ids[-1] == self._unk_id and encoding.ids[:1] == [self._unk_id]
                )
                ids.extend(encoding.ids[joined:])
                if offsets:
                    part_spans = np.array(encoding.offsets, np.int32).reshape(-1, 2) + start
                    if joined:
                        spans[-1] = int(part_spans[0, 1])
                    spans.frombytes(part_spans[joined:].astype(np.int32).tobytes())
            if enough is not None and len(ids) > enough:  # the last one may still grow
                break
        return CompactEncoding(ids, np.frombuffer(spans, np.int32).reshape(-1, 2))

    def split(self, text: str, size: int = PART) -> Iterator[tuple[int, str, bool]]:
        """The parts of a text of at most `size` characters: (start, part, whether it begins without "▁")."""
        start, continues = 0, False
        while start < len(text):
            end, next_continues = self._find_end(text, start, min(start + size, len(text)), continues)
            yield start, text[start:end], continues
            start, continues = end, next_continues

    def _find_end(self, text: str, start: int, limit: int, continues: bool) -> tuple[int, bool]:
        """The end of the part that begins at `start`, and whether the next one begins without "▁"."""
        if continues:
            # What comes behind an added token, or a blank that is split at, is marked again.
            token = self._tokens.search(text, start + 1, limit) if self._tokens else None
            end = token.start() if token else limit
            if self._marks_words:
                blanks = [letter for letter in set(text[start:end]) if _has_blank(self._normalise(letter))]
                end = min([end, *(text.index(letter, start, end) for letter in blanks)])
            if end == start:  # the part's first character is such a blank
                return self._find_end(text, start, limit, False)
            if end < limit:
                return end, False
        if limit == len(text):
            return limit, False
        near = max(limit - _NEAR_END, start + 1)
        for begin, end in ((near, limit), (start + 1, near)):
            for cut in reversed([match.start() for match in _BLANK.finditer(text, begin, end + 1)]):
                if self._may_cut_at_blank(text[cut - 1], text[cut + 1]):
                    return cut, not self._marks_words
            for cut in range(end, begin - 1, -1):
                if self._may_cut(text[cut - 1], text[cut]):
                    return cut, True
        places = (cut for cut in range(limit, start, -1) if _stand_apart(text[cut - 1], text[cut]))
        return next(places, limit), True

    def _normalise(self, letters: str) -> str:
        if letters not in self._normalised:
            if len(self._normalised) == _MOST_CACHED:
                self._normalised.clear()
            self._normalised[letters] = self._normalizer.normalize_str(letters)
        return self._normalised[letters]

    def _may_cut_at_blank(self, last: str, following: str) -> bool:
        """Whether a text may be cut before a blank between these two."""
        if not (_stand_apart(last, " ") and _stand_apart(" ", following)):
            return False
        normalised = self._normalise(last)
        pair = (normalised[-1:], MARK)
        return not self._is_one_run or (bool(normalised) and pair not in self._in_pieces)

    def _may_cut(self, last: str, following: str) -> bool:
        """Whether no piece, and no rule before the pieces, looks at these two together."""
        pair = (last, following)
        if pair not in self._cuts:
            if len(self._cuts) == _MOST_CACHED:
                self._cuts.clear()
            left, right = self._normalise(last), self._normalise(following)
            self._cuts[pair] = (
                " " not in pair
                and _stand_apart(last, following)
                and pair not in self._read_together
                and self._normalise(last + following) == left + right
                and bool(left and right)
                and not _has_blank(left + right)
                and (left[-1], right[0]) not in self._in_pieces
                and (left[-1], right[0]) not in self._read_together
            )
        return self._cuts[pair]


def _stand_apart(last: str, following: str) -> bool:
    """Whether two neighbouring characters are read one by one by normalizers: blanks, letters, digits and
    marks that join no other.
    """
    return (
        (last == " " or last.isalnum() or unicodedata.category(last)[0] == "P")
        and (following == " " or following.isalnum() or unicodedata.category(following)[0] == "P")
        and not _JOINED_TO_NEXT.match(last)
        and not _JOINED_TO_LAST.match(following)
    )


def _has_blank(text: str) -> bool:
    return any(map(str.isspace, text))


def _neighbours(spellings: Iterable[str]) -> set[tuple[str, str]]:
    return {pair for spelling in spellings for pair in pairwise(spelling)}
