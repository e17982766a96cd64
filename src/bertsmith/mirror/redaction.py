"""Replaces private data, which must not reach the disk, by placeholders such as [EMAIL_1]. Read `Redactor`
and `Redaction` first.

Within one call the same address gets the same number, in the request and in the answer, so that an answer's
quotes still occur in its text. Numbers of different calls have nothing to do with each other.
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

# The length of each country's IBANs: SWIFT's registry, release 99.
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


# Escapes of JSON within a text: the n of an escaped line break is not the beginning of a word.
_ESCAPED = re.compile(r"\\(?:[nrt]|u(?P<code>[0-9a-fA-F]{4}))")
_MAX_REMEMBERED = 1000  # prompts and schemas in which no rule finds anything
# Card numbers by their first digits and their length: ISO/IEC 7812 and the schemes' own lists. Where these
# disagree, the widest range counts.
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
_ROW = re.compile(r"\d{4}(?:[ -]\d{4}){6,}")  # too many groups of four for one card with date and code
_PLACEHOLDER = re.compile(r"\[[^\[\]]+_\d+\]")
_LIST_KEYS = (
    "enum",
    "const",
    "criteria",
    "choices",
    "levels",
)  # of schemas, System One and decisions
_NAMING_KEYS = ("value", "label", "description")  # of listed objects
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+")
_OPTIONS = re.compile(
    r"(?i)\b(?:one of|options?|labels?|classes|categories|choose (?:from|between)|values)\b[^:\n]{0,40}:"
    r"(?P<list>[^\n]*(?:\n\s*(?:[-*•]|\d{1,2}[.)])\s+[^\n]+)*)"
)
# Letters that stand beside a word without a blank: Thai, Lao, Burmese, Khmer, kana, Han, Hangul.
_JOINED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_BEFORE_ADDRESS = re.compile(rf"[^@]*[{_JOINED}](?=[^@{_JOINED}]+@)")
_UP_TO_JOINED = re.compile(rf".*@[^{_JOINED}]+\.[^{_JOINED}.]*[^{_JOINED}.-](?=-*[{_JOINED}])")
_DATE = r"(?!\d{1,2}[./-]\d{1,2}[./-]\d{2,4}(?!\d))"


class _PlainCharacters(dict[int, str]):
    """A translation table to ASCII, one character for one: digits of any script, blanks and hyphens of any
    width. Longer dashes stay: they separate, as in a@b.org–c@d.org.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category, folded = unicodedata.category(character), unicodedata.normalize("NFKC", character)
        if category == "Nd":
            plain = str(unicodedata.digit(character))
        elif category == "Zs":
            plain = " "
        elif character in "\u2010\u2011\u2012":
            plain = "-"
        else:
            plain = folded if len(folded) == 1 and folded.isascii() and category != "No" else character
        return self.setdefault(code, plain)


_PLAIN = _PlainCharacters()


@dataclass(frozen=True)
class Rule:
    """A kind of private data and the pattern that finds candidates of it.

    `length` takes a match and returns how many of its characters, from the beginning, are private. 0 means
    none: the search goes on at the next character. -n means none of the first n: it goes on behind them.
    """

    name: str
    pattern: re.Pattern[str]
    length: Callable[[str], int] = len


def _card_length(match: str) -> int:
    """The length of a card number: one that an issuer could give and whose checksum (Luhn) is right.

    It is the whole match, or its beginning if an expiry date or a code follows. In the second case all groups
    have at least four digits, as on a card; otherwise rows of small numbers would be full of cards. A long
    row of groups contains cards only if it consists of cards.
    """
    if _ROW.fullmatch(match):
        groups = re.split("[ -]", match)
        cards = ["".join(groups[begin : begin + 4]) for begin in range(0, len(groups), 4)]
        return 19 if all(_ISSUERS.fullmatch(card) and _is_luhn(card) for card in cards) else -len(match)
    end = len(match)
    while end > 0:
        groups = re.split("[ -]", match[:end])
        is_whole, digits = end == len(match), "".join(groups)
        if (is_whole or min(map(len, groups)) >= 4) and _ISSUERS.fullmatch(digits) and _is_luhn(digits):
            return end
        end -= len(groups[-1]) + 1
    return 0


