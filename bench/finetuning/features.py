"""What a frozen encoder's layers know: logistic regression on each (Devlin et al. 2019, table 7).
Last answer (2026-11-21, Zen 3): SST-2 81.9 by the last four layers, CoNLL-2003 72.5 by layer 4.

    python bench/finetuning/features.py [--sentences 20000] [--tagged 5000]

One pass over the data gives every layer of MiniLM: of SST-2's sentences the mean over their pieces, of
CoNLL-2003's words the first piece. Each layer, the sum and the concatenation of the last four go to the same
logistic regression of scikit-learn; tags are decoded word by word. Beside them stand the mean-pooled vectors
of sentence-transformers, under the same regression (its last step, which makes them of length 1, left out).
--sentences and --tagged are how many training rows are drawn; the dev sets are whole.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import report
from labelled import DATA_SETS, MODEL, fewer

Layers = dict[str, Any]  # name -> (E, D)


def main() -> None:
    """Parses, and makes both columns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--tagged", type=int, default=5_000)
    parser.add_argument("--dev-rows", type=int)
    options = parser.parse_args()
    sentences, sentence_seconds = _of_sentences(options.sentences, options.dev_rows)
    words, word_seconds = _of_words(options.tagged, options.dev_rows)
    rows = [
        {
            "features": name,
            "SST-2 accuracy": f"{sentences[name]:.2%}",
            "CoNLL-2003 entity F1": f"{words[name]:.2%}" if name in words else "",
        }
        for name in sentences
    ]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sentence_seconds.items())
    notes = [
        f"Trained on {options.sentences:,} sentences and {options.tagged:,} tagged ones, measured on dev.",
        f"Computing the features of SST-2 took: {times}; of CoNLL-2003: {word_seconds:.0f} s.",
    ]
    report("features", "What a frozen encoder's layers know", rows, notes)


# -- sentences -----------------------------------------------------------------------------------------------


def _of_sentences(rows: int, dev_rows: int | None) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracies by the name of the features, and how long each side took to compute them."""
    from bertsmith.tasks.classification import Classification

    data = DATA_SETS["sst2"]
    task = Classification(Classification.Settings(**data.columns))
    train, dev = _read(task, data, rows, dev_rows)
    texts = [example.text for example in [*train, *dev]]
    gold = np.array([example.label for example in [*train, *dev]])
    seconds: dict[str, float] = {}
    features = _named(_timed("ours", seconds, lambda: _our_sentences(texts)))
    theirs = _timed("sentence-transformers", seconds, lambda: _their_sentences(texts))
    features["sentence-transformers, last layer"] = theirs
    return {
        name: float((_guessed(vectors, gold, len(train)) == gold[len(train) :]).mean())
        for name, vectors in features.items()
    }, seconds


def _our_sentences(texts: Sequence[str]) -> list[Any]:
    from bertsmith.inference.features import Features

    return Features(MODEL, pooling="mean").layer_by_layer(texts)


def _their_sentences(texts: Sequence[str]) -> Any:
    from sentence_transformers import SentenceTransformer

    from bertsmith.model.locate import locate_model

    whole = SentenceTransformer(str(locate_model(MODEL).folder))
    pooled = SentenceTransformer(modules=[whole[0], whole[1]])
    return pooled.encode(list(texts), batch_size=32, show_progress_bar=False)


# -- words ---------------------------------------------------------------------------------------------------


def _of_words(rows: int, dev_rows: int | None) -> tuple[dict[str, float], float]:
    """Entity F1 by the name of the features, and the seconds of computing them."""
    from bertsmith.metrics.entities import entity_scores
    from bertsmith.tasks.tagging import Tagging

    data = DATA_SETS["conll"]
    task = Tagging(Tagging.Settings(**data.columns))
    train, dev = _read(task, data, rows, dev_rows)
    gold = np.array([tag for example in [*train, *dev] for tag in example.tags])
    cut = sum(len(example.tags) for example in train)
    ends = np.cumsum([len(example.tags) for example in dev])[:-1]
    right = [list(example.tags) for example in dev]
    started = time.perf_counter()
    layers = _first_pieces([*train, *dev])
    seconds = time.perf_counter() - started
    found = {}
    for name, vectors in _named(layers).items():
        guessed = np.split(_guessed(vectors, gold, cut), ends)
        found[name] = entity_scores(right, [tags.tolist() for tags in guessed]).micro.f1
    return found, seconds


def _first_pieces(examples: Sequence[Any]) -> list[Any]:
    """Every layer's states of each word's first piece: (words, H) a layer, embeddings first."""
    from bertsmith.inference.features import Features

    layers = Features(MODEL, pooling="words").layer_by_layer([example.words for example in examples])
    return [np.concatenate(sentences) for sentences in layers]


# -- both ----------------------------------------------------------------------------------------------------


def _read(task: Any, data: Any, rows: int, dev_rows: int | None) -> tuple[list[Any], list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        train = task.read(fewer(data.train, rows, Path(folder)))
        dev = task.read(fewer(data.dev, dev_rows, Path(folder)))
    task.fit(train)
    return train, dev


def _named(layers: list[Any]) -> Layers:
    """The layers, and what is made of the last four; the mean of sums is the sum of means."""
    last = len(layers) - 1
    names = ["embeddings", *(f"layer {number}" for number in range(1, last)), f"layer {last}, the last"]
    named = dict(zip(names, layers, strict=True))
    named["sum of the last four"] = np.sum(layers[-4:], axis=0)
    named["the last four side by side"] = np.concatenate(layers[-4:], axis=1)
    return named


def _timed(name: str, seconds: dict[str, float], compute: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    result = compute()
    seconds[name] = time.perf_counter() - started
    return result


def _guessed(vectors: Any, gold: Any, train: int) -> Any:
    """Logistic regression on the first `train` rows says what the others are."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return regression.fit(vectors[:train], gold[:train]).predict(vectors[train:])


if __name__ == "__main__":
    main()
