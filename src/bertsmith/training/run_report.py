"""`report.html` of a pre-training run: one page that needs nothing else, neither files beside it nor the
network.

What is shown is gathered from the run's folder. Beside its curves that is what the model puts in place of
masks before and after (fills.json), and what continued pre-training gains on its own text and loses on
general text.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import tokenizers
import torch
from torch import nn

from bertsmith import __version__
from bertsmith.files import atomic_write, read_json, write_json
from bertsmith.machine import Hardware
from bertsmith.reporting import charts, formatting, tables
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.reporting.tables import corpus_facts, corpus_tables, vocabulary_facts, vocabulary_tables
from bertsmith.tasks.pretraining.fill_mask import fill_mask
from bertsmith.tasks.pretraining.masked_task import GENERAL
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.checkpoint import read_training_state
from bertsmith.training.log import Record, RunLog
from bertsmith.training.recipe import Recipe

TEMPLATE = "report.html.jinja"
FILLS = "fills.json"
#: A head that is no better than the most frequent piece knew nothing that could be forgotten.
_NOTHING_KNOWN = 0.01
_DAMAGES = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_Section = tuple[dict[str, Any] | None, str | None]


@dataclass(frozen=True)
class RunReport:
    """What is known of a run, as plain values; the page leaves out the sections of which nothing is known.

    records: the lines of the log (`RunLog.read`).
    recipe, defaults: the resolved recipe, and what each setting would be if nobody had said anything.
    corpus: the corpus manifest. vocabulary: the vocabulary report.
    model: whatever describes it; `parameters`, a dictionary of part and number, becomes bars.
    fills: examples: {"text", "answer" (or None), "before": [(token, probability), ...], "after": [...]}.
    comparison: rows of a table, for instance of this model and its baselines.
    environment: versions, machine, seed, hashes of the data. command: what to type to get this run again.
    """

    title: str | None = None
    records: Sequence[Record] = field(default_factory=list)
    recipe: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] | None = None
    corpus: Mapping[str, Any] | None = None
    vocabulary: Mapping[str, Any] | None = None
    model: Mapping[str, Any] | None = None
    fills: Sequence[Mapping[str, Any]] | None = None
    comparison: Sequence[Mapping[str, Any]] | None = None
    environment: Mapping[str, Any] | None = None
    command: str | None = None


def write_report(run_folder: Path, content: RunReport) -> Path:
    """Writes the page into the run's folder and returns its path; the same content gives the same bytes.

    Raises ResourceError when the disk is full or the folder can't be written.
    """
    path = Path(run_folder) / REPORT_FILE
    atomic_write(path, render(content, fallback_title=Path(run_folder).resolve().name))
    return path


def render(content: RunReport, fallback_title: str = "Run") -> str:
    """The page as text. Everything but our own pictures is escaped: texts and tokens may hold any markup."""
    curves = charts.charts(content.records)
    return render_page(
        TEMPLATE,
        title=content.title or fallback_title,
        status=_status(content.records),
        headline=_headline(content),
        warnings=_warnings(content.records),
        pictures=[(chart.title, as_markup(charts.draw(chart))) for chart in curves],
        fills=content.fills or [],
        content=content,
        tables=tables,
        parameters=_parameter_shares(content.model),
        model={name: value for name, value in (content.model or {}).items() if name != "parameters"},
    )


def _headline(content: RunReport) -> list[tuple[str, str]]:
    """The figures to remember, the most telling first; those not known are left out."""
    step, evaluation = _last(content.records, "step"), _last(content.records, "evaluation")
    end = _last(content.records, "end") or step
    parameters = sum(number for _, number, _ in _parameter_shares(content.model)) or None
    figures = [
        ("held-out MLM accuracy", formatting.percent(evaluation.get("mlm_accuracy"))),
        ("held-out MLM perplexity", formatting.perplexity(evaluation.get("mlm_perplexity"))),
        ("MLM accuracy on general text", formatting.percent(evaluation.get("general_mlm_accuracy"))),
        ("held-out NSP accuracy", formatting.percent(evaluation.get("nsp_accuracy"))),
        ("held-out SOP accuracy", formatting.percent(evaluation.get("sop_accuracy"))),
        ("held-out replaced tokens found", formatting.percent(evaluation.get("rtd_recall"))),
        ("parameters", formatting.large(parameters)),
        ("steps", formatting.count(step.get("step"))),
        ("real tokens seen", formatting.large(step.get("tokens"))),
        ("of training", formatting.duration(end.get("elapsed"))),
        ("real tokens per second", formatting.count(_mean(content.records, "tokens_per_second"))),
        ("of the matmul peak", formatting.percent(_mean(content.records, "mfu"))),
    ]
    return [(name, value) for name, value in figures if value != formatting.UNKNOWN]


def _status(records: Sequence[Record]) -> str:
    """When the run began, and how it ended."""
    start, end = _last(records, "start"), _last(records, "end")
    began = start.get("time")
    if isinstance(began, int | float):
        began = datetime.fromtimestamp(began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"begun {began}" if began else "", f"ended: {end['reason']}" if end.get("reason") else ""]
    if records and not end:
        parts.append("not ended yet, or interrupted")
    return " · ".join(part for part in parts if part)


def _warnings(records: Sequence[Record]) -> list[str]:
    """The log's warnings, and one more when losses were not finite (the log has null for them)."""
    found = [
        f"Step {record['step']:,}: {record['message']}" for record in records if record["kind"] == "warning"
    ]
    losses = [record["loss"] for record in records if record["kind"] == "step" and "loss" in record]
    unusable = sum(not _is_finite(loss) for loss in losses)
    if unusable:
        found.append(
            f"{unusable:,} of {len(losses):,} logged losses are not finite and are missing in the curves."
        )
    return found


