"""Texts that nobody wrote, for a teacher to answer where there are few to learn from.

Words are left out or taken from other texts (after Tang et al. 2019, arXiv 1903.12136, section 3.2), and
beginnings of texts stand before the ends of others. What such a text is the teacher alone can say; that it
says it softly, and of many, is what a student learns from. A pair's texts are changed each for itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from bertsmith.errors import RecipeError
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.tagged_example import TaggedExample
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.multi_label import MultiLabel
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.similarity import Similarity
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Task
from bertsmith.text.tokens.patch_tokenizer import PatchTokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer

_LEFT_OUT, _FOREIGN = 0.1, 0.1  # of words


def require_words(task: Task[Any], tokenizer: Tokenizer) -> None:
    """Raises RecipeError for a task whose texts would be none any more, or would have no answer."""
    answered = isinstance(task, Classification | MultiLabel | Regression | Similarity | Tagging)
    if not answered or isinstance(tokenizer, PatchTokenizer):
        what = "a model of patches" if isinstance(tokenizer, PatchTokenizer) else f"{task.name}"
        raise RecipeError(
            f"augment is for classes, labels, numbers, similarity and tags of texts, and not for {what}: "
            "leave it out, and give more --texts."
        )


def invented_examples(examples: Sequence[Any], times: int, seed: int) -> list[Any]:
    """`times` as many as there are examples, without labels; the same for the same seed. Of single texts
    every second one is of two.
    """
    if not times:
        return []
    random = Random(seed)
    words = [word for example in examples for part in _parts(example) for word in part]
    made = []
    for turn in range(times if words else 0):
        for number, example in enumerate(examples):
            parts = _parts(example)
            if len(parts) == 1 and (turn + number) % 2:
                (other,) = _parts(random.choice(examples))[:1]
                parts = [_joined(parts[0], other, random)]
            else:
                parts = [_changed(part, words, random) for part in parts]
            made.append(_with(example, parts))
    return made


def _parts(example: Any) -> list[list[str]]:
    """The words of each of its texts."""
    if isinstance(example, TaggedExample):
        return [list(example.words)]
    assert isinstance(example, TextExample)
    return [text.split() for text in (example.text, example.text_pair) if text is not None]


def _joined(first: list[str], second: list[str], random: Random) -> list[str]:
    """A beginning, of one word at least, and an end."""
    before = first[: max(round(len(first) * random.random()), 1)]
    return before + second[int(len(second) * random.random()) :]


def _changed(part: list[str], words: Sequence[str], random: Random) -> list[str]:
    """As it was where nothing would be left."""
    found = []
    for word in part:
        drawn = random.random()
        if drawn >= _LEFT_OUT:
            found.append(random.choice(words) if drawn < _LEFT_OUT + _FOREIGN else word)
    return found or part


def _with(example: Any, parts: Sequence[list[str]]) -> Any:
    if isinstance(example, TaggedExample):
        return TaggedExample(tuple(parts[0]), None, example.where)
    text, *pair = map(" ".join, parts)
    return replace(example, text=text, text_pair=pair[0] if pair else None, label=None, id=None)
