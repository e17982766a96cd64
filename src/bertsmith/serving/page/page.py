"""The page at /, its files, and what it has to know of the models."""

from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

import bertsmith
from bertsmith.inference.explained_model import LONGEST
from bertsmith.inference.ranking.reranker import relevant_label
from bertsmith.reporting.page import WEB
from bertsmith.serving.admission import PAGE_FILES
from bertsmith.serving.models import reads_pairs, rows_of
from bertsmith.serving.operations.search import Search
from bertsmith.serving.page import HEADERS, MEDIA_TYPES, STATIC, explaining
from bertsmith.serving.protocols.ours import error_body
from bertsmith.serving.protocols.routing import JsonResponse, router_of
from bertsmith.serving.refusals import UnknownModel
from bertsmith.serving.served_model import ServedModel
from bertsmith.serving.service import Service
from bertsmith.text.tokens.patch_tokenizer import PatchTokenizer

_FOLDERS = (WEB, STATIC)
_LONGEST_ROW = 100_000  # bytes
_ASKED = ("predict", "rerank", "similarity", "embed", "fill_mask", "search")  # what the page has a form for


def routes(service: Service) -> APIRouter:
    """The routes, for an application; none where the settings want no page."""
    router = router_of(error_body, include_in_schema=False)
    if not service.settings.page:
        return router
    files = {path.name: path.read_bytes() for folder in _FOLDERS for path in sorted(folder.iterdir())}

    def answer(name: str) -> Response:
        headers = HEADERS | {"content-type": MEDIA_TYPES[Path(name).suffix]}
        return Response(files[name], headers=headers)

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
        found = [described(model) for model in service.models]
        return JsonResponse(
            {"version": bertsmith.__version__, "explained_tokens": LONGEST, "models": found},
            headers={"cache-control": "no-store"},
        )

    explaining.add_routes(router, service)
    return router


def described(model: ServedModel) -> dict[str, Any]:
    """What the page shows of a model, and makes its form by."""
    operations = [name for name in _ASKED if name in model.operations]
    task = model.opened
    return {
        "name": model.name,
        "task": model.task,
        "version": model.version,
        "labels": list(model.labels),
        "relevant": _relevant(model),
        "max_length": model.max_length,
        "precision": str(model.compute_dtype).removeprefix("torch."),
        "example": _example(model),
        "usual": next(iter(model.operations)),
        # as the model has them; vectors are rather compared than read
        "operations": sorted(
            operations, key=lambda name: (name == "embed", list(model.operations).index(name))
        ),
        "pairs": None if _may_read_pairs(model) else reads_pairs(model),
        "mask": model.tokenizer.id_to_token(model.tokenizer.mask_id),
        "windows": bool(task is not None and (task.settings.stride is not None or task.is_pretokenized)),
        "scale": _scale(model),
        "columns": _columns(model),
        "beside": list(getattr(task, "column_names", ())),  # columns that are read beside the text
    }


def _may_read_pairs(model: ServedModel) -> bool:
    """A model of transformers doesn't say whether it was trained on one text or two."""
    return model.opened is not None and getattr(model.opened, "reads_pairs", False) is None


def _example(model: ServedModel) -> list[str] | None:
    """A text or a pair that the model was tried on, where its folder is still that of a run; a row of numbers
    for a model that reads them. The page has texts of its own for all others.
    """
    if isinstance(model.tokenizer, PatchTokenizer):
        return rows_of(model.tokenizer.shape)[:1]
    for name in ("test", "dev") if model.opened is not None else ():
        row = _first_row(model.files.folder.resolve().parent / "predictions" / f"{name}.jsonl")
        for keys in (("text", "text_pair"), ("query", "document"), ("text",)):
            texts = [row[key] for key in keys if isinstance(row.get(key), str) and row[key].strip()]
            if len(texts) == len(keys):
                return texts
        if isinstance(words := row.get("words"), list):
            return [" ".join(map(str, words))]
    return None


def _first_row(path: Path) -> dict[str, Any]:
    """Of a run's predictions; empty where there are none."""
    try:
        with path.open("rb") as file:
            row = orjson.loads(file.readline(_LONGEST_ROW))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return row if isinstance(row, dict) else {}


def _relevant(model: ServedModel) -> str | None:
    """The label whose probability ranks documents; None where a number does, or nothing."""
    if "rerank" not in model.operations or not model.labels:
        return None
    return relevant_label(model.labels, model.name)


def _scale(model: ServedModel) -> list[float] | None:
    """From where to where a model's number may lie; None where training set no bounds."""
    if model.task == "reranking":
        return [0.0, 1.0]
    if model.task in ("similarity", "retrieval"):
        return [-1.0, 1.0]
    bounds = getattr(model.opened, "bounds", None)
    return list(bounds) if bounds else None


def _columns(model: ServedModel) -> list[str]:
    """By which an index may be filtered."""
    search = model.operations.get("search")
    return list(search.index.info.metadata) if isinstance(search, Search) else []
