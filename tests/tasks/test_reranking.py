"""Cross-encoders: columns, lists of candidates, what a batch and a split keep together, figures a query."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import make_task
from torch.nn import functional as F

from bertsmith.errors import InputError, ModelError
from bertsmith.tasks.reranking import RelevanceTarget, Reranking
from bertsmith.tasks.task import reading_columns

ROWS = [
    ("who?", "ann", 0),
    ("who?", "bob", 2),
    ("where?", "oslo", 1),
    ("where?", "rome", 0),
    ("why?", "so", 0),
]


def examples(task: Any) -> list[Any]:
    return [
        dataclasses.replace(task.example((query, document)), label=float(label))
        for query, document, label in ROWS
    ]


def test_rows_without_a_header_are_read_by_number(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{q}\t{d}\t{label}\n" for q, d, label in ROWS))
    task = make_task("reranking", text="1", text_pair="2", label="3", header=False)
    assert [(e.text, e.text_pair, e.label) for e in task.read(path)] == ROWS


def test_mined_rows_become_candidates_and_an_answer_is_never_a_negative(tmp_path: Path) -> None:
    """What stands twice is one candidate; a labelled file may follow a mined one."""
    path = tmp_path / "mined.jsonl"
    rows = [
        {"query": "who?", "positive": "ann", "negatives": ["bob", "eve"]},
        {"query": "who?", "positive": "Bob", "negatives": ["eve", "ann", "zoe"]},
        {"query": "where?", "positive": "oslo", "negatives": ["ann"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("reranking")
    found = [(e.text, e.text_pair, e.label) for e in task.read(path)]
    who = [("who?", "ann", 1), ("who?", "Bob", 1), ("who?", "eve", 0), ("who?", "zoe", 0)]
    assert found == [*who, ("where?", "oslo", 1), ("where?", "ann", 0)]
    assert task.reads_pairs
    labelled = tmp_path / "dev.tsv"
    labelled.write_text("query\tdocument\tlabel\tnegative\nwho?\tann\t1\tx\nwho?\tbob\t0\tx\n")
    assert [(e.text_pair, e.label) for e in task.read(labelled)] == [("ann", 1), ("bob", 0)]


def test_a_query_is_not_scored_without_a_document(tmp_path: Path) -> None:
    """Mined rows say nothing of the columns to predict from, and `positive` is no usual name of a pair's."""
    path = tmp_path / "mined.jsonl"
    path.write_text('{"query": "who?", "positive": "ann", "negative": "bob"}\n')
    task = make_task("reranking")
    task.read(path)
    with pytest.raises(InputError, match="line 1: the model reads a pair of texts; found 'who\\?'"):
        task.read(path, labelled=False)
    named = reading_columns(task, {"text": "query", "text_pair": "positive"})
    assert [each.text_pair for each in named.read(path, labelled=False)] == ["ann"]


