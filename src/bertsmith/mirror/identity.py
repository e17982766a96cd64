"""Which calls belong together, and which are the same call.

site      a place in the application: what the client's header says, else the protocol with the schema's
          name and fields, so that a site stays itself when its prompt is mended or a label is added
version   of a site: one prompt, schema with its name and descriptions, model, and choice of tools
content   equal for equal calls, wherever they were read

What varies in a system prompt though nobody changed it, the clock, ids, counters, the user's name, becomes a
name in its place, «date», so that the calls are of one version, and whoever looks at the prompt sees what was
taken for what. Other numbers and words stay: where they change, the prompt does.
"""

import hashlib
import re
from functools import lru_cache, partial
from typing import Any

import orjson

from bertsmith.errors import InputError
from bertsmith.mirror.call import Completion, CompletionRequest

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
# Of a request's parameters, in whatever protocol.
_READ_BY_MODEL = ("response_format", "output_format", "tools", "tool_choice")
_WITH_FORMAT = ("text", "output_config")
_LENGTH = 12  # hexadecimal digits: two of a million sites meet with a chance of 1 in 560
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
    # German, French, Spanish, Italian, Portuguese and Dutch
    r"|Januar|Februar|März|Mai|Juni|Juli|Okt(?:ober)?|Dez(?:ember)?"
    r"|janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre"
    r"|enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre"
    r"|gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|novembre|dicembre"
    r"|janeiro|fevereiro|março|maio|junho|julho|setembro|outubro|novembro|dezembro"
    r"|januari|februari|maart|mei|augustus)\.?"
)
_DAY = (
    r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
    r"|(?:Mon|Diens|Donners|Frei|Sams|Sonn)tag|Mittwoch|Sonnabend"
    r"|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche"
    r"|lunes|martes|miércoles|jueves|viernes|sábado|domingo"
    r"|lunedì|martedì|mercoledì|giovedì|venerdì|sabato|domenica"
    r"|(?:segunda|terça|quarta|quinta|sexta)-feira"
    r"|(?:maan|dins|woens|donder|vrij|zater|zon)dag)"
)
_ITEM = "(?:request|call|session|conversation|ticket|message|turn|run|order|trace|case|job|attempt|visitor)"
_PERSON = "(?:user|customer|client|account|tenant|employee|agent|caller)"
# A line that says no more than who it is, or which: not "Message: …", which may be the input itself.
_LINE = (
    rf"(?:{_ITEM}|{_PERSON})[ _-]?(?:id|name|number|no|nr|count|key|token)\.?"
    "|nonce|counter|uptime|username|now"
)
_NAME = r"[^\W\d_a-z][\w'’-]*(?: [^\W\d_a-z][\w'’-]*){0,3}"  # words with a capital
_IS = r"(?:['’]s name is | name is | is | called | named | is called | is named )"
# In this order: what is longer, or surer, goes first. `kept` stands before what varies, `after` behind it.
_PARTS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("uuid", r"(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
        (
            "time",
            r"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
            r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?(?!\w)",
        ),
        (
            "date",
            rf"(?i)(?<![\d.])(?:\b{_DAY},? )?(?:den |le |el )?"
            r"(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4}"
            rf"|\d\d?(?:st|nd|rd|th|er)?\.? (?:of |de )?{_MONTH},? (?:del? )?\d{{4}}"
            r"|\d\d?/\d\d?/\d\d(?![/\d])|\d{4}-W\d\d(?:-[1-7])?"
            rf"|\b{_MONTH} \d\d?(?:st|nd|rd|th)?,? \d{{4}}"
            r"|\d{4}年\d\d?月\d\d?日)(?!\d)",
        ),
        (
            "time",
            r"(?<![\d:])[0-2]?\d:[0-5]\d(?::\d\d(?:[.,]\d+)?)?"
            r"(?: ?(?:[AaPp]\.?[Mm]\b\.?|UTC|GMT|CES?T|[EPCM][SD]T))?(?![\d:])",
        ),
        ("day", r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"),
        ("day", r"\b(?:(?:Mon|Diens|Donners|Frei|Sams|Sonn)tag|Mittwoch)\b"),
        ("id", r"\b[A-Za-z]{2,10}[_-](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{8,}\b"),
        ("id", r"(?i)\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"),
        ("id", r"\b(?=[0-9A-Z]*\d)(?=[0-9A-Z]*[A-Z])[0-9A-Z]{20,}\b"),  # ULID, KSUID
        ("number", r"(?<![\w.,-])\d{7,}(?![\w,-]|\.\d)"),
        ("number", r"(?<![\w.,-])1\d{9}\.\d{1,9}(?![\w,-])"),  # seconds since 1970
        ("number", r"(?<=#)\d+\b"),
        ("number", rf"(?i)(?P<kept>\b{_ITEM}s?(?: so far| id| number| no\.?| nr\.?)?(?: is)?:? )\d+\b"),
        (
            "number",
            rf"(?i)\b\d+(?P<after> {_ITEM}s? (?:so far|served|today|before|answered|handled|already))",
        ),
        ("value", rf"(?im)(?P<kept>^[ >*-]*(?:current |the )?(?:{_LINE})[*\"]* ?[:=][*\" ]*)[^\n«]{{1,60}}$"),
        (
            "name",
            rf"(?m)(?P<kept>^[ \t>*-]*(?i:(?:current )?{_PERSON})[*]* ?[:=][* ]*)"
            rf"(?:{_NAME}|[^\s@«]+@[^\s@«]+)(?=\.?$)",
        ),
        (
            "name",
            rf"(?P<kept>\b(?i:{_PERSON}){_IS}|\b(?i:talking to|talking with|speaking to|speaking with"
            rf"|chatting with|on behalf of|logged in as|greet) ){_NAME}",
        ),
    )
)  # fmt: skip


