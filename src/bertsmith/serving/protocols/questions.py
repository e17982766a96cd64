"""Typed questions about a text, answered by fine-tuned heads: which model can, and what it says. System One's
and OpenAI's decisions are two ways to write such questions.

    question → head: by its name, the request's model, or the labels → one prediction a head → reply

n options of a question. Nothing is guessed: a question that no head answers exactly has a reason instead.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
from fastapi import Request

from bertsmith.arrays import Floats
from bertsmith.metrics.calibration import choice_confidence, score_confidence
from bertsmith.serving.models import Models
from bertsmith.serving.protocols.routing import ask, note
from bertsmith.serving.refusals import InvalidRequest, TooLong
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Answer, Service

DIGITS = 6  # of a probability, as it is written
ANY = "auto"  # the model of a request that leaves the choice to the service
_NAMED = ({"question", "context"}, {"text", "text_pair"}, {"text"})  # what a head reads as it is
_YES = ({"yes", "no"}, {"true", "false"}, {"1", "0"})
_SURE = ("yes", "true", "1")
_MOST_SHOWN = 8
_EVEN = 1e-9  # by which the steps between levels may differ, of a step


def type_of(question: Any) -> Any:
    """What tells a request's questions apart, as JSON or as pydantic's."""
    return question.get("type") if isinstance(question, dict) else getattr(question, "type", None)


@dataclass(frozen=True)
class HeadQuestion:
    """`kind`: whether a label holds, which of the `options` it is, or how far up these levels. `name` is what
    the client calls the question. `labels` are the texts that may name the label in question.
    """

    kind: Literal["label", "choice", "score"]
    name: str | None
    options: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeadReply:
    """`probabilities` (n,) of the options; of a label its own alone. `value`: the label's probability, the
    chosen option's number, or the mean level. `confidence` from 0 to 1.
    """

    value: float
    confidence: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Unanswerable:
    """Why no head here answers."""

    reason: str


@dataclass(frozen=True)
class Replies:
    """One a question, in their order, and whose they are. `tokens` were computed for them."""

    replies: Sequence[HeadReply | Unanswerable]
    models: Sequence[str]
    tokens: int
    answers: Sequence[Answer]

    def model(self, wanted: str | None) -> str:
        """What an answer says of its model: those that answered, else what the request said."""
        return ", ".join(self.models) or wanted or ""

    def headers(self, request: Request) -> dict[str, str]:
        """Of one head all that is known of its answer; of several how many tokens."""
        headers = [note(request, answer) for answer in self.answers]
        return headers[0] if len(headers) == 1 else {"x-compute-tokens": str(self.tokens)}


Read = Callable[[Mapping[str, Any]], HeadReply | Unanswerable]
Found = tuple[ServedModel, Read] | Unanswerable  # the head, and how its prediction is read


def find_heads(questions: Sequence[HeadQuestion], models: Models, wanted: str | None) -> list[Found]:
    """Of each question. `wanted` is the request's model. Raises UnknownModel for one that isn't here."""
    named = None if wanted in (None, ANY) and ANY not in [each.name for each in models] else wanted
    chosen = models[named] if named is not None else None
    return [_find(question, models, chosen) for question in questions]


async def ask_heads(
    service: Service,
    request: Request,
    heads: Sequence[Found],
    given: str | Mapping[str, Any] | Sequence[Any],
) -> Replies:
    """Each head once for all questions that it answers, all heads at the same time. One that reads columns
    beside its text gets an object as it is. Raises Refusal, but for an input that a head can't read: its
    questions have that as their reason.
    """
    as_text_or_pair = as_input(given)

    async def predict(model: ServedModel) -> Answer | Unanswerable:
        columns = getattr(model.opened, "column_names", ())
        read = dict(given) if columns and isinstance(given, Mapping) else as_text_or_pair
        try:
            return await ask(service, request, [read], model.name, "predict")
        except (InvalidRequest, TooLong) as refusal:
            return Unanswerable(refusal.message)

    models = {each[0].name: each[0] for each in heads if not isinstance(each, Unanswerable)}
    tasks = [asyncio.ensure_future(predict(model)) for model in models.values()]
    try:
        predicted = dict(zip(models, await asyncio.gather(*tasks), strict=True))
    finally:  # the first refusal that is of the whole request ends the others
        for task in tasks:
            task.cancel()
    replies = list[HeadReply | Unanswerable]()
    for each in heads:
        if isinstance(each, Unanswerable):
            replies.append(each)
            continue
        model, read = each
        answer = predicted[model.name]
        replies.append(answer if isinstance(answer, Unanswerable) else read(answer.results[0]))
    answers = [answer for answer in predicted.values() if not isinstance(answer, Unanswerable)]
    return Replies(replies, list(models), sum(answer.total_tokens for answer in answers), answers)


def as_input(state: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """What a head reads of a state: a text; a pair under its names; the only text of an object; else JSON,
    indented by two as System One's own client renders it. Raises InvalidRequest for JSON nested too deep.
    """
    if isinstance(state, str):
        return state
    if isinstance(state, Mapping):
        texts = list(state.values())
        if set(state) in _NAMED and all(isinstance(text, str) for text in texts):
            return dict(state)
        if len(texts) == 1 and isinstance(texts[0], str):
            return texts[0]
    return as_text(state)


def as_text(value: Any) -> str:
    """A text as it is, other JSON indented. Raises InvalidRequest for what is nested too deep."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"The JSON can't be read as text: {error}.") from error


