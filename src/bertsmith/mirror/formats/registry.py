"""Which format a request is in: by the end of its path."""

import re
from typing import cast
from urllib.parse import unquote

from bertsmith.mirror.formats import anthropic, decisions, openai_chat, openai_responses, systemone
from bertsmith.mirror.formats.wire_format import WireFormat

FORMATS = cast(tuple[WireFormat, ...], (openai_chat, openai_responses, anthropic, systemone, decisions))
_ENDS = "|".join(re.escape(each.PATH) for each in FORMATS)
_NAMED = re.compile(rf"/(?:deployments|engines|models)/(?P<model>.+?)(?:/v\d+)?(?:{_ENDS}|/messages)$")
_BARE = {"/messages": cast(WireFormat, anthropic)}  # whole paths
BY_NAME = {each.NAME: each for each in FORMATS}


def model_of_path(path: str) -> str:
    """What a path names, as those of Azure do; empty for none.

    /openai/deployments/intents/chat/completions    intents
    /models/org/name/v1/chat/completions            org/name
    """
    found = _NAMED.search(path.partition("?")[0])
    return unquote(found["model"]) if found else ""


def format_of(method: str, path: str) -> WireFormat | None:
    """None for what can't be mirrored, as lists of models or files."""
    if method != "POST":
        return None
    path = path.partition("?")[0]  # of an address in a log
    return _BARE.get(path) or next((each for each in FORMATS if path.endswith(each.PATH)), None)
