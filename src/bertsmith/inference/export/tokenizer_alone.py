"""tokenizer.json by itself: whoever has only the exported folder must get the ids that Bertsmith gets."""

from typing import Any

from bertsmith.errors import ModelError
from bertsmith.inference.export.gate_file import GateFile, as_document
from bertsmith.inference.export.padded_heads import Vectors
from bertsmith.inference.export.source import Source
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.text.tokens.tokenizer import without_surrogates

_COMPARED = 200


def require_same_ids(source: Source, file: GateFile) -> None:
    """On texts and pairs that are not cut; words of sentences and passages are the task's to divide. Raises
    ModelError where the file says nothing of special tokens around texts, or other ones.
    """
    backend = source.tokenizer.text_backend
    for example, encoded in list(zip(file.examples, file.encoded, strict=True))[:_COMPARED]:
        texts, ids = _texts(source, example), encoded.windows[0].token_ids.tolist()
        if not texts:
            return
        first, second = (
            without_surrogates(texts[0]),
            without_surrogates(texts[1]) if len(texts) == 2 else None,
        )
        found = backend.encode(first, second).ids
        if len(found) <= source.max_length and found != ids:
            raise ModelError(
                f"{source.folder}: tokenizer.json alone gives the ids {found[:8]} …, but the model reads "
                f"{ids[:8]} …. Its post_processor must put the special tokens around texts."
            )


def _texts(source: Source, example: Any) -> tuple[str, ...]:
    """What the first sequence of an example is made of; nothing where that is for the task to say."""
    if source.task is None:
        return (as_document(source, example),)
    texts = tuple(source.task.texts(example))
    if isinstance(source.padded.head, Vectors):
        return texts[:1]
    return texts if isinstance(example, TextExample) else ()
