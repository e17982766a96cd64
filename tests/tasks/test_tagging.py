"""Tags: one for each word whatever its pieces and however long the sentence; legal sequences; the CRF."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import (
    WORDS,
    examples_of,
    first_batch,
    joined_by,
    make_task,
    objective_of,
    random_model,
    split_of,
)

from bertsmith.errors import InputError
from bertsmith.metrics.entities import spans_of_tags
from bertsmith.tasks.examples.held_out import folds_of, hold_out
from bertsmith.tasks.tagging import TaggedExample, Tagging, TaggingSettings
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.unigram import build_unigram_backend
from text.tokenizer_samples import byte_level_files

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
STRANGE = ["banos", "\u200b", "\x00", "é🙂", "...", "[SEP]", "x" * 150]  # pieces: several, none, unknown


def legal(tags: list[str]) -> bool:
    """Whether each I- goes on with an entity of its label."""
    pairs = zip(["O", *tags], tags, strict=False)
    return all(not tag.startswith("I-") or before[2:] == tag[2:] for before, tag in pairs)


def tagger(tokenizer: Tokenizer, **options: Any) -> tuple[Tagging, Any]:
    """A task with TAGS, and a random model of it."""
    task = Tagging(TaggingSettings(**options), TAGS)
    return task, random_model(task, tokenizer)


@pytest.mark.parametrize("crf", [False, True], ids=["softmax", "crf"])
@settings(max_examples=25, deadline=None)
@given(
    words=st.lists(st.sampled_from([*WORDS[:5], *STRANGE]), max_size=70), stride=st.none() | st.integers(0, 9)
)
def test_every_word_has_one_tag_and_every_sequence_is_legal(
    crf: bool, words: list[str], stride: int | None, tokenizer: Tokenizer
) -> None:
    task, model = tagger(tokenizer, max_length=12, stride=stride, crf=crf)
    example = task.example(words)
    encoded = split_of(task, [example], tokenizer).encoded
    assert all(len(window.token_ids) <= 12 for window in encoded[0].windows)
    outputs = outputs_of(model, encoded)
    assert outputs[0].shape == (len(words), len(TAGS))
    (found,) = task.decode(outputs, [example], encoded)
    assert len(found["tags"]) == len(found["confidence"]) == len(words)
    assert legal(found["tags"]), found["tags"]
    assert [(e["first_word"], e["last_word"] + 1, e["label"]) for e in found["entities"]] == [
        (span.start, span.end, span.label) for span in spans_of_tags(found["tags"])
    ]


@given(words=st.lists(st.sampled_from([*WORDS[:9], "banos"]), min_size=1, max_size=60))
@settings(max_examples=25, deadline=None)
def test_the_head_reads_each_words_first_piece_in_their_order(words: list[str], tokenizer: Tokenizer) -> None:
    """The rows of all windows, one after the other, are the words' first pieces."""
    task = Tagging(TaggingSettings(max_length=10), TAGS)
    (encoded,) = split_of(task, [task.example(words)], tokenizer).encoded
    read = [int(window.token_ids[row]) for window in encoded.windows for row in window.rows]
    assert read == [tokenizer.encode(word).ids[0] for word in words]


@pytest.mark.parametrize("constrained", [True, False])
def test_a_blank_alone_says_nothing_of_the_word_behind_it(tmp_path: Path, constrained: bool) -> None:
    """SentencePiece's, which stands before most words of Chinese; transformers' models learned to read it."""
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    pieces = ["▁", "▁big", "รัก", "แมว", "s"]
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    scored = [*((piece, -9.0) for piece in special), *((piece, -2.0) for piece in pieces)]
    tokenizer = Tokenizer(build_unigram_backend(scored, roles, lowercase=False), roles)
    task = Tagging(TaggingSettings(max_length=16, constrained=constrained), TAGS)
    (encoded,) = split_of(task, [task.example(["รักแมว", "bigs", "แมว"])], tokenizer).encoded
    (window,) = encoded.windows
    spelt = [tokenizer.id_to_token(int(number)) for number in window.token_ids]
    assert spelt[1:-1] == ["▁", "รัก", "แมว", "▁big", "s", "▁", "แมว"]
    expected = ["รัก", "▁big", "แมว"] if constrained else ["▁", "▁big", "▁"]
    assert [spelt[row] for row in window.rows] == expected


def test_words_stand_behind_the_tokenizers_own_special_tokens(tokenizer: Tokenizer) -> None:
    task = Tagging(TaggingSettings(max_length=10), TAGS)
    for before in ("", "[CLS] [PAD]"):
        joined = joined_by(tokenizer, before, "[SEP]", "[SEP]")
        (encoded,) = split_of(task, [task.example(WORDS[:30])], joined).encoded
        read = [int(window.token_ids[row]) for window in encoded.windows for row in window.rows]
        assert read == list(map(tokenizer.token_to_id, WORDS[:30]))


def test_a_word_is_read_where_most_of_its_surroundings_are_seen(tokenizer: Tokenizer) -> None:
    task = Tagging(TaggingSettings(max_length=12, stride=4), TAGS)
    (encoded,) = split_of(task, [task.example(WORDS[:30])], tokenizer).encoded
    assert len(encoded.windows) > 3
    for number, window in enumerate(encoded.windows):
        first, last = int(window.rows[0]) - 1, len(window.token_ids) - 2 - int(window.rows[-1])
        assert first >= (2 if number else 0), "read at the very start of a window that has more before it"
        assert last >= (1 if number < len(encoded.windows) - 1 else 0)


def test_the_loss_is_the_mean_over_words_not_over_sentences(tokenizer: Tokenizer) -> None:
    task = make_task("tagging")
    examples = examples_of(task, WORDS, count=6, longest=12)
    model = random_model(task, tokenizer)
    objective = objective_of(task, model, split_of(task, examples, tokenizer))
    sequences = first_batch(objective)
    loss = objective.loss(sequences)["task"] / objective.counts(sequences)["task"]
    outputs = np.concatenate(outputs_of(model, objective.train.encoded))
    gold = [task.labels.index(tag) for example in examples for tag in example.tags]
    probabilities = torch.from_numpy(outputs).log_softmax(1)[torch.arange(len(gold)), gold]
    assert float(loss.detach()) == pytest.approx(-float(probabilities.mean()), rel=1e-5)


def test_tags_of_the_older_scheme_are_read_as_iob2(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """In IOB1, CoNLL-2003's own, an entity begins with I unless it follows another of its kind."""
    (tmp_path / "old.conll").write_text("bano I-PER\ndelo I-PER\nfiru B-PER\nguma O\n\nbano I-LOC\n")
    task = Tagging(TaggingSettings())
    examples = task.read(tmp_path / "old.conll")
    task.fit(examples)
    encoded = split_of(task, examples, tokenizer).encoded
    assert [[task.labels[n] for n in each.target] for each in encoded] == [
        ["B-PER", "I-PER", "B-PER", "O"],
        ["B-LOC"],
    ]


def test_spans_in_characters_become_tags_and_come_back(tmp_path: Path) -> None:
    text = "  Frau é Bano, von Ürük 🙂 kam."
    spans = [{"start": 7, "end": 13, "label": "PER"}, {"start": 19, "end": 23, "label": "LOC"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text, "spans": spans}) + "\n")
    task = Tagging(TaggingSettings())
    (example,) = task.read(tmp_path / "rows.jsonl")
    assert example.tags is not None
    task.fit([example])
    emissions = np.full((len(example.words), len(task.labels)), -9.0, np.float32)
    for row, tag in enumerate(example.tags):
        emissions[row, task.labels.index(tag)] = 9.0
    (prediction,) = task.decode([emissions], [example], [])
    found = [{key: e[key] for key in ("start", "end", "label")} for e in prediction["entities"]]
    assert found == spans
    assert [e["text"] for e in prediction["entities"]] == ["é Bano", "Ürük"]


def test_a_tag_that_training_never_showed_is_refused() -> None:
    task = Tagging(TaggingSettings(), ("O", "B-PER"))
    strange = TaggedExample(("bano",), ("B-LOC",), "dev.conll, line 7")
    with pytest.raises(InputError, match=r"dev\.conll, line 7: the tag 'B-LOC' does not occur"):
        task.check([strange])


