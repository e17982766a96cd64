"""The mirror under uvicorn, until a signal comes.

SIGTERM, Ctrl-C   no new connections; what was begun is relayed to its end, what was recorded is stored; exit
                  status 0. A second one ends at once.
"""

import json
import logging
import socket
import sys
from types import FrameType

import uvicorn

from bertsmith.errors import InputError
from bertsmith.serving.connections import connection_settings
from bertsmith.serving.json_log import LOG, log_to_stderr
from bertsmith.serving.mirror.app import MirrorApp
from bertsmith.serving.mirror.database import shown
from bertsmith.serving.mirror.settings import MirrorSettings, require_upstream
from bertsmith.serving.mirror.store import Store

_BACKLOG = 2048  # connections that wait to be accepted
# Seconds that the recorder's thread may hold the interpreter before the relay gets it. Python's own 5 ms
# would be seen in the relay's slowest answers.
_SWITCH = 0.0002


def serve(settings: MirrorSettings) -> None:
    """Serves until a signal comes. Raises RecipeError without an upstream, InputError for an address that
    can't be used and as `Store`.
    """
    require_upstream(settings)
    with _listening(settings) as listener:
        store = Store(settings.store)
        log_to_stderr()
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        sys.setswitchinterval(_SWITCH)
        host, port = listener.getsockname()[:2]
        _announce(settings, f"http://{f'[{host}]' if ':' in host else host}:{port}")
        listener.listen(_BACKLOG)
        _Server(settings, MirrorApp(settings, store)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's own ends by the signal that it caught, with its status; ours drains and ends with 0."""

    def __init__(self, settings: MirrorSettings, app: MirrorApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,  # the upstream's own are passed on
                lifespan="on",
                timeout_graceful_shutdown=int(settings.drain_seconds),
                **connection_settings(),
            )
        )
        self.app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, between two steps of the loop."""
        self.force_exit = self.app.leaving
        self.app.leaving = self.should_exit = True


def _is_no_cut(record: logging.LogRecord) -> bool:
    """An answer that the upstream cut is passed on cut: uvicorn takes it for a fault of the application."""
    return "without completing response" not in record.getMessage()


def _listening(settings: MirrorSettings) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        listener.close()
        raise InputError(
            f"{settings.host}:{settings.port} can't be listened on: "
            f"{getattr(error, 'strerror', None) or error}. Choose another --port or --host; "
            "--port 0 takes a free one."
        ) from None
    return listener


def _announce(settings: MirrorSettings, address: str) -> None:
    """For people on a terminal; a line of JSON elsewhere, as all that follows."""
    store = shown(settings.store)
    if not sys.stderr.isatty():
        told = json.loads(settings.model_dump_json()) | {"store": store}
        LOG.info("mirroring", extra={"facts": {"message": "mirroring", "address": address, "settings": told}})
        return
    print(f"\nMirroring on {address}, recording into {store}  (Ctrl-C stops)\n", file=sys.stderr)
    print(f"  OPENAI_BASE_URL={address}/v1\n  ANTHROPIC_BASE_URL={address}\n", file=sys.stderr)
