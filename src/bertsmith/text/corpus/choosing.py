"""Which documents stay, and which of these are held out.

D documents.
"""

from dataclasses import dataclass

import numpy as np

from bertsmith.progress import Progress
from bertsmith.text.corpus.duplicates import Mask, SignatureFiles, first_of_equal
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.corpus.minhash import BANDS, UInt64s
from bertsmith.text.corpus.preparing import Facts
from bertsmith.text.corpus_settings import CorpusSettings


@dataclass(frozen=True)
class Choice:
    """Masks (D,) over all documents with text."""

    exact_duplicates: Mask
    near_duplicates: Mask
    heldout: Mask  # part of kept

    @property
    def kept(self) -> Mask:
        """Documents that stay, in either split."""
        return ~(self.exact_duplicates | self.near_duplicates)

    @property
    def splits(self) -> dict[Split, Mask]:
        """The documents of each split."""
        return {"train": self.kept & ~self.heldout, "heldout": self.heldout}


def choose(
    facts: Facts,
    signatures: SignatureFiles,
    settings: CorpusSettings,
    report: Progress,
) -> Choice:
    """Drops equal documents, then nearly equal ones, then holds out a share of those that stay."""
    keys = np.ascontiguousarray(facts["key"])
    distinct = first_of_equal(keys)
    kept = distinct
    if settings.near_duplicates:
        kept = signatures.first_of_similar(
            distinct, settings.near_duplicate_threshold, lambda done: report(done, BANDS, "bands compared")
        )
    return Choice(~distinct, distinct & ~kept, held_out(keys, kept, settings.heldout))


def held_out(keys: UInt64s, kept: Mask, share: float) -> Mask:
    """(D,) the documents whose key, taken as a fraction of 2⁶⁴, is below `share`.

    So a document's side depends on its own text alone and stays when sources are added; a larger
    share holds out the same documents and more. Of a corpus too small to have any below, the lowest one
    is taken: a run needs something to be judged on.
    """
    chosen: Mask = kept & (keys < np.uint64(share * 2.0**64))
    if share > 0 and not chosen.any() and kept.sum() > 1:
        documents = np.flatnonzero(kept)
        chosen[documents[np.argmin(keys[documents])]] = True
    return chosen
