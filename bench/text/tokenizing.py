"""Tokenizing and learning a vocabulary beside the tokenizers library itself.
Last answer (2026-11-24, Zen 4): 3.15 times encode_batch_fast on one thread; a vocabulary 1.51 times.

    python bench/text/tokenizing.py [--megabytes 50] [--threads 1 2] [--rounds 5] [--corpus CORPUS] [--quick]

The text is the first --megabytes of --corpus, or of what corpora.py finds; the pieces are BERT's uncased
ones (MiniLM's). Every side is one process with so many threads for the library, asked in turn. The targets:
95 % of the library's own speed in tokenizing, and at most 110 % of its trainer's time.

Tokenizing is in batches of the sentences of 512 documents. `corpus tokenize` is its WordCache, new in every
round and on one thread whatever the library has; the library's own speed is encode_batch_fast with its result
thrown away, and beside it with the ids taken out, which whoever wants them must do. All sides have to give
the same ids. The vocabulary has 30,522 pieces: ours reads the corpus, counts its words and merges, the same
in every run; the library's BertWordPieceTokenizer trains on the same sentences, a line each in a text file.
"""

import argparse
import atexit
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from harness import Worker, interleave, ratio, report, serve, spread

_BATCH, _PIECES = 512, 30_522  # documents, as in data/tokenizing.py; BERT's vocabulary
_WORK = {
    "tokenizing": {
        "encode_batch_fast": "tokenizers, encode_batch_fast",
        "fast_with_ids": "the same, ids taken out",
        "corpus_tokenize": "corpus tokenize",
        "encode_batch": "Tokenizer.encode_batch",
    },
    "vocabulary": {
        "library_trainer": "tokenizers, BertWordPieceTokenizer",
        "ours_trained": "tokenizer train",
    },
}
_PLAIN = {"add_special_tokens": False}


class Side(NamedTuple):
    """What is timed, and the ids in what it returns (none by default), which is not."""

    work: Callable[[], Any]
    ids: Callable[[Any], Any] = lambda nothing: np.empty(0, np.uint32)


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", help="a corpus (bertsmith corpus build)")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", nargs="+", choices=tuple(_WORK), default=list(_WORK))
    parser.add_argument("--quick", action="store_true", help="half a megabyte, one round; nothing is written")
    parser.add_argument("--worker", choices=[side for sides in _WORK.values() for side in sides])
    options = parser.parse_args()
    if options.worker:
        os.environ["RAYON_NUM_THREADS"] = str(options.threads[0])  # read when the library starts its threads
        corpus = _first(options.corpus, options.megabytes)
        size = sum(len(sentence.encode()) for batch in _batches(corpus) for sentence in batch)
        serve(_Timed(_SIDES[options.worker](corpus), size))
        return
    options.corpus = options.corpus or str(corpora.find_corpus())
    if options.quick:
        options.megabytes, options.rounds, options.threads = 0.5, 1, [1]
    rows = [
        row for threads in options.threads for work in options.work for row in _rows(work, threads, options)
    ]
    notes = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]]
    report("tokenizing", "Tokenizing beside tokenizers", rows, notes, write=not options.quick)


