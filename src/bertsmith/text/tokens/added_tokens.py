"""Reads the tokens that were added to a vocabulary, from every file in which transformers keeps them.

tokenizer.json            added_tokens: the tokens, and how texts are searched for them
tokenizer_config.json     added_tokens_decoder, since 4.34: id → the same; it wins over tokenizer.json
                          extra_special_tokens, formerly additional_special_tokens: names of special tokens
added_tokens.json         token → id; read only if the settings have no added_tokens_decoder
"""

import json
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tokenizers
from pydantic import Field, ValidationError
from tokenizers import Tokenizer as Backend

from bertsmith.errors import TokenizerError
from bertsmith.text.tokens.tokenizer_json import MAX_ADDED, AddedToken, Component, SearchedToken, read_object
from bertsmith.validation import describe_problem

ADDED_TOKENS = "added_tokens.json"
#: The settings' keys for special tokens without a role: the current one, and that before transformers 5.
EXTRA_SPECIAL_TOKENS = ("extra_special_tokens", "additional_special_tokens")
ComponentType = TypeVar("ComponentType", bound=Component)


class _AddedTokensDecoder(Component):
    added_tokens_decoder: Annotated[dict[int, SearchedToken], Field(max_length=MAX_ADDED)]


class _AddedTokensMap(Component):
    added_tokens: Annotated[dict[Annotated[str, Field(min_length=1)], int], Field(max_length=MAX_ADDED)]


class _ExtraSpecialTokens(Component):
    extra_special_tokens: Annotated[list[SearchedToken], Field(max_length=MAX_ADDED)]


def read_added_tokens(
    folder: Path,
    config: dict[str, Any],
    file_tokens: Iterable[dict[str, Any]],
    vocabulary: Mapping[str, int],
) -> list[AddedToken]:
    """All added tokens of a folder in the order of their ids.

    `config` is the content of tokenizer_config.json, `file_tokens` the added_tokens of tokenizer.json, and
    `vocabulary` maps the model's own tokens to their ids: an added token without an id gets the next free
    one. Raises TokenizerError, which names the first entry that is no token.
    """
    decoder = config.get("added_tokens_decoder")
    extra = _read_extra_tokens(config, EXTRA_SPECIAL_TOKENS, folder)
    from_file = [AddedToken.model_validate(token) for token in file_tokens]
    if decoder is not None:
        content = _validate(
            _AddedTokensDecoder, {"added_tokens_decoder": decoder}, folder / "tokenizer_config.json"
        )
        from_settings = content.added_tokens_decoder.items()
        added = [*from_file, *(AddedToken(id=number, **dict(token)) for number, token in from_settings)]
    else:
        special_names = {
            token.content for token in _read_extra_tokens(config, EXTRA_SPECIAL_TOKENS[:1], folder)
        }
        added = [*_read_older_versions(folder, special_names.union(list_named_tokens(config))), *from_file]
    tokens = {token.content: token for token in added}
    extra += [_make_special_token(name) for name in list_named_tokens(config) if name in vocabulary]
    free_ids = count(max([*vocabulary.values(), *(token.id for token in added)], default=-1) + 1)
    for token in extra:
        if token.content not in tokens:
            number = vocabulary[token.content] if token.content in vocabulary else next(free_ids)
            tokens[token.content] = AddedToken(id=number, **dict(token))
    return sorted(tokens.values(), key=lambda token: token.id)


def add_tokens(backend: Backend, added: list[AddedToken], special: dict[str, str]) -> None:
    """Adds tokens to the backend in the given order, each under the next free id.

    The tokens of the five roles in `special` are left out: the backend has them already.
    """
    others = [token for token in added if token.content not in special.values()]
    backend.add_tokens([tokenizers.AddedToken(**token.model_dump(exclude={"id"})) for token in others])


def require_searchable(backend: Backend, path: Path) -> None:
    """Raises TokenizerError for added tokens that make the library split every character, or panic."""
    normalizer, tokens = backend.normalizer, backend.get_added_tokens_decoder().values()
    # Normalized tokens and the others are searched for separately.
    strip_right = {token.normalized for token in tokens if token.rstrip}
    for token in tokens:
        spelling = token.content
        if token.normalized and normalizer is not None:
            spelling = normalizer.normalize_str(spelling)
        if not spelling:
            raise TokenizerError(
                f"{path}: the tokenizer's rules leave nothing of the added token {token.content!r}, which is "
                "therefore found between any two characters of a text. Set its `normalized` to false, or "
                "remove it."
            )
        if token.lstrip and not token.rstrip and token.normalized in strip_right and spelling.isspace():
            raise TokenizerError(
                f"{path}: the added token {token.content!r} is white space and takes that in front of it "
                "(lstrip), which another takes that stands before it (rstrip): the tokenizers library stops "
                "at some texts. Set one of them to false."
            )


def _read_older_versions(folder: Path, special: set[str]) -> list[AddedToken]:
    """The tokens of added_tokens.json, which doesn't say how texts are searched for them.

    As in transformers, a token that isn't among the names `special` is searched for in the normalized text,
    so in lower case by an uncased tokenizer.
    """
    path = folder / ADDED_TOKENS
    if not path.exists():
        return []
    file_content = _validate(
        _AddedTokensMap, {"added_tokens": read_object(path, "added tokens (token → id)")}, path
    )
    tokens = [(_make_special_token(name), number) for name, number in file_content.added_tokens.items()]
    return [
        AddedToken(id=number, **dict(token) | ({} if token.content in special else _PLAIN))
        for token, number in tokens
    ]


def _read_extra_tokens(config: dict[str, Any], keys: tuple[str, ...], folder: Path) -> list[SearchedToken]:
    """The special tokens without a role, from the first of `keys` that the settings have.

    They are a list or, in some folders, an object whose values are the tokens. Raises TokenizerError for
    anything else.
    """
    declared: Any = next(filter(None, map(config.get, keys)), [])
    values = declared.values() if isinstance(declared, dict) else declared
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TokenizerError(
            f"{folder / 'tokenizer_config.json'}: extra_special_tokens is {declared!r}; expected a list."
        )
    defaults = dict(_make_special_token("?")) | {"content": None}
    tokens = [
        defaults | {"content": value}
        if not isinstance(value, dict)
        else defaults | {key: flag for key, flag in value.items() if key != "__type"} | {"special": True}
        for value in values
    ]
    return _validate(
        _ExtraSpecialTokens, {"extra_special_tokens": tokens}, folder / "tokenizer_config.json"
    ).extra_special_tokens


def list_named_tokens(config: dict[str, Any]) -> list[str]:
    """The tokens that the settings name by a role: the values of all keys that end with "_token"."""
    values = (value for key, value in config.items() if key.endswith("_token"))
    contents = (value.get("content") if isinstance(value, dict) else value for value in values)
    return [content for content in contents if isinstance(content, str)]


_PLAIN = {"special": False, "normalized": True}


def _make_special_token(token: str) -> SearchedToken:
    """A special token known only by its name, with the flags that transformers gives such tokens."""
    return SearchedToken(
        content=token, special=True, single_word=False, lstrip=False, rstrip=False, normalized=False
    )


def _validate(model_class: type[ComponentType], content: dict[str, Any], path: Path) -> ComponentType:
    try:
        return model_class.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise TokenizerError(f"{path}: {describe_problem(error, model_class)}") from None
