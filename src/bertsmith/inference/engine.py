"""Where all that predicts begins: a model made ready for inference, on its device, its products in one
precision, beside its tokenizer; and what is no list of texts, refused before it is read.
"""

from collections.abc import Iterable, Mapping, Set, Sized
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from bertsmith.errors import InputError
from bertsmith.machine import Hardware, device_of
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.inference import prepare_for_inference, usual_precision
from bertsmith.model.cpu.kernel_layer import KernelLayer, by_kernels
from bertsmith.model.cpu.onednn_layer import PackedLayer
from bertsmith.model.cpu.process import one_core_threads
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.static_table import StaticTable
from bertsmith.text.tokens.tokenizer import Tokenizer

Model = TypeVar("Model", bound=nn.Module)


class Engine(NamedTuple, Generic[Model]):
    """Several threads may use it at once; by the kernels each gets the same bits as alone."""

    model: Model
    tokenizer: Tokenizer
    device: torch.device
    compute_dtype: torch.dtype


def start_engine(
    model: Model, folder: Path, device: torch.device | str = "auto", compute_dtype: torch.dtype | None = None
) -> Engine[Model]:
    """The model itself, an encoder or one with a head, which only computes from now on; `folder` has its
    tokenizer.

    `device` "auto" is a GPU where there is one. Products of the layers are in `compute_dtype`: by default in
    int16 by the compiled kernels on a processor, in bfloat16 for an encoder alone on a GPU that has it, and
    in float32 elsewhere. Heads compute in float32.

    Raises InputError for int16 without kernels, TokenizerError for the tokenizer.
    """
    on, compute_dtype = make_ready(model, device, compute_dtype)
    return Engine(model, load_own_tokenizer(folder, _find_encoder(model).config), on, compute_dtype)


def make_ready(
    model: nn.Module, device: torch.device | str = "auto", compute_dtype: torch.dtype | None = None
) -> tuple[torch.device, torch.dtype]:
    """The same without a tokenizer; returns where the model computes now, and in what."""
    encoder = _find_encoder(model)
    if isinstance(encoder, StaticTable):  # multiplies nothing: a processor is as good as anything
        model.eval()
        return torch.device("cpu"), torch.float32
    on = device_of(device)
    model.to(on)
    alone_on_a_gpu = on.type == "cuda" and encoder is model
    # A processor's never is bfloat16: cosines must not depend by more than 1e-5 on which one it was.
    usual = Hardware.detect().precision if alone_on_a_gpu else usual_precision(encoder)
    compute_dtype = compute_dtype or usual
    prepare_for_inference(encoder, compute_dtype)
    if on.type == "cpu":  # now, not in a call: while they begin, torch's number for new threads is another
        one_core_threads(torch.get_num_threads())
    if encoder is not model:
        by_kernels(model)
    model.eval()  # once and for all: what ends in one thread must not turn dropout on in another
    return on, compute_dtype


def autocasting(
    encoder: Bert | StaticTable, device: torch.device, compute_dtype: torch.dtype
) -> AbstractContextManager[object]:
    """What the encoder is to compute within: nothing, where its layers compute so by themselves."""
    if isinstance(encoder, StaticTable):
        return nullcontext()
    first = encoder.layers[0]
    own = first.precision if isinstance(first, PackedLayer | KernelLayer) else None
    if compute_dtype in (torch.float32, own):
        return nullcontext()
    return torch.autocast(device.type, compute_dtype)


def _find_encoder(model: nn.Module) -> Bert | StaticTable:
    encoder = model if isinstance(model, Bert | StaticTable) else model.get_submodule("encoder")
    assert isinstance(encoder, Bert | StaticTable)
    return encoder


def require_texts(texts: Any) -> None:
    """Anything that gives text after text. Raises InputError for one text, a table, or what has no order:
    what iterates over something else than its texts would get vectors and predictions of that.
    """
    if isinstance(texts, str):
        raise InputError(f"Expected a list of texts, found one text: {texts[:60]!r}. Put it in a list.")
    kind = type(texts).__name__
    if getattr(texts, "ndim", 1) != 1:  # a DataFrame gives the names of its columns
        raise InputError(
            f"Expected a list of texts, found a table ({kind}). Give the texts alone, such as "
            "list(table['text'])."
        )
    if isinstance(texts, bytes | Mapping | Set) or not isinstance(texts, Iterable):
        raise InputError(f"Expected a list of texts, found {kind}. Give the texts as a list.")


def require_list(texts: Any) -> None:
    """The same, of a known number."""
    require_texts(texts)
    if not isinstance(texts, Sized):
        raise InputError(
            f"Expected a list of texts, found {type(texts).__name__}, whose length is not known. "
            "Give them as a list."
        )


def require_count(found: int, expected: int) -> None:
    """Raises InputError where a list gave more or fewer than its length says."""
    if found != expected:
        raise InputError(
            f"Expected {expected:,} texts, as the list's length says, but it gave "
            f"{'more' if found > expected else f'{found:,}'}. Give them as a list."
        )
