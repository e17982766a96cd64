"""Which protocol's answers are written by what."""

from collections.abc import Callable

from bertsmith.mirror.formats import anthropic as anthropic_format
from bertsmith.mirror.formats import decisions, systemone
from bertsmith.mirror.formats import openai_chat as chat_format
from bertsmith.mirror.formats import openai_responses as responses_format
from bertsmith.mirror.writing import anthropic, openai_chat, openai_responses, questions
from bertsmith.mirror.writing.own_answer import OwnAnswer, Written

WRITERS: dict[str, Callable[[OwnAnswer], Written]] = {
    chat_format.NAME: openai_chat.write,
    responses_format.NAME: openai_responses.write,
    anthropic_format.NAME: anthropic.write,
    systemone.NAME: questions.write_systemone,
    decisions.NAME: questions.write_decisions,
}


def write(answer: OwnAnswer) -> Written:
    """In its protocol. Raises NotMirrored where the student can't give what the client asked for."""
    return WRITERS[answer.asked.protocol](answer)
