"""Hugging Face's pipelines, one function each. A function gets a `PipelineCall` and returns what it answers.

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
from bertsmith.serving.protocols.routing import StrictBody, ask, describe_first_error, read_api_key_name
from bertsmith.serving.protocols.tei import labelled_logits, rank_labels, scored_labels
from bertsmith.serving.refusals import InvalidRequest, RequestTooLarge, UnsupportedRequest
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service, ServiceAnswer
from bertsmith.text.tokens.tokenizer import Tokenizer, replace_surrogates

_TEMPLATE = "This example is {}."
_ACTIVATIONS = ("softmax", "sigmoid", "none")
_OUTSIDE = "O"
_WORD_STRATEGIES = ("simple", "first")
_MOST_TOKENS = 2_000_000  # in the texts of an answer: a second of work, and ten megabytes


@dataclass(frozen=True)
class PipelineCall:
    """A request to a pipeline. `inputs` are as the client sent them, one or a list: a list is answered by a
    list, and a single input by a single result, but for text-classification and feature-extraction, which
    always answer a list, as Hugging Face's servers do. `parameters` has no nulls.
    """

    service: Service
    request: Request
    model: ServedModel
    inputs: Any
    parameters: Mapping[str, Any]

    @property
    def is_single(self) -> bool:
        """Whether a single input was sent, not a list."""
        return not isinstance(self.inputs, list)

    def as_list(self) -> list[Any]:
        """The inputs as a list, also if a single one was sent."""
        return [self.inputs] if self.is_single else self.inputs

    async def answer(self, inputs: list[Any], operation: str, **more: Any) -> ServiceAnswer:
        """The service's answer to an operation on these inputs. Raises Refusal."""
        return await ask(self.service, self.request, inputs, self.model.name, operation, **more)

    def check_parameters(self, known: Collection[str]) -> None:
        """Raises UnsupportedRequest for a parameter that would be ignored."""
        if unknown := sorted(set(self.parameters) - set(known)):
            raise UnsupportedRequest(
                f"The parameter {unknown[0][:80]!r} isn't done here. "
                f"There are: {', '.join(sorted(known)) or 'none'}."
            )

    @property
    def top_k(self) -> int | None:
        """The number of results to return, None for all. Raises InvalidRequest unless it is a positive
        integer.
        """
        value = self.parameters.get("top_k")
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidRequest(f"top_k must be a whole number from 1, found {str(value)[:80]!r}.")
        return value

    def read_flag(self, name: str) -> bool | None:
        """A boolean parameter, None if not sent. Raises InvalidRequest for another type."""
        value = self.parameters.get(name)
        if value is not None and type(value) is not bool:
            raise InvalidRequest(f"{name} must be true or false, found {str(value)[:80]!r}.")
        return value

    def read_texts(self, name: str) -> list[str] | None:
        """A parameter that is a list of texts, None if not sent. Raises InvalidRequest for another type."""
        value = self.parameters.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise InvalidRequest(f"{name} must be a list of texts, found {str(value)[:80]!r}.")
        return value


Pipeline = Callable[[PipelineCall], Awaitable[tuple[Any, ServiceAnswer]]]


