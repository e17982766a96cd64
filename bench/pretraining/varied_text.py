"""As much text as is asked for: a corpus copied with variation, so that no copy is a duplicate.

The first copy is the corpus. In every further one each word is exchanged for one about as frequent, and the
words that the corpus has once get an ending of that copy: frequencies stay those of real text, hardly a run
of five words comes again, and new words keep coming, faster than they do in real text.
"""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from string import ascii_lowercase
from typing import Any


def write_parts(corpus: Any, folder: Path, size: int, part: int) -> list[Path]:
    """At least `size` bytes of text as JSON lines, a document each, in files of about `part` bytes."""
    paths: list[Path] = []
    documents, written = documents_without_end(corpus), 0
    while written < size:
        path = folder / f"part-{len(paths):04}.jsonl"
        written += _write(documents, path, min(part, size - written))
        paths.append(path)
    return paths


def documents_without_end(corpus: Any) -> Iterator[list[str]]:
    """Documents as sentences, copy after copy."""
    ranked = _by_frequency(corpus)
    for copy in count():
        exchange = exchanged(ranked, copy)
        for document in corpus.documents("train"):
            yield [" ".join(map(exchange.__getitem__, text.split(" "))) for text in document.sentences]


def exchanged(ranked: list[tuple[str, int]], copy: int) -> dict[str, str]:
    """Word -> word in this copy. `ranked` are words with their counts, the most frequent first.

    A rank's bits are those of another one nearby, xor the copy's number: two words change places.
    """
    ending = "".join(ascii_lowercase[int(digit)] for digit in str(copy)) if copy else ""
    found = {}
    for rank, (word, occurrences) in enumerate(ranked):
        other = rank ^ copy
        partner = ranked[other][0] if other < len(ranked) else word
        found[word] = partner + (ending if occurrences == 1 else "")
    return found


def _by_frequency(corpus: Any) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    for document in corpus.documents("train"):
        for text in document.sentences:
            counts.update(text.split(" "))
    return counts.most_common()


def _write(documents: Iterator[list[str]], path: Path, size: int) -> int:
    """Returns the bytes of text, which the file's own syntax is not."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            text = " ".join(next(documents))
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written += len(text.encode())
    return written
