"""What Hugging Face's pipelines read and answer, one function each, and what such a function is given.

E inputs, L labels, D width of a vector.
"""

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from fastapi import Request
from pydantic import ValidationError

from bertsmith.metrics.calibration import probabilities_of
from bertsmith.metrics.entities import Span
from bertsmith.serving.protocols import tei
from bertsmith.serving.protocols.routing import StrictBody, ask, first_problem, key_of
from bertsmith.serving.protocols.tei import best_first, labelled_logits, scored_labels
from bertsmith.serving.refusals import InvalidRequest, TooLarge, UnsupportedRequest
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Answer, Service
from bertsmith.text.tokens.tokenizer import Tokenizer, replace_surrogates

_TEMPLATE = "This example is {}."
_FUNCTIONS = ("softmax", "sigmoid", "none")
_OUTSIDE = "O"
_WHOLE_WORDS = ("simple", "first")
_MOST_TOKENS = 2_000_000  # of the texts in an answer: a second of work, and ten megabytes


@dataclass(frozen=True)
class PipelineCall:
    """`inputs` and `parameters` as they were sent, null left away; a list is answered by a list."""

    service: Service
    request: Request
    model: ServedModel
    inputs: Any
    parameters: Mapping[str, Any]

    @property
    def one(self) -> bool:
        """Whether the inputs are one input."""
        return not isinstance(self.inputs, list)

    def listed(self) -> list[Any]:
        """The inputs as a list."""
        return [self.inputs] if self.one else self.inputs

    async def answer(self, inputs: list[Any], operation: str, **more: Any) -> Answer:
        """The service's. Raises Refusal."""
        return await ask(self.service, self.request, inputs, self.model.name, operation, **more)

    def require_known(self, known: Collection[str]) -> None:
        """Raises Unsupported for a parameter that would be ignored."""
        if unknown := sorted(set(self.parameters) - set(known)):
            raise UnsupportedRequest(
                f"The parameter {unknown[0][:80]!r} isn't done here. "
                f"There are: {', '.join(sorted(known)) or 'none'}."
            )

    @property
    def top_k(self) -> int | None:
        """How many of the best are wanted. Raises InvalidRequest for anything but a whole number from 1."""
        value = self.parameters.get("top_k")
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidRequest(f"top_k must be a whole number from 1, found {str(value)[:80]!r}.")
        return value

    def flag(self, name: str) -> bool | None:
        """A parameter. Raises InvalidRequest for anything else."""
        value = self.parameters.get(name)
        if value is not None and type(value) is not bool:
            raise InvalidRequest(f"{name} must be true or false, found {str(value)[:80]!r}.")
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list of texts. Raises InvalidRequest for anything else."""
        value = self.parameters.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InvalidRequest(f"{name} must be a list of texts, found {str(value)[:80]!r}.")
        return value


Pipeline = Callable[[PipelineCall], Awaitable[tuple[Any, Answer]]]


async def classify_texts(call: PipelineCall) -> tuple[Any, Answer]:
    """Calibrated probabilities; with `function_to_apply` what it makes of the head's logits as they are."""
    call.require_known(("top_k", "function_to_apply"))
    top, function = call.top_k, call.parameters.get("function_to_apply")
    if function not in (None, *_FUNCTIONS):
        raise InvalidRequest(
            f"function_to_apply must be {', '.join(_FUNCTIONS)}, found {str(function)[:80]!r}."
        )
    answer = await call.answer(call.listed(), "predict", logits=True if function else None)
    found = []
    for prediction in answer.results:
        if function is None:
            found.append(scored_labels(prediction, call.model)[:top])
            continue
        scores = labelled_logits(prediction, call.model)
        if function != "none":
            row = np.array([list(scores.values())])
            (shares,) = probabilities_of(row, multi_label=function == "sigmoid").tolist()
            scores = dict(zip(scores, shares, strict=True))
        found.append(best_first(scores)[:top])
    return found, answer


