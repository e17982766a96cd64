"""The command `bertsmith`: which commands there are, in the order of the flow, and how they are run.

A command is imported only when it is run, so that `bertsmith --help` answers at once and costs no torch.
"""

import atexit
import gc
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from inspect import cleandoc
from io import TextIOWrapper
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_type_hints

from cyclopts import App, Group, Parameter

import bertsmith
from bertsmith.cli.failures import exit_status, require_open_streams, terminate_cleanly
from bertsmith.errors import InputError, did_you_mean, printable

_HELP = """\
Bertsmith: from raw text to a BERT checkpoint that other tools open.

corpus build → tokenizer train → pretrain → finetune → evaluate, predict
"""
_EXAMPLES = """\
Examples:

  bertsmith quickstart

  bertsmith corpus build articles/ --out corpora/articles
  bertsmith tokenizer train corpora/articles --out tokenizers/articles
  bertsmith pretrain budget hours=4 out=runs/articles \\
            corpus=corpora/articles tokenizer=tokenizers/articles
  bertsmith evaluate runs/articles/model corpora/articles
  bertsmith fill-mask runs/articles/model "The capital of France is [MASK]."
  bertsmith finetune classification --model runs/articles/model --train labelled.csv \\
            --out runs/topics
  bertsmith predict runs/topics/model new.csv --out topics.jsonl

bertsmith COMMAND --help explains a command, with examples of its own.
"""
COMPLETION = "--install-completion"


class Command(NamedTuple):
    """One line of the help page, and where the command lives."""

    name: str
    target: str
    summary: str
    group: str


_EXAMPLE_WIDTH = 74  # of 80 columns, with the indentation and the backslash
_FLOW, _USE, _SEARCH = "From text to a model", "Use a model", "Embed and search"
_OTHER, _OPTIONS = "Other", "Options"
_GROUPS = (_FLOW, _USE, _SEARCH, _OTHER, _OPTIONS)

COMMANDS = (
    Command(
        "quickstart",
        "bertsmith.cli.quickstart:quickstart",
        "Pre-train a BERT from nothing in minutes.",
        _FLOW,
    ),
    Command("corpus", "bertsmith.cli.corpus:app", "Build a corpus from raw text; tokenize it.", _FLOW),
    Command("tokenizer", "bertsmith.cli.tokenizer:app", "Train or extend a vocabulary.", _FLOW),
    Command("sequences", "bertsmith.cli.sequences:app", "Turn logs, DNA or tables into tokens.", _FLOW),
    Command("plan", "bertsmith.cli.pretrain:plan", "Estimate hours, cost and memory of a run.", _FLOW),
    Command("pretrain", "bertsmith.cli.pretrain:pretrain", "Pre-train a BERT, or continue from one.", _FLOW),
    Command("finetune", "bertsmith.cli.finetune:finetune", "Fine-tune on labelled text.", _FLOW),
    Command("suggest", "bertsmith.cli.finetune:suggest", "Find rows to label next, and wrong labels.", _FLOW),
    Command("tune", "bertsmith.cli.finetune:tune", "Search for the best fine-tuning settings.", _FLOW),
    Command("distil", "bertsmith.cli.distil:distil", "Distil a model into a smaller one.", _FLOW),
    Command("shrink", "bertsmith.cli.distil:shrink", "Find a faster model that answers as well.", _FLOW),
    Command("mine", "bertsmith.cli.finetune:mine", "Mine hard negatives for retrieval.", _FLOW),
    Command(
        "benchmark", "bertsmith.cli.benchmark:app", "Run a benchmark: GLUE, SuperGLUE, SQuAD, BEIR.", _FLOW
    ),
    Command("fill-mask", "bertsmith.cli.predict:fill_mask", "Guess the words behind [MASK].", _USE),
    Command("evaluate", "bertsmith.cli.predict:evaluate", "Measure a model on text or labelled rows.", _USE),
    Command("predict", "bertsmith.cli.predict:predict", "Predict each row of a file.", _USE),
    Command("check", "bertsmith.cli.inspect:check", "Check that a model answers as it did.", _USE),
    Command("look", "bertsmith.cli.inspect:look", "Show what an answer rests on, on a page.", _USE),
    Command("serve", "bertsmith.cli.serve:serve", "Serve models over HTTP.", _USE),
    Command("export", "bertsmith.cli.convert:export", "Export to ONNX or OpenVINO, and check it.", _USE),
    Command("mirror", "bertsmith.cli.mirror:app", "Record an LLM's answers, and learn from them.", _USE),
    Command("embed", "bertsmith.cli.embed:embed", "Embed each text of a file as a vector.", _SEARCH),
    Command("index", "bertsmith.cli.index:app", "Build and update an index of documents.", _SEARCH),
    Command("search", "bertsmith.cli.embed:search", "Search an index.", _SEARCH),
    Command("rank", "bertsmith.cli.benchmark:rank", "Evaluate search on judged queries.", _SEARCH),
    Command("doctor", "bertsmith.cli.doctor:doctor", "Show the hardware and how it will be used.", _OTHER),
    Command("import", "bertsmith.cli.convert:import_checkpoint", "Convert an old checkpoint.", _OTHER),
)

