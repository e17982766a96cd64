"""Options of the mirror's commands, in groups."""

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True)
class Upstreams:
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
    """

    upstream: str | None = None
    openai_base_url: str | None = None
    anthropic_base_url: str | None = None
    systemone_base_url: str | None = None
    upstream_timeout_seconds: float | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class Recording:
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
class Answering:
    """When a student answers.

    Parameters
    ----------
    auto
        Train students, and let them answer, without asking you: as far as the evidence goes.
    epsilon
        The largest share of a student's answers that may differ from the LLM's. Default: 0.05.
    delta
        The probability that a claim is wrong although its assumptions hold. Default: 0.05.
    students
        The folder for trained students. Default: students.
    train_after
        Calls of a version before its first student is trained. Default: 500.
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
