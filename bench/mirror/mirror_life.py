"""A mirror's life on real texts, from the first call to answers of its own: calls saved and agreement by
stage.
Last answer (2026-11-30, Zen 5, CLINC, 2 % noise, two draws): 52.2 and 43.4 % of 6,000 calls answered, 73.8
and 58.0 % of the second half; 4 % of these differ.

    python bench/mirror/mirror_life.py [--data banking77] [--calls 6000] [--epsilon 0.1] [--seed 0]
                                        [--tiers tf-idf] [--steady] [--clinc data_full.json]
                                        [--change joined|split|prompt]

A scripted upstream gives the data set's labels as an LLM's answers, a share of them (--noise, 5 %) replaced
by another label, the same whenever the same text is asked. banking77 has one label of 77 a text, reuters
the 20 most frequent topics as a list, conll the persons and places quoted; --clinc names data_full.json of
CLINC's oos-eval, which isn't part of ../shared/data: 150 intents and texts out of scope. After two thirds of
the calls the prompt changes for one call in ten; after five sixths the world does: pairs of labels change
places. No hand is on the mirror (--auto). Printed for each stage: how many calls it had, who answered, how
many answers differed from the LLM's, which the script knows without asking, and milliseconds of an answer.
Equal seeds give equal tables, but for the milliseconds. With --steady neither prompt nor world changes.
With --change nothing changes but the LLM, once, --change-at that call: whole intents are joined with the
nearest one (`joined`), or half of their texts are (`split`), until a tenth of the answers differ; `prompt` is
`joined` with another prompt, which begins a version. Printed by stretches of 250 calls from 1,000 calls
before: how many are answered, and wrongly.

Printed of all calls and of the second half: the share that is answered, and how many of these answers differ
from the LLM's and from the data set's.
"""

import argparse
import csv
import http.client
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests" / "mirror"
sys.path.insert(0, str(TESTS))

from running_mirror import IN_STEP, Answer, RunningMirror, running_mirror, wait_until  # noqa: E402
from scripted_upstream import Reply, Seen, upstream_of  # noqa: E402

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import end_without  # noqa: E402

DATA = REPOSITORY.parent / "shared" / "data"
PROMPTS = ("Answer for the text.", "Answer for the customer's text, please.")
BLOCK = 25  # calls between two looks at the evidence
_TOPICS = 20  # of reuters
_CHANGED = 0.1  # of the answers, with --change
_STRETCH = 250  # calls of which the coverage is printed, with --change
_SECOND_HALF = ", second half"
_TURNED = 6  # values that change places at the end


@dataclass(frozen=True)
class Asked:
    """Texts with their answers, and the schema of these."""

    schema: Mapping[str, Any]
    rows: Sequence[tuple[str, Mapping[str, Any]]]
    turn: Callable[[Mapping[str, Any]], Mapping[str, Any]]  # the answer after the world has changed
    wrong: Callable[[random.Random, Mapping[str, Any]], Mapping[str, Any]]


