"""A static table: one vector a piece of the vocabulary, whatever stands beside it. A text is their mean.

config.json        model2vec's: normalize, max_length, hidden_dim, seq_length, embedding_dtype
model.safetensors  `embeddings` (V, D), in float32
tokenizer.json     which piece has which row
modules.json       the same as sentence-transformers' StaticEmbedding
bertsmith.json     provenance, and the hash of each file

model2vec and sentence-transformers open the folder, and we open theirs, where nothing but
normalisation comes after the table. The rows of special pieces are zeros: model2vec leaves [UNK] out,
sentence-transformers doesn't, and so the direction of a vector is the same. In a folder of model2vec's own
the row of [UNK] becomes zeros as it is read.

V pieces, N tokens in the packed batch, R rows that are read, D width of a vector.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.files import atomic_folder, require_free_space, tensors_written_to, write_json
from bertsmith.model.card import write_card
from bertsmith.model.manifest import Manifest, hashed_meanwhile, write_manifest
from bertsmith.model.untrusted import plain_file, read_settings, read_small_json, read_tensors
from bertsmith.text.tokens.tokenizer import Tokenizer

ARCHITECTURE = "StaticModel"
LONGEST = 512  # tokens of a text where the folder says nothing, as model2vec has it
NO_LIMIT = 1_000_000  # tokens that can be asked for: a table has no positions
WEIGHTS = "model.safetensors"
_CONFIG = "config.json"
_MODULES = "modules.json"
_MODEL2VEC = "model2vec"
_MODULE = "StaticEmbedding"
PACKAGE = "sentence_transformers."  # of modules that aren't code of a folder's own
_NORMALIZE = "Normalize"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8)


@dataclass(frozen=True)
class StaticConfig:
    """What a table has of an encoder's shape."""

    vocab_size: int
    hidden_size: int
    max_length: int = NO_LIMIT


class StaticTable(nn.Module):
    """Stands where an encoder stands: a token's hidden state is its row."""

    def __init__(self, table: Tensor) -> None:
        """`table` is (V, D) float32."""
        super().__init__()
        self.config = StaticConfig(*table.shape)
        self.layers = nn.ModuleList()
        self.table = nn.Parameter(table, requires_grad=False)

    def forward(self, batch: PackedBatch, rows: Tensor | None = None) -> Tensor:
        """(N, D), or (R, D) where only the given rows are read."""
        ids = batch.token_ids[: len(batch.token_ids) - batch.padding]
        return self.table[ids if rows is None else ids[rows]]


def is_static(folder: Path) -> bool:
    """Whether a folder holds a static table, of ours, of model2vec or of sentence-transformers."""
    if (folder / _MODULES).is_file():
        return [kind for kind, _ in _modules(folder)[:1]] == [_MODULE]
    return _settings(folder).get("model_type") == _MODEL2VEC


def table_folder(folder: Path) -> Path:
    """Where a static table and its tokenizer lie: in the folder itself or, as older versions of
    sentence-transformers left them, one deeper.

    Raises ModelError where the table is missing, or something other than normalisation comes after it.
    """
    if not (folder / _MODULES).is_file():
        return folder
    (_, inside), *after = _modules(folder)
    if (other := next((kind for kind, _ in after if kind != _NORMALIZE), None)) is not None:
        raise ModelError(
            f"{folder} has a module {other} after its table of vectors, which Bertsmith doesn't support: "
            "without it the vectors would differ. Use a table with nothing after it but normalisation."
        )
    if not re.fullmatch(r"[\w-]*|\.", inside):
        raise ModelError(
            f"{folder / _MODULES} names no folder beside it for the module {_MODULE}. It may have been "
            "altered."
        )
    return plain_file(folder, f"{inside}/{WEIGHTS}".lstrip("/")).parent


def refuse_static(folder: Path) -> None:
    """Raises ModelError for a static table, where layers are needed."""
    if is_static(folder):
        raise ModelError(
            f"{folder} is a static table of vectors, which has no layers, and this needs an encoder. "
            "Predict, embed, index, search and serve with it; for anything else take the model that it was "
            "made from."
        )


