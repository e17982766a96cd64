"""Next-sentence pairs as google-research/bert makes them, written anew and plainly on lists of tokens.

The oracle for `bertsmith.data.pairs`: its create_pretraining_data.py in other words, without the masks. A
document is a list of sentences, a sentence a list of tokens.
"""

import random
from typing import NamedTuple

Document = list[list[int]]


class Pair(NamedTuple):
    first: list[int]
    second: list[int]
    is_random: bool


def pairs_of(
    documents: list[Document], index: int, max_tokens: int, short_seq_prob: float, draw: random.Random
) -> list[Pair]:
    """Pairs of one document before truncation."""
    target = draw.randint(2, max_tokens) if draw.random() < short_seq_prob else max_tokens
    document = documents[index]
    pairs, chunk, at = [], [], 0
    while at < len(document):
        chunk.append(document[at])
        at += 1
        if at < len(document) and sum(map(len, chunk)) < target:
            continue
        cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first, rest = joined(chunk[:cut]), chunk[cut:]
        if not rest or draw.random() < 0.5:
            pairs.append(Pair(first, other_text(documents, index, target - len(first), draw), True))
            at -= len(rest)  # they have not been used
        else:
            pairs.append(Pair(first, joined(rest), False))
        chunk = []
    return pairs


def other_text(documents: list[Document], index: int, wanted: int, draw: random.Random) -> list[int]:
    other = draw.choice([number for number in range(len(documents)) if number != index])
    start = draw.randint(0, len(documents[other]) - 1)
    tokens: list[int] = []
    for sentence in documents[other][start:]:
        tokens += sentence
        if len(tokens) >= wanted:
            break
    return tokens


def truncated(pair: Pair, max_tokens: int, draw: random.Random) -> Pair:
    """One token after the other from a random end of the longer segment, the second where they are equal."""
    first, second = list(pair.first), list(pair.second)
    while len(first) + len(second) > max_tokens:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if draw.random() < 0.5 else -1)
    return Pair(first, second, pair.is_random)


def joined(sentences: list[list[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]
