"""Texts and pairs that are too long, against transformers' fast tokenizers on the same folder.

They are cut by the `tokenizers` library, by which published cross-encoders were trained.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from transformers import AutoTokenizer

from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.registry import find_task
from bertsmith.text.tokens.sequence_rules import Truncation
from bertsmith.text.tokens.tokenizer import Tokenizer
from text.tokenizer_samples import SPECIAL, byte_level_files

KINDS = ("bert", "roberta")
STRATEGIES = {"longest_first": "LongestFirst", "only_first": "OnlyFirst", "only_second": "OnlySecond"}
WORDS = [f"w{number}" for number in range(80)]
CASES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "strategy": st.sampled_from([*STRATEGIES]),
        "side": st.sampled_from(["right", "left"]),
        "first": st.integers(0, 40),
        "second": st.integers(0, 40),
        "max_length": st.integers(8, 40),
    }
)
WINDOWS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS),
        "first": st.integers(1, 9),
        "second": st.integers(1, 70),
        "max_length": st.integers(22, 40),
        "stride": st.integers(0, 7),
    }
)
FEW = settings(max_examples=60, derandomize=True)
MANY = settings(max_examples=20_000)


@cache
def opened(folder: Path, side: str, strategy: str) -> tuple[Tokenizer, Any]:
    """Ours and transformers', after somebody has written into the folder how texts are cut."""
    stated = {"direction": "Right", "max_length": 512, "strategy": STRATEGIES[strategy], "stride": 0}
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"truncation": stated}))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"truncation_side": side}))
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    Tokenizer.from_pieces([*SPECIAL, *WORDS], lowercase=True).save(made["bert"])
    Tokenizer.load(byte_level_files(made["roberta"] / "files")).save(made["roberta"])
    return made


def words_of(kind: str, count: int, before: int = 0) -> str:
    """A text of so many tokens: words of the small BERT, letters of the small RoBERTa."""
    letters = "bcdfgijklmnopqrstuvwxyz"
    if kind == "bert":
        return " ".join(WORDS[before : before + count])
    return "".join(letters[(before + place) % len(letters)] for place in range(count))


def encoded(tokenizer: Tokenizer, text: Any, name: str = "classification", **options: Any) -> EncodedExample:
    kind = find_task(name)
    task = kind(kind.Settings(**options))
    return encode_examples(task, [task.example(text)], tokenizer).encoded[0]


def ids_of(found: EncodedExample) -> list[list[int]]:
    return [window.token_ids.tolist() for window in found.windows]


def check_pair(folders: dict[str, Path], case: dict[str, Any]) -> None:
    ours, theirs = opened(folders[case["kind"]], case["side"], case["strategy"])
    texts = words_of(case["kind"], case["first"]), words_of(case["kind"], case["second"], 40)
    length = case["max_length"]
    try:
        wanted = theirs([texts], truncation=case["strategy"], max_length=length)["input_ids"]
    except Exception as error:
        assert "too short to respect" in str(error)  # there we cut both, the longer first
        wanted = theirs([texts], truncation="longest_first", max_length=length)["input_ids"]
    assert ids_of(encoded(ours, texts, max_length=length)) == wanted


def check_text(folders: dict[str, Path], case: dict[str, Any]) -> None:
    ours, theirs = opened(folders[case["kind"]], case["side"], case["strategy"])
    text, length = words_of(case["kind"], case["first"] + case["second"]), case["max_length"]
    wanted = theirs([text], truncation=True, max_length=length)["input_ids"]
    assert ids_of(encoded(ours, text, max_length=length)) == wanted


def check_windows(folders: dict[str, Path], case: dict[str, Any]) -> None:
    """All but the last are those of `return_overflowing_tokens`; the last is moved back until it is full."""
    ours, theirs = opened(folders[case["kind"]], "right", "longest_first")
    first = words_of(case["kind"], case["first"])
    second = words_of(case["kind"], case["second"], 9)
    options = {"max_length": case["max_length"], "stride": case["stride"]}
    asked = {"truncation": "only_second", "return_overflowing_tokens": True, **options}
    for name in ("classification", "question-answering"):
        found = ids_of(encoded(ours, (first, second), name, **options))
        require_windows(found, theirs(first, second, **asked)["input_ids"])
    asked["truncation"] = True
    require_windows(ids_of(encoded(ours, second, **options)), theirs(second, **asked)["input_ids"])


