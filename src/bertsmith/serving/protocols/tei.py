"""The routes of Text Embeddings Inference (TEI): /embed, /embed_all, /predict, /similarity, /tokenize,
/decode and /info; its /rerank is in ranking.py. If several models are served, `?model=` or `model` in the
body names one. Classes are labels with scores, best first, as in Hugging Face's pipelines.

`truncate` true truncates a text that is too long, and false refuses it; null reads it as the model was
trained to, truncated or in windows (in TEI: as its auto_truncate says).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, StrictInt

import bertsmith
from bertsmith.errors import BertsmithError, InputError
from bertsmith.serving.operations.operation import LongText
from bertsmith.serving.protocols.routing import (
    ClientsBody,
    JsonResponse,
    ListOf,
    Protocol,
    StrictBody,
    ask,
    json_response,
    note,
    run_in_reading_thread,
)
from bertsmith.serving.refusals import (
    EmptyRequest,
    InvalidRequest,
    Refusal,
    RequestTooLarge,
    UnsupportedRequest,
)
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service
from bertsmith.serving.settings import LONGEST_NAME

_TYPES = {424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Overloaded"}
LABEL_TASKS = frozenset({"classification", "multi-label", "regression", "similarity", "reranking"})
ModelQuery = Annotated[str | None, Query(max_length=LONGEST_NAME)]
Direction = Literal["left", "right", "Left", "Right"]


class TruncateOptionsBody(ClientsBody):
    """The options that most of TEI's bodies have: `truncate` and `truncation_direction`. `model` is ours."""

    truncate: bool | None = None
    truncation_direction: Direction | None = None
    model: str | None = None

    def long_text(self) -> LongText | None:
        """What becomes of a long text. Raises UnsupportedRequest."""
        return long_text(self.truncate, self.truncation_direction)


class EmbedAllBody(TruncateOptionsBody):
    """`inputs`: a text, its token ids, or several of either. `prompt_name`: one of the model's prompts."""

    inputs: str | ListOf[StrictInt] | ListOf[str | ListOf[StrictInt]]
    prompt_name: str | None = None


class EmbedBody(EmbedAllBody):
    """`normalize` to length 1; `dimensions` keeps the first."""

    normalize: bool = True
    dimensions: int | None = Field(None, ge=1)


class PredictBody(TruncateOptionsBody):
    """`inputs`: a text, a pair of texts, or several lists of one or two texts."""

    inputs: str | ListOf[str] | ListOf[ListOf[str]]
    raw_scores: bool = False


class Sentences(StrictBody):
    """One text, and those that it is compared with."""

    source_sentence: str
    sentences: ListOf[str]


class SimilarityParameters(TruncateOptionsBody):
    """Parameters of a similarity request, as Text Embeddings Inference defines them."""

    prompt_name: str | None = None


