"""No key and nothing that was redacted or forgotten: searched byte by byte in all that the mirror writes."""

import json
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llm_answers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running_mirror import RunningMirror, mirror_process, running_mirror
from scripted_upstream import Reply, Seen, Upstream, upstream_of

from bertsmith.errors import RecipeError
from bertsmith.mirror.call import ChatMessage, Completion, CompletionRequest
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.redaction import BUILT_IN, Redactor
from bertsmith.mirror.settings import read_settings
from bertsmith.mirror.store import Store

NOTHING = Redactor((), {})
CHAT = "/v1/chat/completions"
KEY = "sk-verysecret-0123456789"
PRIVATE = {
    "email": ["anna.meier@example.org", "o'brien+x@mail.example.co.uk", "jürgen@bücher.example"],
    "api-key": [
        "sk-proj-AbCdEf0123456789xyz",
        "Bearer eyJhbGciOiJIUzI1NiJ9.abc",
        "ghp_" + "a1B2c3D4e5F6" * 3,
        "github_pat_11AAAAAAA0" + "bC_3" * 15,
        "AKIA" + "2E4F6G8H" * 2,
        "AIza" + "Sy-_7" * 7,
        "sk_live_" + "4eC39HqLyjWD" * 2,
        "xoxb-123456789012-" + "AbCdEf" * 4,
        "glpat-" + "x1Y2" * 5,
        "hf_" + "aBcDeF" * 6,
        "npm_" + "aBc123" * 6,
        "SG." + "a1B2" * 5 + "." + "c3D-" * 10,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN",
    ],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "fr1420041010050500013m02606"],
    "credit-card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
    "ip": ["192.168.17.254", "2001:db8::ff00:42:8329"],
    "phone": [
        "+49 30 901820",
        "0171/2345678",
        "(030) 90 18 20",
        "030.90 18 20",
        "(555) 123-4567",
        "(555)123-4567",
        "0044 20 7946 0958",
    ],
}
HARMLESS = [
    "Order 4111111111111112 of 2026-11-26 at 12:30:45, 1,299.00 EUR, version 1.2.3, page 17",
    "from 01.02.2026 to 28/02/2026", "std::vector and ::", "at:12:30:45 of 00:1a:2b:3c:4d:5e",
    "key " + ":".join(["a1"] * 20), "Foo::bar", "app:v1:2.0", "a@b", "999.1.1.1",
    "room 0815", "-0.0123456", "a chance of 0.0123456789, or of 12.0123 4567",
    "it costs 1234567 a year", "INTENT_4711", "AB12CDEFGHIJKLMN",
    "npm_config_registry_url_of_our_company", "hf_transfer", "AKIAs and ASIA2026", "xai-tools", "ghp_",
]  # fmt: skip


def redacted(text: str, *names: str) -> str:
    return Redactor(names or tuple(BUILT_IN), {}).begin_call().redact_text(text)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in PRIVATE for text in PRIVATE[name]])
