"""The page at /: its files, descriptions of the models, and explanations of answers. Explanations don't go
through the queue: they are computed one at a time, on one core.

N tokens of an input, L layers, A heads.
"""

import asyncio
import base64
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any, Literal
from weakref import ref

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from pydantic import Field

import bertsmith
from bertsmith.errors import BertsmithError
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.explaining.explained_model import LONGEST
from bertsmith.inference.ranking.reranker import relevant_label
from bertsmith.model.cpu.process import start_one_core_threads
from bertsmith.serving.models import make_probe_rows, reads_pairs
from bertsmith.serving.page import FOLDERS, HEADERS, MEDIA_TYPES, PAGE_FILES
from bertsmith.serving.protocols.routing import JsonResponse, StrictBody, make_router
from bertsmith.serving.refusals import (
    DeadlineError,
    InvalidRequest,
    ServiceOverload,
    UnknownModel,
    UnsupportedRequest,
)
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service
from bertsmith.serving.settings import LONGEST_NAME
from bertsmith.text.tokens.pieces import describe_tokens

_LONGEST_ROW = 100_000  # bytes
_FORM_OPERATIONS = ("predict", "rerank", "similarity", "embed", "fill_mask", "search")
_SECONDS = 60.0  # for one explanation
_WAIT_SECONDS = 2.0  # for the explanation before, which ends soon if its client has cancelled it
_POLL_SECONDS = 0.02  # between two checks whether it has ended
Check = Callable[[], None]  # raises if the client has disconnected or the time is over