def banking77() -> Asked:
    """One of 77 intents."""
    rows = []
    for name in ("train", "test"):
        with (DATA / "banking77" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows += [(row["text"], {"intent": row["category"]}) for row in csv.DictReader(file)]
    labels = sorted({answer["intent"] for _, answer in rows})
    pairs = _pairs([name for name, _ in Counter(answer["intent"] for _, answer in rows).most_common()])
    return Asked(
        _schema({"intent": {"type": "string", "enum": labels}}),
        rows,
        lambda answer: {"intent": pairs.get(answer["intent"], answer["intent"])},
        lambda draw, _: {"intent": draw.choice(labels)},
    )


def clinc(path: Path) -> Asked:
    """One of 150 intents, or none of them."""
    parts = json.loads(path.read_text(encoding="utf-8"))
    rows = [(text, {"intent": label}) for part in parts.values() for text, label in part]
    labels = sorted({answer["intent"] for _, answer in rows})
    return Asked(
        _schema({"intent": {"type": "string", "enum": labels}}),
        rows,
        lambda answer: answer,
        lambda draw, _: {"intent": draw.choice(labels)},
    )


def reuters() -> Asked:
    """Several of the most frequent topics."""
    rows = []
    for name in ("train", "test"):
        with (DATA / "reuters" / f"{name}.jsonl").open(encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
        rows += [(f"{each['title']}\n{each['text'][:600]}", each["topics"]) for each in found]
    counts = Counter(topic for _, topics in rows for topic in topics)
    kept = [name for name, _ in counts.most_common(_TOPICS)]
    pairs = _pairs(kept)
    answers = [(text, {"topics": [each for each in kept if each in topics]}) for text, topics in rows]
    return Asked(
        _schema({"topics": {"type": "array", "items": {"type": "string", "enum": kept}}}),
        answers,
        lambda answer: {
            "topics": sorted((pairs.get(each, each) for each in answer["topics"]), key=kept.index)
        },
        lambda draw, _: {"topics": [draw.choice(kept)]},
    )


def conll() -> Asked:
    """Persons and places, quoted."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    words: list[tuple[str, str]] = []
    for name in ("train", "valid", "test"):
        lines = (DATA / "conll2003" / f"iob2_{name}.txt").read_text(encoding="utf-8").splitlines()
        for line in [*lines, ""]:
            parts = line.split()
            if parts and parts[0] != "-DOCSTART-":
                words.append((parts[0], parts[-1]))
            elif words:
                if len(words) > 3:
                    rows.append((" ".join(word for word, _ in words), _quoted(words)))
                words = []
    return Asked(
        _schema({name: {"type": "array", "items": {"type": "string"}} for name in ("persons", "places")}),
        rows,
        lambda answer: {"persons": answer["places"], "places": answer["persons"]},
        lambda _, answer: {"persons": [], "places": answer["persons"][:1]},
    )


def _quoted(words: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"persons": [], "places": []}
    names = {"PER": "persons", "LOC": "places"}
    open_at = ""
    for word, tag in words:
        kind = names.get(tag[2:], "")
        if kind and tag.startswith("I-") and open_at == kind:
            found[kind][-1] += f" {word}"
        elif kind:
            found[kind].append(word)
        open_at = kind
    return found


def change_labels(asked: Asked, is_split: bool, seed: int) -> dict[str, Mapping[str, Any]]:
    """The new answer by text, where it is another: a tenth of them."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [text for text, _ in asked.rows]
    labels = np.array([answer["intent"] for _, answer in asked.rows])
    x = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(texts)
    names = sorted(set(labels))
    centres = np.stack([np.asarray(x[labels == name].mean(axis=0)).ravel() for name in names])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    changed, draws = dict[str, Mapping[str, Any]](), np.random.default_rng(seed)
    for number in draws.permutation(len(names)):
        if len(changed) >= _CHANGED * len(texts):
            break
        nearness = centres @ centres[number]
        nearness[number] = -1
        other, own = int(nearness.argmax()), np.flatnonzero(labels == names[number])
        if is_split:
            towards = x[own] @ (centres[other] - centres[number])
            own = own[towards > np.median(towards)]
        changed.update((texts[row], {"intent": names[other]}) for row in own)
    return changed


def _pairs(names: Sequence[str]) -> dict[str, str]:
    """The first ones, two by two."""
    some = names[:_TURNED]
    return dict(zip(some[::2], some[1::2], strict=True)) | dict(zip(some[1::2], some[::2], strict=True))


def _schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


SETS = {"banking77": banking77, "reuters": reuters, "conll": conll}


class Llm:
    """The upstream. `has_turned`: the world has changed."""

    def __init__(self, asked: Asked, noise: float, seed: int) -> None:
        self.asked, self.noise, self.seed = asked, noise, seed
        self.by_text = dict(asked.rows)
        self.has_turned = False
        self.changed: Mapping[str, Mapping[str, Any]] = {}

    def answer(self, text: str) -> Mapping[str, Any]:
        """As the LLM gives it."""
        found = self.by_text[text]
        draw = random.Random(f"{self.seed} {text}")
        if draw.random() < self.noise:
            return self.asked.wrong(draw, found)
        if not self.has_turned:
            return found
        return self.changed.get(text, found) if self.changed else self.asked.turn(found)

    def script(self, seen: Seen) -> Reply:
        """A chat completion."""
        text = seen.json()["messages"][-1]["content"]
        message = {"role": "assistant", "content": json.dumps(self.answer(text)), "refusal": None}
        body = {
            "id": "c", "object": "chat.completion", "created": 1, "model": "llm",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 200, "completion_tokens": 12, "total_tokens": 212},
        }  # fmt: skip
        return Reply([json.dumps(body).encode()])


@dataclass
class Counted:
    """Of one stage. `differing` answers are not the LLM's, `wrong` ones not the data set's."""

    calls: int = 0
    answered: int = 0
    differing: int = 0
    wrong: int = 0
    said: Counter[str] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)


