"""One random table is given to every reader of the package: each reads the rows that were written, texts,
labels, ids and order, or refuses the file in a sentence. The oracle is the rows, and what csv, json and
pyarrow read of the same file. A failure names the seed: `random_table(folder, seed)` writes the file again.
"""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.data.sequences.records import RowFile, stream_records
from bertsmith.errors import BertsmithError, InputError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import embed_file
from bertsmith.inference.embedding.vector_file import read_vectors
from bertsmith.mirror.call_files import read_json_objects
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.registry import find_task
from bertsmith.text.corpus.reading import SourceReader
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.decontamination.evaluation_texts import read_evaluation_file
from bertsmith.text.files import streams
from bertsmith.text.files.rows import read_rows, stream_texts
from bertsmith.text.files.sources import find_sources
from bertsmith.text.retrieval.documents import Documents, DocumentSettings
from bertsmith.text.retrieval.judged_questions import read_judged_questions
from random_encoder import random_encoder
from table_writers import WRITERS, write_table

Row = Mapping[str, Any]  # what a reader says of a row: some of the keys of `row_of`


class Table(NamedTuple):
    """A file, the columns that hold its texts, label and ids (None: no such column), and what it says."""

    path: Path
    encoding: str
    texts: Sequence[str]
    label: str | None
    id: str | None
    rows: Sequence[Row]


# -- a random table ------------------------------------------------------------------------------------------

WORDS = (
    *("house", "größer", "naïve", "NA", "null", "007", "1.0", "true", "日本", "👍", "e\u0301", "\u200bz"),
    *("a\u00a0b", "it's", "5 %", "<b>", "\\n", "a|b", "q;r", "#x", "-", "'", "[1]", "=1"),
)
ODD = (
    *('"', '""', ",", ";", ' "quoted" ', "a,b", '"a"b', "\n", "\r\n", "\t", "\r"),
    *("\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\ufeff"),
)
TEXTS = ("text", "sentence", "review", "question", "Text", "body", "review_text")
PAIRS = (
    *(("question", "answer"), ("sentence1", "sentence2"), ("query", "document"), ("premise", "hypothesis")),
    *(("question", "context"), ("text", "text_pair")),
)
LABELS = ("label", "labels", "class", "score", "gold_label", "relevance", "intent", "Label", "stars")
BESIDE = ("title", "source", "n", "flag", "note", "description", "is_duplicate")
# Labels, and those that say of a document that it doesn't answer the query.
LABEL_VALUES: tuple[tuple[Sequence[Any], Sequence[Any]], ...] = (
    (("good", "bad", "größer"), ()),
    (("0", "1"), ("0",)),
    ((0, 1), (0,)),
    ((True, False), (False,)),
    (("yes", "no"), ("no",)),
    (("entailment", "contradiction"), ("contradiction",)),
    ((1.0, 2.0), ()),
    ((0.5, 1.5), ()),
    ((1, 2, 3, 4, 5), ()),
    (("007", "08"), ()),
    ((" a ", "b"), ()),
)


