"""A service with a small model of each kind, for clients of every protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_service import Running, running

from served_models import TASKS, save_encoder, save_fine_tuned, save_pretrained

# Heads beside those of TASKS: the task, its labels, whether of pairs.
HEADS = {
    "nli": ("classification", ["contradiction", "entailment", "neutral"], True),
    "urgent": ("classification", ["no", "yes"], False),
    "stars": ("classification", ["1", "2", "3", "4"], False),
    "mood": ("classification", ["Bad", "Good", "Fair"], False),
}


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the names that they are served by."""
    folder = tmp_path_factory.mktemp("served")
    found = {name: save_fine_tuned(folder / name, name) for name in TASKS}
    for name, (task, labels, pair) in HEADS.items():
        found[name] = save_fine_tuned(folder / name, task, labels=labels, pair=pair)
    found["encoder"] = save_encoder(folder / "encoder")
    return found | {"masked-language": save_pretrained(folder / "pretrained")}


@pytest.fixture(scope="session")
def server(model_folders: dict[str, Path]) -> Iterator[Running]:
    """With all of them."""
    with running(model_folders) as found:
        yield found


@pytest.fixture(scope="session")
def encoder_server(model_folders: dict[str, Path]) -> Iterator[Running]:
    """With the encoder alone, as a server of one model."""
    with running({"encoder": model_folders["encoder"]}) as found:
        yield found
