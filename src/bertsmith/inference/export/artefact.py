"""Writes the folder of an exported model, and checks such a folder again by its own content alone.

model.onnx           or model.xml and model.bin for OpenVINO
tokenizer.json …     as in the model's folder
config.json          the model's shape, in Hugging Face's names
decoding.json        what turns outputs into answers, for programs that don't have Bertsmith
parity.json          all figures of the gate, what was tried, and the versions
golden.json          hashes of these files, and the graph's answers to fixed texts
README.md            a model card for people
"""

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bertsmith
from bertsmith.errors import BertsmithError, InputError, ModelError
from bertsmith.files import (
    atomic_folder,
    atomic_write,
    is_empty_folder,
    read_json,
    require_free_space,
    require_writable_folder,
    sha256,
    write_json,
)
from bertsmith.inference.export.graph import GRAPHS, Target, onnx_run, openvino_run
from bertsmith.inference.export.padded import VectorOutputs
from bertsmith.inference.export.source import ExportSource
from bertsmith.model.checkpoint import CONFIG
from bertsmith.model.config_json import config_to_hugging_face
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Window,
    every_row,
    join_segments,
    pair_windows,
    special_tokens,
)
from bertsmith.tasks.golden.comparison import GoldenComparison, compare
from bertsmith.tasks.golden.records import (
    GOLDEN,
    GoldenAnswers,
    ModelAnswers,
    as_text,
    record_of,
    settings_of,
)
from bertsmith.tasks.golden.subject import Item, golden_inputs
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from onnx import ModelProto

CARD = "README.md"
FORMAT = 1
DECODING, PARITY = "decoding.json", "parity.json"
_NOT_HASHED = (GOLDEN, "README.md")  # people may add to the card
# Relative to the size of the outputs. Processors without VNNI round int8's ranges differently.
_TOLERANCES = {"float32": 2e-4, "int8": 0.1}


def require_place(out: Path, overwrite: bool, source: Path, gate: Path) -> None:
    """Raises InputError, before any work, if `out` exists, unless it is an empty folder, or an exported one
    that `overwrite` allows to replace. Never allows the model's own folder or one that holds the gate's file.
    Raises as `require_writable_folder` does if `out` can't be made.
    """
    if out.resolve() == source.resolve() or source.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out} holds the model that is exported. Choose another --out.")
    if gate.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{gate} lies in {out}, which is replaced. Choose another --out, or move the file.")
    if out.exists() and not is_empty_folder(out):
        if not is_exported(out):
            raise InputError(
                f"{out} exists and is not an exported model, which would have {PARITY} and {DECODING}, so it "
                "is not replaced. Choose another --out."
            )
        if not overwrite:
            raise InputError(f"{out} already exists. Choose another --out, or replace it with --overwrite.")
    require_writable_folder(out)


def write_artefact(
    out: Path,
    source: ExportSource,
    graph: "ModelProto",
    target: Target,
    task: Task[Any] | None,
    parity: Mapping[str, Any],
    overwrite: bool,
    openvino_files: Sequence[Path] = (),
) -> None:
    """Writes the folder atomically. Raises ResourceError if there is no room for it on the disk."""
    content = graph.SerializeToString() if target == "onnx" else b""
    size = len(content) + sum(path.stat().st_size for path in openvino_files)
    require_free_space(out, size, "Writing the exported model")
    with atomic_folder(out, overwrite=overwrite) as folder:
        if target == "onnx":
            (folder / GRAPHS[target][0]).write_bytes(content)
        for path in openvino_files:
            (folder / path.name).write_bytes(path.read_bytes())
        config = source.packed.config
        head = source.packed.head if isinstance(source.packed, TaskModel) else None
        architecture = config.family.class_prefix + ((head.architecture if head else None) or "Model")
        source.tokenizer.save(folder, segments=config.type_vocab_size > 1, max_length=source.max_length)
        labels = task.config_labels() if task is not None else {}
        write_json(folder / CONFIG, config_to_hugging_face(config, architecture) | labels)
        write_json(folder / DECODING, decoding_facts(source, task))
        write_json(folder / PARITY, parity)
        (folder / CARD).write_text(model_card(source, target, parity), encoding="utf-8")
        write_graph_answers(folder)


