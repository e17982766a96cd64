"""What SentencePiece's tokenizers need beside the `tokenizers` library, which finds their pieces: with
Unigram (Kudo 2018) the most likely ones that spell a text, with BPE (Gemma, mmBERT) merged ones.

"▁" is how their pieces write a blank. With Unigram it stands before the first word of a text too. Where a
script has no blanks, and in all of Gemma's rules, a text is one long run.

    V   pieces in the vocabulary
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Encoding, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

MARK = "\u2581"
_KINDS = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
_DIGIT_AND_COMMA = re.compile(r"\d,$")
#: How a piece for one byte is spelt, in vocabularies that fall back on bytes.
BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
#: Bytes of a table of characters; SentencePiece's own have 0.3 million.
MAX_TABLE = 1 << 22
_MAX_PARTS = 16  # of a `.model` file beside the pieces; SentencePiece writes four
_MAX_FIELDS = 16  # of a piece; SentencePiece writes three
_BYTES = np.arange(1, 256)
_PLACES_AT_ONCE = 1 << 14
#: Characters of a piece; the library frees its tree of characters by recursion.
MAX_PIECE = 512
#: Scripts that write no blanks between words, with their digits: Thai, Lao, Tibetan, Burmese, Khmer, kana and
#: Chinese characters.
_WITHOUT_BLANKS = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aad\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff]"
)
_BEGINS_WORD = re.compile(rf"{MARK}|\s|{_WITHOUT_BLANKS.pattern}")
_ENDS_WORD = re.compile(rf"\s|{_WITHOUT_BLANKS.pattern}")


def build_normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """The normalizer of vocabularies that are learned here: NFKC, single blanks, and with `lowercase` small
    letters. Accents stay: vowels are such marks in Thai and Hindi.
    """
    blanks = [normalizers.Replace(white, " ") for white in "\n\t\r"]
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            *([normalizers.Lowercase()] if lowercase else []),
            normalizers.Replace("\u200b", ""),  # where a line may end; corpora are without them
            *blanks,
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(left=False, right=True),
        ]
    )


def build_unigram_backend(
    pieces: Sequence[tuple[str, float]], special: dict[str, str], *, lowercase: bool
) -> Backend:
    """A tokenizer with BERT's template over `pieces` with their scores, in the order of their ids. `special`
    maps roles to tokens.

    Only the first word of a text gets a "▁" that isn't written: in "ไป[MASK]มาก" nothing comes between the
    mask and what follows. If the pieces have those of all 256 bytes, unknown characters are spelt by these.
    """
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    falls_back = ids.keys() >= set(BYTE_PIECES)
    backend = Backend(models.Unigram(list(pieces), ids[special["unk"]], falls_back))
    backend.normalizer = build_normalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "first")
    backend.decoder = decoders.Metaspace(MARK, "first")
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


class SentencePieces(NamedTuple):
    """The content of a `.model` file: (piece, score, kind) in the order of SentencePiece's own ids, and the
    fields by number of its settings for training and for normalising.
    """

    pieces: list[tuple[str, float, int]]
    trainer: dict[int, Any]
    normalizer: dict[int, Any]


def read_sentencepieces(content: bytes, most: int) -> SentencePieces:
    """Reads a `.model` file (sentencepiece_model.proto) of at most so many pieces. Raises ValueError, which
    says what is wrong.
    """
    pieces, trainer, normalizer = list[tuple[str, float, int]](), dict[int, Any](), dict[int, Any]()
    for number, value in _read_fields(content, most + _MAX_PARTS):
        if number in (1, 2, 3) and not isinstance(value, bytes):
            raise ValueError("is not what SentencePiece writes")
        if number == 1:
            fields = {1: b"", 2: bytes(4), 3: 1} | dict(_read_fields(value, _MAX_FIELDS))
            name, score, kind = fields[1], fields[2], fields[3]
            if not isinstance(name, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
                raise ValueError(f"has a piece {len(pieces):,} that is not what SentencePiece writes")
            pieces.append((name.decode(), float(np.frombuffer(score, "<f4")[0]), kind))
        elif number == 2:
            trainer = dict(_read_fields(value, most))
        elif number == 3:
            normalizer = dict(_read_fields(value, most))
    return SentencePieces(pieces, trainer, normalizer)


def _read_fields(message: bytes, most: int) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message, at most so many: their numbers, and whole numbers or bytes."""
    place = count = 0
    while place < len(message):
        count += 1
        if count > most:
            raise ValueError(f"has more than {most:,} pieces, settings or parts of one, which are not read")
        key, place = _read_number(message, place)
        if (size := {0: 0, 1: 8, 2: -1, 5: 4}.get(key & 7)) is None:
            raise ValueError(f"is no protobuf message: a field is of kind {key & 7}")
        if size <= 0:
            size, place = _read_number(message, place)
        if key & 7 == 0:
            yield key >> 3, size
            continue
        if place + size > len(message):
            raise ValueError(f"ends within a field of {size:,} bytes: it was cut")
        yield key >> 3, message[place : place + size]
        place += size


