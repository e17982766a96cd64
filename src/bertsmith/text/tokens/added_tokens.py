"""Tokens that were added to a vocabulary later, as transformers keeps them beside vocab.txt and vocab.json.

tokenizer_config.json   since 4.34 in added_tokens_decoder: id → token, and how a text is searched for it
added_tokens.json       token → id; read where the settings list none
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tokenizers
from pydantic import Field, ValidationError
from tokenizers import Tokenizer as Backend

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.tokenizer_json import MAX_ADDED, Component, SearchedToken, read_object
from bertsmith.validation import first_problem

ADDED_TOKENS = "added_tokens.json"
Kind = TypeVar("Kind", bound=Component)


class _Listed(Component):
    added_tokens_decoder: Annotated[dict[int, SearchedToken], Field(max_length=MAX_ADDED)]


class _Named(Component):
    added_tokens: Annotated[dict[Annotated[str, Field(min_length=1)], int], Field(max_length=MAX_ADDED)]


def read_added_tokens(folder: Path, config: dict[str, Any]) -> list[tuple[int, SearchedToken]]:
    """Their ids and they themselves; `config` is what tokenizer_config.json holds.

    Raises TokenizerError naming the first that is none.
    """
    listed = config.get("added_tokens_decoder")
    if listed is not None:
        content = _checked(_Listed, {"added_tokens_decoder": listed}, folder / "tokenizer_config.json")
        return list(content.added_tokens_decoder.items())
    path = folder / ADDED_TOKENS
    if not path.exists():
        return []
    named = _checked(_Named, {"added_tokens": read_object(path, "added tokens (token → id)")}, path)
    return [(number, _plain(token)) for token, number in named.added_tokens.items()]


def add_tokens(backend: Backend, added: list[tuple[int, SearchedToken]], special: dict[str, str]) -> None:
    """All but `special`, which the backend has, in the order of their ids, each the next free one."""
    in_order = [token for _, token in sorted(added, key=lambda each: each[0])]
    others = [token for token in in_order if token.content not in special.values()]
    backend.add_tokens([tokenizers.AddedToken(**token.model_dump()) for token in others])


def _plain(token: str) -> SearchedToken:
    """As transformers takes it: of an uncased tokenizer, text and token are compared in small letters."""
    return SearchedToken(
        content=token, special=False, single_word=False, lstrip=False, rstrip=False, normalized=True
    )


def _checked(kind: type[Kind], content: dict[str, Any], path: Path) -> Kind:
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise TokenizerError(f"{path}: {first_problem(error, kind)}") from None
