"""A benchmark's `main` within the test, its workers too."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import harness


class RunScript:
    """Calls `main` of a script with options; results go to a folder of the test, never to bench/results.

    What a worker is asked and answers still goes through JSON, only not to another process.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(harness, "RESULTS", results)

    def __call__(self, script: ModuleType, *options: str) -> None:
        run = self

        class Worker:
            def __init__(self, path: str, *arguments: str, python: str = sys.executable) -> None:
                answers: list[Any] = []
                run._monkeypatch.setattr(script, "serve", answers.append)
                run._main(script, "--worker", *arguments)
                (self._answer,) = answers

            def ask(self, **request: Any) -> Any:
                return _through_json(self._answer(_through_json(request)))

            def close(self) -> None:
                """Nothing to end."""

        self._monkeypatch.setattr(script, "Worker", Worker, raising=False)
        self._main(script, *options)

    def _main(self, script: ModuleType, *arguments: str) -> None:
        self._monkeypatch.setattr(sys, "argv", [str(script.__file__), *arguments])
        script.main()


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
