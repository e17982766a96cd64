"""Test rows in a corpus: every planted copy is found, whatever was changed of it, and nothing else is."""

import csv
import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.files import sha256
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus.manifest import Counts
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.decontamination.contamination import Contamination, find_contamination
from bertsmith.text.decontamination.evaluation_texts import read_evaluation_file
from bertsmith.text.decontamination.matching import piece_length
from bertsmith.text.decontamination.removal import write_decontaminated
from bertsmith.text.decontamination.scanning import (
    KINDS,
    find_corpus_matches,
    split_at_all_punctuation,
    split_at_punctuation,
    split_without_punctuation,
)
from bertsmith.text.words import WORD, split_at_blanks

FILLER = np.array(
    [f"{first}{last}" for first in "bcdfghklmn" for last in ("ala", "eno", "iru", "osi", "ute")]
)
OWN = np.array(
    [f"{first}{last}" for first in "pqrstvwxz" for last in ("anda", "erge", "ilso", "ombe", "unke")]
)
MARKS = np.array(["", "", "", "", ",", ";", "-", "'s", " -", "%"])
SETTINGS = CorpusSettings(near_duplicates=False, heldout=0.1)
Change = Callable[[str, np.random.Generator], str]


def sentence(random: np.random.Generator, words: int, vocabulary: np.ndarray = FILLER) -> str:
    return " ".join(random.choice(vocabulary, words)).capitalize() + "."


