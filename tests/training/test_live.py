"""The live view shows the right numbers, fits its terminal, costs next to nothing and is plain in a file."""

import io
import math
import re
import time

import pytest
from rich.console import Console

from bertsmith.training.log import Record
from bertsmith.training.observer import LiveView

FACTS = {"model": "BERT-mini, 11.2 M parameters", "corpus": "pydocs", "device": "CPU, 2 cores"}


def step(number: int, **values: object) -> Record:
    record: Record = {
        "kind": "step",
        "step": number,
        "mlm_loss": 4.0 + 6.0 / number,
        "nsp_loss": 0.5,
        "learning_rate": 1e-4,
        "gradient_norm": 1.5,
        "tokens": 4000 * number,
        "tokens_per_second": 17512.0,
        "mfu": 0.634,
        "elapsed": 0.5 * number,
    }
    return record | values


def evaluation(number: int, **values: object) -> Record:
    return {
        "kind": "evaluation",
        "step": number,
        "mlm_loss": 4.2,
        "mlm_perplexity": 66.686,
        "mlm_accuracy": 0.2164,
        "nsp_accuracy": 0.875,
    } | values


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        force_interactive=True,
        color_system=None,
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_picture(console: Console) -> list[str]:
    """The last panel drawn, line by line."""
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console)).splitlines()
    return lines[max(number for number, line in enumerate(lines) if "╭" in line) :]


def test_the_picture_shows_the_numbers_of_the_records() -> None:
    console = terminal()
    with LiveView(console, "Pre-training", facts=FACTS, total_steps=400) as view:
        for number in range(1, 101):
            view.show(step(number))
        view.show(evaluation(100))
        view.show({"kind": "checkpoint", "step": 100})
        view.show({"kind": "phase", "step": 101, "sequence_length": 512})
        view.show({"kind": "warning", "step": 101, "message": "loss spike"})
    picture = "\n".join(last_picture(console))
    for expected in (
        *("Pre-training", "BERT-mini, 11.2 M parameters · pydocs · CPU, 2 cores", "step 100 of 400", " 25%"),
        *("50 s", "checkpoint 100", "4.067", "0.500", "1.00e-04", "17,512", "63.4 %", "400 k"),
        *("21.6 %", "66.7", "87.5 %", "512", "loss spike", "●"),
    ):
        assert expected in picture, expected


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 12), (20, 5), (200, 60)])
def test_the_picture_keeps_to_the_terminal(width: int, height: int) -> None:
    console = terminal(width, height)
    with LiveView(console, "Pre-training", facts=FACTS, total_seconds=300.0) as view:
        for number in range(1, 200):
            view.show(step(number))
        view.message("a sentence that is longer than a narrow terminal is wide, " * 4)
        view.show(evaluation(199))
    picture = [line for line in last_picture(console) if line.strip()]
    assert max(len(line) for line in picture) <= width
    if height >= 24:
        assert len(picture) < height
    assert ("●" in "".join(picture)) == (height >= 24)


def test_without_next_sentence_prediction_nothing_is_said_about_it() -> None:
    console = terminal()
    with LiveView(console, "Pre-training") as view:
        record = step(1)
        del record["nsp_loss"]
        view.show(record)
    assert "NSP" not in "\n".join(last_picture(console))


def test_general_text_stands_beside_the_corpus_s_own_where_it_is_measured() -> None:
    console = terminal()
    with LiveView(console, "Pre-training") as view:
        view.show(step(1))
        view.show(evaluation(1))
        assert "general" not in "\n".join(last_picture(console))
        view.show(evaluation(2, general_mlm_loss=5.4321, general_mlm_accuracy=0.3456))
    assert re.search(r"general MLM +34\.6 %", "\n".join(last_picture(console)))


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_dash_and_no_crash(loss: float | None) -> None:
    console = terminal()
    with LiveView(console, "Pre-training", total_steps=2) as view:
        view.show(step(1, mlm_loss=loss, gradient_norm=loss))
        view.show(evaluation(1, mlm_loss=loss, mlm_perplexity=loss, mlm_accuracy=None))
    assert "–" in "\n".join(last_picture(console))


