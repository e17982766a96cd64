"""Hugging Face's pipelines over HTTP, as InferenceClient(model=URL) calls them and its containers serve them:
POST /models/{model}, POST /pipeline/{task}, and POST / where one model is served.

Errors are as TEI's: {"error", "error_type"}.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from bertsmith.serving.protocols import pipelines, tei
from bertsmith.serving.protocols.routing import (
    CHANGES_NOTHING,
    ModelName,
    Protocol,
    StrictBody,
    json_response,
    note,
)
from bertsmith.serving.refusals import UnknownPipeline
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service


class PipelineSpec(NamedTuple):
    """A pipeline, the operation that a model needs for it, and the tasks of the models that are searched for
    one if the request names none; None: any task.
    """

    run: pipelines.Pipeline
    operation: str
    tasks: frozenset[str] | None


_PIPELINES = {
    "text-classification": PipelineSpec(pipelines.classify_texts, "predict", tei.LABEL_TASKS),
    "token-classification": PipelineSpec(pipelines.classify_tokens, "predict", frozenset({"tagging"})),
    "question-answering": PipelineSpec(
        pipelines.answer_questions, "predict", frozenset({"question-answering"})
    ),
    "fill-mask": PipelineSpec(pipelines.fill_masks, "fill_mask", None),
    "feature-extraction": PipelineSpec(pipelines.extract_features, "embed", None),
    "sentence-similarity": PipelineSpec(pipelines.compare_sentences, "similarity", None),
    "zero-shot-classification": PipelineSpec(
        pipelines.classify_by_entailment, "predict", frozenset({"classification"})
    ),
}
_ALIASES = {"sentiment-analysis": "text-classification", "ner": "token-classification"}
# By the model's task, if predict is its default operation.
_DEFAULT_PIPELINES = {"tagging": "token-classification", "question-answering": "question-answering"}


class HostedOptions(StrictBody):
    """Of the hosted service: whether it waits, and its cache. They change no answer."""

    use_cache: bool = True
    wait_for_model: bool = False
    use_gpu: bool = False


class PipelineBody(BaseModel):
    """`inputs`: what the pipeline reads, or a list of it. Vectors have their parameters beside `inputs`, as
    InferenceClient sends them; either place is read for any.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    inputs: Any
    parameters: dict[str, Any] | None = None
    model: str | None = None
    options: HostedOptions | None = None

    def all_parameters(self) -> Mapping[str, Any]:
        """The parameters from both places, without those that are null."""
        extra = self.model_extra or {}
        parameters = [
            *((name, extra[name]) for name in set(extra) - CHANGES_NOTHING),
            *(self.parameters or {}).items(),
        ]
        return {name: value for name, value in parameters if value is not None}


def add_routes(router: APIRouter, service: Service) -> None:
    async def answer(request: Request, body: PipelineBody, name: str | None, task: str | None) -> Response:
        model, pipeline = _choose_pipeline(service, body, body.model or name, task)
        model.operation(pipeline.operation)  # raises UnsupportedRequest, naming what it has
        content, service_answer = await pipeline.run(
            pipelines.PipelineCall(service, request, model, body.inputs, body.all_parameters())
        )
        return await json_response(content, note(request, service_answer))

    @router.post("/models/{model:model}/pipeline/{task}", summary="A pipeline by a model")
    async def of_both(body: PipelineBody, request: Request, model: ModelName, task: str) -> Response:
        return await answer(request, body, model, task)

    @router.post("/models/{model:model}", summary="A model's own pipeline")
    async def of_model(body: PipelineBody, request: Request, model: ModelName) -> Response:
        return await answer(request, body, model, None)

    @router.post("/pipeline/{task}", summary="A pipeline by the only model that can")
    async def of_task(
        body: PipelineBody, request: Request, task: str, model: tei.ModelQuery = None
    ) -> Response:
        return await answer(request, body, model, task)

    @router.post("/", summary="The pipeline of the only model")
    async def of_all(body: PipelineBody, request: Request, model: tei.ModelQuery = None) -> Response:
        return await answer(request, body, model, None)


# InferenceClient shows what `error` says.
PROTOCOL = Protocol("Hugging Face", add_routes, tei.error_body)


def _choose_pipeline(
    service: Service, body: PipelineBody, name: str | None, task: str | None
) -> tuple[ServedModel, PipelineSpec]:
    """The model and the pipeline of a request. Raises InvalidRequest, UnknownModel, UnsupportedRequest."""
    if task is not None:
        pipeline = _PIPELINES.get(_ALIASES.get(task, task))
        if pipeline is None:
            raise UnknownPipeline(f"There is no pipeline {task[:80]!r}. There are: {', '.join(_PIPELINES)}.")
        return service.models.find(name, pipeline.operation, pipeline.tasks), pipeline
    model = service.models.find(name, None)
    first = next(iter(model.operations))
    # Some bodies fit one pipeline only; else the model's default operation and task decide.
    if isinstance(body.inputs, dict) and "source_sentence" in body.inputs:
        pipeline_name = "sentence-similarity"
    elif "candidate_labels" in body.all_parameters():
        pipeline_name = "zero-shot-classification"
    elif first == "fill_mask":
        pipeline_name = "fill-mask"
    elif first != "predict":
        pipeline_name = "feature-extraction"
    else:
        pipeline_name = _DEFAULT_PIPELINES.get(model.task, "text-classification")
    return model, _PIPELINES[pipeline_name]
