"""Dual encoders: rows in every format, what is never a negative, ranks against a plain sort, files beside."""

import json
from fractions import Fraction
from itertools import permutations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from small_tasks import make_task, random_model, split_of

from bertsmith.errors import InputError
from bertsmith.metrics.ranking_scores import chance_metrics, ranks_of
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.examples.query_documents import QueryExample, text_number
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

PAIRS = [("who?", "ann"), ("where?", "oslo"), ("why?", "so")]


def rows(*pairs: tuple[str, ...]) -> list[QueryExample]:
    return [
        QueryExample(query, tuple(documents), f"row {n}") for n, (query, *documents) in enumerate(pairs, 1)
    ]


# -- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"question": "who?", "answer": "ann", "negatives": ["bob", "eve"]}\n'),
        ("a.json", '[{"anchor": "who?", "positive": "ann", "negative_1": "bob", "negative_2": "eve"}]'),
        ("a.tsv", "query\tpassage\tnegative\tnegative_2\nwho?\tann\tbob\teve\n"),
        ("a.csv", "text,text_pair,Negative 1,Negative 2,negative_3\nwho?,ann,bob,eve,\n"),
        ("a.csv", "query,positive,negative_1,negative_2,negative_3\nwho?,ann,bob, ,eve\n"),
    ],
)
def test_query_positive_and_negatives_are_found_by_their_names(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    (found,) = make_task("retrieval").read(tmp_path / name)
    assert (found.query, found.documents) == ("who?", ("ann", "bob", "eve"))


def test_parquet_holds_lists_of_negatives_and_of_scores(tmp_path: Path) -> None:
    table = pa.table({"query": ["who?"], "positive": ["ann"], "negatives": [["bob"]], "scores": [[9.5, 1]]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (found,) = make_task("retrieval").read(tmp_path / "a.parquet")
    assert (found.documents, found.scores) == (("ann", "bob"), (9.5, 1.0))


@pytest.mark.parametrize("negatives", [["bob", "it's"], []])
def test_a_list_of_negatives_that_pandas_printed_into_a_cell_is_refused(
    negatives: list[str], tmp_path: Path
) -> None:
    """It would be one text. In JSON a text is one, whatever it looks like."""
    table = pandas.DataFrame({"query": ["who?"], "positive": ["ann"], "negatives": [negatives]})
    table.to_csv(tmp_path / "a.csv", index=False)
    for name in ("retrieval", "reranking"):
        with pytest.raises(InputError, match=r"line 2: expected a negative .*, found a printed list, '\["):
            make_task(name).read(tmp_path / "a.csv")
    table["negatives"] = table["negatives"].astype(str)
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    (found,) = make_task("retrieval").read(tmp_path / "a.jsonl")
    assert found.documents == ("ann", str(negatives))


def test_files_of_another_encoding_are_read_when_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("query,positive\nwo?,Århus\n".encode("latin-1"))
    (found,) = make_task("retrieval", encoding="latin-1").read(tmp_path / "a.csv")
    assert found.documents == ("Århus",)
    with pytest.raises(InputError, match="'latin-1'"):
        make_task("retrieval").read(tmp_path / "a.csv")


@pytest.mark.parametrize("turned", [False, True])
def test_objects_may_leave_negatives_and_scores_out(tmp_path: Path, turned: bool) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        '{"query": "q", "positive": "p"}',
        '{"query": "q2", "positive": "p2", "negatives": ["n"], "scores": [2, 1]}',
    ]
    path.write_text("\n".join(reversed(lines) if turned else lines))
    found = sorted(make_task("retrieval").read(path), key=lambda each: each.query)
    assert [(each.documents, each.scores) for each in found] == [(("p",), None), (("p2", "n"), (2, 1))]


def test_columns_by_number_and_a_limit_of_negatives(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("x\twho?\tann\tbob\n")
    task = make_task("retrieval", text=2, text_pair=3, negative=4, header=False)
    assert task.read(path)[0].documents == ("ann", "bob")
    task = make_task("retrieval", query=2, positive=3, negative=4, negatives=0, header=False)
    assert task.read(path)[0].documents == ("ann",)
    assert task.settings.query == 2


def test_prediction_needs_no_negatives_and_may_name_other_columns(tmp_path: Path) -> None:
    train, new = tmp_path / "train.jsonl", tmp_path / "new.tsv"
    train.write_text('{"question": "who?", "answer": "ann", "negatives": ["bob"]}\n')
    new.write_text("q\td\nwho?\tann\n")
    task = make_task("retrieval")
    task.read(train)
    again = type(task).from_state(
        task.state() | {"settings": task.settings.model_dump() | {"text": "q", "text_pair": "d"}}, "here"
    )
    (found,) = again.read(new, labelled=False)
    assert (found.query, found.documents, found.labelled) == ("who?", ("ann",), False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("new.csv", "id,query,positive\na1,who?,ann\n,when?,bob\n"),
        (
            "new.jsonl",
            '{"query": "who?", "positive": "ann", "id": 7}\n{"query": "when?", "positive": "bob"}\n',
        ),
    ],
)
def test_an_id_is_carried_to_the_predictions(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    task = make_task("retrieval")
    lines = [task.line(each, {"similarity": 0.5}) for each in task.read(tmp_path / name, labelled=False)]
    ids = ("a1", "") if name == "new.csv" else (7, None)
    assert [(line.get("id"), line["query"], line["document"]) for line in lines] == [
        (ids[0], "who?", "ann"),
        (ids[1], "when?", "bob"),
    ]
    assert [next(iter(line)) for line in lines] == ["id", "id" if name == "new.csv" else "query"]


@pytest.mark.parametrize(
    ("content", "settings", "first"),
    [
        ("question,answer,label\nwho?,ann,1\nwho?,bob,0\n", {}, "line 3: 'label' is 0"),
        ("query,passage,Score\nwho?,ann,2\nwho?,bob,0.0\n", {}, "line 3: 'Score' is 0"),
        ("question1,question2,is_duplicate\nwho?,ann,1\nwhy?,bob,0\n", {}, "line 3: 'is_duplicate' is 0"),
        ("#1 String,#2 String,Quality\nwho?,ann,1\nwho?,bob,0\n", {}, "line 3: 'Quality' is 0"),
        ("query,passage,is_selected\nwho?,ann,True\nwho?,bob,False\n", {}, "line 3: 'is_selected' is False"),
        ("question,sentence,label\nwho?,ann,entailment\nwho?,bob,not_entailment\n", {}, "is not_entailment"),
        ("sentence1,sentence2,gold_label\na,ann,-\nb,bob,contradiction\n", {}, "is contradiction"),
        ("question,answer,label\nwho?,ann,yes\nwho?,bob,no\n", {}, "'label' is no"),
        ("question,answer,label\nwho?,ann,relevant\nwho?,bob,Not relevant\n", {}, "'label' is Not relevant"),
        ("query,passage,label\nwho?,ann,partly relevant\nwho?,bob,irrelevant\n", {}, "is irrelevant"),
        ("query,passage,class\nwho?,ann,correct\nwho?,bob,incorrect\n", {}, "'class' is incorrect"),
        (
            "query,passage,right\nwho?,ann,true\nwho?,bob,false\n",
            {"label": "right"},
            "line 3: 'right' is False",
        ),
        (
            "who?,ann,1\nwho?,bob,0\n",
            {"text": 1, "text_pair": 2, "label": 3, "header": False},
            "line 2: '3' is 0",
        ),
        ("query,passage,label\nwho?,ann,1\nwhy?,bob,\n", {}, ""),
        ("query,passage,label\nwho?,ann,cars\nwhy?,bob,0\n", {}, ""),
        ("query,passage,score\nwho?,ann,-3\nwhy?,bob,0\n", {}, ""),
        ("query,passage,quality\nwho?,ann,7\nwhy?,bob,0\n", {}, ""),
        ("query,passage,class\nwho?,ann,2\nwhy?,bob,0\n", {}, ""),
        ("query,passage,topic\nwho?,ann,0\nwhy?,bob,1\n", {}, ""),
    ],
)
def test_documents_that_a_label_says_are_no_answers_are_not_learned_as_answers(
    content: str, settings: dict[str, Any], first: str, tmp_path: Path
) -> None:
    """The rows of reranking, QQP, MRPC, MS MARCO, QNLI and SNLI; votes below 0 are no relevance, and neither
    is a topic.
    """
    (tmp_path / "a.csv").write_text(content)
    task = make_task("retrieval", **settings)
    if not first:
        assert [row.documents for row in task.read(tmp_path / "a.csv")] == [("ann",), ("bob",)]
        return
    with pytest.raises(InputError, match=rf"{first}, so the document is no answer.* 1 of 2 rows"):
        task.read(tmp_path / "a.csv")


def test_a_label_that_no_training_file_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("query,passage\nwho?,ann\n")
    (tmp_path / "rows.csv").write_text("query,passage,right\nwho?,ann,1\nwho?,bob,1\n")
    paths = [tmp_path / "pairs.csv", tmp_path / "rows.csv"]
    assert len(make_task("retrieval", label="right").read_files(paths)) == 3
    with pytest.raises(InputError, match=r"pairs\.csv has no column 'rihgt'"):
        make_task("retrieval", label="rihgt").read_files(paths)
    fresh = make_task("retrieval", label="right")
    trained = type(fresh).from_state(fresh.state(), "a model")
    for task in (trained, trained.for_file(paths[0], {})):  # as evaluate --train, and distil, read pairs
        assert len(task.read(paths[0])) == len(task.read_files(paths[:1])) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "who?", "label": 1}\n', "needs a query and a document"),
        ('{"query": "who?", "positive": "ann", "scores": [1, 2]}\n', "line 1: expected 1 scores"),
        ('{"query": "who?", "positive": 3}\n', "line 1: expected a text"),
    ],
)
def test_rows_that_dont_fit_are_refused_with_their_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        make_task("retrieval").read(tmp_path / "a.jsonl")


