"""When the LLM has answered a call, though not as a student would have; and when it may answer another time.

It holds alike for calls that were relayed, in shadow and in canary, and for audits: else what one of them
finds could not be added to what another does.
"""

# Of an answer with status 200.
_ANSWERED_OTHERWISE = (
    "refusal", "truncated", "content-filter", "answer-not-json", "no-tool-call", "other-tool", "tool-call",
    "several-tool-calls", "no-answer", "malformed-answer", "content-type", "too-large",
)  # fmt: skip
_STATUS = "status-"
_OF_THE_CALL = (400, 403, 413, 422, 451)  # others are of the key, the bill or the address, whatever was asked
_LATER = (408, 409, 425, 429, *range(500, 600))


def reason_of(status: int) -> str:
    """status-404"""
    return f"{_STATUS}{status}"


def may_answer_later(status: int) -> bool:
    """Another try may have another status."""
    return status in _LATER


def refuses_the_call(status: int) -> bool:
    """The LLM won't answer this call, now or later, whoever asks."""
    return status in _OF_THE_CALL


def is_refusal(reason: str) -> bool:
    """Of what is known of an answer, `reason` says why a student's can't agree with it."""
    return reason in _ANSWERED_OTHERWISE or reason.startswith(_STATUS)
