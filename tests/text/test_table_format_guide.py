"""The guide to a table format is followed from outside the package: its code is written down and installed,
and every reader of tables reads its files as it reads the same rows in another format.
"""

import gzip
import io
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from bertsmith.cli.main import main
from bertsmith.data.sequences.records import RowFile, stream_records
from bertsmith.errors import InputError
from bertsmith.text.decontamination.evaluation_texts import read_evaluation_file
from bertsmith.text.files import tables
from bertsmith.text.files.rows import read_column_names, read_rows, stream_texts
from bertsmith.text.labelled.labelled_files import list_labelled_files
from bertsmith.text.retrieval.documents import Documents
from bertsmith.text.retrieval.judged_questions import read_judged_questions
from random_encoder import random_encoder
from table_writers import write_table
from test_documented_commands import commands
from test_guides import TABLE_FORMAT, files_in, install

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
WORDS = {"billing": "charged", "shipping": "parcel"}
ROWS: list[dict[str | None, Any]] = [
    {"text": "a & b <c>\r\nsecond line", "label": "x", "id": 7, "score": 0.5, "flag": True},
    {"text": " two words ", "label": None, "id": 8, "score": 2, "flag": False},
    {"text": "third of them all", "label": "y", "id": 9, "score": -1e20, "flag": None},
]


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's folder, installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = [*tables.FORMATS]
    for name, text in files_in(TABLE_FORMAT).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    install(tmp_path, project["name"], project["version"], project["entry-points"])
    tables._load_installed.cache_clear()
    yield tmp_path
    for name in {*tables.FORMATS}.difference(ours):
        del tables.FORMATS[name]
    tables._load_installed.cache_clear()
    sys.modules.pop("xlsx_table", None)