class SimilarityBody(ClientsBody):
    """As TEI and Hugging Face's pipelines have it."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TokenizeBody(ClientsBody):
    """A request for tokens; `inputs` is a text or a list of texts."""

    inputs: str | ListOf[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class DecodeBody(ClientsBody):
    """`ids` of one text, or of several."""

    ids: ListOf[StrictInt] | ListOf[ListOf[StrictInt]]
    skip_special_tokens: bool = True
    model: str | None = None


def error_body(refusal: Refusal) -> dict[str, Any]:
    """A refusal in TEI's error envelope, {"error", "error_type"}: the sentence, and TEI's name for its
    kind.
    """
    error_type = (
        "Empty" if isinstance(refusal, EmptyRequest) else _TYPES.get(status_of(refusal), "Validation")
    )
    return {"error": refusal.message, "error_type": error_type}


def status_of(refusal: Refusal) -> int:
    """The status as TEI has it: 424 if the model can't do it, 400 for no inputs, 422 for too large a
    batch.
    """
    if isinstance(refusal, EmptyRequest):
        return 400
    if isinstance(refusal, UnsupportedRequest):
        return 424
    return 422 if isinstance(refusal, RequestTooLarge) else refusal.status


def add_routes(router: APIRouter, service: Service) -> None:
    _add_vector_routes(router, service)
    _add_token_routes(router, service)

    @router.post("/predict", summary="Classes of texts or pairs, as TEI has them")
    async def predict(body: PredictBody, request: Request, model: ModelQuery = None) -> Response:
        inputs, is_single = read_predict_inputs(body.inputs)
        served_model = service.models.find(body.model or model, "predict", LABEL_TASKS)
        answer = await ask(
            service,
            request,
            inputs,
            served_model.name,
            "predict",
            body.long_text(),
            logits=body.raw_scores or None,
        )
        labels = [
            rank_labels(labelled_logits(prediction, served_model))
            if body.raw_scores
            else scored_labels(prediction, served_model)
            for prediction in answer.results
        ]
        return JsonResponse(labels[0] if is_single else labels, headers=note(request, answer))

    @router.get("/info", summary="A model, as TEI tells of it")
    async def info(model: ModelQuery = None) -> Response:
        return JsonResponse(_describe_model(service, service.models.find(model, None)))


PROTOCOL = Protocol("TEI", add_routes, error_body, status_of)


def _add_vector_routes(router: APIRouter, service: Service) -> None:
    @router.post("/embed", summary="Vectors, as TEI has them")
    async def embed(body: EmbedBody, request: Request, model: ModelQuery = None) -> Response:
        more = {"prompt_name": body.prompt_name, "normalise": body.normalize, "dimensions": body.dimensions}
        name = body.model or model
        answer = await ask(
            service, request, read_embed_inputs(body.inputs), name, "embed", body.long_text(), **more
        )
        return await json_response(np.ascontiguousarray(answer.results), note(request, answer))

    @router.post("/embed_all", summary="Vectors of all tokens, as TEI has them")
    async def embed_all(body: EmbedAllBody, request: Request, model: ModelQuery = None) -> Response:
        name, inputs = body.model or model, read_embed_inputs(body.inputs)
        answer = await ask(
            service, request, inputs, name, "embed_tokens", body.long_text(), prompt_name=body.prompt_name
        )
        vectors = [np.ascontiguousarray(states) for states in answer.results]
        return await json_response(vectors, note(request, answer))

    @router.post("/similarity", summary="How alike texts are, as TEI has it")
    async def similarity(body: SimilarityBody, request: Request, model: ModelQuery = None) -> Response:
        parameters = body.parameters or SimilarityParameters()
        answer = await ask(
            service,
            request,
            body.inputs.sentences,
            body.model or model or parameters.model,
            "similarity",
            parameters.long_text(),
            source=body.inputs.source_sentence,
            prompt_name=parameters.prompt_name,
        )
        return JsonResponse(answer.results, headers=note(request, answer))


def _add_token_routes(router: APIRouter, service: Service) -> None:
    @router.post("/tokenize", summary="Texts in pieces, as TEI has them")
    async def tokenize(body: TokenizeBody, request: Request, model: ModelQuery = None) -> Response:
        served_model = service.models.find(body.model or model, None)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.require_size(texts)
        prefix = ""
        if served_model.encoder is not None:
            try:
                prefix = served_model.encoder.prompts.choose(None, body.prompt_name)
            except InputError as error:
                raise InvalidRequest(str(error)) from error
        elif body.prompt_name is not None:
            raise InvalidRequest(
                f"{served_model.name} makes no vectors, so it has no prompt {body.prompt_name[:80]!r}."
            )
        most = service.settings.max_request_tokens
        texts = [prefix + text for text in texts]
        tokens = await run_in_reading_thread(
            service, request, _tokenize, served_model, texts, body.add_special_tokens, most
        )
        return JsonResponse(tokens)

    @router.post("/decode", summary="Token ids as texts, as TEI has them")
    async def decode(body: DecodeBody, request: Request, model: ModelQuery = None) -> Response:
        served_model = service.models.find(body.model or model, None)
        lists: list[Any] = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
        service.require_size(lists)
        _check_token_count(sum(map(len, lists)), service.settings.max_request_tokens)
        known = range(served_model.tokenizer.vocab_size)
        if unknown := [number for ids in lists for number in ids if number not in known]:
            raise InvalidRequest(f"There is no token {unknown[0]}: ids run from 0 to {known[-1]}.")
        special = body.skip_special_tokens
        texts = await run_in_reading_thread(
            service,
            request,
            lambda: [served_model.tokenizer.decode(ids, skip_special_tokens=special) for ids in lists],
        )
        return JsonResponse(texts)


def long_text(truncate: bool | None, direction: Direction | None) -> LongText | None:
    """What becomes of a long text. Raises UnsupportedRequest for one that is to be cut at its beginning."""
    if (direction or "right").lower() == "left":
        raise UnsupportedRequest("truncation_direction = 'left' isn't done here: texts are cut at their end.")
    return None if truncate is None else "truncate" if truncate else "error"


def read_embed_inputs(inputs: Any) -> list[Any]:
    """The list of inputs: a text or a flat list of token ids is a single one."""
    if isinstance(inputs, str) or (inputs and all(isinstance(id_, int) for id_ in inputs)):
        return [inputs]
    return list(inputs)


def read_predict_inputs(body_inputs: Any) -> tuple[list[Any], bool]:
    """The texts and pairs, and whether a single one was sent, not a list of them. Raises InvalidRequest."""
    is_single = isinstance(body_inputs, str) or bool(body_inputs and isinstance(body_inputs[0], str))
    lists = [body_inputs] if is_single else body_inputs
    inputs = [[texts] if isinstance(texts, str) else texts for texts in lists]
    if any(len(texts) not in (1, 2) for texts in inputs):
        raise InvalidRequest("inputs must be a text, a pair of texts, or lists of one or two texts.")
    return [texts[0] if len(texts) == 1 else tuple(texts) for texts in inputs], is_single


def scored_labels(prediction: Mapping[str, Any], model: ServedModel) -> list[dict[str, Any]]:
    """[{"label", "score"}]: the calibrated probabilities of all labels, best first; a regression's number as
    the one label `score`, in its own unit. Raises UnsupportedRequest for predictions without labels.
    """
    if isinstance(probabilities := prediction.get("probabilities"), Mapping):
        return rank_labels(probabilities)
    if "score" in prediction:
        return [{"label": "score", "score": prediction["score"]}]
    if "label" in prediction and "confidence" in prediction:
        return [{"label": prediction["label"], "score": prediction["confidence"]}]
    raise _refuse_without_labels(model)


def labelled_logits(prediction: Mapping[str, Any], model: ServedModel) -> dict[str, float]:
    """The head's logit of each label. Raises UnsupportedRequest for a head without labels."""
    logits = prediction["logits"]
    names = model.labels if len(model.labels) == len(logits) else ("score",)
    if len(names) != len(logits):  # the head gives a vector
        raise _refuse_without_labels(model)
    return dict(zip(names, logits, strict=True))