def _is_luhn(digits: str) -> bool:
    """Whether the last digit is the right check digit (Luhn's formula: ISO/IEC 7812-1, annex B)."""
    doubled = [2 * int(digit) - 9 * (int(digit) > 4) for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _iban_length(match: str) -> int:
    """The length of an IBAN with the country's number of characters and the remainder 1 modulo 97 (ISO
    13616).
    """
    expected, end, characters = _IBAN_LENGTHS.get(match[:2].upper(), 0), 0, ""
    while end < len(match) and len(characters) < expected:
        characters += match[end].strip(" -")
        end += 1
    if not expected or len(characters) < expected or match[end : end + 1].isalnum():
        return 0
    rotated = (characters[4:] + characters[:4]).upper()
    return end if int("".join(str(int(character, 36)) for character in rotated)) % 97 == 1 else 0


def _ip_length(match: str) -> int:
    address = match.rstrip(".:") if not match.endswith("::") else match
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return 0
    return len(address) if any(character.isalnum() for character in address) else 0


def _email_length(match: str) -> int:
    """The length of an address without what stands beside it without a blank: メールはa@b.exampleです."""
    if before := _BEFORE_ADDRESS.match(match):
        return -before.end()
    address = _UP_TO_JOINED.match(match)
    return address.end() if address is not None else len(match)


def _phone_length(match: str) -> int:
    return len(match) if 7 <= sum(character.isdigit() for character in match) <= 15 else 0


BUILT_IN = {
    rule.name: rule
    for rule in (
        # Quotation marks, dots and hyphens around an address are not part of it.
        Rule(
            "email",
            re.compile(r"[\w%+][\w.%+'-]{0,63}@[\w-]{1,63}(?:\.[\w-]{1,63})+(?<!-)"),
            _email_length,
        ),
        # By the prefixes that OpenAI, Anthropic, Stripe, GitHub, GitLab, Hugging Face, npm, Groq, Slack, AWS,
        # Google and SendGrid publish, and JSON web tokens.
        Rule(
            "api-key",
            re.compile(
                r"(?ai)\b(?:sk|pk|rk)-[a-z0-9_-]{16,}|\bbearer [a-z0-9._~+/-]{16,}=*"
                r"|\b[spr]k_(?:live|test)_[a-z0-9]{16,}|\b(?:gh[opsur]|hf|npm|gsk)_[a-z0-9]{30,}"
                r"|\bgithub_pat_[a-z0-9_]{22,}|\b(?:glpat|xai|pplx|xox[a-z]|xapp)-[a-z0-9_-]{20,}"
                r"|\bSG\.[a-z0-9_-]{16,}\.[a-z0-9_-]{16,}"
                r"|\b(?-i:(?:AKIA|ASIA)[A-Z0-9]{16}\b|AIza[A-Za-z0-9_-]{35})"
                r"|\b(?-i:eyJ)[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}(?:\.[a-z0-9_-]{8,})?"
            ),
        ),
        Rule("iban", re.compile(r"(?ai)\b[a-z]{2}\d{2}(?:[ -]?[a-z0-9]){11,29}"), _iban_length),
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
                r"(?:(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}"
                # After a colon too where no group of an address stands before it, as in ip:2001:db8::1.
                r"|(?:(?<![\w:.])|(?<=[^\da-fA-F:]:)|(?<=[g-zG-Z]\w:)|(?<=[g-zG-Z]\w\w:)|(?<=\w{5}:))"
                r"[0-9a-fA-F]{0,4}:[0-9a-fA-F:.]+"
                r")(?!\w)",
                re.ASCII,
            ),
            _ip_length,
        ),
        Rule(
            "phone",
            re.compile(
                r"(?<![\w+])(?<!\d\.)(?:(?:\+|00)\d[\d ()./-]{5,20}\d|"
                rf"{_DATE}\(?0\d{{1,5}}\)?[ ./-]{{0,2}}\d[\d ./-]{{3,12}}\d"
                r"|\(?\d{3}(?:\)|\)?[ .-])\d{3}[ .-]\d{4})(?!\w)",
                re.ASCII,
            ),
            _phone_length,
        ),
    )
}
_GROUPED = ("iban", "credit-card", "phone")  # their separators say nothing; 10.0.1.11 is not 10.0.11.1


class Redactor:
    """The rules of a mirror: first the user's own, then the built-in ones. `begin_call` starts a
    redaction.
    """

    def __init__(self, names: Iterable[str], patterns: Mapping[str, str]) -> None:
        """`names` choose built-in rules; `patterns` are the user's regular expressions by name. Raises
        RecipeError for an expression that is invalid or matches an empty text.
        """
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

    def begin_call(self) -> "Redaction":
        """A redaction for one call, whose placeholders are numbered from 1."""
        return Redaction(self.rules, self._clean)