def require_windows(found: list[list[int]], wanted: Sequence[list[int]]) -> None:
    assert len(found) == len(wanted)
    assert found[:-1] == wanted[:-1]
    assert found[-1][-2:] == wanted[-1][-2:]
    assert len(found) == 1 or len(found[-1]) == len(found[0])


ODD = {"kind": "bert", "strategy": "longest_first", "side": "right", "max_length": 16}


@example({**ODD, "first": 20, "second": 20})
@example({**ODD, "first": 21, "second": 20})
@example({**ODD, "first": 20, "second": 21})
@example({**ODD, "first": 7, "second": 20, "side": "left"})
@example({**ODD, "first": 20, "second": 6, "strategy": "only_first"})
@example({**ODD, "first": 20, "second": 13, "strategy": "only_first"})
@example({**ODD, "first": 12, "second": 20, "strategy": "only_second", "side": "left"})
@example({**ODD, "first": 37, "second": 40, "max_length": 8})  # of which no more than needed were read
@FEW
@given(case=CASES)
def test_pairs_are_cut_as_transformers_cuts_them(folders: dict[str, Path], case: dict[str, Any]) -> None:
    check_pair(folders, case)


@FEW
@given(case=CASES)
def test_texts_are_cut_at_the_side_that_the_folder_names(
    folders: dict[str, Path], case: dict[str, Any]
) -> None:
    check_text(folders, case)


@FEW
@given(case=WINDOWS)
def test_windows_are_those_of_overflowing_tokens(folders: dict[str, Path], case: dict[str, Any]) -> None:
    check_windows(folders, case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(case=CASES, windows=WINDOWS)
def test_cutting_is_transformers_in_many_cases(
    folders: dict[str, Path], case: dict[str, Any], windows: dict[str, Any]
) -> None:
    check_pair(folders, case)
    check_text(folders, case)
    check_windows(folders, windows)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_saved_tokenizer_still_says_how_texts_are_cut(
    folders: dict[str, Path], tmp_path: Path, strategy: str, side: str
) -> None:
    """`tokenizers` reads the strategy from our tokenizer.json, transformers the side from the settings."""
    ours, _ = opened(folders["bert"], side, strategy)
    ours.save(tmp_path, max_length=16)
    assert Tokenizer.load(tmp_path).truncation == ours.truncation == Truncation(strategy, side)  # type: ignore[arg-type]
    assert AutoTokenizer.from_pretrained(tmp_path).truncation_side == side
    stated = Library.from_file(str(tmp_path / "tokenizer.json")).truncation
    assert (stated or {"strategy": "longest_first"})["strategy"] == strategy


def test_the_side_in_tokenizer_json_counts_where_the_settings_name_none(tmp_path: Path) -> None:
    Tokenizer.from_pieces([*SPECIAL, *WORDS], lowercase=True).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    stated = {"direction": "Left", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"truncation": stated}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = words_of("bert", 30)
    wanted = theirs(text, truncation=True, max_length=16)["input_ids"]
    assert ids_of(encoded(Tokenizer.load(tmp_path), text, max_length=16)) == [wanted]
    assert wanted[-2] == theirs.convert_tokens_to_ids("w29")


def test_a_long_text_cut_at_its_beginning_keeps_its_end(folders: dict[str, Path]) -> None:
    """Of a text that is cut at its end only the beginning is tokenised."""
    ours, theirs = opened(folders["bert"], "left", "longest_first")
    text = " ".join(np.resize(WORDS, 20_011))
    wanted = theirs(text, truncation=True, max_length=16)["input_ids"]
    assert ids_of(encoded(ours, text, max_length=16)) == [wanted]
