"""Files and tables become documents with their places; what can't be read says where."""

import gzip
import json
import os
import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.text.corpus.reading import SourceReader
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.plain import LONGEST
from bertsmith.text.files.sources import find_sources
from bertsmith.text.prose.html_text import HtmlText
from bertsmith.text.retrieval.document_rows import UntypedCell
from bertsmith.text.retrieval.documents import Documents, DocumentSettings, SearchDocument, strip_part


def read(*sources: Path, **settings: object) -> list[SearchDocument]:
    return list(Documents([str(source) for source in sources], DocumentSettings(**settings)))  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_folder_of_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    write(docs / "b.txt", "second\n")
    write(docs / "a.md", "# The title #\n\nfirst\n")
    write(docs / "deep" / "c.py", "x = 1\n")
    write(docs / ".hidden", "no")
    found = read(docs)
    assert [(each.id, each.title, each.text) for each in found] == [
        ("docs/a.md", "The title", "# The title #\n\nfirst\n"),
        ("docs/b.txt", "", "second\n"),
        ("docs/deep/c.py", "", "x = 1\n"),
    ]
    assert [(each.source, each.start, each.line) for each in found[:1]] == [("docs/a.md", 0, 1)]


def test_binary_and_empty_files_are_skipped_and_counted(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs).mkdir()
    (docs / "a.png").write_bytes(b"\x89PNG\r\n" + b"\xff" * 50)
    (docs / "b.bin").write_bytes(b"text\0more")
    (docs / "c.pdf").write_bytes(b"%PDF-1.7 no zero byte in here")
    write(docs / "d.txt", " \n\n")
    write(docs / "e.txt", "something")
    write(docs / ".f", "x")
    documents = Documents([str(docs)])
    assert [each.id for each in documents] == ["docs/e.txt"]
    assert documents.skipped.sentence() == (
        "Left out: 3 binary files (docs/a.png, docs/b.bin, docs/c.pdf), "
        f"1 empty document ({docs / 'd.txt'}), 1 hidden file."
    )


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet", "csv.gz"])
def test_the_rows_of_every_kind_of_table(tmp_path: Path, ending: str) -> None:
    rows = [
        {"id": "one", "title": "First", "text": "It rains, a lot.", "year": 2015},
        {"id": "two", "title": None, "text": "It snows.", "year": None},
    ]
    found = read(table(tmp_path / f"rows.{ending}", rows))
    assert [(each.id, each.title, each.text) for each in found] == [
        ("one", "First", "It rains, a lot."),
        ("two", "", "It snows."),
    ]
    assert [None if (year := each.metadata["year"]) is None else int(year) for each in found] == [2015, None]
    assert all(each.line is None and each.source == f"{tmp_path}/rows.{ending}" for each in found)


def table(path: Path, rows: list[dict[str, object]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        comma = "\t" if path.suffix == ".tsv" else ","
        quoted = '"' if comma == "," else ""
        lines = [comma.join(rows[0])]
        for row in rows:
            lines.append(comma.join("" if v is None else f"{quoted}{v}{quoted}" for v in row.values()))
        content = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_columns_by_name_and_by_number_and_the_rest_as_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "key,head,words,kind\n7,H,some words,note\n")
    (found,) = read(path, id="1", text="words", title="head")
    assert (found.id, found.title, found.text, dict(found.metadata)) == (
        "7",
        "H",
        "some words",
        {"kind": "note"},
    )
    assert isinstance(found.metadata["kind"], UntypedCell), "CSV doesn't say whether it is a number"
    (numbered,) = read(path, text="words")
    assert numbered.id == f"{path}#1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "key,words\n1,x\n",
            r"a\.csv: no column has a name that says it holds the text. There are: key",
        ),
        ("a.csv", "text,body\n1,x\n", r"text, body could all be the text. Name one with --text"),
        ("a.csv", "id,text\n1,x,y\n", r"a\.csv, line 2: expected 2 columns, found 3"),
        ("a.csv", "id,text\n,x\n", r"a\.csv, line 2, column 'id': expected an id, found nothing"),
        ("a.csv", "text,text\n1,x\n", "several columns are called 'text'"),
        ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', r"a\.jsonl, line 2: expected a text, found 3"),
        ("a.jsonl", '{"text": "x"}\n{"text"\n', r"a\.jsonl, line 2: expected one JSON object"),
        ("a.parquet", "no parquet", r"a\.parquet: not a whole Parquet file"),
    ],
)
def test_a_table_that_cannot_be_read_names_the_place(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / name, content))


