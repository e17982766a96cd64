"""Every command with models of other families than BERT's: tiny ones with random weights and, but for ALBERT
and DeBERTa, tokenizers of the kind that theirs have. Texts of a thousand tokens are read whole.
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

import jina_bert  # noqa: F401  transformers lacks it
from bertsmith.cli.main import main
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.vector_file import read_vectors
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.model.checkpoint import read_checkpoint
from bertsmith.model.config import make_config
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer

# jina's folders name its authors' code
pytestmark = pytest.mark.filterwarnings("ignore:.*never compared with a published checkpoint")
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
WORDS = ("red", "blue", "green", "cat", "dog", "bird", "runs", "sleeps", "sings", "here")
LONGEST = 1024  # of the models
EXACT = ("--compute-dtype", "float32")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 48}
TWO_STEPS = ["epochs=1", "batch_size=8", "optimizer.warmup=0.5", "hardware.threads=1"]
TASKS = {
    "classification": "csv",
    "multi-label": "jsonl",
    "regression": "csv",
    "tagging": "jsonl",
    "question-answering": "jsonl",
    "similarity": "csv",
    "retrieval": "jsonl",
    "reranking": "csv",
}
FAMILIES = ("modernbert", "nomic_bert", "gte", "albert", "mpnet", "deberta-v2", "jina_bert")
each_family = pytest.mark.parametrize(
    "family", ["modernbert", *(pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES[1:])]
)


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model of each family, in a folder of its name."""
    folder = tmp_path_factory.mktemp("models")
    owns: dict[str, dict[str, Any]] = {
        "modernbert": {"local_attention": 16},
        "albert": {"embedding_size": 16},
        "deberta-v2": {"position_buckets": 16, "initializer_range": 0.15},  # each score sums up three
    }
    makers = {"modernbert": byte_level_tokenizer, "mpnet": roberta_like_tokenizer}
    for family in FAMILIES:
        tokenizer = makers.get(family, wordpiece_tokenizer)(folder / f"{family}-tokenizer")
        own = owns.get(family, {})
        config = make_config(
            {
                "model_type": family,
                "vocab_size": tokenizer.vocab_size,
                "pad_token_id": tokenizer.pad_id,
                "max_position_embeddings": LONGEST + 2 * (family == "mpnet"),
                "initializer_range": 0.3,  # at 0.02 every text would look alike
            }
            | SHAPE
            | own,
            "test",
        )
        torch.manual_seed(0)
        save_pretraining_model(folder / family, PretrainingModel(config), tokenizer, {})
    return folder


def byte_level_tokenizer(folder: Path) -> Tokenizer:
    """As ModernBERT's: byte pairs with BERT's special tokens. A word behind a blank is one."""
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for word in (f"Ġ{word}" for word in WORDS):
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    backend.add_special_tokens(SPECIAL)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


def wordpiece_tokenizer(folder: Path) -> Tokenizer:
    """As Nomic's and the English gte's, which is BERT's."""
    return Tokenizer.from_pieces([*SPECIAL, *WORDS, ".", "[", "]", *"0123456789", "##s"], lowercase=True)


def roberta_like_tokenizer(folder: Path) -> Tokenizer:
    """As MPNet's: BERT's pieces with RoBERTa's special tokens, and an [UNK] of its own."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *WORDS, ".", "[", "]", *"0123456789", "##s", "<mask>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    transformers.MPNetTokenizer(vocab=vocabulary).save_pretrained(folder)
    return Tokenizer.load(folder)


@pytest.fixture
def desk(tmp_path: Path, models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with labelled rows of each task, sixteen of each."""
    monkeypatch.chdir(tmp_path)
    for task, ending in TASKS.items():
        rows = [row_of(task, number) for number in range(16)]
        if ending == "csv":
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        else:
            lines = [json.dumps(row) for row in rows]
        (tmp_path / f"{task}.{ending}").write_text("\n".join(lines) + "\n")
    yield tmp_path