def test_a_metric_that_is_not_finite_is_a_dash_and_no_crash() -> None:
    """As the log returns MAP and MRR where no query of dev has a relevant candidate."""
    picture, lines = terminal(), Console(file=io.StringIO(), width=80)
    for console in (picture, lines):
        with LiveView(console, "Fine-tuning", total_steps=2) as view:
            view.show({"kind": "step", "step": 1, "loss": 0.5, "elapsed": 1.0})
            view.show({"kind": "evaluation", "step": 1, "elapsed": 1.0, "map": None, "mrr": 0.5})
    shown = " ".join("\n".join(last_picture(picture)).split())
    assert "map –" in shown and "mrr 0.5000" in shown
    assert "dev at step 1 | map – | mrr 0.5000" in written(lines).splitlines()


def test_a_resumed_run_continues_its_curve() -> None:
    view = LiveView(terminal(), "Pre-training", total_steps=200, earlier=[step(1), evaluation(1)])
    view.show(step(2))
    assert [x for x, _ in view.state.training_loss.points()] == [1.0, 2.0]
    assert view.state.evaluation["step"] == 1


def test_it_draws_at_most_four_times_a_second_and_costs_microseconds_between() -> None:
    console, records = terminal(), [step(number) for number in range(1, 20_001)]
    start = time.process_time()
    began = time.monotonic()
    with LiveView(console, "Pre-training", total_steps=20_000) as view:
        for record in records:
            view.show(record)
    seconds = time.monotonic() - began
    assert written(console).count("╭") <= 2 + 4 * seconds + 1
    assert (time.process_time() - start) / len(records) < 200e-6  # about 10 on a quiet core


def test_a_file_gets_plain_lines_at_intervals_and_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("bertsmith.training.observer.time.monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=80)
    with LiveView(console, "Pre-training", facts=FACTS, total_seconds=60.0, line_interval=10.0) as view:
        for number in range(1, 101):
            clock[0] += 0.5
            view.show(step(number))
        view.show(evaluation(100))
    lines = written(console).splitlines()
    assert lines[0] == "Pre-training | BERT-mini, 11.2 M parameters | pydocs | CPU, 2 cores"
    assert [line.split(" | ")[0] for line in lines[1:]] == [
        *("step 2", "step 22", "step 42", "step 62", "step 82", "held out at step 100", "step 100")
    ]
    assert lines[2] == (
        "step 22 | MLM loss 4.657 | learning rate 1.00e-04 | 17,512 tokens/s | 63.4 % of peak"
        " | 11 s spent | 49 s left"
    )
    assert lines[-2] == (
        "held out at step 100 | MLM loss 4.200 | perplexity 66.7 | accuracy 21.6 % | NSP accuracy 87.5 %"
    )
    assert "\x1b" not in written(console)


def test_a_long_evaluation_says_how_far_it_is_and_a_short_one_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("bertsmith.training.observer.time.monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=80)
    with LiveView(console, "Fine-tuning", line_interval=10.0) as view:
        for seconds in (5, 30):
            for done in range(1, 61):
                clock[0] += seconds / 60
                view.evaluating(100 * done, 6000, "tokens")
            view.show(evaluation(seconds))
    lines = [line.split(" | ")[0] for line in written(console).splitlines()[1:]]
    assert lines == [
        "held out at step 5",
        "evaluating on dev: 2,100 / 6,000 tokens",
        "evaluating on dev: 4,100 / 6,000 tokens",
        "held out at step 30",
    ]


def test_the_picture_shows_how_far_an_evaluation_is_until_it_is_over() -> None:
    console = terminal()
    with LiveView(console, "Fine-tuning") as view:
        view.evaluating(100, 6000, "tokens")
        view.message("a sentence")
        assert any("evaluating on dev: 100 / 6,000 tokens" in line for line in last_picture(console))
        view.show(evaluation(5))
        assert not any("evaluating" in line for line in last_picture(console))


def test_escape_codes_in_a_message_do_not_reach_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=80)
    with LiveView(console, "Pre-training") as view:
        view.message("a\x1b[2Jb\x07[red]c[/red]")
    assert "a [2Jb [red]c[/red]" in written(console)


def test_a_terminal_without_unicode_gets_plain_lines() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, force_terminal=True, force_interactive=True, width=80)
    with LiveView(console, "Pre-training · mini") as view:
        view.show(step(1))
    file.flush()
    assert b"Pre-training ? mini" in file.buffer.getvalue()  # type: ignore[attr-defined]


def test_an_error_in_the_run_leaves_the_last_picture_and_passes_on() -> None:
    console = terminal()
    with (
        pytest.raises(ValueError, match="from the run"),
        LiveView(console, "Pre-training", total_steps=9) as view,
    ):
        view.show(step(7))
        raise ValueError("from the run")
    assert "step 7 of 9" in "\n".join(last_picture(console))
