"""Every task through the queue: the same bits in any company, as the same model gives in Python."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith import Embedder, MaskedLanguageModel, Predictor
from bertsmith.errors import InputError, ModelError
from bertsmith.model.cpu import kernels
from bertsmith.serving.models import Models
from bertsmith.serving.operations.operation import Options
from bertsmith.serving.queue import WorkQueue
from bertsmith.serving.refusals import (
    DeadlineError,
    InvalidRequest,
    Refusal,
    RequestTooLarge,
    ServiceOverload,
    ServiceUnavailable,
    TextTooLong,
    UnknownModel,
    UnsupportedRequest,
)
from bertsmith.serving.service import Service, ServiceRequest, estimate_fewest_tokens
from bertsmith.serving.settings import ServingSettings, read_settings
from bertsmith.text.tokens.tokenizer import Tokenizer
from served_models import TASKS, inputs_of, save_fine_tuned, save_pretrained

BY_KERNELS = kernels.has_kernels() and not torch.cuda.is_available()
needs_kernels = pytest.mark.skipif(not BY_KERNELS, reason="equal bits are the compiled kernels'")
NAMES = [*TASKS, "masked-language"]


@pytest.fixture(scope="module", autouse=True)
def _two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    found = {name: save_fine_tuned(folder / name, name) for name in TASKS}
    return found | {"masked-language": save_pretrained(folder / "pretrained")}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Models:
    opened = Models(settings_of(folders))
    opened.open_all()
    return opened


def settings_of(folders: dict[str, Path], **more: Any) -> ServingSettings:
    return read_settings([f"{name}={folder}" for name, folder in folders.items()], None, more, {})


@asynccontextmanager
async def running(models: Models, settings: ServingSettings) -> AsyncIterator[Service]:
    service = Service(settings, models)
    service.start()
    try:
        yield service
    finally:
        await service.stop()


def plain(results: Any) -> list[Any]:
    """To the bit: arrays as bytes."""
    return [each.tobytes() if isinstance(each, np.ndarray) else each for each in results]


def test_answers_are_those_of_the_python_interface(models: Models, folders: dict[str, Path]) -> None:
    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            for name in TASKS:
                inputs = inputs_of(name, 20)
                if name == "similarity":
                    texts = [each[0] for each in inputs]
                    vectors = (await service.answer(ServiceRequest(texts, name))).results
                    expected = Embedder(folders[name]).documents(texts)
                    np.testing.assert_allclose(
                        vectors, expected, atol=5e-3 if torch.cuda.is_available() else 1e-6
                    )
                answer = await service.answer(ServiceRequest(inputs, name, "predict"))
                predicted = Predictor.load(folders[name]).predict(inputs)
                assert plain(answer.results) == predicted if BY_KERNELS else len(predicted) == 20
            masked = inputs_of("masked-language", 5)
            filled = (await service.answer(ServiceRequest(masked, "masked-language"))).results
            model = MaskedLanguageModel.load(folders["masked-language"])
            for text, found in zip(masked, filled, strict=True):
                for expected_mask, mask in zip(model.fill_mask(text), found, strict=True):
                    assert [each.token for each in expected_mask] == [each["token"] for each in mask]

    asyncio.run(ask())


@needs_kernels
@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_an_answer_does_not_depend_on_its_company(
    models: Models, folders: dict[str, Path], count: int
) -> None:
    """Requests of all tasks and several sizes arrive at random, some of them cancelled: each has the bits
    that it has alone.
    """
    draw = random.Random(count)
    pool = [(name, operation, each) for name in NAMES for each in inputs_of(name, 12)
            for operation in _operations(models, name)]  # fmt: skip

    async def ask() -> None:
        async with running(models, settings_of(folders, timeout_ms=600_000)) as service:
            alone: dict[int, Any] = {}
            for number, (name, operation, each) in enumerate(pool):
                answer = await service.answer(_request(name, operation, [each]))
                alone[number] = plain(answer.results)[0]

            async def one() -> None:
                number = draw.randrange(len(pool))
                name, operation, _ = pool[number]
                same = [n for n, (other, how, _) in enumerate(pool) if (other, how) == (name, operation)]
                chosen = [number, *draw.sample(same, draw.randint(0, 3))]
                await asyncio.sleep(draw.random() * 0.05)
                asked = service.answer(_request(name, operation, [pool[n][2] for n in chosen]))
                if draw.random() < 0.05:
                    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
                        await asyncio.wait_for(asked, 0)
                    return
                found = plain((await asked).results)
                assert found == [alone[n] for n in chosen]

            for _ in range(count // 200):
                await asyncio.gather(*(one() for _ in range(200)))
            assert service.queue.size == service.queue.waiting_tokens == 0

    asyncio.run(ask())


def _operations(models: Models, name: str) -> list[str]:
    return [
        each for each in models[name].operations if each in ("predict", "embed", "embed_tokens", "fill_mask")
    ]


def _request(name: str, operation: str, inputs: list[Any]) -> ServiceRequest:
    if operation in ("embed", "embed_tokens"):
        inputs = [each if isinstance(each, str) else each[0] for each in inputs]
    return ServiceRequest(inputs, name, operation)


def test_long_texts_are_cut_read_as_windows_or_refused(models: Models, folders: dict[str, Path]) -> None:
    long, short = " ".join(["bano delo"] * 30), "bano"

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:

            async def answer(
                model: str, long_text: Any, text: Any = long, operation: str | None = None
            ) -> Any:
                request = ServiceRequest([text, short], model, operation, Options(long_text))
                return await service.answer(request)

            for model, operation in (("classification", "predict"), ("similarity", "embed")):
                cut = await answer(model, "truncate", operation=operation)
                assert cut.truncated == [True, False]
                windows = await answer(model, "windows", operation=operation)
                assert windows.truncated == [False, False]
                assert windows.input_tokens[0] > cut.input_tokens[0] > windows.input_tokens[1]
                assert plain(cut.results)[0] != plain(windows.results)[0]
                with pytest.raises(TextTooLong, match="nput 1 is longer than the"):
                    await answer(model, "error", operation=operation)
            tags = await answer("tagging", None)
            assert tags.truncated == [False, False]
            assert len(tags.results[0]["tags"]) == 60
            with pytest.raises(InvalidRequest, match="no tag"):
                await answer("tagging", "truncate")
            with pytest.raises(TextTooLong):
                await answer("tagging", "error")

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("request_", "refusal", "said"),
    [
        (ServiceRequest(["bano"], "nobody"), UnknownModel, "There is no model 'nobody' here"),
        (ServiceRequest(["bano"]), UnknownModel, "Name a model"),
        (ServiceRequest(["bano"], "classification", "embed"), UnsupportedRequest, "it has no embed"),
        (ServiceRequest(["bano"], None, "search"), UnsupportedRequest, "No model here can search"),
        (ServiceRequest([], "classification"), InvalidRequest, "There are no inputs"),
        (ServiceRequest([3], "classification"), InvalidRequest, "input 1: the model reads a text"),
        (ServiceRequest([["bano", "delo"]], "tagging"), None, ""),
        (ServiceRequest([None], "tagging"), InvalidRequest, "input 1: expected a text, or its words"),
        (
            ServiceRequest(["bano"] * 3000, "classification"),
            RequestTooLarge,
            "3000 inputs; this service takes 2048",
        ),
        (ServiceRequest(["bano"], "classification", timeout_ms=0), InvalidRequest, "timeout_ms"),
        (
            ServiceRequest(["bano"], "classification", options=Options(more={"top": 3})),
            UnsupportedRequest,
            "option 'top'",
        ),
        (
            ServiceRequest(["bano " * 9000], "classification", options=Options("windows")),
            RequestTooLarge,
            "An input has",
        ),
        (
            ServiceRequest(["bano " * 9000], "similarity", "embed", Options("windows")),
            RequestTooLarge,
            "An input has .* tokens with the windows' overlap",
        ),
        (ServiceRequest(["no mask"], "masked-language"), InvalidRequest, "has no \\[MASK\\]"),
        (ServiceRequest([[99999]], "similarity", "embed"), InvalidRequest, "token ids from 0 to"),
        (
            ServiceRequest(["a"], "similarity", "embed", Options(more={"dimensions": 17})),
            InvalidRequest,
            "1 to 16",
        ),
        (ServiceRequest(["a"], "reranking", "rerank"), InvalidRequest, "query must be a text"),
    ],
)
def test_what_can_not_be_answered_is_refused_in_a_sentence(
    models: Models,
    folders: dict[str, Path],
    request_: ServiceRequest,
    refusal: type[Refusal] | None,
    said: str,
) -> None:
    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            if refusal is None:
                await service.answer(request_)
                return
            with pytest.raises(refusal, match=said):
                await service.answer(request_)

    asyncio.run(ask())


def test_under_more_than_it_can_do_it_refuses_at_once_and_answers_the_rest_in_time(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkQueue, "_update_rate", lambda *_: None)

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            service.queue.rate = 200.0  # so that few may wait, however fast the machine
            began = time.monotonic()
            asked = [
                service.answer(ServiceRequest(["bano " * 10], "classification", timeout_ms=300))
                for _ in range(300)
            ]
            found = await asyncio.gather(*asked, return_exceptions=True)
            refused = [each for each in found if isinstance(each, ServiceOverload)]
            assert refused
            assert len(refused) < 300
            assert all(each.retry_after and each.retry_after > 0 for each in refused)
            assert time.monotonic() - began < 2

    asyncio.run(ask())


def test_what_is_late_by_its_words_is_refused_before_it_is_tokenised(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkQueue, "_update_rate", lambda *_: None)
    operation = models["classification"].operation("predict")
    usual, tokenised = type(operation).prepare, list[int]()

    def prepare(self: Any, inputs: Any, options: Any) -> Any:
        tokenised.append(len(inputs))
        return usual(self, inputs, options)

    monkeypatch.setattr(type(operation), "prepare", prepare)

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            service.queue.rate, service.queue._in_flight = 100.0, 10  # a tenth of a second's work
            few = ServiceRequest(["bano delo"] * 2, "classification", timeout_ms=250)
            many = ServiceRequest(["bano delo firu guma kano"] * 3, "classification", timeout_ms=249)
            await service.answer(few)
            with pytest.raises(ServiceOverload):
                await service.answer(many)

    asyncio.run(ask())
    assert tokenised == [2]


@pytest.mark.parametrize("name", NAMES)
def test_inputs_have_at_least_the_tokens_that_their_words_promise(models: Models, name: str) -> None:
    model = models[name]
    for operation in set(model.operations) & {"predict", "embed", "embed_tokens", "fill_mask"}:
        for input_ in inputs_of(name, 100):
            if operation.startswith("embed") and not isinstance(input_, str):
                input_ = input_[0]
            prepared = model.operation(operation).prepare([input_], Options())
            assert 0 < estimate_fewest_tokens([input_], model.shortest_window) <= prepared.tokens


def test_a_stopping_service_answers_what_it_accepted_and_takes_nothing_new(
    models: Models, folders: dict[str, Path]
) -> None:
    async def ask() -> None:
        service = Service(settings_of(folders), models)
        service.start()
        asked = [asyncio.ensure_future(service.answer(ServiceRequest([text], "classification")))
                 for text in inputs_of("classification", 50)]  # fmt: skip
        await asyncio.sleep(0)
        await service.stop()
        answers = await asyncio.gather(*asked)
        assert len(answers) == 50
        with pytest.raises(ServiceUnavailable):
            await service.answer(ServiceRequest(["bano"], "classification"))

    asyncio.run(ask())


def test_a_request_that_is_tokenised_while_the_service_stops_is_still_answered(
    models: Models, folders: dict[str, Path]
) -> None:
    """Long ones are in another thread then, and not yet in the queue."""

    async def ask() -> None:
        service = Service(settings_of(folders), models)
        service.start()
        asked = asyncio.ensure_future(service.answer(ServiceRequest(["bano " * 2000], "classification")))
        await asyncio.sleep(0)
        assert service.queue.size == 0
        await service.stop()
        assert asked.done()
        assert (await asked).truncated == [True]

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_one_guilty_text_fails_alone(models: Models, folders: dict[str, Path]) -> None:
    operation = models["classification"].operations["predict"]
    usual = operation.forward.compute  # type: ignore[attr-defined]

    def compute(batch: Any, layout: Any) -> Any:
        if len(batch.token_ids) and (batch.token_ids == 12).any():  # "##s"
            raise RuntimeError("a bug")
        return usual(batch, layout)

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            texts = ["bano", "delos", "firu"] * 10
            asked = [service.answer(ServiceRequest([text], "classification")) for text in texts]
            found = await asyncio.gather(*asked, return_exceptions=True)
            for text, each in zip(texts, found, strict=True):
                assert isinstance(each, Exception) == (text == "delos")

    object.__setattr__(operation.forward, "compute", compute)  # type: ignore[attr-defined]
    try:
        asyncio.run(ask())
    finally:
        object.__setattr__(operation.forward, "compute", usual)  # type: ignore[attr-defined]


def test_a_model_is_replaced_and_rolled_back_while_it_serves(tmp_path: Path) -> None:
    folder = save_fine_tuned(tmp_path / "model", "classification")
    settings = settings_of({"intents": folder})
    models = Models(settings)
    models.open_all()

    async def ask() -> None:
        async with running(models, settings) as service:
            first = (await service.answer(ServiceRequest(["bano"]))).results[0]
            folder.rename(tmp_path / "before")
            with pytest.raises(ModelError):
                models.replace("intents")
            assert (await service.answer(ServiceRequest(["bano"]))).results[0] == first
            save_fine_tuned(folder, "classification", seed=9)
            assert models.replace("intents").version == 2
            second = await service.answer(ServiceRequest(["bano"]))
            assert second.model.version == 2
            assert models.roll_back("intents").version == 1
            assert (await service.answer(ServiceRequest(["bano"]))).results[0] == first
            with pytest.raises(UnsupportedRequest, match="nothing to go back to"):
                models.roll_back("intents")
            (folder / "bertsmith.json").unlink()
            folder.rename(tmp_path / "second")
            save_fine_tuned(folder, "tagging")
            with pytest.raises(ModelError, match="is a model for tagging now"):
                models.replace("intents")

    asyncio.run(ask())


def test_of_many_masks_the_candidates_alone_wait(models: Models, folders: dict[str, Path]) -> None:
    """Their logits, of every piece of the vocabulary, would be hundreds of megabytes."""
    operation: Any = models["masked-language"].operations["fill_mask"]
    text = "[MASK] bano [MASK]"
    prepared = operation.prepare([text, text], Options(more={"top": 2}))
    logits = prepared.forward.compute_outputs(prepared.encoded)
    kept = [prepared.reduce(each) for each in logits]
    assert [each.shape for each in logits] == [(2, 15)] * 2
    assert [tuple(part.shape) for each in kept for part in each] == [(2, 2)] * 4
    (one, _) = prepared.finish(kept)
    best = [float(np.exp(row).max() / np.exp(row).sum()) for row in logits[0]]
    assert [mask[0]["probability"] for mask in one] == pytest.approx(best)
    assert [mask[0]["token_id"] for mask in one] == [int(row.argmax()) for row in logits[0]]
    padded = np.pad(logits[0], ((0, 0), (0, 3)), constant_values=100)  # of a table with spare rows
    for part, without in zip(prepared.reduce(padded), kept[0], strict=True):
        assert part.tolist() == without.tolist()


def test_more_candidates_than_fit_into_an_answer_are_refused(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation: Any = models["masked-language"].operations["fill_mask"]
    monkeypatch.setattr("bertsmith.serving.operations.fill_mask._MOST_IN_ANSWER", 10)
    with pytest.raises(RequestTooLarge, match="3 masks with 5 candidates each; at most 10"):
        operation.prepare(["[MASK] [MASK]", "[MASK]"], Options())
    operation.prepare(["[MASK] [MASK]", "[MASK]"], Options(more={"targets": ["bano"], "top": 5}))
    monkeypatch.setattr("bertsmith.serving.operations.fill_mask._MOST_NUMBERS", 15)
    with pytest.raises(RequestTooLarge, match="A text has 2 masks; at most 1 are"):
        operation.prepare(["[MASK] [MASK]"], Options(more={"top": 1}))


def test_a_query_is_tokenised_once_and_not_on_the_event_loop(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = models["reranking"].tokenizer
    usual, seen = type(tokenizer).encode_pieces, list[tuple[int, str]]()

    def watched(self: Any, texts: Any, enough: Any = None) -> Any:
        if any("miru" in text for text in texts):  # and not what another service computes of its own accord
            seen.append((len(texts), threading.current_thread().name))
        return usual(self, texts, enough)

    monkeypatch.setattr(type(tokenizer), "encode_pieces", watched)
    documents = [f"{word} {other}" for word in ("bano", "delo") for other in ("firu", "guma", "kano")]

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            options = Options(more={"query": "miru " * 400})
            answer = await service.answer(ServiceRequest(documents, "reranking", "rerank", options))
            assert len(answer.results) == 6

    asyncio.run(ask())
    ((texts, thread),) = seen
    assert texts == 7
    assert thread != threading.main_thread().name


def test_a_query_that_leaves_no_room_is_refused_where_nothing_may_be_cut(models: Models) -> None:
    operation: Any = models["reranking"].operations["rerank"]
    options = {"query": "miru " * 30}
    for long_text in ("windows", "error"):
        with pytest.raises(TextTooLong, match="The query has 24 tokens or more"):
            operation.prepare(["bano"], Options(long_text, options))
    assert operation.prepare(["bano"], Options("truncate", options)).truncated == [True]


def test_messages_of_similarity_count_the_inputs_and_name_the_source(models: Models) -> None:
    operation: Any = models["similarity"].operations["similarity"]
    long = "bano " * 60
    with pytest.raises(TextTooLong, match=r"^Input 2 is longer"):
        operation.prepare(["bano", long], Options("error", {"source": "bano"}))
    with pytest.raises(TextTooLong, match=r"^The source is longer"):
        operation.prepare(["bano"], Options("error", {"source": long}))
    with pytest.raises(InputError, match=r"^Input 1: expected a text"):
        operation.prepare([[999]], Options(None, {"source": "bano"}))


def test_a_source_that_was_cut_is_said_of_every_comparison(models: Models) -> None:
    operation: Any = models["similarity"].operations["similarity"]
    prepared = operation.prepare(["bano", "delo"], Options("truncate", {"source": "bano " * 60}))
    assert prepared.truncated == [True, True]
    assert operation.prepare(["bano"], Options("truncate", {"source": "bano"})).truncated == [False]


@pytest.mark.parametrize("given", ["true", 1, []])
def test_normalise_is_true_or_false(models: Models, given: Any) -> None:
    operation: Any = models["similarity"].operations["embed"]
    with pytest.raises(InputError, match="normalise must be true or false"):
        operation.prepare(["bano"], Options(None, {"normalise": given}))


def test_of_a_text_that_is_cut_no_more_is_tokenised_than_is_read(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation: Any = models["similarity"].operations["embed"]
    windows = operation.encoder.windows
    usual, read = windows.tokenizer.encode_batch, list[int]()

    def watched(texts: Any, enough: Any = None) -> Any:
        found = usual(texts, enough)
        read.extend(len(each) for each in found)
        return found

    monkeypatch.setattr(windows.tokenizer, "encode_batch", watched)
    cut = operation.prepare(["bano " * 100_000], Options("truncate"))
    whole = operation.prepare(["bano " * 1000], Options("truncate"))
    assert cut.encoded[0].windows[0].token_ids.tolist() == whole.encoded[0].windows[0].token_ids.tolist()
    assert cut.truncated == [True]
    assert read[0] < 1000


@pytest.mark.parametrize(
    ("model", "operation"), [("classification", "predict"), ("similarity", "embed"), ("reranking", "rerank")]
)
def test_of_a_text_that_is_longer_than_is_taken_no_more_is_tokenised(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, model: str, operation: str
) -> None:
    kind, read = type(models[model].tokenizer), list[int]()

    def watch(name: str) -> None:
        usual = getattr(kind, name)

        def watched(self: Any, texts: Any, enough: Any = None) -> Any:
            found = usual(self, texts, enough)
            read.extend(len(each.ids if hasattr(each, "ids") else each) for each in found)
            return found

        monkeypatch.setattr(kind, name, watched)

    watch("encode_batch")
    watch("encode_pieces")

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            more = {"query": "bano"} if operation == "rerank" else {}
            request = ServiceRequest(["delo " * 150_000], model, operation, Options("windows", more))
            with pytest.raises(RequestTooLarge, match="at least"):
                await service.answer(request)

    asyncio.run(ask())
    assert 8192 < max(read) < 100_000


def test_tokenising_is_in_turn_by_key_and_not_begun_when_its_deadline_has_passed(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation: Any = models["classification"].operations["predict"]
    usual, begun, go_on = operation.prepare, list[str](), threading.Event()

    def prepare(inputs: Any, options: Any) -> Any:
        begun.append(inputs[0][:4])
        assert inputs[0].startswith("delo") or go_on.wait(30)
        return usual(inputs, options)

    monkeypatch.setattr(operation, "prepare", prepare)

    def request(word: str, key: str, timeout_ms: float = 10_000) -> ServiceRequest:
        return ServiceRequest([f"{word} " * 2000], "classification", timeout_ms=timeout_ms, key=key)

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            flood = [asyncio.ensure_future(service.answer(request("bano", "flood"))) for _ in range(20)]
            try:
                while len(begun) < 2:
                    await asyncio.sleep(0.01)
                assert (await service.answer(request("delo", "other"))).truncated == [True]
                with pytest.raises(DeadlineError):
                    await service.answer(request("firu", "flood", timeout_ms=50))
                assert begun == ["bano", "bano", "delo"]
            finally:
                go_on.set()
            await asyncio.gather(*flood)

    asyncio.run(ask())


def test_a_deadline_holds_while_a_text_is_tokenised(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    operation: Any = models["classification"].operations["predict"]
    go_on = threading.Event()
    monkeypatch.setattr(operation, "prepare", lambda inputs, options: go_on.wait(30))

    async def ask() -> None:
        async with running(models, settings_of(folders)) as service:
            began = time.monotonic()
            try:
                with pytest.raises(DeadlineError):
                    await service.answer(ServiceRequest(["a" * 10_000], "classification", timeout_ms=100))
                assert time.monotonic() - began < 10
            finally:
                go_on.set()

    asyncio.run(ask())


def test_a_text_of_more_characters_than_are_taken_is_refused_before_it_is_tokenised(
    models: Models, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda *_: pytest.fail("it was tokenised"))
    long, short = "a" * 2001, {"text": "a" * 1000, "text_pair": "a" * 1001}

    async def ask() -> None:
        async with running(models, settings_of(folders, max_input_characters=2000)) as service:
            for request in (
                ServiceRequest([long], "classification", options=Options("truncate")),
                ServiceRequest(["a", short], "similarity", "predict"),
                ServiceRequest(["a"], "similarity", "similarity", Options(more={"source": long})),
                ServiceRequest(["a"], "reranking", "rerank", Options(more={"query": long})),
            ):
                with pytest.raises(RequestTooLarge, match="has 2,001 characters; this service takes 2,000"):
                    await service.answer(request)

    asyncio.run(ask())


def test_stopping_leaves_the_event_loop_free(models: Models, folders: dict[str, Path]) -> None:
    """A second signal is heard while the last batch is computed."""
    operation: Any = models["classification"].operations["predict"]
    usual, begun, go_on = operation.forward.compute, threading.Event(), threading.Event()

    def compute(batch: Any, layout: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return usual(batch, layout)

    async def ask() -> None:
        service = Service(settings_of(folders), models)
        service.start()
        asked = asyncio.ensure_future(service.answer(ServiceRequest(["bano"], "classification")))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        asked.cancel()
        stopping = asyncio.ensure_future(service.stop())
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not stopping.done()
        go_on.set()
        await stopping

    object.__setattr__(operation.forward, "compute", compute)
    last_resort = threading.Timer(20, go_on.set)  # else a loop that is held would be for ever
    last_resort.start()
    try:
        asyncio.run(ask())
    finally:
        last_resort.cancel()
        go_on.set()
        object.__setattr__(operation.forward, "compute", usual)
