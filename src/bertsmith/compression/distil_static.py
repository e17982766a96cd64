"""An embedding model becomes a static table.

out/settings.json    what was asked for
out/texts.jsonl      sentences drawn from the texts
out/teacher.parquet  the teacher's vectors of them, in finished shards until then
out/result.json      figures
out/model/           the table, for model2vec, sentence-transformers and Bertsmith

V pieces, E sentences, H the teacher's width, D that of the table.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.compression.static_learning import (
    COUNTED_COEFFICIENT,
    GUESSED_COEFFICIENT,
    LearnedTable,
    centred,
    guessed_frequencies,
    learn_table,
    piece_counts,
    principal_directions,
    sample_sentences,
    token_vectors,
    unknown_share,
    weights,
)
from bertsmith.door import door, flag, function, optional, place, several, text, whole
from bertsmith.errors import InputError
from bertsmith.files import make_folder, read_json, require_free, require_free_space, write_json
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import Count, embed_file
from bertsmith.inference.embedding.vector_file import read_vectors
from bertsmith.inference.embedding.vectors import Vectors
from bertsmith.inference.lock import sole_writer
from bertsmith.model.bert import Bert
from bertsmith.model.static_table import LONGEST, save_static
from bertsmith.progress import Progress
from bertsmith.tasks.golden.records import write_golden
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.tokenizer import Tokenizer

DIMENSIONS = 256
SENTENCES = 100_000
_HELDOUT = 0.05  # of the sentences
_FEWEST = 200  # sentences that say anything about thousands of pieces


@dataclass(frozen=True)
class StaticResult:
    """Cosines are between the table's vector of a sentence and the teacher's, the mean over `heldout`
    sentences that were not learned from: `before` of the token vectors alone, `after` of the learned table.
    Without texts all of it is None, `unknown` too: the share of the sentences' pieces that are [UNK], words
    which the vocabulary can't spell. `seconds` are those of this call.
    """

    model: Path
    pieces: int
    dimensions: int
    sentences: int
    heldout: int
    before: float | None
    after: float | None
    rounds: int
    seconds: float
    unknown: float | None = None


@door(
    teacher=place,
    out=place,
    texts=several(place),
    dimensions=optional(whole(1)),
    sentences=whole(1),
    text_column=text,
    encoding=text,
    language=text,
    resume=flag,
    progress=optional(function),
)
def distil_static(
    teacher: str | Path,
    out: Path | str,
    texts: Sequence[str | Path] = (),
    *,
    dimensions: int | None = None,
    sentences: int = SENTENCES,
    text_column: str = "text",
    encoding: str = "utf-8",
    language: str = "en",
    seed: int = 0,
    resume: bool = False,
    progress: Progress | None = None,
) -> StaticResult:
    """`texts` are files and folders as `corpus build` reads them, of which `sentences` are learned from;
    without any the table is that of the token vectors alone, which is far behind. `text_column`, `encoding`
    and `language` are those of `CorpusSettings`. `dimensions` are 256 by default, or as many as the teacher
    has.

    With `resume` a killed run goes on: drawn sentences and finished shards of the teacher's vectors are kept,
    and a finished run is left as it is. Raises InputError for a teacher that is a table itself, dimensions
    that it doesn't have, texts without sentences, a folder that exists, and other settings than those it was
    begun with; RecipeError for what is no language's code; ModelError for a teacher that can't be opened.
    """
    started, out, sources = time.monotonic(), Path(out), list(map(str, texts))
    reading = CorpusSettings(text_column=text_column, encoding=encoding, language=language)
    if not resume:
        require_free(out)
    embedder = Embedder(teacher)
    if not isinstance(embedder.encoder, Bert):
        raise InputError(f"{teacher} is a static table already. Name the encoder that it was made from.")
    if dimensions is None:
        dimensions = min(DIMENSIONS, embedder.width)
    if not 1 <= dimensions <= embedder.width:
        raise InputError(f"dimensions must be 1 to {embedder.width}, the teacher's width: {dimensions}.")
    require_free_space(out, 4 * embedder.tokenizer.vocab_size * dimensions, "Saving the model")
    if sources and sentences < _FEWEST:
        raise InputError(f"A table is learned from {_FEWEST} sentences or more, found {sentences}.")
    asked = {
        "teacher": embedder.model_sha256,
        "texts": sources,
        "text_column": text_column,
        "encoding": encoding,
        "language": language,
        "dimensions": dimensions,
        "sentences": sentences,
        "seed": seed,
    }
    drawn = _begun_before(out, asked)
    if drawn is None:
        drawn = _draw(asked, reading, teacher, embedder.tokenizer, progress)
        make_folder(out)  # when its sentences are there
        if drawn:
            write_jsonl(({"text": text} for text in drawn), out / "texts.jsonl")
        write_json(out / "settings.json", asked)
    with sole_writer(out):
        if (out / "model").exists():
            path = out / "result.json"
            if not path.exists():
                raise InputError(f"{out}/model is there, but not {path}: remove the folder and begin again.")
            return StaticResult(**read_json(path) | {"model": out / "model", "seconds": 0.0})
        table, learned, heldout = _table(embedder, out, drawn, dimensions, progress)
        result = StaticResult(
            model=out / "model",
            pieces=len(table),
            dimensions=dimensions,
            sentences=len(drawn),
            heldout=heldout,
            before=None if learned is None else learned.before,
            after=None if learned is None else learned.after,
            rounds=0 if learned is None else learned.rounds,
            seconds=time.monotonic() - started,
            unknown=unknown_share(drawn, embedder.tokenizer) if drawn else None,
        )
        write_json(out / "result.json", asdict(result) | {"model": "model"})
        provenance = {"made_by": "distil_static", "teacher": str(teacher), **asked}
        save_static(
            out / "model",
            torch.from_numpy(table),
            embedder.tokenizer,
            provenance=provenance,
            max_length=max(embedder.max_length, LONGEST),
        )
        write_golden(out / "model")
    return result


def _begun_before(out: Path, asked: dict[str, Any]) -> list[str] | None:
    """The sentences of a run that goes on, empty where it has no texts; None where none was begun.

    Raises InputError where the folder was begun with other settings, or holds something else.
    """
    if (out / "settings.json").exists():
        begun = read_json(out / "settings.json")
        differ = [name for name, value in asked.items() if begun.get(name) != value]
        if differ:
            raise InputError(
                f"{out} was begun with another {', '.join(differ)}. Resume with the same settings, or choose "
                "another folder."
            )
        if not asked["texts"]:
            return []
        with (out / "texts.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in lines]
    # what one that was killed while it began may have left: the latter two half-written
    own = (".lock", "texts.jsonl", ".texts.jsonl", ".settings.json")
    if out.exists() and not all(entry.name.startswith(own) for entry in out.iterdir()):
        raise InputError(f"{out} holds something else than a run of this. Choose another folder.")
    return None


def _draw(
    asked: dict[str, Any],
    reading: CorpusSettings,
    teacher: str | Path,
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> list[str]:
    """The sentences to learn from; none without texts. Raises InputError for texts that say too little."""
    sources: list[str] = asked["texts"]
    if not sources:
        return []
    drawn = sample_sentences(sources, asked["sentences"], asked["seed"], reading, progress)
    if unknown_share(drawn, tokenizer) == 1:
        raise InputError(
            f"{', '.join(sources)}: the vocabulary of {teacher} has none of the words, which were read in "
            f"the language {asked['language']!r}. Take texts in a language that it has, or another model."
        )
    if len(drawn) < _FEWEST:
        raise InputError(
            f"{', '.join(sources)}: found {len(drawn)} sentences, one a paragraph; a table is learned from "
            f"{_FEWEST} or more. Name more texts."
        )
    return drawn


def _table(
    embedder: Embedder, out: Path, drawn: list[str], dimensions: int, progress: Progress | None
) -> tuple[Vectors, LearnedTable | None, int]:
    """(V, D), how well it was learned, and from how many sentences it was not."""
    tokens = centred(token_vectors(embedder, progress))
    if not drawn:
        weight = weights(guessed_frequencies(len(tokens)), GUESSED_COEFFICIENT)
        tokens *= weight[:, None]
        return tokens @ principal_directions(tokens, dimensions), None, 0

    def watch(count: Count) -> None:
        if progress is not None:
            progress(count.texts, len(drawn), "sentences")

    path = out / "teacher.parquet"  # (E, H), shard by shard
    embed_file(embedder, out / "texts.jsonl", path, text="text", resume=True, watch=watch)
    vectors = read_vectors(path).vectors
    counts = piece_counts(drawn, embedder.tokenizer)
    frequencies = np.asarray(counts.sum(0), np.float64).reshape(-1)
    weight = weights(frequencies / frequencies.sum(), COUNTED_COEFFICIENT)
    onto = principal_directions(vectors, dimensions)
    heldout = int(_HELDOUT * len(drawn))
    start = np.asarray((tokens * weight[:, None]) @ onto, np.float32)
    learned = learn_table(start, counts, vectors @ onto, heldout, progress)
    return learned.table, learned, heldout
