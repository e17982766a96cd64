"""The guardrail: what is blocked never reaches the LLM or the client, what can't be judged goes by the
policy, and the log has every decision without its text.
"""

import asyncio
import json
import re
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from running_mirror import PATIENCE, Answer, ask, wait_until
from scripted_upstream import Reply, Seen, Upstream, upstream_of
from test_mirrored_clients import openai_at

from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.inference import predictor
from bertsmith.inference.predictor import Predictor
from bertsmith.mirror.guard import app as guard_app
from bertsmith.mirror.guard.app import GuardApp, _GuardedCall
from bertsmith.mirror.guard.guarded_texts import collect_request_texts
from bertsmith.mirror.guard.judge import AuditLog, CantJudge, GuardJudge, GuardVerdict
from bertsmith.mirror.guard.policy import Costs, SidePolicy, read_policy
from bertsmith.mirror.relay_server import RelayServer
from bertsmith.mirror.settings import RelaySettings
from bertsmith.mirror.upstreams import UpstreamAnswer, Upstreams
from bertsmith.serving.http_server import bind_socket
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task_model import outputs_of
from served_models import WORDS, save_fine_tuned


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, str, str, str]]:
    """A random model, a label of it with a text that has it, and another one of each."""
    texts = [*WORDS, *(f"{one} {other}" for one in WORDS for other in WORDS)]
    for seed in range(50):
        folder = save_fine_tuned(tmp_path_factory.mktemp("models") / "made", "classification", seed=seed)
        predictions = Predictor.load(folder).predict(texts)
        by_label = {each["label"]: text for each, text in zip(predictions, texts, strict=True)}
        if len(by_label) > 1:
            (bad, bad_text), (good, good_text), *_ = by_label.items()
            return folder, (bad, bad_text, good, good_text)
    raise AssertionError("no random model has two labels")


@pytest.fixture(scope="module")
def model(found: Any) -> Any:
    return found[0]


@pytest.fixture(scope="module")
def words(found: Any) -> Any:
    return found[1]