def test_what_cant_be_learnt_is_refused() -> None:
    task = make_task("retrieval")
    with pytest.raises(InputError, match="has the same query or the same document, from row 1 on"):
        task.fit(rows(("who?", "ann"), ("why?", "ann")))
    with pytest.raises(InputError, match="row 2: expected a query and a document that answers it"):
        task.check(rows(("who?", "ann"), ("why?", " ")))
    with pytest.raises(InputError, match=r"row 1: expected .* perhaps negatives, found an empty text"):
        task.check(rows(("who?", "ann", "bob", " ")))
    with pytest.raises(InputError, match=r"row 1: loss=margin needs a negative .* \(bertsmith mine\)"):
        make_task("retrieval", loss="margin").fit(rows(*PAIRS))
    with pytest.raises(InputError, match="row 1: loss=kl needs a column `scores`"):
        make_task("retrieval", loss="kl").fit(rows(("a", "b", "c"), ("d", "e", "f")))
    for wrong in ("who?", 5, (1, 2), ("who?",), None):
        with pytest.raises(InputError, match="compares a query with a document, found"):
            task.example(wrong)


def test_a_margin_is_learned_from_the_rows_that_have_negatives(tmp_path: Path) -> None:
    """`bertsmith mine` writes rows without, where its guard passed over all candidates."""
    path = tmp_path / "mined.jsonl"
    path.write_text(
        '{"query": "a", "positive": "b", "negatives": []}\n'
        '{"query": "c", "positive": "d", "negatives": ["e"]}\n'
    )
    task = make_task("retrieval", loss="margin")
    made = task.read(path)
    task.fit(made)
    assert task.warnings(made) == ["1 of 2 rows have no negative: loss=margin leaves them out"]


