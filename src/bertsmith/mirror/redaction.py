"""What must not reach the disk, replaced by a placeholder: [EMAIL_1].

Within a call the same address has the same number, in the request and in the answer, so that a quoted answer
is still found in its text. Between calls numbers say nothing.
"""

import hashlib
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from bertsmith.errors import RecipeError
from bertsmith.mirror.call import SYSTEM_ROLES, ChatMessage, Completion, CompletionRequest, Json
from bertsmith.mirror.identity import mask_variables

# How long each country's IBAN is: SWIFT's registry, release 99.
_IBAN_COUNTRIES = {
    15: "NO", 16: "BE", 18: "DK FI FO GL NL SD FK", 19: "MK SI", 20: "AT BA EE KZ LT LU XK MN",
    21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV", 29: "BR EG PS QA UA",
    30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
_IBAN_LENGTHS = {
    country: length for length, countries in _IBAN_COUNTRIES.items() for country in countries.split()
}


# As JSON within a text has it: the n of a line's end doesn't begin a word.
_ESCAPED = re.compile(r"\\(?:[nrt]|u(?P<code>[0-9a-fA-F]{4}))")
_REMEMBERED = 1000  # prompts and schemas that are known to be clean
# Which numbers issuers give, by their first digits, and how long they are: ISO/IEC 7812 and the schemes' own
# lists, of which the widest ranges are taken.
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|095|[689]\d)\d{11,16}"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|220[0-4]\d{12,15}"  # Mir
    r"|(?:6\d|8[12])\d{11,17}"  # Discover, UnionPay, RuPay, Maestro
    r"|5[0678]\d{11,17}"  # Maestro
    r"|9\d{15}"  # Troy, national schemes
)
_ROW = re.compile(r"\d{4}(?:[ -]\d{4}){6,}")  # too many groups of four for a card with its date and code
_PLACEHOLDER = re.compile(r"\[[^\[\]]+_\d+\]")
_LIST_KEYS = (
    "enum",
    "const",
    "criteria",
    "choices",
    "levels",
)  # of a schema, and of System One and decisions
_NAMING_KEYS = ("value", "label", "description")  # of what is listed by objects
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+")
_OPTIONS = re.compile(
    r"(?i)\b(?:one of|options?|labels?|classes|categories|choose (?:from|between)|values)\b[^:\n]{0,40}:"
    r"(?P<list>[^\n]*(?:\n\s*(?:[-*•]|\d{1,2}[.)])\s+[^\n]+)*)"
)
_DATE = r"(?!\d{1,2}[./-]\d{1,2}[./-]\d{2,4}(?!\d))"


class _PlainCharacters(dict[int, str]):
    """Digits of any script, blanks and hyphens of any width as ASCII has them, one for one. A longer dash
    stays: it divides, as in a@b.org–c@d.org.
    """

    def __missing__(self, code: int) -> str:
        mark = chr(code)
        kind, folded = unicodedata.category(mark), unicodedata.normalize("NFKC", mark)
        if kind == "Nd":
            plain = str(unicodedata.digit(mark))
        elif kind == "Zs":
            plain = " "
        elif mark in "\u2010\u2011\u2012":
            plain = "-"
        else:
            plain = folded if len(folded) == 1 and folded.isascii() and kind != "No" else mark
        return self.setdefault(code, plain)


_PLAIN = _PlainCharacters()


@dataclass(frozen=True)
class Rule:
    """`length` says how much of what the pattern found is meant, from its beginning: 0 for nothing, less for
    nothing that is meant so far.
    """

    name: str
    pattern: re.Pattern[str]
    length: Callable[[str], int] = len


def _card_length(found: str) -> int:
    """Of a number that an issuer may have given, all of it by Luhn's sum; or its beginning, where an expiry
    date or a code stands behind the card, in groups of four or more digits as on a card: else rows of small
    numbers would be full of cards. A row of numbers is cards only if all of it is.
    """
    if _ROW.fullmatch(found):
        groups = re.split("[ -]", found)
        cards = ["".join(groups[place : place + 4]) for place in range(0, len(groups), 4)]
        return 19 if all(_ISSUERS.fullmatch(card) and _is_luhn(card) for card in cards) else -len(found)
    end = len(found)
    while end > 0:
        groups = re.split("[ -]", found[:end])
        is_whole, digits = end == len(found), "".join(groups)
        if (is_whole or min(map(len, groups)) >= 4) and _ISSUERS.fullmatch(digits) and _is_luhn(digits):
            return end
        end -= len(groups[-1]) + 1
    return 0


