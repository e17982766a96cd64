"""A corpus: a folder of Parquet files with documents as sentences, and a manifest that accounts for them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from pydantic import ValidationError

from bertsmith.door import door, either, function, kind, optional, place, several, text, whole
from bertsmith.errors import CorpusError
from bertsmith.files import atomic_folder, read_json, sha256, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.building import build
from bertsmith.text.corpus.manifest import CorpusManifest, Shard, Split
from bertsmith.text.corpus.shards import read_shard
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.workers import Engine, require_engine
from bertsmith.validation import first_problem

__all__ = ["Corpus", "CorpusSettings", "Document", "build_corpus"]


class Document(NamedTuple):
    """One document: a name unique in the corpus, the file or package it is from, its sentences in order."""

    id: str
    source: str
    sentences: list[str]


class Corpus:
    """A corpus on disk. Opening it reads the manifest and compares the sizes of the files, nothing more."""

    def __init__(self, path: Path, manifest: CorpusManifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    @door(path=place)
    def open(cls, path: Path | str) -> "Corpus":
        """Raises CorpusError when the folder is no corpus, or a file is missing or has another size."""
        path = Path(path)
        if not (path / "manifest.json").is_file():
            raise CorpusError(
                f"{path} is not a corpus: it has no manifest.json. Make one with `bertsmith corpus build`."
            )
        found = read_json(path / "manifest.json")
        if isinstance(found, dict) and "tokenizer_sha256" in found:
            raise CorpusError(f"{path} is a token store. Name the corpus that it was made of.")
        try:
            manifest = CorpusManifest.model_validate(found)
        except ValidationError as error:
            raise CorpusError(
                f"{path / 'manifest.json'} is not the manifest of a corpus of this version: "
                f"{first_problem(error, CorpusManifest)} Build the corpus again."
            ) from error
        corpus = cls(path, manifest)
        corpus._check_sizes()
        return corpus

    def documents(self, split: Split) -> Iterator[Document]:
        """The documents of a split in the order of the sources; a few megabytes in memory at a time."""
        for shard in self._shards(split):
            for batch in read_shard(self.path / shard.file):
                columns = batch.to_pydict()
                yield from map(Document, columns["id"], columns["source"], columns["sentences"])

    def verify(self, progress: Progress | None = None) -> None:
        """Reads every file; raises CorpusError for one whose hash differs from the manifest's."""
        shards = [shard for split in self.manifest.splits for shard in self._shards(split)]
        for done, shard in enumerate(shards, start=1):
            found = sha256(self.path / shard.file)
            if found != shard.sha256:
                raise CorpusError(
                    f"{self.path / shard.file} was altered: expected SHA-256 {shard.sha256}, found {found}. "
                    "Build the corpus again."
                )
            if progress:
                progress(done, len(shards), "files verified")

    def _check_sizes(self) -> None:
        for split in self.manifest.splits:
            for shard in self._shards(split):
                path = self.path / shard.file
                size = path.stat().st_size if path.is_file() else None
                if size != shard.size:
                    found = "no such file" if size is None else f"{size:,} bytes"
                    raise CorpusError(
                        f"{path}: expected {shard.size:,} bytes, found {found}. Build the corpus again."
                    )

    def _shards(self, split: Split) -> tuple[Shard, ...]:
        if split not in get_args(Split):
            raise CorpusError(f"A corpus has the splits train and heldout, not {split!r}.")
        return self.manifest.splits[split].shards


def opened(corpus: Corpus | Path | str) -> Corpus:
    """What a function was handed as a corpus: one, or the path of one. Raises as `Corpus.open` does."""
    return Corpus.open(corpus) if isinstance(corpus, str | os.PathLike) else corpus


@door(
    sources=several(either(place, text)),
    out=place,
    settings=optional(kind(CorpusSettings)),
    workers=optional(whole(1)),
    progress=optional(function),
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

    `workers` is the number of processes; None takes all cores for all but small inputs. With `engine` "ray"
    the workers are those of a cluster. `progress` hears (done, total, unit) a few times a second.
    Raises InputError for a source that is missing, unreadable or without text, ResourceError for too
    little disk.
    """
    require_engine(engine)
    out = Path(out)
    settings = settings or CorpusSettings()
    with atomic_folder(out) as folder:
        manifest = build(list(map(str, sources)), folder, settings, workers, engine, progress)
        write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return Corpus.open(out)
