"""Distils an embedding model into a static table: one vector a token, no layers (model2vec's form).

out/settings.json    the settings of the run
out/texts.jsonl      the sentences sampled from the texts
out/teacher.parquet  the teacher's vectors of these sentences; a folder of finished shards until all are done
out/result.json      the figures
out/model/           the table, for model2vec, sentence-transformers and Bertsmith

V tokens in the vocabulary, E sentences, H the teacher's vector width, D the table's. The steps themselves are
in static_learning.py.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_function,
    check_path,
    check_text,
    integer_from,
    list_of,
    optional,
)
from bertsmith.compression.static_learning import (
    COUNTED_COEFFICIENT,
    GUESSED_COEFFICIENT,
    LearnedTable,
    center,
    compute_token_vectors,
    count_tokens,
    guess_frequencies,
    learn_table,
    measure_unknown_share,
    principal_directions,
    sample_sentences,
    sif_weights,
)
from bertsmith.errors import InputError
from bertsmith.files import (
    make_folder,
    read_json,
    require_free_space,
    require_new_folder,
    write_json,
    write_jsonl,
)
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
from bertsmith.text.tokens.tokenizer import Tokenizer

DIMENSIONS = 256
SENTENCES = 100_000
_HELDOUT = 0.05  # share of the sentences
_FEWEST = 200  # sentences; fewer say next to nothing about thousands of tokens


@dataclass(frozen=True)
class StaticResult:
    """Where the table is, and how close it is to its teacher.

    `before` and `after` are mean cosines between the table's and the teacher's vector of a sentence, over the
    `heldout` sentences that were not learned from: `before` for the token vectors alone, `after` for the
    learned table. `unknown` is the share of the sentences' tokens that are [UNK], words which the vocabulary
    can't spell. All three are None without texts. `seconds` is the duration of this call.
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


