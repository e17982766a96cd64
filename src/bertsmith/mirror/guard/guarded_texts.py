"""Which texts of a request and of an answer are judged, in every wire format.

Of a request: what came since the model last spoke, by users and by tools, whether it asks for a schema or
not. Of an answer: every text in it. Which fields hold texts isn't listed, for protocols and servers add some:
listed is what holds none, and all else counts as text.

The pieces of a stream are joined by where they stand: the same field of the same choice, block or item.
"""

import json
import re
from collections.abc import Collection, Iterator
from itertools import pairwise, takewhile
from typing import NamedTuple

from bertsmith.mirror.call import Json, NotMirrored
from bertsmith.mirror.exchange import LARGEST, decode_content
from bertsmith.mirror.formats.reading import DONE, events_of, object_of
from bertsmith.mirror.formats.registry import DEFAULT_FORMAT
from bertsmith.mirror.formats.wire_format import WireFormat

_MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
_Address = tuple[str | int, ...]

_MODEL_KEYS = frozenset(("choices", "content", "delta", "output"))  # whatever it repeats, the model says it
# Beside names that the application gave, and that the model can but choose from.
_NAME_ENDINGS = ("name", "namespace", "server_label", "stop", "stop_reason", "stop_sequence")  # ends of keys
# Keys whose values are words of the protocol, as long as they are words; and what only the provider reads.
_WORD_KEYS = frozenset((
    "button", "category", "channel", "context_compression", "created_by", "detail", "effort", "error_code",
    "execution", "format", "id", "inference_geo", "mode", "model", "object", "payer", "phase",
    "prompt_cache_key", "prompt_cache_retention", "provider", "role", "service_tier", "severity", "speed",
    "status", "tool_choice", "truncation", "ttl", "type", "verbosity", "version",
))  # fmt: skip
_WORD_KEY_ENDINGS = ("_at", "_id", "_model", "_reason", "_token", "_type", "_version", "fingerprint")
_ERROR_KEYS = frozenset(("acknowledged_safety_checks", "error", "pending_safety_checks"))
# Settings and facts, beside what is spoken: each single word in them is the provider's.
_FACT_KEYS = frozenset((
    "access_programs", "background_options", "incomplete_details", "input_transformations", "moderation",
    "prompt_cache_diagnostics", "reasoning", "usage",
))  # fmt: skip
_DEFINITION_KEYS = frozenset(
    ("definition", "properties", "schema", "tools")
)  # their keys name fields of calls
_SETTING_KEYS = _DEFINITION_KEYS | frozenset((  # those wherever they stand
    "image_generation_call", "response.audio.delta", "response.image_generation_call.partial_image",
    "transformations",
))  # fmt: skip
# `p` is Mistral's `obfuscation`.
_SEALED_KEYS = frozenset((
    "encrypted_content", "encrypted_index", "encrypted_stdout", "obfuscation", "p", "redactedContent",
    "signature", "thought_signature", "thought_signatures",
))  # fmt: skip
_WORDS_OF_TYPES = (  # of blocks, each with such a field: sealed, or a name of the provider's
    ("reasoning.encrypted", "data"), ("redacted_thinking", "data"), ("server_tool_use", "name"),
)  # fmt: skip
_WORD = re.compile(r"[\w.:/@+=~|-]*", re.ASCII)
# Types of parts, and keys, of what isn't text.
_MEDIA = frozenset((
    "audio", "audio_url", "b64_json", "base64", "computer_screenshot", "container_upload", "document_url",
    "file", "file_data", "file_id", "file_url", "image", "image_generation_call", "image_url", "input_audio",
    "input_file", "input_image", "input_video", "item_reference", "output_audio", "output_image",
    "partial_image_b64", "response.audio.delta", "video", "video_url",
))  # fmt: skip
_URL = re.compile(r"https?://[\w.~:/?#\[\]@!$&'()*+,;=%-]+", re.ASCII)
_BASE64_URL = re.compile(r"data:[^,\s]*;base64,\S*", re.ASCII)
_BASE64 = re.compile(rf"{_BASE64_URL.pattern}|[A-Za-z0-9+/_-]{{200,}}={{0,2}}", re.ASCII)
_BASE64_LINE_END = re.compile(r"(?<=[A-Za-z0-9+/_=-]{60})\s+", re.ASCII)  # lines have 64 or 76 characters
_LONGEST_REPEATED = 40  # characters, of what is repeated all through a text
_FOLLOWS, _IN_A_FENCE = re.compile(r"\s*(?=[{\[])"), re.compile(r"\w*\s*(?=[{\[])")  # objects and lists
_TOOL_KEYS = frozenset(("arguments", "input", "json"))  # objects of the application's: their keys are its own
# In a stream: where pieces of a text stand, and what comes whole beside them.
_PIECE_KEYS = frozenset(("delta", "logprobs"))
_WHOLE_KEYS = frozenset(("annotations", "citation", "citations"))
_CHOICE_DEPTH = 4  # of its fields' addresses, with its place and its index
# Characters without a shape, by Unicode's Default_Ignorable_Code_Point: BERT's cleaning leaves most of them
# out. Tags (U+E0020 … U+E007E) are ASCII that LLMs can read.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
_ADDRESS_KEYS = ("type", "index", "output_index", "content_index", "summary_index", "annotation_index")


