"""Which test files a model's corpus was compared with, as its bertsmith.json says, and a sentence where the
one it is measured on was not among them.

Only of a model that was pre-trained here anything is known, and said. What a published model has read nobody
here can tell, and to say so at each of its scores would help no one.
"""

from collections.abc import Iterable
from pathlib import Path

from bertsmith.files import sha256
from bertsmith.model.manifest import read_manifest

_KEY = "corpus_checked_against"


def checked_against(folder: Path | None) -> frozenset[str] | None:
    """The SHA-256 of each test file; None where nothing is known of the corpus, or there is no folder."""
    manifest = read_manifest(folder) if folder is not None else None
    known = manifest.provenance.get(_KEY) if manifest is not None else None
    return frozenset(map(str, known)) if isinstance(known, list) else None


def contamination_provenance(*checked: Iterable[str] | None) -> dict[str, list[str]]:
    """What a provenance says of the corpora that a model was trained on, one after the other: the files that
    all of them were compared with. A corpus of which nothing is known is passed over.
    """
    known = [frozenset(each) for each in checked if each is not None]
    return {_KEY: sorted(frozenset.intersection(*known))} if known else {}


def unchecked_warning(folder: Path, test: Path) -> str | None:
    """A sentence where the model's corpus was never compared with the file it is measured on; else None."""
    checked = checked_against(folder)
    if checked is None or not test.is_file() or sha256(test) in checked:
        return None
    return (
        f"the corpus that this model was pre-trained on was never compared with {test.name}: it may have "
        f"read the answers. bertsmith corpus decontaminate CORPUS --against {test} tells, and takes them out."
    )
