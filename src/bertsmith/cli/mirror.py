"""`bertsmith mirror`: all its commands, and the two that relay calls to an LLM: serve, guard.

Calls are imported, labelled and forgotten in mirror_calls.py; mirror_learn.py learns from them; who answers
is decided and shown in mirror_stages.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from bertsmith.cli import mirror_calls, mirror_learn, mirror_stages
from bertsmith.cli.mirror_calls import StoreOptions, read_mirror_settings, require_mirror
from bertsmith.cli.options import Flag, collect_options
from bertsmith.cli.screen import print_json
from bertsmith.errors import require


@Parameter(name="*")
@dataclass(frozen=True)
class UpstreamOptions:
    """Where calls go.

    Parameters
    ----------
    upstream
        The base URL that the application had. Used for every protocol without a URL of its own.
    openai_base_url
        The base URL for OpenAI's protocols.
    anthropic_base_url
        The base URL for Anthropic's messages.
    systemone_base_url
        The base URL for System One.
    upstream_timeout_seconds
        Seconds for which the LLM's server may send nothing. Default: 600.
    format
        A wire format of your own, as module:Class; several, separated by commas. See
        docs/add-a-format-or-route.md.
    """

    upstream: str | None = None
    openai_base_url: str | None = None
    anthropic_base_url: str | None = None
    systemone_base_url: str | None = None
    upstream_timeout_seconds: float | None = None
    format: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class RecordingOptions:
    """What is kept, and where.

    Parameters
    ----------
    store
        The store: a file, or postgresql://user:password@host/name. Default: mirror.sqlite.
    redact
        Built-in redaction rules to use, separated by commas: email,api-key,iban,credit-card,ip,phone. By
        default all; '' for none.
    retention_days
        Delete calls after so many days. By default they stay.
    max_recorded_bytes
        Bytes per request, and per answer. Longer ones are relayed, but not recorded. Default: 4000000.
    queue_bytes
        Bytes of calls that may wait to be stored. When the queue is full, calls are relayed, but not
        recorded. Default: 64000000.
    """

    store: str | None = None
    redact: str | None = None
    retention_days: float | None = None
    max_recorded_bytes: int | None = None
    queue_bytes: int | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class AnsweringOptions:
    """When a student answers.

    Parameters
    ----------
    auto
        Train students, and let them answer, without asking you: as far as the evidence goes.
    epsilon
        The largest share of a student's answers that may differ from the LLM's. Default: 0.05.
    delta
        The probability that this guarantee is wrong although its assumptions hold. Default: 0.05, for 95 %
        confidence.
    students
        The folder for trained students. Default: students.
    train_after
        Calls of a version before its first student is trained. Default: 500.
    replay_calls
        With --auto: how many recorded inputs the LLM is asked again after its prompt or model has changed,
        two beside each call, with that call's key, so that a student is proven sooner. Each costs a call; 0
        for none. Default: 800.
    canary_share
        In canary: the share of the calls it is sure of that the student answers. Default: 0.1.
    audit_share
        The share of a student's answers for which the LLM is asked too. Default: 0.05.
    """

    auto: bool | None = None
    epsilon: float | None = None
    delta: float | None = None
    students: str | None = None
    train_after: int | None = None
    replay_calls: int | None = None
    canary_share: float | None = None
    audit_share: float | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class PageOptions:
    """Who may look at the page, and at what.

    Parameters
    ----------
    page_keys_file
        A file with a line NAME KEY for each person who may see the page, or NAME KEY admin for one who may
        change modes. Without it, the page is shown on this machine alone.
    page_texts
        Show texts of calls, as stored, on which a student and the LLM differ. Off by default.
    """

    page_keys_file: Path | None = None
    page_texts: bool | None = None


def serve(
    *,
    upstreams: Annotated[UpstreamOptions | None, Parameter(group="The LLM")] = None,
    recording: Annotated[RecordingOptions | None, Parameter(group="What is recorded")] = None,
    answering: Annotated[AnsweringOptions | None, Parameter(group="When a student answers")] = None,
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
    own = {"host": host, "port": port, "drain_seconds": drain_seconds, "log_requests": log_requests}
    settings = read_mirror_settings(
        StoreOptions(config=config), **own, **collect_options(upstreams, recording, answering, page)
    )
    if show_settings:
        from bertsmith.mirror.database import mask_password

        print_json(settings.model_dump(mode="json") | {"store": mask_password(settings.store)})
        return
    require("uvicorn", "mirror", "The mirror")
    from bertsmith.mirror.app import serve as run

    run(settings)


def guard(
    *,
    policy: Path,
    upstreams: Annotated[UpstreamOptions | None, Parameter(group="The LLM")] = None,
    model: str | None = None,
    fail: Literal["open", "closed"] | None = None,
    log: Path | None = None,
    log_texts: bool | None = None,
    judge_seconds: float | None = None,
    host: str | None = None,
    port: int | None = None,
    show_settings: Flag = False,
) -> None:
    """Put a classifier in front of an LLM: it decides what may pass, in both directions.

    You change the application's base URL. What the policy blocks is answered with status 403, in the
    protocol's own format. What it marks for review passes, and is logged. An answer is held back until it is
    complete and judged.

    Parameters
    ----------
    policy
        A TOML file: model, fail, and the sections request and response with block, review and costs.
    model
        The classifier's folder or name, instead of the policy's.
    fail
        What happens if a text can't be judged, instead of what the policy says: open lets it pass, closed
        blocks it.
    log
        The file for decisions, one line of JSON each. Default: guard.jsonl.
    log_texts
        Write the texts to the log too. Off by default.
    judge_seconds
        Seconds after which a text counts as one that can't be judged. Default: 1.
    host
        Address to listen on. Default: 127.0.0.1, reached from this machine alone.
    port
        Default: 8200; 0 takes a free one.
    show_settings
        Print all settings as JSON and stop.

    Examples
    --------
    bertsmith mirror guard --policy policy.toml --upstream https://api.openai.com/v1

    bertsmith mirror guard --policy policy.toml --anthropic-base-url https://api.anthropic.com --fail closed
    """
    require_mirror("The guard")
    from bertsmith.mirror.guard.policy import read_policy

    own = {
        "model": model,
        "fail": fail,
        "log": None if log is None else str(log),
        "log_texts": log_texts,
        "judge_seconds": judge_seconds,
        "host": host,
        "port": port,
    }
    settings = read_policy(policy, own | collect_options(upstreams))
    if show_settings:
        print_json(settings.model_dump(mode="json"))
        return
    require("uvicorn", "mirror", "The guard")
    from bertsmith.mirror.guard.app import serve_guard

    serve_guard(settings)


app = App(name="mirror", help="Record an LLM's answers, learn from them, and answer in its place.")

# In the order of their use, in which the help lists them.
app.command(serve)
app.command(mirror_learn.plan)
app.command(mirror_calls.import_calls, name="import")
app.command(mirror_calls.label)
app.command(mirror_stages.status)
app.command(mirror_learn.understand)
app.command(mirror_learn.train)
app.command(mirror_learn.set_risk, name="set")
app.command(mirror_stages.promote)
app.command(mirror_stages.check)
app.command(mirror_stages.demote)
app.command(mirror_calls.merge)
app.command(mirror_calls.relabel)
app.command(mirror_calls.migrate)
app.command(mirror_calls.forget)
app.command(mirror_calls.backup)
app.command(guard)
