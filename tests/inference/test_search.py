"""What a search finds: by vectors, by words, by both, filtered, read again, and marked."""

import itertools
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_samples import SETTINGS, WordEmbedder, write_files

pytest.importorskip("lancedb")

from bertsmith.errors import InputError, ResourceError
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.manifest import MANIFEST
from bertsmith.inference.index.passage_table import index_errors
from bertsmith.inference.index.search import matching_spans
from bertsmith.inference.index.text_embedder import identify
from bertsmith.inference.index.writer import create_index
from bertsmith.inference.ranking.ranking import reciprocal_rank_fusion

TEXTS = {
    "cats.txt": "The red cat runs. Indexes of cats sleep.",
    "dogs.txt": "The blue dog sleeps. O'Brien's dog is old.",
    "birds.txt": "Green birds sing. A small bird sings.",
    "café.md": "# Café\n\nLe café est ouvert.",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("search")
    rows = folder / "rows.jsonl"
    rows.write_text(
        '{"id": "r1", "text": "a new cat", "year": 2001}\n{"id": "r2", "text": "old cat", "year": 2020}\n'
    )
    docs = write_files(folder / "docs", TEXTS)
    return Index.build([docs, rows], folder / "index", embedder=WordEmbedder(), passages=SETTINGS)


def found(index: Index, query: str, **how: object) -> list[str]:
    return [hit.document_id for hit in index.search(query, **how)]  # type: ignore[arg-type]


def test_vector_search_is_the_order_of_the_cosines(index: Index) -> None:
    query = "old dog sleeps"
    rows = [row for batch in index._committed.table.scan(["id", "vector"]) for row in batch.to_pylist()]
    cosines = np.array([row["vector"] for row in rows]) @ WordEmbedder().queries([query])[0]
    hits = index.search(query, k=100, mode="vector")
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True), abs=1e-5)


def test_text_search_finds_words_in_any_form_and_nothing_else(index: Index) -> None:
    assert set(found(index, "singing", mode="text")) == {"docs/birds.txt"}
    assert set(found(index, "the cafe", mode="text")) == {"docs/café.md"}
    assert found(index, "zebra", mode="text") == []
    assert set(found(index, "index", mode="text")) == {"docs/cats.txt"}


def test_a_word_of_any_length_is_found_by_text(tmp_path: Path) -> None:
    """A checksum, and a compound."""
    words = ("9b74c9897bac770ffc029102a200c5de" * 2, "rindfleischetikettierungsueberwachungsgesetz")
    docs = write_files(tmp_path / "docs", {f"{n}.txt": f"It is {word}." for n, word in enumerate(words)})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder())
    assert [found(index, word, mode="text") for word in words] == [["docs/0.txt"], ["docs/1.txt"]]


WITHOUT_BLANKS = {
    "zh": ("我们在东京的公司有二十八天的年假。", "年假"),
    "zh-hant": ("我們在東京的公司有二十八天的年假。", "公司 年假"),
    "ja": ("東京の会社には休暇がある。", "休暇"),
    "th": ("ฉันมีวันหยุดยี่สิบวันต่อปี", "วันหยุด"),
}


@pytest.mark.parametrize("language", WITHOUT_BLANKS)
def test_words_without_blanks_around_them_are_found_and_marked(tmp_path: Path, language: str) -> None:
    text, query = WITHOUT_BLANKS[language]
    docs = write_files(tmp_path / "docs", {"a.txt": text, "b.txt": "Our ABC东京 has a cat."})
    passages = SETTINGS.changed({"language": language, "tokens": 40})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=passages)
    (hit,) = index.search(query, mode="text")
    assert hit.document_id == "docs/a.txt"
    assert [hit.text[start:end] for start, end in hit.matches] == query.split()
    assert found(index, "abc", mode="text") == found(index, "CATS cat", mode="text") == ["docs/b.txt"]


