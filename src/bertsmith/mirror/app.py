"""The mirror as an ASGI application, and `bertsmith mirror serve`. It answers the paths below and relays all
others. Read `MirrorApp` first.

GET /bertsmith/health   200 while it relays; 503 while it stops
GET /bertsmith/status   how many calls were stored, wait to be stored, and were lost
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

_MIN_STORE_SECONDS = 1.0  # for the store when the mirror stops, however late it is


class MirrorApp(RelayApp):
    """The mirror: relay, recorder, reconciler and page over one store.

    `opening` opens a student's folder; `train` returns the command that trains a student; `pace` says how
    often the reconciler looks at the evidence.
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
        """Answers a request for the page, and relays all others."""
        if is_of_page(scope["path"]):
            await self.page(scope, receive, send)
        else:
            await self.relay(scope, receive, send)

    async def start(self) -> None:
        """Starts the recorder and the reconciler."""
        self.recorder.start()
        await asyncio.to_thread(self.reconciler.start)

    async def stop(self) -> None:
        """Stops the audits, the recorder and the reconciler, which share the time that is left."""
        await self.relay.close(self._seconds_left())
        lost = await asyncio.to_thread(self.recorder.close, max(self._seconds_left(), _MIN_STORE_SECONDS))
        await asyncio.to_thread(self.reconciler.close, max(self._seconds_left(), _MIN_STORE_SECONDS))
        self.store.close()
        facts = {"message": "stopped", "stored": self.recorder.stored, "lost": lost + self.recorder.dropped}
        LOG.log(40 if facts["lost"] else 20, "stopped", extra={"facts": facts})

    def _seconds_left(self) -> float:
        """How much of the time to stop is left."""
        return min(max(self.ends_at - time.monotonic(), 0.0), self.settings.drain_seconds)

    def facts(self) -> dict[str, object]:
        """The state of this process as JSON: its recorder, its students and its audits."""
        recorder, students = self.recorder, self.reconciler.open_students.by_version
        answering = {
            version: student.is_answering
            for version, student in students.items()
            if student.stage.student_answers
        }
        return {
            "under_way": self.relay.under_way,
            "stored": recorder.stored,
            "waiting": recorder.waiting,
            "waiting_seconds": round(recorder.waiting_seconds, 3),
            "dropped": recorder.dropped,
            "failed": recorder.failed,
            "store_problem": recorder.problem or self.store.problem or None,
            "answering": sorted(version for version, is_answering in answering.items() if is_answering),
            "failing": sorted(version for version, is_answering in answering.items() if not is_answering),
            "merged": {
                version: student.stage.version
                for version, student in sorted(students.items())
                if student.stage.version != version
            },
            "audits_waiting": self.relay.audits.waiting,
            "replays_waiting": self.relay.replays.waiting,
        }


def serve(settings: MirrorSettings) -> None:
    """Runs the mirror until a signal comes. Raises RecipeError without an upstream, and InputError if the
    address can't be listened on or the store can't be opened.
    """
    require_upstream(settings, "bertsmith mirror serve")
    find_formats(settings.format)  # raises for one that can't be imported, before a store is created
    with bind_socket(settings.host, settings.port) as listener:
        app, store = MirrorApp(settings, Store(settings.store)), mask_password(settings.store)
        run(
            settings,
            app,
            listener,
            activity="mirroring",
            destination=f"recording into {store}",
            logged_settings=settings.model_dump(mode="json") | {"store": store},
            page=ROOT,
        )
