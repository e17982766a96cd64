"""Golden answers of an exported graph: what it gives for fixed texts, kept in its folder's golden.json.

The folder alone is read, when it is written and whenever it is checked: its tokenizer, decoding.json, and the
graph by ONNX Runtime or OpenVINO. `files` in golden.json has the hash of each file beside it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import BertsmithError, ModelError
from bertsmith.files import atomic_write, read_json, sha256
from bertsmith.inference.export.running import onnx_run, openvino_run
from bertsmith.tasks.examples.encoding import (
    Encoded,
    Window,
    every_row,
    join_segments,
    pair_windows,
    special_tokens,
)
from bertsmith.tasks.golden.comparison import Comparison, compare
from bertsmith.tasks.golden.records import GOLDEN, Answers, GoldenAnswers, as_text, record_of, settings_of
from bertsmith.tasks.golden.subject import GoldenInput, Item, golden_inputs
from bertsmith.text.tokens.tokenizer import Tokenizer

DECODING, PARITY = "decoding.json", "parity.json"
_NOT_HASHED = (GOLDEN, "README.md")  # the card is for people to complete
# As a share of how large the outputs are. int8's ranges are rounded otherwise by processors without VNNI.
_TOLERANCES = {"float32": 2e-4, "int8": 0.1}


def is_exported(folder: Path) -> bool:
    """Whether `bertsmith export` wrote it."""
    return (folder / PARITY).is_file() and (folder / DECODING).is_file()


def write_graph_answers(folder: Path) -> None:
    """Asks the graph in a folder that is otherwise whole. Raises ModelError for values that aren't finite."""
    golden = GoldenAnswers(
        kind="graph",
        settings=settings_of(folder),
        files=_hashes(folder),
        **_answers(folder)._asdict(),
    )
    atomic_write(folder / GOLDEN, as_text(golden))


def check_graph(folder: Path, golden: GoldenAnswers) -> Comparison:
    """The graph's answers beside those of golden.json. Raises ModelError naming a file that isn't what was
    written, MissingExtra without what runs the graph.
    """
    found = _hashes(folder)
    for name in sorted({*golden.files, *found}):
        if golden.files.get(name) != found.get(name):
            what = "was changed" if name in found and name in golden.files else "was added or is missing"
            raise ModelError(f"{folder / name} {what} since the model was exported. Export it again.")
    precision = read_json(folder / PARITY)["precision"]
    again = _answers(folder)
    return compare(golden.answers, again, _TOLERANCES.get(precision, _TOLERANCES["float32"]))


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in _NOT_HASHED)
    return {path.name: sha256(path) for path in files}


def _answers(folder: Path) -> Answers:
    """Of each text and pair alone, as the first window of it is read."""
    facts, tokenizer = read_json(folder / DECODING), Tokenizer.load(folder)
    run = _run(folder, facts["outputs"])
    records = []
    for each in golden_inputs(tokenizer, facts["max_length"]):
        try:
            item = _item(each, tokenizer, facts["max_length"])
        except BertsmithError:
            continue
        (window,) = item.encoded.windows
        ids, segments = (np.array([row], np.int64) for row in (window.token_ids, window.segment_ids))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
        outputs = np.concatenate(
            [np.ravel(output) for output in run({name: inputs[name] for name in facts["inputs"]})]
        )
        if not np.isfinite(outputs).all():
            raise ModelError(f"The graph in {folder} gives values that are not finite.")
        records.append(record_of(item, tokenizer, {}, outputs))
    return Answers((), tuple(records))


def _item(given: GoldenInput, tokenizer: Tokenizer, max_length: int) -> Item:
    texts = (given.given,) if isinstance(given.given, str) else given.given
    room = max_length - special_tokens(tokenizer, len(texts))
    first, *second = tokenizer.encode_batch(texts, room)
    parts = pair_windows(first, second[0], room, None)[0] if second else (first[:room],)
    token_ids, segment_ids = join_segments(tokenizer, *parts)
    return Item(given, texts, Encoded((Window(token_ids, segment_ids, every_row(len(token_ids))),)))


def _run(folder: Path, outputs: list[str]) -> Any:
    if (folder / "model.onnx").is_file():
        return onnx_run(folder / "model.onnx")
    return openvino_run(folder / "model.xml", outputs)