def live(mirror: RunningMirror, llm: Llm, arguments: argparse.Namespace) -> list[tuple[str, Counted]]:
    """All calls, one after the other; a row for each stretch in one mode."""
    draw = random.Random(arguments.seed)
    texts = [text for text, _ in llm.asked.rows]
    draw.shuffle(texts)
    rows: list[tuple[str, Counted]] = []
    connection, changes = connect(mirror.port), 0
    if arguments.change:
        llm.changed = change_labels(llm.asked, arguments.change == "split", arguments.seed)
    for number in range(arguments.calls):
        if arguments.change:
            changes = follow_change(mirror, llm, arguments, number, connection, texts[number], rows, changes)
            continue
        changed = not arguments.steady and number >= arguments.calls * 2 // 3 and number % 10 == 0
        llm.has_turned = not arguments.steady and number >= arguments.calls * 5 // 6
        name = mode_of(mirror) + (", the world has changed" if llm.has_turned else "")
        if arguments.steady and number >= arguments.calls // 2:
            name += _SECOND_HALF
        if not rows or rows[-1][0] != name:
            rows.append((name, Counted()))
        text = texts[number % len(texts)]
        answer, took = ask(connection, llm.asked, text, PROMPTS[int(changed)])
        _count(rows[-1][1], answer, llm.answer(text), llm.by_text[text], took)
        wait_until(lambda: mirror.app.relay.audits.waiting == mirror.app.relay.replays.waiting == 0)
        if number % BLOCK == BLOCK - 1:
            connection.close()  # a training takes longer than a mirror keeps an idle one
            mirror.follow()
    return rows


def follow_change(
    mirror: RunningMirror,
    llm: Llm,
    arguments: argparse.Namespace,
    number: int,
    connection: http.client.HTTPConnection,
    text: str,
    rows: list[tuple[str, Counted]],
    changes: int,
) -> int:
    """One call of a life in which the LLM alone changes; returns how many changes of stages are printed."""
    since = number - arguments.change_at
    llm.has_turned = since >= 0
    if number == 0 or (since % _STRETCH == 0 and since >= -4 * _STRETCH):
        rows.append((f"{since:+,} to {since + _STRETCH:+,}", Counted()))
    prompt = PROMPTS[int(arguments.change == "prompt" and since >= 0)]
    answer, took = ask(connection, llm.asked, text, prompt)
    _count(rows[-1][1], answer, llm.answer(text), llm.by_text[text], took)
    wait_until(lambda: mirror.app.relay.audits.waiting == mirror.app.relay.replays.waiting == 0)
    if number % BLOCK == BLOCK - 1:
        connection.close()
        mirror.follow()
        for change in mirror.stages.changes()[changes:]:
            print(f"call {since + 1:+,}: {change.version} {change.mode_before} → {change.mode}: {change.why}")
        changes = len(mirror.stages.changes())
    return changes


def connect(port: int) -> http.client.HTTPConnection:
    """Kept open, as clients do."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def ask(connection: http.client.HTTPConnection, asked: Asked, text: str, prompt: str) -> tuple[Answer, float]:
    """A call's answer, and its milliseconds."""
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked.schema}}
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": text}]
    body = json.dumps({"model": "m", "messages": messages, "response_format": shape})
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    found = connection.getresponse()
    answer = Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
    return answer, (time.perf_counter() - began) * 1000