def make_page_router(service: Service) -> APIRouter:
    """The routes of the page; none if the settings turn it off."""
    router = make_router(include_in_schema=False)
    if not service.settings.page:
        return router
    files = {path.name: path for folder in FOLDERS for path in sorted(folder.iterdir())}
    contents = {name: path.read_bytes() for name, path in files.items()}

    def answer(name: str) -> Response:
        headers = HEADERS | {"content-type": MEDIA_TYPES[files[name].suffix]}
        return Response(contents[name], headers=headers)

    @router.get("/")
    async def page() -> Response:
        return answer("page.html")

    @router.get(PAGE_FILES + "{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise UnknownModel(f"The page has no file {name[:80]!r}.")
        return answer(name)

    @router.get("/page/models")
    async def models(request: Request) -> Response:
        descriptions = [describe_model(model) for model in service.models]
        return JsonResponse(
            {"version": bertsmith.__version__, "explained_tokens": LONGEST, "models": descriptions},
            headers={"cache-control": "no-store"},
        )

    explanations = _Explanations()

    @router.post("/page/attributions")
    async def attributions(body: AttributionsBody) -> Response:
        model = service.models[body.model]
        return JsonResponse(
            await explanations.run(lambda check: explanations.attributions(body, model, check))
        )

    @router.post("/page/attention")
    async def attention(body: AttentionBody) -> Response:
        model = service.models[body.model]
        return JsonResponse(await explanations.run(lambda check: explanations.attention(body, model, check)))

    return router


def describe_model(model: ServedModel) -> dict[str, Any]:
    """What the page needs to know about a model to show it and to build its form, as JSON."""
    operations = [name for name in _FORM_OPERATIONS if name in model.operations]
    task = model.head_task
    has_relevant_label = "rerank" in model.operations and model.labels
    # A model of transformers doesn't say whether it was trained on one text or two.
    pairs_unknown = task is not None and task.reads_pairs is None
    return {
        "name": model.name,
        "task": model.task,
        "version": model.version,
        "labels": list(model.labels),
        # The label whose probability ranks documents; null if a number ranks them, or nothing does.
        "relevant": relevant_label(model.labels, model.name) if has_relevant_label else None,
        "max_length": model.max_length,
        "precision": str(model.compute_dtype).removeprefix("torch."),
        "example": _find_example(model),
        "usual": next(iter(model.operations)),
        # In the model's order, but embed last: people rather compare vectors than read them.
        "operations": sorted(
            operations, key=lambda name: (name == "embed", list(model.operations).index(name))
        ),
        "pairs": None if pairs_unknown else reads_pairs(model),
        "mask": model.tokenizer.id_to_token(model.tokenizer.mask_id),
        "windows": bool(task is not None and (task.settings.stride is not None or task.is_pretokenized)),
        "scale": list(task.bounds) if task is not None and task.bounds else None,  # of a regression
        "columns": list(getattr(model.operations.get("search"), "columns", ())),  # for filters
        "beside": list(
            getattr(task, "column_names", ())
        ),  # columns that the model reads in addition to the text
    }


def _find_example(model: ServedModel) -> list[str] | None:
    """An example input: a row of numbers for a model that reads them, or a text or a pair of the run's dev or
    test predictions, if that folder is still beside the model. None: the page uses a text of its own.
    """
    if (rows := make_probe_rows(model)) is not None:
        return rows[:1]
    for name in ("test", "dev") if model.head_task is not None else ():
        path = model.files.folder.resolve().parent / "predictions" / f"{name}.jsonl"
        try:
            with path.open("rb") as file:
                row = orjson.loads(file.readline(_LONGEST_ROW))
        except (OSError, orjson.JSONDecodeError):
            continue
        if not isinstance(row, dict):
            continue
        for keys in (("text", "text_pair"), ("query", "document"), ("text",)):
            texts = [row[key] for key in keys if isinstance(row.get(key), str) and row[key].strip()]
            if len(texts) == len(keys):
                return texts
        if isinstance(words := row.get("words"), list):
            return [" ".join(map(str, words))]
    return None


class ExplanationBody(StrictBody):
    """`input` is one of those that the model's predictions are made of, or [query, document]."""

    model: str = Field(max_length=LONGEST_NAME)
    input: Any
    as_vectors: bool = False  # of a model with a head, the cosine of two texts


class AttributionsBody(ExplanationBody):
    """`target`: a class, a piece of the vocabulary, the number of a word; None is what the model answers."""

    target: str | int | None = None
    baseline: Literal["pad", "mask"] = "pad"


class AttentionBody(ExplanationBody):
    """A `layer` and a `head`, from 0, to be seen whole: the last layer's first one unless said. `pictures`
    False leaves the small ones of all heads away.
    """

    layer: int | None = Field(None, ge=0)
    head: int = Field(0, ge=0)
    pictures: bool = True


class _ClientDisconnect(Exception):
    """The client of an explanation has disconnected."""


class _Explanations:
    """Computes one explanation at a time, and holds the model explained last, a second copy in float32."""

    def __init__(self) -> None:
        self._busy = Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._opened: tuple[ref[ServedModel], bool, Explainer] | None = None

    async def run(self, work: Callable[[Check], dict[str, Any]]) -> dict[str, Any]:
        """Runs beside the event loop. Raises ServiceOverload while another one is computed, InvalidRequest
        for what can't be explained, DeadlineError. A client that disconnects ends it at its next step.
        """
        self._thread = self._thread or start_one_core_threads(1, "explaining")
        wait_until = time.monotonic() + _WAIT_SECONDS
        while not self._busy.acquire(blocking=False):
            if time.monotonic() > wait_until:
                raise ServiceOverload("Another answer is being explained. Come back in 2 seconds.", 2.0)
            await asyncio.sleep(_POLL_SECONDS)
        disconnected, deadline = Event(), time.monotonic() + _SECONDS

        def check() -> None:
            if disconnected.is_set():
                raise _ClientDisconnect
            if time.monotonic() > deadline:
                raise DeadlineError(f"This took longer than {_SECONDS:g} seconds. Explain a shorter text.")

        def compute() -> dict[str, Any]:
            try:
                began = time.monotonic()
                explanation = work(check)
                return explanation | {"seconds": time.monotonic() - began}
            finally:
                self._busy.release()

        computing = asyncio.wrap_future(self._thread.submit(compute))
        try:
            return await asyncio.shield(computing)
        except BertsmithError as error:
            raise InvalidRequest(str(error)) from error
        except asyncio.CancelledError:
            disconnected.set()
            computing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def attributions(self, body: AttributionsBody, model: ServedModel, check: Check) -> dict[str, Any]:
        """The contribution of each token to an answer, as JSON."""
        explainer = self._explainer(model, body.as_vectors)
        result = explainer.attributions(
            body.input, body.target, baseline=body.baseline, progress=lambda *_: check()
        )
        shown = describe_tokens(model.tokenizer, result.token_ids)
        return {
            "target": result.target,
            "value": result.value,
            "baseline_value": result.baseline_value,
            "error": result.error,
            "steps": result.steps,
            "tokens": [
                {**token, "score": score} for token, score in zip(shown, result.scores.tolist(), strict=True)
            ],
        }

    def attention(self, body: AttentionBody, model: ServedModel, check: Check) -> dict[str, Any]:
        """The attention weights of one head, and thumbnails of all heads, as JSON."""
        explainer = self._explainer(model, body.as_vectors)
        check()
        result = explainer.attention(body.input)
        layers, heads = result.weights.shape[:2]
        layer = layers - 1 if body.layer is None else body.layer
        if layer >= layers or body.head >= heads:
            raise InvalidRequest(
                f"{model.name} has {layers} layers of {heads} heads, counted from 0; found layer {layer}, "
                f"head {body.head}."
            )
        answer = {
            "tokens": describe_tokens(model.tokenizer, result.token_ids),
            "layers": layers,
            "heads": heads,
            "layer": layer,
            "head": body.head,
            "weights": _encode_base64(result.in_two_bytes()[layer, body.head]),
        }
        if body.pictures:
            small = result.thumbnails()
            answer |= {"side": small.shape[-1], "pictures": _encode_base64(small)}
        return answer

    def _explainer(self, model: ServedModel, as_vectors: bool) -> Explainer:
        """The explainer of the served version, opened once. Raises UnsupportedRequest if the folder has other
        weights by now.
        """
        as_vectors = as_vectors or "search" in model.operations
        if self._opened is not None:
            served, vectors, explainer = self._opened
            if served() is model and vectors == as_vectors:
                return explainer
        self._opened = None  # frees the last explainer's model before the next is opened
        _require_weights(model)
        explainer = Explainer(model.files.weights, model.device, as_vectors=as_vectors)
        _require_weights(model)  # they may have been replaced while they were read
        self._opened = ref(model), as_vectors, explainer
        return explainer


def _require_weights(model: ServedModel) -> None:
    """Raises UnsupportedRequest if the folder no longer has the weights that are served."""
    if not model.files.are_still_there:
        raise UnsupportedRequest(
            f"The folder of {model.name} has other weights than those that are served, which can't be "
            "explained without their file. Let the service read it again."
        )


def _encode_base64(numbers: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode("ascii")
