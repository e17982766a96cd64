"""Test rows planted in real text: how many `bertsmith corpus decontaminate` finds, beside 13-grams alone.
Last answer (2026-11-28, Zen 5): all with a word in ten replaced, 13-grams 44 %.

    python bench/text/decontaminating.py [--data FOLDER] [--rows 150]

Rows of ten test files are planted in ../shared/data/wikipedia_2014 (101 MB), each between two sentences of an
article, as it is and changed in the ways below. Rows of three words and more count: shorter ones aren't
looked for. The other side is what GPT-3's makers did (Brown et al. 2020, appendix C): a row is found where
one of its runs of 13 words (all of its words, where it has fewer) occurs in the corpus. "shuffled" are the
same rows with their words in another order, which no corpus should be said to hold.

The second table is the whole command against all test files, with its memory, all processes together, and the
seconds of processors (user) beside those of the clock: other work on the machine adds to these alone.
"""

import argparse
import json
import random
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.decontamination.evaluation_texts import read_evaluation_file
from bertsmith.text.decontamination.scanning import (
    find_corpus_matches,
    split_at_punctuation,
    split_without_punctuation,
)
from corpus import measure
from harness import end_without, report

DATA = Path(__file__).parents[3] / "shared" / "data"
PLANTED_FROM = (
    *("banking77/test.csv", "conll2003/eng.testb", "glue_mrpc/msr-para-test.tsv", "glue_rte/dev.tsv"),
    *("reuters/test.jsonl", "squad/dev-v1.1.json", "sst2/test-labeled.tsv", "stsb/stsb-en-test.csv"),
    *("wikiqa/test.tsv", "ir_cranfield"),
)
ALL = (
    *PLANTED_FROM,
    *("conll2003/eng.testa", "conll2003/iob2_test.txt", "conll2003/iob2_valid.txt"),
    *("glue_mrpc/msr-para-val.tsv", "glue_rte/val.tsv", "glue_rte/test.tsv"),
    *("reqa_squad/squad_test.json", "squad/cs224n-dev-v2.0.json", "squadshifts/new_wiki_v1.0.json"),
    *("sst2/dev.tsv", "sst2/test.tsv", "stsb/sts-dev.csv", "stsb/sts-test.csv", "stsb/stsb-en-dev.csv"),
    "wikiqa/dev.tsv",
)
RUN = 13
Change = Callable[[str, random.Random], str]


def _replaced(words: list[str], places: Iterable[int]) -> str:
    for place in places:
        words[place] = "otherwise"
    return " ".join(words)


def _every_tenth(text: str, draw: random.Random) -> str:
    """One of each ten words, and of the rest; of rows below eight words none. A mark alone is no word."""
    words = text.split()
    places = [place for place, word in enumerate(words) if split_without_punctuation(word)]
    if len(places) < 8:
        return text
    return _replaced(words, [draw.choice(places[start : start + 10]) for start in range(0, len(places), 10)])


def _each_with_a_tenth(text: str, draw: random.Random) -> str:
    words = text.split()
    return _replaced(words, [place for place in range(len(words)) if draw.random() < 0.1])


def _one_word_out(text: str, draw: random.Random) -> str:
    words = text.split()
    if len(words) >= 20:
        del words[draw.randrange(len(words))]
    return " ".join(words)


def _shuffled(text: str, draw: random.Random) -> str:
    words, before = text.split(), split_at_punctuation(text)
    for _ in range(100):  # of three words the order may come out as it was
        draw.shuffle(words)
        if split_at_punctuation(" ".join(words)) != before:
            break
    return " ".join(words)


CHANGES: dict[str, Change] = {
    "as it is": lambda text, draw: text,
    "capitals": lambda text, draw: text.upper(),
    "no punctuation": lambda text, draw: re.sub(r"[^\w\s]", "", text),
    "blanks for punctuation": lambda text, draw: re.sub(r"[^\w\s'’]", " ", text),
    "a word in ten, of rows of 8 and more": _every_tenth,
    "each word with probability 0.1": _each_with_a_tenth,
    "a word left out, of rows of 20 and more": _one_word_out,
    "shuffled": _shuffled,
}