class GuardedTexts(NamedTuple):
    """`reason` says why something beside the texts can't be judged; empty where there is nothing such."""

    texts: list[str]
    reason: str = ""


def collect_request_texts(form: WireFormat, content: bytes) -> GuardedTexts:
    """Raises NotMirrored where none of it can be judged: malformed-request, server-state."""
    try:
        body = object_of(_parse_json(content), "malformed-request")
        found, items = _TextCollector(form), form.new_items(body)
        for place, item in enumerate(items):
            found.add(item, ("items", place))
        if len(texts := [text for text in map(_visible_text, items) if text]) > 1:  # the model reads on
            found.add("\n".join(texts), ("items", "together"))
        for key in body.keys() - form.OF_APPLICATION - {form.INPUT}:
            found.add(body[key], (key,))
        return GuardedTexts(list(found.texts()), "input-not-text" if found.has_other else "")
    except _MALFORMED:
        raise NotMirrored("malformed-request") from None


def collect_answer_texts(
    asked: bytes | None,
    content: bytes,
    encoding: str,
    *,
    is_stream: bool,
    is_error: bool = False,
    largest: int = LARGEST,
    form: WireFormat = DEFAULT_FORMAT,
) -> GuardedTexts:
    """Of a body, or of a stream, of at most `largest` bytes unpacked. `asked` is the request, of which some
    answers repeat what the application said; None for an answer that was kept, which is all that is left of
    it. Raises NotMirrored where none of it can be judged.
    """
    content = decode_content(content, encoding, largest)
    try:
        found = _TextCollector(form, _read_application_words(content if asked is None else asked, form))
        if is_stream:
            for event in events_of(content + b"\n\n"):  # many clients read one that was cut short too
                found.add(event.name, ("type",))
                value = _parse_json_or_keep(event.data)
                found.add(_as_delta(value), ())
                # Lines of JSON that no empty line parts, as clients read them that read line by line.
                for line in event.data.split("\n") if value is event.data and "\n" in value else ():
                    found.add(_as_delta(_parse_json_or_keep(line)), ())
            _add_other_lines(found, content)
        elif is_error and _parse_json_or_keep(content) is content:
            found.add(content.decode(), ())
        elif content.strip() or not is_error:
            found.add(_parse_json(content), ())
        return GuardedTexts(list(found.texts()), "answer-not-text" if found.has_other else "")
    except _MALFORMED:
        raise NotMirrored("malformed-answer") from None


