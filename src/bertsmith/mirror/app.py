"""The mirror as an ASGI application, and `bertsmith mirror serve`: paths of its own, all others relayed.

GET /bertsmith/health   200 while it relays; 503 on its way out
GET /bertsmith/status   how many calls are stored, wait, and were lost
/bertsmith/…            the page
"""

import asyncio
import time

from starlette.types import Receive, Scope, Send

from bertsmith.mirror.answering.reconciler import Pace, Reconciler, StudentOpener, open_student
from bertsmith.mirror.answering.service import MirrorService
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.training_process import Command, Trainer, train_command
from bertsmith.mirror.database import mask_password
from bertsmith.mirror.formats.registry import find_formats
from bertsmith.mirror.page.page import ROOT, MirrorPage, is_of_page
from bertsmith.mirror.page.state import StateReader
from bertsmith.mirror.recorder import Recorder
from bertsmith.mirror.relay import Relay
from bertsmith.mirror.relay_server import RelayApp, run
from bertsmith.mirror.settings import MirrorSettings, require_upstream
from bertsmith.mirror.store import Store
from bertsmith.serving import LOG
from bertsmith.serving.http_server import bind_socket

_AT_LEAST = 1.0  # seconds for the store when the mirror stops


class MirrorApp(RelayApp):
    """`opening` opens a student's folder, `train` says what trains one, `pace` how often the evidence is
    looked at.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        store: Store,
        opening: StudentOpener = open_student,
        train: Command = train_command,
        pace: Pace | None = None,
    ) -> None:
        self.settings, self.store = settings, store
        stages = StageStore(store)
        trainer = Trainer(settings, stages, train)
        self.reconciler = Reconciler(settings, stages, trainer, opening, pace)
        self.recorder = Recorder(
            store,
            settings.redactor,
            settings.queue_bytes,
            settings.retention_days,
            self.reconciler.ledger.outcome,
        )
        service = MirrorService(settings, self.reconciler, settings.redactor)
        self.relay = Relay(settings, self.recorder, service, stages)
        self.page = MirrorPage(settings, StateReader(store, settings), self.facts)

    async def relay_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Or one of the page."""
        if is_of_page(scope["path"]):
            await self.page(scope, receive, send)
        else:
            await self.relay(scope, receive, send)

    async def start(self) -> None:
        """The recorder, and what follows the evidence."""
        self.recorder.start()
        await asyncio.to_thread(self.reconciler.start)

    async def stop(self) -> None:
        """Audits, the recorder and the reconciler share the time that is left."""
        await self.relay.close(self._left())
        # However late it is, a store that works is given what waits.
        lost = await asyncio.to_thread(self.recorder.close, max(self._left(), _AT_LEAST))
        await asyncio.to_thread(self.reconciler.close, max(self._left(), _AT_LEAST))
        self.store.close()
        facts = {"message": "stopped", "stored": self.recorder.stored, "lost": lost + self.recorder.dropped}
        LOG.log(40 if facts["lost"] else 20, "stopped", extra={"facts": facts})

    def _left(self) -> float:
        """Seconds of those for all that was begun."""
        return min(max(self.ends_at - time.monotonic(), 0.0), self.settings.drain_seconds)

    def facts(self) -> dict[str, object]:
        """What this process has to say, beside the store."""
        recorder, students = self.recorder, self.reconciler.open_students.by_version
        answering = {version: each.is_answering for version, each in students.items() if each.stage.answers}
        return {
            "under_way": self.relay.under_way,
            "stored": recorder.stored,
            "waiting": recorder.waiting,
            "waiting_seconds": round(recorder.waiting_seconds, 3),
            "dropped": recorder.dropped,
            "failed": recorder.failed,
            "store_problem": recorder.problem or self.store.problem or None,
            "answering": sorted(version for version, answers in answering.items() if answers),
            "failing": sorted(version for version, answers in answering.items() if not answers),
            "merged": {
                version: each.stage.version
                for version, each in sorted(students.items())
                if each.stage.version != version
            },
            "audits_waiting": self.relay.audits.waiting,
        }


def serve(settings: MirrorSettings) -> None:
    """Serves until a signal comes. Raises RecipeError without an upstream, InputError for an address that
    can't be used and as `Store`.
    """
    require_upstream(settings, "bertsmith mirror serve")
    find_formats(settings.format)  # refuses one that isn't there before a store is made
    with bind_socket(settings.host, settings.port) as listener:
        app, store = MirrorApp(settings, Store(settings.store)), mask_password(settings.store)
        told = settings.model_dump(mode="json") | {"store": store}
        run(settings, app, listener, doing="mirroring", into=f"recording into {store}", told=told, page=ROOT)