@check_arguments(
    teacher=check_path,
    out=check_path,
    texts=list_of(check_path),
    dimensions=optional(integer_from(1)),
    sentences=integer_from(1),
    text_column=check_text,
    encoding=check_text,
    language=check_text,
    resume=check_flag,
    progress=optional(check_function),
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
    """Distils the embedding model `teacher` into a static table in `out`/model.

    `texts` are files and folders as `corpus build` reads them; at most `sentences` sentences of them are
    learned from. Without texts the table holds the token vectors alone, which is far worse. `text_column`,
    `encoding` and `language` are those of `CorpusSettings`. `dimensions` is 256 by default, or the teacher's
    width where that is smaller.

    With `resume`, a killed run continues with its sampled sentences and the finished shards of the teacher's
    vectors; a finished run is left as it is. Raises InputError for a teacher that is a table itself, more
    dimensions than it has, texts without sentences, a folder that exists, and settings other than those the
    run was begun with; RecipeError for an unknown language code; ModelError for a teacher that can't be
    opened.
    """
    started, out, sources = time.monotonic(), Path(out), list(map(str, texts))
    corpus_settings = CorpusSettings(text_column=text_column, encoding=encoding, language=language)
    if not resume:
        require_new_folder(out)
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
    settings = {
        "teacher": embedder.model_sha256,
        "texts": sources,
        "text_column": text_column,
        "encoding": encoding,
        "language": language,
        "dimensions": dimensions,
        "sentences": sentences,
        "seed": seed,
    }
    samples = _read_samples(out, settings)
    if samples is None:
        samples = _sample(settings, corpus_settings, teacher, embedder.tokenizer, progress)
        make_folder(out)  # only now: a refused run leaves no folder
        if samples:
            write_jsonl(({"text": text} for text in samples), out / "texts.jsonl")
        write_json(out / "settings.json", settings)
    with sole_writer(out):
        if (out / "model").exists():
            path = out / "result.json"
            if not path.exists():
                raise InputError(f"{out}/model is there, but not {path}: remove the folder and begin again.")
            return StaticResult(**read_json(path) | {"model": out / "model", "seconds": 0.0})
        table, learned, heldout = _make_table(embedder, out, samples, dimensions, progress)
        result = StaticResult(
            model=out / "model",
            pieces=len(table),
            dimensions=dimensions,
            sentences=len(samples),
            heldout=heldout,
            before=None if learned is None else learned.before,
            after=None if learned is None else learned.after,
            rounds=0 if learned is None else learned.rounds,
            seconds=time.monotonic() - started,
            unknown=measure_unknown_share(samples, embedder.tokenizer) if samples else None,
        )
        write_json(out / "result.json", asdict(result) | {"model": "model"})
        provenance = {"made_by": "distil_static", "teacher": str(teacher), **settings}
        save_static(
            out / "model",
            torch.from_numpy(table),
            embedder.tokenizer,
            provenance=provenance,
            max_length=max(embedder.max_length, LONGEST),
        )
        write_golden(out / "model")
    return result


def _read_samples(out: Path, settings: dict[str, Any]) -> list[str] | None:
    """The sampled sentences of an interrupted run; an empty list for a run without texts, None for a new run.

    Raises InputError where the folder was begun with other settings, or holds something else.
    """
    if (out / "settings.json").exists():
        stored = read_json(out / "settings.json")
        differ = [name for name, value in settings.items() if stored.get(name) != value]
        if differ:
            raise InputError(
                f"{out} was begun with another {', '.join(differ)}. Resume with the same settings, or choose "
                "another folder."
            )
        if not settings["texts"]:
            return []
        with (out / "texts.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in lines]
    # files that a run killed at its start may have left; the last two are half-written ones
    own = (".lock", "texts.jsonl", ".texts.jsonl", ".settings.json")
    if out.exists() and not all(entry.name.startswith(own) for entry in out.iterdir()):
        raise InputError(f"{out} holds something else than a run of this. Choose another folder.")
    return None


def _sample(
    settings: dict[str, Any],
    corpus_settings: CorpusSettings,
    teacher: str | Path,
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> list[str]:
    """The sentences to learn from; none without texts. Raises InputError for texts with too few of them."""
    sources: list[str] = settings["texts"]
    if not sources:
        return []
    samples = sample_sentences(sources, settings["sentences"], settings["seed"], corpus_settings, progress)
    if measure_unknown_share(samples, tokenizer) == 1:
        raise InputError(
            f"{', '.join(sources)}: the vocabulary of {teacher} has none of the words, which were read in "
            f"the language {settings['language']!r}. Take texts in a language that it has, or another model."
        )
    if len(samples) < _FEWEST:
        raise InputError(
            f"{', '.join(sources)}: found {len(samples)} sentences, one a paragraph; a table is learned from "
            f"{_FEWEST} or more. Name more texts."
        )
    return samples


def _make_table(
    embedder: Embedder, out: Path, samples: list[str], dimensions: int, progress: Progress | None
) -> tuple[Vectors, LearnedTable | None, int]:
    """The table (V, D), its learning's figures (None without sentences), and the number of held-out
    sentences.
    """
    tokens = center(compute_token_vectors(embedder, progress))
    if not samples:
        weight = sif_weights(guess_frequencies(len(tokens)), GUESSED_COEFFICIENT)
        tokens *= weight[:, None]
        return tokens @ principal_directions(tokens, dimensions), None, 0

    def watch(count: Count) -> None:
        if progress is not None:
            progress(count.texts, len(samples), "sentences")

    path = out / "teacher.parquet"  # (E, H), shard by shard
    embed_file(embedder, out / "texts.jsonl", path, text="text", resume=True, watch=watch)
    vectors = read_vectors(path).vectors
    counts = count_tokens(samples, embedder.tokenizer)
    frequencies = np.asarray(counts.sum(0), np.float64).reshape(-1)
    weight = sif_weights(frequencies / frequencies.sum(), COUNTED_COEFFICIENT)
    directions = principal_directions(vectors, dimensions)
    heldout = int(_HELDOUT * len(samples))
    start = np.asarray((tokens * weight[:, None]) @ directions, np.float32)
    learned = learn_table(start, counts, vectors @ directions, heldout, progress)
    return learned.table, learned, heldout
