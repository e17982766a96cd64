"""A model over HTTP by Python's own server: OpenAI's embeddings, and text-embeddings-inference's routes.

GET  /health  /info  /v1/models
POST /v1/embeddings  {"input": text or texts, "encoding_format": "float" or "base64", "dimensions": 384,
                      "kind": "query" or "document", "prompt_name": name, "long_text": "error" or "truncate"}
POST /embed          {"inputs": text or texts, "normalize": true, "truncate": true, "dimensions": 384,
                      "prompt_name": name}
POST /predict        {"inputs": text, pair or a list of them}
POST /rerank         {"query": text, "texts": texts, "return_text": false}

What `bertsmith serve` has too means the same there. A key that isn't known would change no answer without a
word, so it is refused; so is another `model` than the one that is served.
"""

import base64
import json
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, InputError, ModelError
from bertsmith.inference.embedding.vectors import Vectors, cut, normalised
from bertsmith.runtime import Embedder, Predictor
from bertsmith.tasks.checkpoints.sentence_folder import read_sentence_settings

_LARGEST = 8 << 20  # bytes of a request
_MOST_TEXTS = 2048
_LONGEST_LENGTH = 9  # digits: Python refuses to parse thousands
_THIS_MACHINE = re.compile(r"https?://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?")
_CHANGES_NOTHING = {
    "model",
    "user",
    "metadata",
    "request_id",
    "priority",
    "safety_identifier",
    "service_tier",
}


class OneModel:
    """The answers to requests, by their paths, as JSON."""

    def __init__(self, model: str, precision: str | None = None) -> None:
        """Opens a folder as what it was made for. Raises ModelError for neither vectors nor predictions."""
        self.path, parts = model, Path(model).parts
        self.name = parts[-2] if parts[-1:] == ("model",) and len(parts) > 1 else Path(model).name
        self.embedder: Embedder | None = None
        self.predictor: Predictor | None = None
        try:
            self.predictor = Predictor(model, precision=precision)
        except ModelError as reason:
            self.embedder = Embedder(model, normalise=False, precision=precision)
            self.prompts = read_sentence_settings(self.embedder.folder)
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
        keys = ("input", "encoding_format", "dimensions", "kind", "prompt_name", "long_text")
        _require_known(body, keys)
        texts, form = _texts(body.get("input"), "input"), _choice(body, "encoding_format", "float", "base64")
        cuts = _choice(body, "long_text", "error", "truncate") == "truncate"
        vectors, tokens = self._embed(texts, body, cuts=cuts)
        data = [
            {
                "object": "embedding",
                "index": number,
                "embedding": vector.tolist()
                if form == "float"
                else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
            }
            for number, vector in enumerate(normalised(vectors))
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.name, "usage": usage}

    def embed(self, body: Mapping[str, Any]) -> Any:
        """The body of TEI's /embed for a request's `inputs`."""
        _require_known(body, ("inputs", "normalize", "truncate", "dimensions", "prompt_name"))
        texts, cuts = _texts(body.get("inputs"), "inputs"), _flag(body, "truncate", usual=True)
        vectors, _ = self._embed(texts, body, cuts=cuts)
        return (normalised(vectors) if _flag(body, "normalize", usual=True) else vectors).tolist()

    def _embed(self, texts: list[str], body: Mapping[str, Any], *, cuts: bool) -> tuple[Vectors, int]:
        """Vectors of any length behind the prompt of a request, and the number of their tokens."""
        if self.embedder is None:
            raise InputError(f"This model makes no vectors: {self.reason}.")
        prompt, room = self._choose_prompt(body), self.embedder.windows.room
        counts = [
            len(ids)
            for ids in self.embedder.engine.tokenizer.encode_batch(
                [prompt + text for text in texts], room + 1
            )
        ]
        if not cuts and max(counts) > room:
            number = next(number for number, count in enumerate(counts, 1) if count > room)
            raise InputError(
                f"Input {number} is longer than the {self.embedder.max_length} tokens that the model reads. "
                "Shorten it, or say long_text = 'truncate' (truncate = true for /embed)."
            )
        special = self.embedder.max_length - room
        vectors, dimensions = self.embedder.embed(texts, prompt), body.get("dimensions")
        if dimensions is not None:
            if type(dimensions) is not int:
                raise InputError(f"dimensions must be a number, found {str(dimensions)[:40]!r}.")
            vectors = cut(vectors, dimensions, normalise=False)
        return vectors, sum(min(count, room) + special for count in counts)

    def _choose_prompt(self, body: Mapping[str, Any]) -> str:
        """The prompt that `kind` or `prompt_name` names; the folder's default one without either."""
        settings, kind, name = self.prompts, body.get("kind"), body.get("prompt_name")
        if kind is not None and name is not None:
            raise InputError("kind and prompt_name both choose a prompt: say one of them.")
        if kind is not None:
            kind = _choice(body, "kind", "query", "document")
            return settings.query_prefix if kind == "query" else settings.document_prefix
        return (
            settings.default_prompt
            if name is None
            else settings.prompts[_choice(body, "prompt_name", *settings.prompts)]
        )

    def predict(self, body: Mapping[str, Any]) -> Any:
        """A prediction of ours for each of `inputs`; a lone text gives one."""
        _require_known(body, ("inputs", "raw_scores", "truncate"), ("raw_scores", False), ("truncate", True))
        given, predictor = body.get("inputs"), self._predictor()
        if isinstance(given, str):
            return predictor.predict([given])[0]
        if not isinstance(given, list) or not given or len(given) > _MOST_TEXTS:
            raise InputError(f"inputs must be a text, or a list of 1 to {_MOST_TEXTS} texts or pairs.")
        return predictor.predict(given)

    def rerank(self, body: Mapping[str, Any]) -> Any:
        """TEI's ranking of `texts` by `query`, the best first."""
        keys = ("query", "texts", "return_text", "raw_scores", "truncate")
        _require_known(body, keys, ("raw_scores", False), ("truncate", True))
        query, texts = body.get("query"), _texts(body.get("texts"), "texts")
        if not isinstance(query, str):
            raise InputError("query must be a text.")
        predictor = self._predictor()
        answers = predictor.predict([(query, text) for text in texts])
        if "score" not in answers[0]:
            raise InputError(f"The model is for {predictor.task}, which gives no score to rank by.")
        scored = [
            {"index": number, "score": answer["score"]}
            | ({"text": text} if _flag(body, "return_text", usual=False) else {})
            for number, (text, answer) in enumerate(zip(texts, answers, strict=True))
        ]
        return sorted(scored, key=lambda entry: -entry["score"])

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


