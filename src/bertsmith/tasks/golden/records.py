"""A model's answers to fixed texts, stage by stage and in few numbers, for golden.json.

golden.json holds the kind of model, hashes of the folder's settings, and for each text its ids, hidden states
and answer. P projections.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

import bertsmith
from bertsmith.arrays import Floats
from bertsmith.errors import BertsmithError, ModelError
from bertsmith.files import atomic_write
from bertsmith.model.manifest import MANIFEST, read_unverified_manifest, update_file_entry
from bertsmith.model.untrusted import plain_file, read_small_json
from bertsmith.tasks.golden.subject import GoldenInput, GoldenSubject, Item, open_subject
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import Strict, describe_problem

PROJECTIONS = 32

# splitmix64 (Steele, Lea and Flood 2014). Written out, since what is stored must be the same for ever, which
# the generators of NumPy and torch don't promise.
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
GOLDEN = "golden.json"
_SHOWN_IDS = 48  # longer texts are stored as a hash
_TRACED = (
    4  # texts whose layers are stored: a damaged layer shows in any text, and all would take twice as long
)
_TRACED_TOKENS = 64  # the most tokens of such a text
_SHOWN_WORDS = 120  # characters of an answer
_DIGITS = 6
_PROJECTIONS = 2  # of hidden states: one alone is now and then as it was by chance
_NOT_SETTINGS = (GOLDEN, MANIFEST, "vocab.json")
_VOCABULARY = "tokenizer.json", "model"  # large, and told by the ids
_MOST_BYTES = 1 << 24  # of a file of settings


def signs(count: int, projections: int = PROJECTIONS) -> npt.NDArray[np.int8]:
    """(n, P) of 1 and -1: row i has bits 0 … P-1 of splitmix64's number i; a bit that is set means -1."""
    word = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    word ^= word >> np.uint64(31)
    bits = (word[:, None] >> np.arange(projections, dtype=np.uint64)) & np.uint64(1)
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def project(numbers: npt.ArrayLike, projections: int = PROJECTIONS) -> Floats:
    """Projects numbers of any shape, in their order, to (P,): their signed sums over √n, which keeps their
    scale. Up to P numbers stay as they are.
    """
    flat = np.asarray(numbers, np.float64).ravel()
    if len(flat) <= projections:
        return flat
    return np.asarray(flat @ signs(len(flat), projections) / np.sqrt(len(flat)), np.float64)


class GoldenAnswer(Strict):
    """What users are told. `words`: names, tags, positions and whole numbers as JSON, or its hash; `numbers`:
    all others.
    """

    words: str
    numbers: tuple[float, ...]


class GoldenRecord(Strict):
    """One text. `normalised`, `pieces`, `segments` and long `ids` are hashes; `states` are two projections
    for each of the file's `stages`, for most texts only of the first, the embeddings; `outputs` are 32
    projections, or all if there are no more.
    """

    text: str | tuple[str, str]
    times: int = 1
    normalised: str
    pieces: str
    ids: tuple[int, ...] | str
    segments: str
    states: tuple[tuple[float, ...], ...] = ()
    outputs: tuple[float, ...]
    answer: GoldenAnswer | None = None

    @property
    def input(self) -> GoldenInput:
        return GoldenInput(self.text, self.times)


class ModelAnswers(NamedTuple):
    """A model's answers to texts; `stages` are those of each record's states."""

    stages: tuple[str, ...]
    records: tuple[GoldenRecord, ...]


class GoldenAnswers(Strict):
    """The content of golden.json. `settings`: a hash for each key of each settings file in the folder;
    `files`: a hash for each file of a folder without a manifest.
    """

    format: Literal[1] = 1
    created_by: str = f"bertsmith {bertsmith.__version__}"
    kind: str
    settings: dict[str, dict[str, str]]
    files: dict[str, str] = Field(default_factory=dict)
    stages: tuple[str, ...]
    records: tuple[GoldenRecord, ...]

    @property
    def answers(self) -> ModelAnswers:
        return ModelAnswers(self.stages, self.records)


def write_golden(folder: Path | str, task: type[Task[Any]] | None = None) -> str:
    """Asks the model in a folder with a manifest and writes golden.json there, with its hash into the
    manifest. `task` as for `load_task_model`. Returns why there are no answers, or "": a folder that can't be
    used for its purpose, such as one with another tool's head, has nothing to answer.

    The folder stays whole whenever this is killed. Random generators are left as they are.
    """
    folder = Path(folder)
    try:
        subject = open_subject(folder, task)
        inputs = subject.inputs()
        if isinstance(inputs[-2].text, str):
            inputs.pop()  # of the two long ones one is enough, which takes as long as half of the others
        answers = answers_of(subject, inputs)
    except BertsmithError as error:
        return str(error)
    golden = GoldenAnswers(kind=subject.kind, settings=settings_of(folder), **answers._asdict())
    atomic_write(folder / GOLDEN, as_text(golden))
    update_file_entry(folder, GOLDEN)
    return ""


