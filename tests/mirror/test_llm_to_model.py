"""The tutorial "From an LLM call to your own model", followed as it stands, but for the LLM."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import test_life
from running_mirror import ask, mirror_process, wait_until
from scripted_upstream import upstream_of

from bertsmith.cli.main import main
from test_documented_commands import commands
from test_tutorials import BLOCK, DOCS

PAGE = "llm-to-model.md"


@pytest.mark.slow
def test_the_tutorial_ends_with_a_model_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai", reason="needs OpenAI's client")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-tutorial")
    monkeypatch.setattr(test_life, "NOISE", 0.01)
    world = test_life.World(5)
    (tmp_path / "messages.txt").write_text("\n".join(world.message()[1] for _ in range(1250)))
    with upstream_of(world.script) as upstream:
        follow(upstream.url, capsys)
        asked = len(upstream.seen)
    # Of the last 100 calls the LLM was asked few: 1151 were its own before.
    assert 1151 <= asked < 1200


def follow(upstream: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block by what it is."""
    blocks = BLOCK.findall((DOCS / PAGE).read_text(encoding="utf-8"))
    serving = next(text.split() for language, _, text in blocks if language == "sh" and "serve" in text)
    given = [upstream + "/v1" if each.startswith("https://") else each for each in serving[3:]]
    names, printed = dict[str, Any](), ""
    with mirror_process(*given) as mirror:
        for language, _, text in blocks:
            if language == "python":
                exec(compile(text.replace("8100", str(mirror.port)), PAGE, "exec"), names)
                wait_until(lambda: is_idle(ask(mirror.port, "/bertsmith/status").json()))
            elif language == "text":
                assert text.strip() in printed
            elif not language:
                for words in commands(f"```\n{text}```"):
                    assert main(words) == 0, words
                    follow_mode(mirror.port, words)
            printed += capsys.readouterr().out
        state = ask(mirror.port, "/bertsmith/state").json()
    assert re.search(r"^ *calls +1,001 *$", printed, re.MULTILINE)  # as `mirror understand` counts them
    assert "«text»" in printed
    answered = int(printed.rpartition(" of 100 answered by the student")[0].split()[-1])
    assert answered > 60
    (version,) = state["versions"]
    assert (version["site"], version["stage"]["mode"]) == ("intents", "live")
    (account,) = state["answering"]
    assert account["compared"] > 100
    assert state["learned"][version["version"]]["curve"]["forecast"].endswith(".")
    assert [each["mode"] for each in state["changes"]] == ["shadow", "canary", "live"]


def is_idle(status: dict[str, Any]) -> bool:
    """All that was asked is stored."""
    return status["under_way"] == 0 and status["waiting"] == 0


def follow_mode(port: int, words: list[str]) -> None:
    """The page says "within a second or two": the next block comes when the mirror has followed."""
    if words[:2] != ["mirror", "promote"]:
        return
    if "--student" in words:
        time.sleep(3)
    else:
        wait_until(lambda: ask(port, "/bertsmith/status").json()["answering"])
    time.sleep(1.5)
