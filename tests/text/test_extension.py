"""A vocabulary extended by a corpus: ids of old, the same ids by other readers, and out again to the byte."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizer_samples import SPECIAL, added, byte_level_files
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

from bertsmith.errors import TokenizerError
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.extension import (
    ExtensionSettings,
    extend_tokenizer,
    is_word,
    remove_extension,
)
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ("hypersonic", "airfoil", "airfoils", "Mach", "drag", "the", "of", "a")
RARE = "zzyx aaaah xy 12kg b4 ümlaut"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder, draw = tmp_path_factory.mktemp("domain"), random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=12)) + f", {draw.choice(RARE.split())}." for _ in range(300)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    settings = CorpusSettings(format="blank-lines", heldout=0.1, near_duplicates=False)
    return build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)


def wordpiece() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), "the", "air", "##foil", "drag"]
    return Tokenizer.from_pieces(pieces, lowercase=True)


def with_added_tokens(folder: Path) -> Tokenizer:
    """A WordPiece vocabulary with tokens that the model's own vocabulary doesn't have."""
    content = json.loads(wordpiece().backend.to_str())
    count = len(content["model"]["vocab"])
    for number, token in enumerate(("<url>", "<USER>"), start=count):
        content["added_tokens"].append(added(token, number, special=False))
    return of_content(folder, content)


def modern(folder: Path) -> Tokenizer:
    """A byte-level vocabulary whose special tokens stand among the added tokens alone, as ModernBERT's do."""
    model = {"type": "BPE", "merges": [], "vocab": {}}
    model["vocab"] = {piece: n for n, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    count = len(model["vocab"])
    tokens = [added(token, count + number) for number, token in enumerate(SPECIAL)]
    ids = {token["content"]: token["id"] for token in tokens}
    bert = {"type": "BertProcessing", "sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    rules = {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": bytes_,
        "decoder": bytes_,
        "post_processor": bert,
    }
    return of_content(folder, {"version": "1.0", "model": model, "added_tokens": tokens} | rules)


def of_content(folder: Path, content: dict[str, Any]) -> Tokenizer:
    """The tokenizer whose tokenizer.json holds `content`."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return Tokenizer.load(folder)


TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "wordpiece": lambda folder: wordpiece(),
    "byte-level": lambda folder: Tokenizer.load(byte_level_files(folder)),
    "added tokens": with_added_tokens,
    "modern": modern,
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return TOKENIZERS[request.param](tmp_path / "old")


def texts_of(corpus: Corpus) -> list[str]:
    sentences = [sentence for document in corpus.documents("train") for sentence in document.sentences]
    return [*sentences, "Airfoil-drag (hypersonic)", "nothing new", " the  MACH\tairfoils!", "ÄÖ 漢字 😀", ""]


def test_old_pieces_keep_their_ids_and_words_get_the_next(tokenizer: Tokenizer, corpus: Corpus) -> None:
    extended, extension = extend_tokenizer(tokenizer, corpus, ExtensionSettings(words=4))
    assert extended.pieces == tokenizer.pieces + extension.pieces
    assert extension.base_pieces == tokenizer.vocab_size
    assert {each.word.lower() for each in extension.words} >= {"hypersonic", "mach"}
    for each in extension.words:
        before = " " if tokenizer.family == "byte-level" else ""
        assert len(extended.encode(before + each.word).ids) == 1
        assert each.pieces == tuple(tokenizer.encode(before + each.word).tokens)


def test_text_without_an_added_word_has_the_ids_it_had(tokenizer: Tokenizer, corpus: Corpus) -> None:
    extended, _ = extend_tokenizer(tokenizer, corpus, ExtensionSettings(words=3))
    for text in ("nothing new", "ÄÖ 漢字 😀", "of 12kg, b4 .", "drags", "a <url> of<user>"):
        assert extended.encode(text).ids == tokenizer.encode(text).ids


def test_fertility_falls_and_is_what_a_count_says(tokenizer: Tokenizer, corpus: Corpus) -> None:
    extended, extension = extend_tokenizer(tokenizer, corpus)
    assert extension.after.pieces_per_word < 0.5 * extension.before.pieces_per_word
    heldout = [text for document in corpus.documents("heldout") for text in document.sentences]
    for reader, report in ((tokenizer, extension.before), (extended, extension.after)):
        tokens = sum(len(reader.encode(text).ids) for text in heldout)
        assert report.split == "heldout"
        assert report.tokens_per_character == pytest.approx(tokens / sum(map(len, heldout)))


def test_other_readers_give_the_same_ids(tokenizer: Tokenizer, corpus: Corpus, tmp_path: Path) -> None:
    extended, _ = extend_tokenizer(tokenizer, corpus)
    extended.save(tmp_path / "new")
    again, theirs = Tokenizer.load(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert len(theirs) == extended.vocab_size
    for text in texts_of(corpus):
        ids = extended.encode(text).ids
        assert again.encode(text).ids == ids
        assert theirs(text, add_special_tokens=False).input_ids == ids
        if tokenizer.family == "wordpiece":
            assert slow_ids(extended, text) == ids
            assert Tokenizer.load(tmp_path / "new" / "vocab.txt").encode(text).ids == ids
    assert extended.decode(extended.encode(" the airfoils of a Mach").ids).split()[1] == "airfoils"


def slow_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """By the Python that BERT was published with."""
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    split, spell = BasicTokenizer(do_lower_case=True), WordpieceTokenizer(ids, unk_token="[UNK]")
    return [ids[piece] for word in split.tokenize(text) for piece in spell.tokenize(word)]


def test_the_old_tokenizer_comes_back_to_the_byte(tokenizer: Tokenizer, corpus: Corpus) -> None:
    extended, extension = extend_tokenizer(tokenizer, corpus)
    assert extended.sha256 == extension.sha256 != tokenizer.sha256
    assert remove_extension(extended, extension).sha256 == tokenizer.sha256 == extension.base_sha256


def test_the_parts_of_each_piece_spell_it(tokenizer: Tokenizer, corpus: Corpus) -> None:
    _, extension = extend_tokenizer(tokenizer, corpus)
    for piece, parts in zip(extension.pieces, extension.parts, strict=True):
        assert max(parts) < extension.base_pieces
        assert "".join(tokenizer.pieces[number].removeprefix("##") for number in parts) == piece


def test_the_same_corpus_gives_the_same_words(tokenizer: Tokenizer, corpus: Corpus) -> None:
    assert extend_tokenizer(tokenizer, corpus)[1] == extend_tokenizer(tokenizer, corpus)[1]


def test_numbers_and_what_is_no_word_stay_out(corpus: Corpus) -> None:
    tokenizer = wordpiece()
    refused = ["12kg", "b4", "aaaah", "xy", "x" * 41, "Mach", "mach's", "né"]
    assert [text for text in refused if is_word(text, tokenizer)] == []
    assert is_word("mach", tokenizer)
    _, extension = extend_tokenizer(tokenizer, corpus, ExtensionSettings(min_count=1))
    words = {each.word for each in extension.words}
    assert words <= {"hypersonic", "airfoil", "airfoils", "mach", "of", "zzyx", "umlaut"}
    assert {"zzyx", "umlaut"} <= words  # as the uncased vocabulary spells it
    _, extension = extend_tokenizer(tokenizer, corpus, ExtensionSettings(min_count=100))
    assert "zzyx" not in {each.word for each in extension.words}


def test_a_corpus_without_a_word_to_add_is_said(corpus: Corpus) -> None:
    with pytest.raises(TokenizerError, match=r"no word that occurs 9,999 times and is in several pieces"):
        extend_tokenizer(wordpiece(), corpus, ExtensionSettings(min_count=9_999))


def test_a_tokenizer_with_other_pieces_is_refused(corpus: Corpus) -> None:
    _, extension = extend_tokenizer(wordpiece(), corpus)
    with pytest.raises(TokenizerError, match=r"from id \d+ on aren't the"):
        remove_extension(wordpiece(), extension)


def test_roberta_gets_words_that_transformers_reads_the_same(
    corpus: Corpus, tmp_path: Path, shared_data: Path
) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((shared_data / "vocab" / f"roberta-{name}").read_bytes())
    tokenizer = Tokenizer.load(tmp_path)
    extended, extension = extend_tokenizer(tokenizer, corpus)
    assert {"hypersonic", "airfoils"} <= {each.word for each in extension.words}
    extended.save(tmp_path / "new")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "new")
    for text in texts_of(corpus):
        assert theirs(text, add_special_tokens=False).input_ids == extended.encode(text).ids
    assert remove_extension(extended, extension).sha256 == tokenizer.sha256


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.BertNormalizer(lowercase=True, strip_accents=False),
        normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
    ],
    ids=["BERT's", "other"],
)
def test_a_lower_casing_tokenizer_that_keeps_accents_gets_words_with_theirs(
    tmp_path: Path, normalizer: normalizers.Normalizer
) -> None:
    """Words were counted without accents, and so added in a spelling that no text has."""
    letters = "abcdefghijklmnopqrstuvwxyzäöü."
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    tokenizer.backend.normalizer = normalizer
    tokenizer.save(tmp_path / "old")
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"Prüfgerät zuverlässig {chr(97 + n % 26) * (1 + n // 26)}." for n in range(200))
    )
    settings = CorpusSettings(format="blank-lines", heldout=0.1, near_duplicates=False)
    corpus = build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=settings, workers=1)
    old = Tokenizer.load(tmp_path / "old")
    extended, extension = extend_tokenizer(old, corpus, ExtensionSettings(words=2, min_count=5))
    assert {each.word for each in extension.words} == {"prüfgerät", "zuverlässig"}
    assert len(extended.encode("Prüfgerät zuverlässig").ids) == 2


@pytest.mark.parametrize("how", [{"normalized": False}, {"single_word": True}], ids=str)
def test_an_added_token_that_would_be_read_where_it_is_not_meant_is_refused(
    corpus: Corpus, tmp_path: Path, how: dict[str, bool]
) -> None:
    content = json.loads(wordpiece().backend.to_str())
    token = added("entity", len(content["model"]["vocab"]), special=False) | how
    content["added_tokens"].append(token)
    with pytest.raises(TokenizerError, match="The added token 'entity' is read only where a text spells it"):
        extend_tokenizer(of_content(tmp_path / "old", content), corpus)


def test_words_that_the_byte_level_rules_divide_at_a_mark_are_left_out(tmp_path: Path) -> None:
    """One such word, of Hindi, Thai or vocalised Arabic, had all others refused."""
    (tmp_path / "text.txt").write_text(
        "\n\n".join(
            f"airfoil विश्वविद्यालय hypersonic हिन्दी {chr(97 + n % 26) * (1 + n // 26)}" for n in range(200)
        )
    )
    settings = CorpusSettings(format="blank-lines", heldout=0.1, near_duplicates=False)
    corpus = build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=settings, workers=1)
    tokenizer = Tokenizer.load(byte_level_files(tmp_path / "old"))
    _, extension = extend_tokenizer(tokenizer, corpus, ExtensionSettings(words=4))
    assert {each.word for each in extension.words} == {"airfoil", "hypersonic"}
