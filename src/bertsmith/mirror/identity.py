"""Which calls belong together, and which are the same call.

site      a place in the application: what the client's header says, else the protocol with the schema's
          name and fields, so that a site stays itself when its prompt is mended or a label is added
version   of a site: one prompt, schema with its name and descriptions, model, and choice of tools
content   equal for equal calls, wherever they were read
"""

import hashlib
import re
from typing import Any

import orjson

from bertsmith.errors import InputError
from bertsmith.mirror.call import Answered, Asked

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
# Of a request's parameters, in whatever protocol.
_READ_BY_MODEL = ("response_format", "output_format", "tools", "tool_choice")
_WITH_FORMAT = ("text", "output_config")
_LENGTH = 12  # hexadecimal digits: two of a million sites meet with a chance of 1 in 560


def site_of(asked: Asked, named: str = "") -> str:
    """`named` is the header's value; one that isn't a name counts as none."""
    if _NAMED.fullmatch(named):
        return named
    properties = asked.schema.get("properties")
    fields = sorted(properties) if isinstance(properties, dict) else []
    return _fingerprint([asked.protocol, asked.schema_name, fields])[:_LENGTH]


def require_name(named: str, what: str) -> None:
    """For whoever can be told. Raises InputError for what `site_of` takes for no name."""
    if not _NAMED.fullmatch(named):
        raise InputError(
            f"{what} {named[:80]!r} is no name. Expected at most 64 letters, digits, _, . and -, "
            "the first one of A to Z or a digit."
        )


def version_of(asked: Asked, site: str) -> str:
    """Of a site."""
    system = [[each.role, *each.parts] for each in asked.system]
    said = [site, asked.protocol, asked.way, asked.model, asked.schema, system]
    return _fingerprint([*said, asked.schema_name, _instructions(asked)])[:_LENGTH]


def _instructions(asked: Asked) -> dict[str, Any]:
    """What else the model reads that tells it what to answer: descriptions beside the schema, all tools, and
    which of them it may call. Settings of the text that stand beside its format aren't among it.
    """
    found = {name: asked.parameters[name] for name in _READ_BY_MODEL if name in asked.parameters}
    for name in _WITH_FORMAT:
        beside = asked.parameters.get(name)
        if isinstance(beside, dict) and "format" in beside:
            found[name] = beside["format"]
    return found


def import_of(content: str, began: float) -> str:
    """An imported call whose answer has no name of its own: the same may have been said at another time."""
    return _fingerprint([content, began])[:32]


def content_of(asked: Asked, answered: Answered) -> str:
    """What was asked and answered, the provider's own name of the answer among it."""
    messages = [[each.role, *each.parts] for each in asked.messages]
    said = [asked.protocol, asked.model, asked.schema, messages, answered.response_id, answered.value]
    return _fingerprint(said)[:32]


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
