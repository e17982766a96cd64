"""Ids that say which calls belong together, and which are the same call.

site      a place in the application: the name in the client's header, or else a hash of the protocol and the
          schema's name and fields, so that a site stays the same when its prompt changes or a label is added
version   one prompt, schema with its name and descriptions, model, and choice of tools of a site
content   equal for equal calls, wherever they were recorded

Parts of a system prompt that vary from call to call (the time, ids, counters, the user's name) are replaced
by a name in guillemets, such as «date». So the calls have one version, and a reader of the prompt sees which
parts were replaced. All other numbers and words stay: a change in them is a change of the prompt. A rule ("if
the user is VIP") and examples ("Agent: Billing", then "Agent: Loans") name nobody, and stay too.

The model of a version is the one that the request names: often an alias (gpt-4o) or a deployment of Azure's,
behind which another dated model may answer some day. The answer names that one; `find_answerer_change` says
since when.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

import orjson

from bertsmith.errors import InputError
from bertsmith.mirror.call import Completion, CompletionRequest

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
# Parameters of a request, in any protocol, that belong to its version.
_READ_BY_MODEL = (
    *("response_format", "output_format", "tools", "tool_choice"),
    *("functions", "function_call", "guided_json"),
)
_WITH_FORMAT = ("text", "output_config")
_FEWEST_ANSWERS = 20  # by each of two models, before one has followed the other
_LENGTH = 12  # hexadecimal digits: the chance that any two of a million sites collide is 1 in 560
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
# Of Chinese, Japanese and Korean.
_EAST_DAY = "(?:(?:星期|周|週)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일)"
_EAST_HALF = "(?:(?:上午|下午|午前|午後|오전|오후) ?)?"
_ITEM = "(?:request|call|session|conversation|ticket|message|turn|run|order|trace|case|job|attempt|visitor)"
_PERSON = "(?:user|customer|client|account|tenant|employee|agent|caller)"
_CAPITALISED = r"[^\W\d_a-z][\w'’-]*"
_PARTICLE = "(?:de|del|della|di|da|dos|do|du|la|van|von|der|den|ter|bin|al)"
# Keys of lines such as "Ticket no: 17" that only identify. Not "Message: …", which may be the input itself,
# and not "Customer name: as in the signature", which says what to find: with a word in small letters after
# the first, or with a type.
_TYPE = "(?:string|str|text|integer|int|number|boolean|bool|null|none|required|optional|mandatory)"
_LINE = (
    rf"(?:(?:{_ITEM}|{_PERSON})[ _-]?(?:id|name|number|no|nr|count|key|token)\.?|username|nonce|counter|now)"
    rf"(?![*\"]* ?[:=][*\" ]*(?:{_TYPE}\b|(?-i:[^\s*\"][^\n]* \(?(?!{_PARTICLE}\b)[a-z]{{2,}}\b)))"
    "|uptime"
)
_NAME = rf"{_CAPITALISED}(?:(?: {_PARTICLE}){{0,2}} {_CAPITALISED}){{0,3}}"  # as Ana de la Cruz
# "If the user is VIP" is a rule: it says of nobody who the user is. So is "whose account is Premium": only a
# sentence that begins with "The user is" names one. Nor does a list after "Escalate if:" or any other line.
_RULE = re.compile(
    r"(?i)\b(?:if|when(?:ever)?|where|whether|unless|once|until|while|cases?|means|every time)\b"
)
_LIST_ITEM = r"\s*(?:[>*•-]|\d+[.)])[^\n]*"
_RULE_LIST = re.compile(rf"(?m)^(?!{_LIST_ITEM})[^\n]+\n(?:{_LIST_ITEM}\n)*{_LIST_ITEM}\Z")
_SUBJECT = re.compile(r"(?i)[\s>*•-]*(?:(?:the|your|this|our|my) )?(?:current )?")
_LONGEST = 400  # characters of a sentence that are looked at
_SENTENCE_END = re.compile(r"(?<!\.\w)[.!?]\s|\n\s*\n|\n[\s>*•-]*(?=[A-Z])")  # not that of "e.g."
_SPEECH = re.compile(
    rf"(?m)^[ \t>*-]*(?i:(?:current )?(?P<speaker>{_PERSON}))[*]* ?[:=][* ]*(?P<words>[^\s*][^\n]*)$"
)
# Chinese letters, say, stand beside a number without a blank: \b and \w mean ASCII in some of these.
# Longer and more certain patterns come first. The groups `kept` and `after` stay: they are the text before
# and after the part that varies.
_VARIABLES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("uuid", r"(?ai)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
        (
            "time",
            r"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
            r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?(?![A-Za-z_\d])",
        ),
        ("time", r"(?a)\b\d{8}T\d{6}Z?\b"),
        ("time", rf"\b{_DAY} {_MONTH} {{1,2}}\d\d? \d\d:\d\d:\d\d(?: [A-Z]{{2,5}}){{0,2}} \d{{4}}\b"),  # C's
        (
            "date",
            r"(?<!\d)\d{4}[年년] ?\d\d?[月월] ?\d\d?[日일]"
            rf"(?: ?[,，、]?{_EAST_DAY}| ?[(（](?:{_EAST_DAY}|[月火水木金土日월화수목금토일])[)）])?",
        ),
        (
            "date",
            rf"(?i)(?<![\d.])(?:\b{_DAY},? )?(?:den |le |el )?"
            r"(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4}"
            rf"|\d\d?(?:st|nd|rd|th|er)?\.? (?:of |de )?{_MONTH},? (?:del? )?\d{{4}}"
            r"|\d\d?/\d\d?/\d\d(?![/\d])|\d{4}-W\d\d(?:-[1-7])?"
            rf"|\b{_MONTH} \d\d?(?:st|nd|rd|th)?,? \d{{4}}"
            rf"|\d\d?(?P<mark>[-/]){_MONTH}(?P=mark)\d{{4}})(?!\d)",
        ),
        (
            "date",  # without a year: with the day of the week
            rf"(?i)\b{_DAY},? (?:{_MONTH} \d\d?(?:st|nd|rd|th)?"
            rf"|(?:the |den |le |el )?\d\d?(?:st|nd|rd|th|er)?\.? (?:of |de )?{_MONTH})(?!\w|:\d)",
        ),
        (
            "time",
            rf"(?<![\d:]){_EAST_HALF}[0-2]?\d:[0-5]\d(?::\d\d(?:[.,]\d+)?)?"
            "(?:[ \u00a0\u202f]?"  # JavaScript's toLocaleString has a narrow blank
            r"(?:[AaPp]\.?[Mm]\b\.?|UTC|GMT|CES?T|[EPCM][SD]T))?(?![\d:])",
        ),
        ("time", rf"(?<!\d){_EAST_HALF}\d\d?[时時시] ?\d\d?[分분](?: ?\d\d?[秒초])?"),
        ("day", "星期[一二三四五六日天](?!次)|[月火水木金土日]曜日|[월화수목금토일]요일"),
        ("day", r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"),
        ("day", r"\b(?:(?:Mon|Diens|Donners|Frei|Sams|Sonn)tag|Mittwoch)\b"),
        ("id", r"(?a)\b[A-Za-z]{2,10}[_-](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{8,}\b"),
        ("id", r"(?ai)\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"),
        ("id", r"(?a)\b(?=[0-9A-Z]*\d)(?=[0-9A-Z]*[A-Z])[0-9A-Z]{20,}\b"),  # ULID, KSUID
        ("number", r"(?<![A-Za-z_\d.,-])\d{7,}(?![A-Za-z_\d,-]|\.\d)"),
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
            rf"(?m)(?P<kept>^[ \t>*-]*(?i:(?:current )?(?P<speaker>{_PERSON}))[*]* ?[:=][* ]*)"
            rf"(?P<words>{_NAME}|[^\s@«]+@[^\s@«]+)(?=\.?$)",
        ),
        (
            "name",
            rf"(?P<kept>\b(?i:{_PERSON}(?:['’]s name is| name is| is called| is named)"
            rf"|name of (?:the |your )?(?:current )?{_PERSON} is"
            r"|talking to|talking with|speaking to|speaking with|chatting with|greet"
            r"|(?P<verb>on behalf of|logged in as)) )"
            rf"(?>{_NAME})(?! (?:[a-z]{{3,}}s|people)\b)",  # "greet VIP members" names nobody
        ),
        (  # not "the agent called Billing", nor "The user is VIP: escalate"
            "name",
            rf"(?P<kept>\b(?i:(?!(?:agent|account) (?:called|named)){_PERSON} (?P<verb>is|called|named)) )"
            rf"(?>{_NAME})(?! ?(?:[:→]|[-=]+>))",
        ),
    )
)  # fmt: skip


def site_id(request: CompletionRequest, named: str = "") -> str:
    """The id of a request's site. `named` is the value of the client's header; it is ignored if it is no
    valid name.
    """
    if _NAMED.fullmatch(named):
        return named
    properties = request.schema.get("properties")
    fields = sorted(properties) if isinstance(properties, dict) else []
    return _fingerprint([request.protocol, request.schema_name, fields])[:_LENGTH]


def require_name(named: str, what: str) -> None:
    """Raises InputError for a name that `site_id` would ignore; `what` says in the message what it names."""
    if not _NAMED.fullmatch(named):
        raise InputError(
            f"{what} {named[:80]!r} is no name. Expected at most 64 letters, digits, _, . and -, "
            "the first one of A to Z or a digit."
        )


def version_id(request: CompletionRequest, site: str) -> str:
    """The id of a request's version at `site`."""
    system = [[message.role, *message.parts] for message in request.system]
    # What else tells the model how to answer: the descriptions beside the schema, all tools, and which of
    # them it may call. Of the parameters that contain the format, only the format counts.
    read = {name: request.parameters[name] for name in _READ_BY_MODEL if name in request.parameters}
    for name in _WITH_FORMAT:
        parameter = request.parameters.get(name)
        if isinstance(parameter, dict) and "format" in parameter:
            read[name] = parameter["format"]
    parts = [site, request.protocol, request.way, request.model, request.schema, system]
    return _fingerprint([*parts, request.schema_name, read])[:_LENGTH]