def test_a_title_may_be_left_out_of_the_first_object(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "red cat"}\n{"title": "Dogs", "text": "blue dog", "n": 1}\n')
    assert [(each.title, each.text, each.metadata) for each in read(path)] == [
        ("", "red cat", {}),
        ("Dogs", "blue dog", {"n": 1}),
    ]


@pytest.mark.parametrize(
    ("later", "complaint"),
    [
        ('{"id": 5, "text": "b"}', "line 2: found an id in 'id', which the rows before it don't have"),
        ('{"text": "b", "body": "c"}', "line 2: text, body could all be the text"),
    ],
)
def test_a_later_object_that_plays_another_part_is_refused(
    tmp_path: Path, later: str, complaint: str
) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n' + later + "\n")
    with pytest.raises(InputError, match=complaint):
        read(path)


def test_a_broken_encoding_names_file_and_byte_and_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes("caf\u00e9 au lait".encode("latin-1"))
    with pytest.raises(InputError, match=r"old\.txt: expected utf-8 text, found 0xe9 at byte 3"):
        read(path)
    assert read(path, encoding_errors="replace")[0].text.rstrip() == "caf\ufffd au lait"
    assert read(path, encoding="latin-1")[0].text.rstrip() == "café au lait"


def test_half_a_surrogate_pair_from_json_is_replaced_in_place(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "a.jsonl", '{"text": "a\\ud800b", "tag": "\\udc00"}\n'))
    assert (found.text, found.metadata["tag"]) == ("a\ufffdb", "\ufffd")


def test_half_a_surrogate_pair_within_a_list_is_replaced_too(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "a.jsonl", '{"text": "a", "tags": ["b\\ud800", {"\\udc00": 1}]}\n'))
    assert found.metadata["tags"] == '["b\ufffd", {"\ufffd": 1}]'


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            '{"text": "b", "id": "x\\ud800"}',
            r"line 2, column 'id': found an id 'x\\ud800', half of",
        ),
        (
            '{"text": "b", "id": "x", "n\\ud800": 1}',
            r"line 2: found a column called 'n\\ud800', half of",
        ),
    ],
)
def test_half_a_surrogate_pair_in_an_id_or_a_name_is_refused(
    tmp_path: Path, row: str, complaint: str
) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a", "id": "y"}}\n{row}\n')
    with pytest.raises(InputError, match=complaint):
        read(path)


@pytest.mark.parametrize("ending", ["txt", "html", "jsonl"])
def test_a_file_name_that_is_no_utf8_is_spelled_by_its_bytes(tmp_path: Path, ending: str) -> None:
    name = os.fsdecode(b"caf\xe9.") + ending
    try:
        (tmp_path / name).write_text('{"text": "au lait"}\n')
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    for source in (tmp_path, tmp_path / name):
        (found,) = read(source)
        assert found.source.endswith(f"caf\\xe9.{ending}")
        assert found.id.startswith(found.source)
        assert "au lait" in found.text
        for each in found[:5]:
            each.encode()


def test_a_file_that_is_named_itself_goes_by_the_path_as_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "README.md", folder)
    monkeypatch.chdir(tmp_path)
    found = Documents(["a/README.md", "./b/README.md"])
    assert [(each.id, each.source, each.text) for each in found] == [
        ("a/README.md", "a/README.md", "a"),
        ("b/README.md", "b/README.md", "b"),
    ]
    assert [each.id for each in Documents(["a/"])] == ["a/README.md"], "as in its folder"


def test_a_json_file_in_a_folder_is_no_table(tmp_path: Path) -> None:
    write(tmp_path / "docs" / "settings.json", '{"indent": 2}\n')
    assert [each.text for each in read(tmp_path / "docs")] == ['{"indent": 2}\n']


