"""The service in a thread, and its page filled in: what every test of the page begins with."""

import json
import threading
import time
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import uvicorn

from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from chromium import Browser

# What each form is filled with: tiny models know seven words.
TEXT = "bano delo firus guma kano ."
FILLED: dict[str, dict[str, str]] = {
    "classification/predict": {"text": TEXT},
    "mixed/predict": {"text": TEXT, "beside-0": "30", "beside-1": ""},
    "multi-label/predict": {"text": TEXT},
    "regression/predict": {"text": TEXT},
    "tagging/predict": {"text": TEXT},
    "question-answering/predict": {"question": "bano ?", "context": "firu guma kano lelo miru ."},
    "unanswerable/predict": {"question": "bano ?", "context": "firu guma kano lelo miru ."},
    "similarity/predict": {"text": "bano delo", "pair": "firu guma"},
    "similarity/similarity": {"source": "bano delo", "texts": "firu guma\nbano kano\n\nmiru"},
    "retrieval/predict": {"text": "bano delo", "pair": "firu guma"},
    "retrieval/embed": {"texts": "bano delo\nfiru"},
    "reranking/predict": {"text": "bano delo", "pair": "firu guma"},
    "reranking/rerank": {"query": "bano delo", "documents": "firu guma\nbano kano\nmiru"},
    "masked-language/fill_mask": {"text": "bano [MASK] delo [MASK]"},
    "masked-language/similarity": {"source": "bano", "texts": "firu guma\nbano kano"},
    "masked-language/embed": {"texts": "bano delo"},
    "library/search": {"query": "guma kano"},
}
# One form of each kind for tests that every form passes alike; the others where there is time.
_OFTEN = ("tagging/predict", "reranking/rerank", "library/search")
FORMS = [pytest.param(form, marks=[pytest.mark.slow] * (form not in _OFTEN)) for form in FILLED]
ASKED = "!document.getElementById('facts').hidden && !document.querySelector('[aria-busy]')"


class Served:
    """An application on a port of this machine, in a thread."""

    def __init__(self, folders: dict[str, Path], **more: Any) -> None:
        settings = read_settings([f"{name}={folder}" for name, folder in folders.items()], None, more, {})
        self.app = make_app(settings)
        self._server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_level="critical"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until = time.monotonic() + 120
        while not self._server.started and time.monotonic() < until:
            time.sleep(0.02)
        (listening,) = self._server.servers[0].sockets
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/"

    def stop(self) -> None:
        """As SIGTERM would."""
        self._server.should_exit = True
        self._thread.join(60)

    def get(self, path: str) -> tuple[int, Message, str]:
        """Status, headers and body."""
        return _fetched(self.address + path)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON."""
        headers = {"content-type": "application/json"}
        status, _, text = _fetched(Request(self.address + path, json.dumps(body).encode(), headers))
        return status, json.loads(text)


def _fetched(request: Request | str) -> tuple[int, Message, str]:
    try:
        with urlopen(request) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def begin(browser: Browser, served: Served, form: str, *, again: bool = False) -> None:
    """The page with a form filled in."""
    if not again:
        browser.open(served.address + "page/static/icon.svg")
        browser.run("sessionStorage.clear()")
    browser.open(f"{served.address}#{form}")
    browser.wait_for("document.querySelector('#fields [data-id]')")
    for field, text in FILLED[form].items():
        browser.fill(f"#field-{field}", text)


def ask(browser: Browser) -> None:
    browser.click("#send")
    browser.wait_for(ASKED)


def walk_to(browser: Browser, there: str) -> None:
    """By the Tab key alone."""
    for _ in range(40):
        browser.press("Tab")
        if browser.run(there):
            return
    raise AssertionError(f"Tab never leads to where {there}")