def mode_of(mirror: RunningMirror) -> str:
    """Of the version that answers most."""
    modes = [each.mode for each in mirror.stages.stages().values()]
    return max(modes, key=("record", "shadow", "canary", "live").index, default="record")


def _count(
    counted: Counted, answer: Any, taught: Mapping[str, Any], truth: Mapping[str, Any], took: float
) -> None:
    header = answer.headers["x-bertsmith"]
    counted.calls += 1
    counted.said[header.partition("reason=")[2] or header.partition(";")[0]] += 1
    if header.startswith("answered"):
        counted.answered += 1
        counted.milliseconds.append(took)
        said = json.loads(answer.json()["choices"][0]["message"]["content"])
        counted.differing += said != taught
        counted.wrong += said != truth


def show(rows: Sequence[tuple[str, Counted]], mirror: RunningMirror) -> None:
    """A Markdown table, and the mirror's own account."""
    print("| stage | calls | answered | of them differ | p50 ms | relayed because |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for name, each in rows:
        differ = f"{each.differing / each.answered:.1%}" if each.answered else ""
        p50 = f"{np.median(each.milliseconds):.1f}" if each.milliseconds else ""
        why = ", ".join(
            f"{reason} {count:,}" for reason, count in each.said.most_common() if reason != "answered"
        )
        print(f"| {name} | {each.calls:,} | {each.answered:,} | {differ} | {p50} | {why} |")
    calls, answered = (sum(getattr(each, name) for _, each in rows) for name in ("calls", "answered"))
    audits = sum(mirror.stages.audit_outcomes().values())
    print(
        f"\n{answered:,} of {calls:,} calls answered, {audits:,} of them audited: "
        f"{answered - audits:,} saved."
    )
    halves = [each for name, each in rows if name.endswith(_SECOND_HALF)]
    for name, part in (("all calls", [each for _, each in rows]), ("the second half", halves)):
        count, own, differing, wrong = (
            sum(getattr(each, what) for each in part) for what in ("calls", "answered", "differing", "wrong")
        )
        if own:
            print(
                f"Of {name} {own / count:.1%} are answered: {differing / own:.1%} of these differ, "
                f"{wrong / own:.1%} are wrong."
            )
    for change in mirror.stages.changes():
        print(f"{change.version}: {change.mode_before} → {change.mode} by {change.by}: {change.why}")
    for each in mirror.stages.trainings().values():
        print(f"{each.version}: last training on {each.calls:,} calls: {each.outcome}")


def main() -> None:
    """Parses, lives, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", choices=SETS, default="banking77")
    parser.add_argument("--clinc", type=Path, help="CLINC's data_full.json, in place of --data")
    parser.add_argument("--steady", action="store_true", help="neither prompt nor world changes")
    parser.add_argument("--change", choices=("joined", "split", "prompt"))
    parser.add_argument("--change-at", type=int, default=4000)
    parser.add_argument("--calls", type=int, default=6000)
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--train-after", type=int, default=1500)
    parser.add_argument("--audit-share", type=float, default=0.1)
    parser.add_argument("--tiers", default="tf-idf,encoder")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not DATA.is_dir():
        end_without(arguments.data)
    asked = SETS[arguments.data]() if arguments.clinc is None else clinc(arguments.clinc)
    llm = Llm(asked, arguments.noise, arguments.seed)
    with tempfile.TemporaryDirectory() as folder, upstream_of(llm.script) as upstream:
        settings: dict[str, Any] = {
            "auto": True, "epsilon": arguments.epsilon, "train_after": arguments.train_after,
            "audit_share": arguments.audit_share, "seed": arguments.seed,
            "students": str(Path(folder) / "students"), "train_options": ("--tiers", arguments.tiers),
        }  # fmt: skip
        with running_mirror(Path(folder), upstream.url, IN_STEP, **settings) as mirror:
            show(live(mirror, llm, arguments), mirror)


if __name__ == "__main__":
    main()
