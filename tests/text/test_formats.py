"""Each convention is recognised, and read into the documents a reader would see."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.text.corpus.reading import COLLECTION, SourceReader, detect_format
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files import plain
from bertsmith.text.files.rows import read_rows
from bertsmith.text.files.sources import find_sources
from bertsmith.text.files.tables import read_json_records
from bertsmith.text.prose.sentences import RawDocument, read_sentences

LINES = "First sentence here.\nSecond one.\n\nAnother document.\nIt goes on.\n"
ARTICLE = (
    "Danake\n\nThe danake was a coin of Persia. It was of silver.\nThe term is vague. It is of no use.\n"
    "In Persia it was a weight.\n"
)
POEM = "The sea is calm tonight,\nThe tide is full;\n\nThe moon lies fair\nUpon the straits.\n"
JAPANESE = "これは文です。\n次の文です。\n\n別の文書です。\n終わり。\n"
FOLDED = (
    "A paragraph that someone folded by\nhand in an editor. It\n\ngoes on in the next paragraph\nand ends.\n"
)


def documents(path: Path, **settings: object) -> list[RawDocument]:
    chosen = CorpusSettings.model_validate(settings)
    reader = SourceReader(find_sources([str(path)], chosen).sources, chosen)
    return [document for batch in reader for document in batch.documents()]


def texts(path: Path, **settings: object) -> list[str]:
    return [document.text for document in documents(path, **settings)]


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ('<doc id="1" url="u" title="T">\nT\n\nBody.\n</doc>\n', "wikiextractor"),
        ("One paragraph\nover lines.\n", "file"),
        ("", "file"),
        (LINES, "lines"),
        (LINES.replace("\n\n", "\n \t\n"), "lines"),
        ("Dr. Who came in 1999. \n“It is late.”\n\nShe left at 5 p.m.\nNo. 7 is hers!\n", "lines"),
        (LINES + "\nOne sentence alone.\n", "lines"),
        (JAPANESE, "lines"),
        (FOLDED, "file"),
        (ARTICLE, "file"),
        (ARTICLE.replace(". It", "; it"), "file"),  # the title alone says it
        (ARTICLE.removeprefix("Danake\n\n") * 2 + "\n" + ARTICLE.removeprefix("Danake\n\n"), "file"),
        ("Heading.\n\nA line.\nAnother line.\nA third line.\n", "file"),
        (JAPANESE.replace("。\n次", "。次").replace("。\n終", "。終"), "file"),
        (POEM, "file"),
        ("A document.\nThe next document. It is longer.\n", "file"),
        ("# Title\n\nOne line a paragraph.\n\nAnother.\n", "file"),
        ("Some text.\n\n" * (COLLECTION // 10), "blank-lines"),
    ],
)
def test_detects(text: str, format: str) -> None:
    assert detect_format(text.split("\n")) == format


def test_googles_sample_is_three_documents_of_given_sentences(shared_data: Path) -> None:
    path = shared_data / "vocab" / "google_sample_text.txt"
    found = documents(path)
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    assert [document.text for document in found] == blocks
    assert {document.layout for document in found} == {"sentence-lines"}


def test_forcing_a_format_overrides_what_the_file_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(LINES)
    assert len(texts(path)) == 2
    assert len(texts(path, format="file")) == 1
    assert [d.layout for d in documents(path, format="blank-lines")] == ["folded", "folded"]


@pytest.mark.parametrize("name", ["a.html", "a.HTM.gz"])
def test_of_a_page_the_corpus_has_what_a_browser_shows(tmp_path: Path, name: str) -> None:
    """Its tags and its scripts were text to learn from."""
    page = (
        "<title>x</title><script>if (a < b) {}</script><h1>Rome</h1><p>It is <a href=x>old</a>.<p>It is big."
    )
    content = page.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (document,) = documents(tmp_path / name)
    assert read_sentences(document, "en") == ["Rome", "It is old.", "It is big."]
    (document,) = documents(tmp_path / name, format="file")
    assert document.text == page


def test_a_folder_has_one_layout_where_nearly_all_of_its_files_look_so(tmp_path: Path) -> None:
    """A shard of a single document has no blank line to tell it by, nor a short article two paragraphs."""
    for folder, usual, other in (("shards", LINES, "One here.\nTwo.\n"), ("articles", ARTICLE, LINES)):
        (tmp_path / folder).mkdir()
        for number in range(4):
            (tmp_path / folder / f"{number}.txt").write_bytes(usual.replace("\n", "\r\n").encode())
        (tmp_path / folder / "other.txt").write_text(other)
    assert {document.layout for document in documents(tmp_path / "shards")} == {"sentence-lines"}
    assert {document.layout for document in documents(tmp_path / "articles")} == {"folded"}
    assert len(documents(tmp_path / "articles")) == 5
    (tmp_path / "articles" / "another.txt").write_text(LINES)  # four of six agree on nothing
    assert len(documents(tmp_path / "articles")) == 4 + 2 + 2


def test_wikiextractor_keeps_ids_drops_titles_and_mends_brackets(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(
        '<doc id="7" url="u" title="AT&amp;T">\nAT&T\n\nAT&T (; born 1885) is () a firm.\nHistory.\n</doc>\n'
        '<doc id="8" url="u" title="Empty">\nEmpty\n\n</doc>\n'
        '<doc id="9" url="u" title="Cut">\nCut\n\nNo end'
    )
    found = documents(path)
    assert [document.id for document in found] == ["wiki_00#7", "wiki_00#8", "wiki_00#9"]
    assert [document.text.strip() for document in found] == [
        "AT&T (born 1885) is a firm.\nHistory.",
        "",
        "No end",
    ]


def test_articles_of_one_id_have_ids_of_their_own(tmp_path: Path) -> None:
    """As in a file of two dumps, or of an extractor that leaves ids out."""
    ids = ["1", "2", "1", "", "", "1", "1 (3)"]
    (tmp_path / "wiki_00").write_text("".join(f'<doc id="{id}" title="T">\nText.\n</doc>\n' for id in ids))
    found = [document.id.removeprefix("wiki_00#") for document in documents(tmp_path / "wiki_00")]
    assert found == ["1", "2", "1 (3)", "", " (5)", "1 (6)", "1 (3) (7)"]


ROWS = ["plain", 'with "quotes", and commas', "two\nlines", "ünïcode", ""]


def write_csv(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["n", "body"], *([str(n), row] for n, row in enumerate(ROWS))])


def write_jsonl(path: Path) -> None:
    path.write_text("\n".join(json.dumps({"body": row}) for row in ROWS), encoding="utf-8")


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"n": list(range(len(ROWS))), "body": ROWS}), path)


@pytest.mark.parametrize(
    ("ending", "write"), [("csv", write_csv), ("jsonl", write_jsonl), ("parquet", write_parquet)]
)
def test_tables_give_their_text_column_row_by_row(tmp_path: Path, ending: str, write) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / f"rows.{ending}"
    write(path)
    assert texts(path, text_column="body") == ROWS
    with pytest.raises(InputError, match=rf"rows\.{ending}.*no column 'text'.*body"):
        texts(path)


def test_a_quote_in_tsv_is_a_letter(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text('text\tlabel\n"unclosed quote\t1\nnext\t0\n')
    assert texts(path) == ['"unclosed quote', "next"]


def test_a_null_is_an_empty_document(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": null}\n')
    assert texts(tmp_path / "a.parquet") == ["a", ""]
    assert texts(tmp_path / "b.jsonl") == [""]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: expected one JSON object"),
        ("a.jsonl", '["a"]\n', r"line 1: expected a JSON object, found list"),
        ("a.jsonl", '{"text": 3}\n', r"line 1: expected text under 'text', found int"),
        ("a.csv", "n,text\n1,a\n2\n", r"a\.csv, line 3: expected 2 columns, found 1"),
        ("a.csv", "n,text\n1,a\n2,b, c\n", r"a\.csv, line 3: expected 2 columns as in the header, found 3"),
        ("a.csv", "n\ttext\n1\ta\n", r"no column 'text'.* separated by tabs: --format tsv reads it"),
        ("a.csv", "text,text\na,b\n", r"a\.csv: several columns are called 'text'"),
        ("a.csv", 'text\n"never closed\n', r"a\.csv, line 2: not valid CSV"),
        ("a.parquet", "no parquet", r"a\.parquet: not a whole Parquet file"),
    ],
)
def test_broken_tables_are_named_with_the_place(
    tmp_path: Path, name: str, content: str, complaint: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=complaint):
        texts(tmp_path / name)


def test_blanks_around_a_header_and_separators_at_the_end_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n, text \n1,a\n2,"b, c",,\n')
    assert texts(tmp_path / "a.csv") == ["a", "b, c"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_every_type_of_string_in_parquet_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"text": pa.array(["a", None, "b"]).cast(kind)}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["a", "", "b"]


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: several columns are called 'text'"):
        texts(tmp_path / "a.parquet")


def test_outside_of_articles_there_is_no_document_and_nothing_is_kept() -> None:
    lines = ["before", "</doc>", '<doc id="" title="T">', "T", "One.", "</doc>", "between", "</doc>"]
    assert list(plain.read_wikiextractor(lines)) == [("", "One.")]
    assert list(plain.read_wikiextractor(lines[:5])) == [("", "One.")]


def test_bytes_that_are_no_utf8_in_parquet_are_named_by_column_and_row(tmp_path: Path) -> None:
    column = pa.array([b"a", None, b"caf\xe9"]).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    message = r"a\.parquet, row 3: expected UTF-8 in the column 'text'.*0xe9"
    with pytest.raises(InputError, match=message):
        texts(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / "a.parquet", ["text"])


def test_a_number_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="expected text in the column 'text', found int64"):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_compressed_files_read_as_the_plain_ones(tmp_path: Path, ending: str) -> None:
    pack = {"gz": gzip.compress, "zst": zstandard.compress}[ending]
    for name, content in (("a.txt", LINES), ("b.jsonl", '{"text": "x"}\n')):
        (tmp_path / name).write_text(content)
        # Two members in a row, as `cat a.gz b.gz` makes them, are one file.
        half = len(content) // 2
        packed = pack(content[:half].encode()) + pack(content[half:].encode())
        (tmp_path / f"{name}.{ending}").write_bytes(packed)
        assert texts(tmp_path / f"{name}.{ending}") == texts(tmp_path / name)


def test_long_documents_come_in_parts_that_add_up(tmp_path: Path) -> None:
    line = "word " * 199 + "end."
    path = tmp_path / "long.txt"
    path.write_text("\n".join([line] * 2500))
    found = documents(path)
    assert [document.id for document in found] == ["long.txt#0", "long.txt#1", "long.txt#2"]
    assert max(len(document.text) for document in found) < 1.01 * plain.LONGEST
    assert " ".join(document.text for document in found).split() == ([*["word"] * 199, "end."]) * 2500


def test_one_endless_line_is_cut_at_spaces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefg " * 400_000)
    found = texts(tmp_path / "a.txt")
    assert max(map(len, found)) < 2.1 * plain.LONGEST
    assert [word for text in found for word in text.split()] == ["abcdefg"] * 400_000


@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]), min_size=1), min_size=1))
)
def test_blocks_are_what_was_put_between_blank_lines(written: list[list[str]]) -> None:
    lines = [line for block in written for line in [*block, ""]]
    assert [text.split("\n") for _, text in plain.read_blocks(lines)] == written


@given(st.lists(st.dictionaries(st.just("text"), st.text(), min_size=1), max_size=5))
def test_any_text_survives_json_lines(rows: list[dict[str, str]]) -> None:
    file = io.StringIO("\n".join(map(json.dumps, rows)))
    assert [record.fields["text"] for record in read_json_records(file, "f")] == [row["text"] for row in rows]


def test_a_long_collection_with_blanks_at_line_ends_is_not_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(("a line of a document \n" * 3 + "\n") * (COLLECTION // 60))
    assert len(documents(tmp_path / "a.txt")) == COLLECTION // 60


def test_a_table_may_begin_with_blank_lines(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv", "a.tab"):
        (tmp_path / name).write_text("\n\ntext\nOne.\nTwo.\n")
        assert texts(tmp_path / name) == ["One.", "Two."]


def test_packed_parquet_is_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    packed = gzip.compress((tmp_path / "a.parquet").read_bytes())
    (tmp_path / "b.parquet.gz").write_bytes(packed)
    assert texts(tmp_path / "b.parquet.gz", text_column="body") == texts(
        tmp_path / "a.parquet", text_column="body"
    )


def test_progress_through_parquet_is_told_row_by_row(tmp_path: Path) -> None:
    """A column behind a dictionary takes its time, and the file's own position tells nothing of it."""
    text = ["One sentence after another. " * 2000] * 400
    table = pa.table({"text": pa.array(text).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    settings = CorpusSettings()
    reader = SourceReader(find_sources([str(tmp_path / "a.parquet")], settings).sources, settings)
    positions = [reader.position for _ in reader]
    size = (tmp_path / "a.parquet").stat().st_size
    assert len(positions) > 10
    assert positions == sorted(set(positions))
    assert 0 < positions[0] < size / 5 and positions[-1] == size
