"""What no public function can take is refused in one sentence, before the function runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith
from bertsmith import BertsmithError
from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_number,
    check_path,
    check_text,
    instance_of,
    integer_from,
    list_of,
    optional,
)
from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.tasks.registry import find_task
from bertsmith.training.finetuning.search import TuneSettings

api: Any = bertsmith  # handed what its types forbid
LONG = "x/" * 2500
NOT_PATHS = (None, 7, b"model", "", "a\0b", LONG, "y" * 300, ["a"], (part for part in "ab"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "cat", "##s"]
    return api.Tokenizer.from_pieces(pieces, lowercase=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    shape = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = api.BertConfig(vocab_size=8, max_position_embeddings=16, **shape)
    path = tmp_path_factory.mktemp("door") / "model"
    model = api.PretrainingModel(config, next_sentence=False)
    api.save_pretraining_model(path, model, tokenizer, {})
    return path


TAKES_A_PATH: dict[str, Callable[[Any], Any]] = {
    "Embedder": lambda path: api.Embedder(path),
    "Predictor": lambda path: api.Predictor.load(path),
    "MaskedLanguageModel": lambda path: api.MaskedLanguageModel.load(path),
    "Features": lambda path: api.Features(path),
    "BertFeatures": lambda path: api.BertFeatures(path).fit(["a"]),
    "BertClassifier": lambda path: api.BertClassifier(path).fit(["a", "b"] * 20, ["no", "yes"] * 20),
    "Index": lambda path: api.Index.open(path),
    "Index.build": lambda path: api.Index.build([path], "no-such-folder/index", "minilm"),
    "Corpus": lambda path: api.Corpus.open(path),
    "Tokenizer": lambda path: api.Tokenizer.load(path),
    "TokenStore": lambda path: api.TokenStore.open(path),
    "load_encoder": lambda path: api.load_encoder(path),
    "load_pretraining_model": lambda path: api.load_pretraining_model(path),
    "import_legacy": lambda path: api.import_legacy(path, "no-such-folder/out"),
    "locate_model": lambda path: api.locate_model(path),
    "suggest": lambda path: api.suggest(path, "rows.csv"),
    "build_corpus": lambda path: api.build_corpus(["a.txt"], path),
    "finetune": lambda path: api.finetune("tagging", model=path, train="a.csv", out="no-such/run"),
    "tune": lambda path: api.tune("classification", model=path, train="a.csv", out="no-such/run"),
    "pretrain": lambda path: api.pretrain(path),
    "read_recipe": lambda path: api.read_recipe(path, []),
    "plan": lambda path: api.plan(path),
    "preset": lambda path: api.preset(path),
    "distil_task": lambda path: api.distil_task([path], texts=["a.csv"], out="no-such/run"),
    "distil_static": lambda path: api.distil_static(path, "no-such/run"),
    "shrink": lambda path: api.shrink(path, train="a.csv", dev="a.csv", out="no-such/run"),
    "prune_vocabulary": lambda path: api.prune_vocabulary(path, ["a"], "no-such-folder/out"),
    "build_sequences": lambda path: api.build_sequences([path], "no-such-folder/out"),
    "encode_sequences": lambda path: api.encode_sequences("a.jsonl", path, "no-such-folder/out"),
}


@pytest.mark.parametrize("name", TAKES_A_PATH)
def test_what_is_no_path_is_refused(name: str) -> None:
    for path in NOT_PATHS:
        with pytest.raises(BertsmithError):
            TAKES_A_PATH[name](path)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda f: api.Embedder(f, device="tpu"), "device must be auto, cpu, cuda or mps, found 'tpu'"),
        (lambda f: api.Embedder(f, device=None), "device must be auto, cpu, cuda or mps, found None"),
        (lambda f: api.Features(f, device="meta"), "device must be auto, cpu, cuda or mps, found 'meta'"),
        (lambda f: api.Features(f, device="cuda:99"), "device is 'cuda:99', but this machine has"),
        (lambda f: api.Embedder(f, batch_tokens=-1), "batch_tokens must be a whole number from 1 on, "),
        (lambda f: api.Embedder(f, max_length="9"), "max_length must be a whole number from 1 on, "),
        (lambda f: api.Embedder(f, dimensions=True), "dimensions must be a whole number from 1 on, "),
        (lambda f: api.Embedder(f, query_prefix=7), r"query_prefix must be text, found 7"),
        (lambda f: api.Embedder(f, normalise="no"), "normalise must be True or False, found 'no'"),
        (lambda f: api.Embedder(f, compute_dtype="int8"), "compute_dtype must be one of torch.float32, "),
        (lambda f: api.Embedder(f, long_texts=["a"]), "long_texts must be truncate or windows"),
        (lambda f: api.Features(f, None), "layers are numbers from 0"),
        (lambda f: api.Features(f, [0.5]), "layers are numbers from 0"),
        (lambda f: api.Features(f, stride=-1), "stride must be a whole number from 0 on, found -1"),
        (lambda f: api.Embedder(f).queries(["a", None]), "text 2: expected a string, found NoneType"),
        (lambda f: api.Embedder(f).queries(["a"], 7), r"progress must be a function, found 7"),
        (lambda f: next(api.Embedder(f).embed_batches(["a"], size=0)), "size must be a whole number"),
        (lambda f: api.Predictor.load(f, "tagging"), "task must be a type, found 'tagging'"),
        (lambda f: api.Predictor.load(f, compute_dtype="int16"), "compute_dtype must be one of "),
    ],
)  # fmt: skip
def test_what_a_model_can_t_be_asked_is_refused(
    folder: Path, call: Callable[[Path], Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        call(folder)


@pytest.mark.parametrize("top", [0, -1, "x", None, 1.5, True])
def test_candidates_are_counted(folder: Path, top: Any) -> None:
    model = api.MaskedLanguageModel.load(folder, "cpu")
    with pytest.raises(InputError, match="top must be a whole number from 1 on, found"):
        model.fill_mask("red [MASK]", top)
    with pytest.raises(InputError, match="text must be text, found"):
        model.fill_mask(top if top != "x" else None)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda t: t.encode(None), "Expected a text, found None"),
        (lambda t: t.encode(b"red"), r"Expected a text, found b'red' \(bytes\)"),
        (lambda t: t.encode_batch("red"), "Expected a list of texts, found 'red'"),
        (lambda t: t.encode_batch(None), "Expected a list of texts, found None"),
        (lambda t: t.encode_batch(["red", 7]), r"Expected a text, found 7"),
        (lambda t: t.decode(7), "Expected the ids of pieces, found 7"),
        (lambda t: t.decode("red"), "Expected the ids of pieces, found 'red'"),
        (lambda t: t.decode([None]), "Expected the ids of pieces, found "),
        (lambda t: t.id_to_token("red"), "There is no piece 'red': ids run from 0 to 7"),
        (lambda t: t.save(None), "folder must be a path, as text or pathlib.Path, found None"),
        (lambda t: t.token_to_id(7), r"token must be text, found 7"),
        (lambda t: t.from_pieces("abc", lowercase=True), "pieces must be a list, found 'abc'"),
        (lambda t: api.train_tokenizer(7, "out"), "corpus must be a Corpus"),
        (lambda t: api.tokenize_corpus(7, t, "out"), "corpus must be a Corpus, found 7"),
        (lambda t: api.build_corpus("a.txt", "out"), "sources must be a list, found 'a.txt'"),
        (lambda t: api.build_corpus([b"a"], "out"), "sources, item 1, must be a path, as text"),
        (lambda t: api.build_corpus(["a"], "out", workers=0), "workers must be a whole number from 1"),
        (lambda t: api.build_corpus(["a"], "out", settings={}), "settings must be a CorpusSettings"),
        (lambda t: api.plan("budget", gpus="2"), "gpus must be a whole number from 1 on, found '2'"),
        (lambda t: api.plan("budget", price_per_hour="x"), "price_per_hour must be a number, found"),
        (lambda t: api.pretrain("budget", 7), r"overrides, item 1, must be text, found 7"),
        (lambda t: api.pretrain("budget", resume="yes"), "resume must be True or False, found 'yes'"),
        (lambda t: api.Bert(None), "config must be a BertConfig, found None"),
        (lambda t: api.suggest("m", "f", count=0), "count must be a whole number from 1 on"),
    ],
)  # fmt: skip
def test_what_no_step_can_mean_is_refused(tokenizer: Any, call: Callable[[Any], Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call(tokenizer)


def test_a_path_will_do_where_a_corpus_or_a_source_is_taken(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "a.txt").write_text("The red cats see a red cat.")
    made = api.build_corpus([tmp_path / "a.txt"], tmp_path / "corpus", workers=1).path
    learned = api.train_tokenizer(made, tmp_path / "tokenizer", api.VocabularySettings(vocab_size=40))
    api.tokenize_corpus(str(made), learned, tmp_path / "store")
    assert len(api.TokenStore.open(tmp_path / "store" / "train")) == 1
    assert api.find_contamination(made, [tmp_path / "a.txt"], workers=1).documents == 1


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: api.CorpusSettings(heldout=2), RecipeError, "^CorpusSettings: heldout: expected less than"),
        (lambda: api.CorpusSettings("lines"), RecipeError, r"as in CorpusSettings\(format="),
        (lambda: api.VocabularySettings(vocab_size="x"), RecipeError, "vocab_size: expected a whole number"),
        (lambda: api.PassageSettings(token=9), RecipeError, "unknown key 'token'. Did you mean 'tokens'"),
        (lambda: api.DocumentSettings(include="*.txt"), RecipeError, "include: expected a list, found"),
        (lambda: api.Recipe(optimizer={"learning_rate": 9}), RecipeError, "optimizer.learning_rate: "),
        (lambda: find_task("tagging").Settings(max_length=1), RecipeError, "^TaggingSettings: max_length: "),
        (lambda: TuneSettings(search={"nothing": 1}), RecipeError, "unknown key 'search.nothing'"),
        (lambda: api.BertConfig(hidden_size=7), ModelError, "^BertConfig: "),
        (lambda: api.BertConfig(vocab_sise=7), ModelError, "Did you mean 'vocab_size'"),
    ],
)  # fmt: skip
def test_settings_written_in_python_are_refused_in_a_sentence(
    make: Callable[[], Any], error: type[BertsmithError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        make()
    assert "pydantic" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_be_meant_goes_through(tmp_path: Path) -> None:
    @check_arguments(
        path=check_path,
        top=integer_from(1, 9),
        names=list_of(check_text),
        rate=optional(check_number),
        what=any_of(check_text, instance_of(int)),
    )
    def asked(path: Any, top: Any = 5, *, names: Any = (), rate: Any = None, what: Any = "") -> Any:
        """Its own words."""
        return path, top, names, rate, what

    assert asked(tmp_path) == (tmp_path, 5, (), None, "")
    assert asked("a", np.int64(9), names=np.array(["b"]), rate=np.float32(0.5), what=3)[1] == 9
    assert (asked.__name__, asked.__doc__) == ("asked", "Its own words.")
    with pytest.raises(TypeError, match=r"asked\(\): missing a required argument: 'path'"):
        asked(top=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^pretrain\(\): got an unexpected keyword argument 'steps'$"):
        api.pretrain("budget", steps=2)
    with pytest.raises(TypeError, match=r"^Tokenizer\.load\(\): got an unexpected keyword argument 'cased'$"):
        api.Tokenizer.load("tokenizers/law", cased=True)
