"""Sequences that are no text: what becomes of rows, and what is refused."""

import json
import math
import pickle
import random
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.cli.main import main
from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.sequences.codec import find_columns, read_codec
from bertsmith.data.sequences.encoding import encode_sequences
from bertsmith.data.sequences.records import SequenceRow
from bertsmith.data.store import TokenStore
from bertsmith.errors import BertsmithError, InputError, StoreError
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import NumberTokenizer, PatchTokenizer, load_tokenizer


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def stored_rows(store: Path) -> list[list[str]]:
    """All rows of both splits as the tokenizer reads them."""
    tokenizer = load_tokenizer(store / "tokenizer")
    found = []
    for split in ("train", "heldout"):
        opened = TokenStore.open(store / split, tokenizer)
        opened.verify()
        starts = opened.sentence_starts
        for start, end in pairwise(starts.tolist()):
            found.append([tokenizer.id_to_token(int(number)) for number in opened.tokens[start:end]])
    return found


def test_random_sequences_come_back_from_the_store_symbol_by_symbol(tmp_path: Path) -> None:
    chance = random.Random(0)
    symbols = ["7", "42", "##x", "a", "ab", "-3", "[mask]", "Ä", "2,5"]
    rows = [chance.choices(symbols, k=chance.randrange(1, 9)) for _ in range(200)]
    file = write(tmp_path / "rows.jsonl", [{"events": row} for row in rows])
    build_sequences([file], tmp_path / "store", SequenceSettings(heldout=0.3))
    assert sorted(stored_rows(tmp_path / "store")) == sorted(rows)


def test_text_of_symbols_has_the_ids_of_the_store(tmp_path: Path) -> None:
    """##x after a is no continuation of it, and an unknown symbol is one [UNK] whatever it begins with."""
    file = write(tmp_path / "rows.jsonl", [{"events": ["a", "b", "ab", "##b"]}] * 3)
    build_sequences([file], tmp_path / "store")
    tokenizer = Tokenizer.load(tmp_path / "store/tokenizer")
    assert tokenizer.encode("ab a ##b aab").tokens == ["ab", "a", "##b", "[UNK]"]
    assert not tokenizer.continues_word.any()


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_integers_of_arrays_end_where_padding_begins(tmp_path: Path, dtype: Any) -> None:
    np.save(tmp_path / "rows.npy", np.array([[4, 5, -1], [6, -1, -1], [-1, -1, -1]], dtype))
    built = build_sequences([tmp_path / "rows.npy"], tmp_path / "store", SequenceSettings(heldout=0))
    assert stored_rows(tmp_path / "store") == [["4", "5"], ["6"]]
    assert built.empty == 1


def test_equal_rows_are_on_the_same_side_and_a_build_repeats_to_the_byte(tmp_path: Path) -> None:
    rows = [{"events": [number % 40, number % 7]} for number in range(800)]
    file = write(tmp_path / "rows.jsonl", rows)
    for name in ("one", "two"):
        build_sequences([file], tmp_path / name, SequenceSettings(heldout=0.3))
    splits = []
    for split in ("train", "heldout"):
        opened = TokenStore.open(tmp_path / "one" / split)
        splits.append({tuple(row) for row in opened.tokens.reshape(-1, 2).tolist()})
        same = [(tmp_path / name / split / "tokens.bin").read_bytes() for name in ("one", "two")]
        assert same[0] == same[1]
    assert splits[0] and splits[1] and not splits[0] & splits[1]


def test_rare_symbols_and_those_beyond_the_size_are_unknown(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"events": ["a"] * 3 + ["b"] * 2 + ["c"] * 2 + ["d"]}])
    settings = SequenceSettings(min_count=2, vocab_size=7, heldout=0)
    built = build_sequences([file], tmp_path / "store", settings)
    tokenizer = Tokenizer.load(tmp_path / "store/tokenizer")
    assert tokenizer.pieces[5:] == ("a", "b")
    assert built.unknown == 3


def test_characters_of_a_string_are_items(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"protein": "MKV A", "id": 1}])
    settings = SequenceSettings(column="protein", characters=True, heldout=0)
    build_sequences([file], tmp_path / "store", settings)
    assert stored_rows(tmp_path / "store") == [["M", "K", "V", "A"]]


