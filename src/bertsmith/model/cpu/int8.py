"""Chooses which of an encoder's products are in int8: all but those that would change its states too much.
The same with torch and without: both compute by the kernels, to the bit.

N tokens in the packed batch, H hidden size, B texts.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.arrays import Float32s, Floats, Ints
from bertsmith.errors import InputError
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer

PRODUCTS = "attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down"  # of each layer
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
_WORST = 2  # texts on which the damage of a product alone is measured
# The hidden states (N, H) with products of these names in int16 and the others in int8; of None, in float32.
States = Callable[[Collection[str] | None], Float32s]


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


def encode_texts(tokenizer: Tokenizer, max_length: int, where: str) -> tuple[Ints, Ints, Ints]:
    """The texts as one batch for a model `where`: token ids (N,), segment ids (N,), lengths (B,). Raises
    InputError for a model of series or images.
    """
    if isinstance(tokenizer, ValueTokenizer):
        raise InputError(
            f"int8 is for models of texts, and {where} reads series or images. Use int16, the default."
        )
    template = tokenizer.template
    room = min(max_length, LONGEST) - template.count_special_tokens(1)
    texts = [[*template.before, *ids[:room], *template.behind] for ids in tokenizer.encode_batch(TEXTS)]
    token_ids = np.array([token_id for ids in texts for token_id in ids], np.int64)
    return token_ids, np.zeros_like(token_ids), np.array([len(ids) for ids in texts])


def search_products(
    layers: int, states: States, lengths: Sequence[int], least: float = LEAST_COSINE
) -> Int8Choice:
    """Chooses for so many layers and a batch of texts of these lengths. Products stay in int16, those first
    that alone do most damage, until each text has a cosine of `least`.
    """
    exact = states(None)

    def cosines(in_int16: Collection[str]) -> Floats:
        return _cosines(exact, states(in_int16), lengths)

    names = [f"layers.{number}.{product}" for number in range(layers) for product in PRODUCTS]
    in_int16: Sequence[str] = ()
    found = cosines(in_int16)
    if found.min() < least:
        worst = found.argsort(kind="stable")[:_WORST]
        damages = {
            name: (1 - cosines([other for other in names if other != name])[worst]).sum() for name in names
        }
        by_damage, count = sorted(names, key=lambda name: -damages[name]), 1
        while found.min() < least and len(in_int16) < len(names):
            in_int16, count = by_damage[: len(in_int16) + count], 2 * count
            found = cosines(in_int16)
    in_order = tuple(name for name in names if name in in_int16)
    return Int8Choice(in_order, len(names), float(found.min()), len(lengths))


def _cosines(exact: Float32s, states: Float32s, lengths: Sequence[int]) -> Floats:
    """Of each text's rows of (N, H), as one vector: (B,)."""
    ends = np.cumsum(lengths)[:-1]
    pairs = zip(np.split(exact, ends), np.split(states, ends), strict=True)
    wide = ((one.astype(np.float64), other.astype(np.float64)) for one, other in pairs)
    return np.array([(a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()) for a, b in wide])
