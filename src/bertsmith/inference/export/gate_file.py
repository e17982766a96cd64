"""The user's own file as sequences: what a graph is held against the model on, and that tokenizer.json by
itself gives their ids.

E examples, W sequences (an example's windows, or its texts), R rows that a head reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import InputError, ModelError
from bertsmith.inference.export.padded import VectorHead
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
from bertsmith.text.tokens.tokenizer import without_surrogates

MOST_EXAMPLES = 2000
MOST_TOKENS = 100_000
_MOST_STATE_TOKENS = 20_000  # of a model without a head, each of whose hidden states is compared
_SEED = 0
_LENGTHS = (3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 100, 128, 200, 256, 384, 512)
_LONGEST_PROBE = 512
_LAYOUT = ("format", "header", "encoding")
_COMPARED = 200


@dataclass(frozen=True)
class GateFile:
    """`sequences` in the order of the examples; `encoded` says which are whose. Without a task each text is
    an example. `rows` is how many the file has: of more than are compared a sample is taken.
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
        """In tokens."""
        return [len(window.token_ids) for window in self.sequences]

    def by_example(self, answers: Sequence[Answer]) -> list[list[Answer]]:
        """(W,) -> E lists."""
        left = iter(answers)
        return [[next(left) for _ in each.windows] for each in self.encoded]

    def predictions(
        self, task: Task[Any], answers: Sequence[Answer], source: ExportSource
    ) -> list[Prediction]:
        """What a task makes of answers."""
        return task.decode(self.outputs(answers, source), self.examples, self.encoded)

    def outputs(self, answers: Sequence[Answer], source: ExportSource) -> list[Outputs]:
        """What the task decodes: (C,), or of all windows' rows (R, C); of vectors what its head makes of
        them.
        """
        head, found = source.padded.head, list[Outputs]()
        for each in self.by_example(answers):
            if head.per_token:
                found.append(np.concatenate(each).astype(np.float32))
            elif not isinstance(head, VectorHead):
                found.append(np.asarray(each[0], np.float32))
            else:
                vectors = np.stack(each).astype(np.float32)
                found.append(vectors if source.task is None else source.task.outputs_of_vectors(vectors))
        return found


def read_gate_file(source: ExportSource, path: Path | str, columns: dict[str, Any]) -> GateFile:
    """As the task reads its files, without labels where there are none; an encoder's has a text a row. Raises
    InputError for what can be read neither way, naming file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file. Name a file with rows to compare the graph on.")
    if source.task is None:
        return _read_texts(source, path, columns)
    examples, labelled, notes = _read_examples(reading_columns(source.task, columns), path)
    rows = len(examples)
    drawn = _draw_rows(rows)
    # labels are read by other columns, perhaps; what is encoded is as in training
    some = [examples[number] for number in drawn]
    known = list(encode_examples(source.task, some, source.tokenizer).encoded)
    kept = _within_tokens(drawn, known, MOST_TOKENS)
    examples, encoded = [some[place] for place in kept], [known[place] for place in kept]
    sequences = list(chain.from_iterable(each.windows for each in encoded))
    return GateFile(path, rows, sequences, examples, encoded, labelled, notes)


def make_probes(source: ExportSource, file: GateFile) -> list[Window]:
    """Sequences of many lengths, made of the file's own tokens: what no row of it may have."""
    template = source.tokenizer.template
    around = len(template.before) + len(template.behind)
    longest = min(source.packed.config.max_length, max(_LONGEST_PROBE, source.max_length))
    special = np.array(source.tokenizer.special_ids)
    tokens = np.concatenate([window.token_ids for window in file.sequences])
    tokens = tokens[~np.isin(tokens, special)]
    if not len(tokens):
        tokens = np.array([source.tokenizer.unk_id])
    lengths = sorted({length for length in (*_LENGTHS, longest) if around < length <= longest})
    reads_all = source.padded.head.per_token or isinstance(source.padded.head, VectorHead)
    made = []
    for length in lengths:
        body = np.resize(tokens, length - around).tolist()
        ids, segments = join_segments(source.tokenizer, body)
        rows = np.arange(length) if reads_all else np.zeros(1, np.int64)
        made.append(Window(ids, segments, rows))
    return made