def row_of(task: str, number: int) -> dict[str, Any]:
    draw = random.Random(f"{task} {number}")
    words = draw.choices(WORDS, k=draw.randint(3, 12))
    text, other = " ".join(words), " ".join(draw.choices(WORDS, k=5))
    kind = ("red", "blue", "green")[number % 3]
    return {
        "classification": {"text": text, "label": kind},
        "multi-label": {"text": text, "labels": [kind, "cat"][: number % 3]},
        "regression": {"text": text, "score": number / 4},
        "tagging": {"words": words, "tags": ["B-PER" if word == "cat" else "O" for word in words]},
        "question-answering": {
            "id": str(number),
            "question": other,
            "context": text,
            "answers": [{"text": words[1], "answer_start": len(words[0]) + 1}],
        },
        "similarity": {"sentence1": text, "sentence2": other, "score": number % 5},
        "retrieval": {"query": text, "document": f"{other} {number}"},
        "reranking": {"query": f"cat {number // 4}", "document": other, "label": number % 2},
    }[task]


def finetune(task: str, models_folder: Path, family: str, *more: str) -> Path:
    """The model after two steps, with the training rows as dev."""
    rows = f"{task}.{TASKS[task]}"
    data = ["--train", rows, "--dev", rows, "--out", f"runs/{task}"]
    assert main(["finetune", task, "--model", str(models_folder / family), *data, *TWO_STEPS, *more]) == 0
    return Path(f"runs/{task}/model")


