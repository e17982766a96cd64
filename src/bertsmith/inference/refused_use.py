"""Whether a folder can be used for what it says it is for: tried, so that it is said before it is needed."""

from pathlib import Path

from bertsmith.errors import BertsmithError
from bertsmith.model.checkpoint import load_encoder
from bertsmith.tasks.checkpoints.model_kind import ModelKind, model_kind
from bertsmith.tasks.checkpoints.sentence_projection import read_projection
from bertsmith.tasks.checkpoints.sentence_settings import read_sentence_settings
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model

_USES: dict[ModelKind, str] = {
    "embedding": "vectors of texts",
    "masked-language": "filling masks",
    "task": "predictions",
}


def refused_use(folder: Path) -> str:
    """What the folder can't be used for, and why; empty where it can. Loads the model."""
    kind = model_kind(folder)
    try:
        if kind == "task":
            load_task_model(folder)
        elif kind == "masked-language":
            load_pretraining_model(folder)
        else:
            _open_vectors(folder)
    except BertsmithError as error:
        return f"the folder can't be used for {_USES[kind]}: {error}"
    return ""


def _open_vectors(folder: Path) -> None:
    found = read_sentence_settings(folder)
    if found.projection is not None:
        read_projection(found.projection, load_encoder(found.encoder).config.hidden_size)
