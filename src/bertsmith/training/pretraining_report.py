"""The report of a pre-training run: its page, the model's candidates for masked words before and after the
training (fills.json), and what continued pre-training gains on its own text and loses on general text.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.files import read_json, write_json
from bertsmith.machine import Hardware
from bertsmith.reporting.tables import corpus_facts, corpus_tables, vocabulary_facts, vocabulary_tables
from bertsmith.tasks.pretraining.fill_mask import fill_mask, masked_examples
from bertsmith.tasks.pretraining.masked_task import GENERAL
from bertsmith.tasks.pretraining.objectives import PretrainedModel
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.reconstruction import warn_no_better_than_mean
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.checkpoint import read_training_state
from bertsmith.training.inputs import Inputs
from bertsmith.training.log import LOG_FILE, Record, RunLog, task_metrics
from bertsmith.training.recipe import Recipe
from bertsmith.training.run_report import RunReport, environment, find_first_evaluation, write_report

FILLS = "fills.json"
_EXAMPLES = 8
# A head that is hardly better than the most frequent token knew nothing that it could forget.
_NOTHING_KNOWN = 0.01
_DAMAGE_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_Section = tuple[dict[str, Any] | None, str | None]


def write_summary(
    out: Path,
    recipe: Recipe,
    model: PretrainedModel,
    hardware: Hardware,
    comparison: list[dict[str, Any]] | None = None,
) -> Path:
    """Writes `report.html` into the run's folder `out` and returns its path. Shows the log, the recipe,
    fills.json, the `comparison`'s rows, and the reports of corpus and tokenizer where they can be read.
    """
    content = RunReport(
        title=f"Pre-training · {out.name}",
        records=RunLog.read(out),
        recipe=recipe.model_dump(mode="json"),
        defaults=Recipe(steps=1_000_000).model_dump(mode="json"),
        corpus=_read_corpus_manifest(recipe)[0],
        vocabulary=_read_vocabulary_report(recipe)[0],
        model=describe_model(model),
        fills=read_json(out / FILLS),
        comparison=comparison or None,
        environment=environment(recipe.seed, hardware),
        command=shlex.join(["bertsmith", "pretrain", str(out / "recipe.toml"), "out=runs/again"]),
    )
    return write_report(out, content)


def describe_model(model: PretrainedModel) -> dict[str, Any]:
    """The model's shape, and the number of weights of each of its parts, as plain values."""
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
        "distances": model.encoder.relative,
        "convolution": model.encoder.convolution,
        "encoder layers": model.encoder.layers,
        "final norm": model.encoder.final_norm,
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


def find_unreadable_reports(recipe: Recipe) -> list[str]:
    """Sentences on reports of the corpus and the tokenizer that can't be read, and are missing in the
    page.
    """
    return [
        problem for _, problem in (_read_corpus_manifest(recipe), _read_vocabulary_report(recipe)) if problem
    ]


def _read_corpus_manifest(recipe: Recipe) -> _Section:
    return _read_section(
        recipe.corpus, "manifest.json", lambda manifest: (corpus_facts(manifest), corpus_tables(manifest))
    )


def _read_vocabulary_report(recipe: Recipe) -> _Section:
    return _read_section(
        recipe.tokenizer, "report.json", lambda report: (vocabulary_facts(report), vocabulary_tables(report))
    )


def _read_section(folder: str | None, name: str, show: Callable[[dict[str, Any]], object]) -> _Section:
    """Reads the JSON file `name` in `folder`. Returns its content, or None and a sentence on why it can't be
    shown; both None when there is no such file. `show` is called with the content to try it out: a finished
    training must not fail over a strange file in someone else's folder.
    """
    path = Path(folder or "", name)
    if not folder or not path.is_file():
        return None, None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        show(content)
        json.dumps(content, ensure_ascii=False).encode()  # a page is UTF-8
    except _DAMAGE_ERRORS as error:
        return None, f"{path} is left out of the report, for it is cut or of another kind ({error!r})"
    return content, None


# -- masked sentences, before and after ----------------------------------------------------------------


