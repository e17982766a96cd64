"""Embedder and Predictor without torch: text → tokens → hidden states → vectors or answers.

E   texts    W   windows of them    N   tokens in the packed batch    H   hidden size    C   outputs
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertsmith.arrays import Float32s
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.embedding.text_chunks import TableReader, TextWindows
from bertsmith.inference.embedding.vectors import Vectors, cut, normalised
from bertsmith.metrics.calibration import Confidence
from bertsmith.model.config import BertConfig
from bertsmith.model.config_json import output_labels, read_labels
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import IMPORTED, Manifest, read_unverified_manifest, verify_while_loading
from bertsmith.model.sentence_files import is_static, makes_vectors, read_cross_encoder
from bertsmith.model.untrusted import WEIGHTS, plain_file, read_settings
from bertsmith.runtime.answers import ANSWERS, Tagger, TaskState
from bertsmith.runtime.encoder import ArrayEncoder, ArrayTable, BatchEngine, map_tensors, read_weights
from bertsmith.runtime.layers import (
    ArrayLinear,
    ArrayNorm,
    ArrayProjection,
    activate,
    pool,
    sum_rows,
    tanh,
    unit_vectors,
)
from bertsmith.tasks.checkpoints.projection_folders import SentenceModule, read_layer_settings
from bertsmith.tasks.checkpoints.sentence_folder import SHORTEST, read_max_length, read_sentence_settings
from bertsmith.tasks.examples.answer_spans import encode_passage
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

_CHUNK = 4096  # texts
_STRIDE = 32  # tokens that neighbouring windows of a text share, as in inference/embedding
_FIRST_ROW = np.zeros(1, np.int64)
_HEAD = "head.safetensors"
_FOREIGN_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_STRIDE_OF_PASSAGES = 128  # as of tasks/question_answering.py


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
        _require_vectors(self.folder)
        settings = read_sentence_settings(self.folder)
        if settings.layer_weights is not None:
            raise ModelError(
                f"{self.folder} weights its layers, which the package bertsmith computes. Install that one "
                "for it."
            )
        with verify_while_loading(self.folder if is_static(self.folder) else settings.encoder):
            self.engine = BatchEngine(
                settings.encoder, _open_encoder(self.folder, settings.encoder, precision)
            )
            config = self.engine.encoder.config
            self.projection = ArrayProjection(
                map(_read_layer, settings.projection), config.hidden_size, str(self.folder)
            )
        _require_within(dimensions, 1, self.projection.width, "dimensions")
        _require_within(max_length, SHORTEST, config.max_length, "max_length")
        self.dimensions = dimensions or (
            settings.truncate_dim and min(settings.truncate_dim, self.projection.width)
        )
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
            isinstance(self.engine.encoder, ArrayTable),
            not settings.include_prompt,
        )
        self.reader: TableReader | None = None
        if isinstance(self.engine.encoder, ArrayTable):
            room = self.windows.room if long_texts == "truncate" else None
            self.reader = TableReader(self.engine.encoder, self.engine.tokenizer, room)

    @property
    def width(self) -> int:
        """D, the number of dimensions of a vector."""
        return self.dimensions or self.projection.width

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
        if self.reader is not None:
            for summed, _ in self.reader.batches(texts, prefix, _CHUNK):
                start, end = end, end + len(summed)
                vectors[start:end] = self._truncate_and_normalise(summed)
            return vectors
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
                vectors[start:end] = self._truncate_and_normalise(self.projection(pooled))
        return vectors

    def _truncate_and_normalise(self, pooled: Vectors) -> Vectors:
        if self.dimensions:
            pooled = cut(pooled, self.dimensions, normalise=False)
        return normalised(pooled) if self.normalise else pooled

    def _pool(self, states: Float32s, batch: Sequence[EncodedExample]) -> Float32s:
        return pool(states, [len(example.windows[0].rows) for example in batch], self.pooling)


def _require_vectors(folder: Path) -> None:
    """Raises ModelError for a fine-tuned model that predicts instead of embedding texts."""
    manifest = read_unverified_manifest(folder)
    task = "" if manifest is None else manifest.task
    what = f"fine-tuned for {task}" if task in ANSWERS and task != "similarity" else ""
    if task in ("", IMPORTED) and not makes_vectors(folder) and (folder / "config.json").exists():
        kinds = read_settings(plain_file(folder, "config.json")).get("architectures") or [""]
        what = f"a fine-tuned {kinds[0]}" if str(kinds[0]).endswith(_FOREIGN_HEADS) else ""
    if what:
        raise ModelError(
            f"{folder} is {what}: it predicts, and was trained for no vectors of texts. Use an embedding "
            "model."
        )


def _open_encoder(folder: Path, encoder: Path, precision: str | None) -> ArrayEncoder | ArrayTable:
    if is_static(folder):
        return ArrayTable(folder)
    config, weights, _ = read_weights(encoder)
    return ArrayEncoder(config, weights.tensors, str(encoder), precision)


def _read_layer(module: SentenceModule) -> tuple[str, Mapping[str, Any], Mapping[str, Float32s]]:
    """A module behind the pooling: its kind, settings and tensors."""
    settings, _ = read_layer_settings(module)
    has_weights = module.kind in ("Dense", "LayerNorm")
    return module.kind, settings, map_tensors(plain_file(module.folder, WEIGHTS)) if has_weights else {}


class ArrayPredictor:
    """A trained model of any of our tasks, or of transformers for each text or pair.

    >>> Predictor("runs/topics/model").predict(["The court granted the motion."])
    [{'label': 'law', 'confidence': 0.98, 'probabilities': {...}}]

    Predictions are those of `bertsmith.Predictor` on the same processor, to the bit but for RMSNorm and norms
    of a width that isn't a multiple of 8, where the last bits may differ.
    """

    def __init__(self, model: str | Path, *, precision: str | None = None) -> None:
        """Opens a folder by its path. Raises ModelError for a folder without such a head."""
        self.folder = locate_model(model).folder
        with verify_while_loading(self.folder) as manifest:
            self._open(self.folder, manifest, precision)

    def _open(self, folder: Path, manifest: Manifest | None, precision: str | None) -> None:
        own, where = dict[str, Any](), f"{folder}/bertsmith.json"
        if (folder / _HEAD).exists():
            if manifest is None or _HEAD not in manifest.files:
                raise ModelError(f"{where} has no hash of {_HEAD}. It was altered.")
            own = map_tensors(plain_file(folder, _HEAD))
        encoder: ArrayEncoder | ArrayTable
        if is_static(folder):
            if manifest is None or manifest.task == "encoder":
                raise ModelError(f"{folder} is a static table of vectors, without the head of a task.")
            encoder, settings, carried = ArrayTable(folder), dict[str, Any](), dict[str, Any]()
            pieces, width = encoder.table.shape
            config = BertConfig(
                vocab_size=pieces, hidden_size=width, num_attention_heads=1, intermediate_size=1
            )
        else:
            config, weights, settings = read_weights(folder)
            encoder = ArrayEncoder(config, weights.tensors, str(folder), precision)
            carried = dict(weights.carried)
        self.tensors: Mapping[str, Float32s] = {**carried, **own}
        if manifest is None or manifest.task == IMPORTED:
            self.task, self.state = _foreign_task(folder, config, self.tensors, settings)
        else:
            self.task, self.state = manifest.task, manifest.settings
        answering = ANSWERS.get(self.task)
        if answering is None:
            raise ModelError(
                f"{folder} was made for {self.task!r}; bertsmith-run predicts {', '.join(ANSWERS)}. For "
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
        self.prompt = self.state.get("prompt", "")
        self.decode, self.apart, head_name = answering
        self.per_row = head_name != "sequence_head"
        pooling = given.get("pooling")
        self.pooling: Pooling | None = None if pooling == "published" else pooling
        self.engine = BatchEngine(folder, encoder)
        self.reads_all = self.apart or self.pooling is not None or config.classifier_pooling == "mean"
        names = None if self.apart or self.pooling is not None else config.family.sequence_head
        if self.per_row:
            names = getattr(config.family, head_name)
        self.tagger = None
        if head_name == "token_head":
            self.tagger = Tagger(self.labels, self.state, self.tensors, folder)
        self.answers = TaskState(self.state, self.labels, self.confidence, self.tagger)
        self.names = names
        self.dense = self.norm = None
        if self.apart:
            self.projection = ArrayProjection(self._projection_layers(), config.hidden_size, where)
            self.out = self._linear("classifier") if self.labels else None
            return
        if names is not None and names.dense:
            self.dense = self._linear(names.dense)
            self.activation = names.activation or config.masked_language_act
        if names is not None and names.norm:
            gain, shift = self._tensor(f"{names.norm}.weight"), self.tensors.get(f"{names.norm}.bias")
            self.norm = ArrayNorm(gain, shift, config.layer_norm_eps, config.norm != "rms")
        self.out = self._linear("out" if names is None or "out.weight" in self.tensors else names.out)

    def _projection_layers(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Float32s]]]:
        for number, layer in enumerate(self.state.get("projection") or ()):
            prefix = f"projection.{number}."
            own = {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}
            yield layer["type"], layer, own

    def _tensor(self, name: str) -> Float32s:
        if name not in self.tensors:
            raise ModelError(f"{self.folder} lacks {name} of its head. It may have been cut or altered.")
        return self.tensors[name]

    def _linear(self, name: str) -> ArrayLinear:
        return ArrayLinear(self._tensor(f"{name}.weight"), self.tensors.get(f"{name}.bias"))

    def predict(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """A prediction for each text or pair, in order. Raises InputError for anything but a list of them."""
        require_texts(texts)
        return self.predict_numbered(texts, range(1, len(texts) + 1))

    def predict_numbered(self, texts: Sequence[Any], numbers: Sequence[int]) -> list[dict[str, Any]]:
        """As `predict`, with each input's number for messages."""
        results = list[dict[str, Any]]()
        for first in range(0, len(texts), _CHUNK):
            part = texts[first : first + _CHUNK]
            if self.tagger is not None:
                part, encoded = self.tagger.encode(part, self.engine.tokenizer, self.max_length, self.stride)
            else:
                encoded = self._encode(part, numbers[first : first + _CHUNK])
            outputs: list[Any] = [None] * len(encoded)
            for places, made in self.engine.run(encoded, self._head):
                for place, output in zip(places, made, strict=True):
                    outputs[place] = output
            if outputs and self.per_row:
                results += self.decode(self.answers, outputs, part, encoded)
            elif outputs:
                results += self.decode(self.answers, np.stack(outputs))
        return results

    @property
    def reads_pairs(self) -> bool | None:
        """Whether an input is two texts; None where the folder doesn't say."""
        if self.tagger is not None:
            return False
        if self.apart or self.per_row:
            return True
        pairs: bool | None = self.state.get("pairs")
        settings = self.state.get("settings", {})
        if pairs is None and settings.get("text") is not None:
            return settings.get("text_pair") is not None
        return pairs

    def _encode(self, texts: Sequence[Any], numbers: Sequence[int]) -> list[EncodedExample]:
        examples, pairs = [*map(_as_texts, texts, numbers)], self.reads_pairs
        for number, example in zip(numbers, examples, strict=True):
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
        encoder = self.engine.encoder
        assert self.names is not None and isinstance(encoder, ArrayEncoder)
        windows = [window for example in batch for window in example.windows]
        if self.reads_all:
            states = pool(states, [len(window.rows) for window in windows], "mean")
        if self.names.pooled and encoder.pooler is not None:
            states = tanh(encoder.pooler(states))
        states = self._dense_features(states)
        if len(windows) == len(batch):
            return states
        return pool(states, [len(example.windows) for example in batch], "mean")

    def _dense_features(self, states: Float32s) -> Float32s:
        """States after the head's dense layer, activation and norm, as far as the family has them."""
        if self.dense is not None:
            states = activate(self.dense(states), self.activation)
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
        vectors = self.projection(self._pool_windows(states, batch, self.pooling or "mean"))
        first, second = vectors[::2], vectors[1::2]
        if self.out is not None:
            return self.out(np.concatenate([first, second, np.abs(first - second)], 1))
        products = unit_vectors(first) * unit_vectors(second)
        sums = products.sum(1) if products.shape[1] % 8 else sum_rows(products)
        return sums[:, None]


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
    folder: Path, config: BertConfig, head: Mapping[str, Float32s], settings: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The task of a folder of transformers, by its class, head and labels, as tasks/checkpoints/infer_task.py
    has it.
    """
    where, kind = f"{folder}/config.json", str((settings.get("architectures") or ["?"])[0])
    suffix = next((suffix for suffix in _FOREIGN_HEADS if kind.endswith(suffix)), None)
    heads = config.family.sequence_head, config.family.token_head, config.family.span_head
    weights = (head.get(f"{names.out}.weight") for names in heads if names is not None)
    weight = next((weight for weight in weights if weight is not None), None)
    if suffix is None or weight is None:
        raise ModelError(f"{folder} is a {kind} without a head for a task.")
    entries, outputs = read_labels(settings, str(folder)), len(weight)
    labels = output_labels(entries, outputs, where)
    longest = min(read_max_length(folder) or config.max_length, config.max_length)
    state: dict[str, Any] = {"settings": {"max_length": longest, "pooling": "published"}, "labels": labels}
    if suffix == "ForTokenClassification":
        state["settings"]["constrained"] = False  # its tags may be of any scheme
        return "tagging", state
    if suffix == "ForQuestionAnswering":
        state["settings"]["stride"] = _STRIDE_OF_PASSAGES
        return "question-answering", state
    problem, cross = entries.get("problem_type"), read_cross_encoder(folder, entries, outputs)
    if cross is not None and cross.prompt:
        state["prompt"] = cross.prompt
    if problem == "multi_label_classification":
        return "multi-label", state
    if problem == "regression" or (problem is None and outputs == 1):
        if outputs != 1:
            raise ModelError(
                f"{where}: problem_type is regression, and the head has {outputs} outputs: a regression of "
                "Bertsmith's is one number. Use a model with one output."
            )
        state["has_sigmoid"] = problem != "regression" if cross is None else cross.has_sigmoid
        return "regression", state
    if problem not in (None, "single_label_classification") or outputs == 1:
        raise ModelError(f"{where}: problem_type {problem!r} doesn't go with {outputs} outputs.")
    return "classification", state
