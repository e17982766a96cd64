"""Learning a Unigram vocabulary: sums over all ways to spell a text, and one result however often."""

import itertools
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tokenizer_samples import SPECIAL
from tokenizers import Tokenizer as Backend

from bertsmith.errors import RecipeError, TokenizerError
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.unigram import MARK, build_normalizer, build_unigram_backend
from bertsmith.text.tokens.unigram_training import (
    LONGEST_PIECE,
    Units,
    UnitSplitter,
    build_alternatives,
    build_lattices,
    find_seeds,
    learn_unigram,
)
from bertsmith.text.tokens.vocabulary import VocabularySettings, train_tokenizer
from bertsmith.text.tokens.vocabulary_report import measure_vocabulary

LEXICON = (
    "กา",
    "ขาว",
    "มา",
    "นา",
    "ดี",
    "ตา",
    "สวย",
    "งาม",
    "แมว",
    "หมา",
    "ปลา",
    "วัน",
    "คน",
    "ไทย",
    "ใจ",
    "รัก",
)


def texts_of_known_words(count: int, seed: int = 0) -> Iterator[str]:
    """Texts without blanks, of three to nine words, some of them far more frequent than others."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        ranks = np.minimum(random.zipf(1.4, random.integers(3, 10)), len(LEXICON)) - 1
        yield "".join(LEXICON[rank] for rank in ranks)


def corpus_of(folder: Path, texts: Iterator[str]) -> Corpus:
    folder.mkdir()
    (folder / "text.txt").write_text("\n\n".join(texts))
    settings = CorpusSettings(format="blank-lines", language="th", heldout=0.1, near_duplicates=False)
    return build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tmp_path_factory.mktemp("made") / "thai", texts_of_known_words(3_000))


def random_units(seed: int, count: int = 30) -> tuple[dict[str, int], Units]:
    random = np.random.default_rng(seed)
    words = {
        "".join(random.choice(list("abc"), random.integers(1, 8))): int(n)
        for n in random.integers(1, 9, count)
    }
    return words, Units.of(words, "abc")


def spellings(text: str, pieces: dict[str, float]) -> Iterator[tuple[str, ...]]:
    """All ways to spell a text by pieces, one after the other."""
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        ends = [*(place for place, cut in enumerate(cuts, start=1) if cut), len(text)]
        spelling = tuple(text[start:end] for start, end in itertools.pairwise([0, *ends]))
        if pieces.keys() >= set(spelling):
            yield spelling


@pytest.mark.parametrize("seed", range(5))
def test_expected_occurrences_are_those_of_all_spellings(seed: int) -> None:
    words, units = random_units(seed)
    seeds = find_seeds(units, least=3)
    names = [
        "".join("abc"[code] for code in units.codes[start:][:length])
        for start, length in zip(seeds.starts, seeds.lengths)
    ]
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(len(names)))
    by_name = dict(zip(names, probabilities.tolist(), strict=True))
    expected = Counter[str]()
    for word, count in words.items():
        ways = {way: float(np.prod([by_name[piece] for piece in way])) for way in spellings(word, by_name)}
        for way, probability in ways.items():
            for piece in way:
                expected[piece] += count * probability / sum(ways.values())
    found = sum(lattice.expect(probabilities, counts) for lattice, counts in build_lattices(units, seeds))
    np.testing.assert_allclose(found, [expected[name] for name in names], rtol=1e-10)

    lattice, owners = build_alternatives(seeds, len(units.codes))
    assert sorted(names[owner] for owner in owners) == sorted(name for name in names if len(name) > 1)
    for owner, best in zip(owners, lattice.best(probabilities), strict=True):
        others = {name: value for name, value in by_name.items() if name != names[owner]}
        ways = [float(np.prod([others[piece] for piece in way])) for way in spellings(names[owner], others)]
        assert best == pytest.approx(max(ways), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_seeds_are_the_frequent_substrings_that_no_longer_one_contains_each_time(seed: int) -> None:
    words, units = random_units(seed, count=60)
    seeds = find_seeds(units, least=3)
    found = {
        "".join("abc"[code] for code in units.codes[start:][:length]): score
        for start, length, score in zip(seeds.starts.tolist(), seeds.lengths.tolist(), seeds.scores.tolist())
    }
    counts = Counter[str]()
    for word, count in words.items():
        for start, end in itertools.combinations(range(len(word) + 1), 2):
            counts[word[start:end]] += count
    longer = {text: max((counts[letter + text] for letter in "abc"), default=0) for text in counts}
    longer = {
        text: max([most, *(counts[text + letter] for letter in "abc")]) for text, most in longer.items()
    }
    expected = {
        text: len(text) * count
        for text, count in counts.items()
        if len(text) == 1 or (count >= 3 and longer[text] < count and len(text) <= LONGEST_PIECE)
    }
    assert found == expected


def test_units_end_where_the_script_changes_and_around_digits() -> None:
    splitter = UnitSplitter(build_normalizer(lowercase=False), split_digits=False)
    runs = [
        "iPhone14รุ่นใหม่ล่าสุด!",
        "東京タワーの333m、",
        "don't",
        "Ｆｕｌｌ",
        "e\u0301te\u0301",
        "ราคา๑๒บาท",
        "(а)",
    ]
    units, owners = splitter.split_column(pa.array(runs, pa.large_string()))
    found = [
        [unit for unit, owner in zip(units.to_pylist(), owners.to_pylist()) if owner == run]
        for run in range(7)
    ]
    assert found == [
        ["▁iPhone", "14", "รุ่นใหม่ล่าสุด", "!"],
        ["▁東京タワーの", "333", "m", "、"],
        ["▁don", "'", "t"],
        ["▁Full"],
        ["▁été"],
        ["▁ราคา", "๑๒", "บาท"],
        ["▁(", "а", ")"],
    ]
    splitter = UnitSplitter(build_normalizer(lowercase=True), split_digits=True)
    units, _ = splitter.split_column(pa.array(["B2024"], pa.large_string()))
    assert units.to_pylist() == ["▁b", "2", "0", "2", "4"]


def test_words_that_nothing_divides_are_found() -> None:
    words = Counter(MARK + text for text in texts_of_known_words(3_000))
    alphabet = sorted({letter for word in words for letter in word})
    pieces = dict(learn_unigram(Units.of(words, alphabet), alphabet, len(alphabet) + len(LEXICON) + 10))
    assert set(alphabet) <= pieces.keys()
    assert len(set(LEXICON) & pieces.keys()) >= len(LEXICON) - 1


TRAIN = """
import sys
from bertsmith.text.tokens.vocabulary import VocabularySettings, train_tokenizer
train_tokenizer(sys.argv[1], sys.argv[2], VocabularySettings(kind="unigram", vocab_size=120))
"""


def test_the_same_corpus_gives_the_same_files_with_one_thread_and_with_two(
    tmp_path: Path, corpus: Corpus
) -> None:
    contents = []
    for threads in ("1", "2", "2"):
        names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "PYTHONHASHSEED", "ARROW_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads)
        run = [sys.executable, "-c", TRAIN, str(corpus.path), str(tmp_path / "t")]
        subprocess.run(run, check=True, env=environment)
        names_written = sorted(path.name for path in (tmp_path / "t").iterdir())
        assert names_written == ["report.json", "tokenizer.json", "tokenizer_config.json", "training.json"]
        contents.append([(tmp_path / "t" / name).read_bytes() for name in names_written])
        shutil.rmtree(tmp_path / "t")
    assert contents[0] == contents[1] == contents[2]


def test_the_file_is_read_by_the_library_and_by_bertsmith_alike(tmp_path: Path, corpus: Corpus) -> None:
    settings = VocabularySettings(kind="unigram", vocab_size=120)
    trained = train_tokenizer(corpus, tmp_path / "t", settings)
    tokenizer, library = Tokenizer.load(tmp_path / "t"), Backend.from_file(str(tmp_path / "t/tokenizer.json"))
    assert tokenizer.sha256 == trained.sha256
    assert tokenizer.pieces[:5] == SPECIAL
    assert tokenizer.vocab_size == 120
    texts = [*texts_of_known_words(50, seed=7), "แมวขาว หมางาม"]
    for text in texts:
        assert tokenizer.encode(text).ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    pair = library.encode("แมว", "หมา")
    first, second = (library.encode(text, add_special_tokens=False).tokens for text in ("แมว", "หมา"))
    assert pair.tokens == ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
    assert sum(pair.type_ids) == len(second) + 1


def test_what_no_piece_spells_is_unknown_or_bytes(tmp_path: Path, corpus: Corpus) -> None:
    for byte_fallback in (False, True):
        settings = VocabularySettings(kind="unigram", vocab_size=400, byte_fallback=byte_fallback)
        tokenizer = train_tokenizer(corpus, tmp_path / str(byte_fallback), settings)
        tokens = tokenizer.encode("แมว☃").tokens
        assert tokens[-3:] == (["<0xE2>", "<0x98>", "<0x83>"] if byte_fallback else [*tokens[-3:-1], "[UNK]"])
    assert tokenizer.decode(tokenizer.encode("แมว☃ แมว").ids) == "แมว☃ แมว"


def test_special_pieces_that_a_text_spells_stay_text(tmp_path: Path) -> None:
    texts = [f"{text} <0x41> [MASK] x{text}" for text in texts_of_known_words(300)]
    settings = VocabularySettings(kind="unigram", vocab_size=400, byte_fallback=True)
    train_tokenizer(corpus_of(tmp_path / "made", iter(texts)), tmp_path / "t", settings)
    library = Backend.from_file(str(tmp_path / "t/tokenizer.json"))
    library.encode_special_tokens = True
    tokens = library.encode("[MASK]<0x41>", add_special_tokens=False).tokens
    assert "".join(tokens) == "▁[MASK]<0x41>"
    assert not {"[MASK]", "<0x41>"} & set(tokens)


def test_settings_of_the_other_kind_and_a_vocabulary_without_room_are_refused(
    tmp_path: Path, corpus: Corpus
) -> None:
    with pytest.raises(RecipeError, match="byte_fallback is for kind unigram"):
        VocabularySettings(byte_fallback=True)
    expected = (
        r"of 100 pieces has no room for 261 special tokens and bytes and the \d+ pieces of the alphabet"
    )
    with pytest.raises(TokenizerError, match=expected):
        settings = VocabularySettings(kind="unigram", vocab_size=100, byte_fallback=True)
        train_tokenizer(corpus, tmp_path / "t", settings)


def test_a_corpus_too_small_for_the_size_gives_fewer_pieces(tmp_path: Path) -> None:
    small = corpus_of(tmp_path / "small", iter(["one two three two three"]))
    tokenizer = train_tokenizer(small, tmp_path / "t", VocabularySettings(kind="unigram", vocab_size=1_000))
    assert 5 < tokenizer.vocab_size < 40


def test_a_text_of_one_letter_and_one_of_the_longest_units_are_learned_from() -> None:
    words = {MARK + "a" * 500: 3, MARK + "ab" * 200: 2, MARK + "b": 1}
    pieces = dict(learn_unigram(Units.of(words, [MARK, "a", "b"]), [MARK, "a", "b"], 12))
    assert {MARK, "a", "b"} < pieces.keys()
    assert np.isfinite(list(pieces.values())).all()
    assert max(map(len, pieces)) == LONGEST_PIECE


def test_the_report_says_for_each_script_how_it_fits(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c", iter(["big кот 12 รักแมวbig รัก ไทย☃ big кот"]))
    pieces = [(piece, -2.0) for piece in ["▁big", "▁", "к", "от", "▁รัก", "แมว", "ไทย", "▁ไทย", "▁1", "2"]]
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    scored = [*((piece, -9.0) for piece in SPECIAL), *pieces]
    report = measure_vocabulary(
        Tokenizer(build_unigram_backend(scored, roles, lowercase=False), roles), corpus
    )
    fits = {fit.script: fit for fit in report.scripts}
    assert list(fits) == ["Thai", "Latin", "Cyrillic", "digits"]
    thai, latin, cyrillic, digits = fits.values()
    assert [fit.words for fit in fits.values()] == [3, 3, 2, 1]
    assert (latin.pieces_per_word, cyrillic.pieces_per_word, digits.pieces_per_word) == (1, 3, 2)
    assert thai.pieces_per_word is None
    assert thai.characters_per_piece == pytest.approx((6 + 3 + 3) / 4)
    assert thai.share == pytest.approx(12 / (12 + 9 + 6 + 2))
    assert [word.word for word in cyrillic.costliest] == ["кот"]
    assert (report.words, report.pieces_per_word) == (6, pytest.approx((3 * 1 + 2 * 3 + 2) / 6))
    assert report.whole_words == pytest.approx(1 / 2)
    assert report.unknown_words == 0

    only_thai = corpus_of(tmp_path / "t", iter(["รักแมว รัก"]))
    report = measure_vocabulary(
        Tokenizer(build_unigram_backend(scored, roles, lowercase=False), roles), only_thai
    )
    assert (report.words, report.pieces_per_word, report.whole_words) == (0, None, None)
    assert (report.costliest, report.most_broken) == ((), ())


def test_the_report_says_for_each_source_how_it_fits(tmp_path: Path) -> None:
    """A file for each language is the usual way to lay out a corpus of several."""
    texts = {"en.txt": "big big 12 cat", "ru.txt": "кот big", "th.txt": "รักแมว รัก 12"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [str(tmp_path / name) for name in texts]
    corpus = build_corpus(files, tmp_path / "c", settings=CorpusSettings(heldout=0), workers=1)
    pieces = [(piece, -2.0) for piece in ["▁big", "▁", "к", "от", "▁รัก", "แมว", "▁1", "2"]]
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    scored = [*((piece, -9.0) for piece in SPECIAL), *pieces]
    tokenizer = Tokenizer(build_unigram_backend(scored, roles, lowercase=False), roles)
    report = measure_vocabulary(tokenizer, corpus)
    fits = {Path(fit.source).name: fit for fit in report.sources}
    assert [Path(fit.source).name for fit in report.sources] == ["en.txt", "th.txt", "ru.txt"]
    assert [fit.share for fit in report.sources] == pytest.approx([11 / 28, 11 / 28, 6 / 28])
    assert fits["ru.txt"].pieces_per_word == pytest.approx((3 + 1) / 2)
    assert fits["th.txt"].pieces_per_word is None, "12 is its only word between blanks"
    assert fits["th.txt"].characters_per_piece == pytest.approx((6 + 3 + 2) / (2 + 1 + 2))
    assert (fits["en.txt"].unknown_words, fits["ru.txt"].unknown_words) == (1 / 4, 0)
    assert measure_vocabulary(tokenizer, corpus_of(tmp_path / "one", iter(texts.values()))).sources == ()


def test_blanks_around_a_mask_are_those_of_the_text(tmp_path: Path, corpus: Corpus) -> None:
    tokenizer = train_tokenizer(corpus, tmp_path / "t", VocabularySettings(kind="unigram", vocab_size=120))
    for text, behind in [("แมว[MASK]ดี", "ดี"), ("แมว [MASK] ดี", "▁ดี"), ("\nแมว  [MASK]\u3000ดี\n", "▁ดี")]:
        tokens = tokenizer.encode(text, read_special_tokens=True).tokens
        place = tokens.index("[MASK]")
        assert ("".join(tokens[:place]), "".join(tokens[place + 1 :])) == ("▁แมว", behind)
