"""The guard, until a signal comes."""

import json
import sys

from bertsmith.mirror.guard.app import GuardApp
from bertsmith.mirror.guard.judge import Judge
from bertsmith.mirror.guard.policy import GuardSettings
from bertsmith.mirror.relay_server import run
from bertsmith.mirror.relay_settings import require_upstream
from bertsmith.serving import LOG
from bertsmith.serving.http_server import listening


def serve_guard(settings: GuardSettings) -> None:
    """Serves until a signal comes. Raises RecipeError without an upstream and for labels that the model
    doesn't have, ModelError for the model, InputError for an address or a log that can't be used.
    """
    require_upstream(settings, "bertsmith mirror guard --policy policy.toml")
    with listening(settings.host, settings.port) as listener:
        app = GuardApp(settings, Judge(settings.model, settings.judge_seconds))
        run(settings, app, listener, lambda address: _announce(settings, address))


def _announce(settings: GuardSettings, address: str) -> None:
    """For people on a terminal; a line of JSON elsewhere, as all that follows."""
    if not sys.stderr.isatty():
        told = json.loads(settings.model_dump_json())
        LOG.info("guarding", extra={"facts": {"message": "guarding", "address": address, "settings": told}})
        return
    print(f"\nGuarding on {address}, deciding into {settings.log}  (Ctrl-C stops)\n", file=sys.stderr)
    print(f"  OPENAI_BASE_URL={address}/v1\n  ANTHROPIC_BASE_URL={address}\n", file=sys.stderr)