def decoding_facts(source: ExportSource, task: Task[Any] | None) -> dict[str, Any]:
    """The content of decoding.json. `task` is the model's, or one with refitted temperature and
    thresholds.
    """
    facts: dict[str, Any] = {
        "format": FORMAT,
        "task": "embedding" if task is None and source.kind == "vectors" else source.kind,
        "inputs": list(source.padded.inputs),
        "outputs": list(source.padded.head.names),
        "max_length": source.max_length,
        "pad_token_id": source.tokenizer.pad_id,
        "probabilities": None if task is None else task.activation,
    }
    if isinstance(source.padded.head, VectorOutputs):
        facts |= {"pooling": source.padded.head.pooling, "normalise": source.padded.head.normalise}
        facts |= {"query_prefix": "", "document_prefix": ""}  # replaced below for an encoder with prefixes
    if task is not None:
        facts |= {"task": task.name, "labels": list(task.labels)} | task.decoding(source.tokenizer)
    if source.sentences is not None:
        facts |= {
            "query_prefix": source.sentences.query_prefix,
            "document_prefix": source.sentences.document_prefix,
        }
    return {name: value for name, value in facts.items() if value is not None and value != []}


def made_with(target: Target) -> dict[str, str]:
    """The versions of packages behind the figures, and the machine that they were measured on."""
    names = ("torch", "onnx", "onnxruntime", "tokenizers", *(("openvino",) if target == "openvino" else ()))
    return {
        "bertsmith": bertsmith.__version__,
        **{name: str(import_module(name).__version__) for name in names},
        "python": platform.python_version(),
        "machine": f"{sys.platform} {platform.machine()}",
    }


def model_card(source: ExportSource, target: Target, parity: Mapping[str, Any]) -> str:
    """The text of README.md: what the graph is, how it compares with the model, and how to run it."""
    precision, figures = parity["precision"], parity["gate"]
    files = " and ".join(GRAPHS[target])
    in_float = parity["in_float"]
    purpose = "embedding" if source.kind == "vectors" else "hidden states"
    if source.task is not None:
        purpose = source.task.name
    lines = [
        f"# {parity['model']}, exported to {target} in {precision}",
        "",
        f"A {source.packed.config.model_type} for {purpose}, in {files}. "
        f"Inputs (batch, sequence), int64: {', '.join(source.padded.inputs)}. "
        f"Outputs: {', '.join(source.padded.head.names)}. Padding may stand on either side; what is padding "
        "says attention_mask.",
        "",
        f"It was written because it answers as the model does on {figures['examples']:,} rows of "
        f"{parity['file']['name']}, alone and in batches of 2, 8 and 32 among texts of other lengths, padded "
        "on the left and on the right. All figures are in parity.json.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in readable_figures(figures).items()),
        "",
    ]
    if precision == "int8":
        lines += [
            "Matrix products of the layers are in int8 (weights of 7 bits, a scale for each channel), all "
            "else in float32. Their inputs are rounded by the range of the whole batch: a text's last digits "
            "depend on its neighbours, as far as the figures say.",
            "",
        ]
    if in_float:
        lines += [f"Left in float32, for the gate refused them in int8: {', '.join(in_float)}.", ""]
    if target == "openvino":
        lines += [
            "Compile it with INFERENCE_PRECISION_HINT f32: by itself OpenVINO computes in bfloat16 where the "
            "processor has it, and the figures don't hold.",
            "",
        ]
    lines += [*parity["notes"], *([""] if parity["notes"] else [])]
    lines += ["decoding.json holds labels, temperature, thresholds, lengths and prefixes.", ""]
    return "\n".join(lines)


