"""An encoder as a static table: closer than without texts, the same again, opened by others."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from static_samples import save_teacher, sentences

from bertsmith.cli.results import show_static_table
from bertsmith.compression import distil_static as module
from bertsmith.compression.distil_static import distil_static
from bertsmith.compression.static_learning import sample_sentences
from bertsmith.errors import DiskFull, InputError, ModelError, RecipeError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.model.manifest import read_verified_manifest
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_teacher(tmp_path_factory.mktemp("teacher") / "model")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n\n".join(sentences(900)) + "\n")
    return path


def cosines(first: np.ndarray, second: np.ndarray) -> float:
    """How alike the cosines between texts are: the correlation."""
    places = np.triu_indices(len(first), 1)
    return float(np.corrcoef((first @ first.T)[places], (second @ second.T)[places])[0, 1])


def test_a_learned_table_is_nearer_to_the_teacher_on_other_texts(
    tmp_path: Path, teacher: Path, texts: Path
) -> None:
    alone = distil_static(teacher, tmp_path / "alone", dimensions=16)
    learned = distil_static(teacher, tmp_path / "learned", [str(texts)], dimensions=16)
    others = sentences(100, seed=9)
    wanted = Embedder(teacher).documents(others)
    of_alone, of_learned = (
        cosines(Embedder(each.model).documents(others), wanted) for each in (alone, learned)
    )
    assert of_learned > of_alone
    assert learned.after is not None and learned.before is not None and learned.after > learned.before
    assert alone.after is None and learned.sentences + learned.heldout > 800
    manifest = read_verified_manifest(learned.model)
    assert manifest is not None and manifest.provenance["dimensions"] == 16


def test_the_same_run_gives_the_same_table_also_when_it_was_killed_in_between(
    tmp_path: Path, teacher: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = distil_static(teacher, tmp_path / "whole", [str(texts)], dimensions=16)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "learn_table", killed)
        distil_static(teacher, tmp_path / "again", [str(texts)], dimensions=16)
    assert not (tmp_path / "again" / "model").exists()
    vectors = (tmp_path / "again" / "teacher.parquet").stat().st_mtime_ns
    resumed = distil_static(teacher, tmp_path / "again", [str(texts)], dimensions=16, resume=True)
    assert (tmp_path / "again" / "teacher.parquet").stat().st_mtime_ns == vectors
    assert (resumed.model / "model.safetensors").read_bytes() == (
        whole.model / "model.safetensors"
    ).read_bytes()
    once_more = distil_static(teacher, tmp_path / "again", [str(texts)], dimensions=16, resume=True)
    assert (once_more.after, once_more.rounds) == (resumed.after, resumed.rounds)


def test_a_run_killed_while_it_wrote_its_sentences_begins_again(
    tmp_path: Path, teacher: Path, texts: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".texts.jsonl.partial-999999").write_text('{"text": "A red')
    assert distil_static(teacher, out, [texts], dimensions=16, resume=True).after is not None
    assert not list(out.glob(".texts*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        distil_static(teacher, tmp_path / "other", [texts], dimensions=16, resume=True)


def test_what_is_asked_wrongly_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, teacher: Path, texts: Path
) -> None:
    out = tmp_path / "out"
    few = tmp_path / "few.txt"
    few.write_text("A red cat runs.\n")
    with pytest.raises(InputError, match="1 to 32, the teacher's width: 64"):
        distil_static(teacher, out, dimensions=64)
    with pytest.raises(InputError, match="found 1 sentences"):
        distil_static(teacher, out, [str(few)], dimensions=16)
    with pytest.raises(InputError, match="does not exist"):
        distil_static(teacher, out, [str(tmp_path / "nowhere.txt")], dimensions=16)
    with pytest.raises(InputError, match="texts must be a list"):
        distil_static(teacher, out, str(texts), dimensions=16)
    with pytest.raises(ModelError, match="no model"):
        distil_static(tmp_path / "nowhere", out)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFull, match=r"but 0\.0 MB are free"):
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        distil_static(teacher, out, [str(texts)], dimensions=16)
    assert not out.exists()
    made = distil_static(teacher, out, [str(texts)], dimensions=16)
    with pytest.raises(InputError, match="already exists"):
        distil_static(teacher, out, [str(texts)], dimensions=16)
    with pytest.raises(InputError, match="another dimensions"):
        distil_static(teacher, out, [str(texts)], dimensions=8, resume=True)
    with pytest.raises(InputError, match="static table already"):
        distil_static(made.model, tmp_path / "other", dimensions=16)


def test_sentences_are_drawn_from_all_of_the_sources_and_are_the_same_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"Number {n} is red."}) + "\n" for n in range(500))
    )
    (tmp_path / "b.txt").write_text("\n\n".join(f"One {n} comes. Two {n} comes late." for n in range(500)))
    found = sample_sentences([str(tmp_path)], 200, seed=3)
    assert len(found) == len(set(found)) == 200
    assert 60 < sum(text.startswith("Number") for text in found) < 140
    few = sample_sentences([str(tmp_path)], 2000)  # all there are: the first of them are no source's alone
    assert 15 < sum(text.startswith("Number") for text in few[:60]) < 45
    assert any(text.startswith("One") for text in found) and any(text.startswith("Two") for text in found)
    assert (
        found
        == sample_sentences([str(tmp_path)], 200, seed=3)
        != sample_sentences([str(tmp_path)], 200, seed=4)
    )


def test_sentences_are_those_of_a_corpus_of_the_same_sources(tmp_path: Path) -> None:
    """Lines joined where they were folded, cleaned, split by the language's rules."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "folded.txt").write_text(
        "In the old house at the end of the long road lived an old man with\n"
        "his daughter in the city. Later in the evening, when all of the\n"
        "animals had gone to sleep, the old man wrote a letter to her.\n"
    )
    (sources / "dirty.jsonl").write_text(json.dumps({"text": "A dirty &amp; <br> naÃ¯ve line."}) + "\n")
    (sources / "verse.txt").write_text(
        "The cat runs on.\nThe dog sleeps.\n\nA bird is here.\nIt sings well.\n"
    )
    (sources / "zh.txt").write_text("今天天气很好。我们去公园。\n")
    (sources / "german.txt").write_text("Er kam am 3. Mai gegen Abend an.\n")
    settings = CorpusSettings(language="de", heldout=0, near_duplicates=False)
    corpus = build_corpus([str(sources)], tmp_path / "corpus", settings=settings, workers=1)
    built = {sentence for document in corpus.documents("train") for sentence in document.sentences}
    drawn = {each for seed in range(9) for each in sample_sentences([str(sources)], 99, seed, settings)}
    assert drawn == built
    assert {
        "A dirty & naïve line.",
        "我们去公园。",
        "The dog sleeps.",
        "Er kam am 3. Mai gegen Abend an.",
    } < built
    assert any(text.endswith("lived an old man with his daughter in the city.") for text in built)