@pytest.mark.parametrize("format", ["csv", "nonsense"])
def test_a_table_format_is_for_files_that_are_named_themselves(tmp_path: Path, format: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.md").write_text("Cats sleep.")
    with pytest.raises(InputError, match=f"format {format!r} is for files that are named themselves"):
        read(tmp_path / "notes", format=format)


def test_a_long_text_comes_in_parts_that_know_their_place(tmp_path: Path) -> None:
    lines = [f"line {number} of the book\n" for number in range(120_000)]
    whole = "".join(lines)
    path = write(tmp_path / "book.txt", whole)
    found = read(path)
    assert len(found) == len(whole) // LONGEST + 1
    assert [each.id for each in found[:2]] == [f"{path}", f"{path}#part2"]
    assert {strip_part(each.id) for each in found} == {str(path)}
    assert "".join(each.text for each in found) == whole
    for each in found:
        assert whole[each.start : each.start + len(each.text)] == each.text
        assert each.line == whole.count("\n", 0, each.start) + 1
        assert len(each.text) <= LONGEST


@pytest.mark.parametrize("name", ["rows.jsonl", "docs/a.txt#part2", "docs/a.html#part3"])
def test_an_id_like_that_of_a_part_is_refused(tmp_path: Path, name: str) -> None:
    rows = [{"id": "a#partly", "text": "red"}, {"id": "a#part2", "text": "blue"}]
    path = write(tmp_path / name, "".join(json.dumps(row) + "\n" for row in rows))
    where = ", line 2" if name == "rows.jsonl" else ""
    with pytest.raises(InputError, match=rf"{path.name}{where}: found the id '.*a.*#part\d'.*another id"):
        read(path)


def test_a_file_of_one_line_comes_in_parts_of_its_own_text_in_bounded_memory(tmp_path: Path) -> None:
    whole = "a word without end " * 1_600_000
    path = write(tmp_path / "line.txt", whole)
    characters = 0
    tracemalloc.start()
    for each in Documents([str(path)]):
        assert whole.startswith(each.text, each.start)
        assert (each.start, each.line, each.text[-1]) == (characters, 1, " ")
        assert len(each.text) <= LONGEST
        characters += len(each.text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert characters == len(whole), "nothing is lost, and no line end added"
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# The title", "The title"),
        ("# The title ##  ", "The title"),
        ("# Notes on C#", "Notes on C#"),
        ("# # #", "#"),
        ("#\tTab", "Tab"),
        ("#hashtag", ""),
        ("The title\n=====  ", "The title"),
    ],
)
def test_the_first_heading_is_the_title(tmp_path: Path, line: str, title: str) -> None:
    (found,) = read(write(tmp_path / "a.md", f"text before\n\n{line}\n\n# Another\n"))
    assert found.title == (title or "Another")


@pytest.mark.parametrize(
    ("before", "title"),
    [
        ("---\nlayout: post\n# a comment\ndraft: false\n---\n", "Parental leave"),
        ('---\ntitle: "x: y"\n...\n', "x: y"),
        ("---\ntitle: x\n...\n", "x"),
        ('+++\n# a comment\ntitle = "x"\n+++\n', "x"),
    ],
)
def test_front_matter_is_no_text_and_its_title_comes_first(tmp_path: Path, before: str, title: str) -> None:
    text = "# Parental leave\n\nTwelve weeks.\n\n---\n\n# Another\n"
    (found,) = read(write(tmp_path / "a.md", before + text))
    assert (found.title, found.text) == (title, text)
    assert (found.start, found.line) == (len(before), 1 + before.count("\n"))


@pytest.mark.parametrize("nothing", ["", " ~", " null", ' ""', " # to be written"])
def test_front_matter_without_a_value_has_none(tmp_path: Path, nothing: str) -> None:
    """An empty title was the title "None", and `weight: null` the text "null"."""
    (found,) = read(
        write(tmp_path / "a.md", f"---\ntitle:{nothing}\nweight:{nothing}\n---\n# Parental leave\n")
    )
    assert (found.title, found.metadata["weight"]) == ("Parental leave", None)


@pytest.mark.parametrize(
    "before",
    [
        "---\n---\n",
        "```sh\n# not a heading\n```\n",
        "text\n  ~~~~\n~~~\n# not a heading\n~~~~~\n",
        "---\n\ntext\n\n",
        "```# inline code``` and more\n\n",
        "- a note\n- another\n---\n\n",
        "> quoted\n---\n",
        "</div>\n---\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n---\n",
        "***\n---\n",
        "<!--\n# Licensed to you\n-->\n",
        "## Contents\n---\n",
    ],
)
def test_no_title_comes_of_rules_and_code(tmp_path: Path, before: str) -> None:
    text = before + "# Parental leave\n\nTwelve weeks.\n\n---\n\n# Another\n"
    (found,) = read(write(tmp_path / "a.md", text))
    assert (found.title, found.text) == ("Parental leave", text)


