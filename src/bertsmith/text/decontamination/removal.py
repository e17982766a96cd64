"""A corpus without the sentences that test files share with it; its manifest says with which files.

Whole sentences go, and not whole documents: an article that quotes one line of a test file is otherwise text
as good as any, while half a sentence is none. Where less than half of a document's words would stay, it goes
whole, for what is left of it is mostly the frame of what was found.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from bertsmith import __version__
from bertsmith.door import door, function, kind, optional, place
from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, require_free, require_free_space, write_json
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
from bertsmith.text.decontamination.scanning import Places
from bertsmith.text.words import split_at_blanks

METHOD = (
    f"words without case and punctuation; exact copies, {LEAST_SHARE:.0%} of 8 words and more in order, "
    f"runs of {LEAST_RUN} words"
)
Removed = Counter[str]  # counts of Counts, by name
LEAST_REMAINDER = 0.5  # of a document's words


@door(found=kind(Contamination), out=place, progress=optional(function))
def write_decontaminated(
    found: Contamination, out: Path | str, *, progress: Progress | None = None
) -> tuple[Corpus, Counts]:
    """Writes the corpus without what was found, whole or not at all, and returns it with what was removed.

    Its manifest has an entry with the hashes of the test files. Raises InputError when `out` exists or no
    document would be left, ResourceError for too little disk.
    """
    out = Path(out)
    require_free(out)
    shards = (shard for entry in found.corpus.manifest.splits.values() for shard in entry.shards)
    require_free_space(out, sum(shard.size for shard in shards), "The corpus")
    with atomic_folder(out) as folder:
        manifest, removed = _write_without(found.corpus, found.places, folder, progress)
        against = tuple(  # without folders: they say where the files lay, and not what they are
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
    corpus: Corpus, places: Mapping[Split, Places], folder: Path, progress: Progress | None = None
) -> tuple[CorpusManifest, Counts]:
    """Writes what stays of the corpus as shards into `folder`; returns its manifest, which the caller writes,
    and what was removed.

    Raises InputError when no document for training would be left.
    """
    by_source: dict[str, Removed] = defaultdict(Counter)
    splits: dict[Split, SplitEntry] = {}
    done, total = 0, corpus.manifest.kept.documents
    for split, entry in corpus.manifest.splits.items():
        concerned: dict[int, set[int]] = defaultdict(set)  # the sentences of each document
        columns = (places[split][name].tolist() for name in ("document", "first", "last"))
        for document, first, last in zip(*columns, strict=True):
            concerned[document].update(range(first, last + 1))
        writer, removed, ahead = ShardWriter(folder, split), Counter[str](), 0
        for shard in entry.shards:
            for batch in read_shard(corpus.path / shard.file):
                inside = concerned.keys() & range(ahead, ahead + batch.num_rows)
                here = {document - ahead: concerned[document] for document in inside}
                writer.write(
                    _remove_sentences(batch, here, corpus.manifest.settings.min_words, by_source, removed)
                )
                ahead, done = ahead + batch.num_rows, done + batch.num_rows
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
    concerned: Mapping[int, set[int]],
    min_words: int,
    by_source: dict[str, Removed],
    removed: Removed,
) -> pa.Table:
    """The batch without the sentences `concerned` names, and without documents of which little stays."""
    table = pa.Table.from_batches([batch], SCHEMA)
    if not concerned:
        return table
    columns = table.to_pydict()
    kept = []
    for row, (id, source, sentences) in enumerate(zip(*columns.values(), strict=True)):
        left = sentences
        if row in concerned:
            left = [sentence for place, sentence in enumerate(sentences) if place not in concerned[row]]
            if _count_words(left) < max(min_words, LEAST_REMAINDER * _count_words(sentences)):
                left = []
            lost = _count_sentences(sentences)
            lost.subtract(_count_sentences(left))
            by_source[source] += lost
            removed += lost
        if left:
            kept.append((id, source, left))
    arrays = list(zip(*kept, strict=True)) or [(), (), ()]
    return pa.table([pa.array(each, field.type) for each, field in zip(arrays, SCHEMA)], schema=SCHEMA)


def _count_words(sentences: Sequence[str]) -> int:
    """In words, or in characters of Chinese and Japanese, as a build measures what is too short."""
    return sum(len(split_at_blanks(sentence)) for sentence in sentences)


def _count_sentences(sentences: Sequence[str]) -> Removed:
    """As a build counts: the text is the sentences with a blank between each two."""
    size = len(" ".join(sentences).encode())
    words = sum(len(sentence.split()) for sentence in sentences)
    return Counter(documents=int(bool(sentences)), sentences=len(sentences), words=words, bytes=size)


def _subtract(counts: Counts, removed: Mapping[str, int]) -> Counts:
    return Counts(**{name: value - removed.get(name, 0) for name, value in counts.model_dump().items()})
