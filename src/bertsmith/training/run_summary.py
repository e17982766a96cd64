"""Gathers what a run's folder holds into its report."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.files import read_json
from bertsmith.machine import Hardware
from bertsmith.reporting.run_report import RunReport, write_report
from bertsmith.reporting.tables import corpus_facts, corpus_tables, vocabulary_facts, vocabulary_tables
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.training.environment import environment
from bertsmith.training.fills import FILLS
from bertsmith.training.log import RunLog
from bertsmith.training.recipe import Recipe


def write_summary(
    out: Path,
    recipe: Recipe,
    model: PretrainedModel,
    hardware: Hardware,
    comparison: list[dict[str, Any]] | None = None,
) -> Path:
    """Writes `report.html` from the log, the recipe, fills.json, and the corpus's and tokenizer's own reports
    where they can be shown.
    """
    content = RunReport(
        title=f"Pre-training · {out.name}",
        records=RunLog.read(out),
        recipe=recipe.model_dump(mode="json"),
        defaults=Recipe(steps=1_000_000).model_dump(mode="json"),
        corpus=_corpus(recipe)[0],
        vocabulary=_vocabulary(recipe)[0],
        model=model_facts(model),
        fills=read_json(out / FILLS),
        comparison=comparison or None,
        environment=environment(recipe.seed, hardware),
        command=shlex.join(["bertsmith", "pretrain", str(out / "recipe.toml"), "out=runs/again"]),
    )
    return write_report(out, content)


def model_facts(model: PretrainedModel) -> dict[str, Any]:
    """The shape, and the number of weights of each part."""
    config = model.config
    parts = {
        "token embeddings": model.encoder.embeddings.token,
        "other embeddings": model.encoder.embeddings,
        "encoder layers": model.encoder.layers,
        "pooler": model.encoder.pooler,
        **_heads(model),
    }
    counts = {
        name: sum(p.numel() for p in part.parameters()) for name, part in parts.items() if part is not None
    }
    counts["other embeddings"] -= counts["token embeddings"]
    return {
        "family": config.model_type,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "feed-forward width": config.intermediate_size,
        "vocabulary": config.vocab_size,
        "positions": config.max_length,
        "parameters": counts,
    }


def _heads(model: PretrainedModel) -> dict[str, nn.Module | None]:
    """What is trained beside the encoder."""
    if isinstance(model, ReplacedTokenModel):
        return {"replaced-token head": model.replaced_token, "generator": model.generator}
    pairs = "sentence-order head" if model.sentence_order else "next-sentence head"
    return {"masked-language head": model.masked_language, pairs: model.next_sentence}


def left_out(recipe: Recipe) -> list[str]:
    """Sentences on files of the corpus and of the tokenizer that the report will have to do without."""
    return [complaint for _, complaint in (_corpus(recipe), _vocabulary(recipe)) if complaint]


_DAMAGES = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_Section = tuple[dict[str, Any] | None, str | None]


def _corpus(recipe: Recipe) -> _Section:
    return _shown_of(
        recipe.corpus, "manifest.json", lambda found: (corpus_facts(found), corpus_tables(found))
    )


def _vocabulary(recipe: Recipe) -> _Section:
    return _shown_of(
        recipe.tokenizer, "report.json", lambda found: (vocabulary_facts(found), vocabulary_tables(found))
    )


def _shown_of(folder: str | None, name: str, show: Callable[[dict[str, Any]], object]) -> _Section:
    """The content of a JSON file that `show` makes something of, or why there is none: whatever lies in a
    folder of someone else's, a finished training isn't lost by it.
    """
    path = Path(folder or "", name)
    if not folder or not path.is_file():
        return None, None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        show(found)
        json.dumps(found, ensure_ascii=False).encode()  # a page is UTF-8
    except _DAMAGES as error:
        return None, f"{path} is left out of the report, for it is cut or of another kind ({error!r})"
    return found, None
