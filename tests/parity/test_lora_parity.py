"""LoRA against PEFT: the same states and gradients from one folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_parity import assert_same, random_sample, with_large_weights
from torch import Tensor

from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.lora import (
    adapted_modules,
    add_lora,
    lora_tensors,
    merge_lora,
    pooler_tensors,
    save_adapter,
    targets_of,
)
from bertsmith.model.weights import adapter_names
from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model, head_tensors
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.heads.classifier_head import ClassifierHead
from bertsmith.tasks.registry import find_task
from jina_bert import ALIBI

# transformers and PEFT warn of each other's old names
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
DISTILBERT_SIZES = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
OWN_VALUES = {
    "ModernBert": {
        **dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")),
        "pad_token_id": 0,
        "local_attention": 8,
    },
    "NomicBert": dict.fromkeys(("bos_token_id", "eos_token_id")),
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": "p2c|c2p",
        "share_att_key": True,
        "position_buckets": 8,
    },
    "Albert": {"embedding_size": 12, "num_hidden_groups": 1},
    "JinaBert": ALIBI,
}
BASE = "base_model.model."


@pytest.fixture(scope="module")
def peft() -> Any:
    return pytest.importorskip("peft", exc_type=ImportError)


def their_model(family: str, folder: Path, *, head: bool = False) -> Any:
    """Every weight at random; saved in `folder` for our side."""
    sizes = DISTILBERT_SIZES if family == "DistilBert" else SIZES
    values = {"vocab_size": 97, "max_position_embeddings": 40, "num_labels": 3} | OWN_VALUES.get(family, {})
    config = getattr(transformers, f"{family}Config")(**sizes, **values)
    build = getattr(transformers, f"{family}ForSequenceClassification" if head else f"{family}Model")
    theirs = with_large_weights(build(config), seed=3)
    theirs.save_pretrained(folder)
    return theirs


def draw(tensors: Any) -> None:
    """Both factors at random, so that neither hides the other's gradient."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in tensors:
            tensor.normal_(0.0, 0.2, generator=generator)


def our_gradients(model: Bert) -> dict[str, Tensor]:
    """Of each factor, under transformers' name of its module and `.lora_A` or `.lora_B`."""
    gradients = {}
    for path, linear in adapted_modules(model):
        names = adapter_names(f"encoder.{path}", model.config)
        for name, target in zip(names, linear.blocks, strict=True):
            if target:
                module = name.partition(".")[2]  # without the family's prefix
                gradients[f"{module}.lora_A"] = linear.lora_A[target].grad
                gradients[f"{module}.lora_B"] = linear.lora_B[target].grad
    return gradients


def their_gradients(model: Any) -> dict[str, Tensor]:
    return {
        name.removeprefix(BASE).removesuffix(".default.weight"): parameter.grad
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }


def assert_parity(ours: Bert, theirs: Any, seed: int) -> None:
    """Hidden states, pooler, and the gradient of every factor for a random weighting of both."""
    sample = random_sample(ours.config, seed)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    answer = theirs(**inputs)
    found, wanted = [ours(sample.packed)], [answer.last_hidden_state[sample.rows]]
    if ours.pooler is not None:
        found.append(ours.pool(found[0][sample.packed.first_rows]))
        wanted.append(answer.pooler_output)
    weights = torch.Generator().manual_seed(seed)
    for a, b in zip(found, wanted, strict=True):
        assert_same(a, b, "states or pooler")
        weighting = torch.randn(a.shape, generator=weights)
        (a * weighting).sum().backward(retain_graph=True)
        (b * weighting).sum().backward(retain_graph=True)
    gradients = their_gradients(theirs)
    assert our_gradients(ours).keys() == gradients.keys()
    for name, gradient in our_gradients(ours).items():
        assert_same(gradient, gradients[name], f"gradient of {name}")


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("Bert", None),
        ("Bert", ("feed_forward_down",)),
        ("Bert", "all"),
        ("Roberta", ("key", "pooler")),
        ("DistilBert", "all"),
        ("Electra", "all"),
        ("ModernBert", None),
        ("ModernBert", ("feed_forward_up",)),
        ("ModernBert", "all"),
        ("NomicBert", None),
        ("NomicBert", ("feed_forward_gate",)),
        ("NomicBert", "all"),
        ("Gte", None),
        ("Gte", ("feed_forward_up",)),
        ("Gte", "all"),
        ("JinaBert", None),
        ("JinaBert", ("feed_forward_up",)),
        ("JinaBert", "all"),
        ("Albert", None),
        ("Albert", "all"),
        ("MPNet", None),
        ("MPNet", "all"),
        ("DebertaV2", None),
        ("DebertaV2", "all"),
    ],
)
def test_peft_opens_our_adapter_with_the_same_numbers(
    peft: Any, family: str, targets: Any, tmp_path: Path
) -> None:
    plain = their_model(family, tmp_path / "model")
    ours = load_encoder(tmp_path / "model")
    add_lora(ours, rank=3, alpha=5.0, targets=targets_of(ours) if targets == "all" else targets)
    draw(lora_tensors(ours).values())
    save_adapter(tmp_path / "adapter", ours)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter", is_trainable=True).eval()
    assert_parity(ours, theirs, seed=2)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items() if "lora_" not in name}
    merge_lora(ours)
    merged = theirs.merge_and_unload().eval()
    sample = random_sample(ours.config, seed=3)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    assert_same(ours(sample.packed), merged(**inputs).last_hidden_state[sample.rows], "merged")
    assert ours.state_dict().keys() == before.keys()


@pytest.mark.parametrize("new_pooler", [False, True])
def test_a_head_trained_beside_goes_to_peft(peft: Any, tmp_path: Path, new_pooler: bool) -> None:
    """And a pooler with it, where the base has none of its own."""
    plain = their_model("Bert", tmp_path / "model", head=True)
    ours = load_encoder(tmp_path / "model")
    add_lora(ours, rank=3)
    heads = {"classifier.weight": torch.empty(3, 16), "classifier.bias": torch.empty(3)}
    heads |= pooler_tensors(ours) if new_pooler else {}
    draw([*lora_tensors(ours).values(), *heads.values()])
    save_adapter(tmp_path / "ours", ours, heads=heads)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    sample = random_sample(ours.config, seed=4)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    pooled = ours.pool(ours(sample.packed)[sample.packed.first_rows])
    logits = pooled @ heads["classifier.weight"].T + heads["classifier.bias"]
    assert_same(logits, theirs(**inputs).logits, "logits")


@pytest.mark.parametrize(
    "family",
    [
        *("JinaBert", "Roberta", "XLMRoberta", "DistilBert", "Electra", "ModernBert", "NomicBert", "Gte"),
        *("Albert", "MPNet"),
    ],
)
def test_each_family_s_own_head_goes_to_peft(peft: Any, family: str, tmp_path: Path) -> None:
    """All of its modules: ModernBERT's head has three, and Nomic's pooler is one more."""
    plain = their_model(family, tmp_path / "model", head=True)
    kind = find_task("classification")
    task = kind(kind.Settings(), ("a", "b", "c"))
    model = begin_task_model(tmp_path / "model", task).model.eval()
    add_lora(model.encoder, rank=3)
    heads, _ = head_tensors(model.head)
    draw([*lora_tensors(model.encoder).values(), *heads.values()])
    save_adapter(tmp_path / "ours", model.encoder, heads=heads)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "ours").eval()
    sample = random_sample(model.config, seed=4)
    inputs = {key: value for key, value in sample.padded.items() if key != "labels"}
    states = model.encoder(sample.packed, sample.packed.first_rows)
    head = model.head
    assert isinstance(head, ClassifierHead)
    read = model.encoder.pool(states) if head.pooled else states
    scores = head.out(ClassifierHead.features(head, read, Layout([])))
    assert_same(scores, theirs(**inputs).logits, "logits")
