"""What a corpus and test files have in common: found, reported, and taken out.

A model that has read its test questions is measured on its memory. The corpus is compared with the test files
before it is trained on, and its manifest then says with which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith import __version__
from bertsmith.door import door, either, function, kind, optional, place, several, text, whole
from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, require_free, require_free_space, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.corpus import Corpus, opened
from bertsmith.text.corpus.manifest import CheckedFile, Counts, Decontamination, Split
from bertsmith.text.decontamination.evaluation_texts import EvaluationFile, read_evaluation_file
from bertsmith.text.decontamination.findings import FileFindings, findings_of
from bertsmith.text.decontamination.matching import LEAST_RUN, LEAST_SHARE
from bertsmith.text.decontamination.removing import with_entry, write_without
from bertsmith.text.decontamination.scanning import Places, find_places

METHOD = (
    f"words without case and punctuation; exact copies, {LEAST_SHARE:.0%} of 8 words and more in order, "
    f"runs of {LEAST_RUN} words"
)


@dataclass(frozen=True)
class Contamination:
    """What was found: for each test file, and `places` (F,) PLACE for each split of the corpus."""

    corpus: Corpus
    files: tuple[FileFindings, ...]
    places: dict[Split, Places]

    @property
    def documents(self) -> int:
        """Documents of the corpus that hold something of a test file."""
        return sum(len(set(places["document"].tolist())) for places in self.places.values())


@door(
    corpus=either(kind(Corpus), place),
    against=several(place),
    columns=several(text),
    workers=optional(whole(1)),
    progress=optional(function),
)
def find_contamination(
    corpus: Corpus | Path | str,
    against: Sequence[Path | str],
    *,
    columns: Sequence[str] = (),
    format: str | None = None,
    encoding: str = "utf-8",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Contamination:
    """What `corpus`, or the one at that path, holds of the rows of the files and folders `against`.

    `columns`, `format` and `encoding` are those of `read_evaluation_file`, for all files alike. `workers` is
    the number of processes; None takes all cores for all but small corpora. Raises InputError for a test file
    that can't be read or has no text.
    """
    if not against:
        raise InputError("Name at least one test file to check the corpus against.")
    corpus = opened(corpus)
    files = [read_evaluation_file(path, columns, format, encoding) for path in against]
    texts = _numbered(files)
    places = find_places(corpus, list(texts), workers, progress)
    return Contamination(corpus, findings_of(files, texts, places, corpus), places)


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
        manifest, removed = write_without(found.corpus, found.places, folder, progress)
        manifest = with_entry(manifest, _entry(found.files, removed))
        write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return Corpus.open(out), removed


def _numbered(files: Sequence[EvaluationFile]) -> dict[str, int]:
    """Each text once, with its number: SQuAD's passages stand with every question about them."""
    numbers: dict[str, int] = {}
    for file in files:
        for each in file.texts:
            numbers.setdefault(each.text, len(numbers))
    return numbers


def _entry(files: Sequence[FileFindings], removed: Counts) -> Decontamination:
    """Without folders: they say where the files lay, and not what they are."""
    return Decontamination(
        created_by=f"bertsmith {__version__}",
        method=METHOD,
        against=tuple(
            CheckedFile(
                name=Path(each.file.name).name, sha256=each.file.hashes, rows=each.file.rows, found=each.found
            )
            for each in files
        ),
        removed=removed,
    )
