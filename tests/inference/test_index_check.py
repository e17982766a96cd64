"""`bertsmith check` of an index: its golden queries find what they found when it was changed last."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.files import read_json
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.integrity import QUERIES
from bertsmith.inference.index.manifest import read_index_manifest
from bertsmith.inference.index.writer import writing
from served_models import save_encoder

pytest.importorskip("lancedb")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("index")
    save_encoder(place / "encoder")
    (place / "texts").mkdir()
    for number, words in enumerate(("bano delo", "guma kano lelo", "firu", "miru bano guma")):
        (place / "texts" / f"{number}.txt").write_text(f"{words}. kano {words}.")
    Index.build([place / "texts"], place / "out", model=str(place / "encoder"))
    return place / "out"


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "index"))


def test_a_sound_index_agrees_whoever_changed_it_last(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(index)]) == 0
    assert "8 of 8 texts agree" in capsys.readouterr().out
    first = read_index_manifest(index).golden
    (tmp_path / "more.txt").write_text("delo delo miru.")
    Index.open(index).add([tmp_path / "more.txt"])
    second = read_index_manifest(index).golden
    assert check_model(index).agrees and second != first
    Index.open(index).remove([id for id in Index.open(index).texts() if id.endswith("more.txt")])
    assert check_model(index).agrees and read_index_manifest(index).golden not in ("", second)
    assert len([*index.glob("golden-*.json")]) == 1
    asked = [kept for kept, _ in Index.open(index).golden_queries()]
    found = {hit.document_id: hit.score for hit in Index.open(index).search(QUERIES[0], 10, "vector")}
    assert dict(asked[0].by_vector) == pytest.approx(
        {f"{id}@0": score for id, score in found.items()}, abs=1e-5
    )
    assert all(each.by_vector and each.by_words for each in asked)


def test_a_vector_that_was_damaged_behind_a_new_hash_is_found(index: Path) -> None:
    with writing(index) as writer:  # which takes what stands for what was committed
        golden = writer.manifest.golden
        row = writer.table.table.search().limit(1).to_list()[0]
        vector = np.array(row["vector"], np.float32)
        vector[0] += 0.01
        writer.table.table.update(where=f"id = '{row['id']}'", values={"vector": vector.tolist()})
        writer.commit(golden=golden)
    assert Index.open(index).verify() == 4
    (found,) = [each for name, each in check_model(index).comparisons.items() if name == "hits by vector"]
    assert not found.agrees and row["id"] in str(found.differences[0])
    assert main(["check", str(index)]) == 1


@pytest.mark.parametrize("what", ["prompt", "weights"])
def test_another_model_or_prompt_is_found(
    what: str, index: Path, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = Path(shutil.copytree(built.parent / "encoder", tmp_path / "encoder"))
    opened = Index.open(index)
    with writing(index) as writer:
        model = opened.info.model.model_copy(update={"name": str(encoder)})
        writer.commit(model=model, golden=opened.info.golden)
    assert check_model(index).agrees
    if what == "weights":
        content = bytearray((encoder / "model.safetensors").read_bytes())
        content[-1] ^= 64
        (encoder / "model.safetensors").write_bytes(content)
        (encoder / "bertsmith.json").unlink()
    else:
        path = encoder / "config_sentence_transformers.json"
        said = read_json(path) if path.exists() else {}
        path.write_text(json.dumps(said | {"prompts": {"query": "ask: ", "document": ""}}))
        (encoder / "bertsmith.json").unlink()
    assert main(["check", str(index)]) == 2
    assert "was built by" in capsys.readouterr().err


def test_an_index_of_before_has_none_until_it_is_built_again(index: Path, built: Path) -> None:
    with writing(index) as writer:
        writer.commit()
    assert Index.open(index).golden_queries() == []
    with pytest.raises(InputError, match="has no golden queries"):
        check_model(index)
    with pytest.raises(InputError, match="Leave --against and --write out"):
        check_model(index, write=True)
    Index.build([built.parent / "texts"], index)
    assert check_model(index).agrees
