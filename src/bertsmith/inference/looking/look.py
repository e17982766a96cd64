"""`look`: one input and a model, and what there is to see: attributions, attention, a word's neighbours."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.door import door, function, kind, optional, place, text
from bertsmith.errors import InputError
from bertsmith.files import output_file, require_output
from bertsmith.inference.attribution import AttentionWeights, Explainer, TokenAttributions
from bertsmith.inference.features import Features
from bertsmith.inference.looking.report import render_look
from bertsmith.inference.looking.word_neighbours import WordNeighbours, place_of, word_neighbours
from bertsmith.model.locate import locate_model
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.task import Task
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
        page = render_look(
            self.model, self.given, self.tokenizer, self.attention, self.attributions, self.neighbours
        )
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
        place_of(word, given)
    explainer = Explainer(model, as_vectors=_has_no_answer(model, given), task=task)
    attributions = None
    if not explainer.model.is_of_vectors or _is_pair(given):
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


def _is_pair(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) == 2
