"""GateFile: the user's own file as sequences, on which a graph is compared with the model. Also checks that
tokenizer.json alone gives the same token ids.

E examples, W sequences (an example's windows, or its texts), R rows that a head reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import InputError, ModelError
from bertsmith.inference.export.padded import VectorOutputs
from bertsmith.inference.export.source import Answer, ExportSource
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Window,
    join_segments,
    special_tokens,
    windows_apart,
)
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task import Outputs, Prediction, Task, reading_columns
from bertsmith.text.files.rows import stream_texts
from bertsmith.text.tokens.tokenizer import replace_surrogates

MOST_EXAMPLES = 2000
MOST_TOKENS = 100_000
_MOST_STATE_TOKENS = 20_000  # for a model without a head, all of whose hidden states are compared
_SEED = 0
_LENGTHS = (3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 100, 128, 200, 256, 384, 512)
_LONGEST_PROBE = 512
_LAYOUT = ("format", "header", "encoding")
_COMPARED = 200


@dataclass(frozen=True)
class GateFile:
    """A file's examples and their `sequences`, in the order of the examples; `encoded` has each example's
    windows. Without a task, each text is an example. `rows` is the number of rows in the file, of which a
    sample is compared if there are too many.
    """

    path: Path
    rows: int
    sequences: list[Window]
    examples: list[Any]
    encoded: list[EncodedExample]
    labelled: bool
    notes: tuple[str, ...] = ()

    @property
    def lengths(self) -> list[int]:
        """The length of each sequence in tokens, special tokens included."""
        return [len(window.token_ids) for window in self.sequences]

    def by_example(self, answers: Sequence[Answer]) -> list[list[Answer]]:
        """Groups answers to W sequences by example: E lists."""
        answers_left = iter(answers)
        return [[next(answers_left) for _ in example.windows] for example in self.encoded]

    def predictions(
        self, task: Task[Any], answers: Sequence[Answer], source: ExportSource
    ) -> list[Prediction]:
        """Decodes answers into predictions, one for each example, by a task."""
        return task.decode(self.outputs(answers, source), self.examples, self.encoded)

    def outputs(self, answers: Sequence[Answer], source: ExportSource) -> list[Outputs]:
        """Outputs for the task to decode, one for each example: (C,), or (R, C) for the rows of all windows;
        for vectors, what the task's head makes of them.
        """
        head, outputs = source.padded.head, list[Outputs]()
        for example_answers in self.by_example(answers):
            if head.per_token:
                outputs.append(np.concatenate(example_answers).astype(np.float32))
            elif not isinstance(head, VectorOutputs):
                outputs.append(np.asarray(example_answers[0], np.float32))
            else:
                vectors = np.stack(example_answers).astype(np.float32)
                outputs.append(vectors if source.task is None else source.task.outputs_of_vectors(vectors))
        return outputs


def read_gate_file(source: ExportSource, path: Path | str, columns: dict[str, Any]) -> GateFile:
    """Reads a file as the task reads its files, with labels if there are any; for an encoder, a text from
    each row. Raises InputError, naming file and line, for a file that can't be read with labels or without.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file. Name a file with rows to compare the graph on.")
    if source.task is None:
        return _read_texts(source, path, columns)
    reader = reading_columns(source.task, columns)
    reader.given_columns = {name for name, value in columns.items() if value is not None}
    examples, labelled, notes = _read_examples(reader, path)
    rows = len(examples)
    row_numbers = _draw_rows(rows)
    # `columns` only say where the file has its labels and texts: encoding is by the model's own task
    sample = [examples[number] for number in row_numbers]
    encoded_sample = list(encode_examples(source.task, sample, source.tokenizer).encoded)
    chosen = _within_tokens(row_numbers, encoded_sample, MOST_TOKENS)
    examples, encoded = [sample[index] for index in chosen], [encoded_sample[index] for index in chosen]
    sequences = list(chain.from_iterable(example.windows for example in encoded))
    return GateFile(path, rows, sequences, examples, encoded, labelled, notes)


def make_probes(source: ExportSource, file: GateFile) -> list[Window]:
    """Makes up sequences of many lengths from the file's tokens, since its rows may not have all lengths."""
    template = source.tokenizer.template
    around = len(template.before) + len(template.behind)
    longest = min(source.packed.config.max_length, max(_LONGEST_PROBE, source.max_length))
    special = np.array(source.tokenizer.special_ids)
    tokens = np.concatenate([window.token_ids for window in file.sequences])
    tokens = tokens[~np.isin(tokens, special)]
    if not len(tokens):
        tokens = np.array([source.tokenizer.unk_id])
    lengths = sorted({length for length in (*_LENGTHS, longest) if around < length <= longest})
    reads_all = source.padded.head.per_token or isinstance(source.padded.head, VectorOutputs)
    windows = []
    for length in lengths:
        body = np.resize(tokens, length - around).tolist()
        ids, segments = join_segments(source.tokenizer, body)
        rows = np.arange(length) if reads_all else np.zeros(1, np.int64)
        windows.append(Window(ids, segments, rows))
    return windows


