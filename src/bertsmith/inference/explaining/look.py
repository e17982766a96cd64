"""`look`: one input and a model, and what there is to see: attributions, attention, a word's neighbours."""

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.door import door, function, kind, optional, place, text
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
from bertsmith.text.tokens.pieces import shown_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Look:
    """What was found. `attributions` is None where a model has no answer to this input: an encoder of vectors
    alone and one text, or a masked language model and a text without a mask. `neighbours` is None unless a
    word was asked for.
    """

    model: str
    given: Any
    tokenizer: Tokenizer
    attention: AttentionWeights
    attributions: TokenAttributions | None
    neighbours: WordNeighbours | None

    @door(path=place)
    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """As one interactive page that needs nothing else. Raises InputError for what is there already."""
        require_output(path, overwrite, [locate_model(self.model).folder])
        page = render_look(self)
        with output_file(path) as file:
            file.write(page.encode())


@door(
    model=place,
    target=optional(kind(str, int)),
    word=optional(text),
    task=optional(kind(type)),
    progress=optional(function),
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
    """Opens a model and looks at what it makes of `given`: a text, a pair, (question, passage), words, a text
    with a mask, or (query, document), as the model reads.

    `target` is a class, a piece of the vocabulary or a word's number to explain instead of the answer. `word`
    of the text is shown beside the words of the texts `among`, layer by layer; they are read as they come.
    `task` is for a model of a task of your own.
    Raises InputError for what the model doesn't read, ModelError.

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
    if word is not None:  # what can't be found is said before anything is computed
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
    """A masked language model's text without a mask is read for its attention alone."""
    folder = locate_model(model).folder
    if model_kind(folder) != "masked-language" or not isinstance(given, str):
        return False
    tokenizer = Tokenizer.load(folder)
    return tokenizer.mask_id not in tokenizer.encode(given, read_special_tokens=True).ids


def render_look(found: Look) -> str:
    """The page as text, in one file that fetches nothing; whatever the texts hold is escaped. The same look
    gives the same bytes.
    """
    layers, heads = found.attention.weights.shape[:2]
    small = found.attention.thumbnails()
    attention = {
        "tokens": shown_tokens(found.tokenizer, found.attention.token_ids),
        "layers": layers,
        "heads": heads,
        "side": small.shape[-1],
        "weights": _encode_base64(found.attention.in_two_bytes()),
        "pictures": _encode_base64(small),
    }
    data = {
        "attention": attention,
        "attributions": found.attributions and _attributions_as_json(found.attributions, found.tokenizer),
        "neighbours": found.neighbours and _neighbours_as_json(found.neighbours),
    }
    return render_page(
        "look.html.jinja",
        model=found.model,
        given=_input_heading(found.given),
        data=data,
        style=inline_style("paper.css"),
        script=inline_scripts("dom.js", "attributions.js", "attention.js", "look.js"),
    )


def _attributions_as_json(found: TokenAttributions, tokenizer: Tokenizer) -> dict[str, Any]:
    shown = shown_tokens(tokenizer, found.token_ids)
    scores = found.scores.tolist()
    return {
        "target": found.target,
        "value": found.value,
        "baseline_value": found.baseline_value,
        "steps": found.steps,
        "error": found.error,
        "tokens": [each | {"score": score} for each, score in zip(shown, scores, strict=True)],
    }


def _neighbours_as_json(found: WordNeighbours) -> dict[str, Any]:
    return {
        "word": found.word,
        "before": found.before,
        "after": found.after,
        "layers": [[vars(each) for each in layer] for layer in found.layers],
    }


def _input_heading(given: Any) -> str:
    """What was looked at: a text, several, or a text with the columns beside it."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        texts = [str(given[role]) for role in ("text", "text_pair") if role in given]
        cells = [f"{name}: {cell}" for name, cell in given.items() if name not in ("text", "text_pair")]
        return " · ".join([*texts, *cells])
    return " · ".join(map(str, given))


def _encode_base64(numbers: npt.NDArray[Any]) -> str:
    """Deflated bytes in base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(numbers).tobytes(), 6)).decode("ascii")
