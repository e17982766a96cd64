"""Learning a vocabulary: the published algorithm, one result however often, bounded memory, a true report."""

import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from tokenizer_samples import SPECIAL, byte_level_files
from tokenizers import AddedToken, BertWordPieceTokenizer, normalizers, pre_tokenizers
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import read_json
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens import vocabulary, word_counts
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.vocabulary import VocabularySettings, learn_pieces, train_tokenizer
from bertsmith.text.tokens.vocabulary_report import measure_vocabulary
from bertsmith.text.tokens.word_cache import BertWords
from bertsmith.text.tokens.word_counts import WordCounts, count_words

SYLLABLES = [consonant + vowel for consonant in "bdgklmnprstvz" for vowel in ("a", "e", "o", "é")]


def language(documents: int, seed: int = 0, distinct: int = 3_000) -> Iterator[str]:
    """Made-up text: words of syllables, some of them frequent, most of them rare."""
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(SYLLABLES, random.integers(1, 6))) for _ in range(distinct)]
    for _ in range(documents):
        ranks = np.minimum(random.zipf(1.3, 40), distinct) - 1
        yield " ".join(words[rank].capitalize() if rank % 7 == 0 else words[rank] for rank in ranks) + "."


def corpus_of(folder: Path, documents: Iterator[str], heldout: float = 0.1) -> Corpus:
    folder.mkdir()
    (folder / "text.txt").write_text("\n\n".join(documents))
    settings = CorpusSettings(format="blank-lines", heldout=heldout, near_duplicates=False)
    return build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tmp_path_factory.mktemp("made") / "up", language(2_000))


