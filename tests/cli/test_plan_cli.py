"""`bertsmith plan` as people and scripts see it."""

import json

import pytest

from bertsmith.cli.main import main


def test_the_page_says_hours_cost_memory_and_what_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "bert-base", "--hardware", "a100-80", "--gpus", "2", "--price-per-hour", "1.5"]) == 0
    out = capsys.readouterr().out
    page = " ".join(out.split())
    assert "1,000,000: 900,000 of 128 tokens, 100,000 of 512 tokens" in page
    assert "42.6 G" in page
    assert "2 x NVIDIA A100 SXM 80 GB" in page
    assert "weights 440.4 MB, gradients 440.4 MB, moments 880.9 MB" in page
    for part in ("encoder layers", "attention", "vocabulary", "optimiser", "exchange of gradients"):
        assert part in out
    assert "40% (1024: NVIDIA's BERT-large" in page
    assert "Note: The recipe names no tokenizer" in out


def test_each_remark_is_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    def lines(*overrides: str) -> dict[str, str]:
        assert main(["plan", "bert-base", "--hardware", "h100", *overrides]) == 0
        return {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}

    by_steps, by_hours = lines(), lines("hours=2", "optimizer.warmup=0.01")
    assert by_steps["time"].count(" to ") == 1
    assert by_steps["tokens"].count(" to ") == 0
    assert by_hours["time"].split()[1:] == ["2.0", "hours,", "as", "asked", "for"]
    assert by_hours["tokens"].count(" to ") == 1


def test_json_holds_the_same_and_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--hardware", "h100", "--price-per-hour", "2", "--json", "steps=1000", "optimizer.warmup=10"]
    assert main(["plan", "bert-base", *arguments]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["steps"] == said["recipe"]["steps"] == 1000
    assert said["hours"] == pytest.approx(sum(part["seconds"] for part in said["parts"]) / 3600)
    assert said["cost"] == pytest.approx(2 * said["hours"])
    assert said["flops"] == pytest.approx(sum(part["flops"] for part in said["parts"]))
    memory = said["memory"]
    assert memory["total"] == sum(value for name, value in memory.items() if name != "total")


def test_what_does_not_fit_is_a_warning_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "bert-large", "--hardware", "l4"]) == 0
    page = capsys.readouterr().out
    assert "Where the hours go" in page
    assert "Warning: This does not fit" in page
    assert "data.micro_batch_tokens=" in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bert-base", "--hardware", "h1oo"], "Did you mean 'h100'?"),
        (["bert-basis", "--hardware", "h100"], "Did you mean 'bert-base'?"),
        (["bert-base", "modell.size=tiny", "--hardware", "h100"], "unknown key"),
        (["bert-base", "--hours", "2"], "Settings are given without dashes: hours=VALUE."),
        (
            ["bert-base", "--hardware", "h100", "--gpus", "-1"],
            "gpus must be a whole number from 1 on, found -1",
        ),
    ],
)
def test_bad_input_gets_a_sentence_and_status_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""
