"""What each wire format fulfils."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from bertsmith.mirror.call import Answered, Asked, Json
from bertsmith.mirror.streams import Event


class WireFormat(Protocol):
    """A module. `NAME` is in the store and in the log; `PATH` is the end of the path of its requests."""

    NAME: str
    PATH: str

    def read_request(self, body: Mapping[str, Json]) -> Asked:
        """Raises NotMirrored saying why."""

    def read_answer(self, asked: Asked, body: Mapping[str, Json]) -> Answered:
        """Of a body with status 200, or of a joined stream. Raises NotMirrored saying why."""

    def join(self, events: Iterable[Event]) -> Mapping[str, Json]:
        """A stream's events as the body that would have come without streaming. Raises NotMirrored where
        they end too early.
        """

    def error_body(self, message: str, code: str) -> Json:
        """What the format's clients read where there is no answer to relay."""
