"""growth.py: the fit, the text that is no duplicate, the picture, and a tiny step of each axis."""

from itertools import islice
from xml.etree import ElementTree

import numpy as np
import pytest
from bench_runs import RunScript
from hypothesis import given
from hypothesis import strategies as st

import growing_step
import growth
import growth_plot
import varied_text
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus.selection import compute_signature
from bertsmith.training import machine

pytestmark = pytest.mark.thorough


@given(st.floats(-3, 3), st.floats(0.01, 100))
def test_the_exponent_of_a_power_is_found(power: float, factor: float) -> None:
    sizes = [32, 64, 100, 4096]
    assert growth.exponent(sizes, [factor * size**power for size in sizes]) == pytest.approx(power, abs=1e-6)


def test_copies_are_no_duplicates_and_bring_new_words(small_corpus: Corpus) -> None:
    copy = small_corpus.manifest.splits["train"].counts.documents
    made = [" ".join(each) for each in islice(varied_text.documents_without_end(small_corpus), 3 * copy)]
    assert made[:copy] == [" ".join(document.sentences) for document in small_corpus.documents("train")]
    signatures = np.array([compute_signature(text.split()) for text in made])
    for number in range(copy, len(made)):
        alike = (signatures[:number] == signatures[number]).mean(axis=1)
        assert alike.max() < 0.7, made[number]


def test_words_change_places_and_rare_ones_are_new() -> None:
    ranked = [("the", 9), ("of", 8), ("court", 3), ("owl", 1), ("elk", 1)]
    assert varied_text.exchanged(ranked, 0) == {word: word for word, _ in ranked}
    assert varied_text.exchanged(ranked, 1) == {
        "the": "of", "of": "the", "court": "owl", "owl": "courtb", "elk": "elkb",
    }  # fmt: skip


def test_the_picture_has_every_curve_and_what_grows() -> None:
    made = [
        growth.Growth("step", "tokens of a step", (64, 128), (0.1, 0.2), (1e6, 2e6)),
        growth.Growth("corpus build", "MB of text", (1, 2), (3, 6), (1e8, 1e8)),
        growth.Growth("tokenizer train", "MB of text", (1, 2), (4, 5), (1e8, 1e8)),
    ]
    picture = growth_plot.draw(made)
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    for words in ("tokens of a step", "MB of text", "tokenizer train", "seconds"):
        assert words in picture
    assert picture == growth_plot.draw(made)


def test_a_step_of_an_axis_is_timed(
    run_script: RunScript, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1.0)  # takes longer than the steps
    run_script(growth, "--quick", "--axes", "length")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| step")]
    assert row.split(" | ")[1] == "tokens of a sequence, 16 – 32"
    assert all(float(value) > 0 for value in row.split(" | ")[2].split(", "))


def test_along_an_axis_nothing_else_changes() -> None:
    shapes = [growing_step.shape("width", size) for size in growth.SIZES["width"]]
    assert [shape.width for shape in shapes] == list(growth.SIZES["width"])
    assert len({shape._replace(width=0) for shape in shapes}) == 1
    assert len({growing_step.shape("ranks", size) for size in growth.SIZES["ranks"]}) == 1


@pytest.mark.slow
def test_ranks_and_text_are_measured_in_processes(
    small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--axes", "ranks", "corpus", "--corpus", str(small_corpus.path))
    monkeypatch.setattr("sys.argv", ["growth.py", "--quick", *options])
    growth.main()
    printed = capsys.readouterr().out
    for measured in ("step", "corpus build", "tokenizer train", "corpus tokenize"):
        assert f"| {measured} |" in printed
