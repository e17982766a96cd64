"""What sentence-transformers needs beside an encoder to make the same vectors of it.

modules.json                          which steps there are
1_Pooling/config.json                 how hidden states become a vector
2_Dense/                              where vectors have other dimensions than hidden states
2_Normalize/ or 3_Normalize/          where vectors get length 1; an empty folder
3_Dense/                              where a head's last layer turns them into outputs
sentence_bert_config.json             the longest input
config_sentence_transformers.json     prefixes of queries and documents, as prompts
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from bertsmith.files import tensors_written_to, write_json
from bertsmith.model.config import BertConfig

_NAMES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def write_sentence_folder(
    folder: Path,
    config: BertConfig,
    pooling: str,
    max_length: int,
    *,
    normalise: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    projection: nn.Linear | None = None,
    dense: nn.Linear | None = None,
) -> None:
    """Into the folder of a saved encoder; `prompts` are prefixes by name, "query" and "document", the one
    called `default_prompt_name` for texts of which nothing is said. A `projection` comes before vectors are
    normalised, `dense` behind.
    """
    modules = [_module(0, "", "Transformer"), _module(1, "1_Pooling", "Pooling")]
    (folder / "1_Pooling").mkdir()
    if projection is not None:
        modules.append(_module(2, "2_Dense", "Dense"))
        _write_dense(folder / "2_Dense", projection)
    if normalise:
        path = f"{len(modules)}_Normalize"
        modules.append(_module(len(modules), path, "Normalize"))
        (folder / path).mkdir()
    if dense is not None:
        modules.append(_module(len(modules), "3_Dense", "Dense"))
        _write_dense(folder / "3_Dense", dense)
    write_json(folder / "modules.json", modules)
    chosen = {f"pooling_mode_{name}": name == _NAMES[pooling] for name in _NAMES.values()}
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": config.hidden_size, **chosen}
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    if prompts is not None:
        similarity = "cosine" if normalise else "dot"
        write_json(
            folder / "config_sentence_transformers.json",
            {
                "prompts": dict(prompts),
                "default_prompt_name": default_prompt_name,
                "similarity_fn_name": similarity,
            },
        )


def _write_dense(folder: Path, dense: nn.Linear) -> None:
    folder.mkdir()
    settings = {"in_features": dense.in_features, "out_features": dense.out_features, "bias": True}
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    write_json(folder / "config.json", settings | activation)
    weights = {f"linear.{name}": tensor.detach().contiguous() for name, tensor in dense.state_dict().items()}
    with tensors_written_to(folder / "model.safetensors"):
        save_file(weights, folder / "model.safetensors")


def _module(number: int, path: str, kind: str) -> dict[str, Any]:
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }
