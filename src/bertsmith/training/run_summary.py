"""Gathers what a run's folder holds into its report."""

import json
import shlex
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.machine.hardware import Hardware
from bertsmith.reporting.run_report import RunReport, write_report
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.training.environment import environment
from bertsmith.training.log import RunLog
from bertsmith.training.recipe import Recipe


def write_summary(
    out: Path,
    recipe: Recipe,
    model: PretrainedModel,
    hardware: Hardware,
    comparison: list[dict[str, Any]] | None = None,
) -> Path:
    """Writes `report.html` from the log, the recipe, the corpus's and tokenizer's own reports, and
    fills.json.
    """
    content = RunReport(
        title=f"Pre-training · {out.name}",
        records=RunLog.read(out),
        recipe=recipe.model_dump(mode="json"),
        defaults=Recipe(steps=1_000_000).model_dump(mode="json"),
        corpus=_json_beside(recipe.corpus, "manifest.json"),
        vocabulary=_json_beside(recipe.tokenizer, "report.json"),
        model=model_facts(model),
        fills=_json_beside(str(out), "fills.json"),
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


def _json_beside(folder: str | None, name: str) -> Any:
    """The content of a JSON file, where there is one."""
    path = Path(folder or "", name)
    return json.loads(path.read_text(encoding="utf-8")) if folder and path.is_file() else None
