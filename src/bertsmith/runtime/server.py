"""A model over HTTP by Python's own server: OpenAI's embeddings, and text-embeddings-inference's routes.

GET  /health  /info  /v1/models
POST /v1/embeddings              {"input": text or texts, "encoding_format": "float" or "base64"}
POST /embed                      {"inputs": text or texts, "normalize": true}
POST /predict                    {"inputs": text, pair or a list of them}
POST /rerank                     {"query": text, "texts": texts, "return_text": false}
"""

import base64
import json
import socket
import sys
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, InputError, ModelError
from bertsmith.inference.embedding.vectors import normalised
from bertsmith.runtime import Embedder, Predictor

_LARGEST = 8 << 20  # bytes of a request
_MOST_TEXTS = 2048


class OneModel:
    """The answers to requests, by their paths, as JSON."""

    def __init__(self, model: str, precision: str | None = None) -> None:
        """Opens a folder as what it was made for. Raises ModelError for neither vectors nor predictions."""
        self.name = Path(model).name
        self.embedder: Embedder | None = None
        self.predictor: Predictor | None = None
        try:
            self.predictor = Predictor(model, precision=precision)
        except ModelError as reason:
            self.embedder = Embedder(model, precision=precision)
            self.reason = str(reason)
        else:
            self.reason = f"{model} gives predictions"
        self.routes: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "/v1/embeddings": self.openai_embeddings,
            "/embeddings": self.openai_embeddings,
            "/embed": self.embed,
            "/predict": self.predict,
            "/rerank": self.rerank,
        }

    def about(self, path: str) -> Any:
        """The answer to a GET request; None for an unknown path."""
        opened = self.embedder or self.predictor
        assert opened is not None
        longest = opened.max_length
        info = {
            "model_id": self.name,
            "max_input_length": longest,
            "model_dtype": opened.engine.encoder.precision,
        }
        listed = {"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "bertsmith"}]}
        return {"/health": {"status": "ok"}, "/info": info, "/v1/models": listed}.get(path)

    def openai_embeddings(self, body: Mapping[str, Any]) -> Any:
        """The body of OpenAI's /v1/embeddings for a request's `input`."""
        texts = _texts(body.get("input"), "input")
        embedder = self._embedder()
        kind = body.get("encoding_format", "float")
        if kind not in ("float", "base64"):
            raise InputError(f"encoding_format must be float or base64, found {str(kind)[:40]!r}.")
        if body.get("dimensions") not in (None, embedder.width):
            raise InputError(f"dimensions must be {embedder.width}, found {str(body['dimensions'])[:40]}.")
        vectors = embedder.documents(texts)
        tokens = sum(len(ids) for ids in embedder.engine.tokenizer.encode_batch(texts))
        data = [
            {
                "object": "embedding",
                "index": number,
                "embedding": vector.tolist()
                if kind == "float"
                else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
            }
            for number, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.name, "usage": usage}

    def embed(self, body: Mapping[str, Any]) -> Any:
        """The body of TEI's /embed for a request's `inputs`."""
        texts, embedder = _texts(body.get("inputs"), "inputs"), self._embedder()
        vectors = embedder.documents(texts)
        return (normalised(vectors) if body.get("normalize") and not embedder.normalise else vectors).tolist()

    def predict(self, body: Mapping[str, Any]) -> Any:
        """A prediction of ours for each of `inputs`; a lone text gives one."""
        given, predictor = body.get("inputs"), self._predictor()
        if isinstance(given, str):
            return predictor.predict([given])[0]
        if not isinstance(given, list) or not given or len(given) > _MOST_TEXTS:
            raise InputError(f"inputs must be a text, or a list of 1 to {_MOST_TEXTS} texts or pairs.")
        return predictor.predict(given)

    def rerank(self, body: Mapping[str, Any]) -> Any:
        """TEI's ranking of `texts` by `query`, the best first."""
        query, texts = body.get("query"), _texts(body.get("texts"), "texts")
        if not isinstance(query, str):
            raise InputError("query must be a text.")
        predictor = self._predictor()
        answers = predictor.predict([(query, text) for text in texts])
        if "score" not in answers[0]:
            raise InputError(f"The model is for {predictor.task}, which gives no score to rank by.")
        scored = [
            {"index": number, "score": answer["score"]} | ({"text": text} if body.get("return_text") else {})
            for number, (text, answer) in enumerate(zip(texts, answers, strict=True))
        ]
        return sorted(scored, key=lambda entry: -entry["score"])

    def _embedder(self) -> Embedder:
        if self.embedder is None:
            raise InputError(f"This model makes no vectors: {self.reason}.")
        return self.embedder

    def _predictor(self) -> Predictor:
        if self.predictor is None:
            raise InputError(f"This model makes no predictions: {self.reason}")
        return self.predictor


def _texts(value: Any, name: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{name} must be a text or a list of texts, found {type(value).__name__}.")
    if not 1 <= len(texts) <= _MOST_TEXTS:
        raise InputError(f"{name} must be 1 to {_MOST_TEXTS} texts, found {len(texts)}.")
    return texts


class _RequestHandler(BaseHTTPRequestHandler):
    service: OneModel
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds for a client that sends nothing

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def do_GET(self) -> None:
        answer = self.service.about(self.path.partition("?")[0])
        if answer is None:
            self._answer(404, _problem("There is no such path.", "not_found"))
        else:
            self._answer(200, answer)

    def do_POST(self) -> None:
        route = self.service.routes.get(self.path.partition("?")[0])
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST:
            self.close_connection = True
            self._answer(413, _problem(f"Send at most {_LARGEST:,} bytes, and their Content-Length."))
            return
        content = self.rfile.read(int(length))
        if route is None:
            self._answer(404, _problem("There is no such path.", "not_found"))
            return
        try:
            body = json.loads(content)
            if not isinstance(body, dict):
                raise InputError("The request must be a JSON object.")
            self._answer(200, route(body))
        except (ValueError, RecursionError) as error:
            self._answer(400, _problem(f"The request is not valid JSON ({error})."))
        except InputError as error:
            self._answer(422, _problem(str(error)))
        except (BertsmithError, MemoryError) as error:
            self._answer(500, _problem(str(error), "server_error"))

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        pass


def _problem(sentence: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """As OpenAI's clients and TEI's read it."""
    return {"error": {"message": sentence, "type": kind}, "error_type": kind, "message": sentence}


def make_server(service: OneModel, host: str, port: int) -> ThreadingHTTPServer:
    """A server that answers by the service, a thread for each connection. Raises InputError for an address
    that can't be bound.
    """
    handler = type("RequestHandler", (_RequestHandler,), {"service": service})
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"{host}:{port} can't be served: {error}. Choose another port.") from error
    server.daemon_threads = True
    return server


def serve(model: str, host: str, port: int, precision: str | None = None) -> None:
    """Serves a folder until Ctrl-C."""
    server = make_server(OneModel(model, precision), host, port)
    print(f"http://{host}:{server.server_address[1]} serves {model}", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
