"""Prepares an encoder for inference on a CPU, and tells in which precision."""

from collections.abc import Collection
from copy import deepcopy
from functools import cache

import torch

from bertsmith.arrays import Float32s
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.int8 import LEAST_COSINE, Int8Choice, search_products
from bertsmith.model.cpu.kernel_layer import PANEL, KernelLayer, replace_modules, supports_layer
from bertsmith.model.cpu.onednn_layer import PackedLayer, can_pack, can_pack_layer
from bertsmith.model.cpu.onednn_matmul import limit_shape_caches
from bertsmith.model.cpu.process import give_back_memory
from bertsmith.model.layers.layer import Layer


def prepare_for_inference(encoder: Bert, precision: torch.dtype = torch.float32) -> Bert:
    """Replaces the encoder's layers by layers for inference on a CPU, with products in `precision`, and
    returns the encoder.

    Layers that the kernels support, in float32, int16 and int8, are computed by these, others by oneDNN. In
    int8 the products that the encoder's `int8_choice` names stay in int16. A layer with LoRA that isn't
    merged stays as it is, and so does the whole encoder on a GPU, and where oneDNN lacks the precision: off
    x86 and ARM, in bfloat16 without AVX-512, in float16 without AVX-512's instructions for it. Raises
    InputError for int16 and int8 where `multiplies_int16` is false.
    """
    in_whole_numbers = precision in (torch.int16, torch.int8)
    if in_whole_numbers and not multiplies_int16(encoder):
        raise InputError(
            f"{str(precision).removeprefix('torch.')} needs the compiled kernels, which there are for Linux "
            "on x86-64 and 64-bit ARM, and for layers and heads whose widths are multiples of "
            f"{PANEL}: there are none for this model here. Use float32."
        )
    if next(encoder.parameters()).device.type != "cpu" or not (in_whole_numbers or can_pack(precision)):
        return encoder
    with torch.inference_mode():
        limit_shape_caches()
        relative = encoder.relative_table()
    in_int16 = () if encoder.int8_choice is None else encoder.int8_choice.in_int16
    for number, layer in enumerate(encoder.layers):
        if isinstance(layer, Layer) and can_pack_layer(layer):
            if supports_layer(layer, precision):
                begin = f"layers.{number}."
                names = [name.removeprefix(begin) for name in in_int16 if name.startswith(begin)]
                encoder.layers[number] = KernelLayer(layer, precision, relative, names)
            else:
                encoder.layers[number] = PackedLayer(layer, precision, relative)
    if all(isinstance(layer, KernelLayer) for layer in encoder.layers):
        replace_modules(encoder.embeddings)
    del layer  # frees the last layer's weights
    give_back_memory()
    return encoder


@torch.inference_mode()
def choose_products(encoder: Bert, batch: PackedBatch, least: float = LEAST_COSINE) -> Int8Choice:
    """Chooses what an encoder's `int8_choice` may be, on a batch of texts and by the kernels. The encoder
    itself isn't prepared for inference yet, and stays so.
    """
    encoder.eval()

    def prepare(precision: torch.dtype) -> Bert:
        shared = {id(weights): weights for weights in encoder.parameters()}
        return prepare_for_inference(deepcopy(encoder, shared), precision)

    rounded = prepare(torch.int8)
    in_int8 = [layer.linears for layer in _kernel_layers(rounded)]
    wider = cache(lambda: [layer.linears for layer in _kernel_layers(prepare(torch.int16))])

    def states(in_int16: Collection[str] | None) -> Float32s:
        for number, layer in enumerate(_kernel_layers(rounded)):
            names = {
                name.rpartition(".")[2] for name in in_int16 or () if name.startswith(f"layers.{number}.")
            }
            layer.take_linears(in_int8[number] | {name: wider()[number][name] for name in names})
        computed: Float32s = (prepare(torch.float32) if in_int16 is None else rounded)(batch).numpy()
        return computed

    return search_products(len(encoder.layers), states, batch.lengths, least)


def _kernel_layers(encoder: Bert) -> list[KernelLayer]:
    return [layer for layer in encoder.layers if isinstance(layer, KernelLayer)]


def usual_precision(encoder: Bert) -> torch.dtype:
    """The default precision on a CPU: int16 where the kernels support it, which keeps vectors to a cosine of
    0.99999, otherwise float32.
    """
    return torch.int16 if multiplies_int16(encoder) else torch.float32


def multiplies_int16(encoder: Bert) -> bool:
    """Whether `prepare_for_inference` can multiply in int16 and int8 for this encoder on this machine."""
    layers = (layer for layer in encoder.layers if isinstance(layer, Layer))
    on_processor = next(encoder.parameters()).device.type == "cpu"
    return on_processor and all(supports_layer(layer, torch.int16) for layer in layers)