def write_xlsx(path: Path, rows: Sequence[Mapping[str | None, Any]], *, shared: bool = True) -> Path:
    """A workbook as Excel writes it, or as libraries do that write texts into their cells."""
    texts: list[str] = []

    def cell(place: str, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
        if not isinstance(value, str):
            return f'<c r="{place}"><f>1+1</f><v>{value!r}</v></c>'
        written = escape(value).replace("\r", "_x000D_")
        inner = f'<t xml:space="preserve">{written}</t>'
        if not shared:
            return f'<c r="{place}" t="inlineStr"><is>{inner}</is></c>'
        half = len(written) // 2 if "&" not in written and "_" not in written else 0
        runs = "".join(
            f'<r><t xml:space="preserve">{each}</t></r>' for each in (written[:half], written[half:])
        )
        texts.append(f"<si>{runs}<rPh><t>reading</t></rPh></si>" if half else f"<si>{inner}</si>")
        return f'<c r="{place}" t="s"><v>{len(texts) - 1}</v></c>'

    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    sheet = "".join(
        f'<row r="{number}">'
        + "".join(cell(f"{chr(65 + at)}{number}", each) for at, each in enumerate(line))
        + "</row>"
        for number, line in enumerate(lines, start=1)
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr(
            "xl/workbook.xml",
            f'<workbook {MAIN} xmlns:r="{RELATIONS}"><sheets><sheet name="a" sheetId="1" r:id="rId2"/>'
            "</sheets></workbook>",
        )
        book.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{PACKAGE}"><Relationship Id="rId1" Target="styles.xml"/>'
            '<Relationship Id="rId2" Target="worksheets/sheet7.xml"/></Relationships>',
        )
        book.writestr(
            "xl/worksheets/sheet7.xml", f"<worksheet {MAIN}><sheetData>{sheet}</sheetData></worksheet>"
        )
        if shared:
            book.writestr("xl/sharedStrings.xml", f"<sst {MAIN}>{''.join(texts)}</sst>")
    return path


@pytest.mark.parametrize("shared", [True, False])
def test_every_reader_reads_the_rows_that_were_written(package: Path, shared: bool) -> None:
    path, same = write_xlsx(package / "a.xlsx", ROWS, shared=shared), write_table(package, "jsonl", ROWS)
    assert read_column_names(path) == list(ROWS[0])
    found = read_rows(path, ["text", 2, "id", "score"], optional=["flag", "nowhere"])
    assert [row.values for row in found] == [(*row.values(), None) for row in ROWS]
    assert [row.where for row in found] == [f"{path}, row {number}" for number in (2, 3, 4)]
    assert [each.values for each in stream_records(RowFile(path))] == ROWS
    assert list(stream_texts(path, "text")) == [row["text"] for row in ROWS]
    texts = [[each.text for each in read_evaluation_file(each).texts] for each in (path, same)]
    assert texts[0] == texts[1] != []
    documents = [
        [(each.id, each.text, each.metadata) for each in Documents([str(each)])] for each in (path, same)
    ]
    assert documents[0] == documents[1] != []
    questions = [{"question": "who?", "document": "7"}, {"question": "what?", "document": "9"}]
    judged = read_judged_questions(write_xlsx(package / "q.xlsx", questions), {"7": "a", "9": "b"})
    assert judged.judgements == {"q1": {"7": 1}, "q2": {"9": 1}}


def test_it_is_found_by_its_ending_packed_piped_and_in_folders(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "data").mkdir()
    path = write_xlsx(package / "data" / "a.xlsx", ROWS)
    write_table(package / "data", "csv", ROWS)
    assert [Path(each).name for each in list_labelled_files([package / "data"])] == ["a.xlsx", "rows.csv"]
    packed = package / "a.xlsx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    renamed = path.rename(package / "download")
    piped = io.TextIOWrapper(io.BytesIO(renamed.read_bytes()))
    monkeypatch.setattr("sys.stdin", piped)
    for each, format in ((packed, None), (renamed, "xlsx"), ("-", "xlsx")):
        assert [row.values[0] for row in read_rows(each, ["text"], format=format)] == [
            row["text"] for row in ROWS
        ]
    with pytest.raises(InputError, match=r"tells no format\. Name it with --format"):
        read_rows(renamed, ["text"])


def test_the_commands_of_the_page_read_its_files(package: Path) -> None:
    rows = [
        {"queue": queue, "text": f"my {word} number {number} is {number % 5} days late"}
        for number in range(12)
        for queue, word in WORDS.items()
    ]
    write_xlsx(package / "tickets.xlsx", rows)
    new = [{"text": f"where is my {word}"} for word in WORDS.values()]
    write_xlsx(package / "new.xlsx", new)
    random_encoder(package / "minilm", [*WORDS.values(), "my", "number", "is", "days", "late", "where"])
    for command in commands(TABLE_FORMAT):
        more = ["epochs=12", "optimizer.learning_rate=5e-3", "max_length=32", "hardware.threads=1"]
        assert main([*command, *(more if command[0] == "finetune" else [])]) == 0, command
    said = [json.loads(line)["label"] for line in (package / "queues.jsonl").read_text().splitlines()]
    assert said == list(WORDS)
    manifest = json.loads((package / "corpora" / "tickets" / "manifest.json").read_text())
    assert manifest["sources"][0]["format"] == "xlsx" and manifest["sources"][0]["kept"]["documents"] > 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: content[: len(content) // 2], "a.xlsx: not a whole workbook"),
        (lambda content: b"", "a.xlsx: not a whole workbook"),
        (lambda content: b"text,label\na,b\n", "a.xlsx: not a whole workbook"),
    ],
)
def test_a_broken_file_is_one_sentence(package: Path, spoil: Any, said: str) -> None:
    path = write_xlsx(package / "a.xlsx", ROWS)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InputError, match=re.escape(said)):
        read_rows(path, ["text"])


def test_columns_without_a_name_and_tables_without_rows_are_refused(package: Path) -> None:
    path = write_xlsx(package / "a.xlsx", [{"text": "text", None: None}, {"text": "a", None: "b"}])
    with pytest.raises(InputError, match=r"a\.xlsx, row 3: column B has a value, but no name"):
        read_rows(path, ["text"])
    with pytest.raises(InputError, match=r"no column 'label'\. There are: text, n"):
        read_rows(write_xlsx(path, [{"text": "a", "n": 1}]), ["label"])


def test_what_is_no_format_is_refused_with_its_name(package: Path) -> None:
    (package / "half.py").write_text(
        "from bertsmith.text.files.tables import TableFormat\n"
        "class Half(TableFormat):\n    NAME = 'half'\n    ENDINGS = ('.half',)\n"
        "class Other(Half):\n    records = None\n"
    )
    points = {"gone": "nowhere:A", "none": "half:TableFormat", "what": "json:loads", "half": "half:Half"}
    install(package, "half", "1", {tables.GROUP: {**points, "other": "half:Other"}})
    for ending, said in {
        "gone": "(nowhere:A) can't be imported: No module named 'nowhere'",
        "what": "is not a subclass of bertsmith.text.files.tables.TableFormat",
        "none": "must have records()",
        "half": "must have records()",
        "other": "must have records(), and be called 'other' or have the ending .other",
    }.items():
        (package / f"a.{ending}").write_text("a")
        with pytest.raises(InputError, match=re.escape(said)):
            read_rows(package / f"a.{ending}", ["text"])
    sys.modules.pop("half", None)
    with pytest.raises(ValueError, match="'csv'"):
        tables.register(tables.CsvFormat())
