"""Every call in exactly one place: a mirror's whole life, drawn from a seed and played by clients, and after
each phase of it `status`, the proof and the report say what a second count says (second_count.py).

    import → record → stop, start → import the application's own log → relabel → train → shadow → canary →
    live → the prompt is edited → stop, start → import the log once more → merge (→ train) → stop
"""

import http.client
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import llm_answers
import pytest
from llm_answers import SCHEMA
from mirrored_calls import FILLERS
from running_mirror import IN_STEP, MirrorProcess, RunningMirror, mirror_process, running_mirror, wait_until
from scripted_upstream import Reply as Sent
from scripted_upstream import Seen, upstream_of
from second_count import ClientCall, Journal, Reply, SecondCount

from bertsmith.cli.main import main

NOBODY = "http://127.0.0.1:1"
PROMPTS = ["Which intent has the message?", "Say the intent, briefly."]
SIGNS = [["card", "visa"], ["transfer", "wire"], ["hello", "there"]]
PRICES = {"million_in": 250_000.0, "million_out": 2_000_000.0}
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "systemone": "/systemone",
}
# Words of a text, and what becomes of the call. Those of AWAY go to the site that no student answers: an
# audit would ask an LLM that is away for minutes.
AWAY = ["e500", "silent", "hasty"]
ODD = ["e400", "e429", "e499", "refusal", "truncated", "cut", "noschema"]
_SPOILT = {  # of a whole answer, in the words of each API
    "refusal": [
        (b'"refusal":null', b'"refusal":"No."'),
        (b'"type":"output_text","text"', b'"type":"refusal","refusal"'),
        (b'"stop_reason":"end_turn"', b'"stop_reason":"refusal"'),
    ],
    "truncated": [
        (b'"finish_reason":"stop"', b'"finish_reason":"length"'),
        (
            b'"status":"completed","output"',
            b'"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output"',
        ),
        (b'"stop_reason":"end_turn"', b'"stop_reason":"max_tokens"'),
    ],
}


def request_of(protocol: str, prompt: str, text: str, is_stream: bool) -> dict[str, Any]:
    """In the words of one API; without a schema where the text says so."""
    body: dict[str, Any] = {"model": "m", "stream": is_stream}
    user = {"role": "user", "content": text}
    described = {"type": "json_schema", "name": "message", "schema": SCHEMA}
    if protocol == "openai-chat":
        body |= {"messages": [{"role": "system", "content": prompt}, user]}
        schema = {"response_format": {"type": "json_schema", "json_schema": described}}
    elif protocol == "openai-responses":
        body |= {"instructions": prompt, "input": text}
        schema = {"text": {"format": described}}
    else:
        body |= {"system": prompt, "max_tokens": 99, "messages": [user]}
        schema = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    return body if "noschema" in text else body | schema


