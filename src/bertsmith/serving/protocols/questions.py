"""Typed questions about a text, answered by fine-tuned heads: finds the model that can answer, and reads its
prediction. System One and OpenAI's decisions are two APIs for such questions.

    question → head: by its name, the request's model, or the labels → one prediction a head → reply

n options of a question. Nothing is guessed: a question that no head answers exactly gets the reason instead.
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
from bertsmith.serving.refusals import InvalidRequest, TextTooLong
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service, ServiceAnswer

DIGITS = 6  # to which probabilities are rounded
ANY = "auto"  # the model of a request that leaves the choice to the service
_INPUT_KEYS = ({"question", "context"}, {"text", "text_pair"}, {"text"})  # of objects that heads read as such
_YES_NO_LABELS = ({"yes", "no"}, {"true", "false"}, {"1", "0"})
_POSITIVE = ("yes", "true", "1")
_MOST_NAMES = 8
_TOLERANCE = 1e-9  # by which the steps between levels may differ, of a step


def question_type(question: Any) -> Any:
    """The `type` of a question, from JSON or from a pydantic object. It is pydantic's discriminator: it
    chooses the model class that parses the question.
    """
    return question.get("type") if isinstance(question, dict) else getattr(question, "type", None)


@dataclass(frozen=True)
class HeadQuestion:
    """A question for a head. `kind`: whether a label holds, which of the `options` is right, or a score on
    the `options` as levels. `name` is the client's name for the question. `label_candidates`: texts of the
    request, such as its instructions, that may be equal to the name of the head's label.
    """

    kind: Literal["label", "choice", "score"]
    name: str | None
    options: tuple[str, ...] = ()
    label_candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeadReply:
    """A head's reply. `probabilities` (n,) of the options, or of the label alone. `value`: the label's
    probability, the index of the chosen option, or the mean level. `confidence` from 0 to 1.
    """

    value: float
    confidence: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class NoAnswer:
    """The reason why no head answers a question exactly."""

    reason: str


@dataclass(frozen=True)
class HeadReplies:
    """The replies to a request's questions, in order, the `models` that were asked, the `tokens` that were
    computed, and the service's answer of each model, from which several questions may have a reply.
    """

    replies: Sequence[HeadReply | NoAnswer]
    models: Sequence[str]
    tokens: int
    service_answers: Sequence[ServiceAnswer]

    def model(self, requested: str | None) -> str:
        """The `model` of the response: the models that were asked, else the one that the request named."""
        return ", ".join(self.models) or requested or ""

    def headers(self, request: Request) -> dict[str, str]:
        """Records each head's answer for metrics, log and trace (`note`), and returns the response's headers:
        all of `note` for one head, the tokens alone for several.
        """
        headers = [note(request, answer) for answer in self.service_answers]
        return headers[0] if len(headers) == 1 else {"x-compute-tokens": str(self.tokens)}


PredictionReader = Callable[[Mapping[str, Any]], HeadReply | NoAnswer]
HeadOrReason = tuple[ServedModel, PredictionReader] | NoAnswer  # the head, and how its prediction is read


def find_heads(
    questions: Sequence[HeadQuestion], models: Models, requested: str | None
) -> list[HeadOrReason]:
    """The head for each question, or a reason. `requested` is the request's model; "auto" leaves the choice
    open, unless a model has that name. Raises UnknownModel.
    """
    name = None if requested in (None, ANY) and ANY not in [model.name for model in models] else requested
    chosen = models[name] if name is not None else None
    return [_find_head(question, models, chosen) for question in questions]


async def ask_heads(
    service: Service,
    request: Request,
    heads: Sequence[HeadOrReason],
    state: str | Mapping[str, Any] | Sequence[Any],
) -> HeadReplies:
    """Runs each head once for all its questions, all heads concurrently. `state` (System One's word) is the
    input that the questions are about. A head that reads further columns gets an object as it is.

    Raises Refusal, except for an input that one head can't read: its questions get that as their reason.
    """
    text_or_pair = as_input(state)

    async def predict(model: ServedModel) -> ServiceAnswer | NoAnswer:
        columns = getattr(model.head_task, "column_names", ())
        input_ = dict(state) if columns and isinstance(state, Mapping) else text_or_pair
        try:
            return await ask(service, request, [input_], model.name, "predict")
        except (InvalidRequest, TextTooLong) as refusal:
            return NoAnswer(refusal.message)

    models = {head[0].name: head[0] for head in heads if not isinstance(head, NoAnswer)}
    tasks = [asyncio.ensure_future(predict(model)) for model in models.values()]
    try:
        predicted = dict(zip(models, await asyncio.gather(*tasks), strict=True))
    finally:  # the first refusal of the whole request ends the other heads
        for task in tasks:
            task.cancel()
    replies = list[HeadReply | NoAnswer]()
    for head in heads:
        if isinstance(head, NoAnswer):
            replies.append(head)
            continue
        model, read = head
        answer = predicted[model.name]
        replies.append(answer if isinstance(answer, NoAnswer) else read(answer.results[0]))
    answers = [answer for answer in predicted.values() if not isinstance(answer, NoAnswer)]
    return HeadReplies(replies, list(models), sum(answer.total_tokens for answer in answers), answers)


def as_input(state: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """The input that a head reads for a `state`: a text; a pair under its names; the only text of an object;
    else JSON, indented by two as System One's own client renders it. Raises InvalidRequest for JSON nested
    too deep.
    """
    if isinstance(state, str):
        return state
    if isinstance(state, Mapping):
        texts = list(state.values())
        if set(state) in _INPUT_KEYS and all(isinstance(text, str) for text in texts):
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


def _find_head(question: HeadQuestion, models: Models, requested_model: ServedModel | None) -> HeadOrReason:
    """The head for a question and its reader: by name, by the request's model, or the only one with the
    labels.
    """
    namesake = next((model for model in models if model.name == question.name), None)
    if (model := namesake or requested_model) is not None:
        read = _READERS[question.kind](question, model, namesake is not None)
        return read if isinstance(read, NoAnswer) else (model, read)
    candidates = []
    for model in models:
        if _gives_label_probabilities(model) and not isinstance(
            read := _READERS[question.kind](question, model, False), NoAnswer
        ):
            candidates.append((model, read))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(model.name for model, _ in candidates[:_MOST_NAMES])
        return NoAnswer(f"{names} could each answer: call the question, or the model, by the name of one.")
    names = _quote(question.options or [name for name in (question.name, *question.label_candidates) if name])
    return NoAnswer(
        f"No model here has the label{'s' if question.options else ''} {names or 'that is asked for'}. Call "
        "the question, or the model, by the name of a model that answers it."
    )


def _gives_label_probabilities(model: ServedModel) -> bool:
    """Whether the model gives the probability of each label."""
    return model.head_task is not None and model.head_task.has_probabilities


def _make_label_reader(
    question: HeadQuestion, model: ServedModel, is_named: bool
) -> PredictionReader | NoAnswer:
    """Reads the probability of the label that the question names, in any case. If the question has the
    model's name (`is_named`) and the labels are yes and no, the label is yes.
    """
    if not _gives_label_probabilities(model):
        return NoAnswer(f"{model.name} is a model for {model.task}: it has no label that holds or doesn't.")
    known, exact = _index_by_lowercase(model.labels), {label.strip(): label for label in model.labels}
    names = [name.strip() for name in (*question.label_candidates, question.name or "")]
    name_found = next((name for name in names if name in exact or name.lower() in known), None)
    label_found = None if name_found is None else exact.get(name_found, known.get(name_found.lower()))
    if len(known) < len(exact) and name_found not in exact and label_found is not None:
        return NoAnswer(f"{model.name} has labels that differ in case alone: name one as it is.")
    if label_found is None and is_named and set(known) in _YES_NO_LABELS:
        label_found = next(known[name] for name in _POSITIVE if name in known)
    if label_found is None:
        return NoAnswer(
            f"The question doesn't say which label of {model.name} is meant: {_quote(model.labels)}. Call "
            "it by the label, or say the label in its criterion of true or as its instructions."
        )
    label = label_found

    def read(prediction: Mapping[str, Any]) -> HeadReply:
        probability = float(prediction["probabilities"][label])
        return HeadReply(probability, 1.0, (probability,))  # neither API reports a confidence here

    return read


def _make_choice_reader(
    question: HeadQuestion, model: ServedModel, is_named: bool
) -> PredictionReader | NoAnswer:
    """Reads the probabilities of the options, which must be the head's labels."""
    if (problem := _explain_label_mismatch(question, model)) is not None:
        return problem
    known = _index_by_lowercase(model.labels)

    def read(prediction: Mapping[str, Any]) -> HeadReply:
        probabilities = _option_probabilities(question.options, known, prediction)
        best = int(probabilities.argmax())
        return HeadReply(best, choice_confidence(probabilities), tuple(probabilities.tolist()))

    return read


def _make_score_reader(
    question: HeadQuestion, model: ServedModel, is_named: bool
) -> PredictionReader | NoAnswer:
    """Reads a score on levels: a head's classes in the question's order, or evenly spaced numbers among which
    a regression head's number falls.
    """
    if model.head_task is not None and model.head_task.gives_score:
        return _make_number_reader(question, model)
    if (problem := _explain_label_mismatch(question, model)) is not None:
        return problem
    known = _index_by_lowercase(model.labels)

    def read(prediction: Mapping[str, Any]) -> HeadReply:
        return _make_level_reply(_option_probabilities(question.options, known, prediction))

    return read


def _make_number_reader(question: HeadQuestion, model: ServedModel) -> PredictionReader | NoAnswer:
    """Reads a regression head's number: the two neighbouring levels share the probability, so that the mean
    level is the number's position. A number beyond the levels counts as the last one.
    """
    levels = _parse_even_levels(question.options)
    if levels is None:
        return NoAnswer(
            f"{model.name} gives a number: the levels must be numbers in even steps, low to high, found "
            f"{_quote(question.options)}."
        )
    first, step, last = levels[0], levels[1] - levels[0], len(levels) - 1

    def read(prediction: Mapping[str, Any]) -> HeadReply | NoAnswer:
        if "score" not in prediction:  # a similarity head that was trained on classes
            return NoAnswer(f"{model.name} gives classes and no number.")
        position = min(max((float(prediction["score"]) - first) / step, 0.0), float(last))
        below = min(int(position), last - 1)
        probabilities = np.zeros(last + 1)
        probabilities[below], probabilities[below + 1] = 1 - (position - below), position - below
        return _make_level_reply(probabilities)

    return read


_READERS: dict[str, Callable[[HeadQuestion, ServedModel, bool], PredictionReader | NoAnswer]] = {
    "label": _make_label_reader,
    "choice": _make_choice_reader,
    "score": _make_score_reader,
}


def _make_level_reply(probabilities: Floats) -> HeadReply:
    """The reply to a score question: the mean level, given the levels' (n,) probabilities."""
    value = float((np.arange(len(probabilities)) * probabilities).sum())
    return HeadReply(value, score_confidence(probabilities), tuple(probabilities.tolist()))


def _option_probabilities(
    options: Sequence[str], known: Mapping[str, str], prediction: Mapping[str, Any]
) -> Floats:
    """The options' calibrated probabilities (n,), scaled to sum to 1, since a prediction's are rounded.
    `known` has the head's labels by their lower-case form.
    """
    label_probabilities = prediction["probabilities"]
    probabilities = np.array(
        [label_probabilities[known[option.strip().lower()]] for option in options], np.float64
    )
    return np.asarray(probabilities / probabilities.sum())


def _explain_label_mismatch(question: HeadQuestion, model: ServedModel) -> NoAnswer | None:
    """None if the options are exactly the labels, in any order and case; else why they aren't."""
    if (
        model.head_task is None
        or not model.head_task.has_probabilities
        or model.head_task.activation != "softmax"
    ):
        return NoAnswer(f"{model.name} is a model for {model.task}: it doesn't choose one of several.")
    options = [option.strip().lower() for option in question.options]
    if sorted(options) == sorted(label.strip().lower() for label in model.labels):
        if len(set(options)) == len(options):
            return None
        return NoAnswer(f"{model.name} has labels that differ in case alone: ask its own route.")
    return NoAnswer(
        f"{model.name} has the labels {_quote(model.labels)}; the question has {_quote(question.options)}. "
        "The options must be its labels, all of them and no other."
    )


def _index_by_lowercase(labels: Iterable[str]) -> dict[str, str]:
    """The labels by their lower-case form, without blanks around them."""
    return {label.strip().lower(): label for label in labels}


def _parse_even_levels(levels: Sequence[str]) -> list[float] | None:
    """The levels as numbers; None unless they are numbers that rise in equal steps."""
    try:
        numbers = np.array([float(level) for level in levels])
    except ValueError:
        return None
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        return None
    steps = np.diff(numbers)
    even = steps[0] > 0 and np.abs(steps - steps[0]).max() <= _TOLERANCE * abs(steps[0])
    return list(numbers.tolist()) if even else None


def _quote(names: Sequence[str]) -> str:
    """The first names in quotes, for a message, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(repr(name[:40]) for name in names[:_MOST_NAMES]) + more
