"""What a folder is for: vectors, masked language modelling, or a task; and which of our tasks a fine-tuned
folder of transformers belongs to, by its class, labels and head.
"""

from pathlib import Path
from typing import Any, Literal

from bertsmith.errors import ModelError
from bertsmith.model.checkpoint import Checkpoint
from bertsmith.model.config_json import find_architecture, output_labels
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import read_unverified_manifest
from bertsmith.model.sentence_files import makes_vectors, read_cross_encoder
from bertsmith.model.static_table import refuse_static
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.tasks.checkpoints.sentence_folder import read_max_length
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.saved_state import require_labels
from bertsmith.tasks.task import Task

_BY_CLASS = {
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question-answering",
}
_SINGLE = "single_label_classification"
_BY_PROBLEM = {
    "regression": "regression",
    _SINGLE: "classification",
    "multi_label_classification": "multi-label",
}
ModelKind = Literal["embedding", "masked-language", "task"]
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_OF_VECTORS = ("similarity", "retrieval")
_MASKED = ("ForMaskedLM", "ForPreTraining")


def needs_class(folder: Path) -> bool:
    """Whether it was made by a task that isn't ours, so that its class has to be named."""
    manifest = read_unverified_manifest(folder)
    return manifest is not None and manifest.task not in TASKS


def task_of_foreign(checkpoint: Checkpoint, folder: Path) -> Task[Any]:
    """A task with the folder's labels, which reads what the model can. Raises ModelError if the folder has no
    head of ours, or its labels contradict each other.
    """
    where = f"{folder}/config.json"
    name, outputs = _task_name(checkpoint, folder), _count_outputs(checkpoint)
    names = output_labels(checkpoint.labels, outputs, where)
    task_class = find_task(name)
    tagging_settings = {"constrained": False} if name == "tagging" else {}  # its tags may be of any scheme
    positions = checkpoint.config.max_length
    settings = task_class.Settings(
        max_length=min(read_max_length(folder) or positions, positions), **tagging_settings
    )
    labels = names if name not in ("regression", "question-answering") else ()
    require_labels(labels, where)
    task = task_class(settings, labels)
    cross_encoder = read_cross_encoder(folder, checkpoint.labels, outputs)
    if isinstance(task, TextTask) and cross_encoder is not None:
        task.prompt = cross_encoder.prompt
    if isinstance(task, Regression):
        if outputs != 1:
            raise ModelError(
                f"{where}: problem_type is regression, and the head has {outputs} outputs: a regression of "
                "Bertsmith's is one number. Use a model with one output."
            )
        # as by sentence-transformers, and by transformers' pipeline unless a model calls itself a regression
        is_plain = checkpoint.labels.get("problem_type") == "regression"
        task.has_sigmoid = not is_plain if cross_encoder is None else cross_encoder.has_sigmoid
    return task


def _task_name(checkpoint: Checkpoint, folder: Path) -> str:
    for suffix, task in _BY_CLASS.items():
        if checkpoint.architecture.endswith(suffix):
            return task
    if checkpoint.architecture.endswith("ForSequenceClassification"):
        return _task_of_problem(checkpoint.labels.get("problem_type"), _count_outputs(checkpoint), folder)
    raise ModelError(
        f"{folder} is a {checkpoint.architecture} without a head for a task. Fine-tune it first: "
        f"bertsmith finetune TASK --model {folder} …"
    )


def _task_of_problem(problem: str | None, outputs: int, folder: Path) -> str:
    if problem == _SINGLE and outputs == 1:
        raise ModelError(
            f"{folder}/config.json: problem_type is {problem}, and the head has one output, which is no "
            "choice of classes. Say regression there, or multi_label_classification."
        )
    if problem is not None and problem not in _BY_PROBLEM:
        raise ModelError(
            f"{folder}/config.json: problem_type is {problem!r}; expected {', '.join(_BY_PROBLEM)}, or none."
        )
    return _BY_PROBLEM["regression" if problem is None and outputs == 1 else problem or _SINGLE]


def _count_outputs(checkpoint: Checkpoint) -> int:
    family = checkpoint.config.family
    for head in (family.sequence_head, family.token_head, family.span_head):
        weight = None if head is None else checkpoint.carried.get(f"{head.out}.weight")
        if weight is not None:
            return len(weight)
    return 0


def model_kind(folder: Path) -> ModelKind:
    """The kind of model that our manifest states, otherwise sentence-transformers' files or the class in
    config.json. No file is hashed: opening the folder does that.
    """
    manifest = read_unverified_manifest(folder)
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


def locate_with_layers(name: str | Path) -> Path:
    """The folder of a model by path, alias or hub name. Raises ModelError for a static table, which has no
    layers.
    """
    folder = locate_model(name).folder
    refuse_static(folder)
    return folder


def locate_vector_model(name: str | Path) -> Path:
    """The folder of a model by path, alias or hub name. Raises ModelError for a fine-tuned model that
    predicts instead of embedding texts.
    """
    folder = locate_model(name).folder
    manifest = read_unverified_manifest(folder)
    task = "" if manifest is None else manifest.task
    if model_kind(folder) != "task" or task in _OF_VECTORS:
        return folder
    what = f"fine-tuned for {task}" if task in TASKS else f"a fine-tuned {_architecture(folder)}"
    raise ModelError(
        f"{folder} is {what}: it predicts, and was trained for no vectors of texts. Use an embedding model, "
        f"or train one from it: bertsmith finetune retrieval --model {folder} …"
    )


def _architecture(folder: Path) -> str:
    """The class in config.json; empty if none is named."""
    names = read_settings(plain_file(folder, "config.json")).get("architectures") or [""]
    return str(names[0]) if isinstance(names, list) and names else ""


def _fills_masks(architecture: str) -> bool:
    """Whether the class has a masked-language head: BertForPreTraining does, ElectraForPreTraining
    doesn't.
    """
    try:
        return "masked_language" in find_architecture(architecture).heads
    except ValueError:  # of a family that isn't loaded
        return architecture.endswith(_MASKED)
