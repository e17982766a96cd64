"""OpenAI's own client against the service."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from running_service import Running

from bertsmith import Embedder
from bertsmith.serving.refusals import ServiceOverload, ServiceUnavailable

TEXTS = ["bano delo", "firu", "guma kano lelo miru bano"]
LONG = "bano " * 60


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def vectors(server: Running) -> np.ndarray:
    return Embedder(server.folders["encoder"]).documents(TEXTS)


def test_vectors_come_as_base64_unless_said_and_as_numbers(
    server: Running, client: openai.OpenAI, vectors: np.ndarray
) -> None:
    usual = client.embeddings.create(model="encoder", input=TEXTS)
    assert [each.index for each in usual.data] == [0, 1, 2]
    np.testing.assert_array_equal(np.array([each.embedding for each in usual.data], np.float32), vectors)
    numbers = client.embeddings.create(model="encoder", input=TEXTS, encoding_format="float")
    np.testing.assert_allclose([each.embedding for each in numbers.data], vectors, atol=1e-7)
    assert usual.usage.prompt_tokens == usual.usage.total_tokens == 2 + 2 + 2 + 1 + 2 + 5
    assert usual.model == "encoder"
    raw = httpx.post(
        f"{server.url}/v1/embeddings",
        json={"model": "encoder", "input": TEXTS[0], "encoding_format": "base64"},
    ).json()
    sent = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(sent, vectors[0])


def test_a_text_alone_its_tokens_and_lists_of_tokens_are_the_same(
    server: Running, client: openai.OpenAI, vectors: np.ndarray
) -> None:
    tokenizer = Embedder(server.folders["encoder"]).tokenizer
    ids = [[*tokenizer.encode(text).ids] for text in TEXTS]
    for given, expected in ((TEXTS[0], vectors[:1]), (ids[0], vectors[:1]), (ids, vectors)):
        found = client.embeddings.create(model="encoder", input=given)
        np.testing.assert_array_equal(np.array([d.embedding for d in found.data], np.float32), expected)


def test_fewer_dimensions_have_length_one_again(client: openai.OpenAI, vectors: np.ndarray) -> None:
    (found,) = client.embeddings.create(model="encoder", input=TEXTS[0], dimensions=5).data
    expected = vectors[0, :5] / np.linalg.norm(vectors[0, :5])
    np.testing.assert_allclose(found.embedding, expected, atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions must be 1 to 16"):
        client.embeddings.create(model="encoder", input=TEXTS[0], dimensions=17)


def test_the_asynchronous_client_asks_many_at_once(server: Running, vectors: np.ndarray) -> None:
    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(
                *(client.embeddings.create(model="encoder", input=text) for text in TEXTS * 5)
            )

    for number, answer in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(np.array(answer.data[0].embedding, np.float32), vectors[number % 3])


def test_models_are_listed_for_both_kinds_of_client(server: Running, client: openai.OpenAI) -> None:
    found = {model.id: model for model in client.models.list()}
    assert set(found) == set(server.folders)
    assert {model.object for model in found.values()} == {"model"}
    assert found["encoder"].created > 1_600_000_000
    assert client.models.retrieve("tagging").id == "tagging"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("absent")
    models = httpx.get(f"{server.url}/v1/models").json()["models"]
    assert {"name", "description", "release_date"} == set(models[0])
    assert {"name": "urgent", "description": "classification: no, yes"}.items() <= next(
        each for each in models if each["name"] == "urgent"
    ).items()


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(model="text-embedding-3-small", input="bano")
    assert unknown.value.code == "model_not_found" and unknown.value.type == "invalid_request_error"
    assert "There is no model 'text-embedding-3-small' here" in unknown.value.message
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="encoder", input="bano", encoding_format="hex")  # type: ignore[arg-type]
    assert wrong.value.param == "encoding_format"
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model="encoder", input=["bano", LONG])
    assert long.value.code == "context_length_exceeded" and "Input 2 is longer" in long.value.message
    with pytest.raises(openai.BadRequestError, match="2,049 texts"):
        client.embeddings.create(model="encoder", input=["bano"] * 2049)
    with pytest.raises(openai.BadRequestError, match="has no tokens"):
        client.embeddings.create(model="encoder", input=[])
    with pytest.raises(openai.BadRequestError, match="it has no embed") as unable:
        client.embeddings.create(model="tagging", input="bano")
    assert unable.value.code == "unsupported"


def test_a_long_text_is_read_as_the_client_says(server: Running, client: openai.OpenAI) -> None:
    for way in ("truncate", "windows"):
        (found,) = client.embeddings.create(model="encoder", input=LONG, extra_body={"long_text": way}).data
        expected = Embedder(server.folders["encoder"], long_texts=way).documents([LONG])[0]  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.array(found.embedding, np.float32), expected)


@pytest.mark.parametrize(
    "refusal", [ServiceOverload("Full.", retry_after=0.02), ServiceUnavailable("Stops.", 0.02)]
)
def test_the_client_comes_back_after_a_refusal(
    server: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, refusal: Any
) -> None:
    answer, calls = server.service.answer, list[Any]()

    async def refusing(request: Any) -> Any:
        calls.append(request)
        if len(calls) == 1:
            raise refusal
        return await answer(request)

    monkeypatch.setattr(server.service, "answer", refusing)
    assert len(client.embeddings.create(model="encoder", input="bano").data) == 1
    assert len(calls) == 2
    calls.clear()
    kind = openai.RateLimitError if isinstance(refusal, ServiceOverload) else openai.InternalServerError
    with pytest.raises(kind) as found:
        client.with_options(max_retries=0).embeddings.create(model="encoder", input="bano")
    assert found.value.status_code == refusal.status
    assert found.value.response.headers["retry-after-ms"] == "20"


# -- Azure's clients, and those of old ---------------------------------------------------------------------


def test_azures_client_asks_by_its_paths_and_its_header(server: Running, vectors: np.ndarray) -> None:
    sent: list[httpx.Request] = []
    hooks = {"request": [sent.append]}
    with openai.AzureOpenAI(
        azure_endpoint=server.url,
        api_key="none",
        api_version="2024-10-21",
        http_client=httpx.Client(event_hooks=hooks),
    ) as client:
        found = client.embeddings.create(model="encoder", input=TEXTS)
        np.testing.assert_array_equal(np.array([d.embedding for d in found.data], np.float32), vectors)
        assert "encoder" in [model.id for model in client.models.list()]
        assert client.models.retrieve("encoder").id == "encoder"
        with pytest.raises(openai.NotFoundError, match="There is no model 'absent' here"):
            client.embeddings.create(model="absent", input=TEXTS)
        with pytest.raises(openai.NotFoundError, match="these models write no text"):
            client.chat.completions.create(model="encoder", messages=[{"role": "user", "content": "bano"}])
    assert sent[0].url.path == "/openai/deployments/encoder/embeddings"
    assert sent[0].headers["api-key"] == "none" and "authorization" not in sent[0].headers
    deployed = openai.AzureOpenAI(
        azure_endpoint=server.url, azure_deployment="encoder", api_key="none", api_version="2024-10-21"
    )
    with deployed as client:  # the path's model counts, whatever the body names, as Azure has it
        found = client.embeddings.create(model="text-embedding-3-small", input=TEXTS)
        assert found.model == "encoder"
    with openai.OpenAI(base_url=f"{server.url}/openai/v1", api_key="none") as client:  # Azure's newer address
        assert client.embeddings.create(model="encoder", input=TEXTS).model == "encoder"
        assert client.models.retrieve("encoder").id == "encoder"
        with pytest.raises(openai.NotFoundError, match="these models write no text"):
            client.chat.completions.create(model="encoder", messages=[{"role": "user", "content": "bano"}])
    by_engine = httpx.post(f"{server.url}/v1/engines/encoder/embeddings", json={"input": "bano"})
    assert by_engine.json()["model"] == "encoder"


@pytest.mark.parametrize(
    "field",
    [
        *(
            "functions",
            "function_call",
            "tools",
            "tool_choice",
            "response_format",
            "guided_choice",
            "guided_json",
        ),
        *(
            "guided_regex",
            "guided_grammar",
            "best_of",
            "n",
            "prompt",
            "messages",
            "logprobs",
            "stream",
            "seed",
        ),
        *("truncate_prompt_tokens", "add_special_tokens", "embed_dtype", "input_type", "normalize"),
    ],
)
def test_a_field_of_other_requests_is_refused_by_its_name(server: Running, field: str) -> None:
    for path in ("/v1/embeddings", "/openai/deployments/encoder/embeddings?api-version=2024-10-21"):
        body = {"model": "encoder", "input": "bano", field: 1}
        answer = httpx.post(server.url + path, json=body)
        assert answer.status_code == 400
        assert f"there is no {field!r} here" in answer.json()["error"]["message"]