def test_column_encoding_and_language_of_the_texts_can_be_said(tmp_path: Path, teacher: Path) -> None:
    rows = [f"{number},{text[:-1]} am 3. Mai nahé.\n" for number, text in enumerate(sentences(300))]
    (tmp_path / "rows.csv").write_text("text,body\n" + "".join(rows), encoding="latin-1")
    said: dict[str, Any] = {"text_column": "body", "encoding": "latin-1", "language": "de"}
    out = tmp_path / "out"
    distil_static(teacher, out, [tmp_path / "rows.csv"], dimensions=8, **said)
    drawn = [json.loads(line)["text"] for line in (out / "texts.jsonl").read_text().splitlines()]
    assert drawn and all(text.endswith(" am 3. Mai nahé.") and text[0].isalpha() for text in drawn)
    with pytest.raises(InputError, match="another language"):
        distil_static(
            teacher, out, [tmp_path / "rows.csv"], dimensions=8, resume=True, **{**said, "language": "en"}
        )
    with pytest.raises(RecipeError, match="a language's code"):
        distil_static(teacher, tmp_path / "other", [tmp_path / "rows.csv"], language="German")


def test_texts_that_the_vocabulary_cannot_spell_are_refused_before_the_teacher_reads_them(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "embed_file", lambda *_, **__: pytest.fail("embedded"))
    strange = "\n\n".join(f"слово кошка {'река' * n}" for n in range(1, 300))
    (tmp_path / "strange.txt").write_text(strange)
    with pytest.raises(InputError, match=r"strange.txt: the vocabulary .* read in the language 'ru'"):
        distil_static(teacher, tmp_path / "out", [tmp_path / "strange.txt"], language="ru")
    assert not (tmp_path / "out").exists()


def test_how_many_words_are_unknown_is_told(
    tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n\n".join(f"{text[:-1]} слово" * 2 for text in sentences(300)))
    made = distil_static(teacher, tmp_path / "out", [tmp_path / "texts.txt"], dimensions=8)
    assert made.unknown is not None and 0.1 < made.unknown < 0.5
    show_static_table(made)
    assert "can't be spelled" not in capsys.readouterr().out
    show_static_table(replace(made, unknown=0.6))
    assert "60% of the words of the texts can't be spelled" in " ".join(capsys.readouterr().out.split())
