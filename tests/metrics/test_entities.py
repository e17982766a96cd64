"""Spans of tags and entity F1 against seqeval in its default mode, conlleval's; transitions by their rule."""

import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.metrics.entities import (
    EntityCounts,
    Span,
    are_entity_tags,
    are_iob2_labels,
    entity_counts,
    entity_scores,
    legal_transitions,
    spans_of_tags,
    tags_of_spans,
    to_iob2,
)

Sentences = list[list[str]]

# Labels with hyphens, one that looks like a tag, the bare letters, the empty label: all that seqeval reads.
TAGS = ["O"] + [
    f"{letter}{suffix}" for letter in "BIES" for suffix in ("-PER", "-a-b", "-B-PER", "-O", "", "-")
]
SENTENCE = st.lists(st.sampled_from(TAGS), max_size=12)


def random_sentences(draw: np.random.Generator, tags: list[str]) -> tuple[Sentences, Sentences]:
    """Gold and prediction, which agree in some words: then some entities agree too."""
    gold, predicted = [], []
    for length in draw.integers(0, 9, size=draw.integers(1, 5)):
        sentence = draw.choice(tags, length).tolist()
        noise = draw.choice(tags, length).tolist()
        gold.append(sentence)
        predicted.append([b if draw.random() < 0.2 else a for a, b in zip(sentence, noise)])
    return gold, predicted


@settings(max_examples=400, deadline=None)
@given(SENTENCE)
def test_spans_are_those_of_seqeval_for_every_scheme_and_illegal_sequences(tags: list[str]) -> None:
    get_entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    expected = [Span(label, first, last + 1) for label, first, last in get_entities(tags)]
    assert spans_of_tags(tags) == expected


@pytest.mark.parametrize("tags", [TAGS, ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ["O", "I-X"], ["O"]])
def test_scores_equal_seqevals_on_thousands_of_random_cases(tags: list[str]) -> None:
    labelling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    draw = np.random.default_rng(len(tags))
    for _ in range(700):
        gold, predicted = random_sentences(draw, tags)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of divisions by zero
            *micro, _ = labelling.precision_recall_fscore_support(gold, predicted, average="micro")
            by_label = labelling.precision_recall_fscore_support(gold, predicted, average=None)
        scores = entity_scores(gold, predicted)
        found = (scores.micro.precision, scores.micro.recall, scores.micro.f1)
        assert found == pytest.approx(tuple(micro), abs=1e-12)
        for counts, expected in zip(scores.by_label.values(), np.transpose(by_label), strict=True):
            ours = (counts.precision, counts.recall, counts.f1, counts.support)
            assert ours == pytest.approx(tuple(expected), abs=1e-12)


def test_labels_stand_in_alphabetic_order_and_include_those_only_predicted() -> None:
    counts = entity_counts([["B-PER", "O", "B-LOC"]], [["B-PER", "B-MISC", "I-LOC"]])
    assert counts == {
        "LOC": EntityCounts(1, 1, 1),
        "MISC": EntityCounts(0, 1, 0),
        "PER": EntityCounts(1, 1, 1),
    }
    assert list(counts) == ["LOC", "MISC", "PER"]


def test_nothing_in_gold_or_prediction_scores_zero_and_is_no_error() -> None:
    for empty in ([], [[]], [["O", "O"]]):
        scores = entity_scores(empty, empty)
        assert scores.by_label == {}
        assert (scores.micro.precision, scores.micro.recall, scores.micro.f1) == (0.0, 0.0, 0.0)


def test_a_whole_entity_counts_only_with_both_ends_and_its_label() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    predicted = [["B-PER", "O", "O", "B-LOC"]]
    micro = entity_scores(gold, predicted).micro
    assert (micro.precision, micro.recall, micro.f1) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([["O"]], [], "each of 1 sentences, found 0"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "2 words of sentence 1 .*found 1 tags"),
        ([["NN"]], [["NN"]], "found 'NN'"),
        ([["b-PER"]], [["O"]], "found 'b-PER'"),
        ([["BPER"]], [["O"]], "found 'BPER'"),
        ([[""]], [["O"]], "found ''"),
    ],
)
def test_what_cannot_be_scored_is_said(gold: Sentences, predicted: Sentences, message: str) -> None:
    with pytest.raises(InputError, match=message):
        entity_scores(gold, predicted)


