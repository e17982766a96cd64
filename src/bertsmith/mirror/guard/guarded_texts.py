"""Collects the texts of a request and of an answer that the guard judges, in every wire format. Read
`collect_request_texts` and `_TextCollector` first.

Of a request it judges what users and tools have said since the model's last turn, with or without a schema;
of an answer, every text. There is no list of fields with texts, since protocols and servers add new ones. The
constants below list the fields that have none, and everything else counts as text.

Every text has an address: the keys and indices that lead to it. The pieces of a stream with the same address,
which is the same field of the same choice, block or item, are joined to one text.
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

# Below these keys the model speaks, even where it repeats the application's words.
_MODEL_KEYS = frozenset(("choices", "content", "delta", "output"))
# Endings of keys whose values are names given by the application: the model only chooses one of them.
_NAME_ENDINGS = ("name", "namespace", "server_label", "stop", "stop_reason", "stop_sequence")
# Keys whose values, if they are single words, are the protocol's or are read by the provider only.
_WORD_KEYS = frozenset((
    "button", "category", "channel", "context_compression", "created_by", "detail", "effort", "error_code",
    "execution", "format", "id", "inference_geo", "mode", "model", "object", "payer", "phase",
    "prompt_cache_key", "prompt_cache_retention", "provider", "role", "service_tier", "severity", "speed",
    "status", "tool_choice", "truncation", "ttl", "type", "verbosity", "version",
))  # fmt: skip
_WORD_KEY_ENDINGS = ("_at", "_id", "_model", "_reason", "_token", "_type", "_version", "fingerprint")
_ERROR_KEYS = frozenset(("acknowledged_safety_checks", "error", "pending_safety_checks"))
# Settings and facts outside of what the model says: each single word in them is the provider's.
_FACT_KEYS = frozenset((
    "access_programs", "background_options", "incomplete_details", "input_transformations", "moderation",
    "prompt_cache_diagnostics", "reasoning", "usage",
))  # fmt: skip
_DEFINITION_KEYS = frozenset(
    ("definition", "properties", "schema", "tools")
)  # their keys name fields of tools
_SETTING_KEYS = _DEFINITION_KEYS | frozenset((  # settings also inside of what the model says
    "image_generation_call", "response.audio.delta", "response.image_generation_call.partial_image",
    "transformations",
))  # fmt: skip
# Encrypted or random data; `p` is Mistral's `obfuscation`.
_SEALED_KEYS = frozenset((
    "encrypted_content", "encrypted_index", "encrypted_stdout", "obfuscation", "p", "redactedContent",
    "signature", "thought_signature", "thought_signatures",
))  # fmt: skip
_WORDS_OF_TYPES = (  # (type of a block, its key with encrypted data or a name of the provider's)
    ("reasoning.encrypted", "data"), ("redacted_thinking", "data"), ("server_tool_use", "name"),
)  # fmt: skip
_WORD = re.compile(r"[\w.:/@+=~|-]*", re.ASCII)
# Types of parts, and keys, of media and files.
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
_LONGEST_REPEATED = 40  # characters of the part of which a repetitive text consists
_FOLLOWS, _IN_A_FENCE = re.compile(r"\s*(?=[{\[])"), re.compile(r"\w*\s*(?=[{\[])")  # an object or a list
_TOOL_KEYS = frozenset(("arguments", "input", "json"))  # objects of the application: their keys are its own
# In a stream: keys below which texts come in pieces, and those below which they come whole all the same.
_PIECE_KEYS = frozenset(("delta", "logprobs"))
_WHOLE_KEYS = frozenset(("annotations", "citation", "citations"))
_CHOICE_DEPTH = 4  # length of the addresses of a choice's own fields, with the choice's index
# Invisible characters (Unicode's Default_Ignorable_Code_Point); BERT's tokenizers drop most of them. Tags
# (U+E0020 … U+E007E) are invisible copies of ASCII that LLMs can read.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
_ADDRESS_KEYS = ("type", "index", "output_index", "content_index", "summary_index", "annotation_index")


class GuardedTexts(NamedTuple):
    """The texts to judge. `reason` says why something else can't be judged, such as "input-not-text" for an
    image; empty if there is nothing else.
    """

    texts: list[str]
    reason: str = ""


def collect_request_texts(form: WireFormat, content: bytes) -> GuardedTexts:
    """Collects the texts of a request's body since the model's last turn. Raises NotMirrored if none of it
    can be judged, with the reason malformed-request or server-state (the input is on the provider's
    machines).
    """
    try:
        body = object_of(_parse_json(content), "malformed-request")
        collector, items = _TextCollector(form), form.new_items(body)
        for index, item in enumerate(items):
            collector.add(item, ("items", index))
        if len(texts := [text for text in map(_visible_text, items) if text]) > 1:  # the model reads on
            collector.add("\n".join(texts), ("items", "together"))
        for key in body.keys() - form.OF_APPLICATION - {form.INPUT}:
            collector.add(body[key], (key,))
        return GuardedTexts(list(collector.texts()), "input-not-text" if collector.has_other else "")
    except _MALFORMED:
        raise NotMirrored("malformed-request") from None


def collect_answer_texts(
    request: bytes | None,
    content: bytes,
    encoding: str,
    *,
    is_stream: bool,
    is_error: bool = False,
    largest: int = LARGEST,
    form: WireFormat = DEFAULT_FORMAT,
) -> GuardedTexts:
    """Collects the texts of an answer's body or stream, of at most `largest` bytes when unpacked with
    `encoding`.

    `request` is the body of the request, whose own words some answers repeat: these aren't judged. It is None
    for a stored answer, where only the answer itself shows them. Raises NotMirrored if none of it can be
    judged.
    """
    content = decode_content(content, encoding, largest)
    try:
        own_words = _read_application_words(content if request is None else request, form)
        collector = _TextCollector(form, own_words)
        if is_stream:
            for event in events_of(content + b"\n\n"):  # many clients also read an event that was cut short
                collector.add(event.name, ("type",))
                value = _parse_json_or_keep(event.data)
                collector.add(_as_delta(value), ())
                # Some clients read line by line: each line may be JSON without an empty line between.
                for line in event.data.split("\n") if value is event.data and "\n" in value else ():
                    collector.add(_as_delta(_parse_json_or_keep(line)), ())
            _add_other_lines(collector, content)
        elif is_error and _parse_json_or_keep(content) is content:
            collector.add(content.decode(), ())
        elif content.strip() or not is_error:
            collector.add(_parse_json(content), ())
        return GuardedTexts(list(collector.texts()), "answer-not-text" if collector.has_other else "")
    except _MALFORMED:
        raise NotMirrored("malformed-answer") from None


def _read_application_words(content: bytes, form: WireFormat) -> set[str]:
    """The texts in a body that are the application's own: some answers repeat them."""
    body = _parse_json_or_keep(content)
    collector = _TextCollector(form)
    if isinstance(body, dict):
        own = {key: body[key] for key in body.keys() & form.OF_APPLICATION}
        # Below "arguments" single words are collected too; below "content" parts are also joined to one text.
        for key in ("arguments", "content"):
            collector.add(own, (key,), with_keys=True)
    return set(collector.texts())


def _as_delta(event: Json) -> Json:
    """Turns the beginning of one of Anthropic's blocks into a delta, so that its text is joined with those of
    the following deltas; returns any other event unchanged.
    """
    if not isinstance(event, dict) or event.get("type") != "content_block_start":
        return event
    rest = {key: value for key, value in event.items() if key != "content_block"}
    return {**rest, "type": "content_block_delta", "delta": event.get("content_block")}


def _add_other_lines(collector: "_TextCollector", content: bytes) -> None:
    """Adds a stream's comments and ids, or a JSON body that is no stream: some clients read them too."""
    body = _parse_json_or_keep(content)
    if body is not content:
        collector.add(body, ("body",))
        return
    for line in re.split(r"[\r\n]+", content.decode("utf-8", "replace").removeprefix("\ufeff")):
        field, _, value = line.partition(":")
        if field != "data" and not _WORD.fullmatch((value or line).strip()):
            collector.add(line, ("lines", line))


def _parse_json_or_keep(text: str | bytes) -> Json:
    """The parsed JSON, or the text itself if it is none; empty for the end of a stream, [DONE]."""
    try:
        return _parse_json(text)
    except ValueError:
        return "" if text == DONE else text


def _parse_json(text: str | bytes) -> Json:
    """Parses JSON leniently, as clients do: half of a surrogate pair is text. The values of a key that occurs
    twice are put into a list, since clients differ in which of them they use.
    """
    return json.loads(text, object_pairs_hook=_build_object)


def _build_object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        return {name: [value for key, value in pairs if key == name] for name in unique}
    return unique


_DECODER = json.JSONDecoder(object_pairs_hook=_build_object)


