"""The loop: the loss is one number however a batch is divided, and phases, signals and times are kept."""

import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from toy_task import ToyTask

from bertsmith.data.batch import Sequences, split
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.model.config import make_config
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.gradients import dropout_seed
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop, is_due
from bertsmith.training.machine import Ranks

NewLoop = Callable[..., Loop]
Gradients = dict[str, torch.Tensor]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(195))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return Tokenizer.load(path)


@pytest.fixture
def task(tokenizer: Tokenizer) -> PretrainingTask:
    """BERT with both losses, no dropout, and no text: the test gives it batches."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = PretrainingModel(make_config({"vocab_size": len(PIECES), **shape, **dropout}, "the test"))
    store = SimpleNamespace(tokens=np.arange(5, len(PIECES)))
    streams: Any = [SimpleNamespace(tokenizer=tokenizer, store=store)]
    masker = Masker(tokenizer, MaskingRates())
    return PretrainingTask(model, streams, masker, None, 0, torch.device("cpu"))


def batch_of(lengths: list[int], tokenizer: Tokenizer) -> Sequences:
    """Sequences of random words: [CLS] … [SEP], a next sentence or a random one by chance."""
    draw, total = np.random.default_rng(len(lengths)), sum(lengths)
    token_ids = draw.integers(5, len(PIECES), total)
    ends = np.cumsum(lengths)
    token_ids[ends - lengths], token_ids[ends - 1] = tokenizer.cls_id, tokenizer.sep_id
    keys = draw.integers(0, 2**64, len(lengths), np.uint64)
    labels = draw.integers(0, 2, len(lengths))
    return Sequences(token_ids, np.zeros(total, np.int64), np.array(lengths), keys, labels)


def test_one_times_32_sequences_is_four_times_8(
    task: PretrainingTask, tokenizer: Tokenizer, tmp_path: Path, new_loop: NewLoop
) -> None:
    batch = batch_of([16] * 32, tokenizer)
    assert [len(part) for part in split(batch, 1, 4 * 128)[0]] == [32]
    assert [len(part) for part in split(batch, 1, 128)[0]] == [8, 8, 8, 8]
    loop = new_loop(task, tmp_path)
    assert_equal(step(loop, batch, 4 * 128), step(loop, batch, 128))


@pytest.mark.parametrize("seed", range(5))
def test_any_division_is_the_mean_over_the_whole_batch(
    seed: int, task: PretrainingTask, tokenizer: Tokenizer, tmp_path: Path, new_loop: NewLoop
) -> None:
    """Sequences of any length have unequal numbers of masked tokens: a mean of means would be wrong."""
    lengths = np.random.default_rng(seed).integers(5, 60, 24).tolist()
    batch = batch_of(lengths, tokenizer)
    loop = new_loop(task, tmp_path)
    expected = plain_step(task, batch)
    for micro_batch_tokens in (10_000, 300, 64):
        assert_equal(step(loop, batch, micro_batch_tokens), expected)


def test_gradients_are_clipped_after_the_last_micro_batch(
    task: PretrainingTask, tokenizer: Tokenizer, tmp_path: Path, new_loop: NewLoop
) -> None:
    batch = batch_of([16] * 32, tokenizer)
    loop = new_loop(task, tmp_path, optimizer={"max_grad_norm": 0.01, "warmup": 0})
    _, _, gradients = step(loop, batch, 128)
    total = torch.cat([gradient.flatten() for gradient in gradients.values()])
    assert float(total.norm()) == pytest.approx(0.01, rel=1e-4)


def step(loop: Loop, batch: Sequences, micro_batch_tokens: int) -> tuple[dict[str, float], float, Gradients]:
    """Losses, gradient norm and gradients of one step, which is not taken."""
    loop.gradients.machine = replace(loop.machine, micro_batch_tokens=micro_batch_tokens)
    loop.optimizer.zero_grad(set_to_none=False)
    result = loop.gradients.compute(batch, seed=0)
    return result.losses, result.gradient_norm, gradients_of(loop.task)


def plain_step(task: PretrainingTask, batch: Sequences) -> tuple[dict[str, float], float, Gradients]:
    """The same by torch alone: both means over the whole batch, one backward pass, clipped to 1."""
    task.model.zero_grad()
    sums, counts = task.loss(batch), task.counts(batch)
    means = {name: sums[name] / counts[name] for name in sums}
    torch.stack(list(means.values())).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
    return {name: mean.item() for name, mean in means.items()}, float(norm), gradients_of(task)


def gradients_of(task: Any) -> Gradients:
    return {name: parameter.grad.clone() for name, parameter in task.model.named_parameters()}


def assert_equal(found: tuple[Any, Any, Gradients], expected: tuple[Any, Any, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)
    for name, gradient in expected[2].items():
        torch.testing.assert_close(found[2][name], gradient, rtol=0, atol=1e-6, msg=name)


# -- the run -----------------------------------------------------------------------------------------------


def test_each_phase_begins_its_own_stream(tmp_path: Path, new_loop: NewLoop) -> None:
    phases = {"sequence_lengths": [16, 32], "sequence_shares": [0.75, 0.25]}
    loop = new_loop(ToyTask(), tmp_path, steps=8, data=phases)
    loop.run()
    switches = [record for record in RunLog.read(tmp_path) if record["kind"] == "phase"]
    assert [(switch["step"], switch["sequence_length"]) for switch in switches] == [(0, 16), (6, 32)]
    assert (loop.progress.cursor.phase, loop.progress.cursor.offset) == (1, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes between two looks at the clock, however busy the machine is."""
    monkeypatch.setattr("bertsmith.training.loop.time", SimpleNamespace(monotonic=count().__next__))


