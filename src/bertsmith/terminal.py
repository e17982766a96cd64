"""What a terminal would obey rather than show: control characters, in names and texts of others."""

import re

# All but tab and line feed; 0x80 to 0x9f too, for some terminals take 0x9b for the beginning of a command.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Each control character as its escape, \\u001b, which JSON reads as the character again."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
