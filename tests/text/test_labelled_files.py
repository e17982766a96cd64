"""Which files of a folder are learned from."""

from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.text.labelled.labelled_files import list_labelled_files


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text,label\na,b\n")
    return folder


def test_a_folder_is_the_files_below_it_that_tell_a_format_by_name(tmp_path: Path) -> None:
    put(
        tmp_path, "b.csv", "a.jsonl.gz", "more/c.TSV", "more/d.conll", "README.md", "notes.txt", ".hidden.csv"
    )
    names = [Path(file).relative_to(tmp_path).as_posix() for file in list_labelled_files([tmp_path])]
    assert names == ["a.jsonl.gz", "b.csv", "more/c.TSV", "more/d.conll"]
    with_format = list_labelled_files([tmp_path], format="csv")
    assert [Path(file).name for file in with_format][-2:] == ["d.conll", "notes.txt"] or len(with_format) == 6


def test_a_table_is_one_whatever_stands_before_its_ending(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.txt.csv", "c.txt.jsonl.gz", "d.txt", "e.csv.txt", "f.txt.gz")
    assert [Path(file).name for file in list_labelled_files([tmp_path])] == [
        "a.csv",
        "b.txt.csv",
        "c.txt.jsonl.gz",
    ]


def test_packed_columns_are_among_a_folders_files(tmp_path: Path) -> None:
    put(tmp_path, "a.conll", "b.conll.gz", "c.BIO.zst")
    assert [Path(file).name for file in list_labelled_files([tmp_path])] == [
        "a.conll",
        "b.conll.gz",
        "c.BIO.zst",
    ]


def test_files_are_as_they_are_named_in_their_order(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "test.csv")
    given = [tmp_path / "test.csv", str(tmp_path / "b.csv"), "not-there.xyz"]
    assert list_labelled_files(given) == list(map(str, given))


def test_what_is_kept_to_choose_and_to_test_by_is_not_learned_from(tmp_path: Path) -> None:
    put(tmp_path, "train.csv", "dev.csv", "my_test.csv", "latest.csv", "contest.csv")
    with pytest.raises(InputError, match=r"dev\.csv is dev data by its name.* Give it as --dev"):
        list_labelled_files([tmp_path])
    found = list_labelled_files([tmp_path], besides=[tmp_path / "dev.csv", None, tmp_path / "my_test.csv"])
    assert [Path(file).name for file in found] == ["contest.csv", "latest.csv", "train.csv"]


@pytest.mark.parametrize(
    "name",
    [
        "val.jsonl",
        "eng.testa",
        "eng.testb",
        "testing.csv",
        "evaluation.tsv",
        "test/0.csv",
        "a/Validation/0.csv",
        "testset.csv",
        "TestData.csv",
        "devset/0.csv",
        "held_out.csv",
        "tests.csv",
    ],
)
def test_published_names_of_what_is_not_learned_from_are_known(tmp_path: Path, name: str) -> None:
    put(tmp_path / "test", "train.csv", name)  # the name of the folder itself says nothing
    with pytest.raises(InputError, match="data by its name"):
        list_labelled_files([tmp_path / "test"], format="csv")
    found = list_labelled_files([tmp_path / "test"], besides=[tmp_path / "test" / name], format="csv")
    assert [Path(file).name for file in found] == ["train.csv"]


def test_a_file_that_is_named_twice_and_a_folder_without_any_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "data/a.csv", "empty/README.md")
    with pytest.raises(InputError, match=r"a\.csv is given twice"):
        list_labelled_files([tmp_path / "data", tmp_path / "data" / "a.csv"])
    with pytest.raises(InputError, match=r"empty holds no file of labelled rows"):
        list_labelled_files([tmp_path / "empty"])