def make_row(random: np.random.Generator, words: int) -> str:
    """Words of which some are joined by a hyphen, and numbers, with punctuation between them."""
    chosen = [str(word) for word in random.choice(OWN, words)]
    for place in random.choice(words, words // 6, replace=False):
        chosen[place] = f"{random.integers(100)}.{random.integers(100)}"
    text = "".join(f"{word}{mark} " for word, mark in zip(chosen, random.choice(MARKS, words), strict=True))
    return text.replace("- ", "-").strip(" ,;-").capitalize() + "."


def same(text: str, random: np.random.Generator) -> str:
    return text


def other_case(text: str, random: np.random.Generator) -> str:
    return "".join(letter.upper() if random.random() < 0.5 else letter.lower() for letter in text)


def no_punctuation(text: str, random: np.random.Generator) -> str:
    return re.sub(r"[^\w\s]", "", text)


def other_punctuation(text: str, random: np.random.Generator) -> str:
    """Other marks with a blank in the place of each, and more of them behind words."""
    return re.sub(r"[^\w\s]", " ! ", text).replace(" ", " ... ", 3)


def a_word_in_ten(text: str, random: np.random.Generator) -> str:
    """Of each ten words, and of the rest, one is another; of fewer than eight none: they must be exact."""
    words = text.split()
    places = [place for place, word in enumerate(words) if split_without_punctuation(word)]
    if len(places) >= 8:
        for start in range(0, len(places), 10):
            words[random.choice(places[start : start + 10])] = "otherwise"
    return " ".join(words)


CHANGES: tuple[Change, ...] = (same, other_case, no_punctuation, other_punctuation, a_word_in_ten)


def make_corpus(folder: Path, documents: list[str], settings: CorpusSettings = SETTINGS) -> Corpus:
    """Documents with a sentence or a paragraph a line."""
    lines = [json.dumps({"text": document.replace("\n", "\n\n")}) for document in documents]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return build_corpus([str(folder / "texts.jsonl")], folder / "corpus", settings=settings)


def filler(random: np.random.Generator, documents: int) -> list[list[str]]:
    return [[sentence(random, 12) for _ in range(5)] for _ in range(documents)]


def texts_found(corpus: Corpus, texts: list[str]) -> dict[int, str]:
    """The texts that the corpus holds, each with its best kind."""
    found: dict[int, int] = {}
    for places in find_corpus_matches(corpus, texts).values():
        for text, kind in zip(places["text"].tolist(), places["kind"].tolist(), strict=True):
            found[text] = min(kind, found.get(text, kind))
    return {text: KINDS[kind] for text, kind in found.items()}


@pytest.mark.parametrize("change", CHANGES)
def test_every_planted_copy_is_found(tmp_path: Path, change: Change) -> None:
    random = np.random.default_rng(3)
    rows = [make_row(random, words) for words in [*range(3, 80), *range(80, 300, 7)]]
    documents = filler(random, len(rows))
    for row, document in zip(rows, documents, strict=True):
        document.insert(int(random.integers(6)), change(row, random))
    corpus = make_corpus(tmp_path, ["\n".join(document) for document in documents])
    found = texts_found(corpus, rows)
    assert sorted(found) == list(range(len(rows)))
    if change in (same, other_case):
        assert set(found.values()) == {"exact"}


def test_copies_inside_a_sentence_are_found_from_five_words_on(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    rows = [" ".join(random.choice(OWN, words)) for words in range(3, 30)]
    corpus = make_corpus(tmp_path, [f"Bala eno {row} kute lala." for row in rows])
    assert [len(rows[text].split()) for text in sorted(texts_found(corpus, rows))] == list(range(5, 30))


def test_words_put_in_or_left_out_are_no_disguise(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    rows = [" ".join(random.choice(OWN, words, replace=False)) for words in range(20, 45)]
    longer = [" ".join([*row.split()[:8], "more", *row.split()[8:]]) for row in rows]
    shorter = [" ".join([*row.split()[:9], *row.split()[10:]]) for row in rows]
    for name, changed in (("longer", longer), ("shorter", shorter)):
        found = texts_found(make_corpus(tmp_path / name, changed), rows)
        assert found == dict.fromkeys(range(len(rows)), "near")


def test_disjoint_texts_are_no_alarm(tmp_path: Path) -> None:
    """The same words in other sentences: of the short ones some three in a row are bound to be alike."""
    random = np.random.default_rng(6)
    rows = [sentence(random, words) for words in range(5, 60) for _ in range(8)]
    corpus = make_corpus(tmp_path, ["\n".join(document) for document in filler(random, 400)])
    assert texts_found(corpus, rows) == {}


def test_two_documents_side_by_side_make_no_copy(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    row = [str(word) for word in random.choice(OWN, 20, replace=False)]
    halves = [" ".join(row[:10]), " ".join(row[10:])]
    corpus = make_corpus(tmp_path, halves, CorpusSettings(near_duplicates=False, heldout=0.0))
    assert corpus.manifest.splits["train"].counts.documents == 2
    assert texts_found(corpus, [" ".join(row)]) == {}


def test_a_run_of_thirteen_words_is_a_part_and_twelve_are_none(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    for length in (30, 48, 49, 120, 121, 125):
        row = [str(word) for word in random.choice(OWN, length)]
        for start in (0, 5, length - 13):
            folder = tmp_path / f"{length}-{start}"
            whole = make_corpus(folder / "13", ["Bala " + " ".join(row[start : start + 13]) + " kute."])
            less = make_corpus(folder / "12", ["Bala " + " ".join(row[start + 1 : start + 13]) + " kute."])
            assert texts_found(whole, [" ".join(row)]) == {0: "part"}
            assert texts_found(less, [" ".join(row)]) == {}


def test_the_best_copy_within_a_sentence_decides_the_kind(tmp_path: Path) -> None:
    """A row that stands whole in a sentence is no mere part because its beginning stands there before."""
    words = np.random.default_rng(6).choice(OWN, 20, replace=False).tolist()
    row = " ".join(words)
    corpus = make_corpus(tmp_path, [f"{' '.join(words[:13])} bala eno {row} kute lala.", "Bala eno iru."])
    assert texts_found(corpus, [row]) == {0: "exact"}


@pytest.mark.parametrize("row", ["bala " * 8, "row row row your boat " * 3])
def test_an_exact_copy_of_a_text_that_repeats_itself_is_exact(tmp_path: Path, row: str) -> None:
    """Seen from its second repeat, the same words are a copy that is shifted: it was called near."""
    corpus = make_corpus(tmp_path, [f"Kute. {row}. Eno iru.", "Lala eno iru."])
    assert texts_found(corpus, [row]) == {0: "exact"}


def test_short_texts_are_looked_for_as_whole_sentences_and_the_shortest_not_at_all(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, ["Not my card.\nYes please.\nThis is not my card at all.", "Where is it?"])
    found = texts_found(corpus, ["not my card", "yes please", "my card at all", "where is it"])
    assert found == {0: "exact", 3: "exact"}


@pytest.mark.parametrize("lines", [0, 1, 2])
def test_a_sentence_behind_lines_of_asterisks_is_whole(tmp_path: Path, lines: int) -> None:
    """Also where the document before has as many sentences as there are lines without a word."""
    before = "\n".join(["Bala beno biru bosi."] * max(lines, 1))
    row = "Panda werge silso."
    corpus = make_corpus(
        tmp_path, [before, "* * *\n" * lines + row], SETTINGS.model_copy(update={"heldout": 0.0})
    )
    assert texts_found(corpus, [row]) == {0: "exact"}


@pytest.mark.parametrize(
    "row",
    [
        "Panda&#39;s werge &amp; silso tombe vunke",
        "Panda <b>werge</b> silso<br /><br />tombe vunke",
        "Panda schÃ¶ne werge grÃ¼ne silso",
        "Panda __NOTOC__ werge silso tombe vunke",
    ],
)
def test_a_row_is_cleaned_as_the_corpus_is(tmp_path: Path, row: str) -> None:
    """The corpus has lost its markup: the same text in a test file is the same text."""
    corpus = make_corpus(tmp_path / "corpus", [row, "Bala beno biru bosi bute."])
    (tmp_path / "test.txt").write_text(f"{row}\n")
    findings = find_contamination(corpus, [tmp_path / "test.txt"]).files[0]
    assert findings.kinds["exact"] == 1


def test_a_date_is_found_without_its_hyphens(tmp_path: Path) -> None:
    """Four words, of which two are left."""
    corpus = make_corpus(tmp_path, ["Bala eno kute.\nCANBERRA 19961206\nKute bala.", "19961207"])
    assert texts_found(corpus, ["Canberra 1996-12-06", "Canberra", "1996-12"]) == {0: "exact"}


def test_pieces_are_short_enough_for_one_word_in_ten() -> None:
    """The pigeonhole principle needs one piece more than words may be replaced."""
    for words in range(8, 3000):
        assert words // piece_length(words) > -(-words // 10)


@pytest.mark.parametrize(
    ("text", "separated", "joined", "split"),
    [
        ("It's well-known: 3.5 %", "its well known 3 5", "its wellknown 35", "it s well known 3 5"),
        ("U.S. ﬁnances", "u s finances", "us finances", "u s finances"),
        ("snake_case \N{RIGHT SINGLE QUOTATION MARK}", "snake case", "snakecase", "snake case"),
        ("don\N{ACUTE ACCENT}t", "dont", "dont", "don t"),
        ("don\N{MODIFIER LETTER APOSTROPHE}t", "dont", "dont", "don t"),
        ("東京 is", "東 京 is", "東 京 is", "東 京 is"),
        ("Straße", "strasse", "strasse", "strasse"),
        ("...", "", "", ""),
    ],
)
def test_words_are_compared_without_case_and_punctuation(
    text: str, separated: str, joined: str, split: str
) -> None:
    readings = (split_at_punctuation(text), split_without_punctuation(text), split_at_all_punctuation(text))
    assert readings == (separated.split(), joined.split(), split.split())


@pytest.mark.parametrize(
    "copy",
    [
        "It s the dog s best known trick and they re happy",
        "Its the dogs bestknown trick and theyre happy",
        "It ' s the dog ' s best - known trick , and they ' re happy .",
        "It\N{ACUTE ACCENT}s the dog\N{ACUTE ACCENT}s best-known trick, and they\N{ACUTE ACCENT}re happy.",
    ],
)
def test_apostrophes_are_punctuation(tmp_path: Path, copy: str) -> None:
    row = "It's the dog's best-known trick, and they're happy."
    assert texts_found(make_corpus(tmp_path, [copy]), [row]) == {0: "exact"}


def test_a_tokenized_row_is_found_in_running_text(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, ["Bala eno kute.\nIt's a nice film.\nKute bala."])
    assert texts_found(corpus, ["it 's a nice film ."]) == {0: "exact"}


@pytest.mark.parametrize(
    "text",
    ["संयुक्त राज्य अमेरिका के", "தமிழ்நாடு மாநிலம்", "مُحَمَّدٌ رَسُولُ", "שָׁלוֹם עֲלֵיכֶם", "cafe\u0301 x\u0323"],
)
def test_marks_are_part_of_their_word(text: str) -> None:
    words = unicodedata.normalize("NFKC", text).casefold().split()
    assert split_at_punctuation(text) == split_without_punctuation(f"({text})") == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ประเทศไทยมีที่ดิน", "ป ระ เทศ ไทย มี ที่ ดิน"),
        ("อยากกินข้าว 25 บาท", "อ ยาก กิน ข้าว 25 บาท"),
        ("ຂ້ອຍຮັກເຈົ້າ", "ຂ້ອຍ ຮັກ ເຈົ້າ"),
        ("ខ្ញុំទៅផ្សារ", "ខ្ញុំ ទៅ ផ្សារ"),
        ("東京タワー333m", "東 京 タ ワ ー 333m"),
    ],
)
def test_where_nothing_divides_words_syllables_or_characters_count(text: str, words: str) -> None:
    assert split_at_punctuation(text) == split_at_blanks(text) == words.split()


def test_a_thai_row_is_found_inside_a_longer_run(tmp_path: Path) -> None:
    """As words between blanks, half of the rows had too few to be searched for."""
    row = "การใช้จ่ายครั้งใหม่นี้ได้รับการสนับสนุนโดยบัญชีธนาคาร"
    changed = row.replace("ครั้งใหม่", "ครั้งแรก")
    corpus = make_corpus(tmp_path, [f"เขากล่าวว่า{row}อันร่ำรวยของคลินตัน", changed, "การใช้จ่ายเงินของเขา"])
    assert texts_found(corpus, [row, "สนับสนุนโดยบัญชีใหม่", "ดีมาก"]) == {0: "exact"}
    (match,) = (match for match in find_corpus_matches(corpus, [row], 1)["train"] if match["document"] == 1)
    assert (KINDS[match["kind"]], match["share"] < 1) == ("near", True)


def test_a_column_of_thai_is_known_as_text(tmp_path: Path) -> None:
    rows = ["การใช้จ่ายครั้งใหม่นี้ได้รับการสนับสนุนโดยบัญชีธนาคาร"] * 3
    (tmp_path / "test.csv").write_text("ข้อความ,label\n" + "".join(f"{row},a\n" for row in rows))
    assert read_evaluation_file(tmp_path / "test.csv").columns == ("ข้อความ",)


def test_how_an_emoji_is_drawn_is_no_word() -> None:
    assert split_at_punctuation("1\ufe0f\u20e3 good \u2764\ufe0f") == ["1", "good"]
    assert split_without_punctuation("1\ufe0f\u20e3 good \u2764\ufe0f") == ["1", "good"]


def test_any_number_of_workers_finds_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    rows = [sentence(random, words) for words in range(8, 40)]
    corpus = make_corpus(tmp_path, [f"{sentence(random, 9)}\n{row}" for row in rows])
    alone, together = (find_corpus_matches(corpus, rows, workers) for workers in (1, 2))
    assert all(np.array_equal(alone[split], together[split]) for split in ("train", "heldout"))
    assert sum(map(len, alone.values())) >= len(rows)


def contaminated(folder: Path) -> tuple[Corpus, Path, list[str]]:
    """A corpus, a test file of four rows, and its two rows that documents of the corpus hold."""
    random = np.random.default_rng(10)
    rows = [sentence(random, 15, OWN) for _ in range(4)]
    documents = filler(random, 30)
    documents[3].insert(2, rows[0].upper())
    documents.append([rows[1], rows[0]])
    corpus = make_corpus(folder, ["\n".join(document) for document in documents])
    with (folder / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((row, "a") for row in rows)])
    return corpus, folder / "test.csv", rows[:2]


def check(corpus: Corpus, *files: Path) -> Contamination:
    return find_contamination(corpus, [str(file) for file in files])


def test_what_was_found_is_removed_and_the_manifest_says_so(tmp_path: Path) -> None:
    corpus, file, planted = contaminated(tmp_path)
    found = check(corpus, file)
    (of_file,) = found.files
    assert (of_file.found, of_file.kinds, of_file.columns) == (
        2,
        {"exact": 2, "near": 0, "part": 0},
        {"text": 2},
    )
    clean, removed = write_decontaminated(found, tmp_path / "clean")
    # One sentence of a long document, and one document that was nothing else.
    assert removed == Counts(
        documents=1, sentences=3, words=45, bytes=sum(map(len, planted)) + 1 + len(planted[0]) + 1
    )
    before, after = (
        [" ".join(each.sentences) for split in ("train", "heldout") for each in one.documents(split)]
        for one in (corpus, clean)
    )
    expected = [text.replace(planted[0].upper() + " ", "") for text in before if planted[1] not in text]
    assert sorted(after) == sorted(expected)
    clean.verify()
    (entry,) = clean.manifest.decontaminations
    assert [(each.name, each.rows, each.found) for each in entry.against] == [("test.csv", 4, 2)]
    assert clean.manifest.checked_against == {sha256(file)}
    assert not corpus.manifest.checked_against


def test_the_counts_of_what_is_left_are_those_of_the_text(tmp_path: Path) -> None:
    corpus, file, _ = contaminated(tmp_path)
    clean, _ = write_decontaminated(check(corpus, file), tmp_path / "clean")
    for split, entry in clean.manifest.splits.items():
        documents = [each.sentences for each in clean.documents(split)]
        texts = [" ".join(sentences) for sentences in documents]
        assert entry.counts == Counts(
            documents=len(documents),
            sentences=sum(map(len, documents)),
            words=sum(len(text.split()) for text in texts),
            bytes=sum(len(text.encode()) for text in texts),
        )
    assert clean.manifest.sources[0].kept == clean.manifest.kept


def test_nothing_is_found_in_what_is_left(tmp_path: Path) -> None:
    corpus, file, _ = contaminated(tmp_path)
    clean, _ = write_decontaminated(check(corpus, file), tmp_path / "clean")
    again = check(clean, file)
    assert (again.files[0].found, again.documents) == (0, 0)
    twice, removed = write_decontaminated(again, tmp_path / "twice")
    assert removed == Counts()
    assert len(twice.manifest.decontaminations) == 2
    assert (twice.path / "train-00000.parquet").read_bytes() == (
        clean.path / "train-00000.parquet"
    ).read_bytes()


def checked_rows(folder: Path, document: list[str], rows: list[str]) -> tuple[Contamination, Path]:
    """What a corpus of the document, among others, has of the rows."""
    others = ["\n".join(each) for each in filler(np.random.default_rng(15), 10)]
    settings = CorpusSettings(near_duplicates=False, heldout=0)
    corpus = make_corpus(folder, ["\n".join(document), *others], settings)
    (folder / "test.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    return check(corpus, folder / "test.jsonl"), folder / "test.jsonl"


def test_every_run_of_a_row_is_removed(tmp_path: Path) -> None:
    """The document has the first and the last sentence of a row, and other words in place of the middle."""
    random = np.random.default_rng(14)
    first, middle, last = (sentence(random, words, OWN) for words in (20, 25, 15))
    before, after = filler(random, 2)
    document = [*before, first, sentence(random, 25), last, *after]
    found, file = checked_rows(tmp_path, document, [f"{first} {middle} {last}"])
    assert found.files[0].kinds == {"exact": 0, "near": 0, "part": 1}
    clean, removed = write_decontaminated(found, tmp_path / "clean")
    assert removed.sentences == 2
    assert check(clean, file).files[0].found == 0


@pytest.mark.parametrize("missing", [0, 11])
def test_the_sentence_beside_a_near_copy_stays(tmp_path: Path, missing: int) -> None:
    """The first or the last word of the row is left out: in its place is a word of the neighbour."""
    random = np.random.default_rng(16)
    row = random.choice(OWN, 12, replace=False)
    before, after = filler(random, 2)
    document = [*before, " ".join(np.delete(row, missing)).capitalize() + ".", *after]
    found, _ = checked_rows(tmp_path, document, [" ".join(row)])
    assert [example.in_corpus for example in found.files[0].examples] == [document[5]]
    _, removed = write_decontaminated(found, tmp_path / "clean")
    assert (removed.documents, removed.sentences) == (0, 1)


def test_a_chinese_document_is_measured_in_characters_when_a_sentence_goes(tmp_path: Path) -> None:
    letters = "".join(chr(0x4E00 + n) for n in range(36))
    (tmp_path / "a.txt").write_text("。".join((letters[:12], letters[12:24], letters[24:])) + "。")
    (tmp_path / "test.csv").write_text(f"text,label\n{letters[:12]},a\n")
    settings = CorpusSettings(format="file", heldout=0, language="zh", min_words=10)
    corpus = build_corpus([str(tmp_path / "a.txt")], tmp_path / "corpus", settings=settings, workers=1)
    _, removed = write_decontaminated(check(corpus, tmp_path / "test.csv"), tmp_path / "clean")
    assert (removed.documents, removed.sentences) == (0, 1)


def test_examples_show_the_row_beside_the_corpus(tmp_path: Path) -> None:
    corpus, file, planted = contaminated(tmp_path)
    first, second = check(corpus, file).files[0].examples
    assert (first.where, first.column, first.text) == ("line 2", "text", planted[0])
    assert first.in_corpus.lower() == planted[0].lower()
    assert (second.where, second.in_corpus, second.kind, second.share) == ("line 3", planted[1], "exact", 1)


def test_a_corpus_that_is_nothing_but_the_test_file_is_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    rows = [sentence(random, 20) for _ in range(20)]
    corpus = make_corpus(tmp_path, rows)
    (tmp_path / "test.txt").write_text("\n".join(rows))
    with pytest.raises(InputError, match="no document would be left"):
        write_decontaminated(check(corpus, tmp_path / "test.txt"), tmp_path / "clean")
    assert not (tmp_path / "clean").exists()
    assert not list(tmp_path.glob(".clean*"))


def test_an_older_manifest_is_of_a_corpus_that_was_never_checked(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, [sentence(np.random.default_rng(12), 20)] * 2)
    path = corpus.path / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["decontaminations"]
    path.write_text(json.dumps(manifest))
    assert Corpus.open(corpus.path).manifest.checked_against == frozenset()


TEXT = "a sentence of some words"


def read(path: Path, content: str, **options: str) -> tuple[int, tuple[str, ...], list[str]]:
    path.write_text(content)
    found = read_evaluation_file(path, **options)
    assert found.hashes == {path.name: sha256(path)}
    return found.rows, found.columns, [each.text for each in found.texts]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", f"text,label\n{TEXT},good\n", ("text",)),
        ("bare.csv", f"{TEXT},good\n", ("1",)),
        ("tabs.csv", f"id\tscore\tfirst\n7\t4.2\t{TEXT}\n", ("first",)),
        ("chinese.csv", f"note,sentence,label\n{TEXT},今天天气很好,好\n", ("note", "sentence")),
        ("dates.csv", f"day,text\n2024-01-05,{TEXT}; and more\n", ("text",)),
        ("one column.tsv", f'{TEXT} "so\n', ("1",)),
        ("a.tsv", f'sentence\tlabel\n{TEXT}\t"\n', ("sentence",)),
        ("a.jsonl", json.dumps({"review": TEXT, "stars": 4, "id": "x"}), ("review",)),
        ("words.jsonl", json.dumps({"words": TEXT.split(), "tags": ["O"] * 5, "n": 1}), ("words", "tags")),
        ("a.json", json.dumps([{"body": TEXT}]), ("body",)),
        ("a.txt", TEXT, ("text",)),
        ("a.conll", "\n".join(f"{word} O" for word in TEXT.split()), ("words",)),
        (
            "unnamed.testb",
            "-DOCSTART- O\n\n" + "\n".join(f"{w} O" for w in TEXT.split()) + "\n\n",
            ("words",),
        ),
    ],
)
def test_texts_are_found_in_every_format(
    tmp_path: Path, name: str, content: str, columns: tuple[str, ...]
) -> None:
    rows, found, texts = read(tmp_path / name, content)
    assert (rows, found) == (1, columns)
    assert texts[0].startswith(TEXT)


def test_parquet_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [TEXT, None], "n": [1, 2]}), tmp_path / "a.parquet")
    found = read_evaluation_file(tmp_path / "a.parquet")
    assert [(each.row, each.column, each.text) for each in found.texts] == [(0, "text", TEXT)]
    assert found.rows == 2