def fill_masks(model: PretrainingModel, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Any]]:
    """The candidates for each text's first mask, best first, each as a list of its values (MaskCandidate)."""
    return [
        [[*asdict(candidate).values()] for candidate in fill_mask(model, tokenizer, text)[0]]
        for text in texts
    ]


class Fills:
    """Sentences of a run's text with one word masked, and the model's candidates for it before and after the
    training; saved in fills.json.
    """

    def __init__(self, out: Path, inputs: Inputs, model: PretrainingModel, checkpoint: str | None) -> None:
        """Fills the masks with the weights that the run begins with: `model` has those of `inputs.model`. A
        resumed run reads them from fills.json in `out`. A decay first loads the weights of the `checkpoint`
        that it begins from into `inputs.model`. Rows of numbers have no masked sentences.

        Raises ModelError when the checkpoint is damaged or missing.
        """
        self._path, self._tokenizer = out / FILLS, inputs.tokenizer
        count = 0 if isinstance(inputs.tokenizer, ValueTokenizer) else _EXAMPLES
        longest = inputs.model.config.max_length
        self._examples = masked_examples(inputs.heldout or inputs.train, inputs.tokenizer, count, longest)
        if self._path.exists():
            self._before = [fill["before"] for fill in read_json(self._path)]
        else:
            if checkpoint is not None and self._examples:
                inputs.model.load_state_dict(read_training_state(Path(checkpoint)).weights)
            self._before = self._fill(model)

    def write(self) -> None:
        """Writes fills.json with the candidates from before the training."""
        self._write(before=self._before)

    def write_after(self, model: PretrainingModel) -> None:
        """Writes fills.json with the candidates from before the training and those of the trained `model`."""
        self._write(before=self._before, after=self._fill(model))

    def _fill(self, model: PretrainingModel) -> list[list[Any]]:
        return fill_masks(model, self._tokenizer, [text for text, _ in self._examples])

    def _write(self, **candidates_by_side: list[list[Any]]) -> None:
        fills: list[dict[str, Any]] = [{"text": text, "answer": answer} for text, answer in self._examples]
        for name, candidates_by_text in candidates_by_side.items():
            for fill, candidates in zip(fills, candidates_by_text, strict=True):
                fill[name] = candidates
        write_json(self._path, fills)


# -- learned, gained and forgotten ----------------------------------------------------------------------


def check_against_baselines(metrics: dict[str, float]) -> list[str]:
    """A sentence for each held-out metric that is no better than always giving the same answer. For replaced
    tokens it compares the loss, since a discriminator calls no token replaced until long after it has begun
    to learn.
    """
    warnings = [
        f"held-out {name.upper()} accuracy {metrics[f'{name}_accuracy']:.1%} is no better than always giving "
        f"the most frequent answer ({metrics[f'{name}_majority']:.1%}): this model has learned nothing yet"
        for name in ("mlm", "nsp", "sop")
        if f"{name}_accuracy" in metrics
        and metrics[f"{name}_accuracy"] <= metrics[f"{name}_majority"] + 0.005
    ]
    if "rtd_loss" in metrics and metrics["rtd_loss"] >= metrics["rtd_majority_loss"]:
        warnings.append(
            f"held-out RTD loss {metrics['rtd_loss']:.3f} is no better than knowing the share of replaced "
            f"tokens alone ({metrics['rtd_majority_loss']:.3f}): the discriminator has learned nothing yet"
        )
    return warnings + warn_no_better_than_mean(metrics)


def read_first_evaluation(out: Path) -> Record | None:
    """Reads the held-out metrics from before the run's first step; None when its log doesn't have them."""
    evaluation = find_first_evaluation(RunLog.read(out)) if (out / LOG_FILE).exists() else None
    return None if evaluation is None else task_metrics(evaluation)


def compare_with_start(before: Record | None, after: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each kind of text (the corpus's, general) with its metrics before and after the training; no
    rows when nothing was evaluated before.
    """
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


def check_forgetting(before: Record | None, after: dict[str, float]) -> list[str]:
    """A sentence when the loss on general text rose by more than the loss on the corpus fell, or when that
    can't be told; an empty list otherwise.
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