def test_what_is_private_is_found_alone_and_in_a_sentence(name: str, text: str) -> None:
    placeholder = f"[{name.upper()}_1]"
    assert redacted(text) == placeholder
    assert redacted(f"Write to {text}, please.") == f"Write to {placeholder}, please."
    assert redacted(f"({text})").strip("()") == placeholder
    assert redacted(f"{text}\n{text}!") == f"{placeholder}\n{placeholder}!"
    others = [each for each in BUILT_IN if each != name]
    if name not in ("phone", "credit-card", "iban"):  # their digits may look like each other's
        assert redacted(text, *others) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_not_private_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4111111111111111 12/27", "[CREDIT-CARD_1] 12/27"),
        ("4111 1111 1111 1111 123", "[CREDIT-CARD_1] 123"),
        ("4111\u00a01111\u00a01111\u00a01111", "[CREDIT-CARD_1]"),  # as pages and PDFs have them
        ("4111\u20111111\u20111111\u20111111", "[CREDIT-CARD_1]"),
        ("\u200a4111\u202f1111\u202f1111\u202f1111\u202f", "\u200a[CREDIT-CARD_1]\u202f"),
        ("\uff14" + "\uff11" * 15, "[CREDIT-CARD_1]"),
        ("call +33\u00a01\u00a042\u00a068\u00a053\u00a000", "call [PHONE_1]"),
        ("3782 822463 10005 12/27", "[CREDIT-CARD_1] 12/27"),
        ("id 12 4111 1111 1111 1111 12/27", "id 12 [CREDIT-CARD_1] 12/27"),
        ("5500 0000 0000 0004 4111 1111 1111 1111", "[CREDIT-CARD_1] [CREDIT-CARD_2]"),
        ("DE89 3704 0044 0532 0130 00 or AT61 1904 3002 3457 3201 too", "[IBAN_1] or [IBAN_2] too"),
        ("from DE89370400440532013000 GB82WEST12345698765432 today", "from [IBAN_1] [IBAN_2] today"),
        ("AB12 DE89 3704 0044 0532 0130 00", "AB12 [IBAN_1]"),
        ("IP:10.0.0.1,host:192.168.1.5:8080", "IP:[IP_1],host:[IP_2]:8080"),
        ("[IPv6:2001:db8::1] src:fe80::1 地址:10.0.0.1", "[IPv6:[IP_1]] src:[IP_2] 地址:[IP_3]"),
        # Other scripts have no blank there: the address alone is private, and an IBAN or a key is found.
        (
            "メールはtaro@example.jpです。返信はtaro@example.jp-へ",
            "メールは[EMAIL_1]です。返信は[EMAIL_1]-へ",
        ),
        ("联系anna@example.cn或jürgen@bücher.example吧", "联系[EMAIL_1]或[EMAIL_2]吧"),
        ("이메일은 kim@mail.example.kr입니다", "이메일은 [EMAIL_1]입니다"),
        ("太郎@example.jpと、用户@例子.广告", "[EMAIL_1]と、[EMAIL_2]"),
        ("账号DE89370400440532013000是", "账号[IBAN_1]是"),
        ("密钥sk-proj-AbCdEf0123456789xyz是", "密钥[API-KEY_1]是"),
    ],
)
def test_what_is_private_is_found_beside_other_numbers(text: str, expected: str) -> None:
    assert redacted(text) == redacted(expected) == expected


def luhn_digit(digits: str) -> str:
    """ISO/IEC 7812-1, annex B, in its own words."""
    total = sum(sum(divmod(int(each) * (2 - place % 2), 10)) for place, each in enumerate(reversed(digits)))
    return str(-total % 10)


def test_long_rows_of_four_digits_are_no_cards_but_several_cards_are() -> None:
    draw = random.Random(0)
    for separator in " -":
        for length in (7, 9, 30, 31):
            rows = [
                separator.join(str(draw.randrange(1000, 10000)) for _ in range(length)) for _ in range(50)
            ]
            assert [redacted(row, "credit-card") for row in rows] == rows
    one, two = "4111 1111 1111 1111", "5500 0000 0000 0004"
    assert redacted(f"{one} {two}", "credit-card") == "[CREDIT-CARD_1] [CREDIT-CARD_2]"
    assert redacted(f"{one} {two} {one}", "credit-card") == "[CREDIT-CARD_1] [CREDIT-CARD_2] [CREDIT-CARD_1]"
    assert redacted(f"{one} 12 27 123", "credit-card").startswith("[CREDIT-CARD_1]")
    assert redacted(f"{one} 1227 1234", "credit-card") == "[CREDIT-CARD_1] 1227 1234"


@pytest.mark.parametrize(
    ("prefix", "length", "is_card"),
    [
        ("4", 13, True), ("4", 16, True), ("4", 19, True), ("4", 15, False), ("51", 16, True),
        ("55", 16, True),
        ("2221", 16, True), ("2720", 16, True), ("2721", 16, False), ("34", 15, True), ("37", 15, True),
        ("37", 16, False), ("300", 14, True), ("36", 14, True), ("3528", 16, True), ("6011", 16, True),
        ("65", 16, True), ("62", 19, True), ("50", 13, True), ("2200", 16, True),
        ("0", 16, False), ("1", 16, False), ("7", 16, False),
    ],
)  # fmt: skip
def test_a_card_has_the_first_digits_and_the_length_of_an_issuers(
    prefix: str, length: int, is_card: bool
) -> None:
    draw = random.Random(length)
    for _ in range(20):
        digits = prefix + "".join(str(draw.randrange(10)) for _ in range(length - len(prefix) - 1))
        number = digits + luhn_digit(digits)
        assert (redacted(number, "credit-card") == "[CREDIT-CARD_1]") == is_card, number