# New objects between two searches for unused cycles, where Python's 700 have it look through all that `import
# torch` makes again and again.
_OBJECTS = (100_000, 50, 100)
_FORMAT_WARNING = warnings.formatwarning


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status (see bertsmith.cli.failures)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    app = None
    gc.set_threshold(*_OBJECTS)
    atexit.register(gc.freeze)  # or the interpreter's end looks for cycles in all that torch has made
    try:
        terminate_cleanly()
        require_open_streams()
        _print_all_characters()
        warnings.formatwarning = _format_warning
        app = build_app(_find_command(arguments))
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        # Here rather than at the interpreter's end, where a closed pipe could only be complained about.
        sys.stdout.flush()
    except BaseException as failure:
        return exit_status(failure, app, arguments)
    return result if isinstance(result, int) else 0


def _print_all_characters() -> None:
    """Into files and pipes in UTF-8: the system's own encoding may lack what texts hold, as Windows' does. A
    terminal shows what it can. A file's name that is no UTF-8 is shown with its bytes escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            encoding = None if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own warnings as all that a command says; those of other libraries with their place in the code."""
    if Path(filename).is_relative_to(Path(bertsmith.__file__).parent):
        return f"Warning: {printable(str(message))}\n"
    return _FORMAT_WARNING(message, category, filename, lineno, line)


def build_app(asked_for: str | None = None) -> App:
    """The command line, with the command `asked_for` imported and all others only named."""
    app = App(
        name="bertsmith",
        help=_HELP,
        help_epilogue=None if asked_for else _EXAMPLES,
        # Keeps the line breaks of examples; markdown would run them together.
        help_format="plaintext",
        version=bertsmith.__version__,
        default_parameter=Parameter(negative_iterable=()),
        suppress_keyboard_interrupt=False,
    )
    groups = {name: Group(name, sort_key=order) for order, name in enumerate(_GROUPS)}
    app["--help"].group = app["--version"].group = groups[_OPTIONS]
    app.command(make_completion_command(app), name=COMPLETION, group=groups[_OPTIONS])
    for order, command in enumerate(COMMANDS):
        # A summary given here would replace the long help that the command itself has.
        summary = None if command.name == asked_for else command.summary
        app.command(
            command.target, name=command.name, help=summary, group=groups[command.group], sort_key=order
        )
    if asked_for:
        _lay_out_help(app[asked_for])
    return app