def _parameter_shares(model: Mapping[str, Any] | None) -> list[tuple[str, int, float]]:
    """Each part of the model with its number of parameters and its share of the largest part."""
    parts = (model or {}).get("parameters")
    if not isinstance(parts, Mapping) or not parts:
        return []
    largest = max(parts.values()) or 1
    return [(str(part), int(number), number / largest) for part, number in parts.items()]


def _last(records: Sequence[Record], kind: str) -> Record:
    return next((record for record in reversed(records) if record["kind"] == kind), {})


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [record[name] for record in records if record["kind"] == "step" and _is_finite(record.get(name))]
    return sum(values) / len(values) if values else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def environment(seed: int, hardware: Hardware) -> dict[str, Any]:
    """What a run's figures depend on beside its recipe, as plain values: versions, machine and seed."""
    return {
        "bertsmith": __version__,
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "processor": hardware.processor,
        "cores": hardware.cores,
        "GPUs": ", ".join(gpu.name for gpu in hardware.gpus) or "none",
        "seed": seed,
    }


# -- what a run of pre-training has to show ------------------------------------------------------------


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
    heads: dict[str, nn.Module | None]
    if isinstance(model, ReplacedTokenModel):
        heads = {"replaced-token head": model.replaced_token, "generator": model.generator}
    else:
        pairs = "sentence-order head" if model.sentence_order else "next-sentence head"
        heads = {"masked-language head": model.masked_language, pairs: model.next_sentence}
    parts = {
        "token embeddings": model.encoder.embeddings.token,
        "other embeddings": model.encoder.embeddings,
        "encoder layers": model.encoder.layers,
        "pooler": model.encoder.pooler,
        **heads,
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


def left_out(recipe: Recipe) -> list[str]:
    """Sentences on files of the corpus and of the tokenizer that the report will have to do without."""
    return [complaint for _, complaint in (_corpus(recipe), _vocabulary(recipe)) if complaint]


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


# -- masked sentences, before and after ----------------------------------------------------------------


def filled_masks(model: PretrainingModel, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Any]]:
    """The candidates of each text's first mask, best first."""
    return [[[*asdict(each).values()] for each in fill_mask(model, tokenizer, text)[0]] for text in texts]


def filled_at_first(
    out: Path,
    model: nn.Module,
    filling: PretrainingModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    checkpoint: str | None,
) -> list[list[Any]]:
    """`filled_masks` by what the run of `out` began with: kept there if it goes on; of a decay the weights of
    its `checkpoint`, which are put into `model`. `filling` is what fills masks by the weights of `model`.

    Raises ModelError when the checkpoint is damaged or gone.
    """
    if (out / FILLS).exists():
        return [each["before"] for each in read_json(out / FILLS)]
    if checkpoint is not None and texts:
        model.load_state_dict(read_training_state(Path(checkpoint)).weights)
    return filled_masks(filling, tokenizer, texts)


def write_fills(out: Path, examples: Sequence[tuple[str, str]], **sides: Sequence[list[Any]]) -> None:
    """`examples` are texts and what was masked there; `sides` their candidates, `before` or `before` and
    `after`.
    """
    fills: list[dict[str, Any]] = [{"text": text, "answer": answer} for text, answer in examples]
    for name, filled in sides.items():
        for fill, candidates in zip(fills, filled, strict=True):
            fill[name] = candidates
    write_json(out / FILLS, fills)


# -- gained and forgotten ------------------------------------------------------------------------------


def first_evaluation(records: Sequence[Record]) -> Record | None:
    """The evaluation before the first step, where there was one."""
    return next((r for r in records if r["kind"] == "evaluation" and r["step"] == 0), None)


def gains_and_losses(before: Record | None, after: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each kind of text: its figures before and after; none where nothing was measured before."""
    if before is None or f"{GENERAL}mlm_loss" not in after:
        return []
    return [
        {
            "held-out text": text,
            "MLM loss before": round(before[f"{kind}mlm_loss"], 4),
            "after": round(after[f"{kind}mlm_loss"], 4),
            "MLM accuracy before": f"{before[f'{kind}mlm_accuracy']:.2%}",
            "accuracy after": f"{after[f'{kind}mlm_accuracy']:.2%}",
        }
        for text, kind in (("of the corpus", ""), ("general", GENERAL))
        if before.get(f"{kind}mlm_loss") is not None and f"{kind}mlm_loss" in after
    ]


def forgetting_warnings(before: Record | None, after: dict[str, float]) -> list[str]:
    """A sentence where the general text's loss rose by more than the corpus's fell, and one where that can't
    be told.
    """
    if before is None or "mlm_loss" not in after or f"{GENERAL}mlm_loss" not in after:
        return []
    if before["mlm_loss"] is None or before[f"{GENERAL}mlm_loss"] is None:  # not finite, read from the log
        return []
    known = before[f"{GENERAL}mlm_accuracy"] - before[f"{GENERAL}mlm_majority"]
    if known < _NOTHING_KNOWN:
        return [
            "the masked-language head began untrained: what the encoder has forgotten can't be told from its "
            "loss on general text, which says only what the head has learned there"
        ]
    gained = before["mlm_loss"] - after["mlm_loss"]
    lost = after[f"{GENERAL}mlm_loss"] - before[f"{GENERAL}mlm_loss"]
    if lost <= max(gained, 0.0):
        return []
    return [
        f"the loss on general text rose by {lost:.3f}, that on the corpus's own fell by {gained:.3f}: more "
        "is forgotten than gained. Raise data.general_share, or lower optimizer.learning_rate"
    ]
