"""A vocabulary's pieces as people read them."""

from collections.abc import Sequence
from typing import Any

from bertsmith.text.tokens.tokenizer import Tokenizer


def shown_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """`text` of each, without the vocabulary's marks; whether it continues the word before it (`joined`), and
    whether it is [CLS] or its like (`special`).
    """
    found = []
    for number in ids:
        special = number in tokenizer.special_ids
        joined = bool(tokenizer.continues_word[number])
        text = tokenizer.id_to_token(number)
        if not special and tokenizer.family == "wordpiece":
            text = text.removeprefix("##") if joined else text
        elif not special:
            text = tokenizer.decode([number], skip_special_tokens=False).strip() or text
        found.append({"text": text, "joined": joined, "special": special})
    return found