def _read_application_words(asked: bytes, form: WireFormat) -> set[str]:
    """The application's, which some answers repeat."""
    body = _parse_json_or_keep(asked)
    words = _TextCollector(form)
    if isinstance(body, dict):
        given = {key: body[key] for key in body.keys() & form.OF_APPLICATION}
        for place in ("arguments", "content"):  # single words too, and parts as one
            words.add(given, (place,), with_keys=True)
    return set(words.texts())


def _as_delta(event: Json) -> Json:
    """What a block of Anthropic's begins with stands before its deltas."""
    if not isinstance(event, dict) or event.get("type") != "content_block_start":
        return event
    given = {key: value for key, value in event.items() if key != "content_block"}
    return {**given, "type": "content_block_delta", "delta": event.get("content_block")}


def _add_other_lines(found: "_TextCollector", content: bytes) -> None:
    """Comments and ids, and a body that is no stream: some clients read what isn't an event."""
    body = _parse_json_or_keep(content)
    if body is not content:
        found.add(body, ("body",))
        return
    for line in re.split(r"[\r\n]+", content.decode("utf-8", "replace").removeprefix("\ufeff")):
        field, _, value = line.partition(":")
        if field != "data" and not _WORD.fullmatch((value or line).strip()):
            found.add(line, ("lines", line))


def _parse_json_or_keep(text: str | bytes) -> Json:
    """JSON, or else the text itself."""
    try:
        return _parse_json(text)
    except ValueError:
        return "" if text == DONE else text


def _parse_json(text: str | bytes) -> Json:
    """As lenient as those who read it after us: half of a surrogate pair is text. A key that stands there
    twice has both values in a list, for which of them counts depends on the reader.
    """
    return json.loads(text, object_pairs_hook=_build_object)


def _build_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        return {name: [value for key, value in pairs if key == name] for name in found}
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_build_object)


def _find_json(text: str) -> Iterator[Json]:
    """Objects and lists that a text begins with, or that follow a fence (```json), and those right behind
    them; a text that is a string of JSON.
    """
    if text.lstrip()[:1] == '"' and (string := _parse_json_or_keep(text)) is not text:
        yield string
    for number, part in enumerate((text, *text.split("```")[1:])):
        begin = (_IN_A_FENCE if number else _FOLLOWS).match(part)
        while begin:
            try:
                value, end = _DECODER.raw_decode(part, begin.end())
            except ValueError:
                break
            yield value
            begin = _FOLLOWS.match(part, end)


def _visible_text(part: Json) -> str:
    """A part's text, or a message's: its parts as one. Empty for what isn't shown beside such."""
    if not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    text = part.get("text")
    if text is None and part.get("type") in (None, "message"):
        text = part.get("content")
    if isinstance(text, list):
        parts = [each.get("text") if isinstance(each, dict) else each for each in text]
        return "".join(each for each in parts if isinstance(each, str))
    return text if isinstance(text, str) else ""