LABELS = ["0800 123 4567", "4111 1111 1111 1111", "978-3-16-148410-0", "a@b.example", "10.0.0.1"]
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"x": {"enum": LABELS}}},
    {"anyOf": [{"const": each} for each in LABELS]},
    {"$defs": {"X": {"enum": LABELS}}, "properties": {"x": {"$ref": "#/$defs/X"}}},
    {
        "properties": {
            "x": {"type": "array", "items": {"oneOf": [{"enum": LABELS[:2]}, {"enum": LABELS[2:]}]}}
        }
    },
    {"properties": {"x": {"enum": LABELS, "criteria": dict.fromkeys(LABELS, "…")}}},
    {"properties": {"x": {"criteria": [{"value": each, "label": each} for each in LABELS]}}},
]
LISTS = [
    "Answer with one of: " + ", ".join(LABELS),
    "Labels:\n" + "\n".join(f"- {each}" for each in LABELS),
    "The options are:\n" + "\n".join(f"{n}. `{each}`" for n, each in enumerate(LABELS, 1)),
]


@pytest.mark.parametrize("schema", [*SCHEMAS, *LISTS])
def test_labels_are_never_redacted_and_what_stands_beside_them_is(schema: Any) -> None:
    text = f"Call {LABELS[0]} or me at 0171/2345678, {LABELS[3]} or anna@example.org"
    prompt = schema if isinstance(schema, str) else "Classify."
    asked = CompletionRequest(
        "openai-chat", "m", (ChatMessage("system", (prompt,)), ChatMessage("user", (text,))), "x",
        {"type": "object"} if isinstance(schema, str) else schema, "json-schema",
    )  # fmt: skip
    redactor = Redactor(tuple(BUILT_IN), {})
    for _ in range(2):  # the second time it is known to be clean
        redaction = redactor.begin_call()
        after = redaction.redact_request(asked)
        assert after.schema == asked.schema and after.system == asked.system
        assert after.inputs[0].parts == (f"Call {LABELS[0]} or me at [PHONE_1], {LABELS[3]} or [EMAIL_1]",)
        for label in LABELS:
            answered = redaction.redact_completion(
                Completion({"x": label}, probabilities={"$.x": [(label, 1.0)]})
            )
            assert (answered.value, answered.probabilities) == ({"x": label}, {"$.x": [(label, 1.0)]})
    assert redactor.begin_call().redact_text(LABELS[0]) == "[PHONE_1]"


def test_rows_of_small_numbers_are_no_cards() -> None:
    draw = random.Random(0)
    rows = [" ".join(str(draw.randint(0, 999)) for _ in range(30)) for _ in range(200)]
    assert sum(redacted(row, "credit-card") == row for row in rows) > 160  # Luhn's sum holds by chance


def test_numbers_whose_check_digits_are_wrong_are_none() -> None:
    assert redacted("DE00 3704 0044 0532 0130 00", "iban") == "DE00 3704 0044 0532 0130 00"
    assert redacted("4111 1111 1111 1112", "credit-card") == "4111 1111 1111 1112"