def _read_examples(task: Task[Any], path: Path) -> tuple[list[Any], bool, tuple[str, ...]]:
    """Examples, whether they have labels, and notes on why they have none."""
    try:
        examples = task.read(path)
        task.check(examples)
        return examples, True, ()
    except InputError as error:
        label_error = error
    try:
        examples = task.read(path, labelled=False)
    except InputError as error:
        raise label_error from error
    return examples, False, (f"The file was read without labels: {label_error}",)


def _read_texts(source: ExportSource, path: Path, columns: dict[str, Any]) -> GateFile:
    """Reads the texts for an encoder alone: each behind the document prefix, truncated to what it reads."""
    unknown = [name for name in columns if name not in ("text", *_LAYOUT)]
    if unknown:
        raise InputError(
            f"{source.name} has no task, and reads one text per row. Leave {', '.join(unknown)} out."
        )

    def stream() -> Iterator[str]:
        return stream_texts(path, columns.get("text"), **{k: v for k, v in columns.items() if k != "text"})

    rows = sum(1 for _ in stream())
    if not rows:
        raise InputError(f"{path} has no rows. Name a file with texts to compare the graph on.")
    row_numbers = _draw_rows(rows)
    index_of_row = {number: index for index, number in enumerate(row_numbers)}
    sample = [""] * len(row_numbers)
    for number, text in enumerate(stream()):
        if number in index_of_row:
            sample[index_of_row[number]] = text
    room = source.max_length - special_tokens(source.tokenizer, 1)
    pieces = source.tokenizer.encode_pieces([as_document(source, text) for text in sample], room)
    encoded = [
        EncodedExample((windows_apart(source.tokenizer, [piece], source.max_length, None)[0],))
        for piece in pieces
    ]
    most_tokens = MOST_TOKENS if isinstance(source.padded.head, VectorOutputs) else _MOST_STATE_TOKENS
    indices = _within_tokens(row_numbers, encoded, most_tokens)
    chosen = [encoded[index] for index in indices]
    windows = [example.windows[0] for example in chosen]
    return GateFile(path, rows, windows, [sample[index] for index in indices], chosen, labelled=False)


def as_document(source: ExportSource, text: str) -> str:
    """A text as an encoder alone reads it, behind the document prefix."""
    assert source.sentences is not None
    return source.sentences.document_prefix + text


def _draw_rows(count: int) -> list[int]:
    """Draws row numbers in a random order, always the same: all, or as many as are compared."""
    generator = np.random.Generator(np.random.PCG64DXSM(_SEED))
    numbers: list[int] = generator.permutation(count)[:MOST_EXAMPLES].tolist()
    return numbers


def _within_tokens(
    row_numbers: Sequence[int], encoded: Sequence[EncodedExample], most_tokens: int
) -> list[int]:
    """Indices of the first examples drawn that have at most `most_tokens` tokens together, at least one
    example, in the order of their rows.
    """
    ends = np.cumsum([example.tokens for example in encoded])
    count = max(1, int(np.searchsorted(ends, most_tokens, side="right")))
    return sorted(range(count), key=lambda index: row_numbers[index])


def require_same_ids(source: ExportSource, file: GateFile) -> None:
    """Checks that tokenizer.json alone gives the token ids that the model reads, on texts and pairs that
    aren't truncated. Sentences and passages, which the task divides, are skipped. Raises ModelError if it
    adds other special tokens, or none.
    """
    if source.tokenizer.splitter is not None:
        raise ModelError(
            f"{source.folder}: MeCab divides its texts into words, which no tokenizer.json says, and other "
            "servers read that. Serve this model with `bertsmith serve`."
        )
    backend = source.tokenizer.text_backend
    for example, encoded in list(zip(file.examples, file.encoded, strict=True))[:_COMPARED]:
        texts, model_ids = _first_texts(source, example), encoded.windows[0].token_ids.tolist()
        if not texts:
            return
        first, second = (
            replace_surrogates(texts[0]),
            replace_surrogates(texts[1]) if len(texts) == 2 else None,
        )
        tokenizer_ids = backend.encode(first, second).ids
        if len(tokenizer_ids) <= source.max_length and tokenizer_ids != model_ids:
            raise ModelError(
                f"{source.folder}: tokenizer.json alone gives the ids {tokenizer_ids[:8]} …, but the model "
                f"reads {model_ids[:8]} …. Its post_processor must put the special tokens around texts."
            )


def _first_texts(source: ExportSource, example: Any) -> tuple[str, ...]:
    """The texts of an example's first sequence; empty if the task divides them itself."""
    if source.task is None:
        return (as_document(source, example),)
    texts = tuple(source.task.texts(example))
    if isinstance(source.padded.head, VectorOutputs):
        return texts[:1]
    return texts if isinstance(example, TextExample) else ()