# -- batches and negatives ---------------------------------------------------------------------------------


def test_known_documents_of_a_query_and_equal_texts_are_no_negatives(tokenizer: Tokenizer) -> None:
    """Both documents of 'bano', written differently, and the query itself; 'delo' may count."""
    task = make_task("retrieval")
    made = rows(("bano", "firu"), ("Bano ", "GUMA"), ("delo", "kelo", "firu  "))
    task.fit(made)
    encoded = split_of(task, made, tokenizer).encoded
    assert set(encoded[0].target.known) == {text_number(text) for text in ("bano", "firu", "guma")}
    model = random_model(task, tokenizer)
    outputs = torch.from_numpy(np.concatenate([padded(each) for each in outputs_of(model, encoded)]))
    query, documents = (
        outputs[0, 0],
        [outputs[0, 1], outputs[2, 1]],
    )  # firu, kelo: guma and firu again are out
    similar = torch.stack([20 * query @ document for document in documents])
    found = task.losses(outputs, [each.target for each in encoded])
    assert float(found[0]) == pytest.approx(-float(similar.log_softmax(0)[0]), abs=1e-5)


def padded(output: np.ndarray) -> np.ndarray:
    return np.pad(output, ((0, 3 - len(output)), (0, 0)))[None]


def test_no_batch_has_a_query_or_a_document_twice(tokenizer: Tokenizer) -> None:
    task = make_task("retrieval")
    draw = np.random.default_rng(0)
    made = rows(*((f"q{draw.integers(0, 12)}", f"d{draw.integers(0, 12)}") for _ in range(60)))
    task.fit(made)
    targets = [each.target for each in split_of(task, made, tokenizer).encoded]
    for batch in task.make_batches(targets, draw.permutation(60), 8):
        for texts in zip(*((targets[n].query, targets[n].documents[0]) for n in batch.tolist()), strict=True):
            assert len(set(texts)) == len(texts)