def _is_luhn(digits: str) -> bool:
    """ISO/IEC 7812-1, annex B."""
    doubled = [2 * int(digit) - 9 * (int(digit) > 4) for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _iban_length(found: str) -> int:
    """As long as the country has it, and 1 modulo 97 (ISO 13616)."""
    wanted, place, taken = _IBAN_LENGTHS.get(found[:2].upper(), 0), 0, ""
    while place < len(found) and len(taken) < wanted:
        taken += found[place].strip(" -")
        place += 1
    if not wanted or len(taken) < wanted or found[place : place + 1].isalnum():
        return 0
    moved = (taken[4:] + taken[:4]).upper()
    return place if int("".join(str(int(each, 36)) for each in moved)) % 97 == 1 else 0


def _ip_length(found: str) -> int:
    meant = found.rstrip(".:") if not found.endswith("::") else found
    try:
        ipaddress.ip_address(meant)
    except ValueError:
        return 0
    return len(meant) if any(each.isalnum() for each in meant) else 0


def _phone_length(found: str) -> int:
    return len(found) if 7 <= sum(each.isdigit() for each in found) <= 15 else 0


BUILT_IN = {
    rule.name: rule
    for rule in (
        Rule("email", re.compile(r"[\w.%+'-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")),
        Rule("api-key", re.compile(r"(?i)\b(?:sk|pk|rk)-[a-z0-9_-]{16,}|\bbearer [a-z0-9._~+/-]{16,}=*")),
        Rule("iban", re.compile(r"(?i)\b[a-z]{2}\d{2}(?:[ -]?[a-z0-9]){11,29}"), _iban_length),
        Rule(
            "credit-card",
            re.compile(
                rf"(?<!\d)(?:(?<!\d[ -]){_ROW.pattern}(?!\d)"
                r"|(?:(?<!\d[ -])|(?=\d{4}))(?:\d[ -]?){12,18}\d(?!\d))",
                re.ASCII,
            ),
            _card_length,
        ),
        Rule(
            "ip",
            re.compile(
                r"(?<![\w:.])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]+)(?!\w)", re.ASCII
            ),
            _ip_length,
        ),
        Rule(
            "phone",
            re.compile(
                r"(?<![\w+])(?<!\d\.)(?:(?:\+|00)\d[\d ()./-]{5,20}\d|"
                rf"{_DATE}\(?0\d{{1,5}}\)?[ ./-]{{0,2}}\d[\d ./-]{{3,12}}\d"
                r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4})(?!\w)",
                re.ASCII,
            ),
            _phone_length,
        ),
    )
}


class Redactor:
    """Rules in their order: ours, then the user's own."""

    def __init__(self, names: Iterable[str], patterns: Mapping[str, str]) -> None:
        """`patterns` are regular expressions by name. Raises RecipeError."""
        own = list[Rule]()
        for name, pattern in patterns.items():
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise RecipeError(
                    f"patterns.{name}: expected a regular expression, found {pattern[:80]!r} ({error})."
                ) from None
            if compiled.match(""):
                raise RecipeError(
                    f"patterns.{name}: {pattern[:80]!r} would match an empty text. Ask for a character."
                )
            own.append(Rule(name, compiled))
        self.rules = (*own, *(rule for rule in BUILT_IN.values() if rule.name in set(names)))
        self._clean: dict[bytes, re.Pattern[str] | None] = {}

    def begin(self) -> "Redaction":
        """Of one call."""
        return Redaction(self.rules, self._clean)


def find_labels(schema: Json) -> Iterator[str]:
    """What a schema, or a question, lists as values, as texts."""
    if isinstance(schema, list):
        for each in schema:
            yield from find_labels(each)
    elif isinstance(schema, dict):
        for key, each in schema.items():
            if key in _LIST_KEYS:
                yield from _listed_values(each)
            if isinstance(each, dict | list):
                yield from find_labels(each)


def _listed_values(value: Json) -> Iterator[str]:
    """Texts and numbers; names of an object that lists by them, and the values in it that do."""
    if isinstance(value, list):
        for each in value:
            yield from _listed_values(each)
    elif isinstance(value, dict):
        yield from (str(name) for name in value if name not in _NAMING_KEYS)
        yield from (str(value[name]) for name in _NAMING_KEYS if name in value)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
        yield str(value)


def _find_options(prompt: str) -> Iterator[str]:
    """What a prompt lists as answers: behind "one of:" or "labels:", in its line or in a list below it."""
    for found in _OPTIONS.finditer(prompt):
        for line in found["list"].splitlines():
            for item in re.split(r"[,;|]| or ", _BULLET.sub("", line)):
                if item := item.strip(" .\t\"'`“”[]{}"):
                    yield item


def holds_placeholder(answer: Json) -> bool:
    """Whether something in it reads as one: whoever gets such an answer would not know what stood there."""
    return _PLACEHOLDER.search(orjson.dumps(answer).decode()) is not None


def _unescape(text: str) -> str:
    """As long as the text: what JSON's escapes stand for, as often as they have characters."""
    return _ESCAPED.sub(lambda found: _unescape_match(found) * len(found[0]), text) if "\\" in text else text


def _unescape_match(escape: re.Match[str]) -> str:
    """A line's end for any white space."""
    meant = chr(int(escape["code"], 16)) if escape["code"] else "\n"
    return "\n" if meant.isspace() else meant


