"""Which words extend a vocabulary: the best at each choice, by a plain count over the whole text."""

from collections import Counter
from collections.abc import Collection, Mapping
from random import Random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from bertsmith.text.tokens.word_choice import apply_merges, choose_byte_pair_words, choose_words

LETTERS = "abc"


def pieces_in(word: str, vocabulary: Collection[str]) -> int:
    """By the library's own WordPiece; an unknown word counts one more than its characters."""
    ids = {piece: number for number, piece in enumerate(["[UNK]", *vocabulary])}
    found = models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100).tokenize(word)
    return len(word) + 1 if [piece.value for piece in found] == ["[UNK]"] else len(found)


def pieces_of_all(counts: Mapping[str, int], vocabulary: Collection[str]) -> int:
    return sum(count * pieces_in(word, vocabulary) for word, count in counts.items())


def made_up(seed: int) -> tuple[Counter[str], set[str]]:
    """Words of which many begin with others, and a vocabulary that lacks some characters inside words."""
    random = Random(seed)
    words = ["".join(random.choices(LETTERS, k=random.randint(1, 6))) for _ in range(25)]
    words += [random.choice(words) + random.choice(words) for _ in range(10)]
    counts = Counter({word: random.randint(1, 30) for word in words})
    parts = {"".join(random.choices(LETTERS, k=random.randint(1, 3))) for _ in range(12)}
    vocabulary = {"a", "b", "##a", "##b"} | {f"##{part}" for part in parts if random.random() < 0.6} | parts
    return counts, vocabulary


@pytest.mark.parametrize("seed", range(8))
def test_each_word_chosen_saves_most_of_all_that_are_left(seed: int) -> None:
    counts, vocabulary = made_up(seed)
    chosen = choose_words(counts, counts, vocabulary, 8)
    assert chosen
    now = set(vocabulary)
    for each in chosen:
        before = pieces_of_all(counts, now)
        savings = {word: before - pieces_of_all(counts, now | {word}) for word in counts if word not in now}
        assert each.saved == savings[each.word] == max(savings.values())
        assert each.count == counts[each.word]
        now.add(each.word)
    if len(chosen) < 8:
        before = pieces_of_all(counts, now)
        assert all(before - pieces_of_all(counts, now | {word}) <= 0 for word in counts)


def test_a_word_that_spoils_longer_ones_is_charged_for_it() -> None:
    """With "hel", "helico" is hel + ##i + ##c + ##o instead of heli + ##co."""
    vocabulary = {"he", "heli", "##l", "##i", "##c", "##o", "##co"}
    assert pieces_in("helico", vocabulary) == 2
    assert choose_words({"hel": 3, "helx": 1}, ["hel"], vocabulary, 1)[0].saved == 3
    worse = {"hel": 3, "helio": 9}
    vocabulary = {"he", "##l", "##lio", "##i", "##o"}
    assert choose_words(worse, ["hel"], vocabulary, 1) == []  # 3 saved, 9 lost


def test_a_word_that_is_covered_saves_nothing_more() -> None:
    vocabulary = {"w", *(f"##{letter}" for letter in "wings")}
    counts = {"wing": 10, "wings": 10}
    chosen = choose_words(counts, counts, vocabulary, 9)
    assert [(each.word, each.saved) for each in chosen] == [("wing", 60), ("wings", 10)]
    assert choose_words(counts, ["wings"], vocabulary, 9)[0].saved == 40  # alone


def test_an_unknown_word_is_worth_its_characters() -> None:
    chosen = choose_words({"βeta": 2, "cab": 3}, ["βeta", "cab"], {"c", "##a", "##b"}, 2)
    assert [(each.word, each.saved) for each in chosen] == [("βeta", 8), ("cab", 6)]


def byte_level(merges: list[tuple[str, str]]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(first + second for first, second in merges)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


@pytest.mark.parametrize("seed", range(6))
def test_each_word_chosen_becomes_one_piece_and_no_text_gets_longer(seed: int) -> None:
    random = Random(seed)
    words = list({"".join(random.choices("abcd", k=random.randint(2, 7))) for _ in range(60)})
    counts = {word: random.randint(1, 50) for word in words}
    merges = [("a", "b"), ("Ġ", "a"), ("Ġ", "ab"), ("c", "d"), ("ab", "cd"), ("b", "c"), ("Ġa", "b")]
    old = byte_level(merges)
    spelt = {word: old.encode(f" {word}").tokens for word in words}
    added = choose_byte_pair_words(counts, spelt, frozenset(old.get_vocab()), merges, 20)
    new = byte_level([*merges, *added.merges])
    assert set(new.get_vocab()) == set(old.get_vocab()) | set(added.parts)
    assert len(added.words) == 20
    for each in added.words:
        assert new.encode(f" {each.word}").tokens == [f"Ġ{each.word}"]
    for piece, parts in added.parts.items():
        assert "".join(parts) == piece
        assert set(parts) <= set(old.get_vocab())
    texts = [" ".join(random.choices(words, k=9)) for _ in range(200)]
    texts += ["".join(random.choices("abcd ", k=40)) for _ in range(200)]
    for text in texts:
        assert len(new.encode(text).ids) <= len(old.encode(text).ids)


def test_what_a_byte_level_word_saves_is_counted_by_the_merges_before_it() -> None:
    """ "xyz" is chosen first and makes a piece of "xy" on the way; "xyw" then has two pieces, not three."""
    counts = {"xyz": 100, "xyw": 30, "uv": 50}
    spelt = {word: ["Ġ" + word[0], *word[1:]] for word in counts}
    vocabulary = {piece for pieces in spelt.values() for piece in pieces}
    added = choose_byte_pair_words(counts, spelt, vocabulary, [], 9)
    assert [(each.word, each.saved) for each in added.words] == [("xyz", 200), ("uv", 50), ("xyw", 30)]
    assert list(added.parts) == ["Ġxy", "Ġxyz", "Ġuv", "Ġxyw"]


def test_merges_go_by_rank_as_in_the_library() -> None:
    random = Random(0)
    merges = [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "a"), ("aba", "b"), ("c", "ab")]
    backend = byte_level(merges)
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    for _ in range(300):
        word = "".join(random.choices("abc", k=random.randint(1, 9)))
        assert apply_merges(list(word), ranks) == backend.encode(word).tokens
