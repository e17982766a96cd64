"""Whose turn it is: the student's or the LLM's. Asked by the relay for each call that may be mirrored."""

import random
from collections.abc import Mapping
from dataclasses import replace

from bertsmith.serving.mirror.answering.keeper import Keeper
from bertsmith.serving.mirror.answering.known_keys import KnownKeys
from bertsmith.serving.mirror.answering.panel import Playing
from bertsmith.serving.mirror.answering.understudy import CantAnswer, Understudy
from bertsmith.serving.mirror.call import Asked
from bertsmith.serving.mirror.identity import version_of
from bertsmith.serving.mirror.redaction import Redactor
from bertsmith.serving.mirror.settings import MirrorSettings
from bertsmith.serving.mirror.turn import Turn


class Service:
    """`seed` makes its draws repeatable, where one client asks one call after the other."""

    def __init__(self, settings: MirrorSettings, keeper: Keeper, redactor: Redactor) -> None:
        self.settings, self.keeper, self.redactor = settings, keeper, redactor
        self.keys = KnownKeys()
        self._draw = random.Random(settings.seed)

    @property
    def answers(self) -> bool:
        """Some call might be ours, and bodies are to be read before they are sent on."""
        return self.keeper.panel.answers

    async def turn(
        self,
        asked: Asked,
        site: str,
        headers: Mapping[bytes, bytes],
        *,
        can_audit: bool,
        query: bytes = b"",
    ) -> Turn | None:
        """None where no student answers at this site: then nothing is different from recording. The audit is
        drawn here, before anybody is asked; `can_audit`: there is room for it. `headers` and `query` are the
        client's.
        """
        panel = self.keeper.panel
        if site not in panel.answering:
            return None
        asked = self.redactor.begin().asked(asked)
        version = version_of(asked, site)
        playing = panel.playing.get(version)
        if playing is None or not playing.stage.answers:
            return Turn(version, "", panel.why_new(site, asked))
        share = self.settings.audit_share
        to_llm = playing.stage.sent_to_llm(share)
        if not self.keys.has(headers, query):
            return Turn(version, playing.stage.student, "new-key", least=to_llm)
        turn = await self._asked(asked, version, playing)
        turn = replace(turn, probability=to_llm if turn.is_sure else 1.0, least=to_llm)
        if not turn.is_ours:
            return turn
        if not can_audit:  # what isn't audited is not answered; nobody could be sent to the LLM less often
            return replace(turn, reason="audits-behind", probability=1.0, least=1.0)
        if self._draw.random() >= playing.stage.share:
            return replace(turn, reason="canary")
        return replace(turn, audit="drawn") if self._draw.random() < share else turn

    async def _asked(self, asked: Asked, version: str, playing: Playing) -> Turn:
        stage, student = playing.stage, playing.student
        turn = Turn(stage.version, stage.student)
        if student is None:
            return replace(turn, reason="student-failed")
        text = student.student.input_of(asked, version)
        if text is None:
            return replace(turn, reason="new-template")
        try:
            return await self._answered(turn, student, text)
        except CantAnswer as found:
            return replace(turn, reason=found.reason)

    async def _answered(self, turn: Turn, student: Understudy, text: str) -> Turn:
        answer = await student.answer(text, self.settings.answer_seconds)
        turn = replace(
            turn,
            confidence=answer.confidence,
            values=answer.values,
            answer=answer.answer,
            probabilities=answer.probabilities,
            is_sure=answer.is_sure,
        )
        return turn if answer.is_sure else replace(turn, reason=answer.reason)
