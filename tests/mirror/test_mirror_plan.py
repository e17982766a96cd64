"""The plan for logged calls: read from every kind of export, it forecasts, and stores nothing."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mirrored_calls import as_exchange, at_random, by_rule, message

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.stage_store import StageStore, read_forecasts
from bertsmith.mirror.call import OWN_ID_PREFIX, Call
from bertsmith.mirror.importing import CallImport, ImportCounts
from bertsmith.mirror.learning import plan
from bertsmith.mirror.learning.forecast import RiskForecast
from bertsmith.mirror.learning.plan import (
    CallPlan,
    PlacePlan,
    PlanOptions,
    describe_forecast,
    format_plan_rows,
    plan_calls,
    render_plan,
)
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import TeacherComparison
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.redaction import BUILT_IN, Redactor
from bertsmith.mirror.store import Store

SYSTEM = "Which intent has the customer's message?"
BEGAN = 1_770_000_000
REDACTOR = Redactor(tuple(BUILT_IN), {})


def answers(count: int, teacher: Any = by_rule) -> Iterator[tuple[int, str, dict[str, Any]]]:
    draw = random.Random(0)
    for number in range(count):
        text = message(draw)
        yield number, text, teacher(text, draw)


def as_openai_run(number: int, text: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A run of LangSmith's wrapper of OpenAI's client."""
    return {
        "id": f"run-{number}", "name": "ChatOpenAI", "run_type": "llm",
        "inputs": {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": json.dumps(answer)}}]},
        "extra": {"metadata": {"ls_model_name": "gpt-5-mini"}},
        "start_time": f"2026-02-02T{number % 24:02}:00:00.250000",
        "end_time": f"2026-02-02T{number % 24:02}:00:01",
        "prompt_tokens": 100, "completion_tokens": 5, "total_cost": "0.002",
    }  # fmt: skip


def as_langchain_run(number: int, text: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A chain of LangChain with its run of an LLM, whose messages are serialised objects."""

    def of(kind: str, content: str, **more: Any) -> dict[str, Any]:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind],
                "kwargs": {"content": content, **more}}  # fmt: skip

    tool = {"id": "t", "type": "function", "function": {"name": "intent", "arguments": json.dumps(answer)}}
    return {
        "id": f"chain-{number}", "run_type": "chain", "inputs": {"text": text}, "outputs": answer,
        "child_runs": [{
            "id": f"llm-{number}", "run_type": "llm",
            "inputs": {"messages": [[of("SystemMessage", SYSTEM), of("HumanMessage", text)]]},
            "outputs": {"generations": [[{"text": "", "message": of(
                "AIMessage", "", additional_kwargs={"tool_calls": [tool]})}]]},
            "extra": {"invocation_params": {"model": "gpt-5-mini"}},
            "start_time": (BEGAN + number) * 1000, "total_cost": 0.002,
        }],
    }  # fmt: skip


def as_observation(number: int, text: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"o{number}", "traceId": f"t{number}", "type": "GENERATION", "model": "gpt-5-mini",
        "startTime": f"2026-02-02T{number % 24:02}:00:00.250Z",
        "endTime": f"2026-02-02T{number % 24:02}:00:01.500Z",
        "input": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "output": {"role": "assistant", "content": json.dumps(answer)},
        "usageDetails": {"input": 100, "output": 5}, "costDetails": {"total": 0.002},
    }  # fmt: skip


def as_trace(number: int, text: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A trace with its observations, whose input and output are JSON's text; the answer is no message."""
    observation = as_observation(number, text, answer)
    observation |= {"input": json.dumps(observation["input"]), "output": json.dumps(answer)}
    span = {"id": "s", "type": "SPAN", "startTime": observation["startTime"], "input": text}
    return {"id": f"t{number}", "observations": [span, observation]}


def as_exported_row(number: int, text: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A row of Langfuse's export to blob storage."""
    observation = as_trace(number, text, answer)["observations"][1]
    return {
        "id": observation["id"], "trace_id": observation["traceId"], "type": "GENERATION",
        "start_time": f"2026-02-02 {number % 24:02}:00:00.250000",
        "end_time": f"2026-02-02 {number % 24:02}:00:01.500000",
        "input": observation["input"], "output": observation["output"],
        "provided_model_name": "gpt-5-mini", "user_id": "anna",
        "usage_details": {"input": 100, "output": 5}, "cost_details": {"total": 0.002},
    }  # fmt: skip


def as_anthropic_observation(number: int, text: str, answer: dict[str, Any]) -> dict[str, Any]:
    observation = as_observation(number, text, answer)
    parts = [{"type": "tool_use", "id": "t", "name": "intent", "input": answer}]
    return observation | {
        "input": {
            "system": SYSTEM,
            "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        },
        "output": {"role": "assistant", "content": parts},
    }


@pytest.mark.parametrize(
    "write",
    [
        as_openai_run,
        as_langchain_run,
        as_observation,
        as_trace,
        as_exported_row,
        as_anthropic_observation,
    ],
)
def test_traces_of_langsmith_and_langfuse_are_read_like_other_calls(tmp_path: Path, write: Any) -> None:
    path, known = tmp_path / "traces.jsonl", list(answers(30))
    path.write_text("".join(json.dumps(write(*one)) + "\n" for one in known))
    with_store = Store(str(tmp_path / "s.sqlite"))
    counts = CallImport([path], REDACTOR).into(with_store)
    assert counts.added == 30 and not counts.skipped
    ((_, (priced, money)),) = counts.costs.items()
    assert priced == 30 and money == pytest.approx(0.06)
    (version,) = with_store.versions()
    read = list(with_store.calls(version.version))
    assert version.model == "gpt-5-mini"
    assert sorted(
        (call.request.inputs[0].parts[0], json.dumps(call.completion.value)) for call in read
    ) == sorted((text, json.dumps(answer)) for _, text, answer in known)
    assert {message.parts for call in read for message in call.request.system} == {(SYSTEM,)}
    assert all(call.source == "import" for call in read)
    # Importing it again adds nothing; a page of the API and an array hold the same calls.
    values = [write(*one) for one in known]
    path.write_text(json.dumps(values if write is as_openai_run else {"data": values, "meta": {"page": 1}}))
    assert CallImport([path], REDACTOR).into(with_store).added == 0
    with_store.close()


def test_a_trace_without_text_or_with_pictures_is_counted_and_not_read(tmp_path: Path) -> None:
    hidden, picture = (as_observation(*one) for one in answers(2))
    hidden |= {"input": None, "output": None}
    picture["input"][1]["content"] = [{"type": "image_url", "image_url": {"url": "data:"}}]
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(hidden) + "\n" + json.dumps(picture))
    counts = CallImport([path], REDACTOR).into(Store(str(tmp_path / "s.sqlite")))
    assert dict(counts.skipped) == {("traces", "no-content"): 1, ("traces", "input-not-text"): 1}


def read_traces(folder: Path, *records: dict[str, Any]) -> tuple[list[Call], dict[Any, int]]:
    """The calls that are read from these records, and how many aren't, by reason."""
    path = folder / "traces.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with closing(Store(str(folder / "read.sqlite"))) as store:
        counts = CallImport([path], REDACTOR).into(store)
        calls = [call for version in store.versions() for call in store.calls(version.version)]
        return calls, {reason: count for (_, reason), count in counts.skipped.items()}


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "bug", "content": "login"},
        {"role": "buyer", "content": "none"},
        {"data": {"intent": "card"}, "type": "x"},
        {"content": {"intent": "card"}},
        {"kwargs": {"intent": "card"}, "id": 7},
        {"type": "human"},
        {"parts": ["a"], "role": "b"},
    ],
)
def test_an_answer_whose_fields_are_named_like_those_of_a_message_is_read_whole(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    observation = as_observation(1, "hello", {})
    calls, skipped = read_traces(tmp_path, observation | {"output": answer}, as_trace(2, "wire", answer))
    assert [call.completion.value for call in calls] == [answer, answer] and not skipped


def test_messages_of_gemini_and_of_the_oldest_tools_are_read(tmp_path: Path) -> None:
    gemini = as_observation(1, "", {}) | {
        "input": [{"role": "user", "parts": [{"text": "hello"}]}],
        "output": {"role": "model", "parts": [{"text": '{"intent": "other"}'}]},
    }
    function = {"name": "intent", "arguments": '{"intent": "card"}'}
    oldest = as_observation(2, "wire", {}) | {
        "output": {"role": "assistant", "content": None, "function_call": function}
    }
    calls, skipped = read_traces(tmp_path, gemini, oldest)
    read = sorted((call.request.inputs[0].parts, call.completion.value["intent"]) for call in calls)
    assert read == [(("hello",), "other"), (("wire",), "card")] and not skipped


def test_of_a_whole_body_of_openai_the_message_is_the_answer(tmp_path: Path) -> None:
    observation = as_observation(1, "wire", {"intent": "transfer"})
    body = {"id": "c", "model": "m", "choices": [{"index": 0, "message": observation["output"]}]}
    listed = as_observation(2, "iban", {"choices": ["a", "b"]})
    calls, skipped = read_traces(tmp_path, observation | {"output": body}, listed)
    assert not skipped
    assert [call.completion.value for call in calls] == [{"intent": "transfer"}, {"choices": ["a", "b"]}]


def test_answers_by_a_student_are_no_calls_of_the_llm_in_traces_too(tmp_path: Path) -> None:
    number = f"{OWN_ID_PREFIX}{'0a' * 16}"
    by_id, by_fingerprint = (as_openai_run(n, text, answer) for n, text, answer in answers(2))
    by_id["outputs"]["id"] = f"chatcmpl-{number}"
    by_fingerprint["outputs"]["system_fingerprint"] = f"{OWN_ID_PREFIX}_3c8950ae7fb9"
    chain = as_langchain_run(3, "hello", {"intent": "other"})
    message = chain["child_runs"][0]["outputs"]["generations"][0][0]["message"]
    message["kwargs"]["response_metadata"] = {"id": f"chatcmpl-{number}", "finish_reason": "stop"}
    observation = as_observation(4, "wire", {"intent": "transfer"})
    observation["output"]["id"] = f"msg_{number}"
    own = as_observation(5, "wire", {"intent": "transfer", "id": OWN_ID_PREFIX})
    calls, skipped = read_traces(tmp_path, by_id, by_fingerprint, chain, observation, own)
    assert skipped == {"student-answer": 4}
    assert [call.completion.value["id"] for call in calls] == [OWN_ID_PREFIX]


def test_a_record_of_a_guardrail_is_none_of_an_llm(tmp_path: Path) -> None:
    guardrail = {"id": "g", "type": "GUARDRAIL", "startTime": "2026-02-02T00:00:00Z"}
    calls, skipped = read_traces(tmp_path, guardrail, as_observation(1, "wire", {"intent": "transfer"}))
    assert len(calls) == 1 and not skipped


def write_calls(path: Path, count: int, teacher: Any = by_rule) -> Path:
    path.write_text(
        "".join(as_exchange(text, answer, number) for number, text, answer in answers(count, teacher))
    )
    return path


def test_a_plan_forecasts_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_calls(tmp_path / "calls.jsonl", 600)
    options = ["--kinds", "tf-idf", "--call-price", "0.01", "--calls-per-day", "1000"]
    assert main(["mirror", "plan", str(path), *options, "--out", "plan.html"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("600 calls of 1 place in your application: this takes about")
    assert "asks no LLM and keeps no student" in said
    assert "now, with these calls" in said and "with at most 5 % of its answers differing" in said
    assert {own.name for own in tmp_path.iterdir()} == {"calls.jsonl", "plan.html"}
    page = (tmp_path / "plan.html").read_text()
    assert "This page is a forecast, no proof" in page and "http" not in page.replace("http://www.w3.org", "")
    assert not any(text in page for _, text, _ in answers(600))
    assert f"bertsmith mirror plan {path} --kinds tf-idf --call-price 0.01 --calls-per-day 1000.0" in page
    # The same in JSON, and the money by hand: 30 days, of which audits ask one answer in twenty again.
    assert main(["mirror", "plan", str(path), *options, "--json"]) == 0
    (place,) = json.loads(capsys.readouterr().out)["places"]
    wanted = next(risk for risk in place["risks"] if risk["epsilon"] == 0.05)
    assert place["calls_to_prove"] == 180 and place["why_not"] is None and wanted["coverage"] > 0.9
    assert wanted["calls_per_month"] == pytest.approx(30_000 * wanted["coverage"])
    assert wanted["saving_per_month"] == pytest.approx(300 * wanted["coverage"] * 0.95)
    # A page that is there stays.
    assert main(["mirror", "plan", str(path), "--out", "plan.html"]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_plan_says_what_cannot_be_answered_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_calls(tmp_path / "calls.jsonl", 300, at_random)
    assert main(["mirror", "plan", str(path), "--kinds", "tf-idf"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing can be expected to be proven by these 300 calls" in said
    assert "not by this student" in said and "mirror import" not in said
    mood = {"type": "string", "enum": ["calm", "angry"]}
    uneven = tmp_path / "uneven.jsonl"
    lines = []
    for number, text, answer in answers(300):
        exchange = json.loads(as_exchange(text, answer | {"mood": random.choice(mood["enum"])}, number))
        schema = exchange["request"]["response_format"]["json_schema"]["schema"]
        schema["properties"]["mood"], schema["required"] = mood, [*schema["required"], "mood"]
        lines.append(json.dumps(exchange))
    uneven.write_text("\n".join(lines))
    assert main(["mirror", "plan", str(uneven), "--kinds", "tf-idf"]) == 0
    assert "It fails at $.mood (" in (said := " ".join(capsys.readouterr().out.split()))
    assert "Ask for $.intent in calls of their own" in said
    few = write_calls(tmp_path / "few.jsonl", 30)
    assert main(["mirror", "plan", str(few), "--kinds", "tf-idf"]) == 0
    assert "a training needs at least 50 texts" in " ".join(capsys.readouterr().out.split())
    prose = tmp_path / "prose.jsonl"
    request = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    response = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
    }
    prose.write_text(json.dumps({"request": request, "response": response}))
    assert main(["mirror", "plan", str(prose)]) == 2
    assert "None of the calls can be mirrored (no-schema 1)" in capsys.readouterr().err
    with pytest.raises(InputError, match="is not there"):
        CallImport([tmp_path / "missing.jsonl"], REDACTOR)


def test_of_recorded_calls_the_store_keeps_the_forecast_alone_and_status_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No student, which would take a share of delta, and no call counts as used."""
    monkeypatch.chdir(tmp_path)
    path = write_calls(tmp_path / "calls.jsonl", 250)
    assert main(["mirror", "import", str(path)]) == 0
    assert (
        main(["mirror", "plan", "--kinds", "tf-idf", "--call-price", "0.01", "--calls-per-day", "100"]) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "mirror import calls.jsonl" not in said.partition("Planned")[2]
    with closing(Store(str(tmp_path / "mirror.sqlite"))) as store:
        ((version, forecast),) = read_forecasts(store).items()
        assert LearningRecords(store).used_calls() == set() and StageStore(store).students() == {}
    wanted = next(risk for risk in forecast["risks"] if risk["epsilon"] == 0.05)
    calls = [round(3000 * share) for share in (wanted["coverage"], *wanted["interval"])]
    money = [round(30 * share * 0.95, 2) for share in (wanted["coverage"], *wanted["interval"])]
    assert f"a month {calls[0]:,} calls ({calls[1]:,} to {calls[2]:,})" in forecast["text"]
    assert f"which cost {money[0]:.2f} today ({money[1]:.2f} to {money[2]:.2f})" in forecast["text"]
    assert (
        f"agrees with the LLM in {forecast['agreeing']} of {forecast['compared']} calls" in forecast["text"]
    )
    assert main(["mirror", "status"]) == 0
    assert f"version {version}: Forecast by 250 calls: a student that learns" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["mirror", "plan", "calls.jsonl", "--version", version]) == 2
    assert "Give either FILES, or --store and --version" in capsys.readouterr().err


def test_by_few_calls_a_forecast_begins_by_the_names_of_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns no answer, so every call says how often it agrees."""
    dev = TeacherComparison(np.linspace(0.99, 0.3, 60), np.arange(60) >= 45, {}, [])
    asked = list[int]()

    def train(request: Any, calls: Any, *rest: Any) -> Any:
        asked.append(len(calls))
        return None, {}

    monkeypatch.setattr(plan, "train_named_candidate", train)
    monkeypatch.setattr(plan, "compare_with_teacher", lambda *_: dev)
    path = write_calls(tmp_path / "calls.jsonl", 60)
    place = plan_calls([path], CallImport([path], REDACTOR), PlanOptions()).places[0]
    assert asked == [60] and place.by_names and place.compared == (45, 60) and place.kept == 0
    text = describe_forecast(place, LearnSettings())
    assert "Forecast by 60 calls: a student that knows the names of the values alone agrees" in text
    assert "in 45 of 60 calls (62.1% to 85.3%" in text and "of each 1,000 calls" in text
    assert [row[-1] for row in format_plan_rows(place, LearnSettings())] == [
        "once it has learned from answers"
    ] * 4


def plan_of(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """The plan of the only place, as JSON."""
    capsys.readouterr()
    assert main(["mirror", "plan", str(path), "--kinds", "tf-idf", "--json", *options]) == 0
    (place,) = json.loads(capsys.readouterr().out)["places"]
    assert isinstance(place, dict)
    return place | next(risk for risk in place["risks"] if risk["epsilon"] == 0.05)


def test_calls_without_a_time_are_not_said_to_be_beyond_a_student(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calls.jsonl"
    lines = [json.loads(as_exchange(text, answer, n)) for n, text, answer in answers(600)]
    path.write_text("".join(json.dumps({**line, "time": None}) + "\n" for line in lines))
    plan = plan_of(path, capsys)
    assert plan["calls_to_prove"] == 0 and plan["coverage"] > 0.9
    assert plan["when"].startswith("after about") and plan["when"].endswith("more calls")
    assert main(["mirror", "plan", str(path), "--kinds", "tf-idf", "--out", str(tmp_path / "p.html")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "600 calls have no time. A student learns from them, and they prove nothing." in said
    assert "The proof takes minutes" not in (tmp_path / "p.html").read_text()


def test_calls_with_another_prompt_and_those_that_cannot_be_mirrored_are_not_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarter of the file each: conversations, which fit no template, and answers in prose."""
    path = write_calls(tmp_path / "calls.jsonl", 600)
    plain = plan_of(path, capsys, "--calls-per-day", "1000", "--call-price", "0.01")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines[:300]):
        line["response"]["id"] += "-again"
        message = line["request"]["messages"][-1]
        if number % 2:
            line["request"]["messages"] += [{"role": "assistant", "content": "what?"}, message]
        else:
            del line["request"]["response_format"]
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines[:300])
    plan = plan_of(path, capsys, "--calls-per-day", "1000", "--call-price", "0.01")
    assert plan["calls_per_day"] == pytest.approx(1000 * 750 / 900)
    for name, factor in (("calls_per_month", 1000), ("saving_per_month", 10 * 0.95)):
        assert plan[name] == pytest.approx(30 * factor * plan["coverage"] * 600 / 900)
    assert plain["calls_per_month"] == pytest.approx(30_000 * plain["coverage"])
    assert main(["mirror", "plan", str(path), "--kinds", "tf-idf"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of the calls with this prompt, with at most 5 %" in said and "80 %" in said


def test_what_happens_when_is_reckoned_by_the_calls_that_a_student_is_sure_of() -> None:
    forecast = RiskForecast(0.05, 0.25, Interval(0.2, 0.3), 0.1, 100, True)
    place = PlacePlan("a", "m", "", (), 1000, 40.0, None, 300, forecasts=(forecast,), fitting=0.5)
    plan = CallPlan((), (place,), ImportCounts(), 0, LearnSettings(delta=0.1), ())
    page = render_plan(plan, "again")
    # Five a day: 20 days in shadow, and 22.2 in canary, where the LLM is asked about nine in ten.
    assert f"about {datetime.now(UTC) + timedelta(days=43):%Y-%m-%d}: the student was compared" in page
    assert "with 90 % confidence" in page and "95 %" not in page


def test_a_price_is_read_from_the_calls_or_reckoned_by_their_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(json.dumps(as_observation(*one)) + "\n" for one in answers(120)))

    def price(*options: str) -> float:
        assert main(["mirror", "plan", str(path), "--kinds", "tf-idf", "--json", *options]) == 0
        return float(json.loads(capsys.readouterr().out)["places"][0]["price_of_call"])

    assert price() == pytest.approx(0.002)
    assert price("--input-price", "10", "--output-price", "20") == pytest.approx(100 * 1e-5 + 5 * 2e-5)
    assert price("--call-price", "0.5") == 0.5
