"""An encoder that knows the domain: masked language modelling goes on over the unlabelled texts before the
task is learned, by the recipe `adapt`, where cross-validation says that it helps (continued pre-training:
Gururangan et al. 2020).

out/adapted/         the texts as a corpus, and the run of pre-training
out/adapted.json     what it brought, and whether it is begun from
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from bertsmith.errors import ModelError
from bertsmith.files import read_json, write_json
from bertsmith.model.card import learned_row_length
from bertsmith.model.flops import encoder_flops, vocabulary_flops
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Prediction
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.finetune_recipe import FLOP_A_MINUTE, FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodScore, estimate_gain, measure_gain
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import LINEAR, sample_texts
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import read_recipe
from bertsmith.training.run import Run
from bertsmith.training.run_folder import write_recipe

_LENGTH = 128  # tokens of a sequence
_TEXTS_A_MINUTE, _LONG = 120_000, 60  # of the work there is: the model would not see more


@dataclass(frozen=True)
class AdaptationGain:
    """What the linear model gains by the adapted encoder, with the standard error of that."""

    gain: float
    error: float
    kept: bool

    def as_sentence(self, metric: str, texts: int) -> str:
        """'Pre-trained on 5,000 texts: linear +0.0210 ± 0.0080 accuracy, kept.'"""
        verdict = "kept" if self.kept else "not kept"
        return (
            f"Pre-trained on {texts:,} texts: linear {self.gain:+.4f} ± {self.error:.4f} {metric}, {verdict}."
        )


def adapt(run: Run[FinetuneRecipe], recipe: FinetuneRecipe, bench: FinetuneSession) -> FinetuneSession:
    """The session whose encoder was pre-trained further, where that is possible and a linear model of its
    features is expected to be better; else the one given. It is as much work as comparing methods may be.
    """
    try:
        longest = load_pretraining_model(bench.source)[0].config.max_length
    except ModelError:  # there is no masked-language head
        return bench
    if bench.linear is None or bench.folds is None:
        return bench
    if not recipe.minutes_to_choose(len(bench.train)):  # no work was given to compare anything
        return bench
    if isinstance(bench.tokenizer, ValueTokenizer):  # whose rows are no corpus of text
        return bench
    if bench.probe is None or len(bench.probe) < len(bench.train):  # not every row could judge
        return bench
    most = round(_TEXTS_A_MINUTE * min(recipe.minutes_to_choose(len(bench.train)), _LONG))
    examples = [*sample_texts(bench.data.unlabelled, most), *bench.data.train]
    texts = [text for example in examples for text in bench.task.texts(example)]
    length = _sequence_length(bench.source, longest)
    folder, path = run.out / "adapted", run.out / "adapted.json"
    other = bench.begun_from(recipe, _pretrain_encoder(recipe, bench, texts, length, folder, run.console))
    if run.resume and path.exists():
        found = AdaptationGain(**read_json(path))
    else:
        ours, theirs = (_predict_by_folds(each) for each in (other, bench))
        score, gain, error = measure_gain(bench.task, ours, theirs, bench.train.examples)
        found = AdaptationGain(gain, error, estimate_gain(MethodScore(LINEAR, score, gain, error)) > 0)
        write_json(path, asdict(found))
    if run.console is not None:
        said = found.as_sentence(bench.task.main_metric, len(texts))
        run.console.print(said, markup=False, highlight=False)
    return other if found.kept else bench


def _predict_by_folds(bench: FinetuneSession) -> list[Prediction]:
    """What linear models of the features say of the rows that each hasn't learned from."""
    assert bench.folds is not None and bench.probe is not None and bench.linear is not None
    outputs = bench.probe.judge(bench.folds, bench.linear.strength)
    return bench.task.decode_by_folds(outputs, bench.train.examples, bench.train.encoded, bench.folds)


def _sequence_length(source: Path, longest: int) -> int:
    """Of what is pre-trained on: a table's row is not divided."""
    return min(longest, max(_LENGTH, learned_row_length(source) or 0))


def _pretrain_encoder(
    recipe: FinetuneRecipe,
    bench: FinetuneSession,
    texts: Sequence[str],
    length: int,
    folder: Path,
    console: Console | None,
) -> Path:
    """The model, made once."""
    model = folder / "run" / "model"
    if model.exists():
        return model
    if not (folder / "corpus").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(({"text": text} for text in texts), folder / "texts.jsonl")
        build_corpus([str(folder / "texts.jsonl")], folder / "corpus", settings=CorpusSettings(heldout=0.02))
    work = FLOP_A_MINUTE * recipe.minutes_to_choose(len(bench.train))
    usual = read_recipe("adapt", [])
    lengths = np.full(usual.data.batch_size, length)
    guessed = usual.masking.mask_rate * lengths.sum()  # pieces
    guesses = vocabulary_flops(bench.config, guessed, usual.loss.sampled_pieces)
    # of a step, forward and backward
    step_work = 3 * (encoder_flops(bench.config, lengths, guessed) + guesses)
    steps = max(round(work / step_work), 1)
    given = {"init": bench.source, "corpus": folder / "corpus", "out": folder / "run", "steps": steps}
    given |= {"data.sequence_lengths": f"[{length}]"}
    given |= {"seed": recipe.seed, "hardware.device": recipe.hardware.device}
    given |= {"hardware.threads": recipe.hardware.threads, "hardware.precision": recipe.hardware.precision}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None]
    begun = folder / "run" / "recipe.toml"
    if begun.exists():  # a run that was moved goes on with the corpus that was moved with it
        moved = read_recipe(str(begun), []).model_copy(update={"corpus": str(folder / "corpus")})
        write_recipe(moved, folder / "run")
    pretrain("adapt", *settings, resume=True, console=console)
    return model
