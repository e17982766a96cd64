"""A tokenizer by the files in its folder: of text, of patches, or of a table's numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import read_json
from bertsmith.text.tokens.number_tokenizer import NUMBERS, NumberScales, NumberTokenizer
from bertsmith.text.tokens.patch_tokenizer import PATCHES, PatchShape, PatchTokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import Strict, first_problem

VALUE_FILES = (PATCHES, NUMBERS)  # beside tokenizer.json, where tokens carry values
Settings = TypeVar("Settings", bound=Strict)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Raises TokenizerError for files that are cut, altered, or don't belong together."""
    tokenizer, folder = Tokenizer.load(folder), Path(folder)
    if (folder / PATCHES).is_file():
        return _made(tokenizer, folder / PATCHES, PatchShape, PatchTokenizer.of)
    if (folder / NUMBERS).is_file():
        return _made(tokenizer, folder / NUMBERS, NumberScales, NumberTokenizer.of)
    return tokenizer


def _made(
    tokenizer: Tokenizer,
    path: Path,
    settings: type[Settings],
    make: Callable[[Tokenizer, Settings], Tokenizer],
) -> Tokenizer:
    try:
        found = settings.model_validate(read_json(path))
    except (ValidationError, InputError) as error:
        problem = first_problem(error, settings) if isinstance(error, ValidationError) else str(error)
        raise TokenizerError(f"{path} was cut or altered: {problem}") from error
    return make(tokenizer, found)
