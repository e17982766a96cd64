"""`bertsmith mirror guard`: a relay that allows, reviews or blocks what goes through."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bertsmith.cli.mirror_options import Upstreams
from bertsmith.cli.mirror_store import require_mirror
from bertsmith.cli.options import Flag, given
from bertsmith.cli.screen import print_json


def guard(
    *,
    policy: Path,
    upstreams: Annotated[Upstreams | None, Parameter(group="The LLM")] = None,
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
    from bertsmith.errors import require
    from bertsmith.serving.mirror.guard.policy import read_policy

    own = {
        "model": model,
        "fail": fail,
        "log": None if log is None else str(log),
        "log_texts": log_texts,
        "judge_seconds": judge_seconds,
        "host": host,
        "port": port,
    }
    settings = read_policy(policy, own | given(upstreams))
    if show_settings:
        print_json(settings.model_dump(mode="json"))
        return
    require("uvicorn", "mirror", "The guard")
    from bertsmith.serving.mirror.guard.server import serve_guard

    serve_guard(settings)