class AnswererChange(NamedTuple):
    """Another model answers under a version's name `since` a time (seconds since 1970): `present`, where
    mostly `former` had answered.
    """

    since: float
    former: str
    present: str

    def as_sentence(self) -> str:
        """Since when which model answers, in words."""
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M")
        return f"since {since} UTC {self.present} answers, and before mostly {self.former} did"


def find_answerer_change(answers: Sequence[tuple[float, str]]) -> AnswererChange | None:
    """The change of the model that answers, from (time, model) of each answer in the order of time; answers
    that name none are left out. None as long as the latest model has answered fewer than 20 calls in a row,
    and where it had answered most calls before: a provider may now and then pass a call on to another.
    """
    named = [(at, model) for at, model in answers if model]
    if not named:
        return None
    present = named[-1][1]
    first = next((place for place in range(len(named), 0, -1) if named[place - 1][1] != present), 0)
    before = Counter(model for _, model in named[:first])
    if min(first, len(named) - first) < _FEWEST_ANSWERS or 2 * before[present] > first:
        return None
    return AnswererChange(named[first][0], before.most_common(1)[0][0], present)


def imported_call_id(content: str, began: float) -> str:
    """The id of an imported call whose answer has no id of its own; an equal call at another time gets
    another id.
    """
    return _fingerprint([content, began])[:32]