def lines_of(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def long_text(last: str, words: int = 1000) -> str:
    return " ".join([*random.Random(1).choices(WORDS, k=words - 1), last])


@pytest.mark.parametrize(
    ("family", "task"),
    [
        pytest.param(family, task, marks=[pytest.mark.slow] * (place % 2 == other % 2 or other > 1))
        for place, task in enumerate(TASKS)
        for other, family in enumerate(FAMILIES)
    ],
)
def test_each_task_trains_predicts_and_is_measured(
    family: str, task: str, desk: Path, models_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finetune(task, models_folder, family)
    assert read_checkpoint(folder).config.model_type == family
    steps = [line for line in lines_of(f"runs/{task}/restarts/1/log.jsonl") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2]
    measured = json.loads((desk / f"runs/{task}/results.json").read_text())["evaluations"]["dev"]["model"]
    rows = f"{task}.{TASKS[task]}"
    assert figures(capsys, "evaluate", str(folder), rows)["model"] == pytest.approx(measured, abs=1e-5)
    if task != "retrieval":  # whose rows have nothing to be predicted
        assert main(["predict", str(folder), rows, "--out", "said.jsonl"]) == 0
        assert predictions("said.jsonl") == predictions(f"runs/{task}/predictions/dev.jsonl")


def predictions(path: str) -> list[Any]:
    """What the task answered, without numbers, which may differ in the last digit."""
    return [
        {key: line[key] for key in ("label", "labels", "tags", "answer") if key in line}
        for line in lines_of(path)
    ]


def test_a_search_freezes_no_layers_that_share_weights(desk: Path, models_folder: Path) -> None:
    """ALBERT's; two of four can't be frozen alone."""
    rows = ["--train", "classification.csv", "--dev", "classification.csv", "--out", "runs/tuned"]
    trials = ["trials=3", "search.epochs=[1,2]", "hardware.threads=1"]
    model = ["--model", str(models_folder / "albert")]
    assert main(["tune", "classification", *model, *rows, *trials]) == 0
    assert "freeze_layers" not in Path("runs/tuned/trials.json").read_text(encoding="utf-8")
    assert (
        main(
            [
                "tune",
                "classification",
                *model,
                *rows[:-1],
                "runs/other",
                *trials,
                "search.freeze_layers=[0,2]",
            ]
        )
        == 2
    )


@each_family
def test_a_long_text_is_read_whole(
    family: str, desk: Path, models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand words, by training, by prediction, and by transformers: the scores are the same."""
    # which holds the weights so small that it says the same of both
    monkeypatch.setattr("bertsmith.tasks.heads.linear_start.LinearProbe.of", lambda *given, **named: None)
    texts = [long_text(word) for word in ("red", "blue")]
    rows = [f"{text},{number}" for number, text in enumerate(texts * 8)]
    (desk / "regression.csv").write_text("\n".join(["text,score", *rows]))
    folder = finetune("regression", models_folder, family, f"max_length={LONGEST}", "pooling=published")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == LONGEST
    inputs = [tokenizer(text, return_tensors="pt") for text in texts]
    lengths = [each["input_ids"].shape[1] for each in inputs]
    steps = [line for line in lines_of("runs/regression/restarts/1/log.jsonl") if line["kind"] == "step"]
    assert steps[-1]["tokens"] == 8 * sum(lengths) > 16 * 1000
    (desk / "new.csv").write_text("\n".join(["text", *texts]))
    assert main(["predict", str(folder), "new.csv", "--out", "said.jsonl", *EXACT]) == 0
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    wanted = [float(theirs(**each).logits.detach()) for each in inputs]
    assert abs(wanted[0] - wanted[1]) > 2e-3  # the last word counts, far above the tolerance
    assert [line["score"] for line in lines_of("said.jsonl")] == pytest.approx(wanted, abs=1e-4)
    (folder / "bertsmith.json").unlink()  # a folder of transformers' own
    assert main(["predict", str(folder), "new.csv", "--out", "again.jsonl", *EXACT]) == 0
    assert lines_of("again.jsonl") == lines_of("said.jsonl")


@each_family
def test_a_long_text_is_embedded_whole(
    family: str, desk: Path, models_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the vectors of sentence-transformers, which asks the tokenizer how much the model reads."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["red cat", long_text("red"), "", "blue dog runs here"]
    (desk / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = str(models_folder / family)
    assert main(["embed", model, "texts.jsonl", "--out", "v.parquet", "--compute-dtype", "float32"]) == 0
    theirs = sentence_transformers.SentenceTransformer(model, device="cpu")
    assert theirs.max_seq_length == LONGEST
    tokens = sum(map(len, theirs.tokenizer(texts)["input_ids"]))
    assert tokens > 1000
    assert f"4 texts, {tokens:,} tokens" in capsys.readouterr().out
    wanted = theirs.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(read_vectors(desk / "v.parquet").vectors, wanted, atol=1e-5)


@each_family
def test_a_tokenizer_without_a_limit_leaves_it_to_the_model(
    family: str, desk: Path, models_folder: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    shutil.copytree(models_folder / family, desk / "model")
    (desk / "model/bertsmith.json").unlink()
    settings = json.loads((desk / "model/tokenizer_config.json").read_text())
    del settings["model_max_length"]
    (desk / "model/tokenizer_config.json").write_text(json.dumps(settings))
    assert Embedder("model").max_length == LONGEST
    theirs = sentence_transformers.SentenceTransformer("model", device="cpu").max_seq_length
    assert theirs == LONGEST + 2 * (family == "mpnet")  # rows of positions, of which it can't read two


@each_family
def test_a_folder_for_embedding_opens_in_sentence_transformers(
    family: str, desk: Path, models_folder: Path
) -> None:
    """With the vectors that it gives here, long texts among them."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = finetune("retrieval", models_folder, family, f"max_length={LONGEST}")
    texts = ["red cat", long_text("blue"), "dog sings"]
    (desk / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = ["embed", str(folder), "texts.jsonl", "--out", "v.parquet", "--compute-dtype", "float32"]
    assert main(command) == 0
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == LONGEST
    np.testing.assert_allclose(read_vectors(desk / "v.parquet").vectors, theirs.encode(texts), atol=1e-5)


@each_family
def test_masks_are_filled_in_long_texts_too(
    family: str, desk: Path, models_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mask = "<mask>" if family == "mpnet" else "[MASK]"
    text = f"{long_text('red', 900)} {mask} {long_text('cat', 90)}"
    (guesses,) = figures(capsys, "fill-mask", str(models_folder / family), text)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(models_folder / family).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models_folder / family)
    inputs = tokenizer(text, return_tensors="pt")
    place = int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero())
    wanted = theirs(**inputs).logits[0, place].softmax(0).sort(descending=True)
    rounded = 3e-4 if family in ("gte", "jina_bert") else 1e-4  # products are in int16
    assert [each["probability"] for each in guesses] == pytest.approx(wanted.values[:5].tolist(), abs=rounded)
    exact = MaskedLanguageModel.load(models_folder / family, "cpu", torch.float32)
    (candidates,) = exact.fill_mask(text)
    found = [candidate.probability for candidate in candidates]
    assert found == pytest.approx(wanted.values[:5].tolist(), abs=2e-6)


@each_family
def test_it_goes_on_being_pretrained_and_is_measured(
    family: str, desk: Path, models_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On sequences of 1,024 tokens."""
    draw = random.Random(3)
    (desk / "articles").mkdir()
    for number in range(40):
        sentences = (" ".join(draw.choices(WORDS, k=9)).capitalize() + "." for _ in range(120))
        (desk / f"articles/{number}.txt").write_text("\n".join(sentences))
    assert main(["corpus", "build", "articles", "--out", "corpus"]) == 0
    settings = ["data.sequence_lengths=[1024]", "data.sequence_shares=[1]", "data.next_sentence=false"]
    run = ["steps=2", "optimizer.warmup=1", "data.batch_size=4", "hardware.threads=1", "out=runs/more"]
    model = str(models_folder / family)
    assert main(["pretrain", "budget", f"init={model}", "corpus=corpus", *settings, *run]) == 0
    before, after = (
        figures(capsys, "evaluate", folder, "corpus", "--sequence-length", "1024")
        for folder in (model, "runs/more/model")
    )
    assert after["mlm_loss"] != before["mlm_loss"]
    assert read_checkpoint("runs/more/model").config.model_type == family


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT's, of transformers' old names
@each_family
def test_lora_s_adapter_opens_in_peft(family: str, desk: Path, models_folder: Path) -> None:
    """On transformers' own modules, with the scores that the merged model predicts here."""
    peft = pytest.importorskip("peft", exc_type=ImportError)
    settings = ("lora.rank=4", "optimizer.learning_rate=0.01", "pooling=published")
    folder = finetune("regression", models_folder, family, *settings)
    adapted = json.loads(Path("runs/regression/adapter/adapter_config.json").read_text())["target_modules"]
    ends = {"modernbert": {"Wqkv"}, "albert": {"query", "value"}, "mpnet": {"q", "v"}}
    ends["deberta-v2"] = {"query_proj", "value_proj"}
    ends["jina_bert"] = ends["albert"]
    assert {name.rpartition(".")[2] for name in adapted} == ends.get(family, {"q_proj", "v_proj"})
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        models_folder / family, num_labels=1
    )
    theirs = peft.PeftModel.from_pretrained(theirs, "runs/regression/adapter").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert main(["predict", str(folder), "regression.csv", "--out", "said.jsonl", *EXACT]) == 0
    for line in lines_of("said.jsonl"):
        logit = float(theirs(**tokenizer(line["text"], return_tensors="pt")).logits.detach())
        assert line["score"] == pytest.approx(logit, abs=1e-4)


def test_look_shows_byte_pairs_as_text(
    desk: Path, models_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["look", str(models_folder / "modernbert"), "red cat sleeps [MASK]", "--out", "look.html"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert {"cat", "sleeps"} <= set(printed.split()) and "Ġcat" not in printed
