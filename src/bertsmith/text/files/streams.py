"""Reads a file as lines of text: it is decompressed, decoded and hashed in chunks.

So memory stays at a few mebibytes, however large the file and however long its lines. Read SourceStream
first.
"""

import codecs
import contextlib
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bertsmith.errors import EncodingError, InputError
from bertsmith.text.corpus_settings import CorpusSettings

CHUNK = 1 << 20  # bytes decompressed at a time
LONGEST_LINE = 1 << 26  # characters: far more than a row of JSON or CSV has; it bounds memory
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# UTF-32 before UTF-16: the little-endian marks of both begin with the same two bytes.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Encodings of several bytes a character that a file may have without a byte-order mark.
_WIDE_ENCODINGS = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")


def file_ending(path: str) -> str:
    """The ending of a file's name in lower case, before that of a compression: '.csv' for 'a.CSV.gz'."""
    stem = path.lower().rsplit("/", 1)[-1]
    for ending in COMPRESSIONS:
        stem = stem.removesuffix(ending)
    return "." + stem.rsplit(".", 1)[1] if "." in stem else ""


@dataclass(frozen=True)
class SourceFile:
    """One file of a SOURCE.

    `name` is what messages and corpora call it, `origin` the SOURCE as the user gave it; it is read from
    `path` in `filesystem` (fsspec's) and has `size` bytes on disk.
    """

    name: str
    origin: str
    filesystem: Any
    path: str
    size: int

    @property
    def compression(self) -> str | None:
        """The codec by the ending of the path: "gzip", "zstd" or None."""
        return next(
            (codec for ending, codec in COMPRESSIONS.items() if self.path.lower().endswith(ending)), None
        )

    @property
    def suffix(self) -> str:
        """The ending of the path, as `file_ending` gives it."""
        return file_ending(self.path)

    @property
    def date(self) -> str | None:
        """The day (UTC) of the last change, such as "2026-01-31"; None if the file system doesn't know it."""
        try:
            return str(self.filesystem.modified(self.path).date())
        except (NotImplementedError, AttributeError, OSError):
            return None

    def open(self) -> Any:
        """Opens the bytes on disk, still compressed. Raises InputError if the file can't be opened."""
        try:
            return self.filesystem.open(self.path, "rb")
        except OSError as error:
            raise InputError(f"{self.path} cannot be opened: {error}.") from error