def readable_figures(figures: Mapping[str, Any]) -> dict[str, str]:
    """The main figures by their titles, formatted for people."""
    readable: dict[str, str] = {}
    if "agreeing" in figures:
        readable["answers like the model's"] = f"{figures['agreeing']:,} of {figures['examples']:,}"
    if "agreement_at_least" in figures:
        bound = figures["agreement_at_least"]
        readable["agreement proven"] = (
            f"{bound['share']:.2%} (Clopper-Pearson, {bound['confidence']:.2%} sure)"
        )
    for name, title in (
        ("largest_change", "largest change of a probability or number"),
        ("mean_change", "mean of the changes"),
    ):
        if name in figures:
            readable[title] = f"{figures[name]:.2g}"
    for name, title in (("smallest_cosine", "smallest cosine"), ("mean_cosine", "mean cosine")):
        if name in figures:
            readable[title] = f"{figures[name]:.6f}"
    if "neighbours_kept" in figures:
        readable["nearest neighbours kept"] = f"{figures['neighbours_kept']:.1%}"
    for name, title in (("calibration_error", "calibration error"), ("temperature", "temperature")):
        if name in figures:
            readable[f"{title}, model → graph"] = (
                f"{figures[name]['model']:.3f} → {figures[name]['graph']:.3f}"
            )
    for name in figures.get("metrics", {}).get("model", {}):
        both = (figures["metrics"][source].get(name) for source in ("model", "graph"))
        readable[f"{name}, model → graph"] = " → ".join(
            "" if value is None else f"{value:.4f}" for value in both
        )
    return readable


def is_exported(folder: Path) -> bool:
    """Whether the folder was written by `bertsmith export`, by the files that it holds."""
    return (folder / PARITY).is_file() and (folder / DECODING).is_file()


def write_graph_answers(folder: Path) -> None:
    """Writes golden.json into a folder that is otherwise complete. Raises ModelError for values that aren't
    finite.
    """
    golden = GoldenAnswers(
        kind="graph",
        settings=settings_of(folder),
        files=_hash_files(folder),
        **_graph_answers(folder)._asdict(),
    )
    atomic_write(folder / GOLDEN, as_text(golden))


def check_graph(folder: Path, golden: GoldenAnswers) -> GoldenComparison:
    """Compares the graph's answers with those of golden.json. Raises ModelError naming a file that was
    changed, MissingExtra without the package that runs the graph.
    """
    hashes = _hash_files(folder)
    for name in sorted({*golden.files, *hashes}):
        if golden.files.get(name) != hashes.get(name):
            change = "was changed" if name in hashes and name in golden.files else "was added or is missing"
            raise ModelError(f"{folder / name} {change} since the model was exported. Export it again.")
    precision = read_json(folder / PARITY)["precision"]
    answers = _graph_answers(folder)
    return compare(golden.answers, answers, _TOLERANCES.get(precision, _TOLERANCES["float32"]))


def _hash_files(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in _NOT_HASHED)
    return {path.name: sha256(path) for path in files}


def _graph_answers(folder: Path) -> ModelAnswers:
    """The graph's answers to the fixed texts and pairs, each alone and in its first window."""
    facts, tokenizer = read_json(folder / DECODING), Tokenizer.load(folder)
    is_onnx = (folder / "model.onnx").is_file()
    run = onnx_run(folder / "model.onnx") if is_onnx else openvino_run(folder / "model.xml", facts["outputs"])
    records = []
    for golden_input in golden_inputs(tokenizer, facts["max_length"]):
        texts = (golden_input.given,) if isinstance(golden_input.given, str) else golden_input.given
        try:
            room = facts["max_length"] - special_tokens(tokenizer, len(texts))
            first, *second = tokenizer.encode_batch(texts, room)
            parts = pair_windows(first, second[0], room, None)[0] if second else (first[:room],)
            token_ids, segment_ids = join_segments(tokenizer, *parts)
        except BertsmithError:
            continue
        window = Window(token_ids, segment_ids, every_row(len(token_ids)))
        item = Item(golden_input, texts, EncodedExample((window,)))
        ids, segments = (np.array([row], np.int64) for row in (window.token_ids, window.segment_ids))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
        outputs = np.concatenate(
            [np.ravel(output) for output in run({name: inputs[name] for name in facts["inputs"]})]
        )
        if not np.isfinite(outputs).all():
            raise ModelError(f"The graph in {folder} gives values that are not finite.")
        records.append(record_of(item, tokenizer, {}, outputs))
    return ModelAnswers((), tuple(records))
