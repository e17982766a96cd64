"""What a team writes in an afternoon: FastAPI around sentence-transformers, or a pipeline of transformers.

    python bench/serving/serving_app.py embedding|classification|tagging MODEL PORT

Endpoints are plain functions, which FastAPI runs in its threads, as its documentation has it.
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    """As OpenAI's embeddings have it."""

    input: str | list[str]
    model: str = ""


def main() -> None:
    """Serves until it is ended."""
    kind, model, port = sys.argv[1:]
    app = FastAPI()
    answer = {"embedding": _embedding, "classification": _pipeline, "tagging": _pipeline}[kind]
    app.post("/v1/embeddings")(answer(kind, model))
    uvicorn.run(app, port=int(port), log_level="error", access_log=False)


def _embedding(kind: str, model: str) -> Any:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model, device="cpu")

    def embed(body: Body) -> dict[str, Any]:
        texts = [body.input] if isinstance(body.input, str) else body.input
        vectors = encoder.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return {"data": [{"index": n, "embedding": each.tolist()} for n, each in enumerate(vectors)]}

    return embed


def _pipeline(kind: str, model: str) -> Any:
    from transformers import pipeline

    name = "text-classification" if kind == "classification" else "token-classification"
    more: dict[str, Any] = {"truncation": True} if kind == "classification" else {}
    answer = pipeline(name, model=model, device="cpu")

    def predict(body: Body) -> Any:
        found = answer(body.input, **more)
        return [
            {key: getattr(value, "item", lambda v=value: v)() for key, value in each.items()}
            for each in found
        ]

    return predict


if __name__ == "__main__":
    main()
