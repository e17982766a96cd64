"""Which format a request is in: by the end of its path."""

from typing import cast

from bertsmith.serving.mirror.formats import anthropic, decisions, openai_chat, openai_responses, systemone
from bertsmith.serving.mirror.formats.wire_format import WireFormat

FORMATS = cast(tuple[WireFormat, ...], (openai_chat, openai_responses, anthropic, systemone, decisions))
_BARE = {"/messages": cast(WireFormat, anthropic)}  # whole paths
BY_NAME = {each.NAME: each for each in FORMATS}


def format_of(method: str, path: str) -> WireFormat | None:
    """None for what can't be mirrored, as lists of models or files."""
    if method != "POST":
        return None
    return _BARE.get(path) or next((each for each in FORMATS if path.endswith(each.PATH)), None)
