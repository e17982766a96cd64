"""Signatures estimate likeness, and of documents alike the first stays, whatever the chain between them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.selection import (
    BANDS,
    HASHES,
    ROWS,
    RUN,
    SignatureFiles,
    choose_heldout,
    compute_band_keys,
    compute_signature,
    hash_text,
    mark_first_of_equal,
)
from bertsmith.text.corpus_settings import CorpusSettings

VOCABULARY = [f"word{n}" for n in range(5000)]


def jaccard(a: list[str], b: list[str]) -> float:
    """The plain definition, over sets of runs of five words."""
    runs = [{tuple(words[at : at + RUN]) for at in range(max(1, len(words) - RUN + 1))} for words in (a, b)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def random_words(random: np.random.Generator, count: int) -> list[str]:
    return list(random.choice(VOCABULARY, count))


def altered(words: list[str], changes: int, random: np.random.Generator) -> list[str]:
    words = list(words)
    for at in random.choice(len(words), changes, replace=False):
        words[at] = "changed"
    return words


@pytest.mark.parametrize("changes", [0, 2, 8, 20, 60])
def test_signatures_estimate_the_jaccard_similarity(changes: int) -> None:
    random = np.random.default_rng(changes)
    errors = []
    for _ in range(60):
        words = random_words(random, 300)
        other = altered(words, changes, random)
        estimate = (compute_signature(words) == compute_signature(other)).mean()
        errors.append(estimate - jaccard(words, other))
    # One estimate has a standard deviation of at most sqrt(0.25 / 112) = 0.047, the mean of 60 of 0.006.
    assert abs(np.mean(errors)) < 0.02
    assert np.std(errors) < 0.065


def test_unrelated_documents_share_no_entry_to_speak_of() -> None:
    random = np.random.default_rng(1)
    a, b = compute_signature(random_words(random, 400)), compute_signature(random_words(random, 400))
    assert (a == b).sum() <= 2


def test_signatures_are_the_same_on_every_machine() -> None:
    """Computed once and written down: a change would make earlier and later corpora choose differently."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    assert compute_signature(words)[:4].tolist() == EXPECTED_SIGNATURE
    assert hash_text(words) == EXPECTED_KEY


EXPECTED_SIGNATURE = [324753997, 1950929073, 39616240, 753022642]
EXPECTED_KEY = 17508867106794943787


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    text = "".join(chr(0x4E00 + n * 7 % 3000) for n in range(500))
    other = text[:250] + "囧" + text[251:]
    assert (compute_signature([text]) == compute_signature([other])).mean() > 0.9


@pytest.mark.parametrize("length", [4, 12, 31])
def test_near_copies_of_short_sentences_without_spaces_are_found(tmp_path: Path, length: int) -> None:
    letters = "".join(chr(0x4E00 + n) for n in np.random.default_rng(4).permutation(3000)[: 20 * length])
    other = letters[: 10 * length] + "囧" + letters[10 * length + 1 :]
    for name, text in (("a", letters), ("b", other)):
        sentences = (text[at : at + length] + "。" for at in range(0, len(text), length))
        (tmp_path / f"{name}.txt").write_text("".join(sentences))
    settings = CorpusSettings(format="file", heldout=0, language="zh", min_words=20)
    sources = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    corpus = build_corpus(sources, tmp_path / "corpus", settings=settings, workers=1)
    assert corpus.manifest.kept.documents == 1


@given(st.lists(st.integers(0, 5), max_size=50))
def test_the_first_of_equal_keys_stays(keys: list[int]) -> None:
    expected = [key not in keys[:at] for at, key in enumerate(keys)]
    assert mark_first_of_equal(np.array(keys, np.uint64)).tolist() == expected


def similar_removed(folder: Path, signatures: list[np.ndarray], alive: list[bool] | None = None) -> list[int]:
    files = SignatureFiles(folder)
    for start in range(0, len(signatures), 7):
        files.append(np.stack(signatures[start : start + 7]))
    mask = np.ones(len(signatures), bool) if alive is None else np.array(alive)
    return np.flatnonzero(files.mark_first_of_similar(mask, 0.8)).tolist()


def test_nearly_equal_documents_go_and_the_first_stays(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    words = [random_words(random, 400) for _ in range(10)]
    copies = [altered(document, 2, random) for document in words]
    assert all(jaccard(a, b) > 0.9 for a, b in zip(words, copies))
    assert similar_removed(tmp_path, [compute_signature(w) for w in words + copies]) == list(range(10))


def test_half_equal_documents_stay(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    words = random_words(random, 400)
    halves = [words[:300] + random_words(random, 100) for _ in range(20)]
    assert all(jaccard(halves[0], other) < 0.7 for other in halves[1:])
    assert similar_removed(tmp_path, [compute_signature(w) for w in halves]) == list(range(20))


def test_a_document_already_dropped_drops_no_other(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    words = random_words(random, 400)
    signatures = [compute_signature(words), compute_signature(altered(words, 1, random))]
    assert similar_removed(tmp_path, signatures, alive=[False, True]) == [1]


@given(st.integers(0, 2**32))
def test_no_two_that_stay_agree_in_a_band_and_are_alike(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Chains (a like b, b like c, a unlike c) are where a wrong order would leave a pair behind."""
    random = np.random.default_rng(seed)
    signatures = [random.integers(0, 1 << 32, HASHES, dtype=np.uint32)]
    for _ in range(30):
        child = signatures[random.integers(len(signatures))].copy()
        child[random.random(HASHES) < random.choice([0.02, 0.1, 0.2])] = random.integers(1 << 32)
        signatures.append(child)
    kept = similar_removed(tmp_path_factory.mktemp("bands"), signatures)
    bands = compute_band_keys(np.stack(signatures))
    assert kept[0] == 0
    for a in kept:
        for b in kept:
            alike = (signatures[a] == signatures[b]).mean() >= 0.8
            assert a == b or not (alike and (bands[a] == bands[b]).any())
    for gone in set(range(len(signatures))) - set(kept):
        assert any((signatures[gone] == signatures[before]).mean() >= 0.8 for before in range(gone))


def test_band_keys_are_equal_exactly_where_the_eight_entries_are() -> None:
    random = np.random.default_rng(5)
    signatures = random.integers(0, 3, (2000, HASHES)).astype(np.uint32)
    keys = compute_band_keys(signatures)
    for band in range(BANDS):
        rows = signatures[:, band * ROWS : (band + 1) * ROWS]
        assert len(np.unique(keys[:, band])) == len(np.unique(rows, axis=0))


def test_held_out_share_is_as_asked_and_grows_without_changing_sides() -> None:
    keys = np.random.default_rng(6).integers(0, 1 << 64, 100_000, dtype=np.uint64)
    kept = np.ones(len(keys), bool)
    small, large = choose_heldout(keys, kept, 0.01), choose_heldout(keys, kept, 0.05)
    assert abs(small.mean() - 0.01) < 0.0016  # five standard deviations
    assert not (small & ~large).any()


def test_a_small_corpus_still_holds_one_document_out() -> None:
    keys = np.array([2**63, 2**62, 2**63 + 5], np.uint64)
    choose: Callable[[list[bool], float], list[bool]] = lambda kept, share: choose_heldout(  # noqa: E731
        keys, np.array(kept), share
    ).tolist()
    assert choose([True, True, True], 0.01) == [False, True, False]
    assert choose([True, False, True], 0.01) == [True, False, False]
    assert choose([True, True, True], 0.0) == [False, False, False]
    assert choose([False, True, False], 0.01) == [False, False, False]