@given(st.text())
def test_any_text_is_redacted_once_and_for_all(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


def test_placeholders_are_the_same_within_a_call() -> None:
    redaction = Redactor(tuple(BUILT_IN), {}).begin_call()
    assert redaction.redact_text("a@b.example, c@d.example, A@B.example") == "[EMAIL_1], [EMAIL_2], [EMAIL_1]"
    quoted = "'a@b.example' -c@d.example- ...A@b.example, o'neil@b.example."
    assert redaction.redact_text(quoted) == "'[EMAIL_1]' -[EMAIL_2]- ...[EMAIL_1], [EMAIL_3]."
    dotted = "192.168.1.11, 192.168.11.1, 192.168.1.11; ab@c.example, a.b@c.example, A.b@c.example"
    assert redacted(dotted) == "[IP_1], [IP_2], [IP_1]; [EMAIL_1], [EMAIL_2], [EMAIL_2]"
    assert redacted("030 90 18 20, (030) 901820") == "[PHONE_1], [PHONE_1]"
    own = Redactor((), {"id": r"\d+-\d+"}).begin_call()
    assert own.redact_text("1-23, 12-3, 1-23") == "[ID_1], [ID_2], [ID_1]"
    assert redaction.redact_json({"from": "c@d.example", "card": 4111111111111111, "ok": True, "n": 3}) == {
        "from": "[EMAIL_2]",
        "card": "[CREDIT-CARD_1]",
        "ok": True,
        "n": 3,
    }


def test_numbers_with_decimals_are_no_telephones() -> None:
    redaction = Redactor(tuple(BUILT_IN), {}).begin_call()
    value = {"logprob": -0.0123456, "share": 0.0123456789, "n": 3.0, "tiny": 1.5e-7}
    assert redaction.redact_json(value) == value
    assert redaction.count == 0
    assert redaction.redact_json(4111111111111111.0) == "[CREDIT-CARD_1]"
    assert redaction.redact_text("Tel.030 901820") == "Tel.[PHONE_1]"


def test_own_patterns_go_first_and_wrong_ones_are_refused() -> None:
    assert (
        Redactor((), {"customer": r"C-\d+"}).begin_call().redact_text("C-17 and C-4")
        == "[CUSTOMER_1] and [CUSTOMER_2]"
    )
    for pattern in ("(", "x*"):
        with pytest.raises(RecipeError, match=r"patterns\.own"):
            read_settings(None, {"patterns": {"own": pattern}}, {})


@pytest.mark.parametrize(
    ("pattern", "private"), [(r"\d+", "123"), ("[A-Z]{3,}", "ABC"), (r"[^\s,]+", "what"), ("M|1", "M")]
)
def test_an_own_pattern_finds_nothing_in_a_placeholder(pattern: str, private: str) -> None:
    """Else a text beyond ASCII, or with a backslash, is redacted otherwise than the quotation from it; and a
    text that is redacted once more, as `label` and `relabel` do, is another one.
    """
    redaction = Redactor(tuple(BUILT_IN), {"num": pattern}).begin_call()
    for text in (private, f"{private}, ü", f"\\\\ {private}", f"{private}, a@b.example", f"é {private} é"):
        once = redaction.redact_text(text)
        assert "[NUM_1]" in once and "[[" not in once and "_[" not in once
        assert redaction.redact_text(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[NUM_123456]", "[NUM_[NUM_1]]"),
        ("[NUM_12", "[NUM_[NUM_1]"),
        ("[NUM_1]5", "[NUM_1][NUM_1]"),
        ("[OTHER_1]", "[OTHER_[NUM_1]]"),
        ("[NUM_A_1]", "[NUM_A_[NUM_1]]"),
    ],
)
def test_what_only_looks_like_a_placeholder_is_redacted(text: str, expected: str) -> None:
    assert Redactor((), {"num": r"\d+"}).begin_call().redact_text(text) == expected


def body_of(text: str, **more: Any) -> dict[str, Any]:
    shape = {"name": "x", "schema": llm_answers.SCHEMA}
    return {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "response_format": {"type": "json_schema", "json_schema": shape},
        **more,
    }


def quoting(seen: Seen) -> Reply:
    """An LLM that says the text back, and its tokens."""
    import json

    text = seen.json()["messages"][-1]["content"]
    tokens = [{"token": each, "logprob": -0.0123456, "top_logprobs": []} for each in text]
    choice = {
        "index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": json.dumps({"quote": text})},
        "logprobs": {"content": tokens},
    }  # fmt: skip
    return Reply([json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()])