def test_a_name_longer_than_any_in_training_is_missed_and_no_error() -> None:
    """Its B- tag was there, and its I- tag follows from that."""
    task = Tagging(TaggingSettings())
    task.fit([TaggedExample(("bano", "delo"), ("B-PER", "O"), "train, line 1")])
    longer = TaggedExample(("bano", "delo"), ("B-PER", "I-PER"), "test, line 1")
    task.check([longer])
    said = task.decode([emitted(task.labels, ["B-PER", "O"])], [longer], [])
    assert task.metrics(said, [longer])["f1"] == 0.0
    assert task.error_analysis(said, [longer]).answers
    strange = TaggedExample(("bano", "delo"), ("B-LOC", "I-LOC"), "test, line 2")
    with pytest.raises(InputError, match="'B-LOC' does not occur"):
        task.check([strange])


def test_an_id_is_carried_to_the_predictions(tmp_path: Path) -> None:
    rows = [
        {"id": "a1", "words": ["bano", "delo"]},
        {"text": "firu guma", "id": 7},
        {"id": 1.5, "text": ""},
        {"text": "kano"},
    ]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = Tagging(TaggingSettings(), TAGS)
    lines = [task.line(each, {"tags": []}) for each in task.read(tmp_path / "new.jsonl", labelled=False)]
    assert [line.get("id") for line in lines] == ["a1", 7, "1.5", None]
    assert "id" not in lines[3]


STRONG = 9.0


def emitted(labels: tuple[str, ...], tags: list[str]) -> np.ndarray:
    """Outputs that are sure of these tags."""
    emissions = np.full((len(tags), len(labels)), -STRONG, np.float32)
    emissions[np.arange(len(tags)), [labels.index(tag) for tag in tags]] = STRONG
    return emissions


def test_a_model_of_others_may_begin_an_entity_with_i() -> None:
    """IOB1, as CoNLL-2003 was written: B- only where an entity follows another of its label."""
    said = ["I-PER", "O", "I-LOC", "I-LOC", "B-LOC"]
    ours, theirs = (Tagging(TaggingSettings(constrained=each), TAGS) for each in (True, False))
    example = theirs.example(WORDS[:5])
    (found,) = theirs.decode([emitted(TAGS, said)], [example], [])
    assert found["tags"] == said
    assert [(e["label"], e["first_word"], e["last_word"]) for e in found["entities"]] == [
        ("PER", 0, 0),
        ("LOC", 2, 3),
        ("LOC", 4, 4),
    ]
    assert legal(ours.decode([emitted(TAGS, said)], [example], [])[0]["tags"])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("O", "I-PER", "I-LOC"), ["I-PER", "I-PER", "O", "I-LOC"]),
        (("O", "B-PER", "E-PER", "S-LOC", "S-PER"), ["B-PER", "E-PER", "O", "S-LOC"]),
    ],
    ids=["IO", "IOBES"],
)
def test_a_model_of_another_scheme_is_measured_by_what_its_tags_say(
    labels: tuple[str, ...], said: list[str], tokenizer: Tokenizer
) -> None:
    task = Tagging(TaggingSettings(constrained=False), labels)
    gold = TaggedExample(tuple(WORDS[:4]), ("B-PER", "I-PER", "O", "B-LOC"), "dev, line 1")
    task.check([gold])
    encoded = split_of(task, [gold], tokenizer).encoded
    found = task.decode([emitted(labels, said)], [gold], encoded)
    assert task.metrics(found, [gold]) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}
    assert task.baselines([gold], [gold]).keys() >= {"majority"}
    with pytest.raises(InputError, match="'B-ORG' does not occur"):
        task.check([TaggedExample(("bano",), ("B-ORG",), "dev, line 2")])