def test_bins_hold_about_as_many_cells_each_and_keep_their_order() -> None:
    values = np.random.default_rng(0).lognormal(size=1000)
    (column,) = find_columns((SequenceRow({"x": value}, "") for value in values.tolist()), ["x"], bins=10)
    assert column.kind == "number"
    bins = [int(column.encode_cell(value, "").partition(":")[2]) for value in np.sort(values).tolist()]
    assert bins == sorted(bins)
    assert np.bincount(bins).tolist() == pytest.approx([100] * 10, abs=1)


@pytest.fixture
def sorted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """More than are looked at: `x` rises, and `y` has one value until its last quarter."""
    monkeypatch.setattr("bertsmith.data.sequences.codec.SAMPLE", 400)
    return write(tmp_path / "rows.jsonl", [{"x": n, "y": max(n, 3000)} for n in range(4000)])


def test_bins_of_a_sorted_file_are_those_of_all_its_rows(tmp_path: Path, sorted_rows: Path) -> None:
    """And the same at every build."""
    settings = SequenceSettings(kind="table", bins=8, heldout=0)
    built = [build_sequences([sorted_rows], tmp_path / name, settings) for name in ("one", "two")]
    assert [column.kind for column in built[0].codec.columns] == ["number", "number"]
    bins = [int(x.partition(":")[2]) for x, _ in stored_rows(tmp_path / "one")]
    assert bins == sorted(bins)
    assert np.bincount(bins).tolist() == pytest.approx([500] * 8, abs=200)
    assert built[0].codec == built[1].codec
    same = [(tmp_path / name / "train/tokens.bin").read_bytes() for name in ("one", "two")]
    assert same[0] == same[1]


def test_numbers_of_a_sorted_file_are_scaled_by_all_its_rows(tmp_path: Path, sorted_rows: Path) -> None:
    settings = SequenceSettings(kind="table", numbers="continuous", heldout=0)
    build_sequences([sorted_rows], tmp_path / "store", settings)
    values = TokenStore.open(tmp_path / "store/train").values
    assert values is not None
    x = values[::2, 0]
    assert (abs(x.mean()), x.std()) == pytest.approx((0, 1), abs=0.15)
    assert len(set(x.tolist())) == 4000


def test_each_row_is_as_likely_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones too, which are there before others take their place."""
    monkeypatch.setattr("bertsmith.data.sequences.codec.SAMPLE", 1000)
    (column,) = find_columns((SequenceRow({"x": float(n)}, "") for n in range(20_000)), ["x"], bins=2)
    assert column.edges == (pytest.approx(10_000, abs=1000),)
    (column,) = find_columns((SequenceRow({"x": float(n)}, "") for n in range(20_000)), ["x"], bins=None)
    assert column.scale == pytest.approx((10_000, 20_000 / math.sqrt(12)), rel=0.08)


def test_a_word_among_numbers_is_named_whether_it_stayed_in_the_sample_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bertsmith.data.sequences.codec.SAMPLE", 20)
    rows = [SequenceRow({"x": "NA" if n == 3 else n}, f"row {n + 1}") for n in range(2000)]
    with pytest.raises(InputError, match=r"row 4: the column x .* (19 of 20|20 of 21) cells, here 'NA'"):
        find_columns(rows, ["x"], bins=4)


def test_a_table_s_cells_are_symbols_of_their_column(tmp_path: Path) -> None:
    lines = ["age,city,label"] + [
        f"{number},{('Oslo', 'New York', '')[number % 3]},x" for number in range(60)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    settings = SequenceSettings(kind="table", leave_out=("label",), bins=4, heldout=0)
    build_sequences([tmp_path / "rows.csv"], tmp_path / "store", settings)
    assert stored_rows(tmp_path / "store")[-2:] == [["age:3", "city=New_York"], ["age:3", "city=?"]]
    (tmp_path / "more.csv").write_text("label,city,age\nbad,Rome,-5\n")
    encode_sequences(tmp_path / "more.csv", tmp_path / "store", tmp_path / "more.jsonl")
    assert json.loads((tmp_path / "more.jsonl").read_text()) == {"text": "age:0 city=Rome", "label": "bad"}


@pytest.mark.parametrize("names", ["id label", "id --leave-out label"])
def test_an_option_takes_several_columns_of_a_table(names: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"id": 1, "age": 30, "code": 7, "label": "x"}] * 9)
    words = ["sequences", "build", str(file), "--kind", "table", "--heldout", "0", "--leave-out"]
    more = ["--categories", "age", "code", "--out", str(tmp_path / "store")]
    assert main([*words, *names.split(), *more]) == 0
    assert stored_rows(tmp_path / "store") == [["age=30", "code=7"]] * 9


@pytest.mark.parametrize("ending", ["dat", "tsv"])
def test_a_table_s_encoding_format_and_missing_header_may_be_named(ending: str, tmp_path: Path) -> None:
    """In the words that the errors recommend."""
    file, store, out = tmp_path / f"rows.{ending}", tmp_path / "store", tmp_path / "out.jsonl"
    file.write_text("Malmö,é\nOslo,e\n" * 9, encoding="latin-1")
    layout = ["--encoding", "latin-1", "--format", "csv", "--no-header"]
    kind = ["--kind", "table", "--heldout", "0"]
    assert main(["sequences", "build", str(file), *kind, *layout, "--out", str(store)]) == 0
    assert stored_rows(store) == [["1=Malmö", "2=é"], ["1=Oslo", "2=e"]] * 9
    assert main(["sequences", "encode", str(file), "--like", str(store), *layout, "--out", str(out)]) == 0
    assert json.loads(out.read_text().splitlines()[0]) == {"text": "1=Malmö 2=é"}


def test_symbols_that_are_not_in_the_vocabulary_are_told_beside_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "a.csv", tmp_path / "store"
    file.write_text("kind\nred\nblue\n")
    build_sequences([file], store, SequenceSettings(kind="table", heldout=0))
    file.write_text("kind\ngreen\n")
    assert main(["sequences", "encode", str(file), "--like", str(store), "--out", "-"]) == 0
    printed, said = capsys.readouterr()
    assert printed == '{"text": "kind=green"}\n'
    assert "1 of 1 symbols are not in the vocabulary" in said


def test_json_lines_of_another_ending_and_encoding_are_read(tmp_path: Path) -> None:
    file, store, out = tmp_path / "events.log", tmp_path / "store", tmp_path / "out.jsonl"
    file.write_text('{"events": ["é", "b"]}\n{"events": ["b"], "label": "ö"}\n', encoding="latin-1")
    build_sequences([file], store, SequenceSettings(heldout=0, format="jsonl", encoding="latin-1"))
    assert stored_rows(store) == [["é", "b"], ["b"]]
    encode_sequences(file, store, out, format="jsonl", encoding="latin-1")
    assert json.loads(out.read_text().splitlines()[1]) == {"text": "b", "label": "ö"}


def test_numbers_that_stay_have_a_piece_a_column_and_their_value(tmp_path: Path) -> None:
    """In the store, and in the text that fine-tuning reads."""
    chance = np.random.default_rng(0)
    ages = [None if number == 7 else float(age) for number, age in enumerate(chance.normal(40, 9, 60))]
    rows = [{"age": age, "city": "Oslo" if number % 2 else "Rome"} for number, age in enumerate(ages)]
    file = write(tmp_path / "rows.jsonl", rows)
    settings = SequenceSettings(kind="table", numbers="continuous", heldout=0)
    built = build_sequences([file], tmp_path / "store", settings)
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    assert isinstance(tokenizer, NumberTokenizer)
    assert set(tokenizer.pieces[5:]) == {"age:", "age=?", "city=Oslo", "city=Rome", "[VALUE0]"}
    assert tokenizer.pieces[-1] == "[VALUE0]"
    assert stored_rows(tmp_path / "store")[6:8] == [["age:", "city=Rome"], ["age=?", "city=Oslo"]]
    store = TokenStore.open(tmp_path / "store/train", tokenizer)
    assert store.values is not None and store.values.shape == (120, 1)
    known = np.array([age for age in ages if age is not None])
    expected = (np.array([age or known.mean() for age in ages]) - known.mean()) / known.std()
    np.testing.assert_allclose(store.values[::2, 0], expected, atol=1e-5)
    assert not store.values[1::2].any()
    found = encode_sequences(file, tmp_path / "store", tmp_path / "encoded.jsonl")
    assert (found.symbols, found.unknown) == (120, 0)
    texts = [json.loads(line)["text"] for line in (tmp_path / "encoded.jsonl").read_text().splitlines()]
    pieces = tokenizer.encode_pieces(texts)
    np.testing.assert_array_equal(np.concatenate([each.values for each in pieces]), store.values)
    assert np.concatenate([each.ids for each in pieces]).tolist() == store.tokens.tolist()
    (far,) = pickle.loads(pickle.dumps(tokenizer)).encode_pieces(["age:1e9 city=Paris"])
    assert (far.ids, far.values[0, 0]) == ([tokenizer.ids["age:"], tokenizer.unk_id], 10)
    with pytest.raises(InputError, match="'age:old': expected a finite number"):
        tokenizer.encode_pieces(["age:old city=Oslo"])
    with pytest.raises(InputError, match="reads tables with their numbers as they are, not text"):
        tokenizer.encode("age:4")
    assert built.vocab_size == 10


def test_a_table_of_numbers_alone_and_one_without_any_can_stay_as_they_are(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"x": number, "y": number**2} for number in range(30)])
    settings = SequenceSettings(kind="table", numbers="continuous", heldout=0)
    build_sequences([file], tmp_path / "numbers", settings)
    assert stored_rows(tmp_path / "numbers")[:1] == [["x:", "y:"]]
    build_sequences([file], tmp_path / "none", settings.model_copy(update={"categories": ("x", "y")}))
    assert TokenStore.open(tmp_path / "none/train").values is None
    odd = write(tmp_path / "odd.jsonl", [{"a b": number, "a\tb": number} for number in range(30)])
    with pytest.raises(InputError, match="differ by white space alone"):
        build_sequences([odd], tmp_path / "odd", settings)


def test_an_image_s_patches_are_its_squares_normalised(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(5, 3, (20, 4, 6))
    np.save(tmp_path / "images.npy", images)
    settings = SequenceSettings(kind="images", patch=2, heldout=0)
    build_sequences([tmp_path / "images.npy"], tmp_path / "store", settings)
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    store = TokenStore.open(tmp_path / "store/train", tokenizer)
    assert store.values is not None
    normal = (images - images.mean()) / images.std()
    expected = [
        normal[0, row : row + 2, column : column + 2].ravel() for row in (0, 2) for column in (0, 2, 4)
    ]
    np.testing.assert_allclose(store.values[:6], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["images", "series"])
def test_of_rows_of_numbers_too_a_share_is_held_out_and_equal_ones_are_on_the_same_side(
    kind: Any, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4, 4) if kind == "images" else (200, 16))
    np.save(tmp_path / "rows.npy", np.concatenate([rows, rows]))
    settings = SequenceSettings(kind=kind, patch=2, heldout=0.3)
    built = build_sequences([tmp_path / "rows.npy"], tmp_path / "store", settings)
    assert 70 < built.rows["heldout"] < 170
    sides = []
    for split in ("train", "heldout"):
        store = TokenStore.open(tmp_path / "store" / split, load_tokenizer(tmp_path / "store/tokenizer"))
        assert store.values is not None
        sides.append({each.tobytes() for each in np.asarray(store.values).reshape(built.rows[split], -1)})
    assert not sides[0] & sides[1]


def test_a_row_of_text_has_the_values_of_the_store(tmp_path: Path) -> None:
    """What fine-tuning reads is what pre-training read."""
    rows = np.random.default_rng(0).normal(size=(5, 10, 2)).tolist()
    file = write(tmp_path / "rows.jsonl", [{"series": row, "label": 1} for row in rows])
    settings = SequenceSettings(kind="series", patch=4, heldout=0)
    build_sequences([file], tmp_path / "store", settings)
    encode_sequences(file, tmp_path / "store", tmp_path / "encoded.jsonl")
    texts = [json.loads(line)["text"] for line in (tmp_path / "encoded.jsonl").read_text().splitlines()]
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    assert isinstance(tokenizer, PatchTokenizer)
    store = TokenStore.open(tmp_path / "store/train", tokenizer)
    assert store.values is not None and store.values.shape == (15, 8)
    pieces = tokenizer.encode_pieces(texts)
    np.testing.assert_allclose(np.concatenate([each.values for each in pieces]), store.values, atol=1e-5)
    assert (store.values[2::3, 4:] == 0).all()  # ten steps are two windows and a half


def test_numbers_far_from_nought_keep_their_digits_on_the_way_to_fine_tuning(tmp_path: Path) -> None:
    """Times in seconds since 1970, some seconds apart: seven digits would make one number of them."""
    times = 1.6e9 + np.random.default_rng(0).normal(0, 10, (20, 8))
    np.save(tmp_path / "times.npy", times)
    settings = SequenceSettings(kind="series", patch=8, heldout=0)
    build_sequences([tmp_path / "times.npy"], tmp_path / "store", settings)
    encode_sequences(tmp_path / "times.npy", tmp_path / "store", tmp_path / "encoded.jsonl")
    texts = [json.loads(line)["text"] for line in (tmp_path / "encoded.jsonl").read_text().splitlines()]
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    assert isinstance(tokenizer, PatchTokenizer)
    store = TokenStore.open(tmp_path / "store/train", tokenizer)
    assert store.values is not None and store.values.std() == pytest.approx(1, abs=0.01)
    pieces = tokenizer.encode_pieces(texts)
    np.testing.assert_array_equal(np.concatenate([each.values for each in pieces]), store.values)


def test_a_constant_series_is_nought_and_another_value_no_giant(tmp_path: Path) -> None:
    """Over rows of many lengths the deviation of a constant is rounding, and nothing to divide by."""
    lengths = np.random.default_rng(1).integers(3, 40, 50).tolist()
    file = write(tmp_path / "rows.jsonl", [{"series": [17.974005664190102] * length} for length in lengths])
    build_sequences([file], tmp_path / "store", SequenceSettings(kind="series", heldout=0))
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    store = TokenStore.open(tmp_path / "store/train", tokenizer)
    assert store.values is not None and np.abs(store.values).max() < 1e-12
    assert isinstance(tokenizer, PatchTokenizer)
    (pieces,) = tokenizer.encode_pieces(["18.974005664190102"])
    assert pieces.values.max() == pytest.approx(1)


def test_what_a_model_cannot_hold_is_refused_when_it_is_asked_too(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(0, 1e-9, (20, 8)))
    build_sequences([tmp_path / "rows.npy"], tmp_path / "store", SequenceSettings(kind="series"))
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    with pytest.raises(InputError, match=r"1e\+10 is more than 1e\+18 deviations from the mean"):
        tokenizer.encode_pieces(["0 1e10"])


def test_categories_may_be_numbers_when_they_are_said_to_be(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"code": number} for number in range(20)])
    settings = SequenceSettings(kind="table", categories=("code",), heldout=0)
    build_sequences([file], tmp_path / "store", settings)
    assert stored_rows(tmp_path / "store")[:2] == [["code=0"], ["code=1"]]


def test_symbols_that_the_vocabulary_lacks_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"events": ["a", "b"]}])
    build_sequences([file], tmp_path / "store", SequenceSettings(heldout=0))
    more = write(tmp_path / "more.jsonl", [{"events": ["a", "c", "c", "d"]}, {"events": ["b"]}])
    found = encode_sequences(more, tmp_path / "store", tmp_path / "out.jsonl")
    assert (found.rows, found.symbols, found.unknown, found.unknown_examples) == (2, 5, 3, ["c", "d"])


def test_columns_of_any_type_are_kept_beside_the_sequence(tmp_path: Path) -> None:
    kept = {"when": datetime(2020, 1, 2), "price": Decimal("1.5"), "gap": float("nan"), "raw": b"\x0f"}
    columns = {"events": [["a"]], **{name: [value] for name, value in kept.items()}}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    settings = SequenceSettings(column="events", heldout=0)
    build_sequences([tmp_path / "rows.parquet"], tmp_path / "store", settings)
    encode_sequences(tmp_path / "rows.parquet", tmp_path / "store", tmp_path / "out.jsonl")
    expected = {"text": "a", "when": "2020-01-02 00:00:00", "price": 1.5, "gap": None, "raw": "0f"}
    assert json.loads((tmp_path / "out.jsonl").read_text()) == expected


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        ([{"events": [1.5]}], {}, "line 1: expected integers or strings as the items"),
        ([{"events": ["a"]}, {"events": ["[MASK]"]}], {}, "line 2: '[MASK]' (str) can't be an item"),
        ([{"events": ["a"]}, {"events": ["\ud83d"]}], {}, r"line 2: '\ud83d' (str) can't be an item"),
        ([{"x": "a"}, {"x": "\ud83d"}], {"kind": "table"}, "line 2: 'x=\\ud83d' (str) can't be an item"),
        ([{"events": 5}], {}, "line 1: expected a sequence in the column events"),
        ([{"a": [1], "b": [2]}], {}, "no column has a name that says it holds the sequences"),
        ([{"events": [1], "ids": [2]}], {}, "more than one column has a name"),
        ([{"events": [1]}], {"column": "event"}, "no column 'event'. There are: events. Did you mean"),
        ([{"events": [1]}], {"min_count": 5}, "occurs 5 times or more. Lower --min-count"),
        ([{"events": []}], {"heldout": 0.5}, "None of 0 different symbols"),
        ([{"x": 1}], {"kind": "table", "leave_out": ("y",)}, "no column 'y'"),
        ([{"x": 1}], {"kind": "table", "leave_out": ("x",)}, "--leave-out leaves no column"),
        (
            [{"x": n} for n in range(20)] + [{"x": "NA"}],
            {"kind": "table"},
            "line 21: the column x holds numbers in 20 of 21 cells, here 'NA' (str)",
        ),
        ([{"x": n} for n in range(20)] + [{"x": math.inf}], {"kind": "table"}, "here inf (float)"),
        ([{"x": [1, 2]}], {"kind": "table"}, "line 1, column x: expected one value a cell"),
        ([{"x": 1}], {"kind": "table", "categories": ("y",)}, "no column 'y'"),
        ([{"series": [1e300, 2]}], {"kind": "series"}, "line 1: expected numbers within ±1e+18"),
        ([{"series": [1, None]}], {"kind": "series"}, "line 1: expected a list of finite numbers"),
        ([{"series": [[1, 2], [3]]}], {"kind": "series"}, "line 1: expected a list of finite numbers"),
        ([{"series": [[1, 2]]}, {"series": [[1]]}], {"kind": "series"}, "line 2: expected the shape of"),
        ([{"image": [1, 2]}], {"kind": "images"}, "line 1: expected an image as rows of pixels"),
        ([{"image": [[1, 2], [3, 4]]}], {"kind": "images", "patch": 3}, "can't be cut into squares of 3"),
        ([{"events": [1, 2]}], {"patch": 2}, "patch has no effect with kind=symbols: it is for series and"),
        ([{"x": 1}], {"kind": "table", "column": "x"}, "column has no effect with kind=table"),
        ([{"series": [1, 2]}], {"kind": "series", "bins": 4}, "bins has no effect with kind=series"),
        (
            [{"x": 1}],
            {"kind": "table", "numbers": "continuous", "bins": 4},
            "bins has no effect with numbers=",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_written(
    tmp_path: Path, rows: list[dict[str, Any]], settings: dict[str, Any], sentence: str
) -> None:
    file = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError) as caught:
        build_sequences([file], tmp_path / "store", SequenceSettings(**settings))
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        ('events\n"[1, 2]"\n', {}, "line 2: expected a sequence in the column events, found a printed list"),
        ("events\n[1 2 10]\n", {}, "found a printed list, '[1 2 10]'"),
        ("id,events\n1,\"['a', 'b']\"\n", {"characters": True}, "Save the table as JSON lines or Parquet"),
        (
            "id;events\n1;login click\n",
            {},
            "expected columns, found one, 'id;events'. It looks separated by semi",
        ),
        ("age;city\n41;Oslo\n", {"kind": "table"}, "save it with commas or tabs"),
        ("age\tcity\n41\tOslo\n", {"kind": "table"}, "--format tsv reads it"),
    ],
)
def test_a_csv_whose_cells_would_be_other_symbols_than_the_table_s_is_refused(
    tmp_path: Path, content: str, settings: dict[str, Any], sentence: str
) -> None:
    """pandas prints a list into a cell; spreadsheets in German write semicolons."""
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(InputError) as caught:
        build_sequences([tmp_path / "rows.csv"], tmp_path / "store", SequenceSettings(**settings))
    assert sentence in str(caught.value)


def test_brackets_may_be_items_of_a_sequence(tmp_path: Path) -> None:
    rows = ["[MAX 4 [MIN 2 3 ] 1 ]", "[ 1 2 ]", "(", "f ( x , 1 )", "{ a }"]
    build_sequences(
        [write(tmp_path / "rows.jsonl", [{"events": row} for row in rows])],
        tmp_path / "store",
        SequenceSettings(heldout=0.0),
    )
    assert stored_rows(tmp_path / "store") == [row.split() for row in rows]


def test_damaged_files_of_a_store_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "series.npy", np.random.default_rng(0).normal(size=(9, 16)))
    build_sequences([tmp_path / "series.npy"], tmp_path / "s", SequenceSettings(kind="series", heldout=0))
    (tmp_path / "s/sequences.json").write_text('{"kind": "songs"}')
    with pytest.raises(BertsmithError, match=r"sequences\.json was altered"):
        read_codec(tmp_path / "s")
    rows = write(tmp_path / "rows.jsonl", [{"x": number} for number in range(30)])
    settings = SequenceSettings(kind="table", numbers="continuous", heldout=0)
    build_sequences([rows], tmp_path / "t", settings)
    scales = tmp_path / "t/tokenizer/numbers.json"
    whole = scales.read_text()
    for other, sentence in (
        (whole.replace('"x:"', '"y:"'), "names y:, which the vocabulary doesn't have"),
        (whole.replace('"deviation": 8', '"deviation": -8'), r"numbers\.json was cut or altered"),
        (whole[:20], r"numbers\.json was cut or altered"),
    ):
        assert other != whole
        scales.write_text(other)
        with pytest.raises(BertsmithError, match=sentence):
            load_tokenizer(tmp_path / "t/tokenizer")
    shape = tmp_path / "s/tokenizer/patches.json"
    shape.write_text(shape.read_text().replace('"size": 8', '"size": 4'))
    with pytest.raises(BertsmithError, match="The files don't belong together"):
        load_tokenizer(tmp_path / "s/tokenizer")
    with pytest.raises(BertsmithError, match=r"holds no sequences\.json"):
        encode_sequences(tmp_path / "series.npy", tmp_path, tmp_path / "out.jsonl")


def test_a_key_that_a_row_leaves_out_is_an_empty_cell(tmp_path: Path) -> None:
    """In the first row too: many writers of JSON omit nulls."""
    rows = [{"age": number, **({"plan": "pro"} if number else {})} for number in range(30)]
    build_sequences(
        [write(tmp_path / "rows.jsonl", rows)], tmp_path / "store", SequenceSettings(kind="table", heldout=0)
    )
    first, second = stored_rows(tmp_path / "store")[:2]
    assert (first[1], second[1]) == ("plan=?", "plan=pro")
    labelled = [{"age": 1}, {"age": 2, "label": "yes"}]
    file = write(tmp_path / "labelled.jsonl", [each | {"plan": "pro"} for each in labelled])
    encode_sequences(file, tmp_path / "store", tmp_path / "encoded.jsonl")
    lines = (tmp_path / "encoded.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == [None, "yes"]


def test_a_key_that_comes_after_the_columns_are_known_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.data.sequences.records._KEY_ROWS", 10)
    file = write(tmp_path / "rows.jsonl", [{"x": n % 3} for n in range(20)] + [{"y": 2}])
    with pytest.raises(InputError, match="line 21: the key 'y' stands in none of the first 10 rows"):
        build_sequences([file], tmp_path / "store", SequenceSettings(kind="table", heldout=0))


@pytest.mark.parametrize("share", [0.05, 0.14, 0.4])
def test_numbers_beside_some_words_are_refused_however_many_these_are(tmp_path: Path, share: float) -> None:
    """NA in a seventh of an income's cells made each number a category."""
    rows = [{"income": "NA" if number < 500 * share else 1000 + number} for number in range(500)]
    file = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError, match="Leave such cells empty"):
        build_sequences([file], tmp_path / "store", SequenceSettings(kind="table", heldout=0))


