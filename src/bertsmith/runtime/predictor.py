"""Embedder and Predictor without torch: text → tokens → hidden states → vectors or answers.

E   texts    W   windows of them    N   tokens in the packed batch    H   hidden size    C   outputs
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertsmith.arrays import Float32s, Ints
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.embedding.text_chunks import TextWindows
from bertsmith.inference.embedding.vectors import Vectors, cut, normalised
from bertsmith.metrics.calibration import Confidence, probabilities_of
from bertsmith.metrics.entities import NONE, Scheme, legal_transitions, scheme_of_labels
from bertsmith.model.config_json import read_labels
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import IMPORTED, read_unverified_manifest
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.sentence_files import is_static, read_cross_encoder
from bertsmith.model.untrusted import plain_file
from bertsmith.runtime.encoder import ArrayEncoder, map_tensors, read_weights
from bertsmith.runtime.layers import ArrayLinear, ArrayNorm, activate, find_library, sum_rows
from bertsmith.tasks.checkpoints.sentence_folder import SHORTEST, read_max_length, read_sentence_settings
from bertsmith.tasks.examples.answer_spans import LONGEST_ANSWER, encode_passage, predict_span
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Pooling,
    Window,
    every_row,
    join_pooled,
    join_segments,
    pair_windows,
    single_windows,
    special_tokens,
    windows_apart,
)
from bertsmith.tasks.examples.tagged_example import (
    TaggedExample,
    example_of_text,
    tagged_prediction,
    windows_of_words,
    word_pieces,
)
from bertsmith.text.tokens.tokenizer import Tokenizer

_BATCH_TOKENS = 640  # for each core, as in tasks/forward_passes.py
_CHUNK = 4096  # texts
_STRIDE = 32  # tokens that neighbouring windows of a text share, as in inference/embedding
_FIRST_ROW = np.zeros(1, np.int64)
_HEAD = "head.safetensors"


class BatchEngine:
    """An encoder with its tokenizer, computing batches of like length, one a core at a time."""

    def __init__(self, folder: Path, encoder: ArrayEncoder) -> None:
        self.encoder, self.tokenizer = encoder, load_own_tokenizer(folder, encoder.config)
        self.cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.cores, "forward-pass")

    def run(
        self, encoded: Sequence[EncodedExample], answer: Callable[[Float32s, list[EncodedExample]], Any]
    ) -> Iterator[tuple[list[int], Any]]:
        """The indices of each batch's examples, and what `answer` makes of their rows' hidden states."""

        def compute(numbers: list[int]) -> Any:
            batch = [encoded[number] for number in numbers]
            return answer(self._states(batch), batch)

        batches = list(_batches([example.tokens for example in encoded]))
        several = len(batches) > 1 and self.cores > 1
        answers = self.threads.map(compute, batches) if several else map(compute, batches)
        yield from zip(batches, answers, strict=True)

    def _states(self, batch: Sequence[EncodedExample]) -> Float32s:
        windows = [window for example in batch for window in example.windows]
        lengths = [len(window.token_ids) for window in windows]
        counts = [len(window.rows) for window in windows]
        rows = None
        if sum(counts) < sum(lengths):
            starts = np.cumsum(lengths) - lengths
            rows = np.concatenate([window.rows for window in windows]) + np.repeat(starts, counts)
        ids = np.concatenate([window.token_ids for window in windows], dtype=np.int64)
        segments = np.concatenate([window.segment_ids for window in windows])
        return self.encoder(ids, segments, lengths, rows)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of the longest examples first, of at most `_BATCH_TOKENS` together."""
    batch, tokens = list[int](), 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and tokens + lengths[index] > _BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch


