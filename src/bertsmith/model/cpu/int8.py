"""Chooses which of an encoder's products are in int8: all but those that would change its states too much.

N tokens in the packed batch, H hidden size.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.model.cpu.kernel_layer import quantise_outputs

LEAST_COSINE = 0.99  # of a text's hidden states with those of float32
LONGEST = 128  # tokens of a text below
TEXTS = (
    "No refund yet, and nobody answers. What now?",
    "a quiet, funny and deeply moving film",
    "Is the top-up limit different for business accounts?",
    "OK.",
    "EU rejects German call to boycott British lamb.",
    "A man is playing the guitar on a small stage while two women listen.",
    "Please cancel order 48-1093-B: the parcel came back twice, the second time opened, and I was charged.",
    "The city lies on both banks of the river, some forty kilometres from the sea. It was founded in 1207 as "
    "a market town, burnt down twice, and rebuilt in brick after the fire of 1624; most of the houses around "
    "the old harbour date from those years. Since the docks moved downstream, warehouses have become flats "
    "and workshops, and the population has grown again, to 312,000 at the last census.",
    "In the trial 214 patients were given either the drug or a placebo for twelve weeks. Blood pressure fell "
    "by 8.4 mmHg (95 % CI 6.1 to 10.7) in the first group and by 2.0 mmHg in the second; headaches were the "
    "most frequent side effect, and none of the serious events was thought to be related to the treatment.",
    "def area(radius): return 3.14159 * radius ** 2  # https://example.org/docs?id=7",
    "Der Vertrag endet am 31. März, sofern er nicht vorher verlängert wird.",
    "Le train de 8 h 12 est supprimé en raison d'un incident technique.",
    "El banco central mantuvo los tipos de interés por tercera vez consecutiva.",
    "Поезд прибывает на третий путь в девять часов утра.",
    "今天下午的会议改到三点半，请准时参加。",
)
_STEPS = 253  # between the smallest and the largest code of a row, as in kernels/product.c
_WORST = 2  # texts on which the damage of a product alone is measured


@dataclass(frozen=True)
class Int8Choice:
    """`in_int16` are the names of the products that stay in int16, of `products` in all; `cosine` is the
    smallest between a text's hidden states, as one vector, and those in float32, of `texts` texts.
    """

    in_int16: tuple[str, ...]
    products: int
    cosine: float
    texts: int

    def __str__(self) -> str:
        count = self.products - len(self.in_int16)
        others = ", the others in int16" if self.in_int16 else ""
        return (
            f"{count} of {self.products} products are in int8{others}. Of {self.texts} built-in "
            f"texts the smallest cosine with float32 is {self.cosine:.4f}."
        )


@torch.inference_mode()
def choose_products(encoder: nn.Module, batch: PackedBatch, least: float = LEAST_COSINE) -> Int8Choice:
    """Chooses for an encoder, a `Bert`, whose layers are still torch's. Products stay in int16, those first
    that alone do most damage, until each text of the batch has a cosine of `least`.
    """
    encoder.eval()
    linears = {
        f"layers.{place}.{name}": module
        for place, layer in enumerate(encoder.get_submodule("layers").children())
        for name, module in layer.named_modules()
        if type(module) is nn.Linear
    }
    exact = encoder(batch)

    def cosines(names: Collection[str]) -> Tensor:
        with _rounded([linears[name] for name in names]):
            return _cosines(exact, encoder(batch), batch.lengths)

    in_int8 = list(linears)
    found = cosines(in_int8)
    if float(found.min()) < least:
        worst = found.argsort()[:_WORST]
        damages = {name: float((1 - cosines([name])[worst]).sum()) for name in linears}
        by_damage = sorted(linears, key=lambda name: damages[name])
        count = 1
        while float(found.min()) < least and in_int8:
            in_int8, count = by_damage[: max(0, len(by_damage) - count)], 2 * count
            found = cosines(in_int8)
    wider = tuple(name for name in linears if name not in in_int8)
    return Int8Choice(wider, len(linears), float(found.min()), len(batch.lengths))


def _cosines(exact: Tensor, states: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Of each text's rows of (N, H), as one vector: (B,)."""
    pairs = zip(exact.split(lengths), states.split(lengths), strict=True)
    return torch.stack([F.cosine_similarity(one.flatten(), other.flatten(), dim=0) for one, other in pairs])


@contextmanager
def _rounded(linears: Collection[nn.Linear]) -> Iterator[None]:
    """While the block runs, these modules give what the kernels give in int8."""
    hooks = [linear.register_forward_hook(_round_product) for linear in linears]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _round_product(linear: nn.Module, arguments: tuple[Tensor, ...], _: Any) -> Tensor:
    assert isinstance(linear, nn.Linear)
    (x,) = arguments
    codes, scales = quantise_outputs(linear.weight)
    step = (x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)) / _STEPS
    rows = (x / step.where(step != 0, 1)).round_() * step
    return F.linear(rows, codes * scales[:, None], linear.bias)