def test_a_store_of_numbers_is_not_opened_by_the_scales_of_another(tmp_path: Path) -> None:
    """The vocabularies are the same: a column and its value."""
    settings = SequenceSettings(kind="table", numbers="continuous", heldout=0)
    for name, unit in (("a", 1.0), ("b", 100.0)):
        file = write(tmp_path / f"{name}.jsonl", [{"x": unit * number} for number in range(30)])
        build_sequences([file], tmp_path / name, settings)
    ours, other = (load_tokenizer(tmp_path / name / "tokenizer") for name in ("a", "b"))
    assert ours.pieces == other.pieces
    with pytest.raises(StoreError, match="made with another tokenizer"):
        TokenStore.open(tmp_path / "a/train", other)
    assert len(TokenStore.open(tmp_path / "a/train", ours))


def test_words_of_the_file_do_not_replace_the_symbols_that_tags_belong_to(tmp_path: Path) -> None:
    rows = [{"events": ["x", "y"]} for _ in range(30)]
    build_sequences([write(tmp_path / "rows.jsonl", rows)], tmp_path / "store", SequenceSettings(heldout=0))
    file = write(tmp_path / "tagged.jsonl", [{"events": ["x", "y"], "tags": ["A", "B"], "words": ["a", "b"]}])
    with pytest.raises(InputError, match="the column words is no part of the sequence"):
        encode_sequences(file, tmp_path / "store", tmp_path / "encoded.jsonl")