def replayed_call_id(recorded: str, version: str) -> str:
    """The id of the call in which another teacher, of this version, answers the input of a recorded one."""
    return _fingerprint([recorded, version])[:32]


def hash_fraction(text: str, seed: int) -> float:
    """A hash of the text as a number in [0, 1), which decides into which part of a split it falls."""
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def content_hash(request: CompletionRequest, completion: Completion) -> str:
    """A hash of the request and its answer, including the provider's id of the answer."""
    messages = [[message.role, *message.parts] for message in request.messages]
    parts = [
        request.protocol,
        request.model,
        request.schema,
        messages,
        completion.response_id,
        completion.value,
    ]
    return _fingerprint(parts)[:32]


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


@lru_cache(maxsize=256)
def mask_variables(text: str) -> str:
    """Replaces the parts of a system prompt that vary from call to call by names such as «date»."""
    for name, pattern in _VARIABLES:
        words = defaultdict[str, set[str]](set)  # by speaker
        if "speaker" in pattern.groupindex:
            for match in _SPEECH.finditer(text):
                words[match["speaker"].lower()].add(match["words"].rstrip(". "))
        # Where a speaker says several things, they are examples and no names.
        speakers = {speaker for speaker, said in words.items() if len(said) > 1}
        text = pattern.sub(partial(_replace_variable, name, speakers), text)
    return text


def _replace_variable(name: str, speakers: Collection[str], match: re.Match[str]) -> str:
    groups = match.groupdict()
    if (groups.get("speaker") or "").lower() in speakers:
        return match[0]
    if groups.get("verb"):
        text = match.string[max(match.start() - _LONGEST, 0) : match.end()]
        before = text.removesuffix(match[0])
        sentence = _SENTENCE_END.split(text)[-1].removesuffix(match[0])
        is_subject = groups["verb"] != "is" or _SUBJECT.fullmatch(sentence)
        if not is_subject or _RULE.search(sentence) or _RULE_LIST.search(before):
            return match[0]
    return f"{groups.get('kept') or ''}«{name}»{groups.get('after') or ''}"