def test_an_index_of_several_languages_finds_the_words_of_each(tmp_path: Path) -> None:
    """As ICU divides them. In an English one, a run without blanks is one word."""
    texts = {language: text for language, (text, _) in WITHOUT_BLANKS.items()}
    texts |= {"en": "We have 28 days of leave.", "hi": "हिन्दी में छुट्टी", "ru": "У нас отпуск."}
    docs = write_files(tmp_path / "docs", {f"{language}.txt": text for language, text in texts.items()})
    passages = SETTINGS.changed({"language": "mul", "tokens": 40})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=passages)
    queries = {language: query.split()[0] for language, (_, query) in WITHOUT_BLANKS.items()}
    queries |= {"zh": "我们", "zh-hant": "東京 公司", "en": "LEAVE", "hi": "हिन्दी", "ru": "ОТПУСК"}
    for language, query in queries.items():
        hit, *_ = index.search(query, mode="text")
        assert hit.document_id == f"docs/{language}.txt"
        assert (
            "".join(hit.text[start:end] for start, end in hit.matches).lower()
            == query.replace(" ", "").lower()
        )


@pytest.mark.parametrize(
    ("language", "word", "other"),
    [
        ("hi", "हिन्दी", "मन्दी"),
        ("bn", "রক্ত", "শক্ত"),
        ("ta", "பக்கம்", "தக்கம்"),
        ("th", "บ้าน", "ร้าน"),
        ("lo", "ບ້ານ", "ຮ້ານ"),
    ],
)
def test_a_word_with_a_virama_or_a_tone_mark_is_one_word(
    tmp_path: Path, language: str, word: str, other: str
) -> None:
    """It was cut there, and was found by whatever had one of its parts."""
    docs = write_files(tmp_path / "docs", {"a.txt": f"cats, {word}.", "b.txt": f"cats {other}।"})
    passages = SETTINGS.changed({"language": language})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=passages)
    assert [found(index, query, mode="text") for query in (word, other)] == [["docs/a.txt"], ["docs/b.txt"]]
    assert sorted(found(index, "CATS", mode="text")) == ["docs/a.txt", "docs/b.txt"]


def test_matches_are_of_the_query_as_it_was_composed(tmp_path: Path) -> None:
    """Of が as か and a mark, no bigram was in the passage: が wasn't marked."""
    docs = write_files(tmp_path / "docs", {"a.txt": "これはがくせいです。", "b.txt": "new cats"})
    passages = SETTINGS.changed({"language": "ja"})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=passages)
    (hit,) = index.search("か\u3099くせい", mode="text")
    assert [hit.text[start:end] for start, end in hit.matches] == ["がくせい"]


@pytest.mark.parametrize("language", ["en", "de", "cs"])
def test_a_soft_hyphen_ends_no_word(tmp_path: Path, language: str) -> None:
    """Texts that were set in columns are full of them; only texts of HTML had none in an index."""
    docs = write_files(tmp_path / "docs", {"a.txt": "Ein Damp\u00adfer\u00adkapitän.", "b.txt": "new cats"})
    passages = SETTINGS.changed({"language": language})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=passages)
    for query in ("Dampferkapitän", "Dampfer\u00adkapitän"):
        (hit,) = index.search(query, mode="text")
        assert [hit.text[start:end] for start, end in hit.matches] == ["Dampferkapitän"]
        assert (hit.start, hit.end) == (0, 21)


ACCENTS = {"composed.txt": "L'\u00e9cole de Z\u00fcrich.", "apart.txt": "L'e\u0301cole de Zu\u0308rich."}


@pytest.mark.parametrize("query", ["\u00e9cole", "e\u0301cole", "ecole", "Z\u00dcRICH", "Zu\u0308rich"])
@pytest.mark.parametrize("language", ["fr", "cs"])
def test_an_accent_is_the_same_however_it_was_typed(tmp_path: Path, query: str, language: str) -> None:
    docs = write_files(tmp_path / "docs", ACCENTS)
    passages = SETTINGS.changed({"language": language})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=passages)
    hits = {hit.document_id: hit for hit in index.search(query, mode="text")}
    assert set(hits) == {"docs/composed.txt", "docs/apart.txt"}
    assert hits["docs/apart.txt"].text == ACCENTS["composed.txt"]
    assert (hits["docs/apart.txt"].start, hits["docs/apart.txt"].end) == (0, len(ACCENTS["apart.txt"]))


