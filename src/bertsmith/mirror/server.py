"""The mirror, until a signal comes."""

import json
import sys

from bertsmith.mirror.app import MirrorApp
from bertsmith.mirror.database import shown
from bertsmith.mirror.relay_server import run
from bertsmith.mirror.relay_settings import require_upstream
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.store import Store
from bertsmith.serving import LOG
from bertsmith.serving.http_server import listening


def serve(settings: MirrorSettings) -> None:
    """Serves until a signal comes. Raises RecipeError without an upstream, InputError for an address that
    can't be used and as `Store`.
    """
    require_upstream(settings, "bertsmith mirror serve")
    with listening(settings.host, settings.port) as listener:
        app = MirrorApp(settings, Store(settings.store))
        run(settings, app, listener, lambda address: _announce(settings, address))


def _announce(settings: MirrorSettings, address: str) -> None:
    """For people on a terminal; a line of JSON elsewhere, as all that follows."""
    store = shown(settings.store)
    if not sys.stderr.isatty():
        told = json.loads(settings.model_dump_json()) | {"store": store}
        LOG.info("mirroring", extra={"facts": {"message": "mirroring", "address": address, "settings": told}})
        return
    print(f"\nMirroring on {address}, recording into {store}  (Ctrl-C stops)\n", file=sys.stderr)
    print(f"  OPENAI_BASE_URL={address}/v1\n  ANTHROPIC_BASE_URL={address}\n", file=sys.stderr)
    print(f"  What it does: {address}/bertsmith/\n", file=sys.stderr)