async def classify_by_entailment(call: PipelineCall) -> tuple[Any, Answer]:
    """[{"label", "score"}] for each candidate label, best first: how much the text entails the hypothesis
    that names it, against the other labels, or with `multi_label` against its contradiction.
    """
    call.require_known(("candidate_labels", "hypothesis_template", "multi_label"))
    entailment, contradiction = _entailment(call.model)
    labels = call.texts("candidate_labels")
    template = call.parameters.get("hypothesis_template", _TEMPLATE)
    multi_label = call.flag("multi_label")
    if not labels:
        raise InvalidRequest("candidate_labels must be a list of at least one text.")
    if not isinstance(template, str) or "{}" not in template:
        raise InvalidRequest(
            f"hypothesis_template must have {{}} for the label, found {str(template)[:80]!r}."
        )
    texts = call.listed()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs must be a text, or a list of texts.")
    most = call.service.settings.max_inputs
    if len(texts) * len(labels) > most:
        raise TooLarge(
            f"{len(texts):,} texts with {len(labels):,} labels each; at most {most:,} pairs are taken."
        )
    hypotheses = [template.replace("{}", label) for label in labels]
    pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
    answer = await call.answer(pairs, "predict", logits=True)
    logits = np.array([each["logits"] for each in answer.results]).reshape(len(texts), len(labels), -1)
    several = multi_label or len(labels) == 1
    if several:  # (E, L, 2) -> (E, L)
        scores = probabilities_of(logits[:, :, [contradiction, entailment]])[:, :, 1]
    else:
        scores = probabilities_of(logits[:, :, entailment])
    found = [best_first(dict(zip(labels, row.tolist(), strict=True))) for row in scores]
    return found[0] if call.one else found, answer


def _entailment(model: ServedModel) -> tuple[int, int]:
    """The numbers of the labels for entailment and for its contrary. Raises Unsupported."""
    known = {label.lower(): number for number, label in enumerate(model.labels)}
    entailment = next((known[name] for name in known if name.startswith("entail")), None)
    contrary = next((known[name] for name in known if name.startswith(("contra", "not_entail"))), None)
    is_classifier = model.opened is not None and model.opened.activation == "softmax"
    if not is_classifier or entailment is None or contrary is None:
        raise UnsupportedRequest(
            f"{model.name} can't classify by labels it never saw: that takes a model of pairs with the "
            "labels entailment and contradiction."
        )
    return entailment, contrary


async def classify_tokens(call: PipelineCall) -> tuple[Any, Answer]:
    """[{"entity_group", "score", "word", "start", "end"}], in characters; with `aggregation_strategy` none
    one for each word: [{"entity", "score", "index", "word", "start", "end"}]. A word has one tag, which is
    read from its first piece: simple and first are the same.
    """
    call.require_known(("aggregation_strategy", "ignore_labels"))
    strategy = call.parameters.get("aggregation_strategy", "simple")
    if strategy != "none" and strategy not in _WHOLE_WORDS:
        raise UnsupportedRequest(
            f"aggregation_strategy = {str(strategy)[:80]!r} isn't done here: a word's tag is read from its "
            "first piece. Say simple, first or none."
        )
    ignored = call.texts("ignore_labels")
    texts = call.listed()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs must be a text, or a list of texts.")
    answer = await call.answer(texts, "predict")
    make = _words if strategy == "none" else _groups
    hidden = {_OUTSIDE} if ignored is None else set(ignored)
    found = []
    for text, prediction in zip(texts, answer.results, strict=True):
        if "tags" not in prediction:
            raise UnsupportedRequest(f"{call.model.name} is a model for {call.model.task}: it tags no words.")
        found.append(make(text, prediction, hidden))
    return found[0] if call.one else found, answer


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
    text, found, end = replace_surrogates(text), list[tuple[int, int]](), 0
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


async def answer_questions(call: PipelineCall) -> tuple[Any, Answer]:
    """{"score", "start", "end", "answer"}; the answer of a model that learnt to give none may be "", its
    score the probability that there is none.
    """
    call.require_known(("top_k", "handle_impossible_answer"))
    may_be_none = call.flag("handle_impossible_answer")
    if call.top_k not in (None, 1):
        raise UnsupportedRequest("top_k above 1 isn't done here: the best answer alone is given.")
    answer = await call.answer(call.listed(), "predict")
    found = []
    for prediction in answer.results:
        if "null_odds" not in prediction:
            raise UnsupportedRequest(
                f"{call.model.name} is a model for {call.model.task}: it answers no questions."
            )
        if may_be_none is False and prediction["start"] is None:
            raise UnsupportedRequest(
                f"{call.model.name} finds no answer in a passage, and handle_impossible_answer = false asks "
                "for one all the same, which isn't done here. Leave it out."
            )
        if prediction["start"] is None:
            score = 0.5 + 0.5 * math.tanh(prediction["null_odds"] / 2)
            found.append({"score": score, "start": 0, "end": 0, "answer": ""})
        else:
            span = {name: prediction[name] for name in ("start", "end", "answer")}
            found.append({"score": prediction["confidence"], **span})
    return found[0] if call.one else found, answer