def _require_known(body: Mapping[str, Any], keys: Sequence[str], *fixed: tuple[str, bool]) -> None:
    """Raises InputError for another key, and for one of `fixed` with another value than its own."""
    for name, value in body.items():
        if value is not None and name not in keys and name not in _CHANGES_NOTHING:
            raise InputError(f"There is no {name[:80]!r} here: {', '.join(keys)}.")
        if value is not None and (name, not value) in fixed:
            raise InputError(f"{name} = {str(value).lower()[:40]} needs the package bertsmith. Leave it out.")


def _choice(body: Mapping[str, Any], name: str, *values: str) -> str:
    """One of the values, the first one where the request has none."""
    if (value := body.get(name)) is None:
        return values[0]
    if value not in values:
        raise InputError(f"{name} must be {' or '.join(values)}, found {str(value)[:40]!r}.")
    return str(value)


def _flag(body: Mapping[str, Any], name: str, *, usual: bool) -> bool:
    value = body.get(name)
    if value is not None and type(value) is not bool:
        raise InputError(f"{name} must be true or false, found {str(value)[:40]!r}.")
    return usual if value is None else value


class _RequestHandler(BaseHTTPRequestHandler):
    service: OneModel
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds for a client that sends nothing

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def do_GET(self) -> None:
        if self._read_body("0") is None:
            return
        answer = self.service.about(self.path.partition("?")[0])
        if answer is None:
            self._answer(404, _problem("There is no such path.", "not_found"))
        else:
            self._answer(200, answer)

    def do_POST(self) -> None:
        route = self.service.routes.get(self.path.partition("?")[0])
        if (content := self._read_body("")) is None:
            return
        if (refused := self._refuse_page()) is not None:
            self._answer(*refused)
            return
        if route is None:
            self._answer(404, _problem("There is no such path.", "not_found"))
            return
        try:
            body = json.loads(content)
            if not isinstance(body, dict):
                raise InputError("The request must be a JSON object.")
            if (named := body.get("model")) not in (None, self.service.name):
                known = f"There is no model {str(named)[:80]!r} here. There is: {self.service.name}."
                self._answer(404, _problem(known, "model_not_found"))
                return
            self._answer(200, route(body))
        except (ValueError, RecursionError) as error:
            self._answer(400, _problem(f"The request is not valid JSON ({error})."))
        except InputError as error:
            self._answer(422, _problem(str(error)))
        except (BertsmithError, MemoryError) as error:
            self._answer(500, _problem(str(error), "server_error"))

    def _read_body(self, usual_length: str) -> bytes | None:
        """The request's body. None, and the connection ends, where its length isn't clear: a proxy in front
        would take another part of what follows for the next request, perhaps another client's.
        """
        length = ",".join(self.headers.get_all("Content-Length", [usual_length]))
        is_clear = length.isdecimal() and len(length) <= _LONGEST_LENGTH and int(length) <= _LARGEST
        if is_clear and "Transfer-Encoding" not in self.headers:
            return self.rfile.read(int(length))
        self.close_connection = True
        self._answer(413, _problem(f"Send at most {_LARGEST:,} bytes, and their Content-Length."))
        return None

    def _refuse_page(self) -> tuple[int, Any] | None:
        """The answer to another site's page in a browser, which could ask this machine without a word: one by
        its form or by its name for this machine. None for all others.
        """
        if self.headers.get_content_type() != "application/json":
            return 415, _problem("Send JSON, with the header Content-Type: application/json.")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        is_of_proxy = site == "same-origin" and str(origin).startswith("https:")
        if origin is not None and not is_of_proxy and not _THIS_MACHINE.fullmatch(origin):
            return 403, _problem(f"Pages of {origin[:80]!r} may not ask here.", "permission_error")
        return None

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


def serve(model: OneModel, host: str, port: int) -> None:
    """Serves one model over HTTP until Ctrl-C."""
    server = make_server(model, host, port)
    print(f"http://{host}:{server.server_address[1]} serves {model.path}", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
