"""Which formats there are: ours, and those of others as `package.module:Class`."""

from collections.abc import Iterable, Mapping

from bertsmith.door import own_class
from bertsmith.errors import InputError
from bertsmith.mirror.call import Json
from bertsmith.mirror.formats.anthropic import Anthropic
from bertsmith.mirror.formats.decisions import Decisions
from bertsmith.mirror.formats.openai_chat import OpenAIChat
from bertsmith.mirror.formats.openai_responses import OpenAIResponses
from bertsmith.mirror.formats.systemone import SystemOne
from bertsmith.mirror.formats.wire_format import WireFormat

FORMATS: tuple[WireFormat, ...] = (
    OpenAIChat(),
    OpenAIResponses(),
    Anthropic(),
    SystemOne(),
    Decisions(),
)
DEFAULT_FORMAT = FORMATS[
    0
]  # most servers of LLMs speak it, so on an unknown path its clients are the likeliest
FORMATS_BY_NAME = {each.NAME: each for each in FORMATS}


def find_formats(own: Iterable[str]) -> tuple[WireFormat, ...]:
    """A user's own, and then ours. Raises InputError for one that can't be imported or has a name of ours.

    It imports code, also from the current folder: a name may come from the user, never from a call.
    """
    formats = list[WireFormat]()
    for name in own:
        found: type[WireFormat] = own_class(name, WireFormat, "wire format")
        if found.__abstractmethods__:
            raise InputError(
                f"The wire format {name!r} lacks {', '.join(sorted(found.__abstractmethods__))}."
            )
        if found.NAME in FORMATS_BY_NAME:
            raise InputError(f"The wire format {name!r} is called {found.NAME!r}, as one of ours is.")
        formats.append(found())
    return (*formats, *FORMATS)


def find_format(method: str, path: str, formats: Iterable[WireFormat] = FORMATS) -> WireFormat | None:
    """None for what can't be mirrored, as lists of models or files."""
    if method != "POST":
        return None
    path = path.partition("?")[0]  # of an address in a log
    return next((each for each in formats if each.is_at(path)), None)


def guess_format(
    request: Mapping[str, Json], answer: Mapping[str, Json], formats: Iterable[WireFormat] = FORMATS
) -> WireFormat | None:
    """The format of a logged call whose path nobody knows."""
    return next((each for each in formats if each.fits(request, answer)), None)