def read_golden(folder: Path) -> GoldenAnswers | None:
    """The golden answers of a folder; None if there are none. Raises ModelError for a broken file."""
    manifest = read_unverified_manifest(folder)
    if manifest is None or GOLDEN not in manifest.files:
        return None
    return parse_golden(plain_file(folder, GOLDEN))


def parse_golden(path: Path) -> GoldenAnswers:
    """Parses a golden.json. Raises ModelError for a broken file."""
    try:
        return GoldenAnswers.model_validate(read_small_json(path))
    except ValidationError as error:
        raise ModelError(
            f"{path}: "
            f"{describe_problem(error, GoldenAnswers)} It was altered, or written by a newer Bertsmith."
        ) from error


def answers_of(subject: GoldenSubject, inputs: Sequence[GoldenInput], traced: int = _TRACED) -> ModelAnswers:
    """The answers to those inputs that the model reads, in their order, with the layers of the first `traced`
    short ones. Raises NotFinite.
    """
    items = [item for golden_input in inputs if (item := subject.item(golden_input)) is not None]
    outputs = subject.outputs(items)
    answers = subject.answers(items, outputs)
    states = subject.states(items, layers=False)
    short = [number for number, item in enumerate(items) if item.encoded.tokens <= _TRACED_TOKENS][:traced]
    for number, item_states in zip(short, subject.states([items[n] for n in short]), strict=True):
        states[number] = item_states
    stages = max(map(tuple, states), key=len, default=())
    records = [
        record_of(item, subject.tokenizer, item_states, output, answer)
        for item, item_states, output, answer in zip(items, states, outputs, answers, strict=True)
    ]
    return ModelAnswers(stages, tuple(records))


def record_of(
    item: Item, tokenizer: Tokenizer, states: Mapping[str, Any], output: Any, answer: Any = None
) -> GoldenRecord:
    """The record of one text. `states` maps stages to arrays, in order."""
    ids = [number for window in item.encoded.windows for number in window.token_ids.tolist()]
    segments = [number for window in item.encoded.windows for number in window.segment_ids.tolist()]
    return GoldenRecord(
        text=item.input.text,
        times=item.input.times,
        normalised=short_hash([tokenizer.normalise(text) for text in item.texts]),
        pieces=short_hash([tokenizer.id_to_token(number) for number in ids]),
        ids=tuple(ids) if len(ids) <= _SHOWN_IDS else short_hash(ids),
        segments=short_hash(segments),
        states=tuple(_rounded(project(state, _PROJECTIONS)) for state in states.values()),
        outputs=_rounded(project(output)),
        answer=None if answer is None else _summarise(answer),
    )


def settings_of(folder: Path) -> dict[str, dict[str, str]]:
    """A hash for each key of each settings file that any tool may read: of the model itself, of
    sentence-transformers' parts, of the tokenizer except for its vocabulary, and of the task in the manifest.
    """
    hashes = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("*/*.json")]):
        if path.name not in _NOT_SETTINGS and path.stat().st_size <= _MOST_BYTES:
            content = json.loads(path.read_text(encoding="utf-8"))
            keys = content if isinstance(content, dict) else {"": content}
            hashes[path.relative_to(folder).as_posix()] = {
                key: short_hash(value) for key, value in keys.items() if (path.name, key) != _VOCABULARY
            }
    manifest = read_unverified_manifest(folder)
    if manifest is not None:
        stated = {"task": manifest.task, "architecture": manifest.architecture, **manifest.settings}
        hashes[MANIFEST] = {key: short_hash(value) for key, value in stated.items()}
    return hashes


def short_hash(value: Any) -> str:
    """The first eight digits of the SHA-256 of a value as JSON."""
    content = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _summarise(answer: Any) -> GoldenAnswer:
    numbers: list[float] = []

    def without_numbers(value: Any) -> Any:
        if isinstance(value, float):
            numbers.append(value)
            return None
        if isinstance(value, Mapping):
            return {str(key): without_numbers(value[key]) for key in sorted(value, key=str)}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [without_numbers(item) for item in value]
        return value

    words = json.dumps(without_numbers(answer), ensure_ascii=False, default=str)
    if len(words) > _SHOWN_WORDS:
        words = short_hash(words)
    return GoldenAnswer(words=words, numbers=_rounded(project(numbers)))


def _rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{number:.{_DIGITS}g}") for number in numbers)


def as_text(golden: GoldenAnswers) -> str:
    """The file's text: JSON with one line for each record."""
    content = golden.model_dump(mode="json", exclude_defaults=True) | {"format": golden.format}
    records = content.pop("records")
    head = json.dumps(content | {"created_by": golden.created_by}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records)
    return f'{head[:-1]}, "records": [\n{lines}\n]}}\n'
