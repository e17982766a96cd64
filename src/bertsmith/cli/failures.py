"""What a failure prints, and the exit status it becomes.

0    done
1    a bug: the traceback, and where to report it; or whoever read our output went away (nothing printed)
2    the user's to mend: one sentence on stderr
130  Ctrl-C, 143  SIGTERM, 129  SIGHUP: one line; files that were being written are gone (see bertsmith.files)
"""

import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import get_type_hints

from cyclopts import App
from cyclopts.exceptions import CycloptsError, MissingArgumentError, UnknownOptionError

from bertsmith.cli.options import FileOrDash, ReadableText
from bertsmith.errors import BertsmithError, DiskFull, EncodingError, InputError, printable

_OUT_OF_MEMORY = (
    "There is not enough memory for this. Close other programs, or ask for less: a smaller batch, "
    "model or sample. `bertsmith doctor` shows what this machine has."
)
_DISK_FULL = "The disk is full. Free some space, or write to another disk, and run the command again."
_FILE_TOO_LARGE = (
    "A file became larger than its file system or `ulimit -f` allows. Write to another disk, or raise the "
    "limit."
)
_LEFT_NOTHING = "Nothing half-written is left."
_KEPT = "What is finished is kept: the same command{} continues where it stopped."
_WRITTEN = ("--out", "--page")
_OF_THE_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)

_BUG = (
    "This is a bug in Bertsmith, not your mistake. Please report it with the lines above and what "
    "`bertsmith doctor --json` prints."
)