class _TextCollector:
    """Texts by where they stand. `has_other`: there is something beside them that is no text."""

    def __init__(self, form: WireFormat, own_words: Collection[str] = ()) -> None:
        self.form, self.own_words = form, own_words
        self._media = _MEDIA | form.MEDIA
        self.has_other = False
        self._pieces: dict[_Address, list[str]] = {}
        self._bytes: dict[_Address, bytearray] = {}

    def add(self, value: Json, address: _Address, *, with_keys: bool = False) -> None:
        """Every text in it; `with_keys` names of fields that are plain words, too."""
        if isinstance(value, str):
            self._add_text(value, address)
        elif isinstance(value, dict):
            self._add_object(value, address, with_keys)
        elif isinstance(value, list):
            self._add_list(value, address, with_keys)

    def _add_text(self, text: str, address: _Address) -> None:
        self._pieces.setdefault(address, []).append(text)
        is_of_block = address[:1] == ("content_block_delta",) and address[-2:] == ("delta", "text")
        if is_of_block or (address[:1] == ("response.output_text.delta",) and address[-1] == "delta"):
            self._pieces.setdefault(("delta", "parts"), []).append(text)  # clients show blocks as one

    def _add_object(self, value: dict[str, Json], address: _Address, with_keys: bool) -> None:
        kind, is_own = str(value.get("type")), not (_TOOL_KEYS | _DEFINITION_KEYS).isdisjoint(address)
        is_media = kind in self._media or (kind == "url" and "sources" not in address)  # not a search's
        # Events of a stream are told apart by their types; a part's type comes with its first piece alone.
        places = _ADDRESS_KEYS if not address or is_media else _ADDRESS_KEYS[1:]
        address += tuple(str(value[key]) for key in places if isinstance(value.get(key), str | int))
        is_cited = kind.endswith("citation") or "text" in value or "cited_text" in value
        for key, each in value.items():
            is_option = key == "image" and isinstance(each, dict) and each.keys() <= {"context_compression"}
            is_other = is_media if key == "type" else each and key in self._media and not is_option
            if is_other and not is_own and not (key == "file_id" and is_cited):
                self.has_other = True
            if with_keys or not _WORD.fullmatch(key):
                self._pieces.setdefault((*address, key, "key"), [key])
            # Moderation has an `input` too, and a tool's fields may be called so.
            is_of_application = key in _TOOL_KEYS and (_DEFINITION_KEYS | {"moderation"}).isdisjoint(address)
            is_of_application |= kind == "input_json" and key == "data"
            is_name = key == "name" and value.get("role") in ("function", "tool")  # of the application's
            if is_of_application and each and isinstance(each, dict | list) and not with_keys:
                self._add_text(json.dumps(each, ensure_ascii=False), (*address, key))
            elif not ((is_name or (kind, key) in _WORDS_OF_TYPES) and _WORD.fullmatch(str(each))):
                self.add(each, (*address, key), with_keys=with_keys)

    def _add_list(self, values: list[Json], address: _Address, with_keys: bool) -> None:
        if address[-1:] == ("bytes",) and values and all(isinstance(value, int) for value in values):
            self._bytes.setdefault(address, bytearray()).extend(value & 0xFF for value in values)
            return
        # Tokens are pieces of one text; what else a place might have had is one text a rank.
        is_tokens = "logprobs" in address and address[-1] != "top_logprobs"
        for place, each in enumerate(values):
            number = each.get("index", place) if isinstance(each, dict) else place
            self.add(each, address if is_tokens else (*address, str(number)), with_keys=with_keys)
        texts = [text for text in map(_visible_text, values) if text]
        are_words = all(
            isinstance(value, str) and _WORD.fullmatch(value) for value in values
        )  # joined: no text
        # Clients show them as one.
        if len(texts) > 1 and not (is_tokens or are_words) and _TOOL_KEYS.isdisjoint(address):
            self._pieces.setdefault((*address, "parts"), []).append("".join(texts))

    def texts(self) -> Iterator[str]:
        """Each once. One that is JSON, as a tool's arguments are, counts as it is, and so do its texts; one
        with characters that can't be seen also as it reads without them.
        """
        found = dict[str, None]()
        for text in self._texts():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            found |= dict.fromkeys((text, _INVISIBLE.sub("", text.translate(_TAGS))))
        yield from (text for text in found if text.strip())

    def _texts(self) -> Iterator[str]:
        for address, pieces in self._pieces.items():
            is_name = address[-1:] != () and str(address[-1]).endswith(_NAME_ENDINGS)
            if is_name and all(piece in self.own_words for piece in pieces):  # of calls without an index
                continue
            for text in _join_pieces(address, pieces):
                if text in self.own_words and (is_name or not _MODEL_KEYS & set(address)):
                    continue
                if self._is_text(text, address):
                    yield text
                    yield from self._inside(text)
        for written in self._bytes.values():
            yield written.decode("utf-8", "replace")

    def _is_text(self, text: str, address: _Address) -> bool:
        key = address[-1] if address else ""
        is_link = key in ("source", "url") or "citations" in address[-2:]
        is_link = is_link and _TOOL_KEYS.isdisjoint(address) and _URL.fullmatch(text) is not None
        has_word = _is_protocol_word(address) or (key in self.form.WORDS and _TOOL_KEYS.isdisjoint(address))
        if is_link or (_WORD.fullmatch(text) and has_word):
            return False
        one_line = _BASE64_LINE_END.sub("", text.strip())
        if _BASE64.fullmatch(one_line) and not _is_repetition(one_line):
            self.has_other = True
        # Bytes and addresses of what isn't text; a word in their place elsewhere is judged.
        is_of_media = not self._media.isdisjoint(address) and _TOOL_KEYS.isdisjoint(address)
        is_content = is_of_media and key in self._media | {"data", "url"} and " " not in text
        return not (is_content or _BASE64_URL.fullmatch(text))

    def _inside(self, text: str) -> Iterator[str]:
        if not re.search(r'[{\["]', text):  # as of most of the strings in a long list
            return
        inner = _TextCollector(self.form)
        try:
            for number, value in enumerate(_find_json(text)):
                inner.add(value, ("json", number))
            yield from list(inner.texts())
        except RecursionError:  # brackets in brackets: who reads it as JSON may find more than we do
            inner.has_other = True
        self.has_other = self.has_other or inner.has_other