def files(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def test_no_key_and_no_redacted_text_is_in_the_store_the_log_or_the_reply_of_status(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    private = [text for texts in PRIVATE.values() for text in texts]
    with upstream_of(quoting) as upstream:
        arguments = ["--upstream", upstream.url, "--store", folder / "calls.sqlite"]
        with mirror_process(*arguments) as mirror:
            for number, text in enumerate(private):
                function = {"name": "x", "description": text, "parameters": {}}
                more = {"user": f"customer-{number}", "metadata": {"a": text}}
                more["tools"] = [{"type": "function", "function": function}]
                sent = body_of(f"call {number}: {text}", **more)
                for path in (CHAT, f"{CHAT}?key={KEY}", f"/v1/{KEY}/chat/completions"):
                    headers = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": KEY}
                    assert mirror.ask(path, sent, headers).status == 200
            mirror.ask(f"/v1/models/{KEY}?x={KEY}", None, {"authorization": f"Bearer {KEY}"})
            status = mirror.ask("/bertsmith/status")
            during = list(files(folder))
            mirror.process.send_signal(signal.SIGTERM)
            assert mirror.process.wait(60) == 0
            log = "".join(mirror.lines).encode()
    haystacks = [*during, *files(folder), log, status.body]
    for needle in [KEY, *private, *(f"customer-{number}" for number in range(len(private)))]:
        for written in (needle.encode(), needle.encode("utf-16-le"), needle.encode("unicode_escape")):
            assert not any(written in haystack for haystack in haystacks), needle
    assert b"[EMAIL_1]" in b"".join(haystacks)
    assert log.count(b'"message":"request"') == 3 * len(private) + 1


def test_tokens_of_an_answer_go_where_anything_was_redacted(tmp_path: Path) -> None:
    with upstream_of(quoting) as upstream, running_mirror(tmp_path, upstream.url) as mirror:
        mirror.ask(CHAT, body_of("a plain text"))
        mirror.ask(CHAT, body_of("me@example.org"))
        plain, private = mirror.calls()
    assert [token for token, *_ in plain.completion.logprobs] == list("a plain text")
    assert private.completion.logprobs is None
    assert private.completion.value == {"quote": "[EMAIL_1]"}
    assert private.request.messages[0].parts == ("[EMAIL_1]",)


@pytest.mark.parametrize(
    "sent",
    [
        {"user": "anna"},
        {"metadata": {"user_id": "anna"}},
        {"safety_identifier": "anna"},
        {"headers": {"x-subject": "anna"}},
    ],
)
def test_a_forgotten_subject_is_gone_from_the_file(
    mirror: RunningMirror, upstream: Upstream, sent: dict[str, Any]
) -> None:
    headers = sent.pop("headers", {})
    for number in range(30):
        mirror.ask(CHAT, body_of(f"the words of anna {number}", **sent), headers)
        mirror.ask(CHAT, body_of(f"the words of bert {number}", user="bert"))
    secret = {
        "messages": [{"role": "system", "content": "anna's own prompt"}, {"role": "user", "content": "x"}]
    }
    mirror.ask(CHAT, body_of("x", **sent) | secret, headers)
    mirror.settle()
    assert mirror.store.forget("anna") == 31
    assert mirror.store.forget("anna") == 0
    written = b"".join(files(mirror.path.parent))
    assert b"of anna" not in written
    assert b"anna's own" not in written
    assert written.count(b"of bert") >= 30
    assert len(mirror.calls()) == 30
    assert mirror.ask(CHAT, body_of("the words of anna again", **sent), headers).status == 200
    assert len(mirror.calls()) == 31


@pytest.mark.parametrize(
    ("sent", "headers", "names"),
    [
        ({"user": 7}, {}, ["7"]),
        ({"user": 7.0}, {}, ["7"]),
        ({"user": 0}, {}, ["0"]),
        ({"metadata": {"user_id": 9}}, {}, ["9"]),
        ({"metadata": {"user": {"id": 12, "name": "anna"}}}, {}, ["12", "anna"]),
        ({"user": ["anna", "bert"]}, {}, ["anna", "bert"]),
        ({"user": "  anna "}, {}, ["anna", "  anna "]),
        ({"user": "Zoe\u0308"}, {}, ["Zo\xeb", "Zoe\u0308"]),
        ({"user": "a", "metadata": {"user": "b", "user_id": "c"}, "safety_identifier": "d"}, {}, [*"abcd"]),
        ({"user": "anna"}, {"x-subject": "bert"}, ["anna", "bert"]),
    ],
)  # fmt: skip
def test_each_subject_of_a_call_deletes_it(
    mirror: RunningMirror, sent: dict[str, Any], headers: dict[str, str], names: list[str]
) -> None:
    for count, name in enumerate(names, 1):
        mirror.ask(CHAT, body_of("the words of somebody", **sent), headers)
        assert len(mirror.calls()) == 1
        assert (mirror.store.forget("nobody"), mirror.store.forget(name)) == (0, 1), name
        assert len(mirror.calls()) == 0, count


def test_what_names_nobody_is_no_subject(mirror: RunningMirror) -> None:
    for sent in ({"user": True}, {"user": None}, {"user": ""}, {"user": {}}, {"metadata": "x"}):
        mirror.ask(CHAT, body_of("the words of somebody", **sent), {"x-subject": " "})
    assert [each.request.subjects for each in mirror.calls()] == [()] * 5


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in PRIVATE for text in PRIVATE[name]])
def test_what_is_private_is_found_in_json_within_a_text(name: str, text: str) -> None:
    """By what `redacted` finds where the text isn't written as JSON."""
    for space in ("\n", "\t", "\r\n", "\u00a0", "\u2028", "\u2013"):
        said = f"Hello,{space}{text}{space}{text}{space}bye"
        expected = said.replace(text, f"[{name.upper()}_1]")
        for is_ascii in (True, False):
            found = redacted(json.dumps({"message": said}, ensure_ascii=is_ascii))
            assert json.loads(found) == {"message": expected}