@pytest.fixture
def upstream(words: Any) -> Iterator[Upstream]:
    """Says what it is told to say, after a colon, in three protocols."""

    def script(seen: Seen) -> Reply:
        if seen.method == "GET":
            return Reply([b'{"data":[]}'])
        body = seen.json()
        if seen.target.endswith("/messages"):
            said = body["messages"][-1]["content"].partition(":")[2]
            content = [{"type": "text", "text": said}]
            message = {
                "id": "m", "type": "message", "role": "assistant", "model": "m", "content": content,
                "stop_reason": "end_turn", "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }  # fmt: skip
            return Reply([json.dumps(message).encode()])
        said = str(body["messages"][-1]["content"]).partition(":")[2]
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            return Reply([json.dumps(whole).encode()])
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        pieces = [{"content": each} for each in said]
        deltas = [
            *({"index": 0, "delta": each, "finish_reason": None} for each in pieces),
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        ]
        chunks = [f"data: {json.dumps(head | {'choices': [each]})}\n\n".encode() for each in deltas]
        headers = {"content-type": "text/event-stream"}
        return Reply([*chunks, b"data: [DONE]\n\n"], headers=headers, is_stream=True)

    with upstream_of(script) as server:
        yield server


class Guard:
    def __init__(self, port: int, log: Path, app: GuardApp) -> None:
        self.port, self.log, self.app, self.url = port, log, app, f"http://127.0.0.1:{port}"

    def chat(self, text: str, **more: Any) -> Answer:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        return ask(self.port, "/v1/chat/completions", body)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextmanager
def guarding(
    folder: Path, model: Path, upstream: str, request: str = "", response: str = "", **settings: Any
) -> Iterator[Guard]:
    policy = folder / "policy.toml"
    sides = [f"[{name}]\n{side}\n" for name, side in (("request", request), ("response", response)) if side]
    policy.write_text(f'model = {json.dumps(str(model))}\nfail = "closed"\n' + "".join(sides))
    given = {"upstream": upstream, "port": 0, "log": str(folder / "guard.jsonl"), **settings}
    read = read_policy(policy, given, {})
    with bind_socket(read.host, read.port) as listener:
        app = GuardApp(read, GuardJudge(read.model, read.judge_seconds))
        listener.listen(64)
        server = RelayServer(read, app)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield Guard(listener.getsockname()[1], Path(read.log), app)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_a_blocked_request_never_reaches_the_llm(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream
) -> None:
    bad, bad_text, _, good_text = words
    with guarding(tmp_path, model, upstream.url, request=f"block = [{bad!r}]") as guard:
        passed = guard.chat(f"{good_text}")
        assert passed.status == 200
        assert passed.headers["x-bertsmith-guard"] == "request=allow"
        with openai_at(guard.url) as client, pytest.raises(openai.PermissionDeniedError) as raised:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": bad_text}])
        assert raised.value.code == "blocked_by_policy"
        assert raised.value.response.headers["x-bertsmith-guard"].startswith(f"request=block; label={bad}; ")
        with (
            anthropic.Anthropic(base_url=guard.url, api_key="k", max_retries=0) as claude,
            pytest.raises(anthropic.PermissionDeniedError),
        ):
            claude.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": bad_text}])
        assert len(upstream.seen) == 1
        actions = [(each["side"], each["protocol"], each["action"], each["label"]) for each in guard.lines()]
        assert actions[1:] == [
            ("request", "openai-chat", "block", bad),
            ("request", "anthropic", "block", bad),
        ]
        assert bad_text not in guard.log.read_text()
        status = ask(guard.port, "/bertsmith/status").json()
        assert status["decisions"] == {"request-allow": 1, "request-block": 2}
        assert 0 < status["p50_ms"] <= status["p99_ms"]


def test_only_what_came_since_the_model_spoke_is_judged(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream
) -> None:
    bad, bad_text, _, good_text = words
    before = [
        {"role": "system", "content": bad_text},
        {"role": "user", "content": bad_text},
        {"role": "assistant", "content": bad_text},
    ]
    with guarding(tmp_path, model, upstream.url, request=f"block = [{bad!r}]") as guard:
        assert guard.chat("", messages=[*before, {"role": "user", "content": good_text}]).status == 200
        two = [
            *before,
            {"role": "tool", "content": bad_text, "tool_call_id": "1"},
            {"role": "user", "content": good_text},
        ]
        assert guard.chat("", messages=two).status == 403


@pytest.mark.parametrize("stream", [False, True])
def test_a_blocked_answer_never_reaches_the_client(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream, stream: bool
) -> None:
    bad, bad_text, _, good_text = words
    with guarding(tmp_path, model, upstream.url, response=f"block = [{bad!r}]") as guard:
        passed = guard.chat(f"say:{good_text}", stream=stream)
        direct = ask(upstream.server_address[1], "/v1/chat/completions", upstream.seen[0].json())
        assert (passed.status, passed.body) == (200, direct.body)
        assert passed.headers["x-bertsmith-guard"] == "response=allow"
        blocked = guard.chat(f"say:{bad_text}", stream=stream)
        assert blocked.status == 403
        assert bad_text.encode() not in blocked.body
        assert [each["action"] for each in guard.lines()] == ["allow", "block"]


def test_a_review_passes_and_is_written_down_with_its_text_if_asked(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream
) -> None:
    bad, bad_text, _, _ = words
    side = f"review = [{bad!r}]"
    with guarding(tmp_path, model, upstream.url, request=side, response=side, log_texts=True) as guard:
        answer = guard.chat(f"{bad_text}")
        assert answer.status == 200
        assert answer.headers["x-bertsmith-guard"].startswith("request=review; response=")
        first, second = guard.lines()
        assert (first["action"], first["texts"], second["side"]) == ("review", [bad_text], "response")
        assert first["call"] == second["call"]


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 403)])
def test_what_cannot_be_judged_goes_by_the_policy(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream, fail: str, status: int
) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    side, most = f"block = [{words[0]!r}]", 1024
    with guarding(tmp_path, model, upstream.url, side, fail=fail, max_judged_bytes=most) as guard:
        assert guard.chat("", messages=image).status == status
        assert guard.chat(words[3] * most).status == status
        assert (
            ask(guard.port, "/v1/embeddings", {"input": "a", "messages": [{"content": ""}]}).status == status
        )
        assert ask(guard.port, "/v1/chat/completions", b"no json").status in (status, 500, 502)
        assert ask(guard.port, "/v1/models").status == 200
        assert [each["reason"] for each in guard.lines()] == [
            "input-not-text",
            "too-large",
            "other-path",
            "malformed-request",
            None,
        ]


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 403)])
def test_answers_of_another_path_cannot_be_judged_either(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream, fail: str, status: int
) -> None:
    bad, bad_text, _, _ = words
    said = {"messages": [{"role": "user", "content": f"say:{bad_text}"}]}
    with guarding(tmp_path, model, upstream.url, response=f"block = [{bad!r}]", fail=fail) as guard:
        answer = ask(guard.port, "/v1/chat/completions/", said)  # a slash too many: none of the five
        assert answer.status == status
        action = "allow" if fail == "open" else "block"
        assert answer.headers["x-bertsmith-guard"] == f"response={action}; reason=other-path"
        assert ask(guard.port, "/v1/models").status == 200
        assert [each.method for each in upstream.seen] == ["POST", "GET"][status == 403 :]
        assert [(each["side"], each["reason"]) for each in guard.lines()] == [("response", "other-path")]


