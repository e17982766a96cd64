"""Updates of an index killed with SIGKILL, wherever and whenever: no committed document is lost, nothing is
corrupt at any moment, and called again they come to what they would have come to."""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest

pytest.importorskip("lancedb")

from index_attempt import INDEX_PLACES, IndexAttempt, IndexFault, Job, finish_update
from index_documents import Counting, Rows, rows_of, whole_documents, write_documents

from bertsmith.inference.index.index import Index

BIG = "big.txt"  # has passages enough for an approximate index
NAMES = [f"{letter}.txt" for letter in "abcdefgh"]

# At which arrivals at a place a build of a changed folder over an older index dies, one after the other.
DEATHS = {
    "before passages are written": (1, 2),
    "after passages were written": (1, 2),
    "before documents are removed": (1, 2),
    "after documents were removed": (1, 2),
    "before a commit": (1, 2, 1),
    "after a commit": (1, 2),
    "before a file gets its name": (2, 1),
    "before small files are joined": (1, 1),
    "after small files were joined": (1, 1),
    "before vectors are indexed": (1, 1),
    "after vectors were indexed": (1, 1),
    "before old versions are forgotten": (1,),
    "after old versions were forgotten": (1,),
    "while files are forced to disk": (3, 2),
    "while the table's files are forced to disk": (1, 9),
}
DEATHS_OF_FIRST_BUILDS = {
    "before an index is made": 1,
    "after an index was made": 1,
    "before a folder gets its name": 1,
    "before passages are written": 1,
    "after passages were written": 2,
    "before a commit": 2,
    "after a commit": 3,
    "while files are forced to disk": 2,
}


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five of the documents stay as the older index has them, one is gone, two have changed, two are new."""
    folder = write_documents(tmp_path_factory.mktemp("texts") / "docs", 1, [*NAMES, BIG])
    return write_documents(folder, 2, ["b.txt", "e.txt"])


@pytest.fixture(scope="module")
def older(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of an earlier state of the folder."""
    folder = tmp_path_factory.mktemp("older")
    write_documents(folder / "docs", 1, [*NAMES[:6], "gone.txt", BIG])
    finish_update(Job("build", folder / "index", (str(folder / "docs"),)))
    return folder / "index"