def read_longest(folder: Path) -> int:
    """Tokens of a text that are read, as config.json says."""
    path = folder / _CONFIG
    found = _settings(folder).get("max_length", LONGEST) if path.exists() else None
    if found is None:
        return NO_LIMIT
    if not isinstance(found, int) or found < 1:
        raise ModelError(f"{path}: max_length must be a whole number from 1 on, found {found!r}.")
    return min(found, NO_LIMIT)


def load_static(folder: Path) -> StaticTable:
    """The table of a folder. Raises ModelError for a file that is missing, cut, altered or holds no table."""
    with hashed_meanwhile(folder) as manifest:
        path = plain_file(table_folder(folder), WEIGHTS)
        table = _one_row_a_piece(read_tensors(path), path)
    if not bool(table.isfinite().all()):
        raise ModelError(f"{path} holds values that are not finite. Take another copy of the model.")
    if manifest is not None:  # what we save is as it is meant
        return StaticTable(table)
    # The special tokens around a text, which neither sentence-transformers nor model2vec reads: their rows
    # are as they were drawn. model2vec leaves out unknown pieces too.
    tokenizer = Tokenizer.load(plain_file(table_folder(folder), "tokenizer.json").parent)
    template, settings = tokenizer.template, _settings(folder)
    unread = [*template.before, *template.between, *template.behind]
    # a table which wasn't distilled has no model_type, but embedding_dtype
    if settings.get("model_type") == _MODEL2VEC or "embedding_dtype" in settings:
        unread.append(tokenizer.unk_id)
    for piece in unread:
        if piece < len(table):
            table[piece] = 0
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
    """Writes the folder, whole or not at all. `table` (V, D) has a row for each piece. `task` and `settings`
    are those of a head on it, which `write_extra_files` writes.

    Raises ModelError for another number of rows and for values that are not finite, InputError when the
    folder exists and `overwrite` is False, ResourceError for lack of space.
    """
    pieces, width = table.shape
    if pieces != tokenizer.vocab_size:
        raise ModelError(f"The tokenizer has {tokenizer.vocab_size:,} pieces, the table {pieces:,} rows.")
    if not bool(table.isfinite().all()):
        raise ModelError("The table was not saved: it holds values that are not finite.")
    config = {
        "model_type": _MODEL2VEC,
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
        write_json(partial / _MODULES, [_module(0, ".", _MODULE), _module(1, "1_Normalize", _NORMALIZE)])
        (partial / "1_Normalize").mkdir()
        tokenizer.save(partial, segments=False, max_length=max_length)
        if write_extra_files is not None:
            write_extra_files(partial)
        about = {"settings": dict(settings or {}), "provenance": dict(provenance)}
        manifest = Manifest(architecture=ARCHITECTURE, task=task, **about)
        write_manifest(partial, manifest)
        write_card(partial, manifest, f"A static table of {pieces:,} vectors, {width} wide")


def _settings(folder: Path) -> dict[str, Any]:
    """What config.json says; sentence-transformers writes none."""
    return read_settings(plain_file(folder, _CONFIG)) if (folder / _CONFIG).is_file() else {}


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and subfolder of each part, in their order; none where modules.json holds no list."""
    found = read_small_json(plain_file(folder, _MODULES))
    parts = [each if isinstance(each, dict) else {} for each in found] if isinstance(found, list) else []
    kinds = [str(part.get("type")) for part in parts]
    ours = [kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind for kind in kinds]
    return [(kind, str(each.get("path"))) for kind, each in zip(ours, parts, strict=True)]


def _one_row_a_piece(tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """(V, D) float32. model2vec may keep fewer rows than pieces, which piece has which, and a weight a piece;
    sentence-transformers calls the table by another name.
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


def _module(number: int, path: str, kind: str) -> dict[str, Any]:
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }
