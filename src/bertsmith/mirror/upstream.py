"""An LLM that we ask ourselves, in the protocols of most servers: OpenAI's chat completions, and Anthropic's
messages.

A request is made of what a recorded call kept, so that asking again is asking the same. The key is read from
the environment, sent, and kept nowhere.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from bertsmith.errors import InputError
from bertsmith.mirror.call import SYSTEM_ROLES, Answered, Asked, Json, Message, NotMirrored
from bertsmith.mirror.exchange import read_answered, read_asked
from bertsmith.mirror.formats import anthropic, openai_chat
from bertsmith.mirror.formats.registry import BY_NAME
from bertsmith.mirror.passing_on import HEADER

_ATTEMPTS, _LONGEST_WAIT = 6, 60.0  # seconds
_BUSY = (408, 409, 429, 500, 502, 503, 504, 529)
_TIMEOUT = 120.0  # seconds
_MOST_TOKENS = 1024  # that Anthropic's messages have to be given

Tokens = tuple[int | None, int | None]  # read and written; None where nobody says it


class UnusableAnswer(NotMirrored):
    """One that nothing can be learned from, and that was paid for all the same."""

    def __init__(self, reason: str, tokens: Tokens) -> None:
        super().__init__(reason)
        self.tokens = tokens


@dataclass(frozen=True)
class _Protocol:
    """`path` behind the base URL, `key` the usual variable of the environment."""

    path: str
    key: str
    headers: Callable[[str], Mapping[str, str]]
    body: Callable[[Asked], dict[str, Json]]
    tokens: Callable[[Mapping[str, Json]], Tokens]


def _content(message: Message) -> Json:
    if len(message.parts) == 1:
        return message.parts[0]
    return [{"type": "text", "text": part} for part in message.parts]


def _chat(asked: Asked) -> dict[str, Json]:
    messages = [{"role": each.role, "content": _content(each)} for each in asked.messages]
    return {**asked.parameters, "model": asked.model, "messages": messages}


def _anthropic(asked: Asked) -> dict[str, Json]:
    messages = [{"role": each.role, "content": _content(each)} for each in asked.inputs]
    system = [{"type": "text", "text": part} for each in asked.system for part in each.parts]
    body = {"max_tokens": _MOST_TOKENS, **asked.parameters, "model": asked.model, "messages": messages}
    return {**body, "system": system} if system else body


_PROTOCOLS = {
    "openai-chat": _Protocol(
        "/chat/completions",
        "OPENAI_API_KEY",
        lambda key: {"authorization": f"Bearer {key}"} if key else {},
        _chat,
        openai_chat.tokens_of,
    ),
    "anthropic": _Protocol(
        "/v1/messages",
        "ANTHROPIC_API_KEY",
        lambda key: {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})},
        _anthropic,
        anthropic.tokens_of,
    ),
}


class Upstream:
    """Several threads may ask it at once. A context manager, which ends its connections."""

    def __init__(
        self,
        base_url: str,
        protocol: str = "openai-chat",
        key_from: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`base_url` is what an application has as its own; `key_from` names the variable with the key, the
        provider's usual one unless said. Raises InputError for a protocol that we don't speak, for an address
        that is none, and for a variable that was named and isn't there.
        """
        if protocol not in _PROTOCOLS:
            raise InputError(
                f"The protocol {protocol!r} can be recorded but not asked: expected {', '.join(_PROTOCOLS)}."
            )
        if not base_url.startswith(("http://", "https://")):
            raise InputError(
                f"Expected the LLM's address such as https://api.openai.com/v1, found {base_url!r}."
            )
        self._protocol, self._form = _PROTOCOLS[protocol], BY_NAME[protocol]
        if key_from is not None and key_from not in environment:
            raise InputError(f"The environment has no variable {key_from}, which was to hold the LLM's key.")
        key = environment.get(key_from or self._protocol.key, "")
        self._url = base_url.rstrip("/") + self._protocol.path
        self._client = httpx.Client(headers=dict(self._protocol.headers(key)), timeout=_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def asked(self, body: Mapping[str, Json]) -> Asked:
        """A request in its protocol, as it would be recorded. Raises InputError where it asks for nothing
        that could be mirrored.
        """
        try:
            return read_asked(self._form, body)
        except NotMirrored as reason:
            raise InputError(f"The request can't be mirrored: {reason.reason}.") from None

    def ask(self, asked: Asked) -> Answered:
        """Waits and tries again where the LLM is busy. Raises NotMirrored for an answer that says nothing to
        learn from, InputError where it refuses, or goes on being busy.
        """
        if any(each.role not in (*SYSTEM_ROLES, "user", "assistant") for each in asked.messages):
            raise NotMirrored("tool-messages")
        response = self._send(self._protocol.body(asked))
        try:
            body = response.json()
        except ValueError:
            raise NotMirrored("malformed-answer") from None
        try:
            return read_answered(self._form, asked, body)
        except NotMirrored as found:
            tokens = self._protocol.tokens(body) if isinstance(body, dict) else (None, None)
            raise UnusableAnswer(found.reason, tokens) from None

    def _send(self, body: dict[str, Any]) -> httpx.Response:
        found = "no answer"
        for attempt in range(_ATTEMPTS):
            wait = min(2.0**attempt / 2, _LONGEST_WAIT)
            try:
                response = self._client.post(self._url, json=body)
            except httpx.HTTPError as error:
                found = type(error).__name__
            else:
                if HEADER.decode() in response.headers:
                    raise InputError(
                        f"{self._url} is a mirror, where a student may answer and every call counts as "
                        "traffic. Name the LLM's own address, the one that the mirror has as its --upstream."
                    )
                if response.status_code == 200:
                    return response
                found = f"status {response.status_code}"
                if response.status_code not in _BUSY:
                    raise InputError(f"{self._url} refuses: {found}, {_told(response)}.")
                wait = min(_seconds(response.headers.get("retry-after"), wait), _LONGEST_WAIT)
            if attempt + 1 < _ATTEMPTS:
                time.sleep(wait)
        raise InputError(
            f"{self._url} gave no answer in {_ATTEMPTS} attempts ({found}). What was answered before is "
            "stored: run this again later."
        )


def _told(response: httpx.Response) -> str:
    """The first words of its own message."""
    try:
        said = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = response.text
    return " ".join(str(said).split())[:200] or "without a reason"


def _seconds(header: str | None, usual: float) -> float:
    try:
        seconds = float(header or usual)
    except ValueError:  # a date
        return usual
    return usual if math.isnan(seconds) else max(seconds, 0.0)
