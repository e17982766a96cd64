"""BM25's scores equal the formula written out; words are what Lucene's English analysis makes of them."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import InputError, MissingExtra
from bertsmith.inference.ranking.search import Bm25Settings, LexicalSearch

pytest.importorskip("Stemmer", reason="needs the extra `retrieval`")


def by_definition(
    query: list[str], document: list[str], texts: list[list[str]], k1: float, b: float
) -> float:
    mean = sum(map(len, texts)) / len(texts)
    score = 0.0
    for word in query:
        tf, df = document.count(word), sum(word in text for text in texts)
        idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        score += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean)) if tf else 0.0
    return score


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.1, 1.0)])
def test_scores_equal_the_formula(k1: float, b: float) -> None:
    """Words repeated in query and document, empty documents, and words that no document holds."""
    generator = np.random.default_rng(0)
    words = [f"w{number}" for number in range(12)]
    texts = [list(generator.choice(words[:10], generator.integers(0, 9))) for _ in range(25)]
    queries = [list(generator.choice(words, generator.integers(0, 5))) for _ in range(20)]
    settings = Bm25Settings(k1, b, english=False)
    ours = LexicalSearch([" ".join(text) for text in texts], settings).scores([" ".join(q) for q in queries])
    theirs = [[by_definition(query, text, texts, k1, b) for text in texts] for query in queries]
    assert ours.dtype == np.float32
    assert ours == pytest.approx(np.array(theirs), rel=1e-5, abs=1e-6)


def test_english_words_lose_case_endings_and_stop_words() -> None:
    search = LexicalSearch(["The Wings of Flying Machines", "a wing, it is", "aircraft"])
    assert (search.scores(["WING"]) > 0).tolist() == [[True, True, False]]
    assert (search.scores(["a fly by the machine"]) > 0).tolist() == [[True, False, False]]
    assert not search.scores(["it is the", ""]).any()


def test_other_languages_keep_their_words() -> None:
    search = LexicalSearch(["Der Flügel", "die Flügels"], Bm25Settings(english=False))
    assert (search.scores(["flügel"]) > 0).tolist() == [[True, False]]
    assert (search.scores(["die"]) > 0).tolist() == [[False, True]]


def test_vowel_signs_are_part_of_a_word() -> None:
    search = LexicalSearch(["की किताब", "के राष्ट्रपति"], Bm25Settings(english=False))
    assert (search.scores(["कि"]) > 0).tolist() == [[False, False]]
    assert (search.scores(["राष्ट्रपति"]) > 0).tolist() == [[False, True]]


def test_documents_without_words_score_nothing() -> None:
    assert LexicalSearch(["", "the"]).scores(["the wing"]).tolist() == [[0, 0]]


@pytest.mark.parametrize(("k1", "b"), [(-1, 0.4), (0.9, 1.1), (0.9, -0.1)])
def test_impossible_settings_are_refused(k1: float, b: float) -> None:
    with pytest.raises(InputError, match="k1 of 0 or more and b from 0 to 1"):
        Bm25Settings(k1, b)


@pytest.mark.parametrize(("module", "package"), [("bm25s", "bm25s"), ("Stemmer", "PyStemmer")])
def test_a_missing_extra_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingExtra, match=rf"needs the package {package}: pip install 'bertsmith\[retrieval\]'"
    ):
        LexicalSearch(["text"])


def test_search_does_not_import_jax(tmp_path: Path) -> None:
    """bm25s imports it where it is installed, and on a GPU jax takes three quarters of the memory."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemExit('jax was imported')")
    search = (
        "from bertsmith.inference.ranking.search import LexicalSearch; "
        "print(LexicalSearch(['a wing']).scores(['wings'])); import jax"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {search}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("[["), done.stderr
    assert done.stderr.strip() == "jax was imported"  # by its own user, who still can