class SourceStream:
    """Reads one file once, decompressed and decoded. `position` and `sha256` count the bytes on disk."""

    def __init__(self, file: SourceFile, settings: CorpusSettings) -> None:
        self.file = file
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._raw = _HashingReader(self._stack.enter_context(file.open()))
        self._bytes: Any = self._raw
        if file.compression is not None:
            packed = pa.PythonFile(self._raw, mode="r")
            self._bytes = self._stack.enter_context(pa.CompressedInputStream(packed, file.compression))
        self._content: bytes | None = None  # all bytes, for `seekable` of a compressed or piped file
        self.head = self._read()  # the first chunk: callers decide by it how to read the file

    def __enter__(self) -> "SourceStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def name(self) -> str:
        """What messages call the file: the name of its `SourceFile`."""
        return self.file.name

    @property
    def position(self) -> int:
        """The number of bytes read from disk so far."""
        return self._raw.position

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes read so far: of the whole file once the lines are exhausted."""
        return self._raw.digest.hexdigest()

    @property
    def looks_binary(self) -> bool:
        """Whether the first 8 KiB have a NUL byte that no byte-order mark or encoding explains."""
        if b"\0" not in self.head[:8192] or self._marked_encoding() is not None:
            return False
        _require_encoding(self._settings.encoding)
        return b"\0" not in " ".encode(self._settings.encoding)  # UTF-16 and UTF-32 write it into any text

    def binary_error(self, expected: str) -> InputError:
        """The error for a file that `looks_binary` where `expected` was; it says what the file may be."""
        beginning = f"{self.file.name}: expected {expected}, found"
        head = self.head[:8192]
        text = _decode_head(head.replace(b"\0", b""), self._settings.encoding)
        if text and text.isprintable() and head.count(0) <= 1 + len(head) // 500:  # a tar has more
            offset = head.index(0)
            line = 1 + head[:offset].count(b"\n")
            return InputError(f"{beginning} a NUL character at byte {offset:,}, in line {line:,}. Remove it.")
        texts = {
            name: _decode_head(head, name)
            for name in _WIDE_ENCODINGS
            if len(self.head) % (int(name[4:6]) // 8) == 0
        }
        ascii_characters = {
            name: sum(map(str.isascii, text)) for name, text in texts.items() if text.isprintable()
        }
        likely_encoding = max(ascii_characters, key=ascii_characters.__getitem__, default="")
        if ascii_characters.get(likely_encoding):
            return EncodingError(
                f"{beginning} what looks like {likely_encoding} without a byte-order mark.", likely_encoding
            )
        return InputError(
            f"{beginning} binary data. Is it Parquet (--format parquet), or compressed without the ending "
            ".gz or .zst?"
        )

    def lines(self, limit: int = LONGEST_LINE) -> Iterator[str]:
        """Yields lines without their ends; one that is far longer than `limit` characters is cut at a space.

        Raises InputError naming file, line and byte if the text is not in the expected encoding.
        """
        return split_lines(self.chunks(), limit)

    def whole_lines(self) -> Iterator[str]:
        """Yields lines with their ends (\\n, \\r\\n or \\r), which may be part of a quoted cell of CSV."""
        return split_lines(self.chunks(translate=False), LONGEST_LINE, keep_ends=True)

    def text(self) -> str:
        """The whole text, for formats that can't be read line by line. Raises the errors of `lines`."""
        return "".join(self.chunks())

    def seekable(self) -> contextlib.AbstractContextManager[Any]:
        """The decompressed bytes as a seekable file: on disk, or in memory if compressed or piped."""
        if self.file.compression or self.file.path == "-":
            if self._content is None:
                self._content = b"".join([self.head, *iter(self._read, b"")])
            return io.BytesIO(self._content)
        file: contextlib.AbstractContextManager[Any] = self.file.open()
        return file

    def chunks(self, *, translate: bool = True) -> Iterator[str]:
        """Yields the text in chunks of at most `CHUNK` characters. Raises the errors of `lines`.

        Line ends become \\n or, without `translate`, stay as they are; no \\r\\n is split between chunks.
        """
        encoding = self._marked_encoding() or self._settings.encoding
        _require_encoding(encoding)
        bytes_to_text = codecs.getincrementaldecoder(encoding)(self._settings.encoding_errors)
        newlines = io.IncrementalNewlineDecoder(bytes_to_text, translate=translate)
        bytes_read, lines_read, chunk = 0, 0, self.head
        try:
            while chunk:
                bytes_read += len(chunk)
                text = newlines.decode(chunk)
                lines_read += text.count("\n") + (text.count("\r") - text.count("\r\n"))
                yield text
                chunk = self._read()
            yield newlines.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise self._encoding_error(error, encoding, bytes_read, lines_read) from error
        except UnicodeError as error:  # utf-16 and utf-32 without a mark: the order of the bytes is unknown
            likely_encoding = f"{codecs.lookup(encoding).name}-le" if b"\0" in self.head else "utf-8"
            raise EncodingError(
                f"{self.file.name}: expected {encoding} text, found no byte-order mark.", likely_encoding
            ) from error

    def _encoding_error(
        self, error: UnicodeDecodeError, encoding: str, bytes_read: int, lines_read: int
    ) -> InputError:
        """The error for a chunk that can't be decoded, with the encoding that the file more likely has.

        `bytes_read` counts the bytes read up to and including that chunk, `lines_read` the lines before it.
        """
        # error.object is the last chunk, preceded by the bytes that the decoder had kept until then.
        offset = bytes_read - len(error.object) + error.start
        line = 1 + lines_read + error.object[: error.start].decode(encoding, "replace").count("\n")
        where = "decompressed byte" if self.file.compression else "byte"
        # Latin-1 has control characters there, and takes any byte without complaint.
        likely_encoding = "cp1252" if 0x80 <= error.object[error.start] < 0xA0 else "latin-1"
        return EncodingError(
            f"{self.file.name}: expected {encoding} text, found 0x{error.object[error.start]:02x} "
            f"at {where} {offset:,}, in line {line:,} ({error.reason}).",
            likely_encoding,
        )

    def _marked_encoding(self) -> str | None:
        return next((name for mark, name in BYTE_ORDER_MARKS if self.head.startswith(mark)), None)

    def _read(self) -> bytes:
        try:
            return bytes(self._bytes.read(CHUNK))
        except OSError as error:
            if self.file.compression is None:
                raise InputError(
                    f"{self.name}: reading failed at byte {self.position:,}: {error}."
                ) from error
            raise InputError(
                f"{self.name}: the {self.file.compression} archive is cut or damaged: reading failed "
                f"at byte {self.position:,} of {self.file.size:,} ({error}). Fetch it again or leave it out."
            ) from error


