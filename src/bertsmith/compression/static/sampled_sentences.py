"""Sentences out of any sources, drawn so that each paragraph is as likely, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from bertsmith.errors import InputError
from bertsmith.progress import Progress
from bertsmith.text.corpus.reading import Reader
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import find_sources
from bertsmith.text.prose.sentences import RawDocument, clean_paragraphs, sentences_of
from bertsmith.text.words import spaced_words

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

    Sources are read, cleaned and split as `corpus build` does it, and once, whatever their size; held are
    `count` sentences (Vitter 1985, algorithm R). Raises InputError for a source that can't be read, and when
    no sentence is found.
    """
    settings = settings or CorpusSettings()
    random = Random(seed)
    kept, seen = list[str](), 0
    found = find_sources(sources, settings)
    reader = Reader(found.sources, settings)
    for batch in reader:
        for document in batch.documents():
            for paragraph in _long_enough(clean_paragraphs(document)):
                place = seen if seen < count else random.randrange(seen + 1)
                seen += 1
                if place < count:  # only then is it split, which takes most of the time
                    kept[place : place + 1] = [_one_of(paragraph, document, settings.language, random)]
        if progress is not None:
            progress(reader.position, found.size, "bytes")
    drawn = list(dict.fromkeys(filter(None, kept)))
    if not drawn:
        raise InputError(
            f"{', '.join(sources)}: found no sentence of {_SHORTEST_WORDS} words or more. Name files of "
            "running text."
        )
    random.shuffle(drawn)  # or the first of them would be those of the first source
    return drawn


def _one_of(paragraph: str, document: RawDocument, language: str, random: Random) -> str:
    """One of its sentences; empty where none is neither too short nor too long."""
    sentences = sentences_of(paragraph, document.layout, language)
    good = [sentence for sentence in _long_enough(sentences) if len(sentence) <= _LONGEST]
    return random.choice(good) if good else ""


def _long_enough(texts: Iterable[str]) -> Iterator[str]:
    return (text for text in texts if len(spaced_words(text)) >= _SHORTEST_WORDS)
