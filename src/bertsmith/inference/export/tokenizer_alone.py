"""tokenizer.json by itself: whoever has only the exported folder must get the ids that Bertsmith gets."""

from tokenizers import Tokenizer as Backend

from bertsmith.errors import ModelError
from bertsmith.inference.export.gate_file import GateFile
from bertsmith.inference.export.padded_heads import Vectors
from bertsmith.inference.export.source import Source
from bertsmith.tasks.examples.text_task import TextExample

_COMPARED = 200


def require_same_ids(source: Source, file: GateFile) -> None:
    """On texts that are not cut. Raises ModelError where the file says nothing of special tokens around
    texts, or other ones.
    """
    backend = Backend.from_str(source.tokenizer.backend.to_str())
    backend.encode_special_tokens = True
    for example, encoded in list(zip(file.examples, file.encoded, strict=True))[:_COMPARED]:
        if not isinstance(example, TextExample) or isinstance(source.padded.head, Vectors):
            return
        found = backend.encode(example.text, example.text_pair).ids
        ids = encoded.windows[0].token_ids
        if len(found) <= source.max_length and found != ids.tolist():
            raise ModelError(
                f"{source.folder}: tokenizer.json alone gives other ids than the model reads: {found[:8]} … "
                f"for {ids[:8].tolist()} …. Its post_processor must put the special tokens around texts."
            )
