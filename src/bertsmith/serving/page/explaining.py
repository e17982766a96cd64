"""What an answer rests on, for the page: one at a time, beside the queue, on one core at most.

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
import numpy.typing as npt
from fastapi import APIRouter, Response
from pydantic import Field

from bertsmith.errors import BertsmithError
from bertsmith.inference.attribution import Explainer
from bertsmith.model.cpu.one_core_threads import start_one_core_threads
from bertsmith.serving.protocols.routing import JsonResponse, StrictBody
from bertsmith.serving.refusals import Expired, InvalidRequest, Overloaded, Unsupported
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service
from bertsmith.text.tokens.shown_tokens import shown_tokens

_SECONDS = 60.0  # for one explanation
_PATIENCE = 2.0  # seconds for which one waits for another's: whoever chose anew has just left his
_LOOK = 0.02  # seconds between two looks at whether it is done
Check = Callable[[], None]  # raises where nobody waits any more


class Asked(StrictBody):
    """`input` is one of those that the model's predictions are made of, or [query, document]."""

    model: str = Field(max_length=64)
    input: Any
    as_vectors: bool = False  # of a model with a head, the cosine of two texts


class AttributionsAsked(Asked):
    """`target`: a class, a piece of the vocabulary, the number of a word; None is what the model answers."""

    target: str | int | None = None
    baseline: Literal["pad", "mask"] = "pad"


class AttentionAsked(Asked):
    """A `layer` and a `head`, from 0, to be seen whole: the last layer's first one unless said. `pictures`
    False leaves the small ones of all heads away.
    """

    layer: int | None = Field(None, ge=0)
    head: int = Field(0, ge=0)
    pictures: bool = True


def add_routes(router: APIRouter, service: Service) -> None:
    """POST /page/attributions and /page/attention."""
    explanations = _Explanations()

    @router.post("/page/attributions")
    async def attributions(asked: AttributionsAsked) -> Response:
        model = service.models[asked.model]
        return JsonResponse(
            await explanations.run(lambda check: _attributions(explanations, model, asked, check))
        )

    @router.post("/page/attention")
    async def attention(asked: AttentionAsked) -> Response:
        model = service.models[asked.model]
        return JsonResponse(
            await explanations.run(lambda check: _attention(explanations, model, asked, check))
        )


class _Gone(Exception):
    """Nobody waits any more."""


class _Explanations:
    """One explanation at a time, and the model that was explained last: a second copy in float32."""

    def __init__(self) -> None:
        self._busy = Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._opened: tuple[ref[ServedModel], bool, Explainer] | None = None

    async def run(self, work: Callable[[Check], dict[str, Any]]) -> dict[str, Any]:
        """Beside the event loop. Raises Overloaded while another one is computed, InvalidRequest for what
        can't be explained, Expired. A client that goes away ends it at the next points.
        """
        self._thread = self._thread or start_one_core_threads(1, "explaining")
        patient = time.monotonic() + _PATIENCE
        while not self._busy.acquire(blocking=False):
            if time.monotonic() > patient:
                raise Overloaded("Another answer is being explained. Come back in 2 seconds.", 2.0)
            await asyncio.sleep(_LOOK)
        gone, until = Event(), time.monotonic() + _SECONDS

        def check() -> None:
            if gone.is_set():
                raise _Gone
            if time.monotonic() > until:
                raise Expired(f"This took longer than {_SECONDS:g} seconds. Explain a shorter text.")

        def compute() -> dict[str, Any]:
            try:
                began = time.monotonic()
                found = work(check)
                return found | {"seconds": time.monotonic() - began}
            finally:
                self._busy.release()

        computing = asyncio.wrap_future(self._thread.submit(compute))
        try:
            return await asyncio.shield(computing)
        except BertsmithError as error:
            raise InvalidRequest(str(error)) from error
        except asyncio.CancelledError:
            gone.set()
            computing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def explainer(self, model: ServedModel, as_vectors: bool) -> Explainer:
        """Of the version that is served. Opening the same one again takes no time. Raises Unsupported where
        its folder has other weights by now.
        """
        as_vectors = as_vectors or "search" in model.operations
        if self._opened is not None:
            served, vectors, explainer = self._opened
            if served() is model and vectors == as_vectors:
                return explainer
        self._opened = None  # else there were three copies for a while
        _require_weights(model)
        explainer = Explainer(model.files.weights, model.device, as_vectors=as_vectors)
        _require_weights(model)  # else it may have read those of a newer one
        self._opened = ref(model), as_vectors, explainer
        return explainer


def _require_weights(model: ServedModel) -> None:
    if not model.files.are_still_there:
        raise Unsupported(
            f"The folder of {model.name} has other weights than those that are served, which can't be "
            "explained without their file. Let the service read it again."
        )


def _attributions(
    explanations: _Explanations, model: ServedModel, asked: AttributionsAsked, check: Check
) -> dict[str, Any]:
    explainer = explanations.explainer(model, asked.as_vectors)
    found = explainer.attributions(
        asked.input, asked.target, baseline=asked.baseline, progress=lambda *_: check()
    )
    shown = shown_tokens(model.tokenizer, found.token_ids)
    return {
        "target": found.target,
        "value": found.value,
        "baseline_value": found.baseline_value,
        "error": found.error,
        "steps": found.steps,
        "tokens": [
            {**each, "score": score} for each, score in zip(shown, found.scores.tolist(), strict=True)
        ],
    }


def _attention(
    explanations: _Explanations, model: ServedModel, asked: AttentionAsked, check: Check
) -> dict[str, Any]:
    explainer = explanations.explainer(model, asked.as_vectors)
    check()
    found = explainer.attention(asked.input)
    layers, heads = found.weights.shape[:2]
    layer = layers - 1 if asked.layer is None else asked.layer
    if layer >= layers or asked.head >= heads:
        raise InvalidRequest(
            f"{model.name} has {layers} layers of {heads} heads, counted from 0; found layer {layer}, "
            f"head {asked.head}."
        )
    answer = {
        "tokens": shown_tokens(model.tokenizer, found.token_ids),
        "layers": layers,
        "heads": heads,
        "layer": layer,
        "head": asked.head,
        "weights": _encoded(found.in_two_bytes()[layer, asked.head]),
    }
    if asked.pictures:
        small = found.thumbnails()
        answer |= {"side": small.shape[-1], "pictures": _encoded(small)}
    return answer


def _encoded(numbers: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode("ascii")