def test_by_another_path_only_methods_pass_that_ask_no_llm() -> None:
    for method in ("GET", "HEAD", "OPTIONS", "DELETE", "POST", "PUT", "PATCH", "QUERY", "post"):
        guarded = _GuardedCall.__new__(_GuardedCall)
        guarded.form, guarded.scope = None, {"method": method}
        assert guarded.is_other == (method not in ("GET", "HEAD", "OPTIONS", "DELETE"))


def test_a_model_that_is_too_slow_cannot_judge(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream
) -> None:
    side = f"block = [{words[0]!r}]"
    with guarding(tmp_path, model, upstream.url, request=side, judge_seconds=0.2) as guard:
        for _ in range(2):
            guard.app.judge._threads.submit(time.sleep, 1.5)
        assert guard.chat(words[3]).status == 403
        wait_until(lambda: guard.chat(words[3]).status == 200)
        assert guard.lines()[0]["reason"] == "guard-slow"
        assert guard.lines()[0]["ms"] > 150
        assert guard.app.log.facts()["p99_ms"] > 150  # the slow ones count


def test_a_bad_text_anywhere_in_a_long_one_is_blocked(tmp_path: Path, upstream: Upstream) -> None:
    """The model reads 22 words at once. Oracle: its windows cut by hand, each as a text of its own."""
    model = save_fine_tuned(tmp_path / "made", "classification", seed=6)
    made = Predictor.load(model)
    texts = [" ".join([one, other] * 11) for one in WORDS for other in WORDS]
    labels = [each["label"] for each in made.predict(texts)]
    bad_text = texts[labels.index("no")]
    good_text = next(text for text in texts if text != bad_text)
    sent = [bad_text, f"{good_text} {good_text}", f"{good_text} {good_text} {bad_text}"]
    shown = [
        [" ".join(text.split()[start : start + 22]) for start in range(0, len(text.split()) - 21, 11)]
        for text in sent
    ]
    expected = [403 if "no" in {each["label"] for each in made.predict(some)} else 200 for some in shown]
    assert expected == [403, 200, 403]
    with guarding(tmp_path, model, upstream.url, request="block = ['no']") as guard:
        assert [guard.chat(text).status for text in sent] == expected


