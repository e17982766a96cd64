"""bench/text/tokenizing.py on a small corpus."""

from types import SimpleNamespace

import pytest
from bench_runs import RunScript

import tokenizing
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer

RUN = ("--quick", "--work", "tokenizing")


@pytest.fixture(autouse=True)
def _tiny_tokenizer(tiny_model: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "_tokenizer", lambda: Tokenizer.load(str(tiny_model)))


def test_every_side_is_timed_on_the_same_ids(
    run_script: RunScript, small_corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(tokenizing, *RUN, "--corpus", str(small_corpus.path))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| tokenizing")]
    assert [row.split(" | ")[1] for row in rows] == list(tokenizing._WORK["tokenizing"].values())
    assert all(int(row.split(" | ")[5].replace(",", "")) > 0 for row in rows)


def test_sides_that_give_other_ids_are_not_compared(
    run_script: RunScript, small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tokenizing._SIDES["corpus_tokenize"]

    def one_more(corpus: Corpus) -> SimpleNamespace:
        side = usual(corpus)
        return SimpleNamespace(work=side.work, ids=lambda result: side.ids(result)[:-1])

    monkeypatch.setitem(tokenizing._SIDES, "corpus_tokenize", one_more)
    with pytest.raises(SystemExit, match="different ids"):
        run_script(tokenizing, *RUN, "--corpus", str(small_corpus.path))


def test_the_text_ends_after_so_many_megabytes(small_corpus: Corpus) -> None:
    whole = list(small_corpus.documents("train"))
    some = list(tokenizing._first(str(small_corpus.path), 0.002).documents("train"))
    assert 0 < len(some) < len(whole)
    assert some == whole[: len(some)]


@pytest.mark.slow
def test_both_trainers_learn_from_the_corpus(small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "_PIECES", 200)
    for name in tokenizing._WORK["vocabulary"]:
        assert len(tokenizing._SIDES[name](small_corpus).work()) == 200
