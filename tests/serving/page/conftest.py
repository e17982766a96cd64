"""Tiny models of every kind behind one service, and a browser that looks at its page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_trials import Served

from bertsmith import Index
from served_models import MORE, TASKS, save_fine_tuned, save_mixed, save_pretrained, save_unanswerable


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    found = {name: save_fine_tuned(folder / name, name) for name in (*TASKS, *MORE)}
    found["masked-language"] = save_pretrained(folder / "pretrained")
    found["mixed"] = save_mixed(folder / "mixed")
    found["unanswerable"] = save_unanswerable(folder / "unanswerable")
    (folder / "documents").mkdir()
    for number, text in enumerate(("bano delo firu .", "guma kano lelo .", "miru bano .")):
        (folder / "documents" / f"{number}.txt").write_text(text)
    Index.build([str(folder / "documents")], folder / "library", model=str(found["masked-language"]))
    return found | {"library": folder / "library"}


@pytest.fixture(scope="session")
def served(folders: dict[str, Path]) -> Iterator[Served]:
    running = Served(folders)
    yield running
    running.stop()