def test_merges_are_those_of_the_textbook() -> None:
    # The example of the chapter on byte pairs in the Hugging Face course: ug, un, hug, in this order.
    words = Counter({"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5})
    pieces = learn_pieces(WordCounts.of(words), VocabularySettings(vocab_size=5 + 11 + 3))
    plain, continuing = ["b", "g", "h", "n", "p", "s", "u"], ["##g", "##n", "##s", "##u"]
    assert pieces == [*SPECIAL, *plain, *continuing, "##ug", "##un", "hug"]


def test_the_pieces_are_those_of_the_library_s_own_training(corpus: Corpus) -> None:
    theirs = BertWordPieceTokenizer(lowercase=True)
    text = [sentence for document in corpus.documents("train") for sentence in document.sentences]
    theirs.train_from_iterator(text, vocab_size=800, show_progress=False)
    counts = count_words(corpus, lowercase=True, sample_bytes=2**40)
    ours = learn_pieces(counts, VocabularySettings(vocab_size=800))
    assert len(ours) == theirs.get_vocab_size() == 800
    # Ties fall as they like there, so that the last few pieces may differ.
    assert len(theirs.get_vocab().keys() & set(ours)) >= 790


LEARN = """
import sys
from collections import Counter
from bertsmith.text.tokens.vocabulary import VocabularySettings, learn_pieces
from bertsmith.text.tokens.word_counts import WordCounts
words = Counter({f"{a}{b}{c}{d}": 3 for a in "abcd" for b in "efgh" for c in "ijkl" for d in "mnop"})
print(" ".join(learn_pieces(WordCounts.of(words), VocabularySettings(vocab_size=150))))
"""


def test_ties_fall_the_same_way_in_every_process() -> None:
    """Every pair is as frequent as every other here; the library alone gives other pieces each time."""
    run = [sys.executable, "-c", LEARN]
    printed = [subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    assert len(printed[0].split()) == 150
    assert printed[0] == printed[1] == printed[2]


def test_the_same_corpus_gives_the_same_files(tmp_path: Path, corpus: Corpus) -> None:
    settings = VocabularySettings(vocab_size=500)
    for name in ("a", "b"):
        train_tokenizer(corpus, tmp_path / name, settings)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["report.json", "tokenizer.json", "tokenizer_config.json", "training.json", "vocab.txt"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    tokenizer = Tokenizer.load(tmp_path / "a")
    assert tokenizer.pieces[:5] == tuple(SPECIAL)
    assert tokenizer.vocab_size == 500
    assert tokenizer.lowercase


def test_a_cased_vocabulary_keeps_capitals_and_accents(tmp_path: Path, corpus: Corpus) -> None:
    cased = train_tokenizer(corpus, tmp_path / "t", VocabularySettings(vocab_size=500, lowercase=False))
    assert not cased.lowercase
    assert any(piece[0].isupper() for piece in cased.pieces)
    assert any("é" in piece for piece in cased.pieces)
    again = Tokenizer.load(tmp_path / "t" / "vocab.txt")
    assert again.sha256 == cased.sha256


def test_a_corpus_too_small_for_the_size_says_so(tmp_path: Path) -> None:
    small = corpus_of(tmp_path / "small", iter(["one two three two three"] * 1), heldout=0)
    tokenizer = train_tokenizer(small, tmp_path / "t", VocabularySettings(vocab_size=1_000))
    report = read_json(tmp_path / "t" / "report.json")
    assert report["asked_for"] == 1_000
    assert report["vocab_size"] == tokenizer.vocab_size < 40
    assert report["split"] == "train"


def test_a_size_without_room_for_the_alphabet(tmp_path: Path, corpus: Corpus) -> None:
    # --alphabet-coverage isn't advised: whatever it is, the 1,000 most frequent characters are kept.
    expected = r"of 20 pieces has no room for 5 special tokens and the \d+ .* characters \(--limit-alphabet\)"
    with pytest.raises(TokenizerError, match=expected):
        train_tokenizer(corpus, tmp_path / "t", VocabularySettings(vocab_size=20))
    assert list(tmp_path.iterdir()) == []


def test_no_words_and_a_folder_that_exists(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TokenizerError, match="holds no words"):
        learn_pieces(WordCounts.of(Counter()), VocabularySettings())
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "vocab.txt").touch()
    monkeypatch.setattr(vocabulary, "count_words", None)  # refused before any work
    with pytest.raises(InputError, match="already exists"):
        train_tokenizer(corpus, tmp_path / "t", VocabularySettings(vocab_size=200))
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["vocab.txt"]


def test_characters_beyond_the_limit_take_their_words_with_them() -> None:
    words = Counter({"aaab": 50, "ab": 20, "a☃ab": 500, "☃": 1})
    pieces = learn_pieces(WordCounts.of(words), VocabularySettings(vocab_size=40, limit_alphabet=2))
    assert not any("☃" in piece for piece in pieces)
    # From 70 words, not 570: "a☃ab" is [UNK] as a whole and teaches nothing about "ab".
    assert "aaab" in pieces
    assert Tokenizer.from_pieces(pieces, lowercase=True).encode("a☃ab ab").tokens == ["[UNK]", "ab"]


def test_a_limit_that_is_not_reached_leaves_the_coverage_its_effect() -> None:
    words = Counter(map(chr, range(0x4E00, 0x4E00 + 1_200)))  # of which the first 1,000 cover the half
    settings = VocabularySettings(vocab_size=2_000, alphabet_coverage=0.5, limit_alphabet=1_100)
    assert len(learn_pieces(WordCounts.of(words), settings)) == 5 + 1_000


def test_counts_are_those_of_the_slow_rules(tmp_path: Path) -> None:
    texts = ["Don't panic, Café-goers! 漢字 is (very) old… naïve 50%.", "x_y a.b.c ÀÉÎ d’être «oui» don't"]
    corpus = corpus_of(tmp_path / "c", iter(texts), heldout=0)
    basic = BasicTokenizer(do_lower_case=True)
    expected = Counter(word for text in texts for word in basic.tokenize(text))
    assert count_words(corpus, lowercase=True, sample_bytes=2**40) == WordCounts.of(expected)
    assert count_words(corpus, lowercase=False, sample_bytes=2**40).words["Don"] == 1


def test_words_of_long_documents_are_counted_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{'long ' * 500}{number}." for number in range(7)] + ["short."] * 3
    corpus = corpus_of(tmp_path / "c", iter(texts), heldout=0)
    once = count_words(corpus, lowercase=True, sample_bytes=2**40)
    monkeypatch.setattr(word_counts, "CHARACTERS_AT_ONCE", 6_000)
    read = list[int]()
    found = count_words(
        corpus, lowercase=True, sample_bytes=2**40, progress=lambda done, *_: read.append(done)
    )
    assert read == [3, 6]
    assert found == once


def test_words_without_blanks_are_split_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Chinese character is a word: all at once they would be 24 MB of Python's strings here."""
    draw = np.random.default_rng(0).integers(0x4E00, 0x5600, (600, 400))
    texts = ["".join(map(chr, row)) for row in draw.tolist()]
    corpus = corpus_of(tmp_path / "c", iter(texts), heldout=0)
    monkeypatch.setattr(word_counts, "BYTES_AT_ONCE", 1 << 14)
    tracemalloc.start()
    found = count_words(corpus, lowercase=True, sample_bytes=2**40)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == WordCounts.of(Counter("".join(texts)))
    assert most < 8e6


def test_a_column_of_runs_is_split_as_each_of_them() -> None:
    characters = [*map(chr, range(1, 128)), *"éÅßÀ漢字…«’\u200b\u0301\x85\ufffd\u3000"]
    random = Random(0)
    runs = ["".join(random.choices(characters, k=random.randrange(1, 6))) for _ in range(20_000)]
    runs = [run for run in runs if " " not in run] + ["plain", "don't", "..."] * 50
    for lowercase in (True, False):
        split = BertWords(normalizers.BertNormalizer(lowercase=lowercase))
        words, of_runs = split.split_column(pa.array(runs, pa.large_string()))
        found: list[list[str]] = [[] for _ in runs]
        for word, run in zip(words.to_pylist(), of_runs.to_pylist(), strict=True):
            found[run].append(word)
        assert found == [split(run) for run in runs]
        normalise = normalizers.BertNormalizer(lowercase=lowercase).normalize_str
        divide = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
        assert found == [[word for word, _ in divide(normalise(run))] for run in runs]


def test_the_sample_is_as_large_as_asked_and_chosen_by_the_seed(corpus: Corpus) -> None:
    size = corpus.manifest.splits["train"].counts
    whole = count_words(corpus, lowercase=True, sample_bytes=size.bytes).words.total()
    third, same, other = (
        count_words(corpus, lowercase=True, sample_bytes=size.bytes // 3, seed=seed).words
        for seed in (0, 0, 1)
    )
    assert third == same != other
    for counts in (third, other):  # five standard deviations of a third of the sentences
        assert abs(counts.total() / whole - 1 / 3) < 5 * (2 / 9 / size.sentences) ** 0.5


def test_rare_words_are_forgotten_and_frequent_ones_counted(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = count_words(corpus, lowercase=True, sample_bytes=2**40)
    monkeypatch.setattr(word_counts, "MAX_RUNS", 1_000)
    found = count_words(corpus, lowercase=True, sample_bytes=2**40)
    assert found.characters == everything.characters
    exact, bounded = everything.words, found.words
    assert len(bounded) < 1_200 < len(exact)
    assert bounded <= exact
    for word, count in exact.most_common(30):  # what is missing stood before a full stop
        assert bounded[word] >= 0.8 * count


def test_words_of_ever_new_runs_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Japanese, where no two sentences are alike: but for the last ones their words were forgotten."""
    random, kanji = Random(0), [chr(0x4E00 + number) for number in range(300)]
    texts = [
        "".join(random.choice(kanji) + random.choice(["ます", "から"]) for _ in range(8)) for _ in range(600)
    ]
    corpus = corpus_of(tmp_path / "c", iter(texts), heldout=0)
    everything = count_words(corpus, lowercase=True, sample_bytes=2**40)
    assert sum(everything.words.values()) == 600 * 8 * 2
    monkeypatch.setattr(word_counts, "MAX_RUNS", 400)
    monkeypatch.setattr(word_counts, "DOCUMENTS_AT_ONCE", 10)
    assert count_words(corpus, lowercase=True, sample_bytes=2**40) == everything


def test_of_words_that_stand_there_once_an_even_sample_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Thai, where a word by BERT's rules is a phrase; all but the last ones were forgotten."""
    texts = [f"{letter}{number}" for letter in "abcdefghij" for number in range(100)]
    corpus = corpus_of(tmp_path / "c", iter(texts), heldout=0)
    monkeypatch.setattr(word_counts, "MAX_RUNS", 400)
    monkeypatch.setattr(word_counts, "DOCUMENTS_AT_ONCE", 10)
    found = count_words(corpus, lowercase=True, sample_bytes=2**40)
    assert 200 <= len(found.words) <= 400
    firsts = Counter(word[0] for word in found.words)
    assert len(firsts) == 10 and max(firsts.values()) < 3 * min(firsts.values())
    assert found.characters.occurrences["a"] == 100


def test_merging_sees_words_of_every_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equally frequent ones it saw those first in the alphabet."""
    words = Counter({f"{a}{b}{c}{d}": 3 for a in "abcd" for b in "efgh" for c in "ijkl" for d in "mnop"})
    monkeypatch.setattr(vocabulary, "MAX_WORDS", 128)
    pieces = learn_pieces(WordCounts.of(words), VocabularySettings(vocab_size=150))
    assert {piece[0] for piece in pieces if len(piece) > 1 and piece.isalpha()} == set("abcd")


@pytest.mark.parametrize("normalized", [False, True])  # then the library calls it [unk]
def test_the_report_counts_what_it_says(tmp_path: Path, normalized: bool) -> None:
    corpus = corpus_of(
        tmp_path / "c", iter(["Hello un☃ hellothere, hello hello there hellohello."]), heldout=0
    )
    pieces = [*SPECIAL, "hello", "##hello", "##th", "##ere", "t", "##here", ",", "."]
    backend = Tokenizer.from_pieces(pieces, lowercase=True).backend
    backend.add_special_tokens([AddedToken("[UNK]", normalized=normalized)])
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    report = measure_vocabulary(Tokenizer(backend, roles), corpus)
    # words: Hello, un (unknown), hellothere, hello, hello, there, hellohello
    assert report.words == 7
    assert report.pieces_per_word == pytest.approx((1 + 1 + 3 + 1 + 1 + 2 + 2) / 7)
    assert report.whole_words == pytest.approx(3 / 7)
    assert report.unknown_words == pytest.approx(1 / 7)
    assert (report.tokens, report.unknown_tokens) == (13, pytest.approx(1 / 13))
    assert (report.sentences, report.tokens_per_sentence) == (1, 13)
    assert report.sentences_within == {128: 1, 512: 1}
    assert [(word.word, word.count) for word in report.unknown] == [("un", 1)]
    assert report.most_broken[0].word == "hellothere"
    assert report.most_broken[0].pieces == ("hello", "##th", "##ere")
    assert [word.word for word in report.costliest] == ["hellothere", "hellohello", "there"]
    assert report.alphabet == 3


def test_the_report_takes_vowel_signs_for_parts_of_words(tmp_path: Path) -> None:
    words = ["संयुक्त", "राज्य", "अमेरिका", "के", "राष्ट्रपति"]
    corpus = corpus_of(tmp_path / "corpus", iter([" ".join(words)] * 3), heldout=0)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words]))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    report = measure_vocabulary(Tokenizer.load(tmp_path / "vocab.txt"), corpus)
    assert (report.whole_words, report.unknown_words, report.words % len(words)) == (1, 0, 0)


def test_byte_level_words_are_measured_with_the_space_before_them(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c", iter(["he he"]), heldout=0)
    report = measure_vocabulary(Tokenizer.load(byte_level_files(tmp_path / "t")), corpus)
    assert report.pieces_per_word == 1
    assert report.unknown_tokens == 0


MEASURE = """
import sys
from pathlib import Path
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.vocabulary import VocabularySettings, train_tokenizer

train_tokenizer(Corpus.open(sys.argv[1]), sys.argv[2], VocabularySettings())
print(1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
def test_five_million_distinct_words_fit_in_the_ceiling(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(0, len(SYLLABLES), (500_000, 10, 6))
    table = np.array(SYLLABLES)
    documents = (" ".join("".join(table[word]) for word in row) for row in rows)
    corpus = corpus_of(tmp_path / "c", documents, heldout=0.001)
    run = [sys.executable, "-c", MEASURE, str(corpus.path), str(tmp_path / "t")]
    peak = int(subprocess.run(run, capture_output=True, text=True, check=True, timeout=250).stdout)
    assert peak < 1.5e9


@pytest.mark.parametrize("place", ["corpus", ".", "other"])
def test_a_tokenizer_replaces_no_corpus_and_no_other_folder(tmp_path: Path, place: str) -> None:
    corpus = corpus_of(tmp_path / "made", language(20))
    (tmp_path / "made" / "other").mkdir()
    (tmp_path / "made" / "other" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="Choose another place for the tokenizer"):
        train_tokenizer(corpus, tmp_path / "made" / place, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_tokenizer_replaces_another(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "made", language(20))
    for size in (60, 70):
        tokenizer = train_tokenizer(
            corpus, tmp_path / "tokenizer", VocabularySettings(vocab_size=size), overwrite=True
        )
    assert Tokenizer.load(tmp_path / "tokenizer").vocab_size == tokenizer.vocab_size == 70


#: Texts of scripts with many characters, or with marks, and the alphabet that each is made of here.
SCRIPTS = {
    "Chinese": ("\u6211\u4eec\u5728\u5317\u4eac\u5b66\u4e60\u8bed\u8a00", range(0x4E00, 0x4E00 + 3_000)),
    "Japanese": (
        "\u6771\u4eac\u3067\u65e5\u672c\u8a9e\u3092\u5b66\u3076",
        [*range(0x3041, 0x3097), *range(0x5000, 0x5900)],
    ),
    "Korean": ("\uc11c\uc6b8\uc5d0\uc11c \ud55c\uad6d\uc5b4\ub97c", range(0xAC00, 0xAC00 + 2_000)),
    "Thai": (
        "\u0e40\u0e23\u0e32\u0e40\u0e23\u0e35\u0e22\u0e19\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
        range(0x0E01, 0x0E3B),
    ),
    "Arabic": (
        "\u0646\u062d\u0646 \u0646\u062a\u0639\u0644\u0645 \u0627\u0644\u0644\u063a\u0629",
        range(0x0621, 0x063B),
    ),
    "Hindi": (
        "\u0939\u092e \u0939\u093f\u0928\u094d\u0926\u0940 \u0938\u0940\u0916\u0924\u0947 \u0939\u0948\u0902",
        range(0x0905, 0x093A),
    ),
}


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_text_of_any_script_goes_there_and_back(script: str, lowercase: bool) -> None:
    """A thousand characters were kept, whatever the language. A sentence is whole again, as the normaliser
    leaves it, where it is of characters that are most of the text.
    """
    sentence, alphabet = SCRIPTS[script]
    draw = Random(0)
    texts = [sentence] * 40 + ["".join(map(chr, draw.choices(list(alphabet), k=8))) for _ in range(4_000)]
    split = BertWords(normalizers.BertNormalizer(lowercase=lowercase))
    words = Counter(word for text in texts for run in text.split() for word in split(run))
    pieces = learn_pieces(WordCounts.of(words), VocabularySettings(lowercase=lowercase, min_frequency=1))
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=lowercase)
    tokens = tokenizer.encode(sentence).tokens
    assert "".join(token.removeprefix("##") for token in tokens) == "".join(
        tokenizer.normalise(sentence).split()
    )
    unknown = sum(tokenizer.encode(text).ids.count(tokenizer.unk_id) for text in texts)
    assert unknown / len(texts) < 0.02


def test_characters_are_kept_until_they_cover_the_share_asked_for() -> None:
    """By Zipf's law, counted here in a loop."""
    words = Counter({chr(0x4E00 + n): 1 + 50_000 // (n + 1) for n in range(5_000)})
    total, covered, needed = sum(words.values()), 0, 0
    while covered < 0.9995 * total:
        covered += words[chr(0x4E00 + needed)]
        needed += 1
    assert 1_000 < needed < 5_000
    kept = [piece for piece in learn_pieces(WordCounts.of(words), VocabularySettings()) if len(piece) == 1]
    assert len(kept) == needed
    everything = learn_pieces(WordCounts.of(words), VocabularySettings(alphabet_coverage=1))
    assert sum(len(piece) == 1 for piece in everything) == 5_000


def test_the_report_says_which_characters_have_no_piece(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "text", iter(["ab " * 300 + "\u2603\u2603 \u2602"]), heldout=0)
    train_tokenizer(corpus, tmp_path / "t", VocabularySettings(vocab_size=50, limit_alphabet=2))
    report = read_json(tmp_path / "t" / "report.json")
    assert (report["dropped_characters"], report["dropped"]) == (2, ["\u2603", "\u2602"])
    assert report["dropped_share"] == pytest.approx(3 / 603)