def _find_json(text: str) -> Iterator[Json]:
    """Yields the JSON in a text: objects and lists at its beginning or after a fence (```json), those that
    follow directly, and the string if the whole text is one in quotes.
    """
    if text.lstrip()[:1] == '"' and (string := _parse_json_or_keep(text)) is not text:
        yield string
    for index, part in enumerate((text, *text.split("```")[1:])):
        match = (_IN_A_FENCE if index else _FOLLOWS).match(part)
        while match:
            try:
                value, end = _DECODER.raw_decode(part, match.end())
            except ValueError:
                break
            yield value
            match = _FOLLOWS.match(part, end)


def _visible_text(part: Json) -> str:
    """The text of a message or of one of its parts, with a message's parts joined; empty if it has none that
    clients show.
    """
    if not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    text = part.get("text")
    if text is None and part.get("type") in (None, "message"):
        text = part.get("content")
    if isinstance(text, list):
        parts = [item.get("text") if isinstance(item, dict) else item for item in text]
        return "".join(part for part in parts if isinstance(part, str))
    return text if isinstance(text, str) else ""


class _TextCollector:
    """Collects texts by their addresses.

    `own_words` are the application's texts, which aren't collected where an answer repeats them. `has_other`
    is set if there is anything that is no text, such as an image.
    """

    def __init__(self, form: WireFormat, own_words: Collection[str] = ()) -> None:
        self.form, self.own_words = form, own_words
        self._media = _MEDIA | form.MEDIA
        self.has_other = False
        self._pieces: dict[_Address, list[str]] = {}
        self._bytes: dict[_Address, bytearray] = {}

    def add(self, value: Json, address: _Address, *, with_keys: bool = False) -> None:
        """Adds every text in a JSON value; `with_keys` also the names of its fields that are single words."""
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
            self._pieces.setdefault(("delta", "parts"), []).append(text)  # clients join blocks

    def _add_object(self, value: dict[str, Json], address: _Address, with_keys: bool) -> None:
        kind, is_own = str(value.get("type")), not (_TOOL_KEYS | _DEFINITION_KEYS).isdisjoint(address)
        is_media = kind in self._media or (kind == "url" and "sources" not in address)  # not a search's
        # The type is part of an event's address. It is none of a part's: only its first piece has a type.
        keys = _ADDRESS_KEYS if not address or is_media else _ADDRESS_KEYS[1:]
        address += tuple(str(value[key]) for key in keys if isinstance(value.get(key), str | int))
        is_cited = kind.endswith("citation") or "text" in value or "cited_text" in value
        for key, part in value.items():
            is_option = key == "image" and isinstance(part, dict) and part.keys() <= {"context_compression"}
            is_other = is_media if key == "type" else part and key in self._media and not is_option
            if is_other and not is_own and not (key == "file_id" and is_cited):
                self.has_other = True
            if with_keys or not _WORD.fullmatch(key):
                self._pieces.setdefault((*address, key, "key"), [key])
            # Moderation has an `input` too, and the fields of a tool may have these names.
            is_of_application = key in _TOOL_KEYS and (_DEFINITION_KEYS | {"moderation"}).isdisjoint(address)
            is_of_application |= kind == "input_json" and key == "data"
            is_name = key == "name" and value.get("role") in ("function", "tool")  # the application's
            if is_of_application and part and isinstance(part, dict | list) and not with_keys:
                self._add_text(json.dumps(part, ensure_ascii=False), (*address, key))
            elif not ((is_name or (kind, key) in _WORDS_OF_TYPES) and _WORD.fullmatch(str(part))):
                self.add(part, (*address, key), with_keys=with_keys)

    def _add_list(self, values: list[Json], address: _Address, with_keys: bool) -> None:
        if address[-1:] == ("bytes",) and values and all(isinstance(value, int) for value in values):
            self._bytes.setdefault(address, bytearray()).extend(value & 0xFF for value in values)
            return
        # The tokens of log probabilities are pieces of one text; their alternatives are a text for each rank.
        is_tokens = "logprobs" in address and address[-1] != "top_logprobs"
        for position, item in enumerate(values):
            index = item.get("index", position) if isinstance(item, dict) else position
            self.add(item, address if is_tokens else (*address, str(index)), with_keys=with_keys)
        texts = [text for text in map(_visible_text, values) if text]
        are_words = all(
            isinstance(value, str) and _WORD.fullmatch(value) for value in values
        )  # joined: no text
        # Clients show the parts of a message as one text.
        if len(texts) > 1 and not (is_tokens or are_words) and _TOOL_KEYS.isdisjoint(address):
            self._pieces.setdefault((*address, "parts"), []).append("".join(texts))

    def texts(self) -> Iterator[str]:
        """Yields each text once. A text with invisible characters is also given without them. A text that is
        JSON, as a tool's arguments are, is given as it is, and so are the texts in it.
        """
        unique = dict[str, None]()
        for text in self._collected_texts():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            unique |= dict.fromkeys((text, _INVISIBLE.sub("", text.translate(_TAGS))))
        yield from (text for text in unique if text.strip())

    def _collected_texts(self) -> Iterator[str]:
        for address, pieces in self._pieces.items():
            is_name = address[-1:] != () and str(address[-1]).endswith(_NAME_ENDINGS)
            if is_name and all(piece in self.own_words for piece in pieces):  # of tool calls without an index
                continue
            for text in _join_pieces(address, pieces):
                if text in self.own_words and (is_name or not _MODEL_KEYS & set(address)):
                    continue
                if self._is_text(text, address):
                    yield text
                    yield from self._texts_in_json(text)
        for content in self._bytes.values():
            yield content.decode("utf-8", "replace")

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
        # Bytes and addresses of media are no text; a word at another place is judged.
        is_of_media = not self._media.isdisjoint(address) and _TOOL_KEYS.isdisjoint(address)
        is_content = is_of_media and key in self._media | {"data", "url"} and " " not in text
        return not (is_content or _BASE64_URL.fullmatch(text))

    def _texts_in_json(self, text: str) -> Iterator[str]:
        if not re.search(r'[{\["]', text):  # fast: most strings of a long list have none
            return
        inner = _TextCollector(self.form)
        try:
            for number, value in enumerate(_find_json(text)):
                inner.add(value, ("json", number))
            yield from list(inner.texts())
        except RecursionError:  # too deeply nested for us, though perhaps not for a client
            inner.has_other = True
        self.has_other = self.has_other or inner.has_other


