"""Models from other tools and for them: `bertsmith import` and `bertsmith export`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from bertsmith.cli.options import AS_TRAINED, FileLayout, Flag, LabelledColumns, Out, collect_options
from bertsmith.cli.screen import console, print_facts, print_note, print_paths, print_table, progress_bar
from bertsmith.errors import ExportRefused, InputError


def import_checkpoint(folder: Path, *, out: Out) -> None:
    """Convert an old checkpoint into a model folder that is safe to open.

    It reads pytorch_model.bin, Google's TensorFlow files (bert_model.ckpt.index with its data) and
    flax_model.msgpack, without those frameworks. A pytorch_model.bin is a pickle, which can run code when it
    is opened: only its tensors are read, and everything else is refused. Bertsmith and transformers open the
    result. No weight is lost: the head of a fine-tuned model is kept under its own name, and of an embedding
    model (modules.json) its pooling, last product, longest text and prompts. If the result can't be used for
    its predictions or vectors, a note says why.

    Parameters
    ----------
    folder
        The folder with the weights, config.json (or Google's bert_config.json) and vocab.txt or
        tokenizer.json if there is one. If it holds several TensorFlow checkpoints, name one:
        FOLDER/model.ckpt-1000.
    out
        The folder to write. It must not exist.

    Examples
    --------
    bertsmith import downloads/bert-base-cased --out models/bert-base-cased

    bertsmith import downloads/uncased_L-12_H-768_A-12 --out models/bert-base-uncased

    bertsmith pretrain adapt init=models/bert-base-cased corpus=corpora/law out=runs/law
    """
    from bertsmith.inference.importing import import_legacy

    imported = import_legacy(folder, out)
    config = imported.checkpoint.config
    tensors = [*imported.checkpoint.tensors.values(), *imported.checkpoint.carried.values()]
    console.print(
        f"{out}: {imported.checkpoint.architecture}, layers {config.num_hidden_layers}, "
        f"width {config.hidden_size}, {sum(tensor.numel() for tensor in tensors):,} weights, "
        f"vocabulary of {config.vocab_size:,}",
        markup=False,
        soft_wrap=True,
    )
    for note in imported.notes:
        print_note(note)


_GATE_GROUP = Parameter(
    group=Group("What int8 must keep to", help="A graph in float32 must give the same answers.")
)


@Parameter(name="*")
@dataclass(frozen=True)
class GateOptions:
    """What the gate (the check that the graph answers like the model) asks of int8.

    Parameters
    ----------
    agreement
        The share of answers equal to the model's, whatever other texts are in the batch, that the file must
        prove. Default: 0.95.
    change
        The largest change of any probability; of a number, in standard deviations of the file's. Default:
        0.1.
    cosine
        The smallest cosine between a vector and the model's. Default: 0.97.
    neighbours
        The share of each vector's nearest neighbours (a tenth of the rows, at most ten) that must stay so.
        Default: 0.9.
    """

    agreement: float | None = None
    change: float | None = None
    cosine: float | None = None
    neighbours: float | None = None


def export(
    model: str,
    *,
    gate: Path,
    out: Out,
    to: Literal["onnx", "openvino"] = "onnx",
    int8: Flag = False,
    overwrite: Flag = False,
    task: str | None = None,
    gate_options: Annotated[GateOptions | None, _GATE_GROUP] = None,
    columns: Annotated[LabelledColumns | None, AS_TRAINED] = None,
    layout: Annotated[FileLayout | None, AS_TRAINED] = None,
) -> None:
    """Export a model to ONNX Runtime or OpenVINO, if the graph gives the same answers as the model.

    The graph is compared with the model on the rows of --gate: each alone, and in batches of 2, 8 and 32
    beside texts of other lengths, padded on the left and on the right, and at many lengths that no row has.
    If answers differ, nothing is written, and the exit status is 2.

    OUT holds the graph, the tokenizer, decoding.json (labels, temperature, thresholds), parity.json (every
    figure) and a README.md for whoever gets the folder.

    Parameters
    ----------
    model
        A fine-tuned model such as runs/NAME/model, one of sentence-transformers, minilm, or a name on the
        hub.
    gate
        Rows for the gate, the check that the exported graph answers like the model: in any format of
        training, with labels or without. For a model that only gives vectors, a text per row. Of more than
        2,000 rows a sample is taken.
    out
        The folder to write.
    to
        onnx for ONNX Runtime, openvino for OpenVINO.
    int8
        Quantise the matrix products of the layers. Layers that would fail the comparison are found, and stay
        in float32. The temperature is fitted again, to the model's probabilities.
    overwrite
        Replace an export that is there.
    task
        For a model with a task of your own: package.module:Class.

    Examples
    --------
    bertsmith export runs/intents/model --gate dev.csv --out exported/intents

    bertsmith export runs/intents/model --int8 --gate dev.csv --out exported/intents-int8

    bertsmith export minilm --gate articles.txt --out exported/minilm

    bertsmith export runs/names/model --to openvino --gate dev.conll --out exported/names
    """
    from bertsmith.inference.export.export import export_model
    from bertsmith.inference.export.gate import ExportLimits
    from bertsmith.tasks.registry import find_task

    limits_given = collect_options(gate_options)
    if limits_given and not int8:
        raise InputError(
            f"--{next(iter(limits_given))} is for int8: a graph in float32 must give the same answers. "
            "Leave it out, or add --int8."
        )
    limits = ExportLimits(**limits_given) if limits_given else None
    try:
        with progress_bar("Comparing") as progress:
            result = export_model(
                model,
                gate,
                out,
                to=to,
                int8=int8,
                limits=limits,
                overwrite=overwrite,
                task=find_task(task) if task else None,
                progress=progress,
                **collect_options(columns, layout),
            )
    except ExportRefused as refused:
        _show(model, refused.parity)
        raise
    _show(model, result.parity)
    for note in result.parity["notes"]:
        print_note(note)
    if result.in_float:
        print_note(f"left in float32, for in int8 they don't pass the gate: {', '.join(result.in_float)}")
    print_paths(graph=result.path)


def _show(model: str, parity: Mapping[str, Any]) -> None:
    from bertsmith.cli.results import show_meanings
    from bertsmith.inference.export.artefact import readable_figures

    attempts = parity.get("tried", [])
    if len(attempts) > 1:
        rows = [
            (number, len(attempt["in_float"]), "; ".join(attempt["problems"]) or "passed")
            for number, attempt in enumerate(attempts, 1)
        ]
        print_table(("try", "products in float32", "what came of it"), rows)
    name = parity["file"]["name"]
    gate_figures = parity["gate"]
    print_facts(
        f"{model} against its graph in {parity['precision']} on {name}", readable_figures(gate_figures)
    )
    console.print("Gate: the check that the exported graph answers like the model, on these rows.")
    explained = {"calibration_error": "ece", "temperature": "temperature"}
    show_meanings(metric for name, metric in explained.items() if name in gate_figures)
