"""The mirror's store, and the commands that put calls into it, join them or take them out: `bertsmith mirror
import`, `label`, `relabel` and `migrate`, which ask an LLM within a budget, `merge`, `forget` and `backup`.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bertsmith.cli.options import FileLayout, collect_options, continues_when_repeated
from bertsmith.cli.screen import console, print_facts, print_note, print_table, print_warning, progress_bar
from bertsmith.errors import BertsmithError, InputError, require

if TYPE_CHECKING:
    from bertsmith.metrics.scores import Interval
    from bertsmith.mirror.learning.asking import AskingResult, Budget
    from bertsmith.mirror.learning.migration import TeacherChange
    from bertsmith.mirror.settings import MirrorSettings
    from bertsmith.mirror.store import Store


# What reads like the name of a file rather than an instruction: text that ends in .txt, .md or .prompt; one
# word with an ending or a separator; one word in ASCII. Other languages may have no blanks between words.
_FILE_NAME = re.compile(r".*\.(?:txt|md|prompt)|\S*(?:\.\w+|[/\\]\S*)|[!-~]*")


_CHANGES = 12  # rows of a table


@Parameter(name="*")
@dataclass(frozen=True)
class StoreOptions:
    """Which store a command works on.

    Parameters
    ----------
    store
        The store: a file, or postgresql://user:password@host/name. Default: mirror.sqlite.
    config
        A TOML file with the mirror's settings.
    """

    store: str | None = None
    config: Path | None = None


ANY_STORE = StoreOptions()  # that of the environment, or mirror.sqlite


def require_mirror(what: str) -> None:
    """Raises MissingExtra where a package of the extra `mirror` is missing; `what` needs it."""
    for module in ("sqlalchemy", "httpx", "orjson"):
        require(module, "mirror", what)


def read_mirror_settings(store_options: StoreOptions, **options: object) -> "MirrorSettings":
    """The mirror's settings from the file of `store_options`, the environment and the command line: `options`
    win over both. Raises MissingExtra, RecipeError, InputError.
    """
    require_mirror("The mirror")
    from bertsmith.mirror.settings import read_settings

    return read_settings(store_options.config, {"store": store_options.store, **options})


def name_store(store_options: StoreOptions) -> str:
    """The options by which a command that is shown works on the same store, each with a blank before it."""
    from bertsmith.mirror.database import mask_password

    given = {name: str(value) for name, value in vars(store_options).items() if value is not None}
    return "".join(f" --{name} {shlex.quote(mask_password(value))}" for name, value in given.items())


@contextmanager
def open_store(
    store_options: StoreOptions, *, create: bool = False, reads: bool = False
) -> Iterator["Store"]:
    """Opens the store, with `create` makes a missing one, and closes it at the end of the block. With `reads`
    the block only reads, and doesn't wait for writers. Raises InputError where there is no store, and where
    the database can't be read or written during the block, is damaged, or has content that Bertsmith never
    wrote.
    """
    settings = read_mirror_settings(store_options)
    from bertsmith.mirror.database import explain_failure
    from bertsmith.mirror.store import Store

    opened = Store(settings.store, create=create, reads=reads)
    try:
        yield opened
    except BertsmithError:
        raise
    except Exception as error:
        if (failure := explain_failure(error, opened.engine, settings.store)) is not None:
            raise failure from None
        raise
    finally:
        opened.close()


@continues_when_repeated
def import_calls(
    *files: Path,
    store_options: StoreOptions = ANY_STORE,
    redact: str | None = None,
    format: str | None = None,
) -> None:
    """Import calls that were logged elsewhere.

    It reads JSON lines of request and response, OpenAI's and Anthropic's batch files (requests and results
    together), OpenTelemetry's GenAI spans, LangSmith's runs and Langfuse's observations, all as JSON. Calls
    are redacted like recorded ones. Importing a file twice adds nothing.

    Parameters
    ----------
    files
        The files. Of a batch, both.
    redact
        As for `bertsmith mirror serve`.
    format
        A wire format of your own, as for `bertsmith mirror serve`.

    Examples
    --------
    bertsmith mirror import calls.jsonl

    bertsmith mirror import batch_input.jsonl batch_output.jsonl --store calls.sqlite

    bertsmith mirror import traces.json
    """
    if not files:
        raise InputError("Name at least one FILE of calls: JSON lines, batch files, or spans.")
    settings = read_mirror_settings(store_options, redact=redact, format=format)
    from bertsmith.mirror.importing import CallImport

    calls = CallImport(
        files, settings.redactor, settings.formats
    )  # a faulty file is found before a store is made
    with (
        open_store(store_options, create=True) as opened,
        progress_bar("Importing") as progress,
    ):
        counts = calls.into(opened, progress)
    print_facts("Imported", {"new calls": f"{counts.added:,}", "known before": f"{counts.known:,}"})
    if counts.added:
        store = name_store(store_options)
        print_note(f"to see what they ask and answer: bertsmith mirror understand{store}")
    if counts.unanswered:
        print_note(f"{counts.unanswered:,} requests of the batch have no answer.")
    if counts.skipped:
        print_skipped(dict(counts.skipped))


@Parameter(name="*")
@dataclass(frozen=True)
class BudgetOptions:
    """What it may cost.

    Parameters
    ----------
    max_calls
        Calls, at most.
    max_money
        Money, at most, in the currency of the prices. Calls under way when it is spent are still paid for.
    input_price
        The price of a million input tokens, which the LLM reads.
    output_price
        The price of a million output tokens, which it writes.
    at_once
        Calls at the same time.
    """

    max_calls: int | None = None
    max_money: float | None = None
    input_price: float = 0.0
    output_price: float = 0.0
    at_once: int = 4

    def of_class(self, budget_class: "type[Budget]") -> "Budget":
        """The options as the mirror has them, whose module is imported when a command runs."""
        return budget_class(self.max_calls, self.max_money, self.input_price, self.output_price)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Whom the recorded inputs are put to, and which.

    Parameters
    ----------
    upstream
        The base URL of the LLM that is asked; not the mirror's own.
    version
        One of the place's versions, whose inputs are asked. By default the one that the application called
        last.
    seed
        Another seed draws other inputs, beside those asked before.
    key_from
        The environment variable that holds the LLM's key. Default: OPENAI_API_KEY or ANTHROPIC_API_KEY.
    """

    upstream: str
    version: str | None = None
    seed: int = 0
    key_from: str | None = None