class Termination(BaseException):
    """A signal arrived that ends. An exception, so that half-written files are removed on the way out."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal = signal.Signals(signal_number)


def terminate_cleanly() -> None:
    """Makes SIGTERM (a container that stops, a scheduler's limit) and SIGHUP (a terminal that closes) unwind
    the stack as Ctrl-C does. Where nohup has the second ignored, it stays so; Windows doesn't know it.
    """
    signal.signal(signal.SIGTERM, _raise_terminated)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _raise_terminated)


def require_open_streams() -> None:
    """Raises InputError when the standard output is closed, where results would go: the first file that is
    opened would get its number, and what is printed be written into it. A closed standard error is silent.
    """
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdout is None:
        raise InputError("Standard output is closed. Leave it open, or redirect it with >/dev/null.")


def exit_status(failure: BaseException, app: App | None = None, words: Sequence[str] = ()) -> int:
    """Prints what the user needs to know of `failure` to stderr and returns the exit status. `app` with the
    `words` of the command line tells how the command is taken up again.
    """
    if isinstance(failure, SystemExit):
        return failure.code if isinstance(failure.code, int) else int(failure.code is not None)
    if isinstance(failure, KeyboardInterrupt):
        return _print_error(f"Stopped by Ctrl-C. {_describe_resumption(app, words) or _LEFT_NOTHING}", 130)
    if isinstance(failure, Termination):
        stopped = f"Stopped by {failure.signal.name}. {_describe_resumption(app, words) or _LEFT_NOTHING}"
        return _print_error(stopped, 128 + failure.signal)
    if isinstance(failure, BrokenPipeError):  # `bertsmith corpus info x | head` is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at its end
        return 1
    sentence = _describe_encoding_error(failure, app, words) or _describe_failure(failure)
    if isinstance(failure, DiskFull) or _is_disk_full(failure):
        sentence = f"{sentence} {_describe_resumption(app, words)}".rstrip()
    if sentence is not None:
        return _print_error(f"Error: {sentence}", 2)
    return _print_error(f"{''.join(traceback.format_exception(failure))}\n{_BUG}", 1)


def _describe_resumption(app: App | None, words: Sequence[str]) -> str:
    """How the command is taken up again when it was stopped; '' for one that begins anew."""
    if app is None:
        return ""
    names, apps, _ = app.parse_commands(words)
    command = apps[-1].default_command
    if command is None or names[-1].startswith("-"):  # --help and --version
        return ""
    if getattr(command, "continues_when_repeated", False):
        return _KEPT.format("")
    return _KEPT.format(" with --resume") if "--resume" in _options_of(apps[-1]) else ""


def _options_of(command: App) -> set[str]:
    return {name for argument in command.assemble_argument_collection() for name in argument.names}


def _describe_encoding_error(failure: BaseException, app: App | None, words: Sequence[str]) -> str:
    """By the options that the command has; '' for other failures."""
    if app is None or not isinstance(failure, EncodingError):
        return ""
    options = _options_of(app.parse_commands(words)[1][-1])
    sentence = f"{failure.problem} Save it as UTF-8"
    if "--encoding" in options:
        sentence += f", or name its encoding (--encoding {failure.likely_encoding}, for one)"
    if "--encoding-errors" in options and not failure.likely_encoding.startswith("utf"):
        sentence += ", or put U+FFFD for such bytes (--encoding-errors replace)"
    return f"{sentence}."


def _describe_failure(failure: BaseException) -> str | None:
    """What the user can do about it; None for a bug."""
    if isinstance(failure, BertsmithError):
        return str(failure)
    if isinstance(failure, CycloptsError):
        command = " ".join(["bertsmith", *(failure.command_chain or ())])
        if _is_lone_dash(failure):
            needed = "Give the text itself." if _has_option(failure, ReadableText) else "Name a file."
            return f"{command} can't read standard input. {needed}"
        problem = _describe_missing_argument(failure, command) or _describe_usage_error(failure)
        return f"{problem}{_suggest_setting(failure)} See `{command} --help`."
    if _is_out_of_memory(failure):
        return _OUT_OF_MEMORY
    if _is_disk_full(failure):
        return _DISK_FULL
    if getattr(failure, "errno", None) == errno.EFBIG:
        return _FILE_TOO_LARGE
    if isinstance(failure, OSError) and failure.filename and failure.errno in _OF_THE_PLACE:
        return (
            f"{failure.filename} can't be used: {failure.strerror}. Choose another place, or mend its rights."
        )
    return None


def _is_lone_dash(failure: CycloptsError) -> bool:
    """Whether - stands where a command that doesn't read standard input has a file, or behind its option."""
    if isinstance(failure, UnknownOptionError):
        return failure.token.value == "-" and not _has_option(failure, FileOrDash)
    if not isinstance(failure, MissingArgumentError) or failure.argument is None:
        return False
    name = failure.argument.name
    return name not in _WRITTEN and (name, "-") in pairwise(failure.root_input_tokens or ())


def _has_option(failure: CycloptsError, kind: object) -> bool:
    """Whether the command that failed has an argument or an option of one of the kinds in options.py."""
    return failure.target is not None and kind in get_type_hints(failure.target, include_extras=True).values()


def _describe_missing_argument(failure: CycloptsError, command: str) -> str:
    """What a command can't do without: an argument as its help has it, in capitals, or an option."""
    if not isinstance(failure, MissingArgumentError) or failure.tokens_so_far or failure.argument is None:
        return ""
    name = failure.argument.name
    needed = f"{name} VALUE" if failure.argument.index is None else name.lstrip("-").upper()
    return f"{command} needs {needed}."


def _describe_usage_error(failure: CycloptsError) -> str:
    """What pydantic refused is said as everywhere, and not in its own lines."""
    from pydantic import BaseModel, ValidationError  # here, for --help answers at once

    from bertsmith.validation import describe_problem

    refused = failure.__cause__
    return describe_problem(refused, BaseModel) if isinstance(refused, ValidationError) else str(failure)


def _suggest_setting(failure: CycloptsError) -> str:
    """How what was given as an option is given as a setting, where the command has one that is called so."""
    if not isinstance(failure, UnknownOptionError):
        return ""
    from bertsmith.validation import find_settings_called

    typed = (failure.token.keyword or failure.token.value).lstrip("-").partition("=")[0].replace("-", "_")
    names_of = getattr(failure.target, "settings", None)
    known = [] if names_of is None else names_of(failure.root_input_tokens or ())
    names = [typed] if typed in known else find_settings_called(typed, known)[:2]
    settings = " or ".join(f"{name}=VALUE" for name in names)
    return f" Settings are given without dashes: {settings}." if settings else ""


def _is_disk_full(failure: BaseException) -> bool:
    return isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_out_of_memory(failure: BaseException) -> bool:
    """torch has an error of its own for a GPU, and says it only in words for main memory."""
    if isinstance(failure, MemoryError) or getattr(failure, "errno", None) == errno.ENOMEM:
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(failure, torch.OutOfMemoryError):
        return True
    return isinstance(failure, RuntimeError) and "can't allocate memory" in str(failure)


def _print_error(message: str, status: int) -> int:
    """Plain text: a message may hold anything that was typed or read, and rich is not needed to say it."""
    with contextlib.suppress(OSError):  # a terminal that has closed
        print(printable(message), file=sys.stderr)
    return status


def _raise_terminated(signal_number: int, frame: FrameType | None) -> None:
    raise Termination(signal_number)
