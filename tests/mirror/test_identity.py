"""What opens a new version of a site: all that tells the model what to answer, and nothing else."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bertsmith.mirror.call import NotMirrored
from bertsmith.mirror.exchange import read_request
from bertsmith.mirror.formats.registry import FORMATS_BY_NAME, find_format
from bertsmith.mirror.identity import AnswererChange, find_answerer_change, site_id, version_id
from bertsmith.mirror.redaction import Redactor

CHAT_FORMAT, RESPONSES_FORMAT = FORMATS_BY_NAME["openai-chat"], FORMATS_BY_NAME["openai-responses"]
ANTHROPIC_FORMAT = FORMATS_BY_NAME["anthropic"]
SCHEMA = {"type": "object", "properties": {"intent": {"enum": ["card", "other"]}}}
FUNCTION = {"name": "answer", "description": "Card is about cards.", "parameters": SCHEMA}
SAID = [{"role": "system", "content": "Classify."}, {"role": "user", "content": "my card"}]
BY_SCHEMA = {
    "model": "m",
    "messages": SAID,
    "temperature": 0.0,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "description": "Card is about cards.", "schema": SCHEMA},
    },
}
BY_TOOL = {
    "model": "m",
    "messages": SAID,
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "b"}}],
    "tool_choice": {"type": "function", "function": {"name": "answer"}},
}
RESPONSES = {
    "model": "m",
    "input": SAID,
    "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
}
ANTHROPIC = {
    "model": "m",
    "max_tokens": 100,
    "system": "Classify.",
    "messages": SAID[1:],
    "tools": [{"name": "answer", "description": "Card is about cards.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "answer"},
}


def version(form: Any, body: dict[str, Any], path: str = "") -> str:
    """As of a call that is recorded."""
    asked = Redactor((), {}).begin_call().redact_request(read_request(form, body, path))
    return version_id(asked, site_id(asked, "named"))


@pytest.mark.parametrize(
    ("some", "others", "shown"),
    [
        ("Today is 2026-11-29.", ["Today is 2025-01-01."], "Today is «date»."),
        ("It is 29 November 2026.", ["It is 1 May 2027."], "It is «date»."),
        ("It is Sunday, November 29, 2026.", ["It is Friday, May 1, 2027."], "It is «date»."),
        ("Heute: 29.11.2026, 5:32", ["Heute: 1.5.2027, 17:01"], "Heute: «date», «time»"),
        ("Heute ist Sonntag.", ["Heute ist Mittwoch."], "Heute ist «day»."),
        ("Sonntag, den 29. November 2026", ["Montag, den 1. März 2027"], "«date»"),
        ("Nous sommes le 29 novembre 2026.", ["Nous sommes le 1er août 2027."], "Nous sommes «date»."),
        ("Hoy: 29 de noviembre de 2026", ["Hoy: 1 de mayo de 2027"], "Hoy: «date»"),
        ("現在は2026-11-29T05:32:01Zです", ["現在は2025-01-01T17:01:59Zです"], "現在は«time»です"),
        (
            "会话550e8400-e29b-41d4-a716-446655440000是",
            ["会话650e8400-e29b-41d4-a716-446655440001是"],
            "会话«uuid»是",
        ),
        ("请求req_8a7b6c5d4e3f与8a7b6c5d4e", ["请求req_1a7b6c5d4e3f与1a7b6c5d4e"], "请求«id»与«id»"),
        ("番号は12345678です", ["番号は22345678です"], "番号は«number»です"),
        ("今天是2026年11月29日，星期日。", ["今天是2027年5月1日，星期六。"], "今天是«date»。"),
        ("现在2026年11月29日15:30", ["现在2027年5月1日下午3:30"], "现在«date»«time»"),
        ("2026年11月29日(日) 15時30分", ["2027年5月1日（土） 9時5分"], "«date» «time»"),
        ("오늘은 2026년 11월 29일 일요일", ["오늘은 2027년 5월 1일 토요일"], "오늘은 «date»"),
        ("今日は日曜日。現在午後3:30", ["今日は月曜日。現在11:02"], "今日は«day»。現在«time»"),
        ("Now: 11/29/2026, 5:32:01\u202fPM", ["Now: 5/1/2027, 11:02:00\u202fAM"], "Now: «date», «time»"),
        ("Sun Nov 29 05:32:01 2026", ["Sat May  1 17:01:59 UTC 2027"], "«time»"),  # time.ctime(), date
        ("On 29/11/26, week 2026-W48", ["On 01/12/26, week 2026-W49"], "On «date», week «date»"),
        ("Clock: 1764394331.123", ["Clock: 1764394332.9"], "Clock: «number»"),
        ("User: anna@example.org\nBe kind.", ["User: bo@b.example\nBe kind."], "User: «name»\nBe kind."),
        ("Now 2026-11-29T05:32:11.123Z", ["Now 2026-11-29T05:32:12+01:00"], "Now «time»"),
        ("Clock 5:32 PM, Monday", ["Clock 11:02 AM, Friday"], "Clock «time», «day»"),
        ("Now: 1764394331", ["Now: 1764394399"], "Now: «number»"),
        (
            "Session 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
            ["Session 00000000-4F89-11d3-9a0c-0305e82c3302"],
            "Session «uuid»",
        ),
        ("id req_8fK2mZ91aa", ["id req_11aaBBcc22"], "id «id»"),
        ("trace deadbeef01234567", ["trace 0123456789abcdef"], "trace «id»"),
        ("Request #17.", ["Request #18.", "Request #1801."], "Request #«number»."),
        ("This is call 4 today.", ["This is call 17 today."], "This is call «number» today."),
        ("User: Anna Schmidt\nBe kind.", ["User: Bo\nBe kind."], "User: «name»\nBe kind."),
        ("user_id: anna-7\nBe kind.", ["user_id: 42\nBe kind."], "user_id: «value»\nBe kind."),
        ("The user's name is Anna.", ["The user's name is Jürgen Müller."], "The user's name is «name»."),
        ("You are talking to Anna.", ["You are talking to Bo."], "You are talking to «name»."),
        ("You are talking to Anna.", ["You are talking to Ana de la Cruz Gil."], None),
        (
            "User: Anna\nBe kind.\nUser: Anna",
            ["User: Bo\nBe kind.\nUser: Bo"],
            "User: «name»\nBe kind.\nUser: «name»",
        ),
        ("Sunday, November 29. Hi", ["Friday, May 1. Hi"], "«date». Hi"),
        ("Sonntag, den 29. November", ["Freitag, 1. Mai"], "«date»"),
        ("Sunday, 29 November, 5:32", ["Friday, 1 May, 17:01"], "«date», «time»"),
        ("29-Nov-2026 or 29/Nov/2026", ["01-May-2027 or 01/May/2027"], "«date» or «date»"),
        ("20261129T053211Z", ["20270501T170159Z"], "«time»"),
        ("Ask when needed. The user is Anna.", ["Ask when needed. The user is Bo."], None),
        ("- Ask when needed\n- User is Anna", ["- Ask when needed\n- User is Bo"], None),
        (
            "When asked, say that the user's name is Anna.",
            ["When asked, say that the user's name is Bo."],
            None,
        ),
        ("Be kind.\nThe current user is Anna.", ["Be kind.\nThe current user is Bo."], None),
        ("Hi. The name of the user is Anna.", ["Hi. The name of the user is Bo."], None),
        (
            "Customer name: Anna\nBe kind.",
            ["Customer name: Bo van der Berg\nBe kind.", "Customer name: anna\nBe kind."],
            "Customer name: «value»\nBe kind.",
        ),
        (
            "Uptime: 3 days\n**User id:** anna\nBe kind.",
            ["Uptime: 2 hours left\n**User id:** b7\nBe kind."],
            "Uptime: «value»\n**User id:** «value»\nBe kind.",
        ),
        (
            "It is 2026-11-29. The user is Anna.",
            ["It is 2026-11-30. The user is Bo."],
            "It is «date». The user is «name».",
        ),
        ("1. Be kind.\n2. User is Anna", ["1. Be kind.\n2. User is Bo"], None),
        (
            "User: Anna\nAgent: Tim\nBe kind.",
            ["User: Bo\nAgent: Eve\nBe kind."],
            "User: «name»\nAgent: «name»\nBe kind.",
        ),
    ],
)
def test_a_clock_an_id_a_counter_or_a_name_opens_no_version(
    some: str, others: list[str], shown: str | None
) -> None:
    def body(said: str) -> dict[str, Any]:
        return BY_SCHEMA | {"messages": [{"role": "system", "content": said}, SAID[1]]}

    asked = Redactor((), {}).begin_call().redact_request(read_request(CHAT_FORMAT, body(some)))
    assert asked.system[0].parts == (shown or some.replace("Anna", "«name»"),)
    assert asked.inputs[0].parts == ("my card",)
    assert {version(CHAT_FORMAT, body(each)) for each in [some, *others]} == {
        version(CHAT_FORMAT, body(some))
    }
    assert version(CHAT_FORMAT, body(some)) != version(CHAT_FORMAT, body(some + " Answer in one word."))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("At most 3 labels.", "At most 5 labels."),
        ("You are GPT-4.", "You are GPT-5."),
        ("At most 10 words, 2 lines", "At most 10 words, 3 lines"),
        ("Scores of 1/2/3", "Scores of 1/2/4"),
        ("一周三次，每星期五次", "一周三次，每星期六次"),
        ("Costs 12345.67", "Costs 12345.99"),
        ("The user is angry if it says so.", "The user is happy if it says so."),
        ("Message: I lost my card", "Message: I want a loan"),
        ("User: my card is lost", "User: my loan is lost"),
        ("One of: 1234567, 7654321", "One of: 1234567, 7654399"),
        ("Escalate if the user is VIP.", "Escalate if the user is Gold."),
        ("When a customer is Business, ask.", "When a customer is Private, ask."),
        ("Escalate if an existing customer is VIP.", "Escalate if an existing customer is Gold."),
        ("Stop once this user is VIP.", "Stop once this user is Gold."),
        ("If the caller is sad or\nthe user is VIP, ask.", "If the caller is sad or\nthe user is Gold, ask."),
        ("Escalate if:\n- the user is VIP", "Escalate if:\n- the user is Gold"),
        ("You are talking to German customers.", "You are talking to French customers."),
        ("Always greet VIP Business clients.", "Always greet VIP Private clients."),
        ("You are talking to German speakers.", "You are talking to French speakers."),
        ("- Customer name: the full name", "- Customer name: the last name only"),
        ("Account number: must have 8 digits", "Account number: must have 10 digits"),
        ("Username: as in the signature", "Username: as in the subject"),
        (
            "Escalate if:\n- Cards are lost\n- The user is VIP",
            "Escalate if:\n- Cards are lost\n- The user is Gold",
        ),
        ("Escalate if:\n\n1. The user is VIP", "Escalate if:\n\n1. The user is Gold"),
        ("Ask if it is late; the user is VIP.", "Ask if it is late; the user is Gold."),
        ("Ask if, e.g. the user is VIP.", "Ask if, e.g. the user is Gold."),
        ("Route whose account is Premium.", "Route whose account is Basic."),
        ("Check that the account is Active.", "Check that the account is Verified."),
        ("A customer is Gold who buys a lot.", "A customer is VIP who buys a lot."),
        ("User: Refund\nUser: my card is lost", "User: Chargeback\nUser: my card is lost"),
        ("Agent: Billing\nUser: my loan\nAgent: Loans", "Agent: Billing\nUser: my loan\nAgent: Cards"),
        ("High priority:\n- The customer is VIP", "High priority:\n- The customer is Gold"),
        (
            "Escalate if:\n- Cards are lost\n  or stolen\n- The user is VIP",
            "Escalate if:\n- Cards are lost\n  or stolen\n- The user is Gold",
        ),
        (
            "Escalate if:\n" + "- A card of theirs was lost\n" * 20 + "- The user is VIP",
            "Escalate if:\n" + "- A card of theirs was lost\n" * 20 + "- The user is Gold",
        ),
        ("User is VIP: escalate.", "User is Gold: escalate."),
        ("The user is VIP -> high", "The user is Gold -> high"),
        ("Now: name the topic, billing or loans", "Now: name the topic, billing or cards"),
        ("- customer_name: string", "- customer_name: null"),
        ("- Order number: Required", "- Order number: Optional"),
        ("- Order number: Any (required)", "- Order number: Any (optional)"),
        ("If the user is logged in as Admin, ask.", "If the user is logged in as Guest, ask."),
        ("Ask if they write on behalf of Legal.", "Ask if they write on behalf of Sales."),
        ("Pass cards to the agent called Billing.", "Pass cards to the agent called Loans."),
        ("Ask if it is a user named Test.", "Ask if it is a user named Demo."),
        ("It is for the account named Savings.", "It is for the account named Giro."),
    ],
)
def test_what_a_prompt_says_is_no_clock(before: str, after: str) -> None:
    bodies = [
        BY_SCHEMA | {"messages": [{"role": "system", "content": said}, SAID[1]]} for said in (before, after)
    ]
    assert version(CHAT_FORMAT, bodies[0]) != version(CHAT_FORMAT, bodies[1])


def test_a_path_names_the_model_as_of_azures_deployments() -> None:
    body = {name: value for name, value in BY_SCHEMA.items() if name != "model"}
    path = "/openai/deployments/{}/chat/completions"
    asked = read_request(CHAT_FORMAT, body, path.format("intents-2"))
    assert asked.model == "intents-2"
    assert version(CHAT_FORMAT, body, path.format("a")) != version(CHAT_FORMAT, body, path.format("b"))
    # Azure goes by the path, whatever the body says.
    assert version(CHAT_FORMAT, BY_SCHEMA, path.format("a")) == version(CHAT_FORMAT, body, path.format("a"))
    for written, model in {
        "/openai/deployments/my%20model/chat/completions?api-version=2024-10-21": "my model",
        "/models/org/name/v1/chat/completions": "org/name",
        "/v1/engines/m/chat/completions": "m",
        "/proxy/openai/deployments/x/responses": "x",
        "/v1/chat/completions": "",
        "/openai/v1/responses": "",
    }.items():
        form = find_format("POST", written)
        assert form is not None and form.model_of_path(written) == model
    for nothing in (body, body | {"model": None}, body | {"model": ""}):
        with pytest.raises(NotMirrored, match="no-model"):
            read_request(CHAT_FORMAT, nothing, "/v1/chat/completions")


def described(body: dict[str, Any]) -> None:
    body["response_format"]["json_schema"]["description"] = "Card is about payments."


def named(body: dict[str, Any]) -> None:
    body["response_format"]["json_schema"]["name"] = "payments_only"


def tool_described(body: dict[str, Any]) -> None:
    body["tools"][0]["function"]["description"] = "Card is about payments."


def other_tool(body: dict[str, Any]) -> None:
    body["tools"][1]["function"]["description"] = "Anything else goes here."


def required(body: dict[str, Any]) -> None:
    del body["tools"][1]
    body["tool_choice"] = "required"


def text_described(body: dict[str, Any]) -> None:
    body["text"]["format"]["description"] = "Card is about payments."


def input_described(body: dict[str, Any]) -> None:
    body["tools"][0]["description"] = "Card is about payments."


@pytest.mark.parametrize(
    ("form", "body", "change"),
    [
        (CHAT_FORMAT, BY_SCHEMA, described),
        (CHAT_FORMAT, BY_SCHEMA, named),
        (CHAT_FORMAT, BY_TOOL, tool_described),
        (CHAT_FORMAT, BY_TOOL, other_tool),
        (CHAT_FORMAT, BY_TOOL, required),
        (RESPONSES_FORMAT, RESPONSES, text_described),
        (ANTHROPIC_FORMAT, ANTHROPIC, input_described),
    ],
    ids=lambda each: getattr(each, "__name__", "").rpartition(".")[2],
)
def test_another_description_or_choice_of_tools_is_another_version(
    form: Any, body: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    changed = copy.deepcopy(body)
    change(changed)
    assert version(form, changed) != version(form, body)


@pytest.mark.parametrize(
    ("form", "body", "setting"),
    [
        (CHAT_FORMAT, BY_SCHEMA, {"temperature": 0.7}),
        (RESPONSES_FORMAT, RESPONSES, {"text": {**RESPONSES["text"], "verbosity": "high"}}),  # type: ignore[dict-item]
        (ANTHROPIC_FORMAT, ANTHROPIC, {"max_tokens": 200}),
        (ANTHROPIC_FORMAT, ANTHROPIC, {"messages": [{"role": "user", "content": "another"}]}),
    ],
)
def test_settings_and_inputs_open_no_version(form: Any, body: dict[str, Any], setting: Any) -> None:
    assert version(form, body | setting) == version(form, body)


def test_another_model_behind_the_same_name_is_told_once_it_has_followed_the_former() -> None:
    def change(*models: str) -> AnswererChange | None:
        return find_answerer_change([(float(at), model) for at, model in enumerate(models)])

    assert change(*["a-05"] * 30, *["a-08"] * 20) == (30.0, "a-05", "a-08")
    assert change(*["a-05"] * 30, *["", "a-08"] * 20) == (31.0, "a-05", "a-08"), "some answers name none"
    assert change(*["a-05"] * 30, *["a-08"] * 19) is None
    assert change(*["a-05"] * 19, *["a-08"] * 90) is None
    assert change(*["a-05"] * 90) is change() is change(*[""] * 90) is None
    # A slow change ends with the last answer of the former; a model that now and then stands in is none.
    assert change(*["a-05"] * 60, *["a-05", "a-08"] * 20, *["a-08"] * 20) == (99.0, "a-05", "a-08")
    assert change(*(["a-08"] * 50 + ["b"]) * 30, *["a-08"] * 50) is None
