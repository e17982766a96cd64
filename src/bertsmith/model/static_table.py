"""A static table: one vector for each token of the vocabulary, whatever its context. A text's vector is the
mean of its tokens' vectors.

config.json         model2vec's keys: normalize, max_length, hidden_dim, seq_length, embedding_dtype
model.safetensors   `embeddings` (V, D), in float32
tokenizer.json      the tokens by row
modules.json        the same model as sentence-transformers' StaticEmbedding
bertsmith.json      provenance, and the hash of each file

model2vec and sentence-transformers open the folder. We open theirs, if only a normalisation follows the
table. The rows of special tokens are zeros: model2vec leaves [UNK] out of the mean and sentence-transformers
doesn't, and with a row of zeros both give a vector of the same direction. In model2vec's own folders the row
of [UNK] is set to zeros on loading.

V tokens in the vocabulary, N tokens in the packed batch, R rows that a head reads, D width of a vector.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.arrays import Float32s, Ints
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.files import atomic_folder, require_free_space, tensors_written_to, write_json
from bertsmith.model.card import write_card
from bertsmith.model.manifest import Manifest, verify_while_loading, write_manifest
from bertsmith.model.sentence_files import LONGEST as LONGEST
from bertsmith.model.sentence_files import (
    MODEL2VEC,
    MODULES,
    NO_LIMIT,
    STATIC_MODULE,
    STATIC_NORMALIZE,
    table_folder,
    unread_rows,
)
from bertsmith.model.sentence_files import StaticConfig as StaticConfig
from bertsmith.model.sentence_files import is_static as is_static
from bertsmith.model.sentence_files import refuse_static as refuse_static
from bertsmith.model.untrusted import WEIGHTS, plain_file, read_tensors
from bertsmith.text.tokens.tokenizer import Tokenizer

ARCHITECTURE = "StaticModel"
_CONFIG = "config.json"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8)


class StaticTable(nn.Module):
    """A static table in the place of an encoder: a token's hidden state is its row."""

    def __init__(self, table: Tensor) -> None:
        """`table` (V, D) is float32; it isn't copied."""
        super().__init__()
        self.config = StaticConfig(*table.shape)
        self.layers = nn.ModuleList()
        self.table = nn.Parameter(table, requires_grad=False)

    def forward(self, batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        """The hidden states (N, D) of a batch, or (R, D) where only the given rows are read."""
        ids = batch.token_ids[: len(batch.token_ids) - batch.padding]
        return self.table[ids if rows is None else ids[rows]]

    def sums(self, token_ids: Ints, starts: Ints) -> Float32s:
        """The sums (E, D) of the rows of tokens (N,), of which each text begins at its start (E,)."""
        ids, first = torch.from_numpy(token_ids), torch.from_numpy(starts)
        with torch.inference_mode():
            return F.embedding_bag(ids, self.table, first, mode="sum").numpy()


def load_static(folder: Path) -> StaticTable:
    """Loads the table of a folder. Raises ModelError for a file that is missing, damaged or holds
    no table.
    """
    with verify_while_loading(folder) as manifest:
        path = plain_file(table_folder(folder), WEIGHTS)
        table = _make_table(read_tensors(path), path)
    if not bool(table.isfinite().all()):
        raise ModelError(f"{path} holds values that are not finite. Take another copy of the model.")
    if manifest is not None:  # in our own tables these rows are zeros already
        return StaticTable(table)
    tokenizer = Tokenizer.load(plain_file(table_folder(folder), "tokenizer.json").parent)
    for token_id in unread_rows(folder, tokenizer):
        if token_id < len(table):
            table[token_id] = 0
    return StaticTable(table)


def save_static(
    folder: Path,
    table: Tensor,
    tokenizer: Tokenizer,
    *,
    provenance: Mapping[str, Any],
    max_length: int = LONGEST,
    task: str = "encoder",
    settings: Mapping[str, Any] | None = None,
    write_extra_files: Callable[[Path], None] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a table's folder atomically. `table` (V, D) has a row for each token of the tokenizer. `task`
    and `settings` are those of a head on the table, which `write_extra_files` writes.

    Raises ModelError for another number of rows and for values that aren't finite, InputError where the
    folder exists and `overwrite` is False, ResourceError for lack of space.
    """
    pieces, width = table.shape
    if pieces != tokenizer.vocab_size:
        raise ModelError(f"The tokenizer has {tokenizer.vocab_size:,} pieces, the table {pieces:,} rows.")
    if not bool(table.isfinite().all()):
        raise ModelError("The table was not saved: it holds values that are not finite.")
    config = {
        "model_type": MODEL2VEC,
        "architectures": [ARCHITECTURE],
        "hidden_dim": width,
        "seq_length": NO_LIMIT,
        "max_length": max_length,
        "normalize": True,
        "embedding_dtype": "float32",
    }
    require_free_space(folder, table.nbytes, "Saving the model")
    with atomic_folder(folder, overwrite=overwrite) as partial:
        with tensors_written_to(partial / WEIGHTS):
            save_file({"embeddings": table.float().contiguous()}, partial / WEIGHTS)
        write_json(partial / _CONFIG, config)
        write_json(
            partial / MODULES,
            [
                _make_module(0, ".", STATIC_MODULE),
                _make_module(1, "1_Normalize", STATIC_NORMALIZE),
            ],
        )
        (partial / "1_Normalize").mkdir()
        tokenizer.save(partial, segments=False, max_length=max_length)
        if write_extra_files is not None:
            write_extra_files(partial)
        about = {"settings": dict(settings or {}), "provenance": dict(provenance)}
        manifest = Manifest(architecture=ARCHITECTURE, task=task, **about)
        write_manifest(partial, manifest)
        write_card(partial, manifest, f"A static table of {pieces:,} vectors, {width} wide")


def _make_table(tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """The table (V, D) in float32 from a file's tensors. model2vec may store fewer rows than tokens, with the
    row and the weight of each token; in sentence-transformers the table has another name.
    """
    table = tensors.get("embeddings", tensors.get("embedding.weight"))
    if table is None or table.dim() != 2 or table.dtype not in _FLOATS:
        raise ModelError(
            f"{path} holds no static table: expected the tensor embeddings (pieces, dimensions), found "
            f"{', '.join(sorted(tensors)[:4]) or 'nothing'}."
        )
    rows, weights = tensors.get("mapping"), tensors.get("weights")
    if rows is not None:
        is_list = rows.dim() == 1 and not rows.is_floating_point()
        if not is_list or not bool(((rows >= 0) & (rows < len(table))).all()):
            raise ModelError(f"{path}: mapping must name a row below {len(table):,} for each piece.")
        table = table[rows.long()]
    table = table.float()
    if weights is not None:
        if weights.shape != table.shape[:1]:
            raise ModelError(f"{path}: expected {len(table):,} weights, found the shape {(*weights.shape,)}.")
        table = table * weights.float()[:, None]
    return table


def _make_module(number: int, path: str, kind: str) -> dict[str, Any]:
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }
