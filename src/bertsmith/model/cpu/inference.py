"""The door to what is special to processors: an encoder made ready for inference, and in what precision."""

import torch

from bertsmith.errors import InputError
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.kernel_layer import PANEL, KernelLayer, takes_layer_kernel
from bertsmith.model.cpu.onednn_layer import PackedLayer, can_pack
from bertsmith.model.cpu.onednn_matmul import keep_few_shapes
from bertsmith.model.cpu.process import give_back_memory
from bertsmith.model.layers.layer import Layer


def prepare_for_inference(encoder: Bert, precision: torch.dtype = torch.float32) -> Bert:
    """The encoder itself, for inference on a processor from now on: its layers' products in `precision`.

    By the kernels, which have float32 and int16, where they have such a layer, else by oneDNN. As it is on a
    GPU, when it is packed already, and where oneDNN has no such product: off x86 and ARM, in bfloat16 without
    AVX-512, in float16 without its instructions for that. Raises InputError for int16 where
    `multiplies_int16` says no.
    """
    if precision == torch.int16 and not multiplies_int16(encoder):
        raise InputError(
            "int16 needs the compiled kernels, which there are for x86-64 under Linux and for layers and "
            f"heads whose widths are multiples of {PANEL}: there are none for this model here. Use float32."
        )
    if next(encoder.parameters()).device.type != "cpu" or not (
        precision == torch.int16 or can_pack(precision)
    ):
        return encoder
    with torch.inference_mode():
        keep_few_shapes()
    for number, layer in enumerate(encoder.layers):
        if isinstance(layer, Layer):
            by_kernel = takes_layer_kernel(layer, precision)
            encoder.layers[number] = (
                KernelLayer(layer, precision) if by_kernel else PackedLayer(layer, precision)
            )
    del layer  # the last one holds its weights
    give_back_memory()
    return encoder


def usual_precision(encoder: Bert) -> torch.dtype:
    """On a processor: int16 where the kernels compute it, which keeps vectors to a cosine of 0.99999."""
    return torch.int16 if multiplies_int16(encoder) else torch.float32


def multiplies_int16(encoder: Bert) -> bool:
    """Whether `prepare_for_inference` has products in int16 for this encoder here."""
    layers = (layer for layer in encoder.layers if isinstance(layer, Layer))
    on_processor = next(encoder.parameters()).device.type == "cpu"
    return on_processor and all(takes_layer_kernel(layer, torch.int16) for layer in layers)
