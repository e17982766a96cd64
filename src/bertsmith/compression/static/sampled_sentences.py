"""Sentences out of any sources, drawn so that each paragraph is as likely, in bounded memory."""

from collections.abc import Sequence
from random import Random

from bertsmith.errors import InputError
from bertsmith.progress import Progress
from bertsmith.text.corpus.reading import Reader
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import find_sources
from bertsmith.text.prose.sentences import split

_LONGEST = 400  # characters of a sentence: what is longer is a list or a table more often than not
_SHORTEST_WORDS = 3


def sample_sentences(
    sources: Sequence[str],
    count: int,
    seed: int = 0,
    settings: CorpusSettings | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """At most `count` sentences, one a paragraph, each once, in an order by chance; the same for the same
    sources and seed.

    Sources are read as `corpus build` reads them, and once, whatever their size; held are `count` paragraphs
    (Vitter 1985, algorithm R). Raises InputError for a source that can't be read, and when no sentence is
    found.
    """
    settings = settings or CorpusSettings()
    random = Random(seed)
    kept, seen = list[str](), 0
    found = find_sources(sources, settings)
    reader = Reader(found.sources, settings)
    for batch in reader:
        for document in batch.documents():
            for line in document.text.split("\n"):
                if len(line.split(maxsplit=_SHORTEST_WORDS)) < _SHORTEST_WORDS:
                    continue
                seen += 1
                if len(kept) < count:
                    kept.append(line)
                elif (place := random.randrange(seen)) < count:
                    kept[place] = line
        if progress is not None:
            progress(reader.position, found.size, "bytes")
    sentences = dict.fromkeys(_one_of(line, settings.language, random) for line in kept)
    sentences.pop("", None)
    if not sentences:
        raise InputError(
            f"{', '.join(sources)}: found no sentence of {_SHORTEST_WORDS} words or more. Name files of "
            "running text."
        )
    drawn = list(sentences)
    random.shuffle(drawn)  # or the first of them would be those of the first source
    return drawn


def _one_of(paragraph: str, language: str, random: Random) -> str:
    """One of its sentences; empty where none is neither too short nor too long."""
    good = [
        sentence
        for sentence in split(paragraph, language)
        if len(sentence) <= _LONGEST and len(sentence.split()) >= _SHORTEST_WORDS
    ]
    return random.choice(good) if good else ""