@pytest.fixture(scope="module")
def expected(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What a build comes to that nothing happens to."""
    index = tmp_path_factory.mktemp("whole") / "index"
    finish_update(Job("build", index, (str(docs),)))
    return rows_of(index)


@pytest.fixture
def index(older: Path, tmp_path: Path) -> Path:
    shutil.copytree(older, tmp_path / "index")
    return tmp_path / "index"


def assert_nothing_lost(before: Rows, now: Rows, expected: Rows) -> None:
    """Each document is whole, as it was or as it will be; what was there in its last state still is."""
    was, will_be = whole_documents(before), whole_documents(expected)
    for id, rows in whole_documents(now).items():
        assert rows in (was.get(id), will_be.get(id)), id
    for id, rows in was.items():
        if rows == will_be.get(id):
            assert whole_documents(now)[id] == rows, id


def test_every_place_is_tried() -> None:
    tried = DEATHS.keys() | DEATHS_OF_FIRST_BUILDS.keys() | {"before a roll-back", "after a roll-back"}
    assert tried == INDEX_PLACES.keys()


@pytest.mark.parametrize("place", DEATHS)
def test_a_build_killed_at_a_place(place: str, index: Path, docs: Path, expected: Rows) -> None:
    job = Job("build", index, (str(docs),), approximate_from=256 if "vectors" in place else 10**9)
    before = rows_of(index)
    for arrival in DEATHS[place]:
        assert IndexAttempt(job, IndexFault(place, arrival)).wait() == [-SIGKILL]
        now = rows_of(index)
        assert_nothing_lost(before, now, expected)
        before = now
    finish_update(job)
    assert rows_of(index) == expected
    answers_like_new(index)


def answers_like_new(index: Path) -> None:
    """Its indexes of words and vectors know what the table knows: either finds each document."""
    opened = Index.open(index, embedder=Counting())
    assert opened.info.complete and opened.verify() == opened.info.rows
    for id, rows in whole_documents(rows_of(index)).items():
        first = next(iter(rows.values()))
        start, text = first[3], str(first[7])
        by_words = opened.search(text, k=len(rows), mode="text", where=f"document_id = '{id}'")
        assert start in [hit.start for hit in by_words], id
        by_vector = opened.search(text, k=20, mode="vector")
        assert (id, start) in [(hit.document_id, hit.start) for hit in by_vector], id


@pytest.mark.parametrize("place", DEATHS_OF_FIRST_BUILDS)
def test_a_first_build_killed(place: str, tmp_path: Path, docs: Path, expected: Rows) -> None:
    job = Job("build", tmp_path / "index", (str(docs),))
    assert IndexAttempt(job, IndexFault(place, DEATHS_OF_FIRST_BUILDS[place])).wait() == [-SIGKILL]
    if job.index.exists():
        opened = Index.open(job.index, embedder=Counting())
        with pytest.warns(
            UserWarning, match="isn't complete.*Repeat the same `bertsmith index build`: it continues"
        ):
            opened.search("silver", mode="text")
    finish_update(job)
    assert rows_of(job.index) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["index"], "nothing is left beside it"


@pytest.mark.parametrize("place", ["before a roll-back", "after a roll-back"])
def test_a_killed_build_killed_again_while_it_is_undone(
    place: str, index: Path, docs: Path, expected: Rows
) -> None:
    job, before = Job("build", index, (str(docs),)), rows_of(index)
    assert IndexAttempt(job, IndexFault("after documents were removed")).wait() == [-SIGKILL]
    for _ in range(2):
        assert IndexAttempt(job, IndexFault(place)).wait() == [-SIGKILL]
        assert rows_of(index) == before
    finish_update(job)
    assert rows_of(index) == expected


ADD_AND_REMOVE = pytest.mark.parametrize(
    ("kind", "arguments"), [("add", ()), ("remove", ("docs/a.txt", "docs/gone.txt"))]
)


@ADD_AND_REMOVE
@pytest.mark.parametrize(
    ("place", "arrival"),
    [
        ("before documents are removed", 1),
        ("after documents were removed", 1),
        ("before a commit", 1),
        ("after a commit", 1),
        ("after small files were joined", 1),
        ("before old versions are forgotten", 1),
    ],
)
def test_add_and_remove_killed(
    kind: str, arguments: tuple[str, ...], place: str, arrival: int, index: Path, docs: Path, tmp_path: Path
) -> None:
    job = Job(kind, index, arguments or (str(docs),))
    expected, before = outcome(job, tmp_path), rows_of(index)
    assert IndexAttempt(job, IndexFault(place, arrival)).wait() == [-SIGKILL]
    assert_nothing_lost(before, rows_of(index), expected)
    comes_to(expected, job)


def outcome(job: Job, folder: Path) -> Rows:
    """What an update comes to that nothing happens to."""
    shutil.copytree(job.index, folder / "calm")
    finish_update(replace(job, index=folder / "calm"))
    return rows_of(folder / "calm")


def comes_to(expected: Rows, job: Job) -> None:
    """Called again; but what has been removed can't be removed again."""
    if rows_of(job.index) != expected or job.kind == "add":
        finish_update(job)
    assert rows_of(job.index) == expected


@ADD_AND_REMOVE
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_add_and_remove_killed_at_random_moments(
    seed: int, kind: str, arguments: tuple[str, ...], index: Path, docs: Path, tmp_path: Path
) -> None:
    job, draw = Job(kind, index, arguments or (str(docs),)), random.Random(seed)
    expected, before = outcome(job, tmp_path), rows_of(index)
    for _ in range(3):
        IndexAttempt(job).kill_after(draw.uniform(0, 0.5))
        now = rows_of(index)
        assert_nothing_lost(before, now, expected)
        before = now
    comes_to(expected, job)
    answers_like_new(index)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_a_build_killed_at_random_moments(seed: int, index: Path, docs: Path, expected: Rows) -> None:
    job, draw, before = Job("build", index, (str(docs),)), random.Random(seed), rows_of(index)
    for _ in range(4):
        IndexAttempt(job).kill_after(draw.uniform(0, 0.5))
        now = rows_of(index)
        assert_nothing_lost(before, now, expected)
        before = now
    finish_update(job)
    assert rows_of(index) == expected
