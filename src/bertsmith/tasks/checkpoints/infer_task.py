"""Which task of ours a fine-tuned folder of transformers belongs to: by its class, labels and head."""

from pathlib import Path
from typing import Any

from bertsmith.errors import ModelError
from bertsmith.model.checkpoint import Checkpoint
from bertsmith.model.cross_encoder import refuse_activation
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.saved_state import require_labels
from bertsmith.tasks.task import Task

_BY_CLASS = {
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question-answering",
}


def task_of_foreign(checkpoint: Checkpoint, folder: Path) -> Task[Any]:
    """A task with the folder's labels, which reads what the model can. Raises ModelError when it has no head
    of ours.
    """
    name = _name(checkpoint, folder)
    kind = find_task(name)
    outputs = checkpoint.carried.get(f"{checkpoint.config.family.sequence_head.out}.weight")
    refuse_activation(folder, 0 if outputs is None else len(outputs))
    free = {"constrained": False} if name == "tagging" else {}  # by whatever scheme its tags were written
    settings = kind.Settings(max_length=checkpoint.config.max_length, **free)
    labels = _labels(checkpoint.labels) if name != "regression" else ()
    require_labels(labels, f"{folder}/config.json")
    return kind(settings, labels)


def _name(checkpoint: Checkpoint, folder: Path) -> str:
    for suffix, task in _BY_CLASS.items():
        if checkpoint.architecture.endswith(suffix):
            return task
    if checkpoint.architecture.endswith("ForSequenceClassification"):
        kind = checkpoint.labels.get("problem_type")
        if kind == "multi_label_classification":
            return "multi-label"
        outputs = checkpoint.carried.get(f"{checkpoint.config.family.sequence_head.out}.weight")
        one_number = kind is None and outputs is not None and len(outputs) == 1
        return "regression" if kind == "regression" or one_number else "classification"
    raise ModelError(
        f"{folder} is a {checkpoint.architecture} without a head for a task. Fine-tune it first: "
        f"bertsmith finetune TASK --model {folder} …"
    )


def _labels(found: dict[str, Any]) -> tuple[str, ...]:
    names: dict[str, str] = found.get("id2label") or {
        str(number): label
        for label, number in (found.get("label2id") or {"LABEL_0": 0, "LABEL_1": 1}).items()
    }
    return tuple(names[number] for number in sorted(names, key=int))
