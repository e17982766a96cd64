"""Small random models of every kind, as folders to be served."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ["bano", "delo", "firu", "guma", "kano", "lelo", "miru"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", ".", "?"]
# What each task learnt: labels, whether of pairs, settings.
TASKS: dict[str, tuple[list[Any], bool, dict[str, Any]]] = {
    "classification": (["no", "yes", "perhaps"], False, {}),
    "multi-label": ([["law"], ["sport"], ["law", "money"]], False, {}),
    "regression": ([0.0, 1.0, 5.0], False, {}),
    "tagging": (["O", "B-PER", "I-PER", "B-LOC"], False, {"crf": True}),
    "question-answering": ([], True, {}),
    "similarity": ([1.0, 0.0], True, {}),
    "reranking": ([1.0, 0.0], True, {}),
}
MORE: dict[str, tuple[list[Any], bool, dict[str, Any]]] = {"retrieval": ([], True, {})}


def save_pretrained(folder: Path, **shape: int) -> Path:
    """A masked language model with a next-sentence head."""
    tokenizer = _tokenizer()
    model = PretrainingModel(_config(tokenizer, **shape))
    _randomise(model)
    save_pretraining_model(folder, model, tokenizer, {})
    return folder


def save_encoder(folder: Path) -> Path:
    """An encoder whose queries have a prefix."""
    tokenizer = _tokenizer()
    config = _config(tokenizer)
    encoder = Bert(config)
    _randomise(encoder)
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    save_checkpoint(folder, tensors, config, "BertModel", task="encoder", tokenizer=tokenizer, provenance={})
    write_sentence_folder(folder, config, "mean", 32, prompts={"query": "lelo "})
    return folder


def save_fine_tuned(
    folder: Path, name: str, seed: int = 3, labels: list[Any] | None = None, pair: bool | None = None
) -> Path:
    """A model of a task, by its name in TASKS or MORE, which may have learnt other labels."""
    usual_labels, usual_pair, settings = (TASKS | MORE)[name]
    labels = usual_labels if labels is None else labels
    if pair is not None:  # it knows by its columns what it reads
        settings = {**settings, "text": "text", "text_pair": "text_pair" if pair else None}
    pair = usual_pair if pair is None else pair
    kind = find_task(name)
    lengths = {"max_length": 24} | ({"stride": 4} if name == "question-answering" else {})
    task = kind(kind.Settings(**lengths, **settings))
    if labels:
        field = "tags" if name == "tagging" else "label"
        text: Any = ["bano"] if name == "tagging" else ("bano", "delo") if pair else "bano"
        examples = [task.example(text) for _ in labels]
        if name == "tagging":
            task.fit(
                [dataclasses.replace(e, tags=(label,)) for e, label in zip(examples, labels, strict=True)]
            )
        else:
            task.fit(
                [dataclasses.replace(e, **{field: label}) for e, label in zip(examples, labels, strict=True)]
            )
    return _save_task(folder, task, seed)


def save_mixed(folder: Path) -> Path:
    """Classes of a text with the columns age and plan beside it."""
    kind = find_task("classification")
    settings = {"text": "text", "label": "label", "features": ("age:number", "plan:category")}
    task = kind(kind.Settings(max_length=24, **settings))
    rows = [("stays", 1, "a"), ("leaves", 50, "b"), ("stays", 9, "a"), ("leaves", 30, "c")]
    task.fit(
        [
            dataclasses.replace(task.example({"text": "bano", "age": age, "plan": plan}), label=label)
            for label, age, plan in rows
        ]
    )
    return _save_task(folder, task, 3)


def save_of_numbers(folder: Path, tokenizer: Tokenizer) -> Path:
    """Classes of rows of numbers."""
    kind = find_task("classification")
    task = kind(kind.Settings(max_length=24, text="text"))
    task.fit([dataclasses.replace(task.example("0"), label=label) for label in ("low", "high")])
    return _save_task(folder, task, 3, tokenizer)


def _save_task(folder: Path, task: Any, seed: int, tokenizer: Tokenizer | None = None) -> Path:
    tokenizer = tokenizer or _tokenizer()
    config = _config(tokenizer)
    model = TaskModel(Bert(config), task.head(config))
    _randomise(model, seed)
    save_task_model(folder, model, task, tokenizer, {})
    return folder


def save_unanswerable(folder: Path) -> Path:
    """A model that answers no question at all."""
    save_fine_tuned(folder, "question-answering")
    manifest = json.loads((folder / "bertsmith.json").read_text())
    manifest["settings"]["threshold"] = -1e6
    (folder / "bertsmith.json").write_text(json.dumps(manifest))
    return folder


def inputs_of(task: str, count: int, seed: int = 0) -> list[Any]:
    """What a served model of a task reads: short and long, some longer than a window."""
    import random

    draw = random.Random(seed)

    def text(longest: int = 40) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, longest)))

    if task == "masked-language":
        return [f"{text(8)} [MASK] {text(8)}" for _ in range(count)]
    if task == "question-answering":
        return [[f"{text(5)} ?", text(60)] for _ in range(count)]
    if task in ("similarity", "reranking"):
        return [[text(), text()] for _ in range(count)]
    return [text() for _ in range(count)]


def _tokenizer() -> Tokenizer:
    return Tokenizer.from_pieces(PIECES, lowercase=True)


def _config(tokenizer: Tokenizer, **shape: int) -> Any:
    usual = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 32}
    known = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32}
    return make_config(known | usual | shape, "test")


def _randomise(model: torch.nn.Module, seed: int = 3) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)  # else nothing would depend much on the text