def _find(question: HeadQuestion, models: Models, wanted: ServedModel | None) -> Found:
    """The head, and how its prediction is read."""
    own = next((model for model in models if model.name == question.name), None)
    if (model := own or wanted) is not None:
        read = _READERS[question.kind](question, model, own is not None)
        return read if isinstance(read, Unanswerable) else (model, read)
    able = []
    for model in models:
        if _has_labels(model) and not isinstance(
            read := _READERS[question.kind](question, model, False), Unanswerable
        ):
            able.append((model, read))
    if len(able) == 1:
        return able[0]
    if able:
        names = ", ".join(model.name for model, _ in able[:_MOST_SHOWN])
        return Unanswerable(
            f"{names} could each answer: call the question, or the model, by the name of one."
        )
    told = _listed(question.options or [each for each in (question.name, *question.labels) if each])
    return Unanswerable(
        f"No model here has the label{'s' if question.options else ''} {told or 'that is asked for'}. Call "
        "the question, or the model, by the name of a model that answers it."
    )


def _has_labels(model: ServedModel) -> bool:
    """Whether it says the probability of each label."""
    return model.opened is not None and model.opened.has_probabilities


def _read_label(question: HeadQuestion, model: ServedModel, own: bool) -> Read | Unanswerable:
    """The probability of a label that the question names, in its own case or in another. A head of yes and no
    that the question is named after answers yes.
    """
    if not _has_labels(model):
        return Unanswerable(
            f"{model.name} is a model for {model.task}: it has no label that holds or doesn't."
        )
    known, exact = _by_lower(model.labels), {label.strip(): label for label in model.labels}
    names = [name.strip() for name in (*question.labels, question.name or "")]
    meant = next((name for name in names if name in exact or name.lower() in known), None)
    found = None if meant is None else exact.get(meant, known.get(meant.lower()))
    if len(known) < len(exact) and meant not in exact and found is not None:
        return Unanswerable(f"{model.name} has labels that differ in case alone: name one as it is.")
    if found is None and own and set(known) in _YES:
        found = next(known[name] for name in _SURE if name in known)
    if found is None:
        return Unanswerable(
            f"The question doesn't say which label of {model.name} is meant: {_listed(model.labels)}. Call "
            "it by the label, or say the label in its criterion of true or as its instructions."
        )
    label = found

    def read(prediction: Mapping[str, Any]) -> HeadReply:
        probability = float(prediction["probabilities"][label])
        return HeadReply(probability, 1.0, (probability,))

    return read