@continues_when_repeated
def label(
    file: Path,
    *,
    upstream: str,
    model: str,
    prompt: str,
    schema: Path,
    site: str = "",
    text: str | None = None,
    layout: Annotated[FileLayout | None, Parameter(group="Layout of the file")] = None,
    student: Path | None = None,
    key_from: str | None = None,
    store_options: StoreOptions = ANY_STORE,
    limits: Annotated[BudgetOptions | None, Parameter(group="Budget")] = None,
) -> None:
    """Let an LLM label the texts of a FILE, for the store: to begin without traffic, or for rare cases.

    Each text is asked about once, and never if the store has its answer already. So repeat the command to go
    on with an interrupted job; texts that got no usable answer come last then. Texts are redacted before they
    are sent, like recorded calls.

    Parameters
    ----------
    file
        A table (CSV, JSON lines, Parquet), or a .txt file with a text per line.
    upstream
        The base URL of a server that speaks OpenAI's chat completions.
    model
        The LLM's name.
    prompt
        The instruction, in several words, or the name of a file that holds it. With {text} in it, it is the
        whole message, and the text goes there. Without, it is the system prompt, and the text is the message.
    schema
        A file with the JSON schema of the answers.
    site
        A name for these calls, such as that of the place whose student is to learn from them too. There they
        are a version of their own: `bertsmith mirror merge` makes it count as one with the others.
    text
        The column of the texts.
    student
        A student's folder. The texts that would tell it most of others, of which it is unsure, come first.
    key_from
        The environment variable that holds the LLM's key. Default: OPENAI_API_KEY.

    Examples
    --------
    bertsmith mirror label tickets.csv --upstream https://api.openai.com/v1 --model gpt-5-mini \
              --prompt prompt.txt --schema schema.json --max-calls 2000

    bertsmith mirror label tickets.csv --upstream http://127.0.0.1:11434/v1 --model qwen3 \
              --prompt 'Which intent has the message?' --schema schema.json --student students/tickets
    """
    settings = read_mirror_settings(store_options)
    from bertsmith.mirror.identity import require_name
    from bertsmith.mirror.learning.asking import (
        Budget,
        LabellingPrompt,
        Upstream,
        find_other_version,
        label_texts,
        read_schema,
    )
    from bertsmith.mirror.student import MirrorStudent
    from bertsmith.text.files.rows import quoting_warnings, stream_texts

    if site:
        require_name(site, "--site:")
    limits = limits or BudgetOptions()
    texts = list(dict.fromkeys(stream_texts(file, text, **collect_options(layout))))  # each once
    for sentence in quoting_warnings(file, texts, None if layout is None else layout.format):
        print_warning(sentence)
    question = LabellingPrompt(model, _read_prompt(prompt), read_schema(schema))
    budget, llm = limits.of_class(Budget), Upstream(upstream, key_from=key_from)
    if student is not None:
        texts = MirrorStudent.open(student).most_telling_first(texts)
    with (
        open_store(store_options, create=True) as opened,
        llm,
        progress_bar("Labelling") as progress,
    ):
        result = label_texts(
            texts,
            question,
            llm,
            opened,
            settings.redactor,
            budget,
            site=site,
            at_once=limits.at_once,
            progress=progress,
        )
        version_pair = find_other_version(question, llm, opened, settings.redactor, site)
    _print_asking("Labelled", result)
    if version_pair is not None:
        print_note(
            f"These calls are a version of their own of {site}: the student of its other "
            "version learns nothing from them. So that it does: "
            f"bertsmith mirror merge {site} {' '.join(version_pair)}{name_store(store_options)}"
        )


