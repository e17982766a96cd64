"""The operations of a fine-tuned model: its task's predictions, and re-ranking by them."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.inference.engine import Engine
from bertsmith.inference.ranking.reranker import relevant_label, score_of
from bertsmith.serving.operations.operation import ForwardPass, LongText, Options, PreparedRequest
from bertsmith.serving.refusals import TextTooLong
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, special_tokens
from bertsmith.tasks.finetuning import pieces_of
from bertsmith.tasks.task import Prediction, Task
from bertsmith.tasks.task_model import TaskModel, at_least_float32
from bertsmith.text.tokens.long_texts import TextEncoding


class PredictOperation:
    """A prediction for each input. A pair may also be an object with `question` and `context`, or `text` and
    `text_pair`; a model that reads further columns always takes an object: {"text": …, "age": …}. `logits`
    True adds the head's outputs before temperature and softmax, for tasks on whole texts.
    """

    def __init__(self, name: str, engine: Engine[TaskModel], task: Task[Any]) -> None:
        self.name, self.engine, self.task = name, engine, task
        model = engine.model
        self.option_names: frozenset[str] = frozenset() if model.head.per_row else frozenset({"logits"})

        def answer(states: Tensor, layout: Layout) -> Tensor:
            return at_least_float32(model.answer(states, layout))

        self.forward = ForwardPass.of_encoder(
            model.encoder,
            answer,
            engine.device,
            engine.compute_dtype,
            name,
            per_row=model.head.per_row,
            reads_all=model.head.reads_all,
        )
        # "truncate" reads a text's first window alone; a tagging task refuses it in `prepare`.
        first_window = task if task.is_pretokenized else _copy_with_stride(task, None)
        overlap = max((task.settings.max_length - 3) // 4, 0)
        self.tasks: dict[LongText | None, Task[Any]] = {
            None: task,
            "error": task,
            "truncate": first_window,
            "windows": task if task.settings.stride is not None else _copy_with_stride(task, overlap),
        }

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        task = self.tasks[options.long_text]
        if options.long_text == "truncate" and task.is_pretokenized:
            raise InputError(
                "A tagging model reads long sentences as windows: cut, some words would have no tag. "
                "Leave long_text away, or say 'windows' or 'error'."
            )
        examples = [
            task.example(_read_named_input(input_), f"input {n}") for n, input_ in enumerate(inputs, 1)
        ]
        texts = [task.texts(example) for example in examples]
        pieces = pieces_of(task, texts, self.engine.tokenizer, options.most_tokens)
        encoded = [
            task.encode(example, encodings, self.engine.tokenizer)
            for example, encodings in zip(examples, pieces, strict=True)
        ]
        is_longer = [self._is_longer(*pair) for pair in zip(pieces, encoded, strict=True)]
        if options.long_text == "error" and any(is_longer):
            raise TextTooLong(
                f"Input {is_longer.index(True) + 1} is longer than the {task.settings.max_length} tokens "
                "that the model reads at a time. Shorten it, or say long_text = 'truncate' or 'windows'."
            )
        is_cut = task.settings.stride is None and not task.is_pretokenized
        logits = options.more.get("logits", False)
        if type(logits) is not bool:
            raise InputError(f"logits must be true or false, found {logits!r}.")

        def finish(outputs: Sequence[Any]) -> list[Prediction]:
            predictions = task.decode(outputs, examples, encoded)
            if not logits:
                return predictions
            return [
                {**prediction, "logits": row.tolist()}
                for prediction, row in zip(predictions, outputs, strict=True)
            ]

        tokens = [sequence.tokens for sequence in encoded]
        return PreparedRequest(
            self.forward, encoded, finish, tokens, [is_cut and longer for longer in is_longer]
        )

    def _is_longer(self, pieces: Sequence[TextEncoding], encoded: EncodedExample) -> bool:
        """Whether the texts have more tokens than one window holds."""
        longest = self.task.settings.max_length
        lengths = [len(text.ids) for text in pieces]
        if any(window.text for window in encoded.windows):  # the texts are encoded separately
            return max(lengths) > longest - special_tokens(self.engine.tokenizer, 1)
        texts = 1 if self.task.is_pretokenized else len(lengths)
        return sum(lengths) > longest - special_tokens(self.engine.tokenizer, texts)


def _read_named_input(input_: Any) -> Any:
    """A text or a pair for an object that names them; any other input as it is."""
    if not isinstance(input_, Mapping):
        return input_
    for names in (("question", "context"), ("text", "text_pair"), ("text",)):
        if set(input_) == set(names):
            texts = tuple(input_[name] for name in names)
            return texts if len(texts) > 1 else texts[0]
    return dict(input_)  # for a task that reads columns; others refuse it and show it


def _copy_with_stride(task: Task[Any], stride: int | None) -> Task[Any]:
    """A copy of the task that reads long texts with this stride; None: only their first window."""
    task = copy(task)
    task.settings = task.settings.model_copy(update={"stride": stride})
    return task


class RerankOperation:
    """The relevance of each input to the option `query`, by a model that reads both together (cross-encoder).
    Results are scores, the higher the more relevant.
    """

    option_names: frozenset[str] = frozenset({"query"})

    def __init__(self, predict: PredictOperation) -> None:
        self.predict = predict

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        query = options.more.get("query")
        if not isinstance(query, str):
            raise InputError(f"query must be a text, found {query!r}.")
        for number, document in enumerate(inputs, 1):
            if not isinstance(document, str):
                raise InputError(f"document {number} must be a text, found {document!r}.")
        settings = self.predict.tasks[options.long_text].settings
        if settings.stride is not None or options.long_text == "error":  # the query may not be truncated
            (ids,) = self.predict.engine.tokenizer.encode_batch([query], settings.max_length)
            if len(ids) >= settings.max_length:
                raise TextTooLong(
                    f"The query has {settings.max_length:,} tokens or more: the model reads no more at a "
                    "time, the document among them. Shorten it, or say long_text = 'truncate'."
                )
        prepared = self.predict.prepare([(query, document) for document in inputs], replace(options, more={}))

        def finish(outputs: Sequence[Any]) -> list[float]:
            return [score_of(prediction, self.predict.name) for prediction in prepared.finish(list(outputs))]

        return replace(prepared, finish=finish)


def ranks_pairs(task: Task[Any]) -> bool:
    """Whether a task's model can re-rank: it reads pairs and gives each a score."""
    if task.relevance == "label":
        try:
            relevant_label(tuple(task.labels), task.name)
        except InputError:
            return False
        return bool(task.reads_pairs)
    # A model of transformers doesn't say that it reads pairs; its cross-encoders have one output.
    return task.relevance is not None and task.reads_pairs is not False