def _read_choice(question: HeadQuestion, model: ServedModel, own: bool) -> Read | Unanswerable:
    if (problem := _differs(question, model)) is not None:
        return problem
    known = _by_lower(model.labels)

    def read(prediction: Mapping[str, Any]) -> HeadReply:
        shares = _shares(question.options, known, prediction)
        best = int(shares.argmax())
        return HeadReply(best, choice_confidence(shares), tuple(shares.tolist()))

    return read


def _read_score(question: HeadQuestion, model: ServedModel, own: bool) -> Read | Unanswerable:
    """Levels that are a head's classes, in the question's order; or numbers in even steps, on which a head's
    number has its place.
    """
    if model.opened is not None and model.opened.gives_score:
        return _read_number(question, model)
    if (problem := _differs(question, model)) is not None:
        return problem
    known = _by_lower(model.labels)

    def read(prediction: Mapping[str, Any]) -> HeadReply:
        return _mean(_shares(question.options, known, prediction))

    return read


def _read_number(question: HeadQuestion, model: ServedModel) -> Read | Unanswerable:
    """All probability is on the two levels beside the number, so that the mean level is its place. A number
    beyond the levels is at their end.
    """
    levels = _even_numbers(question.options)
    if levels is None:
        return Unanswerable(
            f"{model.name} gives a number: the levels must be numbers in even steps, low to high, found "
            f"{_listed(question.options)}."
        )
    first, step, last = levels[0], levels[1] - levels[0], len(levels) - 1

    def read(prediction: Mapping[str, Any]) -> HeadReply | Unanswerable:
        if "score" not in prediction:
            return Unanswerable(f"{model.name} gives classes and no number.")
        place = min(max((float(prediction["score"]) - first) / step, 0.0), float(last))
        below = min(int(place), last - 1)
        shares = np.zeros(last + 1)
        shares[below], shares[below + 1] = 1 - (place - below), place - below
        return _mean(shares)

    return read


_READERS: dict[str, Callable[[HeadQuestion, ServedModel, bool], Read | Unanswerable]] = {
    "label": _read_label,
    "choice": _read_choice,
    "score": _read_score,
}


def _mean(shares: Floats) -> HeadReply:
    value = float((np.arange(len(shares)) * shares).sum())
    return HeadReply(value, score_confidence(shares), tuple(shares.tolist()))


def _shares(options: Sequence[str], known: Mapping[str, str], prediction: Mapping[str, Any]) -> Floats:
    """(n,) calibrated probabilities, which sum to 1 although they were rounded."""
    probabilities = prediction["probabilities"]
    shares = np.array([probabilities[known[option.strip().lower()]] for option in options], np.float64)
    return np.asarray(shares / shares.sum())


def _differs(question: HeadQuestion, model: ServedModel) -> Unanswerable | None:
    """None where the options are the labels, in whatever order and case: only then nothing is left over."""
    if model.opened is None or not model.opened.has_probabilities or model.opened.activation != "softmax":
        return Unanswerable(f"{model.name} is a model for {model.task}: it doesn't choose one of several.")
    options = [option.strip().lower() for option in question.options]
    if sorted(options) == sorted(label.strip().lower() for label in model.labels):
        if len(set(options)) == len(options):
            return None
        return Unanswerable(f"{model.name} has labels that differ in case alone: ask its own route.")
    return Unanswerable(
        f"{model.name} has the labels {_listed(model.labels)}; the question has {_listed(question.options)}. "
        "The options must be its labels, all of them and no other."
    )


def _by_lower(labels: Iterable[str]) -> dict[str, str]:
    return {label.strip().lower(): label for label in labels}


def _even_numbers(levels: Sequence[str]) -> list[float] | None:
    try:
        numbers = np.array([float(level) for level in levels])
    except ValueError:
        return None
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        return None
    steps = np.diff(numbers)
    even = steps[0] > 0 and np.abs(steps - steps[0]).max() <= _EVEN * abs(steps[0])
    return list(numbers.tolist()) if even else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(repr(name[:40]) for name in names[:_MOST_SHOWN]) + more