async def classify_texts(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """[{"label", "score"}] for each text, best first: calibrated probabilities, or `function_to_apply` of the
    uncalibrated logits. A regression's number comes in its own unit, under the label "score".
    """
    call.check_parameters(("top_k", "function_to_apply"))
    top, function = call.top_k, call.parameters.get("function_to_apply")
    if function not in (None, *_ACTIVATIONS):
        raise InvalidRequest(
            f"function_to_apply must be {', '.join(_ACTIVATIONS)}, found {str(function)[:80]!r}."
        )
    answer = await call.answer(call.as_list(), "predict", logits=True if function else None)
    results = []
    for prediction in answer.results:
        if function is None:
            results.append(scored_labels(prediction, call.model)[:top])
            continue
        scores = labelled_logits(prediction, call.model)
        if function != "none":
            row = np.array([list(scores.values())])
            (probabilities,) = probabilities_of(row, multi_label=function == "sigmoid").tolist()
            scores = dict(zip(scores, probabilities, strict=True))
        results.append(rank_labels(scores)[:top])
    return results, answer


async def classify_by_entailment(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """[{"label", "score"}] for each candidate label, best first: how much the text entails the hypothesis
    that names it, against the other labels, or with `multi_label` against its contradiction.
    """
    call.check_parameters(("candidate_labels", "hypothesis_template", "multi_label"))
    entailment, contradiction = _find_entailment_labels(call.model)
    labels = call.read_texts("candidate_labels")
    template = call.parameters.get("hypothesis_template", _TEMPLATE)
    multi_label = call.read_flag("multi_label")
    if not labels:
        raise InvalidRequest("candidate_labels must be a list of at least one text.")
    if not isinstance(template, str) or "{}" not in template:
        raise InvalidRequest(
            f"hypothesis_template must have {{}} for the label, found {str(template)[:80]!r}."
        )
    texts = call.as_list()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs must be a text, or a list of texts.")
    most = call.service.settings.max_inputs
    if len(texts) * len(labels) > most:
        raise RequestTooLarge(
            f"{len(texts):,} texts with {len(labels):,} labels each; at most {most:,} pairs are taken."
        )
    hypotheses = [template.replace("{}", label) for label in labels]
    pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
    answer = await call.answer(pairs, "predict", logits=True)
    logits = np.array([prediction["logits"] for prediction in answer.results]).reshape(
        len(texts), len(labels), -1
    )
    is_independent = multi_label or len(labels) == 1
    if is_independent:  # (E, L, 2) -> (E, L)
        scores = probabilities_of(logits[:, :, [contradiction, entailment]])[:, :, 1]
    else:
        scores = probabilities_of(logits[:, :, entailment])
    ranked = [sorted(zip(labels, row.tolist(), strict=True), key=lambda pair: -pair[1]) for row in scores]
    results = [[{"label": label, "score": score} for label, score in pairs] for pairs in ranked]
    return results[0] if call.is_single else results, answer


def _find_entailment_labels(model: ServedModel) -> tuple[int, int]:
    """The indices of the labels for entailment and for contradiction. Raises UnsupportedRequest."""
    known = {label.lower(): number for number, label in enumerate(model.labels)}
    entailment = next((known[name] for name in known if name.startswith("entail")), None)
    contrary = next((known[name] for name in known if name.startswith(("contra", "not_entail"))), None)
    is_classifier = model.head_task is not None and model.head_task.activation == "softmax"
    if not is_classifier or entailment is None or contrary is None:
        raise UnsupportedRequest(
            f"{model.name} can't classify by labels it never saw: that takes a model of pairs with the "
            "labels entailment and contradiction."
        )
    return entailment, contrary


async def classify_tokens(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """[{"entity_group", "score", "word", "start", "end"}], in characters; with `aggregation_strategy` none
    one for each word: [{"entity", "score", "index", "word", "start", "end"}]. A word has one tag, which is
    read from its first piece: simple and first are the same.
    """
    call.check_parameters(("aggregation_strategy", "ignore_labels"))
    strategy = call.parameters.get("aggregation_strategy", "simple")
    if strategy != "none" and strategy not in _WORD_STRATEGIES:
        raise UnsupportedRequest(
            f"aggregation_strategy = {str(strategy)[:80]!r} isn't done here: a word's tag is read from its "
            "first piece. Say simple, first or none."
        )
    ignored = call.read_texts("ignore_labels")
    texts = call.as_list()
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs must be a text, or a list of texts.")
    answer = await call.answer(texts, "predict")
    format_tags = _format_words if strategy == "none" else _format_groups
    ignored_labels = {_OUTSIDE} if ignored is None else set(ignored)
    results = []
    for text, prediction in zip(texts, answer.results, strict=True):
        if "tags" not in prediction:
            raise UnsupportedRequest(f"{call.model.name} is a model for {call.model.task}: it tags no words.")
        results.append(format_tags(text, prediction, ignored_labels))
    return results[0] if call.is_single else results, answer


def _format_words(text: str, prediction: Mapping[str, Any], ignored: set[str]) -> list[dict[str, Any]]:
    """The words of a text with their tags, except those with an `ignored` tag; `index` counts from 1."""
    offsets = _find_offsets(text, prediction["words"])
    tagged_words = zip(prediction["tags"], prediction["confidence"], offsets, strict=True)
    return [
        {"entity": tag, "score": score, "index": index, "word": text[start:end], "start": start, "end": end}
        for index, (tag, score, (start, end)) in enumerate(tagged_words, 1)
        if tag not in ignored
    ]


def _format_groups(text: str, prediction: Mapping[str, Any], ignored: set[str]) -> list[dict[str, Any]]:
    """The entities of a text, except those with an `ignored` label. An entity's score is the mean of its
    words' scores.
    """
    offsets, confidence = _find_offsets(text, prediction["words"]), prediction["confidence"]
    entities = []
    for span in _find_spans(prediction, offsets):
        if span.label in ignored:
            continue
        start, end = offsets[span.start][0], offsets[span.end - 1][1]
        score = math.fsum(confidence[span.start : span.end]) / (span.end - span.start)
        entities.append(
            {"entity_group": span.label, "score": score, "word": text[start:end], "start": start, "end": end}
        )
    return entities


def _find_offsets(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """(start, end) in characters of each word; the words occur in the text in this order."""
    text, offsets, end = replace_surrogates(text), list[tuple[int, int]](), 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        offsets.append((start, end))
    return offsets


def _find_spans(prediction: Mapping[str, Any], offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """The spans that cover the text, with start and end counted in words: the entities and what is between
    them. If there are no entities, since none was found or the tags aren't of entities (parts of speech),
    the runs of equal tags. `offsets` are the words' in characters.
    """
    entities = prediction["entities"]
    if not entities:
        return _find_runs(prediction["tags"])
    starts = [start for start, _ in offsets]
    labels: list[Any] = [None] * len(offsets)
    for number, entity in enumerate(entities):
        start, end = (bisect_left(starts, entity[side]) for side in ("start", "end"))
        labels[start:end] = [number] * (end - start)
    return [
        run._replace(label=_OUTSIDE if run.label is None else entities[run.label]["label"])
        for run in _find_runs(labels)
    ]


def _find_runs(labels: Sequence[Any]) -> list[Span]:
    """The runs of equal labels, with start and end counted in words."""
    runs, start = [], 0
    for label, group in groupby(labels):
        count = len(list(group))
        runs.append(Span(label, start, start + count))
        start += count
    return runs


async def answer_questions(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """{"score", "start", "end", "answer"} for each input, a {"question", "context"} or a pair. If the model
    learnt to give no answer and gives none, the answer is "" and the score the probability that there is
    none.
    """
    call.check_parameters(("top_k", "handle_impossible_answer"))
    may_be_none = call.read_flag("handle_impossible_answer")
    if call.top_k not in (None, 1):
        raise UnsupportedRequest("top_k above 1 isn't done here: the best answer alone is given.")
    answer = await call.answer(call.as_list(), "predict")
    results = []
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
            # The sigmoid of null_odds, which are log-odds: the logit of no answer minus that of the best
            # span.
            score = 0.5 + 0.5 * math.tanh(prediction["null_odds"] / 2)
            results.append({"score": score, "start": 0, "end": 0, "answer": ""})
        else:
            span = {name: prediction[name] for name in ("start", "end", "answer")}
            results.append({"score": prediction["confidence"], **span})
    return results[0] if call.is_single else results, answer


class VectorParameters(StrictBody):
    """Of feature-extraction, as InferenceClient has them."""

    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: tei.Direction | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


async def fill_masks(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """[{"score", "token", "token_str", "sequence"}], best first; for several masks a list for each."""
    call.check_parameters(("top_k", "targets"))
    top, targets = call.top_k, call.read_texts("targets")
    texts = call.as_list()
    answer = await call.answer(texts, "fill_mask", top=top, targets=targets)
    # Each candidate of each mask is shown with the whole text around it.
    candidates = [sum(map(len, masks)) for masks in answer.results]
    size = sum(count * tokens for count, tokens in zip(candidates, answer.input_tokens, strict=True))
    if size > _MOST_TOKENS:
        raise RequestTooLarge(
            f"The answer would be {sum(candidates):,} texts of {size:,} tokens together; at most "
            f"{_MOST_TOKENS:,} are sent at a time. Send fewer texts or a smaller top_k, or ask "
            f"/v1/{answer.model.name}, which shows no text around a word."
        )

    def format_answers() -> list[Any]:
        return [
            _format_masks(*filled, call.model.tokenizer) for filled in zip(texts, answer.results, strict=True)
        ]

    # Without a deadline, because the expensive part is done.
    results = await call.service.workers.run_in_reading_thread(
        read_api_key_name(call.request), math.inf, format_answers
    )
    return results[0] if call.is_single else results, answer


def _format_masks(text: str, masks: list[list[dict[str, Any]]], tokenizer: Tokenizer) -> Any:
    """The candidates of each mask, with the text that each makes; of a single mask the list alone."""
    ids = [*tokenizer.encode(text, read_special_tokens=True).ids]
    positions = [position for position, token_id in enumerate(ids) if token_id == tokenizer.mask_id]
    is_only_mask = len(positions) == 1  # else special tokens stay, so that the other masks are shown
    answers = []
    for position, candidates in zip(positions, masks, strict=True):
        filled_texts = []
        for candidate in candidates:
            token_id = candidate["token_id"]
            filled = [*ids[:position], token_id, *ids[position + 1 :]]
            filled_texts.append(
                {
                    "score": candidate["probability"],
                    "token": token_id,
                    "token_str": tokenizer.decode([token_id], skip_special_tokens=False),
                    "sequence": tokenizer.decode(filled, skip_special_tokens=is_only_mask),
                }
            )
        answers.append(filled_texts)
    return answers[0] if is_only_mask else answers


async def extract_features(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """(E, D): a vector for each text, pooled as the model was trained, as TEI and Hugging Face's servers
    answer for sentence-embedding models. The vectors of all tokens are at /embed_all.
    """
    call.check_parameters(VectorParameters.model_fields)
    try:
        parameters = VectorParameters.model_validate(dict(call.parameters))
    except ValidationError as error:
        raise InvalidRequest(describe_first_error(error)) from error
    if parameters.encoding_format == "base64":
        raise UnsupportedRequest("encoding_format = 'base64' isn't done here: POST /v1/embeddings has it.")
    answer = await call.answer(
        call.as_list(),
        "embed",
        long_text=tei.long_text(parameters.truncate, parameters.truncation_direction),
        prompt_name=parameters.prompt_name,
        normalise=parameters.normalize,
        dimensions=parameters.dimensions,
    )
    return np.ascontiguousarray(answer.results), answer


async def compare_sentences(call: PipelineCall) -> tuple[Any, ServiceAnswer]:
    """The cosine similarity of `source_sentence` and each of the `sentences`."""
    call.check_parameters(())
    match call.inputs:
        case {"source_sentence": str() as source, "sentences": list() as sentences, **more} if not more:
            answer = await call.answer(sentences, "similarity", source=source)
            return answer.results, answer
    raise InvalidRequest(
        "inputs must have source_sentence, a text, and sentences, a list of texts, and nothing else."
    )