def test_code_that_never_ends_has_no_title(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "a.md", "```\n# not a heading\n" + "x = 1\n" * 1_000))
    assert found.title == ""


def test_a_title_of_restructuredtext_between_two_lines_is_no_front_matter(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "a.rst", "---\nOdd\n---\n\ntext\n\nAnother\n=======\n"))
    assert found.title == "Odd"


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("*******\nClasses\n*******\n", "Classes"),
        ("#########\n Classes\n#########\n", "Classes"),
        ("Classes\n~~~~~~~\n", "Classes"),
        ("# no heading\n", "Scopes"),
        (".. a comment\n----\n", "Scopes"),
    ],
)
def test_restructuredtext_underlines_with_any_mark(tmp_path: Path, heading: str, title: str) -> None:
    """A page of Python's own documentation, whose titles have stars, was called by its first section."""
    (found,) = read(write(tmp_path / "a.rst", f".. _label:\n\n{heading}\ntext\n\nScopes\n======\n"))
    assert found.title == title


@pytest.mark.parametrize("name", ["if.rst", "if.md"])
def test_a_title_may_have_two_letters(tmp_path: Path, name: str) -> None:
    """CMake's page on `if` was called by its first section."""
    (found,) = read(write(tmp_path / name, "if\n--\n\ntext\n\nSynopsis\n========\n"))
    assert found.title == "if"


@pytest.mark.parametrize("line", ["# a" + " " * 1_900 + "b", "# " * 900 + "b", "# " + "#" * 1_900 + "b"])
def test_a_heading_of_blanks_takes_no_time(tmp_path: Path, line: str) -> None:
    """It took cubic time: minutes for the first of these."""
    path = write(tmp_path / "a.md", line + "\n")
    began = time.process_time()
    (found,) = read(path)
    assert time.process_time() - began < 1
    assert found.title == line[1:].strip()


