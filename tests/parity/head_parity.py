"""The harness that holds our heads against transformers': the same folder opened by both, the same texts.

Weights are drawn large for the reason given in model_parity. Their side tokenises for itself and pads.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from model_parity import file_gradients, with_large_weights
from tokenizers import pre_tokenizers
from torch import Tensor

import jina_bert  # noqa: F401  transformers lacks it
from bertsmith.data.stream import Cursor
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.weights import to_hugging_face
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.finetuning import FinetuningObjective, encode_examples
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from text.tokenizer_samples import unigram_json

FAMILIES = (
    *(
        "bert",
        "jina_bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "distilbert",
        "electra",
        "modernbert",
        "nomic_bert",
    ),
    *("gte", "deberta-v2", "mpnet", "albert"),
)
# NomicBert and Gte have no such class
ANSWERING = tuple(family for family in FAMILIES if family not in ("nomic_bert", "gte"))
WITHOUT_SEGMENTS = ("distilbert", "modernbert", "gte", "mpnet")
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
PADDED_FIRST = (*ROBERTAS, "mpnet")  # positions are counted from the padding's id
WORDS = [first + last for first in "bdfgklmn" for last in ("ano", "elo", "iru")]
LABELS = {"classification": ["no", "yes", "perhaps"], "multi-label": [("a",), ("b", "c"), ()]}
LENGTH = 48  # positions of the model, special tokens included


def small_tokenizer(family: str, folder: Path) -> Tokenizer:
    """WordPiece over WORDS and their endings, byte pairs without a useful merge, or Unigram."""
    if family == "mpnet":
        pieces = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *WORDS, "##s", "##no", ".", "?", "<mask>"]
        transformers.MPNetTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}).save_pretrained(
            folder
        )
        return Tokenizer.load(folder)
    if family in ("xlm-roberta", "camembert"):
        return Tokenizer.load(unigram_json(folder, [*WORDS, "s", "no", ".", "?", "elo"]))
    if family != "roberta":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        return Tokenizer.from_pieces([*special, *WORDS, "##s", "##no", ".", "?"], lowercase=True)
    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += ["el", "elo", "Ġb", "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\ne l\nel o\nĠ b\n")
    return Tokenizer.load(folder)


def small_config(family: str, tokenizer: Tokenizer) -> BertConfig:
    """Without dropout; RoBERTa and MPNet have two positions more than tokens."""
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    shape |= {"local_attention": 8} if family == "modernbert" else {}
    shape |= {"embedding_size": 16} if family in ("electra", "albert") else {}
    positions = LENGTH + (2 if family in PADDED_FIRST else 0)
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    names = {"model_type": family, "vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    return make_config(names | shape | rates | {"max_position_embeddings": positions}, "test")


def random_text(draw: np.random.Generator, longest: int = 6) -> str:
    """A few of WORDS, some with an ending, some unknown."""
    endings = draw.choice(["", "", "s", "X."], longest)
    count = int(draw.integers(1, longest + 1))
    return " ".join(word + end for word, end in zip(draw.choice(WORDS, count), endings[:count], strict=True))


def random_texts(seed: int, count: int, *, pairs: bool = False) -> list[Any]:
    """Texts, or pairs of them."""
    draw = np.random.Generator(np.random.PCG64DXSM(seed))
    if pairs:
        return [(random_text(draw, 3), random_text(draw, 4)) for _ in range(count)]
    return [random_text(draw) for _ in range(count)]


def make_task(name: str, **settings: Any) -> Task[Any]:
    kind = find_task(name)
    return kind(kind.Settings(**{"max_length": LENGTH} | settings))


def new_model(task: Task[Any], config: BertConfig, seed: int = 3) -> TaskModel:
    """A model with large weights, its head bound to the task."""
    model = with_large_weights(TaskModel(Bert(config), task.head(config)), seed)
    assert isinstance(model, TaskModel)
    task.bind(model.head)
    return model


def saved(folder: Path, model: TaskModel, task: Task[Any], tokenizer: Tokenizer) -> Path:
    save_task_model(folder, model, task, tokenizer, {})
    return folder


def our_outputs(model: TaskModel, task: Task[Any], tokenizer: Tokenizer, inputs: Sequence[Any]) -> Any:
    """The head's outputs for texts, as the command line and Python get them."""
    split = encode_examples(task, [task.example(text) for text in inputs], tokenizer)
    return [torch.from_numpy(np.array(output)) for output in outputs_of(model, split.encoded)]