def _find_command(arguments: Sequence[str]) -> str | None:
    """The first word that is no option of all commands. Raises InputError when there is no such command."""
    names = [command.name for command in COMMANDS]
    word = next((word for word in arguments if word == COMPLETION or not word.startswith("-")), None)
    if word is None or word in (COMPLETION, *names):
        return word
    meant = did_you_mean(word, names)
    raise InputError(f"There is no command {word!r}.{meant} The commands are: {', '.join(names)}.")


def _lay_out_help(app: App) -> list[str]:
    """Has cyclopts fold paragraphs where the terminal ends, not where the docstring's lines do, list commands
    in the order of their use, in which they are defined, and show the Examples section, which it leaves out,
    at the foot of the page: of a group the first example of each command. Returns the examples.
    """
    import docstring_parser

    if app.default_command is None:
        lines = []
        for order, name in enumerate(name for name in app if not name.startswith("-")):
            app[name].sort_key = order
            lines += _lay_out_help(app[name])[:1]
    else:
        hints = get_type_hints(app.default_command).values()
        kinds = [kind for hint in hints for kind in (hint, *get_args(hint)) if isinstance(kind, type)]
        for group in dict.fromkeys(base for kind in kinds for base in kind.__mro__ if is_dataclass(base)):
            group.__doc__ = _unfold_paragraphs(cleandoc(group.__doc__ or ""))
        docstring = app.default_command.__doc__ = _unfold_paragraphs(
            cleandoc(app.default_command.__doc__ or "")
        )
        examples = docstring_parser.parse(docstring).examples
        lines = [line for example in examples for line in (example.description or "").splitlines()]
    if lines:
        folded = (part for line in lines for part in _fold_example(line))
        app.help_epilogue = "Examples:\n\n" + "\n".join(f"  {line}".rstrip() for line in folded) + "\n"
    return lines


def _unfold_paragraphs(docstring: str) -> str:
    """Each paragraph as one line, examples as they are."""
    head, examples_line, examples = docstring.partition("\nExamples\n")
    lines: list[str] = []
    for line in head.splitlines():
        before = lines[-1] if lines else ""
        prose = all(neighbour.strip() and not neighbour.startswith("-") for neighbour in (before, line))
        if prose and _indentation(line) == _indentation(before):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines) + examples_line + examples


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _fold_example(line: str) -> list[str]:
    """A command that is wider than a usual terminal goes on behind a backslash, so that it can be pasted. An
    option stays with its value.
    """
    parts: list[str] = []
    for part in re.findall(r"(?:--\S+ +(?!-))?(?:\"[^\"]*\"|\S)+", line):
        word = " ".join(part.split()) if '"' not in part else part
        if parts and len(parts[-1]) + len(word) < _EXAMPLE_WIDTH:
            parts[-1] += f" {word}"
            continue
        if parts:
            parts[-1] += " \\"
        parts.append(f"          {word}" if parts else word)
    return parts or [""]


def make_completion_command(app: App) -> Callable[..., None]:
    """The command that installs it for all commands of `app`."""

    def install_completion(
        *, shell: Literal["bash", "zsh", "fish", "powershell"] | None = None, output: Path | None = None
    ) -> None:
        """Have the shell complete commands and options.

        The script goes where the shell looks for completions; if the shell needs it, its start-up file gets a
        line. New shells use it. Repeat this after an update.

        Parameters
        ----------
        shell
            By default the shell in use.
        output
            Write the script to this file, and change no start-up file.

        Examples
        --------
        bertsmith --install-completion
        bertsmith --install-completion --shell zsh
        """
        from cyclopts.completion.detect import ShellDetectionError, detect_shell

        try:
            shell = shell or detect_shell()
            path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
        except ShellDetectionError as error:
            raise InputError("Can't tell which shell this is. Name it: --shell bash, zsh or fish.") from error
        except OSError as error:
            where = error.filename or output or "The place of the script"
            raise InputError(
                f"{where} can't be written: {error.strerror}. Name a file: --output FILE."
            ) from error
        print(f"The completions of {shell} are in {path}. New shells use them.")

    return install_completion
