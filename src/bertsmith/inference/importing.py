"""import_legacy: converts a legacy checkpoint into a model folder with golden answers.

The new folder is loaded once, so that a checkpoint that can't be used for its purpose is noticed at once.
"""

from dataclasses import replace
from pathlib import Path

from bertsmith.argument_checks import check_arguments, check_path
from bertsmith.errors import BertsmithError
from bertsmith.model.legacy import ConversionResult, convert_legacy
from bertsmith.tasks.checkpoints.infer_task import ModelKind, model_kind
from bertsmith.tasks.checkpoints.sentence_folder import load_sentence_model
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model

_USES: dict[ModelKind, str] = {
    "embedding": "vectors of texts",
    "masked-language": "filling masks",
    "task": "predictions",
}


@check_arguments(folder=check_path, out=check_path)
def import_legacy(folder: Path | str, out: Path | str) -> ConversionResult:
    """Converts a folder with legacy weights (pytorch_model.bin, flax_model.msgpack, TensorFlow's PREFIX.index
    with its data), as `convert_legacy` does, to the folder `out`, and writes golden answers. A note says so
    if the result can't be used for its purpose.

    Raises ModelError when a file holds anything but tensors, is truncated, doesn't fit its config.json or
    can't be kept; InputError when `out` exists.
    """
    imported = convert_legacy(folder, out)
    refused = _why_unusable(Path(out))
    write_golden(out)
    return replace(imported, notes=(*imported.notes, refused)) if refused else imported


def _why_unusable(folder: Path) -> str:
    """Why the folder can't be used for its purpose, as a note; empty if it can. Loads the model."""
    kind = model_kind(folder)
    try:
        if kind == "task":
            load_task_model(folder)
        elif kind == "masked-language":
            load_pretraining_model(folder)
        else:
            load_sentence_model(folder)
    except BertsmithError as error:
        return f"the folder can't be used for {_USES[kind]}: {error}"
    return ""
