"""Writes a corpus without the sentences that it shares with test files, and records these in the manifest.

Whole sentences are removed, not whole documents: an article that quotes one line of a test file is otherwise
as good as any, but half a sentence is no text. If less than half of a document's words would remain, the
whole document is removed, since the rest is mostly the frame of what was found.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from bertsmith import __version__
from bertsmith.argument_checks import check_arguments, check_function, check_path, instance_of, optional
from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, require_free_space, require_new_folder, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.corpus import SCHEMA, Corpus, ShardWriter, read_shard
from bertsmith.text.corpus.manifest import (
    CheckedFile,
    CorpusManifest,
    Counts,
    Decontamination,
    Split,
    SplitEntry,
)
from bertsmith.text.decontamination.contamination import Contamination
from bertsmith.text.decontamination.matching import LEAST_RUN, LEAST_SHARE
from bertsmith.text.decontamination.scanning import CorpusMatches
from bertsmith.text.words import split_at_blanks

METHOD = (
    f"words without case and punctuation; exact copies, {LEAST_SHARE:.0%} of 8 words and more in order, "
    f"runs of {LEAST_RUN} words"
)
CountsByName = Counter[str]  # the fields of Counts
LEAST_REMAINDER = 0.5  # of a document's words


@check_arguments(found=instance_of(Contamination), out=check_path, progress=optional(check_function))
def write_decontaminated(
    found: Contamination, out: Path | str, *, progress: Progress | None = None
) -> tuple[Corpus, Counts]:
    """Writes the corpus without what was found, whole or not at all; returns it and how much was removed.

    Its manifest has an entry with the hashes of the test files. Raises InputError if `out` exists or no
    document for training would be left, ResourceError for too little disk space.
    """
    out = Path(out)
    require_new_folder(out)
    shards = (shard for entry in found.corpus.manifest.splits.values() for shard in entry.shards)
    require_free_space(out, sum(shard.size for shard in shards), "The corpus")
    with atomic_folder(out) as folder:
        manifest, removed = _write_without(found.corpus, found.matches, folder, progress)
        against = tuple(  # names without folders, which say where the files were and not what they are
            CheckedFile(
                name=Path(file.file.name).name, sha256=file.file.hashes, rows=file.file.rows, found=file.found
            )
            for file in found.files
        )
        check = Decontamination(
            created_by=f"bertsmith {__version__}", method=METHOD, against=against, removed=removed
        )
        checks = (*manifest.decontaminations, check)
        manifest = manifest.model_copy(update={"decontaminations": checks})
        write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return Corpus.open(out), removed


def _write_without(
    corpus: Corpus, matches: Mapping[Split, CorpusMatches], folder: Path, progress: Progress | None = None
) -> tuple[CorpusManifest, Counts]:
    """Writes the rest of the corpus as shards into `folder`; returns its manifest and how much was removed.

    The caller writes the manifest. Raises InputError if no document for training would be left.
    """
    by_source: dict[str, CountsByName] = defaultdict(Counter)
    splits: dict[Split, SplitEntry] = {}
    done, total = 0, corpus.manifest.kept.documents
    for split, entry in corpus.manifest.splits.items():
        matched: dict[int, set[int]] = defaultdict(set)  # the matched sentences of each document
        columns = (matches[split][name].tolist() for name in ("document", "first", "last"))
        for document, first, last in zip(*columns, strict=True):
            matched[document].update(range(first, last + 1))
        writer, removed, offset = ShardWriter(folder, split), Counter[str](), 0
        for shard in entry.shards:
            for batch in read_shard(corpus.path / shard.file):
                documents = matched.keys() & range(offset, offset + batch.num_rows)
                matched_rows = {document - offset: matched[document] for document in documents}
                min_words = corpus.manifest.settings.min_words
                writer.write(_remove_sentences(batch, matched_rows, min_words, by_source, removed))
                offset, done = offset + batch.num_rows, done + batch.num_rows
                if progress:
                    progress(done, total, "documents written")
        splits[split] = SplitEntry(counts=_subtract(entry.counts, removed), shards=writer.close())
    if not splits["train"].counts.documents:
        raise InputError(
            f"All that {corpus.path} holds is in the test files: no document would be left. Build it from "
            "other sources."
        )
    manifest = corpus.manifest.model_copy(
        update={
            "splits": splits,
            "sources": tuple(
                source.model_copy(update={"kept": _subtract(source.kept, by_source[source.name])})
                for source in corpus.manifest.sources
            ),
        }
    )
    return manifest, Counts(**sum(by_source.values(), Counter()))


def _remove_sentences(
    batch: pa.RecordBatch,
    matched_rows: Mapping[int, set[int]],
    min_words: int,
    by_source: dict[str, CountsByName],
    removed: CountsByName,
) -> pa.Table:
    """The batch without matched sentences, and without documents of which too little would remain.

    `matched_rows` maps rows of the batch to the indices of their matched sentences. What is removed is added
    to `by_source` and `removed`.
    """
    table = pa.Table.from_batches([batch], SCHEMA)
    if not matched_rows:
        return table
    columns = table.to_pydict()
    rows: list[tuple[str, str, list[str]]] = []
    for row, (id, source, sentences) in enumerate(zip(*columns.values(), strict=True)):
        remaining = sentences
        if row in matched_rows:
            remaining = [text for index, text in enumerate(sentences) if index not in matched_rows[row]]
            if _count_words(remaining) < max(min_words, LEAST_REMAINDER * _count_words(sentences)):
                remaining = []
            difference = _count_text(sentences)
            difference.subtract(_count_text(remaining))
            by_source[source] += difference
            removed += difference
        if remaining:
            rows.append((id, source, remaining))
    arrays = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table([pa.array(array, field.type) for array, field in zip(arrays, SCHEMA)], schema=SCHEMA)


def _count_words(sentences: Sequence[str]) -> int:
    """Words, or characters of Chinese and Japanese, as a corpus build counts them for `min_words`."""
    return sum(len(split_at_blanks(sentence)) for sentence in sentences)


def _count_text(sentences: Sequence[str]) -> CountsByName:
    """The Counts of a document as a build counts them: its text is the sentences joined by blanks."""
    size = len(" ".join(sentences).encode())
    words = sum(len(sentence.split()) for sentence in sentences)
    return Counter(documents=int(bool(sentences)), sentences=len(sentences), words=words, bytes=size)


def _subtract(counts: Counts, removed: Mapping[str, int]) -> Counts:
    return Counts(**{name: value - removed.get(name, 0) for name, value in counts.model_dump().items()})