def pool(states: Float32s, sizes: Sequence[int], pooling: Pooling) -> Float32s:
    """Runs of so many rows (R, H) -> a vector each, in torch's order of sums."""
    vectors = np.empty((len(sizes), states.shape[1]), np.float32)
    start = 0
    for number, size in enumerate(sizes):
        part = states[start : start + size]
        if pooling == "max":
            vectors[number] = part.max(0)
        elif pooling == "cls":
            vectors[number] = part[0] + np.float32(0)
        else:
            vectors[number] = np.add.reduce(part, axis=0, initial=np.float32(0)) / np.float32(size)
        start += size
    return vectors


def unit_vectors(vectors: Float32s) -> Float32s:
    """Vectors (E, H) of length 1, as torch's `normalize` makes them: it sums squares in eight lanes."""
    if vectors.shape[1] % 8:
        return normalised(vectors)
    lanes = np.zeros((len(vectors), 8), np.float32)
    for start in range(0, vectors.shape[1], 8):
        part = vectors[:, start : start + 8]
        lanes += part * part
    total = np.zeros(len(vectors), np.float32)
    for lane in range(8):
        total += lanes[:, lane]
    return np.asarray(vectors / np.maximum(np.sqrt(total), np.float32(1e-12))[:, None], np.float32)