# -- ranks -------------------------------------------------------------------------------------------------


def test_ranks_and_figures_are_those_of_a_plain_sort(tokenizer: Tokenizer) -> None:
    """Documents are shared, one query has two answers, and negatives stand among all documents."""
    task = make_task("retrieval")
    made = rows(
        ("bano", "firu guma", "delo"),
        ("bano", "kelo"),
        ("suma", "kelo", "firu guma"),
        ("tiru relo", "bano", "nuno"),
        ("luma", "pano piru", "delo"),
    )
    task.fit(made)
    encoded = split_of(task, made, tokenizer).encoded
    outputs = outputs_of(random_model(task, tokenizer), encoded)
    predictions = task.decode(outputs, made, encoded)
    vectors = {
        text: output[n]
        for e, output in zip(made, outputs, strict=True)
        for n, text in enumerate(e.documents, 1)
    }
    reciprocal, recalled = {}, {}
    for example, output, prediction in zip(made, outputs, predictions, strict=True):
        ranked = sorted(vectors, key=lambda text, q=output[0]: -float(q @ vectors[text]))
        rank = ranked.index(example.documents[0]) + 1
        assert prediction["rank"] == rank
        assert prediction["similarity"] == pytest.approx(float(output[0] @ vectors[example.documents[0]]))
        reciprocal[example.query] = max(reciprocal.get(example.query, 0.0), 1 / rank)
        recalled.setdefault(example.query, []).append(rank <= 10)
    found = task.metrics(predictions, made)
    assert found["mrr@10"] == pytest.approx(np.mean(list(reciprocal.values())))
    assert found["recall@10"] == pytest.approx(np.mean([np.mean(each) for each in recalled.values()]))


def test_a_constant_score_is_worth_a_random_order_not_that_of_the_file() -> None:
    """Each document is sought once: the mean over all of 1 / rank is that over the ranks, and which of them
    are near the top of the file has no part in it.
    """
    texts = [f"text {number}" for number in range(400)]
    everything = np.arange(400)
    ranks = ranks_of(
        lambda start, end: np.zeros((end - start, 400), np.float32), everything, list(map(text_number, texts))
    )
    assert sorted(ranks.tolist()) == list(range(1, 401))
    assert abs(np.corrcoef(ranks, everything)[0, 1]) < 0.15
    again = ranks_of(
        lambda start, end: np.zeros((end - start, 400), np.float32),
        everything,
        list(map(text_number, reversed(texts))),
    )
    assert again.tolist() == ranks[::-1].tolist(), "of the text, not of its place"


def test_ties_stand_behind_what_is_better() -> None:
    scores = np.array([[3, 1, 1, 1, 0]], np.float32)
    ranks = [int(ranks_of(lambda start, end: scores, np.array([n]), [5, 9, 2, 7, 1])[0]) for n in range(5)]
    assert ranks == [1, 4, 2, 3, 5]