@pytest.mark.parametrize(
    ("kind", "shape", "wrong", "said"),
    [
        ("series", (16, 3), (3, 16), "expected rows of steps x 3 numbers"),
        ("images", (4, 8), (8, 4), "expected rows of 4 x 8 numbers"),
        ("images", (4, 8, 3), (3, 4, 8), "expected rows of 4 x 8 x 3 numbers"),
    ],
)
def test_a_row_whose_axes_are_in_another_order_is_refused(
    tmp_path: Path, kind: Any, shape: tuple[int, ...], wrong: tuple[int, ...], said: str
) -> None:
    """It has as many numbers, each in another place."""
    draw = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", draw.normal(size=(20, *shape)))
    settings = SequenceSettings(kind=kind, patch=4, heldout=0)
    build_sequences([tmp_path / "rows.npy"], tmp_path / "store", settings)
    for name, array in (("wrong", wrong), ("right", shape), ("flat", (math.prod(shape),))):
        np.save(tmp_path / f"{name}.npy", draw.normal(size=(2, *array)))
    with pytest.raises(InputError, match=said):
        encode_sequences(tmp_path / "wrong.npy", tmp_path / "store", tmp_path / "encoded.jsonl")
    for name in ("right", "flat"):
        encode_sequences(tmp_path / f"{name}.npy", tmp_path / "store", tmp_path / f"{name}.jsonl")