@continues_when_repeated
def relabel(
    site: str | None = None,
    *,
    asked: ReplayOptions,
    count: int = 200,
    store_options: StoreOptions = ANY_STORE,
    limits: Annotated[BudgetOptions | None, Parameter(group="Budget")] = None,
) -> None:
    """Ask the LLM some recorded inputs once more, to see how often it contradicts itself.

    No student can agree with an LLM more often than the LLM agrees with itself. The next `bertsmith mirror
    train` says how often the best possible one would. Inputs are drawn at random. Repeat the command to go on
    with an interrupted job.

    Parameters
    ----------
    site
        As `bertsmith mirror status` shows it. Needed if there are several.
    count
        Inputs to ask once more; those asked before count.

    Examples
    --------
    bertsmith mirror relabel --upstream https://api.openai.com/v1

    bertsmith mirror relabel b1a8c286578d --upstream https://api.anthropic.com --count 500
    """
    settings = read_mirror_settings(store_options)
    with open_store(store_options) as opened:
        from bertsmith.mirror.learning.asking import Budget, Upstream, ask_again, choose_version

        limits = limits or BudgetOptions()
        drawn = choose_version(_open_records(opened).group(site, asked.version), asked.version)
        llm = Upstream(asked.upstream, drawn.protocol, asked.key_from, formats=settings.formats)
        with llm, progress_bar("Asking again") as progress:
            result = ask_again(
                opened,
                drawn.version,
                llm,
                count,
                settings.redactor,
                limits.of_class(Budget),
                seed=asked.seed,
                at_once=limits.at_once,
                progress=progress,
            )
    _print_asking("Asked again", result)