def find_labels(schema: Json) -> Iterator[str]:
    """The values that a schema or a question lists, such as those of its enums, as texts."""
    if isinstance(schema, list):
        for part in schema:
            yield from find_labels(part)
    elif isinstance(schema, dict):
        for key, part in schema.items():
            if key in _LIST_KEYS:
                yield from _listed_values(part)
            if isinstance(part, dict | list):
                yield from find_labels(part)


def _listed_values(value: Json) -> Iterator[str]:
    """The texts and numbers of a list; the keys of an object of labels, and the naming keys' values in it."""
    if isinstance(value, list):
        for item in value:
            yield from _listed_values(item)
    elif isinstance(value, dict):
        yield from (str(name) for name in value if name not in _NAMING_KEYS)
        yield from (str(value[name]) for name in _NAMING_KEYS if name in value)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
        yield str(value)


def _find_options(prompt: str) -> Iterator[str]:
    """The answers that a prompt lists after "one of:" or "labels:", in the same line or in a list below."""
    for match in _OPTIONS.finditer(prompt):
        for line in match["list"].splitlines():
            for item in re.split(r"[,;|]| or ", _BULLET.sub("", line)):
                if item := item.strip(" .\t\"'`“”[]{}"):
                    yield item


def holds_placeholder(answer: Json) -> bool:
    """Whether an answer contains a placeholder. Such an answer is of no use to a client, who can't know what
    the placeholder stands for.
    """
    return _PLACEHOLDER.search(orjson.dumps(answer).decode()) is not None


