"""The page of a look: everything in one file, the weights packed, and nothing fetched."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.inference.attribution import AttentionWeights, TokenAttributions
from bertsmith.inference.looking.word_neighbours import WordNeighbours
from bertsmith.reporting.page import inline_scripts, inline_style, render_page
from bertsmith.text.tokens.pieces import shown_tokens
from bertsmith.text.tokens.tokenizer import Tokenizer


def render_look(
    model: str,
    given: Any,
    tokenizer: Tokenizer,
    attention: AttentionWeights,
    attributions: TokenAttributions | None,
    neighbours: WordNeighbours | None,
) -> str:
    """The page as text; whatever the texts hold is escaped. The same look gives the same bytes."""
    data = {
        "attention": _attention(attention, tokenizer),
        "attributions": attributions and _attributions(attributions, tokenizer),
        "neighbours": neighbours and _neighbours(neighbours),
    }
    return render_page(
        "look.html.jinja",
        model=model,
        given=_heading(given),
        data=data,
        style=inline_style("paper.css"),
        script=inline_scripts("dom.js", "attributions.js", "attention.js", "look.js"),
    )


def _heading(given: Any) -> str:
    """What was looked at: a text, several, or a text with the columns beside it."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        texts = [str(given[role]) for role in ("text", "text_pair") if role in given]
        cells = [f"{name}: {cell}" for name, cell in given.items() if name not in ("text", "text_pair")]
        return " · ".join([*texts, *cells])
    return " · ".join(map(str, given))


def _attention(found: AttentionWeights, tokenizer: Tokenizer) -> dict[str, Any]:
    """Weights and small pictures as deflated bytes in base64."""
    small = found.thumbnails()
    layers, heads = found.weights.shape[:2]
    return {
        "tokens": shown_tokens(tokenizer, found.token_ids),
        "layers": layers,
        "heads": heads,
        "side": small.shape[-1],
        "weights": _packed(found.in_two_bytes()),
        "pictures": _packed(small),
    }


def _attributions(found: TokenAttributions, tokenizer: Tokenizer) -> dict[str, Any]:
    shown = shown_tokens(tokenizer, found.token_ids)
    scores = found.scores.tolist()
    return {
        "target": found.target,
        "value": found.value,
        "baseline_value": found.baseline_value,
        "steps": found.steps,
        "error": found.error,
        "tokens": [each | {"score": score} for each, score in zip(shown, scores, strict=True)],
    }


def _neighbours(found: WordNeighbours) -> dict[str, Any]:
    return {
        "word": found.word,
        "before": found.before,
        "after": found.after,
        "layers": [[vars(each) for each in layer] for layer in found.layers],
    }


def _packed(numbers: npt.NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(numbers).tobytes(), 6)).decode("ascii")