@pytest.mark.usefixtures("clock")
def test_a_run_of_hours_ends_by_the_clock(tmp_path: Path, new_loop: NewLoop) -> None:
    loop = new_loop(ToyTask(), tmp_path, steps=None, hours=60 / 3600)
    loop.run()
    steps = [record for record in RunLog.read(tmp_path) if record["kind"] == "step"]
    assert loop.progress.step == len(steps) > 10
    assert 60 <= loop.progress.elapsed < 65
    # no warm-up here: the rate falls with the time that is left
    shares = [0.0, *(record["elapsed"] / 60 for record in steps[:-1])]
    assert [record["learning_rate"] for record in steps] == pytest.approx([0.1 * (1 - x) for x in shares])


def test_the_first_ranks_clock_is_everyones(
    task: PretrainingTask, tokenizer: Tokenizer, tmp_path: Path, new_loop: NewLoop
) -> None:
    """What the ranks say is summed, with the losses."""
    loop = new_loop(task, tmp_path)
    for rank, said in ((0, 7.0), (1, 0.0)):
        loop.gradients.machine = replace(loop.machine, ranks=Ranks(rank, 2))
        assert loop.gradients.compute(batch_of([16] * 4, tokenizer), 0, clock=lambda: 7.0).elapsed == said


@pytest.mark.usefixtures("clock")
def test_time_spent_before_a_resume_counts(tmp_path: Path, new_loop: NewLoop) -> None:
    first = new_loop(ToyTask(), tmp_path, steps=None, hours=60 / 3600)
    first.run()
    again = new_loop(ToyTask(), tmp_path, steps=None, hours=60 / 3600)
    again.resume()
    again.run()
    assert again.progress == first.progress


def test_the_last_step_is_saved_once(tmp_path: Path, new_loop: NewLoop) -> None:
    new_loop(ToyTask(), tmp_path, steps=10).run()
    saved = [record["step"] for record in RunLog.read(tmp_path) if record["kind"] == "checkpoint"]
    assert saved == [8, 10]
    folder = tmp_path / "checkpoints" / "step-00000010"
    before = folder.stat().st_ino
    again = new_loop(ToyTask(), tmp_path, steps=10)
    again.resume()
    again.run()
    assert folder.stat().st_ino == before


@pytest.mark.usefixtures("clock")
def test_a_checkpoint_is_written_too_when_the_last_one_is_some_minutes_old(
    tmp_path: Path, new_loop: NewLoop
) -> None:
    checkpoint = {"every": 10, "minutes": 4 / 60}
    new_loop(ToyTask(), tmp_path, steps=20, checkpoint=checkpoint).run()
    saved = [record for record in RunLog.read(tmp_path) if record["kind"] in ("step", "checkpoint")]
    elapsed = {each["step"]: each["elapsed"] for each in saved if each["kind"] == "step"}
    found = [each["step"] for each in saved if each["kind"] == "checkpoint"]
    last, expected = 0.0, []
    for step in range(1, 21):
        if step % 10 == 0 or elapsed[step] - last >= 4:
            expected.append(step)
            last = elapsed[step]
    assert found == expected
    assert len(found) > 2  # more than `every` alone


@pytest.mark.parametrize("step", [3, 10])
def test_ctrl_c_is_heard_in_the_last_step_as_in_any_other(
    step: int, tmp_path: Path, new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the gradients were summed, which is when ranks tell each other."""
    update = torch.optim.AdamW.step
    updates = count(1)

    def interrupted(self: torch.optim.AdamW, *arguments: Any) -> Any:
        if next(updates) == step:
            signal.raise_signal(signal.SIGINT)
        return update(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    loop = new_loop(ToyTask(), tmp_path, steps=10)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert loop.progress.step == min(step + 1, 10)
    assert (tmp_path / "checkpoints" / f"step-{loop.progress.step:08d}").is_dir()


def test_a_damaged_last_checkpoint_is_written_again(tmp_path: Path, new_loop: NewLoop) -> None:
    new_loop(ToyTask(), tmp_path, steps=10).run()
    path = tmp_path / "checkpoints" / "step-00000010" / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(b"")
    again = new_loop(ToyTask(), tmp_path, steps=10)
    (complaint,) = again.resume()
    assert "step-00000010 is damaged" in complaint
    again.run()
    assert path.read_bytes() == content


def test_dropout_differs_from_step_to_step_and_rank_to_rank() -> None:
    seeds = {dropout_seed(seed, step, rank) for seed in range(5) for step in range(20) for rank in range(8)}
    assert len(seeds) == 5 * 20 * 8


@pytest.mark.parametrize(
    ("every", "total", "expected"),
    [(4, 12, [4, 8, 12]), (0.25, 12, [3, 6, 9, 12]), (0.3, 10, [3, 6, 9]), (0.01, 5, [1, 2, 3, 4, 5])],
)
def test_what_is_due_every_so_many_steps_or_every_share_of_a_run(
    every: float, total: int, expected: list[int]
) -> None:
    due = [n for n in range(1, total + 1) if is_due(every, n, (n - 1) / total, n / total)]
    assert due == expected