class VectorParameters(StrictBody):
    """Of feature-extraction, as InferenceClient has them."""

    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: tei.Direction | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


async def fill_masks(call: PipelineCall) -> tuple[Any, Answer]:
    """[{"score", "token", "token_str", "sequence"}], best first; for several masks a list for each."""
    call.require_known(("top_k", "targets"))
    top, targets = call.top_k, call.texts("targets")
    texts = call.listed()
    answer = await call.answer(texts, "fill_mask", top=top, targets=targets)
    # Each candidate of each mask is shown with the whole text around it.
    candidates = [sum(map(len, masks)) for masks in answer.results]
    size = sum(count * tokens for count, tokens in zip(candidates, answer.input_tokens, strict=True))
    if size > _MOST_TOKENS:
        raise TooLarge(
            f"The answer would be {sum(candidates):,} texts of {size:,} tokens together; at most "
            f"{_MOST_TOKENS:,} are sent at a time. Send fewer texts or a smaller top_k, or ask "
            f"/v1/{answer.model.name}, which shows no text around a word."
        )

    def show() -> list[Any]:
        return [_shown(*each, call.model.tokenizer) for each in zip(texts, answer.results, strict=True)]

    found = await call.service.workers.read(key_of(call.request), math.inf, show)  # begun long ago
    return found[0] if call.one else found, answer


def _shown(text: str, masks: list[list[dict[str, Any]]], tokenizer: Tokenizer) -> Any:
    ids = [*tokenizer.encode(text, read_special_tokens=True).ids]
    places = [place for place, number in enumerate(ids) if number == tokenizer.mask_id]
    alone = len(places) == 1  # else the other masks are shown
    found = []
    for place, candidates in zip(places, masks, strict=True):
        shown = []
        for candidate in candidates:
            number = candidate["token_id"]
            filled = [*ids[:place], number, *ids[place + 1 :]]
            shown.append(
                {
                    "score": candidate["probability"],
                    "token": number,
                    "token_str": tokenizer.decode([number], skip_special_tokens=False),
                    "sequence": tokenizer.decode(filled, skip_special_tokens=alone),
                }
            )
        found.append(shown)
    return found[0] if alone else found


async def extract_features(call: PipelineCall) -> tuple[Any, Answer]:
    """(E, D): a vector a text, pooled as the model was trained to, as TEI and Hugging Face's servers give it
    for models of sentences. Those of all tokens are at /embed_all.
    """
    call.require_known(VectorParameters.model_fields)
    try:
        said = VectorParameters.model_validate(dict(call.parameters))
    except ValidationError as error:
        raise InvalidRequest(first_problem(error)) from error
    if said.encoding_format == "base64":
        raise UnsupportedRequest("encoding_format = 'base64' isn't done here: POST /v1/embeddings has it.")
    answer = await call.answer(
        call.listed(),
        "embed",
        long_text=tei.long_text(said.truncate, said.truncation_direction),
        prompt_name=said.prompt_name,
        normalise=said.normalize,
        dimensions=said.dimensions,
    )
    return np.ascontiguousarray(answer.results), answer


async def compare_sentences(call: PipelineCall) -> tuple[Any, Answer]:
    """The cosine of the source and each sentence."""
    call.require_known(())
    match call.inputs:
        case {"source_sentence": str() as source, "sentences": list() as sentences, **more} if not more:
            answer = await call.answer(sentences, "similarity", source=source)
            return answer.results, answer
    raise InvalidRequest(
        "inputs must have source_sentence, a text, and sentences, a list of texts, and nothing else."
    )