def _is_repetition(text: str) -> bool:
    """Whether a text of many characters is a few ones again and again: laughter, or a word that each chunk of
    a stream says. No file is.
    """
    sizes = range(1, _LONGEST_REPEATED + 1)
    begins = [size for size in sizes if text.startswith(text[size : 3 * size])]  # of megabytes a glance
    return any(text[size:] == text[:-size] for size in begins)


def _is_protocol_word(address: _Address) -> bool:
    """Whether a single word that stands there is one of the protocol, or of the provider."""
    key = str(address[-1]) if address else ""
    outside = tuple(
        takewhile(lambda place: place not in _FACT_KEYS and place not in _SETTING_KEYS, address[:-1])
    )
    inside = address[len(outside) : -1]
    if (
        inside
        and _TOOL_KEYS.isdisjoint(outside)
        and (inside[0] in _SETTING_KEYS or _MODEL_KEYS.isdisjoint(outside))
    ):
        return key not in ("description", "message", "revised_prompt")
    is_word = key in _WORD_KEYS or key.endswith(_WORD_KEY_ENDINGS)
    is_word |= not _SEALED_KEYS.isdisjoint(address[-2:])  # in a list too
    is_word |= key in ("code", "param", "review_target") and not _ERROR_KEYS.isdisjoint(address)
    return is_word and _TOOL_KEYS.isdisjoint(address)


def _join_pieces(address: _Address, pieces: list[str]) -> list[str]:
    """The text that they make. What a stream repeats or adds to whole, chunk by chunk, is also a text each
    time that it is another.
    """
    text = "".join(pieces)
    if len(pieces) == 1 or (not _PIECE_KEYS.isdisjoint(address) and _WHOLE_KEYS.isdisjoint(address)):
        return [text]
    others = [piece for piece, after in pairwise(pieces) if not after.startswith(piece)]
    is_of_choice = address[:1] == ("choices",) and len(address) <= _CHOICE_DEPTH
    if others and is_of_choice and address[-1] == "text":  # as Together's, beside `delta`
        return [text]
    whole = list(dict.fromkeys((*others, pieces[-1])))
    if len(whole) > 1:  # words without a blank between, each repeated, are no text
        whole.append("".join(whole) if _WORD.fullmatch(text) else text)
    return whole
