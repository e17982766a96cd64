"""What a model's folder is for, by the files in it: vectors, masked words, or a fine-tuned task."""

from pathlib import Path
from typing import Literal

from bertsmith.errors import ModelError
from bertsmith.model.architectures import find_architecture
from bertsmith.model.cross_encoder import makes_vectors
from bertsmith.model.manifest import stated_manifest
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.tasks.registry import TASKS

ModelKind = Literal["embedding", "masked-language", "task"]
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_OF_VECTORS = ("similarity", "retrieval")
_MASKED = ("ForMaskedLM", "ForPreTraining")


def model_kind(folder: Path) -> ModelKind:
    """As our manifest says, else as sentence-transformers' files or the class in config.json do. No file is
    hashed: that is for who opens the folder.
    """
    manifest = stated_manifest(folder)
    if manifest is not None:
        if manifest.task == "encoder":
            return "embedding"
        if manifest.task == "pretraining":
            return "masked-language" if _fills_masks(manifest.architecture) else "embedding"
        if manifest.task in TASKS or manifest.settings:  # settings of a task of one's own
            return "task"
    if makes_vectors(folder) or not (folder / "config.json").exists():
        return "embedding"
    architecture = _architecture(folder)
    if architecture.endswith(_HEADS):
        return "task"
    return "masked-language" if _fills_masks(architecture) else "embedding"


def refuse_predictor(folder: Path) -> None:
    """Raises ModelError for a fine-tuned model that predicts, where vectors are asked for."""
    manifest = stated_manifest(folder)
    task = "" if manifest is None else manifest.task
    if model_kind(folder) != "task" or task in _OF_VECTORS:
        return
    what = f"fine-tuned for {task}" if task in TASKS else f"a fine-tuned {_architecture(folder)}"
    raise ModelError(
        f"{folder} is {what}: it predicts, and was trained for no vectors of texts. Use an embedding model, "
        f"or train one from it: bertsmith finetune retrieval --model {folder} …"
    )


def _architecture(folder: Path) -> str:
    """The class in config.json; empty where none is named."""
    names = read_settings(plain_file(folder, "config.json")).get("architectures") or [""]
    return str(names[0]) if isinstance(names, list) and names else ""


def _fills_masks(architecture: str) -> bool:
    """Whether the class has that head: BertForPreTraining does, ElectraForPreTraining has another."""
    try:
        return "masked_language" in find_architecture(architecture).heads
    except ValueError:  # of a family that isn't loaded
        return architecture.endswith(_MASKED)