def open_in_transformers(auto_class: Any, folder: Path) -> Any:
    """The model, once it is certain that no key is missing, unexpected or of another shape."""
    model, info = auto_class.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    found = {kind: set(info[f"{kind}_keys"]) for kind in ("missing", "unexpected", "mismatched")}
    assert found == {"missing": set(), "unexpected": set(), "mismatched": set()}
    return model.eval()


def their_inputs(folder: Path, model: Any, *texts: Any, **options: Any) -> dict[str, Tensor]:
    """Their tokenizer's padded batch; DistilBERT knows no segments, gte one."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = dict(tokenizer(*texts, padding=True, return_tensors="pt", **options))
    if model.config.model_type in WITHOUT_SEGMENTS:
        inputs.pop("token_type_ids", None)
    return inputs


def their_sequence_inputs(folder: Path, model: Any, texts: Sequence[Any]) -> dict[str, Tensor]:
    """Of texts, or of pairs."""
    if isinstance(texts[0], str):
        return their_inputs(folder, model, list(texts))
    return their_inputs(folder, model, *(list(side) for side in zip(*texts, strict=True)))


def our_step(
    model: TaskModel, task: Task[Any], tokenizer: Tokenizer, examples: Sequence[Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one step over all examples, and its gradients under transformers' names."""
    split = encode_examples(task, examples, tokenizer)
    objective = FinetuningObjective(task, model, split, None, len(examples), 0, torch.device("cpu"))
    sequences = next(objective.batches(Cursor())).sequences
    loss = objective.loss(sequences)["task"] / objective.counts(sequences)["task"]
    model.zero_grad()
    loss.backward()
    return loss.detach(), our_gradients(model)


def our_gradients(model: TaskModel) -> dict[str, Tensor]:
    """Of every parameter, under transformers' names."""
    encoder = {f"encoder.{name}": each.grad for name, each in model.encoder.named_parameters()}
    head = {}
    for name, parameter in model.head.named_parameters():
        module, _, leaf = name.rpartition(".")
        head[f"{model.head.file_names[module]}.{leaf}"] = parameter.grad
    assert all(gradient is not None for gradient in [*encoder.values(), *head.values()])
    return to_hugging_face(encoder, model.config, bare=False) | head  # type: ignore[arg-type,operator]


def their_gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    """Under the names of the file."""
    model.zero_grad()
    loss.backward()
    return file_gradients(model)


def sequence_task(name: str, texts: list[Any]) -> tuple[Task[Any], list[Any]]:
    """A task that has learnt its labels of these texts, and its examples."""
    task = make_task(name)
    values = LABELS.get(name, [1.5, 4.0, 2.25])
    examples = [
        dataclasses.replace(task.example(text), label=values[number % 3]) for number, text in enumerate(texts)
    ]
    task.fit(examples)
    return task, examples


def tagging_task(seed: int) -> tuple[Task[Any], list[Any]]:
    task = make_task("tagging")
    draw = np.random.default_rng(seed)
    examples = []
    for _ in range(7):
        words = [str(word) + str(draw.choice(["", "s"])) for word in draw.choice(WORDS, draw.integers(1, 6))]
        tags = tuple(str(tag) for tag in draw.choice(["O", "B-PER", "B-LOC"], len(words)))
        examples.append(dataclasses.replace(task.example(words), tags=tags))
    task.fit(examples)
    return task, examples


def their_words(folder: Path, model: Any, sentences: list[Any]) -> tuple[dict[str, Any], list[list[int]]]:
    """Their padded batch of words, and the places of each word's first piece."""
    spaced = {"add_prefix_space": True} if model.config.model_type == "roberta" else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **spaced)
    batch = tokenizer(
        [list(words) for words in sentences], is_split_into_words=True, padding=True, return_tensors="pt"
    )
    firsts = [
        [batch.word_ids(row).index(word) for word in range(len(words))] for row, words in enumerate(sentences)
    ]
    inputs = dict(batch)
    if model.config.model_type in WITHOUT_SEGMENTS:
        inputs.pop("token_type_ids", None)
    return inputs, firsts