@continues_when_repeated
def migrate(
    site: str | None = None,
    *,
    asked: ReplayOptions,
    model: str = "",
    prompt: str = "",
    count: int = 300,
    student: Path | None = None,
    out: Path | None = None,
    store_options: StoreOptions = ANY_STORE,
    limits: Annotated[BudgetOptions | None, Parameter(group="Budget")] = None,
) -> None:
    """Compare a new LLM or a new prompt with the present one, before the application changes.

    Recorded calls are drawn at random and put to the new one, within a budget. It shows how often both
    answer alike, what changes most, and whether what is proven of the present student holds for the new LLM
    too. The answers are kept: a student for the new LLM learns from them. Repeat the command to go on with an
    interrupted job, or with a larger --count to know more.

    Parameters
    ----------
    site
        As `bertsmith mirror status` shows it. Needed if there are several.
    model
        The new LLM's name. Default: the present one, with another --prompt.
    prompt
        The new system prompt, in several words, or the name of a file that holds it. Default: the present.
    count
        Calls to compare with; those compared before count.
    student
        A student's folder. Default: the one that serves.
    out
        Where the student is written for the new LLM, if what is proven of it holds there too.

    Examples
    --------
    bertsmith mirror migrate intents --upstream https://api.openai.com/v1 --model gpt-5.1-mini

    bertsmith mirror migrate intents --upstream https://api.openai.com/v1 --prompt new-prompt.txt --count 500
    """
    settings = read_mirror_settings(store_options)
    if not (model or prompt):
        raise InputError("Name what is new: --model, --prompt, or both.")
    limits, new_prompt = limits or BudgetOptions(), _read_prompt(prompt) if prompt else ""
    with open_store(store_options) as opened:
        from bertsmith.mirror.answering.stage_store import StageStore
        from bertsmith.mirror.learning.asking import Budget, Upstream, choose_version, replay
        from bertsmith.mirror.learning.migration import compare_teachers, write_surviving_student
        from bertsmith.mirror.learning.student_folder import find_free_folder
        from bertsmith.mirror.learning.understand import understand
        from bertsmith.mirror.student import MirrorStudent
        from bertsmith.mirror.student_file import student_id

        records, stages = _open_records(opened), StageStore(opened)
        group = records.group(site, asked.version)
        present = choose_version(group, asked.version)
        profile = understand(opened, group)
        profile.require_mirrorable()
        if student is None:
            by_version, students = stages.stages(), stages.students()
            serving = [number for part in group if (number := by_version[part.version].student)]
            student = Path(students[serving[-1]].folder) if serving else None
        judged = None if student is None else MirrorStudent.open(student)
        if judged is not None and student is not None:
            number = student_id(student)
            judged.proven_threshold = stages.proven_thresholds([number]).get(number)
        llm = Upstream(asked.upstream, present.protocol, asked.key_from, formats=settings.formats)
        with llm, progress_bar("Asking the new LLM") as progress:
            replayed = replay(
                opened,
                present.version,
                llm,
                count,
                settings.redactor,
                limits.of_class(Budget),
                model=model,
                prompt=new_prompt,
                seed=asked.seed,
                at_once=limits.at_once,
                progress=progress,
            )
        _print_asking("Asked the new LLM", replayed.result)
        if not replayed.pairs:
            raise InputError("The new LLM gave no answer that can be compared.")
        change = compare_teachers(replayed, profile.shape, judged)
        _print_change(change)
        named, store = f"{profile.site} --version {replayed.version}", name_store(store_options)
        if change.student is None or not change.student.holds:
            print_note(f"a student for the new LLM: bertsmith mirror train --site {named}{store}")
            return
        assert student is not None
        if out is None:
            print_note("repeat the command with --out FOLDER: it writes the student for the new LLM.")
            return
        free = find_free_folder(opened, out)
        write_surviving_student(student, free, change.student, replayed)
    print_note(
        f"the student for the new LLM is in {free}. As soon as the application asks the new one: bertsmith "
        f"mirror promote {replayed.version} --student {shlex.quote(str(free))} --to live{store}"
    )


def _print_change(change: "TeacherChange") -> None:
    """The comparison of two LLMs, and what is proven of the student beside the new one."""
    facts = {
        "calls compared": f"{change.inputs:,}",
        "answered alike": _format_rate(1 - change.differing / change.inputs, change.agreement),
    }
    if len(change.fields) > 1:
        facts |= {f"{path} differs": f"{count:,}" for path, count in sorted(change.fields.items())}
    print_facts("The new LLM beside the present one", facts)
    if rows := change.changes[:_CHANGES]:
        print_table(("field", "now", "new", "answers"), rows, "What changes most")
    if (survival := change.student) is None:
        return
    claims = survival.student.file.claims
    facts = {
        "calls that no training has used": f"{survival.inputs:,}",
        "of them it is sure of": f"{survival.sure:,}",
    }
    if survival.sure:
        rate = survival.differing / survival.sure
        facts["there it differs from the new LLM"] = _format_rate(rate, survival.interval, claims.delta)
    print_facts("The student beside the new LLM", facts)
    most = f"at most {100 * claims.epsilon:g} % of its sure answers differ from the new LLM's"
    if survival.holds:
        print_note(f"proven for the new LLM too, with {100 * (1 - claims.delta):g} % confidence: {most}.")
    elif claims.by is not None:
        print_note("what is proven of the student is proven by class: the new LLM needs one of its own.")
    elif survival.interval.low > claims.epsilon:
        print_note(f"that {most} isn't true: the present student can't answer for it.")
    else:
        print_note(
            f"that {most} isn't proven yet. A larger --count may prove it: only calls that no training has "
            "used count."
        )


