"""An LLM that we ask ourselves, in the protocols of most servers: OpenAI's chat completions, and Anthropic's
messages.

A request is made of what a recorded call kept, so that asking again is asking the same. The key is read from
the environment, sent, and kept nowhere.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import Any, Self

import httpx

from bertsmith.errors import InputError
from bertsmith.mirror.call import SYSTEM_ROLES, Answered, Asked, Json, NotMirrored
from bertsmith.mirror.exchange import read_answered, read_asked
from bertsmith.mirror.formats.registry import BY_NAME, USUAL
from bertsmith.mirror.formats.wire_format import Tokens
from bertsmith.mirror.passing_on import HEADER

_ATTEMPTS, _LONGEST_WAIT = 6, 60.0  # seconds
_BUSY = (408, 409, 429, 500, 502, 503, 504, 529)
_TIMEOUT = 120.0  # seconds


class UnusableAnswer(NotMirrored):
    """One that nothing can be learned from, and that was paid for all the same."""

    def __init__(self, reason: str, tokens: Tokens) -> None:
        super().__init__(reason)
        self.tokens = tokens


class Upstream:
    """Several threads may ask it at once. A context manager, which ends its connections."""

    def __init__(
        self,
        base_url: str,
        protocol: str = USUAL.NAME,
        key_from: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`base_url` is what an application has as its own; `key_from` names the variable with the key, the
        provider's usual one unless said. Raises InputError for a protocol that we don't speak, for an address
        that is none, and for a variable that was named and isn't there.
        """
        spoken = [name for name, each in BY_NAME.items() if each.KEY]
        if protocol not in spoken:
            raise InputError(
                f"The protocol {protocol!r} can be recorded but not asked: expected {', '.join(spoken)}."
            )
        if not base_url.startswith(("http://", "https://")):
            raise InputError(
                f"Expected the LLM's address such as https://api.openai.com/v1, found {base_url!r}."
            )
        self._form = BY_NAME[protocol]
        if key_from is not None and key_from not in environment:
            raise InputError(f"The environment has no variable {key_from}, which was to hold the LLM's key.")
        key = environment.get(key_from or self._form.KEY, "")
        self._url = base_url.rstrip("/") + self._form.PATH
        self._client = httpx.Client(headers=dict(self._form.headers(key)), timeout=_TIMEOUT)

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
        response = self._send(self._form.write_request(asked))
        try:
            body = response.json()
        except ValueError:
            raise NotMirrored("malformed-answer") from None
        try:
            return read_answered(self._form, asked, body)
        except NotMirrored as found:
            tokens = self._form.tokens_of(body) if isinstance(body, dict) else (None, None)
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
