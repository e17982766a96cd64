"""Which calls belong together, and which are the same call.

site      a place in the application: what the client's header says, else the protocol with the schema's
          name and fields, so that a site stays itself when its prompt is mended or a label is added
version   one prompt, schema and model of a site
content   equal for equal calls, wherever they were read
"""

import hashlib
import re
from typing import Any

import orjson

from bertsmith.serving.mirror.call import Answered, Asked

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_LENGTH = 12  # hexadecimal digits: two of a million sites meet with a chance of 1 in 560


def site_of(asked: Asked, named: str = "") -> str:
    """`named` is the header's value; one that isn't a name counts as none."""
    if _NAMED.fullmatch(named):
        return named
    properties = asked.schema.get("properties")
    fields = sorted(properties) if isinstance(properties, dict) else []
    return _fingerprint([asked.protocol, asked.schema_name, fields])[:_LENGTH]


def version_of(asked: Asked, site: str) -> str:
    """Of a site."""
    system = [[each.role, *each.parts] for each in asked.system]
    return _fingerprint([site, asked.protocol, asked.way, asked.model, asked.schema, system])[:_LENGTH]


def content_of(asked: Asked, answered: Answered) -> str:
    """What was asked and answered, the provider's own name of the answer among it."""
    messages = [[each.role, *each.parts] for each in asked.messages]
    said = [asked.protocol, asked.model, asked.schema, messages, answered.response_id, answered.value]
    return _fingerprint(said)[:32]


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
