"""Shells complete what the command line has: their own words are asked, where the shell is there."""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cyclopts.completion import detect

from bertsmith.cli import main as frame

# What bash asks when Tab is pressed behind these words.
BASH = """
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_bertsmith
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = 'source $argv[1]; complete -C "$argv[2]"'
HOME_OF = {
    "bash": (".local/share/bash-completion/completions/bertsmith", ".bashrc"),
    "zsh": (".zsh/completions/_cyclopts_bertsmith", ".zshrc"),
    "fish": (".config/fish/completions/bertsmith.fish", None),
}
ASKED = [
    ("bertsmith pre", {"pretrain", "predict"}),
    ("bertsmith index b", {"build"}),
    ("bertsmith finetune --tr", {"--train"}),
    ("bertsmith embed --compute-dtype ", {"float32", "int16", "int8", "bfloat16"}),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZSH", "ZSH_CUSTOM"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The completion script of a shell, written once."""

    @cache
    def write(shell: str) -> Path:
        script = tmp_path_factory.mktemp(shell) / "script"
        assert frame.main(["--install-completion", "--shell", shell, "--output", str(script)]) == 0
        return script

    return write


def asked(program: str, script: str, *words: str) -> list[str]:
    if not shutil.which(program):
        pytest.skip(f"this machine has no {program}")
    if program == "fish":
        command = ["fish", "--no-config", "-c", script, *words]
    else:
        command = [program, "-c", script, program, *words]
    done = subprocess.run(command, cwd=Path(words[0]).parent, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "shell", [pytest.param(shell, marks=[pytest.mark.slow] * (shell != "bash")) for shell in HOME_OF]
)
def test_the_script_goes_where_the_shell_looks(
    shell: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, start_up = HOME_OF[shell]
    for _ in range(2 if start_up else 1):
        assert frame.main(["--install-completion", "--shell", shell]) == 0
    assert capsys.readouterr().out.startswith(f"The completions of {shell} are in {home / script}.")
    written = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert written == {script, start_up} - {None}
    if start_up is not None:
        assert (home / start_up).read_text().count("/completions") in (1, 2), "the line is added once"


@pytest.mark.parametrize(("line", "expected"), ASKED)
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_words_are_completed(
    shell: str, line: str, expected: set[str], scripts: Callable[[str], Path]
) -> None:
    script = scripts(shell)
    if shell == "bash":
        found = asked("bash", BASH, str(script), *line.split(" "))
    else:
        found = [each.split("\t")[0] for each in asked("fish", FISH, str(script), line)]
    assert set(found) == expected


@pytest.mark.slow
def test_zsh_reads_the_script(scripts: Callable[[str], Path]) -> None:
    script = scripts("zsh")
    assert script.read_text().startswith("#compdef bertsmith\n")
    assert asked("zsh", 'zsh -n "$1"', str(script)) == []


def test_a_file_of_ones_own_changes_no_start_up_file(home: Path) -> None:
    assert frame.main(["--install-completion", "--shell", "bash", "--output", str(home / "own")]) == 0
    assert [path.name for path in home.iterdir()] == ["own"]


def test_a_shell_that_cannot_be_told_is_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost() -> None:
        raise detect.ShellDetectionError

    monkeypatch.setattr(detect, "detect_shell", lost)
    assert frame.main(["--install-completion"]) == 2
    assert "Name it: --shell bash, zsh or fish." in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(["--install-completion", "--shell", "bash", "--output", str(home)]) == 2
    assert capsys.readouterr().err == (
        f"Error: {home} can't be written: Is a directory. Name a file: --output FILE.\n"
    )