def main() -> None:
    """Parses, plants, counts, then times the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=150, help="of each test file")
    options = parser.parse_args()
    wikipedia = options.data / "wikipedia_2014"
    if not wikipedia.is_dir():
        end_without("wikipedia_2014")
    with tempfile.TemporaryDirectory() as folder:
        texts = _rows(options.data, options.rows)
        found = [_planted(change, texts, wikipedia, Path(folder)) for change in CHANGES]
        report(
            "decontaminating",
            "Planted test rows that are found",
            found,
            [f"{len(texts):,} rows of {len(PLANTED_FROM)} test files, planted in Wikipedia's articles"],
        )
        report(
            "decontaminating-cost",
            "A corpus of 101 MB against all test files",
            [_cost(wikipedia, options.data, Path(folder))],
            [f"{len(ALL)} test files and folders"],
        )


def _rows(data: Path, count: int) -> list[str]:
    """The same number of texts of each file, drawn at random."""
    draw, texts = random.Random(0), list[str]()
    for name in PLANTED_FROM:
        found = {each.text for each in read_evaluation_file(data / name).texts}
        usable = sorted(text for text in found if len(split_at_punctuation(text)) >= 3)
        texts += draw.sample(usable, min(count, len(usable)))
    return texts


def _planted(change: str, texts: Sequence[str], wikipedia: Path, folder: Path) -> dict[str, str]:
    """How many each side finds of the rows that one change was made to."""
    draw = random.Random(1)
    articles = _articles(wikipedia)
    source = folder / f"{change}.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for text in texts:
            lines = next(articles)
            changed = CHANGES[change](" ".join(text.split()), draw)
            lines.insert(draw.randrange(len(lines) + 1), changed)
            file.write(json.dumps({"text": "\n\n".join(lines)}) + "\n")
    settings = CorpusSettings(near_duplicates=False, heldout=0.0)
    corpus = build_corpus([str(source)], folder / change, settings=settings)
    ours = set().union(*(places["text"].tolist() for places in find_corpus_matches(corpus, texts).values()))
    theirs = _by_thirteen(corpus, texts)

    return {
        "change": change,
        "ours": f"{len(ours) / len(texts):.2%}",
        "13-grams": f"{len(theirs) / len(texts):.2%}",
    }


def _articles(wikipedia: Path) -> Iterator[list[str]]:
    """Paragraphs of articles that have some, without their title."""
    for path in sorted(each for each in wikipedia.rglob("*") if each.name.startswith("wiki_")):
        for article in path.read_text(encoding="utf-8").split("</doc>"):
            lines = [line for line in article.splitlines()[3:] if len(line.split()) > 20]
            if lines:
                yield lines[:3]


def _by_thirteen(corpus: Corpus, texts: Sequence[str]) -> set[int]:
    wanted: dict[tuple[str, ...], list[int]] = {}
    lengths = set()
    for number, text in enumerate(texts):
        words = split_at_punctuation(text)
        length = min(RUN, len(words))
        lengths.add(length)
        for start in range(len(words) - length + 1):
            wanted.setdefault(tuple(words[start : start + length]), []).append(number)
    found: set[int] = set()
    for document in corpus.documents("train"):
        words = split_at_punctuation(" ".join(document.sentences))
        for length in lengths:
            for run in zip(*(islice(words, start, None) for start in range(length)), strict=False):
                found.update(wanted.get(run, ()))
    return found


def _cost(wikipedia: Path, data: Path, folder: Path) -> dict[str, str]:
    corpus = folder / "wikipedia"
    measure("corpus build", str(wikipedia), "--out", str(corpus))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = [str(data / name) for name in ALL]
    out = str(folder / "clean")
    seconds, peak = measure("corpus decontaminate", str(corpus), "--against", *files, "--out", out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": f"{seconds:.0f}",
        "of processors": f"{after.ru_utime - before.ru_utime:.0f}",
        "peak MB": f"{peak // 10**6}",
    }


if __name__ == "__main__":
    main()