def test_ndcg_of_ranks_by_hand() -> None:
    """One query with answers at ranks 1 and 3, one with its answer at rank 12."""
    task = make_task("retrieval")
    made = rows(("who?", "ann"), ("who?", "bob"), ("why?", "so"))
    found = task.metrics([{"rank": 1}, {"rank": 3}, {"rank": 12}], made)
    best = 1 + 1 / np.log2(3)
    assert found["ndcg@10"] == pytest.approx((1 + 1 / np.log2(4)) / best / 2)
    assert found["mrr@10"] == found["recall@10"] == 0.5


def test_words_in_common_beat_the_random_order() -> None:
    task = make_task("retrieval")
    made = rows(*((f"what is item{n}", f"item{n} is thing{n}") for n in range(30)))
    random, words = (task.metrics(guessed, made) for guessed in task.baselines(made, made).values())
    assert words["mrr@10"] == pytest.approx(1.0)
    assert random["mrr@10"] == pytest.approx(sum(1 / rank for rank in range(1, 11)) / 30)


def test_a_random_order_is_worth_the_mean_over_all_orders() -> None:
    """Of six documents, two answer the first query and one each of the others."""
    task = make_task("retrieval")
    made = rows(("a", "d0"), ("a", "d1"), *((f"q{n}", f"d{n}") for n in range(2, 6)))
    expected = task.metrics(task.baselines(made, made)["random order"], made)
    drawn = [task.metrics([{"rank": place + 1} for place in order], made) for order in permutations(range(6))]
    for name, value in expected.items():
        assert value == pytest.approx(np.mean([each[name] for each in drawn])), name


@pytest.mark.parametrize(("relevant", "documents"), [(600, 2000), (1999, 2000), (2000, 2000), (3, 3), (1, 1)])
def test_a_random_order_is_worth_a_figure_however_many_documents_answer_a_query(
    relevant: int, documents: int
) -> None:
    found = chance_metrics([0] * relevant, range(relevant), [documents] * relevant)
    orders = comb(documents, relevant)
    first = (
        Fraction(comb(documents - n, relevant - 1), n * orders) for n in range(1, min(10, documents) + 1)
    )
    assert found["mrr@10"] == pytest.approx(float(sum(first)), rel=1e-12)


# -- files -------------------------------------------------------------------------------------------------


def test_prefixes_pooling_and_length_are_written_for_other_tools(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    task = make_task("retrieval", query_prefix="query: ", document_prefix="passage: ", max_length=32)
    assert task.texts(QueryExample("a", ("b", "c"), "here")) == ("query: a", "passage: b", "passage: c")
    save_task_model(tmp_path / "model", random_model(task, tokenizer), task, tokenizer, {})

    def read(name: str) -> Any:
        return json.loads((tmp_path / "model" / name).read_text())

    assert read("config_sentence_transformers.json")["prompts"] == {
        "query": "query: ",
        "document": "passage: ",
    }
    assert [module["path"] for module in read("modules.json")] == ["", "1_Pooling", "2_Normalize"]
    assert read("1_Pooling/config.json")["pooling_mode_mean_tokens"] is True
    assert read("sentence_bert_config.json")["max_seq_length"] == 32


@pytest.mark.parametrize("loss", ["softmax", "margin"])
def test_a_document_known_to_answer_is_no_negative_even_where_a_row_says_so(
    loss: str, tokenizer: Tokenizer
) -> None:
    """The first row's negative answers the same question in the second."""
    task = make_task("retrieval", loss=loss)
    made = rows(("bano", "firu", "delo"), ("bano", "delo", "suma"), ("kelo", "guma", "tuma"))
    task.fit(made)
    targets = [each.target for each in split_of(task, made, tokenizer).encoded]
    outputs = torch.ones(3, 3, 8).requires_grad_()
    losses = task.losses(outputs, targets)
    losses[0].backward(retain_graph=True)
    assert outputs.grad is not None
    assert outputs.grad[0, 2].abs().max() == 0
    losses[1].backward()
    assert outputs.grad[1, 2].abs().max() > 0, "of no other question's"