def _format_rate(rate: float, interval: "Interval", delta: float = 0.05) -> str:

    from bertsmith.reporting.formatting import format_percent

    low, high = map(format_percent, interval)
    return f"{format_percent(rate)} ({low} to {high} with {100 * (1 - delta):g} % confidence)"


def _read_prompt(prompt: str) -> str:
    """The content of the file `prompt`, or without such a file `prompt` itself. Raises InputError for text
    that reads like the name of a file, since such a prompt would be paid for.
    """
    path = Path(prompt)
    try:
        is_file = path.is_file()
    except OSError:  # a prompt may be longer than a name
        is_file = False
    if is_file:
        try:
            return path.read_text(encoding="utf-8").rstrip("\n")
        except ValueError as error:
            raise InputError(f"{path} isn't UTF-8. Save the prompt as UTF-8.") from error
    if "{text}" not in prompt and _FILE_NAME.fullmatch(prompt):
        raise InputError(
            f"--prompt: there is no file {prompt!r}, and it reads like the name of one. Name a file that "
            "exists, or give an instruction of several words."
        )
    return prompt


def _print_asking(title: str, result: "AskingResult") -> None:
    facts = {"new calls": f"{result.added:,}", "known before": f"{result.known:,}"}
    if result.money:
        facts["cost"] = f"{result.money:,.4f}"
    print_facts(title, facts)
    if result.skipped:
        rows = sorted(result.skipped.items())
        print_table(("reason", "answers"), rows, "Nothing to learn from")
    if result.left:
        print_note(f"{result.left:,} are left: the budget was reached. Run this again to go on.")


def merge(site: str, *versions: str, store_options: StoreOptions = ANY_STORE) -> None:
    """Treat VERSIONS of a SITE as one from now on: one student learns from them and answers them.

    Use it when a prompt or a schema was changed without changing its meaning.

    Parameters
    ----------
    site
        As `bertsmith mirror status` shows it.
    versions
        Two or more of its versions.

    Examples
    --------
    bertsmith mirror merge b1a8c286578d 4c1f0aa2b9d3 77e01c55ab10
    """
    with open_store(store_options) as opened:
        group = _open_records(opened).merge(site, versions)
    calls = sum(version.calls for version in group)
    console.print(f"{len(group)} versions of {site} count as one, with {calls:,} calls.", markup=False)


def _open_records(store: "Store") -> Any:
    """`LearningRecords` of a store, whose module is imported when a command runs."""
    from bertsmith.mirror.learning.understand import LearningRecords

    return LearningRecords(store)


def forget(
    subject: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    store_options: StoreOptions = ANY_STORE,
) -> int:
    """Delete all calls of a SUBJECT, a person that a call is about. Exit status 1 if there are none.

    Parameters
    ----------
    subject
        The value that the application sends as `user`, metadata.user, metadata.user_id or safety_identifier,
        or in the header X-Subject. The store holds only its fingerprint.

    Examples
    --------
    bertsmith mirror forget customer-4711
    """
    with open_store(store_options) as opened:
        deleted = opened.forget(subject)
    console.print(f"{deleted:,} calls deleted.", markup=False)
    if not deleted:
        print_note(
            "No recorded call is about this subject. A call is about whom its request names as user, "
            "metadata.user, metadata.user_id or safety_identifier, or its header X-Subject; names are "
            "compared letter by letter."
        )
    return 0 if deleted else 1


def backup(out: Path, *, store: str | None = None, config: Path | None = None) -> None:
    """Copy the store to OUT, while mirrors may go on writing to it.

    A copy of the file alone would lack what is still in the log beside it. OUT is as private as the store.

    Parameters
    ----------
    out
        The file to write.
    store
        The store: a file. Default: mirror.sqlite. Of PostgreSQL, pg_dump makes copies.
    config
        A TOML file with the mirror's settings.

    Examples
    --------
    bertsmith mirror backup backups/monday.sqlite
    """
    # Options of its own, since --store means something else here: only a file can be copied.
    with open_store(StoreOptions(store, config), reads=True) as opened:
        opened.back_up(out)
        calls = opened.count()
    console.print(f"{calls:,} calls in {out}.", markup=False)


def print_skipped(skipped: dict[tuple[str, str], int]) -> None:
    """Prints a table of the calls that can't be mirrored, counted by protocol and reason."""
    rows = [(protocol, reason, calls) for (protocol, reason), calls in sorted(skipped.items())]
    print_table(("protocol", "reason", "calls"), rows, "Not mirrored")
