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
        The base URL that the application had, for all that no other address is for.
    openai_base_url
        For OpenAI's protocols.
    anthropic_base_url
        For Anthropic's messages.
    systemone_base_url
        For System One.
    upstream_timeout_seconds
        How long the upstream may send nothing: 600 unless said.
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
        A file, mirror.sqlite unless said, or postgresql://user:password@host/name.
    redact
        Which rules of ours are used, with commas between: email,api-key,iban,credit-card,ip,phone, all unless
        said; '' for none.
    retention_days
        Calls older than this are deleted; none are unless said.
    max_recorded_bytes
        Of a request and of an answer; larger ones are relayed alone.
    queue_bytes
        Of calls that wait to be stored; beyond it calls are relayed and not recorded.
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
        Train students, and have them answer, without a hand: as far as the evidence goes.
    epsilon
        The largest share of a student's answers that may differ from the LLM's: 0.05 unless said.
    delta
        The probability that a claim is wrong although its assumptions hold: 0.05 unless said.
    students
        The folder that students are trained into: students unless said.
    train_after
        Calls of a version that its first student is trained on, at least: 500 unless said.
    canary_share
        Of the sure calls that are answered in canary: 0.1 unless said.
    audit_share
        Of what a student answers that is put to the LLM too: 0.05 unless said.
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
        Lines of NAME KEY, or NAME KEY admin for who may change modes. Without it the page is shown on this
        machine alone.
    page_texts
        Show texts of calls, as they are stored, where a student and the LLM differ.
    """

    page_keys_file: Path | None = None
    page_texts: bool | None = None