def _unescape(text: str) -> str:
    """Replaces JSON's escapes by their characters, each repeated so that the text keeps its length."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda match: _unescape_match(match) * len(match[0]), text)


def _unescape_match(escape: re.Match[str]) -> str:
    """The character of an escape; a line break for all white space."""
    character = chr(int(escape["code"], 16)) if escape["code"] else "\n"
    return "\n" if character.isspace() else character


class Redaction:
    """The redaction of one call. `count` is the number of placeholders set so far."""

    def __init__(self, rules: Iterable[Rule], clean: dict[bytes, re.Pattern[str] | None]) -> None:
        """`clean` remembers prompts with schemas, by digest, in which no rule finds anything outside the
        labels. Its values match those labels that a rule would change.
        """
        self.rules, self._clean = rules, clean
        self._labels: re.Pattern[str] | None = None
        self.count = 0
        self._numbers: dict[tuple[str, str], int] = {}
        self._last: dict[str, int] = {}  # the last number by rule
        names = sorted({rule.name.upper() for rule in self.rules}, key=len, reverse=True)
        self._own = re.compile(rf"\[(?:{'|'.join(map(re.escape, names))})_\d{{1,4}}\]")
        self._longest = max(map(len, names), default=0) + len("[_9999]")

    def redact_text(self, text: str) -> str:
        """Puts placeholders for private data into a text. Labels stay: the application lists them in every
        call, and an answer has to name them.
        """
        return self._change_outside_labels(text, self._apply_rules)

    def _change_outside_labels(self, text: str, change: Callable[[str], str]) -> str:
        if self._labels is None:
            return change(text)
        pieces, done = list[str](), 0
        for label in self._labels.finditer(_unescape(text)):
            pieces += [change(text[done : label.start()]), text[label.start() : label.end()]]
            done = label.end()
        return "".join((*pieces, change(text[done:])))

    def _apply_rules(self, text: str) -> str:
        for rule in self.rules:
            text = self._apply_rule(rule, text, _unescape(text))
            if "\\" in text:  # the rule may be about the backslash itself
                text = self._apply_rule(rule, text, text)
            if not text.isascii():  # last, since an unusual blank may also separate two numbers
                text = self._apply_rule(rule, text, _unescape(text).translate(_PLAIN))
        return text

    def _apply_rule(self, rule: Rule, text: str, readable: str) -> str:
        """Replaces in `text` what the rule finds in `readable`, which has the same length. After each match
        the search goes on behind its private part, since the rest may begin another match.
        """
        pieces, done, begin = list[str](), 0, 0
        while match := rule.pattern.search(readable, begin):
            start, length = match.start(), rule.length(match[0])
            if length > 0 and (end := self._placeholder_around(text, start, start + length)):
                begin = end
                continue
            begin = start + (abs(length) or 1)
            if length > 0:
                pieces += [text[done:start], self._placeholder(rule, text[start:begin])]
                done = begin
        return "".join((*pieces, text[done:]))

    def _placeholder_around(self, text: str, start: int, end: int) -> int:
        """The end of the placeholder that [start, end) of a text lies in; 0 if it lies in none. What a
        placeholder says is not private: a pattern of any number would find its own number.
        """
        bracket = text.rfind("[", max(start - self._longest, 0), start + 1)
        placeholder = self._own.match(text, bracket) if bracket >= 0 else None
        return placeholder.end() if placeholder is not None and placeholder.end() >= end else 0

    def _placeholder(self, rule: Rule, private: str) -> str:
        """The placeholder of a private text: the same for all spellings of a number or an address."""
        plain = _ESCAPED.sub(_unescape_match, private).translate(_PLAIN).casefold()
        if rule.name in _GROUPED:
            plain = re.sub(r"[\s./()-]", "", plain)
        key = rule.name, plain
        if key not in self._numbers:
            self._last[rule.name] = self._last.get(rule.name, 0) + 1
            self._numbers[key] = self._last[rule.name]
        self.count += 1
        return f"[{rule.name.upper()}_{self._numbers[key]}]"

    def redact_json(self, value: Json) -> Json:
        """Redacts all texts and keys of a JSON value, and whole numbers that read as private data, such as a
        card number without blanks.
        """
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {self.redact_text(str(name)): self.redact_json(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.redact_json(item) for item in value]
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if is_whole and not isinstance(value, bool):
            digits = str(int(value))
            redacted = self.redact_text(digits)
            return value if redacted == digits else redacted
        return value

    def redact_request(self, request: CompletionRequest) -> CompletionRequest:
        """Redacts a request, and replaces the parts of its system prompt that vary from call to call. The
        subjects stay: the store keeps only their fingerprints.
        """
        shared: list[Any] = [request.model, request.schema_name, request.schema, request.parameters]
        system = request.system
        if any(mask_variables(part) != part for message in system for part in message.parts):
            self._labels = self._match_labels([request.schema, request.parameters], system)
            system = tuple(
                ChatMessage(
                    message.role,
                    tuple(self._change_outside_labels(part, mask_variables) for part in message.parts),
                )
                for message in system
            )
        digest = hashlib.sha256(orjson.dumps([shared, [message.parts for message in system]])).digest()
        before = self.count
        try:
            self._labels = self._clean[digest]  # looked up only once: another thread may clear the memory
        except KeyError:
            self._labels = self._match_labels([request.schema, request.parameters], system)
            shared, system = self.redact_json(shared), tuple(map(self._redact_message, system))
        if self.count == before:
            if len(self._clean) >= _MAX_REMEMBERED:
                self._clean.clear()
            self._clean[digest] = self._labels
        rest = iter(system)
        messages = tuple(
            next(rest) if message.role in SYSTEM_ROLES else self._redact_message(message)
            for message in request.messages
        )
        model, name, schema, parameters = shared
        return replace(
            request, model=model, messages=messages, schema_name=name, schema=schema, parameters=parameters
        )

    def _match_labels(self, schemas: Json, system: Iterable[ChatMessage]) -> re.Pattern[str] | None:
        """A pattern of the labels in which something would be replaced; None if there are no such labels."""
        prompts = [part for message in system for part in message.parts]
        labels = {*find_labels(schemas), *(label for prompt in prompts for label in _find_options(prompt))}
        private = [
            label
            for label in labels
            if mask_variables(label) != label or any(rule.pattern.search(label) for rule in self.rules)
        ]
        if not private:
            return None
        longest_first = sorted(private, key=len, reverse=True)
        return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)")

    def _redact_message(self, message: ChatMessage) -> ChatMessage:
        return ChatMessage(message.role, tuple(map(self.redact_text, message.parts)))

    def redact_completion(self, completion: Completion) -> Completion:
        """Redacts an answer. If anything is replaced, the log probabilities are left out: their tokens are
        pieces of the same text, in which no rule would recognise it.
        """
        before = self.count
        value = self.redact_json(completion.value)
        probabilities: dict[str, list[tuple[Any, float]]] = {
            self.redact_text(path): [(self.redact_json(option), share) for option, share in pairs]
            for path, pairs in completion.probabilities.items()
        }
        logprobs = self.redact_json(completion.logprobs) if self.count == before else None
        if self.count > before:
            logprobs = None
        return replace(completion, value=value, probabilities=probabilities, logprobs=logprobs)
