"""Adapts the encoder to the domain before it is fine-tuned: masked language modelling goes on over the
unlabelled texts, with the recipe `adapt` (continued pre-training: Gururangan et al. 2020). The adapted
encoder is used only if cross-validation shows that it helps.

out/adapted/         the texts as a corpus, and the pre-training run
out/adapted.json     the measured gain, and whether the adapted encoder is used
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from bertsmith.errors import ModelError
from bertsmith.files import read_json, write_json, write_jsonl
from bertsmith.model.card import learned_row_length
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Prediction
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.finetune_recipe import FLOP_A_MINUTE, FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodScore, estimate_gain, measure_gain
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import LINEAR, sample_texts
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import read_recipe
from bertsmith.training.run import Run
from bertsmith.training.run_folder import write_recipe

_LENGTH = 128  # tokens in a sequence
# How many texts a minute of work reads at most, and how many minutes count: the model wouldn't see more.
_TEXTS_A_MINUTE, _MOST_MINUTES = 120_000, 60


@dataclass(frozen=True)
class AdaptationGain:
    """By how much a linear model of the adapted encoder's features beats one of the original's, in the main
    metric; the standard error of this gain; and whether the adapted encoder is kept.
    """

    gain: float
    error: float
    kept: bool

    def as_sentence(self, metric: str, texts: int) -> str:
        """'Pre-trained on 5,000 texts: linear +0.0210 ± 0.0080 accuracy, kept.'"""
        verdict = "kept" if self.kept else "not kept"
        return (
            f"Pre-trained on {texts:,} texts: linear {self.gain:+.4f} ± {self.error:.4f} {metric}, {verdict}."
        )


def adapt(run: Run[FinetuneRecipe], recipe: FinetuneRecipe, session: FinetuneSession) -> FinetuneSession:
    """Pre-trains the session's encoder further on the unlabelled and the training texts. Returns a session
    with the adapted encoder if a linear model of its features is expected to be better, else the given one.

    The given session also comes back, without any training, if the comparison isn't possible: without a
    masked-language head, folds, a linear model of all rows, or work to compare with, or for rows of values
    instead of text. The pre-training takes as much work as comparing methods may take. Writes to
    `run.out`/adapted and adapted.json; a run that is resumed doesn't repeat what is finished.
    """
    try:
        max_length = load_pretraining_model(session.source)[0].config.max_length
    except ModelError:  # it has no masked-language head
        return session
    if session.linear is None or session.folds is None:
        return session
    if not recipe.minutes_to_choose(len(session.train)):  # no work was given to compare anything
        return session
    if isinstance(session.tokenizer, ValueTokenizer):  # its rows are no corpus of text
        return session
    if session.probe is None or len(session.probe) < len(session.train):  # some rows have no features
        return session
    most_texts = round(_TEXTS_A_MINUTE * min(recipe.minutes_to_choose(len(session.train)), _MOST_MINUTES))
    examples = [*sample_texts(session.data.unlabelled, most_texts), *session.data.train]
    texts = [text for example in examples for text in session.task.texts(example)]
    length = _sequence_length(session.source, max_length)
    folder, path = run.out / "adapted", run.out / "adapted.json"
    encoder = _pretrain_encoder(recipe, session, texts, length, folder, run.console)
    adapted_session = session.with_encoder(recipe, encoder)
    if run.resume and path.exists():
        result = AdaptationGain(**read_json(path))
    else:
        adapted, original = _predict_by_folds(adapted_session), _predict_by_folds(session)
        score, gain, error = measure_gain(session.task, adapted, original, session.train.examples)
        result = AdaptationGain(gain, error, estimate_gain(MethodScore(LINEAR, score, gain, error)) > 0)
        write_json(path, asdict(result))
    if run.console is not None:
        sentence = result.as_sentence(session.task.main_metric, len(texts))
        run.console.print(sentence, markup=False, highlight=False)
    return adapted_session if result.kept else session


def _sequence_length(source: Path, max_length: int) -> int:
    """The length of the sequences to pre-train on: longer than usual if the model has learned longer rows of
    a table, since a row isn't divided between sequences, but at most `max_length`.
    """
    return min(max_length, max(_LENGTH, learned_row_length(source) or 0))


def _predict_by_folds(session: FinetuneSession) -> list[Prediction]:
    """Predictions for all training rows by linear models of the features, each trained on the other folds."""
    assert session.folds is not None and session.probe is not None and session.linear is not None
    outputs = session.probe.predict_held_out(session.folds, session.linear.strength)
    return session.task.decode_by_folds(outputs, session.train.examples, session.train.encoded, session.folds)


def _pretrain_encoder(
    recipe: FinetuneRecipe,
    session: FinetuneSession,
    texts: Sequence[str],
    length: int,
    folder: Path,
    console: Console | None,
) -> Path:
    """Pre-trains the session's encoder on the texts and returns the folder of the model. A model that is
    there already is returned as it is, and a run that was interrupted goes on.
    """
    model = folder / "run" / "model"
    if model.exists():
        return model
    if not (folder / "corpus").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(({"text": text} for text in texts), folder / "texts.jsonl")
        build_corpus([str(folder / "texts.jsonl")], folder / "corpus", settings=CorpusSettings(heldout=0.02))
    work = FLOP_A_MINUTE * recipe.minutes_to_choose(len(session.train))
    defaults = read_recipe("adapt", [])
    lengths = np.full(defaults.data.batch_size, length)
    masked_tokens = defaults.masking.mask_rate * lengths.sum()
    head_flops = vocabulary_flops(session.config, masked_tokens, defaults.loss.sampled_pieces)
    # a backward pass costs twice a forward pass
    step_work = 3 * (encoder_flops(session.config, lengths, masked_tokens) + head_flops)
    steps = max(round(work / step_work), 1)
    settings = {"init": session.source, "corpus": folder / "corpus", "out": folder / "run", "steps": steps}
    settings |= {"data.sequence_lengths": f"[{length}]"}
    settings |= {"seed": recipe.seed, "hardware.device": recipe.hardware.device}
    settings |= {"hardware.threads": recipe.hardware.threads}
    settings |= {"hardware.precision": recipe.hardware.precision}
    overrides = [f"{name}={value}" for name, value in settings.items() if value is not None]
    stored_recipe = folder / "run" / "recipe.toml"
    if stored_recipe.exists():  # a run that was moved goes on with the corpus that was moved with it
        moved = read_recipe(str(stored_recipe), []).model_copy(update={"corpus": str(folder / "corpus")})
        write_recipe(moved, folder / "run")
    pretrain("adapt", *overrides, resume=True, console=console)
    return model