def _rows(work: str, threads: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One for each side; the first is the one that the others are compared with."""
    passed = ("--corpus", options.corpus, "--megabytes", str(options.megabytes), "--threads", str(threads))
    sides = {side: Worker(__file__, side, *passed) for side in _WORK[work]}
    answers = interleave(sides, options.rounds)
    for worker in sides.values():
        worker.close()
    if work == "tokenizing" and len({each["ids"] for given in answers.values() for each in given}) > 1:
        raise SystemExit("The sides gave different ids, so there is nothing to compare.")
    seconds = {side: [each["seconds"] for each in given] for side, given in answers.items()}
    first = next(iter(sides))
    return [
        {
            "work": work,
            "side": name,
            "threads": threads,
            "seconds": f"{statistics.median(seconds[side]):.2f}",
            "MB/s": f"{answers[side][0]['bytes'] / 1e6 / statistics.median(seconds[side]):.1f}",
            "tokens/s": _per_second(answers[side][0]["tokens"], statistics.median(seconds[side])),
            "times the first's speed": spread(ratio(seconds[first], seconds[side])),
        }
        for side, name in _WORK[work].items()
    ]


def _per_second(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:,.0f}" if tokens else ""


# -- the sides -----------------------------------------------------------------------------------------------


def _first(corpus: str, megabytes: float) -> Any:
    """The corpus, which ends after so many megabytes."""
    from bertsmith.text.corpus.corpus import Corpus, CorpusDocument

    class First(Corpus):
        def documents(self, split: Any) -> Iterator[CorpusDocument]:
            left = megabytes * 1e6
            for document in super().documents(split):
                if left <= 0:
                    return
                left -= sum(len(sentence.encode()) for sentence in document.sentences)
                yield document

    return First.open(corpus)


def _batches(corpus: Any) -> list[list[str]]:
    """The sentences of some hundred documents at a time, as `corpus tokenize` has them."""
    documents = corpus.documents("train")
    some = iter(lambda: list(islice(documents, _BATCH)), [])
    return [[text for document in batch for text in document.sentences] for batch in some]


def _tokenizer() -> Any:
    from bertsmith.model.locate import locate_model
    from bertsmith.text.tokens.tokenizer import Tokenizer

    return Tokenizer.load(locate_model("minilm").folder)


def _fast(corpus: Any) -> Side:
    batches, backend = _batches(corpus), _tokenizer().backend
    ids = _flat(
        [encoding.ids for batch in batches for encoding in backend.encode_batch_fast(batch, **_PLAIN)]
    )

    def work() -> None:
        for batch in batches:
            backend.encode_batch_fast(batch, **_PLAIN)

    return Side(work, lambda nothing: ids)


def _fast_with_ids(corpus: Any) -> Side:
    batches, backend = _batches(corpus), _tokenizer().backend

    def work() -> list[list[int]]:
        encoded = (backend.encode_batch_fast(batch, **_PLAIN) for batch in batches)
        return [encoding.ids for batch in encoded for encoding in batch]

    return Side(work, _flat)


def _encode_batch(corpus: Any) -> Side:
    batches, tokenizer = _batches(corpus), _tokenizer()
    return Side(lambda: [ids for batch in batches for ids in tokenizer.encode_batch(batch)], _flat)


def _corpus_tokenize(corpus: Any) -> Side:
    from bertsmith.text.tokens.word_cache import WordCache

    batches, tokenizer = _batches(corpus), _tokenizer()

    def work() -> list[Any]:
        encode = WordCache(tokenizer).encode
        return [encode(batch)[0] for batch in batches]

    return Side(work, np.concatenate)


def _ours_trained(corpus: Any) -> Side:
    from bertsmith.text.tokens.vocabulary import VocabularySettings, learn_pieces
    from bertsmith.text.tokens.word_counts import count_words

    def work() -> list[str]:
        words = count_words(corpus, lowercase=True, sample_bytes=1 << 60)
        return learn_pieces(words, VocabularySettings(vocab_size=_PIECES))

    return Side(work)


def _library_trainer(corpus: Any) -> Side:
    from tokenizers import BertWordPieceTokenizer

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    text = folder / "text"
    text.write_text("".join(f"{sentence}\n" for batch in _batches(corpus) for sentence in batch))

    def work() -> dict[str, int]:
        tokenizer = BertWordPieceTokenizer()
        tokenizer.train([str(text)], vocab_size=_PIECES, show_progress=False)
        return tokenizer.get_vocab()

    return Side(work)


def _flat(ids: list[list[int]]) -> Any:
    return np.fromiter(chain.from_iterable(ids), np.uint32)


class _Timed:
    """Does the work once a request."""

    def __init__(self, side: Side, size: int) -> None:
        self.side, self.size = side, size

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        result = self.side.work()
        seconds = time.perf_counter() - started
        ids = self.side.ids(result)
        return {
            "seconds": seconds,
            "bytes": self.size,
            "tokens": len(ids),
            "ids": hashlib.sha256(ids.tobytes()).hexdigest(),
        }


_SIDES: dict[str, Callable[[Any], Side]] = {
    "encode_batch_fast": _fast,
    "fast_with_ids": _fast_with_ids,
    "corpus_tokenize": _corpus_tokenize,
    "encode_batch": _encode_batch,
    "library_trainer": _library_trainer,
    "ours_trained": _ours_trained,
}


if __name__ == "__main__":
    main()