def split_lines(chunks: Iterable[str], limit: int, *, keep_ends: bool = False) -> Iterator[str]:
    """Splits a text that comes in chunks into lines, as `SourceStream.lines` or, with `keep_ends`,
    `whole_lines` yields them.

    `limit` bounds memory: a line is cut at a space once the parts of it that came in several chunks are
    longer.
    """
    # The parts of one line are joined once, at its end: joining them at each chunk would be quadratic.
    parts, size = list[str](), 0
    for chunk in chunks:
        *ends, rest = _split_keeping_ends(chunk) if keep_ends else chunk.split("\n")
        if ends:
            yield "".join([*parts, ends[0]])
            yield from ends[1:]
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > limit:
            rest = "".join(parts)
            while len(rest) > limit:
                cut = rest.rfind(" ", limit // 2, limit) + 1 or limit
                yield rest[:cut]
                rest = rest[cut:]
            parts, size = [rest], len(rest)
    if size:
        yield "".join(parts)


def _split_keeping_ends(chunk: str) -> list[str]:
    """The lines of a chunk with their ends; the last one, perhaps empty, has none."""
    lines = list(io.StringIO(chunk, newline=""))
    return [*lines, ""] if not lines or lines[-1].endswith(("\n", "\r")) else lines


def _decode_head(head: bytes, encoding: str) -> str:
    """The beginning of a file, decoded, without white space; "" if it isn't in this encoding."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return ""
    return re.sub(r"[\s\u200b-\u200f\ufeff]", "", text)


def _require_encoding(name: str) -> None:
    """Raises InputError for a name that is no encoding of text.

    The name is tried by decoding, since some of Python's codecs turn bytes into bytes (base64) or text into
    text (rot13). The codecs of domain names are refused: they raise other errors for what they can't decode.
    """
    try:
        b" ".decode(name, "replace")
        if codecs.lookup(name).name in ("punycode", "idna"):
            raise LookupError(name)
    except (LookupError, ValueError) as error:
        raise InputError(f"There is no encoding called {name!r}; try utf-8 or latin-1.") from error


def hash_file(file: SourceFile) -> str:
    """The SHA-256 of a file's bytes on disk, for files that aren't read from beginning to end (Parquet)."""
    with file.open() as raw_file:
        reader = _HashingReader(raw_file)
        while reader.read(CHUNK):
            pass
    return reader.digest.hexdigest()


class _HashingReader(io.RawIOBase):
    """A raw file that counts and hashes the bytes read through it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.position = 0
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self.position += len(data)
        self.digest.update(data)
        return data
