"""look: explains a model's answer to one input, by attributions, attention and a word's neighbours, as a
value or as one interactive page.
"""

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.argument_checks import (
    check_arguments,
    check_function,
    check_path,
    check_text,
    instance_of,
    optional,
)
from bertsmith.errors import InputError
from bertsmith.files import output_file, require_output
from bertsmith.inference.explaining.attribution import AttentionWeights, Explainer, TokenAttributions
from bertsmith.inference.explaining.word_neighbours import WordNeighbours, find_word, word_neighbours
from bertsmith.inference.features import Features
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.reporting.page import inline_scripts, inline_style, render_page
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.pieces import describe_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Look:
    """What `look` found. `attributions` is None if the model has no answer to the input: an embedding model
    for a single text, or a masked language model for a text without a mask. `neighbours` is None unless a
    word was given.
    """

    model: str
    given: Any
    tokenizer: Tokenizer
    attention: AttentionWeights
    attributions: TokenAttributions | None
    neighbours: WordNeighbours | None

    @check_arguments(path=check_path)
    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes one self-contained interactive page. Raises InputError if `path` exists, unless
        `overwrite`.
        """
        require_output(path, overwrite, [locate_model(self.model).folder])
        page = render_look(self)
        with output_file(path) as file:
            file.write(page.encode())


@check_arguments(
    model=check_path,
    target=optional(instance_of(str, int)),
    word=optional(check_text),
    task=optional(instance_of(type)),
    progress=optional(check_function),
)
def look(
    model: str | Path,
    given: Any,
    *,
    target: str | int | None = None,
    word: str | None = None,
    among: Iterable[str] | None = None,
    task: type[Task[Any]] | None = None,
    progress: Progress | None = None,
) -> Look:
    """Opens a model and explains its answer to `given`: a text, a pair, (question, passage), words, a text
    with a mask, or (query, document), whichever the model reads.

    `target` is a class, a token of the vocabulary or a word's number to explain instead of the answer.
    `word`, a word of the text, is compared with the words of the texts `among` in every layer; these texts
    are read lazily. `task` is the task's class if you wrote it yourself. Raises InputError for an input that
    the model doesn't read, ModelError as loading does.

    >>> found = look("runs/clauses/model", "The court granted the motion.")
    >>> found.attributions.target, found.attention.weights.shape
    >>> found.save("motion.html")
    """
    if (word is None) != (among is None):
        raise InputError(
            "word and among go together: a word of the text, and texts to find its neighbours in."
        )
    if isinstance(among, str) or (among is not None and not isinstance(among, Iterable)):
        raise InputError(f"among must be texts to find neighbours in, found {type(among).__name__}.")
    if word is not None and not isinstance(given, str):
        raise InputError(f"A word's neighbours are found for a single text, found {type(given).__name__}.")
    features = None
    if word is not None:  # first, so that a missing word is refused before anything is computed
        features = Features(model, pooling="words")
        find_word(word, given)
    explainer = Explainer(model, as_vectors=_has_no_answer(model, given), task=task)
    attributions = None
    is_pair = isinstance(given, list | tuple) and len(given) == 2
    if not explainer.model.is_of_vectors or is_pair:
        attributions = explainer.attributions(given, target)
    elif target is not None:
        raise InputError(f"target: there is no answer to explain, found {target!r}. Leave it out.")
    attention = explainer.attention(given)
    neighbours = None
    if features is not None and word is not None and among is not None:
        neighbours = word_neighbours(features, given, word, among, progress=progress)
    return Look(str(model), given, explainer.model.tokenizer, attention, attributions, neighbours)


def _has_no_answer(model: str | Path, given: Any) -> bool:
    """Whether the model is a masked language model and the text has no mask: then only attention is shown."""
    folder = locate_model(model).folder
    if model_kind(folder) != "masked-language" or not isinstance(given, str):
        return False
    tokenizer = Tokenizer.load(folder)
    return tokenizer.mask_id not in tokenizer.encode(given, read_special_tokens=True).ids


def render_look(result: Look) -> str:
    """Renders the page, one file that loads nothing else. Texts are escaped. The same look gives the same
    bytes.
    """
    layers, heads = result.attention.weights.shape[:2]
    small = result.attention.thumbnails()
    attention = {
        "tokens": describe_tokens(result.tokenizer, result.attention.token_ids),
        "layers": layers,
        "heads": heads,
        "side": small.shape[-1],
        "weights": _encode_base64(result.attention.in_two_bytes()),
        "pictures": _encode_base64(small),
    }
    data = {
        "attention": attention,
        "attributions": result.attributions and _attributions_as_json(result.attributions, result.tokenizer),
        "neighbours": result.neighbours and _neighbours_as_json(result.neighbours),
    }
    return render_page(
        "look.html.jinja",
        model=result.model,
        given=_input_heading(result.given),
        data=data,
        style=inline_style("paper.css"),
        script=inline_scripts("dom.js", "attributions.js", "attention.js", "look.js"),
    )


def _attributions_as_json(result: TokenAttributions, tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = describe_tokens(tokenizer, result.token_ids)
    scores = result.scores.tolist()
    return {
        "target": result.target,
        "value": result.value,
        "baseline_value": result.baseline_value,
        "steps": result.steps,
        "error": result.error,
        "tokens": [token | {"score": score} for token, score in zip(tokens, scores, strict=True)],
    }


def _neighbours_as_json(result: WordNeighbours) -> dict[str, Any]:
    return {
        "word": result.word,
        "before": result.before,
        "after": result.after,
        "layers": [[vars(neighbour) for neighbour in layer] for layer in result.layers],
    }


def _input_heading(given: Any) -> str:
    """The input as one line: its text or texts, and the columns beside them."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        texts = [str(given[role]) for role in ("text", "text_pair") if role in given]
        cells = [f"{name}: {cell}" for name, cell in given.items() if name not in ("text", "text_pair")]
        return " · ".join([*texts, *cells])
    return " · ".join(map(str, given))


def _encode_base64(numbers: npt.NDArray[Any]) -> str:
    """Compresses an array's bytes by zlib and encodes them in base64, for a page's scripts."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(numbers).tobytes(), 6)).decode("ascii")
