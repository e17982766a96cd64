"""Repairs what extraction and wrong encodings leave in text, without touching what it says.

Each step first asks a question that costs next to nothing (is there a '<'? is it ASCII?), because nearly all
text needs none of them: on Wikipedia the whole costs a few milliseconds a megabyte.
"""

import html
import re
import unicodedata

# Tags that stray into extracted text. Others stay: "a < b and c > d" and List<int> are text.
_TAG = re.compile(
    r"</?(?:br|p|div|span|ref|references|nowiki|sup|sub|small|big|center|blockquote|font|tt|code|pre|gallery|"
    r"table|tr|td|th|ul|ol|li|dl|dt|dd|hr|i|b|u|s|em|strong|poem|math|onlyinclude|noinclude|includeonly)"
    r"(?:\s[^<>]{0,500})?/?>",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--.{0,10000}?-->", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d{2,7}|#x[0-9a-fA-F]{2,6}|[A-Za-z]{2,31});")
_MAGIC_WORD = re.compile(
    r"__(?:NO|FORCE)?(?:TOC|EDITSECTION|NEWSECTIONLINK|GALLERY|CONTENTCONVERT|TITLECONVERT|INDEX|HIDDENCAT|"
    r"STATICREDIRECT|DISAMBIG|EXPECTUNUSEDCATEGORY|START|END|CC|TC)__"
)
# C0 and C1 controls but tab and newline; soft hyphen, marks of direction and byte order, lone surrogates.
# Zero-width joiners stay: Persian, the languages of India and emoji need them.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
# What UTF-8 looks like when it was read as Latin-1 or Windows-1252: a lead byte, then a continuation byte.
_MOJIBAKE = re.compile("[\u00c2-\u00f4][\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]")


def clean(text: str) -> str:
    """Undoes mojibake, drops markup leftovers and control characters, composes to NFC. Newlines stay."""
    if "<" in text:
        text = _TAG.sub(" ", _COMMENT.sub(" ", text))
    if "&" in text:
        text = _ENTITY.sub(_unescaped, text)
    if "__" in text:
        text = _MAGIC_WORD.sub(" ", text)
    if not text.isascii() and _MOJIBAKE.search(text):
        text = "\n".join(map(_without_mojibake, text.split("\n")))
    if not text.isprintable():
        text = _CONTROL.sub(_control_replacement, text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text


def _without_mojibake(line: str) -> str:
    # By line, because ftfy weighs its evidence over all it is given: one bad line must not condemn the rest.
    if not _MOJIBAKE.search(line):
        return line
    import ftfy  # here, for labelled rows are read where it isn't installed

    return ftfy.fix_encoding(line)


def _unescaped(entity: re.Match[str]) -> str:
    return html.unescape(entity.group())


def _control_replacement(control: re.Match[str]) -> str:
    # Those that stand for a break between words become a space; the invisible ones vanish.
    return " " if control.group() in "\x0b\x0c\r\x1c\x1d\x1e\x1f\x85" else ""