@pytest.mark.parametrize("name", ["classification", "multi-label"])
def test_windows_are_predicted_as_the_texts_that_they_show(tmp_path: Path, name: str) -> None:
    made = Predictor.load(save_fine_tuned(tmp_path / "made", name))
    words = [WORDS[number * number % 7] for number in range(50)]
    long = [" ".join(words[start : start + 22]) for start in (0, 11, 22, 28)]
    texts = ["", "bano", *long, "delo firu"]
    found = list(made.predict_windows(["", "bano", " ".join(words), "delo firu"]))
    expected = made.predict(texts)
    assert [list(each) for each in found] == [list(each) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    with pytest.raises(InputError, match="found one text: 'bano'"):  # each letter was predicted
        next(made.predict_windows("bano"))


def test_a_text_of_any_length_is_read_in_parts_that_share_what_a_window_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can stop in the midst of one, and a text of megabytes takes half a minute."""
    made, read = Predictor.load(save_fine_tuned(tmp_path / "made", "classification")), list[str]()

    def encode(task: Any, examples: Any, tokenizer: Any) -> Any:
        read.extend(text for each in examples for text in task.texts(each))
        return encode_examples(task, examples, tokenizer)

    monkeypatch.setattr(predictor, "encode_examples", encode)
    next(made.predict_windows([" ".join(WORDS * 10_000)]))
    assert [len(text) < 1 << 16 for text in read] == [True]
    read.clear()
    monkeypatch.setattr(predictor, "_CHARACTERS_OF_WINDOWS", 1024)
    words = [f"{number}" for number in range(1500)]
    rare = re.sub(r"(\d{900})(\d{9})", r"\1 \2 ", "".join(words))
    for text in (" ".join(words), "".join(words), rare):
        list(made.predict_windows([text]))
        assert len(read) > 5
        assert all(any(text[at : at + 100] in part for part in read) for at in range(0, len(text), 7))
        read.clear()


def test_what_nobody_waits_for_any_more_is_not_computed(
    model: Path, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _, _, good_text = words
    judge, policy, computed = GuardJudge(str(model), 0.2), SidePolicy(block=(bad,)), []

    def slow(model: Any, encoded: Any, **more: Any) -> Any:
        computed.append(len(encoded))
        time.sleep(0.15)
        return outputs_of(model, encoded, **more)

    async def judge_many() -> list[Any]:
        texts = [good_text] * 200
        return await asyncio.gather(*(judge.judge(texts, policy) for _ in range(9)), return_exceptions=True)

    monkeypatch.setattr(predictor, "outputs_of", slow)
    assert {str(each) for each in asyncio.run(judge_many())} == {"guard-slow"}
    judge._threads.shutdown(wait=True)
    assert len(computed) <= 4  # by two threads, in a fifth of a second


def test_a_long_text_keeps_no_other_from_being_judged(
    model: Path, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the base64 of an image does, where what can't be judged passes."""
    bad, bad_text, _, good_text = words
    judge, texts = GuardJudge(str(model), 2), [f"{good_text} " * 9000, bad_text]

    def slow(*given: Any, **more: Any) -> Any:
        time.sleep(0.1)
        return outputs_of(*given, **more)

    monkeypatch.setattr(predictor, "outputs_of", slow)
    assert asyncio.run(judge.judge(texts, SidePolicy(block=(bad,)))).action == "block"
    judge.close()


def test_a_body_that_is_long_to_read_keeps_nobody_waiting(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, _, _, good_text = words
    begun, may_end = threading.Event(), threading.Event()

    def read(*given: Any) -> Any:
        begun.set()
        assert may_end.wait(PATIENCE)
        return collect_request_texts(*given)

    monkeypatch.setattr(guard_app, "collect_request_texts", read)
    with (
        guarding(tmp_path, model, upstream.url, request=f"block = [{bad!r}]") as guard,
        ThreadPoolExecutor() as threads,
    ):
        answer = threads.submit(guard.chat, good_text)
        assert begun.wait(PATIENCE)
        try:
            assert ask(guard.port, "/bertsmith/status").status == 200
        finally:
            may_end.set()
        assert answer.result().status == 200


@pytest.mark.parametrize("url", ["http://[::1]:8080/v1", "https://[2001:db8::1]/v1", "https://x.org:443"])
def test_the_header_of_the_host_is_the_addresss_authority(url: str) -> None:
    """Oracle: httpx, which puts IPv6 into brackets and leaves the usual port out."""
    target = Upstreams(RelaySettings(upstream=url)).target(b"/v1/responses", b"", {})
    assert target is not None
    assert target.host == httpx.URL(url).netloc


def test_headers_of_one_name_are_one_list() -> None:
    """RFC 9110, section 5.3: what is zipped behind an identity is no text that a guard could read."""
    answer = UpstreamAnswer.__new__(UpstreamAnswer)
    answer.headers = [(b"content-encoding", b"identity"), (b"content-encoding", b"gzip")]
    assert (answer.header(b"content-encoding"), answer.header(b"location")) == ("identity, gzip", "")


def test_a_label_with_a_line_break_breaks_no_header() -> None:
    guarded = _GuardedCall.__new__(_GuardedCall)
    guarded.verdicts = {"request": GuardVerdict("block", "bad\r\nx: 1 é ü 漢", 0.5)}
    assert guarded.header[1].decode("latin-1") == "request=block; label=bad??x: 1 é ü ?; probability=0.5000"


def test_a_model_that_gives_no_number_cannot_judge(model: Path, words: Any) -> None:
    policy = SidePolicy(block=(words[0],), costs=Costs(missed=1, refused=1))
    judge = GuardJudge(str(model), 5)
    prediction = {"label": words[2], "probabilities": {words[0]: float("nan"), words[2]: float("nan")}}
    with pytest.raises(CantJudge, match="guard-failed"):
        judge._make_verdict(prediction, policy)


def test_a_label_that_is_named_twice_counts_once() -> None:
    policy = SidePolicy(block=("bad", "bad"), costs=Costs(missed=1, refused=1))
    for several in (False, True):
        assert policy.decide((), {"bad": 0.3, "good": 0.7}, several=several) == "allow"


def test_the_header_says_what_decided(tmp_path: Path, model: Path, words: Any, upstream: Upstream) -> None:
    bad, bad_text, good, good_text = words
    sides = {"request": f"review = [{good!r}]", "response": f"block = [{bad!r}]"}
    script = upstream_of(lambda seen: Reply([json.dumps({"choices": [bad_text]}).encode()]))
    with script as server, guarding(tmp_path, model, server.url, **sides) as guard:
        said = guard.chat(good_text).headers["x-bertsmith-guard"]
    assert said.startswith(f"request=review; response=block; label={bad}; probability=")


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 403)])
def test_an_answer_of_any_size_goes_by_the_policy(
    tmp_path: Path, model: Path, words: Any, fail: str, status: int
) -> None:
    pieces = [json.dumps({"choices": ["x" * 5_000]}).encode()] * 3
    side = f"block = [{words[0]!r}]"
    with (
        upstream_of(lambda seen: Reply(pieces)) as server,
        guarding(tmp_path, model, server.url, response=side, fail=fail, max_judged_bytes=1024) as guard,
    ):
        answer = guard.chat("a")
    assert answer.status == status
    assert status == 403 or answer.body == b"".join(pieces)
    assert [each["reason"] for each in guard.lines()] == ["too-large"]