class Life:
    """Of one mirror whose main site speaks `protocol`, beside a site named tone. `read` gives what has been
    printed since the last time.
    """

    mirror: Any
    site: str  # the main one
    version: str  # its first

    def __init__(self, folder: Path, seed: int, protocol: str, read: Callable[[], str]) -> None:
        self.folder, self.store = folder, folder / "mirror.sqlite"
        self.draw, self.protocol, self.read = random.Random(seed), protocol, read
        self.journal, self.numbers, self.logged = Journal(), itertools.count(1), set[str]()
        self.texts, self.failed_once = list[str](), set[bytes]()
        self.url, self.running = "", ExitStack()  # the LLM's, and the mirror
        self.is_moody = False  # the LLM gives every third question of a command no usable answer
        self.config = folder / "mirror.toml"
        prices = "million_input_tokens = {million_in}\nmillion_output_tokens = {million_out}\n"
        self.config.write_text(f"seed = 7\nanswer_seconds = 30\n[prices]\n{prices.format(**PRICES)}")

    # -- the LLM -------------------------------------------------------------------------------------------

    def answer(self, seen: Seen) -> Sent:
        """As the word in the text has it; another time a busy LLM answers, and doesn't break off."""
        number, text = seen.headers.get("x-number", ""), seen.body.decode()
        sent = llm_answers.script(seen)
        status = next((each for each in (400, 429, 499, 500) if f"e{each}" in text), 200)
        spoilt = next((each for each in _SPOILT if each in text), "")
        if self.is_moody and not number and len(self.journal.asked) % 3 == 0:
            spoilt = "refusal"
        if seen.body not in self.failed_once:
            if status != 200:
                sent = Sent([b'{"error":{"message":"No."}}'], status)
            elif "cut" in text and sent.is_stream:
                sent.pieces, sent.cut = sent.pieces[:3], True
            self.failed_once |= {seen.body} if status == 429 or sent.cut else set()
        for old, new in () if sent.is_stream else _SPOILT.get(spoilt, ()):
            sent.pieces = [sent.pieces[0].replace(old, new)]
        sent.silent, sent.wait = "silent" in text, 10.0 if "hasty" in text else 0.0
        self.journal.asked.append((number, Reply(sent.status, b"".join(sent.pieces), sent.cut)))
        return sent

    # -- its clients ---------------------------------------------------------------------------------------

    def text(self) -> str:
        """New, or one that came before; in some, word and intent don't go together."""
        if self.texts and self.draw.random() < 0.15:
            return self.draw.choice(self.texts)
        words = [*self.draw.choice(SIGNS), *self.draw.choices(FILLERS, k=2), f"n{len(self.texts)}"]
        words += ["cardboard"] if self.draw.random() < 0.1 else []
        self.draw.shuffle(words)
        self.texts.append(" ".join(words))
        return self.texts[-1]

    def send(self, odd: str = "", *, prompt: int = 0, tone: bool = False, protocol: str = "") -> None:
        """A call; one that a busy LLM sends away is made once more."""
        protocol = protocol or ("anthropic" if tone else self.protocol)
        is_stream = odd == "cut" or (odd not in _SPOILT and self.draw.random() < 0.3)
        request = request_of(protocol, PROMPTS[prompt], f"{self.text()} {odd}".strip(), is_stream)
        headers = {"content-type": "application/json", "authorization": "Bearer k"}
        headers |= {"x-bertsmith-site": "tone"} if tone else {}
        for _ in range(2):
            call = ClientCall(str(next(self.numbers)), protocol, PATHS[protocol], request, time.time())
            call = self._ask(call, headers | {"x-number": call.number}, is_hasty=odd == "hasty")
            self.journal.calls.append(call)
            if call.reply is None or call.reply.status != 429:
                break

    def _ask(self, call: ClientCall, headers: Mapping[str, str], *, is_hasty: bool) -> ClientCall:
        """With what came of it. Who is hasty doesn't wait for an answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.mirror.port, timeout=60)) as connection:
            connection.request("POST", call.path, json.dumps(call.request), dict(headers))
            if is_hasty:
                time.sleep(0.1)
                return call
            response, is_cut = connection.getresponse(), False
            try:
                body = response.read()
            except http.client.IncompleteRead as error:
                body, is_cut = error.partial, True
        header = response.getheader("x-bertsmith") or ""
        return replace(call, header=header, reply=Reply(response.status, body, is_cut))

    # -- the mirror ----------------------------------------------------------------------------------------

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """All that clients saw is stored or counted, and a promotion followed."""
        raise NotImplementedError

    def command(self, *arguments: object) -> str:
        """What it prints."""
        self.read()
        assert main(["mirror", *map(str, arguments), "--store", str(self.store)]) == 0
        return self.read()

    def status(self) -> Any:
        return json.loads(self.command("status", "--json", "--config", self.config))

    def differences(self) -> dict[Any, Any]:
        return SecondCount(self.journal, self.store).differences(self.status(), **PRICES)

    def agree(self) -> None:
        """Here every call is looked for."""
        self.settle()
        assert self.differences() == {}

    def restart(self) -> None:
        """All that was counted is there without the mirror."""
        self.settle()
        self.stop()
        assert self.differences() == {}
        self.start()

    # -- phases --------------------------------------------------------------------------------------------

    def import_lines(self, name: str, lines: list[dict[str, Any]], new: int, known: int) -> None:
        """And what the command says of it."""
        file = self.folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        said = re.search(r"new calls\s+(\d+)\s+known before\s+(\d+)", self.command("import", file))
        assert said and (int(said[1]), int(said[2])) == (new, known)

    def import_old_log(self, count: int) -> None:
        """Of the time before the mirror; some lines twice, some without a schema."""
        lines = []
        for number in range(count):
            body = request_of(self.protocol, PROMPTS[0], self.text(), False)
            path = PATHS[self.protocol]
            sent = llm_answers.script(Seen("POST", path, {}, json.dumps(body).encode())).pieces[0]
            when = time.time() - 90_000 + number
            lines.append({"request": body, "response": json.loads(sent), "time": when, "endpoint": path})
            self.journal.imported[Reply(200, sent).id] = Reply(200, sent).value
        schemaless = [
            line | {"request": request_of(self.protocol, PROMPTS[0], "noschema", False)} for line in lines[:3]
        ]
        self.journal.passed[self.protocol, "no-schema"] += 3
        self.import_lines("old", [*lines, *lines[:5], *schemaless], count, 5)
        self.import_lines("old", [*lines, *schemaless], 0, count)
        ((self.version, self.site),) = SecondCount(self.journal, self.store).site_of.items()

    def import_own_log(self) -> None:
        """The application's, of all calls that went through the mirror: each is known, or not mirrored."""
        self.settle()
        lines, known = [], 0
        for call in self.journal.calls:
            if call.reply is None or call.reply.status != 200 or call.request["stream"]:
                continue
            response = json.loads(call.reply.body)
            lines.append(
                {"request": call.request, "response": response, "time": call.began, "endpoint": call.path}
            )
            why = "student-answer" if call.by == "answered" else call.not_mirrored
            known += not why
            if why and call.number not in self.logged:
                self.journal.passed[call.protocol, why] += 1
            self.logged.add(call.number)
        self.import_lines("own", lines, 0, known)

    def record(self, count: int) -> None:
        """Calls of both sites, and whatever an LLM, a client or an address does beside them."""
        for number, odd in zip(range(count), _every_other(ODD)):
            self.send(odd)
            if number % 4 == 0:
                self.send(self.draw.choice(["", *AWAY]), tone=True)
        for odd in AWAY:
            self.send(odd, tone=True)
        self.send(protocol="systemone")  # whose upstream is down

    def relabel(self) -> None:
        """Every third answer is unusable, and all are paid for: 11 tokens read, 7 written."""
        before, self.is_moody = len(self.journal.asked), True
        base = self.url if self.protocol == "anthropic" else f"{self.url}/v1"
        prices = "--input-price", 1000, "--output-price", 2000
        printed = self.command("relabel", self.site, "--upstream", base, "--count", 9, *prices)
        self.is_moody = False
        replies = [reply for _, reply in self.journal.asked[before:] if reply.status == 200]
        usable = sum(not reply.unusable for reply in replies)
        said = re.search(r"new calls\s+(\d+)\s+known before\s+0\s+cost\s+([\d.]+)", printed)
        assert said and int(said[1]) == usable < len(replies) == 9
        assert float(said[2]) == pytest.approx(9 * (11 * 1000 + 7 * 2000) / 1e6)
        assert sum(map(int, re.findall(r"(?:refusal|truncated)\s+(\d+)", printed))) == 9 - usable

    def train(self, name: str) -> dict[str, Any]:
        """What the student's file and report say of its calls is what they were used for."""
        out, settings = self.folder / name, ("--epsilon", 0.4, "--tiers", "tf-idf")
        self.command("train", "--version", self.version, *settings, "--out", out)
        file, report = json.loads((out / "student.json").read_text()), (out / "report.html").read_text()
        count = SecondCount(self.journal, self.store)
        uses = count.training(self.version, max(count.uses, key=lambda use: use["at"])["training"])
        assert (uses["proving twice"], uses["texts in both"]) == (0, 0)
        assert (uses["calls"], uses["texts"]) == (file["trained_on"]["calls"], file["trained_on"]["texts"])
        assert uses["proving"] == file["calibration"]["calls"] == file["claims"]["whole"]["calls"]
        tiles = {name: value for value, name in re.findall("<b>([^<]*)</b><span>([^<]*)</span>", report)}
        assert tiles["calls learned from"] == str(uses["calls"])
        assert tiles["calls kept for the proof"] == str(uses["proving"])
        return uses

    def merge(self) -> None:
        """The two versions of the main site, with all their calls."""
        count = SecondCount(self.journal, self.store)
        both = [each for each, of in count.site_of.items() if of == self.site]
        said = self.command("merge", self.site, *both)
        calls = sum(row["version"] in both for row in count.rows)
        assert len(both) == 2 and f"with {calls} calls" in " ".join(said.split())

    def promote(self, *options: object) -> None:
        """By one mode; the mirror has followed."""
        self.command("promote", self.site, *options)
        self.settle()


