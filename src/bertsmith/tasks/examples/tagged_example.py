"""A sentence with a tag for each word, from words and tags or from a text with entities marked in it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError
from bertsmith.metrics.entities import Span, are_entity_tags, spans_of_tags
from bertsmith.tasks.examples.character_spans import character_spans, tag_text, word_offsets
from bertsmith.text.labelled.conll import MarkedText, Sentence


@dataclass(frozen=True)
class TaggedExample:
    """Words, their tags (None where they are to be predicted), and where they stand in `text`, if given.
    `id` is what the file calls them.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    where: str
    text: str | None = None
    offsets: Sequence[tuple[int, int]] = field(default=(), compare=False)  # follow from the text
    widened: int = 0  # entities that were marked amid a word
    id: str | int | None = None


def example_of_text(text: str, where: str, id: str | int | None = None) -> TaggedExample:
    """The words of a text, to be tagged."""
    offsets = word_offsets(text)
    return TaggedExample(tuple(offsets.words(text)), None, where, text, offsets, id=id)


def as_example(found: Sentence | MarkedText, labelled: bool) -> TaggedExample:
    """What a file holds as an example. Raises InputError for spans that no tags of words could say."""
    if isinstance(found, Sentence):
        return TaggedExample(found.words, found.tags if labelled else None, found.where, id=found.id)
    if not labelled:
        return example_of_text(found.text, found.where, found.id)
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
    if example.text is not None:
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


def refuse_mistyped(train: Sequence[TaggedExample]) -> None:
    """A tag that is none of an entity among many that are would turn all of them into mere tags."""
    counts = Counter(tag for example in train for tag in example.tags or ())
    strange = {tag for tag in counts if not are_entity_tags([tag])}
    if not strange or sum(counts[tag] for tag in strange) > counts.total() / 2:
        return
    example, tag = next((each, tag) for each in train for tag in each.tags or () if tag in strange)
    raise InputError(
        f"{example.where}: the tag {tag!r} is not that of an entity (O, or B-, I-, E- or S- and a label), as "
        "most of the tags are. Mend it."
    )