def test_an_answer_that_is_kept_is_judged_and_no_redirect_leads_around_the_guard(
    tmp_path: Path, model: Path, words: Any
) -> None:
    bad, bad_text, _, good_text = words

    def script(seen: Seen) -> Reply:
        if seen.method == "POST":
            return Reply([b""], status=308, headers={"location": "https://elsewhere/v1/chat/completions"})
        said = bad_text if seen.target.endswith("bad") else good_text
        kept = {"id": "resp_1", "instructions": bad_text, "output": [{"content": [{"text": said}]}]}
        return Reply([json.dumps(kept).encode()])

    side = f"block = [{bad!r}]"
    with upstream_of(script) as server, guarding(tmp_path, model, server.url, response=side) as guard:
        paths = ["/v1/responses/good", "/v1/responses/bad", "/v1/chat/completions/bad", "/v1/models"]
        paths.append("/v1/chat/completions?after=bad")  # a list of those that are kept
        assert [ask(guard.port, path).status for path in paths] == [200, 403, 403, 200, 403]
        assert guard.chat("a").status == 403
    assert guard.lines()[-1]["reason"] == "redirect"


def test_a_line_that_was_cut_joins_no_other_and_times_are_of_what_was_judged(tmp_path: Path) -> None:
    path = tmp_path / "guard.jsonl"
    path.write_bytes(b'{"at": 1}\n{"at": ')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = AuditLog(path, with_texts=False)
    try:
        log.write("request", "other", "a", GuardVerdict("allow"), [])
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
        for call in "bc":
            log.write("request", "other", call, GuardVerdict("allow"), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write("request", "openai-chat", "d", GuardVerdict("allow", "good", 0.9, milliseconds=8.0), [])
    log.close()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["call"] for line in (lines[2], lines[4])] == ["a", "d"]
    assert len(lines) == 5
    facts = log.facts()
    assert (facts["log_lost"], facts["p50_ms"], facts["decisions"]) == (2, 8.0, {"request-allow": 4})