class LifeHere(Life):
    """Its mirror runs in this process, in step with its clients."""

    mirror: RunningMirror

    def start(self) -> None:
        given = {"systemone_base_url": NOBODY, "audit_share": 0.5, "seed": 7, "answer_seconds": 30}
        self.mirror = self.running.enter_context(running_mirror(self.folder, self.url, IN_STEP, **given))

    def stop(self) -> None:
        self.running.close()

    def settle(self) -> None:
        self.mirror.follow()


class LifeApart(Life):
    """Its mirror is a process of its own, which follows a promotion within two seconds."""

    mirror: MirrorProcess

    def start(self) -> None:
        arguments = (
            "--upstream", self.url, "--systemone-base-url", NOBODY, "--store", self.store,
            "--audit-share", 0.5, "--drain-seconds", 5, "--config", self.config,
        )  # fmt: skip
        self.mirror = self.running.enter_context(mirror_process(*arguments))

    def stop(self) -> None:
        self.mirror.process.terminate()
        self.mirror.process.wait()
        self.running.close()

    def restart(self) -> None:
        """By kill -9 too."""
        self.settle()
        self.mirror.process.kill()
        self.mirror.process.wait()
        self.running.close()
        assert self.differences() == {}
        self.start()
        self.send()
        super().restart()

    def settle(self) -> None:
        time.sleep(2.5)
        with suppress(AssertionError):  # which `agree` then tells more of
            wait_until(lambda: not self.differences(), 20)


