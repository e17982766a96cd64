"""Recipes: what is misspelt is answered with the nearest name, what is impossible with one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertsmith.compression.distilling.recipes import make_distil_recipe
from bertsmith.errors import BertsmithError, RecipeError
from bertsmith.tasks.classification import Classification
from bertsmith.training.finetune_recipe import check_task_settings, make_finetune_recipe
from bertsmith.training.finetuning.search import make_search
from bertsmith.training.recipe import (
    ModelSettings,
    Recipe,
    check_recipe,
    find_recipe,
    list_recipes,
    read_recipe,
)
from bertsmith.training.run_folder import write_recipe

MISSPELT = [
    ("stepz=3", "steps"),
    ("optimizer.learningrate=1e-4", "optimizer.learning_rate"),
    ("learning_rate=1e-4", "optimizer.learning_rate"),
    ("optimiser.learning_rate=1e-4", "optimizer"),
    ("data.batchsize=3", "data.batch_size"),
    ("checkpoints.every=3", "checkpoint"),
    ("model.hidden_layers=3", "model.num_hidden_layers"),
]

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"hours": 1.0}, "both steps and hours"),
    ({"steps": None}, "exactly one of steps and hours"),
    ({"seed": 2**63}, "seed: expected less than 9223372036854775808, found 9223372036854775808"),
    ({"steps": 0}, "steps: expected greater than or equal to 1, found 0"),
    ({"optimizer": {"warmup": 100}}, "optimizer.warmup = 100 steps is not shorter than the run of 100 steps"),
    ({"steps": None, "hours": 1.0}, "a run of given hours needs optimizer.warmup below 1"),
    (
        {"evaluation": {"every": 1.5}},
        "evaluation.every: expected a whole number of steps, or below 1 a share",
    ),
    (
        {"checkpoint": {"every": 2.5}},
        "checkpoint.every: expected a whole number of steps, or below 1 a share",
    ),
    ({"data": {"sequence_shares": [0.5, 0.4]}}, "sequence_shares must be positive and sum to 1, not 0.9"),
    ({"data": {"sequence_shares": [1.5, -0.5]}}, "sequence_shares must be positive and sum to 1"),
    ({"data": {"sequence_lengths": [128]}}, "the same number of entries"),
    ({"data": {"sequence_lengths": [4, 512]}}, "a sequence length below 8 leaves no room"),
    ({"data": {"batch_size": 0}}, "data.batch_size: expected greater than or equal to 1, found 0"),
    ({"data": {"batch_size": "many"}}, "data.batch_size: expected a whole number"),
    ({"masking": {"masked": 0.95}}, "masked + random must be at most 1, not 1.05"),
    ({"masking": {"mask_rate": 0.0}}, "masking.mask_rate: expected greater than 0, found 0.0"),
    ({"masking": {"final_mask_rate": 1.5}}, "masking.final_mask_rate: expected less than 1, found 1.5"),
    (
        {"masking": {"spans": True, "whole_words": True}},
        "masking: spans are of whole words already: leave one of masking.spans and masking.whole_words out",
    ),
    (
        {"objective": "replaced-token"},
        "objective: expected 'masked-language', 'sentence-order' or 'replaced-tokens', found 'replaced-t",
    ),
    ({"replaced": {"weight": 0}}, "replaced.weight: expected greater than 0, found 0"),
    ({"replaced": {"generator_share": 2}}, "replaced.generator_share: expected less than or equal to 1"),
    ({"replaced": {"generator": "runs/x/generator"}}, "give that discriminator as init, or leave replaced"),
    ({"model": {"size": "huge"}}, "model.size: expected 'tiny', 'mini', 'small'"),
    ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate: expected"),
    ({"optimizer": {"learning_rate": float("inf")}}, "optimizer.learning_rate: expected"),
    (
        {"optimizer": {"kind": "sgd"}},
        "optimizer.kind: expected 'adamw' or 'muon', or your own as module:Class, found 'sgd'",
    ),
    (
        {"optimizer": {"kind": "muon", "warmup": 1}, "hardware": {"shard": "full"}},
        "choose optimizer.kind=adamw, or hardware.shard=none",
    ),
    ({"optimizer": {"schedule": "wsd", "warmup": 0.5, "decay": 60}}, "are together longer than the run"),
    (
        {"steps": None, "hours": 1.0, "optimizer": {"schedule": "wsd", "warmup": 0.1, "decay": 5}},
        "a run of given hours needs optimizer.decay below 1",
    ),
    ({"guard": {"action": "panic"}}, "guard.action: expected 'stop' or 'skip', found 'panic'"),
    ({"hardware": {"threads": 0}}, "hardware.threads"),
    ({"checkpoint": {"keep": 0}}, "checkpoint.keep"),
    ({"corpus": 3}, "corpus: expected text, found 3"),
]

# Values as TOML has them, and words without quotation marks.
OVERRIDES = [
    ("steps=7", "steps", 7),
    ("steps=1_000_000", "steps", 1_000_000),
    ("optimizer.learning_rate=3e-4", "optimizer.learning_rate", 3e-4),
    ("optimizer.max_grad_norm=2", "optimizer.max_grad_norm", 2.0),
    ("data.next_sentence=false", "data.next_sentence", False),
    ("corpus=corpora/law", "corpus", "corpora/law"),
    ("corpus=~/law", "corpus", str(Path.home() / "law")),
    ("corpus='with = and spaces'", "corpus", "with = and spaces"),
    ('guard.action="skip"', "guard.action", "skip"),
    ("guard.action=skip", "guard.action", "skip"),
    ("data.sequence_lengths=[64, 256]", "data.sequence_lengths", (64, 256)),
    ("data.sequence_lengths=64,256", "data.sequence_lengths", (64, 256)),
    ("checkpoint={every = 5, keep = 3}", "checkpoint.keep", 3),
    ("out=runs/a=b", "out", "runs/a=b"),
    ("out=2024-11-28", "out", "2024-11-28"),
    ("corpus=1e5", "corpus", "1e5"),
    ("init=true", "init", "true"),
]

OF_TRANSFORMERS = [
    ("lr=3e-5", "optimizer.learning_rate"),
    ("optimizer.lr=3e-5", "optimizer.learning_rate"),
    ("warmup_ratio=0.1", "optimizer.warmup"),
    ("warmup_steps=100", "optimizer.warmup"),
    ("weight_decay=0.1", "optimizer.weight_decay"),
    ("max_steps=100", "steps"),
    ("num_train_epochs=3", "steps"),
    ("per_device_train_batch_size=8", "data.batch_size"),
    ("max_seq_length=128", "data.sequence_lengths"),
]


@pytest.fixture
def recipe_file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text("steps = 100\n\n[optimizer]\nwarmup = 10\n")
    return str(path)


@pytest.mark.parametrize(("override", "nearest"), [*MISSPELT, *OF_TRANSFORMERS])
def test_a_misspelt_key_is_answered_with_the_nearest(override: str, nearest: str, recipe_file: str) -> None:
    with pytest.raises(RecipeError) as error:
        read_recipe(recipe_file, [override])
    key = override.partition("=")[0]
    assert str(error.value).startswith(f"{recipe_file}: unknown key '{key.split('.')[0]}")
    assert str(error.value).endswith(f"Did you mean {nearest!r}?")


@pytest.mark.parametrize(("settings", "sentence"), IMPOSSIBLE)
def test_an_impossible_setting_is_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError) as error:
        check_recipe(
            {"steps": 100, "optimizer": {"warmup": 10_000 if "hours" in settings else 10}} | settings, "mine"
        )
    message = str(error.value)
    assert sentence in message
    assert message.startswith("mine") and message.endswith(".") and "\n" not in message


@pytest.mark.parametrize(("override", "key", "expected"), OVERRIDES)
def test_overrides_have_the_types_of_toml(
    override: str, key: str, expected: object, recipe_file: str
) -> None:
    value: Any = read_recipe(recipe_file, [override, "optimizer.warmup=1"] if key == "steps" else [override])
    for part in key.split("."):
        value = getattr(value, part)
    assert value == expected
    assert type(value) is type(expected)


def test_an_override_leaves_the_rest_of_its_section(recipe_file: str) -> None:
    assert read_recipe(recipe_file, ["optimizer.max_grad_norm=0.5"]).optimizer.warmup == 10


def test_the_last_override_wins(recipe_file: str) -> None:
    assert read_recipe(recipe_file, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("change", ["model.size=mini", "model.model_type=bert"])
def test_a_recipes_widths_give_way_to_a_size_or_a_family(change: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('hours = 1\n[model]\nsize = "tiny"\nhidden_size = 192\nnum_attention_heads = 3\n')
    warmup = "optimizer.warmup=0.1"
    assert read_recipe(str(path), [warmup]).model.hidden_size == 192
    assert read_recipe(str(path), [warmup, change]).model.hidden_size is None
    given = read_recipe(str(path), [warmup, "model.hidden_size=64", change]).model
    assert (given.hidden_size, given.num_attention_heads) == (64, None)


def test_a_length_on_the_command_line_replaces_the_recipes(recipe_file: str) -> None:
    recipe = read_recipe(recipe_file, ["hours=0.5", "optimizer.warmup=0.1"])
    assert (recipe.steps, recipe.hours) == (None, 0.5)


@pytest.mark.parametrize("changes", [["hours=none", "steps=10"], ["steps=10", "hours=none"]])
def test_a_length_of_none_is_none(changes: list[str], recipe_file: str) -> None:
    recipe = read_recipe(recipe_file, [*changes, "optimizer.warmup=0"])
    assert (recipe.steps, recipe.hours) == (10, None)


@pytest.mark.parametrize("lengths", [["steps=10", "hours=0.5"], ["hours=0.5", "seed=1", "steps=10"]])
def test_two_lengths_on_the_command_line_are_refused(lengths: list[str], recipe_file: str) -> None:
    with pytest.raises(RecipeError, match=r"steps=10 and hours=0\.5 are both given"):
        read_recipe(recipe_file, [*lengths, "optimizer.warmup=0.1"])


@pytest.mark.parametrize("override", ["steps", "=3", ""])
def test_an_override_without_key_or_value(override: str, recipe_file: str) -> None:
    with pytest.raises(RecipeError, match=r"Expected dotted.key=value, found "):
        read_recipe(recipe_file, [override])


def test_a_value_has_no_keys_below_it(recipe_file: str) -> None:
    with pytest.raises(RecipeError, match=r"steps\.x: steps is a value, not a section"):
        read_recipe(recipe_file, ["steps.x=1"])


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"steps = = 3")
    with pytest.raises(RecipeError, match=r"mine.toml is not a TOML file: .*line 1"):
        read_recipe(str(path), [])
    path.write_bytes("steps = 3 # \xe4".encode("latin-1"))
    with pytest.raises(RecipeError, match=r"mine.toml is not a TOML file"):
        read_recipe(str(path), [])


def test_no_recipe_of_that_name() -> None:
    with pytest.raises(RecipeError, match=r"bert-large.*Did you mean 'bert-base'\?"):
        find_recipe("bert-bsae")


# -- the shape beside init -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["model.size=base", "model.hidden_size=64", "model.layer_norm_eps=1e-12"])
def test_a_shape_on_the_command_line_is_refused_beside_init(change: str, tmp_path: Path) -> None:
    """Even one that says what the defaults say: it would be ignored."""
    key = change.partition("=")[0]
    with pytest.raises(RecipeError, match=rf"^budget: {key} can't be chosen together with init: .*leave out"):
        read_recipe("budget", [change, "init=minilm"])
    path = tmp_path / "mine.toml"
    path.write_text('hours = 1\ninit = "minilm"\noptimizer.warmup = 0.1\n')
    with pytest.raises(RecipeError, match=rf"mine.toml: {key} can't be chosen together with init"):
        read_recipe(str(path), [change])


def test_a_shape_beside_init_in_one_file_is_refused() -> None:
    settings = {"hours": 1, "optimizer": {"warmup": 0.1}, "init": "minilm", "model": {"num_hidden_layers": 2}}
    with pytest.raises(RecipeError, match=r"^mine: model.num_hidden_layers can't be chosen together with"):
        check_recipe(settings, "mine")


def test_a_recipes_own_shape_gives_way_to_init_and_its_dropout_stays() -> None:
    recipe = read_recipe("budget", ["init=minilm", "model.hidden_dropout_prob=0.2"])
    assert recipe.model == ModelSettings(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.0)


def test_a_resolved_recipe_with_init_runs_again(tmp_path: Path) -> None:
    recipe = read_recipe("budget", ["init=minilm"])
    write_recipe(recipe, tmp_path)
    assert read_recipe(str(tmp_path / "recipe.toml"), []) == recipe


# -- our own recipes -----------------------------------------------------------------------------------------


def test_the_recipes_there_are() -> None:
    assert {"bert-base", "bert-large", "budget", "quickstart", "roberta-base"} <= set(list_recipes())


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_valid_and_its_shape_possible(name: str) -> None:
    recipe = read_recipe(name, [])
    config = recipe.model.config(30_522, 1 if recipe.model.model_type == "roberta" else 0)
    assert config.max_length >= max(recipe.data.sequence_lengths)
    assert not recipe.data.next_sentence or config.has_next_sentence


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_begins_with_what_it_is_for(name: str) -> None:
    assert find_recipe(name).read_text().startswith("# ")


@pytest.mark.parametrize(("name", "layers", "width"), [("bert-base", 12, 768), ("bert-large", 24, 1024)])
def test_the_published_recipes(name: str, layers: int, width: int) -> None:
    """Devlin et al. 2019, appendix A.2."""
    recipe = read_recipe(name, [])
    config = recipe.model.config(30_522, 0)
    assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
    assert (recipe.steps, recipe.data.batch_size) == (1_000_000, 256)
    assert recipe.data.sequence_lengths == (128, 512) and recipe.data.sequence_shares == (0.9, 0.1)
    settings = recipe.optimizer
    assert (settings.learning_rate, settings.warmup, settings.weight_decay) == (1e-4, 10_000, 0.01)
    assert (settings.beta1, settings.beta2, settings.epsilon) == (0.9, 0.999, 1e-6)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert (recipe.masking.mask_rate, recipe.masking.masked, recipe.masking.random) == (0.15, 0.8, 0.1)


# -- phases ----------------------------------------------------------------------------------------------


def test_phases_follow_their_shares() -> None:
    data = {"sequence_lengths": [64, 128, 512], "sequence_shares": [0.5, 0.4, 0.1]}
    recipe = check_recipe({"steps": 10, "optimizer": {"warmup": 1}, "data": data}, "mine")
    assert [recipe.data.phase(step / 10) for step in range(10)] == [0] * 5 + [1] * 4 + [2]
    assert recipe.data.phase(1.0) == 2


def test_heads_must_divide_the_width() -> None:
    recipe = Recipe.model_validate(
        {"steps": 10, "optimizer": {"warmup": 1}, "model": {"hidden_size": 100, "num_attention_heads": 3}}
    )
    with pytest.raises(BertsmithError, match="num_attention_heads = 3 must divide hidden_size = 100"):
        recipe.model.config(100, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optimizer.clip=2", "optimizer.max_grad_norm"),
        ("masking.chosen=0.3", "masking.mask_rate"),
        ("data.short_probability=0.1", "data.short_seq_prob"),
    ],
)
def test_a_key_of_before_is_answered_with_its_name_of_now(recipe_file: Path, old: str, new: str) -> None:
    with pytest.raises(RecipeError, match=f"it is called '{new}' now"):
        read_recipe(recipe_file, [old])


def test_a_path_may_be_a_pathlib_path_and_home_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    values = {"task": "classification", "model": "m", "train": tmp_path / "rows.csv", "out": Path("~/out")}
    recipe = make_finetune_recipe(values, [])
    assert (recipe.train, recipe.out) == ((str(tmp_path / "rows.csv"),), str(tmp_path / "out"))


@pytest.mark.parametrize("make", [make_finetune_recipe, make_search, make_distil_recipe])
def test_settings_are_a_section(make: Callable[[dict[str, Any], list[str]], object]) -> None:
    with pytest.raises(RecipeError, match=r"settings is a section: name what is meant in it \(settings\."):
        make({"task": "classification", "model": "m", "train": "rows.csv", "out": "out"}, ["settings=3"])


def test_lists_take_commas_wherever_settings_are_given() -> None:
    """A shell takes the quotes from ["query","value"]."""
    values = {"task": "classification", "model": "m", "train": "rows.csv", "out": "out"}
    for given in ("query,value", "query, value", "[query,value]", '["query","value"]'):
        assert make_finetune_recipe(values, [f"lora.targets={given}"]).lora.targets == ("query", "value")
    assert make_finetune_recipe(values, ["lora.targets=qkv"]).lora.targets == ("qkv",)
    for given, columns in (("2", ("2",)), ("[2,3]", ("2", "3")), ("2,3", ("2", "3")), ("1e5", ("1e5",))):
        recipe = make_finetune_recipe(values, [f"features={given}"])
        assert check_task_settings(recipe, Classification).features == columns
    bounds = make_search(values, ["search.learning_rate=1e-5,1e-4", "search.batch_size=8,16"]).settings.search
    assert (bounds.learning_rate, bounds.batch_size) == ((1e-5, 1e-4), (8, 16))
    assert make_search(values, ["search.batch_size=8"]).settings.search.batch_size == (8,)
    for given, layers in (("1,3", (1, 3)), ("3", 3)):
        distilled = {"teacher": ["m"], "train": "rows.csv", "out": "out"}
        assert make_distil_recipe(distilled, [f"layers={given}"]).layers == layers


def test_a_second_file_behind_an_option_is_told_how_to_give_it() -> None:
    values = {"task": "classification", "model": "m", "train": ["a.csv"], "out": "o"}
    with pytest.raises(RecipeError, match=r"found 'b\.csv'.* --train a\.csv --train b\.csv"):
        make_finetune_recipe(values, ["b.csv"])
