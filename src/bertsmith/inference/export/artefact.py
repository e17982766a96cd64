"""The folder that is written: graph, tokenizer, config, decoding.json, parity.json and a card.

model.onnx           or model.xml and model.bin for OpenVINO
tokenizer.json …     as in the model's folder
config.json          the model's shape, in Hugging Face's names
decoding.json        what turns outputs into answers (see decoding.py)
parity.json          every figure of the gate, what was tried, and the versions
golden.json          hashes of these, and what the graph gives for fixed texts (see graph_answers.py)
README.md            the same for people
"""

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bertsmith
from bertsmith.errors import InputError
from bertsmith.files import (
    atomic_folder,
    is_empty_folder,
    require_free_space,
    require_writable_folder,
    write_json,
)
from bertsmith.inference.export.decoding import decoding_facts
from bertsmith.inference.export.graph_answers import DECODING, PARITY, is_exported, write_graph_answers
from bertsmith.inference.export.source import Source
from bertsmith.model.checkpoint import CONFIG
from bertsmith.model.config_json import config_to_hugging_face
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel

if TYPE_CHECKING:
    from onnx import ModelProto

CARD = "README.md"
Target = Literal["onnx", "openvino"]
GRAPHS: dict[str, tuple[str, ...]] = {"onnx": ("model.onnx",), "openvino": ("model.xml", "model.bin")}


def require_place(out: Path, overwrite: bool, source: Path, gate: Path) -> None:
    """Raises InputError, before any work, where something is called `out`: unless it is an empty folder, or
    an exported one and `overwrite` says to replace it. The model's own folder never is, nor one that has the
    gate's file.
    Raises as `require_writable_folder` does where no `out` can be made.
    """
    if out.resolve() == source.resolve() or source.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out} holds the model that is exported. Choose another --out.")
    if gate.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{gate} lies in {out}, which is replaced. Choose another --out, or move the file.")
    if out.exists() and not is_empty_folder(out):
        _require_exported(out, overwrite)
    require_writable_folder(out)


def _require_exported(out: Path, overwrite: bool) -> None:
    if not is_exported(out):
        raise InputError(
            f"{out} exists and is not an exported model, which would have {PARITY} and {DECODING}, so it is "
            "not replaced. Choose another --out."
        )
    if not overwrite:
        raise InputError(f"{out} already exists. Choose another --out, or replace it with --overwrite.")


def write_artefact(
    out: Path,
    source: Source,
    graph: "ModelProto",
    target: Target,
    task: Task[Any] | None,
    parity: Mapping[str, Any],
    overwrite: bool,
    openvino_files: Sequence[Path] = (),
) -> None:
    """Whole, or not at all. Raises ResourceError where there is no room for it."""
    content = graph.SerializeToString() if target == "onnx" else b""
    size = len(content) + sum(path.stat().st_size for path in openvino_files)
    require_free_space(out, size, "Writing the exported model")
    with atomic_folder(out, overwrite=overwrite) as folder:
        if target == "onnx":
            (folder / GRAPHS[target][0]).write_bytes(content)
        for path in openvino_files:
            (folder / path.name).write_bytes(path.read_bytes())
        config = source.config
        source.tokenizer.save(folder, segments=config.type_vocab_size > 1, max_length=source.max_length)
        labels = task.config_labels() if task is not None else {}
        write_json(folder / CONFIG, config_to_hugging_face(config, _architecture(source)) | labels)
        write_json(folder / DECODING, decoding_facts(source, task))
        write_json(folder / PARITY, parity)
        (folder / CARD).write_text(card(source, target, parity), encoding="utf-8")
        write_graph_answers(folder)


def made_with(target: Target) -> dict[str, str]:
    """Versions behind the figures, and the processor that they were measured on."""
    names = ("torch", "onnx", "onnxruntime", "tokenizers", *(("openvino",) if target == "openvino" else ()))
    return {
        "bertsmith": bertsmith.__version__,
        **{name: str(import_module(name).__version__) for name in names},
        "python": platform.python_version(),
        "machine": f"{sys.platform} {platform.machine()}",
    }


def card(source: Source, target: Target, parity: Mapping[str, Any]) -> str:
    """README.md."""
    precision, figures = parity["precision"], parity["gate"]
    files = " and ".join(GRAPHS[target])
    left = parity["in_float"]
    lines = [
        f"# {parity['model']}, exported to {target} in {precision}",
        "",
        f"A {source.config.model_type} for {_purpose(source)}, in {files}. "
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
        *(f"| {name} | {value} |" for name, value in shown(figures).items()),
        "",
    ]
    if precision == "int8":
        lines += [
            "Matrix products of the layers are in int8 (weights of 7 bits, a scale for each channel), all "
            "else in float32. Their inputs are rounded by the range of the whole batch: a text's last digits "
            "depend on its neighbours, as far as the figures say.",
            "",
        ]
    if left:
        lines += [f"Left in float32, for the gate refused them in int8: {', '.join(left)}.", ""]
    if target == "openvino":
        lines += [
            "Compile it with INFERENCE_PRECISION_HINT f32: by itself OpenVINO computes in bfloat16 where the "
            "processor has it, and the figures don't hold.",
            "",
        ]
    lines += [*parity["notes"], *([""] if parity["notes"] else [])]
    lines += ["decoding.json holds labels, temperature, thresholds, lengths and prefixes.", ""]
    return "\n".join(lines)


def shown(figures: Mapping[str, Any]) -> dict[str, str]:
    """The figures that matter, as people read them."""
    found: dict[str, str] = {}
    if "agreeing" in figures:
        found["answers like the model's"] = f"{figures['agreeing']:,} of {figures['examples']:,}"
    if "agreement_at_least" in figures:
        bound = figures["agreement_at_least"]
        found["agreement proven"] = f"{bound['share']:.2%} (Clopper-Pearson, {bound['confidence']:.2%} sure)"
    for name, title in (
        ("largest_change", "largest change of a probability or number"),
        ("mean_change", "mean of the changes"),
    ):
        if name in figures:
            found[title] = f"{figures[name]:.2g}"
    for name, title in (("smallest_cosine", "smallest cosine"), ("mean_cosine", "mean cosine")):
        if name in figures:
            found[title] = f"{figures[name]:.6f}"
    if "neighbours_kept" in figures:
        found["nearest neighbours kept"] = f"{figures['neighbours_kept']:.1%}"
    for name, title in (("calibration_error", "calibration error"), ("temperature", "temperature")):
        if name in figures:
            found[f"{title}, model → graph"] = f"{figures[name]['model']:.3f} → {figures[name]['graph']:.3f}"
    for name in figures.get("metrics", {}).get("model", {}):
        both = (figures["metrics"][which].get(name) for which in ("model", "graph"))
        found[f"{name}, model → graph"] = " → ".join("" if each is None else f"{each:.4f}" for each in both)
    return found


def _purpose(source: Source) -> str:
    if source.task is not None:
        return source.task.name
    return "embedding" if source.kind == "vectors" else "hidden states"


def _architecture(source: Source) -> str:
    head = source.packed.head if isinstance(source.packed, TaskModel) else None
    return source.config.family.class_prefix + ((head.architecture if head else None) or "Model")
