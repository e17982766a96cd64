"""Prepares a batch of documents in a worker: cleans, splits into sentences, counts, hashes and writes them.

d documents of the batch that have text.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc  # not imported by pyarrow itself

from bertsmith.text.corpus.corpus import SCHEMA
from bertsmith.text.corpus.reading import DocumentBatch
from bertsmith.text.corpus.selection import FACTS, HASHES, Facts, UInt32s, compute_signature, hash_text
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.prose.sentences import read_sentences
from bertsmith.text.words import split_at_blanks


class PreparedBatch(NamedTuple):
    """What a worker returns to the main process; the text itself is in the file at `path`."""

    path: Path
    facts: Facts  # (d,) FACTS
    signatures: UInt32s  # (d, 112); (0, 112) if near-duplicates are kept
    empty: Counter[int]  # documents without text, by source


def prepare_batch(
    batch: DocumentBatch, names: Mapping[int, str], settings: CorpusSettings, path: Path
) -> PreparedBatch:
    """Writes the batch's documents to `path` (Arrow, LZ4) and returns what is needed to choose among them.

    `names` maps the sources of the batch to their names. Documents with fewer than `min_words` are left out
    and counted as empty.
    """
    empty: Counter[int] = Counter()
    rows, facts, signatures = [], [], []
    for document in batch.documents():
        sentences = read_sentences(document, settings.language)
        text = " ".join(sentences)
        blank_separated = text.lower().split()
        words = split_at_blanks(text.lower())
        if len(words) < settings.min_words:
            empty[document.source] += 1
            continue
        rows.append((document.id, names[document.source], sentences))
        facts.append(
            (
                hash_text(blank_separated),
                len(text.encode()),
                document.source,
                len(sentences),
                len(blank_separated),
            )
        )
        if settings.near_duplicates:
            signatures.append(compute_signature(words))
    columns = [list(column) for column in zip(*rows)] or [[], [], []]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA)]
    with pa.ipc.new_file(str(path), SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(pa.table(arrays, schema=SCHEMA))
    signature_rows = np.stack(signatures) if signatures else np.zeros((0, HASHES), np.uint32)
    return PreparedBatch(path, np.array(facts, FACTS), signature_rows, empty)


def prepare_batch_remotely(
    batch: DocumentBatch, names: Mapping[int, str], settings: CorpusSettings, path: Path
) -> tuple[PreparedBatch, bytes]:
    """Like `prepare_batch`, on another machine: returns the content for the file at `path` as bytes."""
    with TemporaryDirectory() as folder:
        prepared = prepare_batch(batch, names, settings, Path(folder) / path.name)
        return prepared._replace(path=path), prepared.path.read_bytes()


def read_prepared_batch(path: Path) -> pa.Table:
    """The documents in a file that `prepare_batch` wrote, as a table of SCHEMA."""
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        return reader.read_all()