def _read_number(message: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits in each byte, the lowest first, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if place == len(message):
            raise ValueError("ends within a number: it was cut")
        byte = message[place]
        place, number = place + 1, number | (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("is no protobuf message: a number has more than ten bytes")


def convert_sentencepieces(
    model: SentencePieces, layout: str, settings: dict[str, Any], special: Collection[str]
) -> dict[str, Any]:
    """The content of a tokenizer.json from that of a `.model` file, as transformers converts it.

    `layout` is the tokenizer's class in transformers, which has other ids than SentencePiece; `settings` is
    the content of tokenizer_config.json. Control pieces and unused ones that aren't among the names `special`
    get a blank in front of theirs, since SentencePiece finds them in no text. Raises ValueError for a model
    of another kind.
    """
    trainer, normalizer = model.trainer, model.normalizer
    if (kind := trainer.get(3, 1)) != 1:
        raise ValueError(f"is of SentencePiece's kind {_KINDS.get(kind, kind)}: only unigram is read")
    if trainer.get(24) or not normalizer.get(5, 1):
        raise ValueError("marks blanks in another way than before words (treat_whitespace_as_suffix)")
    lowest = min((score for _, score, kind in model.pieces if kind in (1, 4)), default=0.0)
    pieces = [
        (name, score) if kind not in (3, 5) else (name if name in special else " " + name, lowest)
        for name, score, kind in model.pieces
    ]
    if layout == "XLMRobertaTokenizer":
        vocab = [
            *((name, lowest) for name in ("<s>", "<pad>", "</s>", "<unk>")),
            *pieces[3:],
            ("<mask>", lowest),
        ]
        unk_id = 3
    elif layout == "CamembertTokenizer":
        names = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")
        vocab = [
            *((name, lowest) for name in names),
            ("<unk>NOTUSED", -100.0),
            *pieces[1:],
            ("<mask>", lowest),
        ]
        unk_id = 3
    else:
        if layout == "AlbertTokenizer":  # "2," is spelt as two pieces
            pieces = [(name, score - 100 * bool(_DIGIT_AND_COMMA.search(name))) for name, score in pieces]
        unk_id = next((number for number, piece in enumerate(model.pieces) if piece[2] == 2), -1)
        names_held = {name for name, _ in pieces}
        mask = settings.get("mask_token")
        mask = mask.get("content") if isinstance(mask, dict) else mask
        if not isinstance(mask, str):
            mask = "[MASK]" if "[CLS]" in names_held else "<mask>"
        vocab = [*pieces, *([] if mask in names_held else [(mask, lowest)])]
    rules: list[dict[str, Any]] = []
    if layout == "AlbertTokenizer":
        rules += [{"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in ("``", "''")]
        rules += [] if settings.get("keep_accents") else [{"type": "NFKD"}, {"type": "StripAccents"}]
        rules += [] if settings.get("do_lower_case") is False else [{"type": "Lowercase"}]
    if table := normalizer.get(2):
        rules.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()})
    if normalizer.get(4, 1):
        rules.append({"type": "Strip", "strip_left": True, "strip_right": True})
        rules.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    scheme = "always" if normalizer.get(3, 1) else "never"
    metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": rules} if rules else None,
        "pre_tokenizer": metaspace | {"split": bool(trainer.get(22, 1))},
        "post_processor": None,
        "decoder": metaspace | {"split": True},
        "model": {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": [list(piece) for piece in vocab],
            "byte_fallback": bool(trainer.get(35)),
        },
    }


def read_rules(backend: Backend) -> dict[str, Any]:
    """The content of the backend's tokenizer.json, but for its pieces and added tokens."""
    shell = Backend(models.Unigram([("?", 0.0)], 0))
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (component := getattr(backend, name)) is not None:
            setattr(shell, name, component)
    rules: dict[str, Any] = json.loads(shell.to_str())
    return rules


def build_backend(
    rules: dict[str, Any], model: models.Unigram | models.BPE, tokens: Sequence[AddedToken]
) -> Backend:
    """A tokenizer with this model, which it shares, the rules of `read_rules` and added tokens."""
    backend = Backend.from_str(json.dumps(rules))
    backend.model = model
    backend.add_tokens(list(tokens))
    backend.encode_special_tokens = True
    return backend


def build_text_backend(
    backend: Backend, special_ids: Sequence[int], *, finds_special: bool = False
) -> Backend:
    """A copy of `backend` to which special tokens are plain text, while other added tokens are recognised.

    With `finds_special` it shares the model of `backend`, which may find special pieces in a text.
    """
    pieces = backend.get_vocab_size(with_added_tokens=False)
    tokens = backend.get_added_tokens_decoder()
    kept = sorted(number for number in tokens if number not in special_ids or number >= pieces)
    for number in kept:
        tokens[number].special = number in special_ids
    model = backend.model
    if isinstance(model, models.BPE):
        model = _without_special_merges(model, [str(backend.id_to_token(number)) for number in special_ids])
    elif not finds_special:
        model = _without_special_names(model, special_ids)
    return build_backend(read_rules(backend), model, [tokens[number] for number in kept])


class PlainTextEncoder:
    """Encodes texts to which special tokens are plain text.

    With Unigram that is done by the model that the tokenizer has already: of 250,000 pieces a second one, in
    which the special pieces have other names, takes a second and 0.2 GB. It is built for the first text in
    whose pieces a special one was found, and such texts are encoded again. Other texts have the same pieces
    by both: the most likely spelling of all is the most likely one without special pieces too.
    """

    def __init__(
        self,
        backend: Backend,
        special_ids: Collection[int] = (),
        unk_id: int = 0,
        build_other: Callable[[], Backend] | None = None,
    ) -> None:
        """`build_other` gives the backend that finds none of the special pieces; None if `backend` does so.
        Both are of `build_text_backend`.
        """
        self.backend, self._build_other = backend, build_other
        self._control_ids = frozenset(special_ids) - {unk_id}
        self._unk_token = str(backend.id_to_token(unk_id))
        # The unknown piece stands for unknown characters too, or bytes do. So its name is looked for.
        self._unknown_ids = {unk_id, *map(backend.token_to_id, BYTE_PIECES)}

    def with_rules(self, rules: dict[str, Any]) -> "PlainTextEncoder":
        """An encoder by the same models with other rules, see `read_rules`."""

        def follow(backend: Backend) -> Backend:
            return build_backend(rules, backend.model, list(backend.get_added_tokens_decoder().values()))

        other, build_other = copy(self), self._build_other
        other.backend = follow(self.backend)
        other._build_other = build_other and (lambda: follow(build_other()))
        return other

    def encode(self, texts: Sequence[str], *, offsets: bool) -> list[Encoding]:
        """The pieces of many texts, without special tokens around them. Raises TypeError for a lone
        surrogate.
        """
        encodings = self._encode_by(self.backend, texts, offsets)
        if self._build_other is None:
            return encodings
        again = [
            number for number, text in enumerate(texts) if self._is_doubtful(text, encodings[number].ids)
        ]
        if again:
            texts_again = [texts[number] for number in again]
            for number, encoding in zip(
                again, self._encode_by(self._other, texts_again, offsets), strict=True
            ):
                encodings[number] = encoding
        return encodings

    @staticmethod
    def _encode_by(backend: Backend, texts: Sequence[str], offsets: bool) -> list[Encoding]:
        encode = backend.encode_batch if offsets else backend.encode_batch_fast
        encodings: list[Encoding] = encode(texts, add_special_tokens=False)
        return encodings

    @cached_property
    def _other(self) -> Backend:
        assert self._build_other is not None
        return self._build_other()

    def _is_doubtful(self, text: str, ids: Sequence[int]) -> bool:
        """Whether a special piece may have been found."""
        if not self._control_ids.isdisjoint(ids):
            return True
        if self._unknown_ids.isdisjoint(ids):
            return False
        normalizer = self.backend.normalizer
        return self._unk_token in text or (
            normalizer is not None and self._unk_token in normalizer.normalize_str(text)
        )


def _without_special_names(model: models.Unigram, special_ids: Sequence[int]) -> models.Unigram:
    """To the library special tokens are pieces like others, and the most likely ones. Here they have names
    with a blank, which no text has when it is split into pieces. Their scores stay: unknown characters are
    rated by the lowest of all.
    """
    state = json.loads(model.__getstate__())
    pieces = [(piece, score) for piece, score in state["vocab"]]
    names = {piece for piece, _ in pieces}
    for number in special_ids:
        if number < len(pieces):
            name, score = pieces[number]
            while name in names:
                name = " " + name
            names.add(name)
            pieces[number] = (name, score)
    return models.Unigram(pieces, state["unk_id"], state["byte_fallback"])


def _without_special_merges(model: models.BPE, special: Sequence[str]) -> models.BPE:
    """A model whose merges lead to no special token. Whether they do is seen from the token's own characters:
    within a piece nothing but its characters decides what is merged.
    """
    if all(len(model.tokenize(token)) > 1 for token in special):
        return model
    state = json.loads(model.__getstate__())
    merges = [(left, right) for left, right in state["merges"] if left + right not in special]
    return models.BPE(state["vocab"], merges, unk_token=state["unk_token"], fuse_unk=True, byte_fallback=True)


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


def word_marks(pieces: Sequence[str]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int8]]:
    """(V,) whether a piece continues the word before it, and (V,) what it makes of the next piece: 1 if that
    continues its word whatever it is ("▁" alone), -1 if that begins a word (behind a script without blanks),
    0 if the next piece decides.

    In a script without blanks each piece is a word of its own, as each character is to BERT, and so is a
    line's end, which is a piece in Gemma's vocabularies.
    """
    continues = [not _BEGINS_WORD.match(piece) for piece in pieces]
    decides = [1 if not piece.strip(MARK) else -1 if _ENDS_WORD.match(piece[-1]) else 0 for piece in pieces]
    return np.array(continues, np.bool_), np.array(decides, np.int8)