def test_costs_choose_the_cheapest_action() -> None:
    policy = SidePolicy(block=("bad",), costs=Costs(missed=10, refused=1, review=0.3))

    def action(bad: float) -> str:
        return policy.decide(("good",), {"bad": bad, "good": 1 - bad}, several=False)

    # Letting it pass costs 10 p, refusing it 1 - p, a review 0.3.
    assert [action(bad) for bad in (0.0, 0.029, 0.031, 0.69, 0.71, 1.0)] == [
        "allow", "allow", "review", "review", "block", "block",
    ]  # fmt: skip
    several = SidePolicy(block=("a", "b"), costs=Costs(missed=1, refused=1))
    assert several.decide((), {"a": 0.3, "b": 0.3}, several=True) == "block"  # 1 - 0.7²
    assert several.decide((), {"a": 0.25, "b": 0.25}, several=True) == "allow"


def test_a_policy_that_cannot_be_right_is_refused_in_a_sentence(tmp_path: Path, model: Path) -> None:
    def read(text: str) -> Any:
        (tmp_path / "policy.toml").write_text(text)
        return read_policy(tmp_path / "policy.toml", {"upstream": "http://127.0.0.1:1"}, {})

    head = f'model = {json.dumps(str(model))}\nfail = "open"\nlog = {json.dumps(str(tmp_path / "log"))}\n'
    with pytest.raises(RecipeError, match="the key 'fail' is missing"):
        read(f"model = {json.dumps(str(model))}\n")
    with pytest.raises(RecipeError, match=r"expected a section \[request\], \[response\], or both"):
        read(head)
    with pytest.raises(RecipeError, match="stands in block and in review"):
        read(head + '[request]\nblock = ["a"]\nreview = ["a"]\n')
    with pytest.raises(RecipeError, match="expected review or costs, found both"):
        read(head + '[request]\nblock = ["a"]\nreview = ["b"]\ncosts = { missed = 2, refused = 1 }\n')
    with pytest.raises(RecipeError, match="expected at least one label"):
        read(head + "[request]\n")
    with pytest.raises(
        RecipeError, match=r"\[request\] names the label 'yse'.* Did you mean 'yes'\? It has: "
    ):
        settings = read(head + '[request]\nblock = ["yse"]\n')
        GuardApp(settings, GuardJudge(settings.model, 1))
    with pytest.raises(InputError, match="is not there"):
        read_policy(tmp_path / "none.toml", {}, {})
    with pytest.raises(ModelError, match="of the task regression; a guard needs one of classification"):
        GuardJudge(str(save_fine_tuned(tmp_path / "regression", "regression")), 1)


def test_arguments_of_a_streamed_call_and_what_an_error_quotes_are_judged_before_they_reach_the_client(
    tmp_path: Path, model: Path, words: Any
) -> None:
    bad, bad_text, _, good_text = words

    def script(seen: Seen) -> Reply:
        said = seen.json()["messages"][-1]["content"]
        if not seen.json().get("stream"):
            return Reply([json.dumps({"error": {"failed_generation": said}}).encode()], status=400)
        deltas = [{"function_call": {"arguments": piece}} for piece in (said[:2], said[2:])]
        chunks = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
        pieces = [f"data: {json.dumps(each)}\n\n".encode() for each in chunks]
        return Reply(pieces, headers={"content-type": "text/event-stream"}, is_stream=True)

    side = f"block = [{bad!r}]"
    with upstream_of(script) as server, guarding(tmp_path, model, server.url, response=side) as guard:
        passed = [guard.chat(good_text, stream=stream).status for stream in (True, False)]
        blocked = [guard.chat(bad_text, stream=stream).status for stream in (True, False)]
    assert (passed, blocked) == ([200, 400], [403, 403])


def test_a_bad_text_beside_an_image_is_blocked_though_images_pass(
    tmp_path: Path, model: Path, words: Any, upstream: Upstream
) -> None:
    bad, bad_text, _, good_text = words
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with guarding(tmp_path, model, upstream.url, request=f"block = [{bad!r}]", fail="open") as guard:
        answers = [
            guard.chat("", messages=[{"role": "user", "content": [image, {"type": "text", "text": text}]}])
            for text in (good_text, bad_text)
        ]
    assert [each.status for each in answers] == [200, 403]
    said = json.loads((tmp_path / "guard.jsonl").read_text().splitlines()[0])
    assert answers[0].headers["x-bertsmith-guard"] == "request=allow; reason=input-not-text"
    assert (said["label"], said["reason"], said["ms"] > 0) == (words[2], "input-not-text", True)
