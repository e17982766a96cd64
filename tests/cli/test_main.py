"""The frame of the command line: help, exit statuses, and one sentence instead of a traceback."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cyclopts import App

import bertsmith
from bertsmith.cli import failures
from bertsmith.cli import main as frame
from bertsmith.errors import DiskFull, RecipeError


class AnyCommand:
    """A command whose body each test chooses."""

    body: Callable[[], object] = staticmethod(lambda: None)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnyCommand]:
    chosen = AnyCommand()

    def trial(*, batch: int = 1) -> object:
        """A command for trials.

        Parameters
        ----------
        batch
            Rows at a time.

        Examples
        --------
        bertsmith trial
        bertsmith trial --batch 3
        """
        return chosen.body()

    module = ModuleType("bertsmith_trial")
    module.trial = trial  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registered = frame.Command("trial", f"{module.__name__}:trial", "The summary.", frame.COMMANDS[0].group)
    monkeypatch.setattr(frame, "COMMANDS", (*frame.COMMANDS, registered))
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP)]
    yield chosen
    for number, handler in before:
        signal.signal(number, handler)


def raising(failure: BaseException) -> Callable[[], object]:
    def body() -> None:
        raise failure

    return body


def test_help_names_every_command_in_the_order_of_the_flow(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["--help"]) == 0
    page = capsys.readouterr().out
    places = [page.index(f"│ {command.name}") for command in frame.COMMANDS]
    assert places == sorted(places)
    assert all(command.summary in page for command in frame.COMMANDS)
    assert "bertsmith quickstart" in page


def test_no_word_at_all_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main([]) == 0
    assert "Usage: bertsmith COMMAND" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == bertsmith.__version__


def test_help_of_a_command_shows_its_own_docstring_and_examples(
    command: AnyCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(["trial", "--help"]) == 0
    page = capsys.readouterr().out
    assert "A command for trials." in page
    assert "Rows at a time." in page
    assert "Examples:\n\n  bertsmith trial\n  bertsmith trial --batch 3\n" in page
    assert "The summary." not in page


def test_a_paragraph_is_folded_by_the_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert frame.main(["plan", "--help"]) == 0
    page = capsys.readouterr().out
    assert "a token store or a tokenizer that exists is read." in page
    assert "`here` measures this machine for a few seconds." in page
    assert "\n\nNothing is trained or written." in page


def test_a_long_example_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["fill-mask", "--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:\n")[2]
    assert max(map(len, examples.splitlines())) < 80
    commands = [" ".join(shlex.split(each)) for each in examples.replace("\\\n", " ").splitlines() if each]
    assert (
        "bertsmith fill-mask google-bert/bert-base-uncased Paris is the [MASK] of [MASK]. --top 3" in commands
    )


def commands_below(app: App, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
    below = [name for name in app if not name.startswith("-")]
    if not below:
        yield path, app
    for name in below:
        yield from commands_below(app[name], (*path, name))


@pytest.mark.parametrize("name", [command.name for command in frame.COMMANDS])
def test_every_command_is_explained_with_examples_that_begin_with_its_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = frame.build_app(name)
    for path, _ in commands_below(app[name], (name,)):
        assert frame.main([*path, "--help"]) == 0
        page = capsys.readouterr().out
        examples = page.partition("Examples:\n")[2]
        assert f"bertsmith {' '.join(path)}" in examples, f"{' '.join(path)} --help shows no example"


@pytest.mark.parametrize("name", ["corpus", "mirror"])
def test_a_group_shows_its_commands_in_the_order_of_their_use_with_an_example_of_each(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main([name, "--help"]) == 0
    listed, _, examples = capsys.readouterr().out.partition("Examples:\n")
    shown = re.findall(rf"bertsmith {name} ([a-z]+)", examples)
    assert shown[0] == {"corpus": "build", "mirror": "serve"}[name]
    assert shown == re.findall(r"^│ ([a-z]+)  ", listed, re.MULTILINE)


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["pretran", "budget"]) == 2
    complaint = capsys.readouterr().err
    assert "no command 'pretran'. Did you mean 'pretrain'?" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--bach", "3"], "--bach"),
        (["--batch", "many"], "many"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_option_is_one_sentence_that_names_it(
    command: AnyCommand, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert frame.main(["trial", *words]) == 2
    output, complaint = capsys.readouterr()
    assert output == ""
    assert expected in complaint
    assert "bertsmith trial --help" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (["finetune", "classification", "--epochs", "3"], "epochs=VALUE."),
        (["finetune", "classification", "--class-weights=auto"], "class_weights=VALUE."),
        (["finetune", "regression", "--class-weights", "auto"], ""),
        (["finetune", "classification", "--learning-rate", "3e-5"], "optimizer.learning_rate=VALUE."),
        (["finetune", "classification", "--overwrite"], ""),
        (["tune", "tagging", "--crf", "true"], "crf=VALUE."),
        (["distil", "model", "--temperature", "3"], "temperature=VALUE."),
        (["distil", "model", "--corpus", "c", "--batch-size", "8"], "data.batch_size=VALUE."),
        (["benchmark", "glue", "folder", "--epochs", "3"], "epochs=VALUE."),
        (["mirror", "train", "--epochs", "3"], "epochs=VALUE."),
        (["benchmark", "beir", "folder", "--model", "m", "--out", "o", "--epochs", "3"], ""),
        (["tokenizer", "train", "corpus", "--out", "o", "--epochs", "3"], ""),
        (["pretrain", "budget", "--steps", "5"], "steps=VALUE."),
        (["pretrain", "budget", "--every", "5"], "evaluation.every=VALUE or checkpoint.every=VALUE."),
        (["pretrain", "budget", "--json"], ""),
        (["predict", "model", "rows.csv", "--max-length", "64"], ""),
    ],
)
def test_a_setting_that_is_given_as_an_option_is_told_without_dashes(
    words: list[str], setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(words) == 2
    complaint = capsys.readouterr().err
    assert "Unknown option" in complaint
    assert complaint.partition("without dashes: ")[2].partition(" See ")[0] == setting


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["finetune", "classification", "rows.csv"], "bertsmith finetune needs --model VALUE."),
        (["distil"], "bertsmith distil needs TEACHER."),
        (["mirror", "label"], "bertsmith mirror label needs FILE."),
    ],
)
def test_what_a_command_cannot_do_without_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], needed: str
) -> None:
    assert frame.main(words) == 2
    assert needed in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("corpus build - --out c", "Error: bertsmith corpus build can't read standard input. Name a file.\n"),
        ("evaluate m -", "bertsmith evaluate can't read standard input. Name a file.\n"),
        ("mirror import -", "bertsmith mirror import can't read standard input. Name a file.\n"),
        ("tune classification --model m --train - --out o", "tune can't read standard input. Name a file.\n"),
        ("tokenizer encode t -", "tokenizer encode can't read standard input. Give the text itself.\n"),
        ("embed m a.csv --out -", "This command can't write to standard output. Name a file or a folder"),
        ("predict m a.csv -", "Unknown option: -."),
    ],
)
def test_a_dash_where_standard_input_is_not_read_gets_a_sentence_of_its_own(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(words.split()) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (RecipeError("steps is -1; expected 1 or more."), "steps is -1; expected 1 or more."),
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), "not enough memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk is full"),
        (OSError(errno.EFBIG, "File too large"), "larger than its file system or `ulimit -f` allows"),
    ],
)
def test_what_a_user_can_mend_is_one_sentence_and_status_2(
    command: AnyCommand, capsys: pytest.CaptureFixture[str], failure: Exception, sentence: str
) -> None:
    command.body = raising(failure)
    assert frame.main(["trial"]) == 2
    output, complaint = capsys.readouterr()
    assert output == ""
    assert sentence in complaint
    assert complaint.count("\n") == 1


def test_a_bug_keeps_its_traceback_and_asks_for_a_report(
    command: AnyCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    command.body = raising(ZeroDivisionError("by nought"))
    assert frame.main(["trial"]) == 1
    complaint = capsys.readouterr().err
    assert "Traceback" in complaint
    assert "ZeroDivisionError: by nought" in complaint
    assert complaint.rstrip().endswith("`bertsmith doctor --json` prints.")


def test_a_command_may_choose_its_exit_status(command: AnyCommand) -> None:
    command.body = lambda: 3
    assert frame.main(["trial"]) == 3


INTERRUPTED = """
import sys, time, types
from pathlib import Path
from bertsmith.cli import main as frame
from bertsmith.files import atomic_folder

