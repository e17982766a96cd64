"""Builds the folder of a corpus from sources, in three passes: prepare in parallel, choose, write.

1. Workers clean and split the documents and write them to disk in batches; 32 bytes per document stay in
   memory.
2. Duplicates are found over all documents, so that none has a copy in the other split.
3. The documents that are kept are written to their split, in source order.
The result depends on the sources and settings alone, not on the number of workers or their machines.

D documents.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

import numpy as np
import pyarrow as pa

from bertsmith import __version__
from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_function,
    check_path,
    check_text,
    instance_of,
    integer_from,
    list_of,
    optional,
)
from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, require_free_space, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.corpus import Corpus, ShardWriter
from bertsmith.text.corpus.manifest import (
    CorpusManifest,
    CorpusShard,
    Counts,
    SkippedFiles,
    SourceEntry,
    Split,
    SplitEntry,
)
from bertsmith.text.corpus.preparing import (
    PreparedBatch,
    prepare_batch,
    prepare_batch_remotely,
    read_prepared_batch,
)
from bertsmith.text.corpus.reading import DocumentBatch, SourceDetails, SourceReader
from bertsmith.text.corpus.selection import (
    FACTS,
    DocumentSelection,
    Facts,
    Mask,
    SignatureFiles,
    select_documents,
)
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import SourceListing, find_sources
from bertsmith.text.files.streams import SourceFile, SourceStream
from bertsmith.text.workers import Engine, map_in_order, map_in_order_by_ray, require_engine, usable_cores

Task = tuple[DocumentBatch, dict[int, str], CorpusSettings, Path]  # the arguments of `prepare_batch`
WORTH_WORKERS = 8_000_000  # bytes of input; below, starting processes costs more than it saves
SECONDS_BETWEEN_REPORTS = 0.3


@check_arguments(
    sources=list_of(any_of(check_path, check_text)),
    out=check_path,
    settings=optional(instance_of(CorpusSettings)),
    workers=optional(integer_from(1)),
    progress=optional(check_function),
)
def build_corpus(
    sources: Sequence[Path | str],
    out: Path | str,
    *,
    settings: CorpusSettings | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> Corpus:
    """Reads the sources (files, folders, addresses, pydocs:) and writes a corpus folder, whole or not at all.

    `workers` is the number of processes; None takes one for small inputs, else all cores. With `engine` "ray"
    the workers are those of a cluster. `progress` is called with (done, total, unit) a few times a second.
    Raises InputError for a source that is missing, unreadable or without text, ResourceError for too little
    disk space.
    """
    require_engine(engine)
    out = Path(out)
    settings = settings or CorpusSettings()
    report = _limit_reports(progress)
    with atomic_folder(out) as folder:
        listing = find_sources(list(map(str, sources)), settings)
        _make_names_differ(listing)
        # The text twice (batches, then shards), each compressed to about half; more for compressed input.
        compressed_bytes = sum(
            source.size
            for source in listing.sources
            if isinstance(source, SourceFile) and (source.compression or source.suffix == ".parquet")
        )
        require_free_space(folder, listing.size + 4 * compressed_bytes, "Building this corpus")
        scratch = folder / "scratch"
        scratch.mkdir()
        signatures = SignatureFiles(scratch)
        prepared = _prepare_all(listing, settings, signatures, scratch, workers, engine, report)
        _require_text(prepared, settings)
        selection = select_documents(prepared.facts, signatures, settings, report)
        shards = _write_splits(prepared, selection, folder, report)
        shutil.rmtree(scratch)
        manifest = _build_manifest(prepared, selection, shards, settings)
        write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return Corpus.open(out)


def _make_names_differ(listing: SourceListing) -> None:
    """Numbers repeated names of sources: a/train.txt and b/train.txt are both train.txt, and a document's id
    begins with the name of its source.
    """
    used_names: set[str] = set()
    for index, source in enumerate(listing.sources):
        numbered = (f"{source.name} ({number})" for number in count(2))
        name = next(name for name in chain([source.name], numbered) if name not in used_names)
        used_names.add(name)
        listing.sources[index] = replace(source, name=name)


@dataclass(frozen=True)
class PreparedCorpus:
    """All documents before selection: batches on disk, facts (D,), number of empty documents by source."""

    listing: SourceListing
    origins: list[SourceDetails]
    batches: list[Path]
    facts: Facts
    empty: Counter[int]


def _prepare_all(
    listing: SourceListing,
    settings: CorpusSettings,
    signatures: SignatureFiles,
    scratch: Path,
    workers: int | None,
    engine: Engine,
    report: Progress,
) -> PreparedCorpus:
    reader = SourceReader(listing.sources, settings)
    tasks = _make_tasks(reader, [source.name for source in listing.sources], settings, scratch)
    if engine == "ray":
        results = _prepare_on_cluster(tasks)
    else:
        cores = usable_cores() if listing.size >= WORTH_WORKERS else 1
        results = map_in_order(prepare_batch, tasks, workers or cores)
    batches, facts, empty = list[Path](), [np.zeros(0, FACTS)], Counter[int]()
    for prepared in results:
        batches.append(prepared.path)
        facts.append(prepared.facts)
        signatures.append(prepared.signatures)
        empty += prepared.empty
        report(reader.position, listing.size, "bytes read")
    return PreparedCorpus(listing, reader.origins, batches, np.concatenate(facts), empty)


def _make_tasks(
    reader: SourceReader, names: list[str], settings: CorpusSettings, scratch: Path
) -> Iterator[Task]:
    for number, batch in enumerate(reader):
        batch_names = {item.source: names[item.source] for item in batch.items}  # a few of perhaps a million
        yield batch, batch_names, settings, scratch / f"batch-{number:08d}.arrow"


def _prepare_on_cluster(tasks: Iterator[Task]) -> Iterator[PreparedBatch]:
    """Prepares the batches on a cluster and writes their files here.

    Pages of Python packages are read before they are sent: another machine may not have them.
    """
    remote_tasks = ((DocumentBatch([*batch.documents()], batch.size), *rest) for batch, *rest in tasks)
    for prepared, content in map_in_order_by_ray(prepare_batch_remotely, remote_tasks):
        prepared.path.write_bytes(content)
        yield prepared


def _require_text(prepared: PreparedCorpus, settings: CorpusSettings) -> None:
    """Raises InputError for the first SOURCE argument that gave no document with text."""
    sources_with_text = set(np.unique(prepared.facts["source"]).tolist())
    by_origin: dict[str, list[int]] = {}
    for index, source in enumerate(prepared.listing.sources):
        by_origin.setdefault(source.origin, []).append(index)
    for origin, indices in by_origin.items():
        if not sources_with_text.isdisjoint(indices):
            continue
        first_source = prepared.listing.sources[indices[0]]
        if isinstance(first_source, SourceFile) and all(
            prepared.origins[index].is_binary for index in indices
        ):
            with SourceStream(first_source, settings) as stream:
                raise stream.binary_error("text, JSON lines, CSV or TSV")
        documents = sum(prepared.empty[index] for index in indices)
        raise InputError(
            f"The source {origin} yielded no text: {len(indices)} files read, {documents} documents, all "
            "empty. Check --format and --text-column, or leave the source out."
        )


def _write_splits(
    prepared: PreparedCorpus, selection: DocumentSelection, folder: Path, report: Progress
) -> dict[Split, tuple[CorpusShard, ...]]:
    masks = selection.splits
    writers = {split: ShardWriter(folder, split) for split in masks}
    start = 0
    for path in prepared.batches:
        table = read_prepared_batch(path)
        for split, mask in masks.items():
            writers[split].write(table.filter(pa.array(mask[start : start + table.num_rows])))
        start += table.num_rows
        path.unlink()
        report(start, len(selection.kept), "documents written")
    return {split: writer.close() for split, writer in writers.items()}


def _build_manifest(
    prepared: PreparedCorpus,
    selection: DocumentSelection,
    shards: dict[Split, tuple[CorpusShard, ...]],
    settings: CorpusSettings,
) -> CorpusManifest:
    """The manifest, with the amount of text by split and by source."""
    listing = prepared.listing
    splits: dict[Split, SplitEntry] = {}
    for split, mask in selection.splits.items():
        facts = prepared.facts[mask]
        sums = {name: int(facts[name].sum(dtype=np.uint64)) for name in ("sentences", "words", "bytes")}
        splits[split] = SplitEntry(counts=Counts(documents=len(facts), **sums), shards=shards[split])
    kept = _sum_by_source(prepared, selection.kept)
    exact = _sum_by_source(prepared, selection.exact_duplicates)["documents"]
    near = _sum_by_source(prepared, selection.near_duplicates)["documents"]
    sources = tuple(
        SourceEntry(
            name=source.name,
            origin=source.origin,
            format=origin.format,
            size=source.size,
            sha256=origin.sha256,
            kept=Counts(**{name: counts[index] for name, counts in kept.items()}),
            exact_duplicates=exact[index],
            near_duplicates=near[index],
            empty=prepared.empty[index],
        )
        for index, (source, origin) in enumerate(zip(listing.sources, prepared.origins))
        if not origin.is_binary
    )
    return CorpusManifest(
        created_by=f"bertsmith {__version__}",
        licence=settings.licence,
        settings=settings,
        splits=splits,
        skipped=SkippedFiles(
            hidden=listing.hidden,
            excluded=listing.excluded,
            binary=sum(origin.is_binary for origin in prepared.origins),
        ),
        sources=sources,
    )


def _sum_by_source(prepared: PreparedCorpus, mask: Mask) -> dict[str, list[int]]:
    """The documents, sentences, words and bytes of the documents in `mask` (D,), each as a list by source."""
    facts, count = prepared.facts[mask], len(prepared.listing.sources)
    sums = {"documents": np.bincount(facts["source"], minlength=count)}
    for name in ("sentences", "words", "bytes"):
        sums[name] = np.bincount(facts["source"], weights=facts[name], minlength=count)
    return {name: [int(value) for value in values] for name, values in sums.items()}


def _limit_reports(progress: Progress | None) -> Progress:
    """A progress that passes on a report every 0.3 s, and the last one of each unit."""
    last = 0.0

    def report(done: int, total: int | None, unit: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and (done == total or now - last >= SECONDS_BETWEEN_REPORTS):
            last = now
            progress(done, total, unit)

    return report