def _read_examples(task: Task[Any], path: Path) -> tuple[list[Any], bool, tuple[str, ...]]:
    """Examples, whether they have labels, and why they have none."""
    try:
        examples = task.read(path)
        task.check(examples)
        return examples, True, ()
    except InputError as error:
        why = error
    try:
        examples = task.read(path, labelled=False)
    except InputError as error:
        raise why from error
    return examples, False, (f"The file was read without labels: {why}",)


def _read_texts(source: ExportSource, path: Path, columns: dict[str, Any]) -> GateFile:
    """For an encoder alone: each text cut to the longest, behind the prefix of a document."""
    strange = [name for name in columns if name not in ("text", *_LAYOUT)]
    if strange:
        raise InputError(
            f"{source.name} has no task, and reads one text per row. Leave {', '.join(strange)} out."
        )

    def stream() -> Iterator[str]:
        return stream_texts(path, columns.get("text"), **{k: v for k, v in columns.items() if k != "text"})

    rows = sum(1 for _ in stream())
    if not rows:
        raise InputError(f"{path} has no rows. Name a file with texts to compare the graph on.")
    drawn = _draw_rows(rows)
    wanted = {number: place for place, number in enumerate(drawn)}
    some = [""] * len(drawn)
    for number, text in enumerate(stream()):
        if number in wanted:
            some[wanted[number]] = text
    room = source.max_length - special_tokens(source.tokenizer, 1)
    pieces = source.tokenizer.encode_pieces([as_document(source, text) for text in some], room)
    encoded = [
        EncodedExample((windows_apart(source.tokenizer, [piece], source.max_length, None)[0],))
        for piece in pieces
    ]
    most = MOST_TOKENS if isinstance(source.padded.head, VectorHead) else _MOST_STATE_TOKENS
    kept = _within_tokens(drawn, encoded, most)
    chosen = [encoded[place] for place in kept]
    windows = [each.windows[0] for each in chosen]
    return GateFile(path, rows, windows, [some[place] for place in kept], chosen, labelled=False)


def as_document(source: ExportSource, text: str) -> str:
    """What an encoder alone reads of a text."""
    assert source.sentences is not None
    return source.sentences.document_prefix + text


def _draw_rows(count: int) -> list[int]:
    """Numbers of rows in a random order: all, or as many as are compared."""
    draw = np.random.Generator(np.random.PCG64DXSM(_SEED))
    numbers: list[int] = draw.permutation(count)[:MOST_EXAMPLES].tolist()
    return numbers


def _within_tokens(drawn: Sequence[int], encoded: Sequence[EncodedExample], most: int) -> list[int]:
    """Places of those drawn first that together have at most so many tokens, at least one, in the order of
    their rows.
    """
    ends = np.cumsum([each.tokens for each in encoded])
    count = max(1, int(np.searchsorted(ends, most, side="right")))
    return sorted(range(count), key=lambda place: drawn[place])


def require_same_ids(source: ExportSource, file: GateFile) -> None:
    """On texts and pairs that are not cut; words of sentences and passages are the task's to divide. Raises
    ModelError where the file says nothing of special tokens around texts, or other ones.
    """
    backend = source.tokenizer.text_backend
    for example, encoded in list(zip(file.examples, file.encoded, strict=True))[:_COMPARED]:
        texts, ids = _first_texts(source, example), encoded.windows[0].token_ids.tolist()
        if not texts:
            return
        first, second = (
            without_surrogates(texts[0]),
            without_surrogates(texts[1]) if len(texts) == 2 else None,
        )
        found = backend.encode(first, second).ids
        if len(found) <= source.max_length and found != ids:
            raise ModelError(
                f"{source.folder}: tokenizer.json alone gives the ids {found[:8]} …, but the model reads "
                f"{ids[:8]} …. Its post_processor must put the special tokens around texts."
            )


def _first_texts(source: ExportSource, example: Any) -> tuple[str, ...]:
    """What the first sequence of an example is made of; nothing where that is for the task to say."""
    if source.task is None:
        return (as_document(source, example),)
    texts = tuple(source.task.texts(example))
    if isinstance(source.padded.head, VectorHead):
        return texts[:1]
    return texts if isinstance(example, TextExample) else ()
