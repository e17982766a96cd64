"""`bertsmith mirror`: record an LLM's answers, import those there are, look at them, forget somebody.

Commands that learn from them are in mirror_learn.py, those that ask the LLM in mirror_label.py.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bertsmith.cli import mirror_label, mirror_learn
from bertsmith.cli.mirror_guard import guard
from bertsmith.cli.mirror_options import Answering, PageOptions, Recording, Upstreams
from bertsmith.cli.mirror_stages import check, demote, print_accounts, promote
from bertsmith.cli.mirror_store import mirror_settings, opened_store
from bertsmith.cli.options import Flag, given
from bertsmith.cli.screen import console, print_facts, print_json, print_note, print_table, progress_bar

if TYPE_CHECKING:
    from bertsmith.serving.mirror.store import VersionCount

app = App(name="mirror", help="Record an LLM's answers, learn from them, and answer in its place.")
_SHOWN = 40  # versions of a site in the table


def serve(
    *,
    upstreams: Annotated[Upstreams | None, Parameter(group="The LLM")] = None,
    recording: Annotated[Recording | None, Parameter(group="What is recorded")] = None,
    answering: Annotated[Answering | None, Parameter(group="When a student answers")] = None,
    page: Annotated[PageOptions | None, Parameter(group="The page at /bertsmith/")] = None,
    config: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    drain_seconds: float | None = None,
    log_requests: bool | None = None,
    show_settings: Flag = False,
) -> None:
    """Relay an application's calls to its LLM, and record those whose answers have a schema.

    You change the application's base URL, and nothing else. The LLM's answers come back as they are, until
    you promote a student (`bertsmith mirror promote`, or --auto); it answers the calls that it is sure of.
    You can also give every setting in a TOML file (--config) or in the environment (BERTSMITH_MIRROR_STORE
    and so on). The command line wins.

    Parameters
    ----------
    config
        A TOML file with the settings. Prices, and redaction patterns of your own, can be given only there.
    host
        Address to listen on. Default: 127.0.0.1, reached from this machine alone.
    port
        Default: 8100; 0 takes a free one.
    drain_seconds
        Seconds that a stopping mirror may take to finish what it has begun. Default: 30.
    log_requests
        Write a line to the log for each request, without its text. On by default.
    show_settings
        Print all settings as JSON and stop.

    Examples
    --------
    bertsmith mirror serve --upstream https://api.openai.com/v1

    bertsmith mirror serve --anthropic-base-url https://api.anthropic.com --store calls.sqlite

    bertsmith mirror serve --config mirror.toml --host 0.0.0.0 --page-keys-file keys.txt

    bertsmith mirror serve --upstream https://api.openai.com/v1 --auto --epsilon 0.03
    """
    from bertsmith.errors import require

    own = {"host": host, "port": port, "drain_seconds": drain_seconds, "log_requests": log_requests}
    settings = mirror_settings(config, **own, **given(upstreams, recording, answering, page))
    if show_settings:
        from bertsmith.serving.mirror.database import shown

        print_json(settings.model_dump(mode="json") | {"store": shown(settings.store)})
        return
    require("uvicorn", "mirror", "The mirror")
    from bertsmith.serving.mirror.server import serve as run

    run(settings)


def import_calls(
    *files: Path, store: str | None = None, config: Path | None = None, redact: str | None = None
) -> None:
    """Import calls that were logged elsewhere.

    It reads JSON lines of request and response, OpenAI's and Anthropic's batch files (requests and results
    together), and OpenTelemetry's GenAI spans as JSON. Calls are redacted like recorded ones. Importing a
    file twice adds nothing.

    Parameters
    ----------
    files
        The files. Of a batch, both.
    store
        The store: a file, or postgresql://user:password@host/name. Default: mirror.sqlite.
    config
        A TOML file with the mirror's settings.
    redact
        As for `bertsmith mirror serve`.

    Examples
    --------
    bertsmith mirror import calls.jsonl

    bertsmith mirror import batch_input.jsonl batch_output.jsonl --store calls.sqlite

    bertsmith mirror import traces.json
    """
    from bertsmith.errors import InputError

    if not files:
        raise InputError("Name at least one FILE of calls: JSON lines, batch files, or spans.")
    settings = mirror_settings(config, store=store, redact=redact)
    from bertsmith.serving.mirror.importing import Import

    calls = Import(files, settings.redactor)  # before there is a store
    with (
        opened_store(config, settings.store, create=True) as opened,
        progress_bar("Importing") as progress,
    ):
        found = calls.into(opened, progress)
    print_facts("Imported", {"new calls": f"{found.added:,}", "known before": f"{found.known:,}"})
    if found.unanswered:
        print_note(f"{found.unanswered:,} requests of the batch have no answer.")
    if found.passed:
        _print_passed(dict(found.passed))


def status(*, store: str | None = None, config: Path | None = None, json: Flag = False) -> None:
    """Show what has been recorded, who answers, and what that saves.

    It lists the sites, their versions and their fields. For each version with a student it shows the mode,
    how often the student answered and differed from the LLM, and the calls, time and money saved. It also
    counts the calls that could not be mirrored.

    Parameters
    ----------
    store
        The store: a file, or postgresql://user:password@host/name. Default: mirror.sqlite.
    config
        A TOML file with the mirror's settings.
    json
        Print JSON: all that the page at /bertsmith/ shows, except texts of calls.

    Examples
    --------
    bertsmith mirror status

    bertsmith mirror status --store calls.sqlite --json
    """
    from bertsmith.serving.mirror.answering.accounts import accounts
    from bertsmith.serving.mirror.answering.stage_store import StageStore
    from bertsmith.serving.mirror.looking.state import Looking

    settings = mirror_settings(config, store=store)
    with opened_store(config, store, reads=True) as opened:
        if json:
            print_json(Looking(opened, settings).state())
            return
        versions, passed, calls = opened.versions(), opened.passed(), opened.count()
        answering = accounts(StageStore(opened), settings.prices)
        facts = {"calls": f"{calls:,}", "sites": f"{len({each.site for each in versions}):,}"}
        print_facts("Recorded", facts)
        if versions:
            _print_versions(versions)
        if answering:
            print_accounts(answering)
        if passed:
            _print_passed(passed)


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
    with opened_store(config, store, reads=True) as opened:
        opened.back_up(out)
        calls = opened.count()
    console.print(f"{calls:,} calls in {out}.", markup=False)


def forget(
    subject: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    store: str | None = None,
    config: Path | None = None,
) -> int:
    """Delete all calls of a SUBJECT, a person that a call is about. Exit status 1 if there are none.

    Parameters
    ----------
    subject
        The value that the application sends as `user`, metadata.user, metadata.user_id or safety_identifier,
        or in the header X-Subject. The store holds only its fingerprint.
    store
        The store: a file, or postgresql://user:password@host/name. Default: mirror.sqlite.
    config
        A TOML file with the mirror's settings.

    Examples
    --------
    bertsmith mirror forget customer-4711
    """
    with opened_store(config, store) as opened:
        deleted = opened.forget(subject)
    console.print(f"{deleted:,} calls deleted.", markup=False)
    if not deleted:
        print_note(
            "No recorded call is about this subject. A call is about whom its request names as user, "
            "metadata.user, metadata.user_id or safety_identifier, or its header X-Subject; names are "
            "compared letter by letter."
        )
    return 0 if deleted else 1


def _fields(version: "VersionCount") -> list[tuple[str, list[str]]]:
    """Each path with its types."""
    found: dict[str, list[str]] = {}
    for path, kind in version.fields:
        found.setdefault(path, []).append(kind)
    return list(found.items())


def _print_versions(versions: "list[VersionCount]") -> None:
    most = sorted(versions, key=lambda each: each.calls, reverse=True)[:_SHOWN]
    shown = [each for each in versions if each in most]
    rows = [
        (
            each.site,
            each.version,
            each.schema_name,
            each.model,
            each.calls,
            _day(each.began),
            _day(each.ended),
        )
        for each in shown
    ]
    header = ("site", "version", "schema", "model", "calls", "first", "last")
    print_table(header, rows, "By site and version")
    fields = [
        (each.site, each.version, path, " or ".join(kinds)) for each in shown for path, kinds in _fields(each)
    ]
    print_table(("site", "version", "field", "type"), fields, "Fields of the answers")
    if len(versions) > _SHOWN:
        print_note(
            f"{len(versions) - _SHOWN:,} more versions with fewer calls. Where each call opens one, its "
            "text stands in the system prompt."
        )


def _print_passed(passed: dict[tuple[str, str], int]) -> None:
    rows = [(protocol, reason, calls) for (protocol, reason), calls in sorted(passed.items())]
    print_table(("protocol", "reason", "calls"), rows, "Not mirrored")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


# In the order of their use, in which the help lists them.
app.command(serve)
app.command(import_calls, name="import")
for _command in (
    mirror_label.label, status, mirror_learn.understand, mirror_learn.train, promote, check, demote,
    mirror_learn.merge, mirror_label.relabel, forget, backup, guard,
):  # fmt: skip
    app.command(_command)