def random_table(folder: Path, seed: int) -> Table:
    """Of 1 to 12 rows, in any format. Cells without a value are nulls, or keys that JSON's objects lack."""
    random = Random(seed)
    writer = random.choice([*WRITERS, "jsonl", "json", "lines"])
    ending = "txt" if writer == "lines" else WRITERS[writer][0]
    encoding = random.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))
    texts: tuple[str, ...] = random.choice(PAIRS) if random.random() < 0.4 else (random.choice(TEXTS),)
    label, id = random.choice((*LABELS, None)), random.choice(("id", None))
    # Beside no label, or one of a name that says no more, tags may be the label.
    beside = BESIDE if label in (None, "relevance", "stars") else [*BESIDE, "tags"]
    names = [*texts, *filter(None, (label, id)), *random.sample(beside, random.randrange(3))]
    if writer == "lines":
        texts, label, id, names = ("text",), None, None, ["text"]
    random.shuffle(names)
    values, wrong = random.choice(LABEL_VALUES)
    count = random.choice((1, 2, 3, 5, 12))
    labels = [values[number % len(values)] for number in range(count)]
    random.shuffle(labels)
    cells: dict[str | None, list[Any]] = {
        **{name: [random_text(random, writer, encoding) for _ in range(count)] for name in names},
        "n": [random.choice((1.0, 2.5))] * count,
        "flag": [random.random() < 0.5 for _ in range(count)],
        "id": [str(3 * number) for number in range(count)],
        "is_duplicate": ["1"] * count,
        label: labels,
    }
    if count > 2:
        cells[texts[0]][2] = cells[texts[0]][0]
    lacking = random.choice((texts[-1], label)) if ending.startswith("json") else label
    if lacking and random.random() < 0.5:
        kept = random.randrange(count)
        absent = [number != kept and random.random() < 0.5 for number in range(count)]
        cells[lacking] = [None if is_absent else cell for is_absent, cell in zip(absent, cells[lacking])]
    records = [{name: cells[name][number] for name in names} for number in range(count)]
    if ending.startswith("json"):
        records = [{name: cell for name, cell in each.items() if cell is not None} for each in records]
    if writer == "lines":
        path = folder / "rows.txt"
        path.write_text("".join(f"{each['text']}\n" for each in records), encoding="utf-8", newline="")
    else:
        path = write_table(folder, writer, records)
    if ending == "parquet":
        encoding = "utf-8"
    else:
        path = repacked(path, encoding, random)
    rows = [row_of(each, number, texts, label, id, wrong) for number, each in enumerate(records, start=1)]
    return Table(path, "cp1252" if encoding == "cp1252" else "utf-8", texts, label, id, rows)


def random_text(random: Random, writer: str, encoding: str) -> str:
    """With a letter in it at least, of what the format and the encoding can hold."""
    words = [random.choice(ODD if random.random() < 0.15 else WORDS) for _ in range(random.randrange(1, 7))]
    text = random.choice((" ", "  ")).join(["x", *words] if random.random() < 0.9 else [" ", *words, "x "])
    if writer in ("tsv", "lines"):  # which have no quotes
        text = text.translate(dict.fromkeys(map(ord, "\n\r\t"), " "))
    if writer == "csv of pandas":  # which puts none around it
        text = text.replace("\r", " ")
    return text if encoding != "cp1252" else text.encode("cp1252", "ignore").decode("cp1252")