def site_id(request: CompletionRequest, named: str = "") -> str:
    """`named` is the header's value; one that isn't a name counts as none."""
    if _NAMED.fullmatch(named):
        return named
    properties = request.schema.get("properties")
    fields = sorted(properties) if isinstance(properties, dict) else []
    return _fingerprint([request.protocol, request.schema_name, fields])[:_LENGTH]


def require_name(named: str, what: str) -> None:
    """For whoever can be told. Raises InputError for what `site_id` takes for no name."""
    if not _NAMED.fullmatch(named):
        raise InputError(
            f"{what} {named[:80]!r} is no name. Expected at most 64 letters, digits, _, . and -, "
            "the first one of A to Z or a digit."
        )


def version_id(request: CompletionRequest, site: str) -> str:
    """Of a site."""
    system = [[each.role, *each.parts] for each in request.system]
    # What else the model reads that tells it what to answer: descriptions beside the schema, all tools, and
    # which of them it may call. Settings of the text that stand beside its format aren't among it.
    read = {name: request.parameters[name] for name in _READ_BY_MODEL if name in request.parameters}
    for name in _WITH_FORMAT:
        beside = request.parameters.get(name)
        if isinstance(beside, dict) and "format" in beside:
            read[name] = beside["format"]
    said = [site, request.protocol, request.way, request.model, request.schema, system]
    return _fingerprint([*said, request.schema_name, read])[:_LENGTH]


def imported_call_id(content: str, began: float) -> str:
    """An imported call whose answer has no name of its own: the same may have been said at another time."""
    return _fingerprint([content, began])[:32]


def content_hash(request: CompletionRequest, completion: Completion) -> str:
    """What was asked and answered, the provider's own name of the answer among it."""
    messages = [[message.role, *message.parts] for message in request.messages]
    said = [
        request.protocol,
        request.model,
        request.schema,
        messages,
        completion.response_id,
        completion.value,
    ]
    return _fingerprint(said)[:32]


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


@lru_cache(maxsize=256)
def mask_variables(text: str) -> str:
    """A system prompt with names in place of what varies."""
    for name, pattern in _PARTS:
        text = pattern.sub(partial(_replace_variable, name), text)
    return text


def _replace_variable(name: str, found: re.Match[str]) -> str:
    groups = found.groupdict()
    return f"{groups.get('kept') or ''}«{name}»{groups.get('after') or ''}"
