"""What stands before a text: by sentence-transformers' encode, encode_query and encode_document."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from bertsmith import Embedder
from bertsmith.errors import ModelError
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from served_models import save_encoder

TEXTS = ["bano delo", "firu"]
PROMPTS = {"query": "lelo ", "document": "guma ", "clustering": "miru miru "}
Folders = dict[str, Path]


def open_theirs(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer  # here: each process that tests collects all files

    return SentenceTransformer(str(folder), device="cpu")


def saved(folder: Path, **said: Any) -> Path:
    save_encoder(folder)
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({"similarity_fn_name": "cosine", **said}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    place = tmp_path_factory.mktemp("prompts")
    return {
        "none": saved(place / "none", prompts={}),
        "named": saved(place / "named", prompts=PROMPTS, default_prompt_name=None),
        "default": saved(place / "default", prompts=PROMPTS, default_prompt_name="clustering"),
    }


@pytest.fixture(scope="module")
def client(folders: Folders) -> Iterator[TestClient]:
    named = [f"{name}={folder}" for name, folder in folders.items()]
    with TestClient(make_app(read_settings(named, None, {}, {}))) as found:
        yield found


def vectors(client: TestClient, route: str, model: str, name: str | None) -> Any:
    said = {} if name is None else {"prompt_name": name}
    if route == "/v1/embeddings":
        answer = client.post(route, json={"model": model, "input": TEXTS, **said})
        assert answer.status_code == 200, answer.text
        return [each["embedding"] for each in answer.json()["data"]]
    if route == "/embed":
        return client.post(route, json={"model": model, "inputs": TEXTS, **said}).json()
    if route == "pipeline":
        return client.post(f"/models/{model}", json={"inputs": TEXTS, "parameters": said}).json()
    return client.post(f"/v1/{model}", json={"inputs": TEXTS, "options": said}).json()["results"]


@pytest.mark.parametrize("route", ["/v1/embeddings", "/embed", "pipeline", "ours"])
@pytest.mark.parametrize("model", ["none", "named", "default"])
def test_a_prompt_stands_before_a_text_where_it_is_named_or_the_folder_s_default(
    client: TestClient, folders: Folders, route: str, model: str
) -> None:
    theirs = open_theirs(folders[model])
    for name in [None, *theirs.prompts]:
        expected = theirs.encode(TEXTS, prompt_name=name, normalize_embeddings=True)
        np.testing.assert_allclose(vectors(client, route, model, name), expected, atol=1e-4)


def test_a_kind_is_what_encode_query_and_encode_document_mean(client: TestClient, folders: Folders) -> None:
    for model in ("none", "named", "default"):
        theirs = open_theirs(folders[model])
        ours = Embedder(folders[model])
        for kind, expected, python in (
            ("query", theirs.encode_query(TEXTS, normalize_embeddings=True), ours.queries(TEXTS)),
            ("document", theirs.encode_document(TEXTS, normalize_embeddings=True), ours.documents(TEXTS)),
        ):
            answer = client.post("/v1/embeddings", json={"model": model, "input": TEXTS, "kind": kind}).json()
            found = [each["embedding"] for each in answer["data"]]
            np.testing.assert_allclose(found, expected, atol=1e-4)
            np.testing.assert_allclose(python, expected, atol=1e-4)


def test_all_that_reads_vectors_has_the_default_prompt(client: TestClient, folders: Folders) -> None:
    theirs = open_theirs(folders["default"])
    cosine = float(theirs.similarity(*theirs.encode(TEXTS, convert_to_tensor=True).split(1)))
    compared = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    found = client.post("/similarity", json={"model": "default", "inputs": compared}).json()
    assert found == pytest.approx([cosine], abs=1e-4)
    states = client.post("/embed_all", json={"model": "default", "inputs": TEXTS[0]}).json()[0]
    expected = theirs.encode(TEXTS[0], output_value="token_embeddings")
    assert len(states) == len(expected) == 6
    pieces = client.post("/tokenize", json={"model": "default", "inputs": TEXTS[0]}).json()[0]
    assert [each["text"] for each in pieces if not each["special"]] == ["miru", "miru", "bano", "delo"]


@pytest.mark.parametrize("said", [{"prompt_name": "passage"}, {"prompt_name": "query", "kind": "query"}])
def test_a_prompt_that_there_is_not_is_refused_with_those_that_there_are(
    client: TestClient, said: dict[str, Any]
) -> None:
    answer = client.post("/v1/named", json={"inputs": TEXTS, "options": said})
    assert answer.status_code == 422
    if "kind" not in said:
        assert "query or document or clustering" in answer.json()["error"]["message"]
        refused = client.post("/tokenize", json={"model": "named", "inputs": "bano", **said})
        assert refused.status_code == 422 and "clustering" in refused.json()["error"]


def test_a_folder_whose_default_prompt_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", prompts=PROMPTS, default_prompt_name="passage")
    with pytest.raises(ValueError, match="passage"):
        open_theirs(folder)
    with pytest.raises(ModelError, match="default_prompt_name is 'passage'"):
        Embedder(folder)


def test_tokens_of_a_source_were_computed_too(client: TestClient) -> None:
    def asked(source: str) -> int:
        body = {"model": "named", "inputs": {"source_sentence": source, "sentences": TEXTS}}
        return int(client.post("/similarity", json=body).headers["x-compute-tokens"])

    assert asked("guma") == (2 + 1) + (2 + 2) + (2 + 1)  # [CLS] and [SEP] around each text's words
    assert asked("guma " * 9) == asked("guma") + 8