@settings(max_examples=200, deadline=None)
@given(SENTENCE)
def test_iob2_keeps_the_entities_and_is_always_legal(tags: list[str]) -> None:
    iob2 = to_iob2(tags)
    assert spans_of_tags(iob2) == spans_of_tags(tags)
    assert to_iob2(iob2) == iob2
    labels = sorted(set(iob2) | {f"B{tag[1:]}" for tag in iob2 if tag != "O"})
    start, pairs = legal_transitions(labels)
    places = [labels.index(tag) for tag in iob2]
    assert not places or start[places[0]]
    assert all(pairs[a, b] for a, b in pairwise(places))


@pytest.mark.parametrize(
    ("tags", "iob2"),
    [
        ("I-PER I-PER O I-LOC", "B-PER I-PER O B-LOC"),
        ("I-PER B-PER I-PER I-LOC", "B-PER B-PER I-PER B-LOC"),
        ("B-PER E-PER S-LOC S-LOC", "B-PER I-PER B-LOC B-LOC"),
        ("B-PER L-PER U-LOC O", "B-PER I-PER B-LOC O"),
        ("B I O I", "B I O B"),
    ],
)
def test_each_scheme_becomes_iob2(tags: str, iob2: str) -> None:
    assert to_iob2(tags.split()) == iob2.split()


def test_original_conll_files_become_the_iob2_files(shared_data: Path) -> None:
    """Both stand in the data folder; someone else converted them."""
    converted = [to_iob2(tags) for tags in sentences(shared_data / "conll2003" / "eng.testb")]
    published = sentences(shared_data / "conll2003" / "iob2_test.txt")
    assert converted == published
    assert len(published) > 3000


def sentences(path: Path) -> Sentences:
    """The last column of a CoNLL file, without the lines that begin documents."""
    blocks = path.read_text(encoding="utf-8").replace(" \n", "\n").strip().split("\n\n")
    rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    return [[row[-1] for row in block] for block in rows if block and block[0][0] != "-DOCSTART-"]


@pytest.mark.parametrize(
    "span", [Span("PER", 1, 1), Span("PER", -1, 1), Span("PER", 2, 4), Span("LOC", 0, 2)]
)
def test_spans_that_are_no_tagging_are_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="empty, overlaps another, or leaves the sentence of 3 words"):
        tags_of_spans([Span("PER", 0, 1), span], 3)


def test_inside_follows_only_begin_or_inside_of_its_own_label() -> None:
    labels = ["O", "B-PER", "I-PER", "B-a-b", "I-a-b"]
    start, pairs = legal_transitions(labels)
    assert start.tolist() == [True, True, False, True, False]
    assert pairs.astype(int).tolist() == [
        [1, 1, 0, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ]


@pytest.mark.parametrize(
    "labels",
    [
        ["NN", "VB", "O", "I"],  # parts of speech
        ["O", "I-PER", "I-LOC"],  # IO: B-PER would be needed before I-PER, and there is none
        ["O", "B-LOC", "I-LOC", "I-PER"],  # IOB1, as in CoNLL-2003's original files
        ["O", "B-PER", "I-PER", "E-PER", "S-PER"],
    ],
)
def test_labels_of_no_iob2_scheme_may_go_in_any_order(labels: list[str]) -> None:
    start, pairs = legal_transitions(labels)
    assert not are_iob2_labels(labels)
    assert start.all()
    assert pairs.all()
    assert pairs.shape == (len(labels), len(labels))


def test_tags_of_entities_are_told_from_parts_of_speech() -> None:
    assert are_entity_tags(["O", "I-PER", "S-LOC"])
    assert not are_entity_tags(["NN", "O"])
    assert not are_entity_tags(["IN"])
    assert are_iob2_labels(["O", "B", "I"])
    assert not are_iob2_labels(["O", "I"])