def test_a_store_like_another_has_its_tokens(tmp_path: Path) -> None:
    """Whatever the new rows alone would have made: other symbols, another order of them, another scale."""
    old = write(tmp_path / "old.jsonl", [{"events": ["a", "b", "b"]}] * 3)
    new = write(tmp_path / "new.jsonl", [{"events": ["a", "a", "c", "b"]}] * 3)
    build_sequences([old], tmp_path / "store")
    built = build_sequences([new], tmp_path / "like", SequenceSettings(heldout=0), like=tmp_path / "store")
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    assert built.unknown == 3
    assert stored_rows(tmp_path / "like") == [["a", "a", "[UNK]", "b"]] * 3
    assert TokenStore.open(tmp_path / "like/train", tokenizer).manifest.tokenizer_sha256 == tokenizer.sha256


@pytest.mark.parametrize("kind", ["table", "series"])
def test_numbers_like_another_stores_have_its_scale(tmp_path: Path, kind: Any) -> None:
    options: dict[str, Any] = {"numbers": "continuous"} if kind == "table" else {"patch": 2}
    settings = SequenceSettings(kind=kind, heldout=0, **options)
    column = "age" if kind == "table" else "series"
    for name, low in (("old", 0.0), ("new", 1000.0)):
        numbers = [low + number / 4 for number in range(40)]
        rows = [{column: each if kind == "table" else [each, each]} for each in numbers]
        write(tmp_path / f"{name}.jsonl", rows)
    store = tmp_path / "store"
    build_sequences([tmp_path / "old.jsonl"], store, settings)
    build_sequences([tmp_path / "new.jsonl"], tmp_path / "like", SequenceSettings(heldout=0), like=store)
    tokenizer = load_tokenizer(store / "tokenizer")
    values = TokenStore.open(tmp_path / "like/train", tokenizer).values
    assert values is not None and values[values != 0].min() >= 10  # deviations of the old rows


def test_what_a_token_is_says_the_other_store_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "rows.jsonl", [{"events": ["a", "b"]}] * 3)
    store, other = tmp_path / "store", tmp_path / "other"
    build_sequences([file], store)
    build = ["sequences", "build", str(file), "--like", str(store), "--out", str(tmp_path / "like")]
    assert main([*build, "--min-count", "2"]) == 2
    assert "Leave out min_count" in capsys.readouterr().err
    assert main([*build, "--heldout", "0"]) == 0
    build_sequences([write(tmp_path / "more.jsonl", [{"events": ["a", "c"]}])], other)
    with pytest.raises(StoreError, match="sequences build FILE --like STORE"):
        TokenStore.open(other / "train", load_tokenizer(store / "tokenizer"))
