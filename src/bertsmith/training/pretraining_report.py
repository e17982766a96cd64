"""What a run of pre-training has to show: its page, what the model puts in place of masks before and after
(fills.json), and what continued pre-training gains on its own text and loses on general text.
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
from bertsmith.tasks.pretraining.reconstruction import no_better_than_mean
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.checkpoint import read_training_state
from bertsmith.training.inputs import Inputs
from bertsmith.training.log import LOG_FILE, Record, RunLog, task_metrics
from bertsmith.training.recipe import Recipe
from bertsmith.training.run_report import RunReport, environment, first_evaluation, write_report

FILLS = "fills.json"
_EXAMPLES = 8
#: A head that is no better than the most frequent piece knew nothing that could be forgotten.
_NOTHING_KNOWN = 0.01
_DAMAGES = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_Section = tuple[dict[str, Any] | None, str | None]


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


class Fills:
    """Sentences of a run's text in which a word is masked, and what the model puts there before and after;
    kept in fills.json.
    """

    def __init__(self, out: Path, inputs: Inputs, filling: PretrainingModel, checkpoint: str | None) -> None:
        """Filled by what the run of `out` began with: kept there if it goes on; of a decay by the weights of
        its `checkpoint`, which are put into the inputs' model. `filling` is what fills masks by that one's
        weights. Rows of numbers are no text, and have none.

        Raises ModelError when the checkpoint is damaged or gone.
        """
        self._path, self._tokenizer = out / FILLS, inputs.tokenizer
        count = 0 if isinstance(inputs.tokenizer, ValueTokenizer) else _EXAMPLES
        longest = inputs.model.config.max_length
        self._examples = masked_examples(inputs.heldout or inputs.train, inputs.tokenizer, count, longest)
        if self._path.exists():
            self._before = [each["before"] for each in read_json(self._path)]
        else:
            if checkpoint is not None and self._examples:
                inputs.model.load_state_dict(read_training_state(Path(checkpoint)).weights)
            self._before = self._filled(filling)

    def write(self) -> None:
        """What was put there before."""
        self._write(before=self._before)

    def write_after(self, filling: PretrainingModel) -> None:
        """The same, and beside it what the trained model puts there."""
        self._write(before=self._before, after=self._filled(filling))

    def _filled(self, filling: PretrainingModel) -> list[list[Any]]:
        return filled_masks(filling, self._tokenizer, [text for text, _ in self._examples])

    def _write(self, **sides: list[list[Any]]) -> None:
        fills: list[dict[str, Any]] = [{"text": text, "answer": answer} for text, answer in self._examples]
        for name, filled in sides.items():
            for fill, candidates in zip(fills, filled, strict=True):
                fill[name] = candidates
        write_json(self._path, fills)


# -- learned, gained and forgotten ----------------------------------------------------------------------


def baseline_warnings(metrics: dict[str, float]) -> list[str]:
    """A score that equals always giving the same answer is said to; of replaced tokens the loss, since long
    after it has begun to learn a discriminator calls none replaced.
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
    return warnings + no_better_than_mean(metrics)


def logged_before(out: Path) -> Record | None:
    """Held-out figures before the first step of a run, where its log has them."""
    logged = first_evaluation(RunLog.read(out)) if (out / LOG_FILE).exists() else None
    return None if logged is None else task_metrics(logged)


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