def slow():
    with atomic_folder(Path(sys.argv[1]) / "out") as folder:
        (folder / "half").write_text("written")
        print("ready", flush=True)
        time.sleep(30)

module = types.ModuleType("slow_trial")
module.slow = slow
sys.modules["slow_trial"] = module
frame.COMMANDS = (frame.Command("slow", "slow_trial:slow", "", frame.COMMANDS[0].group), *frame.COMMANDS)
sys.exit(frame.main(["slow"]))
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_stopped_command_says_so_in_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir()) != []
        process.send_signal(number)
        _, complaint = process.communicate(timeout=20)
    assert process.returncode == status
    assert complaint.startswith("Stopped by")
    assert complaint.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


GO_ON_AGAIN = (
    *("quickstart", "index build", "index add"),
    *("mirror import", "mirror label", "mirror relabel", "mirror migrate", "mirror train"),
)


@pytest.mark.parametrize(
    ("words", "way_on"),
    [
        *((command, failures._KEPT.format("")) for command in GO_ON_AGAIN),
        ("finetune classification --train a.csv", failures._KEPT.format(" with --resume")),
        ("benchmark glue --resume", failures._KEPT.format(" with --resume")),
        ("embed m a.csv --out v", failures._KEPT.format(" with --resume")),
        ("index", failures._LEFT_NOTHING),
        ("corpus build a --out b", failures._LEFT_NOTHING),
        ("--version", failures._LEFT_NOTHING),
        ("doctor --help", failures._LEFT_NOTHING),
    ],
)
def test_a_command_that_was_stopped_or_had_no_room_says_how_it_goes_on(
    words: str, way_on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = words.split()
    app = frame.build_app(frame._find_command(typed))
    assert failures.exit_status(KeyboardInterrupt(), app, typed) == 130
    assert capsys.readouterr().err == f"Stopped by Ctrl-C. {way_on}\n"
    for failure in (DiskFull("The disk is full."), OSError(errno.ENOSPC, "No space left on device")):
        assert failures.exit_status(failure, app, typed) == 2
        assert capsys.readouterr().err.endswith(f" {way_on}\n") is (way_on != failures._LEFT_NOTHING)


def test_nohup_is_respected(tmp_path: Path) -> None:
    """A terminal that closes doesn't end what was begun to outlive it."""
    command = ["nohup", sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 143


CTRL_C_WHILE_IMPORTING = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--help"]
runpy.run_module("bertsmith", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_in_the_first_moments_shows_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C_WHILE_IMPORTING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--help >&-",
            "Error: Standard output is closed. Leave it open, or redirect it with >/dev/null.",
        ),
        pytest.param(
            "embed model - --format lines --out v.parquet <&-",
            "Error: Standard input is closed. Name a file, or redirect one: < FILE.",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_closed_stream_gets_a_sentence(desk: Path, words: str, sentence: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m bertsmith {words}"
    before = sorted(desk.iterdir())
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (2, sentence)
    assert sorted(desk.iterdir()) == before


def test_a_closed_standard_error_is_silent() -> None:
    command = f"{shlex.quote(sys.executable)} -m bertsmith nonsense 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `bertsmith --help | head -1`; stdout is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "bertsmith", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_help_answers_at_once() -> None:
    """In processor time, so that a busy machine doesn't count: about 0.25 s where this was written."""
    command = [sys.executable, "-m", "bertsmith", "--help"]
    durations = []
    for _ in range(3):
        before = os.times()
        page = subprocess.run(command, capture_output=True, check=True).stdout
        assert b"quickstart" in page
        after = os.times()
        durations.append(sum(after[2:4]) - sum(before[2:4]))  # the children's, in user and system mode
    assert min(durations) < 0.6


def test_the_end_does_not_look_through_all_objects_once_more() -> None:
    """A third of a second after `import torch`. What is registered first runs last."""
    look = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 10_000)); "
    run = "from bertsmith.cli.main import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", look + run], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines()[-1] == "True"