@pytest.mark.slow
def test_a_document_of_100_megabytes_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    with path.open("w") as file:
        for _ in range(1000):
            file.write("all work and no play makes Jack a dull boy, " * 2_400 + "\n")
    tracemalloc.start()
    characters = sum(len(each.text) for each in Documents([str(path)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert characters > 100_000_000
    assert peak < 20_000_000


def test_the_hash_changes_with_whatever_an_index_would_keep() -> None:
    one = SearchDocument("a", "text", "title", "a.txt", "a.txt", metadata={"year": 1})
    assert (
        one.sha256 == SearchDocument("b", "text", "title", "a.txt", "elsewhere", metadata={"year": 1}).sha256
    )
    for change in (
        {"text": "x"},
        {"title": "x"},
        {"metadata": {"year": 2}},
        {"source": "x"},
        {"start": 1},
        {"line": 2},
        {"line": None},
    ):
        assert one._replace(**change).sha256 != one.sha256


def test_html_is_what_a_browser_shows() -> None:
    parser = HtmlText()
    page = (
        "<html><head><title>A  page</title><style>p {x: y}</style></head><body><h1>Head</h1>\n<p>One &amp; "
        "<b>two</b>\n three<br>four</p><script>if (a < b) {}</script><ul><li>x<li>y</ul><pre>a\n  b</pre>"
    )
    for start in range(0, len(page), 7):
        parser.feed(page[start : start + 7])
    parser.close()
    lines = [line.strip() for line in parser.take().splitlines() if line.strip()]
    assert lines == ["Head", "One & two three", "four", "x", "y", "a", "b"]
    assert parser.title == "A page"


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("<details><summary>Since when?</summary>Since May.</details>", ["Since when?", "Since May."]),
        ("Rome<figure><img><figcaption>A map</figcaption>by me</figure>", ["Rome", "A map", "by me"]),
        ("<fieldset><legend>Name</legend>required</fieldset>", ["Name", "required"]),
        ("<center>Rome</center>Italy<address>Via 1</address>", ["Rome", "Italy", "Via 1"]),
        ("<title>a</title>Dampf&shy;schiff\u00adfahrt", ["Dampfschifffahrt"]),
        ("<video src=a>No video in this browser</video>Text<iframe>none</iframe>", ["Text"]),
        ("<math><mi>x</mi><annotation encoding=tex>{\\displaystyle x}</annotation></math>y", ["xy"]),
    ],
)
def test_words_of_two_blocks_are_two_and_what_stands_in_for_a_video_is_no_text(
    page: str, lines: list[str]
) -> None:
    """The question and the answer of <details> were "Since when?Since May."."""
    parser = HtmlText()
    parser.feed(page)
    parser.close()
    assert [line for line in parser.take().splitlines() if line.strip()] == lines


def test_a_title_across_chunks_is_one_title() -> None:
    parser = HtmlText()
    for chunk in ("<title>Annual re", "port\n", " 2026</title><p>Text"):
        parser.feed(chunk)
    parser.close()
    assert (parser.title, parser.take().strip()) == ("Annual report 2026", "Text")


def test_the_title_of_a_picture_is_not_the_pages() -> None:
    """SVG has an element `title` too; of two, HTML's is the page's."""
    for page, title in (
        ("<body><svg><title>Arrow</title></svg><p>Text", ""),
        ("<svg><title>Arrow</title></svg><title>Page</title><p>Text", "Page"),
    ):
        parser = HtmlText()
        parser.feed(page)
        parser.close()
        assert (parser.title, parser.take().strip()) == (title, "Text")


def test_corpora_of_packages_are_refused() -> None:
    with pytest.raises(InputError, match="pydocs: is a source of corpora only"):
        read(Path("pydocs:bertsmith"))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_broken_encoding_in_a_table_can_be_replaced_too(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    content = '{"text": "caf\u00e9"}\n' if ending == "jsonl" else "text\ncaf\u00e9\n"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="expected utf-8 text, found 0xe9"):
        read(path)
    assert [document.text for document in read(path, encoding_errors="replace")] == ["caf\ufffd"]


WIKI = """\
<doc id="12" url="u" title="Anarchism &amp; co">
Anarchism & co

One paragraph.
Another (; born 1942).
</doc>
<doc id="25" url="u" title="Empty">
Empty
</doc>
<doc id="39" title="Albedo">
Albedo

White.
</doc>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("name", ["AA/wiki_00", "wiki.txt", "wiki_00.gz"])
def test_articles_of_wikiextractor_are_documents_with_their_titles(
    tmp_path: Path, name: str, encoding: str
) -> None:
    path = tmp_path / "dump" / name
    path.parent.mkdir(parents=True)
    content = WIKI.encode(encoding)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    documents = Documents([str(tmp_path / "dump")], DocumentSettings(encoding=encoding))
    assert [(each.id, each.title, each.text, each.start, each.line) for each in documents] == [
        (f"dump/{name}#12", "Anarchism & co", "\nOne paragraph.\nAnother (born 1942).", 0, None),
        (f"dump/{name}#39", "Albedo", "\nWhite.", 0, None),
    ]
    assert documents.skipped.empty == [f"{path}, document 25"]


def test_what_a_corpus_reads_an_index_reads_under_the_same_ids(tmp_path: Path) -> None:
    """But for blank lines, which separate documents only where that is said."""
    write(tmp_path / "dump" / "a", WIKI)
    write(tmp_path / "dump" / "b.txt", "One.\nTwo.\n\nThree.\nFour.\n")
    write(tmp_path / "dump" / "c.txt", "a text\nof one document")
    for format in ("wikiextractor", "lines", "blank-lines", "file"):
        settings = CorpusSettings(format=format)  # type: ignore[arg-type]
        batches = list(SourceReader(find_sources([str(tmp_path / "dump")], settings).sources, settings))  # type: ignore[arg-type]
        theirs = {each.id: each.text for batch in batches for each in batch.documents() if each.text.strip()}
        ours = {each.id: each.text for each in read(tmp_path / "dump", format=format)}
        if format == "file":
            assert [*ours] == ["dump/a", "dump/b.txt", "dump/c.txt"]
        else:
            assert ours == theirs
            assert len(ours) > 1