def test_what_is_escaped_is_the_same_as_what_is_not() -> None:
    redaction = Redactor(tuple(BUILT_IN), {}).begin_call()
    assert (
        redaction.redact_text(r"\u003cj\u00fcrgen@b\u00fccher.example\u003e") == r"\u003c[EMAIL_1]\u003e"
    )  # as Go
    assert redaction.redact_text("jürgen@bücher.example") == "[EMAIL_1]"


def test_labels_and_own_patterns_are_found_in_json_within_a_text() -> None:
    redaction = Redactor(tuple(BUILT_IN), {"path": r"\\temp\\\w+", "customer": r"\bC-\d{4}"}).begin_call()
    schema = {"type": "object", "properties": {"line": {"enum": ["0800 123 4567"]}}}
    said = json.dumps({"text": "one\n0800 123 4567\nC-1234"})
    asked = redaction.redact_request(
        CompletionRequest("p", "m", (ChatMessage("user", (said, r"D:\temp\anna")),), "x", schema, "w")
    )
    assert asked.inputs[0].parts == (json.dumps({"text": "one\n0800 123 4567\n[CUSTOMER_1]"}), "D:[PATH_1]")


def test_a_name_that_is_a_key_of_an_answer_goes_with_the_last_call_that_has_it(tmp_path: Path) -> None:
    """Whatever way a call is deleted; keys that other calls have stay."""
    store = Store(str(tmp_path / "calls.sqlite"))
    for number, (names, subject) in enumerate(
        [(["Anna Meier", "mood"], "anna"), (["Bert Bold"], "bert"), (["mood"], "bert"), (["mood"], "carl")]
    ):
        asked = CompletionRequest(
            "p", "m", (ChatMessage("user", (str(number),)),), "x", {"type": "object"}, "w"
        )
        answered = Completion(dict.fromkeys(names, 1))
        store.add([
            make_call(replace(asked, subjects=(subject,)), answered, NOTHING, source="relay", began=number)
        ])  # fmt: skip
    assert store.forget("anna") == 1
    assert store.versions()[0].fields == (("$.Bert Bold", "integer"), ("$.mood", "integer"))
    assert b"Anna" not in b"".join(files(tmp_path))
    assert store.expire(2.0) == 1
    assert store.versions()[0].fields == (("$.mood", "integer"),)
    store.close()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_subject_beyond_ascii_is_forgotten_by_its_name(mirror: RunningMirror, encoding: str) -> None:
    headers: Any = {"x-subject": "Jürgen Müller".encode(encoding)}
    mirror.ask(CHAT, body_of("the words of Jürgen"), headers)
    mirror.ask(CHAT, body_of("the words of Jürgen again", user="Jürgen Müller"))
    mirror.settle()
    assert mirror.store.forget("Jürgen Müller") == 2


def test_old_calls_go_with_their_bytes(tmp_path: Path, upstream: Upstream) -> None:
    from bertsmith.mirror.recorder import Recorder

    with running_mirror(tmp_path, upstream.url) as mirror:
        mirror.ask(CHAT, body_of("an old text"))
        assert len(mirror.calls()) == 1
        days = 1e-9
        recorder = Recorder(mirror.store, Redactor((), {}), 1000, days)
        recorder.start()
        recorder.close(10)
        assert mirror.store.count() == 0
        assert b"an old text" not in b"".join(files(tmp_path))
