"""Prepares models for inference: device, precision of matrix products, tokenizer. All that predicts begins
here.

Also checks that an argument is a list of texts, before it is read.
"""

from collections.abc import Iterable, Mapping, Set, Sized
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.machine import Hardware, device_of
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.adapter import detach_adapter
from bertsmith.model.cpu.inference import (
    choose_products,
    multiplies_int16,
    prepare_for_inference,
    usual_precision,
)
from bertsmith.model.cpu.int8 import encode_texts
from bertsmith.model.cpu.kernel_layer import KernelLayer, use_kernels
from bertsmith.model.cpu.kernels import has_kernels
from bertsmith.model.cpu.onednn_layer import PackedLayer
from bertsmith.model.cpu.process import one_core_threads
from bertsmith.model.cpu.shared_encoder import EncodersInUse, share_encoder
from bertsmith.model.lora import lora_settings, merge_lora
from bertsmith.model.own_tokenizer import load_own_tokenizer, load_shared_tokenizer
from bertsmith.model.static_table import StaticTable
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.tokenizer import Tokenizer

Model = TypeVar("Model", bound=nn.Module)


class Engine(NamedTuple, Generic[Model]):
    """A model prepared for inference, with its tokenizer. Several threads may use it at once; with the
    kernels each gets the same bits as if it were alone.
    """

    model: Model
    tokenizer: Tokenizer
    device: torch.device
    compute_dtype: torch.dtype


def open_task_model(
    folder: Path,
    task: type[Task[Any]] | None = None,
    device: torch.device | str = "auto",
    compute_dtype: torch.dtype | None = None,
    *,
    shares_tokenizer: bool = False,
) -> tuple[Engine[TaskModel], Task[Any]]:
    """Opens a fine-tuned model of a folder for inference. Where an encoder in use was read from a file with
    the same weights, only its head is read. With `shares_tokenizer` its tokenizer may be another model's too:
    for callers that don't change its attributes.

    Raises as `load_task_model` and `start_engine` do.
    """
    in_use = None
    if device_of(device).type == "cpu" and compute_dtype != torch.int8:  # its choice of products is its own
        in_use = EncodersInUse(compute_dtype or torch.int16)
    model, opened = load_task_model(folder, task, table_in_file=True, in_use=in_use)
    encoder = model.encoder
    tokenizer = load_shared_tokenizer(folder, encoder.config) if shares_tokenizer else None
    has_lora = isinstance(encoder, Bert) and lora_settings(encoder) is not None
    engine = start_engine(model, folder, device, compute_dtype, tokenizer)
    is_merged = has_lora and encoder.adapter is None
    if in_use is not None and isinstance(encoder, Bert) and not is_merged:
        in_use.remember(encoder)
    return engine, opened


def start_engine(
    model: Model,
    folder: Path,
    device: torch.device | str = "auto",
    compute_dtype: torch.dtype | None = None,
    tokenizer: Tokenizer | None = None,
) -> Engine[Model]:
    """Prepares `model`, an encoder or a model with a head, for inference, in place. `folder` has its
    tokenizer, unless that is given.

    `device` "auto" is a GPU if there is one. `compute_dtype` is the precision of the layers' matrix products:
    by default int16 by the compiled kernels on a processor, bfloat16 for an encoder alone on a GPU that has
    it, and float32 otherwise. In int8 the products that it would change too much stay in int16. Heads
    compute in float32.

    Raises InputError for int16 and int8 without kernels and for int8 of series and images,
    TokenizerError for a folder without a usable tokenizer.
    """
    encoder = _find_encoder(model)
    tokenizer = tokenizer or load_own_tokenizer(folder, encoder.config)
    if compute_dtype == torch.int8 and isinstance(encoder, Bert):
        merge_lora(encoder)  # the choice is of whole products
    if compute_dtype == torch.int8 and isinstance(encoder, Bert) and multiplies_int16(encoder):
        texts = encode_texts(tokenizer, encoder.config.max_length, str(folder))
        encoder.int8_choice = choose_products(encoder, PackedBatch.pack(*texts))
    return Engine(model, tokenizer, *make_ready(model, device, compute_dtype))


def make_ready(
    model: nn.Module, device: torch.device | str = "auto", compute_dtype: torch.dtype | None = None
) -> tuple[torch.device, torch.dtype]:
    """Prepares a model for inference as `start_engine` does, without a tokenizer. Returns its device and the
    precision of its matrix products.
    """
    encoder = _find_encoder(model)
    if isinstance(encoder, StaticTable):  # it multiplies nothing, so a GPU wouldn't help
        if encoder is not model and has_kernels():
            use_kernels(model)
        model.eval()
        return torch.device("cpu"), torch.float32
    target_device = device_of(device)
    model.to(target_device)
    alone_on_a_gpu = target_device.type == "cuda" and encoder is model
    lora = isinstance(encoder, Bert) and lora_settings(encoder) is not None
    if lora and target_device.type != "cpu":
        merge_lora(encoder)
    elif lora:
        detach_adapter(encoder, compute_dtype)
    # Never bfloat16 on a processor: cosines must not differ by more than 1e-5 between processors.
    default = Hardware.detect().precision if alone_on_a_gpu else usual_precision(encoder)
    compute_dtype = compute_dtype or default
    prepare_for_inference(encoder, compute_dtype)
    if target_device.type == "cpu":  # now, not in a call: while threads start, torch's thread count differs
        one_core_threads(torch.get_num_threads())
    if encoder is not model:
        use_kernels(model)
    if isinstance(encoder, Bert) and target_device.type == "cpu":
        share_encoder(encoder)
    model.eval()  # for good: a call that ends in one thread must not turn dropout on in another
    return target_device, compute_dtype


def autocasting(
    encoder: Bert | StaticTable, device: torch.device, compute_dtype: torch.dtype
) -> AbstractContextManager[object]:
    """The autocast context for the encoder's forward pass; empty if its layers compute in this precision by
    themselves.
    """
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
    """Raises InputError unless `texts` is an iterable of texts: for a single text, a table, a set or a
    mapping, which would iterate over something else than texts.
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
    """Raises InputError as `require_texts` does, and for an iterable whose length isn't known."""
    require_texts(texts)
    if not isinstance(texts, Sized):
        raise InputError(
            f"Expected a list of texts, found {type(texts).__name__}, whose length is not known. "
            "Give them as a list."
        )


def require_count(count: int, expected: int) -> None:
    """Raises InputError if a list gave more or fewer texts than its length says."""
    if count != expected:
        raise InputError(
            f"Expected {expected:,} texts, as the list's length says, but it gave "
            f"{'more' if count > expected else f'{count:,}'}. Give them as a list."
        )