def _is_repetition(text: str) -> bool:
    """Whether a text repeats the same few characters over and over, as laughter does or a word in every chunk
    of a stream. A file in Base64 doesn't.
    """
    sizes = range(1, _LONGEST_REPEATED + 1)
    candidates = [size for size in sizes if text.startswith(text[size : 3 * size])]  # fast for long texts
    return any(text[size:] == text[:-size] for size in candidates)


def _is_protocol_word(address: _Address) -> bool:
    """Whether a single word at this address belongs to the protocol or the provider."""
    key = str(address[-1]) if address else ""
    outside = tuple(
        takewhile(lambda part: part not in _FACT_KEYS and part not in _SETTING_KEYS, address[:-1])
    )
    inside = address[len(outside) : -1]
    if (
        inside
        and _TOOL_KEYS.isdisjoint(outside)
        and (inside[0] in _SETTING_KEYS or _MODEL_KEYS.isdisjoint(outside))
    ):
        return key not in ("description", "message", "revised_prompt")
    is_word = key in _WORD_KEYS or key.endswith(_WORD_KEY_ENDINGS)
    is_word |= not _SEALED_KEYS.isdisjoint(address[-2:])  # also in a list below such a key
    is_word |= key in ("code", "param", "review_target") and not _ERROR_KEYS.isdisjoint(address)
    return is_word and _TOOL_KEYS.isdisjoint(address)


def _join_pieces(address: _Address, pieces: list[str]) -> list[str]:
    """Joins the pieces with one address to a text. If a stream sends a text whole in each chunk, repeated or
    extended, then each different version is a text of its own beside the joined one.
    """
    text = "".join(pieces)
    if len(pieces) == 1 or (not _PIECE_KEYS.isdisjoint(address) and _WHOLE_KEYS.isdisjoint(address)):
        return [text]
    complete = [piece for piece, next_piece in pairwise(pieces) if not next_piece.startswith(piece)]
    is_of_choice = address[:1] == ("choices",) and len(address) <= _CHOICE_DEPTH
    if complete and is_of_choice and address[-1] == "text":  # Together's pieces, beside `delta`
        return [text]
    versions = list(dict.fromkeys((*complete, pieces[-1])))
    if len(versions) > 1:  # of words that are repeated without blanks, each counts once
        versions.append("".join(versions) if _WORD.fullmatch(text) else text)
    return versions
