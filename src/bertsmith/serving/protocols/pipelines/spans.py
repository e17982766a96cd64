"""token-classification: the entities of a text, and question-answering: the answer in a passage."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from bertsmith.metrics.entities import Span
from bertsmith.serving.protocols.pipelines.pipeline import Asked
from bertsmith.serving.refusals import InvalidRequest, Unsupported
from bertsmith.serving.service import Answer
from bertsmith.text.tokens.tokenizer import without_surrogates

_OUTSIDE = "O"
_WHOLE_WORDS = ("simple", "first")


async def classify_tokens(asked: Asked) -> tuple[Any, Answer]:
    """[{"entity_group", "score", "word", "start", "end"}], in characters; with `aggregation_strategy` none
    one for each word: [{"entity", "score", "index", "word", "start", "end"}]. A word has one tag, which is
    read from its first piece: simple and first are the same.
    """
    asked.require_known(("aggregation_strategy", "ignore_labels"))
    strategy = asked.parameters.get("aggregation_strategy", "simple")
    if strategy != "none" and strategy not in _WHOLE_WORDS:
        raise Unsupported(
            f"aggregation_strategy = {str(strategy)[:80]!r} isn't done here: a word's tag is read from its "
            "first piece. Say simple, first or none."
        )
    ignored = asked.texts("ignore_labels")
    texts = asked.listed()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs must be a text, or a list of texts.")
    answer = await asked.answer(texts, "predict")
    make = _words if strategy == "none" else _groups
    hidden = {_OUTSIDE} if ignored is None else set(ignored)
    found = []
    for text, prediction in zip(texts, answer.results, strict=True):
        if "tags" not in prediction:
            raise Unsupported(f"{asked.model.name} is a model for {asked.model.task}: it tags no words.")
        found.append(make(text, prediction, hidden))
    return found[0] if asked.one else found, answer


def _words(text: str, prediction: Mapping[str, Any], hidden: set[str]) -> list[dict[str, Any]]:
    offsets = _offsets(text, prediction["words"])
    each = zip(prediction["tags"], prediction["confidence"], offsets, strict=True)
    return [
        {"entity": tag, "score": score, "index": index, "word": text[start:end], "start": start, "end": end}
        for index, (tag, score, (start, end)) in enumerate(each, 1)
        if tag not in hidden
    ]


def _groups(text: str, prediction: Mapping[str, Any], hidden: set[str]) -> list[dict[str, Any]]:
    """The score of several words is the mean of theirs."""
    offsets, confidence = _offsets(text, prediction["words"]), prediction["confidence"]
    found = []
    for span in _spans(prediction, offsets):
        if span.label in hidden:
            continue
        start, end = offsets[span.start][0], offsets[span.end - 1][1]
        score = math.fsum(confidence[span.start : span.end]) / (span.end - span.start)
        found.append(
            {"entity_group": span.label, "score": score, "word": text[start:end], "start": start, "end": end}
        )
    return found


def _offsets(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """(start, end) in characters of words that stand in a text in this order."""
    text, found, end = without_surrogates(text), list[tuple[int, int]](), 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        found.append((start, end))
    return found


def _spans(prediction: Mapping[str, Any], offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Entities and what lies between them, in words; where there is none the runs of equal tags."""
    entities = prediction["entities"]
    if not entities:
        return _runs(prediction["tags"])
    starts = [start for start, _ in offsets]
    labels: list[Any] = [None] * len(offsets)
    for number, entity in enumerate(entities):
        start, end = (bisect_left(starts, entity[side]) for side in ("start", "end"))
        labels[start:end] = [number] * (end - start)
    return [
        run._replace(label=_OUTSIDE if run.label is None else entities[run.label]["label"])
        for run in _runs(labels)
    ]


def _runs(labels: Sequence[Any]) -> list[Span]:
    found, at = [], 0
    for label, equal in groupby(labels):
        count = len(list(equal))
        found.append(Span(label, at, at + count))
        at += count
    return found


async def answer_questions(asked: Asked) -> tuple[Any, Answer]:
    """{"score", "start", "end", "answer"}; the answer of a model that learnt to give none may be "", its
    score the probability that there is none.
    """
    asked.require_known(("top_k", "handle_impossible_answer"))
    may_be_none = asked.flag("handle_impossible_answer")
    if asked.whole_number("top_k") not in (None, 1):
        raise Unsupported("top_k above 1 isn't done here: the best answer alone is given.")
    answer = await asked.answer(asked.listed(), "predict")
    found = []
    for prediction in answer.results:
        if "null_odds" not in prediction:
            raise Unsupported(
                f"{asked.model.name} is a model for {asked.model.task}: it answers no questions."
            )
        if may_be_none is False and prediction["start"] is None:
            raise Unsupported(
                f"{asked.model.name} finds no answer in a passage, and handle_impossible_answer = false asks "
                "for one all the same, which isn't done here. Leave it out."
            )
        found.append(_shown(prediction))
    return found[0] if asked.one else found, answer


def _shown(prediction: Mapping[str, Any]) -> dict[str, Any]:
    if prediction["start"] is None:
        score = 0.5 + 0.5 * math.tanh(prediction["null_odds"] / 2)
        return {"score": score, "start": 0, "end": 0, "answer": ""}
    return {
        "score": prediction["confidence"],
        **{name: prediction[name] for name in ("start", "end", "answer")},
    }