def test_mined_files_are_read_as_one(tmp_path: Path) -> None:
    """One file's answer is no negative of another's; what annotators said stays as they said it."""
    rows = [
        {"query": "who?", "positive": "ann", "negatives": ["bob", "eve"]},
        {"query": "who?", "positive": "Bob", "negatives": ["eve", "ann", "zoe"]},
        {"query": "where?", "positive": "oslo", "negatives": ["ann"]},
    ]
    paths = [tmp_path / f"{name}.jsonl" for name in ("all", "a", "b", "c")]
    for path, some in zip(paths, (rows, *([row] for row in rows)), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    read = [make_task("reranking").read_files(some) for some in (paths[:1], paths[1:])]
    one, several = (
        [(example.text, example.text_pair, example.label) for example in examples] for examples in read
    )
    assert one == several and ("who?", "Bob", 1) in one and len(one) == 6
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("query\tdocument\tlabel\nwho?\tann\t1\nwho?\tann\t0\n")
    assert [example.label for example in make_task("reranking").read_files([labelled])] == [1, 0]
    assert len(make_task("reranking").read_files([paths[0], labelled])) == 8


def test_mined_rows_without_a_text_are_no_candidates_and_groups_hold(tmp_path: Path) -> None:
    rows = [
        {"query": "who?", "positive": "ann", "negatives": ["bob", ""], "source": "x"},
        {"query": "", "positive": "ann", "negatives": ["eve"], "source": "x"},
        {"query": "where?", "positive": None, "negatives": ["oslo"], "source": 2.0},
    ]
    path = tmp_path / "mined.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"of 7 rows 4 have no text \(the first: line 1\)"):
        make_task("reranking").read(path)
    task = make_task("reranking", missing="drop", group="source")
    found = [(each.text, each.text_pair, each.group) for each in task.read(path)]
    assert found == [("who?", "ann", "x"), ("who?", "bob", "x"), ("where?", "oslo", "2")]


def test_a_column_beside_negatives_may_be_the_label(tmp_path: Path) -> None:
    path = tmp_path / "graded.tsv"
    path.write_text("query\tdocument\tnegative\tgrade\nred\tcat\tdog\t2\nred\told\tnew\t0\n")
    for columns in ({}, {"text": "1", "text_pair": "2"}):
        with pytest.raises(InputError, match=r"'grade' of numbers .* give --label 'grade'"):
            make_task("reranking", **columns).read(path)
    found = make_task("reranking", label="grade").read(path)
    assert [(each.text_pair, each.label) for each in found] == [("cat", 2.0), ("old", 0.0)]
    for group in ("grade", 4):  # or say which rows belong together
        found = make_task("reranking", group=group).read(path)
        assert [(each.text_pair, each.group) for each in found[:3]] == [
            ("cat", "2"),
            ("dog", "2"),
            ("old", "0"),
        ]


@pytest.mark.parametrize(
    "header",
    [
        "query\tdocument\tnegative\tsource\tq_id",
        "q\td\tnegative\ttitle\t_id",
        "query\tdocument\tnegative\tsource\t",  # pandas' index, and the same read and written again
        "query\tdocument\tnegative\tsource\tUnnamed: 0",
    ],
)
def test_other_columns_beside_negatives_are_left_alone(tmp_path: Path, header: str) -> None:
    path = tmp_path / "mined.tsv"
    path.write_text(f"{header}\nred\tcat\tdog\tweb\t7\n")
    named = {} if header.startswith("query") else {"text": "1", "text_pair": "2"}
    found = make_task("reranking", **named).read(path)
    assert [(each.text_pair, each.label) for each in found] == [("cat", 1.0), ("dog", 0.0)]


def test_pairs_alone_are_sent_to_be_mined(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "who?", "positive": "ann"}\n')
    with pytest.raises(InputError, match="Queries with their answers alone have nothing to compare"):
        make_task("reranking").read(path)


def test_figures_are_means_over_queries_with_a_relevant_candidate() -> None:
    """'who?' has its answer second of two, 'where?' first; 'why?' has none."""
    task = make_task("reranking")
    scores = [0.9, 0.2, 0.8, 0.1, 0.5]
    found = task.metrics([{"score": score} for score in scores], examples(task))
    assert found == {"map": pytest.approx(0.75), "mrr": pytest.approx(0.75)}
    assert np.isnan(task.metrics([{"score": 0.5}], examples(task)[4:])["map"])
    with pytest.raises(InputError, match="None of the 1 documents is relevant, a label above 0"):
        task.check(examples(task)[4:])


def test_the_random_baseline_is_the_expectation_and_words_do_better() -> None:
    task = make_task("reranking")
    rows = [("red cat", "the cat is red", 1.0), ("red cat", "a dog", 0.0), ("old bird", "an old bird", 1.0)]
    rows += [("old bird", "a cat sleeps", 0.0)]
    made = [dataclasses.replace(task.example(row[:2]), label=row[2]) for row in rows]
    figures = [task.metrics(guessed, made)["map"] for guessed in task.baselines(made, made).values()]
    assert figures == [pytest.approx(0.75), pytest.approx(1.0)]


def test_scores_are_sigmoids_also_of_extreme_logits() -> None:
    outputs = [np.array([value], np.float32) for value in (0.0, 3.0, -900.0, 900.0)]
    found = [each["score"] for each in make_task("reranking").decode(outputs, [], [])]
    assert found == pytest.approx([0.5, 1 / (1 + np.exp(-3)), 0.0, 1.0])


@pytest.mark.parametrize("loss", ["pointwise", "listwise"])
def test_the_loss_is_its_definition_over_each_querys_candidates(loss: str) -> None:
    """Three queries in mixed order; the third has nothing relevant."""
    task = make_task("reranking", loss=loss, positive_weight=1.0)
    relevance = [0.0, 1.0, 0.5, 0.25, 0.0, 0.0]
    query = [11, 22, 11, 11, 33, 22]
    targets = [RelevanceTarget(q, r) for q, r in zip(query, relevance, strict=True)]
    logits = torch.tensor([0.3, -1.0, 2.0, 0.1, 0.7, 1.5], requires_grad=True)
    found = task.loss(logits[:, None], targets)
    if loss == "pointwise":
        wanted = F.binary_cross_entropy_with_logits(logits, torch.tensor(relevance), reduction="sum")
        assert task.count(targets) == 6
    else:
        first = torch.tensor([0.0, 0.5, 0.25]) / 0.75
        wanted = -(first * logits[[0, 2, 3]].log_softmax(0)).sum() - logits[[1, 5]].log_softmax(0)[0]
        assert task.count(targets) == 2
    torch.testing.assert_close(found, wanted)
    ours, plain = (torch.autograd.grad(each, logits)[0] for each in (found, wanted))
    torch.testing.assert_close(ours, plain)


def test_a_listwise_batch_holds_whole_queries() -> None:
    task = make_task("reranking", loss="listwise")
    targets = [RelevanceTarget(number // 4, float(number % 4 == 0 and number < 40)) for number in range(48)]
    order = np.random.default_rng(0).permutation(48)
    batches = task.make_batches(targets, order, 8)
    assert max(np.concatenate(batches)) == 39  # the last two queries have nothing relevant
    assert [len(batch) for batch in batches] == [8] * 5
    for batch in batches:
        assert len({targets[number].query for number in batch.tolist()}) == 2
    assert make_task("reranking").make_batches(targets, order, 8)[0].tolist() == order[:8].tolist()


def test_all_candidates_of_a_query_are_held_out_or_none() -> None:
    task = make_task("reranking")
    first, second, *_ = examples(task)
    assert task.group_key(first) == task.group_key(second)


def test_what_cant_be_learnt_is_refused() -> None:
    task = make_task("reranking")
    with pytest.raises(InputError, match="line 3: expected a relevance of 0 or more, found -1"):
        task.as_target("-1", "rows, line 3")
    same = [dataclasses.replace(example, label=1.0) for example in examples(task)]
    with pytest.raises(InputError, match="has the relevance 1, from"):
        task.fit(same)
    with pytest.raises(InputError, match="needs a query and a document"):
        task.check([dataclasses.replace(same[0], text_pair=None)])
    with pytest.raises(InputError, match="reads a pair of texts"):
        task.example("who?")
    with pytest.raises(ModelError, match="here: highest"):
        Reranking.from_state({"settings": {}, "labels": []}, "here")


def test_grades_become_relevance_of_0_to_1(tokenizer: Any) -> None:
    task = make_task("reranking")
    made = examples(task)
    task.fit(made)
    pieces = tokenizer.encode_pieces(["bano", "delo"])
    assert [task.encode(each, pieces, tokenizer).target.relevance for each in made] == [0, 1, 0.5, 0, 0]
    assert Reranking.from_state(task.state(), "here").highest == 2.0


def test_a_mined_answer_is_wholly_relevant_beside_grades_of_another_file(
    tokenizer: Any, tmp_path: Path
) -> None:
    mined, graded = tmp_path / "mined.jsonl", tmp_path / "graded.csv"
    mined.write_text(json.dumps({"query": "who?", "positive": "ann", "negatives": ["bob"]}))
    graded.write_text("query,document,relevance\nwhere?,oslo,3\nwhere?,rome,1\n")
    task = make_task("reranking")
    made = task.read_files([mined, graded])
    task.fit(made)
    pieces = tokenizer.encode_pieces(["bano", "delo"])
    relevances = [task.encode(each, pieces, tokenizer).target.relevance for each in made]
    assert relevances == [1, 0, 1, 1 / 3]
    answers = task.error_analysis([{"score": 0.5}] * 4, made)
    assert answers.numbers is not None and answers.numbers[0].tolist() == relevances
