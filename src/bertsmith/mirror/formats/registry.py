"""The list of wire formats: the built-in ones, and the user's own, named as `package.module:Class`."""

from collections.abc import Iterable, Mapping

from bertsmith.argument_checks import import_class
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
FORMATS_BY_NAME = {form.NAME: form for form in FORMATS}


def find_formats(own: Iterable[str]) -> tuple[WireFormat, ...]:
    """The user's `own` formats, given as `module:Class`, followed by the built-in ones. Raises InputError for
    a class that can't be imported, is abstract, or has the name of a built-in format.

    This imports code, also from the current folder: names may come from the user, but never from a call.
    """
    formats = list[WireFormat]()
    for name in own:
        format_class: type[WireFormat] = import_class(name, WireFormat, "wire format")
        if format_class.__abstractmethods__:
            raise InputError(
                f"The wire format {name!r} lacks {', '.join(sorted(format_class.__abstractmethods__))}."
            )
        if format_class.NAME in FORMATS_BY_NAME:
            raise InputError(f"The wire format {name!r} is called {format_class.NAME!r}, as one of ours is.")
        formats.append(format_class())
    return (*formats, *FORMATS)


def find_format(method: str, path: str, formats: Iterable[WireFormat] = FORMATS) -> WireFormat | None:
    """The wire format of a request by its method and path; None for requests that no format reads, such as
    lists of models.
    """
    if method != "POST":
        return None
    path = path.partition("?")[0]  # a logged address may have a query
    return next((form for form in formats if form.is_at(path)), None)


def guess_format(
    request: Mapping[str, Json], answer: Mapping[str, Json], formats: Iterable[WireFormat] = FORMATS
) -> WireFormat | None:
    """The wire format of a logged call without a path, by the keys of its bodies; None if none fits."""
    return next((form for form in formats if form.fits(request, answer)), None)