def require_texts(texts: Any) -> None:
    """Raises InputError unless `texts` is a list of texts."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InputError(f"Expected a list of texts, found {type(texts).__name__}. Put it in a list.")


class ArrayEmbedder:
    """An encoder that turns texts into vectors, by the pooling that its folder names or else by mean pooling.

    >>> embedder = Embedder("minilm")
    >>> embedder.encode(["The court granted the motion."]).shape
    (1, 384)

    The arguments are those of `bertsmith.Embedder`; `precision` is int16 by the kernels, where there are any,
    else float32. Vectors are the same as that one's on the same processor, to the bit.
    """

    def __init__(
        self,
        model: str | Path,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        max_length: int | None = None,
        long_texts: Literal["truncate", "windows"] = "truncate",
        dimensions: int | None = None,
        *,
        normalise: bool = True,
        precision: str | None = None,
    ) -> None:
        """Opens a folder by its path or alias. Raises ModelError and InputError."""
        self.folder = locate_model(model).folder
        if is_static(self.folder):
            raise ModelError(
                f"{self.folder} is a static table of vectors, for which the package bertsmith is needed."
            )
        settings = read_sentence_settings(self.folder)
        if settings.projection or settings.layer_weights is not None:
            raise ModelError(
                f"{self.folder} has layers behind its pooling, which the package bertsmith computes. Install "
                "that one for it."
            )
        config, weights, _ = read_weights(settings.encoder)
        encoder = ArrayEncoder(config, weights.tensors, str(settings.encoder), precision)
        self.engine = BatchEngine(settings.encoder, encoder)
        _require_within(dimensions, 1, config.hidden_size, "dimensions")
        _require_within(max_length, SHORTEST, config.max_length, "max_length")
        self.dimensions = dimensions or settings.truncate_dim
        self.max_length = max_length or min(settings.max_length or config.max_length, config.max_length)
        self.prefixes = {
            "query": settings.query_prefix if query_prefix is None else query_prefix,
            "document": settings.document_prefix if document_prefix is None else document_prefix,
        }
        self.pooling, self.normalise = settings.pooling, normalise
        self.windows = TextWindows(
            self.engine.tokenizer,
            self.max_length,
            min(_STRIDE, (self.max_length - 2) // 4) if long_texts == "windows" else None,
            self.pooling == "cls",
            False,
            not settings.include_prompt,
        )

    @property
    def width(self) -> int:
        """D, the number of dimensions of a vector."""
        return self.dimensions or self.engine.encoder.config.hidden_size

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embeds texts that are searched for: (E, D). Raises InputError unless `texts` is a list of texts."""
        return self.embed(texts, self.prefixes["query"])

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Embeds texts that are searched in: (E, D). Raises InputError unless `texts` is a list of texts."""
        return self.embed(texts, self.prefixes["document"])

    encode = documents

    def embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        """Embeds texts behind a prefix: (E, D). Raises InputError unless `texts` is a list of texts."""
        require_texts(texts)
        vectors = np.empty((len(texts), self.width), np.float32)
        end = 0
        for first in range(0, len(texts), _CHUNK):
            part = list(texts[first : first + _CHUNK])
            for chunk in self.windows.chunks(part, prefix, len(part)):
                start, end = end, end + chunk.texts
                pooled = np.empty((len(chunk.sequences), self.engine.encoder.config.hidden_size), np.float32)
                for numbers, made in self.engine.run(chunk.sequences, self._pool):
                    pooled[numbers] = made
                if len(pooled) > chunk.texts:
                    sizes = chunk.row_counts if self.pooling == "mean" else np.ones_like(chunk.lengths)
                    pooled = join_pooled(pooled, chunk.text_of_sequence, sizes, self.pooling)
                if self.dimensions:
                    pooled = cut(pooled, self.dimensions, normalise=False)
                vectors[start:end] = normalised(pooled) if self.normalise else pooled
        return vectors

    def _pool(self, states: Float32s, batch: Sequence[EncodedExample]) -> Float32s:
        return pool(states, [len(example.windows[0].rows) for example in batch], self.pooling)


class ArrayPredictor:
    """A trained model: classification, multi-label, regression, re-ranking, similarity, question-answering.

    >>> Predictor("runs/topics/model").predict(["The court granted the motion."])
    [{'label': 'law', 'confidence': 0.98, 'probabilities': {...}}]

    Predictions are those of `bertsmith.Predictor` on the same processor, to the bit but for heads with a norm
    or an activation other than tanh, of a width that no kernel has, and cosines, where the last bits may
    differ.
    """

    def __init__(self, model: str | Path, *, precision: str | None = None) -> None:
        """Opens a folder by its path. Raises ModelError for a folder without such a head."""
        folder = self.folder = locate_model(model).folder
        if is_static(folder):
            raise ModelError(
                f"{folder} is a static table, which the package bertsmith reads. Install that one."
            )
        config, weights, settings = read_weights(folder)
        manifest = read_unverified_manifest(folder)
        own = map_tensors(plain_file(folder, _HEAD)) if (folder / _HEAD).exists() else {}
        self.tensors: Mapping[str, Float32s] = {**weights.carried, **own}  # type: ignore[dict-item]
        where = f"{folder}/bertsmith.json"
        if manifest is None or manifest.task == IMPORTED:
            self.task, self.state = _foreign_task(folder, config, self.tensors, settings)
        else:
            self.task, self.state = manifest.task, manifest.settings
        answering = _ANSWERS.get(self.task)
        if answering is None:
            raise ModelError(
                f"{folder} was made for {self.task!r}; bertsmith-run predicts {', '.join(_ANSWERS)}. For "
                "others the package bertsmith is needed."
            )
        given = self.state.get("settings", {})
        if given.get("features"):
            raise ModelError(
                f"{folder} reads columns beside the text, for which the package bertsmith is needed."
            )
        self.labels = tuple(self.state.get("labels", ()))
        confidence = self.state.get("confidence")
        self.confidence = None if confidence is None else Confidence.from_json(confidence, where)
        self.max_length, self.stride = given["max_length"], given.get("stride")
        self.abstains = given.get("coverage") is not None or given.get("error_cost") is not None
        self.prompt = self.state.get("prompt", "")
        self.decode, self.apart, head_name = answering
        self.per_row = head_name != "sequence_head"
        pooling = given.get("pooling")
        self.pooling: Pooling | None = None if pooling == "published" else pooling
        self.engine = BatchEngine(folder, ArrayEncoder(config, weights.tensors, str(folder), precision))
        self.reads_all = self.apart or self.pooling is not None or config.classifier_pooling == "mean"
        names = None if self.apart or self.pooling is not None else config.family.sequence_head
        if self.per_row:
            names = getattr(config.family, head_name)
        self.tagger = _Tagger(self.labels, self.state, folder) if head_name == "token_head" else None
        self.names = names
        self.dense = self.norm = None
        if self.apart:
            if self.state.get("projection"):
                raise ModelError(f"{folder} has a projection, for which the package bertsmith is needed.")
            self.out = self._linear("classifier") if self.labels else None
            return
        if names is not None and names.dense:
            self.dense = self._linear(names.dense)
        if names is not None and names.norm:
            gain, shift = self._tensor(f"{names.norm}.weight"), self.tensors.get(f"{names.norm}.bias")
            self.norm = ArrayNorm(gain, shift, config.layer_norm_eps, config.norm != "rms")
        self.out = self._linear("out" if names is None or "out.weight" in self.tensors else names.out)

    def _tensor(self, name: str) -> Float32s:
        if name not in self.tensors:
            raise ModelError(f"{self.folder} lacks {name} of its head. It may have been cut or altered.")
        return self.tensors[name]

    def _linear(self, name: str) -> ArrayLinear:
        return ArrayLinear(self._tensor(f"{name}.weight"), self.tensors.get(f"{name}.bias"))

    def predict(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """A prediction for each text or pair, in order. Raises InputError for anything but a list of them."""
        require_texts(texts)
        results = list[dict[str, Any]]()
        for first in range(0, len(texts), _CHUNK):
            part = texts[first : first + _CHUNK]
            if self.tagger is not None:
                part, encoded = self.tagger.encode(part, self.engine.tokenizer, self.max_length, self.stride)
            else:
                encoded = self._encode(part, first)
            outputs: list[Any] = [None] * len(encoded)
            for numbers, made in self.engine.run(encoded, self._head):
                for number, output in zip(numbers, made, strict=True):
                    outputs[number] = output
            if outputs and self.per_row:
                results += self.decode(self, outputs, part, encoded)
            elif outputs:
                results += self.decode(self, np.stack(outputs))
        return results

    def _encode(self, texts: Sequence[Any], before: int) -> list[EncodedExample]:
        examples = [_as_texts(text, before + number) for number, text in enumerate(texts, 1)]
        for number, example in enumerate(examples, before + 1):
            pairs = self.state.get("pairs")
            if self.apart or self.per_row or pairs is None:
                column = self.state.get("settings", {}).get("text_pair")
                known = self.state.get("settings", {}).get("text") is not None
                pairs = True if self.apart or self.per_row else (column is not None if known else None)
            if pairs is not None and pairs != (len(example) == 2):
                kind = "pairs of texts" if pairs else "single texts"
                raise InputError(f"input {number}: the model reads {kind}; found {len(example)} texts.")
        flat = [
            self.prompt + text if place == 0 else text
            for example in examples
            for place, text in enumerate(example)
        ]
        ids, encoded, tokenizer = iter(self.engine.tokenizer.encode_pieces(flat)), [], self.engine.tokenizer
        for example in examples:
            pieces = [next(ids) for _ in example]
            if self.apart:
                encoded.append(EncodedExample(windows_apart(tokenizer, pieces, self.max_length, self.stride)))
                continue
            if self.per_row:
                passage = encode_passage(pieces, tokenizer, self.max_length, self.stride)
                encoded.append(EncodedExample(passage.windows, None, passage.pieces))
                continue
            room = self.max_length - special_tokens(tokenizer, len(pieces))
            parts, truncation = [piece.ids for piece in pieces], tokenizer.truncation
            if len(parts) == 2:
                spans = pair_windows(parts[0], parts[1], room, self.stride, truncation)
            else:
                spans = single_windows(parts[0], room, self.stride, truncation)
            windows = []
            for span in spans:
                token_ids, segment_ids = join_segments(tokenizer, *span)
                rows = every_row(len(token_ids)) if self.reads_all else _FIRST_ROW
                windows.append(Window(token_ids, segment_ids, rows))
            encoded.append(EncodedExample(tuple(windows)))
        return encoded

    def _head(self, states: Float32s, batch: Sequence[EncodedExample]) -> Float32s | list[Float32s]:
        """Hidden states of the rows that the head reads -> outputs (E, C), or (R, C) of each example."""
        if self.per_row:
            assert self.out is not None
            states = self._dense_features(states)
            counts = [sum(len(window.rows) for window in example.windows) for example in batch]
            return np.split(self.out(states), np.cumsum(counts)[:-1])
        if self.apart:
            return self._compare(states, batch)
        if self.pooling is not None:
            features = unit_vectors(self._pool_windows(states, batch, self.pooling))
        else:
            features = self._published_features(states, batch)
        assert self.out is not None
        return self.out(features)

    def _published_features(self, states: Float32s, batch: Sequence[EncodedExample]) -> Float32s:
        assert self.names is not None
        windows = [window for example in batch for window in example.windows]
        if self.reads_all:
            states = pool(states, [len(window.rows) for window in windows], "mean")
        if self.names.pooled and self.engine.encoder.pooler is not None:
            states = tanh(self.engine.encoder.pooler(states))
        states = self._dense_features(states)
        if len(windows) == len(batch):
            return states
        return pool(states, [len(example.windows) for example in batch], "mean")

    def _dense_features(self, states: Float32s) -> Float32s:
        """States after the head's dense layer, activation and norm, as far as the family has them."""
        if self.dense is not None and self.names is not None:
            name = self.names.activation or self.engine.encoder.config.masked_language_act
            dense = self.dense(states)
            states = tanh(dense) if name == "tanh" else activate(dense, name)
        return states if self.norm is None else self.norm(states)

    def _pool_windows(self, states: Float32s, batch: Sequence[EncodedExample], pooling: Pooling) -> Float32s:
        """A vector for each text of a batch, over all of its windows."""
        windows = [window for example in batch for window in example.windows]
        if pooling == "cls":
            lengths = np.array([len(window.rows) for window in windows])
            states = states[np.cumsum(lengths) - lengths]
        sizes, owner = list[int](), None
        for number, example in enumerate(batch):
            for window in example.windows:
                if (number, window.text) != owner:
                    sizes.append(0)
                    owner = number, window.text
                sizes[-1] += 1 if pooling == "cls" else len(window.rows)
        return pool(states, sizes, "mean" if pooling == "cls" else pooling)

    def _compare(self, states: Float32s, batch: Sequence[EncodedExample]) -> Float32s:
        vectors = self._pool_windows(states, batch, self.pooling or "mean")
        first, second = vectors[::2], vectors[1::2]
        if self.out is not None:
            return self.out(np.concatenate([first, second, np.abs(first - second)], 1))
        products = unit_vectors(first) * unit_vectors(second)
        sums = products.sum(1) if products.shape[1] % 8 else sum_rows(products)
        return sums[:, None]


