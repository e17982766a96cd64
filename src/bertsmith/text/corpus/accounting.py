"""What was found and chosen → the manifest.

D documents.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertsmith import __version__
from bertsmith.text.corpus.choosing import Choice
from bertsmith.text.corpus.duplicates import Mask
from bertsmith.text.corpus.manifest import (
    CorpusManifest,
    Counts,
    Shard,
    Skipped,
    SourceEntry,
    Split,
    SplitEntry,
)
from bertsmith.text.corpus.preparing import Facts
from bertsmith.text.corpus.reading import Origin
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import Found


@dataclass(frozen=True)
class Prospect:
    """Everything read, before the choice: batches on disk, facts (D,), empty documents by source."""

    found: Found
    origins: list[Origin]
    batches: list[Path]
    facts: Facts
    empty: Counter[int]


def manifest_of(
    prospect: Prospect, choice: Choice, shards: dict[Split, tuple[Shard, ...]], settings: CorpusSettings
) -> CorpusManifest:
    """Counts per split and per source."""
    found = prospect.found
    return CorpusManifest(
        created_by=f"bertsmith {__version__}",
        licence=settings.licence,
        settings=settings,
        splits={
            split: SplitEntry(counts=_total(prospect.facts[mask]), shards=shards[split])
            for split, mask in choice.splits.items()
        },
        skipped=Skipped(
            hidden=found.hidden,
            excluded=found.excluded,
            binary=sum(origin.is_binary for origin in prospect.origins),
        ),
        sources=_source_entries(prospect, choice),
    )


def _total(facts: Facts) -> Counts:
    sums = {name: int(facts[name].sum(dtype=np.uint64)) for name in ("sentences", "words", "bytes")}
    return Counts(documents=len(facts), **sums)


def _source_entries(prospect: Prospect, choice: Choice) -> tuple[SourceEntry, ...]:
    kept = _by_source(prospect, choice.kept)
    exact = _by_source(prospect, choice.exact_duplicates)["documents"]
    near = _by_source(prospect, choice.near_duplicates)["documents"]
    return tuple(
        SourceEntry(
            name=source.name,
            origin=source.origin,
            format=origin.format,
            size=source.size,
            sha256=origin.sha256,
            kept=Counts(**{name: counts[index] for name, counts in kept.items()}),
            exact_duplicates=exact[index],
            near_duplicates=near[index],
            empty=prospect.empty[index],
        )
        for index, (source, origin) in enumerate(zip(prospect.found.sources, prospect.origins))
        if not origin.is_binary
    )


def _by_source(prospect: Prospect, mask: Mask) -> dict[str, list[int]]:
    """Sums over the documents of the mask, for each source in turn."""
    facts, count = prospect.facts[mask], len(prospect.found.sources)
    sums = {"documents": np.bincount(facts["source"], minlength=count)}
    for name in ("sentences", "words", "bytes"):
        sums[name] = np.bincount(facts["source"], weights=facts[name], minlength=count)
    return {name: [int(value) for value in values] for name, values in sums.items()}
