"""A sentence with a tag for each word, from words and tags or from a text with entities marked in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError
from bertsmith.metrics.entities import Span, spans_of_tags
from bertsmith.metrics.tag_schemes import NONE, Scheme
from bertsmith.tasks.examples.character_spans import WordOffsets, character_spans, tag_text, word_offsets
from bertsmith.text.labelled.conll import MarkedText, Sentence


@dataclass(frozen=True)
class TaggedExample:
    """Words, their tags (None where they are to be predicted), and where they stand in `text`, if given.
    `id` is what the file calls them, `group` their document, where the file has many.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    where: str
    text: str | None = None
    offsets: WordOffsets | None = field(default=None, compare=False)  # follow from the text
    widened: int = 0  # entities that were marked amid a word
    id: str | int | None = None
    group: str | None = None

    @property
    def runs(self) -> Sequence[str]:
        """What a tokenizer reads as a whole: the words, or what stands between the blanks of a text."""
        if self.text is None or self.offsets is None or len(self.offsets.runs) == len(self.offsets):
            return self.words
        starts, ends = self.offsets.starts, self.offsets.ends
        return [self.text[starts[words[0]] : ends[words[-1]]] for words in self.offsets.words_of_runs()]


def example_of_text(
    text: str, where: str, id: str | int | None = None, syllables: bool = False
) -> TaggedExample:
    """The words of a text, to be tagged; of Korean its words or its `syllables`."""
    offsets = word_offsets(text, syllables)
    return TaggedExample(tuple(offsets.words(text)), None, where, text, offsets, id=id)


def as_example(found: Sentence | MarkedText, scheme: Scheme | None, syllables: bool = False) -> TaggedExample:
    """What a file holds as an example, its tags in IOB2 if they are of entities. Without a `scheme` they are
    left out, and Korean is divided into words or `syllables`.

    Raises InputError for a tag of another scheme, and for spans that no tags of words could say.
    """
    if isinstance(found, Sentence):
        tags = None if scheme is None else tuple(_in_iob2(found, scheme))
        return TaggedExample(found.words, tags, found.where, id=found.id)
    if scheme is None:
        return example_of_text(found.text, found.where, found.id, syllables)
    if scheme.name == NONE:
        raise InputError(
            f"{found.where}: spans mark entities, but scheme = {NONE} says that the tags mark none. Leave "
            "scheme out, or give words with their tags."
        )
    try:
        tagged = tag_text(found.text, [Span(*span) for span in found.spans])
    except InputError as error:
        raise InputError(f"{found.where}: {error}") from error
    return TaggedExample(
        tuple(tagged.words),
        tuple(tagged.tags),
        found.where,
        found.text,
        tagged.offsets,
        len(tagged.widened),
    )


def entities_of(example: TaggedExample, tags: Sequence[str]) -> list[dict[str, Any]]:
    """What such tags mark: by characters where the example has a text, else by words."""
    if example.text is not None and example.offsets is not None:
        return [
            {"label": s.label, "start": s.start, "end": s.end, "text": example.text[s.start : s.end]}
            for s in character_spans(tags, example.offsets)
        ]
    return [
        {
            "label": span.label,
            "first_word": span.start,
            "last_word": span.end - 1,
            "text": " ".join(example.words[span.start : span.end]),
        }
        for span in spans_of_tags(tags)
    ]


def _in_iob2(found: Sentence, scheme: Scheme) -> list[str]:
    """A tag that is none of an entity among many that are would turn all of them into mere tags."""
    strange = next((tag for tag in found.tags if scheme.standard(tag) is None), None)
    if strange is not None:
        raise InputError(
            f"{found.where}: the tag {strange!r} is not that of an entity in {scheme}. Mend it, give the "
            f"scheme that the tags are in, such as scheme=iobes, or scheme={NONE} if they mark no entities."
        )
    return scheme.in_iob2(found.tags)