def test_questions_and_their_passages_are_texts_of_one_row(tmp_path: Path) -> None:
    asked = [{"id": str(n), "question": f"{TEXT} {n}?", "answers": []} for n in range(2)]
    squad = {"data": [{"title": "t", "paragraphs": [{"context": "A passage of words.", "qas": asked}]}]}
    for question in asked:
        question["is_impossible"] = True
    rows, columns, texts = read(tmp_path / "squad.json", json.dumps(squad))
    assert (rows, columns) == (2, ("question", "context"))
    assert texts == [f"{TEXT} 0?", "A passage of words.", f"{TEXT} 1?", "A passage of words."]


def test_collections_are_queries_and_documents(tmp_path: Path) -> None:
    reqa = {"questions": ["who is she then?"], "candidates": ["he", TEXT], "ground_truths": [[1]]}
    rows, columns, texts = read(tmp_path / "reqa.json", json.dumps(reqa))
    assert (rows, columns, texts) == (3, ("query", "document"), ["who is she then?", "he", TEXT])
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text(json.dumps({"_id": "d", "text": TEXT}))
    (beir / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "who?"}))
    (beir / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    found = read_evaluation_file(beir)
    assert (found.rows, found.columns) == (2, ("query", "document"))
    assert set(found.hashes) == {"corpus.jsonl", "queries.jsonl", "qrels/test.tsv"}


@pytest.mark.parametrize("judged", [["dev"], []])
def test_a_collection_needs_no_judgements_of_its_test_split(tmp_path: Path, judged: list[str]) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d", "title": "A title", "text": TEXT}))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "who is that?"}))
    for split in judged:
        (tmp_path / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    for format in (None, "beir"):
        found = read_evaluation_file(tmp_path, format=format)
        assert [(each.column, each.text) for each in found.texts] == [
            ("query", "who is that?"),
            ("document", f"A title {TEXT}"),
        ]


@pytest.mark.parametrize("columns", [[], ["text"], ["2"]])
def test_the_header_of_a_table_with_pandas_index_is_no_row(tmp_path: Path, columns: list[str]) -> None:
    (tmp_path / "a.csv").write_text(f",text,label\n0,{TEXT},good\n1,{TEXT} more,bad\n")
    found = read_evaluation_file(tmp_path / "a.csv", columns)
    assert (found.rows, found.columns) == (2, ("text",))


def test_a_first_row_of_chinese_is_no_header(tmp_path: Path) -> None:
    """It has no blanks: each field was one word, and the row was never searched for."""
    rows = ["今天天气很好我们去公园散步吧", "他昨天买了一本关于历史的书"]
    (tmp_path / "a.csv").write_text("".join(f"{text},1\n" for text in rows), encoding="utf-8")
    assert [each.text for each in read_evaluation_file(tmp_path / "a.csv").texts] == rows
    (tmp_path / "b.csv").write_text(f"テキスト,感情のラベル\n{rows[0]},1\n", encoding="utf-8")
    assert read_evaluation_file(tmp_path / "b.csv").columns == ("テキスト",)


def test_columns_may_be_named(tmp_path: Path) -> None:
    content = f"text,other,label\n{TEXT},x y,good\n"
    for columns in (["other"], ["2"]):
        (tmp_path / "a.csv").write_text(content)
        found = read_evaluation_file(tmp_path / "a.csv", columns)
        assert [each.text for each in found.texts] == ["x y"]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "label,id\ngood,7\n", {}, "no column looks like text.*label, id.*--column"),
        ("a.csv", f"text\n{TEXT}\n", {"columns": ["txt"]}, "no column 'txt'.*text"),
        ("a.csv", f"text,b\n{TEXT},\n", {"columns": ["b"]}, "expected text in b, found none"),
        ("a.csv", "", {}, "no rows"),
        ("a.csv", f"text;label\n{TEXT};good\n{TEXT}, so;bad\n", {}, "semicolons: save it with commas"),
        ("a.csv", f"{TEXT};good\n{TEXT}, so;bad\n", {}, "semicolons: save it with commas"),
        ("a.csv", 'text\n"open', {}, "line 2: not valid CSV"),
        ("a.jsonl", "{]", {}, "line 1: expected one JSON object"),
        ("a.csv", TEXT, {"format": "xml"}, "no format 'xml'.*csv"),
        ("a.json", '{"data": 3}', {}, "expected a list under 'data'"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(
    tmp_path: Path, name: str, content: str, options: dict[str, object], message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_evaluation_file(tmp_path / name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nowhere.csv", "-", "s3://bucket/test.csv"])
def test_a_missing_file_is_a_sentence(name: str) -> None:
    with pytest.raises(InputError, match=r"does not exist\. Name a test file"):
        read_evaluation_file(name)


def test_every_combining_mark_of_unicode_belongs_to_the_word_before_it() -> None:
    characters = map(chr, range(0x300, 0xE0100))
    marks = [character for character in characters if unicodedata.category(character) in ("Mn", "Mc")]
    strangers = [mark for mark in marks if WORD.fullmatch(f"a{mark}") is None]
    assert strangers == [chr(code) for code in range(0xFE00, 0xFE10)]  # how an emoji is drawn
