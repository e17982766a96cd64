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
    """Stand in front of an LLM, and let a classifier of yours say what may pass, there and back.

    The application changes its base URL. What the policy blocks is answered with status 403 in the protocol's
    own envelope; what it has reviewed passes, and stands in the log. Answers that are judged are held back
    until they are whole.

    Parameters
    ----------
    policy
        A TOML file: model, fail, and the sections request and response with block, review and costs.
    model
        The classifier's folder or name, in place of the policy's.
    fail
        What becomes of what can't be judged, in place of the policy's: it passes (open), or not (closed).
    log
        A line of JSON for each decision: guard.jsonl unless said.
    log_texts
        Write the texts too.
    judge_seconds
        What takes longer can't be judged: 1 unless said.
    host
        The address to listen on: 127.0.0.1, this machine alone, unless said.
    port
        8200 unless said; 0 takes a free one.
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
