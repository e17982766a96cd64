"""Sequences in NumPy's files: damaged, larger than memory, and of types that are no numbers."""

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.sequences.encoding import encode_sequences
from bertsmith.data.sequences.records import RowFile, stream_records
from bertsmith.errors import InputError
from bertsmith.text.tokens.value_tokenizers import load_tokenizer


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_no_damage_of_an_array_gives_anything_but_a_sentence_or_rows(tmp_path: Path, save: Any) -> None:
    path, chance, refused = tmp_path / ("rows.npy" if save is np.save else "rows.npz"), random.Random(0), 0
    save(path, np.arange(200).reshape(20, 10))
    whole = path.read_bytes()
    for _ in range(150):
        altered = bytearray(whole)
        for _ in range(3):
            altered[chance.randrange(200)] = chance.randrange(256)
        path.write_bytes(altered[: chance.choice((len(whole), chance.randrange(len(whole))))])
        try:
            for _ in stream_records(RowFile(path)):
                pass
        except InputError:
            refused += 1
    assert refused > 50


def test_an_array_larger_than_memory_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    said = {"descr": "<i8", "fortran_order": False, "shape": (10**13, 10)}
    np.lib.format.write_array_header_1_0(header, said)
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("sequence.npy", header.getvalue())
    with pytest.raises(InputError, match="Unable to allocate"):
        build_sequences([tmp_path / "rows.npz"], tmp_path / "store")


@pytest.mark.parametrize("kind", ["datetime64[s]", "complex128", [("a", "i4")]])
def test_arrays_of_other_types_than_numbers_and_strings_are_refused(tmp_path: Path, kind: Any) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((3, 4), kind))
    with pytest.raises(InputError, match="expected numbers or strings in the array sequence"):
        build_sequences([tmp_path / "rows.npy"], tmp_path / "store", SequenceSettings(kind="series"))


def test_objects_in_arrays_are_refused_unopened(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[1], [1, 2]], object), allow_pickle=True)
    with pytest.raises(InputError, match="no objects, which would need pickle"):
        build_sequences([tmp_path / "rows.npy"], tmp_path / "store")


@pytest.mark.parametrize("kind", ["symbols", "series", "images", "table"])
def test_padding_is_advised_only_where_it_is_left_out_again(tmp_path: Path, kind: Any) -> None:
    """A -1 at the end of a series or an image, or in a table, is a number like any other."""
    np.save(tmp_path / "good.npy", np.array([[1, 2], [3, 4]]))
    np.save(tmp_path / "rows.npy", np.array([[1], [1, 2]], object), allow_pickle=True)
    for files in (["rows.npy"], ["good.npy", "rows.npy"]) if kind == "symbols" else (["rows.npy"],):
        with pytest.raises(InputError, match="go into Parquet or JSON lines") as caught:
            build_sequences(
                [tmp_path / name for name in files], tmp_path / "store", SequenceSettings(kind=kind)
            )
        assert ("padded with -1" in str(caught.value)) is (kind == "symbols")


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_number_in_an_array_is_the_category_that_it_is_in_csv(tmp_path: Path, kind: Any) -> None:
    """float32 made 0.10000000149011612 of 0.1, another category than that of CSV and Parquet."""
    np.savez(tmp_path / "rows.npz", dose=np.array([0.1, 0.5] * 9, kind), score=np.array([0.7] * 18, kind))
    (tmp_path / "rows.csv").write_text("dose,score\n0.1,0.7\n")
    settings = SequenceSettings(kind="table", heldout=0)
    build_sequences([tmp_path / "rows.npz"], tmp_path / "store", settings)
    found = encode_sequences(tmp_path / "rows.csv", tmp_path / "store", tmp_path / "out.jsonl")
    assert (found.symbols, found.unknown) == (2, 0)


@pytest.mark.parametrize("series", ["1_0 2", ["1_0", "2"]])
def test_an_underscore_is_part_of_no_number_of_a_series(tmp_path: Path, series: Any) -> None:
    """NumPy reads 1_0 as 10."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"series": series}) + "\n")
    settings = SequenceSettings(kind="series", patch=2, heldout=0)
    with pytest.raises(InputError, match="expected a list of finite numbers"):
        build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", settings)
    (tmp_path / "rows.jsonl").write_text('{"series": "10 2"}\n')
    build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", settings)
    with pytest.raises(InputError, match="Expected numbers"):
        load_tokenizer(tmp_path / "store" / "tokenizer").encode_pieces(["1_0 2"])