def test_confidence_with_a_crf_is_the_marginal_over_every_path(tokenizer: Tokenizer) -> None:
    """By brute force: the likelihoods of all paths, summed where a word has its tag."""
    task, model = tagger(tokenizer, crf=True)
    example = task.example(WORDS[:3])
    encoded = split_of(task, [example], tokenizer).encoded
    (output,) = outputs_of(model, encoded)
    (found,) = task.decode([output], [example], encoded)
    every = torch.cartesian_prod(*[torch.arange(len(TAGS))] * len(output))
    paths = torch.stack([path for path in every if legal([TAGS[tag] for tag in path])])
    losses = [task.loss(torch.from_numpy(output), [path.numpy()]).detach() for path in paths]
    probabilities = (-torch.stack(losses)).exp()
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-4)
    for word, (tag, confidence) in enumerate(zip(found["tags"], found["confidence"], strict=True)):
        wanted = probabilities[paths[:, word] == TAGS.index(tag)].sum()
        assert confidence == pytest.approx(float(wanted), abs=1e-4)


def test_lines_of_text_are_predicted_whole(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("Anna Weber visits Oslo.\n\nThe court sits\n")
    found = Tagging(TaggingSettings(), TAGS).read(tmp_path / "plain.txt", labelled=False)
    assert [example.words for example in found] == [
        ("Anna", "Weber", "visits", "Oslo", "."),
        (),
        ("The", "court", "sits"),
    ]
    assert found[0].text == "Anna Weber visits Oslo."


def test_sentences_of_a_document_stay_together_where_there_are_many(tmp_path: Path) -> None:
    """In a hold-out and in folds, CoNLL-2003's documents and CoNLL-U's alike."""
    task = Tagging(TaggingSettings())
    for mark, columns, name in (
        ("-DOCSTART- O\n\n", "{} {}\n", "a.conll"),
        ("# newdoc\n", "1\t{}\t_\t{}\n", "a.conllu"),
    ):
        for documents, is_kept in ((12, True), (3, False)):  # three leave too little to choose by
            sentences = (
                (mark if not n % 6 else "")
                + columns.format(f"w{n}", "O")
                + columns.format("Anna", "B-PER")
                + "\n"
                for n in range(6 * documents)
            )
            (tmp_path / name).write_text("".join(sentences))
            examples = task.read(tmp_path / name)
            (tmp_path / f"moved {name}").write_bytes((tmp_path / name).read_bytes())
            groups = [
                [each.group for each in read] for read in (examples, task.read(tmp_path / f"moved {name}"))
            ]
            assert groups[0] == groups[1] and len({*groups[0]}) == (documents if is_kept else 1)
            document_of = {example.words: number // 6 for number, example in enumerate(examples)}
            train, dev = (
                {document_of[each.words] for each in part} for part in hold_out(task, examples, 0.1)
            )
            assert train and dev and train.isdisjoint(dev) == is_kept
            pairs = zip(document_of.values(), folds_of(task, examples, 5).tolist(), strict=True)
            assert (len({*pairs}) == documents) == is_kept


@pytest.mark.parametrize("blank", [None, "", " \u00a0", []])
def test_a_row_without_a_text_is_refused_or_left_out(tmp_path: Path, blank: Any) -> None:
    """As of other tasks; to be predicted it is a text without words."""
    marked = {"text": "Anna", "spans": [{"start": 0, "end": 4, "label": "PER"}]}
    rows = [marked, {"text": blank, "spans": []}, {"words": ["Oslo"], "tags": ["B-LOC"]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"of 3 rows 1 has no text \(the first: line 2\)"):
        Tagging(TaggingSettings()).read(path)
    task = Tagging(TaggingSettings(missing="drop"))
    assert [example.words for example in task.read(path)] == [("Anna",), ("Oslo",)]
    assert "they were left out" in task.left_out[0]
    assert len(Tagging(TaggingSettings(missing="keep")).read(path)) == 3
    assert [task.has_text(example) for example in task.read(path, labelled=False)] == [True, False, True]


def test_entities_that_were_widened_are_told(tmp_path: Path) -> None:
    rows = [
        {"text": "Bano delo", "spans": [{"start": 0, "end": 4, "label": "PER"}]},
        {"text": "die Weberhaus-Frage", "spans": [{"start": 4, "end": 9, "label": "PER"}]},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = Tagging(TaggingSettings())
    examples = task.read(tmp_path / "rows.jsonl")
    (said,) = task.warnings(examples)
    assert said.startswith("1 marked entities begin or end amid a word and were widened")
    assert said.endswith("rows.jsonl, line 2")
    assert task.warnings(examples[:1]) == []


def test_the_labels_of_a_sentence_are_in_order() -> None:
    """A set's order changes from run to run, and with it the label that a warning named."""
    task = Tagging(TaggingSettings())
    tags = ("O", "B-PER", "I-PER", "B-LOC", "O", "B-ORG", "B-PER")
    example = TaggedExample(tuple("abcdefg"), tags, "the input")
    task.fit([example])
    assert task.labels_of(example) == ["B-LOC", "B-ORG", "B-PER", "I-PER", "O"]


def test_a_mistyped_tag_among_entities_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("bano B-PER\ndelo O\n\nfiru Z-PER\nguma O\n")
    task = Tagging(TaggingSettings())
    with pytest.raises(InputError, match=r"a\.conll, line 4: the tag 'Z-PER' is not that of an entity"):
        task.fit(task.read(tmp_path / "a.conll"))


def test_parts_of_speech_have_an_accuracy_and_no_f1(tmp_path: Path) -> None:
    """Some tags look like those of entities: O and S of the tags for Twitter (Gimpel et al. 2011)."""
    (tmp_path / "a.conll").write_text("bano N\ndelo V\nfiru O\nkano N\n\nguma S\n")
    task = Tagging(TaggingSettings())
    examples = task.read(tmp_path / "a.conll")
    task.fit(examples)
    assert (task.main_metric, set(task.labels)) == ("accuracy", {"N", "V", "O", "S"})
    guessed = [{"tags": ["N", "N", "O", "N"]}, {"tags": ["S"]}]
    assert task.metrics(guessed, examples) == {"accuracy": pytest.approx(0.8)}
    assert Tagging(TaggingSettings(), TAGS).main_metric == "f1"


@pytest.mark.parametrize(
    ("rows", "scheme", "labels", "metric"),
    [
        ("a PER-B\nb PER-I\nc O\nd LOC-B\n", None, "O B-LOC B-PER I-PER", "f1"),
        ("a b_per\nb e_per\nc o\nd s_loc\n", None, "O B-loc B-per I-per", "f1"),
        ("a B-PER\nb L-PER\nc 0\nd U-LOC\n", None, "O B-LOC B-PER I-PER", "f1"),
        ("a PER\nb PER\nc O\nd LOC\n", None, "O B-LOC B-PER I-PER", "f1"),
        ("a B\nb I\nc O\nd B\n", "bio", "O B I", "f1"),
        ("a COUNTRY\nb O\nc O\nd O\n", "io", "O B-COUNTRY", "f1"),
        ("a B-PER\nb I-PER\nc O\n", "none", "O B-PER I-PER", "accuracy"),
        ("a COUNTRY\nb O\nc O\nd O\n", "NONE", "O COUNTRY", "accuracy"),
        ("a E\nb S\nc O\nd S\n", None, "O E S", "accuracy"),
        ("a U\nb L\nc L\nd O\n", None, "O L U", "accuracy"),
        ("a O\nb COMMA\nc O\nd O\ne PERIOD\n", None, "O COMMA PERIOD", "accuracy"),
    ],
)
def test_tags_are_read_in_their_scheme_and_a_saved_task_knows_it(
    tmp_path: Path, rows: str, scheme: str | None, labels: str, metric: str
) -> None:
    (tmp_path / "a.conll").write_text(rows)
    task = Tagging(TaggingSettings(scheme=scheme))  # type: ignore[arg-type]
    examples = task.read(tmp_path / "a.conll")
    task.fit(examples)
    task.check(examples)
    again = Tagging.from_state(json.loads(json.dumps(task.state())), "bertsmith.json")
    for each in (task, again):
        assert set(each.labels) == set(labels.split())
        assert each.main_metric == metric
        (example,) = each.read(tmp_path / "a.conll")
        each.check([example])
        (said,) = each.decode([emitted(each.labels, list(example.tags or ()))], [example], [])
        assert each.metrics([said], [example])[metric] == 1.0
        assert (len(said["entities"]) > 0) == (metric == "f1")


def test_a_file_of_another_scheme_than_trained_on_is_read_too(tmp_path: Path) -> None:
    files = {
        "iob2": "a B-PER\nb I-PER\nc O\n",
        "bilou": "a B-PER\nb L-PER\nc O\n",
        "io": "a PER\nb PER\nc O\n",
    }
    task = Tagging(TaggingSettings())
    read = {}
    for name, rows in files.items():
        (tmp_path / name).write_text(rows)
        read[name] = task.read(tmp_path / name)[0].tags
    assert set(read.values()) == {("B-PER", "I-PER", "O")}
    assert task.remarks() == {
        "scheme of iob2": "IOB2, written B-LABEL",
        "scheme of bilou": "BILOU, written B-LABEL",
        "scheme of io": "IO, labels without letters",
    }


def test_files_of_one_name_have_each_their_scheme_in_the_report(tmp_path: Path) -> None:
    task = Tagging(TaggingSettings())
    for folder, tags in (("train", "BIO"), ("dev", "BLO")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "rows.conll"
        path.write_text(
            "".join(f"w {tag}\n" if tag == "O" else f"w {tag}-PER\n" for tag in tags), encoding="utf-8"
        )
        task.read(path)
    assert list(task.remarks()) == ["scheme of train/rows.conll", "scheme of dev/rows.conll"]


def test_a_scheme_that_was_given_holds_for_the_file_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("a B-PER\nb L-PER\nc O\n")
    with pytest.raises(InputError, match=r"line 1: the tag 'L-PER' is not that of an entity in IOB2"):
        Tagging(TaggingSettings(scheme="iob2")).read(tmp_path / "a.conll")
    (tmp_path / "b.jsonl").write_text('{"text": "a b", "spans": [{"start": 0, "end": 1, "label": "X"}]}\n')
    with pytest.raises(InputError, match=r"line 1: spans mark entities, but scheme = none"):
        Tagging(TaggingSettings(scheme="none")).read(tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("O", "PER-B", "PER-I", "LOC-B", "LOC-I"), ["PER-B", "PER-I", "O", "LOC-B"]),
        (("O", "B_PER", "I_PER", "E_PER", "S_LOC"), ["B_PER", "E_PER", "O", "S_LOC"]),
        (("O", "PER", "LOC"), ["PER", "PER", "O", "LOC"]),
        (("o", "b-PER", "i-PER", "b-LOC"), ["b-PER", "i-PER", "o", "b-LOC"]),
    ],
)
def test_labels_of_others_are_understood_however_they_are_written(
    labels: tuple[str, ...], said: list[str]
) -> None:
    task = Tagging(TaggingSettings(constrained=False), labels)
    gold = TaggedExample(tuple(WORDS[:4]), ("B-PER", "I-PER", "O", "B-LOC"), "dev, line 1")
    task.check([gold])
    (found,) = task.decode([emitted(labels, said)], [gold], [])
    assert found["tags"] == said
    assert [(e["label"], e["first_word"], e["last_word"]) for e in found["entities"]] == [
        ("PER", 0, 1),
        ("LOC", 3, 3),
    ]
    assert task.metrics([found], [gold])["f1"] == 1.0


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNSPACED = [
    *(
        "私",
        "は",
        "東",
        "京",
        "タワー",
        "##へ",
        "行",
        "く",
        "。",
        "anna",
        "##は",
        "##T",
        "T",
        "##シャ",
        "##ツ",
    ),
    *("กรุง", "##เทพ", "##เ", "##ป็น", "##มื", "##อง", "서울", "##에서", "김", "##철수", ","),
]
UNBROKEN = {
    "Japanese": ("私は東京タワーへ行く。", {"LOC": "東京タワー", "PER": "私"}),
    "Japanese beside Latin": ("annaはTシャツ", {"PER": "anna", "MISC": "Tシャツ"}),
    "Thai": ("กรุงเทพเป็นเมือง", {"LOC": "กรุงเทพ", "MISC": "เมือง"}),
    "Korean, without the ending": ("서울에서 김철수,", {"LOC": "서울", "PER": "김철수"}),
    "between pictures": ("😀anna👍🏽東京", {"PER": "anna", "LOC": "東京"}),
    "zero-width blanks": ("กรุงเทพ\u200bเป็น\u200bเมือง", {"LOC": "กรุงเทพ", "MISC": "เมือง"}),
    "unknown as a whole": ("annaゾ東京" * 30, {"PER": "anna"}),
}


@pytest.mark.parametrize("marked", [False, True])
def test_korean_is_tagged_in_what_was_learned_from_words_or_syllables(tmp_path: Path, marked: bool) -> None:
    """A model of words has never seen a later piece of one; a saved model knows."""
    row: dict[str, Any] = {"words": ["서울에서", "김철수"], "tags": ["B-LOC", "B-PER"]}
    if marked:
        spans = [{"start": 0, "end": 2, "label": "LOC"}, {"start": 5, "end": 8, "label": "PER"}]
        row = {"text": "서울에서 김철수", "spans": spans}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    task = Tagging(TaggingSettings(max_length=64))
    task.fit(task.read(tmp_path / "a.jsonl"))
    expected = tuple("서울에서김철수") if marked else ("서울에서", "김철수")
    for opened in (task, Tagging.from_state(json.loads(json.dumps(task.state())), "a file")):
        assert opened.example("서울에서 김철수").words == expected
    (tmp_path / "b.txt").write_text("서울에서 김철수\n")
    (example,) = task.read(tmp_path / "b.txt", labelled=False)
    assert example.words == expected


@pytest.mark.parametrize("family", ["wordpiece", "byte-level"])
@pytest.mark.parametrize("text", UNBROKEN)
def test_spans_in_texts_without_blanks_are_learned_and_predicted_to_the_character(
    tmp_path: Path, text: str, family: str
) -> None:
    """Where offsets of pieces allow it: what a model would answer that has learned its targets by heart."""
    tokenizer = Tokenizer.from_pieces([*SPECIAL, *UNSPACED], lowercase=False)
    if family == "byte-level":
        tokenizer = Tokenizer.load(byte_level_files(tmp_path / "bytes"))
    content, marked = UNBROKEN[text]
    spans = [
        {
            "start": content.index(words),
            "end": content.index(words) + len(words),
            "label": label,
            "text": words,
        }
        for label, words in marked.items()
    ]
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": content, "spans": spans}) + "\n")
    task = Tagging(TaggingSettings(max_length=64))
    examples = task.read(tmp_path / "a.jsonl")
    assert task.warnings(examples) == []
    task.fit(examples)
    encoded = split_of(task, examples, tokenizer).encoded
    sure = [emitted(task.labels, [task.labels[number] for number in each.target]) for each in encoded]
    (said,) = task.decode(sure, examples, encoded)
    assert len(said["tags"]) == len(said["words"]) == len(said["confidence"])
    assert said["entities"] == sorted(spans, key=lambda span: span["start"])
    assert task.metrics([said], examples)["f1"] == 1.0
    read = [int(window.token_ids[row]) for window in encoded[0].windows for row in window.rows]
    assert len(read) == len(sure[0])
    if "unknown" not in text and "pictures" not in text and family == "wordpiece":
        ids = [number for window in encoded[0].windows for number in window.token_ids.tolist()[1:-1]]
        assert ids == tokenizer.encode(content).ids, "what transformers reads"


def test_a_span_that_ends_amid_a_piece_has_the_piece() -> None:
    tokenizer = Tokenizer.from_pieces([*SPECIAL, *UNSPACED], lowercase=False)
    example = dataclasses.replace(
        Tagging(TaggingSettings()).example("Tシャツ"), tags=("O", "O", "B-X", "I-X")
    )
    task = Tagging(TaggingSettings(crf=True))
    task.fit([example])
    (encoded,) = split_of(task, [example], tokenizer).encoded
    assert [task.labels[number] for number in encoded.target] == ["O", "B-X", "I-X"]
    (said,) = task.decode([emitted(task.labels, ["O", "B-X", "I-X"])], [example], [encoded])
    assert said["tags"] == ["O", "B-X", "I-X", "I-X"]
    assert [entity["text"] for entity in said["entities"]] == ["シャツ"]
