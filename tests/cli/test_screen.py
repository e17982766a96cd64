"""Progress and tables, as a terminal and as a log file get them."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bertsmith.cli import screen
from bertsmith.cli.failures import exit_status
from bertsmith.errors import InputError
from bertsmith.files import write_jsonl


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120, highlight=False, emoji=False)
    monkeypatch.setattr(screen, "error_console", console)
    return written


@pytest.fixture
def log_file(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()
    monkeypatch.setattr(screen, "error_console", Console(file=written, width=40, highlight=False))
    return written


def test_a_terminal_sees_how_much_is_done(terminal: io.StringIO) -> None:
    with screen.progress_bar("Reading [x]") as progress:
        progress(1200, 5000, "documents")
    assert "Reading [x]" in terminal.getvalue()
    assert "1,200 / 5,000 documents" in terminal.getvalue()


def test_each_thing_counted_has_a_bar_of_its_own(terminal: io.StringIO) -> None:
    with screen.progress_bar("Corpus") as progress:
        progress(2_500_000, 10_000_000, "bytes")
        progress(3, None, "pairs compared")
    last = terminal.getvalue().rpartition("\x1b[1A")[2] or terminal.getvalue()
    assert "2.5 MB / 10.0 MB" in terminal.getvalue()
    assert "3 pairs compared" in last


def test_a_log_file_gets_a_whole_line_every_ten_seconds(
    log_file: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("bertsmith.cli.screen.time.monotonic", lambda: now)
    with screen.progress_bar("A title that is longer than the console is wide") as progress:
        for second in range(25):
            now = 100.0 + second
            progress(second, 25, "documents")
    assert log_file.getvalue().splitlines() == [
        "A title that is longer than the console is wide: 10 / 25 documents",
        "A title that is longer than the console is wide: 20 / 25 documents",
    ]


def test_a_table_keeps_what_looks_like_markup_and_aligns_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_table(("piece", "count"), [("[red]", 1_234_567), (":smile:", 7)], title="Pieces")
    page = capsys.readouterr().out
    lines = {line.split()[0]: line.rstrip() for line in page.splitlines() if line.strip()}
    assert lines["[red]"].endswith("1,234,567")
    assert lines[":smile:"].endswith("        7")
    assert "Pieces" in lines


def test_a_backslash_at_the_end_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_table(("C:\\",), [("\\",), ("[/b]\\",)], title="D:\\")
    screen.print_facts("E:\\", {"disk\\": "F:\\"})
    words = [word for word in capsys.readouterr().out.split() if "─" not in word]
    assert words == ["D:\\", "C:\\", "\\", "[/b]\\", "E:\\", "disk\\", "F:\\"]


def test_warnings_and_notes_are_one_line_of_the_page_and_obey_no_marks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "[/red] " + "word " * 40 + "\\"
    screen.print_warning(long)
    screen.print_note(long)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"Warning: {long}", f"Note: {long}"]
    assert printed.err == ""


def test_json_reads_back_whole_however_long_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "ä [b] " * 100, "numbers": [1, 0.1, None, True]}
    screen.print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "ä [b] ä" in printed


def test_paths_stand_below_each_other_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs") / ("long" * 50)
    screen.print_paths(model=folder, report=Path("[b].html"))
    assert capsys.readouterr().out == f"\nmodel   {folder}\nreport  [b].html\n"


HOSTILE = "a\x1b[2J\x9b2J\x07\x7f\rb"
ESCAPED = r"a\u001b[2J\u009b2J\u0007\u007f\u000db"


def test_no_text_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_table([HOSTILE], [[HOSTILE]], HOSTILE)
    screen.print_facts(HOSTILE, {HOSTILE: HOSTILE})
    screen.print_warning(HOSTILE)
    screen.print_note(HOSTILE)
    screen.print_paths(**{HOSTILE: Path(HOSTILE)})
    screen.print_json({HOSTILE: HOSTILE})
    shown = capsys.readouterr().out
    assert not set(map(chr, (*range(9), *range(11, 32), *range(127, 160)))) & set(shown)
    assert shown.count(r"a\u001b[2J\u009b2J") == 12
    assert json.loads(shown[shown.index("{") :]) == {HOSTILE: HOSTILE}


def test_a_bar_keeps_its_own_commands_and_none_of_its_title_s() -> None:
    written_to = io.StringIO()
    with screen.PrintableConsole(file=written_to, force_terminal=True).status(HOSTILE):
        pass
    written = written_to.getvalue()
    assert r"a\u001b[2J" in written
    assert "\x1b[?25l" in written and "\x1b[2J" not in written


@pytest.mark.parametrize("failure", [InputError(HOSTILE), RuntimeError(HOSTILE)])
def test_no_failure_steers_the_terminal(failure: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(failure)
    assert ESCAPED in capsys.readouterr().err


def test_predictions_are_escaped_and_read_back_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl([{"text": HOSTILE}], "-")
    shown = capsys.readouterr().out
    assert "\x9b" not in shown and "\x7f" not in shown
    assert json.loads(shown) == {"text": HOSTILE}
