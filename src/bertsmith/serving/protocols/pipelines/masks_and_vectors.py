"""fill-mask: what may stand in place of a mask; feature-extraction: a vector a text; sentence-similarity."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from bertsmith.serving.protocols import tei
from bertsmith.serving.protocols.pipelines.pipeline import Asked
from bertsmith.serving.protocols.routing import StrictBody, first_problem, key_of
from bertsmith.serving.refusals import InvalidRequest, TooLarge, Unsupported
from bertsmith.serving.service import Answer
from bertsmith.text.tokens.tokenizer import Tokenizer

_MOST_TOKENS = 2_000_000  # of the texts in an answer: a second of work, and ten megabytes


class VectorParameters(StrictBody):
    """Of feature-extraction, as InferenceClient has them."""

    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: tei.Direction | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None


async def fill_masks(asked: Asked) -> tuple[Any, Answer]:
    """[{"score", "token", "token_str", "sequence"}], best first; for several masks a list for each."""
    asked.require_known(("top_k", "targets"))
    top, targets = asked.whole_number("top_k"), asked.texts("targets")
    texts = asked.listed()
    answer = await asked.answer(texts, "fill_mask", top=top, targets=targets)
    _require_few(answer)

    def show() -> list[Any]:
        return [_shown(*each, asked.model.tokenizer) for each in zip(texts, answer.results, strict=True)]

    found = await asked.service.workers.read(key_of(asked.request), math.inf, show)  # begun long ago
    return found[0] if asked.one else found, answer


def _require_few(answer: Answer) -> None:
    """Raises TooLarge: each candidate of each mask is shown with the whole text around it."""
    candidates = [sum(map(len, masks)) for masks in answer.results]
    size = sum(count * tokens for count, tokens in zip(candidates, answer.input_tokens, strict=True))
    if size > _MOST_TOKENS:
        raise TooLarge(
            f"The answer would be {sum(candidates):,} texts of {size:,} tokens together; at most "
            f"{_MOST_TOKENS:,} are sent at a time. Send fewer texts or a smaller top_k, or ask "
            f"/v1/{answer.model.name}, which shows no text around a word."
        )


def _shown(text: str, masks: list[list[dict[str, Any]]], tokenizer: Tokenizer) -> Any:
    ids = [*tokenizer.encode(text, read_special_tokens=True).ids]
    places = [place for place, number in enumerate(ids) if number == tokenizer.mask_id]
    found = []
    for place, candidates in zip(places, masks, strict=True):
        found.append([_candidate(each, ids, place, tokenizer) for each in candidates])
    return found[0] if len(found) == 1 else found


def _candidate(
    candidate: Mapping[str, Any], ids: list[int], place: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    number = candidate["token_id"]
    filled = [*ids[:place], number, *ids[place + 1 :]]
    alone = ids.count(tokenizer.mask_id) == 1  # else the other masks are shown
    return {
        "score": candidate["probability"],
        "token": number,
        "token_str": tokenizer.decode([number], skip_special_tokens=False),
        "sequence": tokenizer.decode(filled, skip_special_tokens=alone),
    }


async def extract_features(asked: Asked) -> tuple[Any, Answer]:
    """(E, D): a vector a text, pooled as the model was trained to, as TEI and Hugging Face's servers give it
    for models of sentences. Those of all tokens are at /embed_all.
    """
    asked.require_known(VectorParameters.model_fields)
    try:
        said = VectorParameters.model_validate(dict(asked.parameters))
    except ValidationError as error:
        raise InvalidRequest(first_problem(error)) from error
    if said.encoding_format == "base64":
        raise Unsupported("encoding_format = 'base64' isn't done here: POST /v1/embeddings has it.")
    answer = await asked.answer(
        asked.listed(),
        "embed",
        long_text=tei.long_text(said.truncate, said.truncation_direction),
        prompt_name=said.prompt_name,
        normalise=said.normalize,
        dimensions=said.dimensions,
    )
    return np.ascontiguousarray(answer.results), answer


async def compare_sentences(asked: Asked) -> tuple[Any, Answer]:
    """The cosine of the source and each sentence."""
    asked.require_known(())
    match asked.inputs:
        case {"source_sentence": str() as source, "sentences": list() as sentences, **more} if not more:
            answer = await asked.answer(sentences, "similarity", source=source)
            return answer.results, answer
    raise InvalidRequest(
        "inputs must have source_sentence, a text, and sentences, a list of texts, and nothing else."
    )
