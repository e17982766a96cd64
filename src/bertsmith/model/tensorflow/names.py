"""Names of tensors in Google's checkpoints (github.com/google-research/bert) ↔ Hugging Face's.

    bert/encoder/layer_0/attention/self/query/kernel   (H in, H out)
    bert.encoder.layer.0.attention.self.query.weight   (H out, H in)

Modules are called alike, but for how their parts are joined. The leaves differ, and TensorFlow multiplies
from the other side, so that a kernel is transposed.
"""

import re
from collections.abc import Mapping

from torch import Tensor

from bertsmith.errors import ModelError

# Where Google's scripts for a task of one's own leave their output layer -> the head of transformers.
_HEADS = {
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")  # a tensor without a leaf
_LAYER = re.compile(r"\blayer_(\d+)\b")
# What the optimiser kept beside each weight, and how far it was.
_TRAINING = re.compile(r"(^|/)(adam_[mv]|Adam(_\d+)?|lamb_[mv]|Momentum|ExponentialMovingAverage)$")
_COUNTERS = re.compile(r"^(global_step|(.*/)?beta[12]_power|save_counter(/.*)?|good_steps|loss_scale)$")


def is_weight(name: str) -> bool:
    """Whether a tensor belongs to the model, and not to the optimiser or to what counts its steps."""
    return not (_TRAINING.search(name) or _COUNTERS.match(name))


def to_hugging_face_names(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors under Hugging Face's names, kernels transposed.

    Raises ModelError naming a tensor that is not one of Google's BERT.
    """
    found = {}
    for name, tensor in tensors.items():
        theirs = hugging_face_name(name)
        if theirs is None:
            raise ModelError(
                f"{where} holds the tensor {name!r}, which is none of a BERT of Google's. Bertsmith imports "
                "BERT with Google's names: bert/embeddings/…, bert/encoder/…, bert/pooler/…, cls/…."
            )
        found[theirs] = tensor.t().contiguous() if name.endswith("/kernel") and tensor.dim() == 2 else tensor
    return found


def hugging_face_name(name: str) -> str | None:
    """One name; None for one that Google's BERT doesn't have."""
    if name in _HEADS:
        return _HEADS[name]
    if name.partition("/")[0] not in ("bert", "cls"):
        return None
    module, _, leaf = name.rpartition("/")
    if leaf in _TABLES:
        module, leaf = name, "weight"
    elif leaf in _LEAVES:
        leaf = _LEAVES[leaf]
    else:
        return None
    return ".".join([*_LAYER.sub(r"layer/\1", module).split("/"), leaf])