class Redaction:
    """One call's placeholders. `count` is how many were set."""

    def __init__(self, rules: Iterable[Rule], clean: dict[bytes, re.Pattern[str] | None]) -> None:
        """`clean` has digests of what calls share and no rule finds anything in, looked through once, with
        the labels in it that a rule would find something in.
        """
        self.rules, self._clean = rules, clean
        self._labels: re.Pattern[str] | None = None
        self.count = 0
        self._numbers: dict[tuple[str, str], int] = {}
        self._last: dict[str, int] = {}

    def text(self, text: str) -> str:
        """With placeholders. Labels stay: the application lists them in each of its calls."""
        return self._beside_labels(text, self._redacted)

    def _beside_labels(self, text: str, change: Callable[[str], str]) -> str:
        if self._labels is None:
            return change(text)
        pieces, done = list[str](), 0
        for label in self._labels.finditer(_unescape(text)):
            pieces += [change(text[done : label.start()]), text[label.start() : label.end()]]
            done = label.end()
        return "".join((*pieces, change(text[done:])))

    def _redacted(self, text: str) -> str:
        for rule in self.rules:
            text = self._by(rule, text, _unescape(text))
            if "\\" in text:  # a rule may mean the backslash
                text = self._by(rule, text, text)
            if not text.isascii():  # last, for an odd blank may as well stand between two numbers
                text = self._by(rule, text, _unescape(text).translate(_PLAIN))
        return text

    def _by(self, rule: Rule, text: str, seen: str) -> str:
        """Looked for in `seen`, which is as long. It looks again behind what was meant, not behind all that
        was found: there may be another.
        """
        pieces, done, place = list[str](), 0, 0
        while found := rule.pattern.search(seen, place):
            start, length = found.start(), rule.length(found[0])
            place = start + (abs(length) or 1)
            if length > 0:
                pieces += [text[done:start], self._placeholder(rule, text[start:place])]
                done = place
        return "".join((*pieces, text[done:]))

    def _placeholder(self, rule: Rule, private: str) -> str:
        meant = (
            rule.name,
            re.sub(r"[\s./()-]", "", _ESCAPED.sub(_unescape_match, private).translate(_PLAIN)).casefold(),
        )
        if meant not in self._numbers:
            self._last[rule.name] = self._last.get(rule.name, 0) + 1
            self._numbers[meant] = self._last[rule.name]
        self.count += 1
        return f"[{rule.name.upper()}_{self._numbers[meant]}]"

    def json(self, value: Json) -> Json:
        """Its texts, and whole numbers that read as something private: a card without its blanks."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(name)): self.json(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(each) for each in value]
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if is_whole and not isinstance(value, bool):
            written = str(int(value))
            redacted = self.text(written)
            return value if redacted == written else redacted
        return value

    def redact_request(self, request: CompletionRequest) -> CompletionRequest:
        """The subjects stay: the store keeps no more than their fingerprints."""
        shared: list[Any] = [request.model, request.schema_name, request.schema, request.parameters]
        system = request.system
        if any(mask_variables(part) != part for each in system for part in each.parts):
            self._labels = self._labels_of([request.schema, request.parameters], system)
            settling = tuple(
                tuple(self._beside_labels(part, mask_variables) for part in each.parts) for each in system
            )
            system = tuple(
                ChatMessage(each.role, parts) for each, parts in zip(system, settling, strict=True)
            )
        digest = hashlib.sha256(orjson.dumps([shared, [each.parts for each in system]])).digest()
        before = self.count
        try:
            self._labels = self._clean[digest]  # looked up once: another thread may clear it
        except KeyError:
            self._labels = self._labels_of([request.schema, request.parameters], system)
            shared, system = self.json(shared), tuple(map(self._message, system))
        if self.count == before:
            if len(self._clean) >= _REMEMBERED:
                self._clean.clear()
            self._clean[digest] = self._labels
        rest = iter(system)
        messages = tuple(
            next(rest) if message.role in SYSTEM_ROLES else self._message(message)
            for message in request.messages
        )
        model, name, schema, parameters = shared
        return replace(
            request, model=model, messages=messages, schema_name=name, schema=schema, parameters=parameters
        )

    def _labels_of(self, schemas: Json, system: Iterable[ChatMessage]) -> re.Pattern[str] | None:
        """Those of which something would be replaced."""
        listed = [part for each in system for part in each.parts]
        labels = {*find_labels(schemas), *(label for part in listed for label in _find_options(part))}
        private = [
            label
            for label in labels
            if mask_variables(label) != label or any(rule.pattern.search(label) for rule in self.rules)
        ]
        if not private:
            return None
        longest_first = sorted(private, key=len, reverse=True)
        return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)")

    def _message(self, message: ChatMessage) -> ChatMessage:
        return ChatMessage(message.role, tuple(map(self.text, message.parts)))

    def redact_completion(self, completion: Completion) -> Completion:
        """An answer's tokens are its text in pieces, which no rule would know: they go if anything goes."""
        before = self.count
        value = self.json(completion.value)
        probabilities: dict[str, list[tuple[Any, float]]] = {
            self.text(path): [(self.json(each), share) for each, share in spread]
            for path, spread in completion.probabilities.items()
        }
        logprobs = self.json(completion.logprobs) if self.count == before else None
        if self.count > before:
            logprobs = None
        return replace(completion, value=value, probabilities=probabilities, logprobs=logprobs)