@pytest.mark.parametrize(
    ("word", "others"),
    [
        ("r\u00e9sum\u00e9", ["resume", "re\u0301sume\u0301", "R\u00c9SUM\u00c9S", "resumes"]),
        ("resume", ["r\u00e9sum\u00e9", "re\u0301sume\u0301"]),
        ("expos\u00e9", ["expose", "EXPOSE\u0301"]),
        ("na\u00efve", ["naive", "nai\u0308ve"]),
        ("x\u030cray", ["xray"]),
        ("\u0439\u043e\u0434", ["\u0439\u043e\u0434", "\u0438\u0306\u043e\u0434"]),
    ],
)
def test_accents_do_not_count_in_an_english_index(tmp_path: Path, word: str, others: list[str]) -> None:
    docs = write_files(tmp_path / "docs", {"a.txt": f"My {word} is here.", "b.txt": "dogs"})
    index = Index.build([docs], tmp_path / "index", embedder=WordEmbedder(), passages=SETTINGS)
    for query in (word, *others):
        (hit,) = index.search(query, mode="text")
        assert hit.text == f"My {word} is here."  # shown as it stands there
    assert found(index, "\u0438\u043e\u0434", mode="text") == []  # \u0439 is a letter of its own


def test_an_english_index_of_before_has_no_column_without_accents(tmp_path: Path) -> None:
    folder, embedder = tmp_path / "index", WordEmbedder()
    create_index(folder, identify("WordEmbedder", embedder), SETTINGS.changed({"language": "und"}))
    noted = json.loads((folder / MANIFEST).read_text())
    assert noted.pop("folded") is False
    noted["passages"]["language"] = "en"
    (folder / MANIFEST).write_text(json.dumps(noted))
    index = Index.build([write_files(tmp_path / "docs", ACCENTS)], folder, embedder=embedder)
    assert found(index, "Zurich", mode="text") == ["docs/apart.txt", "docs/composed.txt"]
    assert not index.info.folded


def test_an_index_of_before_goes_on_with_accents_as_they_came(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    embedder = WordEmbedder()
    create_index(folder, identify("WordEmbedder", embedder), SETTINGS.changed({"language": "und"}))
    noted = json.loads((folder / MANIFEST).read_text())
    assert noted.pop("composed") is True
    (folder / MANIFEST).write_text(json.dumps(noted))
    docs = write_files(tmp_path / "docs", ACCENTS)
    index = Index.build([docs], folder, embedder=embedder)
    assert {hit.document_id: hit.text for hit in index.search("cole cat", mode="vector")} == {
        f"docs/{name}": text for name, text in ACCENTS.items()
    }
    assert found(index, "Zu\u0308rich", mode="text") == ["docs/apart.txt"]
    assert found(index, "Z\u00fcrich", mode="text") == ["docs/composed.txt"]
    assert not index.info.composed, "what was built since doesn't change it"


@pytest.mark.parametrize(
    "query", ["O'Brien", 'a "quoted', "cat AND (", "+-*/\\", "cat:dog^2~", "🙂", "--", "%_"]
)
def test_a_query_is_words_and_has_no_syntax(index: Index, query: str) -> None:
    for mode in ("text", "hybrid", "vector"):
        index.search(query, mode=mode)  # type: ignore[arg-type]
    assert found(index, "O'Brien", mode="text") == ["docs/dogs.txt"]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
def test_a_query_of_bytes_that_are_no_text_finds_what_the_rest_of_it_does(index: Index, mode: str) -> None:
    found = index.search("cat \udcff", mode=mode)  # type: ignore[arg-type]
    assert any("cat" in hit.text.lower() for hit in found)


def test_hybrid_is_the_fusion_of_both_rankings(index: Index) -> None:
    query = "old cat"
    rankings = [
        [(hit.source, hit.start, hit.document_id) for hit in index.search(query, k=50, mode=mode)]
        for mode in ("vector", "text")
    ]
    expected = {
        key: sum(1 / (60 + r.index(key) + 1) for r in rankings if key in r) for r in rankings for key in r
    }
    hits = index.search(query, k=50)
    assert {(hit.source, hit.start, hit.document_id): hit.score for hit in hits} == pytest.approx(expected)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_k_is_how_many_and_fewer_where_there_are_fewer(index: Index) -> None:
    assert len(index.search("cat", k=2)) == 2
    assert len(index.search("cat", k=1000, mode="vector")) == index.info.rows


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_a_filter_holds_before_the_best_are_taken(index: Index, mode: str) -> None:
    assert set(found(index, "old cat", k=1, mode=mode, where="year < 2010")) == {"r1"}
    assert set(found(index, "old cat", mode=mode, where="source LIKE 'docs/d%'")) == {"docs/dogs.txt"}
    assert found(index, "old cat", mode=mode, where="year > 3000") == []


@pytest.mark.parametrize(
    "where",
    [
        *("yeer > 2000", "year >", "year = 'x'", "DROP TABLE passages", "'"),
        *("year > 2000; DROP TABLE x", "year > 2000) OR (1=1", "year > 2000 ORDER BY id", "year > 2000 year"),
        *("10 / (year - 2001) > 1", "CAST(text AS INT) > 1"),  # they fail at some rows only
    ],
)
def test_a_filter_that_cannot_be_used_is_a_sentence(index: Index, where: str) -> None:
    with pytest.raises(
        InputError, match=r"The filter .* can't be used: .* with these columns: id, document_id"
    ):
        index.search("cat", where=where)


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("repeat('a', 1000000000) = text", "it calls repeat, and may call abs, "),
        ("text = lower(RePeat/* */\n('a', 1000000000))", "it calls RePeat"),
        ("`repeat`('a', 1000000000) = text", "it calls `repeat`"),
        ("text = E'\\'' AND repeat('a',1000000000) = text --'", "it holds a text marked by E"),
        ("text = $$'$$ OR lpad('a', 1000000000, 'b') = '$$'", r"it holds \$"),
        ("year IN (SELECT 1)", "it holds SELECT"),
        (" || ".join(["text"] * 5000) + " = text", "a term of it has more than 200 parts"),
        (" + ".join(["(year = 1 OR 1 = 1)"] * 1000) + " = 1", "a term of it has more than 200 parts"),
        ("year IS NULL" + " BETWEEN 1 AND 2" * 5000, "a term of it has more than 200 parts"),
        ("year = " + "CAST(" * 300 + "1" + " AS INT)" * 300, "its parentheses stand more than 19 deep"),
        ("text = '" + "a" * 200_000 + "'", "it has 200,009 characters"),
    ],
)
def test_a_filter_that_takes_memory_or_the_stack_never_reaches_the_planner(
    index: Index, where: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=rf"The filter .* can't be used: {complaint}"):
        index.search("cat", where=where)


@pytest.mark.parametrize(
    "where",
    [
        "document_id IN (" + ", ".join(f"'r{number}'" for number in range(5000)) + ")",
        " OR ".join(f"document_id = 'r{number}'" for number in range(3000)) + " AND NOT (year < 2001)",
        "lower(text) LIKE '%cat' AND (year + 1) * 2 > 4000 AND year IS NOT NULL",
        "text LIKE '%cat' AND text != 'repeat(''a'', 9)' AND year BETWEEN 2000 AND 2030",
    ],
)
def test_a_long_filter_of_comparisons_is_used(index: Index, where: str) -> None:
    assert set(found(index, "cat", where=where)) == {"r1", "r2"}


@pytest.mark.parametrize(
    "where", ["year > 2000 -- of late", "(year > 2000)\n", "year > 2000 /* AND */", "NOT year < 2001"]
)
def test_a_filter_is_any_one_expression(index: Index, where: str) -> None:
    assert set(found(index, "cat", where=where)) == {"r1", "r2"}


@pytest.mark.parametrize(
    ("message", "kind", "sentence"),
    [
        ("LanceError(IO): Not found: a/b.lance, /x.rs:1", InputError, "is damaged: a file is missing"),
        ("LanceError(IO): failed to fill whole buffer, /x.rs:1", InputError, "is damaged"),
        (
            "LanceError(IO): Too many open files (os error 24), /x.rs:1",
            ResourceError,
            r"gave up on .*\(os error 24\)\. ",
        ),
        (
            "Query Execution error: Resources exhausted: memory, /x.rs:1",
            ResourceError,
            "All that was committed stays",
        ),
    ],
)
def test_only_a_lost_or_cut_file_is_called_damage(
    tmp_path: Path, message: str, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence), index_errors(tmp_path):
        raise RuntimeError(f"lance error: {message}")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"query": "  "}, "The query is empty"),
        ({"query": "cat", "k": 0}, "must be a whole number from 1 to 100,000, found 0"),
        ({"query": "cat", "k": 10**12}, "must be a whole number from 1 to 100,000, found 1000000000000"),
        ({"query": "cat", "mode": "fuzzy"}, "mode must be hybrid, vector, text, found 'fuzzy'"),
    ],
)
def test_a_question_that_cannot_be_answered_is_a_sentence(
    index: Index, how: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        index.search(**how)  # type: ignore[arg-type]


def test_a_reranker_decides_over_the_candidates(index: Index) -> None:
    asked: list[tuple[str, int]] = []

    def longest(query: str, passages: list[str]) -> list[float]:
        asked.append((query, len(passages)))
        return [len(passage) for passage in passages]

    hits = index.search("cat", k=3, reranker=longest)  # type: ignore[arg-type]
    assert asked == [("cat", index.info.rows)]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits[0].score == max(len(hit.text) for hit in index.search("cat", k=100, mode="vector"))
    with pytest.raises(InputError, match="Expected one for each, a finite number"):
        index.search("cat", reranker=lambda query, passages: [float("nan")] * len(passages))
    with pytest.raises(InputError, match="gave 1 scores"):
        index.search("cat", reranker=lambda query, passages: [1.0])


def test_a_hit_knows_its_place(index: Index) -> None:
    (hit,) = index.search("café", mode="text")
    text = TEXTS["café.md"]
    assert text[hit.start : hit.end] == hit.text
    assert (hit.title, hit.place, hit.metadata) == ("Café", "docs/café.md:1", hit.metadata)
    assert hit.metadata["year"] is None and len(hit.metadata["file_date"]) == len("2026-01-31")
    assert {hit.text[start:end] for start, end in hit.matches} == {"Café", "café"}


def test_words_are_marked_whatever_their_case_accents_and_endings() -> None:
    def marked(passage: str, query: str) -> list[str]:
        return [passage[start:end] for start, end in matching_spans(passage, query)]

    assert marked("Indexes are indexed; reindexing isn't.", "index") == ["Indexes", "indexed"]
    assert marked("CAFÉ, cafe\u0301 and decaf", "cafe") == ["CAFÉ", "cafe\u0301"]
    assert marked("the cat on the mat", "where is the cat") == ["cat"], "stop words are not marked"
    assert marked("to be or not", "to be") == ["to", "be"], "but for a query of nothing else"
    assert marked("", "cat") == [] == marked("cat", "")


def test_endings_and_stop_words_of_english_are_no_other_language_s() -> None:
    passage = "Wer will, kann die Käse kaufen; er will."
    marks = [passage[start:end] for start, end in matching_spans(passage, "will Kase die", "de")]
    assert marks == ["will", "die", "Käse", "will"]
    assert matching_spans("die Base", "Bases", "de") == []
    assert matching_spans("the Base", "the Bases", "en-gb") == [(4, 8)]


def test_of_a_language_without_blanks_pairs_of_characters_are_marked() -> None:
    def marked(passage: str, query: str) -> list[str]:
        return [passage[start:end] for start, end in matching_spans(passage, query, "zh")]

    assert marked("公司有年假，年初没有。", "公司年假") == ["公司", "年假"]
    assert marked("年假和年初", "年") == ["年", "年"], "a character by itself"
    assert matching_spans("新年", "年", "zh") == [(1, 2)], "and nothing behind the passage's end"
    assert marked("ABC东京公司, abcd", "abc 东京公") == ["ABC", "东京公"]
    assert marked("人々と様々な人", "人々") == ["人々"], "a sign that repeats a character is one"
    assert marked("the 東京の会社", "the 会社") == ["the", "会社"]


@pytest.mark.parametrize("language", ["en", "th", "mul"])
def test_of_thai_three_letters_in_a_row_are_marked_whatever_the_index_s_language(language: str) -> None:
    def marked(passage: str, query: str) -> list[str]:
        return [passage[start:end] for start, end in matching_spans(passage, query, language)]

    assert marked("ฉันมีวันหยุดยี่สิบวันต่อปี", "วันหยุดกี่วัน") == ["วันหยุด"]
    assert marked("บ้านและร้านค้า", "บ้าน") == ["บ้าน"], "a tone mark is no letter"
    assert marked("ขายนาในบ้าน", "น") == ["น"], "nor is a letter with a vowel the letter"
    assert marked("東京の会社 the cat", "会社 cat") == ["会社", "cat"]


def test_marked_thai_is_of_words_that_both_texts_have(shared_data: Path) -> None:
    """Measured by words that people divided (Parallel Universal Dependencies)."""
    lines = (shared_data / "parallel" / "th.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    random, both, marked, shared = Random(0), 0, 0, 0
    for _ in range(500):
        asked, other = random.choice(rows), random.choice(rows)
        first = random.randrange(len(asked["words"]))
        query = asked["words"][first : first + 3]
        for row in (asked, other):
            passage = "".join(row["words"])
            ends = list(itertools.accumulate(map(len, row["words"])))
            of_shared = {
                at
                for word, end in zip(row["words"], ends, strict=True)
                if word in query and "\u0e01" <= word[0] <= "\u0e4e"
                for at in range(end - len(word), end)
            }
            spans = matching_spans(passage, "".join(query), "th")
            of_spans = {
                at for start, end in spans for at in range(start, end) if "\u0e01" <= passage[at] <= "\u0e4e"
            }
            both, marked, shared = (
                both + len(of_shared & of_spans),
                marked + len(of_spans),
                shared + len(of_shared),
            )
    assert both / marked > 0.95
    assert both / shared > 0.85


@given(rankings=st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8), max_size=4))
def test_fusion_adds_the_reciprocal_ranks(rankings: list[list[int]]) -> None:
    fused = reciprocal_rank_fusion(rankings)
    assert {key for key, _ in fused} == set(itertools.chain(*rankings))
    for key, score in fused:
        assert score == pytest.approx(sum(1 / (60 + 1 + each.index(key)) for each in rankings if key in each))
    assert [score for _, score in fused] == sorted((score for _, score in fused), reverse=True)


def test_fusion_of_the_paper_by_hand() -> None:
    assert reciprocal_rank_fusion([["a", "b", "c"], ["b", "a"]]) == [
        ("a", 1 / 61 + 1 / 62),
        ("b", 1 / 62 + 1 / 61),
        ("c", 1 / 63),
    ]
    assert reciprocal_rank_fusion([["a"], ["b"]], k=0) == [("a", 1.0), ("b", 1.0)], "ties: who came first"


@settings(max_examples=40)
@given(
    passage=st.text(max_size=60) | st.text("年々a \u0e19\u0e40\u0e49", max_size=20),
    query=st.text(max_size=20) | st.text("年々a \u0e19\u0e40\u0e49", max_size=6),
    language=st.sampled_from(["en", "ja"]),
)
def test_marks_are_words_of_the_passage(passage: str, query: str, language: str) -> None:
    spans = matching_spans(passage, query, language)
    assert all(0 <= start < end <= len(passage) for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
