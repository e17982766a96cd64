"""Sources → the files of a corpus, in three passes: prepare in parallel, choose, write.

1. Workers clean and split the documents and put them on disk in batches; 32 bytes a document stay in memory.
2. Duplicates are found over the whole, so that none has a copy on the other side of the split.
3. The documents that stay are written to their split, in source order.
The result depends on the sources and settings alone, not on the number of workers, nor on their machines.

D documents.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path

import numpy as np
import pyarrow as pa

from bertsmith.errors import InputError
from bertsmith.files import require_free_space
from bertsmith.progress import Progress
from bertsmith.text.corpus.accounting import Prospect, manifest_of
from bertsmith.text.corpus.choosing import Choice, choose
from bertsmith.text.corpus.duplicates import SignatureFiles
from bertsmith.text.corpus.manifest import CorpusManifest, Shard, Split
from bertsmith.text.corpus.preparing import FACTS, Prepared, prepare, prepare_elsewhere, read_prepared
from bertsmith.text.corpus.reading import Batch, Reader
from bertsmith.text.corpus.shards import ShardWriter
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import Found, find_sources
from bertsmith.text.files.streams import SourceFile, SourceStream
from bertsmith.text.workers import Engine, ordered, ordered_by_ray, usable_cores

Task = tuple[Batch, dict[int, str], CorpusSettings, Path]  # what `prepare` takes
WORTH_WORKERS = 8_000_000  # bytes of input; below, starting processes costs more than it saves
SECONDS_BETWEEN_REPORTS = 0.3


def build(
    sources: Sequence[str],
    folder: Path,
    settings: CorpusSettings,
    workers: int | None,
    engine: Engine,
    progress: Progress | None,
) -> CorpusManifest:
    """Fills the empty `folder` with shards and returns their manifest, which the caller writes."""
    report = _seldom(progress)
    found = find_sources(sources, settings)
    _make_names_differ(found)
    _require_space(folder, found)
    scratch = folder / "scratch"
    scratch.mkdir()
    signatures = SignatureFiles(scratch)
    prepare_each = _on_a_cluster if engine == "ray" else partial(_here, _worker_count(workers, found))
    prospect = _prepare_all(found, settings, signatures, scratch, prepare_each, report)
    _require_text(prospect, settings)
    choice = choose(prospect.facts, signatures, settings, report)
    shards = _write(prospect, choice, folder, report)
    shutil.rmtree(scratch)
    return manifest_of(prospect, choice, shards, settings)


def _make_names_differ(found: Found) -> None:
    """A document's id begins with its source's name, and a/train.txt and b/train.txt are both train.txt."""
    taken: set[str] = set()
    for index, source in enumerate(found.sources):
        numbered = (f"{source.name} ({number})" for number in count(2))
        name = next(name for name in chain([source.name], numbered) if name not in taken)
        taken.add(name)
        found.sources[index] = replace(source, name=name)


def _prepare_all(
    found: Found,
    settings: CorpusSettings,
    signatures: SignatureFiles,
    scratch: Path,
    prepare_each: Callable[[Iterator[Task]], Iterator[Prepared]],
    report: Progress,
) -> Prospect:
    reader = Reader(found.sources, settings)
    names = [source.name for source in found.sources]
    batches, facts, empty = list[Path](), [np.zeros(0, FACTS)], Counter[int]()
    for prepared in prepare_each(_tasks(reader, names, settings, scratch)):
        batches.append(prepared.path)
        facts.append(prepared.facts)
        signatures.append(prepared.signatures)
        empty += prepared.empty
        report(reader.position, found.size, "bytes read")
    return Prospect(found, reader.origins, batches, np.concatenate(facts), empty)


def _tasks(reader: Reader, names: list[str], settings: CorpusSettings, scratch: Path) -> Iterator[Task]:
    for number, batch in enumerate(reader):
        named = {item.source: names[item.source] for item in batch.items}  # of a million, some hundreds
        yield batch, named, settings, scratch / f"batch-{number:08d}.arrow"


def _here(workers: int, tasks: Iterator[Task]) -> Iterator[Prepared]:
    return ordered(prepare, tasks, workers)


def _on_a_cluster(tasks: Iterator[Task]) -> Iterator[Prepared]:
    """Pages of Python packages are read before they are sent: another machine may not have them."""
    sent = ((Batch([*batch.documents()], batch.size), *rest) for batch, *rest in tasks)
    for prepared, content in ordered_by_ray(prepare_elsewhere, sent):
        prepared.path.write_bytes(content)
        yield prepared


def _write(
    prospect: Prospect, choice: Choice, folder: Path, report: Progress
) -> dict[Split, tuple[Shard, ...]]:
    masks = choice.splits
    writers = {split: ShardWriter(folder, split) for split in masks}
    start = 0
    for path in prospect.batches:
        table = read_prepared(path)
        for split, mask in masks.items():
            writers[split].write(table.filter(pa.array(mask[start : start + table.num_rows])))
        start += table.num_rows
        path.unlink()
        report(start, len(choice.kept), "documents written")
    return {split: writer.close() for split, writer in writers.items()}


def _worker_count(workers: int | None, found: Found) -> int:
    if workers is None:
        return usable_cores() if found.size >= WORTH_WORKERS else 1
    if workers < 1:
        raise InputError(f"Expected at least 1 worker, found {workers}.")
    return workers


def _require_space(folder: Path, found: Found) -> None:
    """The text twice over (batches, then shards), each packed to about half; more for packed input."""
    packed = sum(
        source.size
        for source in found.sources
        if isinstance(source, SourceFile) and (source.compression or source.suffix == ".parquet")
    )
    require_free_space(folder, found.size + 4 * packed, "Building this corpus")


def _require_text(prospect: Prospect, settings: CorpusSettings) -> None:
    """Raises InputError for the first SOURCE without a single document that holds text."""
    filled = set(np.unique(prospect.facts["source"]).tolist())
    by_origin: dict[str, bool] = {}
    for index, source in enumerate(prospect.found.sources):
        by_origin[source.origin] = by_origin.get(source.origin, False) or index in filled
    for origin, has_text in by_origin.items():
        if not has_text:
            raise _nothing_found(prospect, origin, settings)


def _nothing_found(prospect: Prospect, origin: str, settings: CorpusSettings) -> InputError:
    indices = [index for index, source in enumerate(prospect.found.sources) if source.origin == origin]
    first = prospect.found.sources[indices[0]]
    if isinstance(first, SourceFile) and all(prospect.origins[index].is_binary for index in indices):
        with SourceStream(first, settings) as stream:
            return stream.binary_error("text, JSON lines, CSV or TSV")
    documents = sum(prospect.empty[index] for index in indices)
    return InputError(
        f"The source {origin} yielded no text: {len(indices)} files read, {documents} documents, all empty. "
        "Check --format and --text-column, or leave the source out."
    )


def _seldom(progress: Progress | None) -> Progress:
    """Passes on a report every 0.3 s, and whatever is the last of its kind."""
    last = 0.0

    def report(done: int, total: int | None, unit: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and (done == total or now - last >= SECONDS_BETWEEN_REPORTS):
            last = now
            progress(done, total, unit)

    return report