def rank_labels(scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """[{"label", "score"}], the highest score first; equal scores stay in order."""
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return [{"label": label, "score": score} for label, score in ranked]


def _refuse_without_labels(model: ServedModel) -> UnsupportedRequest:
    """The error for a model whose predictions have no labels of a text, such as a tagging model."""
    return UnsupportedRequest(f"{model.name} is a model for {model.task}: it gives no label of a text.")


def _check_token_count(tokens: int, most: int) -> None:
    if tokens > most:
        raise RequestTooLarge(f"The request has {tokens:,} tokens or more; this service takes {most:,}.")


def _tokenize(
    model: ServedModel, texts: Sequence[str], special: bool, most: int
) -> list[list[dict[str, Any]]]:
    """Each text's tokens with id, text and offsets in characters, None for special ones. Raises
    RequestTooLarge for more than `most` tokens in all.
    """
    tokenizer = model.tokenizer
    try:
        pieces = tokenizer.encode_pieces(texts, most + 1)
    except BertsmithError as error:
        raise InvalidRequest(str(error)) from error
    _check_token_count(sum(len(encoding.ids) for encoding in pieces), most)
    ends = (tokenizer.template.before, tokenizer.template.behind) if special else ((), ())
    before, behind = (
        [
            {"id": n, "text": tokenizer.id_to_token(n), "special": True, "start": None, "stop": None}
            for n in ids
        ]
        for ids in ends
    )
    tokens_of_texts = []
    for text, encoding in zip(texts, pieces, strict=True):
        tokens = [
            {"id": n, "text": text[start:stop], "special": False, "start": start, "stop": stop}
            for n, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]
        tokens_of_texts.append([*before, *tokens, *behind])
    return tokens_of_texts


def _describe_model(service: Service, model: ServedModel) -> dict[str, Any]:
    """A model and the service's limits, with the keys of TEI's /info."""
    settings, labels = service.settings, model.labels or ("score",)
    model_type: dict[str, Any] = {
        "reranker" if "rerank" in model.operations and len(labels) == 1 else "classifier": {
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    }
    if model.encoder is not None and "predict" not in model.operations:
        model_type = {"embedding": {"pooling": model.encoder.pooling}}
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": str(model.compute_dtype).removeprefix("torch."),
        "served_model_name": model.name,
        "model_type": model_type,
        "max_concurrent_requests": max(settings.queue_tokens // model.max_length, 1),
        "max_input_length": model.max_length,
        "max_batch_tokens": service.workers.budget,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_inputs,
        "auto_truncate": True,
        "tokenization_workers": service.workers.cores,
        "version": bertsmith.__version__,
        "sha": None,
        "docker_label": None,
    }