def tanh(x: Float32s) -> Float32s:
    """tanh of each value, rounded once."""
    library = find_library()
    if library is None:
        return activate(x, "tanh")
    values = np.array(x, np.float32, order="C")
    library.hyperbolic_tangents(values.ctypes.data, values.size)
    return values


def _as_texts(text: Any, number: int) -> tuple[str, ...]:
    match text:
        case str():
            return (text,)
        case [str() as first, str() as second]:
            return first, second
    raise InputError(f"input {number}: expected a text or two, found {str(text)[:80]!r}.")


def _require_within(value: int | None, lowest: int, highest: int, name: str) -> None:
    if value is not None and not lowest <= value <= highest:
        raise InputError(f"{name} must be {lowest} to {highest}, found {value}.")


def _foreign_task(
    folder: Path, config: Any, head: Mapping[str, Float32s], settings: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The task of a folder of transformers, by its class and labels: one for each text or pair."""
    names = config.family.sequence_head
    weight, kind = head.get(f"{names.out}.weight"), (settings.get("architectures") or ["?"])[0]
    if weight is None or not str(kind).endswith("ForSequenceClassification"):
        raise ModelError(
            f"{folder} is a {kind}; bertsmith-run reads classes ForSequenceClassification. Install the "
            "package bertsmith for it."
        )
    entries, outputs = read_labels(settings, str(folder)), len(weight)
    by_number = {int(key): name for key, name in (entries.get("id2label") or {}).items()}
    labels = [by_number.get(number, f"LABEL_{number}") for number in range(outputs)]
    longest = min(read_max_length(folder) or config.max_length, config.max_length)
    state: dict[str, Any] = {"settings": {"max_length": longest, "pooling": "published"}, "labels": labels}
    problem, cross = entries.get("problem_type"), read_cross_encoder(folder, entries, outputs)
    if cross is not None and cross.prompt:
        state["prompt"] = cross.prompt
    if problem == "multi_label_classification":
        return "multi-label", state
    if problem == "regression" or outputs == 1:
        state["has_sigmoid"] = problem != "regression" if cross is None else cross.has_sigmoid
        return "regression", state
    return "classification", state


def _temperature(predictor: ArrayPredictor) -> float:
    return predictor.confidence.temperature if predictor.confidence else 1.0


def _classes(predictor: ArrayPredictor, outputs: Float32s) -> list[dict[str, Any]]:
    predictions = list[dict[str, Any]]()
    for row in probabilities_of(outputs, _temperature(predictor)):
        best = int(row.argmax())
        prediction: dict[str, Any] = {
            "label": predictor.labels[best],
            "confidence": round(float(row[best]), 6),
            "probabilities": dict(zip(predictor.labels, np.round(row, 6).tolist(), strict=True)),
        }
        if predictor.confidence is not None and predictor.abstains:
            prediction["abstain"] = bool(row[best] < predictor.confidence.threshold)
        predictions.append(prediction)
    return predictions


def _several_labels(predictor: ArrayPredictor, outputs: Float32s) -> list[dict[str, Any]]:
    own = predictor.confidence.label_thresholds if predictor.confidence else None
    thresholds = [0.5] * len(predictor.labels) if own is None else own
    return [
        {
            "labels": [
                label for label, p, least in zip(predictor.labels, row, thresholds, strict=True) if p >= least
            ],
            "probabilities": dict(zip(predictor.labels, np.round(row, 6).tolist(), strict=True)),
        }
        for row in probabilities_of(outputs, _temperature(predictor), multi_label=True)
    ]


def _numbers(predictor: ArrayPredictor, outputs: Float32s) -> list[dict[str, Any]]:
    numbers = outputs[:, 0].astype(np.float64)
    if predictor.state.get("has_sigmoid"):
        numbers = np.exp(-np.logaddexp(0, -numbers))
    return [{"score": float(number)} for number in numbers]


def _relevances(predictor: ArrayPredictor, outputs: Float32s) -> list[dict[str, Any]]:
    logits = outputs[:, 0].astype(np.float64)
    return [{"score": score} for score in np.exp(-np.logaddexp(0, -logits)).tolist()]


def _similarities(predictor: ArrayPredictor, outputs: Float32s) -> list[dict[str, Any]]:
    if predictor.labels:
        return [
            {"label": predictor.labels[int(row.argmax())], "confidence": round(float(row.max()), 6)}
            for row in probabilities_of(outputs)
        ]
    lowest, highest = predictor.state.get("range", (0.0, 1.0))
    cosines = [min(max(float(output[0]), -1.0), 1.0) for output in outputs]
    return [{"similarity": c, "score": lowest + (highest - lowest) * max(c, 0.0)} for c in cosines]


def _spans(
    predictor: ArrayPredictor,
    outputs: Sequence[Float32s],
    pairs: Sequence[Sequence[str]],
    encoded: Sequence[EncodedExample],
) -> list[dict[str, Any]]:
    longest = predictor.state["settings"].get("longest_answer", LONGEST_ANSWER)
    threshold = predictor.state.get("threshold")
    return [
        predict_span(output, passage, example, longest=longest, threshold=threshold)
        for output, (_, passage), example in zip(outputs, pairs, encoded, strict=True)
    ]


class _Tagger:
    """Words and their tags, by the rules of the labels' scheme."""

    def __init__(self, labels: Sequence[str], state: Mapping[str, Any], folder: Path) -> None:
        settings = state.get("settings", {})
        if settings.get("crf"):
            raise ModelError(f"{folder} has a CRF over its tags, for which the package bertsmith is needed.")
        self.labels, self.syllables = tuple(labels), state.get("syllables", False)
        self.constrained, name = settings.get("constrained", True), settings.get("scheme")
        self.scheme = Scheme(NONE)
        if name != NONE:
            self.scheme = scheme_of_labels(self.labels, trained_here=name is not None)
        self.start, self.pairs = legal_transitions(self.labels)

    def encode(
        self, texts: Sequence[Any], tokenizer: Tokenizer, max_length: int, stride: int | None
    ) -> tuple[list[TaggedExample], list[EncodedExample]]:
        """Texts, or lists of words. Raises InputError for anything else."""
        examples = list[TaggedExample]()
        for number, text in enumerate(texts, 1):
            where = f"input {number}"
            if isinstance(text, str):
                examples.append(example_of_text(text, where, syllables=self.syllables))
            elif isinstance(text, Sequence) and all(isinstance(word, str) for word in text):
                examples.append(TaggedExample(tuple(text), None, where))
            else:
                raise InputError(f"{where}: expected a text, or its words, found {str(text)[:80]!r}.")
        encoded = list[EncodedExample]()
        for example in examples:
            pieces = tokenizer.encode_words([tokenizer.blank_before_words + run for run in example.runs])
            tokens = word_pieces(example, pieces[0 : len(pieces)], tokenizer, skip_mark=self.constrained)
            made = windows_of_words(tokens, tokenizer, max_length, stride)
            encoded.append(EncodedExample(made, None, tokens.rows))
        return examples, encoded

    def best_path(self, emissions: Float32s) -> Ints:
        """The tags (R,) of the highest sum of scores (R, C) among legal paths (Viterbi)."""
        words = emissions.astype(np.float64)
        if not self.constrained or not len(words):
            return np.asarray(words.argmax(1), np.int64)
        pairs = np.where(self.pairs, 0.0, -np.inf).T  # (C after, C before)
        total, befores = words[0] + np.where(self.start, 0.0, -np.inf), list[Ints]()
        for word in words[1:]:
            sums = total + pairs
            befores.append(sums.argmax(1))
            total = sums.max(1) + word
        path = [int(total.argmax())]
        for before in reversed(befores):
            path.append(int(before[path[-1]]))
        return np.array(path[::-1], np.int64)


def _tags(
    predictor: ArrayPredictor,
    outputs: Sequence[Float32s],
    examples: Sequence[TaggedExample],
    encoded: Sequence[EncodedExample],
) -> list[dict[str, Any]]:
    tagger = predictor.tagger
    assert tagger is not None
    predictions = list[dict[str, Any]]()
    for output, example, windows in zip(outputs, examples, encoded, strict=True):
        scores = output.reshape(-1, len(tagger.labels))
        path = tagger.best_path(scores)
        confidence = probabilities_of(scores)[np.arange(len(path)), path]
        names = [tagger.labels[number] for number in path]
        predictions.append(tagged_prediction(example, names, confidence, windows.decoding, tagger.scheme))
    return predictions


# How outputs become answers; whether the two texts of a pair are encoded apart; the family's head.
_ANSWERS: Mapping[str, tuple[Callable[..., list[dict[str, Any]]], bool, str]] = {
    "classification": (_classes, False, "sequence_head"),
    "multi-label": (_several_labels, False, "sequence_head"),
    "regression": (_numbers, False, "sequence_head"),
    "reranking": (_relevances, False, "sequence_head"),
    "similarity": (_similarities, True, "sequence_head"),
    "question-answering": (_spans, False, "span_head"),
    "tagging": (_tags, False, "token_head"),
}