def repacked(path: Path, encoding: str, random: Random) -> Path:
    """The file in another encoding, with the line ends of Windows, and packed, as chance has it."""
    text = path.read_bytes().decode("utf-8-sig")
    if path.suffix != ".csv" and random.random() < 0.3:  # in a CSV's cells they would be others
        text = text.replace("\n", "\r\n")
    content = text.encode(encoding)
    path.unlink()
    packing = random.choice(("", "", "", ".gz", ".zst"))
    if packing == ".gz":
        cut = random.choice((0, len(content) // 2))  # two members, as `cat a.gz b.gz` has them
        content = b"".join(map(gzip.compress, (content[:cut], content[cut:])))
    elif packing == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path = path.with_name(path.name + packing)
    path.write_bytes(content)
    return path


def row_of(
    record: Row, number: int, texts: Sequence[str], label: str | None, id: str | None, wrong: Sequence[Any]
) -> Row:
    """All that a reader may say of a row. Without a column of ids it is the row's number."""
    value = record.get(label) if label else None
    return {
        "texts": tuple(record.get(name) or "" for name in texts),
        "stripped": tuple((record.get(name) or "").strip() for name in texts),
        "query": (record.get(texts[0]) or "").strip(),
        "document": (record.get(texts[-1]) or "").strip(),
        "label": label_name(value),
        "number": None if value is None else number_of(value),
        "answers": label in ("intent", "stars") or value not in wrong,  # these say nothing of documents
        "id": record[id] if id else str(number),
    }


def label_name(value: Any) -> str | None:
    """As the page on labels has it: blanks around it don't count, 1.0 is 1, and true is True."""
    if value is None or str(value).strip() == "":
        return None
    name = str(value).strip().removesuffix(".0")
    return {"true": "True", "false": "False"}.get(name.lower(), name)


def number_of(value: Any) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


# -- the readers ---------------------------------------------------------------------------------------------


def by_library(table: Table) -> Iterator[Row]:
    """What csv, json and pyarrow read, where the file is theirs."""
    if table.path.suffix == ".parquet":
        records = pq.read_table(table.path).to_pylist()
    else:
        content = pa.input_stream(table.path).read()
        is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        encoding = "utf-16" if is_wide else table.encoding.replace("utf-8", "utf-8-sig")
        file = io.StringIO(content.decode(encoding), newline="")
        if ".csv" in table.path.name:
            records = list(csv.DictReader(file))
        elif ".jsonl" in table.path.name:
            records = [json.loads(line) for line in file.read().split("\n") if line]
        elif ".json" in table.path.name:
            records = json.load(file)
        else:
            raise InputError("No library has a rule for TSV without quotes, and for lines.")
    return rows_of(records, table)


def rows_of(records: Iterable[Row], table: Table) -> Iterator[Row]:
    """Of values by the names of their columns."""
    for record in records:
        row: dict[str, Any] = {"texts": tuple(record.get(name) or "" for name in table.texts)}
        if table.label:
            row["label"] = label_name(record.get(table.label))
        yield row if table.id is None else {**row, "id": str(record[table.id])}


def by_column_names(table: Table) -> Iterator[Row]:
    columns = [*table.texts, *filter(None, (table.label, table.id))]
    rows = read_rows(table.path, columns, encoding=table.encoding)
    return rows_of((dict(zip(columns, row.values, strict=True)) for row in rows), table)


def by_task(name: str, table: Table, labelled: bool | None = True) -> Iterator[Row]:
    """Rows to learn from, all of them labelled (True) or some (None), or rows to predict (False)."""
    kind = find_task(name)
    task: Any = kind(kind.Settings(encoding=table.encoding))
    if labelled:
        examples = task.read_files([table.path])
    elif labelled is None:
        examples = task.read_partly_labelled(table.path)
    else:
        examples = task.read(table.path, labelled=False)
    for example in examples:
        row = SAYS_OF[name](example)
        if labelled is False:  # nothing is known of the label
            row = {"texts": row["texts"], **({} if table.id is None else {"id": str(example.id)})}
        yield row


def texts_of(example: TextExample) -> tuple[str, ...]:
    return (example.text,) if example.text_pair is None else (example.text, example.text_pair)


# What a task's example says of a row; in retrieval, that the document answers the query.
SAYS_OF: dict[str, Callable[[Any], Row]] = {
    "classification": lambda example: {"texts": texts_of(example), "label": example.label},
    "multi-label": lambda example: {"texts": texts_of(example), "label": ",".join(example.label) or None},
    "retrieval": lambda example: {"texts": (example.query, *example.documents), "answers": True},
    **dict.fromkeys(
        ("regression", "similarity", "reranking"),
        lambda example: {"texts": texts_of(example), "number": example.label},
    ),
}


class Recorder(Embedder):
    """Keeps the texts whose vectors were asked for."""

    def embed_batches(self, texts: Iterable[str], *rest: Any, **more: Any) -> Iterator[Any]:
        self.texts = list(texts)
        return super().embed_batches(self.texts, *rest, **more)


@cache
def recorder(folder: Path) -> Recorder:
    return Recorder(random_encoder(folder / "encoder", ["x", "house"]))


def by_embedding(table: Table) -> Iterator[Row]:
    """The texts as the model is given them, the ids as the file of vectors has them."""
    folder = table.path.parent
    embedder, out = recorder(folder), folder / "vectors.parquet"
    embed_file(embedder, table.path, out, encoding=table.encoding, overwrite=True)
    for id, text in zip(read_vectors(out).ids, embedder.texts, strict=True):
        yield {"texts": (text,), "id": id}


def by_index(table: Table) -> Iterator[Row]:
    """Single texts by the usual names; of a pair the other text is a column beside."""
    text = table.texts[0] if len(table.texts) > 1 else None
    for document in Documents([str(table.path)], DocumentSettings(text=text, encoding=table.encoding)):
        for cell in cells_of(document.text, table):
            record = {table.texts[0]: cell, table.id: document.id, **document.metadata}
            yield from rows_of([record], table)


def by_corpus(table: Table) -> Iterator[Row]:
    def read(column: str) -> Iterator[str]:
        settings = CorpusSettings(text_column=column, encoding=table.encoding)
        for batch in SourceReader(find_sources([str(table.path)], settings).sources, settings):
            for document in batch.documents():
                yield from cells_of(document.text, table)

    return by_column(read, table)


def cells_of(document: str, table: Table) -> Sequence[str]:
    """A file of lines is one document."""
    return document.split("\n") if ".txt" in table.path.name else [document]


def by_column(read: Callable[[str], Iterable[str]], table: Table) -> Iterator[Row]:
    """A reader of one column, whose name it is given, reads each."""
    return ({"texts": texts} for texts in zip(*map(read, table.texts), strict=True))


def by_decontamination(table: Table) -> Iterator[Row]:
    columns = tuple(table.texts)
    file = read_evaluation_file(table.path, columns, None, table.encoding)
    cells = {(text.row, text.column): text.text for text in file.texts}
    for number in range(file.rows):
        yield {"stripped": tuple(cells.get((number, column), "") for column in columns)}


def by_rank(table: Table) -> Iterator[Row]:
    """Questions, each with a document's id: of the column `document`, else of `id`, else of answers."""
    named = "id" if table.id is not None and "document" not in table.texts else "document"
    data = read_judged_questions(table.path, {row[named]: "" for row in table.rows}, table.encoding)
    for number, grades in data.judgements.items():
        for id, grade in grades.items():
            row = {"query": data.queries[number], named: id}
            grades_rows = table.label in ("label", "score", "relevance")
            yield {**row, "answers": grade > 0} if grades_rows else row


def by_look(table: Table) -> Iterator[Row]:
    return ({"texts": (text,)} for text in stream_texts(table.path, encoding=table.encoding))


def by_look_at_a_column(table: Table) -> Iterator[Row]:
    return by_column(lambda column: stream_texts(table.path, column, encoding=table.encoding), table)


def by_sequences(table: Table) -> Iterator[Row]:
    return rows_of(
        (row.values for row in stream_records(RowFile(table.path, encoding=table.encoding))), table
    )


def by_mirror_import(table: Table) -> Iterator[Row]:
    return rows_of((each.value for each in read_json_objects(table.path)), table)


READERS: dict[str, Callable[[Table], Iterator[Row]]] = {
    "csv, json, pyarrow": by_library,
    "read_rows": by_column_names,
    "finetune classification": partial(by_task, "classification"),
    "finetune multi-label": partial(by_task, "multi-label"),
    "finetune regression": partial(by_task, "regression"),
    "finetune similarity": partial(by_task, "similarity"),
    "finetune reranking": partial(by_task, "reranking"),
    "finetune retrieval": partial(by_task, "retrieval"),
    "suggest": partial(by_task, "classification", labelled=None),
    "predict": partial(by_task, "classification", labelled=False),
    "predict of retrieval": partial(by_task, "retrieval", labelled=False),
    "embed": by_embedding,
    "index": by_index,
    "corpus build": by_corpus,
    "decontaminate": by_decontamination,
    "look": by_look,
    "look --column": by_look_at_a_column,
    "sequences build": by_sequences,
    "rank": by_rank,
    "mirror import": by_mirror_import,
}
EACH_ONCE = ("rank",)  # by queries


# -- the comparison ------------------------------------------------------------------------------------------


def check(folder: Path, seed: int) -> list[str]:
    """The names of the readers that didn't refuse the table."""
    table = random_table(folder, seed)
    written = [row for row in table.rows if has_text(row)]
    readers = []
    for name, reader in READERS.items():
        try:
            read = [row for row in reader(table) if has_text(row)]
        except BertsmithError as error:
            assert "\n" not in str(error), (seed, name)
            continue
        readers.append(name)
        expected = [{key: row[key] for key in read[0]} for row in written] if read else written
        if name in EACH_ONCE:
            assert {*map(repr, read)} == {*map(repr, expected)}, (seed, name)
        else:
            assert read == expected, (seed, name)
    table.path.unlink()
    return readers


def has_text(row: Row) -> bool:
    """A row without its first text may be left out."""
    first, *_ = row.get("texts") or row.get("stripped") or (row["query"],)
    return bool(first)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read by so few bytes that characters and line ends lie between two of them."""
    monkeypatch.setattr(streams, "CHUNK", 61)


def check_all(folder: Path, seeds: range) -> None:
    """Nor may a reader refuse nearly all of them."""
    count = Counter(name for seed in seeds for name in check(folder, seed))
    assert not [name for name in READERS if count[name] < len(seeds) // 50 + 1]


def test_every_reader_reads_the_rows_that_were_written_or_refuses_the_file(folder: Path) -> None:
    check_all(folder, range(180, 204))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_reader_reads_some_thousand_tables_as_they_were_written(folder: Path) -> None:
    check_all(folder, range(4000))