def play(life: Life, before: int, recorded: int, served: int, *, trains_again: bool = False) -> None:
    """`before` calls of an old log, `recorded` ones beside them, `served` in each mode of a student."""
    with upstream_of(life.answer) as upstream, life.running:
        life.url = upstream.url
        life.import_old_log(before)
        life.start()
        life.record(recorded)
        life.restart()
        life.import_own_log()
        life.relabel()
        assert life.train("first")["without a use"] == 0
        life.agree()
        # Shadow, canary, live.
        for options in (["--student", life.folder / "first"], ["--share", 0.5], []):
            life.promote(*options)
            for odd in itertools.islice(_every_other(ODD), served):
                life.send(odd)
            life.agree()
        for number in range(served // 2):
            life.send(prompt=number % 2)
        life.restart()
        life.send()
        life.import_own_log()
        life.merge()
        if trains_again:
            life.train("second")
        life.send(prompt=1)
        life.settle()
        life.stop()
        assert life.differences() == {}
    assert {call.by for call in life.journal.calls} == {"", "recorded", "relayed", "answered", "passthrough"}
    outcomes = SecondCount(life.journal, life.store).audit_outcomes(life.site)
    assert set(outcomes) == {"agrees", "differs", "failed", "void"}  # else it tried little


def _every_other(odd: Sequence[str]) -> Iterator[str]:
    """These words with none between them, and then none."""
    for each in odd:
        yield from ("", each)
    yield from itertools.repeat("")


def test_every_call_is_in_one_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    life = LifeHere(tmp_path, 1, "openai-chat", lambda: capsys.readouterr().out)
    play(life, before=130, recorded=15, served=13)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses", "anthropic"])
def test_every_call_is_in_one_place_whatever_dies(
    protocol: str, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    life = LifeApart(tmp_path, seed, protocol, lambda: capsys.readouterr().out)
    play(life, before=150, recorded=150, served=50, trains_again=True)
